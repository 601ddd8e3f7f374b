//! Running relays and the state that they announce.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};

use super::{NodeRoutes, OnDead, RelayHealth};
use crate::event::EventId;

/// Name of a process that takes events, or of an owner of work items. Unique among all processes
/// that share a table.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Generates a unique name: host name, process id and a random suffix.
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

    /// The name.
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

/// A relay that runs or has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the relay.
    pub node: NodeId,
    /// When the relay was first seen.
    pub started_at: DateTime<Utc>,
    /// Time since the relay was last seen, by the database's clock.
    pub seen: Duration,
    /// The state that it announced.
    pub state: NodeState,
}

impl Node {
    /// Minimum interval between announcements that are due to changed counters.
    pub const COUNTS_INTERVAL: Duration = Duration::from_secs(2);
    /// Default time after its last announcement at which a relay counts as vanished.
    pub const PRESENCE: Duration = Duration::from_secs(20);
    /// Presence of relays of versions before 0.2, which announce themselves every 20 s and do not
    /// announce a presence.
    const OLD_PRESENCE: Duration = Duration::from_secs(60);

    /// Maximum interval at which a relay with this presence announces itself and looks for vanished
    /// relays.
    pub(crate) fn announces_every(presence: Duration) -> Duration {
        presence / 4
    }

    /// Time after its last announcement at which the relay counts as vanished.
    pub fn presence(&self) -> Duration {
        self.state.presence_ms.map_or(Self::OLD_PRESENCE, Duration::from_millis)
    }

    /// Whether the relay has announced itself within its presence. A relay that stops retires its
    /// row; one whose row is older has vanished.
    pub fn is_running(&self) -> bool {
        self.seen <= self.presence()
    }

    /// Whether other relays release its leases: it has vanished, and its version stops handling
    /// events once it could not announce itself for its presence. Leases of older relays, and of
    /// owners of work items, expire.
    pub(crate) fn is_to_be_released(&self) -> bool {
        !self.is_running() && self.state.presence_ms.is_some() && !self.state.released
    }
}

/// Result of releasing a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Released {
    /// Number of events that the node held by leases.
    pub events: u64,
    /// Whether the node held the leadership of the whole table, as `single_node` relays do.
    pub leadership: bool,
}

impl Released {
    /// Whether there was nothing to release.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// State that a relay announces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeState {
    /// Mode: `single_node`, `multi_node`, `ordered`.
    pub mode: String,
    /// Version of this library.
    pub version: String,
    /// Whether the relay delivers; false for a standby.
    pub active: bool,
    /// Destinations that are not available.
    #[serde(default)]
    pub outages: Vec<NodeOutage>,
    /// Effect of a dead event on the later events of its key, for this relay.
    #[serde(default)]
    pub on_dead: OnDead,
    /// Which events the relay routes. It leaves the others pending.
    #[serde(default)]
    pub routes: NodeRoutes,
    /// Events settled since the relay started.
    #[serde(default)]
    pub counts: Counts,
    /// Last successes on this database, and current errors.
    #[serde(default)]
    pub health: RelayHealth,
    /// Milliseconds after the last announcement at which the relay counts as vanished; `None` for a
    /// relay of an older version.
    #[serde(default)]
    pub presence_ms: Option<u64>,
    /// Whether the relay vanished and another relay has released its leases. Its next announcement
    /// resets this.
    #[serde(default)]
    pub released: bool,
}

/// Counters of a relay since it started.
///
/// ```
/// use outbox::store::NodeState;
///
/// // A relay of an older version announces no counters.
/// let state = r#"{"mode":"ordered","version":"0.1.0","active":true}"#;
/// let state: NodeState = serde_json::from_str(state)?;
/// assert_eq!((state.counts.delivered, state.counts.latency.len()), (0, 0));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Counts {
    /// Events that became DONE.
    pub delivered: u64,
    /// Failed attempts that are followed by another attempt.
    pub failed: u64,
    /// Events that became DEAD.
    pub dead: u64,
    /// Times that an event was snoozed without an attempt.
    pub deferred: u64,
    /// Histogram of the time from due to done: `latency[n]` counts events that took less than 2^n
    /// milliseconds, and at least half of that. Longer times count in the last bucket.
    pub latency: Vec<u64>,
    /// Counts by event type. After a hundred types the others are counted together, as
    /// [`Counts::OTHERS`].
    pub types: BTreeMap<String, TypeCounts>,
}

/// Counters of a relay for one event type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TypeCounts {
    /// Events that became DONE.
    pub delivered: u64,
    /// Failed attempts that are followed by another attempt.
    pub failed: u64,
    /// Events that became DEAD.
    pub dead: u64,
}

impl Counts {
    /// Stands for all types after the first hundred.
    pub const OTHERS: &'static str = "…";
    /// Number of types that are counted one by one.
    pub(crate) const MOST_TYPES: usize = 100;
    /// Number of buckets of the histogram: the last begins at twelve days.
    const STEPS: usize = 32;

    /// Counts an event that took this long from due to done.
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
        self.types.get_mut(name).expect("inserted above if it was missing")
    }
}

/// A destination that a relay finds unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeOutage {
    /// Name of its publisher.
    pub destination: String,
    /// Start of the outage.
    pub since: DateTime<Utc>,
    /// The cause, human-readable.
    pub reason: String,
    /// Event types that wait for the destination.
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
