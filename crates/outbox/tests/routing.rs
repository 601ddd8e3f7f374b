//! Relays with different handlers on one table: each takes the events that it routes, and leaves
//! the others.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Seen, ids_of, numbered, until};
use failing_store::FailingStore;
use outbox::store::{Holder, Origin, Routed, Status, Take};
use outbox::{
    Context, Destination, Event, EventType, Message, OnDead, Outcome, RelayBuilder, Router, TracingPublisher,
    Unrouted,
};
use serde::{Deserialize, Serialize};

const SEC: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(20);

/// A message of one aggregate type.
#[derive(Serialize, Deserialize)]
struct Paid(u64);

impl Message for Paid {
    const TYPE: &'static str = "paid";
    const AGGREGATE_TYPE: &'static str = "order";
}

/// Routes events of one type and one tenant to a destination; others have no route.
struct ForAcme {
    to: Destination,
    declares_types: bool,
}

impl Router for ForAcme {
    fn route(&self, event: &Event) -> Option<Destination> {
        let routed = event.event_type() == "mine" && event.tenant_id() == Some("acme");
        routed.then(|| self.to.clone())
    }

    fn of_type(&self, _: &EventType) -> Option<Destination> {
        None
    }

    fn routed(&self) -> Option<Arc<Routed>> {
        self.declares_types.then(|| Arc::new(Routed::default().and_type("mine")))
    }
}

