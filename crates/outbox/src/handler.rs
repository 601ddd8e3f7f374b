//! Handlers: their signatures and outcomes.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use crate::event::{Event, EventType, Message, Unparsable};
use crate::sql::Database;
use crate::store::{Delivery, NodeId};
use crate::tx::Tx;

/// Outcome of one delivery attempt, as the handler returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Handled.
    Done,
    /// Not yet: deliver again after this long. Not counted as an attempt, so it may repeat without
    /// limit.
    Snooze(Duration),
    /// Never: the event is dead, for this reason.
    Dead(String),
}

/// Why a handler failed, and whether a retry can help.
///
/// Every error converts into one with `?`: then the event is retried by the retry policy. Mark a
/// permanent error where it is known, with [`or_dead`](OrDead::or_dead):
///
/// ```
/// use outbox::{Context, Handled, OrDead};
///
/// async fn forward(cx: Context) -> Handled {
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
    pub(crate) detail: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    ByPolicy,
    After(Duration),
    Never,
}

/// Return type of most handlers.
pub type Handled = Result<(), Failure>;

impl Failure {
    /// Retry by the retry policy.
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self { again: Again::ByPolicy, message: reason.to_string(), detail: None }
    }

    /// Retry after this long. Counts as an attempt.
    pub fn retry_after(delay: Duration, reason: impl fmt::Display) -> Self {
        Self { again: Again::After(delay), message: reason.to_string(), detail: None }
    }

    /// Do not retry. Does not count as an attempt.
    pub fn dead(reason: impl fmt::Display) -> Self {
        Self { again: Again::Never, message: reason.to_string(), detail: None }
    }

    /// Whether the event is dead: no retry can help.
    pub fn is_dead(&self) -> bool {
        self.again == Again::Never
    }

    /// Adds a detail that may contain data, such as the answer of a receiver. It is stored with the
    /// attempt, never logged, and shown only to users who may see payloads.
    ///
    /// ```
    /// use outbox::Failure;
    ///
    /// let failure = Failure::retry("the shop answers 500").with_detail("no stock for ada@example.org");
    /// assert_eq!(failure.to_string(), "the shop answers 500");
    /// ```
    pub fn with_detail(mut self, detail: impl fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// The stored text: the reason, and the detail behind a mark.
    pub(crate) fn stored(self) -> String {
        match self.detail {
            Some(detail) => format!("{}{DETAIL}{detail}", self.message),
            None => self.message,
        }
    }
}

/// Separates the reason and the detail of a stored error.
const DETAIL: &str = "\n[detail] ";

/// Splits a stored error into its reason and its [detail](Failure::with_detail), which is only for
/// users who may see payloads.
///
/// ```
/// use outbox::split_detail;
///
/// assert_eq!(split_detail("answers 500\n[detail] no stock"), ("answers 500", Some("no stock")));
/// assert_eq!(split_detail("refused"), ("refused", None));
/// ```
pub fn split_detail(error: &str) -> (&str, Option<&str>) {
    match error.split_once(DETAIL) {
        Some((reason, detail)) => (reason, Some(detail)),
        None => (error, None),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        // A payload that does not parse now will not parse later.
        let is_unparsable = causes(&error).any(<dyn std::error::Error>::is::<Unparsable>);
        let again = if is_unparsable { Again::Never } else { Again::ByPolicy };
        Self { again, message: chain(&error), detail: None }
    }
}

/// Limit for the causes of an error: an error may name itself as its source.
const MOST_CAUSES: usize = 64;

/// The causes of an error, the nearest first.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |cause| cause.source()).take(MOST_CAUSES)
}

/// The text of an error with all its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error) {
        let cause_text = cause.to_string();
        // Many errors repeat their cause in their own text.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
    }
    text
}

/// Marks an error as permanent.
pub trait OrDead<T> {
    /// With `?`: the event is dead at once.
    fn or_dead(self) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrDead<T> for Result<T, E> {
    fn or_dead(self) -> Result<T, Failure> {
        self.map_err(Failure::dead)
    }
}

/// Return types of a handler: nothing, an [`Outcome`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not a return type of a handler",
    note = "return `()`, `Outcome`, or a `Result` of one of them; the error can be any `std::error::Error`, or `Failure`"
)]
pub trait IntoOutcome {
    /// Converts into the form that the relay uses.
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

/// The event being handled, and the facts of this attempt. Dereferences to the [`Event`] itself.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) event: Event,
    pub(crate) attempt: u32,
    pub(crate) seq: Option<i64>,
    pub(crate) created_at: Option<DateTime<Utc>>,
    pub(crate) last_error: Option<Arc<str>>,
    pub(crate) node: NodeId,
    pub(crate) store: Arc<str>,
}

