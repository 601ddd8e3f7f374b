//! Joins as an application uses them: fan out, handle, fan in.

mod common;

use std::time::Duration;

use common::{Backend, Seen, TestDb, numbered, until};
use outbox::store::JoinFilter;
use outbox::{
    Error, Event, EventError, EventId, Failure, HookError, Join, JoinError, JoinId, JoinStatus, JoinWait,
    NewJoin, NodeId, Outcome, PurgeSettings, RelayBuilder, WorkItem, WriterHook,
};

fn quick<DB: Backend>(builder: RelayBuilder<DB>) -> RelayBuilder<DB> {
    builder.poll_interval(Duration::from_millis(50)).settle_linger(Duration::from_millis(1))
}

async fn join<DB: Backend>(db: &TestDb<DB>, id: &JoinId) -> Join {
    db.outbox.admin().join(id).await.unwrap().expect("the join exists")
}

fn then(number: u64) -> outbox::EventBuilder {
    numbered("then", number)
}

fn sorry(number: u64) -> outbox::EventBuilder {
    numbered("sorry", number)
}

/// A hook that suppresses events of type `secret`.
struct Suppress;

impl WriterHook for Suppress {
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        Ok(events.into_iter().filter(|event| *event.event_type() != "secret").collect())
    }
}

/// No poll happens meanwhile: time stands still for the relay.
#[tokio::test]
async fn a_step_that_is_acknowledged_wakes_the_relay_of_this_process() {
    let db = TestDb::<sqlx::Sqlite>::new().await.unwrap();
    let (queue, me) = (db.outbox.queue(), NodeId::from("me"));
    db.outbox.fan_out([numbered("step", 1)]).then(then(2)).send().await.unwrap();
    let items = queue.claim(&me, Duration::from_secs(3_600), 10).await.unwrap();
    let follow_ups = Seen::default();
    let relay = db.outbox.multi_node().on_type("then", follow_ups.handler()).start().await.unwrap();
    relay.idle().await.unwrap();
    // A blocking task keeps the paused clock from advancing by itself. After ten seconds it
    // advances, and the relay polls.
    let limit = Duration::from_secs(10);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let blocking = tokio::task::spawn_blocking(move || _ = ended.recv_timeout(limit));
    tokio::time::pause();
    let began = std::time::Instant::now();
    assert_eq!(queue.ack(&me, items.iter().map(WorkItem::id)).await.unwrap(), 1);
    follow_ups.reach(1).await;
    assert!(began.elapsed() < limit, "found by a poll");
    drop(end);
    blocking.await.unwrap();
    tokio::time::resume();
    relay.stop().await.unwrap();
}

