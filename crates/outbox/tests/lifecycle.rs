//! Starting, standing by, stopping: what a relay holds, and how it releases it.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::time::{Duration, Instant};

use common::{Gate, Seen, TestDb, numbered};
use failing_store::Operation;
use outbox::store::{EXCLUSIVE, Leadership, Status};
use outbox::{Context, Error, OutboxBuilder, PurgeSettings, RelayBuilder};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const NEVER: Duration = Duration::from_secs(3_600);

on_every_database! {
    /// A leader that took over from a vanished one, and stops before it has read all events that
    /// the latter may have had in flight, leaves the table marked as unclean. Otherwise an event
    /// that crashes its process would be started once more than allowed.
    async fn an_unclean_takeover_stays_marked_after_a_stop(frozen |db|) {
        let store = db.outbox.store();
        let next = async |name: &str| store.lead(EXCLUSIVE, &name.into(), MS).await.unwrap();
        let take_over = async || db.outbox.single_node().start().await.unwrap().stop().await.unwrap();
        take_over().await;
        let held = next("vanishes").await;
        assert!(matches!(held, Leadership::Held { clean: true, .. }), "the stop was clean: {held:?}");
        db.advance(MS);
        take_over().await;
        let held = next("a").await;
        assert!(matches!(held, Leadership::Held { clean: false, .. }), "{held:?}");
    }

    async fn stop_drains_queued_events(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.workers(2).on_type("e", seen.taking(5 * MS)).start().await.unwrap();
            db.write("e", 0..40).await;
            seen.reach(1).await;
            relay.stop().await.unwrap();
            seen.assert_each_once(0..40);
        }
        assert_eq!(db.status_counts().await, (0, 0, 80, 0));
    }

    /// A commit that is cancelled half way may have happened. Its rows were inserted with a lease
    /// of five minutes.
    async fn events_of_a_cancelled_commit_do_not_wait_for_their_lease(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.multi_node().poll_interval(20 * MS).on_type("e", seen.taking(Duration::ZERO)).start().await.unwrap();
        for n in 0..10 {
            let mut tx = db.outbox.begin().await.unwrap();
            tx.write(numbered("e", n)).await.unwrap();
            // Polled once, then dropped.
            let _ = tokio::time::timeout(Duration::ZERO, tx.commit()).await;
        }
        // The cancelled commits have ended when this one returns.
        db.write("e", 10..11).await;
        db.drained().await;
        relay.stop().await.unwrap();
        let (new, retry, done, dead) = db.status_counts().await;
        assert_eq!((new, retry, dead), (0, 0, 0));
        assert!(done >= 1 && seen.count() as u64 == done, "{done} done, {} handled", seen.count());
    }

    /// Case 8: the old system left 31 of 32 rows locked for five minutes.
    async fn stop_releases_unfinished_events_at_once(|db|) {
        let (seen, gate) = (Seen::default(), Gate::closed());
        db.write("e", 0..32).await;
        let relay = db.outbox.multi_node().workers(1).drain(50 * MS).on_type("e", seen.behind(&gate))
            .start().await.unwrap();
        seen.reach(1).await;
        // Hot events as well: they were inserted with a lease.
        db.write("e", 32..40).await;
        relay.stop().await.unwrap();
        let backlog = db.outbox.admin().backlog().await.unwrap();
        assert_eq!((backlog.pending, backlog.free), (40, 40));

        let seen = Seen::default();
        let relay = db.another().await.outbox.multi_node().on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        seen.assert_each_once(0..40);
        assert!(seen.attempts().iter().all(|attempt| *attempt == 1), "a release is not an attempt");
        relay.stop().await.unwrap();
    }

    async fn a_handler_that_never_returns_is_dropped_after_the_drain_time_and_retried(|db|) {
        for exclusive in [true, false] {
            let (seen, gate) = (Seen::default(), Gate::closed());
            let relay = || if exclusive { db.outbox.single_node() } else { db.outbox.multi_node() };
            let first = relay().drain(100 * MS).on_type("e", seen.behind(&gate)).start().await.unwrap();
            let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
            seen.reach(1).await;
            let began = Instant::now();
            first.stop().await.unwrap();
            assert!(began.elapsed() < 30 * SEC, "{:?}", began.elapsed());
            let stored = db.find(&id).await;
            assert_eq!((stored.status, stored.attempts, stored.lease), (Status::New, 0, None));

            let second = relay().on_type("e", seen.handler()).start().await.unwrap();
            seen.reach(2).await;
            second.idle().await.unwrap();
            assert_eq!(db.status(&id).await, Status::Done);
            second.stop().await.unwrap();
        }
    }

    /// With a handler that is faster than takes, and a long backlog, the queue always has free
    /// slots.
    async fn stop_takes_no_more_events(|db|) {
        db.write("e", 0..4_000).await;
        for exclusive in [true, false] {
            let seen = Seen::default();
            let store = failing_store::FailingStore::paced(db.outbox.store(), 20 * MS);
            let relay = if exclusive { RelayBuilder::single_node(store) } else { RelayBuilder::multi_node(store) };
            let relay = relay.batch(10).cold_capacity(10).on_type("e", seen.handler()).start().await.unwrap();
            seen.reach(1).await;
            let before = seen.count();
            relay.stop().await.unwrap();
            assert!(seen.count() < before + 500, "{before} before, {} after", seen.count());
        }
    }

    async fn dropping_a_relay_stops_it(|db|) {
        for exclusive in [true, false] {
            let (seen, gate) = (Seen::default(), Gate::closed());
            let relay = || if exclusive { db.outbox.single_node() } else { db.outbox.multi_node() };
            let first = relay().drain(50 * MS).on_type("e", seen.behind(&gate)).start().await.unwrap();
            db.write("e", 0..3).await;
            seen.reach(3).await;
            drop(first);
            // The next relay can start as soon as the first has released its lease.
            let other = db.another().await;
            let second = if exclusive { other.outbox.single_node() } else { other.outbox.multi_node() };
            let second = second.poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
            seen.reach(6).await;
            second.idle().await.unwrap();
            assert_eq!(db.status_counts().await.0, 0);
            second.stop().await.unwrap();
        }
    }

    /// An event that is committed while or after its relay stops has no lease.
    async fn an_event_committed_after_the_relay_stopped_has_no_lease(|db|) {
        if db.url().ends_with(".db") {
            return; // One writer: a relay cannot stop while a transaction is open.
        }
        for exclusive in [true, false] {
            let seen = Seen::default();
            let relay = || if exclusive { db.outbox.single_node() } else { db.outbox.multi_node() };
            let first = relay().on_type("e", seen.handler()).start().await.unwrap();
            let mut tx = db.outbox.begin().await.unwrap();
            tx.write(numbered("e", 1)).await.unwrap();
            let began = Instant::now();
            first.stop().await.unwrap();
            assert!(began.elapsed() < 30 * SEC, "an open transaction must not delay a stop: {:?}", began.elapsed());
            tx.commit().await.unwrap();
            let second = relay().poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
            seen.reach(1).await;
            second.idle().await.unwrap();
            second.stop().await.unwrap();
            assert_eq!(seen.count(), 1);
        }
    }

    async fn writes_race_with_a_stop_and_every_event_is_delivered(|db|) {
        for round in 0..4u64 {
            let seen = Seen::default();
            let relay = db.outbox.multi_node().on_type("e", seen.handler()).start().await.unwrap();
            let outbox = db.outbox.clone();
            let writer = tokio::spawn(async move {
                for n in 0..20 {
                    outbox.send(numbered("e", round * 20 + n)).await.unwrap();
                }
            });
            seen.reach(3).await;
            relay.stop().await.unwrap();
            writer.await.unwrap();
        }
        // Released events can be claimed now, or as soon as the last release is written.
        let seen = Seen::default();
        let relay = db.outbox.multi_node().poll_interval(10 * MS).on_type("e", seen.handler()).start().await.unwrap();
        db.drained().await;
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (0, 0, 80, 0));
    }

    async fn a_second_single_node_stands_by_and_takes_over(|db|) {
        let seen = Seen::default();
        let other = db.another().await;
        let first = db.outbox.single_node().node("first").on_type("e", seen.handler()).start().await.unwrap();
        let second = other.outbox.single_node().node("second").on_type("e", seen.handler()).start().await.unwrap();
        assert!(first.is_active() && !second.is_active());
        other.write("e", 0..5).await;
        assert_eq!(second.poll_once().await.unwrap(), 0, "it stands by");
        first.idle().await.unwrap();
        seen.reach(5).await;
        first.stop().await.unwrap();
        db.write("e", 5..10).await;
        seen.reach(10).await;
        assert!(second.is_active());
        second.idle().await.unwrap();
        seen.assert_each_once(0..10);
        let nodes: Vec<String> = seen.calls().into_iter().map(|call| call.node).collect();
        assert!(nodes[..5].iter().all(|n| n == "first") && nodes[5..].iter().all(|n| n == "second"), "{nodes:?}");
        second.stop().await.unwrap();
    }

    async fn several_nodes_claim_nothing_while_one_node_leads(|db|) {
        let seen = Seen::default();
        let other = db.another().await;
        let leader = db.outbox.single_node().node("leader").poll_interval(NEVER).skip_recent(NEVER)
            .on_type("e", seen.handler()).start().await.unwrap();
        let member = other.outbox.multi_node().node("member").no_hot_path().poll_interval(20 * MS)
            .on_type("e", seen.handler()).start().await.unwrap();
        db.another().await.write("e", 0..5).await;
        assert_eq!(member.poll_once().await.unwrap(), 0);
        assert_eq!(seen.count(), 0);
        leader.stop().await.unwrap();
        seen.reach(5).await;
        member.idle().await.unwrap();
        assert!(seen.calls().iter().all(|call| call.node == "member"));
        member.stop().await.unwrap();
    }

    async fn a_start_needs_tables_of_this_build(|db|) {
        let on = |table: &str| OutboxBuilder::new().table(table);
        let never = DB::open(on(&format!("{}x", db.table)), db.url()).await.unwrap();
        let started = never.single_node().start().await;
        let Err(Error::NotMigrated { table }) = started else { panic!("{started:?}") };
        assert_eq!(table, format!("{}x", db.table));
        let written = never.send(numbered("e", 1)).await;
        assert!(matches!(written, Err(Error::NotMigrated { .. })), "{written:?}");

        db.run("UPDATE {t}_schema SET version = 99").await.unwrap();
        for relay in [db.outbox.single_node(), db.outbox.multi_node(), db.outbox.writer_only()] {
            let started = relay.start().await;
            assert!(matches!(started, Err(Error::SchemaTooNew { found: 99, .. })), "{started:?}");
        }
        let migrated = db.outbox.migrate().await;
        assert!(matches!(migrated, Err(Error::SchemaTooNew { found: 99, .. })), "{migrated:?}");
        db.run("UPDATE {t}_schema SET version = 0").await.unwrap();
        let started = db.outbox.single_node().start().await;
        assert!(matches!(started, Err(Error::SchemaTooOld { found: 0, .. })), "{started:?}");
    }
}

