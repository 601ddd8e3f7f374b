//! Joins: many events, and a follow-up event once all of them are settled.
//!
//! A join counts its settled steps. The transaction that settles a step also counts it, and the
//! transaction that counts the last step closes the join and writes its follow-up: no polling, and
//! the follow-up is written exactly once. The effect of a step on its join is decided here, in pure
//! functions; `sql/joins.rs` stores it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::error::{EventError, Result};
use crate::event::{Event, EventId, IntoEvent};
use crate::outbox::Outbox;
use crate::sql::Database;
use crate::store::{JoinCommand, SharedStore};
use crate::tx::Tx;
use crate::write::Written;

/// Type of the events that report the outcome of a step to a join in another database.
pub(crate) const REPORT: &str = "outbox.join.report";

/// How long a report is retried while its database or join is unknown. The row of its step is kept
/// for at least as long.
pub(crate) const REPORT_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Maximum length of a grouping key, in characters.
const MAX_GROUP: usize = 255;

/// Maximum length of a database name in a fleet, in characters.
pub(crate) const MAX_HOME: usize = 64;

/// The id of a join.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JoinId(Arc<str>);

impl JoinId {
    /// Generates an id that is greater than all earlier ones of this process.
    pub(crate) fn generate() -> Self {
        Self(EventId::generate().as_str().into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The join in another database of a fleet, by that database's name: for
    /// [`attach`](Joins::attach) in a database that does not hold the join.
    pub fn at(&self, database: impl Into<String>) -> JoinAt {
        JoinAt { join: self.clone(), home: database.into() }
    }
}

impl From<&str> for JoinId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for JoinId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl AsRef<str> for JoinId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JoinId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for JoinId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A join and the database that holds it. A [`JoinId`] alone is a join in the same database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAt {
    pub(crate) join: JoinId,
    /// Name of its database; empty for this one.
    pub(crate) home: String,
}

impl From<&JoinId> for JoinAt {
    fn from(join: &JoinId) -> Self {
        join.at("")
    }
}

impl From<JoinId> for JoinAt {
    fn from(join: JoinId) -> Self {
        join.at("")
    }
}

/// Status of a join. The numbers are the values in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i16)]
pub enum JoinStatus {
    /// Not all steps are settled, or no follow-up has been set.
    Pending = 0,
    /// All steps are settled, and the follow-up of a success was written.
    Completed = 1,
    /// All steps are settled, some failed, and the follow-up of a failure was written.
    Failed = 2,
    /// Cancelled: no follow-up is written.
    Cancelled = 3,
}

impl JoinStatus {
    /// The status with this number in the table.
    pub fn from_code(code: i64) -> Option<Self> {
        [Self::Pending, Self::Completed, Self::Failed, Self::Cancelled]
            .into_iter()
            .find(|status| *status as i64 == code)
    }
}

impl fmt::Display for JoinStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "PENDING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        })
    }
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Its event is done.
    Completed,
    /// Its event is dead. A replay may still complete the step.
    Failed,
}

impl Step {
    pub(crate) fn code(self) -> i64 {
        match self {
            Self::Completed => 1,
            Self::Failed => 2,
        }
    }

    /// The outcome with this number in the table; `None` for a step that is not settled.
    pub fn from_code(code: i64) -> Option<Self> {
        [Self::Completed, Self::Failed].into_iter().find(|step| step.code() == code)
    }
}

/// A join and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Its id.
    pub id: JoinId,
    /// Group that the join belongs to: a customer, a tenant, a run.
    pub grouping_key: Option<String>,
    /// Number of steps that the join waits for.
    pub expected: u32,
    /// Number of attached steps.
    pub attached: u32,
    /// Number of completed steps.
    pub completed: u32,
    /// Number of failed steps.
    pub failed: u32,
    /// Status.
    pub status: JoinStatus,
    /// Free text of the application.
    pub metadata: Option<String>,
    /// Whether the follow-up has been set.
    pub awaited: bool,
    /// When it was started.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

