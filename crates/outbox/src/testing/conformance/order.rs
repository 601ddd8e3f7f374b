//! Order per key: only the oldest unsettled run of a key is ever out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::exclusive::exclusive;
use super::{Harness, LEASE, SECOND, Scene, after, again, dead, event, holder, ids, keyed, leasing, taking};
use crate::event::{EventBuilder, EventId};
use crate::store::{Delivery, OnDead, Origin, Reach, RunId, Take, Taken, Verdict};

/// All of a key is held up to this one.
fn upto(key: &str, last: &Delivery) -> HashMap<RunId, Reach> {
    let reach = Reach { seq: last.seq.expect("it was taken from the table"), together: last.claim == 0 };
    HashMap::from([(RunId::of_key(key), reach)])
}

/// Events of the type `thing` go to one destination, those of the type `other` to another one, those of other types anywhere.
fn two_destinations() -> BTreeMap<String, u64> {
    BTreeMap::from([("thing".to_owned(), 1), ("other".to_owned(), 2)])
}

fn other(key: &str) -> EventBuilder {
    event("other").ordering_key(key)
}

fn behind(taken: &Taken) -> Vec<&str> {
    let mut keys: Vec<&str> = taken.behind.iter().map(|key| &**key).collect();
    keys.sort_unstable();
    keys
}

/// The whole run at once, in its order, to one holder.
pub async fn a_key_is_taken_from_its_head_in_order(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..10).map(|n| keyed(if n % 2 == 0 { "even" } else { "odd" }))).await;
    let taken = scene.take(&leasing("a")).await;
    assert_eq!(ids(&taken.deliveries), written);
    assert!(taken.behind.is_empty());
    assert!(taken.deliveries.iter().all(|d| d.seq.is_some()));
    // A retry comes back before what was written after it, though it became due later.
    for delivery in &taken.deliveries {
        let verdict = if delivery.event.id() == &written[0] { again(1) } else { Verdict::Released };
        scene.settle("a", delivery, verdict).await;
    }
    scene.pass(SECOND);
    assert_eq!(ids(&scene.lease("a").await), written);
}

/// What is out holds back what comes after it, on every other node.
pub async fn a_held_head_holds_back_its_key_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a"), keyed("a"), keyed("b"), event("free")]).await;
    let head = scene.lease_one("one").await;
    assert_eq!(head.event.id(), &written[0]);
    let taken = scene.take(&leasing("two")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(behind(&taken), ["a"]);
    assert_eq!(taken.scanned, 3);
    let taken = scene.take(&leasing("one")).await;
    assert!(taken.deliveries.is_empty(), "not even to the head's own holder: it may settle in any order");
    assert_eq!(scene.settle("one", &head, Verdict::Done).await, 1);
    assert_eq!(ids(&scene.lease("two").await), written[1..2]);
}

/// The head's lease ran out, and those behind it were leased later. If its old holder settled these, the head would come again after
/// them.
pub async fn a_key_is_taken_over_as_a_whole(harness: &impl Harness) {
    for together in [false, true] {
        let scene = Scene::open(harness).await;
        let written = scene.write([keyed("a"), keyed("a"), keyed("a"), keyed("b")]).await;
        let head = scene.take(&Take { limit: 1, together, ..leasing("old") }).await.deliveries.remove(0);
        scene.pass(LEASE / 2);
        let frontiers = upto("a", &head);
        let rest = scene.take(&Take { frontiers, together, ..leasing("old") }).await.deliveries;
        assert_eq!(ids(&rest), written[1..]);
        scene.pass(LEASE / 2 + SECOND);
        let taken = scene.take(&Take { together, ..leasing("new") }).await;
        assert_eq!(ids(&taken.deliveries), written[..1], "the others are leased still");
        for delivery in &rest[..2] {
            assert_eq!(scene.settle("old", delivery, Verdict::Done).await, 0, "it comes too late");
        }
        assert!(scene.lease("new").await.is_empty(), "no node handles what another may be handling");
        assert_eq!(scene.settle("new", &taken.deliveries[0], Verdict::Done).await, 1);
        scene.pass(LEASE);
        let taken = scene.lease("new").await;
        assert_eq!(ids(&taken)[..2], written[1..3], "in their order");
        for delivery in &taken {
            assert_eq!(scene.settle("new", delivery, Verdict::Done).await, 1);
        }
    }
}

