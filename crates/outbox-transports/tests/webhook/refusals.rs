//! Receivers that refuse, are slow, are unreachable, or must not be reached.

use std::time::Duration;

use outbox::{EventResult, Failure, Outgoing, PublishError, Publisher as _};
use outbox_transports::{Webhook, WebhookSettings};
use tokio::net::TcpListener;

use crate::common::poll;
use crate::receiver::{ReceivedRequest, Receiver, Reply};
use crate::{event, fates, keyed};

/// Publishes one event to a receiver with this reply.
async fn outcome(reply: Reply) -> (PublishError, Receiver) {
    let receiver = Receiver::start(move |_, _| reply.clone()).await;
    let error = receiver.webhook().publish_batch(&[event(1)]).await.unwrap_err();
    (error, receiver)
}

#[tokio::test]
async fn every_status_is_distinguished() {
    for (status, expected) in [
        (400, "Bad Request"),
        (404, "Not Found"),
        (405, "Method Not Allowed"),
        (408, "Request Timeout"),
        (425, "Too Early"),
        (429, "Too Many Requests"),
        (500, "Internal Server Error"),
        (501, "Not Implemented"),
    ] {
        let (error, receiver) = outcome(Reply::status(status)).await;
        let failure = Failure::retry(format!("http://{} answers {status} {expected}", receiver.address));
        assert_eq!(error.fate(0), Some(EventResult::Failed(failure)), "{status}");
        assert!(!error.is_unavailable(), "{status}");
    }
    for (status, expected) in [
        (410, "Gone"),
        (413, "Payload Too Large"),
        (415, "Unsupported Media Type"),
        (422, "Unprocessable Entity"),
    ] {
        let (error, receiver) = outcome(Reply::status(status)).await;
        let failure = Failure::dead(format!("http://{} answers {status} {expected}", receiver.address));
        assert_eq!(error.fate(0), Some(EventResult::Failed(failure)), "{status}");
    }
    for status in [401, 403, 502, 503, 504] {
        let (error, _receiver) = outcome(Reply::status(status)).await;
        assert!(error.is_unavailable(), "{status}");
        assert_eq!(error.fate(0), Some(EventResult::NotAttempted), "{status}");
    }
}

/// Publishes as a relay does until no event is due: failed events are removed, untried events come
/// again, and an outage ends when the publisher is healthy. Returns the failed events with their
/// failures.
async fn relay(webhook: &Webhook, mut due: Vec<Outgoing>) -> Vec<(Outgoing, Failure)> {
    let mut failed = Vec::new();
    for _ in 0..1_000 {
        if due.is_empty() {
            return failed;
        }
        if webhook.health().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let count = due.len().min(50);
        let error = match webhook.publish_batch(&due[..count]).await {
            Ok(()) => {
                due.drain(..count);
                continue;
            }
            Err(error) => error,
        };
        let mut left = Vec::new();
        for (index, event) in due.drain(..count).enumerate() {
            match error.fate(index) {
                Some(EventResult::Published) => {}
                Some(EventResult::Failed(failure)) => failed.push((event, failure)),
                None | Some(EventResult::NotAttempted) => left.push(event),
            }
        }
        left.append(&mut due);
        due = left;
    }
    panic!("{} events are never tried", due.len());
}

fn is_bad(request: &ReceivedRequest) -> bool {
    request.header("outbox-type") == Some("bad")
}

fn typed(event_type: &str, number: usize) -> Outgoing {
    Outgoing::new(outbox::Event::new(event_type).tenant("t").json(&number).build().unwrap())
}

#[tokio::test]
async fn an_event_with_retry_after_waits_alone() {
    for url in ["/in", "/in/{tenant_id}"] {
        let receiver = Receiver::start(|_, request| match is_bad(request) {
            true => Reply::with(429, "retry-after", "999999"),
            false => Reply::status(200),
        })
        .await;
        let mut settings = receiver.settings();
        settings.url = format!("http://{}{url}", receiver.address).as_str().into();
        let webhook = Webhook::new("hooks", settings).unwrap();
        let error = webhook.publish_batch(&[typed("bad", 0)]).await.unwrap_err();
        assert!(!error.is_unavailable(), "only the event waits: {error}");
        let Some(EventResult::Failed(failure)) = error.fate(0) else { panic!("{error}") };
        assert_eq!(failure, Failure::retry_after(Duration::from_secs(3_600), &failure), "an hour at most");
        assert!(failure.to_string().ends_with("and asks to wait 3600 s"), "{failure}");
        assert!(webhook.health().await.is_ok(), "other events are sent");

        let due: Vec<Outgoing> = (0..51).map(|n| typed(if n == 0 { "bad" } else { "good" }, n)).collect();
        let failed = relay(&webhook, due).await;
        assert_eq!((failed.len(), receiver.requests().len()), (1, 52));
    }
}

