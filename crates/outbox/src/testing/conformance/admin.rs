//! Administration: inspect, replay, cancel, purge.

use std::time::Duration;

use super::{Harness, LEASE, SECOND, Scene, again, dead, event, ids, keyed, leasing};
use crate::event::{Event, EventId};
use crate::store::{
    Backlog, EXCLUSIVE, Filter, NodeId, NodeState, OnDead, Purge, Purgeable, Replayed, Stats, Status,
    StoredEvent, Take, Verdict,
};

const DAY: Duration = Duration::from_secs(86_400);

fn status(status: Status) -> Filter {
    Filter { status: Some(status), ..Filter::default() }
}

/// By status, type, aggregate type and id, alone and combined, oldest first.
pub async fn events_are_listed_counted_and_found(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([
            event("placed").aggregate("order", "1"),
            event("placed").aggregate("invoice", "2"),
            event("paid").aggregate("order", "1"),
            event("paid").aggregate("order", "3"),
        ])
        .await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.settle("a", &taken[2], dead("no")).await;
    scene.settle("a", &taken[3], again(5)).await;
    let of = |event_type: Option<&str>, aggregate_type: Option<&str>, status: Option<Status>| Filter {
        status,
        event_type: event_type.map(str::to_owned),
        aggregate_type: aggregate_type.map(str::to_owned),
        ..Filter::default()
    };
    for (filter, expected) in [
        (Filter::default(), &[0, 1, 2, 3][..]),
        (of(Some("placed"), None, None), &[0, 1]),
        (of(None, Some("order"), None), &[0, 2, 3]),
        (of(Some("paid"), Some("order"), None), &[2, 3]),
        (of(Some("paid"), Some("order"), Some(Status::Dead)), &[2]),
        (of(Some("paid"), Some("invoice"), None), &[]),
        (status(Status::Done), &[0]),
        (status(Status::New), &[1]),
        (status(Status::Dead), &[2]),
        (status(Status::Retry), &[3]),
        (Filter { id: Some(written[1].clone()), ..Filter::default() }, &[1]),
        (Filter { id: Some(written[1].clone()), status: Some(Status::Dead), ..Filter::default() }, &[]),
    ] {
        let found = scene.store.list(&filter, 10).await.unwrap();
        let found: Vec<EventId> = found.iter().map(|s| s.event.as_ref().unwrap().id().clone()).collect();
        let expected: Vec<EventId> = expected.iter().map(|i: &usize| written[*i].clone()).collect();
        assert_eq!(found, expected, "{filter:?}");
        assert_eq!(scene.count(filter).await, expected.len() as u64);
    }
    assert!(scene.find(&EventId::from("unknown")).await.is_none());
    assert_eq!(scene.store.list(&Filter::default(), 3).await.unwrap().len(), 3);
}

/// By every searchable field, each text literally and none as a pattern.
pub async fn events_are_found_by_every_field(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene
        .write([
            event("a").aggregate("order", "1").tenant("acme").ordering_key("k").correlation("story"),
            event("a").aggregate("order", "2").tenant("acme").ordering_key("K").correlation("Story"),
            event("a")
                .aggregate("invoice", "1")
                .tenant("ACME")
                .ordering_key("k")
                .correlation("story' OR '1'='1"),
            event("a").tenant("%"),
        ])
        .await;
    let text = |text: &str| Some(text.to_owned());
    for (filter, expected) in [
        (Filter { aggregate_id: text("1"), ..Filter::default() }, &[0, 2][..]),
        (Filter { aggregate_id: text("1"), aggregate_type: text("order"), ..Filter::default() }, &[0]),
        (Filter { tenant_id: text("acme"), ..Filter::default() }, &[0, 1]),
        (Filter { tenant_id: text("%"), ..Filter::default() }, &[3]),
        (Filter { ordering_key: text("k"), ..Filter::default() }, &[0, 2]),
        (Filter { correlation_id: text("story"), ..Filter::default() }, &[0]),
        (Filter { correlation_id: text("story' OR '1'='1"), ..Filter::default() }, &[2]),
        (Filter { tenant_id: text("acme"), ordering_key: text("K"), ..Filter::default() }, &[1]),
        (Filter { tenant_id: text("unknown"), ..Filter::default() }, &[]),
    ] {
        assert_found(&scene, &filter, &written, expected).await;
    }
    let seqs: Vec<i64> = scene.all().await.iter().map(|stored| stored.seq).collect();
    let between = Filter { after_seq: Some(seqs[0]), upto_seq: Some(seqs[2]), ..Filter::default() };
    assert_found(&scene, &between, &written, &[1, 2]).await;
}

