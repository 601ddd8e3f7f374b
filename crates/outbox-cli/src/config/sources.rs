//! Sources of events: one database, several, or databases that a discovery query returns.

use outbox::settings::file::{Count, DatabaseGroup, Time};
use outbox_transports::{Secret, Text};
use serde::Deserialize;
use toml::Spanned;

/// One `[[databases]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct NamedDatabase {
    pub(crate) name: Spanned<Text>,
    pub(crate) url: Spanned<Secret>,
    pub(crate) table: Option<Text>,
    pub(crate) schema: Option<Text>,
}

/// A query that runs periodically, and returns a name and a URL for each database.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Discovery {
    pub(crate) url: Spanned<Secret>,
    pub(crate) query: Text,
    pub(crate) interval: Option<Time<1>>,
    pub(crate) absences: Option<Count>,
    /// Kinds of databases that rows may name. SQLite files only if listed.
    #[serde(default = "servers")]
    pub(crate) allow: Vec<AllowedKind>,
    /// Hosts that rows may name; any host if not set.
    pub(crate) hosts: Option<Vec<Text>>,
}

/// Kind of database that discovery allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AllowedKind {
    Postgres,
    MySql,
    Sqlite,
}

fn servers() -> Vec<AllowedKind> {
    vec![AllowedKind::Postgres, AllowedKind::MySql]
}

/// Limits that several databases share.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Fleet {
    pub(crate) max_connections: Option<Count>,
    pub(crate) patience: Option<Time<10>>,
    pub(crate) selection: Option<FleetSelection>,
}

/// Selection of the database that is polled next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FleetSelection {
    /// A batch from each database in turn, several concurrently
    RoundRobin,
    /// One database until it is empty, then the next
    DrainFirst,
}

impl NamedDatabase {
    pub(crate) fn table(&self) -> Option<&str> {
        self.table.as_ref().map(Text::as_str)
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_ref().map(Text::as_str)
    }
}

/// Source of events.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    One(DatabaseGroup),
    Several(Vec<NamedDatabase>),
    Discovered(Discovery),
}

impl Source {
    pub(crate) fn is_fleet(&self) -> bool {
        !matches!(self, Source::One(_))
    }
}
