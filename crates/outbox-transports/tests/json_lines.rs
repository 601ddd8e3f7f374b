//! Written lines contain the events unchanged.

use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use outbox::{Backoff, Event, Outgoing, Position, Publisher, testing};
use outbox_transports::{Lines, Sink};
use serde_json::{Value, json};

/// Fails the first writes, then stores what is written.
#[derive(Clone, Default)]
struct FailingSink(Arc<Mutex<(u32, Vec<u8>)>>);

#[async_trait]
impl Sink for FailingSink {
    async fn put(&mut self, line: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        if inner.0 > 0 {
            inner.0 -= 1;
            return Err(io::Error::other("not now"));
        }
        inner.1.extend_from_slice(line);
        Ok(())
    }
}

async fn written_as_lines(events: Vec<Event>, failures: u32) -> Vec<Value> {
    let outbox = testing::outbox().await;
    let sink = FailingSink::default();
    sink.0.lock().unwrap().0 = failures;
    let relay = outbox
        .single_node()
        .workers(1)
        .retry(Backoff::default().base(std::time::Duration::from_millis(1)).no_jitter())
        .forward(["e"], Lines::to(sink.clone()))
        .start()
        .await
        .unwrap();
    let count = events.len() as u64;
    outbox.send_all(events).await.unwrap();
    while outbox.admin().stats().await.unwrap().done < count {
        relay.idle().await.unwrap();
    }
    relay.stop().await.unwrap();
    let text = String::from_utf8(sink.0.lock().unwrap().1.clone()).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_line_has_all_fields_of_an_event() {
    let event = Event::new("e")
        .id("one")
        .aggregate("order", "42")
        .ordering_key("k")
        .tenant("acme")
        .correlation("order-7")
        .header("a", "b")
        .json_text("{\"z\": 1,\n \"a\": 1.50}");
    let lines = written_as_lines(vec![event.build().unwrap()], 0).await;
    let line = lines[0].as_object().unwrap();
    assert_eq!(line["id"], "one");
    assert_eq!(line["type"], "e");
    assert_eq!((&line["aggregate_type"], &line["aggregate_id"]), (&json!("order"), &json!("42")));
    assert_eq!((&line["key"], &line["tenant_id"]), (&json!("k"), &json!("acme")));
    assert_eq!(line["correlation_id"], "order-7");
    assert_eq!(line["headers"], json!({ "a": "b" }));
    assert_eq!(line["payload"], json!({ "z": 1, "a": 1.50 }));
    assert_eq!(line["attempt"], 1);
    assert!(line["position"].as_i64().unwrap() > 0);
    assert!(!line.contains_key("tags"), "the queue has none");
}

/// The same lines, with the additional fields of the log.
#[tokio::test]
async fn a_log_is_published_as_lines() {
    let event = |n: u8| Event::new("DepositMade").tag("wallet_id", "w1").tag("region", "eu").json(&n).build();
    let batch: Vec<Outgoing> =
        (1..=2).map(|n| Outgoing::new(event(n).unwrap()).at(Position::new(i64::from(n) * 10))).collect();
    let sink = FailingSink::default();
    sink.0.lock().unwrap().0 = 1;
    let lines = Lines::to(sink.clone());
    assert_eq!(Publisher::name(&lines), "lines");
    lines.publish_batch(&[]).await.unwrap();
    let error = lines.publish_batch(&batch).await.unwrap_err();
    assert_eq!(error.to_string(), "not now");
    assert!(sink.0.lock().unwrap().1.is_empty(), "a batch is written completely or not at all");
    lines.publish_batch(&batch).await.unwrap();

    let text = String::from_utf8(sink.0.lock().unwrap().1.clone()).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    for (line, n) in lines.iter().zip([1, 2]) {
        assert_eq!(line["id"], batch[n - 1].id().as_str());
        assert_eq!((&line["type"], &line["payload"]), (&json!("DepositMade"), &json!(n)));
        assert_eq!((&line["position"], &line["attempt"]), (&json!(n * 10), &json!(1)));
        assert_eq!(line["tags"], json!(["wallet_id=w1", "region=eu"]));
    }
}

#[tokio::test]
async fn other_payloads_are_written_as_text_or_base64() {
    let text = Event::new("e").bytes("text/plain", "hello\nworld").build().unwrap();
    let bytes = Event::new("e").bytes("application/x", vec![0xff, 0x00]).build().unwrap();
    let lines = written_as_lines(vec![text, bytes], 0).await;
    let by_type = |kind: &str| lines.iter().find(|line| line["content_type"] == kind).unwrap();
    assert_eq!(by_type("text/plain")["payload"], "hello\nworld");
    assert_eq!(by_type("application/x")["payload_base64"], "/wA=");
}

#[tokio::test]
async fn a_failing_sink_is_retried() {
    let lines = written_as_lines(vec![Event::new("e").json(&1).build().unwrap()], 2).await;
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["attempt"], 3);
}

#[tokio::test]
async fn a_file_is_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    std::fs::write(&file, "before\n").unwrap();
    let outbox = testing::outbox().await;
    let lines = Lines::append(&file).await.unwrap();
    let relay = outbox.single_node().forward(["e"], lines).start().await.unwrap();
    outbox.send(Event::new("e").json(&7)).await.unwrap();
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(text.lines().last().unwrap().contains("\"payload\":7"));
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_for_its_owner_only_and_a_symbolic_link_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events");
    Lines::append(&file).await.unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the file contains payloads");

    let (target, link) = (folder.path().join("target"), folder.path().join("link"));
    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let error = Lines::append(&link).await.unwrap_err();
    assert_eq!(error.to_string(), "the file is a symbolic link, which is not followed");
    assert_eq!(std::fs::read(&target).unwrap(), b"");
}
