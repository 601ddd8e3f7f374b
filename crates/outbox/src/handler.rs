//! Handlers: what your code says about an event, and how it is called.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use crate::event::{Event, EventType, Message, PayloadError};
use crate::sql::Database;
use crate::store::{Delivery, NodeId};
use crate::tx::Tx;

/// What became of an event, as its handler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Handled.
    Done,
    /// Not yet: ask again after this long. Not an attempt, so it may go on for as long as it takes.
    RetryAfter(Duration),
    /// Never: the event is dead, for this reason.
    Dead(String),
}

/// Why a handler failed, and whether trying again can help.
///
/// Every error becomes one with `?`: then it is tried again, as the retry policy says. An error that will never
/// go away is marked where it is known, with [`or_dead`](OrDead::or_dead):
///
/// ```
/// use outbox::{Cx, Handled, OrDead};
///
/// async fn forward(cx: Cx) -> Handled {
///     let port: u16 = cx.header("port").unwrap_or("80").parse().or_dead()?;   // a bad number stays bad
///     tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;             // a bad network does not
///     Ok(())
/// }
/// # let _ = forward;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub(crate) again: Again,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    ByPolicy,
    After(Duration),
    Never,
}

/// What most handlers return.
pub type Handled = Result<(), Failure>;

impl Failure {
    /// Try again, when the retry policy says.
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self { again: Again::ByPolicy, message: reason.to_string() }
    }

    /// Try again after this long. Counts as an attempt.
    pub fn retry_after(delay: Duration, reason: impl fmt::Display) -> Self {
        Self { again: Again::After(delay), message: reason.to_string() }
    }

    /// Never try again. Does not count as an attempt.
    pub fn dead(reason: impl fmt::Display) -> Self {
        Self { again: Again::Never, message: reason.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        // What does not parse now will not parse later.
        let again = if (&error as &dyn Any).is::<PayloadError>() { Again::Never } else { Again::ByPolicy };
        Self { again, message: chain(&error) }
    }
}

/// An error with everything that caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors repeat their cause in their own text.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Marks an error as one that will never go away.
pub trait OrDead<T> {
    /// With `?`: the event is dead at once.
    fn or_dead(self) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrDead<T> for Result<T, E> {
    fn or_dead(self) -> Result<T, Failure> {
        self.map_err(Failure::dead)
    }
}

/// What a handler may return: nothing, an [`Outcome`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not something a handler may return",
    note = "return `()`, `Outcome`, or a `Result` of one of them; the error can be any `std::error::Error`, or `Failure`"
)]
pub trait IntoOutcome {
    /// The one form that the relay knows.
    fn into_outcome(self) -> Result<Outcome, Failure>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<Outcome, Failure> {
        Ok(Outcome::Done)
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Result<Outcome, Failure> {
        Ok(self)
    }
}

impl<E: Into<Failure>> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Result<Outcome, Failure> {
        self.map(|()| Outcome::Done).map_err(Into::into)
    }
}

impl<E: Into<Failure>> IntoOutcome for Result<Outcome, E> {
    fn into_outcome(self) -> Result<Outcome, Failure> {
        self.map_err(Into::into)
    }
}

/// The event being handled, and what is known about this attempt. Reads like the [`Event`] itself.
#[derive(Clone, Debug)]
pub struct Cx {
    pub(crate) event: Event,
    pub(crate) attempt: u32,
    pub(crate) seq: Option<i64>,
    pub(crate) created_at: Option<DateTime<Utc>>,
    pub(crate) node: NodeId,
    pub(crate) store: Arc<str>,
}

impl Cx {
    pub(crate) fn new(delivery: &Delivery, node: &NodeId, store: &Arc<str>) -> Self {
        Self {
            event: delivery.event.clone(),
            attempt: delivery.attempts + 1,
            seq: delivery.seq,
            created_at: delivery.created_at,
            node: node.clone(),
            store: store.clone(),
        }
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The event's place in its table; known whenever order matters. A receiver that drops what is not above the
    /// last one it saw of a key drops every redelivery.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// When the database stored it; `None` on the hot path, which does not read it back.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }

    /// The node that handles it.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// The name of the store that it is in: in a [`Fleet`](crate::Fleet) the database's, to find its outbox by.
    pub fn store(&self) -> &str {
        &self.store
    }
}

impl Deref for Cx {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// Handles events. Most handlers are plain functions, see [`RelayBuilder::on`](crate::RelayBuilder::on); implement
/// this for one that is more than a function.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles one event. An event may come more than once: its [`id`](Event::id) stays the same.
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure>;
}

/// An async function of the event, as a handler.
pub(crate) struct RawFn<F>(pub(crate) F);

#[async_trait]
impl<F, Fut> Handler for RawFn<F>
where
    F: Fn(Cx) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send,
{
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        (self.0)(cx).await.into_outcome()
    }
}

