//! Maintenance: purging, dead events and their replay, cancelling, statistics, and events that
//! crash their process.

mod common;

use std::time::Duration;

use common::{Gate, Seen, TestDb, ids_of, numbered, until};
use outbox::store::{Filter, Status};
use outbox::{Backoff, Completion, DeadFilter, Error, EventId, Failure, Outcome, PurgeSettings, Unrouted};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Creates done events and one dead event.
async fn finished<DB: common::Backend>(db: &TestDb<DB>, done: u64) {
    let relay = db
        .outbox
        .single_node()
        .unrouted(Unrouted::Dead)
        .no_purge()
        .on_type("e", async |_: outbox::Context| {})
        .start()
        .await
        .unwrap();
    db.write("e", 0..done).await;
    db.write("unknown", 0..1).await;
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
}

on_every_database! {
    async fn a_purge_deletes_old_done_events(frozen |db|) {
        let admin = db.outbox.admin();
        finished(&db, 1_200).await;
        db.advance(DAY * 6);
        finished(&db, 3).await;
        db.write("e", 0..2).await;
        assert_eq!(admin.purge(DAY * 7).await.unwrap(), 0, "nothing is old enough");
        db.advance(DAY + SEC);
        // More than two purge batches of 500.
        assert_eq!(admin.purge_done(DAY * 7).await.unwrap(), 1_200);
        assert_eq!(admin.purge(DAY * 7).await.unwrap(), 0, "dead events stay");
        assert_eq!(admin.purge_dead(DAY * 7).await.unwrap(), 1, "unless they are purged explicitly");
        assert_eq!(db.status_counts().await, (2, 0, 3, 1));
        db.advance(DAY * 100);
        assert_eq!(admin.purge(DAY * 7).await.unwrap(), 3);
        assert_eq!(db.status_counts().await, (2, 0, 0, 1), "pending and dead events stay, however old");
    }

    /// Events of the log and audit entries stay unless a retention for them is set; failed attempts
    /// are purged after 30 days.
    async fn a_relay_purges_the_log_the_audit_and_attempts_by_their_own_retentions(frozen |db|) {
        let store = db.outbox.store();
        db.outbox.log().append((0..3).map(|n| numbered("e", n))).await.unwrap();
        store.audit(&outbox::store::AuditEntry::default()).await.unwrap();
        finished(&db, 1).await;
        let fails = async |_: outbox::Context| Err::<(), _>(Failure::dead("no"));
        let relay = db.outbox.single_node().no_purge().on_type("bad", fails).start().await.unwrap();
        db.write("bad", 0..1).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        db.advance(DAY * 20);
        let counts = async || {
            let log = db.number("SELECT count(*) FROM {t}_log").await;
            (log, store.audits(None, 10).await.unwrap().len())
        };
        let attempts = async || db.number("SELECT count(*) FROM {t}_attempt").await;
        let failed = attempts().await;
        assert!(failed > 0);
        let relay = db.outbox.writer_only().purge(PurgeSettings::default().every(5 * MS)).start().await.unwrap();
        for _ in 0..2 {
            // Events are purged first in each round: with the second event the first round is over.
            until("done events are purged", async || db.status_counts().await.2 == 0).await;
            db.write("e", 0..1).await;
            db.run("UPDATE {t} SET status = 1, done_at = '2001-01-01 00:00:00' WHERE status = 0").await.unwrap();
        }
        relay.stop().await.unwrap();
        assert_eq!((counts().await, attempts().await), ((3, 1), failed), "nothing is purged");

        let purge = PurgeSettings::default().every(5 * MS).log_retention(10 * DAY).audit_retention(10 * DAY);
        let relay = db.outbox.single_node().purge(purge.attempts_retention(10 * DAY)).start().await.unwrap();
        let is_purged = async || counts().await == (1, 0) && attempts().await == 0;
        until("old rows of the log, the audit and the attempts are purged", is_purged).await;
        relay.stop().await.unwrap();
    }

    /// Dead events stay unless a retention for them is set.
    async fn a_relay_purges_by_itself(frozen |db|) {
        finished(&db, 30).await;
        db.advance(DAY * 800);
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).purge(PurgeSettings::default().every(5 * MS).batch(7)).start().await.unwrap();
        until("done events are purged", async || db.status_counts().await.2 == 0).await;
        assert_eq!(db.status_counts().await, (0, 0, 0, 1));
        relay.stop().await.unwrap();
        let purge = PurgeSettings::default().every(5 * MS).dead_retention(7 * DAY);
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).purge(purge).start().await.unwrap();
        until("dead events are purged", async || db.status_counts().await.3 == 0).await;
        relay.stop().await.unwrap();
    }

    /// Rows are deleted right after the handlers, and no event is missed or delivered again.
    async fn a_purge_under_load_disturbs_nothing(|db|) {
        let seen = Seen::default();
        let purge = PurgeSettings::default().retention(Duration::ZERO).every(2 * MS).batch(10);
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).workers(8).purge(purge).on_type("e", seen.handler()).start().await.unwrap();
        for n in 0..30 {
            db.write("e", n * 10..n * 10 + 10).await;
        }
        relay.idle().await.unwrap();
        seen.assert_each_once(0..300);
        relay.stop().await.unwrap();
        db.outbox.admin().purge(Duration::ZERO).await.unwrap();
    }

    async fn writer_only_delivers_nothing_and_purges_by_age(frozen |db|) {
        let relay = db.outbox.writer_only().start().await.unwrap();
        db.write("e", 0..3).await;
        assert_eq!(relay.poll_once().await.unwrap(), 0);
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (3, 0, 0, 0), "nothing is handled, nothing is purged");

        let purge = PurgeSettings::default().retention(DAY).every(5 * MS).batch(2).delete_undelivered();
        let relay = db.outbox.writer_only().purge(purge).start().await.unwrap();
        db.advance(DAY / 2);
        db.write("e", 3..5).await;
        db.advance(DAY / 2 + SEC);
        until("old events are purged", async || db.status_counts().await.0 <= 2).await;
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (2, 0, 0, 0), "newer events stay");
    }

    /// The relay that delivers them may be down for longer than the retention.
    async fn writer_only_purges_no_undelivered_event_unless_configured_to(frozen |db|) {
        finished(&db, 3).await;
        db.write("e", 0..2).await;
        db.advance(30 * DAY);
        let purge = PurgeSettings::default().retention(DAY).dead_retention(DAY).every(5 * MS).batch(2);
        let relay = db.outbox.writer_only().purge(purge.clone()).start().await.unwrap();
        // Dead events are purged last.
        until("dead events are purged", async || db.status_counts().await.3 == 0).await;
        relay.stop().await.unwrap();
        assert_eq!(db.status_counts().await, (2, 0, 0, 0));

        for relay in [db.outbox.single_node().unrouted(Unrouted::Dead), db.outbox.multi_node().unrouted(Unrouted::Dead), db.outbox.ordered().unrouted(Unrouted::Dead), db.outbox.log_only()] {
            let error = relay.purge(purge.clone().delete_undelivered()).start().await.unwrap_err();
            assert!(error.to_string().contains("delete_undelivered is for writer_only"), "{error}");
        }
    }

    async fn done_events_are_deleted_if_completion_is_delete(|db|) {
        for relay in [db.outbox.single_node().unrouted(Unrouted::Dead), db.outbox.multi_node().unrouted(Unrouted::Dead)] {
            let seen = Seen::default();
            let relay = relay.completion(Completion::Delete).on_type("e", seen.handler()).start().await.unwrap();
            db.write("e", 0..10).await;
            db.write("unknown", 0..1).await;
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            seen.assert_each_once(0..10);
        }
        assert_eq!(db.status_counts().await, (0, 0, 0, 2));
    }

    async fn dead_events_are_found_counted_and_replayed(frozen |db|) {
        let admin = db.outbox.admin();
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).start().await.unwrap();
        let ids = ids_of(db.outbox.send_all([
            numbered("a", 1).aggregate("order", "1"),
            numbered("a", 2).aggregate("invoice", "1"),
            numbered("b", 3).aggregate("order", "1"),
        ]).await.unwrap());
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();

        let filters = [
            (DeadFilter::default(), vec![1, 2, 3]),
            (DeadFilter::default().event_type("a"), vec![1, 2]),
            (DeadFilter::default().aggregate_type("order"), vec![1, 3]),
            (DeadFilter::default().event_type("a").aggregate_type("order"), vec![1]),
            (DeadFilter::default().event_type("c"), vec![]),
        ];
        for (filter, expected) in filters {
            let dead = admin.dead(&filter, 10).await.unwrap();
            let numbers: Vec<u64> = dead.iter().map(|d| d.event.as_ref().unwrap().payload().unwrap()).collect();
            assert_eq!(numbers, expected);
            assert_eq!(admin.count_dead(&filter).await.unwrap(), expected.len() as u64);
        }
        assert_eq!(admin.dead(&DeadFilter::default(), 2).await.unwrap().len(), 2);

        assert!(admin.replay(&ids[0]).await.unwrap());
        assert!(!admin.replay(&ids[0]).await.unwrap(), "the event is no longer dead");
        assert!(!admin.replay(&EventId::from("unknown")).await.unwrap());
        let replayed = db.find(&ids[0]).await;
        assert_eq!((replayed.status, replayed.attempts, replayed.done_at), (Status::New, 0, None));
        let seen = Seen::default();
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).on_any(seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        assert_eq!((seen.numbers(), seen.attempts()), (vec![1], vec![1]));
        relay.stop().await.unwrap();
    }

    async fn all_dead_events_are_replayed_batch_by_batch(|db|) {
        let admin = db.outbox.admin();
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).start().await.unwrap();
        db.write("e", 0..57).await;
        db.write("other", 57..60).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(admin.count_dead(&DeadFilter::default()).await.unwrap(), 60);
        assert!(matches!(admin.replay_all(&DeadFilter::default(), 0).await, Err(Error::Setting { .. })));
        assert_eq!(admin.replay_all(&DeadFilter::default().event_type("e"), 10).await.unwrap(), 57);
        assert_eq!(db.status_counts().await, (57, 0, 0, 3));
        let seen = Seen::default();
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        seen.assert_each_once(0..57);
        relay.stop().await.unwrap();
    }

    /// A relay that dead-letters the events again as fast as they are replayed must not make the
    /// replay run for ever.
    async fn an_event_that_is_dead_again_is_not_replayed_twice(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).poll_interval(MS).on_type("e", seen.returning(|_| Err(Failure::dead("no"))))
            .start().await.unwrap();
        db.write("e", 0..20).await;
        relay.idle().await.unwrap();
        assert_eq!(db.outbox.admin().replay_all(&DeadFilter::default(), 3).await.unwrap(), 20);
        relay.idle().await.unwrap();
        assert_eq!(seen.count(), 40);
        relay.stop().await.unwrap();
    }

    async fn a_pending_event_can_be_cancelled_and_no_other(|db|) {
        let admin = db.outbox.admin();
        let (seen, gate) = (Seen::default(), Gate::closed());
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).on_type("slow", seen.behind(&gate)).on_type("e", seen.handler())
            .on_type("fails", seen.returning(|_| Err(Failure::retry("later")))).retry(Backoff::default().base(DAY))
            .start().await.unwrap();
        let done = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        let dead = db.outbox.send(numbered("unknown", 2)).await.unwrap().id;
        let later = db.outbox.send(numbered("e", 3).deliver_after(DAY)).await.unwrap().id;
        let failed = db.outbox.send(numbered("fails", 4)).await.unwrap().id;
        relay.idle().await.unwrap();
        let running = db.outbox.send(numbered("slow", 5)).await.unwrap().id;
        seen.reach(3).await;
        for (id, expected) in [(&done, false), (&dead, false), (&running, false), (&later, true), (&failed, true)] {
            assert_eq!(admin.cancel(id).await.unwrap(), expected, "{id}");
            assert_eq!(admin.find(id).await.unwrap().is_none(), expected);
        }
        assert!(!admin.cancel(&later).await.unwrap(), "the event is cancelled already");
        gate.open();
        relay.idle().await.unwrap();
        assert_eq!(db.status(&running).await, Status::Done);
        relay.stop().await.unwrap();
    }

    async fn statistics_count_the_events(frozen |db|) {
        let admin = db.outbox.admin();
        assert_eq!(admin.stats().await.unwrap(), Default::default());
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).on_type("e", async |_: outbox::Context| {})
            .on_type("fails", async |_: outbox::Context| Err::<(), _>(Failure::retry_after(DAY, "later")))
            .start().await.unwrap();
        db.write("e", 0..5).await;
        db.write("unknown", 0..2).await;
        db.write("fails", 0..1).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        db.write("e", 0..3).await;
        db.outbox.send(numbered("e", 9).deliver_after(DAY * 2)).await.unwrap();
        db.advance(SEC * 90);
        let stats = admin.stats().await.unwrap();
        assert_eq!((stats.new, stats.retry, stats.done, stats.dead), (4, 1, 5, 2));
        assert_eq!(stats.oldest_due.map(|age| age.as_secs()), Some(90));
        let backlog = admin.backlog().await.unwrap();
        assert_eq!((backlog.pending, backlog.free), (5, 3));
        let filter = Filter { event_type: Some("e".to_owned()), status: Some(Status::New), ..Filter::default() };
        assert_eq!(admin.list(&filter, 10).await.unwrap().len(), 4);
    }

    async fn errors_of_the_database_are_returned(|db|) {
        db.run("DROP TABLE {t}").await.unwrap();
        let admin = db.outbox.admin();
        assert!(matches!(admin.stats().await, Err(Error::NotMigrated { .. })));
        assert!(admin.purge(DAY).await.is_err());
        assert!(admin.replay_all(&DeadFilter::default(), 10).await.is_err());
        assert!(admin.cancel(&EventId::from("x")).await.is_err());
    }

    /// Each time the process crashes while it handles "crashes"; the other events were only in
    /// flight.
    async fn an_event_that_crashes_its_process_is_dead_lettered_and_the_others_are_not(frozen |db|) {
        for exclusive in [false, true] {
            let crashing = db.outbox.send(numbered("crashes", 0)).await.unwrap().id;
            let others = db.write("e", 0..12).await;
            let mut starts = 0;
            for _ in 0..8 {
                if !crash_on_one::<DB>(&db, exclusive).await {
                    break;
                }
                starts += 1;
                // Past the lease, and past the leadership.
                db.advance(DAY);
            }
            assert_eq!(starts, 4, "once with the others, three times as a suspect");
            let stored = db.find(&crashing).await;
            assert_eq!(stored.status, Status::Dead);
            let reason = stored.last_error.unwrap();
            assert!(reason.contains("started 3 times and never came back"), "{reason}");
            for id in &others {
                assert_eq!(db.status(id).await, Status::Done);
            }
            db.advance(DAY);
        }
    }

    /// At most one of them is the cause, and there may be many.
    async fn suspects_run_together_after_a_crash_and_one_at_a_time_after_another_crash(frozen |db|) {
        for exclusive in [false, true] {
            let left = db.write("crashes", 0..6).await;
            for _ in 0..2 {
                assert!(crash_on::<DB>(&db, exclusive, 3).await);
                db.advance(DAY);
            }
            let gate = Gate::closed();
            let seen = Seen::default();
            let relay = if exclusive { db.outbox.single_node().unrouted(Unrouted::Dead) } else { db.outbox.multi_node().unrouted(Unrouted::Dead) };
            let relay = relay.workers(3).on_type("crashes", seen.behind(&gate)).start().await.unwrap();
            // Three were started twice. Others would start with the first of them, and be seen at
            // the latest when it ends.
            for suspect in 1..=3 {
                seen.reach(suspect).await;
                relay.poll_once().await.unwrap();
                assert_eq!(seen.count(), suspect, "one suspect again, and no other event");
                gate.admit(1);
            }
            gate.open();
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            assert_eq!(seen.count(), 6);
            for id in &left {
                assert_eq!(db.status(id).await, Status::Done);
            }
            db.advance(DAY);
        }
    }

    /// Its handler takes longer than the drain time of the relays that stop.
    async fn an_event_that_stops_interrupt_is_not_dead_lettered_for_a_crash(frozen |db|) {
        for exclusive in [false, true] {
            let event = db.outbox.send(numbered("crashes", 0)).await.unwrap().id;
            assert!(crash_on_one::<DB>(&db, exclusive).await);
            db.advance(DAY);
            let (seen, gate) = (Seen::default(), Gate::closed());
            for stops in 1..=5 {
                let relay = if exclusive { db.outbox.single_node().unrouted(Unrouted::Dead) } else { db.outbox.multi_node().unrouted(Unrouted::Dead) };
                let relay = relay.on_type("crashes", seen.behind(&gate)).drain(10 * MS).start().await.unwrap();
                seen.reach(stops).await;
                relay.stop().await.unwrap();
                assert_eq!(db.status(&event).await, Status::New);
            }
            gate.open();
            let relay = if exclusive { db.outbox.single_node().unrouted(Unrouted::Dead) } else { db.outbox.multi_node().unrouted(Unrouted::Dead) };
            let relay = relay.on_type("crashes", seen.behind(&gate)).start().await.unwrap();
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            assert_eq!(db.status(&event).await, Status::Done);
            db.advance(DAY);
        }
    }

    /// Its settlement is not written yet when the next event crashes the process.
    async fn an_event_that_is_handled_right_before_a_crash_is_not_dead_lettered_for_it(frozen |db|) {
        for exclusive in [false, true] {
            let other = db.outbox.send(numbered("e", 0).ordering_key("k")).await.unwrap().id;
            let crashing = db.outbox.send(numbered("crashes", 1).ordering_key("k")).await.unwrap().id;
            for _ in 0..8 {
                if !crash_on_one::<DB>(&db, exclusive).await {
                    break;
                }
                db.advance(DAY);
            }
            assert_eq!(db.status(&other).await, Status::Done);
            assert_eq!(db.status(&crashing).await, Status::Dead);
            assert!(db.outbox.admin().skip(&crashing, &"ada".into()).await.unwrap());
            db.advance(DAY);
        }
    }
}

