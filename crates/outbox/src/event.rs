//! The event: what is written, carried and handed to a handler. Built once, then immutable.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use chrono::{DateTime, Datelike, Utc};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::error::EventError;
use crate::log::{MAX_TAGS, Tag};

/// The aggregate type of events that name none.
pub const GLOBAL: &str = "__GLOBAL__";

/// How large a payload may be unless a setting says otherwise: 1 MiB.
pub const MAX_PAYLOAD: usize = 1_048_576;

/// The content type of a JSON payload.
pub const JSON: &str = "application/json";

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Cow<'static, str>);

        impl $name {
            /// From a text known at compile time, for constants.
            pub const fn from_static(text: &'static str) -> Self {
                Self(Cow::Borrowed(text))
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Cow::Owned(text.to_owned()))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Cow::Owned(text))
            }
        }

        impl From<&String> for $name {
            fn from(text: &String) -> Self {
                Self(Cow::Owned(text.clone()))
            }
        }

        impl From<&$name> for $name {
            fn from(text: &$name) -> Self {
                text.clone()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text_type! {
    /// The type of an event, such as `order.placed`.
    ///
    /// Strings become one by themselves. So does your own enum, with one `From`:
    ///
    /// ```
    /// use outbox::{Event, EventType};
    ///
    /// enum UserEvents { Created, Deleted }
    ///
    /// impl From<UserEvents> for EventType {
    ///     fn from(event: UserEvents) -> Self {
    ///         EventType::from_static(match event {
    ///             UserEvents::Created => "user.created",
    ///             UserEvents::Deleted => "user.deleted",
    ///         })
    ///     }
    /// }
    ///
    /// let event = Event::new(UserEvents::Created).json(&"ada").build()?;
    /// assert_eq!(event.event_type(), "user.created");
    /// # let _ = UserEvents::Deleted;
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    EventType
}

text_type! {
    /// The type of the aggregate that an event belongs to, such as `order`.
    AggregateType
}

impl AggregateType {
    /// The type of events that belong to no aggregate.
    pub const GLOBAL: AggregateType = AggregateType::from_static(GLOBAL);
}

/// The id of an event: unique, stable through every retry and on every path, the key for deduplication.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Arc<str>);

impl EventId {
    /// A fresh ULID, greater than every one this process made before.
    pub fn generate() -> Self {
        static GENERATOR: LazyLock<Mutex<ulid::Generator>> =
            LazyLock::new(|| Mutex::new(ulid::Generator::new()));
        let mut generator = GENERATOR.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ulid = match generator.generate() {
            Ok(ulid) => ulid,
            Err(overflow) => overflow.commit_overflow_increment(),
        };
        drop(generator);
        Self(ulid.array_to_str(&mut [0; ulid::ULID_LEN]).into())
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for EventId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for EventId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl From<&EventId> for EventId {
    fn from(id: &EventId) -> Self {
        id.clone()
    }
}

impl PartialEq<str> for EventId {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for EventId {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl AsRef<str> for EventId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for EventId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an event says. JSON stays the text it was written as, bytes stay bytes.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// JSON text, exactly as it was written: no reordering, no reformatting.
    Json(String),
    /// Anything else.
    Bytes {
        /// What the bytes are, such as `application/protobuf`.
        content_type: String,
        /// The bytes.
        data: Vec<u8>,
    },
}

impl Payload {
    /// The bytes as they travel.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Bytes { data, .. } => data,
        }
    }

    /// What they are.
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

/// Something that happened, to be told to the world. Cheap to clone.
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

/// The fields of an event, for those who make events from rows: stores.
#[derive(Clone, Debug, PartialEq)]
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
    /// At once.
    Now,
    /// This long after the database stored it.
    After(Duration),
    /// Not before this time.
    At(DateTime<Utc>),
}

impl Event {
    /// Starts an event of this type.
    #[expect(clippy::new_ret_no_self, reason = "an event needs a payload; the builder ends in one")]
    pub fn new(event_type: impl Into<EventType>) -> EventBuilder {
        EventBuilder::new(event_type.into())
    }

    pub(crate) fn from_parts(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// The same event, with its aggregate as its key if it has an aggregate and no key.
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

    /// The type of the aggregate it belongs to; [`GLOBAL`] when none was named.
    pub fn aggregate_type(&self) -> &AggregateType {
        &self.0.aggregate_type
    }

    /// The id of the aggregate it belongs to.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.0.aggregate_id.as_deref()
    }

    /// The tenant it belongs to. Carried through, never interpreted.
    pub fn tenant_id(&self) -> Option<&str> {
        self.0.tenant_id.as_deref()
    }

    /// Events with the same key are delivered one after another, in the order they were written.
    pub fn ordering_key(&self) -> Option<&str> {
        self.key().map(|key| &**key)
    }

    /// The same, to be kept without a copy.
    pub(crate) fn key(&self) -> Option<&Arc<str>> {
        self.0.ordering_key.as_ref()
    }

    /// Ties together the events of one story. An empty one is none.
    pub fn correlation_id(&self) -> Option<&str> {
        self.0.correlation_id.as_deref()
    }

    /// While an event with this key is in the table, another one with the same key is not written.
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

    /// What it is about; only events of the [log](crate::Log) have tags.
    pub fn tags(&self) -> &[Tag] {
        &self.0.tags
    }

    /// The value of the first tag of this name.
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.0.tags.iter().find(|tag| tag.name() == name).map(Tag::value)
    }

    /// The same event for the queue, which keeps no tags.
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

    /// What the payload's bytes are.
    pub fn content_type(&self) -> &str {
        self.0.payload.content_type()
    }

    /// The payload as a type of yours. What does not parse now never will: with `?` in a handler the
    /// event is dead at once.
    ///
    /// ```
    /// # use outbox::Event;
    /// let event = Event::new("n").json(&7).build()?;
    /// assert_eq!(event.payload::<u32>().unwrap(), 7);
    /// assert!(event.payload::<String>().is_err());
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, PayloadError> {
        serde_json::from_slice(self.payload_bytes()).map_err(|e| PayloadError {
            expected: std::any::type_name::<T>(),
            // serde's own text may quote the payload: keep the kind and the place.
            reason: format!("{:?} error at line {} column {}", e.classify(), e.line(), e.column()),
        })
    }

    /// When it happened, by the writer's clock.
    pub fn occurred_at(&self) -> DateTime<Utc> {
        self.0.occurred_at
    }

    /// The time before which it is not delivered, where one is known.
    pub fn available_at(&self) -> Option<DateTime<Utc>> {
        match self.0.due {
            Due::Now => None,
            Due::After(delay) => {
                chrono::Duration::from_std(delay).ok().and_then(|d| self.0.occurred_at.checked_add_signed(d))
            }
            Due::At(at) => Some(at),
        }
    }

    /// Past this time it is dead, with the reason "expired", and never handled.
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.0.expires_at
    }

    /// Whether it is to be delivered later than it happened. Such events wait in the database.
    pub fn is_delayed(&self) -> bool {
        match self.0.due {
            Due::Now => false,
            Due::After(_) => true,
            Due::At(at) => at > self.0.occurred_at,
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A payload that is not what the handler expected.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the payload is not a {expected}: {reason}")]
pub struct PayloadError {
    expected: &'static str,
    reason: String,
}

/// Builds an [`Event`]. Nothing is checked before [`build`](EventBuilder::build), so calls can be made in
/// any order.
#[derive(Clone, Debug)]
#[must_use = "an event is not written until `build()` and `write()`"]
pub struct EventBuilder {
    parts: Parts,
    payload: Given,
    at: Option<DateTime<Utc>>,
    after: Option<Duration>,
    limit: usize,
    tag_mistake: Option<EventError>,
}

#[derive(Clone, Debug)]
enum Given {
    Nothing,
    One(Payload),
    Unusable(EventError),
}

impl EventBuilder {
    fn new(event_type: EventType) -> Self {
        Self {
            parts: Parts {
                id: EventId::generate(),
                event_type,
                aggregate_type: AggregateType::GLOBAL,
                aggregate_id: None,
                tenant_id: None,
                ordering_key: None,
                correlation_id: None,
                dedup_key: None,
                headers: BTreeMap::new(),
                payload: Payload::Json(String::new()),
                occurred_at: Utc::now(),
                due: Due::Now,
                expires_at: None,
                tags: Vec::new(),
            },
            payload: Given::Nothing,
            tag_mistake: None,
            at: None,
            after: None,
            limit: MAX_PAYLOAD,
        }
    }

    /// An id of your own instead of a fresh ULID: at most 36 characters.
    pub fn id(mut self, id: impl Into<EventId>) -> Self {
        self.parts.id = id.into();
        self
    }

    /// The aggregate it belongs to.
    pub fn aggregate(mut self, aggregate_type: impl Into<AggregateType>, id: impl Into<String>) -> Self {
        self.parts.aggregate_type = aggregate_type.into();
        self.parts.aggregate_id = Some(id.into());
        self
    }

    /// The type of the aggregate alone.
    pub fn aggregate_type(mut self, aggregate_type: impl Into<AggregateType>) -> Self {
        self.parts.aggregate_type = aggregate_type.into();
        self
    }

    /// The tenant it belongs to.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.parts.tenant_id = Some(tenant.into());
        self
    }

    /// Deliver the events of one key one after another, in the order they were written.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.parts.ordering_key = Some(key.into().into());
        self
    }

    /// Ties together the events of one story. An empty one is none.
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.parts.correlation_id = Some(id.into()).filter(|id: &String| !id.is_empty());
        self
    }

    /// While an event with this key is in the table, do not write another.
    pub fn dedup_key(mut self, key: impl Into<String>) -> Self {
        self.parts.dedup_key = Some(key.into());
        self
    }

    /// Adds a header; the last value of a name counts.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.parts.headers.insert(name.into(), value.into());
        self
    }

    /// Adds many headers.
    pub fn headers<N: Into<String>, V: Into<String>>(
        mut self,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.parts.headers.extend(headers.into_iter().map(|(n, v)| (n.into(), v.into())));
        self
    }

    /// Adds a tag, for the [log](crate::Log): what the event is about. The queue does not keep tags.
    pub fn tag(mut self, name: impl AsRef<str>, value: impl fmt::Display) -> Self {
        match Tag::new(name, value) {
            Ok(tag) if self.parts.tags.contains(&tag) => {}
            Ok(tag) => self.parts.tags.push(tag),
            Err(mistake) => _ = self.tag_mistake.get_or_insert(mistake),
        }
        self
    }

    /// The payload, serialized here and never again.
    pub fn json<T: Serialize + ?Sized>(self, payload: &T) -> Self {
        match serde_json::to_string(payload) {
            Ok(text) => self.give(Payload::Json(text)),
            Err(e) => self.refuse(EventError::NotJson { reason: e.to_string() }),
        }
    }

    /// The payload as JSON text, which is kept to the byte.
    pub fn json_text(self, text: impl Into<String>) -> Self {
        let text = text.into();
        match check_json(&text) {
            Ok(()) => self.give(Payload::Json(text)),
            Err(e) => self.refuse(e),
        }
    }

    /// The payload as bytes of some content type; may be empty.
    pub fn bytes(self, content_type: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        self.give(Payload::Bytes { content_type: content_type.into(), data: data.into() })
    }

    fn give(mut self, payload: Payload) -> Self {
        self.payload = match self.payload {
            Given::Nothing => Given::One(payload),
            Given::One(_) => Given::Unusable(EventError::TwoPayloads),
            unusable @ Given::Unusable(_) => unusable,
        };
        self
    }

    fn refuse(mut self, error: EventError) -> Self {
        self.payload = Given::Unusable(error);
        self
    }

    /// When it happened; now if not given.
    pub fn occurred_at(mut self, at: DateTime<Utc>) -> Self {
        self.parts.occurred_at = at;
        self
    }

    /// Do not deliver before this time.
    pub fn available_at(mut self, at: DateTime<Utc>) -> Self {
        self.at = Some(at);
        self
    }

    /// Do not deliver until this long after the database stored it.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// Never deliver after this time: then it is dead, with the reason "expired".
    pub fn expires_at(mut self, at: DateTime<Utc>) -> Self {
        self.parts.expires_at = Some(at);
        self
    }

    /// How large the payload may be, instead of [`MAX_PAYLOAD`].
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Checks everything and makes the event.
    pub fn build(self) -> Result<Event, EventError> {
        let mut parts = self.parts;
        parts.payload = match self.payload {
            Given::Nothing => return Err(EventError::NoPayload),
            Given::Unusable(error) => return Err(error),
            Given::One(payload) => payload,
        };
        let size = parts.payload.as_bytes().len();
        if size > self.limit {
            return Err(EventError::PayloadTooLarge { size, limit: self.limit });
        }
        if let Some(mistake) = self.tag_mistake {
            return Err(mistake);
        }
        if parts.tags.len() > MAX_TAGS {
            return Err(EventError::TooMany { what: "tags", count: parts.tags.len(), limit: MAX_TAGS });
        }
        check_text("content type", parts.payload.content_type(), 255)?;
        check_text("event id", parts.id.as_str(), 36)?;
        check_text("event type", parts.event_type.as_str(), 255)?;
        check_text("aggregate type", parts.aggregate_type.as_str(), 64)?;
        for (field, value, limit) in [
            ("aggregate id", parts.aggregate_id.as_deref(), 128),
            ("tenant id", parts.tenant_id.as_deref(), 64),
            ("ordering key", parts.ordering_key.as_deref(), 255),
            ("correlation id", parts.correlation_id.as_deref(), 255),
            ("dedup key", parts.dedup_key.as_deref(), 255),
        ] {
            if let Some(value) = value {
                check_text(field, value, limit)?;
            }
        }
        crate::trace::inject(&mut parts.headers);
        for (name, value) in &parts.headers {
            check_text("header name", name, 255)?;
            check_characters("header value", value)?;
        }

        parts.due = match (self.at, self.after) {
            (None, None) => Due::Now,
            (Some(_), Some(_)) => return Err(EventError::TwoDelays),
            (None, Some(Duration::ZERO)) => return Err(EventError::ZeroDelay),
            (None, Some(delay)) => Due::After(delay),
            (Some(at), None) if at < parts.occurred_at => return Err(EventError::AvailableBeforeOccurred),
            (Some(at), None) => Due::At(at),
        };
        let event = Event::from_parts(parts);
        check_time("occurred_at", Some(event.occurred_at()))?;
        match event.due() {
            Due::After(_) => {
                check_time("deliver_after", Some(event.available_at().unwrap_or(DateTime::<Utc>::MAX_UTC)))?;
            }
            _ => check_time("available_at", event.available_at())?,
        }
        check_time("expires_at", event.expires_at())?;
        if event.expires_at().is_some_and(|end| end <= event.available_at().unwrap_or(event.occurred_at())) {
            return Err(EventError::ExpiresTooEarly);
        }
        Ok(event)
    }
}

