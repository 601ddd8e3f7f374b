//! Cases with an unhealthy server.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use outbox::{EventResult, Outgoing, PublishError, Publisher};
use outbox_transports::Order;
use tokio::sync::watch;

use super::relay::{Progress, deliver};
use super::{
    Harness, MAX_STALL, PublisherOptions, Received, Sharing, assert_no_secret, fates, ids, numbered, poll,
};

/// Tolerance over a publisher's timeout; the machine may be busy.
const SLACK: Duration = Duration::from_secs(8);

pub async fn a_stopped_server_is_unavailable_until_it_starts<B: Harness>() {
    let Some(mut harness) = B::open(Sharing::Exclusive).await else { return };
    harness.stop();
    let options = PublisherOptions::short_timeout();
    let publisher = harness.publisher(&options);
    let events = [numbered(0, None), numbered(1, Some("k"))];
    let started = Instant::now();
    assert!(publisher.health().await.is_err());
    assert!(started.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", started.elapsed());

    let started = Instant::now();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(started.elapsed() < options.timeout + SLACK, "{:?}", started.elapsed());
    assert!(error.is_unavailable(), "{error}");
    assert_no_secret(&format!("{error} {error:?}"));
    for fate in fates(&error, 2) {
        assert!(matches!(fate, None | Some(EventResult::NotAttempted)), "{fate:?}");
    }

    harness.start();
    wait_until_healthy(&*publisher).await;
    publish_until_accepted(&*publisher, &events).await;
    let received = received_all(&harness, &events).await;
    let received: HashSet<String> = received.into_iter().map(|message| message.id).collect();
    assert_eq!(received, ids(&events).into_iter().collect());
}

pub async fn a_confirmed_event_outlives_a_restart_and_the_publisher_recovers<B: Harness>() {
    let Some(harness) = B::open(Sharing::Exclusive).await else { return };
    survives(harness, B::stop).await;
}

pub async fn a_confirmed_event_outlives_a_crash_and_the_publisher_recovers<B: Harness>() {
    if !B::SURVIVES_CRASHES {
        return;
    }
    let Some(harness) = B::open(Sharing::Exclusive).await else { return };
    survives(harness, B::kill).await;
}

/// The number of events to send, `OUTBOX_TRANSPORT_EVENTS`, and of server terminations meanwhile,
/// `OUTBOX_TRANSPORT_KILLS`.
fn workload() -> (usize, usize) {
    let number =
        |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    (number("OUTBOX_TRANSPORT_EVENTS", 3_000), number("OUTBOX_TRANSPORT_KILLS", 1))
}

/// Terminates and restarts the server in the middle of a series of batches.
async fn survives<B: Harness>(mut harness: B, end: impl Fn(&mut B)) {
    let publisher = harness.publisher(&PublisherOptions::short_timeout());
    let (count, kills) = workload();
    let events: Vec<Outgoing> =
        (0..count).map(|n| numbered(n, Some(["a", "b", "c", "d", "e"][n % 5]))).collect();
    let (progress, mut observed) = watch::channel(Progress::default());
    let relay = tokio::spawn(deliver(publisher, events.clone(), progress));

    let wait_until = async |observed: &mut watch::Receiver<Progress>, enough: &dyn Fn(&Progress) -> bool| {
        while !enough(&observed.borrow_and_update()) {
            tokio::time::timeout(MAX_STALL, observed.changed())
                .await
                .expect("progress within a minute")
                .expect("the relay is running");
        }
    };
    let mut before = HashSet::new();
    for kill in 1..=kills {
        // Each termination at a different position in a batch.
        let enough = kill * count / (kills + 10) + kill % 20;
        wait_until(&mut observed, &|progress| progress.confirmed.len() >= enough).await;
        let outages = observed.borrow().outages;
        tokio::task::block_in_place(|| end(&mut harness));
        before.clone_from(&observed.borrow().confirmed);
        assert!(before.len() < count, "the server was terminated too late");
        wait_until(&mut observed, &|progress| progress.outages > outages).await;
        tokio::task::block_in_place(|| harness.start());
    }
    relay.await.expect("all are delivered");

    let received = received_all(&harness, &events).await;
    let arrived: HashSet<&str> = received.iter().map(|message| message.id.as_str()).collect();
    let lost = events.iter().filter(|event| !arrived.contains(event.id().as_str()));
    let lost: Vec<_> = lost.map(|event| String::from_utf8_lossy(event.payload_bytes())).collect();
    assert!(
        lost.is_empty(),
        "{} of {} that were confirmed are lost, {} of them before the end, the first being {:?}",
        lost.len(),
        events.len(),
        before.iter().filter(|id| !arrived.contains(id.as_str())).count(),
        lost.first()
    );

    if B::GUARANTEES.order == Order::PerKey {
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        let mut unique = HashSet::new();
        for message in received.iter().filter(|message| unique.insert(message.id.clone())) {
            let number: usize = message.text().parse().unwrap();
            let key = message.header("outbox-key").expect("the key").to_owned();
            let before = last.insert(key.clone(), number);
            assert!(before.is_none_or(|before| before < number), "{key}: {number} came after {before:?}");
        }
    }
}

pub async fn a_hanging_server_is_unavailable_in_time_and_used_again_later<B: Harness>() {
    let Some(mut harness) = B::open(Sharing::Exclusive).await else { return };
    let options = PublisherOptions::short_timeout();
    let publisher = harness.publisher(&options);
    publish_until_accepted(&*publisher, &[numbered(0, Some("k"))]).await;
    if !harness.freeze() {
        return;
    }
    let started = Instant::now();
    let error = publisher.publish_batch(&[numbered(1, Some("k")), numbered(2, Some("k"))]).await.unwrap_err();
    assert!(started.elapsed() < options.timeout + SLACK, "{:?}", started.elapsed());
    assert!(error.is_unavailable(), "{error}");
    assert_no_secret(&format!("{error} {error:?}"));
    assert_eq!(
        error.fate(1).unwrap_or(EventResult::NotAttempted),
        EventResult::NotAttempted,
        "blocked by an event with an unknown result"
    );
    let started = Instant::now();
    assert!(publisher.health().await.is_err(), "the server does not answer");
    assert!(started.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", started.elapsed());

    harness.thaw();
    wait_until_healthy(&*publisher).await;
    let after = [numbered(3, Some("k"))];
    publish_until_accepted(&*publisher, &after).await;
    let received = received_all(&harness, &after).await;
    assert!(received.iter().any(|message| message.id == after[0].id().as_str()));
}

/// Publishes the events again while the destination is unavailable, as a relay does. Some events
/// may arrive more than once.
pub async fn publish_until_accepted(publisher: &dyn Publisher, events: &[Outgoing]) {
    let published = async || {
        let result = publisher.publish_batch(events).await;
        assert!(result.as_ref().err().is_none_or(PublishError::is_unavailable), "{result:?}");
        result
    };
    poll("the events are accepted", MAX_STALL, published).await;
}

/// Waits until each of these events has arrived, or no more messages arrive, and returns all
/// messages. A count is not enough, since some events may arrive more than once.
pub async fn received_all<B: Harness>(harness: &B, events: &[Outgoing]) -> Vec<Received> {
    let mut count = events.len();
    loop {
        let received = harness.received(count).await;
        let arrived: HashSet<&str> = received.iter().map(|message| message.id.as_str()).collect();
        let missing = events.iter().filter(|event| !arrived.contains(event.id().as_str())).count();
        if missing == 0 || received.len() < count {
            return received;
        }
        count = received.len() + missing;
    }
}

pub async fn wait_until_healthy(publisher: &dyn Publisher) {
    poll("the publisher is healthy", MAX_STALL, async || publisher.health().await).await;
}

/// Polls until the publisher is unhealthy for an expected reason, and returns the reason: a slow
/// server is another reason. Panics if the publisher is healthy.
pub async fn wait_until_unhealthy(publisher: &dyn Publisher, is_expected: impl Fn(&str) -> bool) -> String {
    let expected = async || {
        let reason = publisher.health().await.unwrap_err().to_string();
        if is_expected(&reason) { Ok(reason) } else { Err(reason) }
    };
    poll("the publisher is unhealthy for the expected reason", MAX_STALL, expected).await
}
