//! MQTT 5, by a Mosquitto server of its own.
#![cfg(feature = "mqtt")]

mod bed;
#[path = "../conformance/mod.rs"]
mod conformance;

use std::collections::HashSet;
use std::time::Duration;

use bed::{MosquittoBed, plan};
use conformance::outages::{publish_until_taken, received_all, wait_until_healthy};
use conformance::{
    Bed, LONGEST_STALL, PASSWORD, Received, Share, USER, Wish, fates, is_dead, numbered, of_size,
};
use outbox::{Event, Failure, Fate, Outgoing, Publisher};
use outbox_testbed::{Plan, Proxy};
use outbox_transports::{Mqtt, MqttSettings};
use rumqttc::v5::Incoming;
use rumqttc::v5::mqttbytes::QoS;

conformance::tests!(MosquittoBed);

fn event(kind: &str) -> Outgoing {
    Outgoing::new(Event::new(kind).json(&1).build().unwrap())
}

fn failed(fate: Option<&Option<Fate>>) -> &Failure {
    match fate {
        Some(Some(Fate::Failed(failure))) => failure,
        other => panic!("{other:?}"),
    }
}

fn ids(received: Vec<Received>) -> HashSet<String> {
    received.into_iter().map(|message| message.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_we_may_not_write_to_fails_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("acl");
    std::fs::write(&file, format!("user {USER}\ntopic read #\ntopic write orders/allowed\n")).unwrap();
    let plan = plan().config(&format!("acl_file {}", file.display()));
    let Some(bed) = MosquittoBed::by(plan).await else { return };
    let publisher = bed.publisher(&Wish::default());
    let events: Vec<Outgoing> =
        (0..100).map(|n| event(if n % 9 == 4 { "secret" } else { "allowed" })).collect();
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(!error.is_unavailable(), "{error}");
    let fates = fates(&error, events.len());
    for (n, fate) in fates.iter().enumerate() {
        if n % 9 == 4 {
            let failure = failed(Some(fate));
            let said = "the server refused the message to `orders/secret`: not authorized (0x87)";
            assert_eq!(failure.to_string(), said);
            assert!(!is_dead(failure), "somebody may allow it");
        } else {
            assert_eq!(fate, &Some(Fate::Published), "{n}");
        }
    }
    let expected =
        events.iter().enumerate().filter(|(n, _)| n % 9 != 4).map(|(_, event)| event.id().to_string());
    let expected: HashSet<String> = expected.collect();
    assert_eq!(ids(bed.received(expected.len()).await), expected);
}

/// Mosquitto refuses by a code that the client does not know, which ends the connection.
#[tokio::test(flavor = "multi_thread")]
async fn the_one_topic_of_all_events_that_we_may_not_write_to_is_an_outage() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("acl");
    std::fs::write(&file, format!("user {USER}\ntopic read #\ntopic write orders/allowed\n")).unwrap();
    let plan = plan().config(&format!("acl_file {}", file.display()));
    let Some(bed) = MosquittoBed::by(plan).await else { return };
    let publisher = bed.with(|settings| settings.topic = "orders/secret".parse().unwrap());
    let error = publisher.publish_batch(&[event("a"), event("b")]).await.unwrap_err();
    let said = "the server refused the message to `orders/secret`: not authorized (0x87)";
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(error.to_string(), said);
    assert_eq!(fates(&error, 2), [Some(Fate::Untried), Some(Fate::Untried)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_server_does_not_stand_is_found_among_others() {
    let Some(bed) = MosquittoBed::by(plan().config("message_size_limit 1000")).await else { return };
    let publisher = bed.publisher(&Wish::default());
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
    for place in [0, 3, 5] {
        assert_eq!(fates[place], Some(Fate::Published), "{place}");
    }
    assert_eq!(fates[2], Some(Fate::Untried));
    for place in [1, 4] {
        let failure = failed(fates.get(place));
        assert!(is_dead(failure) && failure.to_string().contains("packet too large (0x95)"), "{failure}");
    }
    let expected = [0, 3, 5].map(|place| events[place].id().to_string());
    assert_eq!(ids(bed.received(3).await), expected.into_iter().collect());

    // Side by side with others, who are not to blame.
    let good: Vec<Outgoing> = (0..200).map(|n| numbered(n, None)).collect();
    let (one, two, three) = tokio::join!(
        publisher.publish_batch(&good[..100]),
        publisher.publish_batch(&events[1..2]),
        publisher.publish_batch(&good[100..]),
    );
    one.unwrap();
    assert!(is_dead(failed(Some(&two.unwrap_err().fate(0)))));
    three.unwrap();
    let arrived = ids(received_all(&bed, &good).await);
    assert!(good.iter().all(|event| arrived.contains(event.id().as_str())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_with_wildcards_fails_for_good_and_holds_nobody_up() {
    let Some(bed) = MosquittoBed::open(Share::Shared).await else { return };
    let publisher = bed.publisher(&Wish::default());
    let events = [event("plain"), event("a+b"), event("a/#")];
    let fates = fates(&publisher.publish_batch(&events).await.unwrap_err(), 3);
    assert_eq!(fates[0], Some(Fate::Published));
    for place in [1, 2] {
        let failure = failed(fates.get(place));
        assert!(
            is_dead(failure) && failure.to_string().contains("which are for subscriptions only"),
            "{failure}"
        );
    }
    assert_eq!(bed.received(1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_nobody_has_subscribed_to_is_published() {
    if !plan().is_here() {
        return;
    }
    let server = tokio::task::block_in_place(|| plan().start());
    let settings = MqttSettings::new(&server.url(), "nobody/listens".parse().unwrap());
    Mqtt::new("mosquitto", settings).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap();
}

/// The server takes one message at a time, and says so when the connection is opened.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_decides_how_many_messages_are_on_their_way() {
    let Some(bed) = MosquittoBed::by(plan().config("max_inflight_messages 1")).await else { return };
    let publisher = bed.publisher(&Wish::default());
    let events: Vec<Outgoing> = (0..100).map(|n| numbered(n, None)).collect();
    publisher.publish_batch(&events).await.unwrap();
    let numbers: Vec<usize> = bed.received(100).await.iter().map(|m| m.text().parse().unwrap()).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "in order, although nobody asked for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_retained_if_it_is_asked_for() {
    let Some(bed) = MosquittoBed::open(Share::Shared).await else { return };
    bed.with(|settings| settings.retain = true).publish_batch(&[event("kept")]).await.unwrap();
    bed.with(|_| {}).publish_batch(&[event("gone")]).await.unwrap();
    let (client, mut events) = bed.eyes("late");
    client.subscribe("orders/+", QoS::AtLeastOnce).await.unwrap();
    let mut topics = Vec::new();
    let reading = async {
        // Retained messages come before those that are published after the subscription.
        while topics.last().is_none_or(|topic| topic != "orders/marker") {
            match events.poll().await.unwrap() {
                rumqttc::v5::Event::Incoming(Incoming::SubAck(_)) => {
                    bed.with(|_| {}).publish_batch(&[event("marker")]).await.unwrap();
                }
                rumqttc::v5::Event::Incoming(Incoming::Publish(message)) => {
                    topics.push(String::from_utf8_lossy(&message.topic).into_owned());
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(LONGEST_STALL, reading).await.expect("the marker arrives");
    assert_eq!(topics, ["orders/kept", "orders/marker"]);
}

/// The server ends the older of two connections with one id.
#[tokio::test(flavor = "multi_thread")]
async fn another_client_with_the_same_id_is_an_outage_that_passes() {
    let Some(bed) = MosquittoBed::open(Share::Shared).await else { return };
    let with_id = || bed.with(|settings| settings.client_id = Some("relay-1".into()));
    let (first, second) = (with_id(), with_id());
    first.publish_batch(&[numbered(0, None)]).await.unwrap();
    second.publish_batch(&[numbered(1, None)]).await.unwrap();
    publish_until_taken(&first, &[numbered(2, None)]).await;
    assert_eq!(ids(bed.received(3).await).len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_never_sent_behind_our_back() {
    // As many at once as we like.
    let Some(bed) = MosquittoBed::by(plan().config("max_inflight_messages 0")).await else { return };
    let proxy = Proxy::to(bed.server.port());
    let publisher = bed.with(|settings| {
        settings.url = format!("mqtt://127.0.0.1:{}", proxy.port()).as_str().into();
        settings.ack_timeout = Duration::from_secs(10);
        // It is the missing confirms that end the connection, on either side.
        settings.keep_alive = Duration::from_secs(60);
    });
    wait_until_healthy(&publisher).await;
    let events: Vec<Outgoing> = (0..900).map(|_| of_size(10_000, None)).collect();
    proxy.let_through(900_000);
    let error = publisher.publish_batch(&events).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("confirmed nothing"), "{error}");
    let published = (0..900).filter(|&index| error.fate(index) == Some(Fate::Published)).count();
    // From now on all gets through, also what is under way.
    proxy.let_through(u64::MAX);
    let arrived = bed.received(published).await.len();
    // What was on its way, and nothing of what waited for a place: we never send more than 256 ahead.
    assert!(
        0 < published && (published..=published + 256).contains(&arrived),
        "{published} confirmed, {arrived} arrived"
    );

    publish_until_taken(&publisher, &events).await;
    assert_eq!(ids(received_all(&bed, &events).await).len(), 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_the_server_and_shows_a_certificate() {
    let plan = Plan::mosquitto().user(USER, PASSWORD).mutual_tls();
    if !plan.is_here() {
        return;
    }
    let server = tokio::task::block_in_place(|| plan.start());
    let settings = || MqttSettings::new(&server.url(), "t".parse().unwrap());
    let file = |path: std::path::PathBuf| Some(path.to_str().unwrap().into());
    let (certificate, key) = server.client_certificate();

    let stranger = Mqtt::new("mosquitto", settings()).unwrap();
    let error = stranger.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().to_lowercase().contains("certificate"), "{error}");

    let mut nobody = settings();
    nobody.tls.ca_file = file(server.ca_file());
    let error =
        Mqtt::new("mosquitto", nobody).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");

    let mut known = settings();
    known.tls.ca_file = file(server.ca_file());
    known.tls.cert_file = file(certificate);
    known.tls.key_file = file(key);
    Mqtt::new("mosquitto", known).unwrap().publish_batch(&[numbered(0, None)]).await.unwrap();
}
