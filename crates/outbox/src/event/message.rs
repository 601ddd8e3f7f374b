//! Messages: types of the application that are JSON payloads of events.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::payload_error::ParseLocation;
use super::{AggregateType, Event, EventBuilder, EventType, GLOBAL, IntoEvent};
use crate::error::EventError;

/// Name of the header that holds the [version](Message::VERSION) of the payload, as a decimal
/// number. An event without it has version 1.
///
/// Writers in other languages set it too, from version 2 on.
pub const MESSAGE_VERSION: &str = "outbox-message-version";

/// Derives [`Message`](trait@Message) for a struct; [`IntoEvent`] and
/// [`FromEvent`](crate::FromEvent) for an enum.
///
/// # Structs
///
/// ```
/// use outbox::{Message, UpcastError};
/// use serde::{Deserialize, Serialize};
/// use serde_json::{Value, json};
///
/// #[derive(Message, Serialize, Deserialize)]
/// #[message(type = "order.placed", version = 2, upcast = upcast)]
/// #[message(aggregate = "order/{order}", key = "customer-{customer}")]
/// struct OrderPlaced { order: u64, customer: u64, lines: Vec<String> }
///
/// fn upcast(_: u32, mut payload: Value) -> Result<Value, UpcastError> {
///     payload["lines"] = json!([payload["item"].take()]);      // version 1 had one item
///     Ok(payload)
/// }
/// # let old = outbox::Event::new("order.placed").json_text(r#"{"order":1,"customer":7,"item":"tea"}"#);
/// # assert_eq!(old.build()?.message::<OrderPlaced>().unwrap().lines, ["tea"]);
/// # let new = OrderPlaced { order: 1, customer: 7, lines: vec![] };
/// # let event = outbox::IntoEvent::into_event(new, 1000)?;
/// # assert_eq!((event.aggregate_id(), event.ordering_key()), (Some("1"), Some("customer-7")));
/// # Ok::<(), outbox::EventError>(())
/// ```
///
/// # Enums
///
/// Each variant is an event type of its own, and its content alone is the payload: an object of its
/// fields, the inner value of a variant such as `Renamed(String)`, `null` without fields. The enum
/// derives nothing of serde; the serde attributes of fields apply, as do `rename_all` at a variant,
/// `rename_all_fields` and `deny_unknown_fields` at the enum.
///
/// ```
/// use outbox::{Event, FromEvent, IntoEvent, Message};
///
/// #[derive(Debug, PartialEq, Message)]
/// #[message(key = "{course}", tags(course = "{course}"))]
/// enum Course {
///     #[message(type = "CourseDefined")]
///     Defined { course: String, #[serde(default)] capacity: u32 },
///     #[message(type = "StudentSubscribed", tags(student = "{student}"))]
///     Subscribed { course: String, student: String },
/// }
///
/// let event = Course::Subscribed { course: "c1".into(), student: "ada".into() }.into_event(1_000)?;
/// assert_eq!(event.event_type(), "StudentSubscribed");
/// assert_eq!(event.payload_bytes(), br#"{"course":"c1","student":"ada"}"#);
/// assert_eq!((event.tag("course"), event.tag("student")), (Some("c1"), Some("ada")));
///
/// let defined = Event::new("CourseDefined").json_text(r#"{"course": "c1"}"#).build()?;
/// assert_eq!(defined.message::<Course>().unwrap(), Course::Defined { course: "c1".into(), capacity: 0 });
/// assert_eq!(Course::TYPES, ["CourseDefined", "StudentSubscribed"]);
/// # Ok::<(), outbox::EventError>(())
/// ```
///
/// # Attributes
///
/// | key | value | at |
/// | --- | --- | --- |
/// | `type` | the event type; a variant without it has its name | struct, variant |
/// | `version` | the [version](Message::VERSION) of the payload | struct, variant |
/// | `upcast` | path of a function with the signature of [`Message::upcast`] | struct, variant |
/// | `aggregate` | type and id of the aggregate: `"order/{order}"` | all |
/// | `aggregate_type` | the aggregate type that [handlers are registered by](Message::AGGREGATE_TYPE) | all |
/// | `key` | the [ordering key](EventBuilder::ordering_key) | all |
/// | `tenant` | the [tenant](EventBuilder::tenant) | all |
/// | `dedup` | the [deduplication key](EventBuilder::dedup_key) | all |
/// | `tags` | [tags](EventBuilder::tag) for the log: `tags(course = "{course}", "student-id" = "{student}")` | all |
/// | `crate` | the path of this crate, if it is not `::outbox`: `crate = "shop::events"` | struct, enum |
///
/// `aggregate`, `key`, `tenant`, `dedup` and the values of tags are templates, which name fields as
/// `format!` does: `{order}`, `{0}` in a tuple, `{order:05}`, `{{` for a brace. A field that does
/// not exist does not compile. At an enum they name fields that every variant has; an attribute of
/// a variant, or its tag of the same name, takes precedence. Headers, delays and optional
/// attributes need an [implementation by hand](trait@Message).
///
/// With `aggregate_type` a handler of the message gets events of that aggregate type alone, so all
/// writers must set it; without it a handler gets the events of any aggregate. An enum has it if
/// all variants share it.
///
/// A struct derives `Serialize` and `Deserialize` as well, or it does not compile:
///
/// ```compile_fail,E0277
/// #[derive(outbox::Message, serde::Serialize)]
/// #[message(type = "order.placed")]
/// struct OrderPlaced { order: u64 }
/// ```
#[cfg(feature = "macros")]
#[doc(inline)]
pub use outbox_macros::Message;

/// A type of yours that is an event's payload.
///
/// With the feature `macros`, which is on by default, `#[derive(Message)]` implements it. By hand:
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
        Self(ParseLocation(&error).to_string())
    }
}
