//! The transaction handle: the application's transaction, and the actions after its end.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx_core::transaction::TransactionManager as _;

use crate::error::{Error, Result};
use crate::event::{Event, EventId, IntoEvent};
use crate::hook::{Hooks, guarded};
use crate::outbox::Outbox;
use crate::relay::Engine;
use crate::relay::hot::Reservation;
use crate::sql::Database;
use crate::sql::source::Work;
use crate::store::{Completion, Holder, JoinCommand, JoinOutcome, Settled, Settlement};
use crate::write::Written;

/// A transaction in which events are written. Use it like sqlx's own: `&mut *tx` is the connection.
/// Dropping it rolls back.
///
/// Everything that happens in a transaction is one of its methods: [`write`](Tx::write) for events,
/// [`once`](Tx::once) for the inbox, [`append`](Tx::append) and [`project`](Tx::project) for the
/// log, [`joins`](Tx::joins) and [`fan_out`](Tx::fan_out) for joins. [`Outbox::begin`] begins one,
/// [`Outbox::adopt`] continues one of sqlx, and [`Outbox::bind`] borrows one of sqlx.
///
/// After a commit the relay of this process, if one runs, gets the events directly. Only committed
/// events: an event written after a savepoint that was rolled back is never delivered.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # use outbox::{Event, Outbox};
/// # let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// # sqlx::query("CREATE TABLE orders (id INTEGER)").execute(outbox.pool()).await?;
/// let mut tx = outbox.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(42).execute(&mut *tx).await?;
/// tx.write(Event::new("order.placed").json(&42)).await?;
/// tx.after_commit(|| println!("on its way"));
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Tx<'c, DB: Database> {
    inner: Option<Work<'c, DB>>,
    outbox: Outbox<DB>,
    batches: Vec<WrittenBatch>,
    callbacks: Vec<(When, Callback)>,
    end: End,
    /// Whether the connection was handed out after the first write. Then the events may be gone
    /// again: by a rollback to a savepoint, or by an error after which PostgreSQL aborted the
    /// transaction.
    events_uncertain: bool,
    /// Whether the connection was handed out after the last write, so that it is unknown whether
    /// the transaction is still valid.
    touched: bool,
    /// Whether the inbox was asked in this transaction: then a rollback must not go unnoticed.
    receiving: bool,
    /// Whether an append to the log was begun and not finished, or the database has ended the
    /// transaction by itself: later statements would not be part of it.
    incomplete: bool,
}

/// The end of a transaction, as the handle sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The handle commits or rolls back.
    Seen,
    /// The handle releases a savepoint, sqlx's nested transaction; the outer one decides.
    OfSavepoint,
    /// The application ends the transaction: see [`BoundTx`].
    OfCaller,
}

type Callback = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Commit,
    Rollback,
}

/// The events of one call of `write`.
pub(crate) struct WrittenBatch {
    pub(crate) events: Vec<Event>,
    pub(crate) reserved: Vec<Reservation>,
    /// Events for the poller.
    pub(crate) hinted: Vec<Event>,
    /// How many found the hot queue full.
    pub(crate) dropped: u64,
    /// How many skipped the hot queue because they are delayed.
    pub(crate) delayed: u64,
    pub(crate) engine: Option<Arc<Engine>>,
    /// The results of the call.
    pub(crate) written: Vec<Written>,
}

impl<'c, DB: Database> Tx<'c, DB> {
    pub(crate) fn new(inner: impl Into<Work<'c, DB>>, outbox: Outbox<DB>) -> Self {
        let inner = inner.into();
        let end = match DB::TransactionManager::get_transaction_depth(&inner) {
            _ if inner.is_bound() => End::OfCaller,
            depth if depth > 1 => End::OfSavepoint,
            _ => End::Seen,
        };
        Self {
            inner: Some(inner),
            outbox,
            batches: Vec::new(),
            callbacks: Vec::new(),
            end,
            events_uncertain: false,
            touched: false,
            receiving: false,
            incomplete: false,
        }
    }

    /// The outbox that it writes to.
    pub fn outbox(&self) -> &Outbox<DB> {
        &self.outbox
    }

    /// Writes an event. Returns its id, and whether it is new, a duplicate by its deduplication
    /// key, or suppressed by a hook.
    ///
    /// If a hook replaced the event by others, the result is that of the first one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let mut tx = outbox.begin().await?;
    /// let written = tx.write(outbox::Event::new("order.placed").json(&42)).await?;
    /// assert!(written.is_new());
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    pub async fn write(&mut self, event: impl IntoEvent) -> Result<Written> {
        let event = self.outbox.build_one(event)?;
        self.write_event(event).await
    }

