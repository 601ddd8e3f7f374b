//! Joins: every step counts once, in the transaction that settles it, and the follow-up is written
//! exactly once.

use std::time::Duration;

use super::{Harness, LEASE, SECOND, Scene, again, dead, event, holder, leasing, settlement};
use crate::error::Error;
use crate::event::EventId;
use crate::join::{FollowUp, Join, JoinError, JoinId, JoinStatus, NewJoin, Step};
use crate::sql::Clock;
use crate::store::{
    Completion, Delivery, Filter, JoinCommand, JoinFilter, JoinOutcome, Purge, Purgeable, Settled, Status,
    Take, Verdict,
};

impl Scene {
    async fn act(&self, act: JoinCommand) -> JoinOutcome {
        self.store.join(&act).await.expect("the command succeeds")
    }

    async fn refused(&self, act: JoinCommand) -> JoinError {
        match self.store.join(&act).await {
            Err(Error::Join(error)) => error,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    async fn start_join(&self, steps: u32) -> JoinId {
        let id = JoinId::generate();
        self.act(JoinCommand::Start { id: id.clone(), join: NewJoin::of(steps) }).await;
        id
    }

    async fn attach(&self, join: &JoinId, steps: &[EventId]) -> JoinOutcome {
        self.act(attach(join, steps)).await
    }

    async fn report(&self, join: &JoinId, step: &EventId, became: Step) -> JoinOutcome {
        self.act(report(join, step, became)).await
    }

    /// Sets the follow-ups `then` and `sorry`.
    async fn wait(&self, join: &JoinId, strict: bool) -> JoinOutcome {
        self.act(JoinCommand::Wait { join: join.clone(), decision: decision(strict) }).await
    }

    async fn join(&self, id: &JoinId) -> Join {
        let filter = JoinFilter { id: Some(id.clone()), ..JoinFilter::default() };
        self.store.joins(&filter, 2).await.expect("joins are listed").pop().expect("the join is there")
    }

    /// Attached, completed, failed.
    async fn counters(&self, id: &JoinId) -> (u32, u32, u32) {
        let join = self.join(id).await;
        (join.attached, join.completed, join.failed)
    }

    /// Number of written `then` and `sorry` follow-ups.
    async fn followed(&self) -> (u64, u64) {
        let of = |event_type: &str| Filter { event_type: Some(event_type.to_owned()), ..Filter::default() };
        (self.count(of("then")).await, self.count(of("sorry")).await)
    }

    /// Leased events that are the steps of a new join.
    async fn steps(&self, count: usize) -> (JoinId, Vec<Delivery>) {
        let written = self.write((0..count).map(|_| event("step"))).await;
        let join = self.start_join(count as u32).await;
        self.attach(&join, &written).await;
        (join, self.lease("a").await)
    }
}

fn attach(join: &JoinId, steps: &[EventId]) -> JoinCommand {
    JoinCommand::Attach { join: join.clone(), home: String::new(), steps: steps.to_vec() }
}

fn report(join: &JoinId, step: &EventId, became: Step) -> JoinCommand {
    JoinCommand::Report { join: join.clone(), step: step.clone(), became }
}

fn decision(strict: bool) -> FollowUp {
    let follow_up = |event_type: &str| Some(event(event_type).build().expect("a valid event"));
    FollowUp { strict, on_complete: follow_up("then"), on_fail: follow_up("sorry") }
}

fn unknown() -> JoinId {
    JoinId::from("no-such-join")
}

/// With a new id, and all counters zero.
pub async fn a_join_starts_with_nothing_counted(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let new = NewJoin::of(3).group("customer-42").metadata(r#"{"phase": "extract"}"#);
    let ids = [JoinId::generate(), JoinId::generate()];
    for id in &ids {
        let started = scene.act(JoinCommand::Start { id: id.clone(), join: new.clone() }).await;
        assert_eq!(started.join, Some(scene.join(id).await));
    }
    let join = scene.join(&ids[0]).await;
    assert_eq!((join.expected, join.attached, join.completed, join.failed), (3, 0, 0, 0));
    assert_eq!((join.status, join.awaited), (JoinStatus::Pending, false));
    assert_eq!(join.grouping_key.as_deref(), Some("customer-42"));
    assert_eq!(join.metadata.as_deref(), Some(r#"{"phase": "extract"}"#));
    assert_eq!((join.created_at, join.updated_at), (scene.now(), scene.now()));
}

/// Numbers of steps that cannot be reached or counted.
pub async fn a_join_needs_at_least_one_step(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for steps in [0, u32::MAX] {
        let start = JoinCommand::Start { id: JoinId::generate(), join: NewJoin::of(steps) };
        assert_eq!(scene.refused(start).await, JoinError::Steps { steps: steps.into() });
    }
}

/// By group, by status, page by page.
pub async fn joins_are_listed_by_group_and_status(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    for (group, count) in [("a", 3), ("b", 2)] {
        for _ in 0..count {
            let id = JoinId::generate();
            scene.act(JoinCommand::Start { id, join: NewJoin::of(1).group(group) }).await;
        }
    }
    let list = async |filter: JoinFilter, limit| scene.store.joins(&filter, limit).await.unwrap();
    let group = |key: &str| JoinFilter { grouping_key: Some(key.to_owned()), ..JoinFilter::default() };
    assert_eq!(list(group("a"), 9).await.len(), 3);
    assert_eq!(list(group("A"), 9).await.len(), 0);
    let first = list(JoinFilter::default(), 2).await;
    let rest = list(JoinFilter { after: Some(first[1].id.clone()), ..JoinFilter::default() }, 9).await;
    assert_eq!((first.len(), rest.len()), (2, 3));
    scene.act(JoinCommand::Cancel { join: first[0].id.clone() }).await;
    let cancelled = JoinFilter { status: Some(JoinStatus::Cancelled), ..JoinFilter::default() };
    assert_eq!(list(cancelled, 9).await.len(), 1);
}

/// Several steps in one call add up.
pub async fn settling_counts_every_step(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(5).await;
    assert_eq!(scene.counters(&join).await, (5, 0, 0));
    let verdicts = [Verdict::Done, Verdict::Done, dead("no"), Verdict::Done];
    assert_eq!(scene.settle_all(&holder("a"), taken.iter().zip(verdicts)).await, 4);
    assert_eq!(scene.counters(&join).await, (5, 3, 1));
    assert_eq!(scene.settle("a", &taken[4], dead("no")).await, 1);
    assert_eq!(scene.counters(&join).await, (5, 3, 2));
    let steps = scene.store.steps(&join, None, 9).await.unwrap();
    for (delivery, expected) in taken.iter().zip([true, true, false, true, false]) {
        let became = if expected { Step::Completed } else { Step::Failed };
        assert!(steps.contains(&(delivery.event.id().clone(), Some(became))), "{steps:?}");
    }
}

/// Also where the row is deleted after that.
pub async fn settling_counts_where_done_events_are_deleted(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(2).await;
    let done: Vec<_> = taken.iter().map(|d| settlement(d, Verdict::Done)).collect();
    let settled = scene.store.settle(&holder("a"), Completion::Delete, &done).await.unwrap();
    assert_eq!(settled, Settled { moved: 2, wrote: false });
    assert_eq!(scene.counters(&join).await, (2, 2, 0));
    assert!(scene.all().await.is_empty());
}

/// A retry, a snooze and a release count nothing.
pub async fn only_a_final_outcome_counts(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(3).await;
    let later = Verdict::Again { after: SECOND, counted: false, error: None };
    let verdicts = [again(1), later, Verdict::Released];
    assert_eq!(scene.settle_all(&holder("a"), taken.iter().zip(verdicts)).await, 3);
    assert_eq!(scene.counters(&join).await, (3, 0, 0));
    scene.pass(2 * SECOND);
    let again = scene.lease("b").await;
    assert_eq!(again.len(), 3);
    scene.settle_all(&holder("b"), again.iter().map(|d| (d, Verdict::Done))).await;
    assert_eq!(scene.counters(&join).await, (3, 3, 0));
}

/// A stale settlement completes nothing.
pub async fn a_stale_holder_counts_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, old) = scene.steps(1).await;
    scene.pass(LEASE + SECOND);
    let new = scene.lease("b").await;
    assert_eq!(new.len(), 1);
    for verdict in [Verdict::Done, dead("late")] {
        assert_eq!(scene.settle("a", &old[0], verdict).await, 0);
    }
    assert_eq!(scene.settle("stranger", &new[0], Verdict::Done).await, 0);
    assert_eq!(scene.counters(&join).await, (1, 0, 0));
    assert_eq!(scene.settle("b", &new[0], Verdict::Done).await, 1);
    assert_eq!(scene.settle("b", &new[0], Verdict::Done).await, 0);
    assert_eq!(scene.counters(&join).await, (1, 1, 0));
}

/// Whatever its outcome, and immediately.
pub async fn a_step_that_was_settled_before_counts_when_attached(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let dead = scene.dead_letter(event("step")).await;
    let done = scene.write_one(event("step")).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    let pending = scene.write_one(event("step")).await;

    let join = scene.start_join(3).await;
    scene.wait(&join, true).await;
    scene.attach(&join, &[done, dead]).await;
    assert_eq!(scene.counters(&join).await, (2, 1, 1));
    scene.attach(&join, std::slice::from_ref(&pending)).await;
    assert_eq!(scene.counters(&join).await, (3, 1, 1));
    assert_eq!(scene.followed().await, (0, 0));
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    assert_eq!(scene.followed().await, (0, 1));
}

/// The last attached step may already be settled.
pub async fn attaching_the_last_settled_step_closes_the_join(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let done = scene.write_one(event("step")).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    let join = scene.start_join(1).await;
    scene.wait(&join, true).await;
    let acted = scene.attach(&join, &[done]).await;
    assert!(acted.wrote);
    assert_eq!(acted.join.unwrap().status, JoinStatus::Completed);
    assert_eq!(scene.followed().await, (1, 0));
}

/// In one call, and in several.
pub async fn attaching_twice_is_attaching_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let step = scene.write_one(event("step")).await;
    let join = scene.start_join(2).await;
    for _ in 0..3 {
        scene.attach(&join, &[step.clone(), step.clone()]).await;
        assert_eq!(scene.counters(&join).await, (1, 0, 0));
    }
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    scene.attach(&join, &[step]).await;
    assert_eq!(scene.counters(&join).await, (1, 1, 0));
}

/// Each join counts it.
pub async fn an_event_may_be_a_step_of_several_joins(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let steps = scene.write([event("shared"), event("other")]).await;
    let (both, one) = (scene.start_join(2).await, scene.start_join(1).await);
    scene.attach(&both, &steps).await;
    scene.attach(&one, &steps[..1]).await;
    for join in [&both, &one] {
        scene.wait(join, true).await;
    }
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    assert_eq!(scene.counters(&both).await, (2, 1, 0));
    assert_eq!(scene.join(&one).await.status, JoinStatus::Completed);
    assert_eq!(scene.followed().await, (1, 0));
    scene.settle("a", &taken[1], Verdict::Done).await;
    assert_eq!(scene.followed().await, (2, 0));
}

/// For steps that no relay settles.
pub async fn reports_count_once_and_attach_missing_steps(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let join = scene.start_join(3).await;
    let [a, b] = ["step-a", "step-b"].map(EventId::from);
    for _ in 0..2 {
        scene.report(&join, &a, Step::Completed).await;
        assert_eq!(scene.counters(&join).await, (1, 1, 0));
    }
    for _ in 0..2 {
        scene.report(&join, &b, Step::Failed).await;
        assert_eq!(scene.counters(&join).await, (2, 1, 1));
    }
    // A completed step stays completed; a failed step may be completed.
    scene.report(&join, &a, Step::Failed).await;
    assert_eq!(scene.counters(&join).await, (2, 1, 1));
    scene.report(&join, &b, Step::Completed).await;
    assert_eq!(scene.counters(&join).await, (2, 2, 0));
}

/// Reported and settled: counted once.
pub async fn a_report_and_a_settlement_count_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(2).await;
    scene.report(&join, taken[0].event.id(), Step::Completed).await;
    scene.settle_all(&holder("a"), taken.iter().map(|d| (d, Verdict::Done))).await;
    scene.report(&join, taken[1].event.id(), Step::Completed).await;
    assert_eq!(scene.counters(&join).await, (2, 2, 0));
}

/// Success, failure, and allowed failure; written once.
pub async fn the_follow_up_is_written_with_the_last_step(harness: &impl Harness) {
    for (strict, verdict, followed, status) in [
        (true, Verdict::Done, (1, 0), JoinStatus::Completed),
        (true, dead("no"), (0, 1), JoinStatus::Failed),
        (false, dead("no"), (1, 0), JoinStatus::Completed),
    ] {
        let scene = Scene::open(harness).await;
        let before = scene.followed().await;
        let (join, taken) = scene.steps(2).await;
        assert!(!scene.wait(&join, strict).await.wrote);
        let since = async || {
            let (then, sorry) = scene.followed().await;
            (then - before.0, sorry - before.1)
        };
        scene.settle("a", &taken[0], Verdict::Done).await;
        assert_eq!(since().await, (0, 0));
        let last = [settlement(&taken[1], verdict)];
        let settled = scene.store.settle(&holder("a"), Completion::Keep, &last).await.unwrap();
        assert_eq!(settled, Settled { moved: 1, wrote: true });
        assert_eq!(since().await, followed);
        assert_eq!(scene.join(&join).await.status, status);
        scene.store.settle(&holder("a"), Completion::Keep, &last).await.unwrap();
        assert_eq!(since().await, followed);
        for due in scene.lease("b").await {
            scene.settle("b", &due, Verdict::Done).await;
        }
    }
}

/// Payload, headers and delay as given.
pub async fn the_follow_up_keeps_its_payload_and_its_delay(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(1).await;
    let follows = crate::event::Event::new("then")
        .bytes("application/x-thing", [0, 1, 255])
        .header("h", "v")
        .deliver_after(Duration::from_secs(60))
        .build()
        .unwrap();
    let decision = FollowUp { strict: true, on_complete: Some(follows.clone()), on_fail: None };
    scene.act(JoinCommand::Wait { join, decision }).await;
    scene.pass(10 * SECOND);
    scene.settle("a", &taken[0], Verdict::Done).await;
    let stored = scene.see(follows.id()).await;
    assert_eq!(stored.status, Status::New);
    assert_eq!(stored.available_at, scene.now() + Duration::from_secs(60));
    let event = stored.event.unwrap();
    assert_eq!((event.raw_payload(), event.headers()), (follows.raw_payload(), follows.headers()));
}

/// However late the follow-up is set.
pub async fn a_wait_on_settled_steps_writes_the_follow_up_immediately(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(2).await;
    scene.settle_all(&holder("a"), taken.iter().map(|d| (d, Verdict::Done))).await;
    let waiting = scene.join(&join).await;
    assert_eq!((waiting.status, waiting.is_complete()), (JoinStatus::Pending, true));
    assert!(scene.wait(&join, true).await.wrote);
    assert_eq!(scene.followed().await, (1, 0));
}

/// The same follow-up again changes nothing; another one is refused.
pub async fn a_follow_up_is_set_once(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(1).await;
    scene.wait(&join, true).await;
    assert!(!scene.wait(&join, true).await.wrote);
    let other = JoinCommand::Wait { join: join.clone(), decision: decision(false) };
    assert_eq!(scene.refused(other.clone()).await, JoinError::Decided { id: join.clone() });
    scene.settle("a", &taken[0], Verdict::Done).await;
    assert!(!scene.wait(&join, true).await.wrote);
    let closed = JoinError::Closed { id: join.clone(), status: JoinStatus::Completed };
    assert_eq!(scene.refused(other).await, closed);
    assert_eq!(scene.followed().await, (1, 0));
}

/// The wait of a join is not an event, so it has no attempts to use up.
pub async fn a_slow_join_is_waited_for_as_long_as_it_takes(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, _) = scene.steps(1).await;
    scene.wait(&join, true).await;
    for day in 1..=20 {
        scene.pass(Duration::from_secs(86_400));
        let taken = scene.lease("a").await;
        assert_eq!(taken.len(), 1, "day {day}");
        scene.settle("a", &taken[0], again(3_600)).await;
    }
    assert_eq!(scene.join(&join).await.status, JoinStatus::Pending);
    scene.pass(Duration::from_secs(86_400));
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    assert_eq!(scene.followed().await, (1, 0));
}

