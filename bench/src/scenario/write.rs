//! Cost of writing events for a business transaction, compared with the same inserts by plain SQL;
//! no relay runs.

use std::time::Duration;

use async_trait::async_trait;
use outbox::{Event, EventId, Outbox};
use sqlx::{PgPool, Postgres};

use super::{Scenario, peer_figures};
use crate::environment::{Environment, Scale, payload, per_second, turns};
use crate::figures::{Case, Part, Sheet, Unit};
use crate::load::{self, Written};

const TABLE: &str = "bench_write";
const OURS: &str = "outbox";
const PLAIN: &str = "plain SQL";

pub(crate) struct Write;

#[async_trait]
impl Scenario for Write {
    fn name(&self) -> &'static str {
        "write"
    }

    fn title(&self) -> &'static str {
        "Write overhead"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "A transaction with a row of the application and 1, 10 or 100 events, by 1, 8 and 32 writers with a connection each, for \
             {:.1} s. Compared with the same rows by plain SQL, all events in one statement: the limit. Nothing is delivered. In a full run the \
             other tools do the same with one job, 8 writers.",
            env.time(TIME).as_secs_f64()
        )
    }

    fn has_peers(&self) -> bool {
        true
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        env.execute(&["DROP TABLE IF EXISTS bench_write_orders"]).await?;
        let outbox = env.outbox(TABLE, 32).await?;
        env.execute(&["CREATE TABLE bench_write_orders (id bigserial PRIMARY KEY, total bigint)"]).await?;
        for events in [1, 10, 100] {
            let mut cases = Vec::new();
            for writers in [1, 8, 32] {
                let name = if writers == 1 { "1 writer".to_owned() } else { format!("{writers} writers") };
                let mut case = Case::of(name, &[OURS, PLAIN]);
                for round in 0..env.rounds {
                    for who in turns(round, &[OURS, PLAIN]) {
                        env.execute(&["TRUNCATE bench_write, bench_write_orders", "CHECKPOINT"]).await?;
                        let time = env.time(TIME);
                        let written = match who {
                            OURS => by_outbox(&outbox, writers, events, time).await?,
                            _ => by_hand(outbox.pool(), writers, events, time).await?,
                        };
                        case.add(round, who, per_second(written.count, written.time));
                    }
                    if let (1, 8, Scale::Full, Some(peers)) = (events, writers, env.scale, &env.peers) {
                        let outcomes = peers.write(&env.database, writers, 5_000).await;
                        for (who, figure) in peer_figures::measured(sheet, outcomes) {
                            figure.per_second().into_iter().for_each(|speed| case.add(round, &who, speed));
                        }
                    }
                }
                cases.push(case);
            }
            let plural = if events == 1 { "" } else { "s" };
            let title = format!("Transactions with {events} event{plural}");
            sheet.parts.push(Part::bars(title, Unit::TransactionsPerSecond, cases));
        }
        outbox.close().await;
        Ok(())
    }
}

const TIME: Duration = Duration::from_millis(2_000);

async fn by_outbox(
    outbox: &Outbox<Postgres>,
    writers: usize,
    events: usize,
    time: Duration,
) -> anyhow::Result<Written> {
    let (outbox, payload) = (outbox.clone(), payload());
    load::write(writers, time, move || {
        let (outbox, payload) = (outbox.clone(), payload.clone());
        async move {
            let mut tx = outbox.begin().await?;
            sqlx::query("INSERT INTO bench_write_orders (total) VALUES (995)").execute(&mut *tx).await?;
            tx.write_all((0..events).map(|_| Event::new("bench").json(&payload))).await?;
            tx.commit().await?;
            Ok(())
        }
    })
    .await
}

async fn by_hand(pool: &PgPool, writers: usize, events: usize, time: Duration) -> anyhow::Result<Written> {
    let (pool, payload) = (pool.clone(), payload());
    load::write(writers, time, move || {
        let (pool, payload) = (pool.clone(), payload.clone());
        async move {
            let mut tx = pool.begin().await?;
            sqlx::query("INSERT INTO bench_write_orders (total) VALUES (995)").execute(&mut *tx).await?;
            let ids: Vec<String> = (0..events).map(|_| EventId::generate().to_string()).collect();
            let payloads =
                (0..events).map(|_| serde_json::to_string(&payload)).collect::<Result<Vec<_>, _>>()?;
            sqlx::query(
                "INSERT INTO bench_write (event_id, event_type, payload) \
                 SELECT id, 'bench', payload::json FROM unnest($1::text[], $2::text[]) AS row (id, payload)",
            )
            .bind(ids)
            .bind(payloads)
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(())
        }
    })
    .await
}
