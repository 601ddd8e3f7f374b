//! Cold drain: how fast a relay empties a backlog with a handler that does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outbox::{Completion, Cx, Outbox, RelayBuilder};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Row};
use tokio::sync::Notify;

use crate::{Bed, fill, per_second, print_ratio};

const TABLE: &str = "bench_drain";

pub(crate) async fn run(bed: &Bed, events: usize) -> anyhow::Result<()> {
    let (mut single, mut multi, mut plain, mut locked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bed.rounds {
        let outbox = bed.outbox(TABLE, 4).await?;
        fill(&outbox, events, 0).await?;
        bed.settle(TABLE).await?;
        plain.push(per_second(events, by_hand(&bed.pool(1).await?, PLAIN).await?));

        fill(&outbox, events, 0).await?;
        bed.settle(TABLE).await?;
        single.push(per_second(events, drain(&outbox, outbox.single_node(), events).await?));

        fill(&outbox, events, 0).await?;
        bed.settle(TABLE).await?;
        locked.push(per_second(events, by_hand(&bed.pool(1).await?, LOCKED).await?));

        fill(&outbox, events, 0).await?;
        bed.settle(TABLE).await?;
        multi.push(per_second(events, drain(&outbox, outbox.multi_node(), events).await?));
        outbox.close().await;
    }
    print_ratio("cold drain, single_node, beside SELECT + DELETE", "ev/s", &single, &plain, ">= 0.5");
    print_ratio("cold drain, multi_node, beside SKIP LOCKED", "ev/s", &multi, &locked, "-");
    Ok(())
}

/// Starts a relay with an empty handler, and waits until the table is empty.
pub(crate) async fn drain(
    outbox: &Outbox<Postgres>,
    relay: RelayBuilder,
    events: usize,
) -> anyhow::Result<Duration> {
    let left = Arc::new((AtomicUsize::new(events), Notify::new()));
    let counter = left.clone();
    let began = Instant::now();
    let relay = relay
        .completion(Completion::Delete)
        .batch(500)
        .cold_capacity(4_000)
        .on_any(move |_: Cx| {
            let counter = counter.clone();
            async move {
                if counter.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                    counter.1.notify_one();
                }
            }
        })
        .start()
        .await?;
    left.1.notified().await;
    // Done means settled: stopping writes the last verdicts.
    relay.stop().await?;
    let time = began.elapsed();
    let rest = outbox.admin().backlog().await?.pending;
    anyhow::ensure!(rest == 0, "{rest} events are left");
    Ok(time)
}

/// The least that delivers each event at least once with one reader: read a batch, delete it.
const PLAIN: &str = "SELECT event_id, payload::text FROM bench_drain WHERE status IN (0, 2) AND available_at <= now() \
    ORDER BY available_at, seq LIMIT 500";
/// The same with several readers.
const LOCKED: &str = "SELECT event_id, payload::text FROM bench_drain WHERE status IN (0, 2) AND available_at <= now() \
    ORDER BY available_at, seq LIMIT 500 FOR UPDATE SKIP LOCKED";

async fn by_hand(pool: &PgPool, select: &'static str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    loop {
        let mut tx = pool.begin().await?;
        let rows = sqlx::query(AssertSqlSafe(select)).fetch_all(&mut *tx).await?;
        let mut ids = Vec::with_capacity(rows.len());
        let mut bytes = 0;
        for row in &rows {
            ids.push(row.get::<String, _>(0));
            bytes += row.get::<String, _>(1).len();
        }
        std::hint::black_box(bytes);
        if ids.is_empty() {
            return Ok(began.elapsed());
        }
        sqlx::query("DELETE FROM bench_drain WHERE event_id = ANY($1)").bind(ids).execute(&mut *tx).await?;
        tx.commit().await?;
    }
}
