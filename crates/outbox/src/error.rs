//! What can go wrong for a caller.
//!
//! Errors are for callers, [`Failure`](crate::Failure)s are for retries: a handler never returns an
//! [`Error`], it returns a failure that says whether trying again can help.

use std::fmt;

use crate::event::EventId;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The event itself is not valid; nothing was written.
    #[error("invalid event: {0}")]
    Event(#[from] EventError),

    /// A setting is not valid. The text names the setting.
    #[error("invalid setting: {0}")]
    Setting(String),

    /// A settings file, or the environment, has mistakes. The text shows all of them with their
    /// places.
    #[cfg(feature = "settings")]
    #[error(transparent)]
    Settings(#[from] crate::settings::SettingsError),

    /// The name of a consumer or the id of an event cannot be in the inbox; nothing was asked of the database.
    #[error("not for the inbox: {0}")]
    Inbox(#[source] EventError),

    /// A table or schema name is not a plain identifier.
    #[error(
        "{name:?} cannot be a table or schema name: \
         use letters, digits and `_`, not starting with a digit, at most 48 characters"
    )]
    Identifier {
        /// The name as given.
        name: String,
    },

    /// The database URL names no database that this build can talk to.
    #[error("cannot use the database URL {url:?}: {reason}")]
    Url {
        /// The URL without its user and password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The tables are not there.
    #[error(
        "the table {table:?} does not exist: run `outbox.migrate()` or `outbox migrate --database URL` first"
    )]
    NotMigrated {
        /// The table that was looked for.
        table: String,
    },

    /// The tables are older than this build needs.
    #[error("the schema is at version {found}, this build needs {needed}: run `outbox migrate` first")]
    SchemaTooOld {
        /// The version found in the database.
        found: i64,
        /// The version this build works with.
        needed: i64,
    },

    /// The tables were made by a newer build.
    #[error("the schema is at version {found}, newer than the {known} that this build knows: upgrade outbox")]
    SchemaTooNew {
        /// The version found in the database.
        found: i64,
        /// The newest version this build knows.
        known: i64,
    },

    /// An event with this id is already in the table.
    #[error(
        "an event with the id {id} already exists: ids must be unique; leave the id out to get a fresh one"
    )]
    DuplicateId {
        /// The id that was taken already, where the database tells.
        id: String,
    },

    /// Two handlers for one kind of event.
    #[error("two handlers for event type {event_type:?} of aggregate type {aggregate_type:?}: register one")]
    DuplicateHandler {
        /// The aggregate type of both.
        aggregate_type: String,
        /// The event type of both.
        event_type: String,
    },

    /// The relay of this outbox runs already, or was stopped.
    #[error("{0}")]
    Lifecycle(&'static str),

    /// A background task of the relay panicked again and again, or where no restart is safe: the relay has ended.
    #[error(
        "the relay has ended: its task `{task}` failed: {cause}; see its log for the cause, then start it again"
    )]
    TaskFailed {
        /// Which task.
        task: crate::store::RelayTask,
        /// Why.
        cause: String,
    },

    /// A join cannot do what it was asked to.
    #[error(transparent)]
    Join(#[from] crate::join::JoinError),

    /// Something happened that the decision to append did not know of; nothing was appended. Decide again, and try again.
    #[error(
        "conflict: an event that matches the condition was appended after position {after}; nothing was appended"
    )]
    Conflict {
        /// The position the decision was based on.
        after: crate::log::Position,
    },

    /// A position that the log has not reached.
    #[error("position {position} is beyond the end of the log, which is at {head}")]
    BeyondHead {
        /// The position as given.
        position: crate::log::Position,
        /// The greatest position there is.
        head: crate::log::Position,
    },

    /// An event of the log that cannot be read: what another language wrote is none.
    #[error("the event at position {position} of the log cannot be decoded: {reason}")]
    Undecodable {
        /// Its position.
        position: crate::log::Position,
        /// What is wrong with it.
        reason: String,
    },

    /// The transaction sees the log as it was when it began, so it cannot be told whether a condition holds.
    #[error(
        "a condition cannot be checked in a {isolation} transaction, which does not see what others commit: use READ COMMITTED"
    )]
    Isolation {
        /// How isolated the transaction is.
        isolation: String,
    },

    /// There is no such topic and publisher.
    #[error("there is no publisher {publisher:?}{}", .topic.as_ref().map(|t| format!(" of topic {t:?}")).unwrap_or_default())]
    UnknownPair {
        /// The publisher's name.
        publisher: String,
        /// The topic's name, if one was given.
        topic: Option<String>,
    },

    /// Two publishers of one topic have the same name.
    #[error(
        "topic {topic:?} has two publishers named {publisher:?}: positions are kept by name, give each its own"
    )]
    DuplicatePublisher {
        /// The topic.
        topic: String,
        /// The name of both.
        publisher: String,
    },

    /// A writer hook refused the write; nothing was written.
    #[error("a writer hook refused the write: {0}")]
    Hook(String),

    /// The commit's answer never arrived, so it may or may not have happened. Events that were
    /// committed will be delivered by the poller; no hook ran.
    #[error("the commit's outcome is unknown: {0}")]
    CommitUnknown(#[source] DatabaseError),

    /// The database refused or could not be reached.
    #[error(transparent)]
    Database(#[from] DatabaseError),

    /// A database of a fleet does not answer, or cannot be reached, or is left alone for a moment after that. Trying
    /// again later may help.
    #[error("the database {store:?} is not available: {reason}")]
    Unavailable {
        /// Its name in the fleet.
        store: String,
        /// What happened.
        reason: String,
    },

    /// The fleet has no such database.
    #[error("no database is registered under {key:?}: add it to the fleet, or have the discovery report it")]
    UnknownRoute {
        /// The routing key.
        key: String,
    },

    /// The database is of another kind than the outbox that was asked for.
    #[error("the database {key:?} is {found}, but an outbox on {wanted} was asked for")]
    WrongKind {
        /// The routing key.
        key: String,
        /// What it is.
        found: &'static str,
        /// What it was taken for.
        wanted: &'static str,
    },

    /// Two databases of a fleet have one name.
    #[error("two databases have the name {name:?}: names are routing keys, give each its own")]
    DuplicateDatabase {
        /// The name of both.
        name: String,
    },

    /// The databases of a fleet could not be found out.
    #[error("could not discover the databases: {0}")]
    Discovery(String),

    /// Whatever a store that is not part of this crate has to say.
    #[error("{0}")]
    Store(String),
}

/// A database's error, without the data that databases like to quote in their details.
///
/// PostgreSQL's `DETAIL` prints whole rows, payloads included; that text stays out of logs. The full
/// error is there for those who ask: [`into_inner`](DatabaseError::into_inner).
pub struct DatabaseError(Box<sqlx::Error>);

impl DatabaseError {
    /// The driver's own error. May quote row data: think before logging it.
    pub fn into_inner(self) -> sqlx::Error {
        *self.0
    }

    /// The driver's own error. May quote row data: think before logging it.
    pub fn inner(&self) -> &sqlx::Error {
        &self.0
    }

    /// Whether the same call may succeed if made again, without anything being changed in it: deadlocks, lock timeouts, lost
    /// connections, and storage that is full, read-only or failing for now.
    pub fn is_transient(&self) -> bool {
        match &*self.0 {
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_)
            | sqlx::Error::Tls(_) => true,
            sqlx::Error::Database(e) => {
                is_collision(&**e) || is_outage(&**e) || self.storage_fault().is_some()
            }
            _ => false,
        }
    }

    /// The fault of the database's storage that this error tells of, if it does: writes fail until a person, or time, has
    /// removed its cause. The relay keeps what it has to write, and writes it then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Error, Event, Outbox, StorageFault};
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// outbox.migrate().await?;
    /// sqlx::raw_sql("PRAGMA query_only = on").execute(outbox.pool()).await?;
    /// let Err(Error::Database(error)) = outbox.send(Event::new("greeting").json(&"hello")).await else { panic!() };
    /// assert_eq!(error.storage_fault(), Some(StorageFault::ReadOnly));
    /// # Ok(()) }
    /// ```
    pub fn storage_fault(&self) -> Option<StorageFault> {
        let sqlx::Error::Database(e) = &*self.0 else { return None };
        #[cfg(feature = "mysql")]
        if let Some(e) = e.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
            return match e.number() {
                // Disk full, table full.
                1021 | 1114 => Some(StorageFault::Full),
                // An option of the server, its mode, or the transaction's.
                1290 | 1792 | 1836 => Some(StorageFault::ReadOnly),
                // A crashed table, a corrupt index, a broken table definition.
                1034 | 1035 | 1194 | 1195 | 1712 | 1877 => Some(StorageFault::Corrupt),
                // Writing a file or to the storage engine. The message has the cause: 28 is a full disk, 30 a read-only one.
                3 | 1026 | 1030 => Some(StorageFault::Failing),
                _ => None,
            };
        }
        let code = e.code()?;
        if code.len() == 5 {
            return match &*code {
                "53100" => Some(StorageFault::Full),
                "25006" => Some(StorageFault::ReadOnly),
                "XX001" | "XX002" => Some(StorageFault::Corrupt),
                code if code.starts_with("58") => Some(StorageFault::Failing),
                _ => None,
            };
        }
        // SQLite: the lowest byte is the kind of error, the rest the details.
        match code.parse::<i32>().ok()? & 0xff {
            8 => Some(StorageFault::ReadOnly),
            10 | 14 => Some(StorageFault::Failing),
            11 => Some(StorageFault::Corrupt),
            13 => Some(StorageFault::Full),
            _ => None,
        }
    }
}