/// An async function of a message, as a handler.
pub(crate) struct TypedFn<F, M>(pub(crate) F, pub(crate) PhantomData<fn() -> M>);

#[async_trait]
impl<F, Fut, M> Handler for TypedFn<F, M>
where
    M: Message,
    F: Fn(M, Cx) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send,
{
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        let message: M = cx.payload()?;
        (self.0)(message, cx).await.into_outcome()
    }
}

/// Handles events in a transaction that settles them as well: what the handler writes takes effect exactly once. Most
/// such handlers are plain functions, see [`RelayBuilder::on_tx`](crate::RelayBuilder::on_tx); implement this for one that
/// is more than a function.
#[async_trait]
pub trait TxHandler<DB: Database>: Send + Sync + 'static {
    /// Handles one event. If it says done, what it wrote is committed together with that; otherwise it is rolled back.
    async fn handle(&self, cx: Cx, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure>;
}

/// An async function of a message and a transaction: `async fn book(m: Booked, cx: Cx, tx: &mut Tx<'_, Postgres>)`.
/// Implemented by all that fit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler in a transaction",
    label = "not an async function of a message, a `Cx` and a `&mut Tx`",
    note = "write `async fn handle(message: M, cx: Cx, tx: &mut Tx<'_, DB>) -> Handled`, with `M: Message`"
)]
pub trait TxFn<'t, DB: Database, M>: Send + Sync + 'static {
    /// What it returns.
    type Handling: Future<Output: IntoOutcome> + Send + 't;
    /// Calls it.
    fn call(&self, message: M, cx: Cx, tx: &'t mut Tx<'static, DB>) -> Self::Handling;
}

impl<'t, DB: Database, M, F, Fut> TxFn<'t, DB, M> for F
where
    F: Fn(M, Cx, &'t mut Tx<'static, DB>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 't,
{
    type Handling = Fut;

    fn call(&self, message: M, cx: Cx, tx: &'t mut Tx<'static, DB>) -> Fut {
        self(message, cx, tx)
    }
}

/// An async function of a message and a transaction, as a handler.
pub(crate) struct TypedTxFn<F, M>(pub(crate) F, pub(crate) PhantomData<fn() -> M>);

#[async_trait]
impl<DB, F, M> TxHandler<DB> for TypedTxFn<F, M>
where
    DB: Database,
    M: Message,
    F: for<'t> TxFn<'t, DB, M>,
{
    async fn handle(&self, cx: Cx, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
        let message: M = cx.payload()?;
        self.0.call(message, cx, tx).await.into_outcome()
    }
}

/// Looks at every event before and after its handler: for audit, logging, measuring.
///
/// `before` runs in the order of registration; an error there counts as the handler's. `after` runs in reverse.
pub trait Interceptor: Send + Sync + 'static {
    /// Before the handler. An error keeps the event from its handler.
    fn before(&self, cx: &Cx) -> Result<(), Failure> {
        let _ = cx;
        Ok(())
    }

    /// After the handler, whatever it said. A panic here is logged and changes nothing.
    fn after(&self, cx: &Cx, result: &Result<Outcome, Failure>) {
        let _ = (cx, result);
    }
}

/// What to do with an event that has no handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unrouted {
    /// It is dead at once, not counted as an attempt.
    #[default]
    Dead,
    /// It fails like a handler that failed, so that a node which knows the type can take it: for rolling
    /// deployments.
    Retry,
}

/// The reason given for an event that has no handler.
pub(crate) fn no_handler(event_type: &EventType, aggregate_type: &str) -> String {
    format!("no handler for event type {event_type:?} of aggregate type {aggregate_type:?}")
}
