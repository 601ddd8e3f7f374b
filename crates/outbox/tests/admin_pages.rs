//! Data of the administration pages: attempts that failed, and counters of running relays.

mod common;

use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::{Backend, FOREVER, Poll, ids_of, numbered, until};
use outbox::store::{Attempt, Filter, Node};
use outbox::{
    Backoff, Context, EventId, Failure, HandlerTx, NodeId, OnDead, Outcome, Outgoing, PublishError,
    Publisher, PurgeSettings, Unrouted,
};

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);
const LEASE: Duration = Duration::from_secs(30);

/// Number, fatality and error of each attempt.
fn summary(attempts: &[Attempt]) -> Vec<(u32, bool, &str)> {
    attempts.iter().map(|attempt| (attempt.number, attempt.fatal, attempt.error.as_str())).collect()
}

/// Fails in its transaction.
async fn fails_in_tx<DB: Backend>(_: HandlerTx<DB>) -> Result<Outcome, Failure> {
    Err(Failure::retry("rolled back"))
}

/// A publisher that fails every batch.
struct FullDisk;

#[async_trait]
impl Publisher for FullDisk {
    fn name(&self) -> &'static str {
        "full"
    }

    async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
        Err(Failure::retry("disk full").into())
    }
}

on_every_database! {
    /// Handlers with and without a transaction, publishers, and events that never reach either.
    async fn every_way_to_fail_leaves_an_attempt(|db|) {
        let (now, hour) = (chrono::Utc::now(), chrono::Duration::hours(1));
        let sent = [
            numbered("fails", 1), numbered("dies", 1), numbered("fails in tx", 1), numbered("published", 1),
            numbered("unrouted", 1), numbered("late", 1).occurred_at(now - hour * 2).expires_at(now - hour),
            numbered("fine", 1),
        ];
        let ids = ids_of(db.outbox.send_all(sent).await.unwrap());
        let undecodable = EventId::from("undecodable");
        db.run("INSERT INTO {t} (event_id, event_type, payload, headers) VALUES ('undecodable', 'fine', '7', '[1]')").await.unwrap();
        for (mode, relay) in [("one", db.outbox.single_node()), ("many", db.outbox.multi_node())] {
            let relay = relay
                .node(mode)
                .unrouted(Unrouted::Dead)
                .retry(Backoff::default().base(MS).max(MS).no_jitter().max_attempts(2))
                .on_type("fails", async |_: Context| Err::<(), _>(Failure::retry("<b>not now</b>")))
                .on_type("dies", async |_: Context| Err::<(), _>(Failure::dead("never")))
                .on_type("late", async |_: Context| {})
                .on_type("fine", async |_: Context| {})
                .on_type("fails in tx", fails_in_tx::<DB>)
                .forward(["published"], FullDisk)
                .start().await.unwrap();
            while db.status_counts().await.3 < 7 {
                relay.idle().await.unwrap();
            }
            relay.stop().await.unwrap();
            let admin = db.outbox.admin();
            let expected: [&[(u32, bool, &str)]; 7] = [
                &[(1, false, "<b>not now</b>"), (2, true, "<b>not now</b>")],
                &[(0, true, "never")],
                &[(1, false, "rolled back"), (2, true, "rolled back")],
                &[(1, false, "disk full"), (2, true, "disk full")],
                &[],
                &[(0, true, "expired")],
                &[],
            ];
            for (id, expected) in ids.iter().zip(expected) {
                let attempts = admin.attempts(id, 100).await.unwrap();
                if *id == ids[4] {
                    assert!(attempts[0].fatal && attempts[0].error.contains("unrouted"), "{attempts:?}");
                } else {
                    assert_eq!(summary(&attempts), expected, "{mode}: {id}");
                }
                assert!(attempts.iter().all(|a| a.node.as_str().starts_with(mode)), "{attempts:?}");
            }
            let attempts = admin.attempts(&undecodable, 100).await.unwrap();
            assert!(attempts.len() == 1 && attempts[0].error.starts_with("cannot be decoded"), "{attempts:?}");
            // Replay everything for the next mode.
            assert_eq!(admin.replay_all(&Default::default(), 100).await.unwrap(), 7);
            db.run("UPDATE {t} SET expires_at = created_at WHERE event_type = 'late'").await.unwrap();
            db.run("DELETE FROM {t}_attempt").await.unwrap();
        }
    }

    /// Clients of the work queue run no relay.
    async fn a_failure_in_the_work_queue_leaves_an_attempt(|db|) {
        let (queue, me) = (db.outbox.queue(), NodeId::from("me"));
        db.write("e", 0..4).await;
        let items = queue.claim(&me, LEASE, 10).await.unwrap();
        queue.ack(&me, [items[0].id()]).await.unwrap();
        queue.abandon(&me, [items[1].id()], "again").await.unwrap();
        queue.fail(&me, [items[2].id()], "never").await.unwrap();
        queue.release(&me, [items[3].id()]).await.unwrap();
        let expected: [&[(u32, bool, &str)]; 4] = [&[], &[(1, false, "again")], &[(0, true, "never")], &[]];
        for (item, expected) in items.iter().zip(expected) {
            let attempts = db.outbox.admin().attempts(item.event().id(), 10).await.unwrap();
            assert_eq!(summary(&attempts), expected);
            assert!(attempts.iter().all(|attempt| attempt.node == me));
        }
    }

    /// The counters are stored long before the next heartbeat.
    async fn a_relay_reports_what_it_has_settled(|db|) {
        let began = Instant::now();
        let relay = db.outbox.ordered()
            .presence(DAY)
            .retry(Backoff::default().base(MS).max(MS).max_attempts(3))
            .on_dead(OnDead::Skip)
            .on_type("fine", async |_: Context| {})
            .on_type("fails", async |_: Context| Err::<(), _>(Failure::retry("no")))
            .on_type("later", async |cx: Context| if cx.payload::<u64>().unwrap() == 0 {
                Ok(Outcome::Snooze(DAY))
            } else {
                Ok::<_, Failure>(Outcome::Done)
            })
            .start().await.unwrap();
        db.write("fine", 0..40).await;
        db.write("fails", 0..2).await;
        db.write("later", 0..3).await;
        let reported = async || {
            let nodes: Vec<Node> = db.outbox.admin().nodes().await.unwrap();
            let node = nodes.into_iter().find(|node| node.node == *relay.node());
            let counts = node.as_ref().map(|node| node.state.counts.clone()).unwrap_or_default();
            node.filter(|_| counts.delivered == 42 && counts.dead == 2).ok_or(counts)
        };
        let reported = Poll::DEFAULT.value("the relay stores its counters", reported).await;
        assert!(began.elapsed() < FOREVER, "the counters were stored without a heartbeat");
        assert_eq!(reported.state.on_dead, OnDead::Skip);
        let counts = reported.state.counts;
        assert_eq!((counts.failed, counts.deferred), (4, 1));
        assert_eq!(counts.latency.iter().sum::<u64>(), 42);
        let of = |name: &str| {
            let counts = counts.types[name];
            (counts.delivered, counts.failed, counts.dead)
        };
        assert_eq!((of("fine"), of("fails"), of("later")), ((40, 0, 0), (0, 4, 2), (2, 0, 0)));
        relay.stop().await.unwrap();
        assert!(db.outbox.admin().nodes().await.unwrap().is_empty());
    }

    /// After thirty days, by the relay or by `Admin::purge`.
    async fn old_attempts_are_purged(frozen |db|) {
        let admin = db.outbox.admin();
        for by_relay in [true, false] {
            let id = db.write("unrouted", 0..1).await.remove(0);
            let relay = db.outbox.single_node().unrouted(Unrouted::Dead).no_purge().start().await.unwrap();
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            db.advance(29 * DAY);
            admin.purge(100 * DAY).await.unwrap();
            assert_eq!(admin.attempts(&id, 10).await.unwrap().len(), 1);
            db.advance(2 * DAY);
            if by_relay {
                let purge = PurgeSettings::default().every(5 * MS).retention(100 * DAY);
                let relay = db.outbox.single_node().purge(purge).start().await.unwrap();
                until("the attempts are purged", async || admin.attempts(&id, 10).await.unwrap().is_empty()).await;
                relay.stop().await.unwrap();
            } else {
                admin.purge(100 * DAY).await.unwrap();
                assert!(admin.attempts(&id, 10).await.unwrap().is_empty());
            }
            assert_eq!(admin.list(&Filter { id: Some(id), ..Filter::default() }, 1).await.unwrap().len(), 1);
        }
    }
}
