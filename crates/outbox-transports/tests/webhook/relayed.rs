//! Webhooks behind a relay.

use std::time::Duration;

use outbox::{Backoff, Event, Outbox};

use crate::common::poll;
use crate::receiver::{ReceivedRequest, Receiver, Reply};

/// Sends one event through a relay that allows a single attempt, until the receiver has got this
/// number of requests.
async fn relayed(receiver: &Receiver, requests: usize) -> Vec<ReceivedRequest> {
    let outbox = Outbox::sqlite(":memory:").await.unwrap();
    outbox.migrate().await.unwrap();
    let relay = outbox.single_node().retry(Backoff::never()).forward(["order.placed"], receiver.webhook());
    let relay = relay.start().await.unwrap();
    outbox.send(Event::new("order.placed").json(&42)).await.unwrap();
    let arrived = receiver.wait_for_requests(requests);
    tokio::time::timeout(Duration::from_secs(30), arrived).await.expect("the event is sent again");
    relay.stop().await.unwrap();
    receiver.requests()
}

#[tokio::test]
async fn an_outage_of_the_receiver_costs_no_attempt() {
    let receiver = Receiver::start(|count, _| Reply::status(if count < 3 { 503 } else { 200 })).await;
    let requests = relayed(&receiver, 3).await;
    assert_eq!(requests[2].header("outbox-attempt"), Some("1"));
    assert!(requests.iter().all(|request| request.id() == requests[0].id()));
}

#[tokio::test]
async fn refused_events_starve_no_others_and_use_up_their_attempts() {
    let receiver = Receiver::start(|_, request| match request.header("outbox-type") {
        Some("hook.slow") => Reply::with(429, "retry-after", "999999"),
        Some("hook.poison") => Reply::status(503),
        _ => Reply::status(200),
    })
    .await;
    let outbox = Outbox::sqlite(":memory:").await.unwrap();
    outbox.migrate().await.unwrap();
    let event = |event_type: &str| Event::new(event_type).tenant("t").json(&1);
    outbox.send(event("hook.slow")).await.unwrap();
    outbox.send_all((0..40).map(|_| event("hook.poison"))).await.unwrap();
    outbox.send_all((0..400).map(|_| event("hook.good"))).await.unwrap();
    let types = ["hook.slow", "hook.poison", "hook.good"];
    let relay = outbox.single_node().retry(Backoff::default().max_attempts(3));
    let relay = relay.forward(types, receiver.webhook()).start().await.unwrap();
    let are_settled = async || {
        let stats = outbox.admin().stats().await.unwrap();
        if stats.done >= 400 && stats.dead == 40 {
            return Ok(());
        }
        // The receiver keeps accepting other events: alone, the refused events would be an outage.
        outbox.send(event("hook.good")).await.unwrap();
        Err(stats)
    };
    let limit = Duration::from_secs(60);
    poll("all others arrive, and the refused events are dead", limit, are_settled).await;
    relay.stop().await.unwrap();
    let slow = receiver
        .requests()
        .iter()
        .filter(|request| request.header("outbox-type") == Some("hook.slow"))
        .count();
    assert_eq!(slow, 1, "only this event waits for an hour");
}
