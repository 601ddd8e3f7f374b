//! The work queue: claim, ack, abandon, fail, release, extend and reap, by any client, without a
//! relay.

mod common;
#[path = "common/failing_store.rs"]
mod failing_store;

use std::borrow::Borrow;
use std::collections::HashSet;
use std::time::Duration;

use common::{Backend, FOREVER, Poll, TestDb, ids_of, numbered, until};
use failing_store::FailingStore;
use outbox::store::Status;
use outbox::{
    Backoff, Completion, Context, Error, Event, EventId, NodeId, OnDead, WorkItem, WorkItemId, WorkQueue,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(86_400);

fn node(name: &str) -> NodeId {
    NodeId::from(name)
}

/// Claims all due items for a node of this name.
async fn claim(queue: &WorkQueue, name: &str) -> Vec<WorkItem> {
    queue.claim(&node(name), LEASE, 1_000).await.unwrap()
}

async fn claim_one(queue: &WorkQueue, name: &str) -> WorkItem {
    queue.claim(&node(name), LEASE, 1).await.unwrap().pop().expect("an item is due")
}

fn ids(items: &[WorkItem]) -> Vec<WorkItemId> {
    items.iter().map(|item| item.id().clone()).collect()
}

fn messages(items: &[WorkItem]) -> Vec<EventId> {
    items.iter().map(|item| item.id().message().clone()).collect()
}

fn numbers(items: &[WorkItem]) -> Vec<u64> {
    items.iter().map(|item| item.payload().unwrap()).collect()
}

/// Ends a claim, in the named way.
async fn settle(
    queue: &WorkQueue,
    how: &str,
    owner: &NodeId,
    ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
) -> u64 {
    match how {
        "ack" => queue.ack(owner, ids).await,
        "abandon" => queue.abandon(owner, ids, "no").await,
        "abandon_after" => queue.abandon_after(owner, ids, SEC, "no").await,
        "fail" => queue.fail(owner, ids, "no").await,
        "release" => queue.release(owner, ids).await,
        _ => unreachable!("{how}"),
    }
    .unwrap()
}

const WAYS: [&str; 5] = ["ack", "abandon", "abandon_after", "fail", "release"];

/// A store that counts its calls.
fn counting<DB: Backend>(db: &TestDb<DB>) -> (std::sync::Arc<FailingStore>, WorkQueue) {
    let store = FailingStore::never(db.outbox.store());
    (store.clone(), WorkQueue::new(store))
}

/// An ack of three items locks the first and waits for the second, which a transaction holds.
/// Another transaction holds the third and waits for the first. When the second is released the ack
/// waits for the third: a deadlock, which the ack closes and of which it is the victim.
async fn ack_in_a_deadlock<DB: Backend>(prepare: &str, waiting: &str, poll: Poll) {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let (queue, me) = (db.outbox.queue(), node("a"));
    db.write("e", 0..3).await;
    let items = claim(&queue, "a").await;
    let lock = |n: usize| {
        let id = items[n].id().message().as_str();
        format!("UPDATE {} SET tenant_id = tenant_id WHERE event_id = '{id}'", db.table)
    };
    let until_waiting = async |count: i64| {
        poll.until("enough statements wait for locks", async || db.number(waiting).await >= count).await;
    };
    let (mut first, mut other) = (db.outbox.begin().await.unwrap(), db.outbox.begin().await.unwrap());
    DB::execute_sql(&mut first, &lock(1)).await.unwrap();
    DB::execute_sql(&mut other, &prepare.replace("{t}", &db.table)).await.unwrap();
    DB::execute_sql(&mut other, &lock(2)).await.unwrap();
    let acked = async { queue.ack(&me, ids(&items)).await.unwrap() };
    let others = async {
        until_waiting(1).await;
        let lock = lock(0);
        let locked = async {
            DB::execute_sql(&mut other, &lock).await.unwrap();
            other.commit().await.unwrap();
        };
        let released = async {
            until_waiting(2).await;
            first.commit().await.unwrap();
        };
        tokio::join!(locked, released)
    };
    let (acked, _) = tokio::time::timeout(FOREVER, async { tokio::join!(acked, others) }).await.unwrap();
    assert_eq!(acked, 3);
    for item in &items {
        assert_eq!(db.status(item.id().message()).await, Status::Done);
    }
}

/// OBX-099. The server checks for a deadlock when a statement has waited for a second, and ends
/// that statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_the_victim_of_a_deadlock_is_repeated_on_postgres() {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%UPDATE %{t}%'";
    let patient = "SET LOCAL deadlock_timeout = '1h'";
    ack_in_a_deadlock::<sqlx::Postgres>(patient, waiting, Poll::DEFAULT).await;
}

/// OBX-099. The server ends the transaction that has written less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_the_victim_of_a_deadlock_is_repeated_on_mariadb() {
    let write_more =
        "INSERT INTO {t} (event_type, payload) VALUES ('x', '1'), ('x', '1'), ('x', '1'), ('x', '1')";
    let waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' \
                   AND trx_query LIKE '%{t}%'";
    ack_in_a_deadlock::<sqlx::MySql>(write_more, waiting, Poll::INNODB).await;
}