/// Whatever the outcome of the steps.
pub async fn a_cancelled_join_has_no_follow_up(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(1).await;
    scene.wait(&join, true).await;
    for _ in 0..2 {
        let cancelled = scene.act(JoinCommand::Cancel { join: join.clone() }).await;
        assert_eq!(cancelled.join.unwrap().status, JoinStatus::Cancelled);
    }
    assert_eq!(scene.settle("a", &taken[0], Verdict::Done).await, 1);
    assert_eq!(scene.followed().await, (0, 0));
    let join = scene.join(&join).await;
    assert_eq!((join.status, join.completed), (JoinStatus::Cancelled, 1));
}

/// A closed join keeps its status.
pub async fn cancelling_a_closed_join_changes_nothing(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(1).await;
    scene.wait(&join, true).await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    let before = scene.join(&join).await;
    scene.pass(SECOND);
    assert_eq!(scene.act(JoinCommand::Cancel { join: join.clone() }).await.join.as_ref(), Some(&before));
    assert_eq!(scene.join(&join).await, before);
}

/// The counters follow the outcome of the replay.
pub async fn a_replayed_step_moves_from_failed_to_completed(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(2).await;
    scene.wait(&join, true).await;
    scene.settle("a", &taken[0], dead("no")).await;
    assert_eq!(scene.counters(&join).await, (2, 0, 1));
    let dead = Filter { id: Some(taken[0].event.id().clone()), ..Filter::default() };
    assert_eq!(scene.store.replay(&dead, 1).await.unwrap().moved, 1);
    assert_eq!(scene.counters(&join).await, (2, 0, 1));
    let replayed = scene.lease("b").await;
    scene.settle("b", &replayed[0], Verdict::Done).await;
    assert_eq!(scene.counters(&join).await, (2, 1, 0));
    scene.settle("a", &taken[1], Verdict::Done).await;
    assert_eq!(scene.followed().await, (1, 0));
}

