//! Tasks of a relay that panic: a task restarts without loss of events, or the relay ends with an
//! error.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{Gate, Seen, TestDb, in_time, numbered, until};
use failing_store::{FailingStore, Operation};
use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use outbox::store::{RelayTask, Status, Store as _};
use outbox::{Backoff, Error, Outgoing, PublishError, Publisher, PurgeSettings, RelayBuilder, Topic};
use sqlx::Sqlite;

const MS: Duration = Duration::from_millis(1);

/// Panics instead of returning an error.
fn boom() -> Error {
    panic!("out of order")
}

/// Asserts that the relay ended because of this task.
#[track_caller]
fn assert_failed(ended: outbox::Result<()>, by: RelayTask, words: &str) {
    match ended {
        Err(Error::TaskFailed { task, cause }) => {
            assert_eq!(task, by, "{cause}");
            assert!(cause.contains(words), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

on_every_database! {
    async fn taking_continues_after_panics(|db|) {
        let store = FailingStore::take(db.outbox.store(), 3, boom);
        db.write("e", 0..20).await;
        let seen = Seen::default();
        let relay = RelayBuilder::multi_node(store.clone()).on_type("e", seen.handler()).start().await.unwrap();
        seen.reach(20).await;
        db.drained().await;
        assert_eq!(store.failed(), 3, "all panics happened");
        seen.assert_each_once(0..20);
        assert!(relay.health().last_take.is_some() && relay.health().errors.is_empty(), "{:?}", relay.health());
        relay.stop().await.unwrap();
    }

    /// The verdicts of a settler that panicked are written by its successor: no handler runs twice,
    /// and keys stay in order.
    async fn no_verdict_is_lost_when_the_settler_panics(|db|) {
        for exclusive in [false, true] {
            let store = FailingStore::settle(db.outbox.store(), 3, boom);
            store.after(1);
            let seen = Seen::default();
            let relay = if exclusive { RelayBuilder::single_node(store.clone()) } else { RelayBuilder::multi_node(store.clone()) };
            // The fifth event of each key fails once: the later events are released, and delivered
            // again.
            let handler = seen.returning(|cx| match (cx.payload::<u64>(), cx.attempt()) {
                (Ok(n), 1) if n / 4 == 5 => Err(outbox::Failure::retry("once")),
                _ => Ok(outbox::Outcome::Done),
            });
            let relay = relay.on_type("e", handler).retry(Backoff::default().base(10 * MS).max(10 * MS)).poll_interval(5 * MS)
                .start().await.unwrap();
            let keyed = (0..40).map(|n| numbered("e", n).ordering_key(format!("k{}", n % 4)));
            db.outbox.send_all(keyed).await.unwrap();
            db.drained().await;
            assert_eq!(store.failed(), 3, "all panics happened");
            for key in 0..4 {
                let mut expected: Vec<u64> = (0..10).map(|n| n * 4 + key).collect();
                expected.insert(5, 20 + key);
                assert_eq!(seen.of_key(&format!("k{key}")), expected, "exclusive: {exclusive}");
            }
            assert!(relay.health().last_settlement.is_some());
            relay.stop().await.unwrap();
        }
    }

    /// Its events are released at once.
    async fn a_taker_that_keeps_panicking_ends_the_relay_and_another_relay_continues(|db|) {
        let store = FailingStore::take(db.outbox.store(), usize::MAX, boom);
        store.after(1);
        db.write("e", 0..3).await;
        let (seen, gate) = (Seen::default(), Gate::closed());
        let relay = RelayBuilder::multi_node(store.clone()).batch(1).cold_capacity(1).workers(1)
            .on_type("e", seen.behind(&gate)).drain(50 * MS).poll_interval(5 * MS).start().await.unwrap();
        seen.reach(1).await;
        assert_failed(relay.stopped().await, RelayTask::Take, "5 panics within 60 s, the last: out of order");
        assert!(relay.poll_once().await.is_err() && relay.idle().await.is_err());
        assert!(relay.health().ended.is_some());
        assert_failed(relay.stop().await, RelayTask::Take, "out of order");

        let others = Seen::default();
        let relay = db.outbox.multi_node().on_type("e", others.handler()).start().await.unwrap();
        db.drained().await;
        others.assert_each_once(0..3);
        relay.stop().await.unwrap();
    }

    /// Its verdicts are not written: the events are not released, and are delivered again when
    /// their leases expire.
    async fn a_settler_that_keeps_panicking_ends_the_relay_and_leases_expire(frozen |db|) {
        let store = FailingStore::settle(db.outbox.store(), usize::MAX, boom);
        let ids = db.write("e", 0..3).await;
        let seen = Seen::default();
        let lease = Duration::from_secs(10);
        let relay = RelayBuilder::multi_node(store.clone()).on_type("e", seen.handler()).drain(50 * MS)
            .lease(lease).start().await.unwrap();
        seen.reach(3).await;
        assert_failed(relay.stopped().await, RelayTask::Settle, "out of order");
        assert_failed(relay.stop().await, RelayTask::Settle, "out of order");
        assert_eq!(db.status(&ids[0]).await, Status::New, "nothing was written");

        let others = Seen::default();
        let relay = db.outbox.multi_node().poll_interval(20 * MS).on_type("e", others.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!(others.count(), 0, "the events are leased");
        db.advance(lease);
        db.drained().await;
        others.assert_each_once(0..3);
        relay.stop().await.unwrap();
    }
}

async fn sqlite() -> TestDb<Sqlite> {
    TestDb::new().await.expect("SQLite is always available")
}

/// Tasks besides delivery: after panics they restart, and events are delivered meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_continues_while_other_tasks_panic() {
    for at in [
        Operation::InsertNotifier,
        Operation::Announce,
        Operation::Purge,
        Operation::Extend,
        Operation::Listen,
    ] {
        in_time(async {
            let db = sqlite().await;
            let store = FailingStore::new(db.outbox.store(), at, 2, boom);
            // A relay announces itself once before it starts.
            store.after(usize::from(at == Operation::Announce));
            let (seen, gate) = (Seen::default(), Gate::closed());
            let purge = PurgeSettings::default().every(20 * MS).retention(Duration::ZERO);
            let log = Kept::default();
            let relay = RelayBuilder::multi_node(store.clone())
                .on_type("e", seen.handler())
                .on_type("slow", seen.behind(&gate))
                .purge(purge)
                .publish(Topic::new("all").to(log.clone()))
                .lease(2_000 * MS)
                .presence(2_000 * MS)
                .start()
                .await
                .unwrap();
            // Running until its lease is renewed after two panics.
            db.write("slow", 0..1).await;
            until("both calls fail", async || store.failed() == 2).await;
            db.write("e", 1..5).await;
            db.outbox.log().append([numbered("e", 7)]).await.unwrap();
            seen.reach(5).await;
            gate.open();
            until("the log is published", async || log.0.load(Ordering::SeqCst) == 1).await;
            until("the event is purged", async || db.status_counts().await == (0, 0, 0, 0)).await;
            until("the relay announces itself", async || store.nodes().await.unwrap().len() == 1).await;
            assert_eq!(seen.count(), 5, "{at:?}: no event twice");
            until("the relay recovers", async || relay.health().errors.is_empty()).await;
            relay.stop().await.unwrap();
        })
        .await;
    }
}

/// Counts published events.
#[derive(Clone, Default)]
struct Kept(Arc<AtomicUsize>);

#[async_trait]
impl Publisher for Kept {
    fn name(&self) -> &'static str {
        "kept"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.0.fetch_add(events.len(), Ordering::SeqCst);
        Ok(())
    }
}

/// A worker calls `name` outside of its panic guard.
struct Nameless;

#[async_trait]
impl Publisher for Nameless {
    fn name(&self) -> &'static str {
        panic!("no name")
    }

    async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
        Ok(())
    }
}

/// The state of its events is unknown: they are delivered again when their lease expires, and all
/// others at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_panics_ends_the_relay_and_its_events_are_delivered_again() {
    in_time(async {
        let db = sqlite().await;
        let seen = Seen::default();
        let relay = db
            .outbox
            .multi_node()
            .forward(["bad"], Nameless)
            .on_type("e", seen.handler())
            .lease(1_500 * MS)
            .drain(200 * MS)
            .start()
            .await
            .unwrap();
        db.write("bad", 0..1).await;
        assert_failed(relay.stopped().await, RelayTask::Dispatch, "it panicked: no name");
        assert_failed(relay.stop().await, RelayTask::Dispatch, "no name");
        db.write("e", 1..3).await;
        let relay = db
            .outbox
            .multi_node()
            .poll_interval(20 * MS)
            .on_type("bad", seen.handler())
            .on_type("e", seen.handler())
            .start()
            .await
            .unwrap();
        db.drained().await;
        seen.assert_each_once(0..3);
        relay.stop().await.unwrap();
    })
    .await;
}

