//! Which events a relay routes, and which pending events no running relay routes.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Node, NodeId};

/// The events that a relay routes: [`Take::only`](super::Take::only). Names are compared exactly,
/// including case and spaces.
///
/// ```
/// use outbox::store::Routed;
///
/// let routed = Routed::default().and_type("order.placed").and_pair("invoice", "paid").and_pattern("mail.*");
/// assert!(routed.takes("order.placed", "order") && routed.takes("mail.sent", "order"));
/// assert!(routed.takes("paid", "invoice") && !routed.takes("paid", "order"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Routed {
    /// Event types, whatever the aggregate type.
    pub types: BTreeSet<String>,
    /// Pairs of aggregate type and event type. A row without an aggregate type belongs to the
    /// global aggregate.
    pub pairs: BTreeSet<(String, String)>,
    /// Patterns of event types, in which `*` matches any sequence of characters, including none.
    pub patterns: BTreeSet<String>,
}

impl Routed {
    /// Adds an event type, whatever the aggregate type.
    pub fn and_type(mut self, event_type: impl Into<String>) -> Self {
        self.types.insert(event_type.into());
        self
    }

    /// Adds an event type of one aggregate type.
    pub fn and_pair(mut self, aggregate_type: impl Into<String>, event_type: impl Into<String>) -> Self {
        self.pairs.insert((aggregate_type.into(), event_type.into()));
        self
    }

    /// Adds a pattern of event types, in which `*` matches any sequence of characters, including
    /// none.
    pub fn and_pattern(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.insert(pattern.into());
        self
    }

    /// Whether events of this type and aggregate type are routed.
    pub fn takes(&self, event_type: &str, aggregate_type: &str) -> bool {
        let is_pair = |(aggregate, of_type): &(String, String)| {
            aggregate.as_str() == aggregate_type && of_type.as_str() == event_type
        };
        self.types.contains(event_type)
            || self.pairs.iter().any(is_pair)
            || self.patterns.iter().any(|pattern| fits(pattern, event_type))
    }

    /// Number of names.
    fn len(&self) -> usize {
        self.types.len() + self.pairs.len() + self.patterns.len()
    }

    fn bytes(&self) -> usize {
        let pairs = self.pairs.iter().map(|(aggregate, of_type)| aggregate.len() + of_type.len());
        pairs.sum::<usize>() + self.types.iter().chain(&self.patterns).map(String::len).sum::<usize>()
    }
}

/// Whether a pattern matches a text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let start = pieces.next().unwrap_or_default();
    let Some(end) = pieces.next_back() else { return start == text };
    let Some(mut rest) = text.strip_prefix(start).and_then(|rest| rest.strip_suffix(end)) else {
        return false;
    };
    // The first match leaves the longest rest for the pieces that follow.
    pieces.all(|piece| match rest.find(piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
}

/// The events that a relay routes, as [announced](super::NodeState::routes).
///
/// ```
/// use outbox::store::{NodeRoutes, NodeState};
///
/// // A relay of an older version does not announce its routes: it counts as routing everything.
/// let state: NodeState = serde_json::from_str(r#"{"mode":"ordered","version":"0.1.0","active":true}"#)?;
/// assert_eq!(state.routes, NodeRoutes::Everything);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeRoutes {
    /// All events: the relay has a handler or a destination for events without another route, or it
    /// takes unrouted events in order to retry or dead-letter them.
    #[default]
    Everything,
    /// More names than are announced. Counts as routing everything.
    TooMany,
    /// These events.
    Only(Routed),
}

impl NodeRoutes {
    /// Maximum number of announced names, and of their bytes.
    const MOST: usize = 200;
    const MOST_BYTES: usize = 16 << 10;

    /// The announcement of a relay that takes only these events; `None`: all.
    pub(crate) fn of(routed: Option<&Routed>) -> Self {
        match routed {
            None => Self::Everything,
            Some(routed) if routed.len() > Self::MOST || routed.bytes() > Self::MOST_BYTES => Self::TooMany,
            Some(routed) => Self::Only(routed.clone()),
        }
    }

