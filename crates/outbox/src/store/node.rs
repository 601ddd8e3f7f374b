//! Relays that run, and what they say of themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};

use super::{NodeRoutes, OnDead, RelayHealth};
use crate::event::EventId;

/// The name of a process that takes events, or of the owner of work items. Unique among all that share a table.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// A name that no other process has: host name, process id and a random tail.
    pub fn generate() -> Self {
        let host = std::env::var("HOSTNAME")
            .ok()
            .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
            .map(|h| h.trim().chars().filter(|c| !c.is_control()).take(48).collect::<String>())
            .filter(|h| !h.is_empty())
            .unwrap_or_else(|| "node".to_owned());
        let tail = EventId::generate().as_str()[14..].to_lowercase();
        Self(format!("{host}-{}-{tail}", std::process::id()).into())
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NodeId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for NodeId {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for NodeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A relay that runs, or has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub node: NodeId,
    /// When it was first seen.
    pub started_at: DateTime<Utc>,
    /// How long ago it was last seen, by the database's clock.
    pub seen: Duration,
    /// What it says of itself.
    pub state: NodeState,
}

impl Node {
    /// How often a relay says so at most, when what it has counted changes.
    pub const COUNTS_SAID: Duration = Duration::from_secs(2);
    /// How long after its last announcement a relay counts as vanished, unless it is told otherwise.
    pub const PRESENCE: Duration = Duration::from_secs(20);
    /// The same for relays of versions before 0.2, which announce themselves every 20 s and do not say so.
    const OLD_PRESENCE: Duration = Duration::from_secs(60);

    /// How often a relay with this presence announces itself, at least, and looks for others that have vanished.
    pub(crate) fn announces_every(presence: Duration) -> Duration {
        presence / 4
    }

    /// How long after its last announcement it counts as vanished.
    pub fn presence(&self) -> Duration {
        self.state.presence_ms.map_or(Self::OLD_PRESENCE, Duration::from_millis)
    }

    /// Whether it has been seen lately. A relay that stops says so; one that has not been seen lately has vanished.
    pub fn is_running(&self) -> bool {
        self.seen <= self.presence()
    }

    /// Whether other relays release its leases: it has vanished, and it is of a version that handles nothing more after it could
    /// not announce itself for so long. Leases of other relays, and of owners of work items, run out.
    pub(crate) fn is_to_be_released(&self) -> bool {
        !self.is_running() && self.state.presence_ms.is_some() && !self.state.released
    }
}

/// What was released of a node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Released {
    /// How many events it held by leases.
    pub events: u64,
    /// Whether it led the whole table, as `single_node` relays do.
    pub leadership: bool,
}

impl Released {
    /// Whether there was nothing to release.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// What a relay says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeState {
    /// Its mode: `single_node`, `multi_node`, `ordered`.
    pub mode: String,
    /// The version of this library.
    pub version: String,
    /// Whether it delivers; false for one that stands by.
    pub active: bool,
    /// Destinations that are not available.
    #[serde(default)]
    pub outages: Vec<NodeOutage>,
    /// What a dead event does to the later events of its key, as this relay takes them.
    #[serde(default)]
    pub on_dead: OnDead,
    /// Which events it routes. It leaves the others alone.
    #[serde(default)]
    pub routes: NodeRoutes,
    /// What it has settled since it started.
    #[serde(default)]
    pub counts: Counts,
    /// Its last successes on this database, and the errors that it meets now.
    #[serde(default)]
    pub health: RelayHealth,
    /// How many milliseconds after its last announcement it counts as vanished; `None` for a relay of an older version.
    #[serde(default)]
    pub presence_ms: Option<u64>,
    /// Whether it vanished and another relay has released its leases since. Its next announcement says otherwise.
    #[serde(default)]
    pub released: bool,
}

/// What a relay has settled since it started.
///
/// ```
/// use outbox::store::NodeState;
///
/// // What a relay of an older version says of itself counts nothing.
/// let state = r#"{"mode":"ordered","version":"0.1.0","active":true}"#;
/// let state: NodeState = serde_json::from_str(state)?;
/// assert_eq!((state.counts.delivered, state.counts.latency.len()), (0, 0));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Counts {
    /// Events that are done.
    pub delivered: u64,
    /// Attempts that failed, and are followed by another.
    pub failed: u64,
    /// Events that are dead.
    pub dead: u64,
    /// Times that an event was put off without an attempt.
    pub deferred: u64,
    /// How long events took from being due to being done, as a histogram: `latency[n]` took less than 2^n milliseconds, and not
    /// less than half of that. What took longer than the last one is in the last one.
    pub latency: Vec<u64>,
    /// The same by event type. After a hundred types the others are counted together, as [`Counts::OTHERS`].
    pub types: BTreeMap<String, TypeCounts>,
}

/// What a relay has settled of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TypeCounts {
    /// Events that are done.
    pub delivered: u64,
    /// Attempts that failed, and are followed by another.
    pub failed: u64,
    /// Events that are dead.
    pub dead: u64,
}

impl Counts {
    /// What stands for all types after the first hundred.
    pub const OTHERS: &'static str = "…";
    /// How many types are counted one by one.
    pub(crate) const MOST_TYPES: usize = 100;
    /// How many steps the histogram has: the last begins at twelve days.
    const STEPS: usize = 32;

    /// Counts an event that took so long from being due to being done.
    pub(crate) fn took(&mut self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let step = ((u64::BITS - ms.leading_zeros()) as usize).min(Self::STEPS - 1);
        if self.latency.len() <= step {
            self.latency.resize(step + 1, 0);
        }
        self.latency[step] += 1;
    }

    /// The counters of a type.
    pub(crate) fn of_type(&mut self, event_type: &str) -> &mut TypeCounts {
        let known = self.types.contains_key(event_type);
        let name = if known || self.types.len() < Self::MOST_TYPES { event_type } else { Self::OTHERS };
        if !self.types.contains_key(name) {
            self.types.insert(name.to_owned(), TypeCounts::default());
        }
        self.types.get_mut(name).expect("it was there, or has just been put there")
    }
}

/// A destination that is not available, as a relay sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeOutage {
    /// Its publisher's name.
    pub destination: String,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Why, for people.
    pub reason: String,
    /// The types of events that wait for it.
    pub types: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_node_ids_differ_and_fit_their_column() {
        let (a, b) = (NodeId::generate(), NodeId::generate());
        assert_ne!(a, b);
        assert!(a.as_str().len() <= 128);
    }

    #[test]
    fn a_histogram_doubles_from_step_to_step() {
        let mut counts = Counts::default();
        for micros in [0, 999, 1_000, 1_999, 2_000, 3_999, 4_000, u64::MAX] {
            counts.took(Duration::from_micros(micros));
        }
        assert_eq!(counts.latency[..4], [2, 2, 2, 1]);
        assert_eq!((counts.latency.len(), counts.latency[31]), (32, 1));
    }

    #[test]
    fn types_after_the_hundredth_are_counted_together() {
        let mut counts = Counts::default();
        for n in 0..150 {
            counts.of_type(&format!("type-{n}")).delivered += 1;
        }
        counts.of_type("type-7").dead += 1;
        assert_eq!(counts.types.len(), Counts::MOST_TYPES + 1);
        assert_eq!(counts.types[Counts::OTHERS].delivered, 50);
        assert_eq!((counts.types["type-7"].delivered, counts.types["type-7"].dead), (1, 1));
    }
}