/// Exactly the events with these indexes.
async fn assert_found(scene: &Scene, filter: &Filter, written: &[EventId], expected: &[usize]) {
    let found = scene.store.list(filter, 10).await.unwrap();
    let found: Vec<EventId> = found.iter().map(|s| s.event.as_ref().unwrap().id().clone()).collect();
    let expected: Vec<EventId> = expected.iter().map(|i| written[*i].clone()).collect();
    assert_eq!(found, expected, "{filter:?}");
    assert_eq!(scene.count(filter.clone()).await, expected.len() as u64, "{filter:?}");
}

/// By the time they were stored, and by the time they were settled, which differ.
pub async fn events_are_found_by_their_age(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let mut written = scene.write([event("old"), event("old, settled recently")]).await;
    let held = scene.lease("a").await;
    scene.settle("a", &held[0], dead("no")).await;
    scene.pass(60 * SECOND);
    written.push(scene.write_one(event("young")).await);
    scene.settle("a", &held[1], Verdict::Done).await;
    let age = |seconds: u64| Some(Duration::from_secs(seconds));
    scene.pass(10 * SECOND);
    for (filter, expected) in [
        (Filter { older_than: age(10), ..Filter::default() }, &[0, 1][..]),
        (Filter { newer_than: age(10), ..Filter::default() }, &[2]),
        (Filter { older_than: age(5), newer_than: age(30), ..Filter::default() }, &[2]),
        (Filter { older_than: age(70), ..Filter::default() }, &[]),
        (Filter { newer_than: age(70), ..Filter::default() }, &[0, 1, 2]),
        (Filter { settled_before: age(10), ..Filter::default() }, &[0]),
        (Filter { settled_within: age(10), ..Filter::default() }, &[1]),
        (Filter { settled_within: age(70), ..Filter::default() }, &[0, 1]),
        (Filter { settled_within: age(70), status: Some(Status::Dead), ..Filter::default() }, &[0]),
        (Filter { pending: true, ..Filter::default() }, &[2]),
    ] {
        assert_found(&scene, &filter, &written, expected).await;
    }
}

/// The most frequent first.
pub async fn events_are_counted_by_type(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.types(&Filter::default(), 10).await.unwrap(), []);
    scene.write(["b", "a", "c", "c", "a", "c"].map(event)).await;
    let count = |name: &str, n: u64| (name.to_owned(), n);
    let types = scene.store.types(&Filter::default(), 10).await.unwrap();
    assert_eq!(types, [count("c", 3), count("a", 2), count("b", 1)]);
    assert_eq!(scene.store.types(&Filter::default(), 1).await.unwrap(), [count("c", 3)]);
    let taken = scene.lease("x").await;
    scene.settle("x", &taken[0], dead("no")).await;
    assert_eq!(scene.store.types(&status(Status::Dead), 10).await.unwrap(), [count("b", 1)]);
    let pending = Filter { pending: true, ..Filter::default() };
    assert_eq!(scene.store.types(&pending, 10).await.unwrap(), [count("c", 3), count("a", 2)]);
}

fn id_of(stored: Option<&StoredEvent>) -> Option<&EventId> {
    stored.and_then(|stored| stored.event.as_ref().ok()).map(Event::id)
}

