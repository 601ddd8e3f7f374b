//! Cases with a healthy server.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use base64::Engine as _;
use outbox::{Event, EventResult, Outgoing, Publisher};
use outbox_transports::{Duplicates, Format, Order};
use serde_json::Value;

use super::log_capture;
use super::outages::{wait_until_healthy, wait_until_unhealthy};
use super::{
    Destination, Harness, MAX_STALL, PublisherOptions, Received, SOURCE, Sharing, WRONG_PASSWORD,
    assert_no_secret, fates, ids, is_dead, numbered, of_size,
};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn by_id(received: Vec<Received>) -> HashMap<String, Received> {
    received.into_iter().map(|message| (message.id.clone(), message)).collect()
}

fn payloads() -> Vec<(&'static str, Outgoing)> {
    let event = || {
        Event::new("order.placed")
            .aggregate("Order", "o-1")
            .tenant("acme")
            .header("traceparent", TRACE)
            .header("Region", "eu-west")
            .header("note", "grüße ✓")
    };
    let every_byte: Vec<u8> = (0..=255).collect();
    let events = [
        ("JSON with white space", event().json_text(" {\"b\" : 1,\n \"a\":2.50, \"b2\":\"\\u00e9\"} ")),
        ("every byte, NUL and 0xff among them", event().bytes("application/octet-stream", every_byte)),
        ("no byte", event().bytes("application/octet-stream", Vec::new())),
        ("text of many alphabets", event().bytes("text/plain; charset=utf-8", "日本語 ✓ \u{1f980}\r\n\0")),
        ("200 KB", event().bytes("image/png", vec![0xa5; 200_000])),
    ];
    events.into_iter().map(|(label, event)| (label, Outgoing::new(event.build().unwrap()))).collect()
}

pub async fn every_payload_arrives_unchanged_with_its_id_headers_and_trace<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let payloads = payloads();
    let events: Vec<Outgoing> = payloads.iter().map(|(_, event)| event.clone()).collect();
    let publisher = harness.publisher(&PublisherOptions::default());
    wait_until_healthy(&*publisher).await;
    publisher.publish_batch(&events).await.unwrap();

    let received = by_id(harness.received(events.len()).await);
    assert_eq!(received.len(), events.len());
    for (label, event) in &payloads {
        let message = received.get(event.id().as_str()).unwrap_or_else(|| panic!("{label} did not arrive"));
        assert!(message.body == event.payload_bytes(), "{label} has changed");
        assert_eq!(message.header("outbox-id"), Some(event.id().as_str()), "{label}");
        assert_eq!(message.header("outbox-type"), Some("order.placed"), "{label}");
        assert_eq!(message.header("outbox-aggregate-id"), Some("o-1"), "{label}");
        assert_eq!(message.header("outbox-tenant-id"), Some("acme"), "{label}");
        assert_eq!(message.header("traceparent"), Some(TRACE), "{label}");
        assert_eq!(message.header("Region"), Some("eu-west"), "{label}");
        assert_eq!(message.header("note"), Some("grüße ✓"), "{label}");
        assert_eq!(message.content_type.as_deref(), Some(event.content_type()), "{label}");
    }
}

pub async fn a_batch_of_a_thousand_arrives_completely<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let keys: Vec<String> = (0..100).map(|key| format!("k{key}")).collect();
    let events: Vec<Outgoing> =
        (0..1_000).map(|n| numbered(n, (n % 2 == 0).then(|| keys[n % 100].as_str()))).collect();
    harness.publisher(&PublisherOptions::default()).publish_batch(&events).await.unwrap();
    let received = by_id(harness.received(1_000).await);
    for event in &events {
        assert_eq!(received[event.id().as_str()].body, event.payload_bytes());
    }
    assert_eq!(received.len(), 1_000);
}

pub async fn concurrent_batches_arrive_completely<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let publisher = harness.publisher(&PublisherOptions::default());
    let batches: Vec<Vec<Outgoing>> =
        (0..8).map(|batch| (0..50).map(|n| numbered(n, Some(&format!("{batch}")))).collect()).collect();
    let sent = batches.iter().map(|batch| publisher.publish_batch(batch));
    for outcome in futures_util::future::join_all(sent).await {
        outcome.unwrap();
    }
    let received = by_id(harness.received(400).await);
    assert!(batches.iter().flatten().all(|event| received.contains_key(event.id().as_str())));
}