    /// Writes many events in one statement, in this order. Returns an entry for each event that the
    /// hooks let through: none if they suppressed all of them.
    pub async fn write_all<E: IntoEvent>(
        &mut self,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<Written>> {
        let events = self.outbox.build(events)?;
        self.write_events(events).await
    }

    pub(crate) async fn write_event(&mut self, event: Event) -> Result<Written> {
        let (events, place) = self.outbox.prepare_one(event)?;
        Ok(place.among(self.write_prepared(events).await?))
    }

    pub(crate) async fn write_events(&mut self, events: Vec<Event>) -> Result<Vec<Written>> {
        let events = self.outbox.prepare(events)?;
        self.write_prepared(events).await
    }

    /// Writes events that the hooks let through.
    pub(crate) async fn write_prepared(&mut self, events: Vec<Event>) -> Result<Vec<Written>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        self.is_whole()?;
        let outbox = self.outbox.clone();
        let hot = self.end == End::Seen;
        match outbox.insert(self.connection(), events, hot).await {
            Ok(batch) => {
                let written = batch.written.clone();
                self.batches.push(batch);
                self.touched = false;
                Ok(written)
            }
            Err(error) => {
                self.write_failed(&error);
                Err(error)
            }
        }
    }

    /// Changes a join.
    pub(crate) async fn change_join(&mut self, command: &JoinCommand) -> Result<JoinOutcome> {
        self.is_whole()?;
        let outbox = self.outbox.clone();
        let changed = outbox.sql_store().join_on(self.connection(), command).await;
        match &changed {
            Ok(JoinOutcome { wrote: true, .. }) => self.after_commit(move || outbox.wake()),
            Ok(_) => {}
            Err(error) => self.write_failed(error),
        }
        changed
    }

    /// Runs a callback after the commit, and only then.
    pub fn after_commit(&mut self, callback: impl FnOnce() + Send + 'static) {
        self.callbacks.push((When::Commit, Box::new(callback)));
    }

    /// Runs a callback after a rollback: by call, also one that fails, by drop, or because the
    /// database refused the commit.
    pub fn after_rollback(&mut self, callback: impl FnOnce() + Send + 'static) {
        self.callbacks.push((When::Rollback, Box::new(callback)));
    }

    /// Commits, then hands the events over to the relay.
    ///
    /// When the answer is lost, it is unknown whether the commit happened: that is
    /// [`Error::CommitUnknown`]. Committed events are then delivered by the poller.
    pub async fn commit(mut self) -> Result<()> {
        self.may_end()?;
        self.is_whole()?;
        // PostgreSQL answers the commit of an aborted transaction with a rollback, and no error.
        if self.events_uncertain || (self.touched && (self.receiving || !self.callbacks.is_empty())) {
            self.retain_stored_events().await?;
        }
        let Some(inner) = self.inner.take() else { return Ok(()) };
        // From here on a drop must not report a rollback: the outcome is open.
        let after_end = self.after_end();
        match inner.commit().await {
            // Released, not committed: the outer transaction decides.
            Ok(()) if self.end == End::OfSavepoint => Ok(()),
            Ok(()) => {
                after_end.committed(self.outbox.hooks());
                Ok(())
            }
            Err(sqlx::Error::Database(e)) => {
                after_end.rolled_back(self.outbox.hooks());
                Err(sqlx::Error::Database(e).into())
            }
            Err(lost) => Err(Error::CommitUnknown(lost.into())),
        }
    }

    /// Rolls back.
    ///
    /// Callbacks and hooks run also if this fails or is cancelled: the connection is closed or
    /// rolled back before its next use, and a transaction whose connection is gone can no longer be
    /// committed.
    pub async fn rollback(mut self) -> Result<()> {
        self.may_end()?;
        match self.inner.take() {
            // Dropping the handle calls callbacks and hooks, whatever the result.
            Some(inner) => Ok(inner.rollback().await?),
            None => Ok(()),
        }
    }

    /// Reads which events are still in the table, and forgets the others.
    async fn retain_stored_events(&mut self) -> Result<()> {
        let ids: Vec<EventId> =
            self.batches.iter().flat_map(|b| b.events.iter().map(|e| e.id().clone())).collect();
        let Some(inner) = self.inner.as_mut() else { return Ok(()) };
        // An error here means that the transaction is lost: the drop rolls it back.
        let kept = self.outbox.sql_store().kept(inner, &ids).await?;
        for batch in &mut self.batches {
            batch.events.retain(|event| kept.contains(event.id().as_str()));
            batch.hinted.retain(|event| kept.contains(event.id().as_str()));
            batch.reserved.retain(|reservation| kept.contains(reservation.event().id().as_str()));
        }
        Ok(())
    }

