//! Arenas: an outbox each, in a mode of its own, with processes of its own.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One outbox that is tortured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arena {
    /// Library relays in mode `multi_node`, rows are kept; joins, handlers in transactions, and a log.
    Multi,
    /// Library relays in mode `single_node`, rows are deleted; joins, and handlers in transactions.
    Single,
    /// The command `outbox relay` in mode `multi-node`, which publishes to NATS; a reader with an inbox.
    Broker,
}

/// How long an event is a relay's without being renewed, in [`Arena::Multi`] and [`Arena::Broker`], unless it is said otherwise.
pub const LEASE: Duration = Duration::from_secs(4);

/// How long the one relay leads without being renewed, in [`Arena::Single`]: the product's own.
pub const LEADERSHIP: Duration = Duration::from_secs(15);

/// How often a [`Worn`](crate::work::Kind::Worn) event is tried.
pub const WORN_OUT_AFTER: u32 = 3;

/// What publishes the log.
pub const PUBLISHERS: [&str; 2] = ["first", "second"];

/// The topic of the log.
pub const TOPIC: &str = "all";

impl Arena {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Multi, Self::Single, Self::Broker];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Multi => "multi",
            Self::Single => "single",
            Self::Broker => "broker",
        }
    }

    /// The table of its events; the names of all other tables begin with it.
    pub fn table(self, prefix: &str) -> String {
        format!("{prefix}{}", self.name())
    }

    /// How long an event is held without being renewed, if leases last so long.
    pub fn lease(self, lease: Duration) -> Duration {
        match self {
            Self::Single => LEADERSHIP,
            Self::Multi | Self::Broker => lease,
        }
    }

    /// Whether an event of this id is one of its work: ids begin with the name of the process that writes the event.
    pub fn owns(self, id: &str) -> bool {
        id.split_once('-').is_some_and(|(arena, _)| arena == self.name())
    }

    /// Whether there is a log in it.
    pub fn has_log(self) -> bool {
        self == Self::Multi
    }

    /// Whether it has handlers of the library, which see more than a broker does.
    pub fn has_handlers(self) -> bool {
        self != Self::Broker
    }

    /// Whether rows of events that are done stay.
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
