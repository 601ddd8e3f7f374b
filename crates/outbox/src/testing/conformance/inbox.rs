//! The relay's part of the inbox: purging old entries.

use std::time::Duration;

use super::{Harness, Scene};

const DAY: Duration = Duration::from_secs(86_400);

/// One batch at a time, by the time they were received.
pub async fn old_inbox_entries_are_purged_in_batches(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.purge_inbox(DAY, 10).await.unwrap(), 0);
    for n in 0..5 {
        let entry = format!("('c', 'old {n}', '2001-02-03 04:05:06')");
        let insert = format!("INSERT INTO {{inbox}} (consumer, event_id, received_at) VALUES {entry}");
        if !harness.execute(&insert).await {
            return;
        }
    }
    assert!(harness.execute("INSERT INTO {inbox} (consumer, event_id) VALUES ('c', 'young')").await);
    for purged in [3, 2, 0] {
        assert_eq!(scene.store.purge_inbox(DAY, 3).await.unwrap(), purged);
    }
    scene.pass(2 * DAY);
    assert_eq!(scene.store.purge_inbox(DAY, 3).await.unwrap(), 1);
}
