//! What a request looks like, and in what order they come.

use std::time::Duration;

use outbox::{Event, Failure, Fate, Outgoing, Publisher as _};
use outbox_transports::{Format, Unverified, Webhook, verify_webhook};

use crate::receiver::{Receiver, Reply, Seen};
use crate::{event, fates, keyed};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "the new secret of the shop";

fn check(secrets: &[&str], seen: &Seen, body: &[u8]) -> Result<(), Unverified> {
    verify_webhook(secrets, |name| seen.header(name), body)
}

#[tokio::test]
async fn an_event_is_a_signed_request_that_old_and_new_secrets_verify() {
    let receiver = Receiver::answering(200).await;
    let mut settings = receiver.settings();
    settings.secrets = vec![NEW.into(), OLD.into()];
    settings.headers.insert("Authorization".to_owned(), "Bearer hunter2".into());
    let webhook = Webhook::new("hooks", settings).unwrap();
    let event = Event::new("order.placed")
        .aggregate("Order", "ö-1")
        .header("region", "eu")
        .header("host", "evil.example.com")
        .header("content-length", "3")
        .header("webhook-id", "forged")
        .header("authorization", "forged")
        .header("cookie", "forged")
        .json_text(r#"{"b":1,  "a":2}"#);
    let event = Outgoing::new(event.build().unwrap());
    webhook.publish_batch(std::slice::from_ref(&event)).await.unwrap();

    let seen = receiver.seen().remove(0);
    assert_eq!(seen.path, "/in");
    assert_eq!(&*seen.body, br#"{"b":1,  "a":2}"#);
    for (name, value) in [
        ("webhook-id", event.id().as_str()),
        ("outbox-id", event.id().as_str()),
        ("outbox-type", "order.placed"),
        ("content-type", "application/json"),
        ("region", "eu"),
        ("authorization", "Bearer hunter2"),
        ("host", receiver.address.to_string().as_str()),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
    assert_eq!(seen.header("cookie"), None);
    assert_eq!(seen.headers["outbox-aggregate-id"], "ö-1".as_bytes());
    for secrets in [&[OLD][..], &[NEW]] {
        assert_eq!(check(secrets, &seen, &seen.body), Ok(()));
    }
    assert_eq!(check(&[OLD], &seen, br#"{"b":2,  "a":2}"#), Err(Unverified::Signature));
    assert_eq!(check(&["another secret of a shop"], &seen, &seen.body), Err(Unverified::Signature));
}

#[tokio::test]
async fn an_event_sets_no_header_that_receivers_or_proxies_act_upon() {
    let receiver = Receiver::answering(200).await;
    let names = [
        "x-forwarded-for",
        "x-forwarded-host",
        "forwarded",
        "via",
        "x-real-ip",
        "x-http-method-override",
        "content-encoding",
        "outbox-tenant-id",
        "outbox-epoch",
        "ce-type",
    ];
    let mut event = Event::new("order.placed").header("user-agent", "forged").header("region", "eu");
    for name in names {
        event = event.header(name, "forged");
    }
    let event = Outgoing::new(event.json(&1).build().unwrap());
    receiver.webhook().publish_batch(&[event]).await.unwrap();
    let seen = receiver.seen().remove(0);
    for name in names {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert!(seen.header("user-agent").unwrap().starts_with("outbox/"));
    assert_eq!(seen.header("region"), Some("eu"));
}

#[tokio::test]
async fn without_a_secret_there_is_no_signature() {
    let receiver = Receiver::answering(204).await;
    receiver.webhook().publish_batch(&[event(1)]).await.unwrap();
    let seen = receiver.seen().remove(0);
    assert!(seen.header("webhook-timestamp").is_some() && seen.header("webhook-signature").is_none());
}

#[tokio::test]
async fn a_cloud_event_has_its_attributes_in_headers_that_http_can_hold() {
    let receiver = Receiver::answering(200).await;
    let mut settings = receiver.settings();
    settings.format = Format::Cloudevents;
    settings.source = "/shop".into();
    let event = Event::new("order.placed").aggregate("Order", "ö 1%").json(&1).build().unwrap();
    Webhook::new("hooks", settings).unwrap().publish_batch(&[Outgoing::new(event)]).await.unwrap();
    let seen = receiver.seen().remove(0);
    assert_eq!((seen.header("ce-source"), seen.header("ce-type")), (Some("/shop"), Some("order.placed")));
    assert_eq!(seen.header("ce-subject"), Some("%C3%B6%201%25"));
}

#[tokio::test]
async fn an_event_can_choose_the_path_but_nothing_else() {
    let receiver = Receiver::answering(200).await;
    let mut settings = receiver.settings();
    settings.url = format!("http://{}/in/{{tenant_id}}/{{type}}", receiver.address).as_str().into();
    let webhook = Webhook::new("hooks", settings).unwrap();
    let of = |tenant: &str| Outgoing::new(Event::new("e").tenant(tenant).json(&1).build().unwrap());
    webhook.publish_batch(&[of("../?#@a")]).await.unwrap();
    assert_eq!(receiver.seen()[0].path, "/in/..%2F%3F%23%40a/e");
    let error = webhook.publish_batch(&[of("..")]).await.unwrap_err();
    assert_eq!(
        error.fate(0),
        Some(Fate::Failed(Failure::dead("its webhook's path would have a `.` or `..` in it")))
    );
    assert_eq!(receiver.seen().len(), 1);
}

#[tokio::test]
async fn events_of_a_key_come_in_order_while_others_come_at_once() {
    // Earlier ones take longer: without order they would be overtaken.
    let receiver = Receiver::start(|count, _| Reply::after(Duration::from_millis(20 / count as u64))).await;
    let webhook = receiver.webhook();
    let batch: Vec<Outgoing> = (0..8).flat_map(|n| [keyed("a", n), keyed("b", n), event(n)]).collect();
    webhook.publish_batch(&batch).await.unwrap();
    let seen = receiver.seen();
    assert_eq!(seen.len(), batch.len());
    for key in ["a", "b"] {
        let ids: Vec<&str> =
            seen.iter().filter(|s| s.header("outbox-key") == Some(key)).map(Seen::id).collect();
        let sent = batch.iter().filter(|e| e.ordering_key() == Some(key)).map(|e| e.id().as_str());
        assert_eq!(ids, sent.collect::<Vec<_>>(), "{key}");
    }
    assert!(receiver.most_at_once() > 1, "events without a key go at once");
}

#[tokio::test]
async fn no_more_are_under_way_than_the_settings_say() {
    let receiver = Receiver::start(|_, _| Reply::after(Duration::from_millis(10))).await;
    let mut settings = receiver.settings();
    settings.concurrency = 3;
    let batch: Vec<Outgoing> = (0..20).map(event).collect();
    Webhook::new("hooks", settings).unwrap().publish_batch(&batch).await.unwrap();
    assert_eq!((receiver.seen().len(), receiver.most_at_once()), (20, 3));
}

#[tokio::test]
async fn after_a_refusal_the_key_waits_and_the_others_go_on() {
    let batch = [keyed("a", 1), keyed("b", 1), keyed("a", 2), keyed("b", 2), event(3)];
    let bad = batch[0].id().to_string();
    let receiver =
        Receiver::start(move |_, seen| Reply::status(if seen.id() == bad { 500 } else { 200 })).await;
    let error = receiver.webhook().publish_batch(&batch).await.unwrap_err();
    let refused = Failure::retry(format!("http://{} answers 500 Internal Server Error", receiver.address));
    assert_eq!(
        fates(&error, 5),
        [Fate::Failed(refused), Fate::Published, Fate::Untried, Fate::Published, Fate::Published]
    );
    assert!(!error.is_unavailable());
    assert!(!receiver.seen().iter().any(|seen| seen.id() == batch[2].id().as_str()));
}

#[tokio::test]
async fn a_connection_is_used_again_unless_its_answer_is_long() {
    let long = vec![b'x'; 8 * 1024 * 1024];
    let receiver = Receiver::start(move |count, _| {
        let body = if count == 3 { long.clone().into() } else { "fine".into() };
        Reply { body, ..Reply::status(200) }
    })
    .await;
    let webhook = receiver.webhook();
    for number in 0..4 {
        webhook.publish_batch(&[event(number)]).await.unwrap();
    }
    let peers: Vec<_> = receiver.seen().iter().map(|seen| seen.peer).collect();
    assert_eq!((peers[0], peers[1]), (peers[1], peers[2]), "what was read to its end can be used again");
    assert_ne!(peers[2], peers[3], "eight megabytes are not worth reading");
}

#[tokio::test]
async fn an_event_that_http_cannot_hold_is_dead_and_the_rest_goes_on() {
    let receiver = Receiver::answering(200).await;
    let mut settings = receiver.settings();
    settings.max_bytes = 2_000;
    let webhook = Webhook::new("hooks", settings).unwrap();
    let with = |name: &str, value: &str| {
        Outgoing::new(Event::new("e").header(name, value).json(&1).build().unwrap())
    };
    let large = Outgoing::new(Event::new("e").json(&"x".repeat(3_000)).build().unwrap());
    let batch = [with("two words", "x"), large, with("fine", "x")];
    let error = webhook.publish_batch(&batch).await.unwrap_err();
    let fates = fates(&error, 3);
    assert_eq!(fates[0], Fate::Failed(Failure::dead("one of its headers has a name that HTTP cannot hold")));
    let Fate::Failed(failure) = &fates[1] else { panic!("{fates:?}") };
    assert!(failure.to_string().ends_with("and the webhook takes 2000"), "{failure}");
    assert_eq!((&fates[2], receiver.seen().len()), (&Fate::Published, 1));
}
