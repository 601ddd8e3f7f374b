//! The follow-up event of a join, stored as text in a column until the join closes.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::event::{AggregateType, Due, Event, EventId, EventType, Parts, Payload};

/// A follow-up event as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredFollowUp {
    id: String,
    event_type: String,
    aggregate_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    /// JSON text, stored byte for byte; or bytes in base64 with their content type.
    payload: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    occurred_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<DateTime<Utc>>,
}

impl StoredFollowUp {
    pub(super) fn of(event: &Event) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (payload, content_type) = match event.raw_payload() {
            Payload::Json(text) => (text.clone(), None),
            Payload::Bytes { content_type, data } => (BASE64.encode(data), Some(content_type.clone())),
        };
        let (available_at, delay_us) = match event.due() {
            Due::Now => (None, None),
            Due::At(at) | Due::Later(at) => (Some(at), None),
            Due::After(delay) => (None, u64::try_from(delay.as_micros()).ok()),
        };
        Self {
            id: event.id().to_string(),
            event_type: event.event_type().to_string(),
            aggregate_type: event.aggregate_type().to_string(),
            aggregate_id: owned(event.aggregate_id()),
            tenant_id: owned(event.tenant_id()),
            ordering_key: owned(event.ordering_key()),
            correlation_id: owned(event.correlation_id()),
            dedup_key: owned(event.dedup_key()),
            headers: event.headers().clone(),
            payload,
            content_type,
            occurred_at: event.occurred_at(),
            available_at,
            delay_us,
            expires_at: event.expires_at(),
        }
    }

    pub(super) fn into_event(self) -> Result<Event> {
        let payload = match self.content_type {
            None => Payload::Json(self.payload),
            Some(content_type) => {
                let data = BASE64
                    .decode(self.payload)
                    .map_err(|e| Error::store_by("payload of a follow-up is not base64", e))?;
                Payload::Bytes { content_type, data }
            }
        };
        let due = match (self.available_at, self.delay_us) {
            (Some(at), _) => Due::At(at),
            (None, Some(delay)) => Due::After(Duration::from_micros(delay)),
            (None, None) => Due::Now,
        };
        Ok(Event::from_parts(Parts {
            id: EventId::from(self.id),
            event_type: EventType::from(self.event_type),
            aggregate_type: AggregateType::from(self.aggregate_type),
            aggregate_id: self.aggregate_id,
            tenant_id: self.tenant_id,
            ordering_key: self.ordering_key.map(Into::into),
            correlation_id: self.correlation_id,
            dedup_key: self.dedup_key,
            headers: self.headers,
            payload,
            occurred_at: self.occurred_at,
            due,
            expires_at: self.expires_at,
            tags: Vec::new(),
        }))
    }

    /// Compares without the fields that every call creates anew. Tells a repeated call from a
    /// different one.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let headers = |promise: &Self| {
            let mut headers = promise.headers.clone();
            headers.retain(|name, _| !crate::trace::HEADERS.contains(&name.as_str()));
            headers
        };
        let (id, occurred_at, headers) =
            (other.id.clone(), other.occurred_at, headers(self) == headers(other));
        headers && Self { id, occurred_at, headers: other.headers.clone(), ..self.clone() } == *other
    }

    pub(super) fn text(event: &Event) -> Result<String> {
        serde_json::to_string(&Self::of(event)).map_err(|e| Error::Store(e.into()))
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|e| Error::store_by(format!("the follow-up of a join cannot be parsed: {e}"), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_kept_to_the_byte() {
        let json = Event::new("a").json_text(r#"{"z":1,  "a":1.50}"#).ordering_key("k").tenant("t");
        let bytes = Event::new("b").bytes("x/y", [0, 159, 255]).deliver_after(Duration::from_secs(9));
        let at = Event::new("c").json(&1).aggregate("order", "7").header("h", "v");
        for event in [json.build(), bytes.build(), at.available_at(Utc::now()).build()] {
            let event = event.unwrap();
            let text = serde_json::to_string(&StoredFollowUp::of(&event)).unwrap();
            let back: StoredFollowUp = serde_json::from_str(&text).unwrap();
            assert_eq!(StoredFollowUp::of(&event), back);
            let back = back.into_event().unwrap();
            assert_eq!((back.id(), back.raw_payload()), (event.id(), event.raw_payload()));
            assert_eq!((back.due(), back.headers()), (event.due(), event.headers()));
        }
    }

    #[test]
    fn the_same_promise_is_told_from_another() {
        let promise = |payload: i32| StoredFollowUp::of(&Event::new("a").json(&payload).build().unwrap());
        assert!(promise(1).is_like(&promise(1)));
        assert!(!promise(1).is_like(&promise(2)));
    }
}
