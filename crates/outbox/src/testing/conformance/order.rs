//! Order per key: only the oldest unsettled events of a key are ever taken.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::exclusive::exclusive;
use super::{Harness, LEASE, SECOND, Scene, after, again, dead, event, holder, ids, keyed, leasing, taking};
use crate::event::{EventBuilder, EventId};
use crate::store::{Delivery, KeyProgress, KeyQueueId, OnDead, Origin, Take, Taken, Verdict};

/// The caller holds all events of a key up to this one.
fn upto(key: &str, last: &Delivery) -> HashMap<KeyQueueId, KeyProgress> {
    let reach =
        KeyProgress { seq: last.seq.expect("it was taken from the table"), group_lease: last.claim == 0 };
    HashMap::from([(KeyQueueId::of_key(key), reach)])
}

/// Events of type `thing` go to one destination, those of type `other` to another one, those of
/// other types to any.
fn two_destinations() -> BTreeMap<String, u64> {
    BTreeMap::from([("thing".to_owned(), 1), ("other".to_owned(), 2)])
}

fn other(key: &str) -> EventBuilder {
    event("other").ordering_key(key)
}

fn blocked_keys(taken: &Taken) -> Vec<&str> {
    let mut keys: Vec<&str> = taken.blocked_keys.iter().map(|key| &**key).collect();
    keys.sort_unstable();
    keys
}

/// The whole queue of a key in its order, to one holder.
pub async fn a_key_is_taken_from_its_head_in_order(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..10).map(|n| keyed(if n % 2 == 0 { "even" } else { "odd" }))).await;
    let taken = scene.take(&leasing("a")).await;
    assert_eq!(ids(&taken.deliveries), written);
    assert!(taken.blocked_keys.is_empty());
    assert!(taken.deliveries.iter().all(|d| d.seq.is_some()));
    // A retry comes before later events of its key, although it became due later.
    for delivery in &taken.deliveries {
        let verdict = if delivery.event.id() == &written[0] { again(1) } else { Verdict::Released };
        scene.settle("a", delivery, verdict).await;
    }
    scene.pass(SECOND);
    assert_eq!(ids(&scene.lease("a").await), written);
}

/// A leased head blocks the later events of its key for every node.
pub async fn a_leased_head_blocks_its_key_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a"), keyed("a"), keyed("b"), event("free")]).await;
    let head = scene.lease_one("one").await;
    assert_eq!(head.event.id(), &written[0]);
    let taken = scene.take(&leasing("two")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(blocked_keys(&taken), ["a"]);
    assert_eq!(taken.scanned, 3);
    let taken = scene.take(&leasing("one")).await;
    assert!(taken.deliveries.is_empty(), "not even to the head's own holder, which may settle in any order");
    assert_eq!(scene.settle("one", &head, Verdict::Done).await, 1);
    assert_eq!(ids(&scene.lease("two").await), written[1..2]);
}

/// The head's lease has expired, and later events of its key were leased later. If the old holder
/// settled those, the head would be delivered after them.
pub async fn a_key_is_taken_over_as_a_whole(harness: &impl Harness) {
    for group_lease in [false, true] {
        let scene = Scene::open(harness).await;
        let written = scene.write([keyed("a"), keyed("a"), keyed("a"), keyed("b")]).await;
        let head = scene.take(&Take { limit: 1, group_lease, ..leasing("old") }).await.deliveries.remove(0);
        scene.pass(LEASE / 2);
        let held_up_to = upto("a", &head);
        let rest = scene.take(&Take { held_up_to, group_lease, ..leasing("old") }).await.deliveries;
        assert_eq!(ids(&rest), written[1..]);
        scene.pass(LEASE / 2 + SECOND);
        let taken = scene.take(&Take { group_lease, ..leasing("new") }).await;
        assert_eq!(ids(&taken.deliveries), written[..1], "the others are still leased");
        for delivery in &rest[..2] {
            assert_eq!(scene.settle("old", delivery, Verdict::Done).await, 0, "it comes too late");
        }
        assert!(scene.lease("new").await.is_empty(), "no node takes events that another may be handling");
        assert_eq!(scene.settle("new", &taken.deliveries[0], Verdict::Done).await, 1);
        scene.pass(LEASE);
        let taken = scene.lease("new").await;
        assert_eq!(ids(&taken)[..2], written[1..3], "in their order");
        for delivery in &taken {
            assert_eq!(scene.settle("new", delivery, Verdict::Done).await, 1);
        }
    }
}

