//! Order per key: with many workers, many nodes, retries, late commits and dead events.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Gate, Seen, ids_of, numbered};
use outbox::store::Status;
use outbox::{Backoff, Event, EventBuilder, Failure, HookError, OnDead, Outcome, RelayBuilder, WriterHook};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// The n-th event of a key.
fn keyed(key: &str, number: u64) -> EventBuilder {
    numbered("e", number).ordering_key(key)
}

/// A pseudo-random decision that is the same in every run.
fn chance(state: &AtomicU64, percent: u64) -> bool {
    let n = state.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (n >> 33) % 100 < percent
}

/// Asserts that each key was handled as 0, 1, 2, … with repetitions of the same number only.
fn assert_in_order(seen: &Seen, keys: u64, each: u64) {
    let mut by_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for call in seen.calls() {
        by_key.entry(call.key.expect("keyed")).or_default().push(call.number);
    }
    assert_eq!(by_key.len() as u64, keys);
    for (key, mut numbers) in by_key {
        let all = numbers.clone();
        numbers.dedup();
        assert_eq!(numbers, (0..each).collect::<Vec<_>>(), "{key} came as {all:?}");
    }
}

fn quick() -> Backoff {
    Backoff::default().base(5 * MS).max(20 * MS).max_attempts(50)
}

