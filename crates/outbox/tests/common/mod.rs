//! Shared code of the tests: a database with a table of its own per test, and a record of the calls
//! of handlers.
//!
//! Tests run on SQLite always, and on PostgreSQL and MariaDB when `OUTBOX_TEST_POSTGRES` and
//! `OUTBOX_TEST_MARIADB` hold their URLs.

#![allow(dead_code, missing_docs, reason = "each test binary uses its own share")]

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::store::{Status, StoredEvent};
use outbox::{
    Clock, Context, Database, Event, EventBuilder, EventId, Failure, FrozenClock, Outbox, OutboxBuilder,
    Outcome, Written,
};
use sqlx::{MySql, Postgres, Sqlite};
use tokio::sync::{Semaphore, watch};

pub mod polling;
pub use polling::{Poll, until};

/// Time limit of one test: a test that hangs fails instead.
pub const FOREVER: Duration = Duration::from_secs(240);

/// A database that tests run on.
pub trait Backend: Database {
    /// Location of the database; `None` if no URL is configured.
    fn location() -> Option<Location>;
    fn open(builder: OutboxBuilder, url: &str) -> impl Future<Output = outbox::Result<Outbox<Self>>> + Send;
    /// Runs a statement of the test.
    fn execute_sql(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    /// Runs a query that returns one number.
    fn number(conn: &mut Self::Connection, sql: &str) -> impl Future<Output = i64> + Send;
}

/// URL of a database, and the directory of its file.
#[derive(Debug)]
pub struct Location {
    url: String,
    _dir: Option<tempfile::TempDir>,
}

fn server(variable: &str) -> Option<Location> {
    match std::env::var(variable) {
        Ok(url) => Some(Location { url, _dir: None }),
        Err(_) => {
            assert!(std::env::var("OUTBOX_TEST_REQUIRE").is_err(), "{variable} is not set");
            None
        }
    }
}

macro_rules! base {
    ($db:ty, $open:ident, $location:expr) => {
        impl Backend for $db {
            fn location() -> Option<Location> {
                $location
            }

            async fn open(builder: OutboxBuilder, url: &str) -> outbox::Result<Outbox<Self>> {
                builder.$open(url).await
            }

            async fn execute_sql(conn: &mut Self::Connection, sql: &str) -> Result<u64, sqlx::Error> {
                let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(conn).await?;
                Ok(done.rows_affected())
            }

            async fn number(conn: &mut Self::Connection, sql: &str) -> i64 {
                // Not prepared: statements that differ every time would evict each other from the
                // cache.
                let row = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(conn).await.unwrap();
                sqlx::Row::get(&row, 0)
            }
        }
    };
}

base!(Sqlite, sqlite, {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("outbox.db").to_str().unwrap().to_owned();
    Some(Location { url, _dir: Some(dir) })
});
base!(Postgres, postgres, server("OUTBOX_TEST_POSTGRES"));
base!(MySql, mysql, server("OUTBOX_TEST_MARIADB"));

/// Ids of events that are all new.
pub fn ids_of(written: Vec<Written>) -> Vec<EventId> {
    assert!(written.iter().all(Written::is_new), "{written:?}");
    written.into_iter().map(|written| written.id).collect()
}

/// An outbox on a table that no other test uses.
#[derive(Debug)]
pub struct TestDb<DB: Backend> {
    pub outbox: Outbox<DB>,
    pub table: String,
    pub clock: Option<FrozenClock>,
    location: Arc<Location>,
}

impl<DB: Backend> TestDb<DB> {
    /// Creates the tables. Returns `None` if this database is not configured.
    pub async fn new() -> Option<Self> {
        Self::with(|builder| builder).await
    }

    /// Creates the tables, with a clock that the test moves.
    pub async fn frozen() -> Option<Self> {
        Self::frozen_with(|builder| builder).await
    }

