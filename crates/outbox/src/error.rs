//! Errors that are returned to callers.
//!
//! Errors are for callers, [`Failure`](crate::Failure)s are for retries: a handler never returns an
//! [`Error`], it returns a failure that states whether a retry can help.

use std::fmt;

use crate::event::EventId;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error. A text converts to it by `into()`.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A text that explains an error, and the error.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct CausedError {
    text: String,
    source: BoxError,
}

/// An error of this crate: what failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The event itself is not valid; nothing was written.
    #[error("invalid event: {0}")]
    Event(#[from] EventError),

    /// A setting is not valid.
    #[error("invalid setting: {reason}")]
    Setting {
        /// The setting, its mistake, and the valid values.
        reason: String,
        /// The rule that the value breaks, where it is an error of its own.
        source: Option<BoxError>,
    },

    /// A settings file, or the environment, has mistakes. The text lists all of them with their
    /// locations.
    #[cfg(feature = "settings")]
    #[error(transparent)]
    Settings(#[from] crate::settings::SettingsError),

    /// The name of a consumer or the id of an event cannot be stored in the inbox; no query was
    /// made.
    #[error("invalid inbox entry: {0}")]
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

    /// The database URL names no database that this build supports.
    #[error("cannot use the database URL {url:?}: {reason}")]
    Url {
        /// The URL without its user and password.
        url: String,
        /// The cause.
        reason: String,
    },

    /// The tables do not exist.
    #[error(
        "the table {table:?} does not exist: run `outbox.migrate()` or `outbox migrate --database URL` first"
    )]
    NotMigrated {
        /// The missing table.
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

    /// The tables were created by a newer build.
    #[error("the schema is at version {found}, newer than the {known} that this build knows: upgrade outbox")]
    SchemaTooNew {
        /// The version found in the database.
        found: i64,
        /// The newest version this build knows.
        known: i64,
    },

    /// No such version of the tables to upgrade from.
    #[error(
        "the tables have no version {version}: versions 1 to {newest} exist, and 0 is a database without tables"
    )]
    UnknownSchemaVersion {
        /// The version as given.
        version: i64,
        /// The newest version this build knows.
        newest: i64,
    },

    /// An event with this id is already in the table.
    #[error(
        "an event with the id {} already exists: ids must be unique; leave the id out to get a fresh one",
        .id.as_ref().map_or("that was given", EventId::as_str)
    )]
    DuplicateId {
        /// The duplicate id. `None` if it is one of several that were written together.
        id: Option<EventId>,
    },

    /// Two handlers for the same event type and aggregate type.
    #[error("two handlers for event type {event_type:?} of aggregate type {aggregate_type:?}: register one")]
    DuplicateHandler {
        /// The aggregate type of both.
        aggregate_type: String,
        /// The event type of both.
        event_type: String,
    },

    /// The relay of this outbox is already running, or was stopped.
    #[error("{0}")]
    Lifecycle(&'static str),

    /// A background task of the relay panicked repeatedly, or where no restart is safe: the relay
    /// has ended.
    #[error(
        "the relay has ended: its task `{task}` failed: {cause}; see its log for the cause, then start it again"
    )]
    TaskFailed {
        /// The task.
        task: crate::store::RelayTask,
        /// The cause.
        cause: String,
    },

    /// A join operation failed.
    #[error(transparent)]
    Join(#[from] crate::join::JoinError),

    /// An event that the decision to append did not include was appended; nothing was appended by
    /// this call. Decide again, and retry.
    #[error(
        "conflict: an event that matches the condition was appended after position {after}; nothing was appended"
    )]
    Conflict {
        /// The position that the decision was based on.
        after: crate::log::Position,
    },

    /// A position that the log has not reached.
    #[error("position {position} is beyond the end of the log, which is at {head}")]
    BeyondHead {
        /// The position as given.
        position: crate::log::Position,
        /// The highest position of the log.
        head: crate::log::Position,
    },

    /// An event of the log that cannot be decoded: another program wrote an invalid row.
    #[error("the event at position {position} of the log cannot be decoded: {reason}")]
    Undecodable {
        /// Its position.
        position: crate::log::Position,
        /// The cause.
        reason: String,
    },

    /// The transaction's snapshot is older than other appends, so a condition cannot be checked.
    #[error(
        "a condition cannot be checked in a {isolation} transaction, which does not see later commits: use READ COMMITTED"
    )]
    Isolation {
        /// Isolation level of the transaction.
        isolation: String,
    },

    /// No such topic and publisher.
    #[error("there is no publisher {publisher:?}{}", .topic.as_ref().map(|t| format!(" of topic {t:?}")).unwrap_or_default())]
    UnknownSubscription {
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
    Hook(#[source] BoxError),

    /// The response to the commit never arrived, so the transaction may or may not have been
    /// committed. If it was, polling delivers the events; no hook ran.
    #[error("the outcome of the commit is unknown: {0}")]
    CommitUnknown(#[source] DatabaseError),

    /// The database returned an error or could not be reached.
    #[error(transparent)]
    Database(#[from] DatabaseError),

    /// A database of a fleet does not answer, cannot be reached, or is being skipped for a moment
    /// after such a failure. Trying again later may help.
    #[error("the database {store:?} is not available: {reason}")]
    Unavailable {
        /// Its name in the fleet.
        store: String,
        /// The cause.
        reason: String,
    },

    /// The fleet has no such database.
    #[error("no database is registered under {key:?}: add it to the fleet, or have the discovery report it")]
    UnknownRoute {
        /// The routing key.
        key: String,
    },

    /// The database is of another kind than the requested outbox.
    #[error("the database {key:?} is {found}, but an outbox on {wanted} was requested")]
    WrongKind {
        /// The routing key.
        key: String,
        /// The kind of the database.
        found: &'static str,
        /// The requested kind.
        wanted: &'static str,
    },

    /// Two databases of a fleet have the same name.
    #[error("two databases have the name {name:?}: names are routing keys, give each its own")]
    DuplicateDatabase {
        /// The name of both.
        name: String,
    },

    /// The discovery of a fleet's databases failed.
    #[error("could not discover the databases: {0}")]
    Discovery(#[source] BoxError),

    /// An unexpected answer of the database, or an error of a store that is not part of this crate.
    #[error(transparent)]
    Store(BoxError),
}

/// A database error, without the row data that databases quote in their details.
///
/// PostgreSQL's `DETAIL` prints whole rows, payloads included; that text is kept out of logs. The
/// full error is available from [`into_inner`](DatabaseError::into_inner).
pub struct DatabaseError(Box<sqlx::Error>);

impl DatabaseError {
    /// The driver's own error. May quote row data: check before logging it.
    pub fn into_inner(self) -> sqlx::Error {
        *self.0
    }

    /// The driver's own error. May quote row data: check before logging it.
    pub fn inner(&self) -> &sqlx::Error {
        &self.0
    }

    /// Whether the same call may succeed if repeated unchanged: deadlocks, lock timeouts, lost
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

    /// The storage fault that this error reports, if any: writes fail until its cause is removed.
    /// The relay keeps its pending settlements, and writes them then.
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
                // A server option, the server's mode, or the transaction's.
                1290 | 1792 | 1836 => Some(StorageFault::ReadOnly),
                // A crashed table, a corrupt index, a broken table definition.
                1034 | 1035 | 1194 | 1195 | 1712 | 1877 => Some(StorageFault::Corrupt),
                // Writing a file or to the storage engine. The message has the cause: 28 is a full
                // disk, 30 a read-only one.
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
    /// Whether the database has rolled back the whole transaction of the failed statement, so that
    /// the next statement would run in its own transaction. PostgreSQL refuses that statement
    /// instead.
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

/// A fault of a database's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageFault {
    /// The disk, or a quota of a table or account, is full.
    Full,
    /// The database, its file system or its server rejects writes.
    ReadOnly,
    /// Reading or writing files fails.
    Failing,
    /// A table or an index is damaged.
    Corrupt,
}

impl fmt::Display for StorageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "its storage is full: free some space",
            Self::ReadOnly => "it is read-only: make it writable, or connect to the primary server",
            Self::Failing => "its storage fails: look at the log of the server, and at the file system",
            Self::Corrupt => {
                "a table or an index is damaged: repair it (REINDEX, CHECK TABLE, PRAGMA integrity_check)"
            }
        })
    }
}

