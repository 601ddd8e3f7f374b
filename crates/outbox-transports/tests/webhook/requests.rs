//! Contents and order of requests.

use std::time::Duration;

use outbox::{Event, EventResult, Failure, Outgoing, Publisher as _};
use outbox_transports::{Format, Unverified, Webhook, verify_webhook};

use crate::receiver::{ReceivedRequest, Receiver, Reply};
use crate::{event, fates, keyed};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "the new secret of the shop";

fn check(secrets: &[&str], request: &ReceivedRequest, body: &[u8]) -> Result<(), Unverified> {
    verify_webhook(secrets, |name| request.header(name), body)
}

#[tokio::test]
async fn an_event_is_a_signed_request_that_old_and_new_secrets_verify() {
    let receiver = Receiver::with_status(200).await;
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

    let request = receiver.requests().remove(0);
    assert_eq!(request.path, "/in");
    assert_eq!(&*request.body, br#"{"b":1,  "a":2}"#);
    for (name, value) in [
        ("webhook-id", event.id().as_str()),
        ("outbox-id", event.id().as_str()),
        ("outbox-type", "order.placed"),
        ("content-type", "application/json"),
        ("region", "eu"),
        ("authorization", "Bearer hunter2"),
        ("host", receiver.address.to_string().as_str()),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    assert_eq!(request.header("cookie"), None);
    assert_eq!(request.headers["outbox-aggregate-id"], "ö-1".as_bytes());
    for secrets in [&[OLD][..], &[NEW]] {
        assert_eq!(check(secrets, &request, &request.body), Ok(()));
    }
    assert_eq!(check(&[OLD], &request, br#"{"b":2,  "a":2}"#), Err(Unverified::Signature));
    assert_eq!(check(&["another secret of a shop"], &request, &request.body), Err(Unverified::Signature));
}

#[tokio::test]
async fn an_event_sets_no_header_that_receivers_or_proxies_act_on() {
    let receiver = Receiver::with_status(200).await;
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
    let request = receiver.requests().remove(0);
    for name in names {
        assert_eq!(request.header(name), None, "{name}");
    }
    assert!(request.header("user-agent").unwrap().starts_with("outbox/"));
    assert_eq!(request.header("region"), Some("eu"));
}

#[tokio::test]
async fn without_a_secret_there_is_no_signature() {
    let receiver = Receiver::with_status(204).await;
    receiver.webhook().publish_batch(&[event(1)]).await.unwrap();
    let request = receiver.requests().remove(0);
    assert!(request.header("webhook-timestamp").is_some() && request.header("webhook-signature").is_none());
}

#[tokio::test]
async fn a_cloud_event_has_its_attributes_in_valid_http_headers() {
    let receiver = Receiver::with_status(200).await;
    let mut settings = receiver.settings();
    settings.format = Format::Cloudevents;
    settings.source = "/shop".into();
    let event = Event::new("order.placed").aggregate("Order", "ö 1%").json(&1).build().unwrap();
    Webhook::new("hooks", settings).unwrap().publish_batch(&[Outgoing::new(event)]).await.unwrap();
    let request = receiver.requests().remove(0);
    assert_eq!(
        (request.header("ce-source"), request.header("ce-type")),
        (Some("/shop"), Some("order.placed"))
    );
    assert_eq!(request.header("ce-subject"), Some("%C3%B6%201%25"));
}

#[tokio::test]
async fn an_event_can_choose_the_path_but_nothing_else() {
    let receiver = Receiver::with_status(200).await;
    let mut settings = receiver.settings();
    settings.url = format!("http://{}/in/{{tenant_id}}/{{type}}", receiver.address).as_str().into();
    let webhook = Webhook::new("hooks", settings).unwrap();
    let of = |tenant: &str| Outgoing::new(Event::new("e").tenant(tenant).json(&1).build().unwrap());
    webhook.publish_batch(&[of("../?#@a")]).await.unwrap();
    assert_eq!(receiver.requests()[0].path, "/in/..%2F%3F%23%40a/e");
    let error = webhook.publish_batch(&[of("..")]).await.unwrap_err();
    assert_eq!(
        error.fate(0),
        Some(EventResult::Failed(Failure::dead("the webhook's path would contain `.` or `..`")))
    );
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn events_of_a_key_arrive_in_order_while_others_arrive_concurrently() {
    // Earlier requests take longer: later ones would overtake them without ordering.
    let receiver = Receiver::start(|count, _| Reply::after(Duration::from_millis(20 / count as u64))).await;
    let webhook = receiver.webhook();
    let batch: Vec<Outgoing> = (0..8).flat_map(|n| [keyed("a", n), keyed("b", n), event(n)]).collect();
    webhook.publish_batch(&batch).await.unwrap();
    let requests = receiver.requests();
    assert_eq!(requests.len(), batch.len());
    for key in ["a", "b"] {
        let ids: Vec<&str> = requests
            .iter()
            .filter(|s| s.header("outbox-key") == Some(key))
            .map(ReceivedRequest::id)
            .collect();
        let sent = batch.iter().filter(|e| e.ordering_key() == Some(key)).map(|e| e.id().as_str());
        assert_eq!(ids, sent.collect::<Vec<_>>(), "{key}");
    }
    assert!(receiver.max_concurrency() > 1, "events without a key are sent concurrently");
}

#[tokio::test]
async fn concurrent_requests_are_limited_by_the_settings() {
    let receiver = Receiver::start(|_, _| Reply::after(Duration::from_millis(10))).await;
    let mut settings = receiver.settings();
    settings.concurrency = 3;
    let batch: Vec<Outgoing> = (0..20).map(event).collect();
    Webhook::new("hooks", settings).unwrap().publish_batch(&batch).await.unwrap();
    assert_eq!((receiver.requests().len(), receiver.max_concurrency()), (20, 3));
}

#[tokio::test]
async fn a_refusal_blocks_only_its_key() {
    let batch = [keyed("a", 1), keyed("b", 1), keyed("a", 2), keyed("b", 2), event(3)];
    let bad = batch[0].id().to_string();
    let receiver =
        Receiver::start(move |_, request| Reply::status(if request.id() == bad { 500 } else { 200 })).await;
    let error = receiver.webhook().publish_batch(&batch).await.unwrap_err();
    let refused = Failure::retry(format!("http://{} answers 500 Internal Server Error", receiver.address));
    assert_eq!(
        fates(&error, 5),
        [
            EventResult::Failed(refused),
            EventResult::Published,
            EventResult::NotAttempted,
            EventResult::Published,
            EventResult::Published
        ]
    );
    assert!(!error.is_unavailable());
    assert!(!receiver.requests().iter().any(|request| request.id() == batch[2].id().as_str()));
}

#[tokio::test]
async fn a_connection_is_reused_unless_its_response_is_long() {
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
    let peers: Vec<_> = receiver.requests().iter().map(|request| request.peer).collect();
    assert_eq!(
        (peers[0], peers[1]),
        (peers[1], peers[2]),
        "a connection is reused after its response was read"
    );
    assert_ne!(peers[2], peers[3], "eight megabytes are not worth reading");
}

#[tokio::test]
async fn an_event_that_is_not_valid_in_http_is_dead_and_the_others_arrive() {
    let receiver = Receiver::with_status(200).await;
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
    assert_eq!(fates[0], EventResult::Failed(Failure::dead("a header name is not valid in HTTP")));
    let EventResult::Failed(failure) = &fates[1] else { panic!("{fates:?}") };
    assert!(failure.to_string().ends_with("and the webhook accepts 2000"), "{failure}");
    assert_eq!((&fates[2], receiver.requests().len()), (&EventResult::Published, 1));
}
