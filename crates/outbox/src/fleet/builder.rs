//! Builder of a fleet.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use metrics::gauge;
use tokio::sync::watch;

use super::database::{Discovery, FleetDatabase, RoutingKey};
use super::{Common, Fleet, FleetInner, Registry};
use crate::error::{Error, Result};
use crate::hook::WriterHook;
use crate::outbox::OutboxBuilder;
use crate::sql::Clock;
use crate::sql::budget::Budget;

/// Sets up a [`Fleet`]. Created by [`Fleet::builder`].
#[must_use = "a fleet is created by `open()`"]
pub struct FleetBuilder {
    databases: Vec<FleetDatabase>,
    discovery: Option<Box<dyn Discovery>>,
    refresh: Duration,
    absences: u32,
    max_connections: usize,
    patience: Duration,
    migrate: bool,
    clock: Clock,
    outbox: OutboxBuilder,
    metrics_prefix: String,
}

impl Default for FleetBuilder {
    fn default() -> Self {
        Self {
            databases: Vec::new(),
            discovery: None,
            refresh: Duration::from_secs(300),
            absences: 2,
            max_connections: 50,
            patience: Duration::from_secs(5),
            migrate: false,
            clock: Clock::Database,
            outbox: OutboxBuilder::new(),
            metrics_prefix: "outbox".to_owned(),
        }
    }
}

impl fmt::Debug for FleetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetBuilder").field("databases", &self.databases).finish_non_exhaustive()
    }
}

impl FleetBuilder {
    /// Adds a database under a name: text or a UUID. The name is its routing key, and appears in
    /// log lines and metrics.
    pub fn database(self, name: impl Into<RoutingKey>, url: impl Into<String>) -> Self {
        self.databases([FleetDatabase::new(name, url)])
    }

    /// Adds databases with their own settings.
    pub fn databases(mut self, databases: impl IntoIterator<Item = FleetDatabase>) -> Self {
        self.databases.extend(databases);
        self
    }

    /// Discovers the databases, at the start and then periodically, instead of a fixed list.
    pub fn discovery(mut self, discovery: impl Discovery) -> Self {
        self.discovery = Some(Box::new(discovery));
        self
    }

    /// Interval of the discovery; 5 min if not set.
    pub fn refresh(mut self, interval: Duration) -> Self {
        self.refresh = interval;
        self
    }

    /// Number of successive answers of the discovery in which a database must be missing to be
    /// removed; 2 if not set.
    pub fn absences(mut self, answers: u32) -> Self {
        self.absences = answers;
        self
    }

    /// Maximum number of open connections over all databases together; 50 if not set.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Time limit of an operation, after which the database counts as hanging; 5 s if not set.
    /// Migrations, purging and operations of [`Admin`](crate::Admin) may take twelve times as long.
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// Whether to create or upgrade the tables of each database on the first connection; false if
    /// not set.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Adds a hook around every write, to any of the databases.
    pub fn hook(mut self, hook: impl WriterHook) -> Self {
        self.outbox = self.outbox.hook(hook);
        self
    }

    /// Maximum size of a payload; [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) if not set. The relay of the
    /// fleet dead-letters events with larger payloads: a writer with a larger limit needs the same
    /// value here.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.outbox = self.outbox.max_payload(bytes);
        self
    }

    /// The clock that decides which events are due. For tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Prefix of the fleet's own metrics; `outbox` if not set.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.metrics_prefix = prefix.into();
        self
    }

    fn check(&self) -> Result<()> {
        let mistake = |text: &str| Err(Error::setting(text));
        if self.max_connections == 0 {
            return mistake("max_connections is 0: a fleet needs at least one connection");
        }
        if self.max_connections > 100_000 {
            return mistake("max_connections must be at most 100,000");
        }
        if self.patience < Duration::from_millis(10) || self.patience > Duration::from_secs(3_600) {
            return mistake("patience must be between 10 ms and an hour");
        }
        if self.refresh.is_zero() || self.absences == 0 {
            return mistake("refresh and absences must be greater than 0");
        }
        match (&self.discovery, self.databases.is_empty()) {
            (None, true) => {
                mistake("a fleet without databases: add some with `database`, or set a `discovery`")
            }
            (Some(_), false) => mistake("a fleet has either fixed databases or a discovery, not both"),
            _ => {
                let mut names = HashSet::new();
                match self.databases.iter().find(|database| !names.insert(&database.name)) {
                    Some(twice) => Err(Error::DuplicateDatabase { name: twice.name.clone() }),
                    None => Ok(()),
                }
            }
        }
    }

    /// Opens the fleet. Connects to no database: one that is down does not keep the others from
    /// working. Returns an error for invalid settings, or if a [`Discovery`] failed at its first
    /// attempt.
    pub async fn open(self) -> Result<Fleet> {
        self.check()?;
        let prefix = &self.metrics_prefix;
        let budget = Budget::new(
            self.max_connections,
            gauge!(format!("{prefix}.fleet.connections")),
            gauge!(format!("{prefix}.fleet.troubled")),
        );
        let common = Common {
            budget,
            patience: self.patience,
            migrate: self.migrate,
            clock: self.clock,
            outbox: self.outbox,
            by_aggregate: Arc::new(AtomicBool::new(false)),
        };
        let fleet = Fleet(Arc::new(FleetInner {
            common,
            discovery: self.discovery,
            absences: self.absences,
            registry: RwLock::new(Registry::default()),
            changed: watch::Sender::new(()),
            refreshing: tokio::sync::Mutex::default(),
            served: AtomicBool::new(false),
            databases_gauge: gauge!(format!("{prefix}.fleet.databases")),
        }));
        for database in self.databases {
            fleet.0.add(database)?;
        }
        fleet.0.registry_changed();
        if fleet.0.discovery.is_some() {
            fleet.refresh().await?;
            tokio::spawn(super::refresh_periodically(Arc::downgrade(&fleet.0), self.refresh));
        }
        Ok(fleet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_as_documented() {
        let builder = FleetBuilder::default();
        assert_eq!((builder.refresh, builder.absences), (Duration::from_secs(5 * 60), 2));
        assert_eq!((builder.max_connections, builder.patience), (50, Duration::from_secs(5)));
        assert!(!builder.migrate, "tables are not changed by default");
    }
}