/// A take-over adds to the claims of rows that it has not read, whatever another program wrote.
pub async fn a_key_is_taken_over_beside_claims_at_their_limit(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (id, claims, until) in [("head", 1, "2000-01-01"), ("next", 1_000_000_000, "2900-01-01")] {
        let insert = format!(
            "INSERT INTO {{events}} (event_id, event_type, payload, ordering_key, claims, locked_by, locked_until) \
             VALUES ('{id}', 'thing', '1', 'a', {claims}, 'old', '{until} 00:00:00')"
        );
        if !harness.execute(&insert).await {
            return;
        }
    }
    // The rows have the time of the database's clock.
    scene.pass(LEASE);
    let taken = scene.lease("new").await;
    assert_eq!(ids(&taken), [EventId::from("head")]);
    assert_eq!(scene.settle("new", &taken[0], Verdict::Done).await, 1);
}

/// A crash may leave thousands of events of a key behind: a take writes those that it takes, not all of
/// them again.
pub async fn an_event_that_was_left_behind_is_fenced_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([keyed("a"), keyed("a"), keyed("a"), keyed("a")]).await;
    let left = scene.take(&Take { together: false, ..leasing("old") }).await.deliveries;
    assert_eq!(left.iter().map(|delivery| delivery.claim).collect::<Vec<_>>(), [1; 4]);
    scene.pass(LEASE + SECOND);
    let mut claims = Vec::new();
    for _ in &left {
        let take = Take { limit: 1, together: false, ..leasing("new") };
        let head = scene.take(&take).await.deliveries.remove(0);
        assert!(head.suspect.is_some(), "its holder vanished");
        claims.push(head.claim);
        assert_eq!(scene.settle("new", &head, Verdict::Done).await, 1);
    }
    assert_eq!(claims, [2, 3, 3, 3], "the first take fenced the others, and no later one did");
    assert_eq!(scene.settle("old", &left[3], Verdict::Done).await, 0, "it comes too late");
}

/// What is not taken because of its type still holds back its key; everything else comes.
pub async fn types_to_leave_alone_are_left_alone(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([event("other"), keyed("a"), other("a"), keyed("a"), other("b"), keyed("b"), event("free")])
        .await;
    let skip_types = vec!["nobody's".to_owned(), "other".to_owned()];
    let by = exclusive(&scene, "all").await;
    let skipping = Take { skip_types: skip_types.clone(), ..taking(by) };
    let taken = scene.take(&skipping).await;
    assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[6].clone()]);
    assert_eq!(behind(&taken), ["a", "b"]);
    scene.pass(2 * LEASE);
    let taken = scene.take(&Take { skip_types, ..leasing("one") }).await;
    assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[6].clone()]);
    assert_eq!(behind(&taken), ["a", "b"]);
    assert_eq!(
        scene.take(&leasing("two")).await.deliveries.len(),
        3,
        "the first without a key, and both of b"
    );
}

/// While the events of a destination are left alone, those of its keys that go elsewhere are not held back; those that may go
/// anywhere are. Afterwards its own events come in their order.
pub async fn types_to_leave_alone_hold_back_their_own_destination_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([
            other("a"),
            keyed("a"),
            other("a"),
            keyed("a"),
            event("any").ordering_key("a"),
            keyed("a"),
            other("b"),
            keyed("b"),
        ])
        .await;
    let (skip_types, destinations) = (vec!["other".to_owned()], two_destinations());
    let things = [written[1].clone(), written[3].clone(), written[7].clone()];
    let by = exclusive(&scene, "all").await;
    let skipping = Take { skip_types, destinations, ..taking(by) };
    let taken = scene.take(&skipping).await;
    assert_eq!(ids(&taken.deliveries), things);
    assert_eq!(behind(&taken), ["a"], "what may go anywhere waits, and so does what is behind it");
    assert!(taken.behind_types.contains("any") && taken.behind_types.contains("other"));
    scene.pass(2 * LEASE);
    let leased = scene.take(&Take { by: holder("one"), ..skipping.clone() }).await;
    assert_eq!(ids(&leased.deliveries), things);
    assert_eq!(behind(&leased), ["a"]);
    let all = Take { skip_types: Vec::new(), ..skipping };
    let first = scene.take(&Take { by: holder("two"), limit: 1, ..all.clone() }).await;
    assert_eq!(ids(&first.deliveries), written[..1]);
    let rest = scene.take(&Take { by: holder("three"), ..all.clone() }).await;
    assert_eq!(ids(&rest.deliveries), written[6..7], "a's next waits for its first");
    for (owner, delivery) in [("two", &first.deliveries[0]), ("one", &leased.deliveries[0])] {
        assert_eq!(scene.settle(owner, delivery, Verdict::Done).await, 1);
    }
    assert_eq!(ids(&scene.take(&Take { by: holder("two"), ..all.clone() }).await.deliveries), written[2..3]);
    assert_eq!(scene.settle("one", &leased.deliveries[1], Verdict::Done).await, 1);
    let none = scene.take(&Take { by: holder("two"), ..all }).await;
    assert!(none.deliveries.is_empty(), "another one of a is still out, which goes to the other destination");
}

