//! Faults that the nemesis injects into processes, databases and the broker.

use std::fmt;
use std::str::FromStr;

use crate::servers::DatabaseKind;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// `kill -9` of a relay, which is started again.
    KillRelay,
    /// `kill -9` of a writer in the middle of its transactions; some of them are relays as well.
    KillWriter,
    /// SIGSTOP for longer than the lease, then SIGCONT.
    Stop,
    /// The database crashes without a shutdown and is started again.
    Restart,
    /// A process's connections to the database are cut in both directions.
    Cut,
    /// The database's responses to a process are held back, then its connections are cut: commits
    /// whose result the process never learns.
    Mute,
    /// The database server terminates all connections (`pg_terminate_backend`, `KILL`).
    Terminate,
    /// The broker is killed or stopped, and started or continued again.
    Outage,
    /// The disk of the database is full for a while.
    Full,
    /// The clock of a process is ten minutes ahead or behind for a while.
    Clock,
    /// One in a hundred handlers panics. Part of the workload, not of the schedule.
    Panic,
    /// One in a thousand handlers aborts its process. Part of the workload, not of the schedule.
    Abort,
    /// All processes are stopped by SIGTERM, one after another, and started with an event type that
    /// the others do not know.
    Upgrade,
    /// The leader of the `single_node` arena is killed, stopped or cut off.
    Leader,
    /// Rows with boundary values in any column, including the relay's columns, are inserted by
    /// plain SQL.
    Poison,
    /// Rows larger than a relay accepts are inserted by plain SQL.
    Oversize,
    /// The webhook receiver answers 429, 503, 500 or 401, hangs, drips or resets, then answers
    /// correctly again.
    Receiver,
    /// All processes reach PostgreSQL through PgBouncer, which is killed and started again.
    Pooler,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 18] = [
        Self::KillRelay,
        Self::KillWriter,
        Self::Stop,
        Self::Restart,
        Self::Cut,
        Self::Mute,
        Self::Terminate,
        Self::Outage,
        Self::Full,
        Self::Clock,
        Self::Panic,
        Self::Abort,
        Self::Upgrade,
        Self::Leader,
        Self::Poison,
        Self::Oversize,
        Self::Receiver,
        Self::Pooler,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillRelay => "kill-relay",
            Self::KillWriter => "kill-writer",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Cut => "cut",
            Self::Mute => "mute",
            Self::Terminate => "terminate",
            Self::Outage => "outage",
            Self::Full => "full",
            Self::Clock => "clock",
            Self::Panic => "panic",
            Self::Abort => "abort",
            Self::Upgrade => "upgrade",
            Self::Leader => "leader",
            Self::Poison => "poison",
            Self::Oversize => "oversize",
            Self::Receiver => "receiver",
            Self::Pooler => "pooler",
        }
    }

    /// Whether the fault is part of a run that names no faults.
    pub fn is_default(self) -> bool {
        self != Self::Pooler
    }

    /// Whether a plan schedules the fault. The others are part of the workload.
    pub fn is_scheduled(self) -> bool {
        !matches!(self, Self::Panic | Self::Abort)
    }

    /// Whether the fault applies to this database. SQLite is a file without connections, server or
    /// clock of its own; PgBouncer works with PostgreSQL only.
    pub fn applies_to(self, database: DatabaseKind) -> bool {
        let of_servers =
            matches!(self, Self::Restart | Self::Cut | Self::Mute | Self::Terminate | Self::Clock);
        match database {
            DatabaseKind::Sqlite => !of_servers && self != Self::Pooler,
            DatabaseKind::Mariadb => self != Self::Pooler,
            DatabaseKind::Postgres => true,
        }
    }

    /// Relative frequency in a plan.
    pub fn weight(self) -> u32 {
        match self {
            Self::KillRelay => 8,
            Self::Cut => 6,
            Self::KillWriter | Self::Mute => 5,
            Self::Stop | Self::Terminate | Self::Leader => 3,
            Self::Restart | Self::Outage | Self::Clock | Self::Receiver | Self::Pooler => 2,
            Self::Poison => 3,
            Self::Full | Self::Upgrade | Self::Oversize => 1,
            Self::Panic | Self::Abort => 0,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|fault| fault.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|fault| fault.name()).collect();
            format!("there is no fault `{text}`: {}", names.join(", "))
        })
    }
}
