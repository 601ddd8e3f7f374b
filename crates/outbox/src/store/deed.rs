//! What people change by hand, and the book in which it is written down.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::EventError;
use crate::event::{Event, Payload};

/// Another payload for a dead event.
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

/// Names of headers only, as with events.
impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.headers.as_ref().map(|headers| headers.keys().collect::<Vec<_>>());
        f.debug_struct("Edit").field("payload", &self.payload).field("headers", &names).finish()
    }
}

impl Edit {
    /// JSON text, which is kept to the byte.
    pub fn json(text: impl Into<String>) -> Result<Self, EventError> {
        Self::checked(Payload::Json(text.into()), None)
    }

    /// Bytes of some content type.
    pub fn bytes(content_type: impl Into<String>, data: impl Into<Vec<u8>>) -> Result<Self, EventError> {
        Self::checked(Payload::Bytes { content_type: content_type.into(), data: data.into() }, None)
    }

    /// Other headers as well, in place of all that the event has.
    pub fn headers<N: Into<String>, V: Into<String>>(
        self,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, EventError> {
        let headers = headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self::checked(self.payload, Some(headers))
    }

    /// One more header beside those given here; without any given before, the event has no other.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Result<Self, EventError> {
        let mut headers = self.headers.unwrap_or_default();
        headers.insert(name.into(), value.into());
        Self::checked(self.payload, Some(headers))
    }

    /// The payload.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The headers; `None` if they stay as they are.
    pub fn new_headers(&self) -> Option<&BTreeMap<String, String>> {
        self.headers.as_ref()
    }

    /// What no event could be built with is no edit either.
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

/// Who changes what. Texts that are too long are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deed {
    /// Who: 255 characters.
    pub actor: String,
    /// Which way, such as `api` or `cli`: 64 characters.
    pub via: String,
    /// What is done, such as `dead.replay`: 64 characters.
    pub action: String,
    /// To what, such as the id of an event: 255 characters.
    pub target: Option<String>,
    /// What else there is to say. Never a payload, a password or a token.
    pub details: Option<String>,
}

/// What somebody did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Audit {
    /// Its place in the book.
    pub id: i64,
    /// When it began.
    pub at: DateTime<Utc>,
    /// Who.
    pub actor: String,
    /// Which way.
    pub via: String,
    /// What was done.
    pub action: String,
    /// To what.
    pub target: Option<String>,
    /// What else there is to say.
    pub details: Option<String>,
    /// What came of it; `None` if nobody said.
    pub outcome: Option<String>,
    /// How many things were changed.
    pub count: Option<u64>,
}
