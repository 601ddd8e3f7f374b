//! What the database says in the end.

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
    /// The business's own rows, one for each event that was committed: the truth.
    pub markers: BTreeSet<String>,
    /// The rows of events.
    pub rows: BTreeMap<String, Row>,
    /// The joins, by their groups.
    pub joins: BTreeMap<String, JoinRow>,
    /// How often each event was booked.
    pub ledger: BTreeMap<String, u64>,
    /// What the account says.
    pub balance: u64,
    /// The events of the log, and their positions.
    pub log: BTreeMap<String, i64>,
    /// Where each publisher of the log stands.
    pub progress: BTreeMap<String, i64>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// 0 new, 1 done, 2 to be tried again, 3 dead.
    pub status: i64,
    /// Its place in the table.
    pub seq: i64,
    /// Its key, or nothing.
    pub key: String,
    /// Failed attempts.
    pub attempts: u32,
    /// What was last wrong with it.
    pub error: String,
}

impl Row {
    /// Whether it is dead.
    pub fn is_dead(&self) -> bool {
        self.status == 3
    }

    /// Whether it still waits.
    pub fn is_pending(&self) -> bool {
        matches!(self.status, 0 | 2)
    }

    /// Whether it is dead because those who handled it vanished.
    pub fn died_of_crashes(&self) -> bool {
        self.is_dead() && self.error.contains("never came back")
    }
}

/// A join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRow {
    /// How many steps there should be.
    pub expected: u64,
    /// How many there are.
    pub attached: u64,
    /// How many are done.
    pub completed: u64,
    /// How many are dead.
    pub failed: u64,
    /// 0 pending, 1 completed, 2 failed, 3 cancelled.
    pub status: u64,
}

/// Makes the tables of an arena.
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

/// Reads them.
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

/// How much is left to do: events of the work that wait, positions that were not published.
pub async fn left<DB: TestDatabase>(url: &str, arena: Arena, prefix: &str) -> Result<u64> {
    let (outbox, table) = open::<DB>(url, arena, prefix).await?;
    let mut conn = outbox.pool().acquire().await?;
    // Not those that were put there from outside: no process knows when these are due.
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

/// Where the publishers of the log stand.
pub async fn positions<DB: TestDatabase>(
    url: &str,
    arena: Arena,
    prefix: &str,
) -> Result<Vec<(String, i64)>> {
    let (outbox, _) = open::<DB>(url, arena, prefix).await?;
    let pairs = outbox.log_admin().pairs().await?;
    Ok(pairs.into_iter().map(|pair| (pair.id.publisher().to_owned(), pair.position.get())).collect())
}

/// Who leads an arena, by the name of its process.
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