/// A takeover increments the claims of rows that it has not read, whatever another program wrote.
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

/// A crash may leave thousands of leased events of a key: a take writes the rows that it takes, not
/// all of them again.
pub async fn an_event_of_a_vanished_holder_is_fenced_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([keyed("a"), keyed("a"), keyed("a"), keyed("a")]).await;
    let left = scene.take(&Take { group_lease: false, ..leasing("old") }).await.deliveries;
    assert_eq!(left.iter().map(|delivery| delivery.claim).collect::<Vec<_>>(), [1; 4]);
    scene.pass(LEASE + SECOND);
    let mut claims = Vec::new();
    for _ in &left {
        let take = Take { limit: 1, group_lease: false, ..leasing("new") };
        let head = scene.take(&take).await.deliveries.remove(0);
        assert!(head.suspect.is_some(), "its holder vanished");
        claims.push(head.claim);
        assert_eq!(scene.settle("new", &head, Verdict::Done).await, 1);
    }
    assert_eq!(claims, [2, 3, 3, 3], "the first take fenced the others, and no later one did");
    assert_eq!(scene.settle("old", &left[3], Verdict::Done).await, 0, "it comes too late");
}

/// An event that is left out because of its type still blocks its key; all others are taken.
pub async fn skipped_types_are_not_taken(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([event("other"), keyed("a"), other("a"), keyed("a"), other("b"), keyed("b"), event("free")])
        .await;
    let skip_types = vec!["unused".to_owned(), "other".to_owned()];
    let by = exclusive(&scene, "all").await;
    let skipping = Take { skip_types: skip_types.clone(), ..taking(by) };
    let taken = scene.take(&skipping).await;
    assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[6].clone()]);
    assert_eq!(blocked_keys(&taken), ["a", "b"]);
    scene.pass(2 * LEASE);
    let taken = scene.take(&Take { skip_types, ..leasing("one") }).await;
    assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[6].clone()]);
    assert_eq!(blocked_keys(&taken), ["a", "b"]);
    assert_eq!(
        scene.take(&leasing("two")).await.deliveries.len(),
        3,
        "the first without a key, and both of b"
    );
}

/// While the events of a destination are left out, events of the same keys with another destination
/// are not blocked; those without a known destination are. Afterwards the destination's own events
/// are taken in their order.
pub async fn skipped_types_block_their_own_destination_only(harness: &impl Harness) {
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
    assert_eq!(
        blocked_keys(&taken),
        ["a"],
        "an event without a known destination waits, and so do later ones"
    );
    assert!(taken.skipped_types.contains("any") && taken.skipped_types.contains("other"));
    scene.pass(2 * LEASE);
    let leased = scene.take(&Take { by: holder("one"), ..skipping.clone() }).await;
    assert_eq!(ids(&leased.deliveries), things);
    assert_eq!(blocked_keys(&leased), ["a"]);
    let all = Take { skip_types: Vec::new(), ..skipping };
    let first = scene.take(&Take { by: holder("two"), limit: 1, ..all.clone() }).await;
    assert_eq!(ids(&first.deliveries), written[..1]);
    let rest = scene.take(&Take { by: holder("three"), ..all.clone() }).await;
    assert_eq!(ids(&rest.deliveries), written[6..7], "a's second event waits for its first");
    for (owner, delivery) in [("two", &first.deliveries[0]), ("one", &leased.deliveries[0])] {
        assert_eq!(scene.settle(owner, delivery, Verdict::Done).await, 1);
    }
    assert_eq!(ids(&scene.take(&Take { by: holder("two"), ..all.clone() }).await.deliveries), written[2..3]);
    assert_eq!(scene.settle("one", &leased.deliveries[1], Verdict::Done).await, 1);
    let none = scene.take(&Take { by: holder("two"), ..all }).await;
    assert!(none.deliveries.is_empty(), "another event of a with the other destination is still leased");
}

