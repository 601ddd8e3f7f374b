//! Named leases, and the lease on the whole table.

use std::time::Duration;

use super::{Harness, LEASE, SECOND, Scene, again, dead, event, holder, ids, leasing, settlement, taking};
use crate::store::{
    Completion, Delivery, EXCLUSIVE, Holder, Leadership, NodeId, Settlement, Status, Take, Verdict,
};

/// Becomes the holder of the table.
pub(super) async fn exclusive(scene: &Scene, owner: &str) -> Holder {
    match lead(scene, EXCLUSIVE, owner).await {
        Leadership::Held { epoch, .. } => Holder::Exclusive { owner: NodeId::from(owner), epoch },
        other => panic!("{owner} does not lead: {other:?}"),
    }
}

async fn lead(scene: &Scene, name: &str, owner: &str) -> Leadership {
    scene.store.lead(name, &NodeId::from(owner), LEASE).await.unwrap()
}

fn epoch(leadership: &Leadership) -> i64 {
    match leadership {
        Leadership::Held { epoch, .. } => *epoch,
        other => panic!("not held: {other:?}"),
    }
}

/// Other nodes get the holder and the remaining time.
pub async fn a_lease_has_one_holder_at_a_time(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert!(matches!(lead(&scene, "purge", "a").await, Leadership::Held { clean: true, .. }));
    scene.pass(10 * SECOND);
    let refused = Leadership::HeldBy { holder: NodeId::from("a"), remaining: Duration::from_secs(20) };
    assert_eq!(lead(&scene, "purge", "b").await, refused);
    assert_eq!(lead(&scene, "purge", "b").await, refused, "a refused request changes nothing");
}

/// A renewal is no change of holder.
pub async fn the_same_holder_keeps_its_epoch(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let first = lead(&scene, "purge", "a").await;
    scene.pass(LEASE - SECOND);
    let second = lead(&scene, "purge", "a").await;
    assert_eq!(epoch(&first), epoch(&second));
    scene.pass(LEASE - SECOND);
    assert!(matches!(lead(&scene, "purge", "b").await, Leadership::HeldBy { .. }), "it was renewed");
    scene.pass(10 * LEASE);
    let third = lead(&scene, "purge", "a").await;
    assert_eq!(epoch(&first), epoch(&third), "it expired, but no other node acquired it");
}

/// The previous holder never released it: it crashed, or hangs and may continue.
pub async fn a_takeover_raises_the_epoch_and_is_not_clean(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let first = lead(&scene, "purge", "a").await;
    scene.pass(LEASE);
    let second = lead(&scene, "purge", "b").await;
    assert!(epoch(&second) > epoch(&first));
    assert!(matches!(second, Leadership::Held { clean: false, .. }));
    assert!(matches!(lead(&scene, "purge", "a").await, Leadership::HeldBy { .. }));
    scene.pass(LEASE);
    let third = lead(&scene, "purge", "a").await;
    assert!(epoch(&third) > epoch(&second), "the same name, but another epoch");
}

/// No node has to wait for a released lease.
pub async fn a_resigned_lease_is_free_immediately_and_clean(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let first = lead(&scene, "purge", "a").await;
    scene.store.resign("purge", &NodeId::from("a"), epoch(&first), true).await.unwrap();
    let second = lead(&scene, "purge", "b").await;
    assert!(matches!(second, Leadership::Held { clean: true, .. }));
    assert!(epoch(&second) > epoch(&first));
}

/// A node that took over from a vanished holder and has not read all of that holder's events.
pub async fn a_lease_that_is_not_resigned_cleanly_is_free_immediately(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let first = lead(&scene, "purge", "a").await;
    scene.store.resign("purge", &NodeId::from("b"), epoch(&first), false).await.unwrap();
    assert!(matches!(lead(&scene, "purge", "b").await, Leadership::HeldBy { .. }), "another node held it");
    scene.store.resign("purge", &NodeId::from("a"), epoch(&first), false).await.unwrap();
    assert_eq!(scene.store.leader("purge").await.unwrap(), None);
    let second = lead(&scene, "purge", "b").await;
    assert!(matches!(second, Leadership::Held { clean: false, .. }));
    assert!(epoch(&second) > epoch(&first));
}

