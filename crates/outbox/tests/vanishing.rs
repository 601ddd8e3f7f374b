//! Relays that vanish, come back under their name, or cannot announce themselves.

mod bed;
#[path = "bed/failing.rs"]
mod failing;

use std::time::Duration;

use bed::{Bed, Seen};
use failing::{Failing, Where};
use outbox::store::{Holder, NodeId, NodeState, Origin, Take};
use outbox::{Error, OnDead, RelayBuilder};

const MS: Duration = Duration::from_millis(1);
/// Long enough that what is delivered in a test was released, and has not run out.
const LONG: Duration = Duration::from_secs(3_600);

/// Takes all that is due for a relay that is never heard of again.
async fn seize<DB: bed::Base>(bed: &Bed<DB>, node: &str, presence_ms: u64) -> usize {
    let store = bed.outbox.store();
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
        probe: None,
        destinations: Default::default(),
        frontiers: Default::default(),
        together: true,
        max_bytes: usize::MAX,
    };
    store.take(&take).await.unwrap().deliveries.len()
}

on_every_database! {
    /// Its lease would last for an hour.
    async fn the_events_of_a_vanished_relay_are_delivered_by_another(|bed|) {
        bed.write("e", 0..20).await;
        assert_eq!(seize(&bed, "vanished", 300).await, 20);
        let seen = Seen::default();
        let relay = bed.outbox.multi_node().presence(300 * MS).on_type("e", seen.handler()).start().await.unwrap();
        while seen.count() < 20 {
            tokio::time::sleep(5 * MS).await;
        }
        seen.assert_each_once(0..20);
        let nodes = bed.outbox.admin().nodes().await.unwrap();
        let vanished = nodes.iter().find(|node| node.node == NodeId::from("vanished")).unwrap();
        assert!(vanished.state.released && !vanished.is_running());
        relay.stop().await.unwrap();
    }

    /// No other relay has to notice that the first one is gone.
    async fn a_relay_of_the_same_name_takes_back_what_was_left_behind(|bed|) {
        bed.write("e", 0..20).await;
        assert_eq!(seize(&bed, "worker-1", 3_600_000).await, 20);
        let seen = Seen::default();
        let relay = bed.outbox.multi_node().node("worker-1").on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        seen.assert_each_once(0..20);
        relay.stop().await.unwrap();
        // One that was stopped has left nothing.
        assert!(bed.outbox.admin().nodes().await.unwrap().is_empty());
    }

    /// Others may have released what it took, so it takes and handles nothing until it has announced itself again.
    async fn a_relay_that_cannot_announce_itself_handles_nothing(|bed|) {
        let store = Failing::new(bed.outbox.store(), Where::Announce, 12, || Error::Store("on purpose".to_owned()));
        // The first announcement has to be made before the relay starts.
        store.after(1);
        let seen = Seen::default();
        let relay = RelayBuilder::multi_node(store.clone()).node("mute").presence(400 * MS)
            .poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
        loop {
            let nodes = bed.outbox.admin().nodes().await.unwrap();
            if nodes.iter().any(|node| node.node == NodeId::from("mute") && !node.is_running()) {
                break;
            }
            tokio::time::sleep(5 * MS).await;
        }
        bed.write("e", 0..3).await;
        while store.failed() < 11 {
            tokio::time::sleep(5 * MS).await;
        }
        assert_eq!(seen.count(), 0, "it does not know what it may handle");
        while seen.count() < 3 {
            tokio::time::sleep(5 * MS).await;
        }
        assert!(store.failed() >= 12);
        relay.stop().await.unwrap();
    }
}
