//! The event log: permanent events in one order, with tags; conditional appends; and publishers,
//! each with its own position.
//!
//! | file | contents |
//! | --- | --- |
//! | `tag`, `query` | [`Tag`], [`Query`], [`Condition`], [`Position`]: which events, and the conditions of an append |
//! | `topic`, `publisher`, `subscription` | [`Topic`], [`Publisher`], [`Subscription`]: which events are published where |
//! | `publishers` | [`TracingPublisher`], [`StatisticsPublisher`], [`LatchPublisher`]: publishers without a broker |
//! | `log` | [`Log`], [`Projection`]: appending, reading, deciding |
//! | `decide` | [`Decision`], [`Decided`], [`DecideError`]: projecting, deciding and appending in one call |
//! | `watermark` | [`Watermark`]: the position up to which the log is complete, for publishers |
//! | `admin` | [`LogAdmin`]: inspecting, pausing, resuming and resetting subscriptions |
//! | `store` | [`LogStore`]: the port through which the log uses a database |

mod admin;
mod decide;
#[expect(clippy::module_inception, reason = "the log itself")]
mod log;
mod pacing;
mod publisher;
mod publishers;
mod query;
mod store;
mod subscription;
mod tag;
mod topic;
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "other databases commit in order"))]
mod watermark;

use std::ops::Deref;

pub use admin::{Lag, LogAdmin};
pub use decide::{DecideError, Decided, Decision};
pub use log::{Log, MAX_APPEND, Projection};
pub(crate) use pacing::{Pace, PacingSettings};
pub use publisher::{EventResult, Outgoing, PublishError, Publisher, Unavailable};
pub use publishers::{LatchError, LatchPublisher, Statistics, StatisticsPublisher, TracingPublisher};
pub(crate) use query::Item;
pub use query::{Condition, Position, Query};
pub(crate) use store::log_of;
pub use store::{
    BoundedRead, ClusterView, LogStore, OpenAppend, ProgressUpdate, StoredLogEvent, SubscriptionStore,
    Unreadable,
};
pub use subscription::{Subscription, SubscriptionId, SubscriptionState, SubscriptionStatus};
pub use tag::{MAX_TAG, MAX_TAGS, Tag};
pub use topic::Topic;
#[cfg(feature = "postgres")]
pub(crate) use watermark::LogObservation;
pub use watermark::Watermark;

use chrono::{DateTime, Utc};

use crate::event::Event;

/// An event of the log. Reads like the [`Event`] itself.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEvent {
    pub(crate) position: Position,
    pub(crate) event: Event,
    pub(crate) created_at: DateTime<Utc>,
}

impl LogEvent {
    /// Its position in the log.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// When the database stored it.
    pub fn created_at(&self) -> DateTime<Utc> {
        self.created_at
    }
}

impl Deref for LogEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// Result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "possibly nothing was appended, because it was done before"]
pub enum Appended {
    /// The events are in the log, at these positions.
    New(Vec<Position>),
    /// An event matched the query of [`only_once`](Condition::only_once): nothing was appended.
    Already,
}

impl Appended {
    /// The positions of the appended events; empty if nothing was appended.
    pub fn positions(&self) -> &[Position] {
        match self {
            Appended::New(positions) => positions,
            Appended::Already => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event with these tags.
    pub(super) fn event(event_type: &str, tags: &[(&str, &str)]) -> Event {
        let event = Event::new(event_type).json(&());
        tags.iter().fold(event, |event, (name, value)| event.tag(name, value)).build().unwrap()
    }
}
