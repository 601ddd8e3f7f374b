//! Time from an INSERT of another process to a line of `outbox relay --publish stdout`, on any
//! database.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Event, StoreOptions};

use super::Scenario;
use super::latency::{SHARES, percentile};
use crate::daemon::Daemon;
use crate::environment::Environment;
use crate::figures::{Case, Part, Sheet, Unit};

const TABLE: &str = "bench_line";
const DAEMON: &str = "outbox relay --publish stdout";

/// Pause after each line: long enough that an idle relay waits for a notification again.
const APART: Duration = Duration::from_millis(100);

pub(crate) struct InsertToLine;

#[async_trait]
impl Scenario for InsertToLine {
    fn name(&self) -> &'static str {
        "insert-to-line"
    }

    fn title(&self) -> &'static str {
        "From an INSERT of another process to a line of the daemon"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "From the end of a transaction with one INSERT to the line that `outbox relay --publish stdout` prints, {} times, ten a \
             second, on {}.",
            env.count(200),
            env.database.split(':').next().unwrap_or_default()
        )
    }

    fn any_database(&self) -> bool {
        true
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let inserts = env.count(200);
        let store = outbox::open_store(&env.database, &StoreOptions::default().table(TABLE)).await?;
        store.migrate().await?;
        let mut cases = SHARES.map(|(name, _)| Case::of(name, &[DAEMON]));
        for round in 0..env.rounds {
            let mut daemon = Daemon::start(&env.relay, &env.database, TABLE, "multi-node")?;
            let (arrivals, mut seen) = tokio::sync::mpsc::unbounded_channel();
            let reading = tokio::task::spawn_blocking(move || {
                for _ in 0..=inserts {
                    daemon.read(1)?;
                    let _ = arrivals.send(Instant::now());
                }
                anyhow::Ok(daemon)
            });
            let mut times = Vec::new();
            for n in 0..=inserts {
                store.insert(&[Event::new("bench").json(&n).build()?]).await?;
                let committed = Instant::now();
                let arrived = seen.recv().await.ok_or_else(|| anyhow::anyhow!("the relay ended"))?;
                // The first event waits for the relay to start.
                if n > 0 {
                    times.push(arrived.saturating_duration_since(committed).as_secs_f64() * 1_000.0);
                }
                tokio::time::sleep(APART).await;
            }
            reading.await??.stop()?;
            times.sort_by(f64::total_cmp);
            for (case, (_, share)) in cases.iter_mut().zip(SHARES) {
                case.add(round, DAEMON, percentile(&times, share));
            }
        }
        sheet.parts.push(Part::lines("INSERT to line", Unit::Milliseconds, cases.into()));
        Ok(())
    }
}
