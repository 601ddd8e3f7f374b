//! The log: how fast a publisher reads a backlog, compared with a plain cursor, and the cost of a
//! condition on an append.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Condition, Event, EventBuilder, Outbox, Outgoing, PublishError, Publisher, Query, Topic};
use sqlx::{Postgres, Row as _};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::Scenario;
use crate::environment::{Environment, payload, per_second, turns};
use crate::figures::{Case, Part, Sheet, Unit};
use crate::text::thousands;

const TABLE: &str = "bench_log";
const PUBLISHER: &str = "outbox, a publisher that counts";
const CURSOR: &str = "a cursor, 1,000 rows at a time";
const CONDITIONAL: &str = "outbox, conditional";
const PLAIN: &str = "outbox, without conditions";

/// Number of concurrent clients.
const CLIENTS: usize = 16;

pub(crate) struct Log;

#[async_trait]
impl Scenario for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn title(&self) -> &'static str {
        "The log"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "A publisher that only counts, over a log of {} events, 1,000 at a time, beside a cursor that fetches the same rows. \
             Conditional appends of {CLIENTS} clients whose conditions do not touch, beside the same appends without conditions.",
            thousands(env.count(500_000) as f64)
        )
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let published = publish(env, env.count(500_000)).await?;
        sheet.parts.push(Part::bars("Publishing a log", Unit::EventsPerSecond, vec![published]));
        let appended = append(env, env.count(20_000)).await?;
        sheet.parts.push(Part::bars("Appending to a log", Unit::EventsPerSecond, vec![appended]));
        Ok(())
    }
}

async fn publish(env: &Environment, events: usize) -> anyhow::Result<Case> {
    let outbox = env.outbox(TABLE, 4).await?;
    let payload = payload();
    for start in (0..events).step_by(1_000) {
        let batch = (start..events.min(start + 1_000)).map(|n| event(&payload, n % 1_000));
        outbox.log().append(batch).await?;
    }
    env.settle("bench_log_log").await?;
    let mut case = Case::of(format!("{} events", thousands(events as f64)), &[PUBLISHER, CURSOR]);
    for round in 0..env.rounds {
        for who in turns(round, &[PUBLISHER, CURSOR]) {
            let time = match who {
                PUBLISHER => by_publisher(&outbox, round, events).await?,
                _ => by_cursor(env, events).await?,
            };
            case.add(round, who, per_second(events, time));
        }
    }
    outbox.close().await;
    Ok(case)
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

/// A plain cursor that reads every column of its rows.
async fn by_cursor(env: &Environment, events: usize) -> anyhow::Result<Duration> {
    let pool = env.pool(1).await?;
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
            let (id, kind) = (row.get::<String, _>(1), row.get::<String, _>(2));
            let (tags, text) = (row.get::<Vec<String>, _>(3), row.get::<Option<String>, _>(10));
            std::hint::black_box((row.get::<i64, _>(0), id, kind, tags, text));
        }
        read += rows.len();
    }
    anyhow::ensure!(read == events, "{read} of {events} events");
    Ok(began.elapsed())
}

async fn append(env: &Environment, appends: usize) -> anyhow::Result<Case> {
    let mut case = Case::of(format!("{CLIENTS} clients"), &[CONDITIONAL, PLAIN]);
    for round in 0..env.rounds {
        for who in turns(round, &[CONDITIONAL, PLAIN]) {
            let outbox = env.outbox(TABLE, CLIENTS).await?;
            let time = by_clients(&outbox, appends, who == CONDITIONAL).await?;
            case.add(round, who, per_second(appends / CLIENTS * CLIENTS, time));
            outbox.close().await;
        }
    }
    Ok(case)
}

/// Each client appends to its own wallet.
async fn by_clients(
    outbox: &Outbox<Postgres>,
    appends: usize,
    conditional: bool,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for wallet in 0..CLIENTS {
        let log = outbox.log();
        tasks.spawn(async move {
            let payload = payload();
            let mut last = outbox::Position::START;
            for _ in 0..appends / CLIENTS {
                let events = [event(&payload, wallet)];
                last = if conditional {
                    let condition = Condition::unless(Query::tag("wallet", wallet)).after(last);
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