/// Nor does an event that is retried, delayed or dead hold back what goes elsewhere.
pub async fn a_failing_event_holds_back_its_own_destination_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (key, verdict) in [("a", again(10)), ("b", dead("no"))] {
        let written = scene.write([other(key), keyed(key), other(key), keyed(key)]).await;
        let from = Origin::Keys(vec![key.into()]);
        let take = Take { from, destinations: two_destinations(), ..leasing("one") };
        let head = scene.take(&Take { limit: 1, ..take.clone() }).await;
        assert_eq!(scene.settle("one", &head.deliveries[0], verdict).await, 1);
        let whole = Take { destinations: BTreeMap::new(), ..take.clone() };
        assert!(scene.take(&whole).await.deliveries.is_empty(), "without destinations a key is one run");
        let one = BTreeMap::from([("thing".to_owned(), 1)]);
        let taken = scene.take(&Take { destinations: one, ..take.clone() }).await;
        assert!(taken.deliveries.is_empty(), "an event of an unknown type may go anywhere");
        assert!(taken.behind_types.contains("other"), "which type that is can be learned");
        let taken = scene.take(&take).await;
        assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[3].clone()]);
        assert_eq!(behind(&taken), [key]);
        let done = taken.deliveries.iter().map(|d| (d, Verdict::Done));
        assert_eq!(scene.settle_all(&holder("one"), done).await, 2);
    }
}

/// What a taker has in hand of one destination is no reason to wait for another, but for what may go anywhere.
pub async fn a_frontier_is_that_of_one_destination(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([keyed("a"), keyed("a"), other("a"), keyed("a"), event("any").ordering_key("a"), keyed("a")])
        .await;
    let by = exclusive(&scene, "one").await;
    for by in [by, holder("one")] {
        let take = Take { by, destinations: two_destinations(), ..leasing("one") };
        if take.by == holder("one") {
            scene.pass(2 * LEASE);
        }
        let first = scene.take(&Take { limit: 2, ..take.clone() }).await;
        assert_eq!(ids(&first.deliveries), written[..2]);
        let last = &first.deliveries[1];
        let reach = Reach { seq: last.seq.expect("it was taken from the table"), together: last.claim == 0 };
        let things = RunId { key: "a".into(), destination: Some(1) };
        let onward = Take { frontiers: HashMap::from([(things, reach)]), from: after(first.cursor), ..take };
        let taken = scene.take(&onward).await;
        assert_eq!(ids(&taken.deliveries), written[2..4]);
        assert_eq!(behind(&taken), ["a"], "what may go anywhere waits for all, and what is behind it for it");
    }
}

/// One event of the types that are asked for, and no other row is touched. The next one comes behind it.
pub async fn a_probe_is_one_event(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([
            keyed("a"),
            other("b").deliver_after(SECOND),
            other("b"),
            other("c"),
            other("c"),
            event("other"),
        ])
        .await;
    let probe = |from| Take { probe: Some(vec!["other".to_owned()]), from, limit: 10, ..leasing("one") };
    let first = scene.take(&probe(Origin::Start)).await;
    assert_eq!(ids(&first.deliveries), written[3..4], "b's first is not due");
    scene.settle("one", &first.deliveries[0], Verdict::Released).await;
    let second = scene.take(&probe(after(first.cursor))).await;
    assert_eq!(ids(&second.deliveries), written[5..], "c's first is in the way of its second");
    assert!(scene.take(&probe(after(second.cursor))).await.deliveries.is_empty());
    let rest = scene.lease("two").await;
    assert_eq!(ids(&rest), [written[0].clone(), written[3].clone(), written[4].clone()], "all else is free");
}

