//! Writing wherever the caller decides: in a transaction, or in one of its own.

use crate::error::Result;
use crate::event::{EventId, IntoEvent};
use crate::outbox::Outbox;
use crate::sql::Database;
use crate::tx::{BoundTx, Tx};

/// A place to write events to: a transaction ([`Tx`], [`BoundTx`]), or an [`Outbox`], which begins
/// and commits a transaction of its own for each call, like [`send`](Outbox::send).
///
/// With it a function that writes events leaves the transaction to its caller:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Message, Outbox, Write};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome { email: String }
/// impl Message for Welcome { const TYPE: &'static str = "user.welcome"; }
///
/// async fn register(to: &mut impl Write, email: &str) -> outbox::Result<()> {
///     to.write(Welcome { email: email.into() }).await?;
///     Ok(())
/// }
///
/// # let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let mut tx = outbox.begin().await?;
/// register(&mut tx, "ada@example.org").await?;            // in a transaction
/// tx.commit().await?;
///
/// let mut sqlx_tx = outbox.pool().begin().await?;
/// let mut bound = outbox.bind(&mut sqlx_tx);
/// register(&mut bound, "bob@example.org").await?;         // in a transaction of sqlx
/// let receipt = bound.finish();
/// sqlx_tx.commit().await?;
/// receipt.committed();
///
/// register(&mut outbox.clone(), "cy@example.org").await?; // in a transaction of its own
/// register(&mut &outbox, "dan@example.org").await?;       // the same, without a clone
/// # assert_eq!(outbox.admin().stats().await?.new, 4);
/// # Ok(()) }
/// ```
///
/// A transaction of sqlx is bound first, and a plain connection is refused: the event would not be
/// in the transaction of the change that it is about.
///
/// ```compile_fail,E0277
/// # use outbox::{Event, Outbox, Write};
/// # async fn register(to: &mut impl Write) -> outbox::Result<()> {
/// #     to.write(Event::new("user.welcome").json(&1)).await.map(drop)
/// # }
/// # async fn wrong(outbox: Outbox<sqlx::Sqlite>) -> outbox::Result<()> {
/// let mut tx = outbox.pool().begin().await?;
/// register(&mut tx).await?;                               // `&mut outbox.bind(&mut tx)` compiles
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0277
/// # use outbox::{Event, Outbox, Write};
/// # async fn register(to: &mut impl Write) -> outbox::Result<()> {
/// #     to.write(Event::new("user.welcome").json(&1)).await.map(drop)
/// # }
/// # async fn wrong(outbox: Outbox<sqlx::Sqlite>) -> outbox::Result<()> {
/// let mut connection = outbox.pool().acquire().await?;
/// register(&mut connection).await?;
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "events cannot be written to `{Self}`",
    label = "not an `Outbox`, a `Tx` or a `BoundTx`",
    note = "a transaction of sqlx must be bound: `outbox.bind(&mut tx)`, or adopted: `outbox.adopt(tx)`",
    note = "without a transaction, pass `&mut &outbox`: each call then has a transaction of its own"
)]
pub trait Write: Send {
    /// Writes an event.
    fn write<E: IntoEvent>(&mut self, event: E) -> impl Future<Output = Result<Written>> + Send;

    /// Writes many events in one statement, in this order. Returns an entry for each event that the
    /// hooks let through.
    fn write_all<E: IntoEvent, I: IntoIterator<Item = E>>(
        &mut self,
        events: I,
    ) -> impl Future<Output = Result<Vec<Written>>> + Send;
}

// The events are built before the future is made, so that it is `Send` whatever it was made from.

impl<DB: Database> Write for Tx<'_, DB> {
    fn write<E: IntoEvent>(&mut self, event: E) -> impl Future<Output = Result<Written>> + Send {
        let event = self.outbox().build_one(event);
        async move { self.write_event(event?).await }
    }

    fn write_all<E: IntoEvent, I: IntoIterator<Item = E>>(
        &mut self,
        events: I,
    ) -> impl Future<Output = Result<Vec<Written>>> + Send {
        let events = self.outbox().build(events);
        async move { self.write_events(events?).await }
    }
}

