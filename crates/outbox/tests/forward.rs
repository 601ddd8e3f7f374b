//! Publishers as destinations of the queue.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::{FOREVER, Gate, Poll, Seen, numbered, until};
use outbox::store::Status;
use outbox::{
    Backoff, Destination, Error, Event, EventResult, Failure, Interceptor, LatchPublisher, Outgoing,
    PublishError, Publisher, Relay, Router, StatisticsPublisher, Unavailable,
};

const SEC: Duration = Duration::from_secs(1);

/// Publishes to a latch when it is healthy, after a number of failures.
struct Unreliable {
    latch: LatchPublisher,
    healthy: AtomicBool,
    failures: AtomicU32,
    calls: AtomicU32,
    /// Number of calls of `health`.
    checks: AtomicU32,
    /// Number of events that it reports as published when it fails.
    published: usize,
}

impl Unreliable {
    fn new(latch: &LatchPublisher, healthy: bool, failures: u32) -> Self {
        Self {
            latch: latch.clone(),
            healthy: healthy.into(),
            failures: failures.into(),
            calls: 0.into(),
            checks: 0.into(),
            published: 0,
        }
    }
}

#[async_trait]
impl Publisher for Unreliable {
    fn name(&self) -> &'static str {
        "unreliable"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Err(PublishError::after(self.published, Failure::retry("not now")));
        }
        self.latch.publish_batch(events).await
    }

    async fn health(&self) -> Result<(), Unavailable> {
        self.checks.fetch_add(1, Ordering::SeqCst);
        Unavailable::unless(self.healthy.load(Ordering::SeqCst), "it is not healthy")
    }
}

/// A publisher that returns the result of a function.
struct Returning<F>(F);

impl<F: Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync + 'static> Returning<F> {
    fn new(result: F) -> Self {
        Self(result)
    }
}

#[async_trait]
impl<F: Fn(&[Outgoing]) -> Result<(), PublishError> + Send + Sync + 'static> Publisher for Returning<F> {
    fn name(&self) -> &'static str {
        "returning"
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        (self.0)(events)
    }
}

/// Is unavailable until `is_up` is set, and reports unhealthy only after the first attempt to
/// publish.
#[derive(Default)]
struct Down {
    is_up: AtomicBool,
    attempts: AtomicU32,
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
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if !self.is_up.load(Ordering::SeqCst) {
            return Err(PublishError::unavailable("connection refused"));
        }
        self.arrived.lock().unwrap().extend(events.iter().map(|event| event.id().to_string()));
        Ok(())
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(
            self.is_up.load(Ordering::SeqCst) || self.attempts.load(Ordering::SeqCst) == 0,
            "it is not healthy",
        )
    }
}

/// Blocks every batch until the gate admits it, and records the size of each batch and the maximum
/// number at once.
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

/// Polls until the condition holds.
async fn relay_until(relay: &Relay, condition: impl Fn() -> bool) {
    let poll_once = async || {
        relay.poll_once().await.unwrap();
        condition()
    };
    until("the relay has brought about the condition", poll_once).await;
}