pub async fn the_events_of_a_key_arrive_in_order_over_many_batches<B: Harness>() {
    if B::GUARANTEES.order == Order::Unordered {
        return;
    }
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let publisher = harness.publisher(&PublisherOptions::default());
    let events: Vec<Outgoing> = (0..600).map(|n| numbered(n, Some(["a", "b", "c"][n % 3]))).collect();
    for batch in events.chunks(60) {
        publisher.publish_batch(batch).await.unwrap();
    }
    let mut numbers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for message in harness.received(600).await {
        let key = message.header("outbox-key").expect("the key").to_owned();
        numbers.entry(key).or_default().push(message.text().parse().unwrap());
    }
    for (first, key) in ["a", "b", "c"].into_iter().enumerate() {
        let expected: Vec<usize> = (first..600).step_by(3).collect();
        assert_eq!(numbers[key], expected, "of key {key}");
    }
}

pub async fn a_duplicate_is_dropped_or_has_the_same_id<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let events: Vec<Outgoing> = (0..10).map(|n| numbered(n, None)).collect();
    harness.publisher(&PublisherOptions::default()).publish_batch(&events).await.unwrap();
    // Published by another relay after the first one was lost: a duplicate is a success.
    harness.publisher(&PublisherOptions::default()).publish_batch(&events).await.unwrap();
    let count = if B::GUARANTEES.duplicates == Duplicates::Dropped { 10 } else { 20 };
    let received = harness.received(count).await;
    assert_eq!(received.len(), count);
    let distinct: HashSet<String> = received.into_iter().map(|message| message.id).collect();
    assert_eq!(distinct, ids(&events).into_iter().collect());
}

pub async fn a_cloud_event_in_binary_mode_has_its_attributes_in_headers<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let (_, event) = payloads().remove(0);
    let options = PublisherOptions { format: Format::Cloudevents, ..PublisherOptions::default() };
    harness.publisher(&options).publish_batch(std::slice::from_ref(&event)).await.unwrap();
    let message = harness.received(1).await.remove(0);
    assert_eq!((message.id.as_str(), message.body.as_slice()), (event.id().as_str(), event.payload_bytes()));
    for (attribute, value) in [
        ("specversion", "1.0"),
        ("id", event.id().as_str()),
        ("source", SOURCE),
        ("type", "order.placed"),
        ("subject", "o-1"),
        ("tenantid", "acme"),
    ] {
        let name = format!("{}{attribute}", B::CE_PREFIX);
        assert_eq!(message.header(&name), Some(value), "{name} of {:?}", message.headers);
    }
    assert_eq!(message.header("traceparent"), Some(TRACE));
    assert_eq!(message.content_type.as_deref(), Some("application/json"));
}

pub async fn a_cloud_event_in_structured_mode_is_one_object<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let (_, json) = payloads().remove(0);
    let (_, bytes) = payloads().remove(1);
    let options = PublisherOptions { format: Format::CloudeventsStructured, ..PublisherOptions::default() };
    harness.publisher(&options).publish_batch(&[json.clone(), bytes.clone()]).await.unwrap();
    let received = by_id(harness.received(2).await);
    for event in [&json, &bytes] {
        let message = &received[event.id().as_str()];
        let object: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!((object["specversion"].as_str(), object["source"].as_str()), (Some("1.0"), Some(SOURCE)));
        assert_eq!(
            (object["id"].as_str(), object["subject"].as_str()),
            (Some(event.id().as_str()), Some("o-1"))
        );
        assert_eq!(object["datacontenttype"].as_str(), Some(event.content_type()));
        let content_type = message.content_type.as_deref().unwrap_or_default();
        assert!(content_type.starts_with("application/cloudevents+json"), "{content_type}");
    }
    let object: Value = serde_json::from_slice(&received[json.id().as_str()].body).unwrap();
    assert_eq!(object["data"]["a"], 2.5);
    let object: Value = serde_json::from_slice(&received[bytes.id().as_str()].body).unwrap();
    let data = object["data_base64"].as_str().expect("base64");
    let data = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    assert_eq!(data, bytes.payload_bytes());
}

