//! With a relay in front.

use std::time::Duration;

use outbox::{Backoff, Event, Outbox};

use crate::receiver::{Receiver, Reply, Seen};

/// Sends one event through a relay that tries it once only, until the receiver has seen so many requests.
async fn relayed(receiver: &Receiver, requests: usize) -> Vec<Seen> {
    let outbox = Outbox::sqlite(":memory:").await.unwrap();
    outbox.migrate().await.unwrap();
    let relay = outbox.single_node().retry(Backoff::never()).forward(["order.placed"], receiver.webhook());
    let relay = relay.start().await.unwrap();
    outbox.send(Event::new("order.placed").json(&42)).await.unwrap();
    let arrived = async {
        while receiver.seen().len() < requests {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), arrived).await.expect("it is sent again");
    relay.stop().await.unwrap();
    receiver.seen()
}

#[tokio::test]
async fn a_receiver_that_is_away_is_waited_for_and_costs_no_attempt() {
    let receiver = Receiver::start(|count, _| Reply::status(if count < 3 { 503 } else { 200 })).await;
    let seen = relayed(&receiver, 3).await;
    assert_eq!(seen[2].header("outbox-attempt"), Some("1"));
    assert!(seen.iter().all(|request| request.id() == seen[0].id()));
}

#[tokio::test]
async fn a_receiver_that_asks_for_a_pause_gets_it_and_costs_no_attempt() {
    let receiver = Receiver::start(|count, _| match count {
        1 => Reply::with(429, "retry-after", "1"),
        _ => Reply::status(200),
    })
    .await;
    let began = std::time::Instant::now();
    let seen = relayed(&receiver, 2).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(seen[1].header("outbox-attempt"), Some("1"));
}
