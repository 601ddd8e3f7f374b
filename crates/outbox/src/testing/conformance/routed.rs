//! Events that a relay does not route stay pending, for a relay that does.

use std::sync::Arc;
use std::time::Duration;

use super::exclusive::exclusive;
use super::{Harness, LEASE, SECOND, Scene, event, holder, ids, keyed, leasing, taking};
use crate::event::{EventBuilder, EventId};
use crate::store::{
    Cursor, NodeId, NodeRoutes, NodeState, Origin, Routed, Status, Take, UnroutedEvents, Verdict,
};

fn only(routed: Routed) -> Option<Arc<Routed>> {
    Some(Arc::new(routed))
}

fn of(aggregate_type: &str, event_type: &str) -> EventBuilder {
    event(event_type).aggregate(aggregate_type, "1")
}

/// Takes as the leader of the table, then by row leases and by group leases: the same events each
/// time. Returns them.
async fn taken_in_every_way(scene: &Scene, routed: Routed) -> Vec<EventId> {
    let by = exclusive(scene, "all").await;
    let read = scene.take(&Take { only: only(routed.clone()), ..taking(by) }).await;
    let found = ids(&read.deliveries);
    assert_eq!(read.scanned, found.len(), "unrouted rows do not count as scanned");
    for group_lease in [false, true] {
        scene.pass(2 * LEASE);
        let leased = scene.take(&Take { only: only(routed.clone()), group_lease, ..leasing("one") }).await;
        assert_eq!(ids(&leased.deliveries), found, "group lease: {group_lease}");
        let released = leased.deliveries.iter().map(|delivery| (delivery, Verdict::Released));
        scene.settle_all(&holder("one"), released).await;
    }
    found
}

/// The others are neither claimed nor counted, and another relay finds them.
pub async fn only_routed_types_are_taken(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let types = ["mine", "other's", "mine", "Mine", "mine ", "min", "mine2", "\u{e9}"];
    let written = scene.write(types.map(event)).await;
    let mine = Routed::default().and_type("mine").and_type("\u{e9}").and_type("nothing's");
    let expected = [written[0].clone(), written[2].clone(), written[7].clone()];
    assert_eq!(taken_in_every_way(&scene, mine.clone()).await, expected);
    for n in [1, 3, 4, 5, 6] {
        let left = scene.see(&written[n]).await;
        assert_eq!((left.status, left.attempts, left.lease), (Status::New, 0, None), "{}", types[n]);
    }
    assert!(taken_in_every_way(&scene, Routed::default()).await.is_empty(), "routes to nothing take nothing");

    let claimed = scene.take(&Take { only: only(mine), ..leasing("one") }).await.deliveries;
    let exactly = Routed::default().and_type("Mine").and_type("mine ");
    let taken = scene.take(&Take { only: only(exactly), ..leasing("two") }).await.deliveries;
    assert_eq!(ids(&taken), written[3..5], "upper case and spaces at the end count");
    let rest = scene.take(&leasing("three")).await.deliveries;
    assert_eq!(ids(&rest), [written[1].clone(), written[5].clone(), written[6].clone()]);
    assert_eq!(claimed.len() + taken.len() + rest.len(), written.len());
}

/// From a cursor, and of chosen keys, as from the start.
pub async fn routed_types_are_taken_from_every_origin(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let mixed = |n: usize| if n.is_multiple_of(2) { event("mine") } else { event("other") };
    let written = scene.write((0..8).map(|n| mixed(n).ordering_key(format!("key-{n}")))).await;
    let mine = only(Routed::default().and_type("mine"));
    let first = scene.take(&Take { only: mine.clone(), limit: 2, ..leasing("one") }).await;
    assert_eq!(ids(&first.deliveries), [written[0].clone(), written[2].clone()]);
    let after = Take { only: mine.clone(), from: super::after(first.cursor), limit: 9, ..leasing("one") };
    let rest = scene.take(&after).await;
    assert_eq!(ids(&rest.deliveries), [written[4].clone(), written[6].clone()]);
    assert_eq!(rest.scanned, 2);
    for (keys, theirs) in [(vec!["key-1"], 1), (vec!["key-1", "key-3"], 2)] {
        let from = Origin::Keys(keys.into_iter().map(Into::into).collect());
        let none = scene.take(&Take { only: mine.clone(), from: from.clone(), ..leasing("one") }).await;
        assert_eq!((none.deliveries.len(), none.blocked_keys.len()), (0, 0));
        let other = only(Routed::default().and_type("other"));
        let read = scene.take(&Take { only: other, from, ..leasing("two") }).await;
        assert_eq!(read.deliveries.len(), theirs);
        let released = read.deliveries.iter().map(|delivery| (delivery, Verdict::Released));
        scene.settle_all(&holder("two"), released).await;
    }
    let probe = Some(vec!["other".to_owned(), "mine".to_owned()]);
    let only_other = only(Routed::default().and_type("other"));
    let probed = scene.take(&Take { only: only_other, probe, limit: 9, ..leasing("three") }).await;
    assert_eq!(ids(&probed.deliveries), written[1..2], "a probe is one of the routed events as well");
}

