//! Publishers as handlers of the queue.

mod bed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bed::{FOREVER, Seen, numbered};
use outbox::store::Status;
use outbox::{
    Backoff, Error, Failure, LatchPublisher, Outgoing, PublishError, Publisher, StatisticsPublisher,
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

    async fn is_healthy(&self) -> bool {
        self.well.load(Ordering::SeqCst)
    }
}

on_every_database! {
    /// Of the types asked for, and no others.
    async fn events_of_the_queue_reach_a_publisher(|bed|) {
        let (latch, rest, seen) = (LatchPublisher::expecting(4), LatchPublisher::expecting(1), Seen::default());
        let counted = StatisticsPublisher::of(latch.clone());
        let relay = bed.outbox.multi_node()
            .forward(["a", "b"], counted.clone())
            .on_type("c", seen.handler())
            .forward_any(rest.clone())
            .start().await.unwrap();
        bed.write("a", 0..3).await;
        for event_type in ["b", "c", "d"] {
            bed.write(event_type, 7..8).await;
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
        assert_eq!(bed.tally().await, (0, 0, 6, 0));
    }

    /// It is not the event's fault: no attempt is counted, however long it takes.
    async fn an_unhealthy_publisher_is_waited_for(frozen |bed|) {
        let latch = LatchPublisher::expecting(1);
        let moody = Arc::new(Moody::new(&latch, false, 0));
        let retry = Backoff::default().max_attempts(2).no_jitter();
        let relay = bed.outbox.single_node().retry(retry).forward(["e"], moody.clone()).start().await.unwrap();
        let id = bed.outbox.send(numbered("e", 1)).await.unwrap().unwrap();
        for _ in 0..5 {
            relay.idle().await.unwrap();
            let stored = bed.find(&id).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0));
            bed.advance(SEC);
        }
        assert_eq!(moody.asked.load(Ordering::SeqCst), 0, "nothing was asked of it");
        moody.well.store(true, Ordering::SeqCst);
        bed.advance(SEC);
        relay.poll_once().await.unwrap();
        let arrived = latch.wait(FOREVER).await.unwrap();
        assert_eq!((arrived[0].id(), arrived[0].attempt()), (&id, 1));
        relay.stop().await.unwrap();
        assert_eq!(bed.status(&id).await, Status::Done);
    }

    /// Its destination has gone away: that is no fault of the event's.
    async fn a_publisher_that_fails_and_is_not_healthy_any_more_costs_no_attempt(|bed|) {
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
            async fn is_healthy(&self) -> bool {
                !self.1.load(Ordering::SeqCst) || self.2.fetch_add(1, Ordering::SeqCst) > 0
            }
        }

        let latch = LatchPublisher::expecting(1);
        let publisher = Breaks(latch.clone(), AtomicBool::new(false), AtomicU32::new(0));
        let relay = bed.outbox.multi_node().retry(Backoff::never()).forward(["e"], publisher).start().await.unwrap();
        let id = bed.write("e", 0..1).await.remove(0);
        let arrived = latch.wait(FOREVER).await.expect("one failure would have been its last");
        assert_eq!(arrived[0].attempt(), 1);
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(bed.status(&id).await, Status::Done);
    }

    /// As a handler's are.
    async fn errors_of_a_publisher_are_retried(frozen |bed|) {
        let latch = LatchPublisher::expecting(1);
        let retry = Backoff::default().base(SEC).max(SEC).no_jitter();
        let publisher = Moody::new(&latch, true, 2);
        let relay = bed.outbox.single_node().retry(retry).forward(["e"], publisher).start().await.unwrap();
        let id = bed.outbox.send(numbered("e", 1)).await.unwrap().unwrap();
        for attempts in 1..=2 {
            relay.idle().await.unwrap();
            let stored = bed.find(&id).await;
            assert_eq!((stored.status, stored.attempts), (Status::Retry, attempts));
            assert_eq!(stored.last_error.as_deref(), Some("not now"));
            bed.advance(SEC);
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
