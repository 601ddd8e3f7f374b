//! Changes by operators: only to dead events, and with audit entries.

use super::{Harness, LEASE, SECOND, Scene, dead, event, holder, keyed};
use crate::event::{Event, EventId, Payload};
use crate::store::{AuditEntry, Edit, Filter, NodeId, Status, Verdict};

fn ada() -> NodeId {
    NodeId::from("ada")
}

/// Pending, leased, done and unknown events stay unchanged.
pub async fn only_a_dead_event_is_skipped(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let dead = scene.dead_letter(event("e")).await;
    let done = scene.write_one(event("e")).await;
    let delivery = scene.lease_one("a").await;
    scene.settle("a", &delivery, Verdict::Done).await;
    let held = scene.write_one(event("e")).await;
    scene.lease_one("a").await;
    let pending = scene.write_one(event("e")).await;
    for id in [&done, &held, &pending, &EventId::from("unknown")] {
        assert!(!scene.store.skip(id, &ada()).await.unwrap(), "{id}");
    }
    assert_eq!((scene.see(&held).await.status, scene.see(&pending).await.status), (Status::New, Status::New));
    assert_eq!(scene.see(&done).await.done_by, Some("a".into()));

    scene.pass(SECOND);
    assert!(scene.store.skip(&dead, &ada()).await.unwrap());
    let skipped = scene.see(&dead).await;
    assert_eq!((skipped.status, skipped.done_at), (Status::Done, Some(scene.now())));
    assert_eq!((skipped.done_by, skipped.last_error.as_deref()), (Some(ada()), Some("poison")));
    assert!(!scene.store.skip(&dead, &ada()).await.unwrap(), "it is not dead any more");
    assert_eq!(scene.store.replay(&Filter::default(), 10).await.unwrap().moved, 0);
    scene.pass(LEASE);
    let due: Vec<EventId> = scene.lease("b").await.iter().map(|d| d.event.id().clone()).collect();
    assert_eq!(due, [held, pending], "it is not delivered");
}

/// As if it had been handled.
pub async fn a_skipped_event_unblocks_its_key(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let head = scene.dead_letter(keyed("k")).await;
    let next = scene.write_one(keyed("k")).await;
    assert!(scene.lease("a").await.is_empty());
    assert!(scene.store.skip(&head, &ada()).await.unwrap());
    assert_eq!(*scene.lease_one("a").await.event.id(), next);
}

/// Of two concurrent changes, one takes effect.
pub async fn a_skip_and_a_replay_do_not_both_take_effect(harness: &impl Harness) {
    for _ in 0..5 {
        let scene = Scene::open(harness).await;
        let id = scene.dead_letter(event("e")).await;
        let filter = Filter { id: Some(id.clone()), ..Filter::default() };
        let operator = ada();
        let (skipped, replayed) =
            tokio::join!(scene.store.skip(&id, &operator), scene.store.replay(&filter, 1));
        let (skipped, replayed) = (skipped.unwrap(), replayed.unwrap().moved == 1);
        assert!(skipped != replayed);
        let status = scene.see(&id).await.status;
        assert_eq!(status, if skipped { Status::Done } else { Status::New });
        // The next round starts with an empty table.
        scene.store.cancel(&id).await.unwrap();
    }
}