/// A type may be routed for some aggregates only. An event without an aggregate belongs to the
/// global one.
pub async fn types_may_be_routed_for_an_aggregate(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([
            of("order", "paid"),
            of("bill", "paid"),
            of("order", "sent"),
            of("order ", "paid"),
            of("Order", "paid"),
            event("paid"),
            of("bill", "sent"),
        ])
        .await;
    let pairs = Routed::default().and_pair("order", "paid").and_pair("bill", "sent");
    assert_eq!(taken_in_every_way(&scene, pairs.clone()).await, [written[0].clone(), written[6].clone()]);
    let with_type = pairs.and_type("sent");
    let expected = [written[0].clone(), written[2].clone(), written[6].clone()];
    assert_eq!(taken_in_every_way(&scene, with_type).await, expected);

    let global = Routed::default().and_pair(crate::event::GLOBAL, "paid");
    assert_eq!(taken_in_every_way(&scene, global).await, written[5..6]);
    let none = Routed::default().and_pair("bill", "refunded");
    assert!(taken_in_every_way(&scene, none).await.is_empty());
}

/// A star matches any sequence of characters, and every other character itself.
pub async fn types_may_be_routed_by_patterns(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let types =
        ["order.placed", "Order.placed", "order_placed", "order.", "a%b", "axb", "a|b", "[x]?y", "x", "xzy"];
    let written = scene.write(types.map(event)).await;
    for (pattern, expected) in [
        ("order.*", vec!["order.placed", "order."]),
        ("*r_p*", vec!["order_placed"]),
        ("a%*", vec!["a%b"]),
        ("a|*", vec!["a|b"]),
        ("[x]?*", vec!["[x]?y"]),
        ("*y", vec!["[x]?y", "xzy"]),
        ("?*", vec![]),
        ("*", types.to_vec()),
    ] {
        let routed = Routed::default().and_pattern(pattern);
        assert!(types.iter().all(|name| routed.takes(name, "any") == expected.contains(name)), "{pattern}");
        let expected = types.iter().zip(&written).filter(|(name, _)| expected.contains(name));
        let expected: Vec<EventId> = expected.map(|(_, id)| id.clone()).collect();
        assert_eq!(taken_in_every_way(&scene, routed).await, expected, "{pattern}");
    }
    let several = Routed::default().and_type("x").and_pattern("a*").and_pattern("order.*");
    assert_eq!(taken_in_every_way(&scene, several).await.len(), 6);
}

/// Order per key is kept over all relays: an unrouted event blocks the later events of its key.
pub async fn unrouted_events_block_their_keys(harness: &impl Harness) {
    for group_lease in [false, true] {
        let scene = Scene::open(harness).await;
        // The second round uses the table of the first, with different keys.
        let key = |key: &str| format!("{key} {group_lease}");
        let (mine, theirs) = (|of: &str| keyed(&key(of)), |of: &str| event("other").ordering_key(key(of)));
        let written = scene
            .write([mine("a"), theirs("a"), mine("a"), theirs("b"), mine("b"), mine("c"), event("thing")])
            .await;
        let mine = Take { only: only(Routed::default().and_type("thing")), group_lease, ..leasing("one") };
        let other = Take { only: only(Routed::default().and_type("other")), group_lease, ..leasing("two") };
        let by = exclusive(&scene, "all").await;
        let read = scene.take(&Take { by, ..mine.clone() }).await;
        let heads = [written[0].clone(), written[5].clone(), written[6].clone()];
        assert_eq!(ids(&read.deliveries), heads);
        scene.pass(2 * LEASE);

        let first = scene.take(&mine).await;
        assert_eq!(ids(&first.deliveries), heads);
        let mut behind: Vec<&str> = first.blocked_keys.iter().map(|key| &**key).collect();
        behind.sort_unstable();
        assert_eq!(behind, [key("a"), key("b")]);
        let second = scene.take(&other).await;
        assert_eq!(
            ids(&second.deliveries),
            written[3..4],
            "a waits for its head, which the other relay holds"
        );
        assert_eq!(scene.settle("one", &first.deliveries[0], Verdict::Done).await, 1);
        let second_of_a = scene.take(&other).await;
        assert_eq!(ids(&second_of_a.deliveries), written[1..2]);
        assert!(scene.take(&mine).await.deliveries.is_empty(), "the other relay holds both keys");
        assert_eq!(scene.settle("two", &second_of_a.deliveries[0], Verdict::Done).await, 1);
        assert_eq!(ids(&scene.take(&mine).await.deliveries), written[2..3]);
        assert_eq!(scene.settle("two", &second.deliveries[0], Verdict::Done).await, 1);
        assert_eq!(ids(&scene.take(&mine).await.deliveries), written[4..5]);
        scene.pass(2 * LEASE);
        let rest = scene.lease("three").await;
        scene.settle_all(&holder("three"), rest.iter().map(|delivery| (delivery, Verdict::Done))).await;
    }
}

