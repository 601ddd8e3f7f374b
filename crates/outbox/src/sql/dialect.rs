//! Differences between databases, and conversion of values into and out of statements.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::StoreOptions;
use super::log::LogDialect;
use super::names::{Names, Statement, render};
use super::sessions::Sessions;
use super::source::Source;
use super::stamp::Stamp;
use super::warm::{Begin, Warm};
use crate::connect::Pooler;
use crate::error::{Error, Result};
use crate::event::{AggregateType, EVENT_OVERHEAD, Event};
use crate::store::{AppendNotifier, Completion, Holder, InsertNotifier, NodeId, OnDead};

/// A database that can hold an [`Outbox`](crate::Outbox). Implemented for sqlx's `Postgres`,
/// `MySql` and `Sqlite`; sealed.
pub trait Database: Dialect {}
impl<DB: Dialect> Database for DB {}

/// The clock that decides which events are due.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The database's clock: a skewed clock of a node has no effect.
    #[default]
    Database,
    /// A clock that only a test moves.
    Frozen(FrozenClock),
}

/// A clock that stands still until it is moved. Clones share the time.
#[derive(Clone, Debug)]
pub struct FrozenClock(Arc<Mutex<DateTime<Utc>>>);

impl FrozenClock {
    /// Creates a clock that shows this time.
    pub fn at(time: DateTime<Utc>) -> Self {
        Self(Arc::new(Mutex::new(time)))
    }

    /// The current time of the clock.
    pub fn now(&self) -> DateTime<Utc> {
        *self.0.lock().expect("no code panics while it holds this lock")
    }

    /// Sets the time, forwards or back.
    pub fn set(&self, time: DateTime<Utc>) {
        *self.0.lock().expect("no code panics while it holds this lock") = time;
    }

    /// Advances the time.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().expect("no code panics while it holds this lock") += by;
    }
}

/// A parameter of a statement.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number.
    Int(i64),
    /// A text or NULL.
    Text(Option<String>),
    /// Bytes or NULL.
    Bytes(Option<Vec<u8>>),
    /// A time or NULL.
    Time(Option<DateTime<Utc>>),
    /// A list of texts: an array where the database has them, JSON elsewhere.
    Texts(Vec<Option<String>>),
    /// A list of numbers: an array where the database has them, JSON elsewhere.
    Ints(Vec<Option<i64>>),
    /// A list of times.
    Times(Vec<Option<DateTime<Utc>>>),
    /// A list of byte strings.
    Blobs(Vec<Option<Vec<u8>>>),
}

impl Value {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Value::Text(Some(text.into()))
    }

    pub(crate) fn micros(duration: Duration) -> Self {
        Value::Int(micros(duration))
    }

    pub(crate) fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        Value::Texts(texts.into_iter().map(|t| Some(t.to_owned())).collect())
    }

    pub(crate) fn ints(ints: impl IntoIterator<Item = i64>) -> Self {
        Value::Ints(ints.into_iter().map(Some).collect())
    }

    /// An empty list for values of this kind.
    #[cfg(feature = "postgres")]
    pub(crate) fn empty_list(&self) -> Self {
        match self {
            Value::Int(_) | Value::Ints(_) => Value::Ints(Vec::new()),
            Value::Text(_) | Value::Texts(_) => Value::Texts(Vec::new()),
            Value::Bytes(_) | Value::Blobs(_) => Value::Blobs(Vec::new()),
            Value::Time(_) | Value::Times(_) => Value::Times(Vec::new()),
        }
    }

    /// Appends a value to the list of its kind.
    #[cfg(feature = "postgres")]
    pub(crate) fn push(&mut self, value: Value) {
        match (self, value) {
            (Value::Ints(list), Value::Int(v)) => list.push(Some(v)),
            (Value::Texts(list), Value::Text(v)) => list.push(v),
            (Value::Blobs(list), Value::Bytes(v)) => list.push(v),
            (Value::Times(list), Value::Time(v)) => list.push(v),
            (list, value) => unreachable!("{value:?} in {list:?}"),
        }
    }

    /// Name of the PostgreSQL array type of this list.
    #[cfg(feature = "postgres")]
    pub(crate) fn array(&self) -> &'static str {
        match self {
            Value::Int(_) | Value::Ints(_) => "bigint[]",
            Value::Text(_) | Value::Texts(_) => "text[]",
            Value::Bytes(_) | Value::Blobs(_) => "bytea[]",
            Value::Time(_) | Value::Times(_) => "timestamptz[]",
        }
    }

    /// A list as JSON, for databases without arrays.
    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    pub(crate) fn into_json(self) -> Option<String> {
        match self {
            Value::Texts(list) => serde_json::to_string(&list).ok(),
            Value::Ints(list) => serde_json::to_string(&list).ok(),
            _ => None,
        }
    }
}