/// As `RelayBuilder::workers` documents: events are bounded by the batch, and by the publisher
/// itself.
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
    /// Events of the requested types, and no others.
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
        assert_eq!(db.status_counts().await, (0, 0, 6, 0));
    }

    /// An unhealthy publisher is not the event's failure: no attempt is counted, however long it
    /// lasts, and the publisher is not called.
    async fn events_wait_for_an_unhealthy_publisher(|db|) {
        let latch = LatchPublisher::expecting(1);
        let unreliable = Arc::new(Unreliable::new(&latch, false, 0));
        let relay = db.outbox.single_node().retry(Backoff::never()).forward(["e"], unreliable.clone()).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        for checks in 1..=3 {
            relay.poll_once().await.unwrap();
            let is_checked = async || {
                assert_eq!(unreliable.calls.load(Ordering::SeqCst), 0, "the publisher was not called");
                unreliable.checks.load(Ordering::SeqCst) >= checks
            };
            until("its health is checked again", is_checked).await;
            let stored = db.find(&id).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0));
        }
        unreliable.healthy.store(true, Ordering::SeqCst);
        let arrived = latch.wait(FOREVER).await.expect("its health is checked again");
        assert_eq!((arrived[0].id(), arrived[0].attempt()), (&id, 1));
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status(&id).await, Status::Done);
    }

    /// Events of the unavailable destination stay in the table unchanged; events of the others are
    /// delivered, later ones too.
    async fn an_outage_of_one_destination_delays_no_other(|db|) {
        let (lost, fine) = (Arc::new(Down::default()), LatchPublisher::expecting(20));
        let relay = db.outbox.multi_node()
            .retry(Backoff::never())
            .poll_interval(Duration::from_millis(20))
            .forward(["lost"], lost.clone())
            .forward(["fine"], fine.clone())
            .start().await.unwrap();
        let waiting = db.write("lost", 0..300).await;
        db.write("fine", 0..10).await;
        // More of these events than a relay takes at a time.
        db.write("lost", 300..3_000).await;
        db.write("fine", 10..20).await;
        fine.wait(FOREVER).await.expect("the others are delivered");
        relay.idle().await.unwrap();
        let attempts = lost.attempts.load(Ordering::SeqCst);
        assert!(attempts < 20, "{attempts} attempts on a destination that is down");
        // Events that were taken when the outage began have been released; since then no event is
        // claimed, and no row written.
        let most_claims = async || {
            let mut most = 0;
            while db.number(&format!("SELECT count(*) FROM {{t}} WHERE claims > {most}")).await > 0 {
                most += 1;
            }
            most
        };
        let before = most_claims().await;
        for n in 20..30 {
            db.write("fine", n..n + 1).await;
            relay.poll_once().await.unwrap();
            let is_done = async || db.status_counts().await.2 == n + 1;
            until("the event of the other destination is done", is_done).await;
        }
        assert_eq!(most_claims().await, before, "events were claimed during the outage");
        for id in [&waiting[0], &waiting[299]] {
            let stored = db.find(id).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0));
        }
        lost.is_up.store(true, Ordering::SeqCst);
        relay_until(&relay, || lost.arrived() == 3_000).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (0, 0, 3_030, 0), "none is dead");
    }

    /// The destination depends on more than the type: events of the outage are put off one by one,
    /// and the others are delivered.
    async fn a_router_by_tenant_is_not_delayed_either(|db|) {
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
        let nowhere = db.outbox.send(Event::new("e").json(&9)).await.unwrap().id;
        fine.wait(FOREVER).await.expect("the other tenant's events arrive");
        lost.is_up.store(true, Ordering::SeqCst);
        relay_until(&relay, || lost.arrived() == 5).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (1, 0, 10, 0), "one event has no destination");
        assert_eq!(db.status(&nowhere).await, Status::New);
    }

    /// Events that wait in the table for an unavailable destination use another one as soon as the
    /// router returns it.
    async fn a_router_may_change_the_destination_during_an_outage(|db|) {
        struct Switch(Destination, Destination, AtomicBool);

        impl Router for Switch {
            fn route(&self, _: &Event) -> Option<Destination> {
                Some(if self.2.load(Ordering::SeqCst) { self.1.clone() } else { self.0.clone() })
            }

            fn of_type(&self, _: &outbox::EventType) -> Option<Destination> {
                Some(if self.2.load(Ordering::SeqCst) { self.1.clone() } else { self.0.clone() })
            }
        }

        let (lost, fine) = (Arc::new(Down::default()), LatchPublisher::expecting(5));
        let switch = Arc::new(Switch(lost.clone().into(), fine.clone().into(), AtomicBool::new(false)));
        let relay = db.outbox.multi_node()
            .retry(Backoff::never())
            .poll_interval(Duration::from_millis(20))
            .forward_by(switch.clone())
            .start().await.unwrap();
        db.write("e", 0..5).await;
        relay_until(&relay, || lost.attempts.load(Ordering::SeqCst) > 0).await;
        switch.2.store(true, Ordering::SeqCst);
        fine.wait(FOREVER).await.expect("they use the other destination");
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((db.status_counts().await, lost.arrived()), ((0, 0, 5, 0), 0));
    }

    /// A router is the application's code: a panic costs the event an attempt, and affects no other
    /// event.
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
        assert_eq!(db.status_counts().await, (0, 0, 9, 1));
        assert!(db.find(&ids[3]).await.last_error.unwrap().starts_with("the router panicked"));
    }

    /// One timeout for the batch, not one for each event.
    async fn a_publisher_that_times_out_is_called_once_for_a_batch(|db|) {
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
        assert_eq!(db.status_counts().await, (0, 0, 0, 20));
        assert!(hangs.0.load(Ordering::SeqCst) < 20, "{}", hangs.0.load(Ordering::SeqCst));
    }

    /// One call for many events: the publisher returns a result for each event, and each is settled
    /// by its result.
    async fn each_event_of_a_batch_is_settled_by_its_own_result(|db|) {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let sizes_seen = sizes.clone();
        let publisher = Returning::new(move |events| {
            sizes_seen.lock().unwrap().push(events.len());
            let fate = |event: &Outgoing| match event.payload::<u64>().unwrap() % 3 {
                0 => EventResult::Published,
                1 => EventResult::Failed(Failure::dead("a one")),
                _ if event.attempt() == 1 => EventResult::NotAttempted,
                _ => EventResult::Published,
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
        assert_eq!((untried.status, untried.attempts), (Status::New, 0), "an event that was not attempted counts no attempt");
    }

    /// An error of a whole batch costs only the event that causes it.
    async fn an_error_of_a_batch_is_traced_to_its_event(|db|) {
        let publisher = Returning::new(|events| match events.iter().any(|event| event.payload::<u64>().unwrap() == 7) {
            true if events[0].payload::<u64>().unwrap() == 7 => panic!("of a seven"),
            true => Err(Failure::retry("somewhere in there").into()),
            false => Ok(()),
        });
        let ids = db.write("e", 0..20).await;
        let relay = db.outbox.multi_node().retry(Backoff::never()).forward_any(publisher).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (0, 0, 19, 1));
        let dead = db.find(&ids[7]).await;
        assert_eq!(dead.last_error.as_deref(), Some("the publisher panicked: of a seven"));
    }

    /// Also when many keys share a batch, and some of its events fail.
    async fn a_key_stays_in_order_through_failures_of_a_batch(|db|) {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let (theirs, failed) = (arrived.clone(), AtomicU32::new(0));
        let publisher = Returning::new(move |events| {
            let mut stopped = HashSet::new();
            let fates = events.iter().map(|event| {
                let key = event.ordering_key().unwrap();
                if stopped.contains(key) {
                    return EventResult::NotAttempted;
                }
                if failed.fetch_add(1, Ordering::SeqCst) % 7 == 3 {
                    stopped.insert(key);
                    return EventResult::Failed(Failure::retry_after(Duration::from_millis(1), "every seventh"));
                }
                theirs.lock().unwrap().push((key.to_owned(), event.payload::<u64>().unwrap()));
                EventResult::Published
            });
            let fates: Vec<EventResult> = fates.collect();
            if fates.iter().all(|fate| *fate == EventResult::Published) { Ok(()) } else { Err(PublishError::each(fates)) }
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

    /// Handlers and publishers alternate on one key.
    async fn a_key_may_go_to_handlers_and_publishers(|db|) {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (published, handled) = (order.clone(), order.clone());
        let publisher = Returning::new(move |events| {
            published.lock().unwrap().extend(events.iter().map(|event| event.payload::<u64>().unwrap()));
            Ok(())
        });
        for n in 0..30 {
            let event_type = if n % 3 == 0 { "handled" } else { "published" };
            db.outbox.send(numbered(event_type, n).ordering_key("k")).await.unwrap();
        }
        let relay = db.outbox.single_node()
            .on_type("handled", move |cx: outbox::Context| {
                handled.lock().unwrap().push(cx.payload::<u64>().unwrap());
                std::future::ready(())
            })
            .forward(["published"], publisher)
            .start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(*order.lock().unwrap(), (0..30).collect::<Vec<_>>());
    }

    /// Interceptors run for each event of a batch, before and after.
    async fn interceptors_see_every_event_of_a_batch(|db|) {
        #[derive(Clone, Default)]
        struct Counts(Arc<AtomicU32>, Arc<AtomicU32>);

        impl Interceptor for Counts {
            fn before(&self, cx: &outbox::Context) -> Result<(), Failure> {
                self.0.fetch_add(1, Ordering::SeqCst);
                if cx.payload::<u64>().unwrap() == 3 { Err(Failure::dead("not this one")) } else { Ok(()) }
            }

            fn after(&self, _: &outbox::Context, result: &Result<outbox::Outcome, Failure>) {
                self.1.fetch_add(u32::from(result.is_ok()), Ordering::SeqCst);
            }
        }

        let (counts, latch) = (Counts::default(), LatchPublisher::expecting(9));
        db.write("e", 0..10).await;
        let relay = db.outbox.multi_node().interceptor(counts.clone()).forward_any(latch.clone()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((counts.0.load(Ordering::SeqCst), counts.1.load(Ordering::SeqCst)), (10, 9));
        assert_eq!(db.status_counts().await, (0, 0, 9, 1));
    }

    /// An unavailable destination is not the event's failure.
    async fn a_publisher_that_fails_and_becomes_unhealthy_costs_no_attempt(|db|) {
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

            /// Unhealthy once after the failure, then healthy.
            async fn health(&self) -> Result<(), Unavailable> {
                Unavailable::unless(!self.1.load(Ordering::SeqCst) || self.2.fetch_add(1, Ordering::SeqCst) > 0, "it is not healthy")
            }
        }

        let latch = LatchPublisher::expecting(1);
        let publisher = Breaks(latch.clone(), AtomicBool::new(false), AtomicU32::new(0));
        let relay = db.outbox.multi_node().retry(Backoff::never()).forward(["e"], publisher).start().await.unwrap();
        let id = db.write("e", 0..1).await.remove(0);
        let arrived = latch.wait(FOREVER).await.expect("one counted failure would have been the last");
        assert_eq!(arrived[0].attempt(), 1);
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status(&id).await, Status::Done);
    }

    /// The destination accepts connections, reports itself healthy, and refuses every event. The
    /// cost depends on the number of probes, not on the number of waiting events.
    async fn a_half_open_outage_writes_a_few_rows_for_each_probe(|db|) {
        let attempts = Arc::new(AtomicU32::new(0));
        let counted = attempts.clone();
        let refuses = Returning::new(move |_: &[Outgoing]| {
            counted.fetch_add(1, Ordering::SeqCst);
            Err(PublishError::unavailable("503 Service Unavailable"))
        });
        db.write("e", 0..2_000).await;
        let relay = db.outbox.multi_node()
            .workers(2)
            .poll_interval(Duration::from_millis(20))
            .forward_any(refuses)
            .start().await.unwrap();
        let attempted = || attempts.load(Ordering::SeqCst);
        // Each claim and each release of a row increments its counter.
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
        // The first batches were in flight at once.
        relay_until(&relay, || attempted() >= 4).await;
        relay.idle().await.unwrap();
        let (attempts_before, before) = (attempted(), writes().await);
        assert!(before < 4_000, "events in flight are released once, and no more are claimed: {before} writes");
        relay_until(&relay, || attempted() >= attempts_before + 2).await;
        relay.idle().await.unwrap();
        let (more, written) = (attempted() - attempts_before, writes().await - before);
        assert!(written <= i64::from(more + 1) * 3, "{written} writes for {more} probes");
        let outages = db.outbox.store().nodes().await.unwrap().remove(0).state.outages;
        relay.stop().await.unwrap();
        assert_eq!(outages[0].reason, "503 Service Unavailable");
        assert_eq!(db.status_counts().await, (2_000, 0, 0, 0), "no attempt was counted");
    }

    /// One event makes the destination report unavailable, whenever it is sent. The others arrive,
    /// and in the end that is the event's failure.
    async fn an_event_that_makes_its_destination_unavailable_starves_no_other(|db|) {
        let arrived = Arc::new(Mutex::new(HashSet::new()));
        let theirs = arrived.clone();
        let publisher = Returning::new(move |events: &[Outgoing]| {
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
        // Later events show that the destination accepts events.
        let is_dead = async || {
            db.outbox.send(numbered("e", 100)).await.unwrap();
            relay.poll_once().await.unwrap();
            db.status(&ids[7]).await == Status::Dead
        };
        let poll = Poll { pause: Duration::from_millis(20), ..Poll::DEFAULT };
        poll.until("the event is dead", is_dead).await;
        relay.stop().await.unwrap();
        let dead = db.find(&ids[7]).await;
        assert_eq!((dead.attempts, db.status_counts().await.3), (1, 1), "only this event is dead");
        assert!(dead.last_error.unwrap().starts_with("out of memory"));
    }

    /// The publisher names the event that failed, with a delay, and reports the destination as
    /// unhealthy as well.
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
                    true => EventResult::Failed(Failure::retry_after(3_600 * SEC, "429 Too Many Requests")),
                    false => EventResult::Published,
                };
                Err(PublishError::each(events.iter().map(fate).collect()))
            }

            /// Unhealthy for two checks after the failure, then healthy.
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

    /// Not even for events of the same keys. After the outage its own events arrive in order.
    async fn an_outage_delays_no_other_destination_through_shared_keys(|db|) {
        for n in 0..60 {
            let event_type = if n % 2 == 0 { "lost" } else { "fine" };
            db.outbox.send(numbered(event_type, n).ordering_key(["a", "b", "c"][n as usize % 3])).await.unwrap();
        }
        let lost = Arc::new(Down::default());
        let (fine, arrived) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (recorded, theirs, up) = (fine.clone(), arrived.clone(), lost.clone());
        let record = |list: &Mutex<Vec<u64>>, events: &[Outgoing]| {
            list.lock().unwrap().extend(events.iter().map(|event| event.payload::<u64>().unwrap()));
        };
        let healthy = Returning::new(move |events: &[Outgoing]| {
            record(&recorded, events);
            Ok(())
        });
        let broken = Returning::new(move |events: &[Outgoing]| {
            if !up.is_up.load(Ordering::SeqCst) {
                return Err(PublishError::unavailable("connection refused"));
            }
            record(&theirs, events);
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
        assert_eq!(db.status_counts().await, (0, 0, 60, 0));
        for list in [fine, arrived] {
            for key in 0..3 {
                let of_key: Vec<u64> = list.lock().unwrap().iter().copied().filter(|n| n % 3 == key).collect();
                assert!(of_key.is_sorted(), "{of_key:?}");
            }
        }
    }

    /// Neither a dead event nor a retried one delays another destination. The relay learns the
    /// types from the blocking events that it finds.
    async fn a_failing_event_delays_its_own_destination_only(|db|) {
        struct ByType(Destination, Destination);

        impl Router for ByType {
            fn route(&self, event: &Event) -> Option<Destination> {
                self.of_type(event.event_type())
            }

            fn of_type(&self, event_type: &outbox::EventType) -> Option<Destination> {
                Some(if *event_type == "bad" { self.0.clone() } else { self.1.clone() })
            }
        }

        let refuses = || Returning::new(|events: &[Outgoing]| {
            let fate = |event: &Outgoing| EventResult::Failed(match event.ordering_key() {
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
        assert_eq!(db.status_counts().await, (0, 1, 0, 1));
        for (n, event_type) in (1..).zip(["bad", "good", "bad", "good"]) {
            for key in ["dead", "late"] {
                db.outbox.send(numbered(event_type, n).ordering_key(key)).await.unwrap();
            }
        }
        let good = LatchPublisher::expecting(4);
        let router = ByType(refuses().into(), good.clone().into());
        let relay = db.outbox.single_node().forward_by(router).start().await.unwrap();
        let arrived = good.wait(FOREVER).await.expect("they have another destination");
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        for key in ["dead", "late"] {
            let of_key = arrived.iter().filter(|event| event.ordering_key() == Some(key));
            assert_eq!(of_key.map(|event| event.payload().unwrap()).collect::<Vec<u64>>(), [2, 4], "{key}");
        }
        assert_eq!(db.status_counts().await, (4, 1, 4, 1), "the others wait behind events of their own destination");
    }

    /// A key with an event for a handler, which may have any side effect, is one queue.
    async fn a_key_with_handlers_and_two_destinations_stays_in_order(|db|) {
        let order = Arc::new(Mutex::new(Vec::new()));
        let publisher = || {
            let order = order.clone();
            Returning::new(move |events: &[Outgoing]| {
                order.lock().unwrap().extend(events.iter().map(|event| event.payload::<u64>().unwrap()));
                Ok(())
            })
        };
        let handled = order.clone();
        let relay = db.outbox.ordered()
            .workers(8)
            .batch(7)
            .on_type("handled", move |cx: outbox::Context| {
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
        let position = |n: u64| order.iter().position(|one| *one == n).unwrap();
        for n in 0..120 {
            for later in n + 1..120 {
                let (one, other) = (n % 5, later % 5);
                let ordered = one == 3 || other == 3 || (one == 0 || one == 2) == (other == 0 || other == 2);
                assert!(!ordered || position(n) < position(later), "{later} came before {n}: {order:?}");
            }
        }
    }

    /// Errors of publishers are retried as errors of handlers are.
    async fn errors_of_a_publisher_are_retried(frozen |db|) {
        let latch = LatchPublisher::expecting(1);
        let retry = Backoff::default().base(SEC).max(SEC).no_jitter();
        let publisher = Unreliable::new(&latch, true, 2);
        let relay = db.outbox.single_node().retry(retry).forward(["e"], publisher).start().await.unwrap();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
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

/// The batch has one event, and the error comes after it.
#[tokio::test]
async fn an_event_that_a_failing_publisher_published_is_done() {
    let outbox = outbox::testing::outbox().await;
    let publisher = Unreliable { published: 1, ..Unreliable::new(&LatchPublisher::expecting(1), true, 1) };
    let relay = outbox.single_node().forward_any(publisher).start().await.unwrap();
    outbox.send(numbered("e", 1)).await.unwrap();
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
    assert_eq!(outbox.admin().stats().await.unwrap().done, 1);
}

/// The outage is over before the events that it interrupted are released, so no scan in between
/// sees them in the table. Other events make the relay read on from its cursor, and the next scan
/// of the whole table, which is slow here, would start twenty times its duration after the last
/// one.
#[tokio::test]
async fn events_that_a_short_outage_releases_late_are_taken_at_once() {
    let outbox = outbox::testing::outbox().await;
    outbox.send_all((0..100).map(|n| numbered("e", n))).await.unwrap();
    let store = failing_store::FailingStore::slow(outbox.store(), SEC);
    let (is_first, arrived) = (AtomicBool::new(true), Arc::new(AtomicU32::new(0)));
    let counted = arrived.clone();
    let publisher = Returning::new(move |events: &[Outgoing]| {
        if is_first.swap(false, Ordering::SeqCst) {
            return Err(PublishError::unavailable("for a moment"));
        }
        counted.fetch_add(events.len() as u32, Ordering::SeqCst);
        Ok(())
    });
    let others = Returning::new(|_: &[Outgoing]| Ok(()));
    let relay = outbox::RelayBuilder::multi_node(store)
        .batch(100)
        .forward(["e"], publisher)
        .forward(["other"], others);
    let relay = relay.start().await.unwrap();
    let all_arrived = async || {
        outbox.send(numbered("other", 0)).await.unwrap();
        let arrived = arrived.load(Ordering::SeqCst);
        if arrived == 100 { Ok(()) } else { Err(arrived) }
    };
    let poll = Poll { pause: Duration::from_millis(20), limit: 19 * SEC };
    poll.value("100 events have arrived", all_arrived).await;
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