/// Rows come in the order of their due times, in which a head that was put off stands behind the rest of its key.
pub async fn a_probe_is_the_head_of_its_key(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([other("a"), other("a"), other("a")]).await;
    let probe = Take { probe: Some(vec!["other".to_owned()]), limit: 10, ..leasing("one") };
    for _ in 0..3 {
        let taken = scene.take(&probe).await;
        assert_eq!(ids(&taken.deliveries), written[..1]);
        scene.pass(SECOND);
        scene.settle("one", &taken.deliveries[0], again(0)).await;
    }
}

/// Through every retry.
pub async fn a_retrying_head_holds_back_its_key_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a"), keyed("a"), keyed("b")]).await;
    let head = scene.lease_one("one").await;
    scene.settle("one", &head, again(10)).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(behind(&taken), ["a"]);
    scene.pass(10 * SECOND);
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[..2]);
    // An expired lease holds its key back until the head itself is taken over.
    scene.pass(LEASE);
    assert_eq!(ids(&scene.lease("two").await), written);
}

/// A delay is part of the order.
pub async fn a_delayed_head_holds_back_its_key_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a").deliver_after(10 * SECOND), keyed("a"), keyed("b")]).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(behind(&taken), ["a"]);
    scene.pass(10 * SECOND);
    assert_eq!(ids(&scene.lease("one").await), written[..2]);
    // In the middle as well.
    let written = scene.write([keyed("c"), keyed("c").deliver_after(SECOND), keyed("c")]).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[..1]);
    assert_eq!(behind(&taken), ["c"]);
}

/// What is left of the run waits for what was taken of it.
pub async fn a_limit_cuts_a_key_at_its_end(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..5).map(|_| keyed("a"))).await;
    let first = scene.take(&Take { limit: 2, ..leasing("one") }).await;
    assert_eq!(ids(&first.deliveries), written[..2]);
    let second = scene.take(&Take { limit: 2, ..leasing("one") }).await;
    assert!(second.deliveries.is_empty());
    assert_eq!(behind(&second), ["a"]);
    for delivery in &first.deliveries {
        scene.settle("one", delivery, Verdict::Done).await;
    }
    assert_eq!(ids(&scene.lease("two").await), written[2..]);
}

/// Page by page past all that waits for one head.
pub async fn two_thousand_blocked_events_do_not_hide_another_key(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([keyed("blocked").deliver_after(1_000 * SECOND)]).await;
    scene.write((0..2_000).map(|_| keyed("blocked"))).await;
    scene.pass(SECOND);
    let other = scene.write([keyed("other"), event("free")]).await;
    let mut found = Vec::new();
    let mut from = Origin::Start;
    let mut pages = 0;
    loop {
        let taken = scene.take(&Take { from, limit: 100, ..leasing("one") }).await;
        found.extend(ids(&taken.deliveries));
        pages += 1;
        if taken.scanned < 100 {
            break;
        }
        assert_eq!(behind(&taken), ["blocked"]);
        from = after(taken.cursor);
    }
    assert_eq!(found, other);
    assert_eq!(pages, 21);
}

/// Which of the two is the taker's choice.
pub async fn a_dead_head_holds_or_is_skipped(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a"), keyed("a"), keyed("b")]).await;
    let head = scene.lease_one("one").await;
    scene.settle("one", &head, dead("no")).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(behind(&taken), ["a"]);
    let skipping = Take { on_dead: OnDead::Skip, ..leasing("one") };
    assert_eq!(ids(&scene.take(&skipping).await.deliveries), written[1..2]);

    // Replayed, it is the head again.
    let taken = scene.write([keyed("c"), keyed("c")]).await;
    let head = scene.lease_one("one").await;
    scene.settle("one", &head, dead("no")).await;
    assert!(scene.lease("one").await.is_empty());
    scene.store.replay(&Default::default(), 10).await.unwrap();
    let again = scene.lease("two").await;
    let of_c: Vec<_> = again.iter().filter(|d| d.event.ordering_key() == Some("c")).cloned().collect();
    assert_eq!(ids(&of_c), taken);
}

