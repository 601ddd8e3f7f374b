//! The event log on SQL. This file holds the code that all databases share; each database's own
//! part is in a file next to it.
//!
//! | database | position | an append waits for |
//! | --- | --- | --- |
//! | PostgreSQL | drawn from a sequence, committed in any order | advisory locks on its tags and types |
//! | MySQL, MariaDB | a counter, committed in its order | the counter's row |
//! | SQLite | the row's number | the one writer |

mod rows;
mod statements;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::dialect::{Database, Render, Value};
use super::names::Names;
use super::source::{Conn, Source};
use super::store::SqlStore;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::log::{
    Appended, BoundedRead, Condition, Item, LogStore, OpenAppend, Position, Query, StoredLogEvent,
    SubscriptionId, Unreadable, Watermark,
};
use crate::store::short_error;

/// The named lease whose epoch is the stored watermark.
const FRONTIER: &str = "log frontier";

/// Differences between databases in the log. Not for use outside of this crate.
#[doc(hidden)]
pub trait LogDialect: sqlx::Database + Sized {
    /// Whether one statement appends, without a transaction around it.
    const APPENDS_AT_ONCE: bool = false;
    /// Statement after BEGIN that makes a transaction suitable for checking conditions.
    const TO_DECIDE: Option<&'static str> = None;
    /// Clause that lets a read in the caller's transaction see rows committed after the transaction
    /// began.
    const CURRENT: &'static str = "";
    /// Whether an application's reads use their own connections.
    const READS_APART: bool = false;
    /// Query for the highest position.
    const HEAD: &'static str;
    /// Deletes the tags of events, by a list of positions, before the events are deleted.
    const PURGE_TAGS: &'static str;

    /// [`PURGE_TAGS`](Self::PURGE_TAGS) of the product that these tables are on, known after the
    /// first statement on them.
    fn purge_tags(_: &Names) -> &'static str {
        Self::PURGE_TAGS
    }
    /// Query for subscriptions that wait for an open transaction, and that transaction; `None`
    /// where publishers never wait.
    const WAITING_SUBSCRIPTIONS: Option<&'static str> = None;

    /// [`WAITING_SUBSCRIPTIONS`](Self::WAITING_SUBSCRIPTIONS) of the product that these tables are
    /// on, known after the first statement on them.
    fn waiting_subscriptions(_: &Names) -> Option<&'static str> {
        Self::WAITING_SUBSCRIPTIONS
    }

    /// Appends events, or returns the reason for refusing.
    fn append(
        sql: &dyn Render,
        conn: &mut Self::Connection,
        append: &Append<'_>,
    ) -> impl Future<Output = Result<AppendOutcome>> + Send;

    /// Waits until the result of these alternatives is final up to the returned position.
    /// `to_stay`: keeps it final until the end of the transaction, which must be able to see the
    /// result.
    fn settle(
        sql: &dyn Render,
        conn: &mut Self::Connection,
        items: &[Item],
        to_stay: bool,
    ) -> impl Future<Output = Result<Position>> + Send;

    /// Advances the watermark.
    fn look(
        sql: &dyn Render,
        conn: &mut Self::Connection,
        watermark: &mut Watermark,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Decodes a row that [`statements::read`] selected.
    fn stored(row: &Self::Row) -> Result<StoredLogEvent, sqlx::Error>;
}

/// Events, and the conditions for appending them.
#[doc(hidden)]
#[derive(Debug)]
pub struct Append<'a> {
    events: &'a [Event],
    /// The checks for "already done" come first: a repeated append is reported as such even if it
    /// would also conflict.
    checks: Vec<Check<'a>>,
    /// Whether the transaction contains only this append, and ends with an error of the append.
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "only MySQL has something to undo"))]
    own: bool,
}

/// Condition that no event may match.
#[derive(Debug)]
struct Check<'a> {
    item: &'a Item,
    after: Position,
    /// Whether a match means "already done" rather than a conflict.
    once: bool,
}

impl<'a> Append<'a> {
    fn new(events: &'a [Event], condition: &'a Condition, own: bool) -> Result<Self> {
        let mut checks = Vec::new();
        for query in &condition.once {
            let check = |item| Check { item, after: Position::START, once: true };
            checks.extend(query.items()?.iter().map(check));
        }
        for (query, after) in &condition.unless {
            let check = |item| Check { item, after: *after, once: false };
            checks.extend(query.items()?.iter().map(check));
        }
        Ok(Self { events, checks, own })
    }