/// Whether two transactions conflicted, so that a retry helps.
fn is_collision(e: &dyn sqlx::error::DatabaseError) -> bool {
    let code = e.code().unwrap_or_default();
    // Deadlock and serialization, lock not available (PostgreSQL); deadlock, lock wait timeout,
    // snapshot conflict (MySQL, MariaDB); lost transaction, failed commit, changed tables, write
    // conflict (TiDB); busy, locked (SQLite).
    ["40", "55"].iter().any(|class| code.len() == 5 && code.starts_with(class))
        || mysql_number(e)
            .is_some_and(|number| matches!(number, 1020 | 1205 | 1213 | 8002 | 8022 | 8028 | 9007))
        || matches!(&*code, "5" | "6" | "261" | "517")
}

/// Whether the server cannot accept connections at the moment.
fn is_outage(e: &dyn sqlx::error::DatabaseError) -> bool {
    let code = e.code().unwrap_or_default();
    // Connection and resource errors, shutdown, cancelled statement (PostgreSQL); too many
    // connections, shutdown, out of memory, killed connection, interrupted statement (MySQL,
    // MariaDB); out of memory, interrupted (SQLite).
    ["08", "53", "57"].iter().any(|class| code.len() == 5 && code.starts_with(class))
        || mysql_number(e).is_some_and(|number| {
            matches!(number, 1037 | 1038 | 1040 | 1041 | 1053 | 1203 | 1226 | 1317 | 1927 | 3100)
        })
        || matches!(&*code, "7" | "9")
}

