//! How the log reaches its publishers: in order, each at its own position, whatever some of them do.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::{Backend, FOREVER, TestDb};
use outbox::{
    Error, Event, EventBuilder, Failure, Outbox, Outgoing, Pair, PairStatus, Position, PublishError,
    Publisher, Topic, Unavailable,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
/// What waits for that never comes in a test.
const NEVER: Duration = Duration::from_secs(3_600);
/// How long a pair is leased where the test moves the clock.
const LEASE: Duration = Duration::from_secs(3);

type Say = dyn Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync;

/// Keeps what it was given, and does as it is told.
#[derive(Clone)]
struct Sink {
    name: Arc<str>,
    kept: Arc<Mutex<Vec<Outgoing>>>,
    calls: Arc<AtomicUsize>,
    healthy: Arc<AtomicBool>,
    say: Arc<Mutex<Arc<Say>>>,
    hangs: Arc<AtomicBool>,
}

impl Sink {
    fn named(name: &str) -> Self {
        let say: Arc<Say> = Arc::new(|_| Ok(()));
        Self {
            name: name.into(),
            kept: Arc::default(),
            calls: Arc::default(),
            healthy: Arc::new(AtomicBool::new(true)),
            say: Arc::new(Mutex::new(say)),
            hangs: Arc::default(),
        }
    }

    /// From now on it says this, and keeps what it says it published.
    fn says(&self, say: impl Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync + 'static) {
        *self.say.lock().unwrap() = Arc::new(say);
    }

    fn works(&self) {
        self.says(|_| Ok(()));
        self.hangs.store(false, Ordering::Relaxed);
        self.healthy.store(true, Ordering::Relaxed);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn numbers(&self) -> Vec<u64> {
        self.kept.lock().unwrap().iter().map(|event| event.payload().unwrap()).collect()
    }

    /// Waits until it has this many.
    async fn reach(&self, count: usize) {
        let end = Instant::now() + FOREVER;
        while self.kept.lock().unwrap().len() < count {
            assert!(Instant::now() < end, "{} has {:?}", self.name, self.numbers());
            tokio::time::sleep(2 * MS).await;
        }
    }

    /// In the order of positions, each once.
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
        let say = self.say.lock().unwrap().clone();
        say(events)?;
        self.kept.lock().unwrap().extend_from_slice(events);
        Ok(())
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(self.healthy.load(Ordering::Relaxed), "it is not healthy")
    }
}

/// A pair that waits for nothing longer than a test should.
fn quick(pair: Pair) -> Pair {
    pair.retry(5 * MS, 20 * MS)
}

fn event(event_type: &str, number: u64) -> EventBuilder {
    Event::new(event_type).tag("n", number % 10).json(&number)
}

async fn append<DB: Backend>(outbox: &Outbox<DB>, event_type: &str, numbers: std::ops::Range<u64>) {
    outbox.log().append(numbers.map(|n| event(event_type, n))).await.unwrap();
}

/// Where a pair stands.
async fn stands<DB: Backend>(db: &TestDb<DB>, topic: &str, publisher: &str) -> outbox::PairState {
    let pairs = db.outbox.log_admin().pairs().await.unwrap();
    pairs
        .into_iter()
        .find(|pair| pair.id.topic() == topic && pair.id.publisher() == publisher)
        .expect("a row")
}

/// Waits until a pair stands so.
async fn until<DB: Backend>(
    db: &TestDb<DB>,
    topic: &str,
    publisher: &str,
    so: impl Fn(&outbox::PairState) -> bool,
) {
    let end = Instant::now() + FOREVER;
    loop {
        let state = stands(db, topic, publisher).await;
        if so(&state) {
            return;
        }
        assert!(Instant::now() < end, "{state:?}");
        tokio::time::sleep(10 * MS).await;
    }
}

/// The table of progress, by its name.
fn progress<DB: Backend>(db: &TestDb<DB>) -> String {
    format!("{}_topic_progress", db.table)
}

on_every_database! {
    async fn every_publisher_gets_what_its_topic_selects_in_order_and_moves_on_over_the_rest(|db|) {
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

        // The last hundred events were not for it, and it does not read them again.
        let head = db.outbox.log().head().await.unwrap();
        assert_eq!(stands(&db, "some", "sparse").await.position, head);
        assert_eq!(stands(&db, "everything", "all").await.position, head);
        let lag = db.outbox.log_admin().lag().await.unwrap();
        assert!(lag.iter().all(|pair| pair.behind == 0), "{lag:?}");
    }

    async fn a_restart_goes_on_where_it_was(|db|) {
        for round in 0..3 {
            let sink = Sink::named("sink");
            let relay = db.outbox.log_only().publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
            append(&db.outbox, "A", round * 10..round * 10 + 10).await;
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            assert_eq!(sink.numbers(), (round * 10..round * 10 + 10).collect::<Vec<_>>());
        }
        let state = stands(&db, "t", "sink").await;
        assert_eq!((state.leader, state.epoch), (None, 3));
    }

    async fn from_now_leaves_out_what_was_there_before(|db|) {
        append(&db.outbox, "A", 0..10).await;
        let sink = Sink::named("sink");
        let relay =
            db.outbox.log_only().publish(Topic::new("t").to(sink.clone()).from_now()).start().await.unwrap();
        append(&db.outbox, "A", 10..12).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers(), [10, 11]);
    }

    /// And it is not for good: it is tried until it works.
    async fn a_publisher_that_fails_does_not_touch_the_others_and_recovers(|db|) {
        let (good, bad) = (Sink::named("good"), Sink::named("bad"));
        bad.says(|_| Err(Failure::retry("no route to host").into()));
        let topic = Topic::new("t");
        let relay = db.outbox.log_only()
            .publish(topic.to(good.clone()))
            .publish(quick(topic.to(bad.clone())))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..20).await;
        good.reach(20).await;
        until(&db, "t", "bad", |state| state.status == PairStatus::Failed && state.error_count >= 6).await;
        let state = stands(&db, "t", "bad").await;
        assert_eq!((state.position, state.last_error.as_deref()), (Position::START, Some("no route to host")));
        bad.works();
        bad.reach(20).await;
        relay.idle().await.unwrap();
        bad.assert_in_order();
        let state = stands(&db, "t", "bad").await;
        assert_eq!((state.status, state.error_count, state.last_error), (PairStatus::Active, 0, None));
        relay.stop().await.unwrap();
        assert_eq!((good.numbers(), bad.numbers()), ((0..20).collect(), (0..20).collect()));
    }

    /// The batch is halved until only the one to blame is left: what is before it goes through.
    async fn an_event_that_cannot_be_published_holds_what_is_behind_it_and_nothing_else(|db|) {
        let sink = Sink::named("sink");
        sink.says(|events| {
            let poison = events.iter().any(|event| event.payload::<u64>().unwrap() == 13);
            if poison { Err(Failure::retry("unlucky").into()) } else { Ok(()) }
        });
        append(&db.outbox, "A", 0..20).await;
        let relay =
            db.outbox.log_only().publish(quick(Topic::new("t").to(sink.clone()))).start().await.unwrap();
        sink.reach(13).await;
        until(&db, "t", "sink", |state| state.status == PairStatus::Failed).await;
        assert_eq!(sink.numbers(), (0..13).collect::<Vec<_>>());
        sink.works();
        sink.reach(20).await;
        relay.idle().await.unwrap();
        sink.assert_in_order();
        relay.stop().await.unwrap();
    }

    async fn what_a_publisher_says_it_has_published_does_not_come_again(|db|) {
        let sink = Sink::named("sink");
        let (kept, first) = (sink.kept.clone(), AtomicBool::new(true));
        sink.says(move |events| {
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

    /// One panics, one hangs, one claims to have published more than it was given.
    async fn a_publisher_that_misbehaves_harms_only_itself(|db|) {
        let names = ["good", "panics", "hangs", "lies"];
        let [good, panics, hangs, lies] = names.map(Sink::named);
        panics.says(|_| panic!("boom"));
        hangs.hangs.store(true, Ordering::Relaxed);
        lies.says(|_| Err(PublishError::after(9_999, Failure::retry("more than there is"))));
        let mut relay = db.outbox.log_only();
        for sink in [&good, &panics, &hangs, &lies] {
            relay = relay.publish(quick(Topic::new("t").to(sink.clone())).timeout(50 * MS));
        }
        let relay = relay.start().await.unwrap();
        append(&db.outbox, "A", 0..10).await;
        good.reach(10).await;
        for (name, says) in [("panics", "the publisher panicked: boom"), ("hangs", "the publisher did not finish within 50ms")] {
            until(&db, "t", name, |state| state.last_error.as_deref() == Some(says)).await;
        }
        panics.works();
        hangs.works();
        panics.reach(10).await;
        hangs.reach(10).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((panics.numbers(), hangs.numbers()), ((0..10).collect(), (0..10).collect()));
        assert!(stands(&db, "t", "lies").await.last_error.is_some());
    }

    /// Case 7: it is asked, and while it says no nothing is sent and no error is counted.
    async fn a_publisher_that_is_not_healthy_is_left_alone(|db|) {
        let sink = Sink::named("sink");
        sink.healthy.store(false, Ordering::Relaxed);
        let relay = db.outbox.log_only().publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        until(&db, "t", "sink", |state| state.last_error.is_some()).await;
        let state = stands(&db, "t", "sink").await;
        assert_eq!((state.status, state.error_count, sink.calls()), (PairStatus::Active, 0, 0));
        sink.works();
        sink.reach(5).await;
        relay.idle().await.unwrap();
        assert_eq!(stands(&db, "t", "sink").await.last_error, None);
        relay.stop().await.unwrap();
    }

    async fn pause_and_resume_and_reset_by_the_library(frozen |db|) {
        let (sink, other) = (Sink::named("sink"), Sink::named("other"));
        let relay = db.outbox.log_only().pair_lease(LEASE)
            .publish(Topic::new("t").to(sink.clone()))
            .publish(Topic::new("t").to(other.clone()))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        relay.idle().await.unwrap();
        let admin = db.outbox.log_admin();
        admin.pause("sink").await.unwrap();
        db.noticed_by_leader("sink", LEASE).await;
        append(&db.outbox, "A", 5..10).await;
        other.reach(10).await;
        tokio::time::sleep(100 * MS).await;
        assert_eq!(sink.numbers().len(), 5);
        assert_eq!(stands(&db, "t", "sink").await.status, PairStatus::Paused);
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
        for unknown in [admin.pause("nobody").await.map(drop), admin.reset("t", "nobody", head).await] {
            assert!(matches!(unknown, Err(Error::UnknownPair { .. })), "{unknown:?}");
        }
    }

    /// The statements are the seed's.
    async fn pause_and_resume_and_reset_by_sql(frozen |db|) {
        let sink = Sink::named("sink");
        sink.says(|_| Err(Failure::retry_after(NEVER, "down").into()));
        let relay = db.outbox.log_only().pair_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        until(&db, "t", "sink", |state| state.error_count == 1).await;
        let progress = progress(&db);
        sink.works();
        // It would wait for an hour, but somebody says that all is well.
        db.run(&format!("UPDATE {progress} SET status = 'ACTIVE', error_count = 0, last_error = NULL WHERE publisher = 'sink'"))
            .await.unwrap();
        sink.reach(5).await;
        relay.idle().await.unwrap();
        db.run(&format!("UPDATE {progress} SET status = 'PAUSED' WHERE publisher = 'sink'")).await.unwrap();
        db.noticed_by_leader("sink", LEASE).await;
        append(&db.outbox, "A", 5..6).await;
        tokio::time::sleep(200 * MS).await;
        assert_eq!(sink.numbers().len(), 5);
        db.run(&format!("UPDATE {progress} SET status = 'ACTIVE' WHERE publisher = 'sink'")).await.unwrap();
        sink.reach(6).await;
        relay.idle().await.unwrap();
        // Somebody sets the position under the leader's feet.
        db.run(&format!("UPDATE {progress} SET last_position = 0 WHERE publisher = 'sink'")).await.unwrap();
        sink.reach(12).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers(), [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    }

    /// The interval is an hour: only a wake-up can be the reason.
    async fn an_append_in_the_same_process_is_seen_at_once_and_one_elsewhere_by_the_watch(|db|) {
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

    /// C-04. An hour: the second batch does not come in this test, and the other publisher does not wait for it.
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

        // Started anew, it publishes at once, and then in its time.
        let began = Instant::now();
        let relay = db.outbox.log_only()
            .publish(Topic::new("t").to(slow.clone()).batch(2).interval(200 * MS)).start().await.unwrap();
        slow.reach(8).await;
        assert!(began.elapsed() >= 400 * MS, "three batches have two pauses between them");
        relay.stop().await.unwrap();
        assert_eq!(slow.numbers(), (0..8).collect::<Vec<_>>());
        assert_eq!(slow.calls(), 4);
    }

    /// Nothing is lost, nothing comes twice, and each leads its part.
    /// A relay that has stopped leads nothing, although its leases would last for some seconds more.
    async fn nodes_share_the_pairs_and_a_clean_stop_hands_over_at_once(|db|) {
        let sinks: Vec<Sink> = (0..12).map(|n| Sink::named(&format!("p{n:02}"))).collect();
        let start = async |outbox: &Outbox<_>, name: &str, lease: Duration| {
            let mut relay = outbox.log_only().node(name).pair_lease(lease);
            for sink in &sinks {
                relay = relay.publish(Topic::new("t").to(sink.clone()));
            }
            relay.start().await.unwrap()
        };
        let leaders = async || {
            let pairs = db.outbox.log_admin().pairs().await.unwrap();
            let mut counts = std::collections::HashMap::<String, usize>::new();
            for leader in pairs.iter().filter_map(|pair| pair.leader.as_ref()) {
                *counts.entry(leader.to_string()).or_default() += 1;
            }
            let mut counts: Vec<usize> = counts.into_values().collect();
            counts.sort_unstable();
            counts
        };
        let settle = async |wanted: &[usize]| {
            let end = Instant::now() + FOREVER / 2;
            while leaders().await != wanted {
                assert!(Instant::now() < end, "{:?} instead of {wanted:?}", leaders().await);
                tokio::time::sleep(20 * MS).await;
            }
        };
        let first = start(&db.outbox, "first", 2 * SEC).await;
        assert_eq!(leaders().await, [12]);
        append(&db.outbox, "A", 0..10).await;
        let (b, c) = (db.another().await, db.another().await);
        // It looks for a fair share at its start, and again after a quarter of its lease.
        let second = start(&b.outbox, "second", 16 * SEC).await;
        let third = start(&c.outbox, "third", 2 * SEC).await;
        settle(&[4, 4, 4]).await;
        append(&db.outbox, "A", 10..20).await;
        for sink in &sinks {
            sink.reach(20).await;
        }
        second.stop().await.unwrap();
        let pairs = db.outbox.log_admin().pairs().await.unwrap();
        let still: Vec<_> = pairs.iter().filter(|p| p.leader.as_ref().is_some_and(|l| l.as_str() == "second")).collect();
        assert!(still.is_empty(), "not handed over: {still:?}");
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

    /// What was published but not saved comes again: that is all.
    async fn another_node_takes_over_from_one_that_vanished(frozen |db|) {
        let sink = Sink::named("sink");
        // A leader that will never be heard of again.
        let store = db.outbox.store();
        let log = store.log().unwrap();
        let id = outbox::PairId::new("t", "sink");
        log.register(&[(id.clone(), false)]).await.unwrap();
        assert_eq!(log.claim(&"ghost".into(), 300 * MS, &[id]).await.unwrap().len(), 1);
        let relay = db.outbox.log_only().pair_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        db.advance(300 * MS);
        sink.reach(5).await;
        let state = stands(&db, "t", "sink").await;
        assert_eq!(state.epoch, 2);
        assert_ne!(state.leader, Some("ghost".into()));
        relay.stop().await.unwrap();
    }

    /// Cases 5 and 6: the follower starts to publish, and the leader that was cut off moves nothing any more.
    async fn a_leader_that_lost_its_pair_moves_nothing_and_starts_again_from_the_table(frozen |db|) {
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().pair_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        relay.idle().await.unwrap();
        let before = stands(&db, "t", "sink").await;
        // Somebody else takes it, as after a long pause of this process, and moves on.
        let progress = progress(&db);
        db.run(&format!("UPDATE {progress} SET leader = 'usurper', epoch = epoch + 1")).await.unwrap();
        append(&db.outbox, "A", 5..6).await;
        tokio::time::sleep(50 * MS).await;
        let taken = stands(&db, "t", "sink").await;
        assert_eq!((taken.position, taken.leader), (before.position, Some("usurper".into())));
        // It is never heard of again.
        db.advance(LEASE);
        until(&db, "t", "sink", |state| state.epoch > taken.epoch && state.position > before.position).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let numbers: HashSet<u64> = sink.numbers().into_iter().collect();
        assert_eq!(numbers, (0..6).collect());
    }

    /// Case 6: a position that cannot be read is not the start of the log, and one that cannot be saved is not lost.
    async fn errors_of_the_database_delay_and_move_nothing_back(|db|) {
        use failing_store::{Failing, Where};
        append(&db.outbox, "A", 0..10).await;
        let sink = Sink::named("sink");
        // Those of type B only keep the relay busy.
        let numbers = || {
            let kept = sink.kept.lock().unwrap();
            kept.iter().filter(|event| *event.event_type() == "A").map(|e| e.payload().unwrap()).collect::<Vec<u64>>()
        };
        let errors: [fn() -> Error; 2] =
            [|| Error::Store("the network is down".to_owned()), || panic!("a bug in the store")];
        let places = [Where::Lead, Where::Advance, Where::Read, Where::Save];
        let mut written = 10;
        for (at, error) in places.into_iter().flat_map(|at| errors.map(|error| (at, error))) {
            let store = Failing::new(db.outbox.store(), at, 3, error);
            // The first contact is made when the relay starts, and is its error.
            store.after(1);
            let relay = outbox::RelayBuilder::log_only(store.clone()).pair_lease(300 * MS)
                .publish(Topic::new("t").to(sink.clone()).batch(3)).start().await.unwrap();
            append(&db.outbox, "A", written..written + 10).await;
            written += 10;
            let end = Instant::now() + FOREVER;
            while (numbers().len() as u64) < written || store.failed() < 3 {
                assert!(Instant::now() < end, "{at:?}: {} failed, {:?}", store.failed(), numbers());
                append(&db.outbox, "B", 0..1).await;
                tokio::time::sleep(20 * MS).await;
            }
            relay.stop().await.unwrap();
        }
        let mut once = numbers();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once, (0..written).collect::<Vec<_>>());
        // What came twice came in another epoch, after leadership had lapsed.
        let in_order = |a: &Outgoing, b: &Outgoing| (a.epoch(), a.position()) < (b.epoch(), b.position());
        assert!(sink.kept.lock().unwrap().is_sorted_by(in_order));
    }

    /// What was read before is not what is there now.
    async fn a_deleted_event_is_not_published_again_after_a_reset(frozen |db|) {
        append(&db.outbox, "A", 0..3).await;
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().pair_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        sink.reach(3).await;
        relay.idle().await.unwrap();
        db.run(&format!("DELETE FROM {}_log WHERE position = 2", db.table)).await.unwrap();
        db.outbox.log_admin().reset("t", "sink", Position::START).await.unwrap();
        sink.reach(5).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(sink.numbers(), [0, 1, 2, 0, 2]);
    }

    async fn a_row_of_a_pair_that_was_deleted_is_made_again(|db|) {
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().pair_lease(400 * MS).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
        db.run(&format!("DELETE FROM {}", progress(&db))).await.unwrap();
        append(&db.outbox, "A", 0..3).await;
        let end = Instant::now() + FOREVER;
        while db.outbox.log_admin().lag().await.unwrap().first().is_none_or(|pair| pair.behind > 0) {
            assert!(Instant::now() < end, "the pair is gone");
            tokio::time::sleep(20 * MS).await;
        }
        relay.stop().await.unwrap();
        let numbers: HashSet<u64> = sink.numbers().into_iter().collect();
        assert_eq!(numbers, (0..3).collect());
    }

    /// The other pair saves its position all the time: that must not hide what people say of this one.
    async fn a_resume_is_noticed_beside_a_busy_publisher(|db|) {
        let (busy, fails) = (Sink::named("busy"), Sink::named("fails"));
        fails.says(|_| Err(Failure::retry("no").into()));
        let relay = db.outbox.log_only().pair_lease(400 * MS)
            .publish(Topic::new("t").to(fails.clone()).retry(NEVER, NEVER))
            .publish(Topic::new("t").to(busy.clone()).batch(1))
            .start().await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let writing = tokio::spawn({
            let (outbox, stop) = (db.outbox.clone(), stop.clone());
            async move {
                while !stop.load(Ordering::Relaxed) {
                    append(&outbox, "A", 0..1).await;
                    tokio::time::sleep(2 * MS).await;
                }
            }
        });
        for round in 1..=3 {
            let end = Instant::now() + FOREVER;
            while fails.calls() < round {
                assert!(Instant::now() < end, "nobody noticed the resume");
                tokio::time::sleep(5 * MS).await;
            }
            until(&db, "t", "fails", |state| state.error_count > 0).await;
            db.outbox.log_admin().resume("fails").await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        writing.await.unwrap();
        relay.stop().await.unwrap();
    }

    /// Twenty errors, but not in a row.
    async fn a_publisher_that_moves_a_little_each_time_does_not_fail(|db|) {
        let sink = Sink::named("sink");
        let kept = sink.kept.clone();
        sink.says(move |events| {
            kept.lock().unwrap().push(events[0].clone());
            Err(PublishError::after(1, Failure::retry_after(5 * MS, "one at a time")))
        });
        append(&db.outbox, "A", 0..20).await;
        let relay = db.outbox.log_only().publish(quick(Topic::new("t").to(sink.clone()))).start().await.unwrap();
        sink.reach(20).await;
        assert_ne!(stands(&db, "t", "sink").await.status, PairStatus::Failed);
        relay.stop().await.unwrap();
        sink.assert_in_order();
    }

    /// Nor is there a connection for each: the relay has three at most, whatever there is to do.
    async fn three_hundred_pairs_at_rest_need_no_task_each(|db|) {
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

    /// As after a failover to a replica that was behind, or a restore: positions are drawn again that were published before.
    async fn a_log_that_went_back_is_published_as_it_now_is(frozen |db|) {
        append(&db.outbox, "A", 0..10).await;
        let sink = Sink::named("sink");
        let relay = db.outbox.log_only().pair_lease(LEASE).publish(Topic::new("t").to(sink.clone())).start().await.unwrap();
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
        // Before there is anything new: what is not there any more must not be passed over as a gap.
        until(&db, "t", "sink", |state| state.epoch > 1 || state.position.get() > 3).await;
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
        assert!(matches!(differ, Err(Error::Setting(_))), "{differ:?}");
        for pair in [
            topic.to(Sink::named("")),
            Topic::new("").to(Sink::named("a")),
            Topic::new("t").required_tags(["a=b"]).to(Sink::named("a")),
            topic.to(Sink::named("a")).batch(0),
            topic.to(Sink::named("a")).every(Duration::ZERO),
            topic.to(Sink::named("a")).timeout(Duration::ZERO),
        ] {
            let wrong = db.outbox.log_only().publish(pair).start().await;
            assert!(matches!(wrong, Err(Error::Setting(_))), "{wrong:?}");
        }
        assert_eq!(db.outbox.log_admin().pairs().await.unwrap(), []);
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
    async fn gaps_of_any_width_are_passed(|db|) {
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

    /// Another program wrote it. It is noted, and everything behind it goes on.
    async fn an_event_that_cannot_be_read_is_passed_over_and_published_after_a_repair(|db|) {
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

    /// The hanging one is given up after the drain time; the others have finished.
    async fn a_stop_does_not_wait_for_ever(|db|) {
        let (sink, hangs) = (Sink::named("sink"), Sink::named("hangs"));
        hangs.hangs.store(true, Ordering::Relaxed);
        let relay = db.outbox.log_only().drain(100 * MS)
            .publish(Topic::new("t").to(sink.clone()))
            .publish(Topic::new("t").to(hangs.clone()))
            .start().await.unwrap();
        append(&db.outbox, "A", 0..5).await;
        sink.reach(5).await;
        while hangs.calls() == 0 {
            tokio::time::sleep(MS).await;
        }
        tokio::time::timeout(FOREVER, relay.stop()).await.unwrap().unwrap();
        for name in ["sink", "hangs"] {
            assert_eq!(stands(&db, "t", name).await.leader, None);
        }
        assert_eq!(stands(&db, "t", "hangs").await.position, Position::START);
        assert!(stands(&db, "t", "sink").await.position > Position::START);
    }
}

/// Nobody looks for an hour: only what the other process says can be the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_an_append_in_another_process_is_heard_of() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let sink = Sink::named("sink");
    let pair = Topic::new("t").to(sink.clone()).every(NEVER);
    let relay = db.outbox.log_only().log_watch(NEVER).publish(pair).start().await.unwrap();
    relay.idle().await.unwrap();
    notified_of_appends(&db).await;
    let other = db.another().await;
    append(&other.outbox, "A", 0..1).await;
    sink.reach(1).await;
    let mut tx = other.outbox.begin().await.unwrap();
    tx.append([event("A", 1)]).await.unwrap();
    tx.commit().await.unwrap();
    sink.reach(2).await;
    // Nor do other programs say more than their INSERT.
    for n in 2..20 {
        insert(&db, n).await;
        sink.reach(n as usize + 1).await;
    }
    relay.stop().await.unwrap();
}

/// An event of the log as a program without this library writes it.
async fn insert(db: &TestDb<sqlx::Postgres>, n: u64) {
    let insert = "INSERT INTO {t}_log (event_type, tags, payload)";
    db.run(&format!("{insert} VALUES ('A', ARRAY['n=1'], '{n}')")).await.unwrap();
}

/// Waits until a relay has asked writers to notify of what they append: its lock tells.
async fn notified_of_appends(db: &TestDb<sqlx::Postgres>) {
    let asked = "SELECT count(*) FROM pg_locks k WHERE k.locktype = 'advisory' AND k.mode = 'ExclusiveLock' AND k.granted \
         AND (k.classid::bigint << 32 | k.objid::bigint) = hashtextextended(current_schema() || '.{t}_log', 13)";
    let end = Instant::now() + FOREVER;
    while db.number(asked).await == 0 {
        assert!(Instant::now() < end, "no relay listens");
        tokio::time::sleep(10 * MS).await;
    }
}

/// One of them asks writers to notify. The other one hears of what is written while they do, and by the first one of the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_every_relay_hears_of_what_other_programs_append() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let (other, sinks) = (db.another().await, [Sink::named("a"), Sink::named("b")]);
    let start = async |outbox: &Outbox<_>, name: &str| {
        let mut relay = outbox.log_only().node(name).log_watch(NEVER);
        for sink in &sinks {
            relay = relay.publish(Topic::new("t").to(sink.clone()).every(NEVER));
        }
        relay.start().await.unwrap()
    };
    let relays = [start(&db.outbox, "first").await, start(&other.outbox, "second").await];
    let end = Instant::now() + FOREVER;
    loop {
        let pairs = db.outbox.log_admin().pairs().await.unwrap();
        let leaders: HashSet<_> = pairs.iter().filter_map(|pair| pair.leader.clone()).collect();
        if leaders.len() == 2 {
            break;
        }
        assert!(Instant::now() < end, "they do not share: {pairs:?}");
        tokio::time::sleep(10 * MS).await;
    }
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

/// It asks who leads what less often then, and before it publishes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_relay_that_rests_knows_of_a_pause_before_it_publishes() {
    let Some(db) = TestDb::<sqlx::Postgres>::new().await else { return };
    let (sink, lease) = (Sink::named("sink"), SEC);
    let pair = Topic::new("t").to(sink.clone()).every(NEVER);
    let relay = db.outbox.log_only().pair_lease(lease).publish(pair).start().await.unwrap();
    let end = Instant::now() + FOREVER;
    while stands(&db, "t", "sink").await.remaining <= lease {
        assert!(Instant::now() < end, "it never rests");
        tokio::time::sleep(10 * MS).await;
    }
    // At a time when it has just asked.
    while stands(&db, "t", "sink").await.remaining <= lease * 19 / 10 {
        tokio::time::sleep(10 * MS).await;
    }
    db.run(&format!("UPDATE {}_topic_progress SET status = 'PAUSED'", db.table)).await.unwrap();
    insert(&db, 0).await;
    relay.idle().await.unwrap();
    assert_eq!(sink.numbers(), [0u64; 0], "it was paused before the event was written");
    db.outbox.log_admin().resume("sink").await.unwrap();
    sink.reach(1).await;
    relay.stop().await.unwrap();
}