on_every_database! {
    /// The relays share the table from two processes; keys have events of both kinds.
    async fn two_relays_with_different_handlers_share_a_table(|db|) {
        let other_process = db.another().await;
        let (left, right, both) = (Seen::default(), Seen::default(), Seen::default());
        let also_record = || {
            let both = both.clone();
            move |cx: &Context| {
                both.record(cx);
                Ok(Outcome::Done)
            }
        };
        let mut written = 0;
        let mut write = async |db: &common::TestDb<_>, count: u64| {
            let events = (written..written + count).map(|n| {
                let event = numbered(if n % 3 == 0 { "left" } else { "right" }, n);
                if n % 5 == 0 { event } else { event.ordering_key(format!("key-{}", n % 4)) }
            });
            db.outbox.send_all(events).await.unwrap();
            written += count;
        };
        write(&db, 60).await;
        let one = db.outbox.multi_node().poll_interval(SOON).on_type("left", left.returning(also_record())).start().await.unwrap();
        let two = other_process.outbox.multi_node().poll_interval(SOON).on_type("right", right.returning(also_record())).start().await.unwrap();
        // Also events that the process of one relay writes for the other.
        write(&db, 30).await;
        write(&other_process, 30).await;
        db.drained().await;
        one.stop().await.unwrap();
        two.stop().await.unwrap();
        assert!(both.attempts().iter().all(|attempt| *attempt == 1), "no event is attempted by a relay without a handler");
        let sorted = |seen: &Seen| {
            let mut numbers = seen.numbers();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(sorted(&left), (0..120).filter(|n| n % 3 == 0).collect::<Vec<_>>());
        assert_eq!(sorted(&right), (0..120).filter(|n| n % 3 != 0).collect::<Vec<_>>());
        for key in 0..4 {
            let of_key = both.numbers().into_iter().filter(|n| n % 5 != 0 && n % 4 == key);
            assert!(of_key.is_sorted(), "each key in its order, over both relays");
        }
    }

    /// With every kind of route, in every mode.
    async fn an_event_without_a_route_stays_pending_until_a_relay_knows_it(frozen |db|) {
        for mode in ["single_node", "multi_node", "ordered"] {
            let build = || match mode {
                "single_node" => db.outbox.single_node(),
                "multi_node" => db.outbox.multi_node(),
                _ => db.outbox.ordered(),
            };
            let seen = Seen::default();
            let mine = seen.clone();
            let relay = build()
                .on(move |Paid(_): Paid, cx: Context| { mine.record(&cx); async {} })
                .on_aggregate("bill", "sent", seen.handler())
                .on_type("all", seen.handler())
                .start().await.unwrap();
            let before = ids_of(db.outbox.send_all([
                numbered("paid", 1).aggregate("order", "1"),
                numbered("paid", 2).aggregate("bill", "1"),
                numbered("sent", 3),
                numbered("All", 4),
            ]).await.unwrap());
            let left: Vec<_> = before[1..].to_vec();
            for _ in 0..3 {
                relay.idle().await.unwrap();
                db.advance(SEC * 3);
            }
            assert_eq!(seen.numbers(), [1]);
            for id in &left {
                let stored = db.find(id).await;
                assert_eq!((stored.status, stored.attempts, stored.lease), (Status::New, 0, None), "{mode}");
                assert_eq!((stored.last_error, stored.available_at), (None, stored.created_at), "{mode}");
            }
            let unrouted = db.outbox.admin().unrouted(100).await.unwrap();
            assert_eq!((unrouted.count(), unrouted.types.len()), (3, 3), "{mode} {unrouted:?}");
            relay.stop().await.unwrap();

            let late = Seen::default();
            let relay = build().on_type("paid", late.handler()).on_type("All", late.handler())
                .on_aggregate("__GLOBAL__", "sent", late.handler()).start().await.unwrap();
            relay.idle().await.unwrap();
            let mut numbers = late.numbers();
            numbers.sort_unstable();
            assert_eq!(numbers, [2, 3, 4], "{mode}");
            assert_eq!(late.attempts(), [1, 1, 1]);
            assert!(db.outbox.admin().unrouted(100).await.unwrap().types.is_empty());
            relay.stop().await.unwrap();
        }
    }

    /// With a lease at insertion, or held in the memory of a leader, other relays could not take
    /// it.
    async fn an_event_that_its_own_process_does_not_route_is_inserted_without_a_lease(|db|) {
        let other_process = db.another().await;
        let seen = Seen::default();
        // No poll of its own within this test: only the hot path delivers.
        let here = db.outbox.multi_node().poll_interval(SEC * 600).on_type("mine", seen.handler()).start().await.unwrap();
        here.idle().await.unwrap();
        let mine = db.outbox.send(numbered("mine", 1)).await.unwrap().id;
        let other = db.outbox.send(numbered("other", 2)).await.unwrap().id;
        let stored = db.find(&other).await;
        assert_eq!((stored.status, stored.lease), (Status::New, None));
        until("the routed event is done", async || db.status(&mine).await == Status::Done).await;
        let relay = other_process.outbox.multi_node().on_type("other", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!(db.status(&other).await, Status::Done);
        assert_eq!(seen.numbers(), [1, 2]);
        relay.stop().await.unwrap();
        here.stop().await.unwrap();
    }

    /// A leader that does not route an event does not hold it in memory: the next leader delivers
    /// it at once.
    async fn a_leader_leaves_events_without_a_route_to_the_next_one(|db|) {
        let other_process = db.another().await;
        let seen = Seen::default();
        let leader = db.outbox.single_node().on_type("mine", seen.handler()).start().await.unwrap();
        let next = other_process.outbox.single_node().on_type("other", seen.handler()).start().await.unwrap();
        assert!(!next.is_active());
        let other = db.outbox.send(numbered("other", 2)).await.unwrap().id;
        db.outbox.send(numbered("mine", 1)).await.unwrap();
        leader.idle().await.unwrap();
        assert_eq!(seen.numbers(), [1]);
        let stored = db.find(&other).await;
        assert_eq!((stored.status, stored.attempts, stored.last_error), (Status::New, 0, None));
        let explained = db.outbox.admin().explain(&other).await.unwrap().to_string();
        assert!(explained.contains("leads this table alone (single_node), and does not route"), "{explained}");
        leader.stop().await.unwrap();
        db.drained().await;
        assert_eq!(seen.numbers(), [1, 2]);
        next.stop().await.unwrap();
    }

    /// A router may decide by more than the type: then an event is taken, and put off without an
    /// attempt.
    async fn an_event_without_a_destination_is_put_off_and_costs_no_attempt(frozen |db|) {
        for declares_types in [true, false] {
            let to = Destination::new(TracingPublisher::new());
            let relay = db.outbox.multi_node().forward_by(ForAcme { to, declares_types }).start().await.unwrap();
            let acme = db.outbox.send(numbered("mine", 1).tenant("acme")).await.unwrap().id;
            let globex = db.outbox.send(numbered("mine", 2).tenant("globex").deliver_after(SEC)).await.unwrap().id;
            let other = db.outbox.send(numbered("other", 3).deliver_after(SEC)).await.unwrap().id;
            db.advance(SEC);
            relay.idle().await.unwrap();
            assert_eq!(db.status(&acme).await, Status::Done);
            let put_off = db.find(&globex).await;
            assert_eq!((put_off.status, put_off.attempts), (Status::New, 0));
            let wait = put_off.available_at - db.clock.as_ref().unwrap().now();
            assert!(wait.num_seconds() >= 4 && wait.num_seconds() <= 600, "{wait}");
            let error = put_off.last_error.unwrap();
            assert!(error.starts_with("no handler for event type \"mine\""), "{error}");
            let left = db.find(&other).await;
            assert_eq!(left.last_error.is_none(), declares_types, "an undeclared type is not even taken");
            assert_eq!((left.status, left.attempts), (Status::New, 0));
            relay.stop().await.unwrap();
            db.run(&format!("DELETE FROM {}", db.table)).await.unwrap();
        }
    }

    /// Writers in other languages may write NULL. SQLite's table does not accept it.
    async fn a_row_without_an_aggregate_type_belongs_to_the_global_aggregate(|db|) {
        let values = "('null', 'paid', NULL, '1')";
        let insert = format!("INSERT INTO {} (event_id, event_type, aggregate_type, payload) VALUES {values}", db.table);
        if db.run(&insert).await.is_err() {
            assert!(!db.url().starts_with("postgres") && !db.url().starts_with("mysql"), "only SQLite refuses NULL");
            return;
        }
        let (order, global) = (Seen::default(), Seen::default());
        let relay = db.outbox.multi_node().on_aggregate("order", "paid", order.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status(&"null".into()).await, Status::New);
        // With a route by aggregate type, which reads the column.
        let relay = db.outbox.multi_node().on_aggregate("order", "sent", order.handler())
            .on_type("paid", global.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!((order.count(), global.count()), (0, 1));
    }

    /// Otherwise each poll would scan all of them again.
    async fn the_cursor_passes_events_that_are_not_routed(|db|) {
        // A read of the whole table is slow, so that other events are written in between.
        let watched = FailingStore::slow(db.outbox.store(), Duration::from_millis(50));
        db.write("other", 0..500).await;
        // As if they had been stored for some time.
        let past = format!("UPDATE {} SET available_at = '2020-01-01 00:00:00', created_at = '2020-01-01 00:00:00'", db.table);
        db.run(&past).await.unwrap();
        let seen = Seen::default();
        let relay = RelayBuilder::multi_node(watched.clone()).poll_interval(SOON)
            .on_type("mine", seen.handler()).start().await.unwrap();
        // A window that begins behind them was read.
        let is_behind = async || watched.read_from().is_some_and(|cursor| cursor.at.timestamp() >= 1_577_836_800);
        until("the relay reads from behind the events that are not routed", is_behind).await;
        db.outbox.send(numbered("mine", 7)).await.unwrap();
        seen.reach(1).await;
        relay.stop().await.unwrap();
        assert_eq!((seen.numbers(), db.status_counts().await), (vec![7], (500, 0, 1, 0)));
    }

    /// `OUTBOX_TEST_UNROUTED=100000` and `--nocapture` print the cost of many unrouted events.
    async fn a_take_does_not_scan_events_that_are_not_routed(|db|) {
        let count = std::env::var("OUTBOX_TEST_UNROUTED").map_or(2_000, |count| count.parse().unwrap());
        for from in (0..count).step_by(2_000) {
            db.write("other", from..(from + 2_000).min(count)).await;
        }
        let cursor = db.outbox.store().last_due(Duration::ZERO).await.unwrap();
        let mine = db.outbox.send(numbered("mine", 1).deliver_after(Duration::from_millis(1))).await.unwrap().id;
        db.due(count + 1).await;
        let take = |from: Origin, only: Option<Routed>| Take {
            by: Holder::Lease { owner: "a".into(), lease: SEC },
            from,
            limit: 50,
            skip_recent: Duration::ZERO,
            on_dead: OnDead::Hold,
            skip_types: Vec::new(),
            only: only.map(Arc::new),
            probe: None,
            destinations: Default::default(),
            held_up_to: Default::default(),
            group_lease: true,
            max_bytes: usize::MAX,
            by_aggregate: false,
        };
        let none = Routed::default().and_type("nothing");
        let with_pairs = none.clone().and_pair("order", "nothing").and_pattern("nothing.*");
        let behind = Origin::After(cursor.unwrap());
        for (what, from, only) in [
            ("from the start", Origin::Start, none.clone()),
            ("from the start, with pairs and patterns", Origin::Start, with_pairs),
            ("behind them", behind.clone(), none),
        ] {
            let take = take(from, Some(only));
            let mut best = Duration::MAX;
            for _ in 0..5 {
                let began = Instant::now();
                assert_eq!(db.outbox.store().take(&take).await.unwrap().scanned, 0);
                best = best.min(began.elapsed());
            }
            println!("{}: {count} events, {what}: {best:?}", db.url().split(':').next().unwrap());
        }
        let began = Instant::now();
        db.outbox.store().last_due(SEC).await.unwrap();
        println!("the last due event: {:?}", began.elapsed());
        let began = Instant::now();
        assert_eq!(db.outbox.store().unrouted(2_000).await.unwrap().count(), 0, "no relay runs");
        println!("events that no relay routes, without a relay: {:?}", began.elapsed());
        let taken = db.outbox.store().take(&take(behind, Some(Routed::default().and_type("mine")))).await.unwrap();
        assert_eq!(taken.deliveries.len(), 1);
        assert_eq!(*taken.deliveries[0].event.id(), mine);
    }

    /// The relay's own handlers run, whichever others are registered.
    async fn a_relay_without_handlers_takes_nothing(|db|) {
        let calls = Arc::new(AtomicUsize::new(0));
        db.write("e", 0..3).await;
        let relay = db.outbox.multi_node().start().await.unwrap();
        assert_eq!(relay.poll_once().await.unwrap(), 0);
        relay.stop().await.unwrap();
        let counted = calls.clone();
        let strict = db.outbox.multi_node().unrouted(Unrouted::Dead)
            .on_type("x", move |_: Context| { counted.fetch_add(1, Ordering::Relaxed); async {} }).start().await.unwrap();
        strict.idle().await.unwrap();
        strict.stop().await.unwrap();
        let (.., dead) = db.status_counts().await;
        assert_eq!((dead, calls.load(Ordering::Relaxed)), (3, 0));
    }
}
