//! Publishers as handlers of the queue.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::{FOREVER, Gate, Seen, numbered};
use outbox::store::Status;
use outbox::{
    Backoff, Destination, Error, Event, Failure, Fate, Interceptor, LatchPublisher, Outgoing, PublishError,
    Publisher, Relay, Router, StatisticsPublisher, Unavailable,
};

const SEC: Duration = Duration::from_secs(1);

/// Publishes to a latch, when it is well and has failed often enough.
struct Moody {
    latch: LatchPublisher,
    well: AtomicBool,
    failures: AtomicU32,
    asked: AtomicU32,
    /// How much of a batch it says to have published when it fails.
    published: usize,
}

impl Moody {
    fn new(latch: &LatchPublisher, well: bool, failures: u32) -> Self {
        Self {
            latch: latch.clone(),
            well: well.into(),
            failures: failures.into(),
            asked: 0.into(),
            published: 0,
        }
    }
}

#[async_trait]
impl Publisher for Moody {
    fn name(&self) -> &'static str {
        "moody"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(PublishError::after(self.published, Failure::retry("not now")));
        }
        self.latch.publish_batch(events).await
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(self.well.load(Ordering::SeqCst), "it is not healthy")
    }
}

/// Says what a function says.
struct Says<F>(F);

impl<F: Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync + 'static> Says<F> {
    fn new(says: F) -> Self {
        Self(says)
    }
}

#[async_trait]
impl<F: Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync + 'static> Publisher for Says<F> {
    fn name(&self) -> &'static str {
        "says"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        (self.0)(events)
    }
}

/// Is not there until it is told to be. Does not know so before it is asked to publish.
#[derive(Default)]
struct Down {
    is_up: AtomicBool,
    tries: AtomicU32,
    arrived: Mutex<HashSet<String>>,
}

impl Down {
    fn arrived(&self) -> usize {
        self.arrived.lock().unwrap().len()
    }
}

#[async_trait]
impl Publisher for Down {
    fn name(&self) -> &'static str {
        "down"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.tries.fetch_add(1, Ordering::SeqCst);
        if !self.is_up.load(Ordering::SeqCst) {
            return Err(PublishError::unavailable("connection refused"));
        }
        self.arrived.lock().unwrap().extend(events.iter().map(|event| event.id().to_string()));
        Ok(())
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(
            self.is_up.load(Ordering::SeqCst) || self.tries.load(Ordering::SeqCst) == 0,
            "it is not healthy",
        )
    }
}

/// Holds up every batch until it is let go, and notes how large each is and how many there are at once.
struct Slow {
    gate: Gate,
    begun: tokio::sync::mpsc::UnboundedSender<usize>,
    running: AtomicU32,
    most: AtomicU32,
}

#[async_trait]
impl Publisher for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.begun.send(events.len()).unwrap();
        self.gate.pass().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Polls until it is so.