/// The first pending and the first dead event, of the same key and before it.
pub async fn events_ahead_in_the_key_are_found(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let k = scene.write((0..5).map(|_| keyed("k"))).await;
    let other = scene.write([keyed("other"), event("none")]).await;
    let facts = async |id: &EventId| scene.store.delivery_facts(id).await.unwrap();

    let first = facts(&k[0]).await;
    assert_eq!(id_of(first.event.as_ref()), Some(&k[0]));
    assert!(first.pending_ahead.is_none() && first.dead_ahead.is_none());
    let last = facts(&k[4]).await;
    assert_eq!((id_of(last.pending_ahead.as_ref()), id_of(last.dead_ahead.as_ref())), (Some(&k[0]), None));

    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.settle("a", &taken[1], dead("no")).await;
    scene.settle("a", &taken[2], again(60)).await;
    scene.settle("a", &taken[3], dead("no")).await;
    let last = facts(&k[4]).await;
    assert_eq!(id_of(last.pending_ahead.as_ref()), Some(&k[2]));
    assert_eq!(id_of(last.dead_ahead.as_ref()), Some(&k[1]));
    let third = facts(&k[2]).await;
    assert!(third.pending_ahead.is_none(), "later events do not block it");
    assert_eq!(id_of(third.dead_ahead.as_ref()), Some(&k[1]));
    for free in &other {
        let free = facts(free).await;
        assert!(free.pending_ahead.is_none() && free.dead_ahead.is_none());
    }
    let unknown = facts(&EventId::from("unknown")).await;
    assert!(unknown.event.is_none() && unknown.pending_ahead.is_none());
    assert_eq!(unknown.now, scene.now());
}

/// Leader, leases, due events before it, and the time of the last settlement.
pub async fn the_facts_around_an_event_are_reported(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let ids = scene.write((0..4).map(|_| event("n"))).await;
    scene.write([event("delayed").deliver_after(DAY)]).await;
    let facts = async || scene.store.delivery_facts(&ids[3]).await.unwrap();
    let quiet = facts().await;
    assert_eq!((quiet.due_before, quiet.any_leased), (3, false));
    assert_eq!((quiet.leader, quiet.last_settled), (None, None));
    assert_eq!(quiet.now, scene.now());

    let held = scene.lease_one("a").await;
    let busy = facts().await;
    assert_eq!((busy.due_before, busy.any_leased), (2, true));
    scene.settle("a", &held, Verdict::Done).await;
    scene.pass(SECOND);
    let settled = facts().await;
    assert_eq!((settled.due_before, settled.any_leased), (2, false));
    assert_eq!(settled.last_settled, Some(scene.now() - chrono::Duration::seconds(1)));

    let state = NodeState { active: true, ..NodeState::default() };
    scene.store.announce(&"relay-1".into(), &state).await.unwrap();
    let nodes = facts().await.nodes;
    assert_eq!((nodes[0].node.as_str(), nodes[0].state.active), ("relay-1", true));

    scene.store.lead(EXCLUSIVE, &"boss".into(), LEASE).await.unwrap();
    assert_eq!(facts().await.leader, Some("boss".into()));
    scene.pass(LEASE);
    assert_eq!(facts().await.leader, None, "its lease has expired");
}

/// After the last event seen.
pub async fn listing_goes_page_by_page(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..10).map(|_| event("n"))).await;
    let mut found = Vec::new();
    let mut filter = Filter::default();
    loop {
        let page = scene.store.list(&filter, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        filter.after_seq = Some(last.seq);
        found.extend(page.into_iter().map(|s| s.event.unwrap().id().clone()));
    }
    assert_eq!(found, written);
}

