//! The log for applications: append, read, decide.

use std::fmt;

use super::query::{Condition, Position, Query};
use super::store::{StoredLogEvent, log_of};
use super::{Appended, LogEvent};
use crate::EVENTS;
use crate::error::{Error, EventError, Result};
use crate::escape::Escaped;
use crate::event::{Due, Event, IntoEvent};
use crate::outbox::Outbox;
use crate::sql::Database;
use crate::sql::log::Range;
use crate::tx::Tx;

/// Maximum number of events of one append.
pub const MAX_APPEND: usize = 10_000;

/// Number of events that a projection reads at a time.
const PAGE: usize = 1_000;

/// The event log beside the queue: permanent events in one order, found by their tags. From
/// [`Outbox::log`]; cheap to clone.
///
/// The log is made for decisions. Read the relevant events, decide, and append the result on the
/// condition that no relevant event has been appended meanwhile:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox::{Error, Event, LogEvent, Outbox, Query};
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// outbox.migrate().await?;
/// let log = outbox.log();
/// log.append([Event::new("DepositMade").tag("wallet_id", "w1").json(&100)]).await?;
///
/// fn balance(balance: i64, event: &LogEvent) -> i64 {
///     let amount: i64 = event.payload().unwrap_or_default();
///     match event.event_type().as_str() {
///         "DepositMade" => balance + amount,
///         "WithdrawalMade" => balance - amount,
///         _ => balance,
///     }
/// }
///
/// let wallet = log.project(Query::tag("wallet_id", "w1"), 0, balance).await?;
/// assert_eq!(wallet.state, 100);
///
/// let withdrawal = || Event::new("WithdrawalMade").tag("wallet_id", "w1").json(&80);
/// log.append_if([withdrawal()], wallet.unchanged()).await?;
///
/// // A second decision on the same balance comes too late, and must be made again.
/// let late = log.append_if([withdrawal()], wallet.unchanged()).await;
/// assert!(matches!(late, Err(Error::Conflict { .. })));
/// assert_eq!(log.project(Query::tag("wallet_id", "w1"), 0, balance).await?.state, 20);
/// # Ok(()) }
/// ```
///
/// Two appends whose conditions both match an event that the other one writes never both succeed,
/// however differently the conditions are worded. Unrelated appends do not wait.
/// [`Condition::once`] carries out a repeated request only once.
///
/// [`decide`](Log::decide) is all of this in one call, and decides again after a conflict.
///
/// In a transaction of yours, beside your own tables, use [`Tx::append`], [`Tx::append_if`] and
/// [`Tx::project`].
pub struct Log<DB: Database> {
    outbox: Outbox<DB>,
}

impl<DB: Database> Clone for Log<DB> {
    fn clone(&self) -> Self {
        Self { outbox: self.outbox.clone() }
    }
}

impl<DB: Database> fmt::Debug for Log<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("outbox", &self.outbox).finish()
    }
}

/// State computed from the events that a query selects, and the position up to which they were
/// read.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "decide by its state, and append with its `unchanged()`"]
pub struct Projection<S> {
    /// The computed state.
    pub state: S,
    /// All matching events up to here have been read.
    pub position: Position,
    pub(super) query: Query,
}

impl<S> Projection<S> {
    /// The condition that no matching event was appended since.
    pub fn unchanged(&self) -> Condition {
        Condition::unless(self.query.clone()).after(self.position)
    }
}

impl<DB: Database> Outbox<DB> {
    /// The event log.
    pub fn log(&self) -> Log<DB> {
        Log { outbox: self.clone() }
    }

    /// Wakes publishers after a committed append, in this process and in others.
    pub(crate) fn appended(&self) {
        self.door().bell.notify_one();
        self.ring_elsewhere();
    }

    /// Builds the events of an append. Writer hooks apply to the queue only.
    pub(super) fn prepare_for_log<E: IntoEvent>(
        &self,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<Event>> {
        let limit = self.max_payload();
        let made = events.into_iter().map(|event| event.into_event(limit).and_then(for_the_log));
        let events = made.collect::<Result<Vec<Event>, EventError>>()?;
        if events.len() > MAX_APPEND {
            let (what, count) = ("events in one append", events.len());
            return Err(EventError::TooMany { what, count, limit: MAX_APPEND }.into());
        }
        Ok(events)
    }
}

/// Refuses fields that the log does not support.
fn for_the_log(event: Event) -> Result<Event, EventError> {
    let field = match event.due() {
        Due::After(_) => "deliver_after",
        Due::At(_) | Due::Later(_) => "available_at",
        Due::Now if event.dedup_key().is_some() => "dedup_key",
        Due::Now if event.expires_at().is_some() => "expires_at",
        Due::Now => return Ok(event),
    };
    Err(EventError::NotForTheLog { field })
}

/// The events that were read, or an error with the position of the first undecodable one.
fn readable(stored: Vec<StoredLogEvent>) -> Result<Vec<LogEvent>> {
    let undecodable = |(position, reason)| Error::Undecodable { position, reason };
    stored.into_iter().map(|stored| stored.map_err(undecodable)).collect()
}

impl<DB: Database> Log<DB> {
    pub(super) fn outbox(&self) -> &Outbox<DB> {
        &self.outbox
    }