/// A former holder cannot release it.
pub async fn resigning_in_an_old_epoch_changes_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let first = lead(&scene, "purge", "a").await;
    scene.pass(LEASE);
    let second = lead(&scene, "purge", "b").await;
    scene.store.resign("purge", &NodeId::from("a"), epoch(&first), true).await.unwrap();
    scene.store.resign("purge", &NodeId::from("a"), epoch(&second), true).await.unwrap();
    scene.store.resign("purge", &NodeId::from("b"), epoch(&first), true).await.unwrap();
    scene.store.resign("unknown", &NodeId::from("b"), 1, true).await.unwrap();
    assert!(matches!(lead(&scene, "purge", "a").await, Leadership::HeldBy { .. }));
    assert_eq!(epoch(&lead(&scene, "purge", "b").await), epoch(&second));
}

/// Different nodes may hold them.
pub async fn leases_of_different_names_are_independent(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (name, owner) in [("purge", "a"), ("Purge", "b"), ("purge ", "c"), ("pürge", "d")] {
        assert!(matches!(lead(&scene, name, owner).await, Leadership::Held { .. }), "{name:?}");
    }
    scene.write_one(event("one")).await;
    assert_eq!(scene.lease("e").await.len(), 1, "only the lease named exclusive stands for the table");
}

/// Without acquiring the lease.
pub async fn every_node_can_read_the_leader(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.leader(EXCLUSIVE).await.unwrap(), None);
    let leadership = lead(&scene, EXCLUSIVE, "a").await;
    assert_eq!(scene.store.leader(EXCLUSIVE).await.unwrap(), Some("a".into()));
    assert_eq!(scene.store.leader("purge").await.unwrap(), None);
    scene.pass(LEASE);
    assert_eq!(scene.store.leader(EXCLUSIVE).await.unwrap(), None, "it expired");
    lead(&scene, EXCLUSIVE, "a").await;
    scene.store.resign(EXCLUSIVE, &"a".into(), epoch(&leadership), true).await.unwrap();
    assert_eq!(scene.store.leader(EXCLUSIVE).await.unwrap(), None, "it was released");
}

/// Until the table's lease expires.
pub async fn rows_are_not_leased_while_the_table_is_held(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("one"), super::keyed("k")]).await;
    let by = exclusive(&scene, "one").await;
    for owner in ["one", "two"] {
        let taken = scene.take(&leasing(owner)).await;
        assert!(taken.deliveries.is_empty());
    }
    assert_eq!(ids(&scene.take(&taking(by)).await.deliveries), written);
    scene.pass(LEASE);
    assert_eq!(ids(&scene.lease("two").await), written, "it expired");
}

/// The holder tracks its events in memory: the same rows are read again until they are settled.
pub async fn reading_as_the_holder_writes_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("one"), event("two"), event("three"), event("four")]).await;
    let by = exclusive(&scene, "one").await;
    let first = scene.take(&taking(by.clone())).await.deliveries;
    let second = scene.take(&taking(by.clone())).await.deliveries;
    assert_eq!(ids(&first), written);
    assert_eq!(ids(&second), written);
    assert_eq!(super::held(&first), super::held(&second));
    assert!(scene.all().await.iter().all(|stored| stored.lease.is_none()));
    let verdicts = [Verdict::Done, again(1), dead("no"), Verdict::Released];
    assert_eq!(scene.settle_all(&by, first.iter().zip(verdicts)).await, 4);
    let statuses: Vec<Status> = scene.all().await.iter().map(|stored| stored.status).collect();
    assert_eq!(statuses, [Status::Done, Status::Retry, Status::Dead, Status::New]);
    let released = scene.take(&taking(by.clone())).await.deliveries;
    assert_eq!(ids(&released), written[3..]);
    let claim = released[0].claim;
    assert_eq!(scene.store.count_start(&by, &written[3], claim).await.unwrap(), Some(1));
    assert_eq!(scene.store.count_start(&by, &written[3], claim).await.unwrap(), Some(2));
    let deleted = [settlement(&released[0], Verdict::Done)];
    assert_eq!(scene.store.settle(&by, Completion::Delete, &deleted).await.unwrap().moved, 1);
    assert_eq!(scene.store.settle(&by, Completion::Delete, &deleted).await.unwrap().moved, 0);
}

/// A holder that does not know yet that it lost the table.
pub async fn an_old_epoch_takes_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("one"), super::keyed("k")]).await;
    let old = exclusive(&scene, "one").await;
    scene.pass(LEASE);
    let new = exclusive(&scene, "two").await;
    assert!(scene.take(&taking(old)).await.deliveries.is_empty());
    assert_eq!(ids(&scene.take(&taking(new)).await.deliveries), written);
}

