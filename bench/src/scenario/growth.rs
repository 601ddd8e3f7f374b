//! Cost of a claim with many finished rows, with a large backlog, and while another transaction is
//! open.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::store::{Cursor, Filter, Holder, Origin, Settlement, Take, Verdict};
use outbox::{Completion, NodeId, OnDead, Outbox, Status};
use sqlx::Postgres;

use super::Scenario;
use crate::environment::{Environment, Scale, fill, turns};
use crate::figures::{Bound, Case, Part, Sheet, Spread, Unit};
use crate::text::thousands;

/// Number of claims timed for a figure, and number of rows of each.
const CLAIMS: usize = 100;
const TAKEN: usize = 50;

const CLAIM: &str = "a claim of 50";
const EMPTY: &str = "the same in an empty table";

pub(crate) struct Growth;

#[async_trait]
impl Scenario for Growth {
    fn name(&self) -> &'static str {
        "growth"
    }

    fn title(&self) -> &'static str {
        "Cost as the table grows"
    }

    fn about(&self, env: &Environment) -> String {
        format!(
            "The median time of a claim of {TAKEN} rows by lease, out of {CLAIMS}, in tables with finished rows that were kept, with {} \
             pending rows, and with {} rows that were settled while another transaction stayed open, so that nothing could be \
             cleaned up. Beside each the same claim in an empty table, in turns.",
            thousands(sizes(env)[1] as f64),
            thousands((SETTLED_BESIDE * CLAIMS * TAKEN) as f64)
        )
    }

    async fn run(&self, env: &Environment, sheet: &mut Sheet) -> anyhow::Result<()> {
        let sizes = sizes(env);
        let mut finished = Vec::new();
        for rows in sizes {
            finished.push(table(env, &format!("bench_grown_{rows}"), rows, 1).await?);
        }
        let backlog = table(env, "bench_grown_backlog", sizes[1], 0).await?;
        let empty = env.outbox("bench_grown_empty", 4).await?;

        let mut grown = sizes.map(|rows| Case::of(thousands(rows as f64), &[CLAIM, EMPTY]));
        let mut waiting = Case::of(format!("{} pending rows", thousands(sizes[1] as f64)), &[CLAIM, EMPTY]);
        for round in 0..env.rounds {
            for place in turns(round, &[0, 1, 2, 3, 4]) {
                let outbox = finished.get(place).unwrap_or(if place == 3 { &backlog } else { &empty });
                let time = claims(outbox).await?;
                match place {
                    0..=2 => grown[place].add(round, CLAIM, time),
                    3 => waiting.add(round, CLAIM, time),
                    _ => grown.iter_mut().chain([&mut waiting]).for_each(|case| case.add(round, EMPTY, time)),
                }
            }
        }
        let open = beside_open_transaction(env, &empty).await?;

        let what = format!("a claim beside {} finished rows, beside an empty table", grown[2].name);
        sheet.bounds.push(Bound::at_most(what, 1.3, "×", grown[2].ratio_to(EMPTY)));
        sheet.parts.push(Part::lines("A claim beside finished rows", Unit::Milliseconds, grown.into()));
        sheet.parts.push(Part::bars("A claim in other company", Unit::Milliseconds, vec![waiting, open]));
        for outbox in finished.iter().chain([&backlog, &empty]) {
            outbox.close().await;
        }
        for rows in sizes {
            env.execute(&[&format!("DROP TABLE bench_grown_{rows} CASCADE")]).await?;
        }
        env.execute(&["DROP TABLE bench_grown_backlog CASCADE"]).await
    }
}

/// Numbers of finished rows.
fn sizes(env: &Environment) -> [usize; 3] {
    match env.scale {
        Scale::Full => [100_000, 1_000_000, 10_000_000],
        Scale::Quick => [10_000, 50_000, 200_000],
        Scale::Tiny => [10, 100, 1_000],
    }
}

/// Creates a table with this many rows of this status.
async fn table(env: &Environment, name: &str, rows: usize, status: i16) -> anyhow::Result<Outbox<Postgres>> {
    let outbox = env.outbox(name, 4).await?;
    let done_at = if status == 1 { "now()" } else { "NULL" };
    env.execute(&[&format!(
        "INSERT INTO {name} (event_type, payload, status, done_at) \
         SELECT 'bench', '[1]', {status}, {done_at} FROM generate_series(1, {rows})"
    )])
    .await?;
    env.settle(name).await?;
    Ok(outbox)
}

/// How often [`CLAIMS`] are made while the other transaction is open, before the measurement.
const SETTLED_BESIDE: usize = 6;

/// Measures claims while an open snapshot prevents the cleanup of rows that are settled meanwhile.
async fn beside_open_transaction(env: &Environment, outbox: &Outbox<Postgres>) -> anyhow::Result<Case> {
    let mut case = Case::of("beside an open transaction", &[CLAIM, EMPTY]);
    for round in 0..env.rounds {
        env.execute(&["TRUNCATE bench_grown_empty"]).await?;
        case.add(round, EMPTY, claims(outbox).await?);
        let pool = env.pool(1).await?;
        let mut open = pool.begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *open).await?;
        sqlx::query("SELECT count(*) FROM bench_grown_empty").execute(&mut *open).await?;
        for _ in 0..SETTLED_BESIDE {
            claims(outbox).await?;
        }
        case.add(round, CLAIM, claims(outbox).await?);
        open.rollback().await?;
    }
    Ok(case)
}

/// The median time of a claim, in ms. Claims and settles newly written events, as a relay does,
/// each claim from the cursor of the last one.
async fn claims(outbox: &Outbox<Postgres>) -> anyhow::Result<f64> {
    let store = outbox.store();
    let by = Holder::Lease { owner: NodeId::from("bench"), lease: Duration::from_secs(60) };
    fill(outbox, CLAIMS * TAKEN, 0).await?;
    let mut cursor = cursor_now(outbox).await?;
    let mut times = Vec::with_capacity(CLAIMS);
    for _ in 0..CLAIMS {
        let take = Take {
            by: by.clone(),
            from: cursor.map_or(Origin::Start, Origin::After),
            limit: TAKEN,
            skip_recent: Duration::ZERO,
            on_dead: OnDead::Hold,
            skip_types: Vec::new(),
            only: None,
            probe: None,
            destinations: Default::default(),
            held_up_to: HashMap::new(),
            group_lease: true,
            max_bytes: usize::MAX,
            by_aggregate: false,
        };
        let began = Instant::now();
        let taken = store.take(&take).await?;
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
        cursor = taken.cursor.or(cursor);
        anyhow::ensure!(taken.deliveries.len() == TAKEN, "a claim took {} events", taken.deliveries.len());
        let done = taken.deliveries.iter().map(|delivery| Settlement {
            id: delivery.event.id().clone(),
            claim: delivery.claim,
            verdict: Verdict::Done,
        });
        store.settle(&by, Completion::Keep, &done.collect::<Vec<_>>()).await?;
    }
    Ok(Spread::of(times).map_or(f64::NAN, |spread| spread.median))
}

/// The cursor of a relay: just before the oldest pending event.
async fn cursor_now(outbox: &Outbox<Postgres>) -> anyhow::Result<Option<Cursor>> {
    let pending = Filter { status: Some(Status::New), ..Filter::default() };
    let oldest = outbox.store().list(&pending, 1).await?;
    Ok(oldest.first().map(|event| Cursor { at: event.available_at, seq: event.seq - 1 }))
}
