//! Names and values of the metrics.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Gate, Seen, TestDb, numbered, until};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use outbox::{
    Failure, LatchPublisher, Outcome, Outgoing, PublishError, Publisher, Topic, Unavailable, Unrouted,
};

/// One thread, so that no other test uses this test's recorder.
#[tokio::test(flavor = "current_thread")]
async fn everything_that_happens_to_an_event_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _mine = metrics::set_default_local_recorder(&recorder);
    let db = TestDb::<sqlx::Sqlite>::with(|builder| builder.name("orders")).await.unwrap();
    let (seen, gate) = (Seen::default(), Gate::closed());
    let hour = Duration::from_secs(3_600);
    let relay = db
        .outbox
        .single_node()
        .workers(1)
        .hot_capacity(3)
        .metrics_prefix("shop.outbox")
        .unrouted(Unrouted::Dead)
        .on_type("gate", seen.behind(&gate))
        .on_type("e", seen.handler())
        .on_type("later", seen.returning(move |_| Ok(Outcome::Snooze(hour))))
        .on_type("fails", seen.returning(move |_| Err(Failure::retry_after(hour, "no"))))
        .start()
        .await
        .unwrap();
    relay.idle().await.unwrap();
    db.write("gate", 0..1).await;
    seen.reach(1).await;
    // Three events fit into the hot queue, two do not.
    db.write("e", 0..5).await;
    gate.open();
    relay.idle().await.unwrap();
    db.outbox.send(numbered("e", 9).deliver_after(hour)).await.unwrap();
    db.write("later", 0..1).await;
    db.write("fails", 0..1).await;
    db.write("unknown", 0..1).await;
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();

    let mut counted = BTreeMap::new();
    let mut gauges = Vec::new();
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let (_, key) = key.into_parts();
        let labels: Vec<_> =
            key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        assert_eq!(labels, [("store".to_owned(), "orders".to_owned())], "no label names an event");
        match value {
            DebugValue::Counter(n) => drop(counted.insert(key.name().to_owned(), n)),
            DebugValue::Gauge(n) => gauges.push((key.name().to_owned(), n.into_inner())),
            DebugValue::Histogram(_) => panic!("no histograms"),
        }
    }
    let expected = [
        ("dispatch.dead", 1),
        ("dispatch.deferred", 1),
        ("dispatch.failure", 1),
        ("dispatch.success", 6),
        ("enqueue.cold", 2),
        ("enqueue.hot", 7),
        ("enqueue.hot.dropped", 2),
        ("enqueue.hot.skipped.delayed", 1),
        ("settle.stale", 0),
    ];
    let expected = expected.map(|(name, n)| (format!("shop.outbox.{name}"), n));
    assert_eq!(counted, BTreeMap::from(expected));
    gauges.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<&str> = gauges.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "shop.outbox.lag.oldest.ms",
            "shop.outbox.queue.cold.depth",
            "shop.outbox.queue.hot.depth",
            "shop.outbox.settle.last.seconds",
            "shop.outbox.take.last.seconds",
            "shop.outbox.unrouted"
        ]
    );
    assert!(gauges[1..3].iter().all(|(_, depth)| *depth == 0.0), "{gauges:?}");
    let now = chrono::Utc::now().timestamp_millis() as f64 / 1_000.0;
    assert!(gauges[3..5].iter().all(|(_, time)| (now - time).abs() < 600.0), "{gauges:?}");
}

/// The lag is the age of the oldest event that is due and not delivered, and 0 without one.
#[tokio::test(flavor = "current_thread")]
async fn the_lag_is_reported_in_milliseconds() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _mine = metrics::set_default_local_recorder(&recorder);
    let db = TestDb::<sqlx::Sqlite>::frozen().await.unwrap();
    let (seen, gate) = (Seen::default(), Gate::closed());
    let relay = db.outbox.single_node().on_type("e", seen.behind(&gate)).start().await.unwrap();
    let until_reported = async |expected: f64| {
        let reported = || {
            snapshots.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| match value {
                DebugValue::Gauge(n) if key.key().name() == "outbox.lag.oldest.ms" => Some(n.into_inner()),
                _ => None,
            })
        };
        until("the gauge is reported", async || reported() == Some(expected)).await;
    };
    db.outbox.send(numbered("e", 0).deliver_after(Duration::from_secs(3_600))).await.unwrap();
    db.write("e", 1..3).await;
    seen.reach(1).await;
    db.advance(Duration::from_millis(7_250));
    db.write("e", 3..4).await;
    until_reported(7_250.0).await;
    gate.open();
    until_reported(0.0).await;
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn events_that_no_running_relay_routes_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _mine = metrics::set_default_local_recorder(&recorder);
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let until_reported = async |expected: f64| {
        let reported = || {
            snapshots.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| match value {
                DebugValue::Gauge(n) if key.key().name() == "outbox.unrouted" => Some(n.into_inner()),
                _ => None,
            })
        };
        until("the gauge is reported", async || reported() == Some(expected)).await;
    };
    let seen = Seen::default();
    let often = Duration::from_millis(400);
    let relay = db.outbox.multi_node().presence(often).on_type("e", seen.handler()).start().await.unwrap();
    db.write("unknown", 0..3).await;
    db.write("e", 0..2).await;
    until_reported(3.0).await;
    // Another relay routes these events.
    let there = db.another().await;
    let other =
        there.outbox.multi_node().presence(often).on_type("unknown", seen.handler()).start().await.unwrap();
    until_reported(0.0).await;
    other.stop().await.unwrap();
    relay.stop().await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn publishing_is_counted_by_topic_and_publisher() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _mine = metrics::set_default_local_recorder(&recorder);
    let db = TestDb::<sqlx::Sqlite>::frozen_with(|builder| builder.name("orders")).await.unwrap();
    let latch = LatchPublisher::expecting(5);
    let lease = Duration::from_secs(3);
    let relay = db
        .outbox
        .log_only()
        .subscription_lease(lease)
        .publish(Topic::new("all").to(latch.clone()))
        .publish(Topic::new("all").to(Fails))
        .start()
        .await
        .unwrap();
    db.outbox.log().append((0..5).map(|n| numbered("e", n))).await.unwrap();
    latch.wait(common::FOREVER).await.unwrap();
    relay.idle().await.unwrap();
    // The lag is reported when the node renews its leases.
    db.noticed_by_leader("latch", lease).await;
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let (_, key) = key.into_parts();
        let labels: BTreeMap<_, _> = key.labels().map(|label| (label.key(), label.value())).collect();
        let (Some(&"all"), Some(publisher)) = (labels.get("topic"), labels.get("publisher")) else {
            continue;
        };
        assert_eq!(labels.get("store"), Some(&"orders"));
        let value = match value {
            DebugValue::Counter(n) => i64::try_from(n).unwrap(),
            DebugValue::Gauge(n) => n.into_inner() as i64,
            DebugValue::Histogram(_) => panic!("no histograms"),
        };
        counted.insert((key.name().to_owned(), (*publisher).to_owned()), value);
    }
    relay.stop().await.unwrap();
    let of = |name: &str, publisher: &str| counted[&(format!("outbox.log.{name}"), publisher.to_owned())];
    assert_eq!((of("published", "latch"), of("published", "fails")), (5, 0));
    assert_eq!(of("errors", "latch"), 0);
    assert!(of("errors", "fails") >= 1);
    assert_eq!((of("leading", "latch"), of("leading", "fails")), (1, 1));
    assert_eq!((of("lag", "latch"), of("lag", "fails")), (0, 5));
}

