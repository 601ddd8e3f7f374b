//! How much memory looking at events takes.

mod site;

use outbox::Event;
use serde_json::json;
use site::{READ, Site, store_at};

/// The most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1_024
}

/// The only test of its binary: the peak is that of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_event_is_looked_at_without_its_payload() {
    const SIZE: usize = 64 * 1024 * 1024;
    let Some((store, folder)) = store_at(Some("OUTBOX_TEST_POSTGRES")).await else { return };
    let site = Site::of(store, folder, |builder| builder).await;
    let text = format!("\"{}\"", "x".repeat(SIZE - 2));
    let large = Event::new("large").ordering_key("k").max_payload(SIZE).json_text(text);
    let id = site.write(large).await;
    let behind = site.write(Event::new("behind").ordering_key("k").json(&1)).await;
    // What writing took does not count.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    let look = async |path: String| {
        let answer = site.send(site.request("GET", &path).bearer_auth(READ)).await;
        assert_eq!(answer.status, 200, "{path}");
        answer.json()
    };
    let paths = [format!("/api/outbox/events/{id}"), format!("/api/outbox/events/{behind}/explain")];
    let looks = (0..8).map(|n| look(paths[n % 2].clone()));
    let found = futures_util::future::join_all(looks).await;
    assert_eq!(found[0]["event"]["payload_bytes"], json!(SIZE));
    look("/api/outbox/events".to_owned()).await;
    let taken = peak() - before;
    assert!(taken < SIZE as u64 / 2, "{taken} bytes");
    assert!(site.store.cancel(&id).await.unwrap());
}