/// Purge and poller are told to stop while a call of each is in progress: neither begins
/// another. The dispatcher stops after both: events of the last poll are delivered.
mod purge_poller_and_dispatcher_stop_in_this_order {
    use super::*;

    #[tokio::test]
    async fn sqlite() {
        stops_in_order::<sqlx::Sqlite>().await;
    }

    #[tokio::test]
    async fn postgres() {
        stops_in_order::<sqlx::Postgres>().await;
    }

    #[tokio::test]
    async fn mariadb() {
        stops_in_order::<sqlx::MySql>().await;
    }
}

async fn stops_in_order<DB: common::Backend>() {
    let Some(db) = TestDb::<DB>::new().await else { return };
    for purge_ends_first in [true, false] {
        let old = db.outbox.multi_node().on_any(async |_: Context| {}).start().await.unwrap();
        db.write("e", 0..3).await;
        old.idle().await.unwrap();
        old.stop().await.unwrap();

        db.write("e", 0..3).await;
        let (seen, store) = (Seen::default(), failing_store::FailingStore::stalling(db.outbox.store()));
        let purge = PurgeSettings::default().retention(Duration::ZERO).every(MS).batch(1);
        let relay = RelayBuilder::multi_node(store.clone())
            .poll_interval(MS)
            .purge(purge)
            .on_type("e", seen.handler());
        let relay = relay.start().await.unwrap();
        let (mut purges, mut takes) = (store.began(Operation::Purge), store.began(Operation::Take));
        common::in_time(purges.wait_for(|began| *began == 1)).await.unwrap();
        common::in_time(takes.wait_for(|began| *began == 1)).await.unwrap();
        let stopping = tokio::spawn(relay.stop());
        run_until_blocked(&stopping).await;
        if purge_ends_first {
            store.let_through(Operation::Purge);
            round_trips(&db).await;
            assert_eq!((*purges.borrow(), stopping.is_finished()), (1, false), "it waits for the poller");
            store.let_through(Operation::Take);
        } else {
            store.let_through(Operation::Take);
            seen.reach(3).await;
            round_trips(&db).await;
            assert!(!stopping.is_finished(), "it waits for the purge");
            store.let_through(Operation::Purge);
        }
        common::in_time(stopping).await.unwrap().unwrap();
        assert_eq!((*purges.borrow(), *takes.borrow()), (1, 1), "nothing begins after the stop");
        seen.assert_each_once(0..3);
        db.drained().await;
    }
}