/// A recorder one of whose counters panics this many times.
struct Panics {
    of: &'static str,
    left: Arc<Left>,
}

struct Left(AtomicUsize);

impl CounterFn for Left {
    fn increment(&self, _: u64) {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        assert!(left.is_err(), "the recorder is broken");
    }

    fn absolute(&self, _: u64) {}
}

impl Panics {
    fn of(of: &'static str, times: usize) -> Self {
        Self { of, left: Arc::new(Left(times.into())) }
    }

    fn left(&self) -> usize {
        self.left.0.load(Ordering::SeqCst)
    }
}

impl Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == self.of { Counter::from_arc(self.left.clone()) } else { Counter::noop() }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Between the claim and the queue: leases of these events would be renewed for ever, and the
/// events never handled.
#[tokio::test]
async fn a_panic_after_events_were_claimed_ends_the_relay_at_once() {
    in_time(async {
        let db = sqlite().await;
        db.write("e", 0..3).await;
        let recorder = Panics::of("outbox.enqueue.cold", 1);
        let mine = metrics::set_default_local_recorder(&recorder);
        let seen = Seen::default();
        let relay =
            db.outbox.multi_node().on_type("e", seen.handler()).lease(1_500 * MS).start().await.unwrap();
        assert_failed(relay.stopped().await, RelayTask::Take, "it panicked: the recorder is broken");
        assert_failed(relay.stop().await, RelayTask::Take, "broken");
        drop(mine);
        assert_eq!((recorder.left(), seen.count()), (0, 0));
        let relay = db.outbox.multi_node().on_type("e", seen.handler()).start().await.unwrap();
        db.drained().await;
        seen.assert_each_once(0..3);
        relay.stop().await.unwrap();
    })
    .await;
}