    /// Checks for a condition beyond the end of the log.
    fn beyond(&self, head: Position) -> Option<AppendOutcome> {
        let after = self.checks.iter().map(|check| check.after).max()?;
        (after > head).then_some(AppendOutcome::Beyond { after, head })
    }
}

/// AppendOutcome of an append.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The events were appended.
    New(Vec<Position>),
    /// The operation was done before: an event matches a `once` query.
    Already,
    /// An event after this position matches a condition.
    Conflict(Position),
    /// A condition names a position beyond the end of the log.
    Beyond {
        /// The named position.
        after: Position,
        /// The last position of the log.
        head: Position,
    },
    /// The isolation level of the transaction does not allow checking a condition.
    Isolated,
}

impl AppendOutcome {
    /// AppendOutcome of a check that found an event.
    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    fn found(check: &Check<'_>) -> Self {
        if check.once { AppendOutcome::Already } else { AppendOutcome::Conflict(check.after) }
    }

    fn told(self) -> Result<Appended> {
        match self {
            AppendOutcome::New(positions) => Ok(Appended::New(positions)),
            AppendOutcome::Already => Ok(Appended::Already),
            AppendOutcome::Conflict(after) => Err(Error::Conflict { after }),
            AppendOutcome::Beyond { after, head } => Err(Error::BeyondHead { position: after, head }),
            AppendOutcome::Isolated => Err(too_isolated("REPEATABLE READ or SERIALIZABLE")),
        }
    }
}

/// Converts a lost response: it is unknown whether the events were appended.
fn unknown(error: Error) -> Error {
    match error {
        Error::Database(lost) if !matches!(lost.inner(), sqlx::Error::Database(_)) => {
            Error::CommitUnknown(lost)
        }
        other => other,
    }
}

fn too_isolated(isolation: &str) -> Error {
    Error::Isolation { isolation: isolation.to_owned() }
}

/// Range of positions to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) after: Position,
    pub(crate) upto: Option<Position>,
    pub(crate) limit: usize,
}

impl<DB: Database> SqlStore<DB> {
    /// Converts a database error into one that the caller can act on.
    fn explain_log(&self, error: Error) -> Error {
        match self.explain(error) {
            Error::NotMigrated { .. } => Error::NotMigrated { table: self.renderer().names().log() },
            other => other,
        }
    }

    /// Appends in the transaction of this connection. A conflict leaves the transaction unchanged.
    pub(crate) async fn append_on(
        &self,
        conn: &mut DB::Connection,
        events: &[Event],
        condition: &Condition,
    ) -> Result<Appended> {
        self.append_as(conn, &Append::new(events, condition, false)?).await
    }

    async fn append_as(&self, conn: &mut DB::Connection, append: &Append<'_>) -> Result<Appended> {
        if append.events.is_empty() && append.checks.is_empty() {
            return Ok(Appended::New(Vec::new()));
        }
        <DB as LogDialect>::append(self.renderer(), conn, append)
            .await
            .map_err(|e| self.explain_log(e))?
            .told()
    }

    /// Waits until the result of a query is final, and keeps it final until the end of the
    /// transaction of this connection.
    pub(crate) async fn settled_on(&self, conn: &mut DB::Connection, query: &Query) -> Result<Position> {
        DB::settle(self.renderer(), conn, query.items()?, true).await.map_err(|e| self.explain_log(e))
    }

    /// Reads in the transaction of this connection. `current`: includes events committed after the
    /// transaction began.
    pub(crate) async fn read_on(
        &self,
        conn: &mut DB::Connection,
        query: &Query,
        range: Range,
        current: bool,
    ) -> Result<Vec<StoredLogEvent>> {
        // The highest limit that every database accepts.
        let range = Range { limit: range.limit.min(u32::MAX as usize), ..range };
        let current = if current { DB::CURRENT } else { "" };
        let (text, values) = statements::read(query.items()?, range, current);
        let mut read = Vec::new();
        let mut each = |row: &DB::Row| {
            read.push(DB::stored(row)?);
            Ok(())
        };
        let all = DB::fetch_each(conn, self.render(&text), values, &mut each).await;
        all.map_err(|e| self.explain_log(e.into()))?;
        Ok(read)
    }

    /// Reads for the application, on connections of its own.
    pub(crate) async fn read_for_application(
        &self,
        query: &Query,
        range: Range,
    ) -> Result<Vec<StoredLogEvent>> {
        let source = if DB::READS_APART { &self.pools.read } else { &self.pools.write };
        self.read_by(source, query, range).await
    }