    /// Error for a handle that was moved out of a [`BoundTx`].
    fn may_end(&self) -> Result<()> {
        if self.end == End::OfCaller {
            return Err(Error::Lifecycle(
                "the transaction is bound: commit it, or roll it back, by the transaction of sqlx",
            ));
        }
        Ok(())
    }

    fn after_end(&mut self) -> AfterEnd {
        AfterEnd {
            batches: std::mem::take(&mut self.batches),
            callbacks: std::mem::take(&mut self.callbacks),
        }
    }

    /// Settles events in this transaction.
    pub(crate) async fn settle(
        &mut self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        let Some(inner) = self.inner.as_mut() else { return Ok(Settled::default()) };
        self.outbox.sql_store().settle_on(inner, by, completion, settlements).await
    }

    /// The connection, for writing events on it.
    pub(crate) fn connection(&mut self) -> &mut DB::Connection {
        self.inner.as_mut().expect("only commit and rollback take it, and they consume the handle")
    }

    /// Records a query of the inbox on this connection.
    pub(crate) fn received(&mut self, answered: bool) {
        self.receiving = true;
        self.events_uncertain |= !answered;
        self.touched &= !answered;
    }

    /// Error if an append to the log was not finished.
    pub(crate) fn is_whole(&self) -> Result<()> {
        if self.incomplete {
            return Err(Error::Lifecycle(
                "the transaction is over: an append to the log was cancelled, or the database rolled it back after an error; \
                 begin again",
            ));
        }
        Ok(())
    }

    /// Records that an append to the log begins: if dropped before its end, it may be incomplete.
    pub(crate) fn appending(&mut self) {
        self.incomplete = true;
    }

    /// Records that the append has ended, with or without an error.
    pub(crate) fn appended(&mut self) {
        self.incomplete = false;
    }

    /// Records that the log has answered on this connection, so the transaction is valid.
    pub(crate) fn answered(&mut self) {
        self.touched = false;
    }

    /// Records a failed write: PostgreSQL may have aborted the transaction, and other databases may
    /// have ended it.
    pub(crate) fn write_failed(&mut self, error: &Error) {
        self.events_uncertain = true;
        self.incomplete |= matches!(error, Error::Database(error) if error.ends_transaction());
    }
}

/// Actions after the end of a transaction. If dropped, the outcome is unknown: no hook or callback
/// is called, and the poller delivers events that may have been committed.
struct AfterEnd {
    batches: Vec<WrittenBatch>,
    callbacks: Vec<(When, Callback)>,
}

impl AfterEnd {
    fn committed(mut self, hooks: &Hooks) {
        for batch in std::mem::take(&mut self.batches) {
            batch.hand_over(hooks);
        }
        run(std::mem::take(&mut self.callbacks), When::Commit);
    }

    fn rolled_back(mut self, hooks: &Hooks) {
        for batch in std::mem::take(&mut self.batches).iter().filter(|batch| !batch.events.is_empty()) {
            hooks.after_rollback(&batch.events);
        }
        run(std::mem::take(&mut self.callbacks), When::Rollback);
    }
}

impl Drop for AfterEnd {
    fn drop(&mut self) {
        for reservation in self.batches.drain(..).flat_map(|batch| batch.reserved) {
            reservation.release_later();
        }
    }
}

fn run(callbacks: Vec<(When, Callback)>, now: When) {
    for (when, callback) in callbacks {
        if when == now {
            guarded(if now == When::Commit { "after_commit" } else { "after_rollback" }, callback);
        }
    }
}

impl WrittenBatch {
    /// Passes committed events to the relay, and calls the hooks.
    pub(crate) fn hand_over(self, hooks: &Hooks) {
        for reservation in self.reserved {
            reservation.hand_over();
        }
        if let Some(engine) = &self.engine {
            for event in &self.hinted {
                engine.hint(event);
            }
            engine.metrics.hot_skipped_delayed.increment(self.delayed);
            if self.dropped > 0 {
                engine.metrics.hot_dropped.increment(self.dropped);
                let (store, dropped) = (engine.name(), self.dropped);
                tracing::warn!(store, dropped, "the hot queue is full: the poller delivers these events");
            }
        }
        if !hooks.is_empty() && !self.events.is_empty() {
            hooks.after_commit(&self.events);
        }
    }
}

impl<DB: Database> Deref for Tx<'_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.inner.as_ref().expect("only commit and rollback take it, and they consume the handle")
    }
}