#[tokio::test]
async fn refused_events_use_up_their_attempts_and_the_others_arrive() {
    for status in [401, 403, 502, 503, 504] {
        let receiver =
            Receiver::start(move |_, request| Reply::status(if is_bad(request) { status } else { 200 }))
                .await;
        let webhook = receiver.webhook();
        let due: Vec<Outgoing> = (0..440).map(|n| typed(if n < 40 { "bad" } else { "good" }, n)).collect();
        let failed = relay(&webhook, due).await;
        assert_eq!(failed.len(), 40, "{status}: each counts");
        let good = receiver.requests().iter().filter(|request| !is_bad(request)).count();
        assert_eq!(good, 400, "{status}");
        let bad = receiver.requests().len() - good;
        assert!(bad < 80, "{status}: {bad} requests for 40 events");
    }
}

#[tokio::test]
async fn an_event_that_is_always_refused_does_not_block_its_receiver_forever() {
    // The receiver has accepted no event before.
    let receiver = Receiver::start(|_, request| Reply::status(if is_bad(request) { 503 } else { 200 })).await;
    let webhook = receiver.webhook();
    let mut times = 0;
    let bad = typed("bad", 0);
    while !matches!(
        webhook.publish_batch(std::slice::from_ref(&bad)).await.unwrap_err().fate(0),
        Some(EventResult::Failed(_))
    ) {
        times += 1;
        assert!(times < 5, "no other event is ever tried");
    }
    assert!(times > 0, "the first refusal counts as an outage");
}

#[tokio::test]
async fn a_url_that_refuses_does_not_block_other_urls() {
    let receiver =
        Receiver::start(|_, request| Reply::status(if request.path == "/in/bad" { 503 } else { 200 })).await;
    let mut settings = receiver.settings();
    settings.url = format!("http://{}/in/{{header:to}}", receiver.address).as_str().into();
    let webhook = Webhook::new("hooks", settings).unwrap();
    let to = |to: &str| Outgoing::new(outbox::Event::new("e").header("to", to).json(&1).build().unwrap());
    // Alone, and no event was ever accepted.
    for _ in 0..3 {
        let error = webhook.publish_batch(&[to("bad")]).await.unwrap_err();
        assert!(!error.is_unavailable(), "{error}");
        assert!(matches!(error.fate(0), Some(EventResult::Failed(_))), "{error}");
        assert!(webhook.health().await.is_ok());
    }
    webhook.publish_batch(&[to("good")]).await.unwrap();
}