/// Lets a task run as far as it can, on a single-threaded runtime.
async fn run_until_blocked<T>(task: &tokio::task::JoinHandle<T>) {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!task.is_finished());
}

/// Makes some queries: time for any task that is not blocked.
async fn round_trips<DB: common::Backend>(db: &TestDb<DB>) {
    for _ in 0..100 {
        db.status_counts().await;
    }
}

async fn fresh() -> TestDb<sqlx::Sqlite> {
    TestDb::new().await.unwrap()
}

#[tokio::test]
async fn an_outbox_has_one_relay_at_a_time() {
    let db = fresh().await;
    type Mode = fn(&TestDb<sqlx::Sqlite>) -> RelayBuilder<sqlx::Sqlite>;
    let modes: [Mode; 3] =
        [|db| db.outbox.single_node(), |db| db.outbox.multi_node(), |db| db.outbox.ordered()];
    for first in modes {
        for second in modes {
            let running = first(&db).start().await.unwrap();
            let refused = second(&db).start().await;
            assert!(matches!(refused, Err(Error::Lifecycle(_))), "{refused:?}");
            running.stop().await.unwrap();
        }
    }
    let (a, b) = tokio::join!(db.outbox.multi_node().start(), db.outbox.multi_node().start());
    assert!(a.is_ok() != b.is_ok(), "two at once: {a:?}, {b:?}");
}

