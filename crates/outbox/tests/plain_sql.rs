//! Order for programs that write rows with plain SQL, and use neither this library nor its locks.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Backend, Poll, Seen, TestDb, numbered};
use outbox::{Backoff, Failure, Outcome, RelayBuilder};
use sqlx::Connection as _;

const MS: Duration = Duration::from_millis(1);

/// An INSERT of the n-th event of an aggregate, by its columns alone.
fn of_aggregate(id: &str, number: u64) -> String {
    format!(
        "INSERT INTO {{t}} (event_type, aggregate_type, aggregate_id, payload) VALUES ('e', 'order', '{id}', '{number}')"
    )
}

/// An INSERT of the n-th event of a key.
fn of_key(key: &str, number: u64) -> String {
    format!("INSERT INTO {{t}} (event_type, ordering_key, payload) VALUES ('e', '{key}', '{number}')")
}

/// Handled numbers of each key, without immediate repetitions.
fn by_key(seen: &Seen) -> BTreeMap<String, Vec<u64>> {
    let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for call in seen.calls() {
        keys.entry(call.key.expect("the event has a key")).or_default().push(call.number);
    }
    keys.values_mut().for_each(Vec::dedup);
    keys
}

/// A separate connection, as another program has.
async fn connect<DB: Backend>(db: &TestDb<DB>) -> DB::Connection {
    DB::Connection::connect(db.url()).await.unwrap()
}

async fn run<DB: Backend>(conn: &mut DB::Connection, db: &TestDb<DB>, sql: &str) {
    DB::execute_sql(conn, &sql.replace("{t}", &db.table)).await.unwrap();
}

/// SQLite has one writer at a time: no two transactions write concurrently.
fn has_one_writer<DB: Backend>(db: &TestDb<DB>) -> bool {
    !db.url().contains("://")
}

/// Query that counts whether the session of this connection waits for a lock.
async fn session<DB: Backend>(conn: &mut DB::Connection, db: &TestDb<DB>) -> String {
    if db.url().starts_with("postgres") {
        let pid = DB::number(conn, "SELECT pg_backend_pid()::bigint").await;
        format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted")
    } else {
        let id = DB::number(conn, "SELECT CAST(connection_id() AS SIGNED)").await;
        format!(
            "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = {id} AND trx_state = 'LOCK WAIT'"
        )
    }
}

/// Number of advisory locks of a transaction; 0 where the database has none.
async fn locks<DB: Backend>(conn: &mut DB::Connection, db: &TestDb<DB>) -> i64 {
    if !db.url().starts_with("postgres") {
        return 0;
    }
    DB::number(conn, "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'")
        .await
}

