//! The hot path: what delivering and settling adds to a business transaction, beside the same inserts alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outbox::{Completion, Cx, Event, EventId, Outbox};
use sqlx::{PgPool, Postgres};

use crate::{Bed, payload, per_second, print_ratio};

const TABLE: &str = "bench_hot";

pub(crate) async fn run(bed: &Bed, transactions: usize, writers: &[usize]) -> anyhow::Result<()> {
    let pool = bed.pool(1).await?;
    sqlx::query("DROP TABLE IF EXISTS bench_orders").execute(&pool).await?;
    sqlx::query("CREATE TABLE bench_orders (id bigserial PRIMARY KEY, total bigint)").execute(&pool).await?;
    for &writers in writers {
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for round in 0..bed.rounds {
            // Alternating, so that neither always comes first.
            for turn in 0..2 {
                let outbox = bed.outbox(TABLE, writers as u32).await?;
                sqlx::query("TRUNCATE bench_orders").execute(&pool).await?;
                bed.settle(TABLE).await?;
                if (turn + round) % 2 == 0 {
                    plain
                        .push(per_second(transactions, by_hand(outbox.pool(), transactions, writers).await?));
                } else {
                    ours.push(per_second(transactions, with_relay(&outbox, transactions, writers).await?));
                }
                outbox.close().await;
            }
        }
        let what = format!("business transactions, {writers} writers, hot path");
        print_ratio(&what, "tx/s", &ours, &plain, ">= 0.87");
    }
    Ok(())
}

/// An order and its event, written, delivered and settled.
async fn with_relay(
    outbox: &Outbox<Postgres>,
    transactions: usize,
    writers: usize,
) -> anyhow::Result<Duration> {
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = handled.clone();
    let relay = outbox
        .single_node()
        .completion(Completion::Delete)
        .on_type("bench", move |_: Cx| {
            counter.fetch_add(1, Ordering::Relaxed);
            async {}
        })
        .start()
        .await?;
    let shared = outbox.clone();
    let time = spread(transactions, writers, move || {
        let outbox = shared.clone();
        let payload = payload();
        async move {
            let mut tx = outbox.begin().await?;
            sqlx::query("INSERT INTO bench_orders (total) VALUES ($1)")
                .bind(995_i64)
                .execute(&mut *tx)
                .await?;
            outbox.write(&mut tx, Event::new("bench").json(&payload)).await?;
            tx.commit().await?;
            Ok(())
        }
    })
    .await?;
    relay.idle().await?;
    relay.stop().await?;
    let handled = handled.load(Ordering::Relaxed);
    anyhow::ensure!(handled == transactions, "{handled} of {transactions} were handled");
    Ok(time)
}

/// The same rows, by plain SQL, delivered by nobody.
async fn by_hand(pool: &PgPool, transactions: usize, writers: usize) -> anyhow::Result<Duration> {
    let shared = pool.clone();
    spread(transactions, writers, move || {
        let pool = shared.clone();
        let payload = payload();
        async move {
            let mut tx = pool.begin().await?;
            sqlx::query("INSERT INTO bench_orders (total) VALUES ($1)")
                .bind(995_i64)
                .execute(&mut *tx)
                .await?;
            sqlx::query(
                "INSERT INTO bench_hot (event_id, event_type, payload) VALUES ($1, 'bench', $2::json)",
            )
            .bind(EventId::generate().as_str())
            .bind(serde_json::to_string(&payload)?)
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(())
        }
    })
    .await
}

/// Runs a transaction this often, by this many tasks.
async fn spread<F, Fut>(transactions: usize, writers: usize, transaction: F) -> anyhow::Result<Duration>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let left = Arc::new(AtomicUsize::new(transactions));
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..writers {
        let (left, transaction) = (left.clone(), transaction.clone());
        tasks.spawn(async move {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                transaction().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}
