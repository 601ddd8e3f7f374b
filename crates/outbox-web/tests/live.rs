//! What goes on, second by second.

mod site;

use std::time::Duration;

use futures_util::StreamExt as _;
use outbox::Event;
use outbox_web::{Role, Token};
use serde_json::{Value, json};
use site::{OPERATE, READ, Site};

/// Reads server-sent events until there are so many.
async fn hear(site: &Site, count: usize) -> Vec<(String, Value)> {
    let response = site.request("GET", "/api/outbox/live").bearer_auth(READ).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut stream, mut text) = (response.bytes_stream(), String::new());
    let read = async {
        while text.matches("data:").count() < count || !text.ends_with("\n\n") {
            text.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(site::FOREVER, read).await.unwrap();
    let event = |block: &str| {
        let name = block.lines().find_map(|line| line.strip_prefix("event: "))?;
        let data = block.lines().find_map(|line| line.strip_prefix("data: "))?;
        Some((name.to_owned(), serde_json::from_str(data).unwrap()))
    };
    text.split("\n\n").filter_map(event).collect()
}

fn counts(delivered: u64) -> outbox::store::NodeState {
    serde_json::from_value(json!({
        "mode": "ordered", "version": "0.1.0", "active": true,
        "counts": {"delivered": delivered, "latency": [0, 0, delivered], "types": {"order": {"delivered": delivered}}},
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_gets_the_past_and_then_every_second() {
    let site = Site::start().await;
    site.write(Event::new("order").json(&1)).await;
    site.store.announce(&"node-a".into(), &counts(100)).await.unwrap();
    let listen = hear(&site, 4);
    let work = async {
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        for _ in 0..5 {
            site.write(Event::new("order").json(&1)).await;
        }
        site.store.announce(&"node-a".into(), &counts(130)).await.unwrap();
    };
    let (heard, ()) = tokio::join!(listen, work);
    assert_eq!(heard[0].0, "history");
    assert!(heard[1..].iter().all(|(name, _)| name == "tick"), "{heard:?}");
    let first = &heard[1].1;
    assert_eq!(
        (&first["delivered"], &first["overview"]["due"]["count"]),
        (&Value::Null, &json!(1)),
        "{first}"
    );
    let ticks = || heard[2..].iter().map(|(_, tick)| tick);
    let most = |of: &str| ticks().filter_map(|tick| tick[of].as_f64()).fold(0.0, f64::max);
    assert!(most("delivered") >= 10.0 && most("written") >= 2.0 && most("p95") > 0.0, "{heard:?}");
    assert!(ticks().any(|tick| tick["types"][0]["event_type"] == "order"), "{heard:?}");
    assert!(ticks().all(|tick| tick["delivered"].as_f64().is_none_or(|rate| rate >= 0.0)));

    // Whoever comes next gets what was before, and so does the overview.
    let again = hear(&site, 1).await;
    assert!(again[0].1.as_array().unwrap().len() >= 3, "{again:?}");
    let glance = site.read("/api/outbox/overview?history=true").await;
    assert!(glance["history"].as_array().unwrap().len() >= 3);
    assert!(site.read("/api/outbox/nodes").await["nodes"][0]["delivered_per_second"].is_number());
}

/// A stream that is open, of the token with this secret.
async fn listen(site: &Site, secret: &str) -> reqwest::Response {
    site.request("GET", "/api/outbox/live").bearer_auth(secret).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_many_may_listen_and_no_more() {
    let secret = |n: usize| format!("a-token-of-listener-{n}");
    let tokens = (0..5).map(|n| Token::new(format!("listener-{n}"), Role::Read, secret(n)));
    let site = Site::with(|builder| builder.tokens(tokens)).await;
    let mut listening = Vec::new();
    for n in 0..64 {
        let response = listen(&site, &secret(n / 16)).await;
        assert_eq!(response.status(), 200, "{n}");
        listening.push(response);
    }
    let refused = site.send(site.request("GET", "/api/outbox/live").bearer_auth(secret(4))).await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (429, "too-many"));
    drop(listening);
    let end = std::time::Instant::now() + site::FOREVER;
    while listen(&site, &secret(4)).await.status() != 200 {
        assert!(std::time::Instant::now() < end, "places are not given back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_token_does_not_take_the_places_of_others() {
    let site = Site::start().await;
    let mut listening = Vec::new();
    loop {
        let response = listen(&site, READ).await;
        if response.status() != 200 {
            assert_eq!(response.status(), 429);
            break;
        }
        listening.push(response);
        assert!(listening.len() < 64, "it takes all of them");
    }
    // Its sessions are not others.
    let session = site.send(site.request("POST", "/api/outbox/session").json(&json!({"token": READ}))).await;
    let cookie = session.header("set-cookie").split(';').next().unwrap().to_owned();
    let of_session = site.request("GET", "/api/outbox/live").header("cookie", cookie).send().await.unwrap();
    assert_eq!(of_session.status(), 429);
    assert_eq!(listen(&site, OPERATE).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_its_session_is_signed_out() {
    let site = Site::start().await;
    let session = site.send(site.request("POST", "/api/outbox/session").json(&json!({"token": READ}))).await;
    let cookie = session.header("set-cookie").split(';').next().unwrap().to_owned();
    let csrf = session.json()["csrf"].as_str().unwrap().to_owned();
    let live = site.request("GET", "/api/outbox/live").header("cookie", &cookie).send().await.unwrap();
    assert_eq!(live.status(), 200);
    let mut stream = live.bytes_stream();
    assert!(stream.next().await.unwrap().is_ok(), "it has begun");
    let out = site.request("DELETE", "/api/outbox/session").header("cookie", &cookie);
    assert_eq!(site.send(out.header("x-csrf-token", csrf)).await.status, 204);
    let rest = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(20), rest).await.expect("the stream goes on");
}
