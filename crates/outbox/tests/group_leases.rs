//! Group leases and takes, most of it on PostgreSQL: the cost of leasing many events at once, a
//! relay that hangs while it claims, and how many index entries are read.
#![cfg(feature = "postgres")]
#![allow(missing_docs)]

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Backend, TestDb, numbered, until};
use outbox::store::{
    Delivery, EXCLUSIVE, Holder, KeyProgress, KeyQueueId, Leadership, OnDead, Origin, Settlement,
    SharedStore, Take, Verdict,
};
use outbox::{Completion, Context, HandlerTx, RelayBuilder};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres};
use tokio::sync::Semaphore;

const LEASE: Duration = Duration::from_secs(30);

fn by(owner: &str) -> Holder {
    Holder::Lease { owner: owner.into(), lease: LEASE }
}

fn everything(by: Holder) -> Take {
    Take {
        by,
        from: Origin::Start,
        limit: 100,
        skip_recent: Duration::ZERO,
        on_dead: OnDead::Hold,
        skip_types: Vec::new(),
        only: None,
        probe: None,
        destinations: Default::default(),
        held_up_to: HashMap::new(),
        group_lease: true,
        max_bytes: usize::MAX,
        by_aggregate: false,
    }
}

async fn take(store: &SharedStore, owner: &str) -> Vec<Delivery> {
    take_after(store, owner, &[]).await
}

/// Takes for a relay that holds these events of the key already, all by group leases.
async fn take_after(store: &SharedStore, owner: &str, held: &[Delivery]) -> Vec<Delivery> {
    let reach = held.iter().filter_map(|d| d.seq).max().map(|seq| KeyProgress { seq, group_lease: true });
    let held_up_to = reach.map(|reach| (KeyQueueId::of_key("key"), reach)).into_iter().collect();
    let take = Take { held_up_to, ..everything(by(owner)) };
    store.take(&take).await.unwrap().deliveries
}

async fn settle(store: &SharedStore, owner: &str, deliveries: &[Delivery], verdict: Verdict) -> u64 {
    let settlement =
        |d: &Delivery| Settlement { id: d.event.id().clone(), claim: d.claim, verdict: verdict.clone() };
    let settlements: Vec<_> = deliveries.iter().map(settlement).collect();
    store.settle(&by(owner), Completion::Delete, &settlements).await.unwrap().moved
}

/// A relay that hangs while it claims: holds the claim lock, which one relay at a time can have.
async fn hang(db: &TestDb<Postgres>) -> PgConnection {
    let mut conn = PgConnection::connect(db.url()).await.unwrap();
    let lock = format!("BEGIN; LOCK TABLE {}_claim_lock IN SHARE UPDATE EXCLUSIVE MODE", db.table);
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut conn).await.unwrap();
    conn
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_lease_writes_one_row_and_none_of_the_events() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let store = db.outbox.store();
    db.outbox.send_all((0..50).map(|n| numbered("e", n))).await.unwrap();
    let taken = take(&store, "one").await;
    assert_eq!(taken.len(), 50);
    let untouched = "SELECT count(*) FROM {t} WHERE xmax::text = '0' AND claims = 0 AND locked_by IS NULL";
    assert_eq!(db.number(untouched).await, 50);
    assert_eq!(db.number("SELECT count(*) FROM {t}_batch").await, 1);
    assert!(take(&store, "two").await.is_empty());
    let one = db.outbox.admin().find(taken[0].event.id()).await.unwrap().unwrap();
    assert_eq!(one.lease.unwrap().0.as_str(), "one", "the store names the holder");

    assert_eq!(settle(&store, "two", &taken, Verdict::Done).await, 0, "not the holder");
    assert_eq!(settle(&store, "one", &taken, Verdict::Done).await, 50);
    assert_eq!(settle(&store, "one", &taken, Verdict::Done).await, 0, "twice");
    take(&store, "one").await;
    assert_eq!(db.number("SELECT count(*) FROM {t}_batch").await, 0, "the group lease is deleted");
}

