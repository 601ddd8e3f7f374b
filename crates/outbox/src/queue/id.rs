//! The id of a claimed item.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::event::{EventId, check_text};
use crate::store::Claim;

/// Maximum length of an event id, in characters.
const MAX_MESSAGE: usize = 36;

/// One claim of one message, to be passed to [`ack`](super::WorkQueue::ack) and the other settling
/// methods.
///
/// The same message claimed again has another id, so that a late settlement names a stale claim. It
/// is opaque text (`01JD2M…:7:2`) and may be passed to another process: as a JSON string, or by
/// `to_string` and `parse`.
///
/// ```
/// use outbox::WorkItemId;
///
/// let id: WorkItemId = "01JD2MYZ3V6ZJ9CJ7W2YH4M0QK:7:2".parse()?;
/// assert_eq!(*id.message(), "01JD2MYZ3V6ZJ9CJ7W2YH4M0QK");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// assert!("01JD2MYZ3V6ZJ9CJ7W2YH4M0QK".parse::<WorkItemId>().is_err());
/// # Ok::<(), outbox::WorkItemIdError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkItemId {
    message: EventId,
    claim: Claim,
    /// Number of failed attempts before this claim: fixed by the claim, and kept here so that a
    /// retry need not read the table.
    attempts: u32,
}

impl WorkItemId {
    pub(super) fn new(message: EventId, claim: Claim, attempts: u32) -> Self {
        Self { message, claim, attempts }
    }

    /// The message's id, which is the same for all claims and retries: the key for deduplication.
    pub fn message(&self) -> &EventId {
        &self.message
    }

    pub(super) fn claim(&self) -> Claim {
        self.claim
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }
}

impl fmt::Display for WorkItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.message, self.claim, self.attempts)
    }
}

impl fmt::Debug for WorkItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a [`WorkItemId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a work item: {reason}; pass the id that `claim` returned")]
pub struct WorkItemIdError {
    reason: String,
}

impl FromStr for WorkItemId {
    type Err = WorkItemIdError;

    fn from_str(text: &str) -> Result<Self, WorkItemIdError> {
        let wrong = |reason: &str| WorkItemIdError { reason: reason.to_owned() };
        // From the right: an id that another program chose may contain a colon.
        let mut parts = text.rsplitn(3, ':');
        let (Some(attempts), Some(claim), Some(message)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong("it does not have three parts"));
        };
        check_text("the message's id", message, MAX_MESSAGE)
            .map_err(|error| WorkItemIdError { reason: error.to_string() })?;
        let claim: Claim = claim.parse().map_err(|_| wrong("its claim is not a number"))?;
        let attempts = attempts.parse().map_err(|_| wrong("its number of attempts is not a number"))?;
        if claim < 1 {
            return Err(wrong("its claim is not above 0"));
        }
        let id = Self::new(EventId::from(message), claim, attempts);
        // One text per id: `+7` and `07` parse as numbers too.
        if id.to_string() != text { Err(wrong("its numbers are not in canonical form")) } else { Ok(id) }
    }
}

impl Serialize for WorkItemId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WorkItemId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_a_round_trip() {
        for message in ["01JD2MYZ3V6ZJ9CJ7W2YH4M0QK", "a:b:c", ":", "ä ö", &"x".repeat(36)] {
            let id = WorkItemId::new(EventId::from(message), 7, 2);
            assert_eq!(id.to_string(), format!("{message}:7:2"));
            assert_eq!(id.to_string().parse(), Ok(id.clone()));
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(json, format!("{:?}", id.to_string()));
            assert_eq!(serde_json::from_str::<WorkItemId>(&json).unwrap(), id);
        }
    }

    #[test]
    fn an_invalid_id_is_refused_with_the_reason() {
        let long = format!("{}:1:0", "x".repeat(37));
        for (text, why) in [
            ("", "three parts"),
            ("x", "three parts"),
            ("x:1", "three parts"),
            (":1:0", "empty"),
            ("x:one:0", "claim is not a number"),
            ("x:1:", "attempts is not a number"),
            ("x:1:-1", "attempts is not a number"),
            ("x:0:0", "not above 0"),
            ("x:-3:0", "not above 0"),
            ("x:99999999999:0", "claim is not a number"),
            ("x:+7:0", "canonical"),
            ("x:07:0", "canonical"),
            ("x\0y:1:0", "control character"),
            (&long, "37 characters"),
        ] {
            let error = text.parse::<WorkItemId>().unwrap_err();
            assert!(error.to_string().contains(why), "{text:?}: {error}");
            assert!(serde_json::from_value::<WorkItemId>(text.into()).is_err());
        }
    }
}
