//! The sources of events: one database, several, or those that a query names.

use outbox::settings::file::{Count, Database, Time};
use outbox_transports::{Secret, Text};
use serde::Deserialize;
use toml::Spanned;

/// One of several.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) name: Spanned<Text>,
    pub(crate) url: Spanned<Secret>,
    pub(crate) table: Option<Text>,
    pub(crate) schema: Option<Text>,
}

/// A query, asked again and again, whose rows are databases: a name and a URL each.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Discovery {
    pub(crate) url: Spanned<Secret>,
    pub(crate) query: Text,
    pub(crate) interval: Option<Time<1>>,
    pub(crate) absences: Option<Count>,
    /// Kinds of databases that rows may name. A file of SQLite only if it is listed.
    #[serde(default = "servers")]
    pub(crate) allow: Vec<Kind>,
    /// Hosts that rows may name; any if not set.
    pub(crate) hosts: Option<Vec<Text>>,
}

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Postgres,
    MySql,
    Sqlite,
}

fn servers() -> Vec<Kind> {
    vec![Kind::Postgres, Kind::MySql]
}

/// What several databases share.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Fleet {
    pub(crate) max_connections: Option<Count>,
    pub(crate) patience: Option<Time<10>>,
    pub(crate) selection: Option<Choice>,
}

/// Which of several databases is polled next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Choice {
    /// A batch from each in turn, many at the same time
    RoundRobin,
    /// One until it is empty, then the next
    DrainFirst,
}

impl Named {
    pub(crate) fn table(&self) -> Option<&str> {
        self.table.as_ref().map(Text::as_str)
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_ref().map(Text::as_str)
    }
}

/// Which of them.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    One(Database),
    Several(Vec<Named>),
    Discovered(Discovery),
}

impl Source {
    pub(crate) fn is_fleet(&self) -> bool {
        !matches!(self, Source::One(_))
    }
}
