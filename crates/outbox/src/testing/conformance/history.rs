//! Failed attempts: written with the verdict, and only if the verdict takes effect.

use std::time::Duration;

use super::{Harness, LEASE, SECOND, Scene, again, dead, event, holder, settlement, taking};
use crate::event::EventId;
use crate::store::{
    Attempt, Completion, Delivery, EXCLUSIVE, Filter, Holder, Leadership, MAX_ERROR, NodeId, Settled, Verdict,
};

const DAY: Duration = Duration::from_secs(86_400);

impl Scene {
    async fn attempts(&self, id: &EventId) -> Vec<Attempt> {
        self.store.attempts(id, 100).await.expect("attempts are listed")
    }

    async fn attempts_of(&self, delivery: &Delivery) -> usize {
        self.attempts(delivery.event.id()).await.len()
    }
}

fn failed(error: &str) -> Verdict {
    Verdict::Again { after: SECOND, counted: true, error: Some(error.to_owned()) }
}

/// Time, node, error, and whether the event was dead-lettered.
pub async fn failed_attempts_are_kept(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("e")).await;
    let long = "ü".repeat(MAX_ERROR + 10);
    let mut times = Vec::new();
    for (owner, verdict) in [("a", failed("<b>no</b> & \0")), ("b", failed(&long)), ("a", dead("enough"))] {
        let delivery = scene.lease_one(owner).await;
        scene.pass(SECOND);
        scene.settle(owner, &delivery, verdict).await;
        times.push(scene.now());
        scene.pass(SECOND);
    }
    let attempts = scene.attempts(&id).await;
    let shown: Vec<_> = attempts.iter().map(|a| (a.number, a.node.as_str(), a.fatal)).collect();
    assert_eq!(shown, [(1, "a", false), (2, "b", false), (3, "a", true)]);
    assert_eq!(attempts.iter().map(|a| a.at).collect::<Vec<_>>(), times);
    assert_eq!(attempts[0].error, "<b>no</b> & \u{fffd}");
    assert_eq!(attempts[1].error, "ü".repeat(MAX_ERROR));
    assert_eq!(attempts[2].error, "enough");

    assert_eq!(scene.store.attempts(&id, 2).await.unwrap(), attempts[1..], "the last ones");
    assert_eq!(scene.store.attempts(&id, 0).await.unwrap(), []);
    assert_eq!(scene.attempts(&EventId::from("unknown")).await, []);

    // A replay restarts the number of attempts and keeps the earlier ones.
    scene.store.replay(&Filter::default(), 1).await.unwrap();
    let delivery = scene.lease_one("a").await;
    let expired = Verdict::Dead { counted: false, reason: "expired".to_owned() };
    scene.settle("a", &delivery, expired).await;
    let attempts = scene.attempts(&id).await;
    assert_eq!((attempts.len(), attempts[3].number, attempts[3].fatal), (4, 0, true));
}

/// Snoozed and released events have no attempt either.
pub async fn only_failures_leave_an_attempt(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..5).map(|_| event("e"))).await;
    let taken = scene.lease("a").await;
    let later = Verdict::Again { after: SECOND, counted: false, error: Some("not now".to_owned()) };
    let verdicts = [Verdict::Done, later, Verdict::Released, failed("no"), dead("no")];
    assert_eq!(scene.settle_all(&holder("a"), taken.iter().zip(verdicts)).await, 5);
    for (n, delivery) in taken.iter().enumerate() {
        assert_eq!(scene.attempts_of(delivery).await, usize::from(n >= 3), "{n}");
    }
}

