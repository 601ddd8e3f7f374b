//! Relays that sleep are woken by whoever writes, in whatever language.

#![cfg(feature = "postgres")]

mod common;

use std::time::Duration;

use common::{FOREVER, Seen, TestDb};
use sqlx::Postgres;

/// Longer than any test waits.
const NEVER: Duration = Duration::from_secs(3_600);

async fn test_db() -> Option<TestDb<Postgres>> {
    TestDb::<Postgres>::new().await
}

/// As any client does.
async fn insert(db: &TestDb<Postgres>, n: u64) {
    let insert = format!("INSERT INTO {} (event_type, payload) VALUES ('e', '{n}')", db.table);
    db.run(&insert).await.unwrap();
}

/// Over and over: asleep, called, up, asleep again.
#[tokio::test]
async fn an_insert_by_another_client_is_delivered_at_once() {
    let Some(db) = test_db().await else { return };
    let seen = Seen::default();
    let relay =
        db.outbox.multi_node().poll_interval(NEVER).on_type("e", seen.handler()).start().await.unwrap();
    for n in 0..30 {
        insert(&db, n).await;
        seen.reach(n as usize + 1).await;
        tokio::time::sleep(Duration::from_millis(n * 3)).await;
    }
    relay.stop().await.unwrap();
}

/// It was inserted while nobody slept, so it does not call at its commit: the relay stays awake until then.
#[tokio::test]
async fn a_transaction_that_commits_late_is_not_slept_through() {
    let Some(db) = test_db().await else { return };
    let seen = Seen::default();
    let mut tx = db.outbox.pool().begin().await.unwrap();
    let text = format!("INSERT INTO {} (event_type, payload) VALUES ('e', '0')", db.table);
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut *tx).await.unwrap();
    let relay =
        db.outbox.multi_node().poll_interval(NEVER).on_type("e", seen.handler()).start().await.unwrap();
    // Until polls that come later and later are seconds apart: the next would be after twelve.
    tokio::time::sleep(Duration::from_millis(6_600)).await;
    let committed = tokio::time::Instant::now();
    tx.commit().await.unwrap();
    seen.reach(1).await;
    assert!(committed.elapsed() < Duration::from_secs(5), "found by a poll: {:?}", committed.elapsed());
    relay.stop().await.unwrap();
}

/// Only one has the watch; the others hear what it hears, and one of them takes it over.
#[tokio::test]
async fn the_watch_is_taken_over() {
    let Some(db) = test_db().await else { return };
    let (first, second) = (Seen::default(), Seen::default());
    let one =
        db.outbox.multi_node().poll_interval(NEVER).on_type("e", first.handler()).start().await.unwrap();
    insert(&db, 0).await;
    first.reach(1).await;
    let other = db.another().await;
    let two =
        other.outbox.multi_node().poll_interval(NEVER).on_type("e", second.handler()).start().await.unwrap();
    one.stop().await.unwrap();
    // It asks for the watch every second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    insert(&db, 1).await;
    second.reach(1).await;
    two.stop().await.unwrap();
}

/// Whoever cuts the line gets a new one; until then there is polling.
#[tokio::test]
async fn a_lost_line_is_replaced() {
    let Some(db) = test_db().await else { return };
    let seen = Seen::default();
    let relay =
        db.outbox.multi_node().poll_interval(NEVER).on_type("e", seen.handler()).start().await.unwrap();
    insert(&db, 0).await;
    seen.reach(1).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' \
               AND (classid::bigint << 32 | objid::bigint) = hashtextextended(current_schema() || '.' || ";
    let until = tokio::time::Instant::now() + FOREVER;
    while db.number(&format!("{cut}'{}', 12)", db.table)).await == 0 {
        assert!(tokio::time::Instant::now() < until, "nobody has the watch");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    insert(&db, 1).await;
    seen.reach(2).await;
    insert(&db, 2).await;
    seen.reach(3).await;
    relay.stop().await.unwrap();
}

/// `NOTIFY` makes commits wait for each other: nobody sends one while all are awake.
#[tokio::test]
async fn writers_call_only_while_somebody_sleeps() {
    let Some(db) = test_db().await else { return };
    let table = db.number("SELECT '{t}'::regclass::oid::bigint").await;
    let mut ear = sqlx::postgres::PgListener::connect_with(db.outbox.pool()).await.unwrap();
    ear.listen(&format!("outbox_due_{table}")).await.unwrap();
    ear.listen("end").await.unwrap();
    let mut sleeper = db.outbox.pool().acquire().await.unwrap();
    let lock = format!("(hashtextextended(current_schema() || '.' || '{}', 11))", db.table);
    let mut heard = Vec::new();
    for step in ["awake", "asleep", "awake again"] {
        let act = match step {
            "asleep" => format!("SELECT pg_advisory_lock{lock}"),
            "awake again" => format!("SELECT pg_advisory_unlock{lock}"),
            _ => "SELECT 1".to_owned(),
        };
        sqlx::raw_sql(sqlx::AssertSqlSafe(act)).execute(&mut *sleeper).await.unwrap();
        insert(&db, 0).await;
        // Calls come in the order of commits: what was sent is here before this.
        db.run("NOTIFY \"end\"").await.unwrap();
        let mut calls = 0;
        while ear.recv().await.unwrap().channel() != "end" {
            calls += 1;
        }
        heard.push((step, calls));
    }
    assert_eq!(heard, [("awake", 0), ("asleep", 1), ("awake again", 0)]);
}
