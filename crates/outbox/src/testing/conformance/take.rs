//! Taking: due and free events, oldest first.

use std::collections::HashSet;
use std::time::Duration;

use chrono::Utc;

use super::{
    Harness, LEASE, SECOND, Scene, after, again, event, held, holder, ids, leasing, settlement, taking,
};
use crate::sql::Clock;
use crate::store::{Filter, NodeId, Origin, Status, Take, Verdict};

/// By the time they became available, then by sequence number.
pub async fn due_events_are_taken_oldest_first(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let at = |seconds: i64| scene.now() + chrono::Duration::seconds(seconds);
    let past = |name: &str, seconds: i64| event(name).occurred_at(at(-100)).available_at(at(seconds));
    let third = scene.write_one(past("third", -1)).await;
    let first = scene.write_one(past("first", -3)).await;
    let second = scene.write_one(past("second", -2)).await;
    let [fourth, fifth] = scene.write([event("fourth"), event("fifth")]).await.try_into().unwrap();
    assert_eq!(ids(&scene.lease("a").await), [first, second, third, fourth, fifth]);
}

/// Without an explicit `occurred_at`, which would be later than the due time.
pub async fn a_due_time_in_the_past_is_due_at_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let at = scene.now() - chrono::Duration::days(1);
    let plain = scene.write_one(event("plain")).await;
    let late = scene.write_one(event("late").available_at(at)).await;
    assert_eq!(scene.see(&late).await.available_at, at);
    assert_eq!(ids(&scene.lease("a").await), [late, plain]);
}

/// The maximum number of rows read.
pub async fn a_limit_is_kept(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..5).map(|_| event("n"))).await;
    let taken = scene.take(&Take { limit: 2, ..leasing("a") }).await;
    assert_eq!(ids(&taken.deliveries), written[..2]);
    assert_eq!(taken.scanned, 2);
    let taken = scene.take(&Take { limit: 10, ..leasing("a") }).await;
    assert_eq!(ids(&taken.deliveries), written[2..]);
    assert_eq!(taken.scanned, 3, "fewer than the limit: the end");
}

/// By the store's clock, not the writer's.
pub async fn a_delay_counts_from_the_time_of_storing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let late = || {
        event("late")
            .occurred_at(scene.now() - chrono::Duration::days(9))
            .deliver_after(Duration::from_secs(60))
    };
    let mut written = scene.write([late()]).await;
    written.extend(scene.write([late(), late().ordering_key("k")]).await);
    assert_eq!(scene.see(&written[0]).await.available_at, scene.now() + chrono::Duration::seconds(60));
    scene.pass(Duration::from_millis(59_999));
    assert!(scene.lease("a").await.is_empty());
    scene.pass(Duration::from_millis(1));
    assert_eq!(ids(&scene.lease("a").await), written);
}

/// To the millisecond.
pub async fn an_absolute_time_is_waited_for(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let at = scene.now() + chrono::Duration::milliseconds(1_500);
    let id = scene.write_one(event("timed").occurred_at(scene.now()).available_at(at)).await;
    scene.pass(Duration::from_millis(1_499));
    assert!(scene.lease("a").await.is_empty());
    scene.pass(Duration::from_millis(1));
    assert_eq!(ids(&scene.lease("a").await), [id]);
}

/// So that the hot path of another process gets them first.
pub async fn recent_events_are_skipped_on_request(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let old = scene.write_one(event("old")).await;
    scene.pass(2 * SECOND);
    let young = scene.write_one(event("young")).await;
    let careful = Take { skip_recent: SECOND, ..leasing("a") };
    assert_eq!(ids(&scene.take(&careful).await.deliveries), [old]);
    scene.pass(SECOND);
    assert_eq!(ids(&scene.take(&careful).await.deliveries), [young]);
}

/// One event, one holder.
pub async fn leased_events_are_not_taken(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("one")).await;
    assert_eq!(scene.lease("a").await.len(), 1);
    assert!(scene.lease("b").await.is_empty());
    assert!(scene.lease("a").await.is_empty(), "not even by its holder");
    let (owner, until) = scene.see(&id).await.lease.expect("a lease");
    assert_eq!(owner, NodeId::from("a"));
    assert_eq!(until, scene.now() + LEASE);
}

/// Without a call of `reap`.
pub async fn an_expired_lease_is_taken_over_under_a_higher_claim(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write_one(event("one")).await;
    let first = scene.lease_one("a").await;
    assert_eq!(first.suspect, None);
    scene.pass(LEASE - Duration::from_millis(1));
    assert!(scene.lease("b").await.is_empty());
    scene.pass(Duration::from_millis(1));
    let second = scene.lease_one("b").await;
    assert_eq!(second.suspect, Some(0), "its holder vanished");
    assert!(second.claim > first.claim);
    assert_eq!(second.attempts, 0, "a lost lease is no attempt");
    assert!(scene.lease("a").await.is_empty());
}