on_every_database! {
    /// OBX-017, 020, 021, 022, 026.
    async fn a_claim_leases_what_is_ready_to_its_owner_and_no_more_than_asked(frozen |db|) {
        let queue = db.outbox.queue();
        let written = db.write("e", 0..5).await;
        let items = queue.claim(&node("a"), LEASE, 3).await.unwrap();
        assert_eq!(messages(&items), written[..3]);
        assert_eq!(numbers(&items), [0, 1, 2]);
        for item in &items {
            assert_eq!(item.attempt(), 1);
            assert_eq!(item.event_type().as_str(), "e");
            assert_eq!(item.event().id(), item.id().message());
            let (owner, until) = db.find(item.id().message()).await.lease.unwrap();
            assert_eq!(owner, node("a"));
            let left = until - db.clock.as_ref().unwrap().now();
            assert!((left.num_milliseconds() - 30_000).abs() <= 1, "{left}");
        }
        assert_eq!(messages(&claim(&queue, "b").await), written[3..]);
    }

    /// OBX-018; deferred and retrying items alike.
    async fn an_item_is_claimed_when_it_is_due_and_not_before(frozen |db|) {
        let queue = db.outbox.queue();
        db.outbox.send(numbered("e", 1).deliver_after(10 * SEC)).await.unwrap();
        assert!(claim(&queue, "a").await.is_empty());
        db.advance(9 * SEC);
        assert!(claim(&queue, "a").await.is_empty());
        db.advance(SEC);
        let item = claim_one(&queue, "a").await;
        queue.abandon_after(&node("a"), [item.id()], 7 * SEC, "not yet").await.unwrap();
        db.advance(6 * SEC);
        assert!(claim(&queue, "a").await.is_empty(), "the retry has its own delay");
        db.advance(SEC);
        assert_eq!(claim_one(&queue, "a").await.attempt(), 2);
    }

    /// OBX-019, 053; case 1 of the leased work queue: no reaper runs here.
    async fn an_item_with_an_expired_lease_is_claimed_again_without_a_reaper(frozen |db|) {
        let queue = db.outbox.queue();
        db.write("e", 0..1).await;
        let first = claim_one(&queue, "a").await;
        db.advance(LEASE - MS);
        assert!(claim(&queue, "b").await.is_empty());
        db.advance(MS);
        let second = claim_one(&queue, "b").await;
        assert_eq!(first.id().message(), second.id().message());
        assert!(first.id() < second.id());
        assert_eq!(second.attempt(), 1, "no failure was reported");
        assert_eq!(queue.ack(&node("a"), [first.id()]).await.unwrap(), 0);
        assert_eq!(queue.ack(&node("b"), [second.id()]).await.unwrap(), 1);
    }

    /// OBX-023.
    async fn an_empty_queue_returns_no_items(|db|) {
        assert!(claim(&db.outbox.queue(), "a").await.is_empty());
    }

    /// OBX-024, 025, 032, 048.
    async fn done_and_dead_items_are_never_claimed_again(frozen |db|) {
        let queue = db.outbox.queue();
        db.write("e", 0..4).await;
        let items = claim(&queue, "a").await;
        queue.ack(&node("a"), [items[0].id(), items[1].id()]).await.unwrap();
        queue.fail(&node("a"), [items[2].id(), items[3].id()], "no").await.unwrap();
        db.advance(365 * DAY);
        queue.reap_expired().await.unwrap();
        assert!(claim(&queue, "a").await.is_empty());
        assert_eq!(db.status_counts().await, (0, 0, 2, 2));
    }

    /// OBX-027, 028, 029.
    async fn an_ack_records_its_time_and_owner(frozen |db|) {
        let queue = db.outbox.queue();
        db.write("e", 0..2).await;
        let items = claim(&queue, "a").await;
        db.advance(SEC);
        assert_eq!(queue.ack(&node("a"), ids(&items)).await.unwrap(), 2);
        for item in &items {
            let stored = db.find(item.id().message()).await;
            assert_eq!(stored.status, Status::Done);
            assert_eq!(stored.done_by, Some(node("a")));
            let since = db.clock.as_ref().unwrap().now() - stored.done_at.unwrap();
            assert!(since.num_milliseconds().abs() <= 1, "{since}");
            assert_eq!(stored.lease, None);
        }
    }

    async fn done_items_may_be_deleted_at_once(|db|) {
        let queue = db.outbox.queue().completion(Completion::Delete);
        let written = db.write("e", 0..2).await;
        let items = claim(&queue, "a").await;
        assert_eq!(queue.ack(&node("a"), ids(&items)).await.unwrap(), 2);
        assert!(db.outbox.admin().find(&written[0]).await.unwrap().is_none());
        assert_eq!(queue.ack(&node("a"), ids(&items)).await.unwrap(), 0, "acked twice");
    }

    /// OBX-030, 031, 038, 039, 044, 045.
    async fn only_the_owner_of_the_newest_claim_ends_it(|db|) {
        let queue = db.outbox.queue();
        for how in WAYS {
            db.write("e", 0..1).await;
            let item = claim_one(&queue, "a").await;
            let unknown: WorkItemId = "unknown:1:0".parse().unwrap();
            let later: WorkItemId = item.id().to_string().replace(":1:0", ":2:0").parse().unwrap();
            assert_eq!(settle(&queue, how, &node("b"), [item.id()]).await, 0, "{how} by another node");
            assert_eq!(settle(&queue, how, &node("a"), [&unknown]).await, 0, "{how} of an unknown item");
            assert_eq!(settle(&queue, how, &node("a"), [later]).await, 0, "{how} of a claim that was never made");
            let stored = db.find(item.id().message()).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0), "{how}");
            let both = [unknown, item.id().clone()];
            assert_eq!(settle(&queue, how, &node("a"), &both).await, 1, "{how} by its owner");
            assert_eq!(settle(&queue, how, &node("a"), &both).await, 0, "{how}, twice");
            db.run("DELETE FROM {t}").await.unwrap();
        }
    }

    /// A claim is not identified by its owner alone.
    async fn a_stale_claim_of_the_same_owner_changes_nothing(frozen |db|) {
        let queue = db.outbox.queue();
        for how in WAYS {
            db.write("e", 0..1).await;
            let stale = claim_one(&queue, "a").await.id().clone();
            db.advance(LEASE);
            let fresh = claim_one(&queue, "a").await.id().clone();
            assert_eq!(settle(&queue, how, &node("a"), [&stale]).await, 0, "{how}");
            let stored = db.find(fresh.message()).await;
            assert_eq!((stored.status, stored.attempts), (Status::New, 0), "{how}");
            assert!(stored.lease.is_some(), "{how}");
            assert!(queue.extend(&node("a"), LEASE, [&stale]).await.unwrap().is_empty());
            // Both at once: the newest counts, and counts once.
            let kept = queue.extend(&node("a"), LEASE, [&stale, &fresh]).await.unwrap();
            assert_eq!(kept.iter().collect::<Vec<_>>(), [&fresh]);
            assert_eq!(settle(&queue, how, &node("a"), [&fresh, &stale]).await, 1, "{how}");
            db.run("DELETE FROM {t}").await.unwrap();
        }
    }

    async fn an_id_that_is_named_twice_counts_once(frozen |db|) {
        let queue = db.outbox.queue();
        for how in WAYS {
            db.write("e", 0..1).await;
            let id = claim_one(&queue, "a").await.id().clone();
            let twice = [id.clone(), id.clone(), id.clone()];
            assert_eq!(queue.extend(&node("a"), LEASE, &twice).await.unwrap(), twice[..1]);
            assert_eq!(settle(&queue, how, &node("a"), &twice).await, 1, "{how}");
            assert!(db.find(id.message()).await.attempts <= 1, "{how}");
            db.run("DELETE FROM {t}").await.unwrap();
        }
    }

    /// OBX-035, 036, 037, 040, 041, 061, 062.
    async fn an_item_has_its_time_of_storing_and_the_reason_of_its_abandonment(frozen |db|) {
        let queue = db.outbox.queue();
        let id = db.outbox.send(numbered("e", 1)).await.unwrap().id;
        let created_at = db.find(&id).await.created_at;
        let first = claim_one(&queue, "a").await;
        assert_eq!((first.created_at(), first.last_error()), (Some(created_at), None));
        assert_eq!((first.is_delayed(), first.available_at()), (false, None));
        queue.abandon_after(&node("a"), [first.id()], SEC, "no answer").await.unwrap();
        db.advance(SEC);
        let second = claim_one(&queue, "a").await;
        assert_eq!((second.created_at(), second.last_error()), (Some(created_at), Some("no answer")));
        assert_eq!((second.is_delayed(), second.available_at()), (false, None));
    }

    async fn an_abandoned_item_is_due_again_after_two_four_eight_seconds_up_to_a_minute(frozen |db|) {
        let queue = db.outbox.queue();
        let id = db.write("e", 0..1).await.remove(0);
        for (failed, seconds) in (1u32..).zip([2, 4, 8, 16, 32, 60, 60, 60, 60]) {
            let item = claim_one(&queue, "a").await;
            assert_eq!(item.attempt(), failed);
            let error = format!("failure {failed}");
            assert_eq!(queue.abandon(&node("a"), [item.id()], &error).await.unwrap(), 1);
            let stored = db.find(&id).await;
            assert_eq!((stored.status, stored.attempts), (Status::Retry, failed));
            assert_eq!(stored.lease, None);
            assert_eq!(stored.last_error, Some(error));
            db.advance(seconds * SEC - MS);
            assert!(claim(&queue, "a").await.is_empty(), "not before {seconds} s");
            db.advance(MS);
        }
        // OBX-064, 065.
        let last = claim_one(&queue, "a").await;
        assert_eq!(last.attempt(), 10);
        assert_eq!(queue.abandon(&node("a"), [last.id()], "the tenth failure").await.unwrap(), 1);
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts), (Status::Dead, 10));
        assert_eq!(stored.last_error.as_deref(), Some("the tenth failure"));
        db.advance(DAY);
        assert!(claim(&queue, "a").await.is_empty());
    }

    /// OBX-063, 065.
    async fn the_retry_policy_and_its_maximum_are_a_setting(frozen |db|) {
        let policy = Backoff::default().base(100 * MS).no_jitter().max_attempts(2);
        let queue = db.outbox.queue().retry(policy);
        let id = db.write("e", 0..1).await.remove(0);
        let item = claim_one(&queue, "a").await;
        queue.abandon(&node("a"), [item.id()], "no").await.unwrap();
        db.advance(99 * MS);
        assert!(claim(&queue, "a").await.is_empty());
        db.advance(MS);
        let item = claim_one(&queue, "a").await;
        // An explicit delay counts against the attempts too.
        queue.abandon_after(&node("a"), [item.id()], SEC, "no").await.unwrap();
        assert_eq!(db.status(&id).await, Status::Dead);
    }

    /// OBX-042, 043.
    async fn a_failed_item_is_dead_for_the_reason_given_and_can_be_replayed(|db|) {
        let queue = db.outbox.queue();
        let id = db.write("e", 0..1).await.remove(0);
        let item = claim_one(&queue, "a").await;
        assert_eq!(queue.fail(&node("a"), [item.id()], "no such address").await.unwrap(), 1);
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts), (Status::Dead, 0));
        assert_eq!(stored.last_error.as_deref(), Some("no such address"));
        assert_eq!(stored.done_by, Some(node("a")));
        assert!(db.outbox.admin().replay(&id).await.unwrap());
        assert_eq!(queue.ack(&node("a"), [item.id()]).await.unwrap(), 0, "a claim from before the replay");
        assert_eq!(claim_one(&queue, "a").await.attempt(), 1);
    }

    async fn a_released_item_can_be_claimed_at_once_and_is_unchanged(|db|) {
        let queue = db.outbox.queue();
        let id = db.write("e", 0..1).await.remove(0);
        let item = claim_one(&queue, "a").await;
        assert_eq!(queue.release(&node("a"), [item.id()]).await.unwrap(), 1);
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts, stored.last_error), (Status::New, 0, None));
        assert_eq!(claim_one(&queue, "b").await.attempt(), 1);
    }

    /// OBX-049, 050, 051, 052, 106.
    async fn reaping_releases_expired_leases_and_no_others(frozen |db|) {
        let queue = db.outbox.queue();
        let written = db.write("e", 0..5).await;
        let early = claim(&queue, "a").await;
        queue.ack(&node("a"), [early[0].id()]).await.unwrap();
        queue.fail(&node("a"), [early[1].id()], "no").await.unwrap();
        queue.extend(&node("a"), 2 * LEASE, [early[2].id()]).await.unwrap();
        assert_eq!(queue.reap_expired().await.unwrap(), 0);
        db.advance(LEASE + MS);
        assert_eq!(queue.reap_expired().await.unwrap(), 2);
        assert_eq!(queue.reap_expired().await.unwrap(), 0);
        assert_eq!(db.status_counts().await, (3, 0, 1, 1));
        assert!(db.find(&written[2]).await.lease.is_some(), "this lease was extended");
        for id in &written[3..] {
            assert_eq!(db.find(id).await.lease, None);
        }
        assert_eq!(queue.ack(&node("a"), [early[3].id()]).await.unwrap(), 0, "its owner lost the lease");
        assert_eq!(claim(&queue, "b").await.len(), 2);
    }

    /// Case 8: fifty items, handled one after another under one lease.
    async fn a_lease_that_is_extended_does_not_expire(frozen |db|) {
        let queue = db.outbox.queue();
        db.write("e", 0..50).await;
        let items = claim(&queue, "a").await;
        for done in 0..items.len() {
            db.advance(10 * SEC);
            let rest = ids(&items[done..]);
            assert_eq!(queue.extend(&node("a"), LEASE, &rest).await.unwrap(), rest);
            assert!(claim(&queue, "b").await.is_empty());
            assert_eq!(queue.ack(&node("a"), [items[done].id()]).await.unwrap(), 1);
        }
    }

    async fn extending_reports_which_items_are_lost(frozen |db|) {
        let queue = db.outbox.queue();
        db.write("e", 0..4).await;
        let items = claim(&queue, "a").await;
        queue.ack(&node("a"), [items[0].id()]).await.unwrap();
        queue.release(&node("a"), [items[1].id()]).await.unwrap();
        claim_one(&queue, "b").await;
        let kept = queue.extend(&node("a"), LEASE, ids(&items)).await.unwrap();
        assert_eq!(kept, [items[2].id().clone(), items[3].id().clone()]);
        assert!(queue.extend(&node("b"), LEASE, ids(&items)).await.unwrap().is_empty());
        // Late, but not claimed again: the lease is still its owner's.
        db.advance(2 * LEASE);
        assert_eq!(queue.extend(&node("a"), LEASE, [items[2].id()]).await.unwrap(), [items[2].id().clone()]);
        db.advance(LEASE - MS);
        assert_eq!(messages(&claim(&queue, "c").await).len(), 2, "only items that were not extended");
    }

    /// OBX-116, 117, and every other invalid number.
    async fn invalid_settings_are_refused_before_a_call_of_the_store(|db|) {
        let (store, queue) = counting(&db);
        db.write("e", 0..1).await;
        let a = node("a");
        let year = WorkQueue::MAX_LEASE;
        let (zero, long) = (Duration::ZERO, "x".repeat(101));
        for (owner, lease, batch) in [
            (&a, zero, 1),
            (&a, year + MS, 1),
            (&a, Duration::MAX, 1),
            (&a, LEASE, 0),
            (&a, LEASE, WorkQueue::MAX_BATCH + 1),
            (&a, LEASE, 1_000_000),
            (&a, LEASE, usize::MAX),
            (&node(""), LEASE, 1),
            (&node(&long), LEASE, 1),
            (&node("a\0b"), LEASE, 1),
        ] {
            let error = queue.claim(owner, lease, batch).await.unwrap_err();
            assert!(matches!(error, Error::Setting { .. }), "{error:?}");
        }
        let id: WorkItemId = "x:1:0".parse().unwrap();
        for lease in [zero, year + MS, Duration::MAX] {
            let error = queue.extend(&a, lease, [&id]).await.unwrap_err();
            assert!(matches!(error, Error::Setting { .. }), "{error:?}");
        }
        assert_eq!(store.calls(), 0);
        // The limits themselves are fine.
        let items = queue.claim(&a, year, WorkQueue::MAX_BATCH).await.unwrap();
        assert_eq!(items.len(), 1);
        assert_eq!(queue.abandon_after(&a, ids(&items), Duration::MAX, "x").await.unwrap(), 1);
    }

    async fn an_empty_list_makes_no_call_of_the_store(|db|) {
        let (store, queue) = counting(&db);
        for how in WAYS {
            assert_eq!(settle(&queue, how, &node("a"), &[] as &[WorkItemId]).await, 0);
        }
        assert!(queue.extend(&node("a"), LEASE, &[] as &[WorkItemId]).await.unwrap().is_empty());
        assert_eq!(store.calls(), 0);
    }

    /// OBX-097, 120.
    async fn every_call_is_one_round_trip(|db|) {
        let (store, queue) = counting(&db);
        db.write("e", 0..300).await;
        let items = claim(&queue, "a").await;
        assert_eq!((items.len(), store.calls()), (300, 1));
        queue.extend(&node("a"), LEASE, ids(&items)).await.unwrap();
        assert_eq!(store.calls(), 1);
        for (how, items) in WAYS.iter().zip(items.chunks(60)) {
            assert_eq!(settle(&queue, how, &node("a"), ids(items)).await, 60);
            assert_eq!(store.calls(), 1, "{how}");
        }
    }

    /// Case 10: as many as a worker can use, not fifty per poll.
    async fn a_claim_and_an_ack_may_be_of_thousands(|db|) {
        let (store, queue) = counting(&db);
        db.write("e", 0..2_500).await;
        let items = queue.claim(&node("a"), LEASE, 2_500).await.unwrap();
        assert_eq!((items.len(), store.calls()), (2_500, 1));
        assert_eq!(queue.extend(&node("a"), LEASE, ids(&items)).await.unwrap(), ids(&items));
        assert_eq!(queue.ack(&node("a"), ids(&items)).await.unwrap(), 2_500);
        assert_eq!(store.calls(), 6, "a thousand ids at a time");
    }

    /// Case 9: deferred items are stored before the due one, and do not block it.
    async fn deferred_items_do_not_slow_down_a_claim(|db|) {
        let (store, queue) = counting(&db);
        db.outbox.send_all((0..5_000).map(|n| numbered("e", n).deliver_after(DAY))).await.unwrap();
        let due = db.write("e", 9_000..9_001).await;
        let items = queue.claim(&node("a"), LEASE, 10).await.unwrap();
        assert_eq!(messages(&items), due);
        assert_eq!((store.calls(), store.scanned()), (1, 1));
    }

    /// A key whose first item is leased, with thousands behind it.
    async fn a_blocked_key_at_the_head_does_not_hide_later_items(|db|) {
        let (store, queue) = counting(&db);
        db.outbox.send_all((0..3_000).map(|n| numbered("e", n).ordering_key("k"))).await.unwrap();
        let free = db.write("e", 9_000..9_003).await;
        assert_eq!(numbers(&[claim_one(&queue, "a").await]), [0]);
        store.calls();
        assert_eq!(messages(&[claim_one(&queue, "b").await]), free[..1]);
        assert!(store.calls() < 40, "windows grow");
        assert_eq!(messages(&claim(&queue, "b").await), free[1..], "items beyond the limit were released");
        assert_eq!(db.outbox.admin().find(&free[2]).await.unwrap().unwrap().attempts, 0);
    }

    async fn the_items_of_a_key_are_claimed_in_order_and_wait_for_each_other(frozen |db|) {
        let queue = db.outbox.queue();
        db.outbox.send_all((0..4).map(|n| numbered("e", n).ordering_key("k"))).await.unwrap();
        let first = queue.claim(&node("a"), LEASE, 2).await.unwrap();
        assert_eq!(numbers(&first), [0, 1]);
        assert!(claim(&queue, "b").await.is_empty(), "the key is leased");
        // The second item is released with the first, or it would overtake.
        queue.abandon(&node("a"), [first[0].id()], "no").await.unwrap();
        queue.release(&node("a"), [first[1].id()]).await.unwrap();
        assert!(claim(&queue, "b").await.is_empty(), "the first waits for its retry");
        db.advance(2 * SEC);
        let again = claim(&queue, "b").await;
        assert_eq!(numbers(&again), [0, 1, 2, 3]);
        queue.fail(&node("b"), [again[0].id()], "no").await.unwrap();
        queue.release(&node("b"), ids(&again[1..])).await.unwrap();
        assert!(claim(&queue, "b").await.is_empty(), "a dead item blocks its key");
        let queue = queue.on_dead(OnDead::Skip);
        assert_eq!(numbers(&claim(&queue, "b").await), [1, 2, 3]);
    }

    async fn an_expired_item_is_dead_and_blocks_its_key(frozen |db|) {
        let queue = db.outbox.queue();
        let end = db.clock.as_ref().unwrap().now() + chrono::Duration::seconds(10);
        let soon = numbered("e", 0).ordering_key("k").expires_at(end);
        let events = [soon, numbered("e", 1).ordering_key("k"), numbered("e", 2)];
        let written = ids_of(db.outbox.send_all(events).await.unwrap());
        db.advance(10 * SEC);
        assert_eq!(numbers(&claim(&queue, "a").await), [2]);
        let stored = db.find(&written[0]).await;
        assert_eq!((stored.status, stored.last_error.as_deref()), (Status::Dead, Some("expired")));
        let waiting = db.find(&written[1]).await;
        assert_eq!((waiting.status, waiting.attempts, waiting.lease), (Status::New, 0, None));
        assert!(claim(&queue, "a").await.is_empty());
        assert_eq!(numbers(&claim(&queue.on_dead(OnDead::Skip), "a").await), [1]);
    }

    async fn an_item_that_cannot_be_decoded_is_dead_lettered_and_the_others_are_claimed(frozen |db|) {
        let queue = db.outbox.queue();
        let events = (0..3).map(|n| numbered("e", n).ordering_key("k").header("a", "b"));
        let written = ids_of(db.outbox.send_all(events).await.unwrap());
        db.write("e", 7..8).await;
        db.run(&format!("UPDATE {{t}} SET headers = '[1]' WHERE event_id = '{}'", written[0])).await.unwrap();
        assert_eq!(numbers(&claim(&queue, "a").await), [7]);
        let stored = db.find(&written[0]).await;
        assert_eq!(stored.status, Status::Dead);
        assert!(stored.last_error.unwrap().starts_with("cannot be decoded: its headers"));
        assert!(claim(&queue, "a").await.is_empty(), "it blocks its key like any dead item");
        assert_eq!(db.find(&written[1]).await.lease, None);
        assert_eq!(numbers(&claim(&queue.on_dead(OnDead::Skip), "a").await), [1, 2]);
    }

    /// The owner of a whole batch crashes again and again, because of one item of it.
    async fn an_item_that_crashes_its_owner_is_dead_lettered_and_no_other_is(frozen |db|) {
        let queue = db.outbox.queue();
        let written = db.write("e", 0..6).await;
        let poison = &written[2];
        let mut crashes = 0;
        for _ in 0..30 {
            let items = claim(&queue, &format!("process {crashes}")).await;
            let owner = node(&format!("process {crashes}"));
            for item in &items {
                if item.id().message() == poison {
                    crashes += 1;
                    db.advance(LEASE);
                    break;
                }
                assert_eq!(queue.ack(&owner, [item.id()]).await.unwrap(), 1);
            }
        }
        assert_eq!(crashes, 4, "once in a batch, three times as a suspect");
        assert_eq!(db.status_counts().await, (0, 0, 5, 1));
        let reason = db.find(poison).await.last_error.unwrap();
        assert!(reason.contains("never came back"), "{reason}");
    }

    async fn suspects_are_claimed_together_once_and_one_at_a_time_after_that(frozen |db|) {
        let queue = db.outbox.queue();
        let lost = db.write("e", 0..10).await;
        assert_eq!(claim(&queue, "a").await.len(), 10);
        db.advance(LEASE);
        assert_eq!(numbers(&claim(&queue, "b").await), (0..10).collect::<Vec<_>>(), "any of them may be the cause, or none");
        db.advance(LEASE);
        db.write("e", 10..13).await;
        let items = queue.claim(&node("c"), LEASE, 10).await.unwrap();
        assert_eq!(numbers(&items), [0, 10, 11, 12], "with the new items behind it");
        for n in 1..10 {
            let items = claim(&queue, "c").await;
            assert_eq!(numbers(&items), [n]);
            assert_eq!(queue.ack(&node("c"), ids(&items)).await.unwrap(), 1);
        }
        assert!(claim(&queue, "c").await.is_empty());
        assert_eq!(db.status(&lost[9]).await, Status::Done);
    }

    /// Items that were leased together with one that crashes its owner are not claimed together
    /// with another suspect.
    async fn a_suspect_that_runs_alone_is_claimed_with_no_other_suspect(frozen |db|) {
        let queue = db.outbox.queue();
        db.write("e", 0..1).await;
        for owner in ["a", "b"] {
            claim_one(&queue, owner).await;
            db.advance(LEASE);
        }
        db.write("e", 1..3).await;
        assert_eq!(numbers(&queue.claim(&node("c"), LEASE, 3).await.unwrap()), [0, 1, 2]);
        db.advance(LEASE);
        assert_eq!(numbers(&queue.claim(&node("d"), LEASE, 3).await.unwrap()), [0]);
        assert_eq!(numbers(&queue.claim(&node("e"), LEASE, 3).await.unwrap()), [1, 2]);
    }

    /// Also within a key: a suspect that is released takes the later items with it.
    async fn suspects_of_a_key_keep_their_order(frozen |db|) {
        let queue = db.outbox.queue();
        db.outbox.send_all((0..2).map(|n| numbered("e", n).ordering_key("k"))).await.unwrap();
        db.outbox.send_all((2..4).map(|n| numbered("e", n).ordering_key("l"))).await.unwrap();
        for owner in ["a", "b"] {
            assert_eq!(numbers(&claim(&queue, owner).await), [0, 1, 2, 3]);
            db.advance(LEASE);
        }
        db.outbox.send(numbered("e", 4).ordering_key("l")).await.unwrap();
        assert_eq!(numbers(&claim(&queue, "c").await), [0]);
        assert_eq!(numbers(&claim(&queue, "c").await), [2], "another key");
        assert!(claim(&queue, "c").await.is_empty());
    }

    /// Case 7: the work was done, only the ack was lost.
    async fn an_ack_that_fails_is_not_a_failure_of_the_work(frozen |db|) {
        let lost = || Error::Database(sqlx::Error::Io(std::io::Error::other("connection lost")).into());
        let store = FailingStore::settle(db.outbox.store(), 1, lost);
        let queue = WorkQueue::new(store.clone());
        let id = db.write("e", 0..1).await.remove(0);
        let item = claim_one(&queue, "a").await;
        let error = queue.ack(&node("a"), [item.id()]).await.unwrap_err();
        assert!(error.is_transient());
        let stored = db.find(&id).await;
        assert_eq!((stored.status, stored.attempts, stored.last_error), (Status::New, 0, None));
        // A repeated ack counts even after the lease: no other node has claimed the item.
        db.advance(2 * LEASE);
        assert_eq!(queue.ack(&node("a"), [item.id()]).await.unwrap(), 1);
        assert_eq!(db.find(&id).await.attempts, 0);
    }

    /// Claimed items are not lost when a later part of the claim fails.
    async fn a_claim_that_fails_half_way_returns_what_it_has(|db|) {
        let keyed = |n| numbered("e", n).ordering_key("k");
        db.outbox.send(keyed(0)).await.unwrap();
        claim_one(&db.outbox.queue(), "a").await;
        db.write("e", 7..8).await;
        db.outbox.send_all((1..4).map(keyed)).await.unwrap();
        let store = FailingStore::take(db.outbox.store(), 2, || Error::Store("unavailable".into()));
        store.after(1);
        let queue = WorkQueue::new(store.clone());
        let items = queue.claim(&node("b"), LEASE, 2).await.unwrap();
        assert_eq!((numbers(&items), store.failed()), (vec![7], 1));
        queue.claim(&node("b"), LEASE, 2).await.unwrap_err();
        assert_eq!(queue.ack(&node("b"), ids(&items)).await.unwrap(), 1);
    }

    /// OBX-098, 099, 100, 101: eight workers that make all calls on one table at once.
    async fn many_workers_share_a_table_and_no_item_has_two_owners(|db|) {
        const ITEMS: u64 = 300;
        let other = db.another().await;
        db.write("e", 0..ITEMS).await;
        let mut workers = tokio::task::JoinSet::new();
        for n in 0..8 {
            let outbox = if n % 2 == 0 { db.outbox.clone() } else { other.outbox.clone() };
            let queue = outbox.queue().retry(Backoff::default().base(MS).max_attempts(1_000));
            workers.spawn(async move {
                let me = node(&format!("worker {n}"));
                let mut acked = Vec::new();
                let mut turn: usize = n;
                loop {
                    let items = queue.claim(&me, LEASE, 7).await.unwrap();
                    if items.is_empty() && outbox.admin().backlog().await.unwrap().pending == 0 {
                        return acked;
                    }
                    assert_eq!(queue.extend(&me, LEASE, ids(&items)).await.unwrap(), ids(&items));
                    for item in items {
                        turn += 1;
                        let settled = match turn % 5 {
                            0 => queue.abandon(&me, [item.id()], "again").await.unwrap(),
                            1 => queue.release(&me, [item.id()]).await.unwrap(),
                            _ => {
                                acked.push(item.payload::<u64>().unwrap());
                                queue.ack(&me, [item.id()]).await.unwrap()
                            }
                        };
                        assert_eq!(settled, 1, "no other node settles a leased item");
                    }
                    queue.reap_expired().await.unwrap();
                }
            });
        }
        let mut acked: Vec<u64> = workers.join_all().await.into_iter().flatten().collect();
        acked.sort_unstable();
        assert_eq!(acked, (0..ITEMS).collect::<Vec<_>>());
        assert_eq!(db.status_counts().await, (0, 0, ITEMS, 0));
    }

    /// `single_node` leads the whole table; `multi_node` shares it.
    async fn nothing_is_claimed_while_a_relay_leads_the_table(|db|) {
        let queue = db.outbox.queue();
        let alone = db.outbox.single_node().on_type("other", async |_: Context| {}).no_hot_path();
        let alone = alone.poll_interval(DAY).start().await.unwrap();
        db.outbox.send(numbered("e", 0).deliver_after(MS)).await.unwrap();
        db.due(1).await;
        assert!(claim(&queue, "a").await.is_empty());
        alone.stop().await.unwrap();
        let beside = db.another().await.outbox.multi_node().poll_interval(DAY);
        let beside = beside.skip_recent(DAY).no_hot_path().start().await.unwrap();
        db.outbox.send_all((1..5).map(|n| numbered("e", n))).await.unwrap();
        // One claim may miss events: InnoDB locks a row while another take looks at it.
        let mut found = HashSet::new();
        until("the queue claims what the relay leaves", async || {
            let items = claim(&queue, "a").await;
            found.extend(numbers(&items));
            assert_eq!(queue.ack(&node("a"), ids(&items)).await.unwrap(), items.len() as u64);
            found.is_superset(&(1..5).collect())
        })
        .await;
        beside.stop().await.unwrap();
    }

    /// A claim that its caller drops half way leaves no transaction open: a later statement on the
    /// same connection would be part of that transaction, and never be committed.
    async fn a_claim_may_be_dropped_at_any_time(|db|) {
        let (queue, other) = (db.outbox.queue(), db.another().await);
        let (dropping, acking) = (node("a"), node("b"));
        for polls in 0..30 {
            other.write("e", 0..8).await;
            let held = queue.claim(&acking, LEASE, 8).await.unwrap();
            other.write("e", 8..9).await;
            {
                let mut claiming = std::pin::pin!(queue.claim(&dropping, MS, 10));
                for _ in 0..polls {
                    if futures_util::poll!(claiming.as_mut()).is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            // Concurrently, on every connection of the pool.
            let acks = held.iter().map(|item| queue.ack(&acking, [item.id()]));
            let acked: Vec<_> = futures_util::future::join_all(acks).await;
            assert!(acked.iter().all(|acked| matches!(acked, Ok(1))), "after {polls} polls: {acked:?}");
            for item in &held {
                assert_eq!(other.status(item.id().message()).await, Status::Done, "after {polls} polls");
            }
            while other.outbox.admin().backlog().await.unwrap().pending > 0 {
                let items = claim(&queue, "b").await;
                queue.ack(&acking, ids(&items)).await.unwrap();
            }
        }
    }

    /// An id can be sent as text, and settled in another process.
    async fn an_id_may_settle_in_another_process(|db|) {
        let other = db.another().await;
        db.outbox.send(Event::new("e").id("a:b").json(&1)).await.unwrap();
        let item = claim_one(&db.outbox.queue(), "a").await;
        let text = serde_json::to_string(item.id()).unwrap();
        assert_eq!(text, "\"a:b:1:0\"");
        let id: WorkItemId = serde_json::from_str(&text).unwrap();
        assert_eq!(other.outbox.queue().ack(&node("a"), [id]).await.unwrap(), 1);
        assert_eq!(db.status(item.id().message()).await, Status::Done);
    }
}