/// The follow-up that was written stays.
pub async fn a_replay_after_the_end_counts_but_keeps_the_status(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (join, taken) = scene.steps(1).await;
    scene.wait(&join, true).await;
    scene.settle("a", &taken[0], dead("no")).await;
    assert_eq!(scene.followed().await, (0, 1));
    assert_eq!(scene.store.replay(&Filter::default(), 1).await.unwrap().moved, 1);
    let due = scene.lease("b").await;
    let step = due.iter().find(|d| d.event.id() == taken[0].event.id()).expect("the step is due again");
    scene.settle("b", step, Verdict::Done).await;
    let join = scene.join(&join).await;
    assert_eq!((join.completed, join.failed, join.status), (1, 0, JoinStatus::Failed));
    assert_eq!(scene.followed().await, (0, 1));
}

/// A cancelled event can never be completed.
pub async fn a_cancelled_event_fails_its_step(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let step = scene.write_one(event("step")).await;
    let join = scene.start_join(1).await;
    scene.attach(&join, std::slice::from_ref(&step)).await;
    scene.wait(&join, true).await;
    assert!(scene.store.cancel(&step).await.unwrap());
    assert_eq!(scene.counters(&join).await, (1, 0, 1));
    assert_eq!(scene.followed().await, (0, 1));
}