/// Whatever its verdict, it changes no row.
pub async fn an_old_epoch_settles_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..5).map(|_| event("n"))).await;
    let old = exclusive(&scene, "one").await;
    let taken = scene.take(&taking(old.clone())).await.deliveries;
    assert_eq!(scene.settle_all(&old, [(&taken[0], Verdict::Done)]).await, 1);
    scene.pass(LEASE);
    assert_eq!(
        scene.settle_all(&old, [(&taken[1], Verdict::Done)]).await,
        1,
        "late, but no other node leads"
    );
    let new = exclusive(&scene, "two").await;
    let settle_old = async |by: &Holder| {
        let rest: Vec<(&Delivery, Verdict)> =
            taken[2..].iter().zip([again(1), dead("no"), Verdict::Done]).collect();
        let moved = scene.settle_all(by, rest).await;
        let deleted: Vec<Settlement> = taken.iter().map(|d| settlement(d, Verdict::Done)).collect();
        moved + scene.store.settle(by, Completion::Delete, &deleted).await.unwrap().moved
    };
    assert_eq!(settle_old(&old).await, 0);
    let Holder::Exclusive { epoch, .. } = new else { unreachable!() };
    let forged = Holder::Exclusive { owner: NodeId::from("one"), epoch };
    assert_eq!(settle_old(&forged).await, 0);
    assert_eq!(settle_old(&holder("one")).await, 0);
    assert_eq!(scene.take(&taking(new.clone())).await.deliveries.len(), 3);
    scene.store.resign(EXCLUSIVE, &NodeId::from("two"), epoch, true).await.unwrap();
    assert_eq!(settle_old(&new).await, 0, "the lease was released");
    let again = exclusive(&scene, "one").await;
    assert_eq!(settle_old(&old).await, 0, "the same name, but another epoch");
    assert_eq!(settle_old(&again).await, 3);
    assert_eq!(settle_old(&again).await, 0, "a repeated verdict counts once");
}

/// Claims do not increase while one node holds the table: only the epoch fences.
pub async fn an_old_epoch_counts_no_start(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("poison")).await;
    let old = exclusive(&scene, "one").await;
    let claim = scene.take(&taking(old.clone())).await.deliveries[0].claim;
    assert_eq!(scene.store.count_start(&old, &id, claim).await.unwrap(), Some(1));
    scene.pass(LEASE);
    let new = exclusive(&scene, "two").await;
    assert_eq!(scene.store.count_start(&old, &id, claim).await.unwrap(), None);
    assert_eq!(scene.store.count_start(&new, &id, claim).await.unwrap(), Some(2));
    scene.pass(LEASE);
    let again = exclusive(&scene, "one").await;
    assert_eq!(scene.store.count_start(&old, &id, claim).await.unwrap(), None);
    assert!(scene.take(&taking(old)).await.deliveries.is_empty());
    assert_eq!(scene.store.count_start(&again, &id, claim).await.unwrap(), Some(3));
}

/// The holder of the table does not take rows that were leased before; their holders settle them.
pub async fn rows_leased_before_stay_with_their_holder(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("leased"), event("leased and lost"), event("free")]).await;
    let leased = scene.take(&Take { limit: 2, ..leasing("old") }).await.deliveries;
    let by = exclusive(&scene, "one").await;
    assert_eq!(ids(&scene.take(&taking(by)).await.deliveries), written[2..]);
    assert_eq!(scene.settle("old", &leased[0], Verdict::Done).await, 1);
    scene.pass(LEASE);
    let by = exclusive(&scene, "one").await;
    let taken = scene.take(&taking(by.clone())).await.deliveries;
    assert_eq!(ids(&taken), written[1..]);
    assert!(taken[0].suspect.is_some());
    assert_eq!(scene.settle_all(&by, taken.iter().map(|d| (d, Verdict::Done))).await, 2);
    assert_eq!(scene.settle("old", &leased[1], Verdict::Done).await, 0);
}

/// Concurrent requests of all nodes.
pub async fn only_one_of_many_becomes_the_leader(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..8 {
        let store = scene.store.clone();
        asking
            .spawn(async move { store.lead("purge", &NodeId::from(format!("n{n}")), LEASE).await.unwrap() });
    }
    let answers = asking.join_all().await;
    assert_eq!(answers.iter().filter(|a| matches!(a, Leadership::Held { .. })).count(), 1);
}