/// An event that is released or fails does not wait for the other events of its group lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_event_can_be_claimed_while_the_others_are_held() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let store = db.outbox.store();
    db.outbox.send_all((0..10).map(|n| numbered("e", n))).await.unwrap();
    let taken = take(&store, "one").await;
    assert_eq!(settle(&store, "one", &taken[..1], Verdict::Released).await, 1);
    let again = Verdict::Again { after: Duration::ZERO, counted: true, error: Some("no".to_owned()) };
    assert_eq!(settle(&store, "one", &taken[1..2], again).await, 1);
    let others = take(&store, "two").await;
    assert_eq!(others.len(), 2);
    assert!(others.iter().all(|d| d.claim > 0 && d.suspect.is_none()), "leased by their rows");
    assert_eq!(settle(&store, "one", &taken[..2], Verdict::Done).await, 0, "no longer the holder");
    assert_eq!(settle(&store, "two", &others, Verdict::Done).await, 2);
    assert_eq!(settle(&store, "one", &taken[2..], Verdict::Done).await, 8);
}

/// Two relays of one process share the process's record of group leases.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_of_another_relay_ends_no_lease() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let store = db.outbox.store();
    db.outbox.send(numbered("e", 1)).await.unwrap();
    let ones = take(&store, "one").await;
    db.outbox.send(numbered("e", 2)).await.unwrap();
    let twos = take(&store, "two").await;
    assert_eq!(
        settle(&store, "two", &[twos, ones.clone()].concat(), Verdict::Done).await,
        1,
        "its own event only"
    );
    let leader = Holder::Exclusive { owner: "three".into(), epoch: 0 };
    let done = Settlement { id: ones[0].event.id().clone(), claim: ones[0].claim, verdict: Verdict::Done };
    assert_eq!(
        store.settle(&leader, Completion::Delete, &[done]).await.unwrap().moved,
        0,
        "it is not the leader"
    );
    assert!(take(&store, "two").await.is_empty(), "the event is held");
    assert_eq!(settle(&store, "one", &ones, Verdict::Done).await, 1);
}

/// A leader that hung for longer than its lease, with no other leader since: its epoch is still the
/// latest.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_leader_settles_nothing_that_another_relay_has_leased_since() {
    let Some(db) = TestDb::<Postgres>::frozen().await else { return };
    let store = db.outbox.store();
    db.outbox.send(numbered("e", 1)).await.unwrap();
    let led = store.lead(EXCLUSIVE, &"leader".into(), LEASE).await.unwrap();
    let Leadership::Held { epoch, .. } = led else { panic!("no other node leads") };
    let leader = Holder::Exclusive { owner: "leader".into(), epoch };
    let done = |d: &Delivery| Settlement { id: d.event.id().clone(), claim: d.claim, verdict: Verdict::Done };
    let read = store.take(&everything(leader.clone())).await.unwrap().deliveries;
    db.advance(LEASE);
    let taken = take(&store, "one").await;
    assert_eq!((read.len(), taken.len()), (1, 1));
    assert_eq!(
        store.settle(&leader, Completion::Keep, &[done(&read[0])]).await.unwrap().moved,
        0,
        "too late"
    );
    assert_eq!(settle(&store, "one", &taken, Verdict::Done).await, 1);
}

/// An expired group lease may be renewed until it is deleted. Cancelling one of its events deletes
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_cancelled_after_its_lease_expired_is_not_renewed() {
    let Some(db) = TestDb::<Postgres>::frozen().await else { return };
    let store = db.outbox.store();
    db.outbox.send_all((0..2).map(|n| numbered("e", n))).await.unwrap();
    let taken = take(&store, "one").await;
    let (first, second) = (taken[0].event.id().clone(), taken[1].event.id().clone());
    assert!(!store.cancel(&first).await.unwrap(), "the event is held");
    db.advance(LEASE);
    assert!(store.cancel(&first).await.unwrap());
    assert!(store.extend(&"one".into(), LEASE, &[(first, 0), (second, 0)]).await.unwrap().is_empty());
}