/// A row that cannot be leased is dead-lettered without a verdict. Its step fails all the same.
pub async fn an_event_that_cannot_be_leased_fails_its_step(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let step = scene.write_one(event("step")).await;
    let join = scene.start_join(1).await;
    scene.attach(&join, std::slice::from_ref(&step)).await;
    scene.wait(&join, true).await;
    if !harness.execute(&format!("UPDATE {{events}} SET claims = 1000000000 WHERE event_id = '{step}'")).await
    {
        return;
    }
    let taken = scene.take(&leasing("a")).await;
    assert!(taken.deliveries.is_empty(), "it cannot be leased");
    assert_eq!(taken.dead_lettered, 1);
    assert_eq!(scene.see(&step).await.status, Status::Dead);
    assert_eq!(scene.counters(&join).await, (1, 0, 1));
    assert_eq!(scene.followed().await, (0, 1));
}

/// The work was not done, so the follow-up of a success must not be written.
pub async fn a_skipped_step_stays_failed(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let by = crate::store::NodeId::from("ada");
    let (open, taken) = scene.steps(2).await;
    scene.settle("a", &taken[0], dead("no")).await;
    assert_eq!(scene.counters(&open).await, (2, 0, 1));
    assert!(scene.store.skip(taken[0].event.id(), &by).await.unwrap());
    assert_eq!(scene.counters(&open).await, (2, 0, 1));
    scene.wait(&open, true).await;
    assert_eq!(scene.settle("a", &taken[1], Verdict::Done).await, 1);
    assert_eq!((scene.join(&open).await.status, scene.followed().await), (JoinStatus::Failed, (0, 1)));

    // Nor does a skip after the end change the join.
    let (closed, taken) = scene.steps(1).await;
    scene.wait(&closed, false).await;
    let step = taken.iter().find(|d| d.event.event_type().as_str() == "step").unwrap();
    scene.settle("a", step, dead("no")).await;
    let before = scene.join(&closed).await;
    assert!(scene.store.skip(step.event.id(), &by).await.unwrap());
    assert_eq!(scene.join(&closed).await, before);
    assert_eq!(
        scene.store.steps(&closed, None, 10).await.unwrap(),
        [(step.event.id().clone(), Some(Step::Failed))]
    );
}