/// A stale verdict is not recorded, and a repeated one is recorded once.
pub async fn a_stale_verdict_leaves_no_attempt(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..4).map(|_| event("e"))).await;
    let taken = scene.lease("a").await;
    for _ in 0..2 {
        scene.settle("a", &taken[0], failed("no")).await;
    }
    assert_eq!(scene.attempts_of(&taken[0]).await, 1, "repeated");
    assert_eq!(scene.settle("b", &taken[1], dead("no")).await, 0);
    assert_eq!(scene.attempts_of(&taken[1]).await, 0, "another node");
    scene.pass(LEASE);
    let again = scene.lease("b").await;
    assert_eq!(scene.settle_all(&holder("a"), [(&taken[2], dead("no")), (&taken[3], failed("no"))]).await, 0);
    assert_eq!(scene.attempts_of(&taken[2]).await + scene.attempts_of(&taken[3]).await, 0, "too late");
    let mine = again.iter().find(|d| d.event.id() == taken[2].event.id()).unwrap();
    // Beside a stale verdict, a valid one takes effect.
    assert_eq!(scene.settle_all(&holder("b"), [(mine, dead("no")), (&taken[3], dead("no"))]).await, 1);
    assert_eq!((scene.attempts_of(&taken[2]).await, scene.attempts_of(&taken[3]).await), (1, 0));
    let unknown = crate::store::Settlement { id: EventId::from("unknown"), claim: 1, verdict: dead("no") };
    let settled = scene.store.settle(&holder("b"), Completion::Keep, &[unknown]).await.unwrap();
    assert_eq!(settled, Settled::default());
    assert_eq!(scene.attempts(&EventId::from("unknown")).await, []);
}

/// Fenced by the epoch.
pub async fn a_leader_records_attempts_only_while_it_leads(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..2).map(|_| event("e"))).await;
    let owner = NodeId::from("a");
    let Leadership::Held { epoch, .. } = scene.store.lead(EXCLUSIVE, &owner, LEASE).await.unwrap() else {
        panic!("no other node leads");
    };
    let by = Holder::Exclusive { owner, epoch };
    let taken = scene.take(&taking(by.clone())).await.deliveries;
    assert_eq!(scene.settle_all(&by, [(&taken[0], failed("no"))]).await, 1);
    scene.pass(LEASE);
    scene.store.lead(EXCLUSIVE, &NodeId::from("b"), LEASE).await.unwrap();
    assert_eq!(scene.settle_all(&by, [(&taken[1], failed("no"))]).await, 0);
    assert_eq!((scene.attempts_of(&taken[0]).await, scene.attempts_of(&taken[1]).await), (1, 0));
}

/// By the time of the attempt.
pub async fn old_attempts_are_purged_in_batches(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.purge_attempts(DAY, 10).await.unwrap(), 0);
    scene.write((0..5).map(|_| event("e"))).await;
    let taken = scene.lease("a").await;
    for delivery in &taken {
        scene.settle("a", delivery, again(1)).await;
    }
    scene.pass(2 * DAY);
    let young = scene.lease_one("a").await;
    scene.settle("a", &young, dead("no")).await;
    for purged in [3, 2, 0] {
        assert_eq!(scene.store.purge_attempts(DAY, 3).await.unwrap(), purged);
    }
    let left = scene.attempts(young.event.id()).await;
    assert_eq!((left.len(), left[0].fatal), (1, true));
    assert_eq!(scene.store.purge_attempts(Duration::ZERO, 0).await.unwrap(), 0);
}

/// All of them or none, in the transaction of the verdicts.
pub async fn a_batch_of_failures_is_recorded_as_a_whole(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..300).map(|_| event("e"))).await;
    let taken = scene.lease("a").await;
    let settlements: Vec<_> = taken.iter().map(|d| settlement(d, failed("no"))).collect();
    let settled = scene.store.settle(&holder("a"), Completion::Keep, &settlements).await.unwrap();
    assert_eq!(settled.moved, 300);
    for delivery in taken.iter().step_by(37) {
        let attempts = scene.attempts(delivery.event.id()).await;
        assert_eq!((attempts.len(), attempts[0].number), (1, 1));
    }
    scene.pass(2 * DAY);
    assert_eq!(scene.store.purge_attempts(DAY, 1_000).await.unwrap(), 300);
}