pub(crate) fn check_text(field: &'static str, text: &str, limit: usize) -> Result<(), EventError> {
    if text.is_empty() {
        return Err(EventError::Empty { field });
    }
    // Bytes bound characters from above, so most texts are not counted.
    if text.len() > limit {
        let length = text.chars().count();
        if length > limit {
            return Err(EventError::TooLong { field, length, limit });
        }
    }
    check_characters(field, text)
}

fn check_characters(field: &'static str, text: &str) -> Result<(), EventError> {
    match text.chars().find(|c| c.is_control()) {
        Some(character) => Err(EventError::Control { field, character }),
        None => Ok(()),
    }
}

fn check_time(field: &'static str, time: Option<DateTime<Utc>>) -> Result<(), EventError> {
    match time {
        Some(t) if !(1970..=9999).contains(&t.year()) => Err(EventError::TimeOutOfRange { field }),
        _ => Ok(()),
    }
}

/// Whether the text is JSON that every database and every reader takes. Half a surrogate pair is legal
/// by the grammar, but is no text: MySQL refuses it, and so do most parsers.
fn check_json(text: &str) -> Result<(), EventError> {
    let surrogate =
        text.as_bytes().windows(4).any(|w| w[..2] == *b"\\u" && matches!(w[2], b'd' | b'D') && w[3] > b'7');
    let parsed = if surrogate {
        serde_json::from_str::<serde_json::Value>(text).map(drop)
    } else {
        serde_json::from_str::<IgnoredAny>(text).map(drop)
    };
    parsed.map_err(|e| EventError::NotJson { reason: e.to_string() })
}