impl DatabaseError {
    /// Whether the database has rolled back the whole transaction of the statement that failed, so that the next statement would
    /// be a transaction of its own. PostgreSQL refuses that one instead.
    pub(crate) fn ends_transaction(&self) -> bool {
        let sqlx::Error::Database(e) = &*self.0 else { return false };
        if let Some(number) = mysql_number(&**e) {
            return number == 1213;
        }
        // SQLite: out of memory, interrupted, I/O error, full.
        let code = e.code().unwrap_or_default();
        code.len() < 5 && code.parse::<i32>().is_ok_and(|code| matches!(code & 0xff, 7 | 9 | 10 | 13))
    }
}

/// What is wrong with the storage of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageFault {
    /// The disk, or what a table or account may use of it, is full.
    Full,
    /// The database, its file system or its server takes no writes.
    ReadOnly,
    /// Reading or writing files fails.
    Failing,
    /// A table or an index is damaged.
    Corrupt,
}

impl fmt::Display for StorageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "its storage is full: make room",
            Self::ReadOnly => "it is read-only: make it writable, or connect to the primary server",
            Self::Failing => "its storage fails: look at the log of the server, and at the file system",
            Self::Corrupt => {
                "a table or an index is damaged: repair it (REINDEX, CHECK TABLE, PRAGMA integrity_check)"
            }
        })
    }
}