#[tokio::test]
async fn a_response_is_kept_as_a_detail_and_not_in_the_reason() {
    let answer = format!("no\nstock for ada{}", "x".repeat(2_000));
    for status in [500, 503, 422, 429] {
        let body = answer.clone();
        let receiver = Receiver::start(move |_, request| match is_bad(request) {
            true => Reply { body: body.clone().into(), ..Reply::status(status) },
            false => Reply::status(200),
        })
        .await;
        let error = receiver.webhook().publish_batch(&[typed("bad", 0), typed("good", 1)]).await.unwrap_err();
        let Some(EventResult::Failed(failure)) = error.fate(0) else { panic!("{status}: {error}") };
        assert!(!failure.to_string().contains("stock"), "{failure}");
        let excerpt = format!("the response begins with: no\\nstock for ada{}", "x".repeat(512 - 16));
        let expected = if status == 422 { Failure::dead(&failure) } else { Failure::retry(&failure) };
        assert_eq!(failure, expected.with_detail(excerpt), "{status}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::with_status(200).await;
    let to = format!("http://{}/admin?token=hunter2", elsewhere.address);
    for status in [301, 302, 307, 308] {
        let (error, receiver) = outcome(Reply::with(status, "location", &to)).await;
        let text = error.to_string();
        let (from, to) = (receiver.address, elsewhere.address);
        assert!(text.starts_with(&format!("http://{from} answers {status} ")), "{text}");
        assert!(text.contains(&format!(" to http://{to}; redirects are not followed")), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert_eq!(elsewhere.requests().len(), 0);
}

#[tokio::test]
async fn a_response_timeout_is_the_events_failure() {
    let slow = Receiver::start(|_, _| Reply::after(Duration::from_secs(600))).await;
    let mut settings = slow.settings();
    (settings.connect_timeout, settings.timeout) = (Duration::from_secs(2), Duration::from_secs(3));
    let webhook = Webhook::new("hooks", settings).unwrap();
    let batch = [keyed("a", 1), keyed("a", 2)];
    let error = webhook.publish_batch(&batch).await.unwrap_err();
    let failure =
        format!("no response from http://{} in 5 s; the receiver may have accepted the event", slow.address);
    assert_eq!(fates(&error, 2), [EventResult::Failed(Failure::retry(failure)), EventResult::NotAttempted]);
    assert!(!error.is_unavailable());
    assert_eq!(slow.requests().len(), 1);
}

#[tokio::test]
async fn a_slow_response_within_the_timeout_is_accepted() {
    let receiver = Receiver::start(|_, _| Reply::after(Duration::from_millis(300))).await;
    receiver.webhook().publish_batch(&[event(1)]).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_breaks_is_the_events_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        use tokio::io::AsyncReadExt as _;
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut some = [0; 100];
        let _ = connection.read(&mut some).await;
        drop(connection);
        // Keeps accepting connections.
        listener
    });
    let mut settings = WebhookSettings::new(format!("http://{address}/").as_str());
    settings.allow = vec!["127.0.0.1".into()];
    let error = Webhook::new("hooks", settings).unwrap().publish_batch(&[event(1)]).await.unwrap_err();
    accepting.await.unwrap();
    assert!(!error.is_unavailable());
    assert!(error.to_string().starts_with(&format!("no response from http://{address}: ")), "{error}");
}

#[tokio::test]
async fn a_missing_receiver_is_unavailable_until_it_starts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut settings = WebhookSettings::new(format!("http://{address}/in").as_str());
    settings.allow = vec!["127.0.0.1".into()];
    let webhook = Webhook::new("hooks", settings).unwrap();
    assert!(webhook.health().await.is_err());
    let error = webhook.publish_batch(&[event(1), event(2)]).await.unwrap_err();
    assert!(error.is_unavailable());
    assert!(error.to_string().starts_with(&format!("no connection to http://{address}: ")), "{error}");
    assert_eq!(fates(&error, 2), [EventResult::NotAttempted, EventResult::NotAttempted]);

    let listener = TcpListener::bind(address).await.unwrap();
    let receiver = Receiver::listen(listener, |_, _| Reply::status(200));
    let limit = Duration::from_secs(10);
    poll("the receiver is available again", limit, async || webhook.health().await).await;
    webhook.publish_batch(&[event(1)]).await.unwrap();
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn an_outage_behind_a_gateway_costs_no_attempts() {
    let receiver = Receiver::with_status(503).await;
    let webhook = receiver.webhook();
    assert!(webhook.health().await.is_ok(), "the probe only connects");
    assert!(webhook.publish_batch(&[event(1)]).await.unwrap_err().is_unavailable());
    let reason = webhook.health().await.unwrap_err().to_string();
    assert!(reason.contains("answers 503 Service Unavailable"), "the outage is known: {reason}");
}

#[tokio::test]
async fn a_refusal_after_other_events_were_accepted_is_the_events_failure() {
    let batch = [keyed("a", 1), keyed("a", 2), keyed("a", 3)];
    let receiver = Receiver::start(|count, _| Reply::status(if count == 1 { 200 } else { 503 })).await;
    let error = receiver.webhook().publish_batch(&batch).await.unwrap_err();
    assert!(!error.is_unavailable());
    let refused = Failure::retry(format!("http://{} answers 503 Service Unavailable", receiver.address));
    assert_eq!(
        fates(&error, 3),
        [EventResult::Published, EventResult::Failed(refused), EventResult::NotAttempted]
    );
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn localhost_is_refused_unless_it_is_allowed() {
    let receiver = Receiver::with_status(200).await;
    let port = receiver.address.port();
    let publish = async |scheme: &str, allow: &[&str]| {
        let mut settings = WebhookSettings::new(format!("{scheme}://localhost:{port}/in").as_str());
        settings.allow = allow.iter().map(|entry| (*entry).into()).collect();
        let webhook = Webhook::new("hooks", settings).unwrap();
        (webhook.health().await.is_ok(), webhook.publish_batch(&[event(1)]).await)
    };
    let (healthy, result) = publish("https", &[]).await;
    let error = result.unwrap_err();
    assert!(error.is_unavailable() && !healthy);
    assert_eq!(
        error.to_string(),
        format!(
            "no connection to https://localhost:{port}: localhost is not on the public internet; add it to `allow` if that is intended"
        )
    );
    assert_eq!(receiver.requests().len(), 0);
    let (healthy, result) = publish("http", &["localhost"]).await;
    assert!(healthy);
    result.unwrap();
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_unavailable() {
    let webhook = Webhook::new("hooks", WebhookSettings::new("https://no-such-host.invalid/x")).unwrap();
    let error = webhook.publish_batch(&[event(1)]).await.unwrap_err();
    assert!(error.is_unavailable() && webhook.health().await.is_err());
    assert!(error.to_string().contains("no-such-host.invalid cannot be resolved"), "{error}");
}

#[test]
fn invalid_settings_are_named() {
    let settings = |change: fn(&mut WebhookSettings)| {
        let mut settings = WebhookSettings::new("https://user:hunter2@hooks.example.com/hunter2");
        change(&mut settings);
        settings
    };
    Webhook::new("hooks", settings(|_| ())).unwrap();
    for (change, expected) in [
        (
            (|s| drop(s.headers.insert("x-a".to_owned(), "hunter2\r\nx-b: 1".into())))
                as fn(&mut WebhookSettings),
            "headers: the value of x-a contains a line break",
        ),
        (
            |s| drop(s.headers.insert("x-a\r\nx-b".to_owned(), "1".into())),
            "headers: \"x-a\\r\\nx-b\" is not a valid HTTP header name",
        ),
        (|s| drop(s.headers.insert("Host".to_owned(), "1".into())), "headers: Host cannot be set"),
        (|s| s.secrets = vec!["hunter2".into()], "secrets: a secret must have at least 16 bytes"),
        (|s| s.secrets = vec!["hunter2hunter2hunter2".into(); 3], "secrets: at most two"),
        (|s| s.concurrency = 0, "concurrency: "),
        (|s| s.timeout = Duration::ZERO, "timeout: "),
        (|s| s.allow = vec!["10.0.0.0/99".into()], "allow: "),
        (|s| s.tls.ca_file = Some("/no/such/file".into()), "tls: ca_file `/no/such/file`: "),
        (|s| s.tls.ca_file = Some("/dev/null".into()), "tls: ca_file: contains no certificate"),
        (|s| s.tls.cert_file = Some("/dev/null".into()), "tls: cert_file needs key_file as well"),
        (|s| s.url = "https://127.0.0.1/hunter2".into(), "url: 127.0.0.1 is not on the public internet"),
    ] {
        let error = Webhook::new("hooks", settings(change)).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{expected}: {error}");
        let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let texts: String = chain.map(|error| format!("{error}\n{error:?}\n")).collect();
        assert!(!texts.contains("hunter2"), "{texts}");
    }
}

#[tokio::test]
async fn errors_and_debug_output_have_no_secret_and_no_payload() {
    let receiver = Receiver::with_status(500).await;
    let mut settings = receiver.settings();
    settings.url =
        format!("http://user:hunter2@{}/hunter2/{{type}}?token=hunter2", receiver.address).as_str().into();
    settings.secrets = vec!["hunter2hunter2hunter2".into()];
    settings.headers.insert("x-token".to_owned(), "hunter2".into());
    let text = format!("{settings:?}");
    let webhook = Webhook::new("hooks", settings).unwrap();
    let event = outbox::Event::new("e").json(&"hunter2").build().unwrap();
    let error = webhook.publish_batch(&[Outgoing::new(event.clone())]).await.unwrap_err();
    let mut unreachable = receiver.settings();
    unreachable.url = "http://user:hunter2@127.0.0.1:1/hunter2?token=hunter2".into();
    let unavailable =
        Webhook::new("hooks", unreachable).unwrap().publish_batch(&[Outgoing::new(event)]).await.unwrap_err();
    for shown in
        [text, format!("{webhook:?}"), format!("{error:?} {error}"), format!("{unavailable:?} {unavailable}")]
    {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
