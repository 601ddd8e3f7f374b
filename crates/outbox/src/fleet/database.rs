//! Databases of a fleet, and their discovery.

use std::error::Error as StdError;
use std::fmt;

use async_trait::async_trait;

use crate::error::{Error, Result, without_credentials};
use crate::sql::StoreOptions;

/// Maximum length of a database name, in characters.
const MAX_NAME: usize = 64;

/// One database of a fleet: its name, which is its routing key, and its URL.
///
/// ```
/// use outbox::fleet::FleetDatabase;
///
/// let acme = FleetDatabase::new("acme", "postgres://shop:s3cret@db/acme").schema("billing");
/// assert!(!format!("{acme:?}").contains("s3cret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct FleetDatabase {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) table: Option<String>,
    pub(crate) schema: Option<String>,
}

impl FleetDatabase {
    /// A database at this URL: `sqlite:`, `postgres://` or `mysql://` (also for MariaDB).
    pub fn new(name: impl Into<RoutingKey>, url: impl Into<String>) -> Self {
        Self { name: name.into().0, url: url.into(), table: None, schema: None }
    }

    /// Table of the events, instead of `outbox_event`.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn check(&self) -> Result<()> {
        let length = self.name.chars().count();
        if (1..=MAX_NAME).contains(&length) && !self.name.chars().any(char::is_control) {
            return Ok(());
        }
        Err(Error::setting(format!(
            "the database name {:?} must have 1 to {MAX_NAME} characters, and no control characters",
            self.name
        )))
    }

    pub(crate) fn options(&self) -> StoreOptions {
        let mut options = StoreOptions::default().name(&self.name);
        if let Some(table) = &self.table {
            options = options.table(table);
        }
        if let Some(schema) = &self.schema {
            options = options.schema(schema);
        }
        options
    }
}

impl fmt::Debug for FleetDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetDatabase")
            .field("name", &self.name)
            .field("url", &without_credentials(&self.url))
            .field("table", &self.table)
            .field("schema", &self.schema)
            .finish()
    }
}

/// Identifies a database of a fleet: its name, as text or as a UUID. A UUID equals its lower-case
/// text with hyphens, so both find the same database.
///
/// ```
/// use outbox::fleet::RoutingKey;
///
/// let id = uuid::Uuid::from_u128(7);
/// assert_eq!(RoutingKey::from(id), RoutingKey::from("00000000-0000-0000-0000-000000000007"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutingKey(pub(crate) String);

impl From<&str> for RoutingKey {
    fn from(key: &str) -> Self {
        Self(key.to_owned())
    }
}

impl From<String> for RoutingKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl From<&String> for RoutingKey {
    fn from(key: &String) -> Self {
        Self(key.clone())
    }
}

impl From<uuid::Uuid> for RoutingKey {
    fn from(key: uuid::Uuid) -> Self {
        Self(key.as_hyphenated().to_string())
    }
}

/// Lists the databases of a fleet. Called periodically.
///
/// ```
/// use outbox::fleet::{Discovery, FleetDatabase};
///
/// struct Tenants { directory: sqlx::SqlitePool }
///
/// #[async_trait::async_trait]
/// impl Discovery for Tenants {
///     async fn discover(&self) -> Result<Vec<FleetDatabase>, Box<dyn std::error::Error + Send + Sync>> {
///         let tenants: Vec<(String, String)> =
///             sqlx::query_as("SELECT name, url FROM tenant").fetch_all(&self.directory).await?;
///         Ok(tenants.into_iter().map(|(name, url)| FleetDatabase::new(name, url)).collect())
///     }
/// }
/// ```
///
/// An error, a panic, no answer within a minute, and an empty answer while databases are known all
/// count as *failed*: the databases stay unchanged, and the next attempt is made after the usual
/// interval. A database is removed only after it was missing in several successive answers, see
/// [`FleetBuilder::absences`](super::FleetBuilder::absences).
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// All databases that currently exist.
    async fn discover(&self) -> Result<Vec<FleetDatabase>, Box<dyn StdError + Send + Sync>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_printable() {
        for good in ["a", "tenant 7", "ä".repeat(64).as_str()] {
            assert!(FleetDatabase::new(good, "sqlite:x").check().is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "x".repeat(65).as_str()] {
            assert!(
                matches!(FleetDatabase::new(bad, "sqlite:x").check(), Err(Error::Setting { .. })),
                "{bad}"
            );
        }
    }
}
