//! Errors of reading a payload: permanent ones, and those that another build may not have.

use std::error::Error;
use std::fmt;

use super::{Event, FromEvent};

/// An event that could not be read as the type that the handler expects.
///
/// With `?` in a handler, also if the error is wrapped in an error of your own that returns it as
/// its [source](std::error::Error::source):
///
/// - a payload that does not parse, and an invalid [version](crate::MESSAGE_VERSION), dead-letter
///   the event immediately;
/// - a version or an event type that this build does not know is retried by the retry policy:
///   during a rolling deployment the next attempt may reach a newer build.
///
/// ```
/// use outbox::{Failure, PayloadError};
///
/// #[derive(Debug, thiserror::Error)]
/// enum ShopError {
///     #[error("the order cannot be read")]
///     Order(#[from] PayloadError),
///     #[error("no stock")]
///     NoStock,
/// }
///
/// let event = outbox::Event::new("order").json("none").build()?;
/// let unreadable = ShopError::from(event.payload::<u32>().unwrap_err());
/// assert!(Failure::from(unreadable).is_dead());
/// assert!(!Failure::from(ShopError::NoStock).is_dead());
/// # Ok::<(), outbox::EventError>(())
/// ```
#[derive(Debug, Clone)]
pub struct PayloadError {
    expected: &'static str,
    cause: PayloadFault,
}

#[derive(Debug, Clone)]
enum PayloadFault {
    Permanent(Unparsable),
    Unknown(NotYetKnown),
}

/// Kind and location of the error in a payload. A separate type, so that it is found behind errors
/// that forward [`source`](std::error::Error::source) and hide the [`PayloadError`] itself:
/// `#[error(transparent)]`, `std::io::Error`.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unparsable(String);

/// A version or an event type that a newer build may know.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
struct NotYetKnown(String);

impl PayloadError {
    /// A payload that is not a `T` and never will be, for a [`FromEvent`] by hand. The reason is
    /// stored and logged: keep values of the payload out of it.
    pub fn new<T>(reason: impl fmt::Display) -> Self {
        Self {
            expected: std::any::type_name::<T>(),
            cause: PayloadFault::Permanent(Unparsable(reason.to_string())),
        }
    }

    /// An event whose type is none of `T`'s [types](FromEvent::TYPES). It is retried: a newer build
    /// may know the type.
    pub fn unknown_type<T: FromEvent>(event: &Event) -> Self {
        let event_type = event.event_type();
        let reason = match T::TYPES {
            [one] => format!("the event type is {event_type:?}, not {one:?}"),
            types => format!("the event type {event_type:?} is none of {types:?}"),
        };
        Self::unknown::<T>(reason)
    }

    /// A payload of a version that a newer build may know.
    pub(super) fn unknown<T>(reason: String) -> Self {
        Self { expected: std::any::type_name::<T>(), cause: PayloadFault::Unknown(NotYetKnown(reason)) }
    }

    /// Names the type that was expected, where the Rust type is a generated one.
    #[cfg(feature = "macros")]
    pub(crate) fn expecting(self, expected: &'static str) -> Self {
        Self { expected, ..self }
    }

    /// Whether no build will be able to read the event: its payload does not parse, or its version
    /// is not valid. Otherwise a newer build may.
    ///
    /// ```
    /// # use outbox::{Event, Message};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Debug, Serialize, Deserialize)]
    /// struct Paid { amount: u64 }
    /// impl Message for Paid { const TYPE: &'static str = "paid"; }
    ///
    /// let typo = Event::new("paid").json_text(r#"{"amont": 5}"#);
    /// assert!(typo.clone().build()?.message::<Paid>().unwrap_err().is_permanent());
    /// let newer = typo.header(outbox::MESSAGE_VERSION, "2");
    /// assert!(!newer.build()?.message::<Paid>().unwrap_err().is_permanent());
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    pub fn is_permanent(&self) -> bool {
        matches!(self.cause, PayloadFault::Permanent(_))
    }

    fn cause(&self) -> &(dyn Error + 'static) {
        match &self.cause {
            PayloadFault::Permanent(unparsable) => unparsable,
            PayloadFault::Unknown(unknown) => unknown,
        }
    }
}

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the payload is not a {}: {}", self.expected, self.cause())
    }
}

impl Error for PayloadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.cause())
    }
}

/// Kind and location of an error of serde, whose own text may quote the payload.
pub(super) struct ParseLocation<'a>(pub(super) &'a serde_json::Error);

impl fmt::Display for ParseLocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.0;
        write!(f, "{:?} error", error.classify())?;
        // An error in a `Value` has no location.
        match error.line() {
            0 => Ok(()),
            line => write!(f, " at line {line} column {}", error.column()),
        }
    }
}
