//! Settling: each verdict takes effect, and only for the holder of the claim.

use std::time::Duration;

use super::{Harness, LEASE, SECOND, Scene, again, dead, event, holder, settlement};
use crate::event::EventId;
use crate::store::{Completion, Delivery, Filter, MAX_ERROR, Settlement, Status, Verdict};

/// A row with a time, or no row.
pub async fn done_events_are_kept_or_deleted(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("kept"), event("deleted")]).await;
    let taken = scene.lease("a").await;
    scene.pass(SECOND);
    assert_eq!(scene.settle("a", &taken[0], Verdict::Done).await, 1);
    let deleted = [settlement(&taken[1], Verdict::Done)];
    assert_eq!(scene.store.settle(&holder("a"), Completion::Delete, &deleted).await.unwrap().moved, 1);

    let kept = scene.see(&written[0]).await;
    assert_eq!(kept.status, Status::Done);
    assert_eq!(kept.done_at, Some(scene.now()));
    assert_eq!(kept.done_by, Some("a".into()));
    assert_eq!(kept.attempts, 0);
    assert_eq!(kept.lease, None);
    assert!(scene.find(&written[1]).await.is_none());
    assert!(scene.lease("b").await.is_empty());
}

/// A repeated settlement counts once.
pub async fn settling_twice_moves_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..5).map(|_| event("n"))).await;
    let taken = scene.lease("a").await;
    let verdicts = [Verdict::Done, again(9), dead("no"), Verdict::Released];
    for (delivery, verdict) in taken.iter().zip(verdicts) {
        assert_eq!(scene.settle("a", delivery, verdict.clone()).await, 1);
        let before = scene.see(delivery.event.id()).await;
        scene.pass(SECOND);
        assert_eq!(scene.settle("a", delivery, verdict).await, 0);
        assert_eq!(scene.settle("a", delivery, Verdict::Done).await, 0);
        assert_same(&before, &scene.see(delivery.event.id()).await);
    }
    let deleted = [settlement(&taken[4], Verdict::Done)];
    for moved in [1, 0] {
        let settled = scene.store.settle(&holder("a"), Completion::Delete, &deleted).await.unwrap().moved;
        assert_eq!(settled, moved);
    }
}

fn assert_same(before: &crate::store::StoredEvent, now: &crate::store::StoredEvent) {
    assert_eq!(before.status, now.status);
    assert_eq!(before.attempts, now.attempts);
    assert_eq!(before.available_at, now.available_at);
    assert_eq!(before.done_at, now.done_at);
    assert_eq!(before.last_error, now.last_error);
    assert_eq!(before.lease, now.lease);
}

/// RETRY, one attempt more, due later, and with the error.
pub async fn a_counted_failure_becomes_a_retry(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("flaky")).await;
    for attempts in 1..=3 {
        let taken = scene.lease_one("a").await;
        assert_eq!(taken.attempts, attempts - 1);
        assert_eq!(scene.settle("a", &taken, again(10)).await, 1);
        let stored = scene.see(&id).await;
        assert_eq!(stored.status, Status::Retry);
        assert_eq!(stored.attempts, attempts);
        assert_eq!(stored.available_at, scene.now() + chrono::Duration::seconds(10));
        assert_eq!(stored.last_error.as_deref(), Some("broker away"));
        assert_eq!((stored.done_at, stored.lease), (None, None));
        scene.pass(Duration::from_millis(9_999));
        assert!(scene.lease("a").await.is_empty());
        scene.pass(Duration::from_millis(1));
    }
    let taken = scene.lease_one("a").await;
    assert_eq!(taken.attempts, 3);
    scene.settle("a", &taken, Verdict::Done).await;
    let stored = scene.see(&id).await;
    assert_eq!((stored.status, stored.attempts), (Status::Done, 3));
}

/// NEW as before, only later.
pub async fn a_snoozed_event_stays_new(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("patient")).await;
    let defer = |error: Option<&str>| Verdict::Again {
        after: Duration::from_millis(1_500),
        counted: false,
        error: error.map(str::to_owned),
    };
    let taken = scene.lease_one("a").await;
    assert_eq!(scene.settle("a", &taken, defer(Some("not yet"))).await, 1);
    let stored = scene.see(&id).await;
    assert_eq!((stored.status, stored.attempts), (Status::New, 0));
    assert_eq!(stored.available_at, scene.now() + chrono::Duration::milliseconds(1_500));
    assert_eq!(stored.last_error.as_deref(), Some("not yet"));
    assert!(scene.lease("a").await.is_empty());
    scene.pass(2 * SECOND);
    let taken = scene.lease_one("a").await;
    assert_eq!(scene.settle("a", &taken, defer(None)).await, 1);
    assert_eq!(
        scene.see(&id).await.last_error.as_deref(),
        Some("not yet"),
        "without an error the old one stays"
    );
}

