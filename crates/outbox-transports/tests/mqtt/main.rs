//! MQTT 5, on its own Mosquitto server.
#![cfg(feature = "mqtt")]

#[path = "../common/mod.rs"]
mod common;
mod harness;

use std::collections::HashSet;
use std::time::Duration;

use common::outages::{publish_until_accepted, received_all, wait_until_healthy};
use common::{
    Harness, MAX_STALL, PASSWORD, PublisherOptions, Received, Sharing, USER, fates, is_dead, numbered,
    of_size,
};
use harness::{MosquittoHarness, plan};
use outbox::{Event, EventResult, Failure, Outgoing, Publisher};
use outbox_testbed::{Plan, Proxy};
use outbox_transports::{Mqtt, MqttSettings};
use rumqttc::v5::Incoming;
use rumqttc::v5::mqttbytes::QoS;

common::conformance_tests!(MosquittoHarness);

fn event(kind: &str) -> Outgoing {
    Outgoing::new(Event::new(kind).json(&1).build().unwrap())
}

fn failed(fate: Option<&Option<EventResult>>) -> &Failure {
    match fate {
        Some(Some(EventResult::Failed(failure))) => failure,
        other => panic!("{other:?}"),
    }
}

fn ids(received: Vec<Received>) -> HashSet<String> {
    received.into_iter().map(|message| message.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_topic_fails_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("acl");
    std::fs::write(&file, format!("user {USER}\ntopic read #\ntopic write orders/allowed\n")).unwrap();
    let plan = plan().config(&format!("acl_file {}", file.display()));
    let Some(harness) = MosquittoHarness::from_plan(plan).await else { return };
    let publisher = harness.publisher(&PublisherOptions::default());
    let events: Vec<Outgoing> =
        (0..100).map(|n| event(if n % 9 == 4 { "secret" } else { "allowed" })).collect();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(!error.is_unavailable(), "{error}");
    let fates = fates(&error, events.len());
    for (n, fate) in fates.iter().enumerate() {
        if n % 9 == 4 {
            let failure = failed(Some(fate));
            let expected = "the server refused the message to `orders/secret`: not authorized (0x87)";
            assert_eq!(failure.to_string(), expected);
            assert!(!is_dead(failure), "permission may be granted later");
        } else {
            assert_eq!(fate, &Some(EventResult::Published), "{n}");
        }
    }
    let expected =
        events.iter().enumerate().filter(|(n, _)| n % 9 != 4).map(|(_, event)| event.id().to_string());
    let expected: HashSet<String> = expected.collect();
    assert_eq!(ids(harness.received(expected.len()).await), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_topic_of_all_events_is_an_outage() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("acl");
    std::fs::write(&file, format!("user {USER}\ntopic read #\ntopic write orders/allowed\n")).unwrap();
    let plan = plan().config(&format!("acl_file {}", file.display()));
    let Some(harness) = MosquittoHarness::from_plan(plan).await else { return };
    let publisher = harness.with(|settings| settings.topic = "orders/secret".parse().unwrap());
    let error = publisher.publish_batch(&[event("a"), event("b")]).await.unwrap_err();
    let expected = "the server refused the message to `orders/secret`: not authorized (0x87)";
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(error.to_string(), expected);
    assert_eq!(fates(&error, 2), [Some(EventResult::NotAttempted), Some(EventResult::NotAttempted)]);
}

/// Mosquitto refuses with a code that the client does not know, which ends the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_server_rejects_is_isolated() {
    let Some(harness) = MosquittoHarness::from_plan(plan().config("message_size_limit 1000")).await else {
        return;
    };
    let publisher = harness.publisher(&PublisherOptions::default());
    let events = [
        numbered(0, None),
        of_size(2_000, Some("k")),
        numbered(2, Some("k")),
        numbered(3, Some("j")),
        of_size(3_000, None),
        numbered(5, None),
    ];
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(!error.is_unavailable(), "{error}");
    let fates = fates(&error, events.len());
    for index in [0, 3, 5] {
        assert_eq!(fates[index], Some(EventResult::Published), "{index}");
    }
    assert_eq!(fates[2], Some(EventResult::NotAttempted));
    for index in [1, 4] {
        let failure = failed(fates.get(index));
        assert!(is_dead(failure) && failure.to_string().contains("packet too large (0x95)"), "{failure}");
    }
    let expected = [0, 3, 5].map(|index| events[index].id().to_string());
    assert_eq!(ids(harness.received(3).await), expected.into_iter().collect());

    // Concurrently with other batches, which must not fail.
    let good: Vec<Outgoing> = (0..200).map(|n| numbered(n, None)).collect();
    let (one, two, three) = tokio::join!(
        publisher.publish_batch(&good[..100]),
        publisher.publish_batch(&events[1..2]),
        publisher.publish_batch(&good[100..]),
    );
    one.unwrap();
    assert!(is_dead(failed(Some(&two.unwrap_err().fate(0)))));
    three.unwrap();
    let arrived = ids(received_all(&harness, &good).await);
    assert!(good.iter().all(|event| arrived.contains(event.id().as_str())));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_topic_has_wildcards_is_dead_and_blocks_no_other() {
    let Some(harness) = MosquittoHarness::open(Sharing::Shared).await else { return };
    let publisher = harness.publisher(&PublisherOptions::default());
    let events = [event("plain"), event("a+b"), event("a/#")];
    let fates = fates(&publisher.publish_batch(&events).await.unwrap_err(), 3);
    assert_eq!(fates[0], Some(EventResult::Published));
    for index in [1, 2] {
        let failure = failed(fates.get(index));
        assert!(
            is_dead(failure) && failure.to_string().contains("which are for subscriptions only"),
            "{failure}"
        );
    }
    assert_eq!(harness.received(1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_subscribers_is_published() {
    if !plan().is_here() {
        return;
    }
    let server = tokio::task::block_in_place(|| plan().start());
    let settings = MqttSettings::new(&server.url(), "no/subscribers".parse().unwrap());
    Mqtt::new("mosquitto", settings).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap();
}

/// The server accepts one message at a time, and announces this limit on connect.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_limits_the_messages_in_flight() {
    let Some(harness) = MosquittoHarness::from_plan(plan().config("max_inflight_messages 1")).await else {
        return;
    };
    let publisher = harness.publisher(&PublisherOptions::default());
    let events: Vec<Outgoing> = (0..100).map(|n| numbered(n, None)).collect();
    publisher.publish_batch(&events).await.unwrap();
    let numbers: Vec<usize> = harness.received(100).await.iter().map(|m| m.text().parse().unwrap()).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "in order, since one message at a time is in flight");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_retained_if_configured() {
    let Some(harness) = MosquittoHarness::open(Sharing::Shared).await else { return };
    harness.with(|settings| settings.retain = true).publish_batch(&[event("retained")]).await.unwrap();
    harness.with(|_| {}).publish_batch(&[event("not-retained")]).await.unwrap();
    let (client, mut events) = harness.subscriber("late");
    client.subscribe("orders/+", QoS::AtLeastOnce).await.unwrap();
    let mut topics = Vec::new();
    let reading = async {
        // Retained messages arrive before messages that are published after the subscription.
        while topics.last().is_none_or(|topic| topic != "orders/marker") {
            match events.poll().await.unwrap() {
                rumqttc::v5::Event::Incoming(Incoming::SubAck(_)) => {
                    harness.with(|_| {}).publish_batch(&[event("marker")]).await.unwrap();
                }
                rumqttc::v5::Event::Incoming(Incoming::Publish(message)) => {
                    topics.push(String::from_utf8_lossy(&message.topic).into_owned());
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(MAX_STALL, reading).await.expect("the marker arrives");
    assert_eq!(topics, ["orders/retained", "orders/marker"]);
}

/// The server closes the older of two connections with the same client id.
#[tokio::test(flavor = "multi_thread")]
async fn another_client_with_the_same_id_is_a_temporary_outage() {
    let Some(harness) = MosquittoHarness::open(Sharing::Shared).await else { return };
    let with_id = || harness.with(|settings| settings.client_id = Some("relay-1".into()));
    let (first, second) = (with_id(), with_id());
    first.publish_batch(&[numbered(0, None)]).await.unwrap();
    second.publish_batch(&[numbered(1, None)]).await.unwrap();
    publish_until_accepted(&first, &[numbered(2, None)]).await;
    assert_eq!(ids(harness.received(3).await).len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_messages_are_never_sent_later() {
    // No limit on messages in flight.
    let Some(harness) = MosquittoHarness::from_plan(plan().config("max_inflight_messages 0")).await else {
        return;
    };
    let proxy = Proxy::to(harness.server.port());
    let publisher = harness.with(|settings| {
        settings.url = format!("mqtt://127.0.0.1:{}", proxy.port()).as_str().into();
        settings.ack_timeout = Duration::from_secs(10);
        // The missing acknowledgements end the connection, not the keep-alive of either side.
        settings.keep_alive = Duration::from_secs(60);
    });
    wait_until_healthy(&publisher).await;
    let events: Vec<Outgoing> = (0..900).map(|_| of_size(10_000, None)).collect();
    proxy.allow_bytes(900_000);
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("confirmed nothing"), "{error}");
    let published = (0..900).filter(|&index| error.fate(index) == Some(EventResult::Published)).count();
    // From now on everything passes, including data that is still buffered.
    proxy.allow_bytes(u64::MAX);
    let arrived = harness.received(published).await.len();
    // Only messages that were in flight may have arrived, at most 256, and none that waited for a
    // slot.
    assert!(
        0 < published && (published..=published + 256).contains(&arrived),
        "{published} confirmed, {arrived} arrived"
    );

    publish_until_accepted(&publisher, &events).await;
    assert_eq!(ids(received_all(&harness, &events).await).len(), 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_verifies_the_server_and_sends_a_client_certificate() {
    let plan = Plan::mosquitto().user(USER, PASSWORD).mutual_tls();
    if !plan.is_here() {
        return;
    }
    let server = tokio::task::block_in_place(|| plan.start());
    let settings = || MqttSettings::new(&server.url(), "t".parse().unwrap());
    let file = |path: std::path::PathBuf| Some(path.to_str().unwrap().into());
    let (certificate, key) = server.client_certificate();

    let no_authority = Mqtt::new("mosquitto", settings()).unwrap();
    let error = no_authority.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().to_lowercase().contains("certificate"), "{error}");

    let mut no_certificate = settings();
    no_certificate.tls.ca_file = file(server.ca_file());
    let error = Mqtt::new("mosquitto", no_certificate)
        .unwrap()
        .publish_batch(&[numbered(0, None)])
        .await
        .unwrap_err();
    assert!(error.is_unavailable(), "{error}");

    let mut trusted = settings();
    trusted.tls.ca_file = file(server.ca_file());
    trusted.tls.cert_file = file(certificate);
    trusted.tls.key_file = file(key);
    Mqtt::new("mosquitto", trusted).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap();
}
