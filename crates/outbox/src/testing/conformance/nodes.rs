//! Vanished relays: their leases are released, and they are fenced.

use std::time::Duration;

use super::{
    Harness, LEASE, SECOND, Scene, again, event, held, holder, ids, keyed, leasing, settlement, taking,
};
use crate::event::EventId;
use crate::store::{
    Completion, Delivery, EXCLUSIVE, Holder, Leadership, NodeId, NodeState, Released, Take, Verdict,
};

const PRESENCE: Duration = Duration::from_secs(20);
/// Longer than the presence: an event that is free earlier was released.
const LONG: Duration = Duration::from_secs(600);

fn state() -> NodeState {
    let presence_ms = u64::try_from(PRESENCE.as_millis()).ok();
    NodeState { mode: "multi_node".to_owned(), active: true, presence_ms, ..NodeState::default() }
}

fn long(owner: &str, group_lease: bool) -> Take {
    let by = Holder::Lease { owner: NodeId::from(owner), lease: LONG };
    Take { group_lease, ..taking(by) }
}

impl Scene {
    async fn announce(&self, node: &str) {
        self.store.announce(&NodeId::from(node), &state()).await.expect("the relay is announced");
    }

    /// The released relays, and the number of events of each.
    async fn released(&self) -> Vec<(String, u64)> {
        let released = self.store.release_vanished().await.expect("leases are released");
        released.into_iter().map(|(node, events)| (node.to_string(), events)).collect()
    }

    async fn leased_by(&self, take: &Take) -> Vec<Delivery> {
        self.take(take).await.deliveries
    }
}

/// Leases of any length, and both kinds: by row, and group leases.
pub async fn the_leases_of_a_vanished_relay_are_released_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.announce("a").await;
    let mut written = scene.write([event("e"), event("e")]).await;
    assert_eq!(scene.leased_by(&long("a", true)).await.len(), 2);
    written.extend(scene.write([event("e"), event("e"), event("e")]).await);
    assert_eq!(scene.leased_by(&long("a", false)).await.len(), 3);
    let others = scene.write([event("e")]).await;
    assert_eq!(ids(&scene.leased_by(&long("b", true)).await), others);

    scene.pass(PRESENCE);
    scene.announce("b").await;
    assert!(scene.released().await.is_empty(), "it was seen just in time");
    assert!(scene.lease("c").await.is_empty());
    scene.pass(SECOND);
    assert_eq!(scene.released().await, [("a".to_owned(), 5)]);
    assert!(scene.released().await.is_empty(), "released only once");
    let node = |name: &'static str| move |node: &&crate::store::Node| node.node == NodeId::from(name);
    let nodes = scene.store.nodes().await.unwrap();
    assert!(nodes.iter().find(node("a")).is_some_and(|node| node.state.released && !node.is_running()));
    assert!(nodes.iter().find(node("b")).is_some_and(|node| !node.state.released && node.is_running()));

    let taken = scene.lease("c").await;
    assert_eq!(ids(&taken), written, "the events of the running relay stay leased");
    assert!(taken.iter().all(|delivery| delivery.suspect == Some(0)), "one of them may have crashed it");
}

/// The relay may still run, and only failed to announce itself.
pub async fn the_old_holder_of_a_released_event_is_fenced(harness: &impl Harness) {
    for group_lease in [true, false] {
        let scene = Scene::open(harness).await;
        scene.announce("a").await;
        let id = scene.write_one(event("e")).await;
        let old = scene.leased_by(&long("a", group_lease)).await;
        scene.pass(PRESENCE + SECOND);
        assert_eq!(scene.released().await, [("a".to_owned(), 1)]);
        let stale = async || {
            let a = NodeId::from("a");
            for verdict in [Verdict::Done, again(0), Verdict::Released] {
                let by = Holder::Lease { owner: a.clone(), lease: LONG };
                let settled =
                    scene.store.settle(&by, Completion::Keep, &[settlement(&old[0], verdict)]).await;
                assert_eq!(settled.unwrap().moved, 0);
            }
            assert_eq!(scene.store.extend(&a, LONG, &held(&old)).await.unwrap(), Vec::<EventId>::new());
            let count = scene.store.count_start(&holder("a"), &id, old[0].claim).await;
            assert_eq!(count.unwrap(), None);
        };
        stale().await;
        // Nor when a relay of the same name holds the event.
        scene.announce("a").await;
        let again = scene.leased_by(&long("a", group_lease)).await;
        assert!(again[0].claim > old[0].claim);
        stale().await;
        assert_eq!(scene.settle("a", &again[0], Verdict::Done).await, 1);
    }
}

