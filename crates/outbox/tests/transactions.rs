//! Transactions of sqlx that the outbox borrows, functions that leave the transaction to their
//! caller, and the result of a write.

mod common;

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Backend, Poll, Seen, TestDb, ids_of, numbered};
use outbox::{
    Error, Event, EventError, HookError, IntoEvent, JoinStatus, Outbox, Query, Tx, Write, WriteOutcome,
    WriterHook, Written,
};
use sqlx::{Connection as _, MySql, Postgres, Sqlite};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Calls of hooks and callbacks.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn add(&self, call: impl Into<String>) {
        self.0.lock().unwrap().push(call.into());
    }

    /// Returns the calls since the last time.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn register<DB: Backend>(&self, tx: &mut Tx<'_, DB>) {
        let (commit, rollback) = (self.clone(), self.clone());
        tx.after_commit(move || commit.add("committed"));
        tx.after_rollback(move || rollback.add("rolled back"));
    }
}

impl WriterHook for Calls {
    fn after_commit(&self, events: &[Event]) {
        self.add(format!("hook: committed {}", events.len()));
    }

    fn after_rollback(&self, events: &[Event]) {
        self.add(format!("hook: rolled back {}", events.len()));
    }
}

/// An outbox on the same table whose hook records calls.
async fn with_calls<DB: Backend>(db: &TestDb<DB>) -> (Outbox<DB>, Calls) {
    let calls = Calls::default();
    let hook = calls.clone();
    (db.another_with(|builder| builder.hook(hook)).await.outbox, calls)
}

/// An event of a type that must not leave its thread.
struct OfOneThread(Rc<u64>);

impl IntoEvent for OfOneThread {
    fn into_event(self, limit: usize) -> Result<Event, EventError> {
        numbered("e", *self.0).into_event(limit)
    }
}

fn assert_send<F: Future + Send>(future: F) -> F {
    future
}

/// A function of an application: its caller decides about the transaction.
async fn register(to: &mut impl Write, number: u64) -> outbox::Result<Written> {
    let written = assert_send(to.write(OfOneThread(number.into()))).await?;
    assert_send(to.write_all([OfOneThread((number + 1).into())])).await?;
    Ok(written)
}

/// The same with a place to write to that is passed by value.
async fn register_in(mut place: impl Write, number: u64) -> outbox::Result<Written> {
    register(&mut place, number).await
}