#[tokio::test]
async fn a_start_after_close_is_an_error() {
    let db = fresh().await;
    db.outbox.close().await;
    for relay in [db.outbox.single_node(), db.outbox.multi_node(), db.outbox.writer_only()] {
        let started = relay.start().await;
        assert!(started.is_err());
    }
    assert!(db.outbox.send(numbered("e", 1)).await.is_err());
}

#[tokio::test]
async fn a_setting_out_of_range_is_an_error_that_names_it() {
    let db = fresh().await;
    let zero = Duration::ZERO;
    let purge = PurgeSettings::default;
    type Builder = RelayBuilder<sqlx::Sqlite>;
    type Set = Box<dyn FnOnce(Builder) -> Builder>;
    let settings: Vec<(&str, Set)> = vec![
        ("workers", Box::new(|r| r.workers(0))),
        ("workers", Box::new(|r| r.workers(usize::MAX))),
        ("hot_capacity", Box::new(|r| r.hot_capacity(0))),
        ("hot_capacity", Box::new(|r| r.hot_capacity(usize::MAX))),
        ("cold_capacity", Box::new(|r| r.cold_capacity(0))),
        ("cold_capacity", Box::new(|r| r.cold_capacity(usize::MAX))),
        ("batch", Box::new(|r| r.batch(0))),
        ("batch", Box::new(|r| r.batch(usize::MAX))),
        ("poll_interval", Box::new(move |r| r.poll_interval(zero))),
        ("handler_timeout", Box::new(move |r| r.handler_timeout(zero))),
        ("lease", Box::new(move |r| r.lease(zero))),
        ("lease", Box::new(|r| r.lease(Duration::MAX))),
        ("drain", Box::new(|r| r.drain(Duration::MAX))),
        ("settle_linger", Box::new(|r| r.settle_linger(Duration::MAX))),
        ("node", Box::new(|r| r.node(""))),
        ("node", Box::new(|r| r.node("n".repeat(129)))),
        ("purge batch", Box::new(move |r| r.purge(purge().batch(0)))),
        ("purge interval", Box::new(move |r| r.purge(purge().every(zero)))),
    ];
    for (name, set) in settings {
        let started = set(db.outbox.multi_node()).start().await;
        let Err(Error::Setting { reason: text, .. }) = started else { panic!("{name}: {started:?}") };
        assert!(text.contains(name), "{text:?} does not name {name}");
    }
    let largest = db.outbox.multi_node().poll_interval(Duration::MAX).handler_timeout(Duration::MAX);
    let seen = Seen::default();
    let relay = largest.skip_recent(zero).on_type("e", seen.handler()).start().await.unwrap();
    db.write("e", 0..1).await;
    seen.reach(1).await;
    relay.stop().await.unwrap();
}