impl Context {
    pub(crate) fn new(delivery: &Delivery, node: &NodeId, store: &Arc<str>) -> Self {
        Self {
            event: delivery.event.clone(),
            attempt: delivery.attempts + 1,
            seq: delivery.seq,
            created_at: delivery.created_at,
            last_error: delivery.last_error.as_deref().map(Into::into),
            node: node.clone(),
            store: store.clone(),
        }
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The event's position in its table; known whenever order matters. A receiver that ignores
    /// positions up to the last one it has seen of a key ignores every redelivery.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// The error of the last attempt, with its [detail](split_detail) if it had one. `None` for an
    /// event that has not failed.
    ///
    /// ```
    /// use outbox::{Context, Handled, split_detail};
    ///
    /// async fn resize(cx: Context) -> Handled {
    ///     if let Some((reason, _)) = cx.last_error().map(split_detail) {
    ///         println!("attempt {}, after: {reason}", cx.attempt());
    ///     }
    ///     Ok(())
    /// }
    /// # let _ = resize;
    /// ```
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// When the database stored it, by the database's clock: known on every path, from every store
    /// of this crate.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }

    /// The node that handles it.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Name of the store of the event: in a [`Fleet`](crate::Fleet) the name of the database, to
    /// find its outbox by.
    pub fn store(&self) -> &str {
        &self.store
    }
}

impl Deref for Context {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// Handles events. Most handlers are plain functions, see
/// [`RelayBuilder::on`](crate::RelayBuilder::on); implement this trait for a handler with state.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles one event. An event may be delivered more than once: its [`id`](Event::id) stays the
    /// same.
    async fn handle(&self, cx: Context) -> Result<Outcome, Failure>;
}

/// An async function of the event, as a handler.
pub(crate) struct RawFn<F>(pub(crate) F);

#[async_trait]
impl<F, Fut> Handler for RawFn<F>
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send,
{
    async fn handle(&self, cx: Context) -> Result<Outcome, Failure> {
        (self.0)(cx).await.into_outcome()
    }
}

/// An async function of a message, as a handler.
pub(crate) struct TypedFn<F, M>(pub(crate) F, pub(crate) PhantomData<fn() -> M>);

#[async_trait]
impl<F, Fut, M> Handler for TypedFn<F, M>
where
    M: Message,
    F: Fn(M, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send,
{
    async fn handle(&self, cx: Context) -> Result<Outcome, Failure> {
        let message: M = cx.payload()?;
        (self.0)(message, cx).await.into_outcome()
    }
}

/// Handles events in a transaction that also settles them: writes of the handler take effect
/// exactly once. Most such handlers are plain functions, see
/// [`RelayBuilder::on_tx`](crate::RelayBuilder::on_tx); implement this trait for a handler with
/// state.
#[async_trait]
pub trait TxHandler<DB: Database>: Send + Sync + 'static {
    /// Handles one event. If the handler returns `Done`, its writes are committed together with the
    /// settlement; otherwise they are rolled back.
    async fn handle(&self, cx: Context, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure>;
}

/// An async function of a message and a transaction:
/// `async fn book(m: Booked, cx: Context, tx: &mut Tx<'_, Postgres>)`. Implemented by all functions
/// of this form.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler in a transaction",
    label = "not an async function of a message, a `Context` and a `&mut Tx`",
    note = "write `async fn handle(message: M, cx: Context, tx: &mut Tx<'_, DB>) -> Handled`, with `M: Message`"
)]
pub trait TxFn<'t, DB: Database, M>: Send + Sync + 'static {
    /// The future that it returns.
    type Handling: Future<Output: IntoOutcome> + Send + 't;
    /// Calls the function.
    fn call(&self, message: M, cx: Context, tx: &'t mut Tx<'static, DB>) -> Self::Handling;
}