/// Nor is a failed event.
pub async fn a_released_event_is_not_suspect(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([event("released"), event("failed")]).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Released).await;
    scene.settle("a", &taken[1], again(0)).await;
    let taken = scene.lease("b").await;
    assert_eq!(taken.len(), 2);
    assert!(taken.iter().all(|d| d.suspect.is_none()));
}

/// A node that releases the event unhandled has learned nothing about it.
pub async fn a_released_suspect_is_still_suspect(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([event("one")]).await;
    scene.lease_one("a").await;
    scene.pass(LEASE);
    let second = scene.lease_one("b").await;
    assert_eq!(second.suspect, Some(0));
    let started = scene.store.count_start(&holder("b"), second.event.id(), second.claim).await.unwrap();
    assert_eq!(started, Some(1));
    scene.settle("b", &second, Verdict::Released).await;
    let third = scene.lease_one("c").await;
    assert_eq!(third.suspect, Some(1), "its start was counted, and no handler completed it");
    scene.settle("c", &third, again(0)).await;
    let fourth = scene.lease_one("d").await;
    assert_eq!(fourth.suspect, None, "a handler completed it");

    // The same without a counted start: released by a node that knows that it is suspect.
    scene.pass(LEASE);
    for _ in 0..2 {
        let fifth = scene.lease_one("e").await;
        assert_eq!((fifth.suspect, fifth.attempts), (Some(0), 1));
        let due = fifth.event.available_at();
        scene.settle("e", &fifth, Verdict::ReleasedSuspect).await;
        assert_eq!(scene.see(fifth.event.id()).await.lease, None, "it is free");
        assert_eq!(scene.see(fifth.event.id()).await.event.unwrap().available_at(), due);
    }
}

/// Only expired leases are reaped, and the event stays suspect.
pub async fn a_reaped_event_is_free_and_still_suspect(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([event("one"), event("two")]).await;
    let first = scene.lease_one("a").await;
    scene.pass(LEASE);
    let second = scene.lease("b").await;
    assert_eq!(second.len(), 2);
    assert_eq!(scene.store.reap().await.unwrap(), 0);
    scene.settle("b", &second[0], Verdict::Released).await;
    scene.settle("b", &second[1], Verdict::Released).await;

    let crashed = scene.lease_one("c").await;
    scene.pass(LEASE);
    assert_eq!(scene.store.reap().await.unwrap(), 1);
    assert_eq!(scene.store.reap().await.unwrap(), 0);
    assert_eq!(scene.see(crashed.event.id()).await.lease, None);
    assert_eq!(scene.settle("c", &crashed, Verdict::Done).await, 0, "c does not hold it any more");
    let taken = scene.lease("d").await;
    assert_eq!(taken.len(), 2);
    for delivery in &taken {
        assert_eq!(delivery.suspect.is_some(), delivery.event.id() == crashed.event.id());
    }
    assert_eq!(first.event.id(), crashed.event.id());
}

/// A lease that was not lost is renewed from now on.
pub async fn extending_keeps_a_lease_and_reports_the_lost(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..4).map(|_| event("n"))).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.settle("a", &taken[1], Verdict::Released).await;
    scene.pass(LEASE - SECOND);
    let (a, b) = (NodeId::from("a"), NodeId::from("b"));
    let kept = scene.store.extend(&a, LEASE, &held(&taken)).await.unwrap();
    assert_eq!(kept, ids(&taken[2..]));
    assert!(scene.store.extend(&b, LEASE, &held(&taken)).await.unwrap().is_empty());
    scene.pass(LEASE - SECOND);
    assert_eq!(ids(&scene.lease("b").await), [taken[1].event.id().clone()]);
    assert_eq!(scene.settle("a", &taken[2], Verdict::Done).await, 1, "the claim is the same");
    assert!(scene.store.extend(&a, LEASE, &[]).await.unwrap().is_empty());
}

/// Even if the same owner holds the event again.
pub async fn extending_under_an_old_claim_is_lost(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write([event("one"), event("two")]).await;
    let old = scene.lease("a").await;
    scene.settle("a", &old[0], Verdict::Released).await;
    let new = scene.lease_one("a").await;
    let a = NodeId::from("a");
    assert_eq!(scene.store.extend(&a, LEASE, &held(&old)).await.unwrap(), ids(&old[1..]));
    let both = [held(&old).remove(1), held(std::slice::from_ref(&new)).remove(0)];
    assert_eq!(scene.store.extend(&a, LEASE, &both).await.unwrap().len(), 2);
}

