//! The event log on PostgreSQL, where transactions append concurrently and commit in any order: no
//! decision is based on undecided positions, and no event is skipped.

#![cfg(feature = "postgres")]

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Backend as _, Poll, in_time};
use outbox::store::{SharedStore, Watermark};
use outbox::{Appended, Condition, Error, Event, EventBuilder, LatchPublisher, Position, Query, Topic, Tx};
use rand::Rng as _;
use sqlx::{Connection as _, Executor as _, PgConnection, Postgres};
use tokio::task::JoinHandle;

type TestDb = common::TestDb<Postgres>;
type Waiting = JoinHandle<(Tx<'static, Postgres>, outbox::Result<Appended>)>;

async fn test_db() -> Option<TestDb> {
    TestDb::with(|builder| builder.max_connections(20)).await
}

fn event(tags: &[(&str, &str)]) -> EventBuilder {
    tags.iter().fold(Event::new("E").json(&1), |event, (name, value)| event.tag(name, value))
}

fn unless(query: &Query) -> Condition {
    Condition::unless(query.clone())
}

async fn safe(store: &SharedStore, watermark: &mut Watermark) -> i64 {
    store.log().unwrap().advance(watermark).await.unwrap();
    watermark.safe.get()
}

/// Positions that a publisher would get.
async fn seen(store: &SharedStore, watermark: &mut Watermark, after: Position) -> Vec<Position> {
    safe(store, watermark).await;
    let read = store.log().unwrap().read(&Query::all(), after, Some(watermark.safe), 100_000).await.unwrap();
    read.into_iter().map(|stored| stored.unwrap().position()).collect()
}

/// Appends in a transaction in the background, and waits until the append is done or waits for
/// another transaction. Returns whether it waits.
async fn start(db: &TestDb, event: EventBuilder, condition: Condition) -> (Waiting, bool) {
    let mut tx = db.outbox.begin().await.unwrap();
    let pid = Postgres::number(&mut tx, "SELECT pg_backend_pid()::bigint").await;
    let task = tokio::spawn(async move {
        let appended = tx.append_if([event], condition).await;
        (tx, appended)
    });
    let waits = waits(db, pid, &task).await;
    (task, waits)
}

/// Waits until a task is done, or its connection waits for a lock. Returns whether it waits.
async fn waits<T>(db: &TestDb, pid: i64, task: &JoinHandle<T>) -> bool {
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
    );
    let ends_or_waits = async || {
        if task.is_finished() {
            return Ok(false);
        }
        if db.number(&waits).await == 1 { Ok(true) } else { Err("it runs") }
    };
    Poll::DEFAULT.value("the task ends, or waits for a lock", ends_or_waits).await
}

