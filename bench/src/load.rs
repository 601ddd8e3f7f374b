//! Work that is done by several at once: writers, and relays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outbox::{Completion, Cx, RelayBuilder};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::bed::BATCH;

/// How long a drain may take before something is wrong.
const PATIENCE: Duration = Duration::from_secs(600);

/// How many transactions there were, and how long they took.
pub(crate) struct Written {
    pub(crate) count: usize,
    pub(crate) time: Duration,
}

/// Runs a transaction again and again for so long, by so many tasks, each to its end.
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

/// Starts relays with an empty handler; returns how long it took until all of these events were handled and settled.
pub(crate) async fn drain(relays: Vec<RelayBuilder>, events: usize) -> anyhow::Result<Duration> {
    let left = Arc::new((AtomicUsize::new(events), Notify::new()));
    let began = Instant::now();
    let mut running = Vec::new();
    for relay in relays {
        let counter = left.clone();
        let relay =
            relay.completion(Completion::Delete).batch(BATCH).cold_capacity(4_000).on_any(move |_: Cx| {
                let counter = counter.clone();
                async move {
                    if counter.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                        counter.1.notify_one();
                    }
                }
            });
        running.push(relay.start().await?);
    }
    let handled = tokio::time::timeout(PATIENCE, left.1.notified()).await;
    handled.with_context(|| format!("{} events are not handled yet", left.0.load(Ordering::Relaxed)))?;
    // Stopping writes the last verdicts.
    for relay in running {
        relay.stop().await?;
    }
    Ok(began.elapsed())
}