/// A relay that hung for longer than its lease settles too late. A rejected settlement does not
/// make the relay the holder.
#[tokio::test(flavor = "multi_thread")]
async fn no_relay_continues_a_key_of_which_it_lost_an_earlier_event() {
    let Some(db) = TestDb::<Postgres>::frozen().await else { return };
    let (store, other) = (db.outbox.store(), db.another().await.outbox.store());
    let send = async |n| db.outbox.send(numbered("e", n).ordering_key("key")).await.unwrap();
    send(1).await;
    let first = take(&store, "one").await;
    db.advance(LEASE / 2);
    send(2).await;
    let second = take_after(&store, "one", &first).await;
    assert_eq!((first.len(), second.len()), (1, 1));
    db.advance(LEASE / 2);
    send(3).await;
    assert_eq!(take(&other, "two").await.len(), 1, "the first event again");
    assert_eq!(settle(&store, "one", &first, Verdict::Done).await, 0, "too late");
    assert!(take_after(&store, "one", &second).await.is_empty(), "another relay has the first event");
}

/// The process of the relay may be stopped, or gone. Its backend is terminated, and its claim is
/// rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_hangs_while_it_claims_does_not_block_the_others() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let store = db.outbox.store();
    db.outbox.send_all((0..10).map(|n| numbered("e", n))).await.unwrap();
    let mut hanging = hang(&db).await;
    let taken = take(&store, "one").await;
    assert_eq!(taken.len(), 10);
    assert!(hanging.ping().await.is_err(), "its backend is terminated");
    assert_eq!(settle(&store, "one", &taken, Verdict::Done).await, 10);
}

/// Every role that may connect can acquire every advisory lock, and hold it for the whole session.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_cannot_block_claims() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let store = db.outbox.store();
    db.outbox.send_all((0..10).map(|n| numbered("e", n))).await.unwrap();
    db.run("CREATE ROLE {t} LOGIN").await.unwrap();
    let (scheme, at) = (db.url().find("://").unwrap() + 3, db.url().rfind('@').unwrap());
    let url = format!("{}{}{}", &db.url()[..scheme], db.table, &db.url()[at..]);
    let mut other = PgConnection::connect(&url).await.unwrap();
    for seed in 0..20 {
        let lock = format!("SELECT pg_advisory_lock(hashtextextended('\"{}\"', {seed}))", db.table);
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut other).await.unwrap();
    }
    let lock = format!("LOCK TABLE {}_claim_lock IN SHARE UPDATE EXCLUSIVE MODE", db.table);
    let refused = sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {lock}"))).execute(&mut other).await;
    assert_eq!(refused.unwrap_err().as_database_error().unwrap().code().unwrap(), "42501");

    let taken = tokio::time::timeout(Duration::from_secs(8), take(&store, "one")).await;
    assert_eq!(taken.expect("the take waits for no lock").len(), 10);
    assert!(other.close().await.is_ok());
    db.run("DROP ROLE {t}").await.unwrap();
}

/// A relay that claims slowly keeps the claim lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_for_the_claim_before_it() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let store = db.outbox.store();
    db.outbox.send_all((0..10).map(|n| numbered("e", n))).await.unwrap();
    let mut slow = hang(&db).await;
    let taking = tokio::spawn(async move { take(&store, "one").await.len() });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{t}_claim_lock'::regclass";
    let waits = async || {
        assert!(!taking.is_finished(), "the claim lock is held");
        db.number(waiting).await > 0
    };
    until("the claim waits for the lock", waits).await;
    sqlx::raw_sql("COMMIT").execute(&mut slow).await.unwrap();
    assert_eq!(taking.await.unwrap(), 10);
}