/// The last pending event that has been due for a time, leased or not.
pub async fn the_cursor_of_the_last_due_event_is_reported(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let last_due = async |time: Duration| scene.store.last_due(time).await.unwrap();
    assert_eq!(last_due(Duration::ZERO).await, None);
    scene.write([event("old"), event("old"), event("late").deliver_after(Duration::from_secs(60))]).await;
    let began = scene.now();
    assert_eq!(last_due(SECOND).await, None, "none has been due for that long");
    let old = last_due(Duration::ZERO).await.expect("two are due");
    scene.pass(SECOND);
    let young = scene.write_one(event("young")).await;
    let seq = scene.see(&young).await.seq;
    assert_eq!(last_due(SECOND).await, Some(old));
    assert_eq!((old.at, old.seq < seq), (began, true));
    let place = Cursor { at: scene.now(), seq };
    assert_eq!(last_due(Duration::ZERO).await, Some(place));
    let taken = scene.lease("one").await;
    assert_eq!(last_due(Duration::ZERO).await, Some(place), "held events count");
    let done = taken.iter().map(|delivery| (delivery, Verdict::Done));
    scene.settle_all(&holder("one"), done).await;
    assert_eq!(last_due(Duration::ZERO).await, None);
    // A take continues after such a cursor.
    let later = scene.write([event("a"), event("b")]).await;
    let place = last_due(Duration::ZERO).await;
    scene.pass(SECOND);
    let after = scene.write_one(event("c")).await;
    let taken = scene.take(&Take { from: super::after(place), ..leasing("one") }).await;
    assert_eq!(ids(&taken.deliveries), [after], "{later:?} are before the cursor");
}

/// Events that no running relay routes, according to the announcements.
pub async fn events_that_no_running_relay_routes_are_reported(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let announce = async |node: &str, active: bool, routes: NodeRoutes| {
        let state = NodeState { active, routes, presence_ms: Some(20_000), ..NodeState::default() };
        scene.store.announce(&NodeId::from(node), &state).await.unwrap();
    };
    let found = async |scan_limit: usize| scene.store.unrouted(scan_limit).await.unwrap();
    let types = |found: &UnroutedEvents| -> Vec<(String, String, u64)> {
        let each =
            |of: &crate::store::UnroutedType| (of.event_type.clone(), of.aggregate_type.clone(), of.count);
        found.types.iter().map(each).collect()
    };
    let expect = |all: &[(&str, &str, u64)]| -> Vec<(String, String, u64)> {
        all.iter().map(|(t, a, n)| ((*t).to_owned(), (*a).to_owned(), *n)).collect()
    };
    scene.write([event("a"), event("b"), of("order", "b"), event("b"), event("c")]).await;
    scene.write([event("c").deliver_after(LEASE)]).await;
    assert_eq!(found(100).await, UnroutedEvents::default(), "no relay runs");
    announce("one", true, NodeRoutes::Only(Routed::default().and_type("a").and_pair("order", "b"))).await;
    announce("idle", false, NodeRoutes::Everything).await;
    let all = found(100).await;
    assert_eq!(types(&all), expect(&[("b", "__GLOBAL__", 2), ("c", "__GLOBAL__", 2)]));
    assert_eq!((all.count(), all.more, all.relays), (4, false, vec![NodeId::from("one")]));
    assert!(all.types[0].oldest.is_some());
    let some = found(2).await;
    assert_eq!((types(&some), some.more), (expect(&[("b", "__GLOBAL__", 1)]), true));

    announce("two", true, NodeRoutes::Only(Routed::default().and_pattern("c*"))).await;
    assert_eq!(types(&found(100).await), expect(&[("b", "__GLOBAL__", 2)]));
    let by = exclusive(&scene, "one").await;
    assert_eq!(found(100).await.count(), 4, "while a relay leads, only its routes count");
    scene.store.resign(crate::store::EXCLUSIVE, by.owner(), 1, true).await.unwrap();
    scene.pass(2 * LEASE);
    announce("one", true, NodeRoutes::TooMany).await;
    announce("two", true, NodeRoutes::Only(Routed::default())).await;
    assert!(found(100).await.types.is_empty(), "more routes than are announced count as everything");
    scene.pass(2 * LEASE);
    announce("two", true, NodeRoutes::Only(Routed::default())).await;
    assert_eq!(found(100).await.count(), 6, "the other relay has vanished");
}