#[tokio::test(flavor = "current_thread")]
async fn a_publisher_that_is_taken_over_from_a_leader_that_vanished_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _mine = metrics::set_default_local_recorder(&recorder);
    let db = TestDb::<sqlx::Sqlite>::frozen().await.unwrap();
    let (store, lease) = (db.outbox.store(), Duration::from_secs(3));
    let log = store.log().unwrap();
    let ids = ["vanished", "given-back"].map(|name| outbox::SubscriptionId::new("all", name));
    log.register(&ids.clone().map(|id| (id, false))).await.unwrap();
    let ghost = outbox::NodeId::from("ghost");
    let led = log.claim(&ghost, lease, &ids).await.unwrap();
    let given: Vec<_> = led
        .iter()
        .filter(|subscription| subscription.id == ids[1])
        .map(|p| (p.id.clone(), p.epoch))
        .collect();
    log.release(&ghost, &given).await.unwrap();
    db.advance(lease);
    let latches = ["vanished", "given-back"].map(|name| LatchPublisher::expecting(1).named(name));
    let mut relay = db.outbox.log_only().subscription_lease(lease);
    for latch in &latches {
        relay = relay.publish(Topic::new("all").to(latch.clone()));
    }
    let relay = relay.start().await.unwrap();
    db.outbox.log().append([numbered("e", 1)]).await.unwrap();
    for latch in &latches {
        latch.wait(common::FOREVER).await.unwrap();
    }
    relay.stop().await.unwrap();
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let (_, key) = key.into_parts();
        let publisher = key.labels().find(|label| label.key() == "publisher");
        if let (DebugValue::Counter(n), Some(publisher), "outbox.log.takeovers") =
            (value, publisher, key.name())
        {
            counted.insert(publisher.value().to_owned(), n);
        }
    }
    assert_eq!(counted, BTreeMap::from([("vanished".to_owned(), 1), ("given-back".to_owned(), 0)]));
}

struct Fails;

#[async_trait::async_trait]
impl Publisher for Fails {
    fn name(&self) -> &str {
        "fails"
    }

    async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
        Err(Failure::retry("no").into())
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_unavailable_destination_is_reported_until_it_is_available() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _mine = metrics::set_default_local_recorder(&recorder);
    let db = TestDb::<sqlx::Sqlite>::with(|builder| builder.name("orders")).await.unwrap();
    let away = Arc::new(Away::default());
    let relay = db.outbox.single_node().forward(["e"], away.clone()).start().await.unwrap();
    // The latest value of the gauge.
    let reported = || {
        let all = snapshots.snapshot().into_vec().into_iter();
        let mut gauges = all.filter_map(|(key, _, _, value)| {
            let (_, key) = key.into_parts();
            let DebugValue::Gauge(value) = value else { return None };
            let matches = key.name() == "outbox.destination.unavailable";
            let labels: BTreeMap<_, _> = key.labels().map(|label| (label.key(), label.value())).collect();
            matches.then(|| {
                assert_eq!(labels, BTreeMap::from([("destination", "away"), ("store", "orders")]));
            })?;
            Some(value.into_inner())
        });
        gauges.next()
    };
    assert_eq!(reported(), None, "there was no outage");
    db.write("e", 0..1).await;
    until("the outage is reported", async || reported() == Some(1.0)).await;
    away.0.store(true, Ordering::SeqCst);
    until("its end is reported", async || reported() == Some(0.0)).await;
    relay.stop().await.unwrap();
}

/// A publisher that is unavailable until the flag is set.
#[derive(Default)]
struct Away(AtomicBool);

#[async_trait::async_trait]
impl Publisher for Away {
    fn name(&self) -> &str {
        "away"
    }

    async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
        Ok(())
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(self.0.load(Ordering::SeqCst), "it is not healthy")
    }
}