    /// Appends events in this order, all of them or none. Returns their positions.
    ///
    /// Every event type can be appended: an [`EventBuilder`](crate::EventBuilder), or a
    /// [`Message`](crate::Message) that adds its tags in [`describe`](crate::Message::describe).
    /// Fields that only the queue supports (delays, expiry, deduplication keys) are refused. At
    /// most [`MAX_APPEND`] at a time.
    ///
    /// Without a condition, an append waits only for transactions that are deciding by the same
    /// tags or types.
    pub async fn append<E: IntoEvent>(&self, events: impl IntoIterator<Item = E>) -> Result<Vec<Position>> {
        Ok(self.append_if(events, Condition::default()).await?.positions().to_vec())
    }

    /// Appends events if the condition holds. Otherwise it returns [`Error::Conflict`] or
    /// [`Appended::Already`], and nothing is appended.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::{Appended, Condition, Event, Outbox, Query};
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let registered = || Event::new("NameRegistered").tag("name", "ada").tag("request_id", "r7").json(&());
    /// let free = || Condition::unless(Query::tag("name", "ada")).once(Query::tag("request_id", "r7"));
    ///
    /// assert_eq!(outbox.log().append_if([registered()], free()).await?.positions().len(), 1);
    /// // the same request again
    /// assert_eq!(outbox.log().append_if([registered()], free()).await?, Appended::Already);
    /// # Ok(()) }
    /// ```
    pub async fn append_if<E: IntoEvent>(
        &self,
        events: impl IntoIterator<Item = E>,
        condition: Condition,
    ) -> Result<Appended> {
        self.append_built(self.outbox.prepare_for_log(events)?, condition).await
    }

    /// Appends events that were [prepared](Outbox::prepare_for_log).
    pub(super) async fn append_built(&self, events: Vec<Event>, condition: Condition) -> Result<Appended> {
        let store = self.outbox.store();
        let appended = log_of(&*store)?.append(&events, &condition).await?;
        log_appended(store.name(), &events, &appended);
        if !appended.positions().is_empty() {
            self.outbox.appended();
        }
        Ok(appended)
    }

    /// Matching events after this position, at most `limit`. Continue after the position of the
    /// last one.
    ///
    /// Returns the events that are committed and visible. On PostgreSQL an event may later appear
    /// before one that was returned; a reader that must not miss any uses
    /// [`project`](Log::project), or a publisher.
    pub async fn read(&self, query: &Query, after: Position, limit: usize) -> Result<Vec<LogEvent>> {
        self.read_upto(query, after, None, limit).await
    }

    async fn read_upto(
        &self,
        query: &Query,
        after: Position,
        upto: Option<Position>,
        limit: usize,
    ) -> Result<Vec<LogEvent>> {
        let stored = if self.outbox.is_in_fleet() {
            log_of(&*self.outbox.store())?.read(query, after, upto, limit).await?
        } else {
            self.outbox.sql_store().read_for_application(query, Range { after, upto, limit }).await?
        };
        readable(stored)
    }

    /// Folds all matching events, oldest first, and returns the position up to which they were
    /// read: the basis of a decision.
    ///
    /// Waits for transactions that may be about to append a matching event. With [`Query::all`]
    /// that is every open transaction that has appended, and on PostgreSQL other appends wait
    /// meanwhile too: use a specific query.
    pub async fn project<S>(
        &self,
        query: Query,
        initial: S,
        mut fold: impl FnMut(S, &LogEvent) -> S,
    ) -> Result<Projection<S>> {
        let start = Projection { state: initial, position: Position::START, query };
        self.project_further(start, &mut fold).await
    }

    /// Folds the matching events that were appended since a projection.
    pub(super) async fn project_further<S>(
        &self,
        projection: Projection<S>,
        fold: &mut impl FnMut(S, &LogEvent) -> S,
    ) -> Result<Projection<S>> {
        let Projection { mut state, mut position, query } = projection;
        let end = self.settled(&query).await?;
        while position < end {
            let events = self.read_upto(&query, position, Some(end), PAGE).await?;
            state = events.iter().fold(state, &mut *fold);
            position = next(&events, end);
        }
        Ok(Projection { state, position, query })
    }

    /// A position up to which the result of a query is final: transactions that might still commit
    /// a matching event have been waited for, and later appends get higher positions.
    pub async fn settled(&self, query: &Query) -> Result<Position> {
        log_of(&*self.outbox.store())?.settled(query).await
    }