    async fn read_by(&self, source: &Source<DB>, query: &Query, range: Range) -> Result<Vec<StoredLogEvent>> {
        let mut conn = source.acquire().await?;
        let read = self.read_on(&mut conn, query, range, false).await?;
        conn.finish().await?;
        Ok(read)
    }

    async fn append_in_one(&self, events: &[Event], condition: &Condition) -> Result<Appended> {
        let append = Append::new(events, condition, true)?;
        // On a shared session the append needs a transaction anyway.
        if DB::APPENDS_AT_ONCE && !self.pools.sessions.are_shared() {
            let mut conn: Conn<DB> = self.pools.write.acquire().await?;
            let appended = self.append_as(&mut conn, &append).await;
            if !matches!(appended, Err(Error::Database(_))) {
                conn.finish().await.map_err(|e| unknown(e.into()))?;
            }
            match appended {
                // The default isolation level of the database is too high: append in a transaction
                // that sets it.
                Err(Error::Isolation { .. }) => {}
                appended => return appended.map_err(unknown),
            }
        }
        let mut tx = match &self.pools.write {
            Source::Pool(_) => self.begin().await?,
            source => super::begin::begin_on(source).await?,
        };
        if let Some(decide) = DB::TO_DECIDE {
            DB::script(&mut tx, decide.to_owned()).await?;
        }
        let appended = self.append_as(&mut tx, &append).await;
        match appended {
            Ok(Appended::New(_)) => tx.commit().await.map_err(|e| unknown(e.into()))?,
            // A conflict is a normal outcome: the connection is kept.
            _ => tx.rollback().await?,
        }
        appended
    }