on_every_database! {
    /// Case 3: 100 events, 237 deliveries, 132 out of order in the old system.
    async fn a_hundred_slow_events_of_a_key_are_delivered_once_and_in_order(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.ordered().workers(8).poll_interval(5 * MS)
            .on_type("e", seen.taking(5 * MS)).start().await.unwrap();
        for n in 0..10 {
            db.outbox.send_all((n * 10..n * 10 + 10).map(|n| keyed("k", n))).await.unwrap();
        }
        while seen.count() < 100 {
            relay.poll_once().await.unwrap();
        }
        relay.idle().await.unwrap();
        assert_eq!(seen.numbers(), (0..100).collect::<Vec<_>>());
        relay.stop().await.unwrap();
    }

    async fn keys_keep_their_order_with_many_workers_in_every_mode(|db|) {
        type Mode<DB> = fn(&outbox::Outbox<DB>) -> RelayBuilder<DB>;
        let modes: [Mode<DB>; 3] =
            [outbox::Outbox::single_node, outbox::Outbox::multi_node, outbox::Outbox::ordered];
        for mode in modes {
            let seen = Seen::default();
            let relay = mode(&db.outbox).workers(16).batch(7).poll_interval(5 * MS)
                .on_type("e", seen.taking(MS)).start().await.unwrap();
            for n in 0..20u64 {
                db.outbox.send_all((0..10).map(|k| keyed(&format!("k{k}"), n))).await.unwrap();
            }
            seen.reach(200).await;
            relay.idle().await.unwrap();
            assert_eq!(seen.count(), 200);
            assert_in_order(&seen, 10, 20);
            relay.stop().await.unwrap();
        }
    }

    /// Case 4, second half: a retry is not overtaken.
    async fn keys_keep_their_order_through_random_failures(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let (seen, dice) = (Seen::default(), AtomicU64::new(1));
            let relay = relay.workers(8).batch(16).poll_interval(5 * MS).retry(quick())
                .on_type("e", seen.returning(move |_| if chance(&dice, 5) { Err(Failure::retry("bad luck")) } else { Ok(Outcome::Done) }))
                .start().await.unwrap();
            for n in 0..40u64 {
                db.outbox.send_all((0..8).map(|k| keyed(&format!("k{k}"), n))).await.unwrap();
            }
            db.drained().await;
            assert!(seen.count() > 320, "something failed");
            assert_in_order(&seen, 8, 40);
            relay.stop().await.unwrap();
        }
        assert_eq!(db.status_counts().await, (0, 0, 640, 0));
    }

    async fn keys_keep_their_order_across_three_nodes(|db|) {
        let (seen, dice) = (Seen::default(), std::sync::Arc::new(AtomicU64::new(1)));
        let mut dbs = Vec::new();
        let mut relays = Vec::new();
        for node in 0..3 {
            let db = db.another().await;
            let dice = dice.clone();
            let relay = if node == 0 { db.outbox.ordered() } else { db.outbox.multi_node() };
            relays.push(relay.workers(4).batch(5).poll_interval(3 * MS).retry(quick())
                .on_type("e", seen.returning(move |_| if chance(&dice, 5) { Err(Failure::retry("bad luck")) } else { Ok(Outcome::Done) }))
                .start().await.unwrap());
            dbs.push(db);
        }
        // Written by all three in turn, each with its own relay that is woken first.
        for n in 0..40u64 {
            let outbox = &dbs[n as usize % 3].outbox;
            outbox.send_all((0..5).map(|k| keyed(&format!("k{k}"), n))).await.unwrap();
        }
        db.drained().await;
        assert_in_order(&seen, 5, 40);
        for relay in relays {
            relay.stop().await.unwrap();
        }
    }

    /// Events without a key use the hot path at the same time.
    async fn keys_keep_their_order_beside_events_without_one(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let (seen, others) = (Seen::default(), Seen::default());
            let relay = relay.workers(6).on_type("e", seen.taking(MS)).on_type("free", others.taking(MS))
                .start().await.unwrap();
            let writer = db.another().await;
            for n in 0..30u64 {
                // A key's events are written by this process and by another one, in turn.
                let outbox = if n % 2 == 0 { &db.outbox } else { &writer.outbox };
                outbox.send_all((0..3).map(|k| keyed(&format!("k{k}"), n))).await.unwrap();
                db.write("free", n * 3..n * 3 + 3).await;
                relay.wake();
            }
            relay.idle().await.unwrap();
            assert_eq!(seen.count(), 90);
            assert_in_order(&seen, 3, 30);
            others.assert_each_once(0..90);
            relay.stop().await.unwrap();
        }
    }

    /// Case 4, first half. Transactions on one key wait for each other, so none becomes visible
    /// after a later one.
    async fn two_transactions_on_one_key_are_delivered_in_the_order_they_were_written(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.poll_interval(5 * MS).on_type("e", seen.handler()).start().await.unwrap();
            for round in 0..5 {
                let key = format!("k{round}");
                let mut first = db.outbox.begin().await.unwrap();
                first.write(keyed(&key, 0)).await.unwrap();
                let second = tokio::spawn({
                    let (outbox, key) = (db.outbox.clone(), key.clone());
                    async move {
                        let mut second = outbox.begin().await.unwrap();
                        second.write(keyed(&key, 1)).await.unwrap();
                        second.commit().await.unwrap();
                    }
                });
                // Whether or not the second one waits by now: it must not be delivered first.
                for _ in 0..round {
                    tokio::time::sleep(2 * MS).await;
                    if !db.url().ends_with(".db") {
                        relay.poll_once().await.unwrap();
                    }
                }
                first.commit().await.unwrap();
                second.await.unwrap();
                seen.reach(2 * (round as usize + 1)).await;
                assert_eq!(seen.of_key(&key), [0, 1]);
            }
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
        }
    }

    /// Many writers on few keys: events are delivered in the order of the table.
    async fn concurrent_writers_of_a_key_are_delivered_in_the_order_of_the_table(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.multi_node().workers(8).poll_interval(3 * MS)
            .on_type("e", seen.handler()).start().await.unwrap();
        let writers = (0..4u64).map(|w| {
            let outbox = db.outbox.clone();
            tokio::spawn(async move {
                for n in 0..15 {
                    let mut tx = outbox.begin().await.unwrap();
                    for k in 0..2 {
                        tx.write(keyed(&format!("k{k}"), w * 100 + n)).await.unwrap();
                    }
                    if n % 5 == 4 { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        for k in 0..2 {
            let key = format!("k{k}");
            let listed = db.outbox.admin().list(&Default::default(), 1_000).await.unwrap();
            let of_key = listed.iter().filter_map(|stored| stored.event.as_ref().ok())
                .filter(|event| event.ordering_key() == Some(&key));
            let table: Vec<u64> = of_key.map(|event| event.payload().unwrap()).collect();
            assert_eq!(table.len(), 48);
            assert_eq!(seen.of_key(&key), table);
        }
    }

    async fn a_failing_event_blocks_its_own_key_only(frozen |db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node(), db.outbox.ordered()] {
            let seen = Seen::default();
            let relay = relay.retry(Backoff::default().base(SEC).max(SEC).no_jitter()).on_type("e", seen.returning(|cx| {
                let fails = cx.ordering_key() == Some("bad") && cx.attempt() < 3;
                if fails { Err(Failure::retry("not yet")) } else { Ok(Outcome::Done) }
            })).start().await.unwrap();
            db.outbox.send_all((0..10).flat_map(|n| [keyed("bad", n), keyed("good", n)])).await.unwrap();
            relay.idle().await.unwrap();
            assert_eq!(seen.of_key("good"), (0..10).collect::<Vec<_>>());
            assert_eq!(seen.of_key("bad"), [0]);
            db.advance(SEC);
            relay.idle().await.unwrap();
            assert_eq!(seen.of_key("bad"), [0, 0]);
            for _ in 0..30 {
                db.advance(SEC);
                relay.idle().await.unwrap();
            }
            let mut bad = seen.of_key("bad");
            assert_eq!(bad.len(), 30);
            bad.dedup();
            assert_eq!(bad, (0..10).collect::<Vec<_>>());
            relay.stop().await.unwrap();
        }
    }

    async fn a_deferred_event_blocks_its_key(frozen |db|) {
        let seen = Seen::default();
        let first = AtomicU64::new(0);
        let relay = db.outbox.single_node().on_type("e", seen.returning(move |_| {
            let deferred = first.fetch_add(1, Ordering::Relaxed) == 0;
            Ok(if deferred { Outcome::Snooze(SEC) } else { Outcome::Done })
        })).start().await.unwrap();
        db.outbox.send_all((0..3).map(|n| keyed("k", n))).await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!(seen.numbers(), [0]);
        db.advance(SEC);
        relay.idle().await.unwrap();
        assert_eq!(seen.numbers(), [0, 0, 1, 2]);
        relay.stop().await.unwrap();
    }

    /// The delayed event was written first, so it is delivered first, however late that is.
    async fn a_delayed_event_blocks_later_events_of_its_key(frozen |db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_type("e", seen.handler()).start().await.unwrap();
            db.outbox.send_all([keyed("k", 0), keyed("k", 1).deliver_after(SEC), keyed("k", 2)]).await.unwrap();
            relay.idle().await.unwrap();
            assert_eq!(seen.numbers(), [0]);
            db.advance(SEC);
            relay.idle().await.unwrap();
            assert_eq!(seen.numbers(), [0, 1, 2]);
            relay.stop().await.unwrap();
        }
    }

    async fn a_dead_event_blocks_its_key_until_it_is_replayed(|db|) {
        for exclusive in [true, false] {
            let (seen, gate) = (Seen::default(), std::sync::Arc::new(AtomicU64::new(0)));
            let broken = gate.clone();
            let relay = if exclusive { db.outbox.single_node() } else { db.outbox.multi_node() };
            let relay = relay.on_type("e", seen.returning(move |cx| {
                let dies = cx.ordering_key() == Some("k") && cx.payload::<u64>()? == 1 && broken.load(Ordering::SeqCst) == 0;
                if dies { Err(Failure::dead("broken")) } else { Ok(Outcome::Done) }
            })).start().await.unwrap();
            let ids = ids_of(db.outbox.send_all((0..4).map(|n| keyed("k", n)).chain([keyed("other", 9)])).await.unwrap());
            relay.idle().await.unwrap();
            assert_eq!(seen.of_key("k"), [0, 1]);
            assert_eq!(seen.of_key("other"), [9]);
            assert_eq!(db.status(&ids[1]).await, Status::Dead);
            let held = db.find(&ids[2]).await;
            assert_eq!((held.status, held.attempts), (Status::New, 0));
            assert!(held.lease.is_none(), "a waiting event has no lease");

            gate.store(1, Ordering::SeqCst);
            assert!(db.outbox.admin().replay(&ids[1]).await.unwrap());
            relay.idle().await.unwrap();
            assert_eq!(seen.of_key("k"), [0, 1, 1, 2, 3]);
            relay.stop().await.unwrap();
        }
    }

    async fn a_dead_event_is_skipped_if_that_is_the_policy(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.on_dead(OnDead::Skip).on_type("e", seen.returning(|cx| {
                if cx.payload::<u64>()? == 1 { Err(Failure::dead("broken")) } else { Ok(Outcome::Done) }
            })).start().await.unwrap();
            db.outbox.send_all((0..4).map(|n| keyed("k", n))).await.unwrap();
            relay.idle().await.unwrap();
            assert_eq!(seen.numbers(), [0, 1, 2, 3]);
            relay.stop().await.unwrap();
        }
    }

    async fn an_expired_event_blocks_its_key_like_any_dead_one(frozen |db|) {
        for (policy, expected) in [(OnDead::Hold, &[0][..]), (OnDead::Skip, &[0, 2][..])] {
            let seen = Seen::default();
            let end = db.clock.as_ref().unwrap().now() + chrono::Duration::hours(1);
            let key = format!("{policy:?}");
            let events = [keyed(&key, 0), keyed(&key, 1).expires_at(end), keyed(&key, 2)];
            db.outbox.send_all(events).await.unwrap();
            db.advance(SEC * 7_200);
            let relay = db.outbox.single_node().on_dead(policy).on_type("e", seen.handler()).start().await.unwrap();
            relay.idle().await.unwrap();
            assert_eq!(seen.of_key(&key), expected, "{policy:?}");
            relay.stop().await.unwrap();
        }
    }

    async fn an_undecodable_event_blocks_its_key_like_any_dead_one(|db|) {
        for (policy, expected) in [(OnDead::Hold, &[0][..]), (OnDead::Skip, &[0, 2][..])] {
            for exclusive in [true, false] {
                let seen = Seen::default();
                let key = format!("{policy:?}{exclusive}");
                db.outbox.send(keyed(&key, 0)).await.unwrap();
                let sql = format!("INSERT INTO {{t}} (event_type, ordering_key, payload, headers) VALUES ('e', '{key}', '1', '[7]')");
                db.run(&sql).await.unwrap();
                db.outbox.send(keyed(&key, 2)).await.unwrap();
                let relay = if exclusive { db.outbox.single_node() } else { db.outbox.multi_node() };
                let relay = relay.on_dead(policy).on_type("e", seen.handler()).start().await.unwrap();
                relay.idle().await.unwrap();
                assert_eq!(seen.of_key(&key), expected, "{policy:?}");
                relay.stop().await.unwrap();
            }
        }
    }

    /// As in the old system: one worker, one attempt.
    async fn strict_order_of_everything_is_one_worker_and_one_attempt(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.ordered().workers(1).retry(Backoff::never()).on_dead(OnDead::Skip)
            .on_type("e", seen.returning(|cx| if cx.payload::<u64>()? == 3 { panic!("three") } else { Ok(Outcome::Done) }));
        let ids = db.write("e", 0..50).await;
        let relay = relay.start().await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!(seen.numbers(), (0..50).collect::<Vec<_>>());
        let stored = db.find(&ids[3]).await;
        assert_eq!((stored.status, stored.attempts), (Status::Dead, 1));
        relay.stop().await.unwrap();
    }

    async fn ordered_keeps_the_events_of_an_aggregate_in_order(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.ordered().workers(8).retry(quick()).on_type("e", seen.returning(|cx| {
            let fails = cx.payload::<u64>()? % 3 == 0 && cx.attempt() == 1;
            if fails { Err(Failure::retry("once")) } else { Ok(Outcome::Done) }
        })).start().await.unwrap();
        for n in 0..10 {
            db.outbox.send_all((0..4).map(|a| numbered("e", n).aggregate("order", a.to_string()))).await.unwrap();
        }
        db.drained().await;
        assert_in_order(&seen, 4, 10);
        assert_eq!(seen.of_key("order/3")[..2], [0, 0]);
        relay.stop().await.unwrap();
    }

    /// Events of a key are settled one after another; a stop between them must not change the
    /// order.
    async fn a_stop_in_the_middle_of_a_key_continues_where_it_was(|db|) {
        for exclusive in [true, false] {
            let (seen, gate) = (Seen::default(), Gate::closed());
            let relay = || if exclusive { db.outbox.single_node() } else { db.outbox.multi_node() };
            let first = relay().drain(20 * MS).on_type("e", seen.behind(&gate)).start().await.unwrap();
            db.outbox.send_all((0..6).map(|n| keyed("k", n))).await.unwrap();
            seen.reach(1).await;
            gate.admit(2);
            seen.reach(3).await;
            first.stop().await.unwrap();
            assert_eq!(seen.numbers(), [0, 1, 2]);
            let second = relay().on_type("e", seen.handler()).start().await.unwrap();
            second.idle().await.unwrap();
            assert_eq!(seen.numbers(), [0, 1, 2, 2, 3, 4, 5]);
            second.stop().await.unwrap();
        }
    }

    /// More events of a key than a read, a turn of a worker or a queue holds.
    async fn a_key_with_many_events_is_delivered_to_its_end(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node()] {
            let seen = Seen::default();
            let relay = relay.batch(10).cold_capacity(20).on_type("e", seen.handler());
            db.outbox.send_all((0..400).flat_map(|n| [keyed("long", n), numbered("e", n)])).await.unwrap();
            let relay = relay.start().await.unwrap();
            relay.idle().await.unwrap();
            assert_eq!(seen.of_key("long"), (0..400).collect::<Vec<_>>());
            assert_eq!(seen.count(), 800);
            relay.stop().await.unwrap();
        }
    }

    /// The relay is woken by the commit, without a poll.
    async fn an_ordered_relay_does_not_wait_for_its_poll(|db|) {
        for relay in [db.outbox.single_node(), db.outbox.multi_node(), db.outbox.ordered()] {
            let seen = Seen::default();
            let relay = relay.poll_interval(SEC * 3_600).on_type("e", seen.handler()).start().await.unwrap();
            relay.idle().await.unwrap();
            for n in 0..20 {
                db.outbox.send(keyed("k", n)).await.unwrap();
                seen.reach(n as usize + 1).await;
            }
            assert_eq!(seen.numbers(), (0..20).collect::<Vec<_>>());
            relay.stop().await.unwrap();
        }
    }
}

/// A hook that rebuilds every event.
struct Rebuild;

impl WriterHook for Rebuild {
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        let rebuilt = events.iter().map(|event| {
            let new =
                Event::new(event.event_type()).json_text(String::from_utf8_lossy(event.payload_bytes()));
            new.aggregate(event.aggregate_type(), event.aggregate_id().unwrap_or("none")).build()
        });
        Ok(rebuilt.collect::<Result<_, _>>()?)
    }
}

#[tokio::test]
async fn events_of_a_hook_are_ordered_by_aggregate_too() {
    let db = common::TestDb::<sqlx::Sqlite>::with(|b| b.order_by_aggregate().hook(Rebuild)).await.unwrap();
    let id = db.outbox.send(numbered("e", 1).aggregate("order", "7")).await.unwrap().id;
    assert_eq!(db.find(&id).await.event.unwrap().ordering_key(), Some("order/7"));
    let own = db.another_with(outbox::OutboxBuilder::order_by_aggregate).await.outbox;
    let id = own.send(numbered("e", 1).aggregate("order", "7").ordering_key("mine")).await.unwrap().id;
    assert_eq!(db.find(&id).await.event.unwrap().ordering_key(), Some("mine"));
    let id = own.send(numbered("e", 1).aggregate_type("order")).await.unwrap().id;
    assert_eq!(db.find(&id).await.event.unwrap().ordering_key(), None);
}
