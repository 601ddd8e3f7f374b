//! Settlements of a leader while another node takes over: the database serializes the two.

#[path = "common/harness.rs"]
mod harness;
#[path = "common/polling.rs"]
mod polling;

use std::time::Duration;

use harness::DatabaseHarness;
use outbox::store::{Completion, EXCLUSIVE, Holder, Leadership, Origin, Settlement, Take, Verdict};
use outbox::{Clock, Event, FrozenClock, NodeId, OnDead};
use polling::Poll;
use sqlx::Connection as _;

const LEASE: Duration = Duration::from_secs(10);

/// Longer than a statement takes that waits for no lock.
const STATEMENT_TIME: Duration = Duration::from_millis(500);

/// The settlement is blocked by a row lock of another session, after it has checked its epoch. A
/// node that took over meanwhile would read, and handle, the events that are about to be settled.
///
/// `waits` is a query that finds a statement on the table that waits for a lock.
async fn a_takeover_waits_for_a_settlement_that_has_checked_its_epoch<C>(
    harness: DatabaseHarness,
    mut other: C,
    waits: &str,
) where
    C: sqlx::Connection,
    for<'c> &'c mut C: sqlx::Executor<'c, Database = C::Database>,
{
    let clock = FrozenClock::at(chrono::Utc::now());
    let store = harness.store(harness.options().clock(Clock::Frozen(clock.clone()))).await;
    store.migrate().await.unwrap();
    let (a, b) = (NodeId::from("a"), NodeId::from("b"));
    let Leadership::Held { epoch, .. } = store.lead(EXCLUSIVE, &a, LEASE).await.unwrap() else {
        panic!("no other node leads");
    };
    let events = [1, 2].map(|n| Event::new("e").json(&n).build().unwrap());
    store.insert(&events).await.unwrap();
    let by = Holder::Exclusive { owner: a, epoch };
    let take = Take {
        by: by.clone(),
        from: Origin::Start,
        limit: 10,
        skip_recent: Duration::ZERO,
        on_dead: OnDead::Hold,
        skip_types: Vec::new(),
        only: None,
        probe: None,
        destinations: Default::default(),
        held_up_to: std::collections::HashMap::new(),
        group_lease: false,
        max_bytes: usize::MAX,
        by_aggregate: false,
    };
    let taken = store.take(&take).await.unwrap();
    let done = |d: &outbox::store::Delivery| Settlement {
        id: d.event.id().clone(),
        claim: d.claim,
        verdict: Verdict::Done,
    };
    let settlements: Vec<Settlement> = taken.deliveries.iter().map(done).collect();
    assert_eq!(settlements.len(), 2);

    let lock =
        format!("UPDATE {} SET tenant_id = 't' WHERE event_id = '{}'", harness.table, settlements[1].id);
    let mut open = other.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut *open).await.unwrap();
    let settling = tokio::spawn({
        let store = store.clone();
        async move { store.settle(&by, Completion::Keep, &settlements).await }
    });
    let waits = || sqlx::raw_sql(sqlx::AssertSqlSafe(waits.replace("{table}", &harness.table)));
    let is_waiting = async || {
        assert!(!settling.is_finished(), "the row is locked");
        waits().fetch_optional(&mut *open).await.unwrap().is_some()
    };
    Poll::INNODB.until("the settlement waits for the row", is_waiting).await;

    clock.advance(2 * LEASE);
    let mut taking_over = tokio::spawn({
        let store = store.clone();
        async move { store.lead(EXCLUSIVE, &b, LEASE).await }
    });
    let early = tokio::time::timeout(STATEMENT_TIME, &mut taking_over).await;
    assert!(early.is_err(), "it took over during a settlement: {early:?}");

    open.rollback().await.unwrap();
    assert_eq!(settling.await.unwrap().unwrap().moved, 2);
    let now = taking_over.await.unwrap().unwrap();
    assert_eq!(now, Leadership::Held { epoch: epoch + 1, clean: false });
}

#[cfg(feature = "postgres")]
const POSTGRES_WAITS: &str =
    "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))";
#[cfg(feature = "mysql")]
const MYSQL_WAITS: &str = "SELECT 1 FROM information_schema.innodb_trx \
     WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{table}%'";

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_waits_on_postgres() {
    let Some(harness) = DatabaseHarness::postgres().await else { return };
    let other = sqlx::PgConnection::connect(harness.url().unwrap()).await.unwrap();
    a_takeover_waits_for_a_settlement_that_has_checked_its_epoch(harness, other, POSTGRES_WAITS).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_waits_on_mariadb() {
    let Some(harness) = DatabaseHarness::mariadb().await else { return };
    let other = sqlx::MySqlConnection::connect(harness.url().unwrap()).await.unwrap();
    a_takeover_waits_for_a_settlement_that_has_checked_its_epoch(harness, other, MYSQL_WAITS).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_waits_on_mysql() {
    let Some(harness) = DatabaseHarness::mysql().await else { return };
    let other = sqlx::MySqlConnection::connect(harness.url().unwrap()).await.unwrap();
    a_takeover_waits_for_a_settlement_that_has_checked_its_epoch(harness, other, MYSQL_WAITS).await;
}
