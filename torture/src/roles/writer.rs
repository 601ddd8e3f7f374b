//! A writer: business transactions with a marker row for each event, which proves whether the event
//! was committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use outbox::{Error, Outbox, Tx};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::signal::unix::{SignalKind, signal};

use super::{ProcessOptions, WRITING_STOPPED, relay};
use crate::database::TestDatabase;
use crate::history::{Commit, Op, Writer};
use crate::work::{Kind, Mix, Spec, TxPlan};

/// Number of concurrent transactions.
const WRITE_TASKS: u64 = 6;

/// Writes until the stop file exists, and ends on SIGTERM. A hot writer also runs a relay.
pub async fn run<DB: TestDatabase>(options: &ProcessOptions, hot: bool) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let history = Arc::new(Writer::new(&options.folder, &options.process)?);
    let opening = async {
        let outbox = options.open::<DB>().await;
        let relay = if hot { Some(relay::start(&outbox, options, &history).await) } else { None };
        (outbox, relay)
    };
    let (outbox, relay) = tokio::select! {
        opened = opening => opened,
        _ = terminate.recv() => return Ok(()),
    };
    let writing = Arc::new(AtomicBool::new(true));
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..WRITE_TASKS {
        let task = WriteTask {
            outbox: outbox.clone(),
            options: options.clone(),
            history: history.clone(),
            rng: SmallRng::seed_from_u64(options.seed.wrapping_mul(31).wrapping_add(number)),
            count: count.clone(),
        };
        tasks.spawn(task.write_while(writing.clone()));
    }
    terminate.recv().await;
    writing.store(false, Ordering::SeqCst);
    tasks.join_all().await;
    match relay {
        Some(relay) => relay::stop(relay).await,
        None => Ok(()),
    }
}

struct WriteTask<DB: TestDatabase> {
    outbox: Outbox<DB>,
    options: ProcessOptions,
    history: Arc<Writer>,
    rng: SmallRng,
    count: Arc<AtomicU64>,
}

impl<DB: TestDatabase> WriteTask<DB> {
    async fn write_while(mut self, writing: Arc<AtomicBool>) {
        let mix = Mix {
            arena: self.options.arena,
            slow: self.options.slow.then_some(self.options.lease * 3 / 2),
            panics: self.options.panics,
            aborts: self.options.aborts,
            generation: self.options.generation,
            hooks: self.options.hooks,
        };
        let pause = 1_000_000 * WRITE_TASKS / u64::from(self.options.rate.max(1));
        let stop_file = self.options.folder.join(WRITING_STOPPED);
        while writing.load(Ordering::SeqCst) && !stop_file.exists() {
            let pause = Duration::from_micros(self.rng.random_range(0..=2 * pause));
            tokio::time::sleep(pause).await;
            let number = self.count.fetch_add(1, Ordering::Relaxed);
            let tx = format!("{}-{number}", self.options.process);
            let plan = mix.plan_tx(&mut self.rng, &tx);
            self.history.record(Op::Writing { tx: tx.clone(), events: plan.events.clone() });
            let (how, error) = self.run_tx(&plan).await;
            let failed = matches!(how, Commit::Failed | Commit::Unknown);
            self.history.record(Op::Ended { tx, how, error });
            if failed {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Runs one transaction.
    async fn run_tx(&self, plan: &TxPlan) -> (Commit, Option<String>) {
        let made = async {
            let mut tx = self.outbox.begin().await?;
            self.fill(&mut tx, plan).await?;
            tokio::time::sleep(Duration::from_millis(plan.hold)).await;
            Ok::<_, Error>(tx)
        };
        let tx = match made.await {
            Ok(tx) => tx,
            Err(error) => return (Commit::Failed, Some(error.to_string())),
        };
        if plan.roll_back {
            // If the rollback fails, the connection is lost and the server rolls back.
            let error = tx.rollback().await.err();
            return (Commit::RolledBack, error.map(|error| error.to_string()));
        }
        match tx.commit().await {
            Ok(()) => (Commit::Committed, None),
            Err(error @ Error::CommitUnknown(_)) => (Commit::Unknown, Some(error.to_string())),
            Err(error) => (Commit::Failed, Some(error.to_string())),
        }
    }

    async fn fill(&self, tx: &mut Tx<'static, DB>, plan: &TxPlan) -> Result<(), Error> {
        let marked: Vec<&Spec> = if plan.fan_out {
            let (steps, follow) = plan.events.split_at(plan.events.len() - 2);
            let group = follow[0].join.clone().unwrap_or_default();
            let fan_out = tx.fan_out(steps.iter().map(Spec::event)).group(group);
            fan_out.then(follow[0].event()).if_failed(follow[1].event()).write().await?;
            steps.iter().collect()
        } else if plan.events[0].kind == Kind::Log {
            tx.append(plan.events.iter().map(Spec::event)).await?;
            plan.events.iter().collect()
        } else {
            tx.write_all(plan.events.iter().map(Spec::event)).await?;
            plan.events.iter().collect()
        };
        let rows: Vec<String> = marked.iter().map(|spec| format!("('{}')", spec.id)).collect();
        let markers =
            format!("INSERT INTO {}_marker (event_id) VALUES {}", self.options.table(), rows.join(", "));
        DB::execute_sql(tx, &markers).await?;
        Ok(())
    }
}