    /// The highest visible position.
    pub async fn head(&self) -> Result<Position> {
        log_of(&*self.outbox.store())?.head().await
    }
}

/// Position after which the next page starts.
fn next(page: &[LogEvent], end: Position) -> Position {
    match page.last() {
        Some(last) if page.len() == PAGE => last.position,
        _ => end,
    }
}

fn log_appended(store: &str, events: &[Event], appended: &Appended) {
    for (event, position) in events.iter().zip(appended.positions()) {
        // With its own target, so that these lines can be silenced: there is one for every business
        // transaction.
        let (id, event_type, correlation_id) = (event.id(), event.event_type(), event.correlation_id());
        tracing::info!(target: EVENTS, store, event = %Escaped(id), event_type = %Escaped(event_type), %position, correlation_id, "event appended");
    }
}

impl<DB: Database> Tx<'_, DB> {
    /// Appends events to the [log](Log) in this transaction. Returns their positions.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::{Event, Outbox};
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let mut tx = outbox.begin().await?;
    /// tx.append([Event::new("OrderPlaced").tag("order_id", 42).json(&995)]).await?;   // a fact, permanent
    /// tx.write(Event::new("order.confirm").json(&42)).await?;                        // a task, done once
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Until it ends, the transaction blocks other decisions that depend on the appended events:
    /// keep it short.
    pub async fn append<E: IntoEvent>(
        &mut self,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<Position>> {
        Ok(self.append_if(events, Condition::default()).await?.positions().to_vec())
    }

    /// Appends events to the [log](Log) in this transaction, if the condition holds: see
    /// [`Log::append_if`]. A conflict leaves the transaction unchanged.
    ///
    /// On PostgreSQL the transaction must be READ COMMITTED, which is the default.
    pub async fn append_if<E: IntoEvent>(
        &mut self,
        events: impl IntoIterator<Item = E>,
        condition: Condition,
    ) -> Result<Appended> {
        let events = self.outbox().prepare_for_log(events)?;
        self.append_built(events, condition).await
    }

    /// Appends events that were [prepared](Outbox::prepare_for_log).
    pub(super) async fn append_built(
        &mut self,
        events: Vec<Event>,
        condition: Condition,
    ) -> Result<Appended> {
        let outbox = self.outbox().clone();
        self.is_whole()?;
        self.appending();
        let appended = outbox.sql_store().append_on(self.connection(), &events, &condition).await;
        // A deadlock has ended the transaction on MySQL: later statements would run in another
        // transaction.
        if !appended.as_ref().is_err_and(Error::is_transient) {
            self.appended();
        }
        match &appended {
            Ok(_) | Err(Error::Conflict { .. } | Error::BeyondHead { .. } | Error::Isolation { .. }) => {
                self.answered();
            }
            Err(error) => self.write_failed(error),
        }
        if let Ok(appended) = &appended
            && !appended.positions().is_empty()
        {
            log_appended(crate::store::Store::name(outbox.sql_store()), &events, appended);
            self.after_commit(move || outbox.appended());
        }
        appended
    }

    /// Folds all matching events of the [log](Log) that this transaction sees, including its own
    /// appends: see [`Log::project`].
    ///
    /// Until the transaction ends, no other transaction can append a matching event, so a decision
    /// that is made here cannot conflict. It may deadlock with another one that waits for it in
    /// turn: the database then aborts one of the two, which has to be repeated.
    pub async fn project<S>(
        &mut self,
        query: Query,
        initial: S,
        mut fold: impl FnMut(S, &LogEvent) -> S,
    ) -> Result<Projection<S>> {
        let outbox = self.outbox().clone();
        let store = outbox.sql_store();
        let settled = store.settled_on(self.connection(), &query).await;
        let position = settled.inspect_err(|error| self.write_failed(error))?;
        let (mut state, mut after) = (initial, Position::START);
        while after < position {
            let range = Range { after, upto: Some(position), limit: PAGE };
            let read = store.read_on(self.connection(), &query, range, true).await;
            let events = readable(read.inspect_err(|error| self.write_failed(error))?)?;
            state = events.iter().fold(state, &mut fold);
            after = next(&events, position);
        }
        Ok(Projection { state, position, query })
    }

    /// Matching events of the [log](Log) that this transaction sees: see [`Log::read`].
    pub async fn read_log(&mut self, query: &Query, after: Position, limit: usize) -> Result<Vec<LogEvent>> {
        self.read_log_as(query, after, limit, false).await
    }

    /// `current`: includes events that were committed after the transaction began.
    pub(super) async fn read_log_as(
        &mut self,
        query: &Query,
        after: Position,
        limit: usize,
        current: bool,
    ) -> Result<Vec<LogEvent>> {
        let outbox = self.outbox().clone();
        let range = Range { after, upto: None, limit };
        let read = outbox.sql_store().read_on(self.connection(), query, range, current).await;
        readable(read.inspect_err(|error| self.write_failed(error))?)
    }
}