/// A retried, delayed or dead event does not block other destinations either.
pub async fn a_failing_event_blocks_its_own_destination_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (key, verdict) in [("a", again(10)), ("b", dead("no"))] {
        let written = scene.write([other(key), keyed(key), other(key), keyed(key)]).await;
        let from = Origin::Keys(vec![key.into()]);
        let take = Take { from, destinations: two_destinations(), ..leasing("one") };
        let head = scene.take(&Take { limit: 1, ..take.clone() }).await;
        assert_eq!(scene.settle("one", &head.deliveries[0], verdict).await, 1);
        let whole = Take { destinations: BTreeMap::new(), ..take.clone() };
        assert!(scene.take(&whole).await.deliveries.is_empty(), "without destinations a key is one queue");
        let one = BTreeMap::from([("thing".to_owned(), 1)]);
        let taken = scene.take(&Take { destinations: one, ..take.clone() }).await;
        assert!(taken.deliveries.is_empty(), "an event of an unknown type may have any destination");
        assert!(taken.skipped_types.contains("other"), "the blocking type is reported");
        let taken = scene.take(&take).await;
        assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[3].clone()]);
        assert_eq!(blocked_keys(&taken), [key]);
        let done = taken.deliveries.iter().map(|d| (d, Verdict::Done));
        assert_eq!(scene.settle_all(&holder("one"), done).await, 2);
    }
}

/// Held events of one destination do not block another one, but they block events without a known
/// destination.
pub async fn key_progress_is_per_destination(harness: &impl Harness) {
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
        let reach =
            KeyProgress { seq: last.seq.expect("it was taken from the table"), group_lease: last.claim == 0 };
        let things = KeyQueueId { key: "a".into(), destination: Some(1) };
        let onward = Take { held_up_to: HashMap::from([(things, reach)]), from: after(first.cursor), ..take };
        let taken = scene.take(&onward).await;
        assert_eq!(ids(&taken.deliveries), written[2..4]);
        assert_eq!(
            blocked_keys(&taken),
            ["a"],
            "an event without a known destination waits for all, and blocks later ones"
        );
    }
}

/// One event of the requested types, and no other row is changed. The next probe continues after
/// it.
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
    assert_eq!(ids(&second.deliveries), written[5..], "c's first blocks its second");
    assert!(scene.take(&probe(after(second.cursor))).await.deliveries.is_empty());
    let rest = scene.lease("two").await;
    assert_eq!(
        ids(&rest),
        [written[0].clone(), written[3].clone(), written[4].clone()],
        "all other events are free"
    );
}

/// Rows are read in the order of their due times, in which a snoozed head comes after the rest of
/// its key.
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
pub async fn a_retrying_head_blocks_its_key_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a"), keyed("a"), keyed("b")]).await;
    let head = scene.lease_one("one").await;
    scene.settle("one", &head, again(10)).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(blocked_keys(&taken), ["a"]);
    scene.pass(10 * SECOND);
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[..2]);
    // An expired lease blocks its key until the head itself is taken over.
    scene.pass(LEASE);
    assert_eq!(ids(&scene.lease("two").await), written);
}

/// A delay is part of the order.
pub async fn a_delayed_head_blocks_its_key_only(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a").deliver_after(10 * SECOND), keyed("a"), keyed("b")]).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(blocked_keys(&taken), ["a"]);
    scene.pass(10 * SECOND);
    assert_eq!(ids(&scene.lease("one").await), written[..2]);
    // In the middle as well.
    let written = scene.write([keyed("c"), keyed("c").deliver_after(SECOND), keyed("c")]).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[..1]);
    assert_eq!(blocked_keys(&taken), ["c"]);
}

/// The rest of the key waits for the events that were taken.
pub async fn a_limit_cuts_a_key_at_its_end(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..5).map(|_| keyed("a"))).await;
    let first = scene.take(&Take { limit: 2, ..leasing("one") }).await;
    assert_eq!(ids(&first.deliveries), written[..2]);
    let second = scene.take(&Take { limit: 2, ..leasing("one") }).await;
    assert!(second.deliveries.is_empty());
    assert_eq!(blocked_keys(&second), ["a"]);
    for delivery in &first.deliveries {
        scene.settle("one", delivery, Verdict::Done).await;
    }
    assert_eq!(ids(&scene.lease("two").await), written[2..]);
}

/// Page by page past all events that one head blocks.
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
        assert_eq!(blocked_keys(&taken), ["blocked"]);
        from = after(taken.cursor);
    }
    assert_eq!(found, other);
    assert_eq!(pages, 21);
}

