//! Handlers: async functions that are called with an event, their arguments and their outcomes.
//!
//! | module | contents |
//! | --- | --- |
//! | `function` | which functions are handlers |
//! | `context` | the event and the facts of one attempt |
//! | `extract` | arguments: the message, state, headers |
//! | `transaction` | the argument that makes a handler transactional |
//! | `route` | a handler with its events and options |
//! | `middleware` | code around every handler |

mod context;
mod extract;
mod function;
mod middleware;
mod route;
mod transaction;

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

pub use self::context::Context;
pub(crate) use self::context::{RelayScope, States};
pub(crate) use self::extract::Needs;
pub use self::extract::{EventHeader, FromContext, Header, State};
pub(crate) use self::function::ErasedHandler;
pub use self::function::Handler;
#[cfg(feature = "tower")]
pub use self::middleware::NextService;
#[cfg(feature = "tower")]
pub(crate) use self::middleware::ServiceMiddleware;
pub use self::middleware::{Interceptor, Middleware, Next};
pub(crate) use self::route::RouteKey;
pub use self::route::{Route, on, on_aggregate, on_any, on_type};
pub use self::transaction::HandlerTx;
pub(crate) use self::transaction::TxSlot;
use crate::error::BoxError;
use crate::event::{EventType, Unparsable};

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
///
/// A handler may also return another error type, see [`IntoFailure`]. A failure keeps its meaning
/// there: it converts with `?` into `Box<dyn Error + Send + Sync>`, and with the feature `anyhow`
/// into `anyhow::Error`.
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

/// A handler that is being called.
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send + 'a>>;

/// Return type of most handlers.
pub type Handled = Result<(), Failure>;

impl Failure {
    /// Retry by the retry policy.
    pub fn retry(reason: impl fmt::Display) -> Self {
        Self::new(Again::ByPolicy, reason)
    }

    /// Retry after this long. Counts as an attempt.
    pub fn retry_after(delay: Duration, reason: impl fmt::Display) -> Self {
        Self::new(Again::After(delay), reason)
    }

    /// Do not retry. Does not count as an attempt.
    pub fn dead(reason: impl fmt::Display) -> Self {
        Self::new(Again::Never, reason)
    }

    fn new(again: Again, reason: impl fmt::Display) -> Self {
        // The alternate form of `anyhow::Error` includes the causes.
        Self { again, message: format!("{reason:#}"), detail: None }
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

impl<E: StdError + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::of_error(&error)
    }
}

impl Failure {
    /// The failure that an error stands for, with the text of all its causes.
    fn of_error(error: &(dyn StdError + 'static)) -> Self {
        if let Some(FailureCause(failure)) = causes(error).find_map(<dyn StdError>::downcast_ref) {
            return Self { message: chain(error), ..failure.clone() };
        }
        // A payload that does not parse now will not parse later.
        let is_unparsable = causes(error).any(<dyn StdError>::is::<Unparsable>);
        let again = if is_unparsable { Again::Never } else { Again::ByPolicy };
        Self { again, message: chain(error), detail: None }
    }
}

/// A failure as an error, so that it converts into the error types of applications and back.
/// `Failure` itself cannot implement `Error`: it converts from every error.
#[derive(Debug)]
struct FailureError(FailureCause);

/// The failure as the cause of [`FailureError`]: the type of an error in an `anyhow::Error` is only
/// found as a cause.
#[derive(Debug)]
struct FailureCause(Failure);

impl fmt::Display for FailureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for FailureError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for FailureCause {}

impl From<Failure> for BoxError {
    fn from(failure: Failure) -> Self {
        Box::new(FailureError(FailureCause(failure)))
    }
}

#[cfg(feature = "anyhow")]
impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        Self::new(FailureError(FailureCause(failure)))
    }
}

/// Limit for the causes of an error: an error may name itself as its source.
const MOST_CAUSES: usize = 64;

/// The causes of an error, the nearest first.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(error.source(), |cause| (**cause).source()).take(MOST_CAUSES)
}

/// The text of an error with all its causes.
fn chain(error: &(dyn StdError + 'static)) -> String {
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

impl<T, E: IntoFailure> OrDead<T> for Result<T, E> {
    fn or_dead(self) -> Result<T, Failure> {
        self.map_err(|error| Failure { again: Again::Never, ..error.into_failure() })
    }
}

/// Error types of a handler: [`Failure`], any `std::error::Error`, `anyhow::Error`,
/// `Box<dyn Error + Send + Sync>`, and `String`.
///
/// The text of the attempt contains the causes of the error. An error is retried by the retry
/// policy, unless a [`Failure`] or a [`PayloadError`](crate::PayloadError) is among its causes.
///
/// ```
/// use outbox::{Context, OrDead};
///
/// type BoxError = Box<dyn std::error::Error + Send + Sync>;
///
/// async fn forward(cx: Context) -> Result<(), BoxError> {
///     let port: u16 = cx.header("port").unwrap_or("80").parse().or_dead()?;
///     tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
///     Ok(())
/// }
/// # let _ = outbox::on_type::<outbox::StoreOnly, _>("e", forward);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a handler",
    label = "not an error type of a handler",
    note = "use `outbox::Failure`, a type that implements `std::error::Error`, `anyhow::Error`, `Box<dyn Error + Send + Sync>` or `String`"
)]
pub trait IntoFailure {
    /// Converts into the form that the relay uses.
    fn into_failure(self) -> Failure;
}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> IntoFailure for E {
    fn into_failure(self) -> Failure {
        Failure::of_error(&*self.into())
    }
}

/// Values of a handler that did not fail: nothing, or an [`Outcome`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not the outcome of a handler",
    note = "return `()` or `outbox::Outcome`, or a `Result` of one of them"
)]
pub trait IntoSuccess {
    /// Converts into the form that the relay uses.
    fn into_success(self) -> Outcome;
}

impl IntoSuccess for () {
    fn into_success(self) -> Outcome {
        Outcome::Done
    }
}

impl IntoSuccess for Outcome {
    fn into_success(self) -> Outcome {
        self
    }
}

/// Return types of a handler: nothing, an [`Outcome`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not a return type of a handler",
    note = "return `()`, `Outcome`, or a `Result` of one of them; the error can be any `std::error::Error`, `anyhow::Error`, or `Failure`"
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

impl<T: IntoSuccess, E: IntoFailure> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Result<Outcome, Failure> {
        self.map(T::into_success).map_err(E::into_failure)
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
    use crate::event::{Event, PayloadError};

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