/// Counted once, and recorded once.
pub async fn a_failed_attempt_of_a_step_is_kept(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let plain = scene.write_one(event("plain")).await;
    let (join, taken) = scene.steps(2).await;
    let mut verdicts: Vec<_> = taken.iter().map(|d| (d, dead("no"))).collect();
    verdicts[2].1 = again(1);
    assert_eq!(scene.settle_all(&holder("a"), verdicts).await, 3);
    assert_eq!(scene.counters(&join).await, (2, 0, 1));
    for (delivery, fatal) in taken.iter().zip([true, true, false]) {
        let attempts = scene.store.attempts(delivery.event.id(), 10).await.unwrap();
        assert_eq!((attempts.len(), attempts[0].number, attempts[0].fatal), (1, 1, fatal));
    }
    assert_eq!(*taken[0].event.id(), plain);
}

/// A typed error each, and no change.
pub async fn unknown_closed_and_full_joins_are_refused(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let steps = scene.write([event("step"), event("step")]).await;
    let gone = EventId::from("no-such-event");
    for act in [
        attach(&unknown(), &steps[..1]),
        report(&unknown(), &steps[0], Step::Completed),
        JoinCommand::Wait { join: unknown(), decision: decision(true) },
        JoinCommand::Cancel { join: unknown() },
    ] {
        assert_eq!(scene.refused(act).await, JoinError::Unknown { id: unknown() });
    }
    let join = scene.start_join(1).await;
    let unknown_step = JoinError::UnknownStep { id: gone.clone() };
    assert_eq!(scene.refused(attach(&join, &[steps[0].clone(), gone])).await, unknown_step);
    assert_eq!(scene.counters(&join).await, (0, 0, 0));
    let full = JoinError::Full { id: join.clone(), expected: 1 };
    assert_eq!(scene.refused(attach(&join, &steps)).await, full);
    scene.attach(&join, &steps[..1]).await;
    assert_eq!(scene.refused(attach(&join, &steps[1..])).await, full);
    assert_eq!(scene.refused(report(&join, &steps[1], Step::Completed)).await, full);
    scene.act(JoinCommand::Cancel { join: join.clone() }).await;
    let closed = JoinError::Closed { id: join.clone(), status: JoinStatus::Cancelled };
    assert_eq!(scene.refused(attach(&join, &steps[1..])).await, closed);
    assert_eq!(scene.refused(report(&join, &steps[1], Step::Failed)).await, closed);
    // Attaching again changes nothing, even for a closed join.
    scene.attach(&join, &steps[..1]).await;
    assert_eq!(scene.counters(&join).await, (1, 0, 0));
}

