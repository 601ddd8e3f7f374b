//! Storage that is full, read-only, locked or failing: no event is lost or overtaken, and delivery
//! resumes when the storage works again.

mod common;

use std::time::Duration;

use common::{Backend, Seen, TestDb, ids_of, in_time, until};
use outbox::store::{Holder, Origin, RelayTask, Status, Take};
use outbox::{
    Backoff, DatabaseError, Error, Event, EventBuilder, Failure, OnDead, Outbox, Outcome, StorageFault,
};
use sqlx::{AssertSqlSafe, Connection as _, MySql, MySqlConnection, PgConnection, Postgres, Sqlite};

const MS: Duration = Duration::from_millis(1);

/// Makes a database refuse writes.
trait Refusing: Backend {
    /// Statements after which a change of this event's status fails, and statements that undo this.
    fn refuse(table: &str, id: &str) -> (Vec<String>, Vec<String>);
}

impl Refusing for Sqlite {
    fn refuse(table: &str, id: &str) -> (Vec<String>, Vec<String>) {
        let refuse = format!(
            "CREATE TRIGGER {table}_refuse BEFORE UPDATE ON {table} WHEN OLD.event_id = '{id}' \
             AND NEW.status <> OLD.status BEGIN SELECT RAISE(ABORT, 'refused'); END"
        );
        (vec![refuse], vec![format!("DROP TRIGGER {table}_refuse")])
    }
}

impl Refusing for Postgres {
    fn refuse(table: &str, id: &str) -> (Vec<String>, Vec<String>) {
        let function = format!(
            "CREATE OR REPLACE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'refused'; END $$"
        );
        let trigger = format!(
            "CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW WHEN (OLD.event_id = '{id}' \
             AND NEW.status <> OLD.status) EXECUTE FUNCTION {table}_refuse()"
        );
        (vec![function, trigger], vec![format!("DROP TRIGGER refuse ON {table}")])
    }
}

impl Refusing for MySql {
    fn refuse(table: &str, id: &str) -> (Vec<String>, Vec<String>) {
        let trigger = format!(
            "CREATE TRIGGER {table}_refuse BEFORE UPDATE ON {table} FOR EACH ROW \
             IF OLD.event_id = '{id}' AND NEW.status <> OLD.status THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF"
        );
        (vec![trigger], vec![format!("DROP TRIGGER {table}_refuse")])
    }
}

fn keyed(number: u64, key: &str) -> EventBuilder {
    Event::new("e").json(&number).ordering_key(key)
}