/// A process with its own relay. It ends abruptly in the middle of "crashes", or does not get that
/// event at all and stops cleanly. Returns whether it crashed.
async fn crash_on_one<DB: common::Backend>(db: &TestDb<DB>, exclusive: bool) -> bool {
    crash_on(db, exclusive, 1).await
}

/// The same; the process ends in the middle of so many of these events.
async fn crash_on<DB: common::Backend>(db: &TestDb<DB>, exclusive: bool, count: usize) -> bool {
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, table, clock) = (db.url().to_owned(), db.table.clone(), db.clock.clone().unwrap());
    let running = process.spawn(async move {
        let builder = outbox::OutboxBuilder::new().table(table).clock(outbox::Clock::Frozen(clock));
        let outbox = DB::open(builder.max_connections(4), &url).await.unwrap();
        let started = Seen::default();
        let relay = if exclusive {
            outbox.single_node().unrouted(Unrouted::Dead)
        } else {
            outbox.multi_node().unrouted(Unrouted::Dead)
        };
        let relay = relay.workers(3).on_type("crashes", started.behind(&Gate::closed())).on_type(
            "e",
            async |_: outbox::Context| {
                tokio::time::sleep(3 * MS).await;
                Ok::<_, Failure>(Outcome::Done)
            },
        );
        let relay = relay.start().await.unwrap();
        tokio::select! {
            () = started.reach(count) => Some((relay, outbox)),
            idle = relay.idle() => {
                idle.unwrap();
                relay.stop().await.unwrap();
                None
            }
        }
    });
    let remains = running.await.unwrap();
    let crashed = remains.is_some();
    // The rest of the process is dropped outside of any runtime: it cannot release anything.
    let end = move || {
        process.shutdown_timeout(Duration::from_millis(200));
        drop(remains);
    };
    std::thread::spawn(end).join().unwrap();
    crashed
}