/// As if it had just been written: zero attempts, due immediately, not expired.
pub async fn replay_resets_dead_events(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let end = scene.now() + chrono::Duration::seconds(10);
    let id = scene.dead_letter(event("one").expires_at(end)).await;
    let done = scene.write_one(event("done")).await;
    let taken = scene.lease_one("a").await;
    scene.settle("a", &taken, Verdict::Done).await;
    scene.pass(DAY);
    assert_eq!(scene.store.replay(&Filter::default(), 10).await.unwrap().moved, 1);
    let stored = scene.see(&id).await;
    assert_eq!((stored.status, stored.attempts), (Status::New, 0));
    assert_eq!(stored.available_at, scene.now());
    assert_eq!((stored.done_at, stored.done_by, stored.lease), (None, None, None));
    assert_eq!(scene.see(&done).await.status, Status::Done);
    let taken = scene.lease_one("a").await;
    assert_eq!(*taken.event.id(), id);
    assert_eq!(taken.attempts, 0);
    assert!(taken.expires_in.is_none_or(|left| left > chrono::Duration::zero()));
    assert_eq!(taken.suspect, None);
    assert_eq!(scene.settle("a", &taken, Verdict::Done).await, 1);
    assert_eq!(scene.store.replay(&Filter::default(), 10).await.unwrap().moved, 0);
}

/// One, some, or all, oldest first.
pub async fn replay_takes_one_event_or_several(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..6).map(|n| event(if n < 4 { "a" } else { "b" }))).await;
    for delivery in scene.lease("x").await {
        scene.settle("x", &delivery, dead("no")).await;
    }
    let one = Filter { id: Some(written[3].clone()), ..Filter::default() };
    assert_eq!(scene.store.replay(&one, 10).await.unwrap().moved, 1);
    assert_eq!(scene.store.replay(&one, 10).await.unwrap().moved, 0);
    let of_a = Filter { event_type: Some("a".to_owned()), ..Filter::default() };
    assert_eq!(scene.store.replay(&of_a, 2).await.unwrap().moved, 2);
    assert_eq!(scene.see(&written[0]).await.status, Status::New);
    assert_eq!(scene.see(&written[1]).await.status, Status::New);
    assert_eq!(scene.see(&written[2]).await.status, Status::Dead);
    let seq = scene.see(&written[1]).await.seq;
    scene.store.replay(&Filter { id: Some(written[4].clone()), ..Filter::default() }, 1).await.unwrap();
    assert_eq!(scene.see(&written[4]).await.status, Status::New);
    let dead = scene.store.list(&status(Status::Dead), 10).await.unwrap();
    let rest = Filter { after_seq: Some(seq), upto_seq: Some(dead[0].seq), ..Filter::default() };
    let replayed = scene.store.replay(&rest, 10).await.unwrap();
    assert_eq!(
        replayed,
        Replayed { moved: 1, last: Some(dead[0].seq) },
        "with the position to continue from"
    );
    assert_eq!(scene.store.replay(&rest, 10).await.unwrap(), Replayed::default());
    let of_new = Filter { status: Some(Status::New), ..Filter::default() };
    assert_eq!(scene.store.replay(&of_new, 0).await.unwrap().moved, 0);
    assert_eq!(scene.store.replay(&Filter::default(), 100).await.unwrap().moved, 1);
    assert_eq!(scene.count(status(Status::Dead)).await, 0);
}

/// A leased or settled event cannot be cancelled.
pub async fn only_free_pending_events_are_cancelled(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let done = scene.write_one(event("done")).await;
    let taken = scene.lease_one("a").await;
    scene.settle("a", &taken, Verdict::Done).await;
    let dead = scene.dead_letter(event("dead")).await;
    let retry = scene.write_one(event("retry")).await;
    let taken = scene.lease_one("a").await;
    scene.settle("a", &taken, again(60)).await;
    let held = scene.write_one(event("held")).await;
    scene.lease_one("a").await;
    let delayed = scene.write_one(event("delayed").deliver_after(DAY)).await;
    let fresh = scene.write_one(event("fresh")).await;
    for (id, cancelled) in [
        (&done, false),
        (&dead, false),
        (&held, false),
        (&retry, true),
        (&delayed, true),
        (&fresh, true),
        (&fresh, false),
        (&EventId::from("unknown"), false),
    ] {
        assert_eq!(scene.store.cancel(id).await.unwrap(), cancelled);
    }
    assert!(scene.find(&fresh).await.is_none());
    assert_eq!(scene.all().await.len(), 3);
    scene.pass(LEASE);
    assert!(scene.store.cancel(&held).await.unwrap(), "its lease has expired");
}