/// A relay that does not announce its presence does not stop by itself when it is not seen.
pub async fn only_relays_with_a_presence_are_released(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.store.announce(&NodeId::from("old"), &NodeState::default()).await.unwrap();
    scene.announce("seen").await;
    for owner in ["old", "seen", "unknown"] {
        scene.write_one(event("e")).await;
        assert_eq!(scene.leased_by(&long(owner, true)).await.len(), 1);
    }
    scene.pass(LONG - SECOND);
    scene.announce("seen").await;
    assert!(scene.released().await.is_empty());
    assert!(scene.lease("c").await.is_empty());
}

/// Events that it took since are released as well.
pub async fn a_relay_that_came_back_may_vanish_again(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write_one(event("e")).await;
    for _ in 0..2 {
        scene.announce("a").await;
        assert_eq!(scene.leased_by(&long("a", true)).await.len(), 1);
        scene.pass(PRESENCE + SECOND);
        assert_eq!(scene.released().await, [("a".to_owned(), 1)]);
    }
    scene.announce("a").await;
    scene.pass(PRESENCE + SECOND);
    assert_eq!(scene.released().await, [("a".to_owned(), 0)], "it held nothing");
}

/// A free event waits for an earlier event of its key that is leased.
pub async fn releasing_keeps_the_order_of_keys(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.announce("a").await;
    let written = scene.write((0..4).map(|_| keyed("k"))).await;
    let first = scene.leased_by(&Take { limit: 1, ..long("a", true) }).await;
    assert_eq!(ids(&first), written[..1]);
    assert_eq!(scene.settle("a", &first[0], again(0)).await, 1);
    // The first by its row, since it was attempted before; the next two under a group lease.
    let taken = scene.leased_by(&Take { limit: 3, ..long("a", true) }).await;
    assert_eq!(ids(&taken), written[..3]);
    assert!(scene.lease("b").await.is_empty(), "the last event waits");
    scene.pass(PRESENCE + SECOND);
    assert_eq!(scene.released().await, [("a".to_owned(), 3)]);
    assert_eq!(ids(&scene.lease("b").await), written);
}

/// By its name, whether it runs or not.
pub async fn an_operator_releases_a_node(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.announce("a").await;
    let mut written = scene.write([event("e"), event("e")]).await;
    let old = scene.leased_by(&long("a", true)).await;
    written.extend(scene.write([event("e")]).await);
    assert_eq!(scene.leased_by(&long("a", false)).await.len(), 1);
    scene.write([event("e")]).await;
    assert_eq!(scene.leased_by(&long("ab", true)).await.len(), 1);

    assert_eq!(scene.store.release_node(&NodeId::from("A")).await.unwrap(), Released::default());
    let released = scene.store.release_node(&NodeId::from("a")).await.unwrap();
    assert_eq!((released.events, released.leadership), (3, false));
    assert!(scene.store.release_node(&NodeId::from("a")).await.unwrap().is_nothing());
    assert_eq!(scene.settle("a", &old[0], Verdict::Done).await, 0);
    assert_eq!(ids(&scene.lease("c").await), written);
    assert_eq!(scene.leased_by(&leasing("d")).await.len(), 0, "the events of the other node stay leased");
}

/// A leader holds the lease under its node name followed by the id of its run. It did not resign.
pub async fn an_operator_releases_a_leader(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let lead = async |who: &str| scene.store.lead(EXCLUSIVE, &NodeId::from(who), LEASE).await.unwrap();
    let Leadership::Held { epoch, .. } = lead("a:life").await else { panic!("no other node leads") };
    for other in ["b", "a:li", "A"] {
        let released = scene.store.release_node(&NodeId::from(other)).await.unwrap();
        assert!(released.is_nothing(), "{other}");
    }
    assert!(matches!(lead("b:life").await, Leadership::HeldBy { .. }));
    let released = scene.store.release_node(&NodeId::from("a")).await.unwrap();
    assert_eq!((released.events, released.leadership), (0, true));
    assert_eq!(lead("b:life").await, Leadership::Held { epoch: epoch + 1, clean: false });
    assert!(scene.store.release_node(&NodeId::from("a")).await.unwrap().is_nothing());
}
