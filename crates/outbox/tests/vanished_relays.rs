//! Relays that vanish, restart under the same name, or cannot announce themselves.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{Seen, TestDb, until};
use failing_store::{FailingStore, Operation};
use outbox::store::{Holder, NodeId, NodeState, Origin, Take};
use outbox::{Error, OnDead, Outgoing, PublishError, Publisher, RelayBuilder};

const MS: Duration = Duration::from_millis(1);
/// Long enough that an event that is delivered in a test was released, and its lease has not
/// expired.
const LONG: Duration = Duration::from_secs(3_600);

/// A destination that is unavailable for so many batches.
struct Unavailable(AtomicU32);

#[async_trait]
impl Publisher for Unavailable {
    fn name(&self) -> &'static str {
        "unavailable"
    }

    async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
        match self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(PublishError::unavailable("503 Service Unavailable")),
            Err(_) => Ok(()),
        }
    }
}

/// Claims all due events for a relay that vanishes.
async fn claim_and_vanish<DB: common::Backend>(db: &TestDb<DB>, node: &str, presence_ms: u64) -> usize {
    let store = db.outbox.store();
    let state =
        serde_json::json!({"mode": "multi_node", "version": "", "active": true, "presence_ms": presence_ms});
    let state: NodeState = serde_json::from_value(state).unwrap();
    store.announce(&node.into(), &state).await.unwrap();
    let take = Take {
        by: Holder::Lease { owner: node.into(), lease: LONG },
        from: Origin::Start,
        limit: 1_000,
        skip_recent: Duration::ZERO,
        on_dead: OnDead::Hold,
        skip_types: Vec::new(),
        only: None,
        probe: None,
        destinations: Default::default(),
        held_up_to: Default::default(),
        group_lease: true,
        max_bytes: usize::MAX,
        by_aggregate: false,
    };
    store.take(&take).await.unwrap().deliveries.len()
}

on_every_database! {
    /// The lease would last for an hour.
    async fn the_events_of_a_vanished_relay_are_delivered_by_another(|db|) {
        db.write("e", 0..20).await;
        assert_eq!(claim_and_vanish(&db, "vanished", 300).await, 20);
        let seen = Seen::default();
        let relay = db.outbox.multi_node().presence(4_000 * MS).on_type("e", seen.handler()).start().await.unwrap();
        seen.reach(20).await;
        seen.assert_each_once(0..20);
        let nodes = db.outbox.admin().nodes().await.unwrap();
        let vanished = nodes.iter().find(|node| node.node == NodeId::from("vanished")).unwrap();
        assert!(vanished.state.released && !vanished.is_running());
        relay.stop().await.unwrap();
    }

    /// No other relay has to detect that the first one is gone.
    async fn a_relay_of_the_same_name_claims_its_former_events(|db|) {
        db.write("e", 0..20).await;
        assert_eq!(claim_and_vanish(&db, "worker-1", 3_600_000).await, 20);
        let seen = Seen::default();
        let relay = db.outbox.multi_node().node("worker-1").on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        seen.assert_each_once(0..20);
        relay.stop().await.unwrap();
        // A relay that was stopped leaves no row behind.
        assert!(db.outbox.admin().nodes().await.unwrap().is_empty());
    }

    /// An outage is not a crash: each probe starts the event, and none of them counts as a crash.
    async fn an_outage_dead_letters_no_event_of_a_vanished_relay(|db|) {
        db.write("e", 0..1).await;
        assert_eq!(claim_and_vanish(&db, "worker-1", 3_600_000).await, 1);
        let unavailable = Arc::new(Unavailable(AtomicU32::new(5)));
        let relay = db.outbox.multi_node()
            .node("worker-1")
            .poll_interval(20 * MS)
            .forward_any(unavailable.clone())
            .start().await.unwrap();
        db.drained().await;
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (0, 0, 1, 0));
        assert_eq!(unavailable.0.load(Ordering::SeqCst), 0);
    }

    /// The lease would last for an hour.
    async fn an_event_whose_start_cannot_be_counted_is_released(|db|) {
        db.write("e", 0..1).await;
        assert_eq!(claim_and_vanish(&db, "worker-1", 3_600_000).await, 1);
        let failing = FailingStore::new(db.outbox.store(), Operation::Start, 1, || Error::Store("on purpose".into()));
        let seen = Seen::default();
        let relay = RelayBuilder::multi_node(failing.clone())
            .node("worker-1")
            .lease(LONG)
            .poll_interval(20 * MS)
            .on_type("e", seen.handler())
            .start().await.unwrap();
        seen.reach(1).await;
        assert_eq!(failing.failed(), 1);
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (0, 0, 1, 0));
    }

    /// Other relays may have released its events, so it takes and handles nothing until it has
    /// announced itself again.
    async fn a_relay_that_cannot_announce_itself_handles_nothing(|db|) {
        let store = FailingStore::new(db.outbox.store(), Operation::Announce, usize::MAX, || Error::Store("on purpose".into()));
        // The first announcement has to succeed, or the relay does not start.
        store.after(1);
        let seen = Seen::default();
        let relay = RelayBuilder::multi_node(store.clone()).node("mute").presence(400 * MS)
            .poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
        let is_gone = async || {
            let nodes = db.outbox.admin().nodes().await.unwrap();
            nodes.iter().any(|node| node.node == NodeId::from("mute") && !node.is_running())
        };
        until("the relay no longer counts as running", is_gone).await;
        db.write("e", 0..3).await;
        let failed = store.failed();
        until("three more announcements fail", async || store.failed() >= failed + 3).await;
        assert_eq!(seen.count(), 0, "it does not know whether it still holds events");
        store.heal();
        seen.reach(3).await;
        relay.stop().await.unwrap();
    }
}