impl Join {
    /// Whether all steps are settled, completed or failed.
    pub fn is_complete(&self) -> bool {
        self.completed + self.failed == self.expected
    }

    /// The status with which a pending join closes now, given whether a failed step fails it;
    /// `None`: it stays open.
    pub(crate) fn closing(&self, strict: Option<bool>) -> Option<JoinStatus> {
        let strict = strict.filter(|_| self.status == JoinStatus::Pending && self.is_complete())?;
        Some(if strict && self.failed > 0 { JoinStatus::Failed } else { JoinStatus::Completed })
    }

    pub(crate) fn count(&mut self, change: CounterChange) {
        self.completed = self.completed.saturating_add_signed(change.completed);
        self.failed = self.failed.saturating_add_signed(change.failed);
    }
}

/// Change of a join's counters by a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterChange {
    pub(crate) completed: i32,
    pub(crate) failed: i32,
}

impl CounterChange {
    /// The change when a step goes from `before` to `now`. A repeated outcome counts once; a
    /// completed step stays completed; a replay completes a failed step.
    pub(crate) fn of(before: Option<Step>, now: Step) -> Option<Self> {
        match (before, now) {
            (None, Step::Completed) => Some(Self { completed: 1, failed: 0 }),
            (None, Step::Failed) => Some(Self { completed: 0, failed: 1 }),
            (Some(Step::Failed), Step::Completed) => Some(Self { completed: 1, failed: -1 }),
            (Some(Step::Completed), _) | (Some(Step::Failed), Step::Failed) => None,
        }
    }
}

/// Why a join operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No such join in this database.
    #[error("join {id} not found in this database: use the database in which it was started")]
    Unknown {
        /// The requested id.
        id: JoinId,
    },
    /// No such event to attach.
    #[error(
        "event {id} not found in this database: write it before attaching it; \
         where completed events are deleted, it may be done already"
    )]
    UnknownStep {
        /// The requested id.
        id: EventId,
    },
    /// The number of steps is zero, or more than can be counted.
    #[error("a join cannot have {steps} steps: it needs at least 1 and at most 2,147,483,647")]
    Steps {
        /// The number given.
        steps: u64,
    },
    /// The join is closed.
    #[error("the join {id} is {status} and accepts no more steps: start a new one")]
    Closed {
        /// The join.
        id: JoinId,
        /// Its status.
        status: JoinStatus,
    },
    /// The join has all the steps that it expects.
    #[error("the join {id} already has the {expected} steps that it expects")]
    Full {
        /// The join.
        id: JoinId,
        /// Number of expected steps.
        expected: u32,
    },
    /// Another follow-up has been set before.
    #[error("the join {id} already has another follow-up")]
    Decided {
        /// The join.
        id: JoinId,
    },
    /// A text that cannot be stored.
    #[error("{what} of a join: {reason}")]
    Text {
        /// The text.
        what: &'static str,
        /// The cause.
        reason: &'static str,
    },
}

/// A join to be started.
///
/// ```
/// use outbox::NewJoin;
///
/// let join = NewJoin::of(3).group("customer-42").metadata(r#"{"phase": "extract"}"#);
/// # let _ = join;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewJoin {
    pub(crate) expected: u32,
    pub(crate) grouping_key: Option<String>,
    pub(crate) metadata: Option<String>,
}

impl NewJoin {
    /// A join that expects this many steps.
    pub fn of(steps: u32) -> Self {
        Self { expected: steps, ..Self::default() }
    }