impl<'t, DB: Database, M, F, Fut> TxFn<'t, DB, M> for F
where
    F: Fn(M, Context, &'t mut Tx<'static, DB>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 't,
{
    type Handling = Fut;

    fn call(&self, message: M, cx: Context, tx: &'t mut Tx<'static, DB>) -> Fut {
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
    async fn handle(&self, cx: Context, tx: &mut Tx<'static, DB>) -> Result<Outcome, Failure> {
        let message: M = cx.payload()?;
        self.0.call(message, cx, tx).await.into_outcome()
    }
}

/// Sees every event before and after its handler: for audit, logging, measuring.
///
/// `before` runs in the order of registration; an error there counts as the handler's. `after` runs
/// in reverse order.
pub trait Interceptor: Send + Sync + 'static {
    /// Called before the handler. After an error the handler is not called.
    fn before(&self, cx: &Context) -> Result<(), Failure> {
        let _ = cx;
        Ok(())
    }

    /// Called after the handler, whatever its result. A panic here is logged and changes nothing.
    fn after(&self, cx: &Context, result: &Result<Outcome, Failure>) {
        let _ = (cx, result);
    }
}

/// How a relay treats events that have no handler and no destination.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Context, Event, Outbox, Unrouted};
/// use outbox::store::Status;
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let id = outbox.send(Event::new("order.refunded").json(&42)).await?.id;
///
/// // A relay of the shop leaves it pending.
/// let shop = outbox.multi_node().on_type("order.placed", async |_: Context| { /* … */ }).start().await?;
/// shop.idle().await?;
/// assert_eq!(outbox.admin().find(&id).await?.unwrap().status, Status::New);
/// shop.stop().await?;
///
/// // A relay of the bank delivers it.
/// let bank = outbox.multi_node().on_type("order.refunded", async |_: Context| { /* … */ }).start().await?;
/// bank.idle().await?;
/// assert_eq!(outbox.admin().find(&id).await?.unwrap().status, Status::Done);
/// bank.stop().await?;
///
/// // A relay that is alone can report unknown events as dead.
/// let strict = outbox.multi_node().unrouted(Unrouted::Dead).start().await?;
/// # strict.stop().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unrouted {
    /// They stay pending, for a relay that routes them: several relays with different handlers
    /// share a table. They hold back the later events of their ordering keys.
    /// [`Admin::unrouted`](crate::Admin::unrouted) lists events that no running relay routes.
    ///
    /// The relay selects events by their types and aggregate types when it takes them. An event for
    /// which a [`Router`](crate::Router) returns no destination for another reason is snoozed
    /// instead, 5 s at first and 10 min at most, and no attempt is counted.
    #[default]
    Leave,
    /// They are dead at once, not counted as an attempt.
    Dead,
    /// They fail as if a handler had failed, and are retried.
    Retry,
}

/// The reason given for an event that has no handler.
pub(crate) fn no_handler(event_type: &EventType, aggregate_type: &str) -> String {
    format!("no handler for event type {event_type:?} of aggregate type {aggregate_type:?}")
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;

    use super::*;
    use crate::event::PayloadError;

    #[derive(Debug, thiserror::Error)]
    enum Own {
        #[error("the order cannot be read")]
        Wrapped(#[from] PayloadError),
        #[error(transparent)]
        Transparent(PayloadError),
        #[error("one level more")]
        Deeper(#[source] Box<Own>),
        #[error("the payload is not a number, says another service")]
        Elsewhere,
    }

    /// An error that names itself as its cause, for ever.
    #[derive(Debug)]
    struct Endless;

    impl fmt::Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("endless")
        }
    }

    impl Error for Endless {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self)
        }
    }

    #[test]
    fn a_payload_that_does_not_parse_is_dead_whatever_error_it_comes_in() {
        let error = || Event::new("e").json("text").build().unwrap().payload::<u32>().unwrap_err();
        for failure in [
            Failure::from(error()),
            Failure::from(Own::Wrapped(error())),
            Failure::from(Own::Transparent(error())),
            Failure::from(Own::Deeper(Box::new(Own::Deeper(Box::new(Own::Wrapped(error())))))),
            Failure::from(io::Error::other(error())),
            Failure::from(Own::Deeper(Box::new(Own::Transparent(error())))),
        ] {
            assert!(failure.is_dead(), "{failure}");
            assert!(failure.message.ends_with("Data error at line 1 column 6"), "{failure}");
            assert_eq!(failure.message.matches("Data error").count(), 1, "{failure}");
        }
        for failure in [Failure::from(Own::Elsewhere), Failure::from(io::Error::other(Own::Elsewhere))] {
            assert!(!failure.is_dead(), "{failure}");
        }
    }

    #[test]
    fn an_error_that_is_its_own_cause_is_a_failure_too() {
        let failure = Failure::from(Endless);
        assert_eq!((failure.is_dead(), failure.message.as_str()), (false, "endless"));
    }
}