/// In the order of each key, whatever else is due.
pub async fn events_of_chosen_keys_are_taken_alone(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([
            event("free"),
            keyed("a"),
            keyed("b"),
            keyed("c"),
            keyed("a"),
            keyed("b").deliver_after(SECOND),
        ])
        .await;
    let keys = |keys: &[&str]| Origin::Keys(keys.iter().map(|k| Arc::from(*k)).collect());
    let some = Take { from: keys(&["b", "a", "nobody's"]), ..leasing("one") };
    let mut taken = ids(&scene.take(&some).await.deliveries);
    taken.sort_by_key(|id| written.iter().position(|w| w == id));
    assert_eq!(taken, [written[1].clone(), written[2].clone(), written[4].clone()]);
    assert!(scene.take(&some).await.deliveries.is_empty());
    let limited = Take { from: keys(&["c"]), limit: 1, ..leasing("one") };
    assert_eq!(ids(&scene.take(&limited).await.deliveries), written[3..4]);
    assert_eq!(ids(&scene.lease("one").await), written[..1]);
    // The oldest of a key comes first, though it became due last.
    let [first, second] = scene.write([keyed("d"), keyed("d")]).await.try_into().unwrap();
    let head = scene.lease_one("one").await;
    scene.settle("one", &head, again(1)).await;
    scene.pass(SECOND);
    let one = Take { from: keys(&["d"]), limit: 1, ..leasing("one") };
    assert_eq!(ids(&scene.take(&one).await.deliveries), [first]);
    assert!(scene.find(&second).await.is_some());
}

/// What is left alone for being recent holds back what comes after it all the same.
pub async fn a_recent_head_holds_back_its_key(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let old = scene.write([keyed("a"), keyed("b")]).await;
    scene.pass(2 * SECOND);
    let young = scene.write([keyed("a"), keyed("c")]).await;
    let careful = Take { skip_recent: SECOND, ..leasing("one") };
    assert_eq!(ids(&scene.take(&careful).await.deliveries), old);
    scene.pass(SECOND);
    let taken = scene.take(&careful).await;
    assert_eq!(ids(&taken.deliveries), young[1..], "a's first is still out");
}

/// One node holds the table: what it has of a key is in its memory, and it takes what follows.
pub async fn frontiers_count_as_taken(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let by = exclusive(&scene, "one").await;
    let written = scene.write((0..6).map(|_| keyed("a"))).await;
    let first = scene.take(&Take { limit: 2, ..taking(by.clone()) }).await;
    assert_eq!(ids(&first.deliveries), written[..2]);
    let frontiers = upto("a", &first.deliveries[1]);
    let next = Take { from: after(first.cursor), limit: 2, frontiers, ..taking(by.clone()) };
    let second = scene.take(&next).await;
    assert_eq!(ids(&second.deliveries), written[2..4]);
    assert!(second.behind.is_empty());
    let forgetful = Take { frontiers: HashMap::new(), ..next };
    let taken = scene.take(&forgetful).await;
    assert!(taken.deliveries.is_empty(), "without the frontier the first two are in the way");
    assert_eq!(behind(&taken), ["a"]);
}

/// With leases as well: nobody has to wait for the database to go on with a key.
pub async fn what_follows_one_s_own_leases_is_taken_before_they_are_settled(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (key, together) in [("a", true), ("b", false)] {
        let written = scene.write((0..6).map(|_| keyed(key))).await;
        let lease = || Take { limit: 2, together, ..leasing("one") };
        let first = scene.take(&lease()).await;
        assert_eq!(ids(&first.deliveries), written[..2]);
        let frontiers = upto(key, &first.deliveries[1]);
        let second = scene.take(&Take { frontiers: frontiers.clone(), ..lease() }).await;
        assert_eq!(ids(&second.deliveries), written[2..4]);
        let forgetful = scene.take(&lease()).await;
        assert!(
            forgetful.deliveries.is_empty(),
            "without a frontier nothing says that they are in good hands"
        );
        assert!(
            scene.take(&Take { frontiers, ..lease() }).await.deliveries.is_empty(),
            "nor with an old one"
        );
        let all = first.deliveries.iter().chain(&second.deliveries).map(|d| (d, Verdict::Done));
        assert_eq!(scene.settle_all(&holder("one"), all).await, 4);
        let rest = scene.lease("two").await;
        assert_eq!(ids(&rest), written[4..]);
        assert_eq!(scene.settle_all(&holder("two"), rest.iter().map(|d| (d, Verdict::Done))).await, 2);
    }
}