/// With the age of the oldest due event.
pub async fn statistics_count_by_status(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.stats().await.unwrap(), Stats::default());
    scene.write((0..10).map(|_| event("n"))).await;
    let taken = scene.lease("a").await;
    for (n, delivery) in taken.iter().enumerate() {
        match n {
            0..4 => scene.settle("a", delivery, Verdict::Done).await,
            4..7 => scene.settle("a", delivery, dead("no")).await,
            7..9 => scene.settle("a", delivery, again(60)).await,
            _ => scene.settle("a", delivery, Verdict::Released).await,
        };
    }
    scene.pass(5 * SECOND);
    scene.write([event("delayed").deliver_after(DAY)]).await;
    let stats = scene.store.stats().await.unwrap();
    let expected = Stats { new: 2, retry: 2, done: 4, dead: 3, oldest_due: Some(5 * SECOND) };
    assert_eq!(stats, expected);
}

/// Leased events are pending, not free; delayed events are neither due nor free.
pub async fn the_backlog_counts_pending_and_free_events(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.backlog().await.unwrap(), Backlog::default());
    scene.write([event("delayed").deliver_after(60 * SECOND)]).await;
    let backlog = scene.store.backlog().await.unwrap();
    assert_eq!(backlog, Backlog { pending: 1, free: 0, oldest_due: None });
    scene.write([event("one"), event("two"), keyed("k")]).await;
    scene.pass(3 * SECOND);
    let held = scene.lease_one("a").await;
    let backlog = scene.store.backlog().await.unwrap();
    assert_eq!(backlog, Backlog { pending: 4, free: 2, oldest_due: Some(3 * SECOND) });
    scene.settle("a", &held, Verdict::Done).await;
    let backlog = scene.store.backlog().await.unwrap();
    assert_eq!(backlog, Backlog { pending: 3, free: 2, oldest_due: Some(3 * SECOND) });
    scene.pass(57 * SECOND);
    assert_eq!(scene.store.backlog().await.unwrap().free, 3);
}

async fn purge(scene: &Scene, what: Purgeable, older_than: Duration, limit: usize) -> u64 {
    scene.store.purge(Purge { what, older_than, limit }).await.unwrap()
}

/// Not by the time they were written.
pub async fn done_events_are_purged_by_the_time_they_were_done(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([event("early"), event("late"), event("dead"), event("pending")]).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.settle("a", &taken[2], dead("no")).await;
    scene.pass(10 * SECOND);
    scene.settle("a", &taken[1], Verdict::Done).await;
    scene.settle("a", &taken[3], again(0)).await;
    assert_eq!(purge(&scene, Purgeable::Done, 10 * SECOND, 10).await, 0, "not older than that");
    scene.pass(SECOND);
    assert_eq!(purge(&scene, Purgeable::Done, 10 * SECOND, 10).await, 1);
    assert_eq!(purge(&scene, Purgeable::Done, 10 * SECOND, 10).await, 0);
    scene.pass(100 * DAY);
    assert_eq!(purge(&scene, Purgeable::Done, 10 * SECOND, 10).await, 1);
    let left: Vec<Status> = scene.all().await.iter().map(|s| s.status).collect();
    assert_eq!(left, [Status::Dead, Status::Retry]);
}