/// A type of yours that is an event's payload.
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
///     // optional: what else the event carries
///     fn describe(&self, event: EventBuilder) -> EventBuilder {
///         event.aggregate("order", self.order.to_string()).ordering_key(format!("order-{}", self.order))
///     }
/// }
/// ```
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// The event type. What [`on`](crate::RelayBuilder::on) registers a handler for.
    const TYPE: &'static str;

    /// The aggregate type. Part of what a handler is registered for.
    const AGGREGATE_TYPE: &'static str = GLOBAL;

    /// Adds what the event carries beside its payload: key, tenant, headers, delay.
    fn describe(&self, event: EventBuilder) -> EventBuilder {
        event
    }
}

/// What can be written: an [`Event`], an [`EventBuilder`], or a [`Message`] of yours.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "not an event",
    note = "write an `Event`, an `EventBuilder`, or a type of yours that implements `outbox::Message`"
)]
pub trait IntoEvent {
    /// Makes the event; `limit` is how large its payload may be.
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

impl IntoEvent for EventBuilder {
    fn into_event(self, limit: usize) -> Result<Event, EventError> {
        // A limit set on the builder itself was meant for this event.
        let limit = if self.limit == MAX_PAYLOAD { limit } else { self.limit };
        self.max_payload(limit).build()
    }
}

impl<M: Message> IntoEvent for M {
    fn into_event(self, limit: usize) -> Result<Event, EventError> {
        let event = Event::new(EventType::from_static(M::TYPE))
            .aggregate_type(AggregateType::from_static(M::AGGREGATE_TYPE))
            .json(&self)
            .max_payload(limit);
        self.describe(event).build()
    }
}