    /// Whether the relay routes events of this type and aggregate type, or may route them.
    pub fn takes(&self, event_type: &str, aggregate_type: &str) -> bool {
        match self {
            Self::Everything | Self::TooMany => true,
            Self::Only(routed) => routed.takes(event_type, aggregate_type),
        }
    }
}

/// The running relays that may take events now: the leader of the table if there is one, otherwise
/// all that deliver.
pub(crate) fn takers<'a>(nodes: &'a [Node], leader: Option<&NodeId>) -> Vec<&'a Node> {
    let takes = |node: &&Node| match leader {
        // A leader holds the lease under its node name followed by the id of its run: `node:…`. Its
        // last announcement may be older than its leadership.
        Some(leader) => {
            let rest = leader.as_str().strip_prefix(node.node.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        }
        None => node.state.active,
    };
    nodes.iter().filter(|node| node.is_running()).filter(takes).collect()
}

/// Pending events that no running relay routes, by type: they stay pending until a relay that
/// routes them runs. From [`Admin::unrouted`](crate::Admin::unrouted).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnroutedEvents {
    /// The most frequent type first; a hundred at most.
    pub types: Vec<UnroutedType>,
    /// Whether there may be more: only a limited number of pending events was read, in the order in
    /// which they are due.
    pub more: bool,
    /// The running relays, none of which routes them.
    pub relays: Vec<NodeId>,
}

impl UnroutedEvents {
    /// Maximum number of types reported.
    pub(crate) const MOST: usize = 100;

    /// Number of these events among those that were read.
    pub fn count(&self) -> u64 {
        self.types.iter().map(|of| of.count).sum()
    }
}

/// Pending events of one type that no running relay routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnroutedType {
    /// The event type.
    pub event_type: String,
    /// The aggregate type.
    pub aggregate_type: String,
    /// Number of events.
    pub count: u64,
    /// When the oldest of them was stored.
    pub oldest: Option<DateTime<Utc>>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::NodeState;

    #[test]
    fn a_star_matches_any_sequence_of_characters_and_nothing_else_is_special() {
        for (pattern, text, expected) in [
            ("order.*", "order.", true),
            ("order.*", "Order.placed", false),
            ("*.placed", "order.placed", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("a_b%", "axbc", false),
            ("a", "a ", false),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn routes_are_announced_up_to_a_limit_and_count_as_everything_beyond() {
        let few = Routed::default().and_type("a").and_pair("order", "b");
        let announced = NodeRoutes::of(Some(&few));
        assert_eq!(announced, NodeRoutes::Only(few));
        assert!(announced.takes("a", "x") && announced.takes("b", "order") && !announced.takes("b", "x"));
        let json = serde_json::to_string(&announced).expect("encodes");
        assert_eq!(serde_json::from_str::<NodeRoutes>(&json).expect("decodes"), announced);

        let many = (0..201).fold(Routed::default(), |routed, n| routed.and_type(format!("type-{n}")));
        let long = Routed::default().and_type("x".repeat(20_000));
        for routed in [many, long] {
            assert_eq!(NodeRoutes::of(Some(&routed)), NodeRoutes::TooMany);
        }
        assert!(NodeRoutes::TooMany.takes("x", "y") && NodeRoutes::of(None).takes("x", "y"));
    }

    #[test]
    fn only_the_leader_takes_events_while_there_is_one() {
        let node = |name: &str, active: bool, seen: u64| Node {
            node: NodeId::from(name),
            started_at: DateTime::UNIX_EPOCH,
            seen: Duration::from_secs(seen),
            state: NodeState { active, ..NodeState::default() },
        };
        let nodes =
            [node("a", true, 1), node("ab", true, 1), node("idle", false, 1), node("gone", true, 999)];
        let names = |leader: Option<&str>| -> Vec<String> {
            takers(&nodes, leader.map(NodeId::from).as_ref()).iter().map(|n| n.node.to_string()).collect()
        };
        assert_eq!(names(None), ["a", "ab"]);
        assert_eq!(names(Some("a:01K")), ["a"]);
        assert_eq!(names(Some("idle")), ["idle"], "it has not announced yet that it leads");
        assert!(names(Some("elsewhere:01K")).is_empty(), "a leader that does not announce itself");
    }
}