    /// Group that the join belongs to: a customer, a tenant, a run.
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.grouping_key = Some(key.into()).filter(|key| !key.is_empty());
        self
    }

    /// Free text of the application.
    pub fn metadata(mut self, text: impl Into<String>) -> Self {
        self.metadata = Some(text.into());
        self
    }

    pub(crate) fn check(&self) -> Result<(), JoinError> {
        if self.expected == 0 || i32::try_from(self.expected).is_err() {
            return Err(JoinError::Steps { steps: self.expected.into() });
        }
        if self.grouping_key.as_ref().is_some_and(|key| key.chars().count() > MAX_GROUP) {
            return Err(JoinError::Text { what: "the grouping key", reason: "at most 255 characters fit" });
        }
        for (what, text) in [("the grouping key", &self.grouping_key), ("the metadata", &self.metadata)] {
            if text.as_ref().is_some_and(|text| text.contains('\0')) {
                return Err(JoinError::Text { what, reason: "it holds a NUL, which databases refuse" });
            }
        }
        Ok(())
    }
}

/// Follow-up of a join: an event if it succeeds, an event if it fails.
///
/// A dead step fails the join, unless [`allow_failures`](JoinWait::allow_failures) is set.
#[derive(Clone, Debug, Default)]
pub struct JoinWait {
    lenient: bool,
    on_complete: Option<Result<Event, EventError>>,
    on_fail: Option<Result<Event, EventError>>,
}

impl JoinWait {
    /// No follow-up: the join is closed when its last step is settled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Event to write when all steps are settled and the join has not failed.
    pub fn then(mut self, event: impl IntoEvent) -> Self {
        self.on_complete = Some(event.into_event(usize::MAX));
        self
    }

    /// Event to write when all steps are settled and some of them are dead.
    pub fn if_failed(mut self, event: impl IntoEvent) -> Self {
        self.on_fail = Some(event.into_event(usize::MAX));
        self
    }

    /// A dead step does not fail the join: it counts like a completed one.
    pub fn allow_failures(self) -> Self {
        self.fail_if_any_step_failed(false)
    }

    /// Whether a dead step fails the join; the default is true.
    pub fn fail_if_any_step_failed(mut self, fail: bool) -> Self {
        self.lenient = !fail;
        self
    }

    /// The follow-up after this outbox's size limit and hooks.
    fn decide<DB: Database>(self, outbox: &Outbox<DB>) -> Result<FollowUp> {
        let prepared = |event: Option<Result<Event, EventError>>| -> Result<Option<Event>> {
            let Some(event) = event else { return Ok(None) };
            // A hook may suppress the event, or replace it.
            Ok(outbox.prepare(vec![outbox.build_one(event?)?])?.into_iter().next())
        };
        Ok(FollowUp {
            strict: !self.lenient,
            on_complete: prepared(self.on_complete)?,
            on_fail: prepared(self.on_fail)?,
        })
    }
}

/// Follow-up of a join. The ids of the events are fixed with it, so that neither can be written
/// twice.
#[derive(Clone, Debug, Default)]
pub struct FollowUp {
    /// Whether a dead step fails the join.
    pub strict: bool,
    /// Event to write if the join succeeds.
    pub on_complete: Option<Event>,
    /// Event to write if the join fails.
    pub on_fail: Option<Event>,
}

/// Outcome of a step, sent to the database that holds the join.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) home: String,
    pub(crate) join: String,
    pub(crate) step: String,
    pub(crate) became: Step,
}

impl Report {
    pub(crate) fn event(&self) -> Result<Event> {
        Ok(Event::new(REPORT).json(self).build()?)
    }
}

/// The joins of an outbox, step by step: start, attach, report, wait, cancel. All operations are
/// idempotent.
///
/// Most joins are easier to write as a list: see [`Outbox::fan_out`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Event, JoinWait, NewJoin, Outbox};
/// # let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
///
/// let mut tx = outbox.begin().await?;
/// let pages = tx.write_all([Event::new("fetch").json(&1), Event::new("fetch").json(&2)]).await?;
/// let mut joins = tx.joins();
/// let join = joins.start(NewJoin::of(2).group("run-7")).await?;
/// for page in &pages {
///     joins.attach(&join.id, &page.id).await?;
/// }
/// joins.wait(&join.id, JoinWait::new().then(Event::new("merge").json(&7))).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// The transaction that settles a step's event also counts the step: handlers need not know about
/// joins. [`completed`](Joins::completed) and [`failed`](Joins::failed) are for steps that no relay
/// settles.
#[derive(Debug)]
#[must_use = "does nothing until one of its methods is called"]
pub struct Joins<'t, 'c, DB: Database> {
    outbox: Outbox<DB>,
    tx: Option<&'t mut Tx<'c, DB>>,
}