/// An old event that was dead-lettered today is kept as long as a young one.
pub async fn dead_events_are_purged_by_the_time_they_were_dead_lettered(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write_one(event("pending")).await;
    let held = scene.lease_one("a").await;
    let old = scene.write_one(event("old")).await;
    scene.pass(30 * DAY);
    scene.settle("a", &held, Verdict::Released).await;
    let taken = scene.lease("a").await;
    let dying = taken.iter().find(|d| *d.event.id() == old).unwrap();
    scene.settle("a", dying, dead("today")).await;
    assert_eq!(purge(&scene, Purgeable::Finished, 7 * DAY, 10).await, 0);
    scene.pass(7 * DAY + SECOND);
    assert_eq!(purge(&scene, Purgeable::Finished, 7 * DAY, 10).await, 1);
    assert!(scene.find(&old).await.is_none());
    assert_eq!(scene.count(status(Status::New)).await, 1, "pending events stay");

    // A replayed event is pending, however long ago it was dead-lettered.
    let replayed = scene.dead_letter(event("replayed")).await;
    scene.store.replay(&Filter::default(), 10).await.unwrap();
    scene.pass(30 * DAY);
    assert_eq!(purge(&scene, Purgeable::Finished, 7 * DAY, 10).await, 0);
    assert!(scene.find(&replayed).await.is_some());
}

/// The status decides, not a time that another writer has set.
pub async fn a_pending_event_is_never_purged(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("new"), event("retried")]).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Released).await;
    scene.settle("a", &taken[1], again(0)).await;
    if !harness.execute("UPDATE {events} SET done_at = created_at").await {
        return;
    }
    scene.pass(100 * DAY);
    for what in [Purgeable::Done, Purgeable::Dead, Purgeable::Finished] {
        assert_eq!(purge(&scene, what, SECOND, 10).await, 0, "{what:?}");
    }
    let due: Vec<EventId> = scene.lease("b").await.iter().map(|d| d.event.id().clone()).collect();
    assert_eq!(due, written, "both are still delivered");
}

/// Where another writer has finished an event without a time.
pub async fn finished_events_without_a_time_are_purged_by_their_age(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([event("done"), event("dead"), event("pending"), event("timed")]).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.settle("a", &taken[1], dead("no")).await;
    scene.settle("a", &taken[2], Verdict::Released).await;
    if !harness.execute("UPDATE {events} SET done_at = NULL").await {
        return;
    }
    scene.settle("a", &taken[3], Verdict::Done).await;
    scene.pass(10 * SECOND);
    assert_eq!(purge(&scene, Purgeable::Finished, 10 * SECOND, 10).await, 0, "not older than that");
    scene.pass(SECOND);
    assert_eq!(purge(&scene, Purgeable::Done, 10 * SECOND, 1).await, 1);
    assert_eq!(purge(&scene, Purgeable::Done, 10 * SECOND, 10).await, 1);
    assert_eq!(purge(&scene, Purgeable::Done, 10 * SECOND, 10).await, 0);
    let left = |all: Vec<StoredEvent>| all.iter().map(|s| s.status).collect::<Vec<_>>();
    assert_eq!(left(scene.all().await), [Status::Dead, Status::New]);
    assert_eq!(purge(&scene, Purgeable::Dead, 10 * SECOND, 10).await, 1);
    assert_eq!(left(scene.all().await), [Status::New]);
}

/// The later events would be delivered as if the dead event had been.
pub async fn a_dead_event_that_blocks_its_key_is_not_purged(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let free = scene.dead_letter(event("free")).await;
    let alone = scene.dead_letter(keyed("alone")).await;
    let first = scene.dead_letter(keyed("k")).await;
    let skipping = |owner: &str| Take { on_dead: OnDead::Skip, ..leasing(owner) };
    let second = scene.write_one(keyed("k")).await;
    let taken = scene.take(&skipping("a")).await.deliveries;
    scene.settle("a", &taken[0], dead("no")).await;
    let waiting = scene.write_one(keyed("k")).await;
    scene.pass(100 * DAY);

    assert_eq!(purge(&scene, Purgeable::Finished, DAY, 100).await, 2);
    assert!(scene.find(&free).await.is_none() && scene.find(&alone).await.is_none());
    assert!(scene.find(&first).await.is_some() && scene.find(&second).await.is_some());
    assert_eq!(purge(&scene, Purgeable::Dead, DAY, 100).await, 0);
    assert!(scene.lease("b").await.is_empty(), "the key is still blocked");

    // No event is blocked any more once the later event is settled.
    let taken = scene.take(&skipping("a")).await.deliveries;
    assert_eq!(ids(&taken), [waiting]);
    assert_eq!(purge(&scene, Purgeable::Dead, DAY, 100).await, 0, "it is not settled yet");
    scene.settle("a", &taken[0], Verdict::Done).await;
    assert_eq!(purge(&scene, Purgeable::Dead, DAY, 100).await, 2);
}