/// A duration in microseconds, which all databases can add. A delay of more than a century is cut
/// to a century.
pub(crate) fn micros(duration: Duration) -> i64 {
    const CENTURY: i64 = 100 * 365 * 86_400 * 1_000_000;
    i64::try_from(duration.as_micros()).map_or(CENTURY, |us| us.min(CENTURY))
}

/// Columns of an event as read, in the order of `statements::COLUMNS`.
#[derive(Debug)]
pub struct Columns {
    pub(crate) event_type: String,
    pub(crate) aggregate_type: AggregateType,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) tenant_id: Option<String>,
    pub(crate) ordering_key: Option<Arc<str>>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) dedup_key: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) payload: Option<String>,
    pub(crate) payload_bytes: Option<Vec<u8>>,
    pub(crate) content_type: Option<String>,
    pub(crate) occurred_at: Stamp,
    pub(crate) expires_at: Option<Stamp>,
    pub(crate) created_at: Stamp,
    pub(crate) due_at: Option<Stamp>,
}

impl Columns {
    /// Approximate size in memory.
    pub(crate) fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bytes = self.payload_bytes.as_ref().map_or(0, Vec::len);
        EVENT_OVERHEAD + bytes + text(&self.payload) + text(&self.headers)
    }
}

/// An event about to be inserted, and whether it is born leased.
#[derive(Clone, Debug)]
pub struct NewRow {
    pub(crate) event: Event,
    pub(crate) leased: bool,
}

/// Owner and duration of the lease of events that are born leased.
#[derive(Clone, Debug)]
pub struct BirthLease {
    pub(crate) owner: NodeId,
    pub(crate) lease: Duration,
}

/// Rows of a batch that a settlement applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Rows that are not steps of a join: no join counters change.
    Plain,
    /// All rows.
    All,
}

impl Which {
    pub(crate) fn condition(self) -> &'static str {
        match self {
            Which::Plain => " AND e.joined = 0",
            Which::All => "",
        }
    }
}

/// How failed attempts are recorded.
pub enum Noting {
    /// In the statement that settles; its row count is the number of settled events.
    AtOnce(String),
    /// In a statement of its own before the settlement. It locks the rows, so that the settlement
    /// finds the same rows.
    First(String),
}

/// Connection options that sqlx parses from a URL.
#[doc(hidden)]
pub type Options<DB> = <<DB as sqlx::Database>::Connection as sqlx::Connection>::Options;