/// The outcome of a step is reported by an event to a join in another database.
pub async fn a_join_in_another_database_gets_a_report_event(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let steps = scene.write([event("step"), event("step")]).await;
    let away = |steps: &[EventId]| JoinCommand::Attach {
        join: JoinId::from("join-7"),
        home: "acme".to_owned(),
        steps: steps.to_vec(),
    };
    let taken = scene.lease("a").await;
    for _ in 0..2 {
        assert_eq!(scene.act(away(&steps[..1])).await, JoinOutcome::default());
    }
    scene.settle_all(&holder("a"), [(&taken[0], Verdict::Done), (&taken[1], dead("no"))]).await;
    // Settled before it was attached.
    assert!(scene.act(away(&steps[1..])).await.wrote);
    let mut reported: Vec<String> = scene
        .all()
        .await
        .into_iter()
        .filter_map(|stored| stored.event.ok())
        .filter(|event| *event.event_type() == "outbox.join.report")
        .map(|event| String::from_utf8_lossy(event.payload_bytes()).into_owned())
        .collect();
    reported.sort();
    let mut expected: Vec<String> = [(&steps[0], "completed"), (&steps[1], "failed")]
        .iter()
        .map(|(step, became)| {
            format!(r#"{{"home":"acme","join":"join-7","step":"{step}","became":"{became}"}}"#)
        })
        .collect();
    expected.sort();
    assert_eq!(reported, expected);
}

/// Reports are verified against this row: home and outcome of the step, in the step's own database.
pub async fn the_row_of_a_step_has_home_and_outcome(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let steps = scene.write([event("step"), event("step"), event("step")]).await;
    let (away, here) = (JoinId::from("join-7"), scene.start_join(1).await);
    let to = |join: &JoinId, home: &str, steps: &[EventId]| JoinCommand::Attach {
        join: join.clone(),
        home: home.to_owned(),
        steps: steps.to_vec(),
    };
    scene.act(to(&away, "acme", &steps[..2])).await;
    scene.act(to(&here, "", &steps[2..])).await;
    let member = async |join: &JoinId, step: &EventId| {
        let found = scene.store.member(join, step).await.unwrap();
        found.map(|member| (member.home, member.status))
    };
    let acme = |status| Some(("acme".to_owned(), status));
    assert_eq!(member(&away, &steps[0]).await, acme(None));
    let taken = scene.lease("a").await;
    let verdicts = [(&taken[0], Verdict::Done), (&taken[1], dead("no")), (&taken[2], Verdict::Done)];
    scene.settle_all(&holder("a"), verdicts).await;
    assert_eq!(member(&away, &steps[0]).await, acme(Some(Step::Completed)));
    assert_eq!(member(&away, &steps[1]).await, acme(Some(Step::Failed)));
    assert_eq!(member(&here, &steps[2]).await, Some((String::new(), Some(Step::Completed))));
    for (join, step) in [(&away, &steps[2]), (&here, &steps[0]), (&unknown(), &steps[0])] {
        assert_eq!(member(join, step).await, None);
    }
    // The row is kept for longer than a report waits for the join's database.
    scene.pass(3_600 * SECOND);
    scene.store.purge_joins(SECOND, 100).await.unwrap();
    assert_eq!(member(&away, &steps[0]).await, acme(Some(Step::Completed)));
    scene.pass(48 * 3_600 * SECOND);
    scene.store.purge_joins(SECOND, 100).await.unwrap();
    assert_eq!(member(&away, &steps[0]).await, None);
}

/// The join is in the same database as the step.
pub async fn a_join_at_this_databases_own_name_is_local(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let join = scene.start_join(1).await;
    scene.wait(&join, true).await;
    let step = scene.write_one(event("step")).await;
    let home = scene.store.name().to_owned();
    scene.act(JoinCommand::Attach { join: join.clone(), home, steps: vec![step] }).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    assert_eq!(scene.counters(&join).await, (1, 1, 0));
    assert_eq!(scene.followed().await, (1, 0));
}

/// The outcome is then reported by an event, which the same database receives.
pub async fn a_database_with_two_names_counts_its_steps(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let join = scene.start_join(1).await;
    scene.wait(&join, true).await;
    let step = scene.write_one(event("step")).await;
    let home = "another name of it".to_owned();
    scene.act(JoinCommand::Attach { join: join.clone(), home, steps: vec![step.clone()] }).await;
    let taken = scene.lease("a").await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    assert_eq!(scene.counters(&join).await, (0, 0, 0));
    for _ in 0..2 {
        scene.report(&join, &step, Step::Completed).await;
        assert_eq!(scene.counters(&join).await, (1, 1, 0));
    }
    assert_eq!(scene.followed().await, (1, 0));
}

/// A follow-up with an id of the application may be set for two joins.
pub async fn a_follow_up_with_an_existing_id_is_not_written_again(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let follows = event("then").id("then-7").build().unwrap();
    for _ in 0..2 {
        let (join, taken) = scene.steps(1).await;
        let decision = FollowUp { strict: true, on_complete: Some(follows.clone()), on_fail: None };
        scene.act(JoinCommand::Wait { join: join.clone(), decision }).await;
        let step = taken.iter().find(|d| *d.event.event_type() == "step").expect("the step is due");
        assert_eq!(scene.settle("a", step, Verdict::Done).await, 1);
        assert_eq!(scene.join(&join).await.status, JoinStatus::Completed);
        assert_eq!(scene.followed().await, (1, 0));
    }
}

/// Steps of open joins stay; closed joins are deleted with their steps.
pub async fn purging_spares_open_joins(harness: &impl Harness) {
    let scene = Scene::open(harness).await;
    let (open, taken) = scene.steps(2).await;
    scene.settle("a", &taken[0], Verdict::Done).await;
    let (closed, other) = scene.steps(1).await;
    scene.wait(&closed, true).await;
    scene.settle("a", &other[0], Verdict::Done).await;
    for follows in scene.lease("b").await {
        scene.settle("b", &follows, Verdict::Done).await;
    }
    scene.pass(10 * SECOND);
    let purge = Purge { what: Purgeable::Finished, older_than: SECOND, limit: 100 };
    assert_eq!(scene.store.purge(purge).await.unwrap(), 2);
    assert!(scene.find(taken[0].event.id()).await.is_some());
    assert_eq!(scene.store.purge_joins(Duration::from_secs(60), 100).await.unwrap(), 0);
    assert_eq!(scene.store.purge_joins(SECOND, 100).await.unwrap(), 1);
    let left = scene.store.joins(&JoinFilter::default(), 9).await.unwrap();
    assert_eq!(left.into_iter().map(|join| join.id).collect::<Vec<_>>(), [open]);
    assert!(scene.store.steps(&closed, None, 9).await.unwrap().is_empty());
}

/// Concurrent attaching, settling and reporting: the counters equal the outcomes of the steps.
pub async fn concurrent_steps_are_counted_exactly(harness: &impl Harness) {
    const STEPS: usize = 60;
    let scene = Scene::open(harness).await;
    let steps = scene.write((0..STEPS).map(|_| event("step"))).await;
    let joins = [scene.start_join(STEPS as u32).await, scene.start_join(STEPS as u32).await];
    for join in &joins {
        scene.wait(join, true).await;
    }
    let another = harness.connect(Clock::Frozen(scene.clock.clone())).await;
    let mut tasks = tokio::task::JoinSet::new();
    for (n, step) in steps.into_iter().enumerate() {
        let (store, joins) = (scene.store.clone(), joins.clone());
        tasks.spawn(async move {
            for join in if n % 2 == 0 { [&joins[0], &joins[1]] } else { [&joins[1], &joins[0]] } {
                for _ in 0..2 {
                    store.join(&attach(join, std::slice::from_ref(&step))).await.unwrap();
                }
            }
        });
        if n % 6 == 0 {
            let store = another.clone();
            tasks.spawn(async move {
                let owner = format!("worker-{n}");
                loop {
                    let taken = store.take(&Take { limit: 7, ..leasing(&owner) }).await.unwrap();
                    if taken.deliveries.is_empty() {
                        break;
                    }
                    let done: Vec<_> =
                        taken.deliveries.iter().map(|d| settlement(d, Verdict::Done)).collect();
                    for _ in 0..2 {
                        store.settle(&holder(&owner), Completion::Keep, &done).await.unwrap();
                    }
                }
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task fails");
    }
    for taken in scene.lease("last").await {
        scene.settle("last", &taken, Verdict::Done).await;
    }
    for join in &joins {
        assert_eq!(scene.counters(join).await, (STEPS as u32, STEPS as u32, 0));
        assert_eq!(scene.join(join).await.status, JoinStatus::Completed);
    }
    assert_eq!(scene.followed().await, (2, 0));
}
