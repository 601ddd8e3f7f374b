//! The hot path: what delivering and settling adds to a business transaction, beside the same inserts alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Completion, Cx, Event, EventId, Outbox};
use sqlx::{PgPool, Postgres};

use super::Scenario;
use crate::bed::{Bed, payload, per_second, turns};
use crate::figures::{Bound, Case, Part, Sheet, Unit};
use crate::load;

const TABLE: &str = "bench_hot";
const OURS: &str = "outbox, delivered and settled";
const PLAIN: &str = "plain SQL, delivered by nobody";
const TIME: Duration = Duration::from_secs(5);

pub(crate) struct Hot;

#[async_trait]
impl Scenario for Hot {
    fn name(&self) -> &'static str {
        "hot"
    }

    fn title(&self) -> &'static str {
        "Business transactions with the hot path"
    }

    fn about(&self, bed: &Bed) -> String {
        format!(
            "A transaction with a row of the application and one event, by 8 and 32 writers for {:.1} s, in the process in which a \
             `single_node` relay delivers and settles each event; the clock stops when the last is settled. Beside it the same two \
             inserts by plain SQL, which nobody delivers.",
            bed.time(TIME).as_secs_f64()
        )
    }

    async fn run(&self, bed: &Bed, sheet: &mut Sheet) -> anyhow::Result<()> {
        let mut cases = Vec::new();
        for writers in [8, 32] {
            let mut case = Case::of(format!("{writers} writers"), &[OURS, PLAIN]);
            for round in 0..bed.rounds {
                for who in turns(round, &[OURS, PLAIN]) {
                    let outbox = bed.outbox(TABLE, writers).await?;
                    bed.execute(&["CREATE TABLE bench_hot_orders (id bigserial PRIMARY KEY, total bigint)"])
                        .await?;
                    bed.settle(TABLE).await?;
                    let time = bed.time(TIME);
                    let speed = match who {
                        OURS => delivered(&outbox, writers, time).await?,
                        _ => by_hand(outbox.pool(), writers, time).await?,
                    };
                    case.add(round, who, speed);
                    outbox.close().await;
                }
            }
            let what = format!("business transactions with the hot path, {writers} writers");
            sheet.bounds.push(Bound::at_least(what, 0.9, case.ratio_to(PLAIN)));
            cases.push(case);
        }
        sheet.parts.push(Part::bars(self.title(), Unit::TransactionsPerSecond, cases));
        Ok(())
    }
}

/// An order and its event, written, delivered and settled.
async fn delivered(outbox: &Outbox<Postgres>, writers: usize, time: Duration) -> anyhow::Result<f64> {
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = handled.clone();
    let handler = move |_: Cx| {
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
            outbox.write(&mut tx, Event::new("bench").json(&payload)).await?;
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
    Ok(per_second(written.count, time))
}

/// The same rows, by plain SQL, delivered by nobody.
async fn by_hand(pool: &PgPool, writers: usize, time: Duration) -> anyhow::Result<f64> {
    let (pool, payload) = (pool.clone(), payload());
    let written = load::write(writers, time, move || {
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
    .await?;
    Ok(per_second(written.count, written.time))
}