impl<DB: Database> DerefMut for Tx<'_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.events_uncertain |= !self.batches.is_empty();
        self.touched = true;
        self.connection()
    }
}

impl<DB: Database> Drop for Tx<'_, DB> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.abandon();
        }
        // A commit, and `BoundTx::finish`, have already taken the callbacks and batches.
        let after_end = self.after_end();
        if self.end != End::OfCaller {
            after_end.rolled_back(self.outbox.hooks());
        }
    }
}

impl<DB: Database> fmt::Debug for Tx<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: usize = self.batches.iter().map(|batch| batch.events.len()).sum();
        f.debug_struct("Tx").field("events", &events).finish_non_exhaustive()
    }
}

/// A borrowed transaction of sqlx: has all methods of [`Tx`], and its caller ends it. From
/// [`Outbox::bind`].
///
/// Neither a commit nor a rollback is possible through it, and dropping it does not roll back.
///
/// After [`finish`](BoundTx::finish) and the commit, the [`Receipt`] wakes the relay, and calls
/// hooks and callbacks. Without a receipt none of them is called, and the events are delivered with
/// the next poll:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # use outbox::{Event, Outbox};
/// # let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// # sqlx::query("CREATE TABLE orders (id INTEGER)").execute(outbox.pool()).await?;
/// # let pool = outbox.pool();
/// let mut tx = pool.begin().await?;                                      // sqlx's own
/// let mut bound = outbox.bind(&mut tx);
/// bound.write(Event::new("order.placed").json(&42)).await?;
/// sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(42).execute(&mut **bound).await?;
/// bound.after_commit(|| println!("on its way"));
/// let receipt = bound.finish();
/// tx.commit().await?;
/// receipt.committed();
///
/// let mut tx = pool.begin().await?;
/// outbox.bind(&mut tx).write(Event::new("order.placed").json(&43)).await?;   // no receipt
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// Return early after an error of a method. On PostgreSQL the transaction is aborted then, and its
/// commit is a rollback without an error. After an append to the log that was cancelled half way,
/// [`Tx`] would refuse the commit, but the transaction of sqlx does not.
///
/// ```compile_fail,E0507
/// # async fn wrong(outbox: outbox::Outbox<sqlx::Sqlite>) -> outbox::Result<()> {
/// let mut tx = outbox.pool().begin().await?;
/// outbox.bind(&mut tx).commit().await?;                                  // use `tx.commit()`
/// # Ok(()) }
/// ```
#[must_use = "does nothing until one of its methods is called"]
pub struct BoundTx<'t, DB: Database>(Tx<'t, DB>);

impl<'t, DB: Database> BoundTx<'t, DB> {
    pub(crate) fn new(connection: &'t mut DB::Connection, outbox: Outbox<DB>) -> Self {
        Self(Tx::new(Work::Bound(connection), outbox))
    }

    /// Ends the borrow. Use the receipt after the end of the transaction.
    pub fn finish(mut self) -> Receipt {
        Receipt { after_end: self.0.after_end(), hooks: self.0.outbox.hooks().clone() }
    }
}

impl<'t, DB: Database> Deref for BoundTx<'t, DB> {
    type Target = Tx<'t, DB>;

    fn deref(&self) -> &Tx<'t, DB> {
        &self.0
    }
}

impl<DB: Database> DerefMut for BoundTx<'_, DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<DB: Database> fmt::Debug for BoundTx<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoundTx").field(&self.0).finish()
    }
}

/// The events and callbacks of a [`BoundTx`], for the end of its transaction.
///
/// Call [`committed`](Receipt::committed) after the commit of the transaction, or
/// [`rolled_back`](Receipt::rolled_back) after its rollback. The end of a nested transaction (a
/// savepoint) is that of the outermost one, unless it is rolled back alone. A receipt that is
/// dropped calls no hook and no callback, and committed events are delivered with the next poll.
#[must_use = "call `committed()` after your commit, or the events wait for the next poll"]
pub struct Receipt {
    after_end: AfterEnd,
    hooks: Hooks,
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.written()).finish()
    }
}

impl Receipt {
    /// The results of all writes, in their order.
    pub fn written(&self) -> impl Iterator<Item = &Written> {
        self.after_end.batches.iter().flat_map(|batch| &batch.written)
    }

    /// Call after the commit: wakes the relay, calls hooks and callbacks.
    pub fn committed(self) {
        self.after_end.committed(&self.hooks);
    }

    /// Call after a rollback: calls hooks and callbacks.
    pub fn rolled_back(self) {
        self.after_end.rolled_back(&self.hooks);
    }
}