/// Whoever slept through its leases remembers what is not so any more.
pub async fn a_frontier_is_worth_no_more_than_the_leases_behind_it(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (key, together) in [("a", true), ("b", false)] {
        let written = scene.write((0..3).map(|_| keyed(key))).await;
        let first = scene.take(&Take { limit: 1, together, ..leasing("one") }).await;
        let frontiers = upto(key, &first.deliveries[0]);
        scene.pass(LEASE);
        let other = scene.take(&Take { limit: 1, together, ..leasing("two") }).await;
        assert_eq!(ids(&other.deliveries), written[..1], "the lease had run out");
        let taken = scene.take(&Take { frontiers: frontiers.clone(), together, ..leasing("one") }).await;
        assert!(taken.deliveries.is_empty(), "another has the first");
        assert_eq!(behind(&taken), [key]);
        let stranger = Take { frontiers, together, ..leasing("three") };
        assert!(scene.take(&stranger).await.deliveries.is_empty());
        scene.settle("two", &other.deliveries[0], Verdict::Done).await;
        let rest = scene.take(&Take { together, ..leasing("three") }).await.deliveries;
        assert_eq!(ids(&rest), written[1..]);
        assert_eq!(scene.settle_all(&holder("three"), rest.iter().map(|d| (d, Verdict::Done))).await, 2);
    }
}

/// Nor later gaps in the same key.
pub async fn frontiers_do_not_hide_other_keys(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let by = exclusive(&scene, "one").await;
    let written =
        scene.write([keyed("a"), keyed("b"), keyed("a").deliver_after(SECOND), keyed("a"), keyed("b")]).await;
    let first = scene.take(&Take { limit: 1, ..taking(by.clone()) }).await;
    assert_eq!(ids(&first.deliveries), written[..1]);
    let frontiers = upto("a", &first.deliveries[0]);
    let taken = scene.take(&Take { from: after(first.cursor), frontiers, ..taking(by.clone()) }).await;
    assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[4].clone()]);
    assert_eq!(behind(&taken), ["a"], "the delayed one is in the way");
    // Leases know nothing of frontiers: what is held stands in the rows.
    let epoch = match &by {
        crate::store::Holder::Exclusive { owner, epoch } => (owner.clone(), *epoch),
        crate::store::Holder::Lease { .. } => unreachable!(),
    };
    scene.store.resign(crate::store::EXCLUSIVE, &epoch.0, epoch.1, true).await.unwrap();
    assert_eq!(ids(&scene.take(&taking(holder("two"))).await.deliveries).len(), 3);
}

/// Written by a program that knows no keys, before and after the table was told to order by aggregate.
pub async fn events_without_a_key_are_ordered_by_aggregate_if_asked(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    if !harness.gives_keys() {
        scene.store.order_by_aggregate().await.unwrap_err();
        return;
    }
    let of = |id: &str| event("thing").aggregate("order", id);
    let before = scene.write([of("1"), of("1"), of("2"), event("thing"), keyed("k")]).await;
    let ordered = |owner: &str| Take { by_aggregate: true, ..leasing(owner) };
    let taken = scene.take(&ordered("a")).await;
    assert_eq!(ids(&taken.deliveries), before[3..4], "the event that belongs to no aggregate");
    assert_eq!(behind(&taken), ["k"], "it may come after one that has no key yet");
    assert_eq!((taken.unkeyed, taken.scanned), (3, 5));

    assert_eq!(scene.store.order_by_aggregate().await.unwrap(), 3);
    assert_eq!(scene.store.order_by_aggregate().await.unwrap(), 0, "each event once");
    // The head of the key is out, also to a relay that orders nothing by itself.
    let first = scene.take(&Take { limit: 1, ..ordered("a") }).await.deliveries;
    assert_eq!(first[0].event.ordering_key(), Some("order/1"));
    let taken = scene.take(&leasing("b")).await;
    assert_eq!(ids(&taken.deliveries), [before[2].clone(), before[4].clone()]);
    assert_eq!(behind(&taken), ["order/1"]);

    // The table gives new events their keys.
    let after = scene.write([of("1"), of("3")]).await;
    let taken = scene.take(&ordered("b")).await;
    assert_eq!((ids(&taken.deliveries), taken.unkeyed), (after[1..].to_vec(), 0));
    assert_eq!(taken.deliveries[0].event.ordering_key(), Some("order/3"));
    scene.settle("a", &first[0], Verdict::Done).await;
    let rest = scene.take(&ordered("b")).await;
    assert_eq!(ids(&rest.deliveries), [before[1].clone(), after[0].clone()]);
}