/// Differences between databases. Not for use outside of this crate.
#[doc(hidden)]
pub trait Dialect: sqlx::Database + LogDialect + Sized {
    /// Quote character of identifiers.
    const QUOTE: char;
    /// Statement that begins a writing transaction; `None`: the driver's own.
    const BEGIN: Option<&'static str>;
    /// Statement that begins a transaction of the relay on a shared session, with its settings;
    /// `None` where sessions are never shared.
    const BEGIN_SHARED_BY_INDEX: Option<&'static str> = None;
    /// The same for the store's other transactions.
    const BEGIN_SHARED: Option<&'static str> = None;
    /// Statement before the transaction of a handler, if the default isolation level is not the
    /// required one.
    const BEFORE_HANDLER: Option<&'static str> = None;
    /// Scripts that create the tables, oldest first.
    const MIGRATIONS: &'static [&'static str];
    /// Whether the tables can be in a schema of their own.
    const SCHEMAS: bool;
    /// Whether lists are passed as arrays, one per column; otherwise as one JSON array of rows.
    const ARRAYS: bool;
    /// Whether the table accepts only valid JSON as a payload; otherwise JSON is checked when it is
    /// read.
    const CHECKS_JSON: bool = true;
    /// Whether a subquery in FROM may refer to the items before it.
    const LATERAL: bool;
    /// Inserts the row of a named lease, if it does not exist.
    const NEW_LEASE: &'static str;
    /// Sets the flag by which the table gives rows without an ordering key the key of their
    /// aggregate.
    const BY_AGGREGATE: &'static str;

    /// [`BY_AGGREGATE`](Self::BY_AGGREGATE) of the product that these tables are on, known after
    /// the first statement on them.
    fn by_aggregate(_: &Names) -> &'static str {
        Self::BY_AGGREGATE
    }

    /// Creates the trigger that keeps writers of one ordering key in order, unless it exists.
    /// False: the server refuses the trigger, and the tables work without it.
    fn create_order_trigger(
        _: &mut Self::Connection,
        _: &Names,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(true) }
    }

    /// Whether the table can give a row without an ordering key that of its aggregate.
    fn gives_keys(
        _: &mut Self::Connection,
        _: &Names,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(true) }
    }

    /// Serializes takers until the end of the transaction, where a taker cannot skip the rows that
    /// another has locked. False: takers skip locked rows.
    fn take_turn(
        _: &dyn Render,
        _: &mut Self::Connection,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(false) }
    }

    /// The statement that creates the order trigger, for the script of the whole schema.
    const ORDER_TRIGGER: Option<&'static str> = None;

    /// Records in the inbox that consumer `$1` has received event `$2`; changes no row if that was
    /// recorded before.
    const ONCE: &'static str;

    /// Converts a pattern in which `*` matches any characters for `LIKE … ESCAPE '|'`, which is
    /// case-sensitive where the columns are.
    fn pattern(pattern: &str) -> String {
        let letter = |c: char| match c {
            '*' => "%".to_owned(),
            '%' | '_' | '|' => format!("|{c}"),
            c => c.to_string(),
        };
        pattern.chars().map(letter).collect()
    }

    /// Text of a fragment, such as `now` or `later $3`.
    fn fragment(slot: &str) -> String;

    /// A time literal, for a frozen clock.
    fn literal(time: DateTime<Utc>) -> String;

    /// Builds a statement from text with numbered placeholders.
    fn statement(text: String, names: &Names) -> Statement;

    /// Rewrites a statement for the server of this connection, where servers of one protocol
    /// differ.
    fn adapt(
        _: &mut Self::Connection,
        statement: Statement,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<(Statement, Vec<Value>), sqlx::Error>> + Send {
        async { Ok((statement, values)) }
    }

    /// The scripts for these tables, as many as there are [`MIGRATIONS`](Dialect::MIGRATIONS).
    /// Called after migrations are [locked](Dialect::lock_migrations).
    fn migrations(_: &Names) -> &'static [&'static str] {
        Self::MIGRATIONS
    }

    /// The statement that finds, for each key queue of a window, the first event that blocks a part
    /// of it: key and destination of the queue, sequence number and type of that event. `{past}`
    /// stands for the condition that excludes events `o` that the taker holds and events with
    /// another destination.
    fn stops(on_dead: OnDead) -> &'static str;

    /// The statement that settles done events. `$1` and `$2` are the owner and the epoch, the batch
    /// follows.
    fn settle_done(completion: Completion, by: &Holder, which: Which) -> String;

    /// The statement that writes all other verdicts. It ends the claim by raising it, so that a
    /// repeated verdict counts once, even where one node holds the table and taking raises no
    /// claims.
    fn settle_rest(by: &Holder, which: Which) -> String;

    /// The query that locks those rows of a batch that the holder still holds, and returns their
    /// ids and whether they are steps of joins. `$1` to `$4` as in a settlement.
    fn hold_batch(by: &Holder) -> String;

    /// How failed attempts of a batch are recorded: those that
    /// [`settle_rest`](Dialect::settle_rest) counts or dead-letters.
    fn note_attempts(by: &Holder, which: Which) -> Noting;

    /// The statement that writes the counters and the status of joins: a batch of id, attached,
    /// completed, failed, status.
    fn count_joins() -> &'static str;

    /// The statement that renews leases. `$1` and `$2` are the owner and the duration, the batch
    /// follows.
    fn extend() -> &'static str;

    /// Inserts rows for the subscriptions of the list `$1` that have none, in the order of the
    /// list.
    const REGISTER: &'static str;

    /// The statement that updates the subscriptions of a list that meet a condition, in one order.
    /// `s` is the list, `e` the rows.
    fn change_pairs(list: &str, set: &str, condition: &str) -> String;

    /// A condition on the rows `e` of subscriptions in an UPDATE that locks them in the order of
    /// their names.
    fn in_order(condition: &str) -> String {
        condition.to_owned()
    }

    /// The statement that deletes inbox entries older than `$1` microseconds, at most `limit`.
    fn purge_inbox(limit: usize) -> String;

    /// Records many events in the inbox, in the order of the list. Returns those that were not
    /// recorded before.
    fn once_each(
        sql: &dyn Render,
        conn: &mut Self::Connection,
        consumer: &str,
        ids: Value,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Whether the database supports group leases. A distributed database does not.
    const LISTS: bool = false;

    /// Maximum number of connections in use for one database of a fleet.
    const AT_ONCE: usize = 3;

    /// Connection options for a database of a fleet, in which no operation should take longer than
    /// `patience`.
    fn options(url: &str, patience: Duration) -> Result<Options<Self>>;

    /// Sets whether connecting creates a missing database, where that is possible.
    fn creating(options: Options<Self>, _create: bool) -> Options<Self> {
        options
    }

    /// Opens one connection, for the application and the relay alike. The first connection detects
    /// whether sessions are shared.
    fn connect_one(
        options: &Options<Self>,
        _sessions: &Sessions,
    ) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send {
        <Self::Connection as sqlx::Connection>::connect_with(options)
    }

    /// Properties of the sessions of a URL that are known before a connection is opened.
    fn sessions(_url: &str, _pooler: Pooler) -> Result<Sessions> {
        Ok(Sessions::own())
    }

    /// Whether the sessions of these options are shared.
    fn are_shared(_options: &Options<Self>) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(false) }
    }

    /// Opens the pools; `options` has the size.
    fn connect(url: &str, options: &StoreOptions) -> impl Future<Output = Result<Pools<Self>>> + Send;

    /// Opens the store's pools next to a pool of the application.
    fn beside(pool: &sqlx::Pool<Self>, options: &StoreOptions, sessions: Sessions) -> Pools<Self>;

    /// Inserts rows. Returns which ids were stored and when, or `None` for all of them. `dated`:
    /// returns the times, which requires the privilege to read them.
    fn insert(
        sql: &dyn Render,
        conn: &mut Self::Connection,
        rows: &[NewRow],
        birth: Option<&BirthLease>,
        dated: bool,
    ) -> impl Future<Output = Result<Option<Vec<StoredRow>>>> + Send;

    /// Settings of a transaction that reads in the order of an index, where the planner might
    /// otherwise sort a whole table.
    const IN_ORDER: Option<&'static str> = None;

    /// Query for the number that the last insert generated, where INSERT cannot return it.
    const LAST_ID: Option<&'static str> = None;

    /// Whether dead events are indexed by the time they were due rather than by sequence number.
    const DEAD_BY_TIME: bool = false;

    /// Query for the highest sequence number, and for the number of rows by the database's own
    /// estimate. `$1` is the schema or NULL, `$2` the table.
    const SIZE: &'static str;

    /// [`SIZE`](Self::SIZE) of the product that these tables are on, known after the first
    /// statement on them.
    fn size(_: &Names) -> &'static str {
        Self::SIZE
    }

    /// Whether processes can notify each other of new events.
    const NOTIFIES: bool = false;

    /// Writes the presence row of a node: `$1` is its name, `$2` its state.
    const ANNOUNCE: &'static str;

    /// Writes the presence row of a node as [`ANNOUNCE`](Self::ANNOUNCE), and deletes nodes that
    /// were last seen `$3` microseconds ago. Returns whether another node was not seen for `$4`
    /// microseconds and may hold leases. `None` where that needs more than one statement.
    const ANNOUNCE_AND_FORGET: Option<&'static str> = None;

    /// [`ANNOUNCE_AND_FORGET`](Self::ANNOUNCE_AND_FORGET) of the product that these tables are on,
    /// known after the first statement on them.
    fn announce_and_forget(_: &Names) -> Option<&'static str> {
        Self::ANNOUNCE_AND_FORGET
    }

    /// [`tend`](crate::log::SubscriptionStore::tend) in one statement: `$1` is the node, `$2` its
    /// lease in microseconds, `$3` the name of its heartbeat. Returns subscriptions, and nodes as
    /// subscriptions without a status; `None` where that needs more than one statement.
    const TEND: Option<&'static str> = None;

    /// Opens an insert notifier on a connection of its own; `None` where the database has no
    /// notifications.
    fn watch(
        _options: Options<Self>,
        _names: &Names,
    ) -> impl Future<Output = Result<Option<Box<dyn InsertNotifier>>>> + Send {
        async { Ok(None) }
    }

    /// Listens for notifications on a connection of its own; `None` where the database has none.
    fn listen(
        _options: Options<Self>,
        _names: &Names,
        _channel: &str,
    ) -> impl Future<Output = Result<Option<Box<dyn AppendNotifier>>>> + Send {
        async { Ok(None) }
    }

    /// Locks out other migrations until the transaction ends, and limits the time for which a
    /// statement of this migration waits for a lock. False: another migration is running.
    fn lock_migrations(
        conn: &mut Self::Connection,
        names: &Names,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Whether the error is a lock timeout.
    fn is_lock_timeout(_: &sqlx::Error) -> bool {
        false
    }

    /// Unlocks migrations, where the end of the transaction does not.
    fn unlock_migrations(_: &mut Self::Connection, _: &Names) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Begins the transaction that the driver considers open, so that it can be rolled back, after
    /// a rollback has failed because the database had ended the transaction by itself. False: the
    /// database does not do that, or no transaction can be begun.
    fn reopen_transaction(_: &mut Self::Connection, _: usize) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Whether the driver can use a connection again after a statement whose future was dropped. If
    /// not, such a connection is used again only if [`is_in_sync`](Dialect::is_in_sync).
    const CANCEL_SAFE: bool = true;

    /// Whether the next response that the driver reads belongs to the next statement that it sends.
    fn is_in_sync(_: &mut Self::Connection) -> impl Future<Output = bool> + Send {
        async { true }
    }

    /// Runs a script of several statements. Returns the number of affected rows.
    fn script(
        conn: &mut Self::Connection,
        script: String,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Runs a statement. Returns the number of affected rows.
    fn run(
        conn: &mut Self::Connection,
        statement: Statement,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Runs a query. Returns its rows.
    fn fetch(
        conn: &mut Self::Connection,
        statement: Statement,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;

    /// Runs a query, and passes on each row as it arrives: at most one row is in memory at a time.
    fn fetch_each(
        conn: &mut Self::Connection,
        statement: Statement,
        values: Vec<Value>,
        each: &mut (dyn FnMut(&Self::Row) -> Result<(), sqlx::Error> + Send),
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// An integer column.
    fn int(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error>;
    /// A text column.
    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error>;
    /// A text column for display. Invalid text must not hide all other rows.
    fn shown(row: &Self::Row, column: usize) -> Option<String> {
        Self::text(row, column).unwrap_or_else(|_| Some(char::REPLACEMENT_CHARACTER.to_string()))
    }
    /// A time column, even if its value is out of range.
    fn stamp(row: &Self::Row, column: usize) -> Result<Option<Stamp>, sqlx::Error>;
    /// A time column, or the nearest time that can be represented.
    fn time(row: &Self::Row, column: usize) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
        Ok(Self::stamp(row, column)?.map(Stamp::clamped))
    }
    /// The event's columns, starting at `from`.
    fn columns(row: &Self::Row, from: usize) -> Result<Columns, sqlx::Error>;

    /// Whether the error means that the last part of a migration, which adds columns, has run
    /// before: its version was not written, because DDL commits by itself, or was removed.
    fn is_already_there(_: &sqlx::Error) -> bool {
        false
    }

    /// Whether the error means that a table is missing.
    fn is_missing_table(error: &sqlx::Error) -> bool;
    /// Whether the error means that an event with this id exists.
    fn is_duplicate_id(error: &sqlx::Error) -> bool;
}

/// An inserted row: the event's id, and the time that the database assigned, if it was requested.
pub(crate) type StoredRow = (String, Option<DateTime<Utc>>);

/// Ids of inserted rows, and their times from the second column.
pub(crate) fn stored_rows<DB: Dialect>(rows: &[DB::Row], dated: bool) -> Result<Vec<StoredRow>> {
    let mut stored = Vec::with_capacity(rows.len());
    for row in rows {
        let at = if dated { DB::time(row, 1)? } else { None };
        stored.extend(DB::text(row, 0)?.map(|id| (id, at)));
    }
    Ok(stored)
}

/// Connections of a store: a pool for the application's transactions and one for the relay's own
/// statements, so that neither starves the other.
pub struct Pools<DB: Dialect> {
    pub(crate) write: Source<DB>,
    pub(crate) relay: Source<DB>,
    /// Connections for reads that must not wait for a writer.
    pub(crate) read: Source<DB>,
    pub(crate) sessions: Sessions,
}

impl<DB: Dialect> Pools<DB> {
    pub(crate) fn new(
        write: &sqlx::Pool<DB>,
        relay: sqlx::Pool<DB>,
        read: sqlx::Pool<DB>,
        sessions: Sessions,
    ) -> Self {
        let relay_begins = Begin { sessions: sessions.clone(), shared: DB::BEGIN_SHARED_BY_INDEX };
        let read_begins = Begin { sessions: sessions.clone(), shared: DB::BEGIN_SHARED };
        Self {
            write: Source::Pool(Warm::never(write.clone(), Begin::plain(&sessions))),
            relay: Source::Pool(Warm::new(relay, relay_begins)),
            read: Source::Pool(Warm::new(read, read_begins)),
            sessions,
        }
    }

    /// Marks the pool of the application's transactions as the store's own.
    pub(crate) fn own(self) -> Self {
        let write = Warm::new(self.write.pool().clone(), Begin::plain(&self.sessions));
        Self { write: Source::Pool(write), ..self }
    }
}

/// Fills in names, fragments and the time: the part of the store that dialects need.
#[doc(hidden)]
pub trait Render: Send + Sync {
    /// Renders a statement from a template.
    fn render(&self, template: &str) -> Statement;
    /// The table names.
    fn names(&self) -> &Names;
}

/// Implements the value conversions of [`Dialect`], the same text for three sets of types.
macro_rules! plumbing {
    ($bind:path) => {
        async fn run(
            conn: &mut Self::Connection,
            statement: Statement,
            values: Vec<Value>,
        ) -> Result<u64, sqlx::Error> {
            let (statement, values) = Self::adapt(conn, statement, values).await?;
            let query = $bind(sqlx::query(sqlx::AssertSqlSafe(statement.text)), statement.order, values);
            let query = query.persistent(statement.named);
            Ok(query.execute(conn).await?.rows_affected())
        }

        async fn fetch(
            conn: &mut Self::Connection,
            statement: Statement,
            values: Vec<Value>,
        ) -> Result<Vec<Self::Row>, sqlx::Error> {
            let (statement, values) = Self::adapt(conn, statement, values).await?;
            $bind(sqlx::query(sqlx::AssertSqlSafe(statement.text)), statement.order, values)
                .persistent(statement.named)
                .fetch_all(conn)
                .await
        }

        async fn fetch_each(
            conn: &mut Self::Connection,
            statement: Statement,
            values: Vec<Value>,
            each: &mut (dyn FnMut(&Self::Row) -> Result<(), sqlx::Error> + Send),
        ) -> Result<(), sqlx::Error> {
            use futures_util::TryStreamExt as _;
            let (statement, values) = Self::adapt(conn, statement, values).await?;
            let query = $bind(sqlx::query(sqlx::AssertSqlSafe(statement.text)), statement.order, values);
            let mut rows = query.persistent(statement.named).fetch(conn);
            while let Some(row) = rows.try_next().await? {
                each(&row)?;
            }
            Ok(())
        }

        async fn script(conn: &mut Self::Connection, script: String) -> Result<u64, sqlx::Error> {
            let done = sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(conn).await?;
            Ok(done.rows_affected())
        }

        fn int(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error> {
            sqlx::Row::try_get(row, column)
        }

        fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error> {
            sqlx::Row::try_get(row, column)
        }

        fn stamp(row: &Self::Row, column: usize) -> Result<Option<$crate::sql::stamp::Stamp>, sqlx::Error> {
            sqlx::Row::try_get(row, column)
        }

        fn columns(row: &Self::Row, from: usize) -> Result<Columns, sqlx::Error> {
            use sqlx::Row as _;
            Ok(Columns {
                event_type: row.try_get(from)?,
                aggregate_type: $crate::event::AggregateType::of_column(row.try_get(from + 1)?),
                aggregate_id: row.try_get(from + 2)?,
                tenant_id: row.try_get(from + 3)?,
                ordering_key: row.try_get::<Option<&str>, _>(from + 4)?.map(Into::into),
                correlation_id: row.try_get(from + 5)?,
                dedup_key: row.try_get(from + 6)?,
                headers: row.try_get(from + 7)?,
                payload: row.try_get(from + 8)?,
                payload_bytes: row.try_get(from + 9)?,
                content_type: row.try_get(from + 10)?,
                occurred_at: row.try_get(from + 11)?,
                expires_at: row.try_get(from + 12)?,
                created_at: row.try_get(from + 13)?,
                due_at: row.try_get(from + 14)?,
            })
        }
    };
}
pub(crate) use plumbing;

/// The names of the options, checked.
pub(crate) fn names_of<DB: Dialect>(options: &StoreOptions) -> Result<Names> {
    if options.schema.is_some() && !DB::SCHEMAS {
        return Err(Error::setting(format!("{} has no schemas: use a table name only", DB::NAME)));
    }
    Names::new(options.schema.as_deref(), &options.table, DB::QUOTE)
}

/// Fails unless the tables have this version: the column rejects NULL.
const ASSERT_VERSION: &str = "INSERT INTO {version} (version) \
    SELECT NULL FROM (SELECT count(*) AS matching FROM {version} WHERE version = $1) v WHERE v.matching = 0";

/// The statements that upgrade the tables from a version to the newest one, as one script with the
/// names filled in. Version 0 has no tables.
pub(crate) fn migration_script<DB: Dialect>(options: &StoreOptions, from: i64) -> Result<String> {
    let names = names_of::<DB>(options)?;
    let newest = super::migrate::newest_version::<DB>();
    let missing = usize::try_from(from).ok().and_then(|from| DB::MIGRATIONS.get(from..));
    let Some(missing) = missing else {
        return Err(Error::UnknownSchemaVersion { version: from, newest });
    };
    if missing.is_empty() {
        return Ok(format!("-- nothing to upgrade: {newest} is the newest version of the tables\n"));
    }
    let mut script = String::new();
    let filled_in = |template: &str, value: i64| {
        render(template, &names, &DB::fragment).replace("$1", &value.to_string())
    };
    if from > 0 {
        script.push_str(&format!("-- fails if the tables do not have version {from}\n"));
        script.push_str(&filled_in(ASSERT_VERSION, from));
        script.push_str(";\n");
    }
    for (version, migration) in (from + 1..).zip(missing) {
        script.push_str(&format!("-- version {version}\n"));
        script.push_str(&render(migration, &names, &DB::fragment));
        script.push('\n');
    }
    for template in
        [super::statements::MAKE_VERSION, super::statements::CLEAR_VERSION, super::statements::PUT_VERSION]
    {
        script.push_str(&filled_in(template, newest));
        script.push_str(";\n");
    }
    if let Some(trigger) = DB::ORDER_TRIGGER {
        let drop = render("DROP TRIGGER IF EXISTS {order_trigger};\n", &names, &DB::fragment);
        script.push_str(&drop);
        script.push_str(&render(trigger, &names, &DB::fragment));
    }
    Ok(script)
}