/// Kept dead events lie between them, and each full batch starts where the previous one ended.
pub async fn done_events_between_kept_dead_ones_are_all_purged(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..30).map(|_| event("n"))).await;
    for (n, delivery) in scene.lease("a").await.iter().enumerate() {
        scene.settle("a", delivery, if n % 3 == 0 { dead("no") } else { Verdict::Done }).await;
        if n % 4 == 0 {
            scene.pass(SECOND);
        }
    }
    scene.pass(DAY);
    for purged in [8, 8, 4, 0] {
        assert_eq!(purge(&scene, Purgeable::Done, SECOND, 8).await, purged);
    }
    assert_eq!(scene.count(status(Status::Dead)).await, 10);
    assert_eq!(scene.all().await.len(), 10);
}

/// Each batch is a short transaction.
pub async fn a_purge_goes_in_batches(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..25).map(|_| event("n"))).await;
    for (n, delivery) in scene.lease("a").await.iter().enumerate() {
        scene.settle("a", delivery, if n % 2 == 0 { Verdict::Done } else { dead("no") }).await;
    }
    scene.pass(DAY);
    for purged in [10, 10, 5, 0] {
        assert_eq!(purge(&scene, Purgeable::Finished, SECOND, 10).await, purged);
    }
    assert!(scene.all().await.is_empty());
}

/// For tables that only change data capture reads.
pub async fn purging_everything_takes_pending_events_too(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..5).map(|_| event("old"))).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.settle("a", &taken[1], dead("no")).await;
    scene.settle("a", &taken[2], Verdict::Released).await;
    scene.settle("a", &taken[3], Verdict::Released).await;
    scene.pass(DAY);
    let young = scene.write([event("young"), keyed("young")]).await;
    assert_eq!(purge(&scene, Purgeable::Everything, 2 * DAY, 100).await, 0);
    assert_eq!(purge(&scene, Purgeable::Everything, SECOND, 3).await, 3);
    assert_eq!(purge(&scene, Purgeable::Everything, SECOND, 100).await, 2);
    let left: Vec<EventId> =
        scene.all().await.iter().map(|s| s.event.as_ref().unwrap().id().clone()).collect();
    assert_eq!(left, young);
}

/// Presence rows, for operators.
pub async fn running_relays_are_listed(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (a, b) = (NodeId::from("a"), NodeId::from("b"));
    let mut state = NodeState { mode: "multi_node".to_owned(), ..NodeState::default() };
    scene.store.announce(&a, &state).await.unwrap();
    scene.pass(SECOND);
    scene.store.announce(&b, &NodeState::default()).await.unwrap();
    state.active = true;
    scene.pass(SECOND);
    scene.store.announce(&a, &state).await.unwrap();
    let nodes = scene.store.nodes().await.unwrap();
    let seen: Vec<_> = nodes.iter().map(|node| (&node.node, node.seen, &node.state)).collect();
    assert_eq!(seen, [(&a, Duration::ZERO, &state), (&b, SECOND, &NodeState::default())]);
    assert_eq!((nodes[1].started_at - nodes[0].started_at).to_std(), Ok(SECOND), "the first time is kept");
    assert!(nodes[0].is_running());
    scene.store.retire(&a).await.unwrap();
    scene.pass(DAY);
    let nodes = scene.store.nodes().await.unwrap();
    assert_eq!((&nodes[0].node, nodes.len(), nodes[0].is_running()), (&b, 1, false));
    scene.store.announce(&a, &state).await.unwrap();
    assert_eq!(scene.store.nodes().await.unwrap().len(), 1, "a row older than a day is deleted");
}