on_every_database! {
    /// Half of the rows exist before the relay starts, half are written while it runs. Every fifth
    /// call fails.
    async fn rows_of_an_aggregate_are_delivered_in_order(|db|) {
        for n in 0..20 {
            for id in ["x", "y"] {
                db.run(&of_aggregate(id, n)).await.unwrap();
            }
        }
        let (seen, calls) = (Seen::default(), AtomicU64::new(0));
        let fails = move |_: &_| match calls.fetch_add(1, Ordering::Relaxed) % 5 {
            4 => Err(Failure::retry("the fifth call")),
            _ => Ok(Outcome::Done),
        };
        let retry = Backoff::default().base(5 * MS).max(20 * MS).max_attempts(50);
        let store = db.outbox.store();
        let relay = RelayBuilder::ordered(store).workers(4).poll_interval(5 * MS).retry(retry)
            .on_type("e", seen.returning(fails)).start().await.unwrap();
        for n in 20..40 {
            for id in ["x", "y"] {
                db.run(&of_aggregate(id, n)).await.unwrap();
            }
        }
        db.drained().await;
        let numbers: Vec<u64> = (0..40).collect();
        let expected = ["order/x", "order/y"].map(|key| (key.to_owned(), numbers.clone()));
        assert_eq!(by_key(&seen), BTreeMap::from(expected));
        relay.stop().await.unwrap();
    }

    /// A transaction was open when the mode was switched on, and commits rows without keys later.
    async fn rows_from_before_the_mode_are_delivered_in_order(|db|) {
        if has_one_writer(&db) {
            // One writer at a time: the relay starts before or after the transaction.
            return;
        }
        let mut conn = connect(&db).await;
        if db.url().starts_with("mysql") {
            // The relay would wait for the end of the transaction otherwise: then no such rows
            // would exist.
            run(&mut conn, &db, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
        }
        run(&mut conn, &db, "BEGIN").await;
        run(&mut conn, &db, &of_aggregate("x", 0)).await;
        let seen = Seen::default();
        let store = db.outbox.store();
        let relay = RelayBuilder::ordered(store).workers(4).poll_interval(5 * MS)
            .on_type("e", seen.handler()).start().await.unwrap();
        run(&mut conn, &db, &of_aggregate("x", 1)).await;
        run(&mut conn, &db, &of_aggregate("x", 2)).await;
        run(&mut conn, &db, "COMMIT").await;
        db.drained().await;
        assert_eq!(by_key(&seen), BTreeMap::from([("order/x".to_owned(), vec![0, 1, 2])]));
        relay.stop().await.unwrap();
    }

    /// The first INSERT of a key is delivered first, although it commits last.
    async fn the_first_insert_of_a_key_is_delivered_first(|db|) {
        if has_one_writer(&db) {
            return;
        }
        let seen = Seen::default();
        let relay = db.outbox.multi_node().no_hot_path().workers(4).poll_interval(5 * MS)
            .on_type("e", seen.handler()).start().await.unwrap();
        let (mut first, mut second) = (connect(&db).await, connect(&db).await);
        run(&mut first, &db, "BEGIN").await;
        run(&mut first, &db, &of_key("k", 0)).await;
        let waits = session(&mut second, &db).await;
        let insert = of_key("k", 1).replace("{t}", &db.table);
        let later = tokio::spawn(async move { DB::execute_sql(&mut second, &insert).await.unwrap() });
        let waits_or_delivered = async || seen.count() > 0 || db.number(&waits).await > 0;
        Poll::INNODB.until("the second writer waits, or its row is delivered", waits_or_delivered).await;
        run(&mut first, &db, "COMMIT").await;
        later.await.unwrap();
        seen.reach(2).await;
        assert_eq!(seen.numbers(), [0, 1]);
        relay.stop().await.unwrap();
    }

    /// A server's lock table holds some thousand locks.
    async fn a_transaction_with_many_keys_takes_few_locks(|db|) {
        const KEYS: u64 = 5_000;
        let mut conn = connect(&db).await;
        let rows = (0..KEYS).map(|n| format!("('e', 'k{n}', '{n}')")).collect::<Vec<_>>().join(", ");
        run(&mut conn, &db, "BEGIN").await;
        run(&mut conn, &db, &format!("INSERT INTO {{t}} (event_type, ordering_key, payload) VALUES {rows}")).await;
        let of_sql = locks(&mut conn, &db).await;
        run(&mut conn, &db, "COMMIT").await;
        let mut tx = db.outbox.begin().await.unwrap();
        let events = (0..KEYS).map(|n| numbered("e", n).ordering_key(format!("l{n}")));
        tx.write_all(events).await.unwrap();
        let of_library = locks(&mut *tx, &db).await;
        tx.commit().await.unwrap();
        assert_eq!(db.status_counts().await, (2 * KEYS, 0, 0, 0));
        assert!(of_sql < 2_100 && of_library < 2_100, "{of_sql} and {of_library} locks");
    }

    /// One key that is written very often does not make a transaction exclude writers of other
    /// keys.
    async fn a_transaction_with_many_events_of_a_key_excludes_no_other_keys(|db|) {
        if has_one_writer(&db) {
            return;
        }
        let mut conn = connect(&db).await;
        let rows = vec!["('e', 'k', '1')"; 5_000].join(", ");
        run(&mut conn, &db, "BEGIN").await;
        run(&mut conn, &db, &format!("INSERT INTO {{t}} (event_type, ordering_key, payload) VALUES {rows}")).await;
        db.run(&of_key("other", 1)).await.unwrap();
        run(&mut conn, &db, "ROLLBACK").await;
        assert_eq!(db.status_counts().await.0, 1);
    }

    /// A writer waits for transactions on its own key only.
    async fn writers_of_other_keys_do_not_wait(|db|) {
        if has_one_writer(&db) {
            return;
        }
        let mut conn = connect(&db).await;
        run(&mut conn, &db, "BEGIN").await;
        run(&mut conn, &db, &of_key("k", 0)).await;
        db.run(&of_key("other", 1)).await.unwrap();
        db.outbox.send(numbered("e", 2).ordering_key("another")).await.unwrap();
        db.run("INSERT INTO {t} (event_type, payload) VALUES ('e', '3')").await.unwrap();
        run(&mut conn, &db, "ROLLBACK").await;
        assert_eq!(db.status_counts().await.0, 3);
    }
}