    pub async fn frozen_with(set_up: impl FnOnce(OutboxBuilder) -> OutboxBuilder) -> Option<Self> {
        let clock = FrozenClock::at(chrono::Utc::now());
        let theirs = clock.clone();
        let mut db = Self::with(move |builder| set_up(builder.clock(Clock::Frozen(theirs)))).await?;
        db.clock = Some(clock);
        Some(db)
    }

    pub async fn with(set_up: impl FnOnce(OutboxBuilder) -> OutboxBuilder) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let location = DB::location()?;
        // The name contains the time: a server that is kept between runs may have tables of an
        // earlier process with the same process id.
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_millis() & 0xffff_ffff);
        let table = format!("t{now:08x}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let builder = set_up(OutboxBuilder::new().table(&table).max_connections(4));
        let outbox = DB::open(builder, &location.url).await.unwrap();
        outbox.migrate().await.unwrap();
        Some(Self { outbox, table, clock: None, location: Arc::new(location) })
    }

    /// Another outbox on the same table, as another process would have.
    pub async fn another(&self) -> Self {
        self.another_with(|builder| builder).await
    }

    pub async fn another_with(&self, set_up: impl FnOnce(OutboxBuilder) -> OutboxBuilder) -> Self {
        let mut builder = OutboxBuilder::new().table(&self.table).max_connections(4);
        if let Some(clock) = &self.clock {
            builder = builder.clock(Clock::Frozen(clock.clone()));
        }
        let outbox = DB::open(set_up(builder), &self.location.url).await.unwrap();
        Self { outbox, table: self.table.clone(), clock: self.clock.clone(), location: self.location.clone() }
    }

    pub fn url(&self) -> &str {
        &self.location.url
    }

    /// Starts a proxy to the server. Returns it with the URL of the database behind it.
    pub fn proxied(&self) -> (outbox_testbed::Proxy, String) {
        let (before, port) = self.url().rsplit_once(':').unwrap();
        let (port, after) = port.split_once('/').unwrap();
        let proxy = outbox_testbed::Proxy::to(port.parse().unwrap());
        let url = format!("{before}:{}/{after}", proxy.port());
        (proxy, url)
    }

    /// Moves the frozen clock.
    pub fn advance(&self, by: Duration) {
        self.clock.as_ref().expect("TestDb::frozen() was used").advance(by);
    }

    pub async fn run(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let mut conn = self.outbox.pool().acquire().await?;
        DB::execute_sql(&mut conn, &sql.replace("{t}", &self.table)).await
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let mut conn = self.outbox.pool().acquire().await.unwrap();
        DB::number(&mut conn, &sql.replace("{t}", &self.table)).await
    }

    /// Returns the stored state of an event.
    pub async fn find(&self, id: &EventId) -> StoredEvent {
        self.outbox.admin().find(id).await.unwrap().expect("the event is there")
    }

    pub async fn status(&self, id: &EventId) -> Status {
        self.find(id).await.status
    }

    /// Counts the events that are new, retrying, done, dead.
    pub async fn status_counts(&self) -> (u64, u64, u64, u64) {
        let stats = self.outbox.admin().stats().await.unwrap();
        (stats.new, stats.retry, stats.done, stats.dead)
    }

    /// Writes numbered events of a type, in one transaction.
    pub async fn write(&self, event_type: &str, numbers: std::ops::Range<u64>) -> Vec<EventId> {
        ids_of(self.outbox.send_all(numbers.map(|n| numbered(event_type, n))).await.unwrap())
    }

    /// Waits until the relay that leads a publisher of the log has acted on the current state of
    /// the table. The relay renews its lease, reads the table after that, and renews again only
    /// after it has acted on the rows that it read.
    pub async fn noticed_by_leader(&self, publisher: &str, lease: Duration) {
        for _ in 0..2 {
            self.advance(Duration::from_millis(1));
            let is_renewed = async || {
                let subscriptions = self.outbox.log_admin().subscriptions().await.unwrap();
                subscriptions.iter().any(|subscription| {
                    subscription.id.publisher() == publisher && subscription.remaining == lease
                })
            };
            until("the leader renews its lease", is_renewed).await;
        }
    }