/// Runs a relay until so many events are handled, and stops it. Unlike `idle`, this does not rescan
/// the table.
async fn until_handled(relay: RelayBuilder<Postgres>, events: u32) {
    let handled = Arc::new(Semaphore::new(0));
    let seen = handled.clone();
    let relay = relay.on_any(move |_: Context| {
        let seen = seen.clone();
        async move { seen.add_permits(1) }
    });
    let relay = relay.start().await.unwrap();
    let _all = handled.acquire_many(events).await.unwrap();
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stopped_leaves_no_group_lease() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    db.outbox.send_all((0..300).map(|n| numbered("e", n))).await.unwrap();
    until_handled(db.outbox.multi_node(), 300).await;
    assert_eq!(db.number("SELECT count(*) FROM {t}_batch").await, 0);
}

/// A handler that reports its start, and ends when it is allowed to.
struct Waits {
    begun: Arc<Semaphore>,
    may_end: Arc<Semaphore>,
}

impl Waits {
    async fn handle(self: Arc<Self>, _: HandlerTx<Postgres>) {
        self.begun.add_permits(1);
        self.may_end.acquire().await.unwrap().forget();
    }
}

/// A lease is renewed while its handler's transaction settles: the row has a new version then, and
/// the event is the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_changed_while_it_is_settled_is_settled() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let (begun, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let waits = Arc::new(Waits { begun: begun.clone(), may_end: may_end.clone() });
    let relay = db
        .outbox
        .multi_node()
        .on_type("e", move |tx: HandlerTx<Postgres>| waits.clone().handle(tx))
        .start()
        .await
        .unwrap();
    db.outbox.send(numbered("e", 1)).await.unwrap();
    begun.acquire().await.unwrap().forget();
    let mut renews = PgConnection::connect(db.url()).await.unwrap();
    let renew = format!("BEGIN; UPDATE {} SET locked_until = locked_until", db.table);
    sqlx::raw_sql(AssertSqlSafe(renew)).execute(&mut renews).await.unwrap();
    may_end.add_permits(10);
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))";
    let waits = async || sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut renews).await.unwrap() > 0;
    until("the settlement waits for the row", waits).await;
    sqlx::raw_sql("COMMIT").execute(&mut renews).await.unwrap();
    relay.idle().await.unwrap();
    assert_eq!(begun.available_permits(), 0, "the event was handled again");
    assert_eq!(db.number("SELECT count(*) FROM {t} WHERE status = 1").await, 1);
    relay.stop().await.unwrap();
}

