//! What a database must tell us about itself, and how values get in and out of it.

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

/// A database that an [`Outbox`](crate::Outbox) can live in. Implemented for sqlx's `Postgres`, `MySql`
/// and `Sqlite`; sealed.
pub trait Database: Dialect {}
impl<DB: Dialect> Database for DB {}

/// Which clock decides what is due.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The database's own: a node's skewed clock changes nothing.
    #[default]
    Database,
    /// One that stands still until a test moves it.
    Frozen(FrozenClock),
}

/// A clock that stands still until it is moved. Clones show the same time.
#[derive(Clone, Debug)]
pub struct FrozenClock(Arc<Mutex<DateTime<Utc>>>);

impl FrozenClock {
    /// Stands at this time.
    pub fn at(time: DateTime<Utc>) -> Self {
        Self(Arc::new(Mutex::new(time)))
    }

    /// What it shows.
    pub fn now(&self) -> DateTime<Utc> {
        *self.0.lock().expect("no one panics while holding the clock")
    }

    /// Sets it, forwards or back.
    pub fn set(&self, time: DateTime<Utc>) {
        *self.0.lock().expect("no one panics while holding the clock") = time;
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().expect("no one panics while holding the clock") += by;
    }
}

/// A value on its way into a statement.
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

    /// A list that takes values of this kind.
    #[cfg(feature = "postgres")]
    pub(crate) fn empty_list(&self) -> Self {
        match self {
            Value::Int(_) | Value::Ints(_) => Value::Ints(Vec::new()),
            Value::Text(_) | Value::Texts(_) => Value::Texts(Vec::new()),
            Value::Bytes(_) | Value::Blobs(_) => Value::Blobs(Vec::new()),
            Value::Time(_) | Value::Times(_) => Value::Times(Vec::new()),
        }
    }

    /// Adds a value to the list made for its kind.
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

    /// What an array of this list is called.
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

/// A duration in microseconds, which all databases can add; a delay beyond a century is one of a century.
pub(crate) fn micros(duration: Duration) -> i64 {
    const CENTURY: i64 = 100 * 365 * 86_400 * 1_000_000;
    i64::try_from(duration.as_micros()).map_or(CENTURY, |us| us.min(CENTURY))
}

/// The columns of an event, as read. In the order of `statements::COLUMNS`.
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
    /// About how much memory it takes.
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

/// Who leases what is born leased.
#[derive(Clone, Debug)]
pub struct BirthLease {
    pub(crate) owner: NodeId,
    pub(crate) lease: Duration,
}

/// Which rows of a batch a settlement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that are steps of no join: there is nothing to count with them.
    Plain,
    /// All of them.
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

/// How failed attempts are written down.
pub enum Noting {
    /// By a statement that settles as well; what it returns is what moved.
    AtOnce(String),
    /// By a statement of its own, before they are settled. It locks their rows, so that the settlement finds the same ones.
    First(String),
}

/// How to connect: what sqlx makes of a URL.
#[doc(hidden)]
pub type Options<DB> = <<DB as sqlx::Database>::Connection as sqlx::Connection>::Options;