    /// Waits until this many events are due and not leased.
    pub async fn due(&self, count: u64) {
        let free = async || self.outbox.admin().backlog().await.unwrap().free;
        until("enough events are due", async || free().await >= count).await;
    }

    /// Waits until no event is pending, whichever relay delivers them.
    pub async fn drained(&self) {
        let pending = async || self.outbox.admin().backlog().await.unwrap().pending;
        // As long as the test may take: some tests have thousands of events.
        let poll = Poll { limit: FOREVER, ..Poll::DEFAULT };
        poll.until("no event is pending", async || pending().await == 0).await;
    }
}

/// An event whose payload is a number.
pub fn numbered(event_type: &str, number: u64) -> EventBuilder {
    Event::new(event_type).json(&number)
}

/// Future of a test's handler.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send>>;

/// Blocks handlers until it is opened, which is final.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub fn open(&self) {
        self.0.close();
    }

    /// Lets this many handlers pass.
    pub fn admit(&self, count: usize) {
        self.0.add_permits(count);
    }

    pub async fn pass(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

/// Record of the calls of handlers, in order. Clones share the record.
#[derive(Clone, Debug)]
pub struct Seen(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    calls: Mutex<Vec<Call>>,
    count: watch::Sender<usize>,
    running: Mutex<HashMap<EventId, u32>>,
}

/// One call of a handler.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: EventId,
    pub number: u64,
    pub key: Option<String>,
    pub attempt: u32,
    pub node: String,
}

impl Default for Seen {
    fn default() -> Self {
        let count = watch::Sender::new(0);
        Self(Arc::new(Inner { calls: Mutex::default(), count, running: Mutex::default() }))
    }
}

impl Seen {
    /// Records a call.
    pub fn record(&self, cx: &Context) {
        let call = Call {
            id: cx.id().clone(),
            number: cx.payload().unwrap_or(u64::MAX),
            key: cx.ordering_key().map(str::to_owned),
            attempt: cx.attempt(),
            node: cx.node().to_string(),
        };
        self.0.calls.lock().unwrap().push(call);
        self.0.count.send_modify(|n| *n += 1);
    }

    /// Records a call that takes this long, and fails the test if the same event is being handled
    /// already.
    pub async fn record_for(&self, cx: &Context, time: Duration) {
        let _running = self.enter(cx);
        self.record(cx);
        tokio::time::sleep(time).await;
    }

    fn enter(&self, cx: &Context) -> impl Drop + use<> {
        struct Leave(Seen, EventId);
        impl Drop for Leave {
            fn drop(&mut self) {
                *self.0.0.running.lock().unwrap().get_mut(&self.1).unwrap() -= 1;
            }
        }
        let mut running = self.0.running.lock().unwrap();
        let at_once = running.entry(cx.id().clone()).or_default();
        *at_once += 1;
        if *at_once > 1 {
            // The test sees one call too many; a panic here would only be retried.
            self.0.calls.lock().unwrap().push(Call {
                id: cx.id().clone(),
                number: u64::MAX - 1,
                key: None,
                attempt: 0,
                node: "twice at a time".to_owned(),
            });
        }
        drop(running);
        Leave(self.clone(), cx.id().clone())
    }