impl<DB: Database> Outbox<DB> {
    /// The joins of this outbox; every operation runs in its own transaction. [`Tx::joins`] is for
    /// operations in yours.
    pub fn joins(&self) -> Joins<'static, 'static, DB> {
        Joins { outbox: self.clone(), tx: None }
    }

    /// Writes many events, and a follow-up event once all of them are settled. The number of steps
    /// is the length of the list, so it cannot be wrong.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::{Event, Outbox};
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let run = outbox
    ///     .fan_out((1..=3).map(|page| Event::new("fetch").json(&page)))
    ///     .then(Event::new("merge").json(&"run-7"))
    ///     .if_failed(Event::new("alert").json(&"run-7"))
    ///     .group("run-7")
    ///     .send()                                    // in your transaction: `tx.fan_out(…) … .write()`
    ///     .await?;
    /// assert_eq!(run.steps.len(), 3);
    /// # Ok(()) }
    /// ```
    pub fn fan_out<E: IntoEvent>(&self, steps: impl IntoIterator<Item = E>) -> FanOut<Self> {
        FanOut::new(self.clone(), self.build(steps))
    }
}

impl<'c, DB: Database> Tx<'c, DB> {
    /// The joins of the outbox, in this transaction. Keep the transaction short if the join already
    /// exists: other transactions that count a step of the join wait for the commit.
    pub fn joins(&mut self) -> Joins<'_, 'c, DB> {
        Joins { outbox: self.outbox().clone(), tx: Some(self) }
    }

    /// Writes many events in this transaction, and a follow-up event once all of them are settled:
    /// see [`Outbox::fan_out`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::{Event, Outbox};
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let mut tx = outbox.begin().await?;
    /// let pages = (1..=3).map(|page| Event::new("fetch").json(&page));
    /// tx.fan_out(pages).then(Event::new("merge").json(&"run-7")).write().await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    pub fn fan_out<E: IntoEvent>(&mut self, steps: impl IntoIterator<Item = E>) -> FanOut<&mut Self> {
        let steps = self.outbox().build(steps);
        FanOut::new(self, steps)
    }
}

impl<DB: Database> Joins<'_, '_, DB> {
    /// Starts a join.
    pub async fn start(&mut self, join: NewJoin) -> Result<Join> {
        join.check()?;
        self.act(JoinCommand::Start { id: JoinId::generate(), join }).await
    }

    /// Attaches an event to a join as a step. An event that is already settled counts immediately.
    /// An event may be a step of several joins.
    ///
    /// The event must be in this database. The join may be in another one:
    /// `attach(join.id.at("acme"), &event)`. The relay of a [`Fleet`](crate::Fleet) that serves
    /// both then reports the outcome of the event to the join.
    pub async fn attach(&mut self, join: impl Into<JoinAt>, step: &EventId) -> Result<()> {
        self.attach_all(join, [step]).await
    }

    /// Attaches many events to a join, in a few statements.
    pub async fn attach_all(
        &mut self,
        join: impl Into<JoinAt>,
        steps: impl IntoIterator<Item = &EventId>,
    ) -> Result<()> {
        let JoinAt { join, home } = join.into();
        if home.chars().count() > MAX_HOME {
            return Err(JoinError::Text { what: "the database", reason: "at most 64 characters fit" }.into());
        }
        let steps: Vec<EventId> = steps.into_iter().cloned().collect();
        if !steps.is_empty() {
            self.run(JoinCommand::Attach { join, home, steps }).await?;
        }
        Ok(())
    }

