//! A writer: transactions of a business, with a marker for each event that says whether it was committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use outbox::{Error, Outbox, Tx};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::signal::unix::{SignalKind, signal};

use super::{QUIET, Told, relay};
use crate::base::Base;
use crate::history::{Commit, Scribe, What};
use crate::work::{Deal, Kind, Mix, Spec};

/// How many write at once.
const HANDS: u64 = 6;

/// Writes until it is told to be quiet, and ends by SIGTERM. One that is hot runs a relay of its own.
pub async fn play<DB: Base>(told: &Told, hot: bool) -> Result<()> {
    let mut enough = signal(SignalKind::terminate())?;
    let scribe = Arc::new(Scribe::new(&told.folder, &told.process)?);
    let opening = async {
        let outbox = told.open::<DB>().await;
        let relay = if hot { Some(relay::start(&outbox, told, &scribe).await) } else { None };
        (outbox, relay)
    };
    let (outbox, relay) = tokio::select! {
        opened = opening => opened,
        _ = enough.recv() => return Ok(()),
    };
    let writing = Arc::new(AtomicBool::new(true));
    let count = Arc::new(AtomicU64::new(0));
    let mut hands = tokio::task::JoinSet::new();
    for hand in 0..HANDS {
        let writer = Writer {
            outbox: outbox.clone(),
            told: told.clone(),
            scribe: scribe.clone(),
            dice: SmallRng::seed_from_u64(told.seed.wrapping_mul(31).wrapping_add(hand)),
            count: count.clone(),
        };
        hands.spawn(writer.write_while(writing.clone()));
    }
    enough.recv().await;
    writing.store(false, Ordering::SeqCst);
    hands.join_all().await;
    match relay {
        Some(relay) => relay::stop(relay).await,
        None => Ok(()),
    }
}

struct Writer<DB: Base> {
    outbox: Outbox<DB>,
    told: Told,
    scribe: Arc<Scribe>,
    dice: SmallRng,
    count: Arc<AtomicU64>,
}

impl<DB: Base> Writer<DB> {
    async fn write_while(mut self, writing: Arc<AtomicBool>) {
        let mix = Mix {
            arena: self.told.arena,
            slow: self.told.slow.then_some(self.told.lease * 3 / 2),
            panics: self.told.panics,
            aborts: self.told.aborts,
            generation: self.told.generation,
            hooks: self.told.hooks,
        };
        let pause = 1_000_000 * HANDS / u64::from(self.told.rate.max(1));
        let quiet = self.told.folder.join(QUIET);
        while writing.load(Ordering::SeqCst) && !quiet.exists() {
            let pause = Duration::from_micros(self.dice.random_range(0..=2 * pause));
            tokio::time::sleep(pause).await;
            let number = self.count.fetch_add(1, Ordering::Relaxed);
            let tx = format!("{}-{number}", self.told.process);
            let deal = mix.deal(&mut self.dice, &tx);
            self.scribe.note(What::Writing { tx: tx.clone(), events: deal.events.clone() });
            let (how, error) = self.make(&deal).await;
            let failed = matches!(how, Commit::Failed | Commit::Unknown);
            self.scribe.note(What::Ended { tx, how, error });
            if failed {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Makes a transaction.
    async fn make(&self, deal: &Deal) -> (Commit, Option<String>) {
        let made = async {
            let mut tx = self.outbox.begin().await?;
            self.fill(&mut tx, deal).await?;
            tokio::time::sleep(Duration::from_millis(deal.hold)).await;
            Ok::<_, Error>(tx)
        };
        let tx = match made.await {
            Ok(tx) => tx,
            Err(error) => return (Commit::Failed, Some(error.to_string())),
        };
        if deal.roll_back {
            // If that fails its connection is gone, and with it the transaction.
            let error = tx.rollback().await.err();
            return (Commit::RolledBack, error.map(|error| error.to_string()));
        }
        match tx.commit().await {
            Ok(()) => (Commit::Committed, None),
            Err(error @ Error::CommitUnknown(_)) => (Commit::Unknown, Some(error.to_string())),
            Err(error) => (Commit::Failed, Some(error.to_string())),
        }
    }

    async fn fill(&self, tx: &mut Tx<'static, DB>, deal: &Deal) -> Result<(), Error> {
        let marked: Vec<&Spec> = if deal.fan_out {
            let (steps, follow) = deal.events.split_at(deal.events.len() - 2);
            let group = follow[0].join.clone().unwrap_or_default();
            let fan_out = self.outbox.fan_out(steps.iter().map(Spec::event)).group(group);
            fan_out.then(follow[0].event()).if_failed(follow[1].event()).write(tx).await?;
            steps.iter().collect()
        } else if deal.events[0].kind == Kind::Log {
            tx.append(deal.events.iter().map(Spec::event)).await?;
            deal.events.iter().collect()
        } else {
            tx.write_all(deal.events.iter().map(Spec::event)).await?;
            deal.events.iter().collect()
        };
        let rows: Vec<String> = marked.iter().map(|spec| format!("('{}')", spec.id)).collect();
        let markers =
            format!("INSERT INTO {}_marker (event_id) VALUES {}", self.told.table(), rows.join(", "));
        DB::execute_sql(tx, &markers).await?;
        Ok(())
    }
}