/// A relay that takes over a key writes to all events of the key. It finds them without reading
/// events of other keys, which may be locked by their writers.
async fn taking_over_a_key_waits_for_no_writer_of_another_key<DB: Backend>() {
    let Some(db) = TestDb::<DB>::frozen().await else { return };
    let store = db.outbox.store();
    db.outbox.send_all((0..2).map(|n| numbered("e", n).ordering_key("key"))).await.unwrap();
    let mut open = db.outbox.begin().await.unwrap();
    open.write(numbered("e", 3).ordering_key("another")).await.unwrap();
    assert_eq!(take(&store, "one").await.len(), 2);
    db.advance(LEASE);
    let taken = tokio::time::timeout(Duration::from_secs(20), take(&store, "two")).await;
    let taken = taken.expect("the take waits for no lock of another key");
    assert!(taken.len() == 2 && taken.iter().all(|d| d.suspect.is_some()), "{taken:?}");
    open.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_over_a_key_waits_for_no_writer_of_another_key_on_postgres() {
    taking_over_a_key_waits_for_no_writer_of_another_key::<Postgres>().await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn taking_over_a_key_waits_for_no_writer_of_another_key_on_mariadb() {
    taking_over_a_key_waits_for_no_writer_of_another_key::<sqlx::MySql>().await;
}

/// Number of entries of an index that were read, ever.
async fn read_of_index(conn: &mut PgConnection, index: &str) -> i64 {
    let read =
        "SELECT COALESCE(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes WHERE indexrelname = $1";
    sqlx::query_scalar(read).bind(index).fetch_one(conn).await.unwrap()
}

/// After some takes the planner makes one plan for all values. It expects few rows then, and
/// reading and sorting the whole backlog for each take looks cheap to it.
async fn reads_little_more_than_it_returns(db: &TestDb<Postgres>, relay: RelayBuilder<Postgres>) {
    const EVENTS: i64 = 40_000;
    for start in (0..EVENTS).step_by(1_000) {
        db.outbox.send_all((start..start + 1_000).map(|n| numbered("e", n as u64))).await.unwrap();
    }
    let mut beside = PgConnection::connect(db.url()).await.unwrap();
    // Not in the physical order of the table, as after some time in use.
    let shuffle =
        format!("UPDATE {} SET available_at = available_at - random() * interval '1 hour'", db.table);
    let flush_counters = "SELECT pg_stat_force_next_flush()".to_owned();
    for statement in [shuffle, format!("VACUUM ANALYZE {}", db.table), flush_counters] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut beside).await.unwrap();
    }
    let index = format!("{}_due", db.table);
    let before = read_of_index(&mut beside, &index).await;
    until_handled(relay.completion(Completion::Delete).batch(128).cold_capacity(256), EVENTS as u32).await;
    // Each session reports its counters when it ends, or after a while.
    db.outbox.close().await;
    let mut counted = 0;
    let is_reported = async || {
        counted = read_of_index(&mut beside, &index).await - before;
        counted >= EVENTS
    };
    until("the counters are reported", is_reported).await;
    assert!(counted < 12 * EVENTS, "{counted} entries read to take {EVENTS}");
}

/// While a table is small, reading a whole index looks cheap to the planner, and the planner may
/// keep that plan until the table is large. The statistics of a table that was analyzed when it was
/// empty stay for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn settling_finds_each_event_by_its_id() {
    const EVENTS: u32 = 6_000;
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    let mut beside = PgConnection::connect(db.url()).await.unwrap();
    let analyze = format!("VACUUM ANALYZE {}", db.table);
    sqlx::raw_sql(AssertSqlSafe(analyze)).execute(&mut beside).await.unwrap();
    let index = format!("{}_pkey", db.table);
    let before = read_of_index(&mut beside, &index).await;
    let handled = Arc::new(Semaphore::new(0));
    let seen = handled.clone();
    let relay = db.outbox.single_node().completion(Completion::Delete).hot_capacity(EVENTS as usize);
    // Settles often, so that the planner has one plan for all values before the table is large.
    let relay = relay.settle_linger(Duration::ZERO).on_any(move |_: Context| {
        let seen = seen.clone();
        async move { seen.add_permits(1) }
    });
    let relay = relay.start().await.unwrap();
    for start in (0..EVENTS).step_by(20) {
        db.outbox.send_all((start..start + 20).map(|n| numbered("e", n.into()))).await.unwrap();
    }
    let _all = handled.acquire_many(EVENTS).await.unwrap();
    relay.stop().await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM {t}").await, 0);
    db.outbox.close().await;
    let mut read = 0;
    // Each session reports its counters when it ends.
    let is_reported = async || {
        read = read_of_index(&mut beside, &index).await - before;
        read >= i64::from(EVENTS)
    };
    until("the counters are reported, and count each event", is_reported).await;
    // Each event is found by its id: a plan with another index reads none of these entries, and
    // reading this index to its end takes far more.
    let one_each = i64::from(EVENTS)..3 * i64::from(EVENTS);
    assert!(one_each.contains(&read), "{read} entries read to settle {EVENTS}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_reads_little_more_than_it_returns() {
    let Some(db) = TestDb::<Postgres>::new().await else { return };
    reads_little_more_than_it_returns(&db, db.outbox.multi_node()).await;
}