    /// A handler that records its calls.
    pub fn handler(&self) -> impl Fn(Context) -> HandlerFuture + Send + Sync + 'static {
        self.returning(|_| Ok(Outcome::Done))
    }

    /// A handler that records its calls and takes this long.
    pub fn taking(&self, time: Duration) -> impl Fn(Context) -> HandlerFuture + Send + Sync + 'static {
        let seen = self.clone();
        move |cx| {
            let seen = seen.clone();
            Box::pin(async move {
                seen.record_for(&cx, time).await;
                Ok(Outcome::Done)
            })
        }
    }

    /// A handler that records its calls and returns the result of this function.
    pub fn returning(
        &self,
        result: impl Fn(&Context) -> Result<Outcome, Failure> + Send + Sync + 'static,
    ) -> impl Fn(Context) -> HandlerFuture + Send + Sync + 'static {
        let seen = self.clone();
        move |cx| {
            seen.record(&cx);
            let returned = result(&cx);
            Box::pin(async move { returned })
        }
    }

    /// A handler that records its calls and waits until the gate is opened.
    pub fn behind(&self, gate: &Gate) -> impl Fn(Context) -> HandlerFuture + Send + Sync + 'static {
        let (seen, gate) = (self.clone(), gate.clone());
        move |cx| {
            let (seen, gate) = (seen.clone(), gate.clone());
            Box::pin(async move {
                let _running = seen.enter(&cx);
                seen.record(&cx);
                gate.pass().await;
                Ok(Outcome::Done)
            })
        }
    }

    /// Waits until there were this many calls.
    pub async fn reach(&self, calls: usize) {
        let mut count = self.0.count.subscribe();
        let reached = tokio::time::timeout(FOREVER, count.wait_for(|n| *n >= calls)).await;
        assert!(reached.is_ok(), "only {} of {calls} calls", self.count());
    }

    pub fn calls(&self) -> Vec<Call> {
        self.0.calls.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.0.calls.lock().unwrap().len()
    }

    pub fn numbers(&self) -> Vec<u64> {
        self.calls().iter().map(|call| call.number).collect()
    }

    pub fn attempts(&self) -> Vec<u32> {
        self.calls().iter().map(|call| call.attempt).collect()
    }

    /// Numbers of the events of a key, in the order of their calls.
    pub fn of_key(&self, key: &str) -> Vec<u64> {
        let calls = self.calls();
        calls.iter().filter(|call| call.key.as_deref() == Some(key)).map(|call| call.number).collect()
    }

    /// Asserts that each of these numbers was handled once, and no other number.
    pub fn assert_each_once(&self, numbers: std::ops::Range<u64>) {
        let mut seen = self.numbers();
        seen.sort_unstable();
        let expected: Vec<u64> = numbers.collect();
        if seen != expected {
            let twice: Vec<_> = seen.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
            let missing: Vec<_> = expected.iter().filter(|n| !seen.contains(n)).collect();
            panic!(
                "{} calls for {} events; twice: {twice:?}; missing: {missing:?}",
                seen.len(),
                expected.len()
            );
        }
    }
}

/// Fails a test that hangs.
pub async fn in_time<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(FOREVER, test).await.expect("the test hangs")
}

/// Defines a test for each database. `frozen` gives it a clock that the test moves.
#[macro_export]
macro_rules! on_every_database {
    ($($(#[$doc:meta])* async fn $name:ident($($frozen:ident)? |$test_db:ident|) $body:block)*) => {$(
        $(#[$doc])*
        mod $name {
            #[allow(unused_imports, reason = "not every test needs everything")]
            use super::*;
            use $crate::common::{Backend, TestDb, in_time};

            async fn sentence<DB: Backend>($test_db: TestDb<DB>) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                if let Some(db) = $crate::on_every_database!(@new sqlx::Sqlite, $($frozen)?) {
                    in_time(sentence(db)).await;
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(db) = $crate::on_every_database!(@new sqlx::Postgres, $($frozen)?) {
                    in_time(sentence(db)).await;
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mariadb() {
                if let Some(db) = $crate::on_every_database!(@new sqlx::MySql, $($frozen)?) {
                    in_time(sentence(db)).await;
                }
            }
        }
    )*};
    (@new $db:ty, frozen) => { TestDb::<$db>::frozen().await };
    (@new $db:ty,) => { TestDb::<$db>::new().await };
}
