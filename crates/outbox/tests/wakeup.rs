//! Relays that wait for notifications are woken by writers in any language.

#![cfg(feature = "postgres")]

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::time::Duration;

use common::{Poll, Seen, TestDb, until};
use failing_store::FailingStore;
use outbox::RelayBuilder;
use sqlx::Postgres;

/// Longer than any test waits.
const NEVER: Duration = Duration::from_secs(3_600);

async fn test_db() -> Option<TestDb<Postgres>> {
    TestDb::<Postgres>::new().await
}

/// Inserts an event as any client does.
async fn insert(db: &TestDb<Postgres>, n: u64) {
    let insert = format!("INSERT INTO {} (event_type, payload) VALUES ('e', '{n}')", db.table);
    db.run(&insert).await.unwrap();
}

/// Repeatedly: waiting, notified, awake, waiting again.
#[tokio::test]
async fn an_insert_by_another_client_is_delivered_at_once() {
    let Some(db) = test_db().await else { return };
    let seen = Seen::default();
    let relay =
        db.outbox.multi_node().poll_interval(NEVER).on_type("e", seen.handler()).start().await.unwrap();
    for n in 0..30 {
        insert(&db, n).await;
        seen.reach(n as usize + 1).await;
        // The next insert meets the relay awake, on its way to wait, or waiting.
        tokio::time::sleep(Duration::from_millis(n * 3)).await;
    }
    relay.stop().await.unwrap();
}

/// The event was inserted while no relay waited, so its commit does not notify: the relay does not
/// wait for notifications until then.
#[tokio::test]
async fn a_transaction_that_commits_late_is_not_missed() {
    let Some(db) = test_db().await else { return };
    let seen = Seen::default();
    let mut tx = db.outbox.pool().begin().await.unwrap();
    let text = format!("INSERT INTO {} (event_type, payload) VALUES ('e', '0')", db.table);
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut *tx).await.unwrap();
    let store = FailingStore::never(db.outbox.store());
    let relay = RelayBuilder::multi_node(store.clone()).poll_interval(NEVER).on_type("e", seen.handler());
    let relay = relay.start().await.unwrap();
    // Each pause between polls is twice the one before: after eight polls it is 6.4 s long.
    let mut polls = 0;
    let has_polled = async || {
        polls += store.calls();
        polls >= 8
    };
    until("the relay has polled eight times", has_polled).await;
    let committed = tokio::time::Instant::now();
    tx.commit().await.unwrap();
    seen.reach(1).await;
    assert!(committed.elapsed() < Duration::from_secs(5), "found by a poll: {:?}", committed.elapsed());
    relay.stop().await.unwrap();
}

/// Waits until a backend other than this one holds the notifier lock, which a relay tries to take
/// every second. Returns the backend's process id.
async fn notifier(db: &TestDb<Postgres>, other_than: i64) -> i64 {
    let holder = "SELECT COALESCE(max(pid), 0)::bigint FROM pg_locks WHERE locktype = 'advisory' \
                  AND mode = 'ExclusiveLock' AND granted \
                  AND (classid::bigint << 32 | objid::bigint) = hashtextextended(current_schema() || '.{t}', 12)";
    let held_by_another = async || {
        let pid = db.number(holder).await;
        if pid != 0 && pid != other_than { Ok(pid) } else { Err(pid) }
    };
    Poll::DEFAULT.value("a relay takes the notifier lock", held_by_another).await
}

/// One relay holds the notifier lock; the others are notified as well, and one of them takes the
/// lock over.
#[tokio::test]
async fn the_notifier_lock_is_taken_over() {
    let Some(db) = test_db().await else { return };
    let (first, second) = (Seen::default(), Seen::default());
    let one =
        db.outbox.multi_node().poll_interval(NEVER).on_type("e", first.handler()).start().await.unwrap();
    insert(&db, 0).await;
    first.reach(1).await;
    let holder = notifier(&db, 0).await;
    let other = db.another().await;
    let two =
        other.outbox.multi_node().poll_interval(NEVER).on_type("e", second.handler()).start().await.unwrap();
    one.stop().await.unwrap();
    notifier(&db, holder).await;
    insert(&db, 1).await;
    second.reach(1).await;
    two.stop().await.unwrap();
}

/// A terminated listener connection is replaced; until then the relay polls.
#[tokio::test]
async fn a_lost_listener_connection_is_replaced() {
    let Some(db) = test_db().await else { return };
    let seen = Seen::default();
    let relay =
        db.outbox.multi_node().poll_interval(NEVER).on_type("e", seen.handler()).start().await.unwrap();
    insert(&db, 0).await;
    seen.reach(1).await;
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' \
               AND (classid::bigint << 32 | objid::bigint) = hashtextextended(current_schema() || '.' || ";
    let terminate = format!("{terminate}'{}', 12)", db.table);
    until("a relay that holds the notifier lock is terminated", async || db.number(&terminate).await > 0)
        .await;
    insert(&db, 1).await;
    seen.reach(2).await;
    insert(&db, 2).await;
    seen.reach(3).await;
    relay.stop().await.unwrap();
}

/// `NOTIFY` serializes commits: no writer sends one while all relays are awake.
#[tokio::test]
async fn writers_notify_only_while_a_relay_waits() {
    let Some(db) = test_db().await else { return };
    let table = db.number("SELECT '{t}'::regclass::oid::bigint").await;
    let mut listener = sqlx::postgres::PgListener::connect_with(db.outbox.pool()).await.unwrap();
    listener.listen(&format!("outbox_due_{table}")).await.unwrap();
    listener.listen("end").await.unwrap();
    let mut waiting = db.outbox.pool().acquire().await.unwrap();
    let lock = format!("(hashtextextended(current_schema() || '.' || '{}', 11))", db.table);
    let mut received = Vec::new();
    for step in ["awake", "waiting", "awake again"] {
        let statement = match step {
            "waiting" => format!("SELECT pg_advisory_lock{lock}"),
            "awake again" => format!("SELECT pg_advisory_unlock{lock}"),
            _ => "SELECT 1".to_owned(),
        };
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *waiting).await.unwrap();
        insert(&db, 0).await;
        // Notifications arrive in the order of commits: earlier ones are received before this one.
        db.run("NOTIFY \"end\"").await.unwrap();
        let mut notifications = 0;
        while listener.recv().await.unwrap().channel() != "end" {
            notifications += 1;
        }
        received.push((step, notifications));
    }
    assert_eq!(received, [("awake", 0), ("waiting", 1), ("awake again", 0)]);
}
