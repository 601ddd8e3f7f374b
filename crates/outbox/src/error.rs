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

    /// Whether the same call may succeed if made again soon: deadlocks, lock timeouts, lost connections.
    pub fn is_transient(&self) -> bool {
        match &*self.0 {
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_)
            | sqlx::Error::Tls(_) => true,
            sqlx::Error::Database(e) => {
                let code = e.code().unwrap_or_default();
                // Connection and resource trouble, deadlock, serialization, admin shutdown (PostgreSQL);
                // deadlock, lock wait timeout, snapshot conflict (MySQL, MariaDB); busy, locked (SQLite).
                ["08", "40", "53", "57", "55"].iter().any(|class| code.len() == 5 && code.starts_with(class))
                    || ["1213", "1205", "1020"].iter().any(|n| e.message().starts_with(n))
                    || matches!(&*code, "5" | "6" | "261" | "517")
            }
            _ => false,
        }
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Told(&self.0).fmt(f)
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
            other => write!(f, "database: {other}"),
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
    /// Due before it happened.
    #[error("available_at is before occurred_at")]
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
