//! Fan out, fan in: extracts from three sources in parallel, then transforms, then loads into two
//! targets, then reports. In the second run a source is down: the join fails, an alert is sent, and
//! the dead event is replayed.
//!
//! ```sh
//! cargo run --example etl
//! ```

use std::time::Duration;

use outbox::store::JoinFilter;
use outbox::{Backoff, Context, DeadFilter, Failure, Handled, HandlerTx, Join, Message, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::Sqlite;

const SOURCES: [&str; 3] = ["customers", "orders", "stock"];
const TARGETS: [&str; 2] = ["search", "warehouse"];

const TABLES: &str = "
    CREATE TABLE source (name TEXT PRIMARY KEY, is_up INTEGER NOT NULL DEFAULT 1);
    CREATE TABLE raw (run INTEGER, source TEXT, item INTEGER);
    CREATE TABLE clean (run INTEGER, item TEXT);
    CREATE TABLE loaded (run INTEGER, target TEXT, items INTEGER);";

// One message type per kind of work: handlers are registered by type.

#[derive(Serialize, Deserialize)]
struct Extract {
    run: u32,
    source: String,
}

#[derive(Serialize, Deserialize)]
struct Transform {
    run: u32,
}

#[derive(Serialize, Deserialize)]
struct Load {
    run: u32,
    target: String,
}

#[derive(Serialize, Deserialize)]
struct Report {
    run: u32,
}

#[derive(Serialize, Deserialize)]
struct Alert {
    run: u32,
}

impl Message for Extract {
    const TYPE: &'static str = "etl.extract";
}

impl Message for Transform {
    const TYPE: &'static str = "etl.transform";
}

impl Message for Load {
    const TYPE: &'static str = "etl.load";
}

impl Message for Report {
    const TYPE: &'static str = "etl.report";
}

impl Message for Alert {
    const TYPE: &'static str = "etl.alert";
}

/// Copies a source. Its rows are committed together with the settlement of the event: a failed
/// attempt leaves no rows, and a repeated attempt does not write them twice.
async fn extract(Extract { run, source }: Extract, cx: Context, mut tx: HandlerTx<Sqlite>) -> Handled {
    for item in 1..=10 {
        let insert = sqlx::query("INSERT INTO raw (run, source, item) VALUES ($1, $2, $3)");
        insert.bind(run).bind(&source).bind(item).execute(&mut **tx).await?;
        if source == "orders" && item == 5 && cx.attempt() == 1 {
            show_line(&format!("{source}: connection reset after {item} rows, trying again"));
            return Err(Failure::retry("connection reset"));
        }
    }
    let is_up = sqlx::query_scalar("SELECT is_up FROM source WHERE name = $1");
    if !is_up.bind(&source).fetch_one(&mut **tx).await? {
        return Err(Failure::dead("no such host")); // a retry does not help
    }
    Ok(())
}

/// Transforms the extracted rows, and fans out again.
async fn transform(Transform { run }: Transform, mut tx: HandlerTx<Sqlite>) -> Handled {
    let clean = "INSERT INTO clean SELECT run, source || '-' || item FROM raw WHERE run = $1";
    sqlx::query(clean).bind(run).execute(&mut **tx).await?;
    tx.fan_out(TARGETS.map(|target| Load { run, target: target.to_owned() }))
        .then(Report { run })
        .if_failed(Alert { run })
        .group(group(run))
        .metadata("load")
        .write() // the loads exist if, and only if, the transformation is committed
        .await?;
    Ok(())
}

async fn load(Load { run, target }: Load, mut tx: HandlerTx<Sqlite>) -> Handled {
    let copy = "INSERT INTO loaded SELECT run, $2, count(*) FROM clean WHERE run = $1 GROUP BY run";
    sqlx::query(copy).bind(run).bind(target).execute(&mut **tx).await?;
    Ok(())
}

async fn report(Report { run }: Report, mut tx: HandlerTx<Sqlite>) -> Handled {
    let loaded = sqlx::query_as("SELECT target, items FROM loaded WHERE run = $1 ORDER BY target");
    let loaded: Vec<(String, i64)> = loaded.bind(run).fetch_all(&mut **tx).await?;
    for (target, items) in loaded {
        show_line(&format!("report: {items} items in {target}"));
    }
    Ok(())
}

async fn alert(Alert { run }: Alert) {
    show_line(&format!("alert: run {run} has failed"));
}

fn group(run: u32) -> String {
    format!("run-{run}")
}

fn show_line(what: &str) {
    println!("{:>12} {what}", "·");
}

/// Starts a run: three events and their follow-up.
async fn start(outbox: &Outbox<Sqlite>, run: u32) -> outbox::Result<()> {
    println!("\nrun {run}");
    let extracts = SOURCES.map(|source| Extract { run, source: source.to_owned() });
    let fan_out = outbox.fan_out(extracts).then(Transform { run }).if_failed(Alert { run });
    fan_out.group(group(run)).metadata("extract").send().await?;
    Ok(())
}

/// Shows the joins of a run whenever they change, until no event is pending.
async fn watch(outbox: &Outbox<Sqlite>, run: u32) -> outbox::Result<()> {
    let (admin, of_run) =
        (outbox.admin(), JoinFilter { grouping_key: Some(group(run)), ..Default::default() });
    let mut shown = Vec::new();
    loop {
        // Read first: joins that change after this are shown below, or in the next round.
        let pending = admin.backlog().await?.pending;
        let joins = admin.joins(&of_run, 10).await?;
        joins.iter().filter(|join| !shown.contains(*join)).for_each(show);
        shown = joins;
        if pending == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn show(join: &Join) {
    let Join { expected, completed, failed, status, .. } = join;
    let phase = join.metadata.as_deref().unwrap_or_default();
    println!("  {phase:<9} {status:<9}   {completed} of {expected} completed, {failed} failed");
}

#[tokio::main]
async fn main() -> outbox::Result<()> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let outbox = Outbox::sqlite(&folder.path().join("etl.db").to_string_lossy()).await?;
    outbox.migrate().await?;
    sqlx::raw_sql(TABLES).execute(outbox.pool()).await?;
    for source in SOURCES {
        sqlx::query("INSERT INTO source (name) VALUES ($1)").bind(source).execute(outbox.pool()).await?;
    }
    let relay = outbox
        .single_node()
        .retry(Backoff::default().base(Duration::from_millis(200)))
        .on(extract)
        .on(transform)
        .on(load)
        .on(report)
        .on(alert)
        .start()
        .await?;

    start(&outbox, 1).await?;
    watch(&outbox, 1).await?;

    sqlx::query("UPDATE source SET is_up = 0 WHERE name = 'stock'").execute(outbox.pool()).await?;
    start(&outbox, 2).await?;
    watch(&outbox, 2).await?;

    println!("\nrun 2, with the source repaired and its dead event replayed");
    sqlx::query("UPDATE source SET is_up = 1 WHERE name = 'stock'").execute(outbox.pool()).await?;
    outbox.admin().replay_all(&DeadFilter::default().event_type(Extract::TYPE), 100).await?;
    watch(&outbox, 2).await?;

    // A closed join stays closed: its alert was sent, so it does not continue silently. Its
    // counters show that the run is complete by now, and an operator decides to continue.
    println!("\nrun 2, continued by an operator");
    outbox.send(Transform { run: 2 }).await?;
    watch(&outbox, 2).await?;

    relay.stop().await?;
    let rows = "SELECT run, count(*) FROM raw GROUP BY run ORDER BY run";
    let rows: Vec<(i64, i64)> = sqlx::query_as(rows).fetch_all(outbox.pool()).await?;
    println!("\nrows extracted, whatever failed on the way: {rows:?}");
    Ok(())
}
