//! While the server is not well.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use outbox::{Fate, Outgoing, Publisher};
use outbox_transports::Order;
use tokio::sync::watch;

use super::relay::{Progress, deliver};
use super::{Bed, LONGEST_STALL, Received, Share, Wish, assert_no_secret, fates, ids, numbered};

/// Over what a publisher was told to wait at most: the machine may be busy.
const SLACK: Duration = Duration::from_secs(8);

pub async fn a_server_that_is_down_is_unavailable_until_it_is_there<B: Bed>() {
    let Some(mut bed) = B::open(Share::Own).await else { return };
    bed.stop();
    let wish = Wish::impatient();
    let publisher = bed.publisher(&wish);
    let events = [numbered(0, None), numbered(1, Some("k"))];
    let began = Instant::now();
    assert!(publisher.health().await.is_err());
    assert!(began.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", began.elapsed());

    let began = Instant::now();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(began.elapsed() < wish.timeout + SLACK, "{:?}", began.elapsed());
    assert!(error.is_unavailable(), "{error}");
    assert_no_secret(&format!("{error} {error:?}"));
    for fate in fates(&error, 2) {
        assert!(matches!(fate, None | Some(Fate::Untried)), "{fate:?}");
    }

    bed.start();
    wait_until_healthy(&*publisher).await;
    publish_until_taken(&*publisher, &events).await;
    let received = received_all(&bed, &events).await;
    let received: HashSet<String> = received.into_iter().map(|message| message.id).collect();
    assert_eq!(received, ids(&events).into_iter().collect());
}

pub async fn what_was_confirmed_outlives_a_restart_and_the_publisher_goes_on<B: Bed>() {
    let Some(bed) = B::open(Share::Own).await else { return };
    goes_on_after(bed, B::stop).await;
}

pub async fn what_was_confirmed_outlives_a_crash_and_the_publisher_goes_on<B: Bed>() {
    if !B::SURVIVES_CRASHES {
        return;
    }
    let Some(bed) = B::open(Share::Own).await else { return };
    goes_on_after(bed, B::kill).await;
}

/// How many events to send, `OUTBOX_TRANSPORT_EVENTS`, and how often the server ends meanwhile, `OUTBOX_TRANSPORT_KILLS`.
fn size() -> (usize, usize) {
    let number =
        |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    (number("OUTBOX_TRANSPORT_EVENTS", 3_000), number("OUTBOX_TRANSPORT_KILLS", 1))
}

/// The server ends in the middle of a stream of batches, and comes back.
async fn goes_on_after<B: Bed>(mut bed: B, end: impl Fn(&mut B)) {
    let publisher = bed.publisher(&Wish::impatient());
    let (count, kills) = size();
    let events: Vec<Outgoing> =
        (0..count).map(|n| numbered(n, Some(["a", "b", "c", "d", "e"][n % 5]))).collect();
    let (progress, mut seen) = watch::channel(Progress::default());
    let relay = tokio::spawn(deliver(publisher, events.clone(), progress));

    let until = async |seen: &mut watch::Receiver<Progress>, enough: &dyn Fn(&Progress) -> bool| {
        while !enough(&seen.borrow_and_update()) {
            tokio::time::timeout(LONGEST_STALL, seen.changed())
                .await
                .expect("it goes on within a minute")
                .expect("the relay is still there");
        }
    };
    let mut before = HashSet::new();
    for kill in 1..=kills {
        // Each somewhere else in a batch.
        let enough = kill * count / (kills + 10) + kill % 20;
        until(&mut seen, &|progress| progress.confirmed.len() >= enough).await;
        let outages = seen.borrow().outages;
        tokio::task::block_in_place(|| end(&mut bed));
        before.clone_from(&seen.borrow().confirmed);
        assert!(before.len() < count, "it ended too late to prove anything");
        until(&mut seen, &|progress| progress.outages > outages).await;
        tokio::task::block_in_place(|| bed.start());
    }
    relay.await.expect("all are delivered");

    let received = received_all(&bed, &events).await;
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

    if B::PROMISES.order == Order::PerKey {
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        let mut again = HashSet::new();
        for message in received.iter().filter(|message| again.insert(message.id.clone())) {
            let number: usize = message.text().parse().unwrap();
            let key = message.header("outbox-key").expect("the key").to_owned();
            let before = last.insert(key.clone(), number);
            assert!(before.is_none_or(|before| before < number), "{key}: {number} came after {before:?}");
        }
    }
}

pub async fn a_server_that_hangs_is_unavailable_in_time_and_used_again_later<B: Bed>() {
    let Some(mut bed) = B::open(Share::Own).await else { return };
    let wish = Wish::impatient();
    let publisher = bed.publisher(&wish);
    publish_until_taken(&*publisher, &[numbered(0, Some("k"))]).await;
    if !bed.freeze() {
        return;
    }
    let began = Instant::now();
    let error = publisher.publish_batch(&[numbered(1, Some("k")), numbered(2, Some("k"))]).await.unwrap_err();
    assert!(began.elapsed() < wish.timeout + SLACK, "{:?}", began.elapsed());
    assert!(error.is_unavailable(), "{error}");
    assert_no_secret(&format!("{error} {error:?}"));
    assert_eq!(
        error.fate(1).unwrap_or(Fate::Untried),
        Fate::Untried,
        "it waits behind one that nobody knows of"
    );
    let began = Instant::now();
    assert!(publisher.health().await.is_err(), "it has just not answered");
    assert!(began.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", began.elapsed());

    bed.thaw();
    wait_until_healthy(&*publisher).await;
    let after = [numbered(3, Some("k"))];
    publish_until_taken(&*publisher, &after).await;
    let received = received_all(&bed, &after).await;
    assert!(received.iter().any(|message| message.id == after[0].id().as_str()));
}

/// Publishes the events again while the destination is unavailable, as a relay does: some may
/// arrive more than once.
pub async fn publish_until_taken(publisher: &dyn Publisher, events: &[Outgoing]) {
    let deadline = Instant::now() + LONGEST_STALL;
    while let Err(error) = publisher.publish_batch(events).await {
        assert!(error.is_unavailable() && Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until each of these events has arrived, or no message comes any more, and returns all
/// messages. A count does not tell, since some may arrive more than once.
pub async fn received_all<B: Bed>(bed: &B, events: &[Outgoing]) -> Vec<Received> {
    let mut count = events.len();
    loop {
        let received = bed.received(count).await;
        let arrived: HashSet<&str> = received.iter().map(|message| message.id.as_str()).collect();
        let missing = events.iter().filter(|event| !arrived.contains(event.id().as_str())).count();
        if missing == 0 || received.len() < count {
            return received;
        }
        count = received.len() + missing;
    }
}

pub async fn wait_until_healthy(publisher: &dyn Publisher) {
    let deadline = Instant::now() + LONGEST_STALL;
    while publisher.health().await.is_err() {
        assert!(Instant::now() < deadline, "it stays unhealthy");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Asks until the publisher is unhealthy for an expected reason, and returns the reason: a slow
/// server is another one. Panics if the publisher is healthy.
pub async fn wait_until_unhealthy(publisher: &dyn Publisher, is_expected: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + LONGEST_STALL;
    loop {
        let reason = publisher.health().await.unwrap_err().to_string();
        if is_expected(&reason) {
            return reason;
        }
        assert!(Instant::now() < deadline, "another reason is expected: {reason}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