    /// Counts a step as completed, and attaches it if it was not attached.
    pub async fn completed(&mut self, join: &JoinId, step: &EventId) -> Result<Join> {
        self.report(join, step, Step::Completed).await
    }

    /// Counts a step as failed, and attaches it if it was not attached.
    pub async fn failed(&mut self, join: &JoinId, step: &EventId) -> Result<Join> {
        self.report(join, step, Step::Failed).await
    }

    async fn report(&mut self, join: &JoinId, step: &EventId, became: Step) -> Result<Join> {
        self.act(JoinCommand::Report { join: join.clone(), step: step.clone(), became }).await
    }

    /// Sets the follow-up. If all steps are settled, it is written immediately. A join has one
    /// follow-up: setting the same again changes nothing, setting another is an error.
    pub async fn wait(&mut self, join: &JoinId, wait: JoinWait) -> Result<Join> {
        let decision = wait.decide(&self.outbox)?;
        self.act(JoinCommand::Wait { join: join.clone(), decision }).await
    }

    /// Cancels a pending join: no follow-up is written, whatever the outcome of its steps. A closed
    /// join stays unchanged.
    pub async fn cancel(&mut self, join: &JoinId) -> Result<Join> {
        self.act(JoinCommand::Cancel { join: join.clone() }).await
    }

    async fn act(&mut self, act: JoinCommand) -> Result<Join> {
        let id = act.join().clone();
        self.run(act).await?.ok_or_else(|| JoinError::Unknown { id }.into())
    }

    async fn run(&mut self, act: JoinCommand) -> Result<Option<Join>> {
        let acted = match &mut self.tx {
            Some(tx) => tx.change_join(&act).await?,
            None => {
                let acted = self.outbox.store().join(&act).await?;
                if acted.wrote {
                    self.outbox.wake();
                }
                acted
            }
        };
        Ok(acted.join)
    }
}

/// Many events and their follow-up. Created by [`Outbox::fan_out`] and [`Tx::fan_out`]; `To` is the
/// outbox or the transaction.
#[must_use = "nothing is written before `send`, or `write` in a transaction"]
#[derive(Debug)]
pub struct FanOut<To> {
    to: To,
    steps: Result<Vec<Event>>,
    join: NewJoin,
    wait: JoinWait,
}

/// A join that was written with its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FannedOut {
    /// The join.
    pub join: JoinId,
    /// The events that the join waits for. Fewer than were given if a hook suppressed some, or
    /// their deduplication keys already existed.
    pub steps: Vec<EventId>,
}

impl<To> FanOut<To> {
    fn new(to: To, steps: Result<Vec<Event>>) -> Self {
        Self { to, steps, join: NewJoin::default(), wait: JoinWait::new() }
    }

    /// Event to write when all steps are settled and none of them is dead.
    pub fn then(mut self, event: impl IntoEvent) -> Self {
        self.wait = self.wait.then(event);
        self
    }

    /// Event to write when all steps are settled and some of them are dead.
    pub fn if_failed(mut self, event: impl IntoEvent) -> Self {
        self.wait = self.wait.if_failed(event);
        self
    }

    /// A dead step does not fail the join: the event of [`then`](FanOut::then) is written when all
    /// steps are settled, dead or done.
    pub fn allow_failures(mut self) -> Self {
        self.wait = self.wait.allow_failures();
        self
    }

    /// Group that the join belongs to: a customer, a tenant, a run.
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.join = self.join.group(key);
        self
    }

    /// Free text of the application.
    pub fn metadata(mut self, text: impl Into<String>) -> Self {
        self.join = self.join.metadata(text);
        self
    }
}

