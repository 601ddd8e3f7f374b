//! The tables at the end of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow};
use outbox::{Outbox, OutboxBuilder};
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::database::TestDatabase;

/// The tables of one arena.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Markers that the writers insert in the same transaction, one for each committed event: the
    /// ground truth.
    pub markers: BTreeSet<String>,
    /// The rows of events, by id.
    pub rows: BTreeMap<String, Row>,
    /// The joins, by group.
    pub joins: BTreeMap<String, JoinRow>,
    /// Number of bookings of each event.
    pub ledger: BTreeMap<String, u64>,
    /// Balance of the account.
    pub balance: u64,
    /// Positions of the events of the log, by id.
    pub log: BTreeMap<String, i64>,
    /// Saved position of each publisher of the log.
    pub progress: BTreeMap<String, i64>,
}

/// A row of the table of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// 0 new, 1 done, 2 waiting for a retry, 3 dead.
    pub status: i64,
    /// The sequence number.
    pub seq: i64,
    /// The ordering key; empty if there is none.
    pub key: String,
    /// Failed attempts.
    pub attempts: u32,
    /// The last error.
    pub error: String,
}

impl Row {
    /// Whether the event is dead-lettered.
    pub fn is_dead(&self) -> bool {
        self.status == 3
    }

    /// Whether the event is new or waiting for a retry.
    pub fn is_pending(&self) -> bool {
        matches!(self.status, 0 | 2)
    }

    /// Whether the event was dead-lettered because the processes that handled it crashed.
    pub fn died_of_crashes(&self) -> bool {
        self.is_dead() && self.error.contains("never came back")
    }
}

/// A row of the table of joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRow {
    /// Number of expected steps.
    pub expected: u64,
    /// Number of attached steps.
    pub attached: u64,
    /// Number of completed steps.
    pub completed: u64,
    /// Number of dead-lettered steps.
    pub failed: u64,
    /// 0 pending, 1 completed, 2 failed, 3 cancelled.
    pub status: u64,
}

/// Creates the tables of an arena.
pub async fn make_tables<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<()> {
    let (outbox, table) = open::<DB>(url, arena, prefix).await?;
    outbox.migrate().await?;
    let mut conn = outbox.pool().acquire().await?;
    for sql in [
        format!("CREATE TABLE {table}_marker (event_id varchar(64) PRIMARY KEY)"),
        format!("CREATE TABLE {table}_ledger (event_id varchar(64) NOT NULL)"),
        format!("CREATE TABLE {table}_account (balance bigint NOT NULL)"),
        format!("INSERT INTO {table}_account VALUES (0)"),
    ] {
        DB::execute_sql(&mut conn, &sql).await?;
    }
    Ok(())
}

async fn open<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<(Outbox<DB>, String)> {
    let table = arena.table(prefix);
    let outbox = DB::open(OutboxBuilder::new().table(&table).max_connections(2), url).await?;
    Ok((outbox, table))
}

/// Reads the tables of an arena.
pub async fn read<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<State> {
    let (outbox, table) = open::<DB>(url, arena, prefix).await?;
    let mut conn = outbox.pool().acquire().await?;
    let mut state = State::default();
    let mut rows = async |columns: &[&str], rest: &str| {
        let sql = format!("SELECT {} FROM {table}{rest}", DB::line(columns));
        DB::texts(&mut conn, &sql).await.with_context(|| sql.clone())
    };
    state.markers = rows(&["event_id"], "_marker").await?.into_iter().collect();
    let columns = ["event_id", "status", "seq", "ordering_key", "attempts", "last_error"];
    for line in rows(&columns, "").await? {
        let mut fields = Fields(line.splitn(columns.len(), '|'));
        let id = fields.text()?;
        let row = Row {
            status: fields.number()?,
            seq: fields.number()?,
            key: fields.text()?,
            attempts: fields.number()?,
            error: fields.text()?,
        };
        state.rows.insert(id, row);
    }
    let columns =
        ["grouping_key", "expected_steps", "attached_steps", "completed_steps", "failed_steps", "status"];
    for line in rows(&columns, "_join").await? {
        let mut fields = Fields(line.splitn(columns.len(), '|'));
        let group = fields.text()?;
        let join = JoinRow {
            expected: fields.number()?,
            attached: fields.number()?,
            completed: fields.number()?,
            failed: fields.number()?,
            status: fields.number()?,
        };
        state.joins.insert(group, join);
    }
    for id in rows(&["event_id"], "_ledger").await? {
        *state.ledger.entry(id).or_default() += 1;
    }
    for balance in rows(&["balance"], "_account").await? {
        state.balance = balance.parse()?;
    }
    if arena.has_log() {
        for line in rows(&["event_id", "position"], "_log").await? {
            let mut fields = Fields(line.splitn(2, '|'));
            state.log.insert(fields.text()?, fields.number()?);
        }
        for line in rows(&["publisher", "last_position"], "_topic_progress").await? {
            let mut fields = Fields(line.splitn(2, '|'));
            state.progress.insert(fields.text()?, fields.number()?);
        }
    }
    Ok(state)
}

/// Counts unfinished work: pending events of the workload and unpublished positions.
pub async fn left<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<u64> {
    let (outbox, table) = open::<DB>(url, arena, prefix).await?;
    let mut conn = outbox.pool().acquire().await?;
    // Without hostile rows, which may never become due.
    let pending = format!(
        "SELECT {} FROM {table} WHERE status IN (0, 2) AND event_id LIKE '{arena}-%'",
        DB::line(&["count(*)"])
    );
    let pending = DB::texts(&mut conn, &pending).await?.into_iter().next().unwrap_or_default();
    let mut left = pending.parse::<u64>()?;
    drop(conn);
    if arena.has_log() {
        for lag in outbox.log_admin().lag().await? {
            left += lag.behind;
        }
    }
    Ok(left)
}

/// Reads the saved positions of the log's publishers.
pub async fn positions<DB: TestDatabase>(
    url: &str,
    arena: Arena,
    prefix: &str,
) -> Result<Vec<(String, i64)>> {
    let (outbox, _) = open::<DB>(url, arena, prefix).await?;
    let subscriptions = outbox.log_admin().subscriptions().await?;
    Ok(subscriptions
        .into_iter()
        .map(|subscription| (subscription.id.publisher().to_owned(), subscription.position.get()))
        .collect())
}

/// The process name of an arena's leader.
pub async fn leader<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<Option<String>> {
    let (outbox, table) = open::<DB>(url, arena, prefix).await?;
    let mut conn = outbox.pool().acquire().await?;
    let holders = format!("SELECT COALESCE(holder, '') FROM {table}_lease WHERE name = 'exclusive'");
    let holder = DB::texts(&mut conn, &holders).await?.into_iter().next();
    Ok(holder
        .and_then(|holder| Some(holder.split(':').next()?.to_owned()))
        .filter(|holder| !holder.is_empty()))
}

struct Fields<'a>(std::str::SplitN<'a, char>);

impl Fields<'_> {
    fn text(&mut self) -> Result<String> {
        Ok(self.0.next().context("too few columns")?.to_owned())
    }

    fn number<T: FromStr>(&mut self) -> Result<T> {
        let text = self.text()?;
        text.parse().map_err(|_| anyhow!("`{text}` is no number"))
    }
}
