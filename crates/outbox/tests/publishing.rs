//! How the log reaches its publishers: in order, each at its own position, whatever the others do.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::{Backend, FOREVER, Poll, TestDb, until};
use outbox::{
    Error, Event, EventBuilder, Failure, Outbox, Outgoing, Position, PublishError, Publisher, Subscription,
    SubscriptionStatus, Topic, Unavailable,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
/// A delay that never ends in a test.
const NEVER: Duration = Duration::from_secs(3_600);
/// Lease of a pair where the test moves the clock.
const LEASE: Duration = Duration::from_secs(3);

type PublishFn = dyn Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync;

/// A publisher that keeps its events, with configurable results.
#[derive(Clone)]
struct Sink {
    name: Arc<str>,
    kept: Arc<Mutex<Vec<Outgoing>>>,
    calls: Arc<AtomicUsize>,
    healthy: Arc<AtomicBool>,
    result: Arc<Mutex<Arc<PublishFn>>>,
    hangs: Arc<AtomicBool>,
}

impl Sink {
    fn named(name: &str) -> Self {
        let result: Arc<PublishFn> = Arc::new(|_| Ok(()));
        Self {
            name: name.into(),
            kept: Arc::default(),
            calls: Arc::default(),
            healthy: Arc::new(AtomicBool::new(true)),
            result: Arc::new(Mutex::new(result)),
            hangs: Arc::default(),
        }
    }

    /// Sets the result of later batches. Events of successful batches are kept.
    fn returning(&self, result: impl Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync + 'static) {
        *self.result.lock().unwrap() = Arc::new(result);
    }

    fn works(&self) {
        self.returning(|_| Ok(()));
        self.hangs.store(false, Ordering::Relaxed);
        self.healthy.store(true, Ordering::Relaxed);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn numbers(&self) -> Vec<u64> {
        self.kept.lock().unwrap().iter().map(|event| event.payload().unwrap()).collect()
    }

    /// Waits until it has kept this many events.
    async fn reach(&self, count: usize) {
        let has_kept = async || {
            let numbers = self.numbers();
            if numbers.len() >= count { Ok(()) } else { Err(numbers) }
        };
        Poll::DEFAULT.value(&format!("{} has kept {count} events", self.name), has_kept).await;
    }

    /// Asserts that events were kept in the order of positions, each once.
    #[track_caller]
    fn assert_in_order(&self) {
        let kept = self.kept.lock().unwrap();
        let positions: Vec<Position> = kept.iter().map(|event| event.position().unwrap()).collect();
        assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
    }
}

#[async_trait]
impl Publisher for Sink {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let result = self.result.lock().unwrap().clone();
        result(events)?;
        self.kept.lock().unwrap().extend_from_slice(events);
        Ok(())
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(self.healthy.load(Ordering::Relaxed), "it is not healthy")
    }
}

/// A pair with retry delays that are short enough for a test.
fn quick(subscription: Subscription) -> Subscription {
    subscription.retry(5 * MS, 20 * MS)
}

fn event(event_type: &str, number: u64) -> EventBuilder {
    Event::new(event_type).tag("n", number % 10).json(&number)
}

async fn append<DB: Backend>(outbox: &Outbox<DB>, event_type: &str, numbers: std::ops::Range<u64>) {
    outbox.log().append(numbers.map(|n| event(event_type, n))).await.unwrap();
}

/// State of a pair.
async fn subscription_state<DB: Backend>(
    db: &TestDb<DB>,
    topic: &str,
    publisher: &str,
) -> outbox::SubscriptionState {
    let subscriptions = db.outbox.log_admin().subscriptions().await.unwrap();
    subscriptions
        .into_iter()
        .find(|subscription| subscription.id.topic() == topic && subscription.id.publisher() == publisher)
        .expect("a row")
}

/// Waits until the state of a pair matches.
async fn until_state<DB: Backend>(
    db: &TestDb<DB>,
    topic: &str,
    publisher: &str,
    matches_state: impl Fn(&outbox::SubscriptionState) -> bool,
) {
    let is_reached = async || {
        let state = subscription_state(db, topic, publisher).await;
        if matches_state(&state) { Ok(()) } else { Err(state) }
    };
    Poll::DEFAULT.value("the pair has the expected state", is_reached).await;
}

/// Name of the progress table.
fn progress<DB: Backend>(db: &TestDb<DB>) -> String {
    format!("{}_topic_progress", db.table)
}

on_every_database! {
    async fn every_publisher_gets_the_events_of_its_topic_in_order_and_skips_the_others(|db|) {
        let (all, sparse) = (Sink::named("all"), Sink::named("sparse"));
        append(&db.outbox, "A", 0..150).await;
        let relay = db.outbox.log_only()
            .publish(Topic::new("everything").to(all.clone()).batch(7))
            .publish(Topic::new("some").types(["A"]).tag("n", 3).to(sparse.clone()))
            .start().await.unwrap();
        append(&db.outbox, "A", 150..200).await;
        append(&db.outbox, "B", 200..300).await;
        relay.idle().await.unwrap();
        all.assert_in_order();
        assert_eq!(all.numbers(), (0..300).collect::<Vec<_>>());
        sparse.assert_in_order();
        assert_eq!(sparse.numbers(), (0..200).filter(|n| n % 10 == 3).collect::<Vec<_>>());
        relay.stop().await.unwrap();

        // The last hundred events do not match its topic, and it does not read them again.
        let head = db.outbox.log().head().await.unwrap();
        assert_eq!(subscription_state(&db, "some", "sparse").await.position, head);
        assert_eq!(subscription_state(&db, "everything", "all").await.position, head);
        let lag = db.outbox.log_admin().lag().await.unwrap();
        assert!(lag.iter().all(|subscription| subscription.behind == 0), "{lag:?}");
    }

    async fn a_restart_continues_at_the_saved_position(|db|) {
        for round in 0..3 {
            let sink = Sink::named("sink");
            let relay = db.outbox.log_only().publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
            append(&db.outbox, "A", round * 10..round * 10 + 10).await;
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            assert_eq!(sink.numbers(), (round * 10..round * 10 + 10).collect::<Vec<_>>());
        }
        let state = subscription_state(&db, "t", "sink").await;
        assert_eq!((state.leader, state.epoch), (None, 3));
    }

    async fn from_now_skips_earlier_events(|db|) {
        append(&db.outbox, "A", 0..10).await;
        let sink = Sink::named("sink");
        let relay =
            db.outbox.log_only().publish(Topic::new("t").to(sink.clone()).from_now()).start().await.unwrap();
        append(&db.outbox, "A", 10..12).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers(), [10, 11]);
    }

    /// The failing publisher is retried until it succeeds.
    async fn a_publisher_that_fails_does_not_affect_the_others_and_recovers(|db|) {
        let (good, bad) = (Sink::named("good"), Sink::named("bad"));
        bad.returning(|_| Err(Failure::retry("no route to host").into()));
        let topic = Topic::new("t");
        let relay = db.outbox.log_only()
            .publish(topic.to(good.clone()))
            .publish(quick(topic.to(bad.clone())))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..20).await;
        good.reach(20).await;
        until_state(&db, "t", "bad", |state| state.status == SubscriptionStatus::Failed && state.error_count >= 6).await;
        let state = subscription_state(&db, "t", "bad").await;
        assert_eq!((state.position, state.last_error.as_deref()), (Position::START, Some("no route to host")));
        bad.works();
        bad.reach(20).await;
        relay.idle().await.unwrap();
        bad.assert_in_order();
        let state = subscription_state(&db, "t", "bad").await;
        assert_eq!((state.status, state.error_count, state.last_error), (SubscriptionStatus::Active, 0, None));
        relay.stop().await.unwrap();
        assert_eq!((good.numbers(), bad.numbers()), ((0..20).collect(), (0..20).collect()));
    }

    /// The batch is halved until only the failing event is left: the events before it are
    /// published.
    async fn an_event_that_cannot_be_published_blocks_only_later_events(|db|) {
        let sink = Sink::named("sink");
        sink.returning(|events| {
            let poison = events.iter().any(|event| event.payload::<u64>().unwrap() == 13);
            if poison { Err(Failure::retry("unlucky").into()) } else { Ok(()) }
        });
        append(&db.outbox, "A", 0..20).await;
        let relay =
            db.outbox.log_only().publish(quick(Topic::new("t").to(sink.clone()))).start().await.unwrap();
        sink.reach(13).await;
        until_state(&db, "t", "sink", |state| state.status == SubscriptionStatus::Failed).await;
        assert_eq!(sink.numbers(), (0..13).collect::<Vec<_>>());
        sink.works();
        sink.reach(20).await;
        relay.idle().await.unwrap();
        sink.assert_in_order();
        relay.stop().await.unwrap();
    }

    async fn events_that_a_publisher_reports_as_published_are_not_sent_again(|db|) {
        let sink = Sink::named("sink");
        let (kept, first) = (sink.kept.clone(), AtomicBool::new(true));
        sink.returning(move |events| {
            if events.len() > 4 && first.swap(false, Ordering::Relaxed) {
                kept.lock().unwrap().extend_from_slice(&events[..4]);
                return Err(PublishError::after(4, Failure::retry("cut off")));
            }
            Ok(())
        });
        append(&db.outbox, "A", 0..20).await;
        let relay =
            db.outbox.log_only().publish(quick(Topic::new("t").to(sink.clone()))).start().await.unwrap();
        sink.reach(20).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        sink.assert_in_order();
        assert_eq!(sink.numbers(), (0..20).collect::<Vec<_>>());
    }

    /// One publisher panics, one hangs, one reports more events than it was given.
    async fn a_publisher_that_misbehaves_affects_only_itself(|db|) {
        let names = ["good", "panics", "hangs", "lies"];
        let [good, panics, hangs, lies] = names.map(Sink::named);
        panics.returning(|_| panic!("boom"));
        hangs.hangs.store(true, Ordering::Relaxed);
        lies.returning(|_| Err(PublishError::after(9_999, Failure::retry("more than there is"))));
        let mut relay = db.outbox.log_only();
        for sink in [&good, &panics, &hangs, &lies] {
            relay = relay.publish(quick(Topic::new("t").to(sink.clone())).timeout(50 * MS));
        }
        let relay = relay.start().await.unwrap();
        append(&db.outbox, "A", 0..10).await;
        good.reach(10).await;
        for (name, error) in [("panics", "the publisher panicked: boom"), ("hangs", "the publisher did not finish within 50ms")] {
            until_state(&db, "t", name, |state| state.last_error.as_deref() == Some(error)).await;
        }
        panics.works();
        hangs.works();
        panics.reach(10).await;
        hangs.reach(10).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((panics.numbers(), hangs.numbers()), ((0..10).collect(), (0..10).collect()));
        assert!(subscription_state(&db, "t", "lies").await.last_error.is_some());
    }

    /// Case 7: its health is checked, and while it is unhealthy nothing is sent and no error is
    /// counted.
    async fn nothing_is_sent_to_an_unhealthy_publisher(|db|) {
        let sink = Sink::named("sink");
        sink.healthy.store(false, Ordering::Relaxed);
        let relay = db.outbox.log_only().publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        until_state(&db, "t", "sink", |state| state.last_error.is_some()).await;
        let state = subscription_state(&db, "t", "sink").await;
        assert_eq!((state.status, state.error_count, sink.calls()), (SubscriptionStatus::Active, 0, 0));
        sink.works();
        sink.reach(5).await;
        relay.idle().await.unwrap();
        assert_eq!(subscription_state(&db, "t", "sink").await.last_error, None);
        relay.stop().await.unwrap();
    }

    async fn pause_and_resume_and_reset_by_the_library(frozen |db|) {
        let (sink, other) = (Sink::named("sink"), Sink::named("other"));
        let relay = db.outbox.log_only().subscription_lease(LEASE)
            .publish(Topic::new("t").to(sink.clone()))
            .publish(Topic::new("t").to(other.clone()))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        relay.idle().await.unwrap();
        let admin = db.outbox.log_admin();
        admin.pause("sink").await.unwrap();
        db.noticed_by_leader("sink", LEASE).await;
        // Both pairs read the same events; a batch that was sent to the paused one is in flight by
        // the time that the other has received it.
        append(&db.outbox, "A", 5..10).await;
        other.reach(10).await;
        relay.idle().await.unwrap();
        assert_eq!(sink.numbers().len(), 5);
        assert_eq!(subscription_state(&db, "t", "sink").await.status, SubscriptionStatus::Paused);
        admin.resume("sink").await.unwrap();
        sink.reach(10).await;
        relay.idle().await.unwrap();

        let third = sink.kept.lock().unwrap()[2].position().unwrap();
        admin.reset("t", "sink", third).await.unwrap();
        sink.reach(17).await;
        relay.idle().await.unwrap();
        assert_eq!(sink.numbers()[10..], [3, 4, 5, 6, 7, 8, 9]);
        relay.stop().await.unwrap();

        let head = db.outbox.log().head().await.unwrap();
        let beyond = admin.reset("t", "sink", Position::new(head.get() + 1)).await;
        assert!(matches!(beyond, Err(Error::BeyondHead { .. })), "{beyond:?}");
        for unknown in [admin.pause("unknown").await.map(drop), admin.reset("t", "unknown", head).await] {
            assert!(matches!(unknown, Err(Error::UnknownSubscription { .. })), "{unknown:?}");
        }
    }

    /// The statements are those of the specification.
    async fn pause_and_resume_and_reset_by_sql(frozen |db|) {
        let (sink, other) = (Sink::named("sink"), Sink::named("other"));
        sink.returning(|_| Err(Failure::retry_after(NEVER, "down").into()));
        let relay = db.outbox.log_only().subscription_lease(LEASE)
            .publish(Topic::new("t").to(sink.clone()))
            .publish(Topic::new("t").to(other.clone()))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        until_state(&db, "t", "sink", |state| state.error_count == 1).await;
        let progress = progress(&db);
        sink.works();
        // It would wait for an hour, but an operator resets its state.
        db.run(&format!("UPDATE {progress} SET status = 'ACTIVE', error_count = 0, last_error = NULL WHERE publisher = 'sink'"))
            .await.unwrap();
        sink.reach(5).await;
        relay.idle().await.unwrap();
        db.run(&format!("UPDATE {progress} SET status = 'PAUSED' WHERE publisher = 'sink'")).await.unwrap();
        db.noticed_by_leader("sink", LEASE).await;
        append(&db.outbox, "A", 5..6).await;
        other.reach(6).await;
        relay.idle().await.unwrap();
        assert_eq!(sink.numbers().len(), 5);
        db.run(&format!("UPDATE {progress} SET status = 'ACTIVE' WHERE publisher = 'sink'")).await.unwrap();
        sink.reach(6).await;
        relay.idle().await.unwrap();
        // An operator sets the position while the relay leads.
        db.run(&format!("UPDATE {progress} SET last_position = 0 WHERE publisher = 'sink'")).await.unwrap();
        sink.reach(12).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers(), [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    }

    /// The interval is an hour: only a wake-up can be the reason.
    async fn an_append_is_seen_at_once_in_its_own_process_and_by_polling_in_others(|db|) {
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().log_watch(NEVER)
            .publish(Topic::new("t").to(sink.clone()).every(NEVER)).start().await.unwrap();
        relay.idle().await.unwrap();
        append(&db.outbox, "A", 0..1).await;
        sink.reach(1).await;
        let mut tx = db.outbox.begin().await.unwrap();
        tx.append([event("A", 1)]).await.unwrap();
        tx.commit().await.unwrap();
        sink.reach(2).await;
        relay.stop().await.unwrap();

        let relay = db.outbox.log_only().log_watch(20 * MS)
            .publish(Topic::new("t").to(sink.clone()).every(NEVER)).start().await.unwrap();
        relay.idle().await.unwrap();
        append(&db.another().await.outbox, "A", 2..3).await;
        sink.reach(3).await;
        relay.stop().await.unwrap();
    }

    /// C-04. An hour: the second batch is not sent in this test, and the other publisher does not
    /// wait for it.
    async fn a_publisher_with_an_interval_gets_one_batch_in_that_time(|db|) {
        let (slow, fast) = (Sink::named("slow"), Sink::named("fast"));
        let relay = db.outbox.log_only()
            .publish(Topic::new("t").to(slow.clone()).batch(2).interval(NEVER))
            .publish(Topic::new("t").to(fast.clone()).batch(2)).start().await.unwrap();
        append(&db.outbox, "A", 0..6).await;
        fast.reach(6).await;
        relay.idle().await.unwrap();
        append(&db.outbox, "A", 6..8).await;
        fast.reach(8).await;
        relay.idle().await.unwrap();
        assert_eq!((slow.numbers(), slow.calls()), (vec![0, 1], 1));
        relay.stop().await.unwrap();

        // After a restart it publishes at once, and then at its interval.
        let began = Instant::now();
        let relay = db.outbox.log_only()
            .publish(Topic::new("t").to(slow.clone()).batch(2).interval(200 * MS)).start().await.unwrap();
        slow.reach(8).await;
        assert!(began.elapsed() >= 400 * MS, "three batches have two pauses between them");
        relay.stop().await.unwrap();
        assert_eq!(slow.numbers(), (0..8).collect::<Vec<_>>());
        assert_eq!(slow.calls(), 4);
    }

    /// No event is lost or published twice, and each node leads its share. A relay that has stopped
    /// leads nothing, although its leases would last for some seconds more.
    async fn nodes_share_the_pairs_and_a_clean_stop_releases_them_at_once(|db|) {
        let sinks: Vec<Sink> = (0..12).map(|n| Sink::named(&format!("p{n:02}"))).collect();
        let start = async |outbox: &Outbox<DB>, name: &str, lease: Duration| {
            let mut relay = outbox.log_only().node(name).subscription_lease(lease);
            for sink in &sinks {
                relay = relay.publish(Topic::new("t").to(sink.clone()));
            }
            relay.start().await.unwrap()
        };
        let leaders = async || {
            let subscriptions = db.outbox.log_admin().subscriptions().await.unwrap();
            let mut counts = std::collections::HashMap::<String, usize>::new();
            for leader in subscriptions.iter().filter_map(|subscription| subscription.leader.as_ref()) {
                *counts.entry(leader.to_string()).or_default() += 1;
            }
            let mut counts: Vec<usize> = counts.into_values().collect();
            counts.sort_unstable();
            counts
        };
        let settle = async |wanted: &[usize]| {
            let is_settled = async || {
                let leaders = leaders().await;
                if leaders == wanted { Ok(()) } else { Err(leaders) }
            };
            Poll::DEFAULT.value(&format!("the relays lead {wanted:?} pairs"), is_settled).await;
        };
        let first = start(&db.outbox, "first", 2 * SEC).await;
        assert_eq!(leaders().await, [12]);
        append(&db.outbox, "A", 0..10).await;
        let (b, c) = (db.another().await, db.another().await);
        // A relay claims a fair share at its start, and again after a quarter of its lease.
        let second = start(&b.outbox, "second", 16 * SEC).await;
        let third = start(&c.outbox, "third", 2 * SEC).await;
        settle(&[4, 4, 4]).await;
        append(&db.outbox, "A", 10..20).await;
        for sink in &sinks {
            sink.reach(20).await;
        }
        second.stop().await.unwrap();
        let subscriptions = db.outbox.log_admin().subscriptions().await.unwrap();
        let still: Vec<_> = subscriptions.iter().filter(|p| p.leader.as_ref().is_some_and(|l| l.as_str() == "second")).collect();
        assert!(still.is_empty(), "not released: {still:?}");
        settle(&[6, 6]).await;
        append(&db.outbox, "A", 20..30).await;
        for sink in &sinks {
            sink.reach(30).await;
        }
        first.stop().await.unwrap();
        settle(&[12]).await;
        third.stop().await.unwrap();
        for sink in &sinks {
            sink.assert_in_order();
            assert_eq!(sink.numbers(), (0..30).collect::<Vec<_>>());
        }
        assert_eq!(leaders().await, [0usize; 0]);
    }

    /// Events that were published but not saved are published again, and no others.
    async fn another_node_takes_over_from_one_that_vanished(frozen |db|) {
        let sink = Sink::named("sink");
        // A leader that has vanished.
        let store = db.outbox.store();
        let log = store.log().unwrap();
        let id = outbox::SubscriptionId::new("t", "sink");
        log.register(&[(id.clone(), false)]).await.unwrap();
        assert_eq!(log.claim(&"ghost".into(), 300 * MS, &[id]).await.unwrap().len(), 1);
        let relay = db.outbox.log_only().subscription_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        db.advance(300 * MS);
        sink.reach(5).await;
        let state = subscription_state(&db, "t", "sink").await;
        assert_eq!(state.epoch, 2);
        assert_ne!(state.leader, Some("ghost".into()));
        relay.stop().await.unwrap();
    }

    /// Cases 5 and 6: another node starts to publish, and the former leader can no longer move the
    /// position.
    async fn a_leader_that_lost_its_pair_moves_nothing_and_starts_again_from_the_table(frozen |db|) {
        let (sink, kept) = (Sink::named("sink"), Sink::named("kept"));
        let relay = db.outbox.log_only().subscription_lease(LEASE)
            .publish(Topic::new("t").to(sink.clone()))
            .publish(Topic::new("t").to(kept.clone()))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        relay.idle().await.unwrap();
        let before = subscription_state(&db, "t", "sink").await;
        // Another node takes the pair, as after a long pause of this process, and moves on.
        let progress = progress(&db);
        db.run(&format!("UPDATE {progress} SET leader = 'other', epoch = epoch + 1 WHERE publisher = 'sink'")).await.unwrap();
        // Both pairs publish the same events, and one statement saves the positions of both: with
        // the second position of the other pair, the first of this one was saved or refused.
        for n in 5..7 {
            append(&db.outbox, "A", n..n + 1).await;
            let head = db.outbox.log().head().await.unwrap();
            until_state(&db, "t", "kept", |state| state.position == head).await;
        }
        let taken = subscription_state(&db, "t", "sink").await;
        assert_eq!((taken.position, taken.leader), (before.position, Some("other".into())));
        // The other node vanishes.
        db.advance(LEASE);
        until_state(&db, "t", "sink", |state| state.epoch > taken.epoch && state.position > before.position).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let numbers: HashSet<u64> = sink.numbers().into_iter().collect();
        assert_eq!(numbers, (0..7).collect());
    }

    /// Case 6: a position that cannot be read is not taken for the start of the log, and one that
    /// cannot be saved is not lost.
    async fn errors_of_the_database_delay_and_move_nothing_back(|db|) {
        use failing_store::{FailingStore, Operation};
        append(&db.outbox, "A", 0..10).await;
        let sink = Sink::named("sink");
        // Events of type B only keep the relay busy.
        let numbers = || {
            let kept = sink.kept.lock().unwrap();
            kept.iter().filter(|event| *event.event_type() == "A").map(|e| e.payload().unwrap()).collect::<Vec<u64>>()
        };
        let errors: [fn() -> Error; 2] =
            [|| Error::Store("the network is down".into()), || panic!("a bug in the store")];
        let operations = [Operation::Lead, Operation::Advance, Operation::Read, Operation::Save];
        let mut written = 10;
        for (at, error) in operations.into_iter().flat_map(|at| errors.map(|error| (at, error))) {
            let store = FailingStore::new(db.outbox.store(), at, 3, error);
            // The first call is made when the relay starts, and an error there would fail the
            // start.
            store.after(1);
            let relay = outbox::RelayBuilder::log_only(store.clone()).subscription_lease(300 * MS)
                .publish(Topic::new("t").to(sink.clone()).batch(3)).start().await.unwrap();
            append(&db.outbox, "A", written..written + 10).await;
            written += 10;
            let is_over = async || {
                if numbers().len() as u64 >= written && store.failed() >= 3 {
                    return Ok(());
                }
                append(&db.outbox, "B", 0..1).await;
                Err((at, store.failed(), numbers()))
            };
            let poll = Poll { pause: 20 * MS, ..Poll::DEFAULT };
            poll.value("three calls fail, and everything is published", is_over).await;
            relay.stop().await.unwrap();
        }
        let mut once = numbers();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once, (0..written).collect::<Vec<_>>());
        // Events that were published twice were published in another epoch, after leadership had
        // lapsed.
        let in_order = |a: &Outgoing, b: &Outgoing| (a.epoch(), a.position()) < (b.epoch(), b.position());
        assert!(sink.kept.lock().unwrap().is_sorted_by(in_order));
    }

    /// The relay does not publish from what it read before the reset.
    async fn a_deleted_event_is_not_published_again_after_a_reset(frozen |db|) {
        append(&db.outbox, "A", 0..3).await;
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().subscription_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        sink.reach(3).await;
        relay.idle().await.unwrap();
        db.run(&format!("DELETE FROM {}_log WHERE position = 2", db.table)).await.unwrap();
        db.outbox.log_admin().reset("t", "sink", Position::START).await.unwrap();
        sink.reach(5).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers(), [0, 1, 2, 0, 2]);
    }

    async fn a_deleted_row_of_a_pair_is_created_again(|db|) {
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().subscription_lease(400 * MS).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        db.run(&format!("DELETE FROM {}", progress(&db))).await.unwrap();
        append(&db.outbox, "A", 0..3).await;
        let lag = async || db.outbox.log_admin().lag().await.unwrap();
        until("the subscription is there", async || lag().await.first().is_some_and(|subscription| subscription.behind == 0)).await;
        relay.stop().await.unwrap();
        let numbers: HashSet<u64> = sink.numbers().into_iter().collect();
        assert_eq!(numbers, (0..3).collect());
    }

    /// The other pair saves its position all the time: that must not hide a change by an operator
    /// to this one.
    async fn a_resume_is_noticed_beside_a_busy_publisher(|db|) {
        let (busy, fails) = (Sink::named("busy"), Sink::named("fails"));
        fails.returning(|_| Err(Failure::retry("no").into()));
        let relay = db.outbox.log_only().subscription_lease(400 * MS)
            .publish(Topic::new("t").to(fails.clone()).retry(NEVER, NEVER))
            .publish(Topic::new("t").to(busy.clone()).batch(1))
            .start().await.unwrap();
        let stop = AtomicBool::new(false);
        let writing = async {
            for count in 1.. {
                append(&db.outbox, "A", 0..1).await;
                busy.reach(count).await;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        let resuming = async {
            for round in 1..=3 {
                until("the resume is noticed", async || fails.calls() >= round).await;
                until_state(&db, "t", "fails", |state| state.error_count > 0).await;
                db.outbox.log_admin().resume("fails").await.unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(writing, resuming);
        relay.stop().await.unwrap();
    }

    /// Twenty errors, but not in a row.
    async fn a_publisher_that_advances_with_each_error_is_not_failed(|db|) {
        let sink = Sink::named("sink");
        let kept = sink.kept.clone();
        sink.returning(move |events| {
            kept.lock().unwrap().push(events[0].clone());
            Err(PublishError::after(1, Failure::retry_after(5 * MS, "one at a time")))
        });
        append(&db.outbox, "A", 0..20).await;
        let relay = db.outbox.log_only().publish(quick(Topic::new("t").to(sink.clone()))).start().await.unwrap();
        sink.reach(20).await;
        assert_ne!(subscription_state(&db, "t", "sink").await.status, SubscriptionStatus::Failed);
        relay.stop().await.unwrap();
        sink.assert_in_order();
    }

    /// Nor a connection each: the relay has three at most, whatever there is to do.
    async fn three_hundred_idle_pairs_need_no_task_each(|db|) {
        let sinks: Vec<Sink> = (0..300).map(|n| Sink::named(&format!("p{n:03}"))).collect();
        let mut relay = db.outbox.log_only();
        for sink in &sinks {
            relay = relay.publish(Topic::new("t").to(sink.clone()));
        }
        let relay = relay.start().await.unwrap();
        append(&db.outbox, "A", 0..3).await;
        for sink in &sinks {
            sink.reach(3).await;
        }
        relay.idle().await.unwrap();
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(tasks < 30, "{tasks} tasks");
        relay.stop().await.unwrap();
        assert!(sinks.iter().all(|sink| sink.numbers() == [0, 1, 2]));
    }

    /// As after a failover to a replica that was behind, or a restore: positions are drawn again
    /// that were published before.
    async fn a_log_that_was_restored_to_an_earlier_state_is_published_as_it_is_now(frozen |db|) {
        append(&db.outbox, "A", 0..10).await;
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().subscription_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        sink.reach(10).await;
        relay.idle().await.unwrap();
        let (table, progress) = (&db.table, progress(&db));
        let counter = match db.url().split(':').next() {
            Some("postgres") => format!("SELECT setval('{table}_log_seq', 3)"),
            Some("mysql") => format!("UPDATE {table}_log_head SET position = 3"),
            _ => format!("UPDATE sqlite_sequence SET seq = 3 WHERE name = '{table}_log'"),
        };
        for statement in [
            format!("DELETE FROM {table}_log_tag WHERE position > 3"),
            format!("DELETE FROM {table}_log WHERE position > 3"),
            counter,
            format!("UPDATE {progress} SET last_position = 3"),
        ] {
            db.run(&statement).await.unwrap();
        }
        // Before anything new is appended: the missing positions must not be skipped as a gap.
        until_state(&db, "t", "sink", |state| state.epoch > 1 || state.position.get() > 3).await;
        append(&db.outbox, "A", 100..103).await;
        sink.reach(13).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers()[10..], [100, 101, 102]);
    }

    async fn two_publishers_of_one_name_and_topics_that_differ_are_mistakes(|db|) {
        let topic = Topic::new("t");
        let twice = db.outbox.log_only().publish(topic.to(Sink::named("s"))).publish(topic.to(Sink::named("s"))).start().await;
        assert!(matches!(twice, Err(Error::DuplicatePublisher { .. })), "{twice:?}");
        let differ = db.outbox.log_only()
            .publish(topic.to(Sink::named("a")))
            .publish(Topic::new("t").types(["X"]).to(Sink::named("b")))
            .start().await;
        assert!(matches!(differ, Err(Error::Setting { .. })), "{differ:?}");
        for subscription in [
            topic.to(Sink::named("")),
            Topic::new("").to(Sink::named("a")),
            Topic::new("t").required_tags(["a=b"]).to(Sink::named("a")),
            topic.to(Sink::named("a")).batch(0),
            topic.to(Sink::named("a")).every(Duration::ZERO),
            topic.to(Sink::named("a")).timeout(Duration::ZERO),
        ] {
            let wrong = db.outbox.log_only().publish(subscription).start().await;
            assert!(matches!(wrong, Err(Error::Setting { .. })), "{wrong:?}");
        }
        assert_eq!(db.outbox.log_admin().subscriptions().await.unwrap(), []);
    }

    /// Two tables, one transaction, one type of publisher.
    async fn queue_and_log_are_written_together_and_go_to_the_same_publisher(|db|) {
        let (log, queue) = (Sink::named("log"), Sink::named("queue"));
        let relay = db.outbox.multi_node()
            .forward(["mail"], queue.clone())
            .publish(Topic::new("t").to(log.clone()))
            .start().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        tx.append([event("A", 1)]).await.unwrap();
        tx.write(Event::new("mail").json(&2)).await.unwrap();
        tx.commit().await.unwrap();
        let mut undone = db.outbox.begin().await.unwrap();
        undone.append([event("A", 3)]).await.unwrap();
        undone.write(Event::new("mail").json(&4)).await.unwrap();
        undone.rollback().await.unwrap();
        log.reach(1).await;
        queue.reach(1).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((log.numbers(), queue.numbers()), (vec![1], vec![2]));
        let kept = (log.kept.lock().unwrap(), queue.kept.lock().unwrap());
        assert!(kept.0[0].position().is_some() && kept.1[0].position().is_none());
    }

    /// A purge leaves gaps, and a position is not a count.
    async fn gaps_of_any_width_are_skipped(|db|) {
        append(&db.outbox, "A", 0..50).await;
        let log = format!("{}_log", db.table);
        db.run(&format!("DELETE FROM {log} WHERE position > 3 AND position < 45")).await.unwrap();
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        sink.assert_in_order();
        assert_eq!(sink.numbers(), [0, 1, 2, 44, 45, 46, 47, 48, 49]);
    }

    /// Another program wrote the event. It is recorded, and later events are published.
    async fn an_unreadable_event_is_skipped_and_published_after_a_repair(|db|) {
        append(&db.outbox, "A", 0..5).await;
        let log = format!("{}_log", db.table);
        db.run(&format!("UPDATE {log} SET headers = '[1]' WHERE position = 3")).await.unwrap();
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().publish(quick(Topic::new("t").to(sink.clone()))).start().await.unwrap();
        sink.reach(4).await;
        relay.idle().await.unwrap();
        assert_eq!(sink.numbers(), [0, 1, 3, 4]);
        let store = db.outbox.store();
        let unreadable = store.log().unwrap().unreadable(10).await.unwrap();
        assert_eq!(unreadable.len(), 1);
        assert_eq!(unreadable[0].position, Position::new(3));
        assert!(unreadable[0].reason.contains("headers"), "{}", unreadable[0].reason);
        db.run(&format!("UPDATE {log} SET headers = NULL WHERE position = 3")).await.unwrap();
        relay.stop().await.unwrap();
        db.outbox.log_admin().reset("t", "sink", Position::new(2)).await.unwrap();
        let relay = db.outbox.log_only().publish(quick(Topic::new("t").to(sink.clone()))).start().await.unwrap();
        sink.reach(7).await;
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers(), [0, 1, 3, 4, 2, 3, 4]);
    }

    /// The hanging publisher is dropped after the drain time; the other has finished.
    async fn a_stop_does_not_wait_for_ever(|db|) {
        let (sink, hangs) = (Sink::named("sink"), Sink::named("hangs"));
        hangs.hangs.store(true, Ordering::Relaxed);
        let relay = db.outbox.log_only().drain(100 * MS)
            .publish(Topic::new("t").to(sink.clone()))
            .publish(Topic::new("t").to(hangs.clone()))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        sink.reach(5).await;
        until("the hanging publisher is called", async || hangs.calls() > 0).await;
        tokio::time::timeout(FOREVER, relay.stop()).await.unwrap().unwrap();
        for name in ["sink", "hangs"] {
            assert_eq!(subscription_state(&db, "t", name).await.leader, None);
        }
        assert_eq!(subscription_state(&db, "t", "hangs").await.position, Position::START);
        assert!(subscription_state(&db, "t", "sink").await.position > Position::START);
    }
}

/// No poll for an hour: only a notification of the other process can be the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_an_append_in_another_process_wakes_the_relay() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let sink = Sink::named("sink");
    let subscription = Topic::new("t").to(sink.clone()).every(NEVER);
    let relay = db.outbox.log_only().log_watch(NEVER).publish(subscription).start().await.unwrap();
    relay.idle().await.unwrap();
    notified_of_appends(&db).await;
    let other = db.another().await;
    append(&other.outbox, "A", 0..1).await;
    sink.reach(1).await;
    let mut tx = other.outbox.begin().await.unwrap();
    tx.append([event("A", 1)]).await.unwrap();
    tx.commit().await.unwrap();
    sink.reach(2).await;
    // Other programs need no more than an INSERT.
    for n in 2..20 {
        insert(&db, n).await;
        sink.reach(n as usize + 1).await;
    }
    relay.stop().await.unwrap();
}