/// The taker chooses between the two.
pub async fn a_dead_head_blocks_its_key_or_is_skipped(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([keyed("a"), keyed("a"), keyed("b")]).await;
    let head = scene.lease_one("one").await;
    scene.settle("one", &head, dead("no")).await;
    let taken = scene.take(&leasing("one")).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(blocked_keys(&taken), ["a"]);
    let skipping = Take { on_dead: OnDead::Skip, ..leasing("one") };
    assert_eq!(ids(&scene.take(&skipping).await.deliveries), written[1..2]);

    // Once replayed, it is the head again.
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
    let some = Take { from: keys(&["b", "a", "unused"]), ..leasing("one") };
    let mut taken = ids(&scene.take(&some).await.deliveries);
    taken.sort_by_key(|id| written.iter().position(|w| w == id));
    assert_eq!(taken, [written[1].clone(), written[2].clone(), written[4].clone()]);
    assert!(scene.take(&some).await.deliveries.is_empty());
    let limited = Take { from: keys(&["c"]), limit: 1, ..leasing("one") };
    assert_eq!(ids(&scene.take(&limited).await.deliveries), written[3..4]);
    assert_eq!(ids(&scene.lease("one").await), written[..1]);
    // The oldest event of a key comes first, although it became due last.
    let [first, second] = scene.write([keyed("d"), keyed("d")]).await.try_into().unwrap();
    let head = scene.lease_one("one").await;
    scene.settle("one", &head, again(1)).await;
    scene.pass(SECOND);
    let one = Take { from: keys(&["d"]), limit: 1, ..leasing("one") };
    assert_eq!(ids(&scene.take(&one).await.deliveries), [first]);
    assert!(scene.find(&second).await.is_some());
}

/// An event that is left out as recent still blocks its key.
pub async fn a_recent_head_blocks_its_key(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let old = scene.write([keyed("a"), keyed("b")]).await;
    scene.pass(2 * SECOND);
    let young = scene.write([keyed("a"), keyed("c")]).await;
    let careful = Take { skip_recent: SECOND, ..leasing("one") };
    assert_eq!(ids(&scene.take(&careful).await.deliveries), old);
    scene.pass(SECOND);
    let taken = scene.take(&careful).await;
    assert_eq!(ids(&taken.deliveries), young[1..], "a's first event is still leased");
}

/// One node holds the table: it tracks the held events of a key in memory, and takes the following
/// ones.
pub async fn key_progress_counts_as_taken(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let by = exclusive(&scene, "one").await;
    let written = scene.write((0..6).map(|_| keyed("a"))).await;
    let first = scene.take(&Take { limit: 2, ..taking(by.clone()) }).await;
    assert_eq!(ids(&first.deliveries), written[..2]);
    let held_up_to = upto("a", &first.deliveries[1]);
    let next = Take { from: after(first.cursor), limit: 2, held_up_to, ..taking(by.clone()) };
    let second = scene.take(&next).await;
    assert_eq!(ids(&second.deliveries), written[2..4]);
    assert!(second.blocked_keys.is_empty());
    let without = Take { held_up_to: HashMap::new(), ..next };
    let taken = scene.take(&without).await;
    assert!(taken.deliveries.is_empty(), "without it the first two events block the key");
    assert_eq!(blocked_keys(&taken), ["a"]);
}

/// With leases as well: a node continues a key without waiting for its settlements to be written.
pub async fn events_behind_own_leases_are_taken_before_those_are_settled(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (key, group_lease) in [("a", true), ("b", false)] {
        let written = scene.write((0..6).map(|_| keyed(key))).await;
        let lease = || Take { limit: 2, group_lease, ..leasing("one") };
        let first = scene.take(&lease()).await;
        assert_eq!(ids(&first.deliveries), written[..2]);
        let held_up_to = upto(key, &first.deliveries[1]);
        let second = scene.take(&Take { held_up_to: held_up_to.clone(), ..lease() }).await;
        assert_eq!(ids(&second.deliveries), written[2..4]);
        let without = scene.take(&lease()).await;
        assert!(without.deliveries.is_empty(), "without it the held events block the key");
        assert!(
            scene.take(&Take { held_up_to, ..lease() }).await.deliveries.is_empty(),
            "an old one is not enough either"
        );
        let all = first.deliveries.iter().chain(&second.deliveries).map(|d| (d, Verdict::Done));
        assert_eq!(scene.settle_all(&holder("one"), all).await, 4);
        let rest = scene.lease("two").await;
        assert_eq!(ids(&rest), written[4..]);
        assert_eq!(scene.settle_all(&holder("two"), rest.iter().map(|d| (d, Verdict::Done))).await, 2);
    }
}

