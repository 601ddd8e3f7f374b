//! What a claim costs as finished rows pile up, and while another transaction stays open for the whole run.

use std::time::{Duration, Instant};

use outbox::store::{Cursor, Filter, Holder, Origin, Settlement, Take, Verdict};
use outbox::{Completion, NodeId, OnDead, Outbox, Status};
use sqlx::{AssertSqlSafe, Postgres};

use crate::{Bed, fill, median};

const TABLE: &str = "bench_claim";

/// How many claims are timed for a figure, and how many rows each takes.
const CLAIMS: usize = 200;
const BATCH: usize = 50;

pub(crate) async fn run(bed: &Bed, finished: usize) -> anyhow::Result<()> {
    let outbox = bed.outbox(TABLE, 4).await?;
    let empty = claims(&outbox).await?;
    println!("claim of {BATCH}, no finished rows                     {empty:>8.2?}");

    let rows = format!(
        "INSERT INTO {TABLE} (event_type, payload, status, done_at) \
         SELECT 'bench', '[1]', 1, now() FROM generate_series(1, {finished})"
    );
    let pool = bed.pool(2).await?;
    sqlx::query(AssertSqlSafe(rows)).execute(&pool).await?;
    bed.settle(TABLE).await?;
    print(&format!("claim of {BATCH}, {finished} finished rows"), claims(&outbox).await?, empty);

    // A snapshot that holds back the cleaning up of everything that is settled from here on.
    let mut open = pool.begin().await?;
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *open).await?;
    sqlx::query(AssertSqlSafe(format!("SELECT count(*) FROM {TABLE}"))).execute(&mut *open).await?;
    // Pile up dead rows first, as a long transaction would find them.
    for _ in 0..50 {
        claims(&outbox).await?;
    }
    print(&format!("claim of {BATCH}, beside an open transaction"), claims(&outbox).await?, empty);
    open.rollback().await?;
    outbox.close().await;
    Ok(())
}

fn print(what: &str, time: Duration, empty: Duration) {
    println!(
        "{what:<48} {time:>8.2?}   ratio {:.2}, wanted <= 1.5",
        time.as_secs_f64() / empty.as_secs_f64()
    );
}

/// The median time of a claim. Claims and settles what was just written, as a relay does, from where the last claim
/// ended.
async fn claims(outbox: &Outbox<Postgres>) -> anyhow::Result<Duration> {
    let store = outbox.store();
    let by = Holder::Lease { owner: NodeId::from("bench"), lease: Duration::from_secs(60) };
    fill(outbox, CLAIMS * BATCH, 0).await?;
    let mut cursor: Option<Cursor> = cursor_now(outbox).await?;
    let mut times = Vec::with_capacity(CLAIMS);
    for _ in 0..CLAIMS {
        let take = Take {
            by: by.clone(),
            from: cursor.map_or(Origin::Start, Origin::After),
            limit: BATCH,
            skip_recent: Duration::ZERO,
            on_dead: OnDead::Hold,
            skip_types: Vec::new(),
            frontiers: std::collections::HashMap::new(),
            together: true,
        };
        let began = Instant::now();
        let taken = store.take(&take).await?;
        times.push(began.elapsed().as_secs_f64());
        cursor = taken.cursor.or(cursor);
        anyhow::ensure!(taken.deliveries.len() == BATCH, "a claim took {} events", taken.deliveries.len());
        let settlements: Vec<Settlement> = taken
            .deliveries
            .iter()
            .map(|d| Settlement { id: d.event.id().clone(), claim: d.claim, verdict: Verdict::Done })
            .collect();
        store.settle(&by, Completion::Keep, &settlements).await?;
    }
    Ok(Duration::from_secs_f64(median(times)))
}

/// Where a relay's cursor would stand: just before the oldest pending event.
async fn cursor_now(outbox: &Outbox<Postgres>) -> anyhow::Result<Option<Cursor>> {
    let pending = Filter { status: Some(Status::New), ..Filter::default() };
    let oldest = outbox.store().list(&pending, 1).await?;
    Ok(oldest.first().map(|event| Cursor { at: event.available_at, seq: event.seq - 1 }))
}