/// A task left running would make the next start fail.
#[tokio::test]
async fn a_failed_start_releases_everything() {
    let db = fresh().await;
    db.run("UPDATE {t}_schema SET version = version + 99").await.unwrap();
    db.outbox.single_node().start().await.unwrap_err();
    db.run("UPDATE {t}_schema SET version = version - 99").await.unwrap();
    let seen = Seen::default();
    let other = db.another().await;
    let relay = other.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
    assert!(relay.is_active(), "the failed start holds no lease");
    relay.stop().await.unwrap();
    let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
    db.write("e", 0..1).await;
    seen.reach(1).await;
    relay.stop().await.unwrap();
}

/// The hot path is claimed and the relay is announced when the database refuses to let it lead.
#[tokio::test]
async fn a_start_that_fails_half_way_releases_everything() {
    let db = fresh().await;
    db.run("ALTER TABLE {t}_lease RENAME TO {t}_away").await.unwrap();
    db.outbox.single_node().node("first").start().await.unwrap_err();
    db.run("ALTER TABLE {t}_away RENAME TO {t}_lease").await.unwrap();
    let nodes = db.outbox.admin().nodes().await.unwrap();
    assert!(nodes.is_empty(), "a relay that does not run is not announced: {nodes:?}");
    let seen = Seen::default();
    let relay = db.outbox.single_node().node("second").on_type("e", seen.handler()).start().await.unwrap();
    assert!(relay.is_active(), "the hot path is free, and no relay leads");
    db.write("e", 0..1).await;
    seen.reach(1).await;
    relay.stop().await.unwrap();
}

#[tokio::test]
async fn a_relay_can_be_started_again_after_a_stop() {
    let db = fresh().await;
    let seen = Seen::default();
    for n in 0..3 {
        let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
        db.write("e", n..n + 1).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
    }
    seen.assert_each_once(0..3);
}

/// A handler that blocks its thread cannot be cancelled. The relay keeps the lease of its event, so
/// no other node claims it, and the stop returns all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_cannot_be_cancelled_keeps_its_event() {
    let db = fresh().await;
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Arc::new(std::sync::Mutex::new(blocked));
    let relay = db.outbox.multi_node().drain(20 * MS).on_type("e", move |_: Context| {
        started.send(()).unwrap();
        let _ = blocked.lock().unwrap().recv();
        async {}
    });
    let relay = relay.start().await.unwrap();
    let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
    starts.recv().await.unwrap();
    relay.stop().await.unwrap();
    assert!(db.find(&id).await.lease.is_some());
    drop(release);
}

/// An event that was handled after leadership had lapsed is settled if no other node has led since;
/// it is not handled again.
#[ignore = "takes 20 s: cargo test -p outbox --test lifecycle -- --ignored"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_handled_during_a_lapse_of_leadership_is_settled() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    // Leadership is renewed every 5 s, then retried five times a second: unavailable from before
    // its end at 15 s to some time after.
    let store =
        failing_store::FailingStore::lead(db.outbox.store(), 65, || Error::Store("unavailable".into()));
    store.after(1);
    let seen = Seen::default();
    let recorded = seen.clone();
    let relay = RelayBuilder::single_node(store).poll_interval(100 * MS).on_type("e", move |cx: Context| {
        let seen = recorded.clone();
        async move {
            seen.record(&cx);
            if seen.count() == 1 {
                tokio::time::sleep(16 * SEC).await;
            }
        }
    });
    let relay = relay.start().await.unwrap();
    db.write("e", 0..1).await;
    seen.reach(1).await;
    db.drained().await;
    common::in_time(relay.idle()).await.unwrap();
    assert_eq!((db.status_counts().await, seen.count()), ((0, 0, 1, 0), 1));
    relay.stop().await.unwrap();
}