/// Starts of an event since its holder vanished: the fence against an event that crashes its
/// process.
pub async fn starts_are_counted_while_the_claim_holds(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("poison")).await;
    let first = scene.lease_one("a").await;
    assert_eq!(scene.store.count_start(&holder("a"), &id, first.claim).await.unwrap(), Some(1));
    scene.pass(LEASE);
    let second = scene.lease_one("b").await;
    assert_eq!(scene.store.count_start(&holder("a"), &id, first.claim).await.unwrap(), None);
    assert_eq!(scene.store.count_start(&holder("a"), &id, second.claim).await.unwrap(), None);
    assert_eq!(scene.store.count_start(&holder("b"), &id, second.claim).await.unwrap(), Some(2));
    // A release keeps the count. Any other settlement resets it: a handler completed the event.
    scene.settle("b", &second, Verdict::Released).await;
    let third = scene.lease_one("b").await;
    assert_eq!(scene.store.count_start(&holder("b"), &id, third.claim).await.unwrap(), Some(3));
    scene.settle("b", &third, again(0)).await;
    let fourth = scene.lease_one("b").await;
    assert_eq!(scene.store.count_start(&holder("b"), &id, fourth.claim).await.unwrap(), Some(1));
    scene.settle("b", &fourth, Verdict::Done).await;
    assert_eq!(scene.store.count_start(&holder("b"), &id, fourth.claim).await.unwrap(), None);
}

/// Reading page by page in an unchanged table.
pub async fn a_cursor_sees_everything_exactly_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let mut written = HashSet::new();
    // Many share a time, some have their own.
    for hour in 1..=3 {
        written.extend(scene.write((0..20).map(|_| event("n"))).await);
        let at = scene.now() - chrono::Duration::hours(hour);
        written.insert(scene.write_one(event("past").occurred_at(at).available_at(at)).await);
        scene.pass(SECOND);
    }
    let mut seen = HashSet::new();
    let mut from = Origin::Start;
    loop {
        let taken = scene.take(&Take { from, limit: 7, ..leasing("a") }).await;
        for delivery in &taken.deliveries {
            assert!(seen.insert(delivery.event.id().clone()), "seen twice");
        }
        from = after(taken.cursor);
        if taken.scanned < 7 {
            break;
        }
    }
    assert_eq!(seen, written);
}

/// The cursor is after the last row read.
pub async fn a_cursor_continues_past_leased_events(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write((0..6).map(|_| event("n"))).await;
    let first = scene.take(&Take { limit: 2, ..leasing("a") }).await;
    let second = scene.take(&Take { from: after(first.cursor), limit: 2, ..leasing("b") }).await;
    assert_eq!(ids(&second.deliveries), written[2..4]);
    let taken = &first.deliveries[0];
    assert_eq!(scene.settle("a", taken, Verdict::Released).await, 1);
    let third = scene.take(&Take { from: after(second.cursor), limit: 9, ..leasing("b") }).await;
    assert_eq!(ids(&third.deliveries), written[4..], "an event released before the cursor is not seen");
    let none = scene.take(&Take { from: after(third.cursor), limit: 9, ..leasing("b") }).await;
    assert!(none.deliveries.is_empty());
    assert_eq!(none.scanned, 0);
    assert_eq!(ids(&scene.lease("b").await), written[..1]);
}

/// Measured when the event is taken.
pub async fn expiry_and_waiting_time_are_reported(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let end = scene.now() + chrono::Duration::seconds(10);
    scene.write([event("short").expires_at(end), event("endless")]).await;
    scene.pass(4 * SECOND);
    let taken = scene.lease("a").await;
    assert_eq!(taken[0].expires_in, Some(chrono::Duration::seconds(6)));
    assert_eq!(taken[0].waited, 4 * SECOND);
    assert_eq!(taken[1].expires_in, None);
    scene.settle("a", &taken[0], Verdict::Released).await;
    scene.pass(7 * SECOND);
    let late = scene.lease_one("a").await;
    assert_eq!(late.expires_in, Some(chrono::Duration::seconds(-1)), "the relay dead-letters it");
}

