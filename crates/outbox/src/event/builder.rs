//! Builder of events, which checks all attributes at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Datelike, Utc};
use serde::Serialize;
use serde::de::IgnoredAny;

use super::{AggregateType, Due, Event, EventId, EventType, IntoEvent, MAX_PAYLOAD, Parts, Payload};
use crate::error::EventError;
use crate::log::{MAX_TAGS, Tag};

/// Builds an [`Event`]. Nothing is checked before [`build`](EventBuilder::build), so methods can be
/// called in any order.
#[derive(Clone, Debug)]
#[must_use = "an event is not written until `build()` and `write()`"]
pub struct EventBuilder {
    parts: Parts,
    payload: GivenPayload,
    /// Whether the caller set `occurred_at`.
    is_dated: bool,
    at: Option<DateTime<Utc>>,
    after: Option<Duration>,
    limit: usize,
    tag_mistake: Option<EventError>,
}

#[derive(Clone, Debug)]
enum GivenPayload {
    Nothing,
    One(Payload),
    Unusable(EventError),
}

impl EventBuilder {
    pub(super) fn new(event_type: EventType) -> Self {
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
            payload: GivenPayload::Nothing,
            is_dated: false,
            tag_mistake: None,
            at: None,
            after: None,
            limit: MAX_PAYLOAD,
        }
    }

    /// Sets the id instead of a generated ULID: at most 36 characters.
    pub fn id(mut self, id: impl Into<EventId>) -> Self {
        self.parts.id = id.into();
        self
    }

    /// Sets the aggregate.
    pub fn aggregate(mut self, aggregate_type: impl Into<AggregateType>, id: impl Into<String>) -> Self {
        self.parts.aggregate_type = aggregate_type.into();
        self.parts.aggregate_id = Some(id.into());
        self
    }

    /// Sets the type of the aggregate alone.
    pub fn aggregate_type(mut self, aggregate_type: impl Into<AggregateType>) -> Self {
        self.parts.aggregate_type = aggregate_type.into();
        self
    }

    /// Sets the tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.parts.tenant_id = Some(tenant.into());
        self
    }

    /// Delivers the events of one key one after another, in the order they were written.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.parts.ordering_key = Some(key.into().into());
        self
    }

    /// Links the events of one business operation. An empty id counts as none. An event that a
    /// handler builds has the correlation id of the event that is handled, if no other is set.
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        self.parts.correlation_id = Some(id.into()).filter(|id: &String| !id.is_empty());
        self
    }

    /// Does not write another event with this key while one is in the table.
    pub fn dedup_key(mut self, key: impl Into<String>) -> Self {
        self.parts.dedup_key = Some(key.into());
        self
    }

    /// Adds a header; the last value of a name wins.
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

    /// Adds a tag for the [log](crate::Log). The queue does not store tags.
    pub fn tag(mut self, name: impl AsRef<str>, value: impl fmt::Display) -> Self {
        match Tag::new(name, value) {
            Ok(tag) if self.parts.tags.contains(&tag) => {}
            Ok(tag) => self.parts.tags.push(tag),
            Err(mistake) => _ = self.tag_mistake.get_or_insert(mistake),
        }
        self
    }

    /// Sets the payload, serialized by this call and never again.
    pub fn json<T: Serialize + ?Sized>(self, payload: &T) -> Self {
        match serde_json::to_string(payload) {
            Ok(text) => self.give(Payload::Json(text)),
            Err(e) => self.refuse(EventError::NotJson { reason: e.to_string() }),
        }
    }

    /// Sets the payload as JSON text, stored byte for byte.
    pub fn json_text(self, text: impl Into<String>) -> Self {
        let text = text.into();
        match check_json(&text) {
            Ok(()) => self.give(Payload::Json(text)),
            Err(e) => self.refuse(e),
        }
    }

    /// Sets the payload as bytes of any content type; may be empty.
    pub fn bytes(self, content_type: impl Into<String>, data: impl Into<Vec<u8>>) -> Self {
        self.give(Payload::Bytes { content_type: content_type.into(), data: data.into() })
    }

    fn give(mut self, payload: Payload) -> Self {
        self.payload = match self.payload {
            GivenPayload::Nothing => GivenPayload::One(payload),
            GivenPayload::One(_) => GivenPayload::Unusable(EventError::TwoPayloads),
            unusable @ GivenPayload::Unusable(_) => unusable,
        };
        self
    }

    fn refuse(mut self, error: EventError) -> Self {
        self.payload = GivenPayload::Unusable(error);
        self
    }

    /// Sets when the event occurred; the default is now.
    pub fn occurred_at(mut self, at: DateTime<Utc>) -> Self {
        self.parts.occurred_at = at;
        self.is_dated = true;
        self
    }

    /// Does not deliver before this time. An event whose time has passed is due immediately.
    ///
    /// A time before an explicitly set [`occurred_at`](EventBuilder::occurred_at) is an error:
    ///
    /// ```
    /// use chrono::{TimeDelta, Utc};
    /// use outbox::{Event, EventError};
    ///
    /// let yesterday = Utc::now() - TimeDelta::days(1);
    /// let event = Event::new("reminder").json(&1).available_at(yesterday);
    /// assert!(!event.clone().build()?.is_delayed());
    /// let mistake = event.occurred_at(Utc::now()).build().unwrap_err();
    /// assert_eq!(mistake, EventError::AvailableBeforeOccurred);
    /// # Ok::<(), EventError>(())
    /// ```
    pub fn available_at(mut self, at: DateTime<Utc>) -> Self {
        self.at = Some(at);
        self
    }

    /// Does not deliver until this long after the database stored the event.
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// Never delivers after this time: the event is dead-lettered with the reason "expired".
    pub fn expires_at(mut self, at: DateTime<Utc>) -> Self {
        self.parts.expires_at = Some(at);
        self
    }

    /// Sets the maximum size of the payload instead of [`MAX_PAYLOAD`].
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Checks all attributes and creates the event.
    pub fn build(self) -> Result<Event, EventError> {
        let mut parts = self.parts;
        parts.correlation_id = parts.correlation_id.or_else(crate::trace::correlation_id);
        parts.payload = match self.payload {
            GivenPayload::Nothing => return Err(EventError::NoPayload),
            GivenPayload::Unusable(error) => return Err(error),
            GivenPayload::One(payload) => payload,
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
            (Some(at), None) if self.is_dated && at < parts.occurred_at => {
                return Err(EventError::AvailableBeforeOccurred);
            }
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
        let first = event.available_at().map_or(event.occurred_at(), |at| at.max(event.occurred_at()));
        if event.expires_at().is_some_and(|end| end <= first) {
            return Err(EventError::ExpiresTooEarly);
        }
        Ok(event)
    }
}

impl IntoEvent for EventBuilder {
    fn into_event(self, limit: usize) -> Result<Event, EventError> {
        // A limit that was set on the builder has precedence.
        let limit = if self.limit == MAX_PAYLOAD { limit } else { self.limit };
        self.max_payload(limit).build()
    }
}

pub(crate) fn check_text(field: &'static str, text: &str, limit: usize) -> Result<(), EventError> {
    if text.is_empty() {
        return Err(EventError::Empty { field });
    }
    // A text has at most as many characters as bytes, so most texts need not be counted.
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

/// Checks that the text is JSON that every database and every reader accepts. A lone surrogate is
/// valid by the grammar, but is not text: MySQL and most parsers refuse it.
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
