//! Live streams.

mod common;

use std::time::{Duration, Instant};

use common::{OPERATE, READ, TestServer};
use futures_util::StreamExt as _;
use outbox::Event;
use outbox_web::{Role, Token};
use serde_json::{Value, json};

/// Server-sent events of an open stream, one by one.
struct EventStream {
    response: reqwest::Response,
    text: String,
}

impl EventStream {
    async fn new(server: &TestServer) -> Self {
        let response = open_stream(server, READ).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// Name and data of the next event. The client's timeout limits the whole stream.
    async fn next(&mut self) -> (String, Value) {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name| block.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let event = field("event: ").zip(field("data: "));
                self.text = rest.to_owned();
                if let Some((name, data)) = event {
                    return (name, serde_json::from_str(&data).unwrap());
                }
            }
            let chunk = self.response.chunk().await.unwrap().expect("the stream is open");
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next tick without an error.
    async fn tick(&mut self) -> Value {
        loop {
            let (name, tick) = self.next().await;
            assert_eq!(name, "tick", "{tick}");
            if tick["error"].is_null() {
                return tick;
            }
        }
    }
}

fn counts(delivered: u64) -> outbox::store::NodeState {
    serde_json::from_value(json!({
        "mode": "ordered", "version": "0.1.0", "active": true,
        "counts": {"delivered": delivered, "latency": [0, 0, delivered], "types": {"order": {"delivered": delivered}}},
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_starts_with_the_history_and_then_ticks_every_second() {
    let server = TestServer::start().await;
    server.write(Event::new("order").json(&1)).await;
    server.store.announce(&"node-a".into(), &counts(100)).await.unwrap();
    let began = Instant::now();
    let mut stream = EventStream::new(&server).await;
    assert_eq!(stream.next().await.0, "history");
    let first = stream.tick().await;
    assert_eq!(
        (&first["delivered"], &first["overview"]["due"]["count"]),
        (&Value::Null, &json!(1)),
        "{first}"
    );

    for _ in 0..5 {
        server.write(Event::new("order").json(&1)).await;
    }
    server.store.announce(&"node-a".into(), &counts(130)).await.unwrap();
    let delivers = |tick: &Value| tick["delivered"].as_f64().unwrap() > 0.0;
    let last_seq = |tick: &Value| tick["overview"]["last_seq"].as_i64().unwrap();
    let all_written = |tick: &Value| last_seq(tick) == last_seq(&first) + 5;
    let mut ticks: Vec<Value> = Vec::new();
    while ticks.len() < 2 || !ticks.iter().any(delivers) || !ticks.iter().any(all_written) {
        ticks.push(stream.tick().await);
    }
    // A rate refers to the time since the previous tick, which is at most the whole elapsed time.
    let written: f64 = ticks.iter().map(|tick| tick["written"].as_f64().unwrap()).sum();
    assert!(written * began.elapsed().as_secs_f64() > 4.5, "5 events were written: {ticks:?}");
    // 30 events, spread over 0.5 to 3 s.
    for tick in ticks.iter().filter(|tick| delivers(tick)) {
        assert!((10.0..=60.0).contains(&tick["delivered"].as_f64().unwrap()), "{tick}");
        assert!(tick["p95"].as_f64().unwrap() > 0.0, "{tick}");
        assert_eq!(tick["types"][0]["event_type"], "order", "{tick}");
    }
    assert!(ticks.iter().all(|tick| tick["delivered"].as_f64().unwrap() >= 0.0), "{ticks:?}");

    // The next stream starts with the history, and the overview has it too.
    let mut next = EventStream::new(&server).await;
    let (name, history) = next.next().await;
    assert_eq!(name, "history");
    assert!(history.as_array().unwrap().len() >= 3, "{history}");
    let overview = server.read("/api/outbox/overview?history=true").await;
    assert!(overview["history"].as_array().unwrap().len() >= 3);
    assert!(server.read("/api/outbox/nodes").await["nodes"][0]["delivered_per_second"].is_number());
}

/// Opens a stream with this token.
async fn open_stream(server: &TestServer, secret: &str) -> reqwest::Response {
    server.request("GET", "/api/outbox/live").bearer_auth(secret).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_streams_is_limited() {
    let secret = |n: usize| format!("a-token-of-listener-{n}");
    let tokens = (0..5).map(|n| Token::new(format!("listener-{n}"), Role::Read, secret(n)));
    let server = TestServer::with(|builder| builder.tokens(tokens)).await;
    let mut streams = Vec::new();
    for n in 0..64 {
        let response = open_stream(&server, &secret(n / 16)).await;
        assert_eq!(response.status(), 200, "{n}");
        streams.push(response);
    }
    let rejected = server.send(server.request("GET", "/api/outbox/live").bearer_auth(secret(4))).await;
    assert_eq!((rejected.status.as_u16(), rejected.problem().as_str()), (429, "too-many"));
    drop(streams);
    let is_accepted = async || match open_stream(&server, &secret(4)).await.status() {
        reqwest::StatusCode::OK => Ok(()),
        other => Err(other),
    };
    common::poll("a permit is released", is_accepted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_token_does_not_use_up_the_streams_of_others() {
    let server = TestServer::start().await;
    let mut streams = Vec::new();
    loop {
        let response = open_stream(&server, READ).await;
        if response.status() != 200 {
            assert_eq!(response.status(), 429);
            break;
        }
        streams.push(response);
        assert!(streams.len() < 64, "one token uses all streams");
    }
    // Sessions of the token count as well.
    let session =
        server.send(server.request("POST", "/api/outbox/session").json(&json!({"token": READ}))).await;
    let cookie = session.header("set-cookie").split(';').next().unwrap().to_owned();
    let of_session = server.request("GET", "/api/outbox/live").header("cookie", cookie).send().await.unwrap();
    assert_eq!(of_session.status(), 429);
    assert_eq!(open_stream(&server, OPERATE).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_its_session_is_signed_out() {
    let server = TestServer::start().await;
    let session =
        server.send(server.request("POST", "/api/outbox/session").json(&json!({"token": READ}))).await;
    let cookie = session.header("set-cookie").split(';').next().unwrap().to_owned();
    let csrf = session.json()["csrf"].as_str().unwrap().to_owned();
    let live = server.request("GET", "/api/outbox/live").header("cookie", &cookie).send().await.unwrap();
    assert_eq!(live.status(), 200);
    let mut stream = live.bytes_stream();
    assert!(stream.next().await.unwrap().is_ok(), "the stream has started");
    let out = server.request("DELETE", "/api/outbox/session").header("cookie", &cookie);
    assert_eq!(server.send(out.header("x-csrf-token", csrf)).await.status, 204);
    let rest = async { while stream.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(20), rest).await.expect("the stream has ended");
}
