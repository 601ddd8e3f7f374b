//! The relay daemon: `outbox relay --publish stdout` as a separate process, compared with the
//! library's drain of the same backlog; and its memory with a large backlog.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::Outbox;
use sqlx::Postgres;

use super::Scenario;
use crate::daemon::Daemon;
use crate::environment::{Environment, fill, per_second, turns};
use crate::figures::{Bound, Case, Part, Sheet, Unit};
use crate::load;
use crate::text::thousands;

const TABLE: &str = "bench_relay";
const DAEMON: &str = "outbox relay --publish stdout";
const LIBRARY: &str = "the library's drain";

pub(crate) struct Relay;

#[async_trait]
impl Scenario for Relay {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn title(&self) -> &'static str {
        "The relay daemon"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "`outbox relay --publish stdout` as a process of its own, from its start until the last of {} lines is out and its row is \
             gone, beside the library's drain of the same backlog; and the most memory that the process had with {} events waiting.",
            thousands(env.count(200_000) as f64),
            thousands(env.count(1_000_000) as f64)
        )
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let (events, backlog) = (env.count(200_000), env.count(1_000_000));
        let outbox = env.outbox(TABLE, 4).await?;
        let (mut speeds, mut memory) = (Vec::new(), Vec::new());
        for mode in ["single-node", "multi-node"] {
            let mut speed = Case::of(mode, &[DAEMON, LIBRARY]);
            for round in 0..env.rounds {
                for who in turns(round, &[DAEMON, LIBRARY]) {
                    fill(&outbox, events, 0).await?;
                    env.settle(TABLE).await?;
                    let time = match (who, mode) {
                        (DAEMON, _) => drained(&outbox, env, mode, events).await?.0,
                        (_, "single-node") => load::drain(vec![outbox.single_node()], events).await?,
                        _ => load::drain(vec![outbox.multi_node()], events).await?,
                    };
                    speed.add(round, who, per_second(events, time));
                }
            }
            speeds.push(speed);

            // Once is enough: memory does not depend on the load of the machine.
            fill(&outbox, backlog, 0).await?;
            let mut peak =
                Case::of(format!("{mode}, {} events waiting", thousands(backlog as f64)), &[DAEMON]);
            peak.add(0, DAEMON, drained(&outbox, env, mode, backlog).await?.1);
            let what = format!("memory of the relay daemon, {}", peak.name);
            sheet.bounds.push(Bound::at_most(what, 100.0, "MB", peak.series[0].spread()));
            memory.push(peak);
        }
        outbox.close().await;
        sheet.parts.push(Part::bars("Throughput of the daemon", Unit::EventsPerSecond, speeds));
        sheet.parts.push(Part::bars("Memory of the daemon", Unit::Megabytes, memory));
        Ok(())
    }
}

/// Time until all lines are printed and all rows are gone, and the peak memory.
async fn drained(
    outbox: &Outbox<Postgres>,
    env: &Environment,
    mode: &str,
    events: usize,
) -> anyhow::Result<(Duration, f64)> {
    let began = Instant::now();
    let mut daemon = Daemon::start(&env.relay, &env.database, TABLE, mode)?;
    let read = tokio::task::spawn_blocking(move || daemon.read(events).map(|()| daemon));
    let daemon = read.await??;
    while outbox.admin().backlog().await?.pending > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let time = began.elapsed();
    let peak = daemon.peak()?;
    daemon.stop()?;
    Ok((time, peak))
}
