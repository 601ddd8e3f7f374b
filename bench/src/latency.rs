//! How soon an event that another process INSERTs is a line of `outbox relay --publish stdout`, on any database.

use std::path::Path;
use std::time::{Duration, Instant};

use outbox::{Event, StoreOptions};

use crate::median;
use crate::relay::Relay;

const TABLE: &str = "bench_latency";

/// How many INSERTs a figure is made of, and how long after the last line the next one comes: a relay with nothing to do has gone
/// to sleep by then.
const INSERTS: usize = 200;
const APART: Duration = Duration::from_millis(100);

/// From the end of a transaction with one INSERT to the line.
pub(crate) async fn run(database: &str, binary: &Path) -> anyhow::Result<()> {
    let store = outbox::open_store(database, &StoreOptions::default().table(TABLE)).await?;
    store.migrate().await?;
    let mut relay = Relay::start(binary, database, TABLE, "multi-node")?;
    let (told, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let reading = tokio::task::spawn_blocking(move || {
        for _ in 0..=INSERTS {
            relay.read(1)?;
            let _ = told.send(Instant::now());
        }
        anyhow::Ok(relay)
    });
    let mut figures = Vec::new();
    for n in 0..=INSERTS {
        store.insert(&[Event::new("e").json(&n).build()?]).await?;
        let committed = Instant::now();
        let arrived = seen.recv().await.ok_or_else(|| anyhow::anyhow!("the relay ended"))?;
        // The first one waits for the relay to start.
        if n > 0 {
            figures.push(arrived.saturating_duration_since(committed).as_secs_f64() * 1_000.0);
        }
        tokio::time::sleep(APART).await;
    }
    reading.await??.stop()?;
    figures.sort_by(f64::total_cmp);
    let at = |share: f64| figures[((figures.len() - 1) as f64 * share) as usize];
    println!(
        "INSERT of another process to the line, {}: p50 {:.1} ms, p90 {:.1}, p99 {:.1}, most {:.1}",
        database.split(':').next().unwrap_or_default(),
        median(figures.clone()),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    Ok(())
}