/// The error number of MySQL or MariaDB: most errors share one SQLSTATE.
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
        RedactedError(&self.0).fmt(f)?;
        match self.storage_fault() {
            Some(fault) => write!(f, " (the database: {fault})"),
            None => Ok(()),
        }
    }
}

/// Shows a driver's error without row data.
pub(crate) struct RedactedError<'a>(pub(crate) &'a sqlx::Error);

impl fmt::Display for RedactedError<'_> {
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
    pub(crate) fn setting(reason: impl Into<String>) -> Self {
        Self::Setting { reason: reason.into(), source: None }
    }

    /// A setting that breaks a rule. The reason includes the text of the rule.
    pub(crate) fn setting_by(reason: impl Into<String>, rule: impl Into<BoxError>) -> Self {
        Self::Setting { reason: reason.into(), source: Some(rule.into()) }
    }

    /// An error of a store with its cause. The text includes the text of the cause if it helps.
    pub(crate) fn store_by(text: impl Into<String>, cause: impl Into<BoxError>) -> Self {
        Self::Store(CausedError { text: text.into(), source: cause.into() }.into())
    }

    /// Whether the same call may succeed if repeated soon.
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
        /// The field.
        field: &'static str,
    },
    /// A text is longer than its column.
    #[error("{field} has {length} characters, at most {limit} fit")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length in characters.
        length: usize,
        /// The maximum length.
        limit: usize,
    },
    /// A text contains a control character, which databases or brokers refuse.
    #[error(
        "{field} contains the control character {character:?}: remove it, or put the value into the payload"
    )]
    Control {
        /// The field.
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
    /// The payload exceeds the limit.
    #[error(
        "the payload has {size} bytes, over the limit of {limit}: store it elsewhere and send a reference, or raise max_payload"
    )]
    PayloadTooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit that applies.
        limit: usize,
    },
    /// The payload could not be serialized to JSON, or is not JSON.
    #[error("the payload is not JSON ({reason}): fix it, or send it as bytes with a content type")]
    NotJson {
        /// Error of the JSON parser or serializer.
        reason: String,
    },
    /// The name of a tag contains the separator between name and value.
    #[error("the tag name {name:?} contains `=`, which separates a tag's name from its value")]
    TagName {
        /// The name as given.
        name: String,
    },
    /// Too many items.
    #[error("{count} {what}, at most {limit} are allowed")]
    TooMany {
        /// The items.
        what: &'static str,
        /// Number of items given.
        count: usize,
        /// Maximum number of items.
        limit: usize,
    },
    /// A field that the log does not support: the log stores events in order and permanently; it
    /// does not delay, expire or deduplicate.
    #[error("{field} is set, which the log does not support: leave it out, or write the event to the queue")]
    NotForTheLog {
        /// The field.
        field: &'static str,
    },
    /// Both an absolute time and a delay are set.
    #[error("available_at and deliver_after are both set: choose one")]
    TwoDelays,
    /// A delay of zero.
    #[error("deliver_after is zero: leave it out for immediate delivery")]
    ZeroDelay,
    /// The event is due before it occurred. Only where the caller set both times.
    #[error("available_at is before occurred_at: set available_at alone, and the event is due at once")]
    AvailableBeforeOccurred,
    /// The event expires before it may be delivered.
    #[error("expires_at is not after the time from which the event may be delivered")]
    ExpiresTooEarly,
    /// A time that databases cannot store.
    #[error("{field} is outside the years 1970 to 9999")]
    TimeOutOfRange {
        /// The field.
        field: &'static str,
    },
}

/// A stored event that cannot be decoded into an [`Event`](crate::Event).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {id} cannot be decoded: {reason}")]
pub struct DecodeError {
    /// Id of the event.
    pub id: EventId,
    /// The cause.
    pub reason: String,
}

/// Removes user and password from a URL, so that it can be shown. Errs on the safe side: anything
/// before the last `@` may be a password, wherever it is.
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
