//! The event: written, delivered and passed to handlers. Built once, then immutable.

mod builder;
mod from_event;
mod message;
mod names;
mod payload_error;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;

use crate::error::EventError;
use crate::log::Tag;

pub use builder::EventBuilder;
pub(crate) use builder::check_text;
pub use from_event::FromEvent;
#[cfg(feature = "macros")]
pub use from_event::read;
pub use message::{MESSAGE_VERSION, Message, UpcastError};
pub use names::{AggregateType, EventId, EventType};
use payload_error::ParseLocation;
pub use payload_error::PayloadError;
pub(crate) use payload_error::Unparsable;

/// Aggregate type of events without an aggregate.
pub const GLOBAL: &str = "__GLOBAL__";

/// Default maximum size of a payload: 1 MiB.
pub const MAX_PAYLOAD: usize = 1_048_576;

/// Approximate memory of an event without its payload and headers.
pub(crate) const EVENT_OVERHEAD: usize = 512;

/// The content type of a JSON payload.
pub const JSON: &str = "application/json";

/// Payload of an event. JSON keeps its text, bytes stay bytes.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// JSON text, exactly as it was written: not reordered, not reformatted.
    Json(String),
    /// Any other content.
    Bytes {
        /// Content type of the bytes, such as `application/protobuf`.
        content_type: String,
        /// The bytes.
        data: Vec<u8>,
    },
}

impl Payload {
    /// The bytes as they are stored and sent.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Bytes { data, .. } => data,
        }
    }

    /// Content type of the bytes.
    pub fn content_type(&self) -> &str {
        match self {
            Payload::Json(_) => JSON,
            Payload::Bytes { content_type, .. } => content_type,
        }
    }
}

/// Shows size and type only: payloads stay out of logs.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.as_bytes().len(), self.content_type())
    }
}

/// Something that happened, to be delivered to consumers. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use outbox::Event;
///
/// let event = Event::new("order.placed")
///     .aggregate("order", "42")
///     .ordering_key("order-42")
///     .tenant("acme")
///     .header("source", "web")
///     .json(&serde_json::json!({ "total": 995 }))
///     .deliver_after(Duration::from_secs(60))
///     .build()?;
///
/// assert!(event.is_delayed());
/// assert_eq!(event.payload_bytes(), br#"{"total":995}"#);
/// # Ok::<(), outbox::EventError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Event(Arc<Parts>);

/// The fields of an event, for stores, which create events from rows.
#[derive(Clone, PartialEq)]
pub(crate) struct Parts {
    pub(crate) id: EventId,
    pub(crate) event_type: EventType,
    pub(crate) aggregate_type: AggregateType,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) tenant_id: Option<String>,
    pub(crate) ordering_key: Option<Arc<str>>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) dedup_key: Option<String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) payload: Payload,
    pub(crate) occurred_at: DateTime<Utc>,
    pub(crate) due: Due,
    pub(crate) expires_at: Option<DateTime<Utc>>,
    pub(crate) tags: Vec<Tag>,
}

/// When an event may first be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Immediately.
    Now,
    /// This long after the database stored it.
    After(Duration),
    /// Not before this time.
    At(DateTime<Utc>),
    /// Not before this time: for an event that was read back, whose due time is after the time it
    /// was stored, although not after it occurred by the writer's clock.
    Later(DateTime<Utc>),
}

impl Event {
    /// Starts an event of this type.
    #[expect(clippy::new_ret_no_self, reason = "an event needs a payload, which the builder requires")]
    pub fn new(event_type: impl Into<EventType>) -> EventBuilder {
        EventBuilder::new(event_type.into())
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Sets the aggregate as ordering key if it has an aggregate and no key.
    pub(crate) fn ordered_by_aggregate(self) -> Self {
        match (&self.0.ordering_key, &self.0.aggregate_id) {
            (None, Some(id)) => {
                let ordering_key = Some(format!("{}/{id}", self.0.aggregate_type).into());
                Self::from_parts(Parts { ordering_key, ..(*self.0).clone() })
            }
            _ => self,
        }
    }

    pub(crate) fn due(&self) -> Due {
        self.0.due
    }

    /// Its id.
    pub fn id(&self) -> &EventId {
        &self.0.id
    }

    /// Its type.
    pub fn event_type(&self) -> &EventType {
        &self.0.event_type
    }

    /// The type of the aggregate it belongs to; [`GLOBAL`] if none was set.
    pub fn aggregate_type(&self) -> &AggregateType {
        &self.0.aggregate_type
    }

    /// The id of the aggregate it belongs to.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.0.aggregate_id.as_deref()
    }

    /// The tenant it belongs to. Passed through, never interpreted.
    pub fn tenant_id(&self) -> Option<&str> {
        self.0.tenant_id.as_deref()
    }

    /// Events with the same key are delivered one after another, in the order they were written.
    pub fn ordering_key(&self) -> Option<&str> {
        self.key().map(|key| &**key)
    }

    /// The ordering key, to be shared without a copy.
    pub(crate) fn key(&self) -> Option<&Arc<str>> {
        self.0.ordering_key.as_ref()
    }