async fn relay_until(relay: &Relay, so: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + FOREVER;
    while !so() {
        assert!(tokio::time::Instant::now() < until, "it takes too long");
        relay.poll_once().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// As `RelayBuilder::workers` says: what bounds events is the batch, and the publisher itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_bound_batches_of_250_events_and_not_events() {
    for workers in [1, 3] {
        let db = common::TestDb::<sqlx::Sqlite>::new().await.unwrap();
        db.write("e", 0..900).await;
        let (begun, mut batches) = tokio::sync::mpsc::unbounded_channel();
        let slow = Slow { gate: Gate::closed(), begun, running: 0.into(), most: 0.into() };
        let slow = Arc::new(slow);
        let relay = db.outbox.single_node().workers(workers).batch(900).forward(["e"], slow.clone());
        let relay = relay.start().await.unwrap();
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 900 {
            while sizes.len() < workers {
                sizes.push(batches.recv().await.unwrap());
            }
            slow.gate.admit(1);
            sizes.push(batches.recv().await.unwrap());
        }
        slow.gate.open();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(slow.most.load(Ordering::SeqCst), workers as u32, "batches at once");
        assert_eq!(sizes.iter().max(), Some(&250), "{sizes:?}");
    }
}

on_every_database! {
    /// Of the types asked for, and no others.
    async fn events_of_the_queue_reach_a_publisher(|db|) {
        let (latch, rest, seen) = (LatchPublisher::expecting(4), LatchPublisher::expecting(1), Seen::default());
        let counted = StatisticsPublisher::of(latch.clone());
        let relay = db.outbox.multi_node()
            .forward(["a", "b"], counted.clone())
            .on_type("c", seen.handler())
            .forward_any(rest.clone())
            .start().await.unwrap();
        db.write("a", 0..3).await;
        for event_type in ["b", "c", "d"] {
            db.write(event_type, 7..8).await;
        }
        let arrived = latch.wait(FOREVER).await.unwrap();
        let other = rest.wait(FOREVER).await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let mut numbers: Vec<u64> = arrived.iter().map(|event| event.payload().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 7]);
        for event in &arrived {
            assert_eq!((event.position(), event.attempt()), (None, 1));
        }
        assert_eq!((other.len(), other[0].event_type().as_str()), (1, "d"));
        assert_eq!(seen.numbers(), [7]);
        let counts = counted.statistics();
        assert_eq!((counts.total, counts.of("a"), counts.of("b"), counts.failures), (4, 3, 1, 0));
        assert_eq!(db.tally().await, (0, 0, 6, 0));
    }

    /// It is not the event's fault: no attempt is counted, however long it takes, and nothing is asked of it.
    async fn an_unhealthy_publisher_is_waited_for(|db|) {
        let latch = LatchPublisher::expecting(1);
        let moody = Arc::new(Moody::new(&latch, false, 0));
        let relay = db.outbox.single_node().retry(Backoff::never()).forward(["e"], moody.clone()).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().unwrap();
        for _ in 0..5 {
            relay.poll_once().await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let stored = db.find(&id).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0));
        }
        assert_eq!(moody.asked.load(Ordering::SeqCst), 0, "nothing was asked of it");
        moody.well.store(true, Ordering::SeqCst);
        let arrived = latch.wait(FOREVER).await.expect("it is asked again how it is");
        assert_eq!((arrived[0].id(), arrived[0].attempt()), (&id, 1));
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status(&id).await, Status::Done);
    }

    /// The events of the one that is down stay in the table as they are; those of the others come, later ones too.
    async fn an_outage_of_one_destination_holds_up_no_other(|db|) {
        let (lost, fine) = (Arc::new(Down::default()), LatchPublisher::expecting(20));
        let relay = db.outbox.multi_node()
            .retry(Backoff::never())
            .poll_interval(Duration::from_millis(20))
            .forward(["lost"], lost.clone())
            .forward(["fine"], fine.clone())
            .start().await.unwrap();
        let waiting = db.write("lost", 0..300).await;
        db.write("fine", 0..10).await;
        // More of the one behind than a relay takes at a time.
        db.write("lost", 300..3_000).await;
        db.write("fine", 10..20).await;
        fine.wait(FOREVER).await.expect("the others go on");
        relay.idle().await.unwrap();
        let tries = lost.tries.load(Ordering::SeqCst);
        assert!(tries < 20, "{tries} tries of a destination that is down");
        // What was taken when it broke has been given back; since then nothing is taken, and no row written.
        let most_claims = async || {
            let mut most = 0;
            while db.number(&format!("SELECT count(*) FROM {{t}} WHERE claims > {most}")).await > 0 {
                most += 1;
            }
            most
        };
        let before = most_claims().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(most_claims().await, before, "events were claimed during the outage");
        for id in [&waiting[0], &waiting[299]] {
            let stored = db.find(id).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0));
        }
        lost.is_up.store(true, Ordering::SeqCst);
        relay_until(&relay, || lost.arrived() == 3_000).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (0, 0, 3_020, 0), "none is dead");
    }

    /// Where an event goes depends on more than its type: those that wait are put off one by one, and the rest goes on.
    async fn a_router_that_goes_by_tenant_is_not_held_up_either(|db|) {
        struct ByTenant(Destination, Destination);

        impl Router for ByTenant {
            fn route(&self, event: &Event) -> Option<Destination> {
                match event.tenant_id()? {
                    "lost" => Some(self.0.clone()),
                    _ => Some(self.1.clone()),
                }
            }
        }

        let (lost, fine) = (Arc::new(Down::default()), LatchPublisher::expecting(5));
        let router = ByTenant(lost.clone().into(), fine.clone().into());
        let relay = db.outbox.multi_node().retry(Backoff::never()).forward_by(router).start().await.unwrap();
        for n in 0..5 {
            for tenant in ["lost", "fine"] {
                db.outbox.send(Event::new("e").tenant(tenant).json(&n)).await.unwrap();
            }
        }
        let nowhere = db.outbox.send(Event::new("e").json(&9)).await.unwrap().unwrap();
        fine.wait(FOREVER).await.expect("the other tenant's arrive");
        lost.is_up.store(true, Ordering::SeqCst);
        relay_until(&relay, || lost.arrived() == 5).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (1, 0, 10, 0), "and one had nowhere to go");
        assert_eq!(db.status(&nowhere).await, Status::New);
    }

    /// What is left in the table for a destination that is away goes another way as soon as the router says so.
    async fn a_router_that_changes_its_mind_during_an_outage_is_heard(|db|) {
        struct Points(Destination, Destination, AtomicBool);

        impl Router for Points {
            fn route(&self, _: &Event) -> Option<Destination> {
                Some(if self.2.load(Ordering::SeqCst) { self.1.clone() } else { self.0.clone() })
            }

            fn of_type(&self, _: &outbox::EventType) -> Option<Destination> {
                Some(if self.2.load(Ordering::SeqCst) { self.1.clone() } else { self.0.clone() })
            }
        }

        let (lost, fine) = (Arc::new(Down::default()), LatchPublisher::expecting(5));
        let points = Arc::new(Points(lost.clone().into(), fine.clone().into(), AtomicBool::new(false)));
        let relay = db.outbox.multi_node()
            .retry(Backoff::never())
            .poll_interval(Duration::from_millis(20))
            .forward_by(points.clone())
            .start().await.unwrap();
        db.write("e", 0..5).await;
        relay_until(&relay, || lost.tries.load(Ordering::SeqCst) > 0).await;
        points.2.store(true, Ordering::SeqCst);
        fine.wait(FOREVER).await.expect("they go the other way");
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((db.tally().await, lost.arrived()), ((0, 0, 5, 0), 0));
    }

    /// A router is the application's code: one that panics costs the event an attempt, and nobody else anything.
    async fn a_router_that_panics_is_a_failure_of_the_event(|db|) {
        struct Panics(Destination);

        impl Router for Panics {
            fn route(&self, event: &Event) -> Option<Destination> {
                assert_ne!(event.payload::<u64>().unwrap(), 3, "of a three");
                Some(self.0.clone())
            }
        }

        let latch = LatchPublisher::expecting(9);
        let ids = db.write("e", 0..10).await;
        let router = Panics(latch.clone().into());
        let relay = db.outbox.multi_node().workers(2).retry(Backoff::never()).forward_by(router).start().await.unwrap();
        latch.wait(FOREVER).await.expect("the others arrive");
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (0, 0, 9, 1));
        assert!(db.find(&ids[3]).await.last_error.unwrap().starts_with("the router panicked"));
    }

    /// Not once for each of the batch.
    async fn a_publisher_that_takes_too_long_is_waited_for_once(|db|) {
        struct Hangs(AtomicU32);

        #[async_trait]
        impl Publisher for Hangs {
            fn name(&self) -> &'static str {
                "hangs"
            }

            async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
                self.0.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            }
        }

        let hangs = Arc::new(Hangs(AtomicU32::new(0)));
        db.write("e", 0..20).await;
        let relay = db.outbox.multi_node().workers(1).handler_timeout(Duration::from_millis(200))
            .retry(Backoff::never()).forward_any(hangs.clone()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (0, 0, 0, 20));
        assert!(hangs.0.load(Ordering::SeqCst) < 20, "{}", hangs.0.load(Ordering::SeqCst));
    }

    /// One call for many, and what a publisher says of each is what becomes of each.
    async fn what_became_of_each_event_of_a_batch_is_told_of_each(|db|) {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let sizes_seen = sizes.clone();
        let publisher = Says::new(move |events| {
            sizes_seen.lock().unwrap().push(events.len());
            let fate = |event: &Outgoing| match event.payload::<u64>().unwrap() % 3 {
                0 => Fate::Published,
                1 => Fate::Failed(Failure::dead("a one")),
                _ if event.attempt() == 1 => Fate::Untried,
                _ => Fate::Published,
            };
            Err(PublishError::each(events.iter().map(fate).collect()))
        });
        let ids = db.write("e", 0..30).await;
        let seen = sizes.clone();
        let relay = db.outbox.multi_node().workers(1).forward_any(publisher).start().await.unwrap();
        relay_until(&relay, || seen.lock().unwrap().len() >= 3).await;
        relay.stop().await.unwrap();
        assert_eq!(sizes.lock().unwrap()[0], 30, "all in one batch");
        assert_eq!((db.status(&ids[0]).await, db.status(&ids[1]).await), (Status::Done, Status::Dead));
        let untried = db.find(&ids[2]).await;
        assert_eq!((untried.status, untried.attempts), (Status::New, 0), "what was not tried is no attempt");
    }

    /// An error that nobody can pin to an event costs only the event that it is about.
    async fn an_error_without_an_owner_is_traced_to_its_event(|db|) {
        let publisher = Says::new(|events| match events.iter().any(|event| event.payload::<u64>().unwrap() == 7) {
            true if events[0].payload::<u64>().unwrap() == 7 => panic!("of a seven"),
            true => Err(Failure::retry("somewhere in there").into()),
            false => Ok(()),
        });
        let ids = db.write("e", 0..20).await;
        let relay = db.outbox.multi_node().retry(Backoff::never()).forward_any(publisher).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (0, 0, 19, 1));
        let dead = db.find(&ids[7]).await;
        assert_eq!(dead.last_error.as_deref(), Some("the publisher panicked: of a seven"));
    }

    /// Also when many keys share a batch, and some of it fails.
    async fn a_key_stays_in_order_through_failures_of_a_batch(|db|) {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let (theirs, failed) = (arrived.clone(), AtomicU32::new(0));
        let publisher = Says::new(move |events| {
            let mut stopped = HashSet::new();
            let fates = events.iter().map(|event| {
                let key = event.ordering_key().unwrap();
                if stopped.contains(key) {
                    return Fate::Untried;
                }
                if failed.fetch_add(1, Ordering::SeqCst) % 7 == 3 {
                    stopped.insert(key);
                    return Fate::Failed(Failure::retry_after(Duration::from_millis(1), "every seventh"));
                }
                theirs.lock().unwrap().push((key.to_owned(), event.payload::<u64>().unwrap()));
                Fate::Published
            });
            let fates: Vec<Fate> = fates.collect();
            if fates.iter().all(|fate| *fate == Fate::Published) { Ok(()) } else { Err(PublishError::each(fates)) }
        });
        for n in 0..40 {
            for key in ["a", "b", "c"] {
                db.outbox.send(numbered("e", n).ordering_key(key)).await.unwrap();
            }
        }
        let retry = Backoff::default().max_attempts(100);
        let relay = db.outbox.ordered().retry(retry).forward_any(publisher).start().await.unwrap();
        relay_until(&relay, || arrived.lock().unwrap().len() == 120).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let arrived = arrived.lock().unwrap();
        for key in ["a", "b", "c"] {
            let numbers: Vec<u64> = arrived.iter().filter(|(k, _)| k == key).map(|(_, n)| *n).collect();
            assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "{key}");
        }
    }

    /// Handlers and publishers take turns at a key.
    async fn a_key_may_go_to_handlers_and_publishers(|db|) {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (published, handled) = (order.clone(), order.clone());
        let publisher = Says::new(move |events| {
            published.lock().unwrap().extend(events.iter().map(|event| event.payload::<u64>().unwrap()));
            Ok(())
        });
        for n in 0..30 {
            let event_type = if n % 3 == 0 { "handled" } else { "published" };
            db.outbox.send(numbered(event_type, n).ordering_key("k")).await.unwrap();
        }
        let relay = db.outbox.single_node()
            .on_type("handled", move |cx: outbox::Cx| {
                handled.lock().unwrap().push(cx.payload::<u64>().unwrap());
                std::future::ready(())
            })
            .forward(["published"], publisher)
            .start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(*order.lock().unwrap(), (0..30).collect::<Vec<_>>());
    }

    /// Each event of a batch is shown to them, before and after.
    async fn interceptors_see_every_event_of_a_batch(|db|) {
        #[derive(Clone, Default)]
        struct Counts(Arc<AtomicU32>, Arc<AtomicU32>);

        impl Interceptor for Counts {
            fn before(&self, cx: &outbox::Cx) -> Result<(), Failure> {
                self.0.fetch_add(1, Ordering::SeqCst);
                if cx.payload::<u64>().unwrap() == 3 { Err(Failure::dead("not this one")) } else { Ok(()) }
            }

            fn after(&self, _: &outbox::Cx, result: &Result<outbox::Outcome, Failure>) {
                self.1.fetch_add(u32::from(result.is_ok()), Ordering::SeqCst);
            }
        }

        let (counts, latch) = (Counts::default(), LatchPublisher::expecting(9));
        db.write("e", 0..10).await;
        let relay = db.outbox.multi_node().interceptor(counts.clone()).forward_any(latch.clone()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((counts.0.load(Ordering::SeqCst), counts.1.load(Ordering::SeqCst)), (10, 9));
        assert_eq!(db.tally().await, (0, 0, 9, 1));
    }

    /// Its destination has gone away: that is no fault of the event's.
    async fn a_publisher_that_fails_and_is_not_healthy_any_more_costs_no_attempt(|db|) {
        struct Breaks(LatchPublisher, AtomicBool, AtomicU32);

        #[async_trait]
        impl Publisher for Breaks {
            fn name(&self) -> &'static str {
                "breaks"
            }

            async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
                if self.1.swap(true, Ordering::SeqCst) {
                    return self.0.publish_batch(events).await;
                }
                Err(Failure::retry("cut off").into())
            }

            /// Not right after it broke, and then again.
            async fn health(&self) -> Result<(), Unavailable> {
                Unavailable::unless(!self.1.load(Ordering::SeqCst) || self.2.fetch_add(1, Ordering::SeqCst) > 0, "it is not healthy")
            }
        }

        let latch = LatchPublisher::expecting(1);
        let publisher = Breaks(latch.clone(), AtomicBool::new(false), AtomicU32::new(0));
        let relay = db.outbox.multi_node().retry(Backoff::never()).forward(["e"], publisher).start().await.unwrap();
        let id = db.write("e", 0..1).await.remove(0);
        let arrived = latch.wait(FOREVER).await.expect("one failure would have been its last");
        assert_eq!(arrived[0].attempt(), 1);
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status(&id).await, Status::Done);
    }

    /// The destination takes a connection, says that it is well, and refuses whatever is sent. What that costs depends on how
    /// often it is tried, not on how many events wait.
    async fn a_half_open_outage_writes_a_few_rows_for_each_probe(|db|) {
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        let refuses = Says::new(move |_: &[Outgoing]| {
            counted.fetch_add(1, Ordering::SeqCst);
            Err(PublishError::unavailable("503 Service Unavailable"))
        });
        db.write("e", 0..2_000).await;
        let relay = db.outbox.multi_node()
            .workers(2)
            .poll_interval(Duration::from_millis(20))
            .forward_any(refuses)
            .start().await.unwrap();
        let tried = || tries.load(Ordering::SeqCst);
        // Each claim of a row, and each time that one is given back, raises its counter.
        let writes = async || {
            let mut sum = 0;
            for n in 0.. {
                match db.number(&format!("SELECT count(*) FROM {{t}} WHERE claims > {n}")).await {
                    0 => break,
                    rows => sum += rows,
                }
            }
            sum
        };
        // The first batches were under way at once.
        relay_until(&relay, || tried() >= 4).await;
        relay.idle().await.unwrap();
        let (tries_before, before) = (tried(), writes().await);
        assert!(before < 4_000, "what was in hand is given back once, and no more is taken: {before} writes");
        relay_until(&relay, || tried() >= tries_before + 2).await;
        relay.idle().await.unwrap();
        let (more, written) = (tried() - tries_before, writes().await - before);
        assert!(written <= i64::from(more + 1) * 3, "{written} writes for {more} probes");
        let outages = db.outbox.store().nodes().await.unwrap().remove(0).state.outages;
        relay.stop().await.unwrap();
        assert_eq!(outages[0].reason, "503 Service Unavailable");
        assert_eq!(db.tally().await, (2_000, 0, 0, 0), "no attempt was counted");
    }

    /// One event makes the destination say that it is unavailable, whenever it is sent. The others arrive, and in the end that is
    /// the event's failure.
    async fn an_event_that_shuts_its_destination_starves_no_other(|db|) {
        let arrived = Arc::new(Mutex::new(HashSet::new()));
        let theirs = arrived.clone();
        let publisher = Says::new(move |events: &[Outgoing]| {
            if events.iter().any(|event| event.payload::<u64>().unwrap() == 7) {
                return Err(PublishError::unavailable("out of memory"));
            }
            theirs.lock().unwrap().extend(events.iter().map(|event| event.id().clone()));
            Ok(())
        });
        let ids = db.write("e", 0..40).await;
        let relay = db.outbox.multi_node()
            .poll_interval(Duration::from_millis(20))
            .retry(Backoff::never())
            .forward_any(publisher)
            .start().await.unwrap();
        relay_until(&relay, || arrived.lock().unwrap().len() == 39).await;
        // Others that come later show that the destination takes events.
        let until = tokio::time::Instant::now() + FOREVER;
        for n in 100.. {
            if db.status(&ids[7]).await == Status::Dead {
                break;
            }
            assert!(tokio::time::Instant::now() < until, "it is tried without end");
            db.outbox.send(numbered("e", n)).await.unwrap();
            relay.poll_once().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        relay.stop().await.unwrap();
        let dead = db.find(&ids[7]).await;
        assert_eq!((dead.attempts, db.tally().await.3), (1, 1), "and it alone");
        assert!(dead.last_error.unwrap().starts_with("out of memory"));
    }

    /// The publisher knows which event it was, and asks for time for that one. It says so of the destination as well.
    async fn a_failure_of_one_event_counts_though_the_publisher_is_unhealthy_afterwards(|db|) {
        struct SlowDown(LatchPublisher, AtomicU32);

        #[async_trait]
        impl Publisher for SlowDown {
            fn name(&self) -> &'static str {
                "slow down"
            }

            async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
                let late = |event: &Outgoing| event.payload::<u64>().unwrap() == 3;
                let (some, rest): (Vec<_>, Vec<_>) = events.iter().cloned().partition(|event| !late(event));
                self.0.publish_batch(&some).await?;
                if rest.is_empty() {
                    return Ok(());
                }
                self.1.store(2, Ordering::SeqCst);
                let fate = |event: &Outgoing| match late(event) {
                    true => Fate::Failed(Failure::retry_after(3_600 * SEC, "429 Too Many Requests")),
                    false => Fate::Published,
                };
                Err(PublishError::each(events.iter().map(fate).collect()))
            }

            /// Not right after that, and then again.
            async fn health(&self) -> Result<(), Unavailable> {
                let busy = self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
                Unavailable::unless(!busy, "it is not healthy")
            }
        }

        let latch = LatchPublisher::expecting(9);
        let ids = db.write("e", 0..10).await;
        let publisher = SlowDown(latch.clone(), AtomicU32::new(0));
        let relay = db.outbox.multi_node().forward(["e"], publisher).start().await.unwrap();
        latch.wait(FOREVER).await.expect("the others arrive");
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let late = db.find(&ids[3]).await;
        assert_eq!((late.status, late.attempts), (Status::Retry, 1));
        assert!(late.available_at > late.created_at + chrono::Duration::minutes(50), "{}", late.available_at);
    }

    /// Not even those of the same keys. Once it is back its own events come in their order.
    async fn an_outage_holds_up_no_other_destination_through_shared_keys(|db|) {
        for n in 0..60 {
            let event_type = if n % 2 == 0 { "lost" } else { "fine" };
            db.outbox.send(numbered(event_type, n).ordering_key(["a", "b", "c"][n as usize % 3])).await.unwrap();
        }
        let lost = Arc::new(Down::default());
        let (fine, arrived) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (notes, theirs, up) = (fine.clone(), arrived.clone(), lost.clone());
        let note = |list: &Mutex<Vec<u64>>, events: &[Outgoing]| {
            list.lock().unwrap().extend(events.iter().map(|event| event.payload::<u64>().unwrap()));
        };
        let healthy = Says::new(move |events: &[Outgoing]| {
            note(&notes, events);
            Ok(())
        });
        let broken = Says::new(move |events: &[Outgoing]| {
            if !up.is_up.load(Ordering::SeqCst) {
                return Err(PublishError::unavailable("connection refused"));
            }
            note(&theirs, events);
            Ok(())
        });
        let relay = db.outbox.ordered()
            .poll_interval(Duration::from_millis(20))
            .forward(["lost"], broken)
            .forward(["fine"], healthy)
            .start().await.unwrap();
        relay_until(&relay, || fine.lock().unwrap().len() == 30).await;
        assert!(arrived.lock().unwrap().is_empty());
        lost.is_up.store(true, Ordering::SeqCst);
        relay_until(&relay, || arrived.lock().unwrap().len() == 30).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (0, 0, 60, 0));
        for list in [fine, arrived] {
            for key in 0..3 {
                let of_key: Vec<u64> = list.lock().unwrap().iter().copied().filter(|n| n % 3 == key).collect();
                assert!(of_key.is_sorted(), "{of_key:?}");
            }
        }
    }

    /// Neither a dead event nor one that is retried does. The relay learns the types from what it finds in the way.
    async fn a_failing_event_holds_up_its_own_destination_only(|db|) {
        struct ByType(Destination, Destination);

        impl Router for ByType {
            fn route(&self, event: &Event) -> Option<Destination> {
                self.of_type(event.event_type())
            }

            fn of_type(&self, event_type: &outbox::EventType) -> Option<Destination> {
                Some(if *event_type == "bad" { self.0.clone() } else { self.1.clone() })
            }
        }

        let refuses = || Says::new(|events: &[Outgoing]| {
            let fate = |event: &Outgoing| Fate::Failed(match event.ordering_key() {
                Some("dead") => Failure::dead("refused"),
                _ => Failure::retry_after(3_600 * SEC, "not now"),
            });
            Err(PublishError::each(events.iter().map(fate).collect()))
        });
        for key in ["dead", "late"] {
            db.outbox.send(numbered("bad", 0).ordering_key(key)).await.unwrap();
        }
        let first = db.outbox.ordered().forward_any(refuses()).start().await.unwrap();
        first.idle().await.unwrap();
        first.stop().await.unwrap();
        assert_eq!(db.tally().await, (0, 1, 0, 1));
        for (n, event_type) in (1..).zip(["bad", "good", "bad", "good"]) {
            for key in ["dead", "late"] {
                db.outbox.send(numbered(event_type, n).ordering_key(key)).await.unwrap();
            }
        }
        let good = LatchPublisher::expecting(4);
        let router = ByType(refuses().into(), good.clone().into());
        let relay = db.outbox.single_node().forward_by(router).start().await.unwrap();
        let arrived = good.wait(FOREVER).await.expect("they go elsewhere");
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        for key in ["dead", "late"] {
            let of_key = arrived.iter().filter(|event| event.ordering_key() == Some(key));
            assert_eq!(of_key.map(|event| event.payload().unwrap()).collect::<Vec<u64>>(), [2, 4], "{key}");
        }
        assert_eq!(db.tally().await, (4, 1, 4, 1), "the rest waits behind its own");
    }

    /// A key with an event for a handler, which may do anything, is one run.
    async fn a_key_with_handlers_and_two_destinations_stays_in_order(|db|) {
        let order = Arc::new(Mutex::new(Vec::new()));
        let publisher = || {
            let order = order.clone();
            Says::new(move |events: &[Outgoing]| {
                order.lock().unwrap().extend(events.iter().map(|event| event.payload::<u64>().unwrap()));
                Ok(())
            })
        };
        let handled = order.clone();
        let relay = db.outbox.ordered()
            .workers(8)
            .batch(7)
            .on_type("handled", move |cx: outbox::Cx| {
                handled.lock().unwrap().push(cx.payload::<u64>().unwrap());
                std::future::ready(())
            })
            .forward(["a"], publisher())
            .forward(["b"], publisher())
            .start().await.unwrap();
        for n in 0..120 {
            let event_type = ["a", "b", "a", "handled", "b"][n as usize % 5];
            db.outbox.send(numbered(event_type, n).ordering_key("k")).await.unwrap();
        }
        relay_until(&relay, || order.lock().unwrap().len() == 120).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let order = order.lock().unwrap();
        let place = |n: u64| order.iter().position(|one| *one == n).unwrap();
        for n in 0..120 {
            for later in n + 1..120 {
                let (one, other) = (n % 5, later % 5);
                let ordered = one == 3 || other == 3 || (one == 0 || one == 2) == (other == 0 || other == 2);
                assert!(!ordered || place(n) < place(later), "{later} came before {n}: {order:?}");
            }
        }
    }

    /// As a handler's are.
    async fn errors_of_a_publisher_are_retried(frozen |db|) {
        let latch = LatchPublisher::expecting(1);
        let retry = Backoff::default().base(SEC).max(SEC).no_jitter();
        let publisher = Moody::new(&latch, true, 2);
        let relay = db.outbox.single_node().retry(retry).forward(["e"], publisher).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().unwrap();
        for attempts in 1..=2 {
            relay.idle().await.unwrap();
            let stored = db.find(&id).await;
            assert_eq!((stored.status, stored.attempts), (Status::Retry, attempts));
            assert_eq!(stored.last_error.as_deref(), Some("not now"));
            db.advance(SEC);
        }
        relay.idle().await.unwrap();
        assert_eq!(latch.wait(FOREVER).await.unwrap()[0].attempt(), 3);
        relay.stop().await.unwrap();
    }
}