/// With the time of the settlement, whether or not this was an attempt.
pub async fn a_dead_event_has_a_time_and_an_error(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("failed"), event("refused")]).await;
    let taken = scene.lease("a").await;
    scene.pass(SECOND);
    for (delivery, counted) in taken.iter().zip([true, false]) {
        let verdict = Verdict::Dead { counted, reason: "no such customer".to_owned() };
        assert_eq!(scene.settle("a", delivery, verdict).await, 1);
    }
    for (id, attempts) in written.iter().zip([1, 0]) {
        let stored = scene.see(id).await;
        assert_eq!((stored.status, stored.attempts), (Status::Dead, attempts));
        assert_eq!(stored.done_at, Some(scene.now()));
        assert_eq!(stored.last_error.as_deref(), Some("no such customer"));
        assert_eq!(stored.lease, None);
    }
    scene.pass(100 * LEASE);
    assert!(scene.lease("a").await.is_empty());
}

/// Free immediately, with its former status and time.
pub async fn a_released_event_is_unchanged(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let fresh = scene.write_one(event("fresh")).await;
    let taken = scene.lease_one("a").await;
    let before = scene.see(&fresh).await;
    scene.pass(SECOND);
    assert_eq!(scene.settle("a", &taken, Verdict::Released).await, 1);
    let stored = scene.see(&fresh).await;
    assert_eq!((stored.status, stored.attempts, stored.lease), (Status::New, 0, None));
    assert_eq!(stored.available_at, before.available_at);

    let taken = scene.lease_one("b").await;
    scene.settle("b", &taken, again(1)).await;
    scene.pass(SECOND);
    let before = scene.see(&fresh).await;
    let taken = scene.lease_one("b").await;
    assert_eq!(scene.settle("b", &taken, Verdict::Released).await, 1);
    assert_same(&before, &scene.see(&fresh).await);
}

/// Cut between characters, with all characters that a database might refuse.
pub async fn errors_are_kept_to_their_limit(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for wide in ["x", "ä", "😀"] {
        let id = scene.write_one(event("wordy")).await;
        let taken = scene.lease_one("a").await;
        let error = Some(wide.repeat(MAX_ERROR + 1_000));
        let verdict = Verdict::Again { after: Duration::ZERO, counted: true, error };
        assert_eq!(scene.settle("a", &taken, verdict).await, 1);
        assert_eq!(scene.see(&id).await.last_error, Some(wide.repeat(MAX_ERROR)));
        let taken = scene.lease_one("a").await;
        let nasty = "a\0b\n\t\"quoted\" \\ 'single' $1 ? {events} é 😀";
        assert_eq!(scene.settle("a", &taken, dead(nasty)).await, 1);
        assert_eq!(scene.see(&id).await.last_error, Some(nasty.replace('\0', "\u{fffd}")));
    }
}

/// Another node took over: whatever the verdict of the former holder, it changes no row.
pub async fn a_stale_holder_settles_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("one")).await;
    let stale = scene.lease_one("a").await;
    scene.pass(LEASE);
    let current = scene.lease_one("b").await;
    let before = scene.see(&id).await;
    for verdict in [Verdict::Done, again(1), dead("late"), Verdict::Released] {
        assert_eq!(scene.settle("a", &stale, verdict).await, 0);
    }
    let deleted = [settlement(&stale, Verdict::Done)];
    assert_eq!(scene.store.settle(&holder("a"), Completion::Delete, &deleted).await.unwrap().moved, 0);
    assert_same(&before, &scene.see(&id).await);
    assert_eq!(scene.settle("b", &current, Verdict::Done).await, 1);
}

/// Knowing the claim is not enough.
pub async fn another_node_settles_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("one")).await;
    let taken = scene.lease_one("a").await;
    for other in ["b", "A", "a ", ""] {
        assert_eq!(scene.settle(other, &taken, Verdict::Done).await, 0, "{other:?}");
        assert_eq!(scene.settle(other, &taken, again(0)).await, 0, "{other:?}");
    }
    let unknown = Settlement { id: EventId::from("unknown"), claim: 1, verdict: Verdict::Done };
    assert_eq!(scene.store.settle(&holder("a"), Completion::Keep, &[unknown]).await.unwrap().moved, 0);
    assert_eq!(scene.see(&id).await.status, Status::New);
}

/// The claim counts, not the name: a settlement under a stale claim changes nothing.
pub async fn the_same_owner_settles_nothing_under_an_old_claim(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("one")).await;
    let stale = scene.lease_one("a").await;
    scene.pass(LEASE);
    let current = scene.lease_one("a").await;
    let before = scene.see(&id).await;
    for verdict in [Verdict::Done, again(1), dead("late"), Verdict::Released] {
        assert_eq!(scene.settle("a", &stale, verdict).await, 0);
    }
    let guessed = Delivery { claim: current.claim + 1, ..current.clone() };
    assert_eq!(scene.settle("a", &guessed, Verdict::Done).await, 0);
    assert_same(&before, &scene.see(&id).await);
    assert_eq!(scene.settle("a", &current, Verdict::Done).await, 1);
}