on_every_database! {
    /// The poller would look an hour later: the receipt wakes it.
    async fn the_receipt_of_a_bound_transaction_reports_its_end(|db|) {
        let (outbox, calls) = with_calls(&db).await;
        let seen = Seen::default();
        let relay = outbox.multi_node().poll_interval(HOUR).on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();

        let mut tx = outbox.pool().begin().await.unwrap();
        let mut bound = outbox.bind(&mut tx);
        let first = bound.write(numbered("e", 1)).await.unwrap();
        calls.register(&mut bound);
        let more = bound.write_all([numbered("e", 2), numbered("e", 3)]).await.unwrap();
        let leased = format!("SELECT count(*) FROM {} WHERE locked_by IS NOT NULL", db.table);
        assert_eq!(DB::number(&mut bound, &leased).await, 0, "on the hot path, whose end is not seen");
        let receipt = bound.finish();
        assert!(receipt.written().eq([&first].into_iter().chain(&more)));
        tx.commit().await.unwrap();
        assert_eq!(calls.take(), [""; 0], "called before the receipt");
        receipt.committed();
        assert_eq!(calls.take(), ["hook: committed 1", "hook: committed 2", "committed"]);
        seen.reach(3).await;

        let mut tx = outbox.pool().begin().await.unwrap();
        let mut bound = outbox.bind(&mut tx);
        bound.write(numbered("e", 4)).await.unwrap();
        calls.register(&mut bound);
        let receipt = bound.finish();
        tx.rollback().await.unwrap();
        receipt.rolled_back();
        assert_eq!(calls.take(), ["hook: rolled back 1", "rolled back"]);
        relay.poll_once().await.unwrap();
        relay.idle().await.unwrap();
        seen.assert_each_once(1..4);
        relay.stop().await.unwrap();
    }

    /// Without a receipt the outbox does not know the end: it calls nothing, and the poller
    /// delivers.
    async fn a_bound_transaction_without_a_receipt_is_left_to_its_caller_and_the_poller(|db|) {
        let (outbox, calls) = with_calls(&db).await;
        let seen = Seen::default();
        let relay = outbox.single_node().poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
        for (number, commit, finish) in [(0, true, false), (1, true, true), (7, false, false), (8, false, true)] {
            let mut tx = outbox.pool().begin().await.unwrap();
            let mut bound = outbox.bind(&mut tx);
            bound.write(numbered("e", number)).await.unwrap();
            calls.register(&mut bound);
            if finish { drop(bound.finish()) } else { drop(bound) }
            let own = DB::number(&mut tx, &format!("SELECT count(*) FROM {} WHERE status = 0", db.table)).await;
            assert!(own > 0, "dropping the handle rolled back");
            if commit { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        }
        seen.reach(2).await;
        relay.idle().await.unwrap();
        seen.assert_each_once(0..2);
        assert_eq!(calls.take(), [""; 0]);
        relay.stop().await.unwrap();
    }

    /// Two savepoints, of which one is rolled back. The outer transaction decides about the other.
    async fn a_bound_savepoint_is_decided_by_the_outer_transaction(|db|) {
        for commit in [true, false] {
            let (outbox, calls) = with_calls(&db).await;
            let seen = Seen::default();
            let relay = outbox.multi_node().poll_interval(20 * MS).on_type("e", seen.handler()).start().await.unwrap();
            let mut outer = outbox.pool().begin().await.unwrap();
            let mut receipts = Vec::new();
            for number in 0..2 {
                let mut inner = outer.begin().await.unwrap();
                let mut bound = outbox.bind(&mut inner);
                bound.write(numbered("e", number)).await.unwrap();
                calls.register(&mut bound);
                receipts.push(bound.finish());
                if number == 0 { inner.commit().await.unwrap() } else { inner.rollback().await.unwrap() }
            }
            receipts.pop().unwrap().rolled_back();
            assert_eq!(calls.take(), ["hook: rolled back 1", "rolled back"]);
            let receipt = receipts.pop().unwrap();
            if commit {
                outer.commit().await.unwrap();
                receipt.committed();
                assert_eq!(calls.take(), ["hook: committed 1", "committed"]);
                seen.reach(1).await;
            } else {
                outer.rollback().await.unwrap();
                receipt.rolled_back();
                assert_eq!(calls.take(), ["hook: rolled back 1", "rolled back"]);
            }
            relay.idle().await.unwrap();
            assert_eq!(seen.numbers(), if commit { vec![0] } else { vec![] });
            relay.stop().await.unwrap();
        }
    }

    async fn a_bound_transaction_has_everything_that_a_transaction_has(|db|) {
        let seen = Seen::default();
        let relay = db.outbox.multi_node().poll_interval(HOUR).on_any(seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        let mut tx = db.outbox.pool().begin().await.unwrap();
        let mut bound = db.outbox.bind(&mut tx);
        assert!(bound.once("billing", "a").await.unwrap());
        assert_eq!(bound.once_each("billing", ["a", "b"]).await.unwrap(), [false, true]);
        bound.append([Event::new("OrderPlaced").tag("order", 1).json(&1)]).await.unwrap();
        let placed = bound.project(Query::tag("order", 1), 0, |count, _| count + 1).await.unwrap();
        assert_eq!(placed.state, 1);
        let steps = [numbered("step", 1), numbered("step", 2)];
        let run = bound.fan_out(steps).then(numbered("then", 3)).write().await.unwrap();
        let unrelated = bound.joins().start(outbox::NewJoin::of(1)).await.unwrap().id;
        bound.joins().cancel(&unrelated).await.unwrap();
        let receipt = bound.finish();
        assert_eq!(ids_of(receipt.written().cloned().collect()), run.steps);
        tx.commit().await.unwrap();
        receipt.committed();
        seen.reach(3).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let status = db.outbox.admin().join(&run.join).await.unwrap().unwrap().status;
        assert_eq!(status, JoinStatus::Completed);
        let mut tx = db.outbox.begin().await.unwrap();
        assert!(!tx.once("billing", "b").await.unwrap());
    }

    async fn a_function_writes_wherever_its_caller_decides(|db|) {
        let mut written = Vec::new();
        let mut tx = db.outbox.begin().await.unwrap();
        written.push(register(&mut tx, 0).await.unwrap());
        written.push(register_in(&mut tx, 2).await.unwrap());
        tx.commit().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        register(&mut tx, 100).await.unwrap();
        tx.rollback().await.unwrap();

        let mut sqlx_tx = db.outbox.pool().begin().await.unwrap();
        let mut bound = db.outbox.bind(&mut sqlx_tx);
        written.push(register(&mut bound, 4).await.unwrap());
        written.push(register_in(&mut bound, 6).await.unwrap());
        written.push(register_in(bound, 8).await.unwrap());
        sqlx_tx.commit().await.unwrap();

        written.push(register(&mut db.outbox.clone(), 10).await.unwrap());
        written.push(register(&mut &db.outbox, 12).await.unwrap());
        written.push(register_in(&db.outbox, 14).await.unwrap());
        written.push(register_in(db.outbox.clone(), 16).await.unwrap());

        let seen = Seen::default();
        let relay = db.outbox.single_node().on_type("e", seen.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        seen.assert_each_once(0..18);
        ids_of(written);
    }

    /// Many duplicates of one batch: the list of keys is longer than one statement takes.
    async fn every_duplicate_of_a_batch_has_the_id_of_the_first_event(|db|) {
        let keyed = |n: u64| numbered("e", n).dedup_key(format!("key-{n}"));
        let first = ids_of(db.outbox.send_all((0..1_100).map(keyed)).await.unwrap());
        let again = db.outbox.send_all((0..1_101).rev().map(keyed)).await.unwrap();
        assert!(again[0].is_new());
        assert!(again[1..].iter().all(Written::is_duplicate));
        assert!(again[1..].iter().rev().map(Written::id).eq(&first));
        assert_eq!(db.number("SELECT count(*) FROM {t}").await, 1_101);
    }

    /// A duplicate is one in the writer's own transaction too, and not after a rollback.
    async fn a_duplicate_of_a_rolled_back_event_is_new(|db|) {
        let mut tx = db.outbox.begin().await.unwrap();
        let first = tx.write(numbered("e", 1).dedup_key("k")).await.unwrap();
        let second = tx.write(numbered("e", 2).dedup_key("k")).await.unwrap();
        assert_eq!((second.outcome, &second.id), (WriteOutcome::Duplicate, &first.id));
        tx.rollback().await.unwrap();
        assert!(db.outbox.send(numbered("e", 3).dedup_key("k")).await.unwrap().is_new());
    }

    /// A handle that was moved out of its bound transaction cannot end it.
    async fn a_bound_transaction_is_ended_by_its_caller_alone(|db|) {
        let Some(unrelated) = TestDb::<DB>::new().await else { return };
        let calls = Calls::default();
        for commit in [true, false] {
            let mut tx = db.outbox.pool().begin().await.unwrap();
            let mut bound = db.outbox.bind(&mut tx);
            bound.write(numbered("e", 1)).await.unwrap();
            calls.register(&mut bound);
            let moved = std::mem::replace(&mut *bound, unrelated.outbox.begin().await.unwrap());
            let refused = if commit { moved.commit().await } else { moved.rollback().await };
            assert!(matches!(refused, Err(Error::Lifecycle(_))), "{refused:?}");
            drop(bound);
            tx.commit().await.unwrap();
            assert_eq!(calls.take(), [""; 0]);
        }
        assert_eq!(db.status_counts().await.0, 2);
    }
}

/// The second transaction waits for the first. Its snapshot is older than the commit of the first.
async fn duplicate_of_a_concurrent_event<DB: Backend>(is_waiting: &str) {
    let Some(db) = TestDb::<DB>::new().await else { return };
    let mut first = db.outbox.begin().await.unwrap();
    let one = first.write(numbered("e", 1).dedup_key("k")).await.unwrap();
    let mut second = db.another().await.outbox.begin().await.unwrap();
    assert_eq!(DB::number(&mut second, &format!("SELECT count(*) FROM {}", db.table)).await, 0);
    let waiting = tokio::spawn(async move {
        let written = second.write(numbered("e", 2).dedup_key("k")).await?;
        second.commit().await?;
        Ok::<Written, Error>(written)
    });
    Poll::INNODB.until("the second transaction waits", async || db.number(is_waiting).await == 1).await;
    first.commit().await.unwrap();
    match waiting.await.unwrap() {
        Ok(two) => assert_eq!((two.is_duplicate(), &two.id), (true, &one.id)),
        // With strict snapshots the transaction has to be retried.
        Err(error) => assert!(error.is_transient(), "{error:?}"),
    }
    assert_eq!(db.number("SELECT count(*) FROM {t}").await, 1);
}

#[tokio::test]
async fn a_duplicate_has_the_id_of_a_concurrent_event_on_postgres() {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{t}%'";
    common::in_time(duplicate_of_a_concurrent_event::<Postgres>(waiting)).await;
}

#[tokio::test]
async fn a_duplicate_has_the_id_of_a_concurrent_event_on_mariadb() {
    let waiting = "SELECT CAST(count(*) AS SIGNED) FROM information_schema.innodb_trx \
        WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{t}%'";
    common::in_time(duplicate_of_a_concurrent_event::<MySql>(waiting)).await;
}

/// Suppresses every event of type `no`, and replaces every event of type `two` by two.
struct Change;

impl WriterHook for Change {
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        let mut changed = Vec::new();
        for event in events {
            match event.event_type().as_str() {
                "no" => {}
                "two" => {
                    changed.push(Event::new("copy").id("copy-1").json(&1).build()?);
                    changed.push(Event::new("copy").id("copy-2").json(&2).build()?);
                }
                "refused" => return Err(EventError::NoPayload.into()),
                _ => changed.push(event),
            }
        }
        Ok(changed)
    }
}

#[tokio::test]
async fn a_write_reports_what_the_hooks_let_through() {
    let db = TestDb::<Sqlite>::with(|builder| builder.hook(Change)).await.unwrap();
    let mut tx = db.outbox.begin().await.unwrap();
    let written = tx.write_all([numbered("a", 1), numbered("no", 2), numbered("b", 3)]).await.unwrap();
    assert_eq!(ids_of(written).len(), 2);
    assert!(tx.write_all([numbered("no", 1)]).await.unwrap().is_empty());
    let suppressed = tx.write(numbered("no", 4).id("not-written")).await.unwrap();
    assert_eq!((suppressed.outcome, suppressed.id().as_str()), (WriteOutcome::Suppressed, "not-written"));
    let replaced = tx.write(numbered("two", 5)).await.unwrap();
    assert_eq!((replaced.outcome, replaced.id().as_str()), (WriteOutcome::Stored, "copy-1"));
    tx.commit().await.unwrap();
    assert_eq!(db.status_counts().await.0, 4);

    let mut bound_tx = db.outbox.pool().begin().await.unwrap();
    let mut bound = db.outbox.bind(&mut bound_tx);
    assert!(bound.write(numbered("no", 6)).await.unwrap().is_suppressed());
    assert_eq!(bound.finish().written().count(), 0);
}

#[tokio::test]
async fn an_error_has_the_error_that_caused_it_as_its_source() {
    use std::error::Error as _;
    let db = TestDb::<Sqlite>::with(|builder| builder.hook(Change)).await.unwrap();
    let refused = db.outbox.send(numbered("refused", 1)).await.unwrap_err();
    assert_eq!(refused.to_string(), format!("a writer hook refused the write: {}", EventError::NoPayload));
    assert_eq!(refused.source().unwrap().downcast_ref(), Some(&EventError::NoPayload));

    let topic = outbox::Topic::new("").to(outbox::TracingPublisher::new());
    let wrong = db.outbox.log_only().publish(topic).start().await.unwrap_err();
    assert_eq!(wrong.to_string(), "invalid setting: topic \"\": topic name is empty");
    let empty = EventError::Empty { field: "topic name" };
    assert_eq!(wrong.source().unwrap().downcast_ref(), Some(&empty));

    let foreign = Error::Store(EventError::NoPayload.into());
    assert_eq!(foreign.to_string(), EventError::NoPayload.to_string());

    db.outbox.send(numbered("e", 1).id("same")).await.unwrap();
    let twice = db.outbox.send(numbered("e", 1).id("same")).await.unwrap_err();
    assert!(matches!(&twice, Error::DuplicateId { id: Some(id) } if *id == "same"), "{twice:?}");
    assert!(twice.to_string().starts_with("an event with the id same already exists"), "{twice}");
    let batch = db.outbox.send_all([numbered("e", 1), numbered("e", 2).id("same")]).await.unwrap_err();
    assert!(matches!(&batch, Error::DuplicateId { id: None }), "{batch:?}");
    assert!(batch.to_string().starts_with("an event with the id that was given already exists"), "{batch}");
}