/// An invalid row of another writer is dead-lettered and does not stop the take.
pub async fn a_row_that_cannot_be_decoded_does_not_stop_the_rest(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    store.migrate().await.unwrap();
    for headers in [r#"["a list"]"#, r#"{"n": 1}"#, r#""text""#] {
        let insert = format!(
            "INSERT INTO {{events}} (event_type, payload, headers) VALUES ('bad', 'null', '{headers}')"
        );
        if !harness.execute(&insert).await {
            return;
        }
        let good = event("good").build().unwrap();
        store.insert(&[good]).await.unwrap();
    }
    let taken = store.take(&leasing("a")).await.unwrap();
    assert_eq!(taken.deliveries.len(), 3);
    assert_eq!(taken.undecodable.len(), 3);
    for (id, claim, reason) in &taken.undecodable {
        assert!(reason.contains("headers"), "{reason}");
        let listed = store.find(id).await.unwrap().unwrap();
        assert!(listed.event.is_err());
        let verdict = Verdict::Dead { counted: false, reason: reason.clone() };
        let settlements = [crate::store::Settlement { id: id.clone(), claim: *claim, verdict }];
        assert_eq!(store.settle(&holder("a"), Default::default(), &settlements).await.unwrap().moved, 1);
    }
    assert_eq!(store.stats().await.unwrap().dead, 3);
    let dead = Filter { status: Some(Status::Dead), ..Filter::default() };
    assert_eq!(store.list(&dead, 10).await.unwrap().len(), 3);
}

/// Bytes are limited as well as rows: the rest is taken by the next take, in order.
pub async fn a_byte_limit_is_kept(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let large = || crate::Event::new("large").json(&"x".repeat(2_000));
    for group_lease in [true, false] {
        let ids = scene.write([large(), large(), large(), large(), large(), large()]).await;
        let mut seen = Vec::new();
        let mut from = Origin::Start;
        for _ in 0..6 {
            let take = Take { from, max_bytes: 5_500, limit: 100, group_lease, ..leasing("a") };
            let taken = scene.take(&take).await;
            assert!(taken.deliveries.len() <= 2, "{} of 2,500 bytes each", taken.deliveries.len());
            assert!(taken.scanned >= 100 || taken.deliveries.len() + seen.len() == 6, "there is more");
            for delivery in &taken.deliveries {
                seen.push(delivery.event.id().clone());
                scene.settle("a", delivery, Verdict::Done).await;
            }
            from = after(taken.cursor);
        }
        assert_eq!(seen, ids, "each once, in order");
    }
    scene.write([large(), large()]).await;
    let none = Take { max_bytes: 0, ..leasing("a") };
    assert_eq!(scene.take(&none).await.deliveries.len(), 1, "the first is taken whatever its size");
}

/// Due times, leases and retries, without a frozen clock.
pub async fn the_databases_clock_decides_unless_frozen(harness: &impl Harness) {
    let store = harness.connect(Clock::Database).await;
    store.migrate().await.unwrap();
    let soon = Duration::from_secs(3_600);
    let events =
        [event("now"), event("later").deliver_after(soon), keyed_now()].map(|event| event.build().unwrap());
    store.insert(&events).await.unwrap();
    let taken = store.take(&leasing("a")).await.unwrap().deliveries;
    assert_eq!(ids(&taken), [events[0].id().clone(), events[2].id().clone()]);
    let stored = store.find(events[0].id()).await.unwrap().unwrap();
    let (_, until) = stored.lease.unwrap();
    let left = until - Utc::now();
    assert!(left <= chrono::Duration::seconds(40) && left > chrono::Duration::zero(), "{left}");
    let later = store.find(events[1].id()).await.unwrap().unwrap();
    assert_eq!(later.available_at - later.created_at, chrono::Duration::seconds(3_600));

    let settlements = [settlement(&taken[0], again(3_600)), settlement(&taken[1], Verdict::Done)];
    assert_eq!(store.settle(&holder("a"), Default::default(), &settlements).await.unwrap().moved, 2);
    assert!(store.take(&leasing("b")).await.unwrap().deliveries.is_empty());
    let retried = store.find(events[0].id()).await.unwrap().unwrap();
    assert!(retried.available_at > Utc::now() + chrono::Duration::minutes(50));
    // A lease of zero has expired when the next node reads it.
    store.insert(&[event("brief").build().unwrap()]).await.unwrap();
    let brief = crate::store::Holder::Lease { owner: NodeId::from("a"), lease: Duration::ZERO };
    assert_eq!(store.take(&taking(brief)).await.unwrap().deliveries.len(), 1);
    assert_eq!(store.take(&leasing("b")).await.unwrap().deliveries.len(), 1);
    assert_eq!(store.backlog().await.unwrap().pending, 3);
}

fn keyed_now() -> crate::event::EventBuilder {
    super::keyed("k")
}
