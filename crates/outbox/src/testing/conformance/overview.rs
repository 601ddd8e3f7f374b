//! Overview: bounded counts, types, blocked keys.

use std::time::Duration;

use super::{Harness, LEASE, SECOND, Scene, again, dead, event, holder, keyed};
use crate::store::{BoundedCount, EXCLUSIVE, Filter, Leadership, NodeId, Overview, StatusGroup, Verdict};

fn exactly(count: u64) -> BoundedCount {
    BoundedCount { count, more: false }
}

impl Scene {
    async fn overview(&self, most: u64) -> Overview {
        self.store.overview(most).await.expect("the overview is read")
    }
}

/// Of no events, of all events, and up to a limit.
pub async fn an_overview_counts_up_to_a_limit(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let nothing = scene.overview(10).await;
    assert_eq!((nothing.due, nothing.delayed, nothing.dead), (exactly(0), exactly(0), exactly(0)));
    assert_eq!((nothing.oldest_due, nothing.last_settled, nothing.leader), (None, None, None));
    assert_eq!((nothing.now, nothing.last_seq), (scene.now(), 0));

    scene.write((0..4).map(|_| event("late").deliver_after(Duration::from_secs(60)))).await;
    scene.write((0..9).map(|_| event("e"))).await;
    let taken = scene.lease("a").await;
    scene.pass(SECOND);
    scene.settle("a", &taken[0], Verdict::Done).await;
    for delivery in &taken[1..3] {
        scene.settle("a", delivery, dead("no")).await;
    }
    scene.settle("a", &taken[3], again(60)).await;
    scene.settle("a", &taken[4], again(1)).await;
    for delivery in &taken[5..7] {
        scene.settle("a", delivery, Verdict::Released).await;
    }
    scene.pass(SECOND);

    // Due: one that retries, two that are free, two that are leased. Delayed: four, and one that
    // retries.
    let all = scene.overview(100).await;
    assert_eq!((all.due, all.delayed, all.dead), (exactly(5), exactly(5), exactly(2)));
    assert_eq!((all.retrying, all.held), (exactly(2), exactly(2)));
    assert_eq!(all.oldest_due, Some(2 * SECOND));
    assert_eq!(all.last_settled, Some(scene.now() - SECOND));
    assert!(all.last_seq >= 13, "{}", all.last_seq);
    assert_eq!(scene.overview(5).await.due, exactly(5));
    let some = scene.overview(1).await;
    let more = BoundedCount { count: 1, more: true };
    assert_eq!((some.due, some.delayed, some.dead), (more, more, more));
    assert!(some.retrying.more && some.held.more);
    assert_eq!(scene.overview(0).await.due, BoundedCount { count: 0, more: true });
    assert_eq!(scene.overview(u64::MAX).await.due, exactly(5));
}

/// While it leads, and no longer.
pub async fn an_overview_names_the_leader(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let lead = scene.store.lead(EXCLUSIVE, &NodeId::from("a"), LEASE).await.unwrap();
    assert!(matches!(lead, Leadership::Held { .. }));
    assert_eq!(scene.overview(10).await.leader, Some("a".into()));
    scene.pass(LEASE);
    assert_eq!(scene.overview(10).await.leader, None);
}

/// The most frequent first, among the events that were read.
pub async fn status_groups_are_broken_down_by_type(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let nothing = scene.store.breakdown(StatusGroup::Dead, 10).await.unwrap();
    assert_eq!((nothing.types.len(), nothing.scanned, nothing.more), (0, 0, false));
    scene.write((0..4).map(|_| event("first"))).await;
    scene.pass(SECOND);
    let began = scene.now();
    scene.write((0..6).map(|_| event("second"))).await;
    scene.pass(SECOND);
    scene.write([event("<third>")]).await;

    let all = scene.store.breakdown(StatusGroup::Pending, 11).await.unwrap();
    assert_eq!((all.scanned, all.more), (11, false));
    let counts: Vec<_> = all.types.iter().map(|t| (t.event_type.as_str(), t.count)).collect();
    assert_eq!(counts, [("second", 6), ("first", 4), ("<third>", 1)]);
    assert_eq!(all.types[0].oldest, Some(began));
    let some = scene.store.breakdown(StatusGroup::Pending, 5).await.unwrap();
    assert_eq!((some.scanned, some.more), (5, true));
    let counts: Vec<_> = some.types.iter().map(|t| (t.event_type.as_str(), t.count)).collect();
    assert_eq!(counts, [("first", 4), ("second", 1)]);
    let none = scene.store.breakdown(StatusGroup::Pending, 0).await.unwrap();
    assert_eq!((none.types.len(), none.scanned, none.more), (0, 0, true));

    let taken = scene.lease("a").await;
    let verdict = |n: usize| if n < 3 { dead("no") } else { Verdict::Done };
    scene.settle_all(&holder("a"), taken.iter().enumerate().map(|(n, d)| (d, verdict(n)))).await;
    let dead = scene.store.breakdown(StatusGroup::Dead, 100).await.unwrap();
    assert_eq!((dead.types[0].count, dead.types.len(), dead.scanned), (3, 1, 3));
    let done = scene.store.breakdown(StatusGroup::Done, 100).await.unwrap();
    assert_eq!(done.types.iter().map(|t| t.count).sum::<u64>(), 8);
}

/// Only where an event waits behind the dead one.
pub async fn keys_blocked_by_a_dead_event_are_found(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.blocked_keys(100, 10).await.unwrap().keys.len(), 0);
    let first = scene.dead_letter(keyed("long")).await;
    scene.dead_letter(keyed("alone")).await;
    scene.dead_letter(event("keyless")).await;
    let second = scene.dead_letter(keyed("short <b>")).await;
    scene.write((0..1_100).map(|_| keyed("long"))).await;
    scene.write([keyed("short <b>"), keyed("healthy"), keyed("healthy")]).await;

    let all = scene.store.blocked_keys(100, 10).await.unwrap();
    assert!(!all.more);
    let found: Vec<_> = all.keys.iter().map(|k| (k.key.as_str(), k.head.id.clone(), k.waiting)).collect();
    let many = BoundedCount { count: 1_000, more: true };
    assert_eq!(found, [("long", first.clone(), many), ("short <b>", second, exactly(1))]);
    assert_eq!(all.keys[0].head.last_error.as_deref(), Some("poison"));
    for (scan_limit, limit, found, more) in
        [(100, 1, 1, true), (1, 10, 1, true), (100, 2, 2, false), (100, 0, 0, true)]
    {
        let some = scene.store.blocked_keys(scan_limit, limit).await.unwrap();
        assert_eq!((some.keys.len(), some.more), (found, more), "{scan_limit}, {limit}");
    }

    let replayed = Filter { id: Some(first), ..Filter::default() };
    assert_eq!(scene.store.replay(&replayed, 1).await.unwrap().moved, 1);
    let left = scene.store.blocked_keys(100, 10).await.unwrap();
    assert_eq!((left.keys.len(), left.keys[0].key.as_str()), (1, "short <b>"));
}
