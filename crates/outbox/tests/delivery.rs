//! How events reach their handlers: hot path, cold path, once, and eventually.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Backend, FOREVER, Gate, Seen, TestDb, ids_of, numbered, until};
use outbox::store::{EXCLUSIVE, Filter, Holder, Leadership, NodeId, Origin, Status, Take};
use outbox::{Backoff, Error, Event, EventId, Failure, OnDead, RelayBuilder};

/// A delay that never ends in a test.
const NEVER: Duration = Duration::from_secs(3_600);
const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(3);

/// Moves the clock by most of a [`LEASE`], and waits until the leases of these events are renewed.
async fn renewed<DB: Backend>(db: &TestDb<DB>, ids: &[EventId]) {
    let mut before = Vec::new();
    for id in ids {
        before.push((id, db.find(id).await.lease));
    }
    db.advance(LEASE * 2 / 3);
    for (id, lease) in before {
        until("the lease is renewed", async || db.find(id).await.lease != lease).await;
    }
}

on_every_database! {
    /// Other programs read and write these numbers.
    async fn statuses_have_their_numbers_in_the_table(|db|) {
        let (seen, hour) = (Seen::default(), Duration::from_secs(3_600));
        let relay = db.outbox.multi_node().on_type("done", seen.handler());
        let relay = relay.on_type("retry", seen.returning(move |_| Err(Failure::retry_after(hour, "no"))));
        let relay = relay.on_type("dead", seen.returning(|_| Err(Failure::dead("no"))));
        let relay = relay.start().await.unwrap();
        for event_type in ["done", "retry", "dead", "new"] {
            db.write(event_type, 0..1).await;
        }
        relay.idle().await.unwrap();
        for (event_type, status) in [("new", 0), ("done", 1), ("retry", 2), ("dead", 3)] {
            let sql = format!("SELECT count(*) FROM {{t}} WHERE event_type = '{event_type}' AND status = {status}");
            assert_eq!(db.number(&sql).await, 1, "{event_type}");
        }
        relay.stop().await.unwrap();
    }

    /// The poller does not run, so only the hot path can have delivered the event.
    async fn a_committed_event_is_delivered_by_the_hot_path_and_is_done(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).skip_recent(NEVER).poll_interval(NEVER).start().await.unwrap();
            let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
            seen.reach(1).await;
            relay.idle().await.unwrap();
            let stored = db.find(&id).await;
            assert_eq!((stored.status, stored.attempts, stored.lease), (Status::Done, 0, None));
            assert!(stored.done_at.is_some());
            relay.stop().await.unwrap();
            assert_eq!(seen.numbers(), [1]);
        }
    }

    async fn the_poller_finds_events_of_another_process(|db|) {
        let writer = db.another().await;
        for relay in [db.outbox.single_node(), db.outbox.multi_node(), db.outbox.ordered()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).poll_interval(NEVER).start().await.unwrap();
            relay.idle().await.unwrap();
            writer.write("e", 0..20).await;
            relay.idle().await.unwrap();
            seen.assert_each_once(0..20);
            relay.stop().await.unwrap();
        }
        assert_eq!(db.status_counts().await, (0, 0, 60, 0));
    }

    /// Case 7: a JSON column that normalizes would show on one path only.
    async fn both_paths_deliver_every_byte_as_it_was_written(|db|) {
        let text = "{\"z\":1,  \"a\":1.50, \"a\":1.0, \"n\":\"\\u0000\", \"ü\" : [ ] }";
        let blob: Vec<u8> = (0..=255).collect();
        let events = || [
            Event::new("e").json_text(text).tenant("acme").header("h", "wert ü").correlation("story")
                .aggregate("order", "42"),
            Event::new("e").bytes("application/x-all", blob.clone()),
            Event::new("e").bytes("text/plain", ""),
        ];
        for hot in [true, false] {
            let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
            let relay = db.outbox.single_node().workers(1).on_type("e", move |cx: outbox::Context| {
                sender.send(cx.event().clone()).unwrap();
                async {}
            });
            let relay = if hot { relay.skip_recent(NEVER) } else { relay.no_hot_path() };
            let relay = relay.start().await.unwrap();
            db.outbox.send_all(events()).await.unwrap();
            let mut all = Vec::new();
            while all.len() < 3 {
                all.push(received.recv().await.unwrap());
            }
            all.sort_by_key(|event| event.id().clone());
            let [json, bytes, empty] = all.try_into().unwrap();
            assert_eq!(json.payload_bytes(), text.as_bytes(), "hot: {hot}");
            assert_eq!(json.tenant_id(), Some("acme"));
            assert_eq!(json.header("h"), Some("wert ü"));
            assert_eq!(json.correlation_id(), Some("story"));
            assert_eq!((json.aggregate_type().as_str(), json.aggregate_id()), ("order", Some("42")));
            assert_eq!((bytes.payload_bytes(), bytes.content_type()), (&*blob, "application/x-all"));
            assert_eq!((empty.payload_bytes(), empty.content_type()), (&b""[..], "text/plain"));
            relay.stop().await.unwrap();
        }
    }

    /// The first attempt uses the hot path, without reading the row; the second is read from the
    /// table.
    async fn both_paths_report_the_same_times_and_a_retry_has_its_last_error(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
            let relay = relay.retry(Backoff::default().base(MS).max(MS)).on_type("e", move |cx: outbox::Context| {
                sender.send(cx.clone()).unwrap();
                async move { if cx.attempt() == 1 { Err(outbox::Failure::retry("no answer")) } else { Ok(()) } }
            });
            let relay = relay.start().await.unwrap();
            let ids = ids_of(db.outbox.send_all([numbered("e", 1), numbered("e", 2).dedup_key("d")]).await.unwrap());
            let mut all = Vec::new();
            while all.len() < 4 {
                all.push(received.recv().await.unwrap());
            }
            for id in &ids {
                let of = |attempt: u32| all.iter().find(|cx| cx.id() == id && cx.attempt() == attempt).unwrap();
                let (hot, cold) = (of(1), of(2));
                assert!(hot.seq().is_none() && cold.seq().is_some(), "one attempt on each path");
                let created_at = db.find(id).await.created_at;
                for cx in [hot, cold] {
                    assert_eq!(cx.created_at(), Some(created_at));
                    assert_eq!((cx.is_delayed(), cx.available_at()), (false, None));
                }
                assert_eq!((hot.last_error(), cold.last_error()), (None, Some("no answer")));
            }
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            db.run("DELETE FROM {t}").await.unwrap();
        }
    }

    /// Without `idle` and `poll_once`, which poll themselves.
    async fn the_poller_polls_by_itself(|db|) {
        let writer = db.another().await;
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).poll_interval(20 * MS).start().await.unwrap();
            for n in 0..3 {
                writer.write("e", n..n + 1).await;
                seen.reach(n as usize + 1).await;
            }
            relay.stop().await.unwrap();
            seen.assert_each_once(0..3);
        }
    }

    /// not again for the row, the hot path, or a retry.
    async fn a_payload_is_serialized_once(|db|) {
        struct Counted(AtomicUsize);
        impl serde::Serialize for Counted {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u64(self.0.fetch_add(1, Ordering::SeqCst) as u64)
            }
        }
        for hot in [true, false] {
            let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
            let relay = db.outbox.single_node().retry(Backoff::default().base(MS).max(MS));
            let relay = if hot { relay } else { relay.no_hot_path() };
            let relay = relay.on_type("e", move |cx: outbox::Context| {
                sender.send(cx.payload::<u64>().unwrap()).unwrap();
                async move { if cx.attempt() == 1 { Err(outbox::Failure::retry("again")) } else { Ok(()) } }
            });
            let relay = relay.start().await.unwrap();
            let payload = Counted(AtomicUsize::new(0));
            db.outbox.send(Event::new("e").json(&payload)).await.unwrap();
            for _ in 0..2 {
                assert_eq!(received.recv().await, Some(0), "hot: {hot}");
            }
            assert_eq!(payload.0.load(Ordering::SeqCst), 1, "hot: {hot}");
            relay.stop().await.unwrap();
        }
    }

    async fn an_event_that_does_not_fit_into_the_hot_queue_stays_new_and_is_polled(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let (seen, gate) = (Seen::default(), Gate::closed());
            let relay = relay.on_type("e", seen.behind(&gate)).workers(1).hot_capacity(2).cold_capacity(1)
                .start().await.unwrap();
            db.write("e", 0..1).await;
            seen.reach(1).await;
            let ids = db.write("e", 1..20).await;
            assert_eq!(ids.len(), 19, "a full queue fails no write");
            for id in &ids {
                assert_eq!(db.status(id).await, Status::New);
            }
            gate.open();
            seen.reach(20).await;
            relay.idle().await.unwrap();
            seen.assert_each_once(0..20);
            relay.stop().await.unwrap();
        }
    }

    async fn workers_take_two_hot_events_for_each_cold_one(|db|) {
        let (seen, gate) = (Seen::default(), Gate::closed());
        let relay = db.outbox.single_node().workers(1).poll_interval(NEVER)
            .on_type("gate", seen.behind(&gate)).on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        db.write("gate", 1_000..1_001).await;
        seen.reach(1).await;
        db.another().await.write("e", 100..130).await;
        relay.poll_once().await.unwrap();
        db.write("e", 0..30).await;
        gate.open();
        seen.reach(61).await;
        let first: Vec<bool> = seen.numbers()[1..31].iter().map(|n| *n < 100).collect();
        let hot = first.iter().filter(|hot| **hot).count();
        assert!((19..=21).contains(&hot), "{hot} of the first 30 were hot");
        relay.stop().await.unwrap();
    }

    /// Case 1: hot and cold race for every event of a burst.
    async fn a_burst_of_a_thousand_is_delivered_once_each(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().workers(24).poll_interval(5 * MS)
            .on_type("e", seen.taking(30 * MS)).start().await.unwrap();
        let writers = (0..10u64).map(|w| {
            let outbox = db.outbox.clone();
            async move {
                for n in 0..10 {
                    let first = w * 100 + n * 10;
                    outbox.send_all((first..first + 10).map(|n| numbered("e", n))).await.unwrap();
                }
            }
        });
        futures_util::future::join_all(writers).await;
        seen.reach(1_000).await;
        relay.idle().await.unwrap();
        seen.assert_each_once(0..1_000);
        assert_eq!(db.status_counts().await, (0, 0, 1_000, 0));
        relay.stop().await.unwrap();
    }

    /// Case 2: two nodes that share a table, each with a hot path of its own.
    async fn two_nodes_deliver_each_event_once(|db|) {
        let other = db.another().await;
        let seen = Seen::default();
        let mut relays = Vec::new();
        for outbox in [&db.outbox, &other.outbox] {
            relays.push(outbox.multi_node().workers(8).poll_interval(5 * MS)
                .on_type("e", seen.taking(2 * MS)).start().await.unwrap());
        }
        for n in 0..25 {
            db.write("e", n * 20..n * 20 + 10).await;
            other.write("e", n * 20 + 10..n * 20 + 20).await;
        }
        seen.reach(500).await;
        for relay in &relays {
            relay.idle().await.unwrap();
        }
        seen.assert_each_once(0..500);
        assert_eq!(db.status_counts().await, (0, 0, 500, 0));
        let nodes: std::collections::HashSet<String> = seen.calls().into_iter().map(|c| c.node).collect();
        assert_eq!(nodes.len(), 2);
        for relay in relays {
            relay.stop().await.unwrap();
        }
    }

    /// Two nodes on events of a third process: only claims prevent duplicates.
    async fn two_pollers_share_a_backlog_without_overlap(|db|) {
        db.write("e", 0..600).await;
        let seen = Seen::default();
        let (a, b) = (db.another().await, db.another().await);
        let start = |outbox: outbox::Outbox<DB>| {
            let relay = outbox.multi_node().workers(16).batch(10).poll_interval(5 * MS);
            relay.on_type("e", seen.taking(2 * MS)).start()
        };
        let (a, b) = (start(a.outbox.clone()).await.unwrap(), start(b.outbox.clone()).await.unwrap());
        seen.reach(600).await;
        a.idle().await.unwrap();
        b.idle().await.unwrap();
        seen.assert_each_once(0..600);
        a.stop().await.unwrap();
        b.stop().await.unwrap();
    }

    /// Case 11: no claims on rows, many workers, and a poller without pauses.
    async fn one_node_without_claims_delivers_a_backlog_once(|db|) {
        db.write("e", 0..1_000).await;
        let seen = Seen::default();
        let relay = db.outbox.single_node().workers(32).no_hot_path().poll_interval(MS)
            .on_type("e", seen.taking(5 * MS)).start().await.unwrap();
        while seen.count() < 1_000 {
            relay.poll_once().await.unwrap();
        }
        relay.idle().await.unwrap();
        seen.assert_each_once(0..1_000);
        relay.stop().await.unwrap();
    }

    /// Case 9: the old system needed 200 s for this with its default settings.
    async fn a_backlog_does_not_wait_for_poll_intervals(|db|) {
        db.write("e", 0..2_000).await;
        let seen = Seen::default();
        let began = Instant::now();
        let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
        seen.reach(2_000).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        relay.idle().await.unwrap();
        seen.assert_each_once(0..2_000);
        relay.stop().await.unwrap();
    }

    /// Each pause between polls is twice the one before, up to the poll interval.
    async fn an_idle_relay_polls_less_and_less_often(|db|) {
        let store = failing_store::FailingStore::never(db.outbox.store());
        let (began, mut polls) = (Instant::now(), 0);
        let relay = RelayBuilder::multi_node(store.clone()).poll_interval(NEVER).start().await.unwrap();
        let has_polled = async || {
            polls += store.calls();
            polls >= 6
        };
        until("the relay has polled six times", has_polled).await;
        // Pauses of 50, 100, 200, 400 and 800 ms; a slow machine only makes them longer.
        let time = began.elapsed();
        assert!(time > 1_000 * MS, "{polls} polls within {time:?}");
        relay.stop().await.unwrap();
    }

    /// Case 10: the old system read and sorted all pending events at every poll.
    async fn a_poll_costs_the_same_however_much_is_pending(|db|) {
        let other = TestDb::<DB>::new().await.unwrap();
        let mut takes = Vec::new();
        for (db, doublings) in [(&db, 0), (&other, 7)] {
            db.write("e", 0..200).await;
            for _ in 0..doublings {
                let sql = "INSERT INTO {t} (event_type, payload) SELECT event_type, payload FROM {t}";
                db.run(sql).await.unwrap();
            }
            // The database does this by itself, some time after so many rows; MySQL does it at
            // once.
            let _ = db.run("ANALYZE {t}").await;
            let (store, owner) = (db.outbox.store(), NodeId::from("a"));
            let Leadership::Held { epoch, .. } = store.lead(EXCLUSIVE, &owner, FOREVER).await.unwrap() else {
                panic!("no other node leads");
            };
            let take = Take {
                by: Holder::Exclusive { owner, epoch },
                from: Origin::Start,
                limit: 50,
                skip_recent: Duration::ZERO,
                on_dead: OnDead::Hold,
                skip_types: Vec::new(),
                only: None,
                probe: None,
                destinations: Default::default(),
                held_up_to: Default::default(),
                group_lease: false,
                max_bytes: usize::MAX,
                by_aggregate: false,
            };
            takes.push((store, take, Duration::MAX));
        }
        // In turns, and the minimum of each: the load of the machine slows down both alike.
        for _ in 0..15 {
            for (store, take, least) in &mut takes {
                let began = Instant::now();
                assert_eq!(store.take(take).await.unwrap().deliveries.len(), 50);
                *least = began.elapsed().min(*least);
            }
        }
        let (few, many) = (takes[0].2, takes[1].2);
        assert!(many < few * 8 + 10 * MS, "few pending: {few:?}, 128 times as many: {many:?}");
    }

    /// Case 12: the handler succeeded; a failed settlement is not a failure of the handler.
    async fn a_settlement_that_fails_is_not_a_failure_of_the_handler(|db|) {
        for exclusive in [true, false] {
            let store = failing_store::FailingStore::settle(db.outbox.store(), 5, || sqlx::Error::PoolTimedOut.into());
            let seen = Seen::default();
            let relay = if exclusive { RelayBuilder::single_node(store.clone()) } else { RelayBuilder::multi_node(store.clone()) };
            let relay = relay.on_type("e", seen.handler()).retry(Backoff::never()).poll_interval(5 * MS)
                .start().await.unwrap();
            let ids = db.write("e", 0..5).await;
            seen.reach(5).await;
            relay.idle().await.unwrap();
            assert_eq!(store.failed(), 5, "all failures happened");
            seen.assert_each_once(0..5);
            for id in &ids {
                let stored = db.find(id).await;
                assert_eq!((stored.status, stored.attempts, stored.last_error), (Status::Done, 0, None));
            }
            relay.stop().await.unwrap();
        }
    }

    /// The same for an error that is not transient, as a full disk causes.
    async fn a_database_that_refuses_verdicts_for_a_while_repeats_no_handler(|db|) {
        let store = failing_store::FailingStore::settle(db.outbox.store(), 6, || Error::Store("disk full".into()));
        let seen = Seen::default();
        let relay = RelayBuilder::single_node(store.clone()).on_type("e", seen.handler()).poll_interval(5 * MS)
            .start().await.unwrap();
        db.write("e", 0..3).await;
        seen.reach(3).await;
        relay.idle().await.unwrap();
        assert_eq!(store.failed(), 6);
        seen.assert_each_once(0..3);
        assert_eq!(db.status_counts().await, (0, 0, 3, 0));
        relay.stop().await.unwrap();
    }

    async fn a_relay_continues_to_take_after_the_database_was_unavailable(|db|) {
        let store = failing_store::FailingStore::take(db.outbox.store(), 3, || sqlx::Error::PoolTimedOut.into());
        db.write("e", 0..3).await;
        let seen = Seen::default();
        let relay = RelayBuilder::multi_node(store.clone()).on_type("e", seen.handler()).start().await.unwrap();
        seen.reach(3).await;
        relay.idle().await.unwrap();
        assert_eq!(store.failed(), 3);
        seen.assert_each_once(0..3);
        relay.stop().await.unwrap();
    }

    /// The handler runs twice as long as the lease, while another node waits for the lease to
    /// expire.
    async fn a_handler_may_take_longer_than_its_lease(frozen |db|) {
        let other = db.another().await;
        let (seen, gate) = (Seen::default(), Gate::closed());
        let mut relays = Vec::new();
        for outbox in [&db.outbox, &other.outbox] {
            relays.push(outbox.multi_node().lease(LEASE).poll_interval(20 * MS)
                .on_type("e", seen.behind(&gate)).start().await.unwrap());
        }
        // Events of both paths: each path leases in its own way.
        let mut ids = db.write("e", 0..2).await;
        ids.extend(db.another().await.write("e", 2..4).await);
        seen.reach(4).await;
        for _ in 0..3 {
            renewed(&db, &ids).await;
        }
        gate.open();
        db.drained().await;
        seen.assert_each_once(0..4);
        for relay in relays {
            relay.stop().await.unwrap();
        }
    }

    /// An open transaction holds a slot in the hot queue, and a lock on its row.
    async fn an_open_transaction_does_not_keep_leases_from_being_renewed(frozen |db|) {
        if db.url().ends_with(".db") {
            return; // SQLite has one writer: an open transaction blocks all others.
        }
        let (seen, gate) = (Seen::default(), Gate::closed());
        let other = db.another().await;
        let mut relays = Vec::new();
        for outbox in [&db.outbox, &other.outbox] {
            relays.push(outbox.multi_node().lease(LEASE).poll_interval(20 * MS)
                .on_type("e", seen.behind(&gate)).start().await.unwrap());
        }
        let mut tx = db.outbox.begin().await.unwrap();
        tx.write(numbered("e", 1)).await.unwrap();
        let id = db.outbox.send(numbered("e", 0)).await.unwrap().id;
        seen.reach(1).await;
        // The handler of 0 needs several leases; the transaction stays open for all of them. A
        // renewal follows the one before after a third of a lease, so after four the lease of 1 is
        // over by the clock of its relay as well.
        for _ in 0..4 {
            renewed(&db, std::slice::from_ref(&id)).await;
        }
        gate.open();
        let done = async || db.number("SELECT count(*) FROM {t} WHERE status = 1").await;
        until("the first event is done", async || done().await > 0).await;
        tx.commit().await.unwrap();
        db.drained().await;
        seen.assert_each_once(0..2);
        for relay in relays {
            relay.stop().await.unwrap();
        }
    }

    /// A transaction that commits after later ones were delivered is behind the poller's cursor.
    async fn a_late_commit_is_delivered(|db|) {
        if db.url().ends_with(".db") {
            return; // One writer: nothing commits late.
        }
        let writer = db.another().await;
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).poll_interval(50 * MS).start().await.unwrap();
            let mut late = writer.outbox.begin().await.unwrap();
            late.write(numbered("e", 0)).await.unwrap();
            writer.write("e", 1..60).await;
            seen.reach(59).await;
            relay.idle().await.unwrap();
            late.commit().await.unwrap();
            seen.reach(60).await;
            relay.idle().await.unwrap();
            seen.assert_each_once(0..60);
            relay.stop().await.unwrap();
        }
    }

    async fn a_delayed_event_waits_in_the_database_until_it_is_due(frozen |db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).start().await.unwrap();
            let at = db.clock.as_ref().unwrap().now() + chrono::Duration::seconds(30);
            let ids = ids_of(db.outbox.send_all([
                numbered("e", 1).deliver_after(Duration::from_secs(60)),
                numbered("e", 0).occurred_at(at - chrono::Duration::seconds(60)).available_at(at),
            ]).await.unwrap());
            relay.idle().await.unwrap();
            assert_eq!(seen.count(), 0);
            assert_eq!(db.find(&ids[0]).await.lease, None);
            db.advance(Duration::from_secs(31));
            relay.idle().await.unwrap();
            assert_eq!(seen.numbers(), [0]);
            db.advance(Duration::from_secs(30));
            relay.idle().await.unwrap();
            assert_eq!(seen.numbers(), [0, 1]);
            relay.stop().await.unwrap();
        }
    }

    /// The database's clock passed the end of the lease before it was renewed, and no other relay
    /// was there to claim the event.
    async fn a_relay_that_claims_its_own_event_again_continues_with_it(frozen |db|) {
        let (seen, gate) = (Seen::default(), Gate::closed());
        let drafts = (0..3).map(|n| numbered("e", n).ordering_key("k"));
        let ids = ids_of(db.outbox.send_all(drafts).await.unwrap());
        let relay = db.outbox.multi_node().presence(NEVER).poll_interval(5 * MS).on_type("e", seen.behind(&gate));
        let relay = relay.start().await.unwrap();
        seen.reach(1).await;
        db.advance(Duration::from_secs(60));
        let now = db.clock.as_ref().unwrap().now();
        let is_claimed = async || db.find(&ids[0]).await.lease.is_some_and(|(_, end)| end > now);
        until("the event is claimed again", is_claimed).await;
        gate.open();
        relay.idle().await.unwrap();
        assert_eq!(seen.numbers(), [0, 1, 2], "each once, and in order");
        for id in &ids {
            assert_eq!(db.status(id).await, Status::Done);
        }
        relay.stop().await.unwrap();
    }

    /// No poll happens by itself: the relay remembers when the events that it wrote are due.
    async fn a_delayed_event_is_delivered_on_time_without_a_poll(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().on_type("e", seen.handler()).poll_interval(NEVER).start().await.unwrap();
        relay.idle().await.unwrap();
        let began = Instant::now();
        db.outbox.send(numbered("e", 0).deliver_after(200 * MS)).await.unwrap();
        seen.reach(1).await;
        assert!(began.elapsed() >= 190 * MS, "{:?}", began.elapsed());
        relay.stop().await.unwrap();
    }

    async fn an_event_past_its_expiry_is_dead_and_never_handled(frozen |db|) {
        let seen = Seen::default();
        let soon = db.clock.as_ref().unwrap().now() + chrono::Duration::seconds(10);
        let old = db.outbox.send(numbered("e", 0).expires_at(soon)).await.unwrap().id;
        let still_good = db.outbox.send(numbered("e", 1).expires_at(soon + chrono::Duration::days(1))).await.unwrap().id;
        db.advance(Duration::from_secs(11));
        let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        let stored = db.find(&old).await;
        assert_eq!((stored.status, stored.attempts, stored.last_error.as_deref()), (Status::Dead, 0, Some("expired")));
        assert_eq!(db.status(&still_good).await, Status::Done);
        assert_eq!(seen.numbers(), [1]);
        relay.stop().await.unwrap();
    }

    /// Writers in other languages make mistakes; they must not stop the poller.
    async fn an_event_that_cannot_be_decoded_is_dead_and_the_others_are_delivered(|db|) {
        for headers in ["[1]", "{\"a\": 1}", "\"text\""] {
            let sql = format!("INSERT INTO {{t}} (event_type, payload, headers) VALUES ('e', '7', '{headers}')");
            db.run(&sql).await.unwrap();
        }
        db.run("INSERT INTO {t} (event_type, payload, headers) VALUES ('e', '8', 'null')").await.unwrap();
        db.write("e", 0..3).await;
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).start().await.unwrap();
            relay.idle().await.unwrap();
            let mut numbers = seen.numbers();
            numbers.sort_unstable();
            assert_eq!(numbers, [0, 1, 2, 8]);
            let filter = Filter { status: Some(Status::Dead), ..Filter::default() };
            let dead = db.outbox.admin().list(&filter, 10).await.unwrap();
            assert_eq!(dead.len(), 3);
            for event in dead {
                assert_eq!(event.attempts, 0);
                let reason = event.last_error.unwrap();
                assert!(reason.starts_with("cannot be decoded: its headers"), "{reason}");
            }
            relay.stop().await.unwrap();
            db.run("UPDATE {t} SET status = 0, done_at = NULL, last_error = NULL").await.unwrap();
        }
    }
}