on_every_database! {
    async fn the_follow_up_is_written_when_every_step_is_handled(|db|) {
        let (steps, follow_ups) = (Seen::default(), Seen::default());
        for builder in [db.outbox.multi_node(), db.outbox.single_node(), db.outbox.ordered()] {
            let (done, followed) = (steps.count(), follow_ups.count());
            let relay = builder.on_type("step", steps.handler()).on_type("then", follow_ups.handler());
            let relay = quick(relay).start().await.unwrap();
            let run = db.outbox.fan_out((0..40).map(|n| numbered("step", n)))
                .then(then(done as u64)).group("run").metadata("{}").send().await.unwrap();
            follow_ups.reach(followed + 1).await;
            assert_eq!(steps.count(), done + 40);
            relay.idle().await.unwrap();
            relay.stop().await.unwrap();
            let join = join(&db, &run.join).await;
            assert_eq!((join.completed, join.failed, join.status), (40, 0, JoinStatus::Completed));
            assert_eq!((join.grouping_key.as_deref(), join.metadata.as_deref()), (Some("run"), Some("{}")));
        }
        assert_eq!(follow_ups.numbers(), [0, 40, 80]);
    }

    async fn a_dead_step_fails_the_join_unless_failures_are_allowed(|db|) {
        let (steps, follow_ups) = (Seen::default(), Seen::default());
        let handler = steps.returning(|cx| match cx.payload::<u64>()? {
            3 => Err(Failure::dead("three")),
            _ => Ok(Outcome::Done),
        });
        let relay = db.outbox.multi_node().on_type("step", handler)
            .on_type("then", follow_ups.handler()).on_type("sorry", follow_ups.handler());
        let relay = quick(relay).start().await.unwrap();
        let fan_out = || db.outbox.fan_out((0..5).map(|n| numbered("step", n)));
        let strict = fan_out().then(then(1)).if_failed(sorry(2)).send().await.unwrap();
        follow_ups.reach(1).await;
        let lenient = fan_out().then(then(3)).if_failed(sorry(4)).allow_failures().send().await.unwrap();
        follow_ups.reach(2).await;
        assert_eq!(follow_ups.numbers(), [2, 3]);
        assert_eq!(join(&db, &strict.join).await.status, JoinStatus::Failed);
        assert_eq!(join(&db, &lenient.join).await.status, JoinStatus::Completed);
        relay.stop().await.unwrap();
    }

    /// The steps, the join and its follow-up are written together, or not at all.
    async fn a_fan_out_is_committed_or_rolled_back_with_its_transaction(|db|) {
        let steps = || [numbered("step", 1), numbered("step", 2)];
        let mut tx = db.outbox.begin().await.unwrap();
        tx.fan_out(steps()).then(then(1)).write().await.unwrap();
        tx.rollback().await.unwrap();
        assert!(db.outbox.admin().joins(&JoinFilter::default(), 9).await.unwrap().is_empty());
        assert_eq!(db.status_counts().await, (0, 0, 0, 0));

        let mut tx = db.outbox.begin().await.unwrap();
        let written = tx.fan_out(steps()).then(then(1)).write().await.unwrap();
        tx.commit().await.unwrap();
        let joins = db.outbox.admin().joins(&JoinFilter::default(), 9).await.unwrap();
        assert_eq!(joins.iter().map(|join| &join.id).collect::<Vec<_>>(), [&written.join]);
        let steps = db.outbox.admin().steps(&written.join, None, 9).await.unwrap();
        assert_eq!(steps.len(), 2);
        assert_eq!(db.status_counts().await, (2, 0, 0, 0));
    }

    async fn a_fan_out_without_steps_is_refused_and_writes_nothing(|db|) {
        let none: [Event; 0] = [];
        let error = db.outbox.fan_out(none).then(then(1)).send().await.unwrap_err();
        assert!(matches!(error, Error::Join(JoinError::Steps { steps: 0 })), "{error:?}");
        let invalid = db.outbox.fan_out([Event::new("")]).send().await.unwrap_err();
        assert!(matches!(invalid, Error::Event(EventError::Empty { .. } | EventError::NoPayload)), "{invalid:?}");
        let invalid = db.outbox.fan_out([numbered("step", 1)]).then(Event::new("then")).send().await.unwrap_err();
        assert!(matches!(invalid, Error::Event(EventError::NoPayload)), "{invalid:?}");
        assert_eq!(db.status_counts().await, (0, 0, 0, 0));
        assert!(db.outbox.admin().joins(&JoinFilter::default(), 9).await.unwrap().is_empty());
    }

    /// Events that a hook suppresses or a deduplication key excludes are no steps.
    async fn a_join_waits_only_for_written_events(|db|) {
        let hooked = db.another_with(|builder| builder.hook(Suppress)).await;
        let step = |n: u64| numbered("step", n).dedup_key(format!("key-{}", n % 2));
        let secret = numbered("secret", 9);
        let steps = [step(0), step(1), step(2), secret];
        let run = hooked.outbox.fan_out(steps).then(numbered("secret", 1)).send().await.unwrap();
        assert_eq!(run.steps.len(), 2);
        assert_eq!(join(&db, &run.join).await.expected, 2);
        let seen = Seen::default();
        let relay = quick(hooked.outbox.multi_node().on_any(seen.handler())).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(join(&db, &run.join).await.status, JoinStatus::Completed);
        assert_eq!(seen.count(), 2);
    }

    /// Repeated calls change nothing.
    async fn joins_are_built_step_by_step_in_a_transaction_and_without(|db|) {
        let follow_ups = Seen::default();
        let relay = db.outbox.multi_node().on_type("step", Seen::default().handler())
            .on_type("then", follow_ups.handler());
        let relay = quick(relay).start().await.unwrap();
        let mut joins = db.outbox.joins();
        let alone = joins.start(NewJoin::of(2)).await.unwrap().id;
        let by_hand = EventId::from("by-hand");
        for _ in 0..2 {
            joins.completed(&alone, &by_hand).await.unwrap();
            joins.wait(&alone, JoinWait::new().then(then(1))).await.unwrap();
        }
        let mut tx = db.outbox.begin().await.unwrap();
        let step = tx.write(numbered("step", 1)).await.unwrap().id;
        let mut joins = tx.joins();
        let group_lease = joins.start(NewJoin::of(1)).await.unwrap().id;
        for _ in 0..2 {
            joins.attach(&group_lease, &step).await.unwrap();
            joins.attach_all(&alone, [&step, &step]).await.unwrap();
            joins.wait(&group_lease, JoinWait::new().then(then(2))).await.unwrap();
        }
        tx.commit().await.unwrap();
        follow_ups.reach(2).await;
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        let mut numbers = follow_ups.numbers();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2]);
    }

    /// A follow-up that the last `wait` writes does not wait for the next poll.
    async fn an_immediate_follow_up_wakes_the_relay(|db|) {
        let (steps, follow_ups) = (Seen::default(), Seen::default());
        let relay = db.outbox.multi_node().on_type("step", steps.handler()).on_type("then", follow_ups.handler())
            .poll_interval(Duration::from_secs(3_600)).start().await.unwrap();
        let step = db.outbox.send(numbered("step", 1)).await.unwrap().id;
        steps.reach(1).await;
        relay.idle().await.unwrap();
        let mut tx = db.outbox.begin().await.unwrap();
        let mut joins = tx.joins();
        let id = joins.start(NewJoin::of(1)).await.unwrap().id;
        joins.attach(&id, &step).await.unwrap();
        joins.wait(&id, JoinWait::new().then(then(1))).await.unwrap();
        tx.commit().await.unwrap();
        follow_ups.reach(1).await;
        let second = db.outbox.joins().start(NewJoin::of(1)).await.unwrap().id;
        db.outbox.joins().wait(&second, JoinWait::new().then(then(2))).await.unwrap();
        db.outbox.joins().failed(&second, &EventId::from("x")).await.unwrap();
        let third = db.outbox.joins().start(NewJoin::of(1)).await.unwrap().id;
        db.outbox.joins().completed(&third, &EventId::from("x")).await.unwrap();
        db.outbox.joins().wait(&third, JoinWait::new().then(then(3))).await.unwrap();
        follow_ups.reach(2).await;
        assert_eq!(follow_ups.numbers(), [1, 3]);
        relay.stop().await.unwrap();
    }

    async fn closed_joins_are_purged_with_old_events(|db|) {
        let relay = db.outbox.multi_node().on_any(Seen::default().handler())
            .purge(PurgeSettings::default().retention(Duration::ZERO).every(Duration::from_millis(50)));
        let relay = quick(relay).start().await.unwrap();
        let closed = db.outbox.fan_out([numbered("step", 1)]).then(then(1)).send().await.unwrap();
        let open = db.outbox.joins().start(NewJoin::of(1)).await.unwrap().id;
        let admin = db.outbox.admin();
        until("the closed join is purged", async || admin.join(&closed.join).await.unwrap().is_none()).await;
        assert!(admin.join(&open).await.unwrap().is_some());
        relay.stop().await.unwrap();
    }

    /// A cancelled join writes no follow-up.
    async fn a_cancelled_join_accepts_no_steps_and_writes_no_follow_up(|db|) {
        let follow_ups = Seen::default();
        let run = db.outbox.fan_out([numbered("step", 1)]).then(then(1)).send().await.unwrap();
        let cancelled = db.outbox.joins().cancel(&run.join).await.unwrap();
        assert_eq!(cancelled.status, JoinStatus::Cancelled);
        let relay = db.outbox.multi_node().on_any(follow_ups.handler()).start().await.unwrap();
        relay.idle().await.unwrap();
        relay.stop().await.unwrap();
        assert_eq!(follow_ups.numbers(), [1], "only the step itself");
        let late = db.outbox.send(numbered("step", 2)).await.unwrap().id;
        let error = db.outbox.joins().attach(&run.join, &late).await.unwrap_err();
        assert!(matches!(error, Error::Join(JoinError::Closed { .. })), "{error:?}");
    }
}