/// A database permanently refuses the settlement of one event. The later events of its key wait
/// behind it, however far they have been handled; all other events are settled.
async fn a_refused_settlement_blocks_its_key_and_nothing_else<DB: Refusing>(db: TestDb<DB>) {
    for (n, builder) in [db.outbox.multi_node(), db.outbox.single_node()].into_iter().enumerate() {
        let first = format!("bad-{n}");
        let (refuse, allow) = DB::refuse(&db.table, &first);
        for statement in refuse {
            db.run(&statement).await.unwrap();
        }
        let seen = Seen::default();
        let relay = builder.workers(2).on_type("e", seen.handler()).poll_interval(20 * MS).start();
        let relay = relay.await.unwrap();
        let mut events = vec![keyed(0, "bad").id(first.as_str())];
        events.extend((1..6).map(|number| keyed(number, "bad")));
        let bad = ids_of(db.outbox.send_all(events).await.unwrap());
        let mut good =
            ids_of(db.outbox.send_all((10..16).map(|number| keyed(number, "good"))).await.unwrap());
        good.extend(db.write("e", 20..26).await);
        for id in &good {
            until("all other events are settled", async || db.status(id).await == Status::Done).await;
        }
        // Also events that are written while the settlement is refused.
        let late = ids_of(db.outbox.send_all([keyed(6, "bad"), keyed(16, "good")]).await.unwrap());
        until("the event of the other key is settled", async || db.status(&late[1]).await == Status::Done)
            .await;
        for id in bad.iter().chain(&late[..1]) {
            assert_eq!(db.status(id).await, Status::New, "nothing of the key is settled before the first");
        }
        for statement in allow {
            db.run(&statement).await.unwrap();
        }
        relay.idle().await.unwrap();
        assert_eq!(seen.of_key("bad"), [0, 1, 2, 3, 4, 5, 6], "once each, and in order");
        assert_eq!(seen.of_key("good"), [10, 11, 12, 13, 14, 15, 16]);
        for id in bad.iter().chain(&late) {
            assert_eq!(db.status(id).await, Status::Done);
        }
        relay.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_settles_a_key_in_order_or_not_at_all() {
    let db = TestDb::<Sqlite>::new().await.unwrap();
    in_time(a_refused_settlement_blocks_its_key_and_nothing_else(db)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_settles_a_key_in_order_or_not_at_all() {
    if let Some(db) = TestDb::<Postgres>::new().await {
        in_time(a_refused_settlement_blocks_its_key_and_nothing_else(db)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_settles_a_key_in_order_or_not_at_all() {
    if let Some(db) = TestDb::<MySql>::new().await {
        in_time(a_refused_settlement_blocks_its_key_and_nothing_else(db)).await;
    }
}

/// A row can be neither leased nor dead-lettered: the events that were claimed beside it are
/// returned all the same.
async fn a_row_that_cannot_be_dead_lettered_loses_no_claim<DB: Refusing>(db: TestDb<DB>) {
    let (refuse, allow) = DB::refuse(&db.table, "bad");
    for statement in refuse {
        db.run(&statement).await.unwrap();
    }
    let insert =
        "INSERT INTO {t} (event_id, event_type, payload, claims) VALUES ('bad', 'e', '1', 1000000000)";
    db.run(insert).await.unwrap();
    let good = db.write("e", 0..3).await;
    let store = db.outbox.store();
    let take = Take {
        by: Holder::Lease { owner: "one".into(), lease: Duration::from_secs(30) },
        from: Origin::Start,
        limit: 100,
        skip_recent: Duration::ZERO,
        on_dead: OnDead::Hold,
        skip_types: Vec::new(),
        only: None,
        probe: None,
        destinations: Default::default(),
        held_up_to: Default::default(),
        group_lease: true,
        max_bytes: usize::MAX,
        by_aggregate: false,
    };
    let taken = store.take(&take).await.unwrap();
    let ids: Vec<_> = taken.deliveries.iter().map(|delivery| delivery.event.id().clone()).collect();
    assert_eq!((ids, taken.dead_lettered), (good, 0));
    for statement in allow {
        db.run(&statement).await.unwrap();
    }
    assert_eq!(store.take(&take).await.unwrap().dead_lettered, 1);
    assert_eq!(db.status(&"bad".into()).await, Status::Dead);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_claims_beside_a_row_that_cannot_be_dead_lettered() {
    let db = TestDb::<Sqlite>::new().await.unwrap();
    in_time(a_row_that_cannot_be_dead_lettered_loses_no_claim(db)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_claims_beside_a_row_that_cannot_be_dead_lettered() {
    if let Some(db) = TestDb::<Postgres>::new().await {
        in_time(a_row_that_cannot_be_dead_lettered_loses_no_claim(db)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_claims_beside_a_row_that_cannot_be_dead_lettered() {
    if let Some(db) = TestDb::<MySql>::new().await {
        in_time(a_row_that_cannot_be_dead_lettered_loses_no_claim(db)).await;
    }
}

/// Statements that make the next migration alter the table, and a query that counts waiting
/// migrations.
trait Upgrading: Backend {
    const DOWNGRADE: &'static [&'static str];
    const WAITING: &'static str;
}

impl Upgrading for Postgres {
    const DOWNGRADE: &'static [&'static str] = &["UPDATE {t}_schema SET version = 8"];
    const WAITING: &'static str =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{t}'::regclass";
}

impl Upgrading for MySql {
    const DOWNGRADE: &'static [&'static str] = &[
        "ALTER TABLE {t} DROP CONSTRAINT {t}_times, DROP CONSTRAINT {t}_counters",
        "UPDATE {t}_schema SET version = 7",
    ];
    const WAITING: &'static str = "SELECT count(*) FROM information_schema.processlist \
        WHERE state LIKE 'Waiting for table metadata lock%' AND info LIKE '%ALTER TABLE%{t}%'";
}

/// Writers wait behind a statement that waits to alter their table, so a migration waits for short
/// periods only.
async fn a_migration_lets_writers_through_while_it_waits<DB: Upgrading>(db: TestDb<DB>) {
    for statement in DB::DOWNGRADE {
        db.run(statement).await.unwrap();
    }
    let mut long = db.outbox.begin().await.unwrap();
    long.write(Event::new("e").json(&1)).await.unwrap();
    let migrating = tokio::spawn({
        let other = db.another().await;
        async move { other.outbox.migrate().await }
    });
    until("the migration waits", async || db.number(DB::WAITING).await > 0).await;
    let written = tokio::time::timeout(Duration::from_secs(20), db.outbox.send(Event::new("e").json(&2)));
    written.await.expect("the writer does not wait for the long transaction").unwrap();
    assert!(!migrating.is_finished(), "the table is in use");
    long.commit().await.unwrap();
    migrating.await.unwrap().unwrap();
    db.outbox.store().check_schema().await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM {t}").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_get_through_while_a_migration_waits_on_postgres() {
    if let Some(db) = TestDb::<Postgres>::new().await {
        in_time(a_migration_lets_writers_through_while_it_waits(db)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_get_through_while_a_migration_waits_on_mariadb() {
    if let Some(db) = TestDb::<MySql>::new().await {
        in_time(a_migration_lets_writers_through_while_it_waits(db)).await;
    }
}

/// Writers wait while a migration alters the table, so its duration must not grow with the number
/// of finished events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_reads_no_finished_events_on_postgres() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let fill = "INSERT INTO {t} (event_type, payload, status, done_at) \
        SELECT 'e', '1', 1, now() FROM generate_series(1, 20000)";
    db.run(fill).await.unwrap();
    db.run("UPDATE {t}_schema SET version = 8").await.unwrap();
    db.outbox.migrate().await.unwrap();
    // Each session reports its counters when it ends.
    db.outbox.close().await;
    let mut beside = PgConnection::connect(db.url()).await.unwrap();
    let mut count = async |column: &str| {
        let query = format!("SELECT COALESCE(sum({column}), 0)::bigint FROM ");
        let (table, index) = ("pg_stat_user_tables WHERE relname", "pg_stat_user_indexes WHERE indexrelname");
        let (from, name) = match column {
            "idx_scan" => (index, format!("{}_due", db.table)),
            _ => (table, db.table.clone()),
        };
        let query = AssertSqlSafe(format!("{query}{from} = '{name}'"));
        sqlx::query_scalar::<_, i64>(query).fetch_one(&mut beside).await.unwrap()
    };
    until("the counters are reported", async || count("idx_scan").await > 0).await;
    assert_eq!(count("seq_tup_read").await, 0);
}

/// Another process migrates the same tables, for longer than one wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_waits_for_another_one_on_mariadb() {
    let Some(db) = TestDb::<MySql>::new().await else { return };
    for statement in <MySql as Upgrading>::DOWNGRADE {
        db.run(statement).await.unwrap();
    }
    let mut other = MySqlConnection::connect(db.url()).await.unwrap();
    let lock = AssertSqlSafe(format!("SELECT GET_LOCK('outbox {}', 0)", db.table));
    assert_eq!(sqlx::query_scalar::<_, i64>(lock).fetch_one(&mut other).await.unwrap(), 1);
    let migrating = tokio::spawn({
        let outbox = db.outbox.clone();
        async move { outbox.migrate().await }
    });
    // By the number of the waiting statement: the second wait is another statement. Each server
    // reads only its own kind of comment.
    let waiting = "SELECT /*M! COALESCE(max(query_id), 0) FROM information_schema.processlist \
        WHERE state = 'User lock' AND info LIKE '%GET_LOCK%' */ \
        /*!80000 CAST(COALESCE(max(e.event_id), 0) AS SIGNED) FROM performance_schema.events_statements_current e \
        JOIN performance_schema.threads t USING (thread_id) \
        WHERE t.processlist_state = 'User lock' AND e.sql_text LIKE '%GET_LOCK%' */";
    let mut first = 0;
    until("the migration waits again", async || {
        let now = db.number(waiting).await;
        first = if first == 0 { now } else { first };
        now != 0 && now != first
    })
    .await;
    assert!(!migrating.is_finished());
    assert_eq!(db.number("SELECT version FROM {t}_schema").await, 7);
    other.close().await.unwrap();
    migrating.await.unwrap().unwrap();
    db.outbox.store().check_schema().await.unwrap();
}

/// Fills a SQLite database to its limit: for writers it is a full disk.
async fn fill(db: &TestDb<Sqlite>) {
    db.run("CREATE TABLE IF NOT EXISTS filler (bytes blob)").await.unwrap();
    let pages = db.number("PRAGMA page_count").await;
    db.run(&format!("PRAGMA max_page_count = {pages}")).await.unwrap();
    for size in [3_000, 300, 30] {
        while db.run(&format!("INSERT INTO filler VALUES (zeroblob({size}))")).await.is_ok() {}
    }
}

async fn raise_limit(db: &TestDb<Sqlite>) {
    db.run("PRAGMA max_page_count = 1000000").await.unwrap();
}

fn large(number: u64) -> EventBuilder {
    Event::new("large").bytes("text/plain", vec![b'x'; 20_000]).id(format!("large-{number}").as_str())
}

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> StorageFault {
    match result {
        Err(Error::Database(error)) => {
            assert!(error.is_transient(), "{error}");
            let fault = error.storage_fault().unwrap_or_else(|| panic!("no fault of storage: {error}"));
            assert!(error.to_string().ends_with(&format!("(the database: {fault})")), "{error}");
            fault
        }
        other => panic!("{other:?}"),
    }
}

/// SQLite ends the transaction itself when the disk is full. Its connection must not be treated as
/// one inside a transaction.
#[tokio::test]
async fn a_transaction_that_sqlite_ended_leaves_its_connection_usable() {
    let db = TestDb::<Sqlite>::new().await.unwrap();
    // A pool of the application, also with one connection.
    let beside = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let beside = beside.connect(db.url()).await.unwrap();
    let builder = outbox::OutboxBuilder::new().table(&db.table);
    let beside = builder.on_pool(&beside).unwrap();
    for (n, outbox) in [&db.outbox, &beside].into_iter().enumerate() {
        let limit = async |outbox: &Outbox<Sqlite>, pages: i64| {
            let mut conn = outbox.pool().acquire().await.unwrap();
            Sqlite::execute_sql(&mut conn, &format!("PRAGMA max_page_count = {pages}")).await.unwrap();
        };
        limit(outbox, db.number("PRAGMA page_count").await).await;
        for number in 0..3 {
            // A dropped transaction, and one that is rolled back.
            assert_eq!(fault(outbox.send(large(number)).await), StorageFault::Full);
            let mut tx = outbox.begin().await.unwrap();
            assert_eq!(fault(tx.write(large(number)).await), StorageFault::Full);
            tx.rollback().await.unwrap();
        }
        // Later writes would not be part of the transaction, and committed at once.
        let mut tx = outbox.begin().await.unwrap();
        tx.write(Event::new("e").json(&1)).await.unwrap();
        assert_eq!(fault(tx.write(large(4)).await), StorageFault::Full);
        assert!(matches!(tx.write(Event::new("e").json(&2)).await, Err(Error::Lifecycle(_))));
        assert!(matches!(tx.commit().await, Err(Error::Lifecycle(_))));
        assert_eq!(outbox.admin().stats().await.unwrap().new, n as u64);
        limit(outbox, 1_000_000).await;
        let number = 10 + n as u64;
        outbox.send(large(number)).await.unwrap();
        assert!(outbox.admin().find(&format!("large-{number}").into()).await.unwrap().is_some());
    }
}

/// A database in memory exists as long as its connection: the connection is not closed because it
/// was inside a transaction.
#[tokio::test]
async fn a_database_in_memory_survives_a_transaction_that_ended_by_itself() {
    let outbox = Outbox::sqlite(":memory:").await.unwrap();
    outbox.migrate().await.unwrap();
    let statement = "CREATE TRIGGER ends BEFORE INSERT ON outbox_event WHEN NEW.event_type = 'ends' \
                     BEGIN SELECT RAISE(ROLLBACK, 'ended'); END";
    sqlx::raw_sql(statement).execute(outbox.pool()).await.unwrap();
    for _ in 0..3 {
        outbox.send(Event::new("ends").json(&1)).await.unwrap_err();
        let mut tx = outbox.begin().await.unwrap();
        let mut inner = outbox.adopt(sqlx::Connection::begin(&mut *tx).await.unwrap());
        inner.write(Event::new("ends").json(&1)).await.unwrap_err();
        drop(inner);
        drop(tx);
        outbox.send(Event::new("e").json(&1)).await.unwrap();
    }
    assert_eq!(outbox.admin().stats().await.unwrap().new, 3);
}

/// Settlements as done fit, settlements with a long error do not: the key waits, no event is
/// overtaken, and no handler runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_breaks_no_order() {
    let db = TestDb::<Sqlite>::new().await.unwrap();
    let test = async {
        let (seen, gate) = (Seen::default(), common::Gate::closed());
        let (recorded, opened) = (seen.clone(), gate.clone());
        let handler = move |cx: outbox::Context| {
            let (seen, gate) = (recorded.clone(), opened.clone());
            async move {
                seen.record(&cx);
                gate.pass().await;
                match (cx.payload::<u64>(), cx.attempt()) {
                    (Ok(0), 1) => Err(Failure::retry("ü".repeat(4_000))),
                    _ => Ok(Outcome::Done),
                }
            }
        };
        let relay = db.outbox.multi_node().workers(1).on_type("e", handler).poll_interval(10 * MS);
        let relay = relay.retry(Backoff::default().base(MS)).lease(1_000 * MS).start().await.unwrap();
        db.outbox.send_all((0..5).map(|number| keyed(number, "k"))).await.unwrap();
        seen.reach(1).await;
        fill(&db).await;
        gate.open();
        // Longer than the lease, which ends by the database's clock, and than a refused settlement
        // used to be retried.
        tokio::time::sleep(2_500 * MS).await;
        assert_eq!(
            seen.of_key("k"),
            [0],
            "an event that is not settled is not handled again, and blocks its key"
        );
        raise_limit(&db).await;
        relay.idle().await.unwrap();
        assert_eq!(seen.of_key("k"), [0, 0, 1, 2, 3, 4]);
        assert_eq!(db.status_counts().await, (0, 0, 5, 0));
        relay.stop().await.unwrap();
    };
    in_time(test).await;
}

/// A separate database on the test server, which can be made read-only without effect on other
/// tests.
struct OwnDatabase {
    server: sqlx::PgPool,
    name: String,
    url: String,
}

impl OwnDatabase {
    async fn new() -> Option<Self> {
        let url = std::env::var("OUTBOX_TEST_POSTGRES").ok()?;
        let server = sqlx::PgPool::connect(&url).await.unwrap();
        let name = format!("storage_{}", std::process::id());
        let base = url.rsplit_once('/').map_or(url.as_str(), |(base, _)| base);
        let own = Self { server, url: format!("{base}/{name}"), name };
        own.run(&format!("DROP DATABASE IF EXISTS {}", own.name)).await;
        own.run(&format!("CREATE DATABASE {}", own.name)).await;
        Some(own)
    }

    async fn run(&self, sql: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&self.server).await.unwrap();
    }

    /// For all connections: the existing ones are terminated.
    async fn read_only(&self, read_only: bool) {
        let value = if read_only { "on" } else { "off" };
        self.run(&format!("ALTER DATABASE {} SET default_transaction_read_only = {value}", self.name)).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ";
        self.run(&format!("{end}'{}'", self.name)).await;
    }
}

/// A server that is a standby for a while, or that an operator has made read-only: no event is
/// handled twice, and delivery resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_on_postgres_resumes_when_the_database_is_writable_again() {
    let Some(own) = OwnDatabase::new().await else { return };
    let test = async {
        let outbox = Outbox::postgres(&own.url).await.unwrap();
        outbox.migrate().await.unwrap();
        let (seen, gate) = (Seen::default(), common::Gate::closed());
        let relay = outbox.multi_node().workers(4).on_type("e", seen.behind(&gate)).poll_interval(20 * MS);
        let relay = relay.start().await.unwrap();
        let mut events: Vec<_> = (0..4).map(|number| keyed(number, "k")).collect();
        events.extend((10..13).map(|number| Event::new("e").json(&number)));
        outbox.send_all(events).await.unwrap();
        seen.reach(4).await;
        own.read_only(true).await;
        let refused = loop {
            // Terminated connections report that first.
            match outbox.send(keyed(99, "k")).await {
                Err(Error::Database(error)) if error.storage_fault().is_none() => {}
                other => break other,
            }
        };
        assert_eq!(fault(refused), StorageFault::ReadOnly);
        gate.open();
        until("settlements are refused", async || relay.health().problem(RelayTask::Settle).is_some()).await;
        let settled = loop {
            // Terminated connections report that first: the writer has not used all of them.
            match outbox.admin().stats().await {
                Err(Error::Database(error)) if error.is_transient() => {}
                stats => break stats.unwrap().done,
            }
        };
        assert_eq!(settled, 0);
        own.read_only(false).await;
        until("all events are settled", async || {
            outbox.admin().stats().await.is_ok_and(|stats| stats.done == 7)
        })
        .await;
        assert_eq!(seen.of_key("k"), [0, 1, 2, 3], "once each, and in order");
        assert_eq!(seen.count(), 7);
        relay.stop().await.unwrap();
        outbox.close().await;
    };
    in_time(test).await;
    own.run(&format!("DROP DATABASE {} WITH (FORCE)", own.name)).await;
}

/// Faults of storage are recognized by the error codes of the servers.
#[tokio::test]
async fn faults_of_storage_are_recognized_by_their_cause() {
    let fault_of = |result: Result<u64, sqlx::Error>| match result {
        Err(error) => fault(Err::<(), _>(Error::Database(DatabaseError::from(error)))),
        Ok(_) => panic!("the statement must fail"),
    };
    if let Some(db) = TestDb::<Postgres>::new().await {
        for (code, expected) in [
            ("53100", StorageFault::Full),
            ("25006", StorageFault::ReadOnly),
            ("58030", StorageFault::Failing),
            ("XX001", StorageFault::Corrupt),
            ("XX002", StorageFault::Corrupt),
        ] {
            let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'so' USING ERRCODE = '{code}'; END $$");
            assert_eq!(fault_of(db.run(&raise).await), expected, "{code}");
        }
    }
    if let Some(db) = TestDb::<MySql>::new().await {
        for (number, expected) in [
            (1021, StorageFault::Full),
            (1114, StorageFault::Full),
            (1030, StorageFault::Failing),
            (1026, StorageFault::Failing),
            (1290, StorageFault::ReadOnly),
            (1836, StorageFault::ReadOnly),
            (1792, StorageFault::ReadOnly),
            (1034, StorageFault::Corrupt),
            (1712, StorageFault::Corrupt),
        ] {
            let signal = format!("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'so'");
            assert_eq!(fault_of(db.run(&signal).await), expected, "{number}");
        }
        let collision = "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'so'";
        let collision = DatabaseError::from(db.run(collision).await.unwrap_err());
        assert!(collision.is_transient() && collision.storage_fault().is_none(), "{collision}");
    }
    let db = TestDb::<Sqlite>::new().await.unwrap();
    db.run("PRAGMA query_only = on").await.unwrap();
    assert_eq!(fault(db.outbox.send(large(1)).await), StorageFault::ReadOnly);
}
