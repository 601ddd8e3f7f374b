//! The databases that the API serves.

use std::sync::Arc;

use outbox::Fleet;
use outbox::fleet::DatabaseState;
use outbox::store::SharedStore;

use crate::problem::{ApiResult, Problem};

/// A source of databases, which may change at any time. [`Fleet`] is one; implement it for
/// databases that are opened later or discovered in another way.
///
/// ```
/// use outbox::store::SharedStore;
/// use outbox_web::{DatabaseInfo, Databases};
///
/// /// One database that is not open yet when the server starts.
/// struct Late(std::sync::OnceLock<SharedStore>);
///
/// impl Databases for Late {
///     fn list(&self) -> Vec<DatabaseInfo> {
///         vec![DatabaseInfo::new("main", if self.0.get().is_some() { "active" } else { "starting" })]
///     }
///
///     fn store(&self, name: &str) -> Option<SharedStore> {
///         self.0.get().filter(|_| name == "main").cloned()
///     }
/// }
/// ```
pub trait Databases: Send + Sync + 'static {
    /// All databases, by name.
    fn list(&self) -> Vec<DatabaseInfo>;

    /// The store of a database, if the database exists and is open.
    fn store(&self, name: &str) -> Option<SharedStore>;
}

/// A database and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatabaseInfo {
    /// The name of the database.
    pub name: String,
    /// The state: `active`, `standby`, `starting`, `failing`, …
    pub state: String,
    /// Why the database is failing. Contains no credentials.
    pub reason: Option<String>,
}

impl DatabaseInfo {
    /// A database with this name and state.
    pub fn new(name: impl Into<String>, state: impl Into<String>) -> Self {
        Self { name: name.into(), state: state.into(), reason: None }
    }

    /// Sets why the database is failing.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

impl Databases for Fleet {
    fn list(&self) -> Vec<DatabaseInfo> {
        let info = |status: outbox::fleet::DatabaseStatus| {
            let info = DatabaseInfo::new(status.name, status.state.to_string());
            match status.state {
                DatabaseState::Failing { reason } => info.reason(reason),
                _ => info,
            }
        };
        self.databases().into_iter().map(info).collect()
    }

    fn store(&self, name: &str) -> Option<SharedStore> {
        Fleet::store(self, name).ok()
    }
}

/// A database that is always open.
pub(crate) struct SingleDatabase {
    pub(crate) name: String,
    pub(crate) store: SharedStore,
}

impl Databases for SingleDatabase {
    fn list(&self) -> Vec<DatabaseInfo> {
        vec![DatabaseInfo::new(&self.name, "open")]
    }

    fn store(&self, name: &str) -> Option<SharedStore> {
        (name == self.name).then(|| self.store.clone())
    }
}

/// All sources. If two sources have a database of the same name, the first source wins.
#[derive(Clone, Default)]
pub(crate) struct DatabaseSources(pub(crate) Vec<Arc<dyn Databases>>);

/// The database of a request.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) name: String,
    pub(crate) store: SharedStore,
}

/// Number of names listed in the error if a request names no database.
const NAMES_LISTED: usize = 10;

impl DatabaseSources {
    pub(crate) fn list(&self) -> Vec<DatabaseInfo> {
        let mut all: Vec<DatabaseInfo> = Vec::new();
        for info in self.0.iter().flat_map(|databases| databases.list()) {
            if !all.iter().any(|known| known.name == info.name) {
                all.push(info);
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Finds the database with this name; without a name, the only database.
    pub(crate) fn resolve(&self, name: Option<&str>) -> ApiResult<Database> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => self.only()?,
        };
        match self.0.iter().find_map(|databases| databases.store(&name)) {
            Some(store) => Ok(Database { name, store }),
            None if self.list().iter().any(|info| info.name == name) => Err(Problem::new(
                crate::problem::Kind::Unavailable,
                format!("database `{name}` is not open yet"),
            )
            .retry_after(std::time::Duration::from_secs(1))),
            None => {
                Err(Problem::not_found(format!("database `{}` not found", crate::text::printable(&name)))
                    .advice("GET /api/outbox/databases lists all databases."))
            }
        }
    }

    fn only(&self) -> ApiResult<String> {
        let mut names: Vec<String> = self.list().into_iter().map(|info| info.name).collect();
        match names.len() {
            1 => Ok(names.remove(0)),
            0 => Err(Problem::not_found("no database is available")),
            count => {
                names.truncate(NAMES_LISTED);
                let and_more = if count > NAMES_LISTED { ", …" } else { "" };
                Err(Problem::bad(format!("there are {count} databases, and the request names none"))
                    .advice(format!("Add ?database=NAME: {}{and_more}.", names.join(", "))))
            }
        }
    }
}
