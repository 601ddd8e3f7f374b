//! Messages: types of the application that are JSON payloads of events.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::payload_error::Location;
use super::{AggregateType, Event, EventBuilder, EventType, GLOBAL, IntoEvent};
use crate::error::EventError;

/// Name of the header that holds the [version](Message::VERSION) of the payload, as a decimal
/// number. An event without it has version 1.
///
/// Writers in other languages set it too, from version 2 on.
pub const MESSAGE_VERSION: &str = "outbox-message-version";

/// A type of yours that is an event's payload.
///
/// With the feature `macros`, which is on by default, `#[derive(Message)]` implements it:
///
#[cfg_attr(feature = "macros", doc = "```")]
#[cfg_attr(not(feature = "macros"), doc = "```ignore")]
/// use outbox::Message;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Message, Serialize, Deserialize)]
/// #[message(type = "order.placed", aggregate = "order/{order}", key = "order-{order}")]
/// struct OrderPlaced { order: u64, total: u64 }
/// # let event = outbox::IntoEvent::into_event(OrderPlaced { order: 42, total: 995 }, 1000)?;
/// # assert_eq!((event.aggregate_id(), event.ordering_key()), (Some("42"), Some("order-42")));
/// # assert_eq!(event.message::<OrderPlaced>().unwrap().total, 995);
/// # Ok::<(), outbox::EventError>(())
/// ```
///
/// By hand:
///
/// ```
/// use outbox::{EventBuilder, Message};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { order: u64, total: u64 }
///
/// impl Message for OrderPlaced {
///     const TYPE: &'static str = "order.placed";
///
///     // optional: further attributes of the event
///     fn describe(&self, event: EventBuilder) -> EventBuilder {
///         event.aggregate("order", self.order.to_string()).ordering_key(format!("order-{}", self.order))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message",
    label = "not a message",
    note = "derive or implement `outbox::Message` for it; a struct needs `serde::Serialize` and `serde::Deserialize` as well"
)]
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// The event type, for which [`on`](crate::RelayBuilder::on) registers a handler.
    const TYPE: &'static str;

    /// The aggregate type, for which a handler is registered as well.
    const AGGREGATE_TYPE: &'static str = GLOBAL;

    /// The version of the payload, from 1. Raise it with a change that does not parse as the former
    /// version, and convert the payloads that are already stored in [`upcast`](Message::upcast).
    ///
    /// From 2 on it is written in the header [`MESSAGE_VERSION`]. A payload of a newer version is
    /// read if it parses; otherwise the event is retried, because a newer build may read it.
    ///
    /// ```
    /// use outbox::{Event, Message, UpcastError};
    /// use serde::{Deserialize, Serialize};
    /// use serde_json::{Value, json};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct OrderPlaced { order: u64, customer: Customer }
    /// #[derive(Serialize, Deserialize)]
    /// struct Customer { name: String }
    ///
    /// impl Message for OrderPlaced {
    ///     const TYPE: &'static str = "order.placed";
    ///     const VERSION: u32 = 2;
    ///
    ///     fn upcast(version: u32, mut payload: Value) -> Result<Value, UpcastError> {
    ///         if version == 1 {
    ///             // Version 1 had the customer's name alone.
    ///             payload["customer"] = json!({ "name": payload["customer"].take() });
    ///         }
    ///         Ok(payload)
    ///     }
    /// }
    ///
    /// let old = Event::new("order.placed").json_text(r#"{"order": 42, "customer": "ada"}"#).build()?;
    /// assert_eq!(old.message::<OrderPlaced>().unwrap().customer.name, "ada");
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    const VERSION: u32 = 1;

    /// Converts a payload of `version` into the next version. It is called once for each step from
    /// the version that was written to [`VERSION`](Message::VERSION), so a step is written once and
    /// stays as it is when further versions follow.
    ///
    /// Not called for payloads of the current version, which are parsed without a [`Value`]. An
    /// error dead-letters the event. In a `Value` numbers that are neither integers of 64 bits nor
    /// `f64` lose digits.
    fn upcast(version: u32, payload: Value) -> Result<Value, UpcastError> {
        let _ = version;
        Ok(payload)
    }

    /// Adds attributes of the event: key, tenant, headers, delay.
    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event
    }
}

impl<M: Message> IntoEvent for M {
    fn into_event(self, limit: usize) -> Result<Event, EventError> {
        const { assert!(M::VERSION > 0, "the versions of a message start at 1") };
        let event = Event::new(EventType::from_static(M::TYPE))
            .aggregate_type(AggregateType::from_static(M::AGGREGATE_TYPE))
            .json(&self)
            .max_payload(limit);
        let event = self.describe(event);
        // Last: the payload has this version, whatever headers `describe` adds.
        let event =
            if M::VERSION == 1 { event } else { event.header(MESSAGE_VERSION, M::VERSION.to_string()) };
        event.build()
    }
}

/// Why a payload could not be converted from one version to the next, by [`Message::upcast`].
///
/// The text is stored and logged: keep values of the payload out of it. An error of `serde_json`
/// keeps its kind only, because its text may quote the payload.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct UpcastError(String);

impl UpcastError {
    /// An error with this reason.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

impl From<serde_json::Error> for UpcastError {
    fn from(error: serde_json::Error) -> Self {
        Self(Location(&error).to_string())
    }
}
