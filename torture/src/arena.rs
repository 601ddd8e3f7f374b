//! Arenas: each is one outbox in its own mode, with its own processes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One outbox under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arena {
    /// Library relays in mode `multi_node`, done rows are kept; joins, transactional handlers, and
    /// a log.
    Multi,
    /// Library relays in mode `single_node`, done rows are deleted; joins and transactional
    /// handlers.
    Single,
    /// The command `outbox relay` in mode `multi-node`, which publishes to NATS; a reader with an
    /// inbox.
    Broker,
}

/// Default duration of an event's lease in [`Arena::Multi`] and [`Arena::Broker`].
pub const LEASE: Duration = Duration::from_secs(4);

/// Duration of the leader's lease in [`Arena::Single`]: the library's default.
pub const LEADERSHIP: Duration = Duration::from_secs(15);

/// Attempts of a [`Worn`](crate::work::Kind::Worn) event before it is dead-lettered.
pub const WORN_OUT_AFTER: u32 = 3;

/// Names of the publishers of the log.
pub const PUBLISHERS: [&str; 2] = ["first", "second"];

/// The topic of the log.
pub const TOPIC: &str = "all";

impl Arena {
    /// All arenas.
    pub const ALL: [Self; 3] = [Self::Multi, Self::Single, Self::Broker];

    /// The name on the command line and in process names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Multi => "multi",
            Self::Single => "single",
            Self::Broker => "broker",
        }
    }

    /// The table of events; the names of all other tables begin with this name.
    pub fn table(self, prefix: &str) -> String {
        format!("{prefix}{}", self.name())
    }

    /// How long an event is held without renewal, given the configured lease.
    pub fn lease(self, lease: Duration) -> Duration {
        match self {
            Self::Single => LEADERSHIP,
            Self::Multi | Self::Broker => lease,
        }
    }

    /// Whether the event was written by a process of this arena: ids begin with the writer's
    /// process name.
    pub fn owns(self, id: &str) -> bool {
        id.split_once('-').is_some_and(|(arena, _)| arena == self.name())
    }

    /// Whether the arena has a log.
    pub fn has_log(self) -> bool {
        self == Self::Multi
    }

    /// Whether the arena has library handlers, which record more than a broker's reader does.
    pub fn has_handlers(self) -> bool {
        self != Self::Broker
    }

    /// Whether rows of done events are kept.
    pub fn keeps_rows(self) -> bool {
        self == Self::Multi
    }

    /// The arena of a process, by its name.
    pub fn of(process: &str) -> Option<Self> {
        process.split('-').next()?.parse().ok()
    }
}

impl fmt::Display for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Arena {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|arena| arena.name() == text)
            .ok_or_else(|| format!("there is no arena `{text}`: multi, single, broker"))
    }
}
