//! The store on SQL databases.
//!
//! One [`SqlStore`] serves all databases:
//!
//! - `store.rs`: the store; `migrate.rs`: migrations; `statements.rs`: SQL that all databases
//!   share.
//! - `window.rs`: decoding rows into deliveries; `group_lease.rs`: group leases; `settle.rs`:
//!   settling.
//! - `joins.rs`: joins; `log/`: the event log; `subscriptions.rs`: progress of its subscriptions.
//! - `page.rs`, `overview.rs`, `history.rs` and `audit.rs`: administration.
//! - `postgres.rs`, `mysql.rs` and `sqlite.rs` mirror each other and hold only the differences.
//!   `tidb.rs` rewrites MySQL's statements for TiDB.

mod admin;
mod audit;
pub(crate) mod begin;
pub(crate) mod budget;
pub(crate) mod dialect;
mod follow_up;
mod grants;
mod group_lease;
mod history;
mod inbox;
mod joins;
pub(crate) mod line;
pub(crate) mod log;
mod look;
mod migrate;
mod names;
mod nodes;
mod order;
mod overview;
mod page;
#[cfg(test)]
mod parsing;
pub(crate) mod sessions;
mod settle;
pub(crate) mod source;
mod stamp;
mod statements;
mod store;
mod subscriptions;
mod take;
mod warm;
mod window;

#[cfg(feature = "postgres")]
mod distributed;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod product;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "mysql")]
mod tidb;
#[cfg(feature = "postgres")]
mod watch;

use std::sync::Arc;

pub use dialect::{Clock, Database};
pub use grants::{DatabaseRole, grants_sql};
pub use store::SqlStore;
pub(crate) use store::warn_if_unverified;

use crate::connect::Pooler;
use crate::error::{Error, Result, without_credentials};
use crate::event::MAX_PAYLOAD;
use crate::store::SharedStore;

/// Options of a store: names, and the size of its connection pool.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub(crate) schema: Option<String>,
    pub(crate) table: String,
    pub(crate) max_connections: u32,
    pub(crate) clock: Clock,
    pub(crate) name: Option<String>,
    pub(crate) max_payload: usize,
    pub(crate) pooler: Pooler,
    pub(crate) direct_url: Option<Hidden>,
    /// Product to assume, whatever version the server reports.
    pub(crate) assumed: Option<Assumed>,
}

/// A product whose statements a test uses on another server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Assumed {
    #[cfg(feature = "mysql")]
    Tidb,
    #[cfg(feature = "postgres")]
    Distributed,
}

/// A URL without credentials in debug output.
#[derive(Clone)]
pub(crate) struct Hidden(pub(crate) String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&without_credentials(&self.0))
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            schema: None,
            table: "outbox_event".to_owned(),
            max_connections: 10,
            clock: Clock::Database,
            name: None,
            pooler: Pooler::Detect,
            direct_url: None,
            assumed: None,
            max_payload: MAX_PAYLOAD,
        }
    }
}

/// Opens the store that a URL names: `sqlite:`, `postgres://` or `mysql://` (also for MariaDB).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// let store = outbox::open_store("sqlite::memory:", &Default::default()).await?;
/// store.migrate().await?;
/// assert_eq!(store.stats().await?.new, 0);
///
/// let error = outbox::open_store("postgers://localhost/shop", &Default::default()).await.unwrap_err();
/// assert!(error.to_string().contains("postgers"));
/// # Ok(()) }
/// ```
pub async fn open_store(url: &str, options: &StoreOptions) -> Result<SharedStore> {
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(SqlStore::<sqlx::Sqlite>::open(url, options).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(SqlStore::<sqlx::Postgres>::open(url, options).await?)),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Arc::new(SqlStore::<sqlx::MySql>::open(url, options).await?)),
        _ => Err(Error::Url {
            url: without_credentials(url),
            reason: format!(
                "{scheme:?} is not sqlite:, postgres:// or mysql://, or this build lacks the cargo feature for it"
            ),
        }),
    }
}