pub async fn an_oversized_event_is_dead_and_blocks_only_its_key<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let publisher = harness.publisher(&PublisherOptions::default());
    let events = [
        numbered(0, None),
        numbered(1, Some("k")),
        of_size(harness.oversized_payload(), Some("k")),
        numbered(3, Some("k")),
        numbered(4, Some("j")),
        numbered(5, None),
    ];
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(!error.is_unavailable(), "{error}");
    let fates = fates(&error, events.len());
    for index in [0, 1, 4, 5] {
        assert_eq!(fates[index], Some(EventResult::Published), "{index}: {error}");
    }
    assert_eq!(fates[3], Some(EventResult::NotAttempted), "blocked by the failed event of its key");
    let Some(EventResult::Failed(failure)) = &fates[2] else { panic!("{:?}", fates[2]) };
    assert!(is_dead(failure), "a retry is pointless: {failure:?}");
    assert!(failure.to_string().contains("bytes"), "{failure}");

    let arrived: HashSet<String> = harness.received(4).await.into_iter().map(|message| message.id).collect();
    let expected: HashSet<String> =
        [0, 1, 4, 5].iter().map(|&index| events[index].id().to_string()).collect();
    assert_eq!(arrived, expected);

    // The next event arrives, however the server refused the oversized one.
    publisher.publish_batch(&events[3..4]).await.unwrap();
    assert_eq!(harness.received(5).await.len(), 5);
}

pub async fn a_destination_that_does_not_exist_is_named<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let Some(missing) = harness.missing_name() else { return };
    let options = PublisherOptions {
        destination: Destination::Missing,
        timeout: Duration::from_secs(10),
        ..PublisherOptions::default()
    };
    let error = harness.publisher(&options).publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains(&missing), "`{error}` does not name {missing}");
    assert_eq!(error.is_unavailable(), B::MISSING_IS_AN_OUTAGE, "{error}");
    for fate in fates(&error, 2) {
        match fate {
            Some(EventResult::Failed(failure)) if !B::MISSING_IS_AN_OUTAGE => {
                assert!(!is_dead(&failure), "the destination may be created later: {failure}");
            }
            None | Some(EventResult::NotAttempted) => {}
            fate => panic!("no event is to blame: {fate:?}"),
        }
    }
    // Publishers to other destinations are not affected.
    harness.publisher(&PublisherOptions::default()).publish_batch(&[numbered(2, None)]).await.unwrap();
    assert_eq!(harness.received(1).await.len(), 1);
}

pub async fn a_destination_that_is_created_later_is_used<B: Harness>() {
    if !B::MISSING_IS_AN_OUTAGE {
        return;
    }
    let Some(harness) = B::open(Sharing::Exclusive).await else { return };
    let Some(missing) = harness.missing_name() else { return };
    let options = PublisherOptions {
        destination: Destination::Missing,
        timeout: Duration::from_secs(10),
        ..PublisherOptions::default()
    };
    let publisher = harness.publisher(&options);
    wait_until_unhealthy(&*publisher, |reason| reason.contains(&missing)).await;
    assert!(publisher.publish_batch(&[numbered(0, None)]).await.unwrap_err().is_unavailable());
    wait_until_unhealthy(&*publisher, |reason| reason.contains(&missing)).await;

    harness.create_missing().await;
    wait_until_healthy(&*publisher).await;
    publisher.publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await.unwrap();
}

/// A host name that does not resolve.
const NO_HOST: &str = "nosuchhost.invalid";