/// It is late, but no other node has claimed the event: its settlement counts.
pub async fn an_expired_holder_may_settle_until_another_node_takes_over(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("slow")).await;
    let taken = scene.lease_one("a").await;
    scene.pass(10 * LEASE);
    assert_eq!(scene.settle("a", &taken, Verdict::Done).await, 1);
    assert_eq!(scene.see(&id).await.status, Status::Done);
}

/// DONE and DEAD are final: no snooze, retry or release changes them.
pub async fn a_finished_event_stays_finished(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let written = scene.write([event("done"), event("dead")]).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.settle("a", &taken[1], dead("over")).await;
    let defer = Verdict::Again { after: SECOND, counted: false, error: None };
    for delivery in &taken {
        for verdict in [defer.clone(), again(1), dead("twice"), Verdict::Released, Verdict::Done] {
            assert_eq!(scene.settle("a", delivery, verdict).await, 0);
        }
    }
    assert_eq!(scene.see(&written[0]).await.status, Status::Done);
    let dead = scene.see(&written[1]).await;
    assert_eq!((dead.status, dead.last_error.as_deref()), (Status::Dead, Some("over")));
}

/// A thousand verdicts in one call, valid and stale, of every kind.
pub async fn a_batch_may_hold_every_verdict(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    scene.write((0..1_000).map(|_| event("n"))).await;
    let taken = scene.lease("a").await;
    assert_eq!(taken.len(), 1_000);
    let verdict = |n: usize| match n % 5 {
        0 => Verdict::Done,
        1 => again(60),
        2 => dead("no"),
        3 => Verdict::Released,
        _ => Verdict::Again { after: SECOND, counted: false, error: None },
    };
    let mut settlements: Vec<Settlement> =
        taken.iter().enumerate().map(|(n, d)| settlement(d, verdict(n))).collect();
    for stale in settlements.iter_mut().step_by(10) {
        stale.claim += 7;
    }
    assert_eq!(scene.store.settle(&holder("a"), Completion::Keep, &settlements).await.unwrap().moved, 900);
    let count = async |status| scene.count(Filter { status: Some(status), ..Filter::default() }).await;
    assert_eq!(count(Status::Done).await, 100, "every second one was stale");
    assert_eq!(count(Status::Retry).await, 200);
    assert_eq!(count(Status::Dead).await, 200);
    assert_eq!(count(Status::New).await, 500);
    assert_eq!(scene.store.settle(&holder("a"), Completion::Keep, &settlements).await.unwrap().moved, 0);
    assert_eq!(scene.lease("b").await.len(), 200, "the released ones");
}

/// An empty batch runs no statement.
pub async fn settling_nothing_moves_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert_eq!(scene.store.settle(&holder("a"), Completion::Keep, &[]).await.unwrap().moved, 0);
    assert_eq!(scene.store.settle(&holder("a"), Completion::Delete, &[]).await.unwrap().moved, 0);
}

/// Retries, snoozes and replays move `available_at`, which is not a delay set by the writer.
pub async fn a_delay_is_distinguished_from_a_retry(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let minute = Duration::from_secs(60);
    let due = scene.now() + minute;
    let later = || event("later").occurred_at(scene.now());
    // In a batch and alone: databases write the two differently.
    let mut ids =
        scene.write([event("plain"), later().deliver_after(minute), later().available_at(due)]).await;
    ids.push(scene.write_one(event("plain")).await);
    ids.push(scene.write_one(later().deliver_after(minute)).await);
    let created = scene.now();
    let check = |deliveries: &[Delivery], when: &str| {
        assert_eq!(deliveries.len(), ids.len(), "{when}");
        for delivery in deliveries {
            let delayed = delivery.event.event_type() == "later";
            assert_eq!(delivery.event.is_delayed(), delayed, "{when}: {:?}", delivery.event);
            assert_eq!(delivery.event.available_at(), delayed.then_some(due), "{when}");
            assert_eq!(delivery.created_at, Some(created), "{when}");
        }
    };
    scene.pass(minute);
    for (after, counted, reason) in [(minute, false, None), (minute, true, Some("no answer"))] {
        let taken = scene.lease("a").await;
        check(&taken, "before");
        for delivery in &taken {
            assert_eq!(delivery.last_error, None);
            let verdict = Verdict::Again { after, counted, error: reason.map(str::to_owned) };
            scene.settle("a", delivery, verdict).await;
        }
        scene.pass(minute);
    }
    let taken = scene.lease("a").await;
    check(&taken, "after a snooze and a retry");
    for delivery in &taken {
        assert_eq!(delivery.last_error.as_deref(), Some("no answer"));
        scene.settle("a", delivery, Verdict::Dead { counted: true, reason: "gone".to_owned() }).await;
    }
    let dead = Filter { status: Some(Status::Dead), ..Filter::default() };
    assert_eq!(scene.store.replay(&dead, 10).await.unwrap().moved, 5);
    let taken = scene.lease("a").await;
    check(&taken, "after a replay");
    assert!(taken.iter().all(|delivery| delivery.last_error.as_deref() == Some("gone")));
}
