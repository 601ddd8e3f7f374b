//! Payloads, tokens and passwords appear nowhere: not in log lines of any level, not in errors, not
//! in metrics.

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use common::{ADMIN, OPERATE, READ, TestServer};
use outbox::Event;
use serde_json::{Value, json};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const PAYLOAD: &str = "canary-4111-1111-payload";
const EDITED: &str = "canary-edited-payload";
const GUESSED: &str = "canary-guessed-token";

#[tokio::test]
async fn no_secret_is_in_a_log_line_or_an_error() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();
    let server = TestServer::start().await;
    let id = server.dead(Event::new("order").json(&json!({"card": PAYLOAD})), "no").await;
    let mut responses = String::new();
    let payload = format!("/api/outbox/events/{id}/payload");
    let requests: [(&str, &str, Option<&str>, Option<Value>); 12] = [
        ("GET", "/api/outbox/whoami", Some(GUESSED), None),
        ("POST", "/api/outbox/session", None, Some(json!({"token": GUESSED}))),
        ("POST", "/api/outbox/session", None, Some(json!({"token": [GUESSED]}))),
        ("POST", "/api/outbox/session", None, Some(json!(GUESSED))),
        ("POST", "/api/outbox/session", None, Some(json!({"token": ADMIN}))),
        ("GET", &payload, Some(READ), None),
        ("PUT", &payload, Some(ADMIN), Some(json!({"payload": EDITED}))),
        ("PUT", &payload, Some(ADMIN), Some(json!({"payload": {"x": EDITED}}))),
        ("PUT", &payload, Some(ADMIN), Some(json!({"payload": json!(EDITED).to_string()}))),
        ("GET", "/api/outbox/events?status=dead", Some(READ), None),
        ("POST", "/api/outbox/dead/replay", Some(OPERATE), Some(json!({"rate": EDITED}))),
        ("GET", "/api/outbox/audit", Some(READ), None),
    ];
    for (method, path, token, body) in requests {
        let mut request = server.request(method, path);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = server.send(request).await;
        responses.push_str(&format!("{} {:?} {}\n", response.status, response.headers, response.text));
    }
    // Only a caller with the role sees the payload, and only on its own route.
    assert!(server.read(&payload).await["text"].as_str().unwrap().contains(EDITED));
    responses.push_str(&format!("{:?} {:?}", server.web, server.store));

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("signed in") && log.contains("operator change"), "the log was captured:\n{log}");
    // Log lines of this test's HTTP client about its own connections are not the server's.
    let log: String = log
        .lines()
        .filter(|line| !line.contains("reqwest") && !line.contains("hyper_util::client"))
        .collect();
    for canary in [PAYLOAD, EDITED, GUESSED, READ, OPERATE, ADMIN] {
        assert!(!log.contains(canary), "{canary} is in the log");
        assert!(!responses.contains(canary), "{canary} is in a response:\n{responses}");
    }
}
