//! Time from commit to handler, at a steady rate.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Completion, Context, Event, Outbox};
use sqlx::Postgres;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::{Scenario, peer_figures};
use crate::environment::{Environment, Scale, payload, turns};
use crate::figures::{Bound, Case, Part, Sheet, Unit};
use crate::peers::Figure;
use crate::text::thousands;

const TABLE: &str = "bench_latency";
const HOT: &str = "outbox, hot path";
const PEERS: &str = "the other tools";
const COLD: &str = "outbox, written elsewhere";

/// Reported percentiles of a round.
pub(crate) const SHARES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("most", 1.0)];

/// Duration of the load.
const TIME: Duration = Duration::from_secs(10);

pub(crate) struct Latency;

#[async_trait]
impl Scenario for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn title(&self) -> &'static str {
        "Latency from commit to handler"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "From the return of a commit with one event to the first line of its handler, at 100 and at 1,000 events a second for \
             {:.0} s, by a `multi_node` relay. On the hot path writer and relay are one process; `written elsewhere` is a handle with \
             a pool of its own, as another process would have, and PostgreSQL wakes the relay. The other tools measure the same of \
             themselves, each with what it has to be woken by.",
            env.time(TIME).as_secs_f64()
        )
    }

    fn has_peers(&self) -> bool {
        true
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        for rate in [100, 1_000] {
            let mut cases = SHARES.map(|(name, _)| Case::of(name, &[HOT, COLD]));
            for round in 0..env.rounds {
                for who in turns(round, &[HOT, COLD, PEERS]) {
                    if who == PEERS {
                        of_peers(env, sheet, rate, round, &mut cases).await;
                        continue;
                    }
                    let relaying = env.outbox(TABLE, 8).await?;
                    let writing = if who == HOT { relaying.clone() } else { env.handle(TABLE, 8).await? };
                    let times = times(&writing, &relaying, rate, env.time(TIME)).await?;
                    for (case, (_, share)) in cases.iter_mut().zip(SHARES) {
                        case.add(round, who, percentile(&times, share));
                    }
                    writing.close().await;
                    relaying.close().await;
                }
            }
            if rate == 100 {
                for (place, most) in [(0, 0.3), (2, 5.0)] {
                    let what = format!("hot path, commit to handler at 100 events/s, {}", cases[place].name);
                    let found = cases[place].series[0].spread();
                    sheet.bounds.push(Bound::at_most(&what, most, "ms", found));
                    let what = format!("{what}, beside the soonest of the other tools");
                    sheet.bounds.push(Bound::at_most(
                        what,
                        1.0,
                        "×",
                        peer_figures::of_soonest(&cases[place], 2),
                    ));
                }
            }
            let title = format!("Commit to handler, {} events per second", thousands(f64::from(rate)));
            sheet.parts.push(Part::lines(title, Unit::Milliseconds, cases.into()));
        }
        Ok(())
    }
}

/// Adds the figures of the other tools. A quick run skips them.
async fn of_peers(env: &Environment, sheet: &mut Sheet, rate: u32, round: usize, cases: &mut [Case; 4]) {
    let (Some(peers), Scale::Full) = (&env.peers, env.scale) else { return };
    let seconds = env.time(TIME).as_secs() as u32;
    for (who, figure) in peer_figures::measured(sheet, peers.latency(&env.database, rate, seconds).await) {
        if let Figure::Latency { p50, p90, p99, max, .. } = figure {
            cases.iter_mut().zip([p50, p90, p99, max]).for_each(|(case, at)| case.add(round, &who, at));
        }
    }
}

/// The part of a payload that the handler reads.
#[derive(serde::Deserialize)]
struct Numbered {
    order: usize,
}

/// The latency of each event, in ms, sorted.
async fn times(
    writing: &Outbox<Postgres>,
    relaying: &Outbox<Postgres>,
    rate: u32,
    time: Duration,
) -> anyhow::Result<Vec<f64>> {
    let events = (f64::from(rate) * time.as_secs_f64()) as usize;
    let handled = Arc::new(Mutex::new(vec![None; events]));
    let recorded = handled.clone();
    let relay = relaying
        .multi_node()
        .completion(Completion::Delete)
        .on_type("bench", move |cx: Context| {
            let now = Instant::now();
            let number = cx.event().payload::<Numbered>().map(|payload| payload.order);
            let recorded = recorded.clone();
            async move {
                recorded.lock().expect("no thread panics while it holds the lock")[number?] = Some(now);
                Ok::<_, outbox::PayloadError>(())
            }
        })
        .start()
        .await?;
    // Exclude the relay's start-up.
    tokio::time::sleep(Duration::from_millis(300)).await;

    // Each transaction has its own task: a slow commit must not lower the rate.
    let mut tasks = JoinSet::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..events {
        tick.tick().await;
        let outbox = writing.clone();
        let mut payload = payload();
        payload["order"] = number.into();
        tasks.spawn(async move {
            let mut tx = outbox.begin().await?;
            tx.write(Event::new("bench").json(&payload)).await?;
            tx.commit().await?;
            anyhow::Ok((number, Instant::now()))
        });
    }
    let mut committed = Vec::with_capacity(events);
    while let Some(ended) = tasks.join_next().await {
        committed.push(ended??);
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while handled.lock().expect("no thread panics while it holds the lock").iter().any(Option::is_none) {
        anyhow::ensure!(Instant::now() < deadline, "not every event was handled within a minute");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    relay.stop().await?;

    let handled = handled.lock().expect("no thread panics while it holds the lock");
    let mut times: Vec<f64> = committed
        .into_iter()
        .filter_map(|(number, committed)| Some((handled[number]?, committed)))
        // The handler may start before the writer's commit returns.
        .map(|(handled, committed)| handled.saturating_duration_since(committed).as_secs_f64() * 1_000.0)
        .collect();
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The time within which this share of all events stays.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.max(1) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let times: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&times, 0.5), 100.0);
        assert_eq!(percentile(&times, 0.99), 198.0);
        assert_eq!(percentile(&times, 1.0), 200.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