    /// The first event from this position on, and the time it was stored.
    async fn stored_from(&self, from: i64, upto: i64) -> Result<Option<(i64, DateTime<Utc>)>> {
        let rows = self.fetch(statements::STORED_FROM, vec![Value::Int(from), Value::Int(upto)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(DB::int(row, 0)?.zip(DB::time(row, 1)?))
    }
}

#[async_trait]
impl<DB: Database> LogStore for SqlStore<DB> {
    async fn append(&self, events: &[Event], condition: &Condition) -> Result<Appended> {
        self.retried(|| self.append_in_one(events, condition)).await
    }

    async fn read(
        &self,
        query: &Query,
        after: Position,
        upto: Option<Position>,
        limit: usize,
    ) -> Result<Vec<StoredLogEvent>> {
        self.read_by(&self.pools.read, query, Range { after, upto, limit }).await
    }

    async fn read_bounded(
        &self,
        after: Position,
        upto: Position,
        limit: usize,
        max_bytes: usize,
    ) -> Result<BoundedRead> {
        let range = Range { after, upto: Some(upto), limit };
        let (text, values) = statements::read(Query::all().items()?, range, "");
        let (mut read, mut room) = (BoundedRead::default(), max_bytes);
        let mut each = |row: &DB::Row| {
            let row = DB::stored(row)?;
            let bytes = row.as_ref().map_or(0, |event| event.event.bytes());
            if read.cut || (bytes > room && !read.rows.is_empty()) {
                read.cut = true;
            } else {
                room = room.saturating_sub(bytes);
                read.rows.push(row);
            }
            Ok(())
        };
        let mut conn = self.pools.read.acquire().await?;
        let all = DB::fetch_each(&mut conn, self.render(&text), values, &mut each).await;
        all.map_err(|e| self.explain_log(e.into()))?;
        conn.finish().await?;
        Ok(read)
    }

    async fn note_unreadable(&self, position: Position, reason: &str) -> Result<bool> {
        let key = || Value::Int(position.get());
        let is_noted =
            async || self.fetch(statements::SEE_UNREADABLE, vec![key()]).await.map(|rows| !rows.is_empty());
        if is_noted().await? {
            return Ok(false);
        }
        let values = vec![key(), Value::text(short_error(reason))];
        match self.run(statements::NOTE_UNREADABLE, values).await {
            Ok(_) => Ok(true),
            // Another relay has recorded it in the meantime, or the error has another cause.
            Err(error) => {
                if is_noted().await? {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
        }
    }

    async fn unreadable(&self, limit: usize) -> Result<Vec<Unreadable>> {
        let text = format!(
            "SELECT position, reason, noted_at FROM {{log_unreadable}} ORDER BY position DESC LIMIT {limit}"
        );
        let rows = self.fetch(&text, Vec::new()).await?;
        let one = |row: &DB::Row| {
            Ok(Unreadable {
                position: Position::new(DB::int(row, 0)?.unwrap_or_default()),
                reason: DB::text(row, 1)?.unwrap_or_default(),
                noted_at: DB::time(row, 2)?.unwrap_or_default(),
            })
        };
        rows.iter().map(one).collect()
    }

    async fn settled(&self, query: &Query) -> Result<Position> {
        let items = query.items()?;
        self.retried(|| async {
            // On a connection of the application: the wait may be long.
            let source = if DB::READS_APART { &self.pools.read } else { &self.pools.write };
            let mut conn = source.acquire().await?;
            let settled = DB::settle(self.renderer(), &mut conn, items, false).await;
            let settled = settled.map_err(|e| self.explain_log(e))?;
            conn.finish().await?;
            Ok(settled)
        })
        .await
    }

    async fn advance(&self, watermark: &mut Watermark) -> Result<()> {
        let looked = async {
            let mut conn = self.pools.read.acquire().await?;
            DB::look(self.renderer(), &mut conn, watermark).await.map_err(|e| self.explain_log(e))?;
            conn.finish().await?;
            Ok(())
        }
        .await;
        if looked.is_err() {
            watermark.forget();
        }
        looked
    }

    async fn stored_watermark(&self) -> Result<Position> {
        let rows = self.fetch(statements::DECIDED, vec![Value::text(FRONTIER)]).await?;
        Ok(statements::position::<DB>(&rows)?)
    }

    async fn store_watermark(&self, safe: Position) -> Result<()> {
        let values = || vec![Value::text(FRONTIER), Value::Int(safe.get())];
        if self.run(statements::NOTE_DECIDED, values()).await? == 0 {
            // No watermark is stored yet.
            self.run(DB::NEW_LEASE, vec![Value::text(FRONTIER)]).await?;
            self.run(statements::NOTE_DECIDED, values()).await?;
        }
        Ok(())
    }

    async fn purge_log(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let rows = self.fetch(&statements::purgeable(limit), vec![Value::micros(older_than)]).await;
        let rows = rows.map_err(|e| self.explain_log(e))?;
        let positions = rows.iter().map(|row| DB::int(row, 0)).collect::<Result<Vec<_>, _>>()?;
        if positions.is_empty() {
            return Ok(0);
        }
        let these = || vec![Value::Ints(positions.clone())];
        self.retried(|| async {
            let mut tx = super::begin::begin_on(&self.pools.relay).await?;
            DB::run(&mut tx, self.render(DB::purge_tags(self.renderer().names())), these()).await?;
            let purged = DB::run(&mut tx, self.render(statements::PURGE), these()).await?;
            tx.commit().await?;
            Ok(purged)
        })
        .await
    }

    async fn waiting(&self) -> Result<Vec<(SubscriptionId, OpenAppend)>> {
        let names = self.renderer().names();
        let Some(waiting) = DB::waiting_subscriptions(names) else { return Ok(Vec::new()) };
        let rows = self.fetch(waiting, Vec::new()).await.map_err(|e| self.explain_log(e))?;
        let one = |row: &DB::Row| {
            let subscription = SubscriptionId::new(
                DB::text(row, 0)?.unwrap_or_default(),
                DB::text(row, 1)?.unwrap_or_default(),
            );
            let open = OpenAppend {
                backend: DB::int(row, 2)?,
                since: DB::time(row, 3)?,
                prepared: DB::text(row, 4)?,
                user: DB::text(row, 5)?,
                application: DB::text(row, 6)?,
            };
            Ok((subscription, open))
        };
        rows.iter().map(one).collect()
    }

    async fn head(&self) -> Result<Position> {
        let rows = self.fetch(DB::HEAD, Vec::new()).await.map_err(|e| self.explain_log(e))?;
        Ok(statements::position::<DB>(&rows)?)
    }

    /// Binary search: times rise with positions, and an index by time would cost every append.
    async fn position_at(&self, time: DateTime<Utc>) -> Result<Position> {
        let (mut before, mut last) = (0, self.head().await?.get());
        while before < last {
            let middle = before + (last - before + 1) / 2;
            match self.stored_from(middle, last).await? {
                Some((position, stored)) if stored < time => before = position,
                _ => last = middle - 1,
            }
        }
        Ok(Position::new(before))
    }
}
