//! Upkeep: purging, dead events and their replay, cancelling, statistics, and what killed its process.

mod common;

use std::time::Duration;

use common::{Gate, Seen, TestDb, numbered};
use outbox::store::{Filter, Status};
use outbox::{Backoff, Completion, DeadFilter, Error, EventId, Failure, Outcome, PurgeSettings, Unrouted};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A number of done events and one dead one.
async fn finished<DB: common::Backend>(db: &TestDb<DB>, done: u64) {
    let relay = db
        .outbox
        .single_node()
        .unrouted(Unrouted::Dead)
        .no_purge()
        .on_type("e", async |_: outbox::Cx| {})
        .start()
        .await
        .unwrap();
    db.write("e", 0..done).await;
    db.write("unknown", 0..1).await;
    relay.idle().await.unwrap();
    relay.stop().await.unwrap();
}

on_every_database! {
    async fn a_purge_deletes_what_is_done_and_old(frozen |db|) {
        let admin = db.outbox.admin();
        finished(&db, 1_200).await;
        db.advance(DAY * 6);
        finished(&db, 3).await;
        db.write("e", 0..2).await;
        assert_eq!(admin.purge(DAY * 7).await.unwrap(), 0, "nothing is old enough");
        db.advance(DAY + SEC);
        // More than two batches of 500.
        assert_eq!(admin.purge_done(DAY * 7).await.unwrap(), 1_200);
        assert_eq!(admin.purge(DAY * 7).await.unwrap(), 0, "dead ones stay");
        assert_eq!(admin.purge_dead(DAY * 7).await.unwrap(), 1, "unless they are asked for");
        assert_eq!(db.tally().await, (2, 0, 3, 1));
        db.advance(DAY * 100);
        assert_eq!(admin.purge(DAY * 7).await.unwrap(), 3);
        assert_eq!(db.tally().await, (2, 0, 0, 1), "what is pending or dead stays, however old");
    }

    /// Events of the log and audit entries stay unless a retention for them is set; failed attempts go after 30 days.
    async fn a_relay_purges_the_log_the_audit_and_attempts_by_their_own_times(frozen |db|) {
        let store = db.outbox.store();
        db.outbox.log().append((0..3).map(|n| numbered("e", n))).await.unwrap();
        store.audit(&outbox::store::Deed::default()).await.unwrap();
        finished(&db, 1).await;
        let fails = async |_: outbox::Cx| Err::<(), _>(Failure::dead("no"));
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
            // Events come first in each round: with the second one the first round is over.
            while db.tally().await.2 > 0 {
                tokio::time::sleep(5 * MS).await;
            }
            db.write("e", 0..1).await;
            db.run("UPDATE {t} SET status = 1, done_at = '2001-01-01 00:00:00' WHERE status = 0").await.unwrap();
        }
        relay.stop().await.unwrap();
        assert_eq!((counts().await, attempts().await), ((3, 1), failed), "all of it stays");

        let purge = PurgeSettings::default().every(5 * MS).log_retention(10 * DAY).audit_retention(10 * DAY);
        let relay = db.outbox.single_node().purge(purge.attempts_retention(10 * DAY)).start().await.unwrap();
        while counts().await != (1, 0) || attempts().await > 0 {
            tokio::time::sleep(5 * MS).await;
        }
        relay.stop().await.unwrap();
    }

    /// Dead events stay unless a retention for them is set.
    async fn a_relay_purges_by_itself(frozen |db|) {
        finished(&db, 30).await;
        db.advance(DAY * 800);
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).purge(PurgeSettings::default().every(5 * MS).batch(7)).start().await.unwrap();
        while db.tally().await.2 > 0 {
            tokio::time::sleep(5 * MS).await;
        }
        assert_eq!(db.tally().await, (0, 0, 0, 1));
        relay.stop().await.unwrap();
        let purge = PurgeSettings::default().every(5 * MS).dead_retention(7 * DAY);
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).purge(purge).start().await.unwrap();
        while db.tally().await.3 > 0 {
            tokio::time::sleep(5 * MS).await;
        }
        relay.stop().await.unwrap();
    }

    /// Rows vanish right behind the handlers, and none is missed or delivered again.
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
        assert_eq!(db.tally().await, (3, 0, 0, 0), "nothing is handled, nothing is purged");

        let purge = PurgeSettings::default().retention(DAY).every(5 * MS).batch(2).delete_undelivered();
        let relay = db.outbox.writer_only().purge(purge).start().await.unwrap();
        db.advance(DAY / 2);
        db.write("e", 3..5).await;
        db.advance(DAY / 2 + SEC);
        while db.tally().await.0 > 2 {
            tokio::time::sleep(5 * MS).await;
        }
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (2, 0, 0, 0), "the young ones stay");
    }

    /// The relay that delivers them may be down for longer than the retention.
    async fn writer_only_purges_no_undelivered_event_unless_it_is_told_to(frozen |db|) {
        finished(&db, 3).await;
        db.write("e", 0..2).await;
        db.advance(30 * DAY);
        let purge = PurgeSettings::default().retention(DAY).dead_retention(DAY).every(5 * MS).batch(2);
        let relay = db.outbox.writer_only().purge(purge.clone()).start().await.unwrap();
        // Dead ones are purged last.
        while db.tally().await.3 > 0 {
            tokio::time::sleep(5 * MS).await;
        }
        relay.stop().await.unwrap();
        assert_eq!(db.tally().await, (2, 0, 0, 0));

        for relay in [db.outbox.single_node().unrouted(Unrouted::Dead), db.outbox.multi_node().unrouted(Unrouted::Dead), db.outbox.ordered().unrouted(Unrouted::Dead), db.outbox.log_only()] {
            let error = relay.purge(purge.clone().delete_undelivered()).start().await.unwrap_err();
            assert!(error.to_string().contains("delete_undelivered is for writer_only"), "{error}");
        }
    }

    async fn done_events_are_deleted_if_nobody_wants_them(|db|) {
        for relay in [db.outbox.single_node().unrouted(Unrouted::Dead), db.outbox.multi_node().unrouted(Unrouted::Dead)] {
            let seen = Seen::default();
            let relay = relay.completion(Completion::Delete).on_type("e", seen.handler()).start().await.unwrap();
            db.write("e", 0..10).await;
            db.write("unknown", 0..1).await;
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            seen.assert_each_once(0..10);
        }
        assert_eq!(db.tally().await, (0, 0, 0, 2));
    }

    async fn dead_events_are_found_counted_and_replayed(frozen |db|) {
        let admin = db.outbox.admin();
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).start().await.unwrap();
        let ids = db.outbox.send_all([
            numbered("a", 1).aggregate("order", "1"),
            numbered("a", 2).aggregate("invoice", "1"),
            numbered("b", 3).aggregate("order", "1"),
        ]).await.unwrap();
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
        assert!(!admin.replay(&ids[0]).await.unwrap(), "it is not dead any more");
        assert!(!admin.replay(&EventId::from("nobody")).await.unwrap());
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
        assert!(matches!(admin.replay_all(&DeadFilter::default(), 0).await, Err(Error::Setting(_))));
        assert_eq!(admin.replay_all(&DeadFilter::default().event_type("e"), 10).await.unwrap(), 57);
        assert_eq!(db.tally().await, (57, 0, 0, 3));
        let seen = Seen::default();
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        seen.assert_each_once(0..57);
        relay.stop().await.unwrap();
    }

    /// A relay that kills them again as fast as they come must not make it run for ever.
    async fn what_dies_again_is_not_replayed_twice(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).poll_interval(MS).on_type("e", seen.says(|_| Err(Failure::dead("no"))))
            .start().await.unwrap();
        db.write("e", 0..20).await;
        relay.idle().await.unwrap();
        assert_eq!(db.outbox.admin().replay_all(&DeadFilter::default(), 3).await.unwrap(), 20);
        relay.idle().await.unwrap();
        assert_eq!(seen.count(), 40);
        relay.stop().await.unwrap();
    }

    async fn a_pending_event_can_be_taken_back_and_no_other(|db|) {
        let admin = db.outbox.admin();
        let (seen, gate) = (Seen::default(), Gate::closed());
        let relay = db.outbox.multi_node().unrouted(Unrouted::Dead).on_type("slow", seen.behind(&gate)).on_type("e", seen.handler())
            .on_type("fails", seen.says(|_| Err(Failure::retry("later")))).retry(Backoff::default().base(DAY))
            .start().await.unwrap();
        let done = db.outbox.send(numbered("e", 1)).await.unwrap().unwrap();
        let dead = db.outbox.send(numbered("unknown", 2)).await.unwrap().unwrap();
        let later = db.outbox.send(numbered("e", 3).deliver_after(DAY)).await.unwrap().unwrap();
        let failed = db.outbox.send(numbered("fails", 4)).await.unwrap().unwrap();
        relay.idle().await.unwrap();
        let running = db.outbox.send(numbered("slow", 5)).await.unwrap().unwrap();
        seen.reach(3).await;
        for (id, expected) in [(&done, false), (&dead, false), (&running, false), (&later, true), (&failed, true)] {
            assert_eq!(admin.cancel(id).await.unwrap(), expected, "{id}");
            assert_eq!(admin.find(id).await.unwrap().is_none(), expected);
        }
        assert!(!admin.cancel(&later).await.unwrap(), "it is gone already");
        gate.open();
        relay.idle().await.unwrap();
        assert_eq!(db.status(&running).await, Status::Done);
        relay.stop().await.unwrap();
    }

    async fn statistics_count_what_is_there(frozen |db|) {
        let admin = db.outbox.admin();
        assert_eq!(admin.stats().await.unwrap(), Default::default());
        let relay = db.outbox.single_node().unrouted(Unrouted::Dead).on_type("e", async |_: outbox::Cx| {})
            .on_type("fails", async |_: outbox::Cx| Err::<(), _>(Failure::retry_after(DAY, "later")))
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

    /// Each time the process dies while it handles "killer"; the others were only in its hands.
    async fn an_event_that_kills_its_process_is_buried_and_the_others_survive(frozen |db|) {
        for exclusive in [false, true] {
            let killer = db.outbox.send(numbered("killer", 0)).await.unwrap().unwrap();
            let innocents = db.write("e", 0..12).await;
            let mut starts = 0;
            for _ in 0..8 {
                if !crash_on_killer::<DB>(&db, exclusive).await {
                    break;
                }
                starts += 1;
                // Past the lease, and past the leadership.
                db.advance(DAY);
            }
            assert_eq!(starts, 4, "once in good faith, three times as a suspect");
            let stored = db.find(&killer).await;
            assert_eq!(stored.status, Status::Dead);
            let reason = stored.last_error.unwrap();
            assert!(reason.contains("started 3 times and never came back"), "{reason}");
            for id in &innocents {
                assert_eq!(db.status(id).await, Status::Done);
            }
            db.advance(DAY);
        }
    }

    /// One of them at most is to blame, and there may be many.
    async fn what_a_crash_leaves_runs_together_and_after_another_crash_one_at_a_time(frozen |db|) {
        for exclusive in [false, true] {
            let left = db.write("killer", 0..6).await;
            for _ in 0..2 {
                assert!(crash_on::<DB>(&db, exclusive, 3).await);
                db.advance(DAY);
            }
            let gate = Gate::closed();
            let seen = Seen::default();
            let relay = if exclusive { db.outbox.single_node().unrouted(Unrouted::Dead) } else { db.outbox.multi_node().unrouted(Unrouted::Dead) };
            let relay = relay.workers(3).on_type("killer", seen.behind(&gate)).start().await.unwrap();
            seen.reach(1).await;
            tokio::time::sleep(100 * MS).await;
            assert_eq!(seen.count(), 1, "the first of them again, and nothing beside it");
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

    /// It takes longer than those who stop are ready to wait.
    async fn one_that_is_cut_short_by_stops_is_not_buried_for_a_crash(frozen |db|) {
        for exclusive in [false, true] {
            let event = db.outbox.send(numbered("killer", 0)).await.unwrap().unwrap();
            assert!(crash_on_killer::<DB>(&db, exclusive).await);
            db.advance(DAY);
            let (seen, gate) = (Seen::default(), Gate::closed());
            for stops in 1..=5 {
                let relay = if exclusive { db.outbox.single_node().unrouted(Unrouted::Dead) } else { db.outbox.multi_node().unrouted(Unrouted::Dead) };
                let relay = relay.on_type("killer", seen.behind(&gate)).drain(10 * MS).start().await.unwrap();
                seen.reach(stops).await;
                relay.stop().await.unwrap();
                assert_eq!(db.status(&event).await, Status::New);
            }
            gate.open();
            let relay = if exclusive { db.outbox.single_node().unrouted(Unrouted::Dead) } else { db.outbox.multi_node().unrouted(Unrouted::Dead) };
            let relay = relay.on_type("killer", seen.behind(&gate)).start().await.unwrap();
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            assert_eq!(db.status(&event).await, Status::Done);
            db.advance(DAY);
        }
    }

    /// That it was handled is not written yet when the one behind it kills the process.
    async fn one_that_is_handled_right_before_a_killer_is_not_buried_for_it(frozen |db|) {
        for exclusive in [false, true] {
            let innocent = db.outbox.send(numbered("e", 0).ordering_key("k")).await.unwrap().unwrap();
            let killer = db.outbox.send(numbered("killer", 1).ordering_key("k")).await.unwrap().unwrap();
            for _ in 0..8 {
                if !crash_on_killer::<DB>(&db, exclusive).await {
                    break;
                }
                db.advance(DAY);
            }
            assert_eq!(db.status(&innocent).await, Status::Done);
            assert_eq!(db.status(&killer).await, Status::Dead);
            assert!(db.outbox.admin().skip(&killer, &"ada".into()).await.unwrap());
            db.advance(DAY);
        }
    }
}

/// A process with a relay of its own. It ends in the middle of "killer", without a word to anybody; or does not meet it
/// at all, and ends in peace. Returns whether it crashed.
async fn crash_on_killer<DB: common::Backend>(db: &TestDb<DB>, exclusive: bool) -> bool {
    crash_on(db, exclusive, 1).await
}

/// The same; it ends in the middle of so many of them.
async fn crash_on<DB: common::Backend>(db: &TestDb<DB>, exclusive: bool, killers: usize) -> bool {
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, table, clock) = (db.url().to_owned(), db.table.clone(), db.clock.clone().unwrap());
    let life = process.spawn(async move {
        let builder = outbox::OutboxBuilder::new().table(table).clock(outbox::Clock::Frozen(clock));
        let outbox = DB::open(builder.max_connections(4), &url).await.unwrap();
        let met = Seen::default();
        let relay = if exclusive {
            outbox.single_node().unrouted(Unrouted::Dead)
        } else {
            outbox.multi_node().unrouted(Unrouted::Dead)
        };
        let relay = relay.workers(3).on_type("killer", met.behind(&Gate::closed())).on_type(
            "e",
            async |_: outbox::Cx| {
                tokio::time::sleep(3 * MS).await;
                Ok::<_, Failure>(Outcome::Done)
            },
        );
        let relay = relay.start().await.unwrap();
        tokio::select! {
            () = met.reach(killers) => Some((relay, outbox)),
            idle = relay.idle() => {
                idle.unwrap();
                relay.stop().await.unwrap();
                None
            }
        }
    });
    let remains = life.await.unwrap();
    let crashed = remains.is_some();
    // What is left of it is dropped where no runtime is: it cannot give anything back.
    let end = move || {
        process.shutdown_timeout(Duration::from_millis(200));
        drop(remains);
    };
    std::thread::spawn(end).join().unwrap();
    crashed
}
