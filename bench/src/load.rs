//! Concurrent work: writers and relays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outbox::{Completion, Context, Database, RelayBuilder};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::environment::BATCH;

/// Time limit of a drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// Number of transactions and their total duration.
pub(crate) struct Written {
    pub(crate) count: usize,
    pub(crate) time: Duration,
}

/// Runs a transaction repeatedly for this long, by this many tasks; each task completes its last
/// one.
pub(crate) async fn write<F, Fut>(writers: usize, time: Duration, transaction: F) -> anyhow::Result<Written>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let (over, transaction) = (over.clone(), transaction.clone());
        tasks.spawn(async move {
            let mut written = 0;
            while !over.load(Ordering::Relaxed) {
                transaction().await?;
                written += 1;
            }
            anyhow::Ok(written)
        });
    }
    tokio::time::sleep(time).await;
    over.store(true, Ordering::Relaxed);
    let mut count = 0;
    while let Some(ended) = tasks.join_next().await {
        count += ended??;
    }
    Ok(Written { count, time: began.elapsed() })
}

/// Starts relays with an empty handler; returns the time until all of these events were handled and
/// settled.
pub(crate) async fn drain<DB: Database>(
    relays: Vec<RelayBuilder<DB>>,
    events: usize,
) -> anyhow::Result<Duration> {
    let left = Arc::new((AtomicUsize::new(events), Notify::new()));
    let began = Instant::now();
    let mut running = Vec::new();
    for relay in relays {
        let counter = left.clone();
        let relay = relay.completion(Completion::Delete).batch(BATCH).cold_capacity(4_000).on_any(
            move |_: Context| {
                let counter = counter.clone();
                async move {
                    if counter.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                        counter.1.notify_one();
                    }
                }
            },
        );
        running.push(relay.start().await?);
    }
    let handled = tokio::time::timeout(DRAIN_TIMEOUT, left.1.notified()).await;
    handled.with_context(|| format!("{} events are not handled yet", left.0.load(Ordering::Relaxed)))?;
    // Stopping writes the remaining verdicts.
    for relay in running {
        relay.stop().await?;
    }
    Ok(began.elapsed())
}