/// The batch was one event, and the error came after it.
#[tokio::test]
async fn an_event_that_a_failing_publisher_took_is_done() {
    let outbox = outbox::testing::outbox().await;
    let publisher = Moody { published: 1, ..Moody::new(&LatchPublisher::expecting(1), true, 1) };
    let relay = outbox.single_node().forward_any(publisher).start().await.unwrap();
    outbox.send(numbered("e", 1)).await.unwrap();
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
    assert_eq!(outbox.admin().stats().await.unwrap().done, 1);
}

/// The outage is over before what it cut off is given back, so that nobody who looks at the table in between sees it there. Other
/// events have the relay read on from where it is, and the next look at the whole table, which takes long here, would come twenty
/// times that long after the last one.
#[tokio::test]
async fn what_a_short_outage_gives_back_late_is_taken_at_once() {
    let outbox = outbox::testing::outbox().await;
    outbox.send_all((0..100).map(|n| numbered("e", n))).await.unwrap();
    let store = failing_store::Failing::slow(outbox.store(), SEC);
    let (is_first, arrived) = (AtomicBool::new(true), Arc::new(AtomicU32::new(0)));
    let counted = arrived.clone();
    let publisher = Says::new(move |events: &[Outgoing]| {
        if is_first.swap(false, Ordering::SeqCst) {
            return Err(PublishError::unavailable("for a moment"));
        }
        counted.fetch_add(events.len() as u32, Ordering::SeqCst);
        Ok(())
    });
    let others = Says::new(|_: &[Outgoing]| Ok(()));
    let relay = outbox::RelayBuilder::multi_node(store)
        .batch(100)
        .forward(["e"], publisher)
        .forward(["other"], others);
    let relay = relay.start().await.unwrap();
    let until = tokio::time::Instant::now() + 19 * SEC;
    for n in 0.. {
        if arrived.load(Ordering::SeqCst) == 100 {
            break;
        }
        assert!(tokio::time::Instant::now() < until, "{arrived:?} of 100 have arrived");
        outbox.send(numbered("other", n)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.stop().await.unwrap();
}

#[tokio::test]
async fn a_type_has_one_publisher_or_handler() {
    let outbox = outbox::testing::outbox().await;
    let latch = || LatchPublisher::expecting(1);
    for builder in [
        outbox.single_node().forward(["a", "a"], latch()),
        outbox.single_node().forward(["a"], latch()).on_type("a", Seen::default().handler()),
        outbox.single_node().forward_any(latch()).on_any(Seen::default().handler()),
    ] {
        assert!(matches!(builder.start().await, Err(Error::DuplicateHandler { .. })));
    }
}