/// Inserts an event of the log as a program without this library does.
async fn insert(db: &TestDb<sqlx::Postgres>, n: u64) {
    let insert = "INSERT INTO {t}_log (event_type, tags, payload)";
    db.run(&format!("{insert} VALUES ('A', ARRAY['n=1'], '{n}')")).await.unwrap();
}

/// Waits until a relay has asked writers to notify of appends, which it does by a lock.
async fn notified_of_appends(db: &TestDb<sqlx::Postgres>) {
    let listening = "SELECT count(*) FROM pg_locks k WHERE k.locktype = 'advisory' AND k.mode = 'ExclusiveLock' AND k.granted \
         AND (k.classid::bigint << 32 | k.objid::bigint) = hashtextextended(current_schema() || '.{t}_log', 13)";
    until("a relay listens", async || db.number(listening).await > 0).await;
}

/// One relay asks writers to notify. The other one receives these notifications as well, and is
/// told of other appends by the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_every_relay_is_woken_by_appends_of_other_programs() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let (other, sinks) = (db.another().await, [Sink::named("a"), Sink::named("b")]);
    let start = async |outbox: &Outbox<sqlx::Postgres>, name: &str| {
        let mut relay = outbox.log_only().node(name).log_watch(NEVER);
        for sink in &sinks {
            relay = relay.publish(Topic::new("t").to(sink.clone()).every(NEVER));
        }
        relay.start().await.unwrap()
    };
    let relays = [start(&db.outbox, "first").await, start(&other.outbox, "second").await];
    let share = async || {
        let subscriptions = db.outbox.log_admin().subscriptions().await.unwrap();
        let leaders: HashSet<_> =
            subscriptions.iter().filter_map(|subscription| subscription.leader.clone()).collect();
        if leaders.len() == 2 { Ok(()) } else { Err(subscriptions) }
    };
    Poll::DEFAULT.value("the relays share the subscriptions", share).await;
    notified_of_appends(&db).await;
    for round in 0..5 {
        for n in 0..10 {
            insert(&db, round * 10 + n).await;
        }
        for sink in &sinks {
            sink.reach(round as usize * 10 + 10).await;
        }
    }
    for relay in relays {
        relay.stop().await.unwrap();
    }
    for sink in &sinks {
        sink.assert_in_order();
    }
}

/// An idle relay renews its leases less often, and before it publishes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_an_idle_relay_notices_a_pause_before_it_publishes() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let (sink, lease) = (Sink::named("sink"), SEC);
    let subscription = Topic::new("t").to(sink.clone()).every(NEVER);
    let relay = db.outbox.log_only().subscription_lease(lease).publish(subscription).start().await.unwrap();
    // Idle, and at a time when it has just renewed its lease.
    until_state(&db, "t", "sink", |state| state.remaining > lease * 19 / 10).await;
    db.run(&format!("UPDATE {}_topic_progress SET status = 'PAUSED'", db.table)).await.unwrap();
    insert(&db, 0).await;
    relay.idle().await.unwrap();
    assert_eq!(sink.numbers(), [0u64; 0], "the publisher was paused before the event was written");
    db.outbox.log_admin().resume("sink").await.unwrap();
    sink.reach(1).await;
    relay.stop().await.unwrap();
}