/// What differs between databases. Not for use outside of this crate.
#[doc(hidden)]
pub trait Dialect: sqlx::Database + LogDialect + Sized {
    /// What quotes an identifier.
    const QUOTE: char;
    /// Starts a transaction that is going to write; the driver's own way if `None`.
    const BEGIN: Option<&'static str>;
    /// Starts a transaction of the relay on a shared session, with its settings; `None` where sessions
    /// are never shared.
    const BEGIN_SHARED_BY_INDEX: Option<&'static str> = None;
    /// The same for other transactions of the store's own.
    const BEGIN_SHARED: Option<&'static str> = None;
    /// What to say before the transaction of a handler begins, if its isolation is not what it should be.
    const BEFORE_HANDLER: Option<&'static str> = None;
    /// The scripts that make the tables, oldest first.
    const MIGRATIONS: &'static [&'static str];
    /// Whether the tables can live in a schema of their own.
    const SCHEMAS: bool;
    /// Whether lists travel as arrays, one a column; otherwise as one JSON array of rows.
    const ARRAYS: bool;
    /// Whether the table takes only valid JSON as a payload; otherwise it is checked when it is read.
    const CHECKS_JSON: bool = true;
    /// Whether a subquery in FROM may look at what stands before it.
    const LATERAL: bool;
    /// Makes the row of a named lease, if it is not there.
    const NEW_LEASE: &'static str;
    /// Switches on the flag by which the table gives rows without a key the key of their aggregate.
    const BY_AGGREGATE: &'static str;

    /// The same for these tables, after a statement on them.
    fn by_aggregate(_: &Names) -> &'static str {
        Self::BY_AGGREGATE
    }

    /// Creates the trigger that keeps writers of one ordering key in order, where a server may refuse
    /// it, unless it is there. False: the server refuses it, and the tables work without it.
    fn create_order_trigger(
        _: &mut Self::Connection,
        _: &Names,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(true) }
    }

    /// Whether the table gives a row without an ordering key that of its aggregate, if it is told
    /// to.
    fn gives_keys(
        _: &mut Self::Connection,
        _: &Names,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(true) }
    }

    /// Makes takers take turns until the end of the transaction, where none can pass over the rows
    /// that another has locked. False: each can.
    fn take_turn(
        _: &dyn Render,
        _: &mut Self::Connection,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(false) }
    }

    /// The statement that creates that trigger, for the script of the whole schema.
    const ORDER_TRIGGER: Option<&'static str> = None;

    /// Notes in the inbox that consumer `$1` has had event `$2`; touches no row if it was there.
    const ONCE: &'static str;

    /// A pattern in which `*` stands for any run of characters, for `LIKE … ESCAPE '|'`: that minds upper and lower case where
    /// the columns do.
    fn pattern(pattern: &str) -> String {
        let letter = |c: char| match c {
            '*' => "%".to_owned(),
            '%' | '_' | '|' => format!("|{c}"),
            c => c.to_string(),
        };
        pattern.chars().map(letter).collect()
    }

    /// The text of a fragment, such as `now` or `later $3`.
    fn fragment(slot: &str) -> String;

    /// A time as a literal, for a frozen clock.
    fn literal(time: DateTime<Utc>) -> String;

    /// A statement from its text with numbered placeholders.
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
    /// Migrations are [locked](Dialect::lock_migrations) before.
    fn migrations(_: &Names) -> &'static [&'static str] {
        Self::MIGRATIONS
    }

    /// The statement that finds, for each run of a window, the first event that blocks some of it: the key and the destination of the
    /// run, the place of that event and its type. `{past}` stands for the condition that tells an event `o` from those that the
    /// taker has, and from those that go elsewhere.
    fn stops(on_dead: OnDead) -> &'static str;

    /// The statement that settles what is done. `$1` and `$2` are the owner and the epoch, the batch follows.
    fn settle_done(completion: Completion, by: &Holder, which: Which) -> String;

    /// The statement that settles everything else. It ends the claim by raising it, so that a verdict told twice
    /// counts once, also where one node holds the table and reading claims nothing.
    fn settle_rest(by: &Holder, which: Which) -> String;

    /// The query that locks the rows of a batch that are still their holder's: their ids, and whether they are steps of
    /// joins. `$1` to `$4` as in a settlement.
    fn hold_batch(by: &Holder) -> String;

    /// How failed attempts are written down: those of a batch that [`settle_rest`](Dialect::settle_rest) counts or buries.
    fn note_attempts(by: &Holder, which: Which) -> Noting;

    /// The statement that writes the counters and the status of joins: a batch of id, attached, completed, failed,
    /// status.
    fn count_joins() -> &'static str;

    /// The statement that renews leases. `$1` and `$2` are the owner and the length, the batch follows.
    fn extend() -> &'static str;

    /// Makes rows for the pairs of the list `$1` that have none, in the order of the list.
    const REGISTER: &'static str;

    /// The statement that changes the pairs of a list that fulfil a condition, in one order. `s` is the list, `e` the rows.
    fn change_pairs(list: &str, set: &str, condition: &str) -> String;

    /// A condition on the rows `e` of pairs in an UPDATE, such that they are locked in the order of their names.
    fn in_order(condition: &str) -> String {
        condition.to_owned()
    }

    /// The statement that deletes inbox entries older than `$1` microseconds, at most so many.
    fn purge_inbox(limit: usize) -> String;

    /// Notes many events in the inbox, in the order of the list; returns those that were not there.
    fn once_each(
        sql: &dyn Render,
        conn: &mut Self::Connection,
        consumer: &str,
        ids: Value,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Whether many events can be leased at once, by a list of them. Not on a distributed database.
    const LISTS: bool = false;

    /// How many connections one database of a fleet may use at a time.
    const AT_ONCE: usize = 3;

    /// How to connect to a database of a fleet, in which nothing should take longer than `patience`.
    fn options(url: &str, patience: Duration) -> Result<Options<Self>>;

    /// Whether a database that is not there is made by connecting to it, where that is possible.
    fn creating(options: Options<Self>, _create: bool) -> Options<Self> {
        options
    }

    /// Opens one connection, for the application and the relay alike. The first one finds out whether
    /// sessions are shared.
    fn connect_one(
        options: &Options<Self>,
        _sessions: &Sessions,
    ) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send {
        <Self::Connection as sqlx::Connection>::connect_with(options)
    }

    /// What is known of the sessions that a URL leads to, before there is a connection.
    fn sessions(_url: &str, _pooler: Pooler) -> Result<Sessions> {
        Ok(Sessions::own())
    }

    /// Whether the sessions that these options lead to are shared.
    fn are_shared(_options: &Options<Self>) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(false) }
    }

    /// Opens a pool; `options` says how large.
    fn connect(url: &str, options: &StoreOptions) -> impl Future<Output = Result<Pools<Self>>> + Send;

    /// Pools beside one that the application already has.
    fn beside(pool: &sqlx::Pool<Self>, options: &StoreOptions, sessions: Sessions) -> Pools<Self>;

    /// Inserts rows; returns which ids were stored and when, or `None` for all of them. `dated`: the times are asked for, which
    /// takes the right to read them.
    fn insert(
        sql: &dyn Render,
        conn: &mut Self::Connection,
        rows: &[NewRow],
        birth: Option<&BirthLease>,
        dated: bool,
    ) -> impl Future<Output = Result<Option<Vec<StoredRow>>>> + Send;

    /// What to say in a transaction that reads by an index in its order, where the planner could otherwise sort a whole table.
    const IN_ORDER: Option<&'static str> = None;

    /// The query for the number that the last insert was given, where an insert cannot say so itself.
    const LAST_ID: Option<&'static str> = None;

    /// Whether dead events are indexed by the time they were due, and not by their place in the table.
    const DEAD_BY_TIME: bool = false;

    /// The query for the greatest number of an event, and for how many rows the table has by the database's own estimate. `$1` is
    /// the schema or NULL, `$2` the table.
    const SIZE: &'static str;

    /// The same for these tables, after a statement on them.
    fn size(_: &Names) -> &'static str {
        Self::SIZE
    }

    /// Whether processes can tell each other that there is something new.
    const NOTIFIES: bool = false;

    /// Says that a node runs: `$1` is its name, `$2` its state.
    const ANNOUNCE: &'static str;

    /// The same, which also deletes nodes that were last seen `$3` microseconds ago, and says whether another node was not seen for
    /// `$4` microseconds and holds something perhaps; `None` where that needs more than one statement.
    const ANNOUNCE_AND_FORGET: Option<&'static str> = None;

    /// The same for these tables, after a statement on them.
    fn announce_and_forget(_: &Names) -> Option<&'static str> {
        Self::ANNOUNCE_AND_FORGET
    }

    /// The whole of [`tend`](crate::log::SubscriptionStore::tend): `$1` is the node, `$2` its lease in microseconds, `$3` the name of its
    /// heartbeat. Returns pairs, and nodes as pairs without a status; `None` where that needs more than one statement.
    const TEND: Option<&'static str> = None;

    /// Wakes those who sleep, on a connection of its own; `None` where the database carries no calls.
    fn watch(
        _options: Options<Self>,
        _names: &Names,
    ) -> impl Future<Output = Result<Option<Box<dyn InsertNotifier>>>> + Send {
        async { Ok(None) }
    }

    /// Hears of it, on a connection of its own.
    fn listen(
        _options: Options<Self>,
        _names: &Names,
        _channel: &str,
    ) -> impl Future<Output = Result<Option<Box<dyn AppendNotifier>>>> + Send {
        async { Ok(None) }
    }

    /// Holds off other migrations until the transaction ends, and bounds the time for which a
    /// statement of this migration waits for a lock. False: another migration still runs.
    fn lock_migrations(
        conn: &mut Self::Connection,
        names: &Names,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Whether the error says that a lock was not free in time.
    fn is_lock_timeout(_: &sqlx::Error) -> bool {
        false
    }

    /// Lets other migrations go on, where the end of the transaction does not.
    fn unlock_migrations(_: &mut Self::Connection, _: &Names) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Begins what the driver takes for open, so that it can be rolled back, after a rollback has failed because the database had
    /// ended the transaction by itself. False: it does not do that, or nothing can be begun.
    fn reopen_transaction(_: &mut Self::Connection, _: usize) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Runs a script of several statements; returns how many rows they touched.
    fn script(
        conn: &mut Self::Connection,
        script: String,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Runs a statement; returns how many rows it touched.
    fn run(
        conn: &mut Self::Connection,
        statement: Statement,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Runs a query; returns its rows.
    fn fetch(
        conn: &mut Self::Connection,
        statement: Statement,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;

    /// Runs a query, and hands over each row while the next ones are on their way: no more than one of them
    /// is in memory at a time.
    fn fetch_each(
        conn: &mut Self::Connection,
        statement: Statement,
        values: Vec<Value>,
        each: &mut (dyn FnMut(&Self::Row) -> Result<(), sqlx::Error> + Send),
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// A number of a row.
    fn int(row: &Self::Row, column: usize) -> Result<Option<i64>, sqlx::Error>;
    /// A text of a row.
    fn text(row: &Self::Row, column: usize) -> Result<Option<String>, sqlx::Error>;
    /// A text of a row for people. One that is no text must not hide all other rows.
    fn shown(row: &Self::Row, column: usize) -> Option<String> {
        Self::text(row, column).unwrap_or_else(|_| Some(char::REPLACEMENT_CHARACTER.to_string()))
    }
    /// A time of a row, whatever its writer made of it.
    fn stamp(row: &Self::Row, column: usize) -> Result<Option<Stamp>, sqlx::Error>;
    /// A time of a row, or the nearest that can be shown.
    fn time(row: &Self::Row, column: usize) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
        Ok(Self::stamp(row, column)?.map(Stamp::clamped))
    }
    /// The event's columns, from this one on.
    fn columns(row: &Self::Row, from: usize) -> Result<Columns, sqlx::Error>;

    /// Whether the error says that the end of a migration, which adds columns, has run before: the version was not
    /// written then, because DDL commits by itself, or was taken away.
    fn is_already_there(_: &sqlx::Error) -> bool {
        false
    }

    /// Whether the error says that a table is missing.
    fn is_missing_table(error: &sqlx::Error) -> bool;
    /// Whether the error says that an event's id is taken.
    fn is_duplicate_id(error: &sqlx::Error) -> bool;
}

/// A row that was inserted: the event's id, and the time that the database gave it, if that was asked for.
pub(crate) type StoredRow = (String, Option<DateTime<Utc>>);

/// The ids of rows that were inserted, and in the second column their times.
pub(crate) fn stored_rows<DB: Dialect>(rows: &[DB::Row], dated: bool) -> Result<Vec<StoredRow>> {
    let mut stored = Vec::with_capacity(rows.len());
    for row in rows {
        let at = if dated { DB::time(row, 1)? } else { None };
        stored.extend(DB::text(row, 0)?.map(|id| (id, at)));
    }
    Ok(stored)
}

/// The connections of a store: one pool that the application's transactions come from, one that the
/// relay's own statements use, so that neither starves the other.
pub struct Pools<DB: Dialect> {
    pub(crate) write: Source<DB>,
    pub(crate) relay: Source<DB>,
    /// For reads that must not wait behind a writer.
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

    /// The pool of the application's transactions is the store's own.
    pub(crate) fn own(self) -> Self {
        let write = Warm::new(self.write.pool().clone(), Begin::plain(&self.sessions));
        Self { write: Source::Pool(write), ..self }
    }
}

/// Fills in names, fragments and the time. What dialects need of the store.
#[doc(hidden)]
pub trait Render: Send + Sync {
    /// A statement from a template.
    fn render(&self, template: &str) -> Statement;
    /// The names in force.
    fn names(&self) -> &Names;
}

/// The implementation of the value plumbing of [`Dialect`], the same text for three sets of types.
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

/// The names that the options ask for, checked.
pub(crate) fn names_of<DB: Dialect>(options: &StoreOptions) -> Result<Names> {
    if options.schema.is_some() && !DB::SCHEMAS {
        return Err(Error::Setting(format!("{} has no schemas: use a table name only", DB::NAME)));
    }
    Names::new(options.schema.as_deref(), &options.table, DB::QUOTE)
}

/// The whole schema as one script, with the names filled in.
pub(crate) fn migration_script<DB: Dialect>(options: &StoreOptions) -> Result<String> {
    let names = names_of::<DB>(options)?;
    let mut script = String::new();
    for (i, migration) in DB::MIGRATIONS.iter().enumerate() {
        script.push_str(&format!("-- version {}\n", i + 1));
        script.push_str(&render(migration, &names, &DB::fragment));
        script.push('\n');
    }
    script.push_str(&render(super::statements::MAKE_VERSION, &names, &DB::fragment));
    script.push_str(";\n");
    let mark = render(super::statements::PUT_VERSION, &names, &DB::fragment);
    script.push_str(&render(super::statements::CLEAR_VERSION, &names, &DB::fragment));
    script.push_str(";\n");
    script.push_str(&mark.replace("$1", &DB::MIGRATIONS.len().to_string()));
    script.push_str(";\n");
    if let Some(trigger) = DB::ORDER_TRIGGER {
        let drop = render("DROP TRIGGER IF EXISTS {order_trigger};\n", &names, &DB::fragment);
        script.push_str(&drop);
        script.push_str(&render(trigger, &names, &DB::fragment));
    }
    Ok(script)
}
