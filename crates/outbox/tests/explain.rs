//! Explanations of why an event is not delivered yet, with running relays.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{Gate, Poll, Seen, numbered};
use outbox::{
    Admin, Backoff, Event, EventId, Explanation, Failure, Outgoing, PublishError, Publisher, Reason,
    Unavailable,
};

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Polls the explanation until the reason matches.
async fn becomes(admin: &Admin, id: &EventId, wanted: impl Fn(&Reason) -> bool) -> Explanation {
    let explained = async || {
        let explained = admin.explain(id).await.unwrap();
        if wanted(explained.reason()) { Ok(explained) } else { Err(explained) }
    };
    Poll::DEFAULT.value("the event has the expected reason", explained).await
}

/// A broker that is down until the flag is set.
#[derive(Default)]
struct Broker {
    up: AtomicBool,
}

#[async_trait]
impl Publisher for Broker {
    fn name(&self) -> &'static str {
        "broker"
    }

    async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
        if self.health().await.is_ok() {
            Ok(())
        } else {
            Err(PublishError::unavailable("connection refused"))
        }
    }

    async fn health(&self) -> Result<(), Unavailable> {
        Unavailable::unless(self.up.load(Ordering::SeqCst), "it is not healthy")
    }
}

on_every_database! {
    async fn the_life_of_an_event_is_explained(|db|) {
        let (admin, seen, gate) = (db.outbox.admin(), Seen::default(), Gate::closed());
        let id = db.outbox.send(numbered("slow", 1).ordering_key("k")).await.unwrap().id;
        let next = db.outbox.send(numbered("slow", 2).ordering_key("k")).await.unwrap().id;
        let alone = admin.explain(&id).await.unwrap();
        assert!(matches!(alone.reason(), Reason::Waiting { at_work: false, .. }), "{alone}");

        let relay = db.outbox.multi_node().poll_interval(5 * MS).on_type("slow", seen.behind(&gate))
            .start().await.unwrap();
        seen.reach(1).await;
        let held = becomes(&admin, &id, |reason| matches!(reason, Reason::Held { .. })).await;
        assert!(held.to_string().contains(relay.node().as_str()), "{held}");
        gate.open();
        let done = becomes(&admin, &next, |reason| matches!(reason, Reason::Done { .. })).await;
        assert!(done.to_string().contains("is DONE"), "{done}");
        relay.stop().await.unwrap();
    }

    async fn a_retry_is_explained_with_its_time_and_error_and_the_events_behind_it(|db|) {
        let (admin, seen) = (db.outbox.admin(), Seen::default());
        let relay = db.outbox.ordered().poll_interval(5 * MS).retry(Backoff::default().base(DAY).max(DAY))
            .on_type("fails", seen.returning(|_| Err(Failure::retry("503")))).start().await.unwrap();
        let id = db.outbox.send(numbered("fails", 1).ordering_key("k")).await.unwrap().id;
        let next = db.outbox.send(numbered("fails", 2).ordering_key("k")).await.unwrap().id;
        let retry = becomes(&admin, &id, |reason| matches!(reason, Reason::NotDue { attempts: 1, .. })).await;
        assert!(retry.to_string().contains("503"), "{retry}");
        let behind = becomes(&admin, &next, |reason| matches!(reason, Reason::Behind { .. })).await;
        let Reason::Behind { event } = behind.reason() else { unreachable!() };
        assert_eq!(event.event_id, id);
        relay.stop().await.unwrap();
    }

    async fn the_leader_of_a_table_is_named(|db|) {
        let (admin, seen, gate) = (db.outbox.admin(), Seen::default(), Gate::closed());
        let relay = db.outbox.single_node().poll_interval(5 * MS).on_type("slow", seen.behind(&gate))
            .start().await.unwrap();
        let id = db.outbox.send(numbered("slow", 1)).await.unwrap().id;
        seen.reach(1).await;
        let explained = becomes(&admin, &id, |reason| matches!(reason, Reason::WithLeader { .. })).await;
        assert!(explained.to_string().contains("leads this table alone"), "{explained}");
        gate.open();
        becomes(&admin, &id, |reason| matches!(reason, Reason::Done { .. })).await;
        relay.stop().await.unwrap();
    }

    async fn a_destination_that_is_down_is_explained_until_it_is_up(|db|) {
        let (admin, broker) = (db.outbox.admin(), Arc::new(Broker::default()));
        let relay = db.outbox.multi_node().poll_interval(5 * MS).forward(["order"], broker.clone())
            .start().await.unwrap();
        let id = db.outbox.send(Event::new("order").json(&1)).await.unwrap().id;
        let explained = becomes(&admin, &id, |reason| matches!(reason, Reason::Outage { .. })).await;
        for word in ["goes to broker", "not healthy", relay.node().as_str()] {
            assert!(explained.to_string().contains(word), "no {word:?} in {explained}");
        }
        broker.up.store(true, Ordering::SeqCst);
        becomes(&admin, &id, |reason| matches!(reason, Reason::Done { .. })).await;
        relay.stop().await.unwrap();
    }

    /// A cancelled event, and one that never existed.
    async fn an_unknown_event_is_explained_too(|db|) {
        let admin = db.outbox.admin();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        assert!(admin.cancel(&id).await.unwrap());
        assert_eq!(*admin.explain(&id).await.unwrap().reason(), Reason::Unknown);
    }
}