/// Whether two transactions were in each other's way, so that trying again helps.
fn is_collision(e: &dyn sqlx::error::DatabaseError) -> bool {
    let code = e.code().unwrap_or_default();
    // Deadlock and serialization, lock not available (PostgreSQL); deadlock, lock wait timeout, snapshot conflict (MySQL, MariaDB);
    // lost transaction, failed commit, changed tables, write conflict (TiDB); busy, locked (SQLite).
    ["40", "55"].iter().any(|class| code.len() == 5 && code.starts_with(class))
        || mysql_number(e)
            .is_some_and(|number| matches!(number, 1020 | 1205 | 1213 | 8002 | 8022 | 8028 | 9007))
        || matches!(&*code, "5" | "6" | "261" | "517")
}

/// Whether the server cannot accept connections just now.
fn is_outage(e: &dyn sqlx::error::DatabaseError) -> bool {
    let code = e.code().unwrap_or_default();
    // Connection and resource trouble, shutdown, cancelled statement (PostgreSQL); too many connections, shutdown, out of memory,
    // killed connection, interrupted statement (MySQL, MariaDB); out of memory, interrupted (SQLite).
    ["08", "53", "57"].iter().any(|class| code.len() == 5 && code.starts_with(class))
        || mysql_number(e).is_some_and(|number| {
            matches!(number, 1037 | 1038 | 1040 | 1041 | 1053 | 1203 | 1226 | 1317 | 1927 | 3100)
        })
        || matches!(&*code, "7" | "9")
}

/// The number of an error of MySQL or MariaDB: most of them share one SQLSTATE.
#[cfg(feature = "mysql")]
fn mysql_number(e: &dyn sqlx::error::DatabaseError) -> Option<u16> {
    Some(e.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?.number())
}

#[cfg(not(feature = "mysql"))]
fn mysql_number(_: &dyn sqlx::error::DatabaseError) -> Option<u16> {
    None
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Told(&self.0).fmt(f)?;
        match self.storage_fault() {
            Some(fault) => write!(f, " (the database: {fault})"),
            None => Ok(()),
        }
    }
}

/// What may be told of a driver's error.
pub(crate) struct Told<'a>(pub(crate) &'a sqlx::Error);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            sqlx::Error::Database(e) => {
                write!(f, "database error")?;
                if let Some(code) = e.code() {
                    write!(f, " {code}")?;
                }
                if let Some(constraint) = e.constraint() {
                    write!(f, " (constraint {constraint})")?;
                }
                write!(f, ": {}", e.message())
            }
            sqlx::Error::PoolTimedOut => f.write_str(
                "no database connection became free in time: raise max_connections or shorten transactions",
            ),
            other => {
                write!(f, "database: {other}")?;
                match crate::connect::tls_advice(other) {
                    Some(advice) => write!(f, "; {advice}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl fmt::Debug for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseError({self})")
    }
}

