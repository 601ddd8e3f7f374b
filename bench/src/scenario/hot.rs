//! The hot path: the cost of delivery and settlement for a business transaction, compared with the
//! same inserts alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Completion, Context, Event, EventId, Outbox};
use sqlx::{PgPool, Postgres};

use super::Scenario;
use crate::environment::{Environment, payload, per_second, turns_and_back};
use crate::figures::{Bound, Case, Part, Sheet, Unit};
use crate::load::{self, Written};

const TABLE: &str = "bench_hot";
const OURS: &str = "outbox, delivered and settled";
const PLAIN: &str = "plain SQL, without delivery";
const SAME_POOL: &str = "the same, on outbox's pool";
const CONTESTANTS: [&str; 3] = [OURS, PLAIN, SAME_POOL];
/// Duration of each turn; there are two in a round.
const TIME: Duration = Duration::from_secs(3);

pub(crate) struct Hot;

#[async_trait]
impl Scenario for Hot {
    fn name(&self) -> &'static str {
        "hot"
    }

    fn title(&self) -> &'static str {
        "Business transactions with the hot path"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "A transaction with a row of the application and one event, by 8 and 32 writers, in the process in which a `single_node` \
             relay delivers and settles each event; the clock stops when the last is settled. Compared with the same two inserts by plain SQL without delivery: on \
             sqlx's default pool, which pings a connection before and after each transaction, and on the pool of the outbox, which pings \
             after each transaction, and before one only if the connection was idle. `outbox.begin()` pings neither time when \
             transactions follow each other closely. Each contestant has two turns of {:.1} s \
             in a round, the second in the opposite order.",
            env.time(TIME).as_secs_f64()
        )
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let mut cases = Vec::new();
        for writers in [8, 32] {
            let mut case = Case::of(format!("{writers} writers"), &CONTESTANTS);
            for round in 0..env.rounds {
                let mut taken: HashMap<&str, Vec<Written>> = HashMap::new();
                for who in turns_and_back(round, &CONTESTANTS) {
                    taken.entry(who).or_default().push(turn(env, who, writers).await?);
                }
                for (who, turns) in taken {
                    let count = turns.iter().map(|turn| turn.count).sum();
                    case.add(round, who, per_second(count, turns.iter().map(|turn| turn.time).sum()));
                }
            }
            for (beside, pool) in [(PLAIN, "sqlx's pool"), (SAME_POOL, "our pool")] {
                let what = format!("business transactions with the hot path, {writers} writers, {pool}");
                sheet.bounds.push(Bound::at_least(what, 0.9, case.ratio_to(beside)));
            }
            cases.push(case);
        }
        sheet.parts.push(Part::bars(self.title(), Unit::TransactionsPerSecond, cases));
        Ok(())
    }
}

/// One turn of a contestant, on empty tables.
async fn turn(env: &Environment, who: &str, writers: usize) -> anyhow::Result<Written> {
    let outbox = env.outbox(TABLE, writers).await?;
    env.execute(&["CREATE TABLE bench_hot_orders (id bigserial PRIMARY KEY, total bigint)"]).await?;
    env.settle(TABLE).await?;
    let time = env.time(TIME);
    let written = match who {
        OURS => delivered(&outbox, writers, time).await?,
        SAME_POOL => by_hand(outbox.pool(), writers, time).await?,
        _ => {
            let pool = env.pool(writers).await?;
            let written = by_hand(&pool, writers, time).await?;
            pool.close().await;
            written
        }
    };
    outbox.close().await;
    Ok(written)
}

/// An order and its event, written, delivered and settled.
async fn delivered(outbox: &Outbox<Postgres>, writers: usize, time: Duration) -> anyhow::Result<Written> {
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = handled.clone();
    let handler = move |_: Context| {
        counter.fetch_add(1, Ordering::Relaxed);
        async {}
    };
    let relay = outbox.single_node().completion(Completion::Delete).on_type("bench", handler).start().await?;
    let (shared, payload) = (outbox.clone(), payload());
    let began = Instant::now();
    let written = load::write(writers, time, move || {
        let (outbox, payload) = (shared.clone(), payload.clone());
        async move {
            let mut tx = outbox.begin().await?;
            sqlx::query("INSERT INTO bench_hot_orders (total) VALUES (995)").execute(&mut *tx).await?;
            tx.write(Event::new("bench").json(&payload)).await?;
            tx.commit().await?;
            Ok(())
        }
    })
    .await?;
    relay.idle().await?;
    let time = began.elapsed();
    relay.stop().await?;
    let handled = handled.load(Ordering::Relaxed);
    anyhow::ensure!(handled == written.count, "{handled} of {} were handled", written.count);
    Ok(Written { time, ..written })
}

/// The same rows by plain SQL, without delivery.
async fn by_hand(pool: &PgPool, writers: usize, time: Duration) -> anyhow::Result<Written> {
    let (pool, payload) = (pool.clone(), payload());
    load::write(writers, time, move || {
        let (pool, payload) = (pool.clone(), payload.clone());
        async move {
            let mut tx = pool.begin().await?;
            sqlx::query("INSERT INTO bench_hot_orders (total) VALUES (995)").execute(&mut *tx).await?;
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