/// The payload is replaced; everything else stays.
pub async fn the_payload_of_a_dead_event_is_replaced(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let original = Event::new("e").json_text(r#"{"a": 1}"#).header("h", "1").tenant("acme");
    let id = scene.dead_letter(original).await;
    let json = r#"{ "b" : "größer", "n": 1.0 }"#;
    assert!(scene.store.edit(&id, &Edit::json(json).unwrap()).await.unwrap());
    let edited = scene.see(&id).await;
    let event = edited.event.unwrap();
    assert_eq!((event.payload_bytes(), event.header("h")), (json.as_bytes(), Some("1")));
    assert_eq!((event.tenant_id(), edited.status), (Some("acme"), Status::Dead));
    assert_eq!((edited.attempts, edited.last_error.as_deref()), (1, Some("poison")));

    let bytes = Edit::bytes("application/x-thing", [0_u8, 255]).unwrap().header("only", "this").unwrap();
    assert!(scene.store.edit(&id, &bytes).await.unwrap());
    let event = scene.see(&id).await.event.unwrap();
    let expected = Payload::Bytes { content_type: "application/x-thing".to_owned(), data: vec![0, 255] };
    assert_eq!(
        (event.raw_payload(), event.headers().len(), event.header("only")),
        (&expected, 1, Some("this"))
    );

    let back = Edit::json("[1]").unwrap().headers::<String, String>([]).unwrap();
    assert!(scene.store.edit(&id, &back).await.unwrap());
    scene.store.replay(&Filter::default(), 1).await.unwrap();
    let delivered = scene.lease_one("a").await.event;
    assert_eq!((delivered.payload_bytes(), delivered.headers().len()), (&b"[1]"[..], 0));
    // The event is not dead now, nor when it is done.
    assert!(!scene.store.edit(&id, &Edit::json("[2]").unwrap()).await.unwrap());
    assert!(!scene.store.edit(&EventId::from("unknown"), &Edit::json("[2]").unwrap()).await.unwrap());
    assert_eq!(scene.see(&id).await.event.unwrap().payload_bytes(), b"[1]");
}

/// A late settlement changes neither a skipped nor an edited event.
pub async fn a_late_verdict_does_not_undo_an_operators_change(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let id = scene.write_one(event("e")).await;
    let late = scene.lease_one("a").await;
    scene.pass(LEASE);
    let delivery = scene.lease_one("b").await;
    scene.settle("b", &delivery, dead("no")).await;
    assert!(scene.store.skip(&id, &ada()).await.unwrap());
    for (owner, delivery) in [("a", &late), ("b", &delivery)] {
        assert_eq!(scene.settle_all(&holder(owner), [(delivery, dead("late"))]).await, 0);
    }
    let skipped = scene.see(&id).await;
    assert_eq!((skipped.status, skipped.last_error.as_deref()), (Status::Done, Some("no")));
}

/// Written before the change, completed with its outcome.
pub async fn audit_entries_are_written(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    assert!(scene.store.audits(None, 10).await.unwrap().is_empty());
    let text = |text: &str| text.to_owned();
    let entry = AuditEntry {
        actor: text("ada <b>"),
        via: text("api"),
        action: text("dead.replay"),
        target: Some(text("type=order.placed")),
        details: Some(text("{\"rate\": 10} \0")),
    };
    let first = scene.store.audit(&entry).await.unwrap();
    let began = scene.now();
    scene.pass(SECOND);
    let long = "ü".repeat(70_000);
    let cut = AuditEntry {
        actor: long.clone(),
        via: long.clone(),
        action: long.clone(),
        target: Some(long.clone()),
        details: Some(long),
    };
    let second = scene.store.audit(&cut).await.unwrap();
    let third = scene.store.audit(&AuditEntry::default()).await.unwrap();
    assert!(first < second && second < third);
    scene.store.finish_audit(first, "stopped: <i>", Some(7)).await.unwrap();
    scene.store.finish_audit(third, "done", None).await.unwrap();
    scene.store.finish_audit(third + 1_000, "unknown", Some(1)).await.unwrap();

    let all = scene.store.audits(None, 10).await.unwrap();
    assert_eq!(all.iter().map(|a| a.id).collect::<Vec<_>>(), [third, second, first]);
    let stored = &all[2];
    assert_eq!((stored.at, stored.actor.as_str(), stored.via.as_str()), (began, "ada <b>", "api"));
    assert_eq!(
        (stored.action.as_str(), stored.target.as_deref()),
        ("dead.replay", Some("type=order.placed"))
    );
    assert_eq!(stored.details.as_deref(), Some("{\"rate\": 10} \u{fffd}"));
    assert_eq!((stored.outcome.as_deref(), stored.count), (Some("stopped: <i>"), Some(7)));
    assert_eq!((all[1].outcome.as_deref(), all[1].count), (None, None));
    assert_eq!((all[1].actor.chars().count(), all[1].via.chars().count()), (255, 64));
    assert_eq!(
        (all[0].outcome.as_deref(), all[0].count, all[0].target.as_deref()),
        (Some("done"), None, None)
    );
    let page = scene.store.audits(Some(third), 1).await.unwrap();
    assert_eq!((page.len(), page[0].id), (1, second));
    assert!(scene.store.audits(None, 0).await.unwrap().is_empty());
}

/// By the time they were written.
pub async fn old_audit_entries_are_purged_in_batches(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let day = 86_400 * SECOND;
    assert_eq!(scene.store.purge_audits(day, 10).await.unwrap(), 0);
    let write = async |action: &str| {
        let entry =
            AuditEntry { actor: "ada".to_owned(), action: action.to_owned(), ..AuditEntry::default() };
        scene.store.audit(&entry).await.unwrap()
    };
    for _ in 0..5 {
        write("replay").await;
    }
    scene.pass(2 * day);
    let young = write("purge").await;
    for purged in [3, 2, 0] {
        assert_eq!(scene.store.purge_audits(day, 3).await.unwrap(), purged);
    }
    let left: Vec<i64> = scene.store.audits(None, 10).await.unwrap().iter().map(|audit| audit.id).collect();
    assert_eq!(left, [young]);
}