impl std::error::Error for DatabaseError {}

impl From<sqlx::Error> for DatabaseError {
    fn from(e: sqlx::Error) -> Self {
        Self(Box::new(e))
    }
}

impl From<sqlx::Error> for Error {
    fn from(e: sqlx::Error) -> Self {
        Error::Database(e.into())
    }
}

impl Error {
    /// Whether the same call may succeed if made again soon.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Database(e) | Error::CommitUnknown(e) => e.is_transient(),
            Error::Unavailable { .. } => true,
            _ => false,
        }
    }
}

/// Why an event could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// A required text is empty, or an optional one was given but is empty.
    #[error("{field} is empty")]
    Empty {
        /// Which field.
        field: &'static str,
    },
    /// A text is longer than its column.
    #[error("{field} has {length} characters, at most {limit} fit")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its length in characters.
        length: usize,
        /// What fits.
        limit: usize,
    },
    /// A text holds a control character, which databases or brokers refuse.
    #[error(
        "{field} contains the control character {character:?}: remove it, or put the value into the payload"
    )]
    Control {
        /// Which field.
        field: &'static str,
        /// The character.
        character: char,
    },
    /// No payload was given.
    #[error(
        "no payload: call json(), json_text() or bytes(); an empty payload is bytes(\"text/plain\", \"\")"
    )]
    NoPayload,
    /// More than one payload was given.
    #[error("the payload was given twice: an event is JSON or bytes, never both")]
    TwoPayloads,
    /// The payload is over the limit.
    #[error(
        "the payload has {size} bytes, over the limit of {limit}: store it elsewhere and send a reference, or raise max_payload"
    )]
    PayloadTooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in force.
        limit: usize,
    },
    /// The payload could not be turned into JSON, or is not JSON.
    #[error("the payload is not JSON ({reason}): fix it, or send it as bytes with a content type")]
    NotJson {
        /// What the JSON parser or serializer said.
        reason: String,
    },
    /// The name of a tag holds what separates it from the value.
    #[error("the tag name {name:?} contains `=`, which stands between a tag's name and its value")]
    TagName {
        /// The name as given.
        name: String,
    },
    /// More of something than is sensible.
    #[error("{count} {what}, at most {limit} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there were.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The log keeps events in their order and for good: it does not delay, expire or deduplicate.
    #[error("{field} is set, which the log has no use for: leave it out, or write the event to the queue")]
    NotForTheLog {
        /// Which field.
        field: &'static str,
    },
    /// Both an absolute time and a delay.
    #[error("available_at and deliver_after are both set: choose one")]
    TwoDelays,
    /// A delay of zero.
    #[error("deliver_after is zero: leave it out for immediate delivery")]
    ZeroDelay,
    /// Due before it happened. Only where the caller set both times.
    #[error("available_at is before occurred_at: set available_at alone, and the event is due at once")]
    AvailableBeforeOccurred,
    /// Expires before it may be delivered.
    #[error("expires_at is not after the time from which the event may be delivered")]
    ExpiresTooEarly,
    /// A time that databases cannot store.
    #[error("{field} is outside the years 1970 to 9999")]
    TimeOutOfRange {
        /// Which field.
        field: &'static str,
    },
}

/// A stored event that cannot be turned back into an [`Event`](crate::Event).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {id} cannot be decoded: {reason}")]
pub struct DecodeError {
    /// Its id.
    pub id: EventId,
    /// What is wrong with it.
    pub reason: String,
}

/// Takes user and password out of a URL, so that it can be shown. Careless on the safe side: whatever stands before
/// the last `@` may be a password, wherever it is.
pub(crate) fn without_credentials(url: &str) -> String {
    if url.starts_with("sqlite:") {
        return url.to_owned();
    }
    let is_scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    // A query may carry `password=`; the path is enough to recognise a database.
    let shown = host.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}{shown}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_url_has_no_credentials() {
        for (url, shown) in [
            ("postgres://ada:s3cret@db:5432/shop?password=x", "postgres://db:5432/shop"),
            ("mysql://root@127.0.0.1/test", "mysql://127.0.0.1/test"),
            ("postgres://a:p@ss@db/x", "postgres://db/x"),
            ("postgres://ada:s3/cret@db/x", "postgres://db/x"),
            ("postgres://ada:s3?cret@db/x", "postgres://db/x"),
            ("ada:s3cret@db", "db"),
            ("postgres:ada:s3cret@db://x", "db://x"),
            ("sqlite:app.db", "sqlite:app.db"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