impl StoreOptions {
    /// Name of the table of events; default `outbox_event`. The names of the other tables derive
    /// from it.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// Schema (PostgreSQL) or database (MySQL) of the tables; default: the connection's own.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Maximum number of connections; default 10.
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections;
        self
    }

    /// Name of the store in log lines and metrics; default: its URL without credentials.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether there is a pooler in front of PostgreSQL. The parameter `pooler` of a URL takes
    /// precedence.
    pub fn pooler(mut self, pooler: Pooler) -> Self {
        self.pooler = pooler;
        self
    }

    /// PostgreSQL URL of the server itself, bypassing a pooler: the relay waits for notifications
    /// on it. Without this URL a relay behind a pooler polls.
    pub fn direct_url(mut self, url: impl Into<String>) -> Self {
        self.direct_url = Some(Hidden(url.into()));
        self
    }

    /// Maximum size of a payload to read, and of headers, in bytes; default
    /// [`MAX_PAYLOAD`](crate::MAX_PAYLOAD). A larger event, written by a program without such a
    /// limit, is dead-lettered unread.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    /// Treats a server with MySQL's protocol as TiDB, whatever version it reports. For tests.
    #[cfg(feature = "mysql")]
    #[doc(hidden)]
    pub fn assume_tidb(mut self) -> Self {
        self.assumed = Some(Assumed::Tidb);
        self
    }

    /// Treats a server with PostgreSQL's protocol as CockroachDB or YugabyteDB, whatever version it
    /// reports. For tests.
    #[cfg(feature = "postgres")]
    #[doc(hidden)]
    pub fn assume_distributed(mut self) -> Self {
        self.assumed = Some(Assumed::Distributed);
        self
    }

    /// Product of the server: detected later, unless it is assumed.
    pub(crate) fn product(&self) -> product::Product {
        let Some(assumed) = self.assumed else { return product::Product::default() };
        match assumed {
            #[cfg(feature = "mysql")]
            Assumed::Tidb => product::Product::tidb(),
            #[cfg(feature = "postgres")]
            Assumed::Distributed => product::Product::distributed(),
        }
    }

    /// The clock that decides which events are due. For tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}

/// Statements that create the tables, as text: for applications with their own migrations. Those
/// that upgrade existing tables are [`migration_sql_from`].
pub fn migration_sql(kind: DatabaseKind, options: &StoreOptions) -> Result<String> {
    migration_sql_from(kind, options, 0)
}

/// Statements that upgrade the tables from this version to the one of this build, as text: for the
/// next file among an application's own migrations. Version 0 is a database without the tables.
///
/// ```
/// # #[cfg(feature = "postgres")] fn main() -> outbox::Result<()> {
/// use outbox::{DatabaseKind, Error, StoreOptions, migration_sql_from};
///
/// let options = StoreOptions::default();
/// let script = migration_sql_from(DatabaseKind::Postgres, &options, 9)?;
/// assert!(script.contains("-- version 10") && !script.contains("-- version 9"));
///
/// let unknown = migration_sql_from(DatabaseKind::Postgres, &options, 999);
/// assert!(matches!(unknown, Err(Error::UnknownSchemaVersion { version: 999, .. })));
/// # Ok(()) }
/// # #[cfg(not(feature = "postgres"))] fn main() {}
/// ```
///
/// The script changes nothing and fails if the tables have another version (in MySQL: in strict
/// mode, which is the default). From the newest version it is a comment. A version that does not
/// exist, or that this build does not know yet, is [`Error::UnknownSchemaVersion`].
///
/// [`Error::UnknownSchemaVersion`]: crate::Error::UnknownSchemaVersion
pub fn migration_sql_from(kind: DatabaseKind, options: &StoreOptions, version: i64) -> Result<String> {
    match kind {
        #[cfg(feature = "sqlite")]
        DatabaseKind::Sqlite => dialect::migration_script::<sqlx::Sqlite>(options, version),
        #[cfg(feature = "postgres")]
        DatabaseKind::Postgres => dialect::migration_script::<sqlx::Postgres>(options, version),
        #[cfg(feature = "mysql")]
        DatabaseKind::MySql => dialect::migration_script::<sqlx::MySql>(options, version),
    }
}

/// Databases that this build supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatabaseKind {
    /// SQLite 3.37 or newer; the bundled one is.
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// PostgreSQL 13 or newer. CockroachDB and YugabyteDB, detected by their versions, in a variant
    /// that was never tested on them.
    #[cfg(feature = "postgres")]
    Postgres,
    /// MySQL 8.0.19 or newer, MariaDB 10.6 or newer. TiDB, detected by its version, in a variant
    /// that was never tested on TiDB.
    #[cfg(feature = "mysql")]
    MySql,
}