pub async fn the_reason_why_a_server_is_unavailable_is_reported<B: Harness>() {
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let unknown = format!("{NO_HOST}:4567");
    let own_address = harness.address();
    let dns = &["lookup", "resolve", "name or service", "dns"][..];
    let tls = &["tls", "handshake", "certificate", "invalidcontenttype", "corrupt"][..];
    for (address, encrypted, named, words) in [
        (refused.as_str(), false, refused.as_str(), &["refused"][..]),
        (unknown.as_str(), false, NO_HOST, dns),
        (own_address.as_str(), true, own_address.as_str(), tls),
    ] {
        let Some(publisher) = harness.publisher_at(address, encrypted) else { continue };
        let is_named =
            |text: &str| text.contains(named) && words.iter().any(|word| text.to_lowercase().contains(word));
        let deadline = Instant::now() + MAX_STALL;
        loop {
            let error = publisher.publish_batch(&[numbered(0, None)]).await.unwrap_err();
            assert!(error.is_unavailable(), "{address}: {error}");
            assert!(is_named(&error.to_string()), "`{error}` does not name {named}, and one of {words:?}");
            assert_no_secret(&error.to_string());
            // An outage that only publishing detects is reported for half a second.
            let health = publisher.health().await.map_err(|reason| reason.to_string());
            assert_no_secret(&format!("{health:?}"));
            if health.as_ref().is_err_and(|reason| is_named(reason)) {
                break;
            }
            assert!(Instant::now() < deadline, "`{health:?}` does not name {named}, and one of {words:?}");
        }
    }
    if B::CHECKS_PASSWORDS {
        let wrong_password =
            harness.publisher(&PublisherOptions { password: WRONG_PASSWORD, ..PublisherOptions::default() });
        let reasons = ["password", "authori", "authenti", "credentials", "access_refused", "login"];
        let is_named = |reason: &str| reasons.iter().any(|word| reason.to_lowercase().contains(word));
        assert_no_secret(&wait_until_unhealthy(&*wrong_password, is_named).await);
    }
}

pub async fn a_wrong_password_is_reported_without_showing_it<B: Harness>() {
    if !B::CHECKS_PASSWORDS {
        return;
    }
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let publisher =
        harness.publisher(&PublisherOptions { password: WRONG_PASSWORD, ..PublisherOptions::default() });
    assert!(publisher.health().await.is_err());
    let error = publisher.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    let text = error.to_string();
    let reasons = ["password", "authori", "authenti", "credentials", "access refused", "login"];
    assert!(reasons.iter().any(|word| text.to_lowercase().contains(word)), "no reason: {text}");
    assert_no_secret(&format!("{text} {error:?}"));
}

pub async fn debug_output_contains_no_password<B: Harness>() {
    if !B::CHECKS_PASSWORDS {
        return;
    }
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let output = harness.debug_output();
    assert!(output.contains("***"), "secrets are masked: {output}");
    assert_no_secret(&output);
}

pub async fn the_log_contains_no_password_and_no_payload<B: Harness>() {
    const CANARY: &str = "canary-in-a-coal-mine";
    let Some(harness) = B::open(Sharing::Shared).await else { return };
    let event = Outgoing::new(Event::new("order.placed").json(&CANARY).build().unwrap());
    let big = of_size(harness.oversized_payload(), None);
    let logged = tokio::task::block_in_place(|| {
        log_capture::capture(|| async {
            let publisher = harness.publisher(&PublisherOptions::default());
            publisher.publish_batch(std::slice::from_ref(&event)).await.unwrap();
            publisher.publish_batch(std::slice::from_ref(&big)).await.unwrap_err();
            if B::CHECKS_PASSWORDS {
                let wrong_password = harness
                    .publisher(&PublisherOptions { password: WRONG_PASSWORD, ..PublisherOptions::default() });
                wrong_password.publish_batch(std::slice::from_ref(&event)).await.unwrap_err();
            }
            if harness.missing_name().is_some() {
                let options = PublisherOptions {
                    destination: Destination::Missing,
                    timeout: Duration::from_secs(10),
                    ..PublisherOptions::default()
                };
                harness.publisher(&options).publish_batch(std::slice::from_ref(&event)).await.unwrap_err();
            }
        })
    });
    assert_no_secret(&logged);
    let line = logged.lines().find(|line| line.contains(CANARY));
    assert_eq!(line, None, "a payload is logged");
}
