//! The token of a claimed item.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::event::{EventId, check_text};
use crate::store::Claim;

/// The longest id of an event, in characters.
const MAX_MESSAGE: usize = 36;

/// One claim of one message: what [`ack`](super::WorkQueue::ack) and its siblings are told.
///
/// The same message claimed again has another one, so that what comes too late names a claim that is over. It is plain
/// text to others (`01JD2M…:7:2`) and may travel to another process: as a string of JSON, or by `to_string` and `parse`.
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
    /// How often it had failed before: settled by the claim, and here so that a retry needs no look at the table.
    attempts: u32,
}

impl WorkItemId {
    pub(super) fn new(message: EventId, claim: Claim, attempts: u32) -> Self {
        Self { message, claim, attempts }
    }

    /// The message, by the id that it keeps through all claims and retries: the key for doing things once.
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

/// A text that is no [`WorkItemId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a work item: {reason}; pass it on as `claim` gave it")]
pub struct WorkItemIdError {
    reason: String,
}

impl FromStr for WorkItemId {
    type Err = WorkItemIdError;

    fn from_str(text: &str) -> Result<Self, WorkItemIdError> {
        let wrong = |reason: &str| WorkItemIdError { reason: reason.to_owned() };
        // From the right: an id that somebody else chose may hold a colon.
        let mut parts = text.rsplitn(3, ':');
        let (Some(attempts), Some(claim), Some(message)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong("it has not three parts"));
        };
        check_text("the message's id", message, MAX_MESSAGE)
            .map_err(|error| WorkItemIdError { reason: error.to_string() })?;
        let claim: Claim = claim.parse().map_err(|_| wrong("its claim is no number"))?;
        let attempts = attempts.parse().map_err(|_| wrong("its number of attempts is no number"))?;
        if claim < 1 {
            return Err(wrong("its claim is not above 0"));
        }
        let id = Self::new(EventId::from(message), claim, attempts);
        // One text for one id: `+7` and `07` are numbers too.
        if id.to_string() != text { Err(wrong("its numbers are not written plainly")) } else { Ok(id) }
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
    fn an_id_is_the_same_after_a_journey() {
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
    fn what_is_no_id_says_why() {
        let long = format!("{}:1:0", "x".repeat(37));
        for (text, why) in [
            ("", "three parts"),
            ("x", "three parts"),
            ("x:1", "three parts"),
            (":1:0", "empty"),
            ("x:one:0", "claim is no number"),
            ("x:1:", "attempts is no number"),
            ("x:1:-1", "attempts is no number"),
            ("x:0:0", "not above 0"),
            ("x:-3:0", "not above 0"),
            ("x:99999999999:0", "claim is no number"),
            ("x:+7:0", "plainly"),
            ("x:07:0", "plainly"),
            ("x\0y:1:0", "control character"),
            (&long, "37 characters"),
        ] {
            let error = text.parse::<WorkItemId>().unwrap_err();
            assert!(error.to_string().contains(why), "{text:?}: {error}");
            assert!(serde_json::from_value::<WorkItemId>(text.into()).is_err());
        }
    }
}