/// Different conditions that match the same event.
fn overlapping_queries() -> [Query; 7] {
    [
        Query::tag("w", 1),
        Query::tag("r", "eu"),
        Query::tag("w", 1).and_tag("r", "eu"),
        Query::tag("r", "eu").and_tag("w", 1).types(["E", "F"]),
        Query::of_types(["F", "E"]),
        Query::tag("w", 2).or(Query::tag("r", "eu")),
        Query::all(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_overlapping_conditional_appends_succeeds() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let both = || event(&[("w", "1"), ("r", "eu")]);
        for one in overlapping_queries() {
            for two in overlapping_queries() {
                for commits in [true, false] {
                    let at = db.outbox.log().settled(&Query::all()).await.unwrap();
                    let mut first = db.outbox.begin().await.unwrap();
                    assert!(first.append_if([both()], unless(&one).after(at)).await.is_ok());
                    let (second, waits) = start(&db, both(), unless(&two).after(at)).await;
                    assert!(waits, "{one:?} {two:?}");
                    if commits {
                        first.commit().await.unwrap();
                    } else {
                        first.rollback().await.unwrap();
                    }
                    let (tx, appended) = second.await.unwrap();
                    let conflict = matches!(appended, Err(Error::Conflict { .. }));
                    assert_eq!(conflict, commits, "{one:?} {two:?} {appended:?}");
                    tx.rollback().await.unwrap();
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_without_a_condition_waits_for_overlapping_conditions() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        for query in overlapping_queries() {
            let mut first = db.outbox.begin().await.unwrap();
            let read = first.project(query.clone(), 0, |n, _| n + 1).await.unwrap();
            let (plain, waits) = start(&db, event(&[("w", "1"), ("r", "eu")]), Condition::default()).await;
            assert!(waits, "{query:?}");
            assert!(first.append_if([event(&[("w", "1"), ("r", "eu")])], read.unchanged()).await.is_ok());
            first.commit().await.unwrap();
            let (tx, appended) = plain.await.unwrap();
            assert!(appended.is_ok());
            tx.rollback().await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_that_do_not_overlap_do_not_wait() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let mut first = db.outbox.begin().await.unwrap();
        assert!(
            first.append_if([event(&[("w", "1"), ("r", "eu")])], unless(&Query::tag("w", 1))).await.is_ok()
        );
        for (tags, condition) in [
            (vec![("w", "2")], Condition::default()),
            (vec![("r", "eu")], Condition::default()),
            (vec![("w", "2"), ("r", "eu")], unless(&Query::tag("w", 2).and_tag("r", "eu"))),
            (vec![("w", "3")], unless(&Query::tag("w", 3).or(Query::of_types(["F"])))),
        ] {
            let (other, waits) = start(&db, event(&tags), condition).await;
            assert!(!waits, "{tags:?}");
            let (tx, appended) = other.await.unwrap();
            assert_eq!(appended.unwrap().positions().len(), 1);
            tx.rollback().await.unwrap();
        }
        first.rollback().await.unwrap();
    })
    .await;
}

/// Creates another database, for a transaction that does not concern the outbox.
async fn another_database(db: &TestDb) -> PgConnection {
    let name = format!("{}_db", db.table);
    db.run(&format!("CREATE DATABASE {name}")).await.unwrap();
    let options: sqlx::postgres::PgConnectOptions = db.url().parse().unwrap();
    PgConnection::connect_with(&options.database(&name)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrelated_old_transactions_hide_no_conflict_and_delay_nothing() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let log = db.outbox.log();
        log.append([event(&[("w", "0")])]).await.unwrap();
        // Both transactions have an id that is older than everything that follows.
        let mut other_database = another_database(&db).await;
        other_database.execute("BEGIN; SELECT pg_current_xact_id(); CREATE TABLE x (id int)").await.unwrap();
        let mut same_database = PgConnection::connect(db.url()).await.unwrap();
        same_database.execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
        let table = format!("SELECT count(*) FROM {}_log", db.table);
        Postgres::number(&mut same_database, &table).await;

        let free = unless(&Query::tag("w", 1));
        let at = log.append_if([event(&[("w", "1")])], free.clone()).await.unwrap().positions()[0];
        let second = log.append_if([event(&[("w", "1")])], free).await;
        assert!(matches!(second, Err(Error::Conflict { .. })), "{second:?}");
        let store = db.outbox.store();
        assert_eq!(safe(&store, &mut Watermark::default()).await, at.get());
        assert_eq!(log.settled(&Query::all()).await.unwrap(), at);
        same_database.execute("ROLLBACK").await.unwrap();
        other_database.execute("ROLLBACK").await.unwrap();
        other_database.close().await.unwrap();
        db.run("DROP DATABASE {t}_db").await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_waits_for_a_position_that_is_committed_late() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let (store, log) = (db.outbox.store(), db.outbox.log());
        let mut watermark = Watermark::default();
        let first = log.append([event(&[])]).await.unwrap()[0];
        let mut late = db.outbox.begin().await.unwrap();
        let five = late.append([event(&[("late", "1")])]).await.unwrap()[0];
        let six = log.append([event(&[])]).await.unwrap()[0];
        assert!(five < six);
        for _ in 0..3 {
            assert_eq!(seen(&store, &mut watermark, Position::START).await, [first]);
        }
        // A transaction that begins meanwhile is not waited for.
        let mut later = db.outbox.begin().await.unwrap();
        let seven = later.append([event(&[])]).await.unwrap()[0];
        assert_eq!(seen(&store, &mut watermark, Position::START).await, [first]);
        late.commit().await.unwrap();
        assert_eq!(seen(&store, &mut watermark, Position::START).await, [first, five, six]);
        later.rollback().await.unwrap();
        let eight = log.append([event(&[])]).await.unwrap()[0];
        assert_eq!(seen(&store, &mut watermark, six).await, [eight]);
        assert_eq!(eight.get(), seven.get() + 1, "with a gap before it");
        assert_eq!(seen(&store, &mut Watermark::default(), six).await, [eight]);
    })
    .await;
}

/// The reason for `settled`: after the greatest position that it saw, a decision would miss the
/// event that is committed late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_projection_waits_for_open_appends_before_its_position() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let log = db.outbox.log();
        let either = Query::tag("w", 1).or(Query::tag("w", 2));
        let mut late = db.outbox.begin().await.unwrap();
        let low = late.append([event(&[("w", "1")])]).await.unwrap()[0];
        let high = log.append([event(&[("w", "2")])]).await.unwrap()[0];
        assert!(low < high);
        let plain = log.read(&either, Position::START, 10).await.unwrap();
        assert_eq!(plain.len(), 1, "a plain read sees the second event only");
        let other = log.project(Query::tag("w", 2), 0, |n, _| n + 1).await.unwrap();
        assert_eq!(
            (other.state, other.position),
            (1, high),
            "a query that does not match the open append does not wait"
        );
        let deciding = {
            let (log, either) = (log.clone(), either.clone());
            tokio::spawn(async move { log.project(either, 0, |n, _| n + 1).await.unwrap() })
        };
        let (_, waits) = start(&db, event(&[("x", "1")]), unless(&either)).await;
        assert!(waits && !deciding.is_finished());
        late.commit().await.unwrap();
        let read = deciding.await.unwrap();
        assert_eq!((read.state, read.position), (2, high));
        assert!(log.append_if([event(&[("w", "1")])], read.unchanged()).await.is_ok());
        assert!(log.append_if([event(&[("w", "2")])], read.unchanged()).await.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_that_is_rolled_back_leaves_a_gap_and_no_lock() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let (store, mut watermark) = (db.outbox.store(), Watermark::default());
        let mut tx = db.outbox.begin().await.unwrap();
        let kept = tx.append([event(&[("w", "0")])]).await.unwrap()[0];
        tx.execute("SAVEPOINT s").await.unwrap();
        assert!(tx.append_if([event(&[("w", "1")])], unless(&Query::tag("w", 1))).await.is_ok());
        tx.execute("ROLLBACK TO SAVEPOINT s").await.unwrap();
        let (other, waits) = start(&db, event(&[("w", "1")]), unless(&Query::tag("w", 1))).await;
        assert!(!waits, "the lock is released with the savepoint");
        let (other, appended) = other.await.unwrap();
        let theirs = appended.unwrap().positions()[0];
        other.commit().await.unwrap();
        assert_eq!(
            seen(&store, &mut watermark, Position::START).await,
            [],
            "the first transaction is still open"
        );
        tx.commit().await.unwrap();
        assert_eq!(seen(&store, &mut watermark, Position::START).await, [kept, theirs]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_waits_for_a_prepared_transaction() {
    let Some(db) = test_db().await else { return };
    if db.number("SELECT current_setting('max_prepared_transactions')::bigint").await == 0 {
        return;
    }
    in_time(async {
        let (store, log) = (db.outbox.store(), db.outbox.log());
        let mut watermark = Watermark::default();
        let mut conn = PgConnection::connect(db.url()).await.unwrap();
        for (end, committed) in [("COMMIT", true), ("ROLLBACK", false)] {
            let before = log.append([event(&[])]).await.unwrap()[0];
            conn.execute("BEGIN").await.unwrap();
            let insert = format!("INSERT INTO {}_log (event_type, tags, payload)", db.table);
            let insert = format!("{insert} VALUES ('E', ARRAY['w={end}'], '1')");
            conn.execute(sqlx::AssertSqlSafe(insert)).await.unwrap();
            // The watermark knows it as an open transaction, and then as a prepared one.
            assert_eq!(safe(&store, &mut watermark).await, before.get());
            let prepare = format!("PREPARE TRANSACTION '{}'", db.table);
            conn.execute(sqlx::AssertSqlSafe(prepare)).await.unwrap();
            let after = log.append([event(&[])]).await.unwrap()[0];
            for watermark in [&mut watermark, &mut Watermark::default()] {
                assert_eq!(safe(&store, watermark).await, before.get());
            }
            let (deciding, waits) = start(&db, event(&[("w", end)]), unless(&Query::tag("w", end))).await;
            assert!(waits);
            conn.execute(sqlx::AssertSqlSafe(format!("{end} PREPARED '{}'", db.table))).await.unwrap();
            let (tx, appended) = deciding.await.unwrap();
            assert_eq!(appended.is_err(), committed);
            tx.rollback().await.unwrap();
            let found = seen(&store, &mut watermark, before).await;
            assert_eq!(found.len(), 1 + usize::from(committed));
            assert_eq!(found.last(), Some(&after));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_with_a_fixed_snapshot_cannot_append_conditionally() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
            let mut tx = db.outbox.begin().await.unwrap();
            tx.execute(sqlx::AssertSqlSafe(format!("SET TRANSACTION ISOLATION LEVEL {isolation}")))
                .await
                .unwrap();
            let refused = tx.append_if([event(&[])], unless(&Query::tag("w", 1))).await;
            assert!(matches!(refused, Err(Error::Isolation { .. })), "{refused:?}");
            let refused = tx.project(Query::all(), 0, |n, _| n + 1).await;
            assert!(matches!(refused, Err(Error::Isolation { .. })), "{refused:?}");
            assert_eq!(
                tx.append([event(&[])]).await.unwrap().len(),
                1,
                "an append without a condition is allowed"
            );
            tx.commit().await.unwrap();
        }
        // Where this isolation level is the default, the library sets its own.
        let mut url = db.url().to_owned();
        url.push_str(if url.contains('?') { "&" } else { "?" });
        url.push_str("options=-c%20default_transaction_isolation=serializable");
        let strict = outbox::OutboxBuilder::new().table(&db.table).postgres(&url).await.unwrap();
        let log = strict.log();
        let read = log.project(Query::tag("w", 1), 0, |n, _| n + 1).await.unwrap();
        assert!(log.append_if([event(&[("w", "1")])], read.unchanged()).await.is_ok());
        assert!(log.append_if([event(&[("w", "1")])], read.unchanged()).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn a_sequence_with_a_cache_is_refused() {
    let Some(db) = test_db().await else { return };
    db.run("ALTER SEQUENCE {t}_log_seq CACHE 20").await.unwrap();
    let refused = db.outbox.store().log().unwrap().advance(&mut Watermark::default()).await;
    let Err(Error::Setting { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("CACHE 1"), "{reason}");
    db.run("ALTER SEQUENCE {t}_log_seq CACHE 1").await.unwrap();
    db.outbox.store().log().unwrap().advance(&mut Watermark::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_of_many_tags_takes_one_lock_for_all() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let mut tx = db.outbox.begin().await.unwrap();
        let pid = Postgres::number(&mut tx, "SELECT pg_backend_pid()::bigint").await;
        tx.append((0..5_000).map(|n| Event::new("E").tag("n", n).json(&1))).await.unwrap();
        let locks = format!("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = {pid}");
        // One more lock notifies waiting relays.
        assert_eq!(db.number(&locks).await, 1 + 1);
        let (other, waits) = start(&db, event(&[("n", "77")]), unless(&Query::tag("n", 77))).await;
        assert!(waits);
        let mut reader = db.outbox.begin().await.unwrap();
        let pid = Postgres::number(&mut reader, "SELECT pg_backend_pid()::bigint").await;
        let read = tokio::spawn(async move { reader.project(Query::tag("n", 78), 0, |n, _| n + 1).await });
        assert!(self::waits(&db, pid, &read).await);
        tx.commit().await.unwrap();
        assert_eq!(read.await.unwrap().unwrap().state, 1);
        let (tx, appended) = other.await.unwrap();
        assert!(appended.is_err());
        tx.rollback().await.unwrap();
    })
    .await;
}

/// After a restart, a gap that was waited for once is not waited for again because of transactions
/// that are still open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_does_not_wait_again_for_decided_positions() {
    let Some(db) = test_db().await else { return };
    let latch = LatchPublisher::expecting(3);
    let start =
        async || db.outbox.log_only().publish(Topic::new("t").to(latch.clone())).start().await.unwrap();
    in_time(async {
        let log = db.outbox.log();
        log.append([event(&[])]).await.unwrap();
        let mut undone = db.outbox.begin().await.unwrap();
        undone.append([event(&[])]).await.unwrap();
        undone.rollback().await.unwrap();
        log.append([event(&[])]).await.unwrap();
        let relay = start().await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();

        log.append([event(&[])]).await.unwrap();
        let mut open = db.outbox.begin().await.unwrap();
        open.append([event(&[])]).await.unwrap();
        let relay = start().await;
        let published = latch
            .wait(Duration::from_secs(30))
            .await
            .expect("the third event is before the open transaction");
        let positions: Vec<i64> = published.iter().map(|event| event.position().unwrap().get()).collect();
        assert_eq!(positions, [1, 3, 4]);
        open.rollback().await.unwrap();
        relay.stop().await.unwrap();
    })
    .await;
}

/// Other languages insert row by row, and a program may append in a loop: the server's lock table
/// is shared by all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_would_take_many_locks_takes_one_for_all() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let mut tx = db.outbox.begin().await.unwrap();
        let insert = format!(
            "INSERT INTO {}_log (event_type, tags, payload) SELECT 'E', ARRAY['id=' || n], '1' FROM generate_series(1, 5000) n",
            db.table
        );
        Postgres::execute_sql(&mut tx, &insert).await.unwrap();
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        let locks = Postgres::number(&mut tx, locks).await;
        assert!(locks <= 1_100, "{locks} locks");
        let (other, waits) = start(&db, event(&[("id", "4999")]), unless(&Query::tag("id", 4_999))).await;
        assert!(waits, "a condition on the last event waits all the same");
        tx.commit().await.unwrap();
        let (tx, appended) = other.await.unwrap();
        assert!(appended.is_err());
        tx.rollback().await.unwrap();
    })
    .await;
}

/// Writers that hold their transactions open, roll back, roll back to savepoints and prepare,
/// beside a publisher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_beside_many_writers_sees_committed_events_once_and_in_order() {
    const WRITERS: usize = 10;
    let each: usize = std::env::var("OUTBOX_TEST_LOG_TRANSACTIONS").map_or(60, |n| n.parse().unwrap());
    let Some(db) = test_db().await else { return };
    let prepares = db.number("SELECT current_setting('max_prepared_transactions')::bigint").await > 0;
    let committed = Arc::new(Mutex::new(BTreeSet::new()));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (outbox, table, url) = (db.outbox.clone(), db.table.clone(), db.url().to_owned());
        let committed = committed.clone();
        writers.spawn(async move {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            for n in 0..each {
                let dice: u32 = rand::rng().random_range(0..100);
                let hold = Duration::from_micros(rand::rng().random_range(0..4_000));
                let tag = rand::rng().random_range(0..30).to_string();
                let event = || event(&[("n", &tag)]);
                if prepares && dice < 10 {
                    let name = format!("{table}_{writer}_{n}");
                    let insert = format!(
                        "INSERT INTO {table}_log (event_type, tags, payload) VALUES ('E', ARRAY['n={tag}'], '1') RETURNING position"
                    );
                    conn.execute("BEGIN").await.unwrap();
                    let at = Postgres::number(&mut conn, &insert).await;
                    let prepare = format!("PREPARE TRANSACTION '{name}'");
                    conn.execute(sqlx::AssertSqlSafe(prepare)).await.unwrap();
                    tokio::time::sleep(hold).await;
                    let end = if dice < 8 { "COMMIT" } else { "ROLLBACK" };
                    conn.execute(sqlx::AssertSqlSafe(format!("{end} PREPARED '{name}'"))).await.unwrap();
                    if dice < 8 {
                        committed.lock().unwrap().insert(Position::new(at));
                    }
                    continue;
                }
                let mut tx = outbox.begin().await.unwrap();
                let mut mine = tx.append([event(), event()]).await.unwrap();
                if dice.is_multiple_of(5) {
                    tx.execute("SAVEPOINT s").await.unwrap();
                    tx.append([event()]).await.unwrap();
                    tokio::time::sleep(hold).await;
                    tx.execute("ROLLBACK TO SAVEPOINT s").await.unwrap();
                    mine.extend(tx.append([event()]).await.unwrap());
                }
                tokio::time::sleep(hold).await;
                if dice >= 95 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    committed.lock().unwrap().extend(mine);
                }
            }
        });
    }
    in_time(async {
        let (store, mut watermark) = (db.outbox.store(), Watermark::default());
        let mut published: Vec<Position> = Vec::new();
        let mut ended = false;
        loop {
            // A read after the last writer has ended must find all events.
            let last = ended;
            let page = seen(&store, &mut watermark, published.last().copied().unwrap_or_default()).await;
            published.extend(page);
            if last {
                break;
            }
            while let Some(writer) = writers.try_join_next() {
                writer.unwrap();
            }
            ended = writers.is_empty();
        }
        let committed: Vec<Position> = committed.lock().unwrap().iter().copied().collect();
        assert!(published.is_sorted());
        assert_eq!(published, committed);
        assert!(published.len() > WRITERS * each, "{}", published.len());
    })
    .await;
}

/// The publisher is ACTIVE and has no error: without this an operator would not know why nothing is
/// published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_that_waits_for_an_open_transaction_names_it_and_its_start() {
    let Some(db) = test_db().await else { return };
    in_time(async {
        let latch = outbox::LatchPublisher::expecting(1);
        let relay =
            db.outbox.log_only().publish(outbox::Topic::new("t").to(latch.clone())).start().await.unwrap();
        let first = db.outbox.log().append([event(&[])]).await.unwrap()[0];
        relay.idle().await.unwrap();
        let admin = db.outbox.log_admin();
        let waits_for = async || admin.lag().await.unwrap()[0].waits_for.clone();
        assert_eq!(waits_for().await, None, "no transaction is open");

        let mut conn = PgConnection::connect(db.url()).await.unwrap();
        conn.execute("SET application_name = 'checkout'").await.unwrap();
        let backend = Postgres::number(&mut conn, "SELECT pg_backend_pid()::bigint").await;
        conn.execute("BEGIN").await.unwrap();
        let insert = format!("INSERT INTO {}_log (event_type, payload) VALUES ('E', '1')", db.table);
        conn.execute(sqlx::AssertSqlSafe(insert)).await.unwrap();
        assert_eq!(waits_for().await, None, "no event is behind it");
        db.outbox.log().append([event(&[])]).await.unwrap();
        let began = chrono::Utc::now();
        let open = waits_for().await.expect("the pair waits");
        assert_eq!((open.backend, open.prepared.as_deref()), (Some(backend), None));
        assert_eq!((open.user.as_deref(), open.application.as_deref()), (Some("postgres"), Some("checkout")));
        assert!(
            open.since.is_some_and(|since| since <= began && began - since < chrono::TimeDelta::minutes(5))
        );
        assert_eq!(open.to_string(), format!("backend {backend} (role postgres, application checkout)"));
        assert_eq!(admin.lag().await.unwrap()[0].position, first);

        if db.number("SELECT current_setting('max_prepared_transactions')::bigint").await > 0 {
            relay.stop().await.unwrap();
            conn.execute("ROLLBACK").await.unwrap();
            // A transaction that has notified a relay cannot be prepared.
            conn.execute("SET outbox.two_phase = 'on'").await.unwrap();
            conn.execute("BEGIN").await.unwrap();
            let insert = format!("INSERT INTO {}_log (event_type, payload) VALUES ('E', '1')", db.table);
            conn.execute(sqlx::AssertSqlSafe(insert)).await.unwrap();
            conn.execute(sqlx::AssertSqlSafe(format!("PREPARE TRANSACTION '{}'", db.table))).await.unwrap();
            let open = waits_for().await.expect("the pair waits");
            assert_eq!((open.backend, open.prepared.as_deref()), (None, Some(db.table.as_str())));
            conn.execute(sqlx::AssertSqlSafe(format!("ROLLBACK PREPARED '{}'", db.table))).await.unwrap();
        } else {
            conn.execute("ROLLBACK").await.unwrap();
            relay.stop().await.unwrap();
        }
        assert_eq!(waits_for().await, None);
    })
    .await;
}
