//! Memory use of reading events.

mod common;

use common::{READ, TestServer, store_at};
use outbox::Event;
use serde_json::json;

/// Peak resident memory of this process, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1_024
}

/// The only test of its binary: the peak is measured for the whole process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metadata_of_a_large_event_is_read_without_its_payload() {
    const SIZE: usize = 64 * 1024 * 1024;
    let Some((store, folder)) = store_at(Some("OUTBOX_TEST_POSTGRES")).await else { return };
    let server = TestServer::of(store, folder, |builder| builder).await;
    let text = format!("\"{}\"", "x".repeat(SIZE - 2));
    let large = Event::new("large").ordering_key("k").max_payload(SIZE).json_text(text);
    let id = server.write(large).await;
    let behind = server.write(Event::new("behind").ordering_key("k").json(&1)).await;
    // Resets the peak, so that the memory used for writing does not count.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    let read = async |path: String| {
        let response = server.send(server.request("GET", &path).bearer_auth(READ)).await;
        assert_eq!(response.status, 200, "{path}");
        response.json()
    };
    let paths = [format!("/api/outbox/events/{id}"), format!("/api/outbox/events/{behind}/explain")];
    let reads = (0..8).map(|n| read(paths[n % 2].clone()));
    let found = futures_util::future::join_all(reads).await;
    assert_eq!(found[0]["event"]["payload_bytes"], json!(SIZE));
    read("/api/outbox/events".to_owned()).await;
    let used = peak() - before;
    assert!(used < SIZE as u64 / 2, "{used} bytes");
    assert!(server.store.cancel(&id).await.unwrap());
}