/// Publishing continues from the position in the table, in order.
#[tokio::test]
async fn publishing_the_log_continues_after_panics() {
    in_time(async {
        let db = sqlite().await;
        let recorder = Panics::of("outbox.log.published", 2);
        let _mine = metrics::set_default_local_recorder(&recorder);
        let order = Order::default();
        let relay = RelayBuilder::log_only(db.outbox.store())
            .publish(Topic::new("all").to(order.clone()).batch(1))
            .subscription_lease(300 * MS)
            .start()
            .await
            .unwrap();
        for n in 0..10 {
            db.outbox.log().append([numbered("e", n)]).await.unwrap();
        }
        until("the last event is handled", async || order.last() == Some(9)).await;
        relay.idle().await.unwrap();
        assert_eq!(recorder.left(), 0, "all panics happened");
        let seen = order.0.lock().unwrap().clone();
        // Events that were published again after leadership had lapsed have another epoch.
        assert!(seen.is_sorted(), "in order: {seen:?}");
        let mut seen: Vec<u64> = seen.into_iter().map(|(_, number)| number).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..10).collect::<Vec<_>>(), "unsaved events are published again, none is missing");
        relay.stop().await.unwrap();
    })
    .await;
}

/// Keeps the epochs and numbers of published events, in order.
#[derive(Clone, Default)]
struct Order(Arc<std::sync::Mutex<Vec<(i64, u64)>>>);

impl Order {
    fn last(&self) -> Option<u64> {
        self.0.lock().unwrap().last().map(|(_, number)| *number)
    }
}

#[async_trait]
impl Publisher for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let published = events.iter().map(|event| (event.epoch().unwrap(), event.payload::<u64>().unwrap()));
        self.0.lock().unwrap().extend(published);
        Ok(())
    }
}