impl<DB: Database> Write for BoundTx<'_, DB> {
    fn write<E: IntoEvent>(&mut self, event: E) -> impl Future<Output = Result<Written>> + Send {
        Write::write(&mut **self, event)
    }

    fn write_all<E: IntoEvent, I: IntoIterator<Item = E>>(
        &mut self,
        events: I,
    ) -> impl Future<Output = Result<Vec<Written>>> + Send {
        Write::write_all(&mut **self, events)
    }
}

impl<DB: Database> Write for &Outbox<DB> {
    fn write<E: IntoEvent>(&mut self, event: E) -> impl Future<Output = Result<Written>> + Send {
        let event = self.build_one(event);
        async move { self.send_event(event?).await }
    }

    fn write_all<E: IntoEvent, I: IntoIterator<Item = E>>(
        &mut self,
        events: I,
    ) -> impl Future<Output = Result<Vec<Written>>> + Send {
        let events = self.build(events);
        async move { self.send_events(events?).await }
    }
}

impl<DB: Database> Write for Outbox<DB> {
    fn write<E: IntoEvent>(&mut self, event: E) -> impl Future<Output = Result<Written>> + Send {
        let event = self.build_one(event);
        async move { self.send_event(event?).await }
    }

    fn write_all<E: IntoEvent, I: IntoIterator<Item = E>>(
        &mut self,
        events: I,
    ) -> impl Future<Output = Result<Vec<Written>>> + Send {
        let events = self.build(events);
        async move { self.send_events(events?).await }
    }
}

impl<W: Write + ?Sized> Write for &mut W {
    fn write<E: IntoEvent>(&mut self, event: E) -> impl Future<Output = Result<Written>> + Send {
        W::write(self, event)
    }

    fn write_all<E: IntoEvent, I: IntoIterator<Item = E>>(
        &mut self,
        events: I,
    ) -> impl Future<Output = Result<Vec<Written>>> + Send {
        W::write_all(self, events)
    }
}

/// Result of writing one event.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # use outbox::{Event, Outbox};
/// # let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let invoice = || Event::new("invoice.due").dedup_key("invoice-42").json(&42);
/// let first = outbox.send(invoice()).await?;
/// let second = outbox.send(invoice()).await?;
/// assert!(first.is_new() && second.is_duplicate());
/// assert_eq!(second.id, first.id);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Written {
    /// The id of the event. For a duplicate it is the id of the event that exists; if that event
    /// was deleted before its id could be read, and for a suppressed event, the id that the event
    /// would have had.
    pub id: EventId,
    /// Whether the event was stored.
    pub outcome: WriteOutcome,
}

/// Whether a written event was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteOutcome {
    /// The event was stored.
    Stored,
    /// Nothing was stored: an event with this deduplication key exists.
    Duplicate,
    /// Nothing was stored: a [`WriterHook`](crate::WriterHook) suppressed the event.
    Suppressed,
}

impl Written {
    pub(crate) fn new(id: EventId, outcome: WriteOutcome) -> Self {
        Self { id, outcome }
    }

    /// The id of the event; see the [field](Written::id) for events that were not stored.
    pub fn id(&self) -> &EventId {
        &self.id
    }

    /// Whether the event was stored.
    pub fn is_new(&self) -> bool {
        self.outcome == WriteOutcome::Stored
    }

    /// Whether an event with the same deduplication key exists, so that nothing was stored.
    pub fn is_duplicate(&self) -> bool {
        self.outcome == WriteOutcome::Duplicate
    }

    /// Whether a hook suppressed the event.
    pub fn is_suppressed(&self) -> bool {
        self.outcome == WriteOutcome::Suppressed
    }
}

/// The place of one event among the events that the hooks returned for it.
pub(crate) struct PlaceInBatch {
    pub(crate) id: EventId,
    pub(crate) index: usize,
}

impl PlaceInBatch {
    /// The result for the event, among the results of all that were written for it.
    pub(crate) fn among(self, written: Vec<Written>) -> Written {
        let own = written.into_iter().nth(self.index);
        own.unwrap_or_else(|| Written::new(self.id, WriteOutcome::Suppressed))
    }
}