/// A node whose leases expired unnoticed reports events that it no longer holds.
pub async fn key_progress_needs_valid_leases(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (key, group_lease) in [("a", true), ("b", false)] {
        let written = scene.write((0..3).map(|_| keyed(key))).await;
        let first = scene.take(&Take { limit: 1, group_lease, ..leasing("one") }).await;
        let held_up_to = upto(key, &first.deliveries[0]);
        scene.pass(LEASE);
        let other = scene.take(&Take { limit: 1, group_lease, ..leasing("two") }).await;
        assert_eq!(ids(&other.deliveries), written[..1], "the lease has expired");
        let taken = scene.take(&Take { held_up_to: held_up_to.clone(), group_lease, ..leasing("one") }).await;
        assert!(taken.deliveries.is_empty(), "another node holds the first event");
        assert_eq!(blocked_keys(&taken), [key]);
        let stranger = Take { held_up_to, group_lease, ..leasing("three") };
        assert!(scene.take(&stranger).await.deliveries.is_empty());
        scene.settle("two", &other.deliveries[0], Verdict::Done).await;
        let rest = scene.take(&Take { group_lease, ..leasing("three") }).await.deliveries;
        assert_eq!(ids(&rest), written[1..]);
        assert_eq!(scene.settle_all(&holder("three"), rest.iter().map(|d| (d, Verdict::Done))).await, 2);
    }
}

/// Nor later gaps in the same key.
pub async fn key_progress_does_not_hide_other_keys(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let by = exclusive(&scene, "one").await;
    let written =
        scene.write([keyed("a"), keyed("b"), keyed("a").deliver_after(SECOND), keyed("a"), keyed("b")]).await;
    let first = scene.take(&Take { limit: 1, ..taking(by.clone()) }).await;
    assert_eq!(ids(&first.deliveries), written[..1]);
    let held_up_to = upto("a", &first.deliveries[0]);
    let taken = scene.take(&Take { from: after(first.cursor), held_up_to, ..taking(by.clone()) }).await;
    assert_eq!(ids(&taken.deliveries), [written[1].clone(), written[4].clone()]);
    assert_eq!(blocked_keys(&taken), ["a"], "the delayed event blocks the key");
    // Leases do not use this: held events are recorded in the rows.
    let epoch = match &by {
        crate::store::Holder::Exclusive { owner, epoch } => (owner.clone(), *epoch),
        crate::store::Holder::Lease { .. } => unreachable!(),
    };
    scene.store.resign(crate::store::EXCLUSIVE, &epoch.0, epoch.1, true).await.unwrap();
    assert_eq!(ids(&scene.take(&taking(holder("two"))).await.deliveries).len(), 3);
}

/// Written by a program without keys, before and after the table was set to order by aggregate.
pub async fn events_without_a_key_are_ordered_by_aggregate_on_request(harness: &impl Harness) {
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
    assert_eq!(blocked_keys(&taken), ["k"], "an earlier event without a key may belong before it");
    assert_eq!((taken.unkeyed, taken.scanned), (3, 5));

    assert_eq!(scene.store.order_by_aggregate().await.unwrap(), 3);
    assert_eq!(scene.store.order_by_aggregate().await.unwrap(), 0, "each event once");
    // The head of the key is leased, also for a relay that does not order by aggregate itself.
    let first = scene.take(&Take { limit: 1, ..ordered("a") }).await.deliveries;
    assert_eq!(first[0].event.ordering_key(), Some("order/1"));
    let taken = scene.take(&leasing("b")).await;
    assert_eq!(ids(&taken.deliveries), [before[2].clone(), before[4].clone()]);
    assert_eq!(blocked_keys(&taken), ["order/1"]);

    // The table gives new events their keys.
    let after = scene.write([of("1"), of("3")]).await;
    let taken = scene.take(&ordered("b")).await;
    assert_eq!((ids(&taken.deliveries), taken.unkeyed), (after[1..].to_vec(), 0));
    assert_eq!(taken.deliveries[0].event.ordering_key(), Some("order/3"));
    scene.settle("a", &first[0], Verdict::Done).await;
    let rest = scene.take(&ordered("b")).await;
    assert_eq!(ids(&rest.deliveries), [before[1].clone(), after[0].clone()]);
}
