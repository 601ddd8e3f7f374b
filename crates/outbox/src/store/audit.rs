//! Changes made by operators, and their audit entries.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::EventError;
use crate::event::{Event, Payload};

/// A new payload for a dead event.
///
/// ```
/// use outbox::Payload;
/// use outbox::store::Edit;
///
/// let edit = Edit::json(r#"{"total":995}"#)?.header("fixed-by", "ada")?;
/// assert_eq!(edit.payload(), &Payload::Json(r#"{"total":995}"#.to_owned()));
/// assert!(Edit::json("{").is_err());
/// # Ok::<(), outbox::EventError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Edit {
    payload: Payload,
    headers: Option<BTreeMap<String, String>>,
}

/// Shows the names of headers only, like [`Event`].
impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.headers.as_ref().map(|headers| headers.keys().collect::<Vec<_>>());
        f.debug_struct("Edit").field("payload", &self.payload).field("headers", &names).finish()
    }
}

impl Edit {
    /// JSON text, stored byte for byte.
    pub fn json(text: impl Into<String>) -> Result<Self, EventError> {
        Self::checked(Payload::Json(text.into()), None)
    }

    /// Bytes of any content type.
    pub fn bytes(content_type: impl Into<String>, data: impl Into<Vec<u8>>) -> Result<Self, EventError> {
        Self::checked(Payload::Bytes { content_type: content_type.into(), data: data.into() }, None)
    }

    /// Replaces all headers of the event.
    pub fn headers<N: Into<String>, V: Into<String>>(
        self,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, EventError> {
        let headers = headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self::checked(self.payload, Some(headers))
    }

    /// Adds a header to those given here. The event's own headers are all replaced.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Result<Self, EventError> {
        let mut headers = self.headers.unwrap_or_default();
        headers.insert(name.into(), value.into());
        Self::checked(self.payload, Some(headers))
    }

    /// The payload.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The headers; `None` if the event keeps its own.
    pub fn new_headers(&self) -> Option<&BTreeMap<String, String>> {
        self.headers.as_ref()
    }

    /// Refuses a payload and headers that no event can be built with.
    fn checked(payload: Payload, headers: Option<BTreeMap<String, String>>) -> Result<Self, EventError> {
        let event = Event::new("edited").headers(headers.iter().flatten());
        match &payload {
            Payload::Json(text) => event.json_text(text),
            Payload::Bytes { content_type, data } => event.bytes(content_type, data.as_slice()),
        }
        .build()?;
        Ok(Self { payload, headers })
    }
}

/// A new audit entry: who changes what. Longer texts are truncated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditEntry {
    /// The operator: 255 characters.
    pub actor: String,
    /// The interface, such as `api` or `cli`: 64 characters.
    pub via: String,
    /// The operation, such as `dead.replay`: 64 characters.
    pub action: String,
    /// The object, such as the id of an event: 255 characters.
    pub target: Option<String>,
    /// Further details. Never a payload, a password or a token.
    pub details: Option<String>,
}

/// A stored audit entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Audit {
    /// Id of the entry.
    pub id: i64,
    /// Start of the change.
    pub at: DateTime<Utc>,
    /// The operator.
    pub actor: String,
    /// The interface.
    pub via: String,
    /// The operation.
    pub action: String,
    /// The object.
    pub target: Option<String>,
    /// Further details.
    pub details: Option<String>,
    /// Outcome of the change; `None` if it was never written.
    pub outcome: Option<String>,
    /// Number of changed rows.
    pub count: Option<u64>,
}