impl<DB: Database> FanOut<&mut Tx<'_, DB>> {
    /// Writes the events and the join. Without any step it returns an error.
    pub async fn write(self) -> Result<FannedOut> {
        let Self { to: tx, steps, mut join, wait } = self;
        let decision = wait.decide(tx.outbox())?;
        let written = tx.write_events(steps?).await?;
        let steps: Vec<EventId> = written.into_iter().filter(Written::is_new).map(|step| step.id).collect();
        join.expected =
            u32::try_from(steps.len()).map_err(|_| JoinError::Steps { steps: steps.len() as u64 })?;
        join.check()?;
        let id = JoinId::generate();
        for command in [
            JoinCommand::Start { id: id.clone(), join },
            JoinCommand::Attach { join: id.clone(), home: String::new(), steps: steps.clone() },
            JoinCommand::Wait { join: id.clone(), decision },
        ] {
            tx.change_join(&command).await?;
        }
        Ok(FannedOut { join: id, steps })
    }
}

impl<DB: Database> FanOut<Outbox<DB>> {
    /// Writes the events and the join in a transaction of their own. Without any step it returns an
    /// error.
    pub async fn send(self) -> Result<FannedOut> {
        let Self { to: outbox, steps, join, wait } = self;
        let mut tx = outbox.begin().await?;
        let fanned_out = FanOut { to: &mut tx, steps, join, wait }.write().await?;
        tx.commit().await?;
        Ok(fanned_out)
    }
}

/// The other databases of a fleet, which may hold joins.
pub(crate) trait JoinDatabases: Send + Sync {
    /// The store of this name.
    fn home(&self, name: &str) -> Option<SharedStore>;

    /// Reports that an event was written to the database of this name.
    fn wake(&self, name: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(expected: u32, completed: u32, failed: u32, status: JoinStatus) -> Join {
        Join {
            id: JoinId::generate(),
            grouping_key: None,
            expected,
            attached: completed + failed,
            completed,
            failed,
            status,
            metadata: None,
            awaited: true,
            created_at: Utc::now(),
            updated_at: Utc::now(),
        }
    }

    #[test]
    fn a_step_counts_once_and_only_a_failed_step_changes_its_outcome() {
        use Step::{Completed, Failed};
        let change = |completed, failed| Some(CounterChange { completed, failed });
        assert_eq!(CounterChange::of(None, Completed), change(1, 0));
        assert_eq!(CounterChange::of(None, Failed), change(0, 1));
        assert_eq!(CounterChange::of(Some(Failed), Completed), change(1, -1));
        assert_eq!(CounterChange::of(Some(Completed), Completed), None);
        assert_eq!(CounterChange::of(Some(Completed), Failed), None);
        assert_eq!(CounterChange::of(Some(Failed), Failed), None);
    }

    #[test]
    fn a_join_closes_when_all_steps_are_settled_and_the_follow_up_is_set() {
        use JoinStatus::{Cancelled, Completed, Failed, Pending};
        for (join, strict, closing) in [
            (join(2, 1, 0, Pending), Some(true), None),
            (join(2, 2, 0, Pending), None, None),
            (join(2, 2, 0, Pending), Some(true), Some(Completed)),
            (join(2, 1, 1, Pending), Some(true), Some(Failed)),
            (join(2, 1, 1, Pending), Some(false), Some(Completed)),
            (join(2, 0, 2, Pending), Some(false), Some(Completed)),
            (join(2, 2, 0, Completed), Some(true), None),
            (join(2, 2, 0, Cancelled), Some(true), None),
        ] {
            assert_eq!(join.closing(strict), closing, "{join:?} {strict:?}");
        }
    }

    #[test]
    fn a_join_without_steps_or_with_too_long_a_group_is_refused() {
        assert_eq!(NewJoin::of(0).check(), Err(JoinError::Steps { steps: 0 }));
        assert!(matches!(NewJoin::of(u32::MAX).check(), Err(JoinError::Steps { .. })));
        assert!(NewJoin::of(1).group("ä".repeat(255)).check().is_ok());
        assert!(matches!(NewJoin::of(1).group("ä".repeat(256)).check(), Err(JoinError::Text { .. })));
        assert!(matches!(NewJoin::of(1).metadata("a\0b").check(), Err(JoinError::Text { .. })));
    }
}
