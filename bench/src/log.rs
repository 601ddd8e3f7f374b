//! The log: how fast a publisher reads a backlog, and what a condition adds to an append.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Condition, Event, EventBuilder, Outbox, Outgoing, PublishError, Publisher, Query, Topic};
use sqlx::{AssertSqlSafe, Postgres, Row as _};
use tokio::sync::Notify;

use crate::{Bed, payload, per_second, print_ratio};

const TABLE: &str = "bench_log";

pub(crate) async fn run(bed: &Bed, events: usize, appends: usize, clients: usize) -> anyhow::Result<()> {
    publish(bed, events).await?;
    append(bed, appends, clients).await
}

/// A backlog read by a publisher that only counts, beside a cursor over the same rows that reads the same columns.
async fn publish(bed: &Bed, events: usize) -> anyhow::Result<()> {
    let outbox = fresh(bed, 4).await?;
    let payload = payload();
    for start in (0..events).step_by(1_000) {
        let batch = (start..events.min(start + 1_000)).map(|n| event(&payload, n % 1_000));
        outbox.log().append(batch).await?;
    }
    bed.settle("bench_log_log").await?;
    let (mut ours, mut cursor) = (Vec::new(), Vec::new());
    for round in 0..bed.rounds {
        cursor.push(per_second(events, by_cursor(bed, events).await?));
        ours.push(per_second(events, by_publisher(&outbox, round, events).await?));
    }
    outbox.close().await;
    print_ratio(&format!("log, publisher, backlog of {events}"), "ev/s", &ours, &cursor, ">= 0.6");
    Ok(())
}

async fn by_publisher(outbox: &Outbox<Postgres>, round: usize, events: usize) -> anyhow::Result<Duration> {
    let counter = Counter {
        name: format!("counter-{round}"),
        left: Arc::new(AtomicUsize::new(events)),
        done: Arc::default(),
    };
    let done = counter.done.clone();
    let began = Instant::now();
    let relay = outbox.log_only().publish(Topic::new("all").to(counter).batch(1_000)).start().await?;
    done.notified().await;
    let took = began.elapsed();
    relay.stop().await?;
    Ok(took)
}

struct Counter {
    name: String,
    left: Arc<AtomicUsize>,
    done: Arc<Notify>,
}

#[async_trait]
impl Publisher for Counter {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        if self.left.fetch_sub(events.len(), Ordering::Relaxed) == events.len() {
            self.done.notify_one();
        }
        Ok(())
    }
}

/// A bare cursor: a thousand rows at a time, every column taken out of its row.
async fn by_cursor(bed: &Bed, events: usize) -> anyhow::Result<Duration> {
    let pool = bed.pool(1).await?;
    let began = Instant::now();
    let mut tx = pool.begin().await?;
    let declare = "DECLARE c NO SCROLL CURSOR FOR SELECT position, event_id, event_type, tags, aggregate_type, aggregate_id, \
        tenant_id, ordering_key, correlation_id, headers::text, payload::text, payload_bytes, content_type, occurred_at, \
        created_at FROM bench_log_log ORDER BY position";
    sqlx::query(declare).execute(&mut *tx).await?;
    let mut read = 0;
    loop {
        let rows = sqlx::query("FETCH 1000 FROM c").fetch_all(&mut *tx).await?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            let text: Option<String> = row.get(10);
            let tags: Vec<String> = row.get(3);
            std::hint::black_box((
                row.get::<i64, _>(0),
                row.get::<String, _>(1),
                row.get::<String, _>(2),
                tags,
                text,
            ));
        }
        read += rows.len();
    }
    anyhow::ensure!(read == events, "{read} of {events} events");
    Ok(began.elapsed())
}

/// Conditional appends whose conditions do not touch, beside plain ones.
async fn append(bed: &Bed, appends: usize, clients: usize) -> anyhow::Result<()> {
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..bed.rounds {
        let outbox = fresh(bed, u32::try_from(clients)?).await?;
        plain.push(per_second(appends, by_clients(&outbox, appends, clients, false).await?));
        ours.push(per_second(appends, by_clients(&outbox, appends, clients, true).await?));
        outbox.close().await;
    }
    print_ratio(
        &format!("log, conditional append, {clients} clients, beside plain"),
        "ev/s",
        &ours,
        &plain,
        ">= 0.6",
    );
    Ok(())
}

async fn by_clients(
    outbox: &Outbox<Postgres>,
    appends: usize,
    clients: usize,
    conditional: bool,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let log = outbox.log();
        tasks.spawn(async move {
            let payload = payload();
            let wallet = if conditional { client + clients } else { client };
            let mut last = outbox::Position::START;
            for _ in 0..appends / clients {
                let condition = Condition::unless(Query::tag("wallet", wallet)).after(last);
                let events = [event(&payload, wallet)];
                last = if conditional {
                    log.append_if(events, condition).await?.positions()[0]
                } else {
                    log.append(events).await?[0]
                };
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

fn event(payload: &serde_json::Value, wallet: usize) -> EventBuilder {
    Event::new("DepositMade").tag("wallet", wallet).tag("region", "eu").json(payload)
}

async fn fresh(bed: &Bed, connections: u32) -> anyhow::Result<Outbox<Postgres>> {
    let pool = bed.pool(1).await?;
    for suffix in ["_log", "_log_tag", "_topic_progress"] {
        sqlx::query(AssertSqlSafe(format!("DROP TABLE IF EXISTS {TABLE}{suffix}"))).execute(&pool).await?;
    }
    sqlx::query(AssertSqlSafe(format!("DROP SEQUENCE IF EXISTS {TABLE}_log_seq"))).execute(&pool).await?;
    bed.outbox(TABLE, connections).await
}