    /// Links the events of one business operation. An empty id counts as none.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.correlation_id.as_deref()
    }

    /// While an event with this key is in the table, no other event with the same key is written.
    pub fn dedup_key(&self) -> Option<&str> {
        self.0.dedup_key.as_deref()
    }

    /// Its headers.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.0.headers
    }

    /// One header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.headers.get(name).map(String::as_str)
    }

    /// Tags of the event; only events of the [log](crate::Log) have tags.
    pub fn tags(&self) -> &[Tag] {
        &self.0.tags
    }

    /// The value of the first tag of this name.
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.0.tags.iter().find(|tag| tag.name() == name).map(Tag::value)
    }

    /// Removes the tags, which the queue does not store.
    pub(crate) fn without_tags(self) -> Self {
        if self.0.tags.is_empty() {
            return self;
        }
        Self::from_parts(Parts { tags: Vec::new(), ..(*self.0).clone() })
    }

    /// Its payload, JSON or bytes.
    pub fn raw_payload(&self) -> &Payload {
        &self.0.payload
    }

    /// The payload's bytes, exactly as written.
    pub fn payload_bytes(&self) -> &[u8] {
        self.0.payload.as_bytes()
    }

    /// Approximate memory of the event.
    pub(crate) fn bytes(&self) -> usize {
        let headers: usize = self.0.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        EVENT_OVERHEAD + headers + self.payload_bytes().len()
    }

    /// Content type of the payload.
    pub fn content_type(&self) -> &str {
        self.0.payload.content_type()
    }

    /// Deserializes the payload as it was written, whatever [version](Message::VERSION) it has. A
    /// payload that does not parse now never will: with `?` in a handler the event is dead-lettered
    /// immediately.
    ///
    /// ```
    /// # use outbox::Event;
    /// let event = Event::new("n").json(&7).build()?;
    /// assert_eq!(event.payload::<u32>().unwrap(), 7);
    /// assert!(event.payload::<String>().is_err());
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        serde_json::from_slice(self.payload_bytes())
            .map_err(|error| PayloadError::new::<T>(ParseLocation(&error)))
    }

    /// Reads the event as a [`Message`], or as an enum of messages. Checks the event's type, and
    /// upcasts a payload of an older version.
    ///
    /// ```
    /// use outbox::{Event, Message};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Deposited { amount: i64 }
    /// impl Message for Deposited { const TYPE: &'static str = "Deposited"; }
    ///
    /// let event = Event::new("Deposited").json(&Deposited { amount: 100 }).build()?;
    /// assert_eq!(event.message::<Deposited>().unwrap().amount, 100);
    ///
    /// let other = Event::new("Withdrawn").json(&Deposited { amount: 100 }).build()?;
    /// assert!(other.message::<Deposited>().is_err());
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    pub fn message<M: FromEvent>(&self) -> Result<M, PayloadError> {
        if !M::TYPES.contains(&self.event_type().as_str()) {
            return Err(PayloadError::unknown_type::<M>(self));
        }
        M::from_event(self)
    }

    /// When it occurred, by the writer's clock.
    pub fn occurred_at(&self) -> DateTime<Utc> {
        self.0.occurred_at
    }

    /// The earliest delivery time that the writer set, if any. Retries do not change it: the time
    /// of the next retry is [`StoredEvent::available_at`](crate::store::StoredEvent).
    pub fn available_at(&self) -> Option<DateTime<Utc>> {
        match self.0.due {
            Due::Now => None,
            Due::After(delay) => {
                chrono::Duration::from_std(delay).ok().and_then(|d| self.0.occurred_at.checked_add_signed(d))
            }
            Due::At(at) | Due::Later(at) => Some(at),
        }
    }

    /// After this time the event is dead-lettered with the reason "expired", and never handled.
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.0.expires_at
    }

    /// Whether the writer set a delivery time later than the event occurred; such an event first
    /// waits in the database. A retry is not a delay. Writers in other languages set `due_at` as
    /// well as `available_at`.
    pub fn is_delayed(&self) -> bool {
        match self.0.due {
            Due::Now => false,
            Due::After(_) | Due::Later(_) => true,
            Due::At(at) => at > self.0.occurred_at,
        }
    }
}

/// Leaves out the payload and the values of headers: they may hold secrets, and debug output ends
/// up in logs.
impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.keys().map(String::as_str).collect();
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("tenant_id", &self.tenant_id)
            .field("ordering_key", &self.ordering_key)
            .field("correlation_id", &self.correlation_id)
            .field("dedup_key", &self.dedup_key)
            .field("headers", &names)
            .field("payload", &self.payload)
            .field("occurred_at", &self.occurred_at)
            .field("due", &self.due)
            .field("expires_at", &self.expires_at)
            .field("tags", &self.tags)
            .finish()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Types that can be written as events: an [`Event`], an [`EventBuilder`], a [`Message`] of yours,
/// or an enum that derives it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "not an event",
    note = "write an `Event`, an `EventBuilder`, or a type of yours that derives or implements `outbox::Message`"
)]
pub trait IntoEvent {
    /// Creates the event; `limit` is the maximum size of its payload.
    fn into_event(self, limit: usize) -> Result<Event, EventError>;
}

impl IntoEvent for Event {
    fn into_event(self, limit: usize) -> Result<Event, EventError> {
        let size = self.payload_bytes().len();
        if size > limit {
            return Err(EventError::PayloadTooLarge { size, limit });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_holds_neither_values_of_headers_nor_the_payload() {
        let builder = Event::new("e").header("authorization", "canary-1").json("canary-2");
        let edit = crate::store::Edit::json("\"canary-3\"").unwrap().header("x", "canary-4").unwrap();
        let event = builder.clone().build().unwrap();
        let shown = format!("{builder:?} {event:?} {edit:?}");
        assert!(!shown.contains("canary"), "{shown}");
        assert!(format!("{event:?}").contains(r#"headers: ["authorization"]"#), "{event:?}");
    }
}
