//! Joins: many events, and one that follows when all of them are settled.
//!
//! A join counts. Whoever settles a step counts it in the same transaction, and whoever counts the last one closes the
//! join and writes what follows: nothing polls, and what follows is written exactly once. What a step does to its join
//! is decided here, in pure functions; how it is stored is in `sql/joins.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::error::{EventError, Result};
use crate::event::{Event, EventId, IntoEvent};
use crate::outbox::Outbox;
use crate::sql::Database;
use crate::store::{JoinAct, SharedStore};
use crate::tx::Tx;

/// The type of the events that tell a join in another database what became of a step.
pub(crate) const REPORT: &str = "outbox.join.report";

/// How long a report waits for a database or a join that is not known. The row of its step is kept for at least as long.
pub(crate) const REPORT_PATIENCE: Duration = Duration::from_secs(86_400);

/// The longest grouping key, in characters.
const MAX_GROUP: usize = 255;

/// The longest name of a database in a fleet, in characters.
pub(crate) const MAX_HOME: usize = 64;

/// The id of a join.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JoinId(Arc<str>);

impl JoinId {
    /// A fresh one, greater than every one that this process made before.
    pub(crate) fn generate() -> Self {
        Self(EventId::generate().as_str().into())
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Says that the join is in another database of a fleet, by its name there: for
    /// [`attach`](Joins::attach) in a database that the join is not in.
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

/// A join, and where it is. A [`JoinId`] alone is one in the same database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAt {
    pub(crate) join: JoinId,
    /// The name of its database; empty for this one.
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

/// Where a join stands. The numbers are what the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i16)]
pub enum JoinStatus {
    /// Not all steps are settled, or nobody has said what follows.
    Pending = 0,
    /// All steps are settled, and what follows a success was written.
    Completed = 1,
    /// All steps are settled, some failed, and what follows a failure was written.
    Failed = 2,
    /// Given up: nothing follows.
    Cancelled = 3,
}

impl JoinStatus {
    /// From the number in the table.
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

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Its event is done.
    Completed,
    /// Its event is dead. It may still be completed: by a replay.
    Failed,
}

impl Step {
    pub(crate) fn code(self) -> i64 {
        match self {
            Self::Completed => 1,
            Self::Failed => 2,
        }
    }

    /// From the number in the table; `None` for a step that is not settled.
    pub fn from_code(code: i64) -> Option<Self> {
        [Self::Completed, Self::Failed].into_iter().find(|step| step.code() == code)
    }
}

/// A join as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Its id.
    pub id: JoinId,
    /// What it belongs to: a customer, a tenant, a run.
    pub grouping_key: Option<String>,
    /// How many steps it waits for.
    pub expected: u32,
    /// How many steps it has.
    pub attached: u32,
    /// How many of them are done.
    pub completed: u32,
    /// How many of them are dead.
    pub failed: u32,
    /// Where it stands.
    pub status: JoinStatus,
    /// Whatever its owner wants to remember.
    pub metadata: Option<String>,
    /// Whether somebody has said what follows.
    pub awaited: bool,
    /// When it was started.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

impl Join {
    /// Whether all steps are settled, one way or the other.
    pub fn is_complete(&self) -> bool {
        self.completed + self.failed == self.expected
    }

    /// How a pending join closes now, given whether a failed step fails it; `None`: it does not.
    pub(crate) fn closing(&self, strict: Option<bool>) -> Option<JoinStatus> {
        let strict = strict.filter(|_| self.status == JoinStatus::Pending && self.is_complete())?;
        Some(if strict && self.failed > 0 { JoinStatus::Failed } else { JoinStatus::Completed })
    }

    pub(crate) fn count(&mut self, change: Change) {
        self.completed = self.completed.saturating_add_signed(change.completed);
        self.failed = self.failed.saturating_add_signed(change.failed);
    }
}

/// What a step does to the counters of its join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) completed: i32,
    pub(crate) failed: i32,
}

impl Change {
    /// A step that was `before` becomes `now`. Told twice it counts once; what is completed stays so; what had failed
    /// is completed by a replay.
    pub(crate) fn of(before: Option<Step>, now: Step) -> Option<Self> {
        match (before, now) {
            (None, Step::Completed) => Some(Self { completed: 1, failed: 0 }),
            (None, Step::Failed) => Some(Self { completed: 0, failed: 1 }),
            (Some(Step::Failed), Step::Completed) => Some(Self { completed: 1, failed: -1 }),
            (Some(Step::Completed), _) | (Some(Step::Failed), Step::Failed) => None,
        }
    }
}

/// Why a join cannot do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// There is no such join in this database.
    #[error("there is no join {id} in this database: look for it in the database that it was started in")]
    Unknown {
        /// The id that was asked for.
        id: JoinId,
    },
    /// There is no such event to attach.
    #[error(
        "there is no event {id} in this database to attach: write it first; \
         one that is done is gone where completed events are deleted"
    )]
    UnknownStep {
        /// The id that was asked for.
        id: EventId,
    },
    /// It waits for nothing, or for more than can be counted.
    #[error("a join of {steps} steps: it needs at least one, and at most 2,147,483,647")]
    Steps {
        /// How many were given.
        steps: u64,
    },
    /// It is closed.
    #[error("the join {id} is {status} and takes no more steps: start a new one")]
    Closed {
        /// Which join.
        id: JoinId,
        /// How it was closed.
        status: JoinStatus,
    },
    /// It has all the steps that it expects.
    #[error("the join {id} expects {expected} steps and has them all")]
    Full {
        /// Which join.
        id: JoinId,
        /// How many it expects.
        expected: u32,
    },
    /// Somebody has said what follows, and it is something else.
    #[error("what follows the join {id} is already decided, and differs")]
    Decided {
        /// Which join.
        id: JoinId,
    },
    /// A text that does not fit.
    #[error("{what} of a join: {reason}")]
    Text {
        /// Which text.
        what: &'static str,
        /// What is wrong with it.
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
    /// That expects this many steps.
    pub fn of(steps: u32) -> Self {
        Self { expected: steps, ..Self::default() }
    }

    /// What it belongs to: a customer, a tenant, a run.
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.grouping_key = Some(key.into()).filter(|key| !key.is_empty());
        self
    }

    /// Whatever you want to remember.
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

/// What follows a join: an event if it succeeds, an event if it fails.
///
/// A dead step fails the join, unless [`allow_failures`](JoinWait::allow_failures) says otherwise.
#[derive(Clone, Debug, Default)]
pub struct JoinWait {
    lenient: bool,
    on_complete: Option<Result<Event, EventError>>,
    on_fail: Option<Result<Event, EventError>>,
}

impl JoinWait {
    /// With nothing that follows: the join is closed when its last step is settled, no more.
    pub fn new() -> Self {
        Self::default()
    }

    /// Written when all steps are settled and the join has not failed.
    pub fn then(mut self, event: impl IntoEvent) -> Self {
        self.on_complete = Some(event.into_event(usize::MAX));
        self
    }

    /// Written when all steps are settled and some of them are dead.
    pub fn if_failed(mut self, event: impl IntoEvent) -> Self {
        self.on_fail = Some(event.into_event(usize::MAX));
        self
    }

    /// A dead step does not fail the join: it counts like any other.
    pub fn allow_failures(self) -> Self {
        self.fail_if_any_step_failed(false)
    }

    /// Whether a dead step fails the join; it does if not set.
    pub fn fail_if_any_step_failed(mut self, fail: bool) -> Self {
        self.lenient = !fail;
        self
    }

    /// What was said, within this outbox's limits, and past its hooks.
    fn decide<DB: Database>(self, outbox: &Outbox<DB>) -> Result<Decision> {
        let promised = |event: Option<Result<Event, EventError>>| -> Result<Option<Event>> {
            let Some(event) = event else { return Ok(None) };
            // A hook may suppress it, or write another instead.
            Ok(outbox.prepare([event?])?.into_iter().next())
        };
        Ok(Decision {
            strict: !self.lenient,
            on_complete: promised(self.on_complete)?,
            on_fail: promised(self.on_fail)?,
        })
    }
}

/// What was decided to follow a join. The ids of the events are fixed with it, so that neither can be written twice.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Whether a dead step fails the join.
    pub strict: bool,
    /// What to write if it succeeds.
    pub on_complete: Option<Event>,
    /// What to write if it fails.
    pub on_fail: Option<Event>,
}

/// What became of a step, told to the join's own database.
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

/// The joins of an outbox, step by step: start, attach, report, wait, cancel. Everything may be said twice and counts
/// once.
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
/// let pages = outbox.write_all(&mut tx, [Event::new("fetch").json(&1), Event::new("fetch").json(&2)]).await?;
/// let mut joins = outbox.joins_in(&mut tx);
/// let join = joins.start(NewJoin::of(2).group("run-7")).await?;
/// for page in &pages {
///     joins.attach(&join.id, page).await?;
/// }
/// joins.wait(&join.id, JoinWait::new().then(Event::new("merge").json(&7))).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// A step is counted by whoever settles its event, in the same transaction: handlers know nothing of joins.
/// [`completed`](Joins::completed) and [`failed`](Joins::failed) are for steps that no relay settles.
#[derive(Debug)]
#[must_use = "it does nothing until something is asked of it"]
pub struct Joins<'t, 'c, DB: Database> {
    outbox: Outbox<DB>,
    tx: Option<&'t mut Tx<'c, DB>>,
}

impl<DB: Database> Outbox<DB> {
    /// The joins of this outbox; everything happens in a transaction of its own.
    pub fn joins(&self) -> Joins<'static, 'static, DB> {
        Joins { outbox: self.clone(), tx: None }
    }

    /// The joins of this outbox, in your transaction. Keep it short if the join is already there: others who want to
    /// count a step of it wait for your commit.
    pub fn joins_in<'t, 'c>(&self, tx: &'t mut Tx<'c, DB>) -> Joins<'t, 'c, DB> {
        Joins { outbox: self.clone(), tx: Some(tx) }
    }

    /// Writes many events, and one that follows when all of them are settled. The steps are the list, so their number
    /// cannot be wrong.
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
    ///     .send()                                    // or .write(&mut tx), in your transaction
    ///     .await?;
    /// assert_eq!(run.steps.len(), 3);
    /// # Ok(()) }
    /// ```
    pub fn fan_out<E: IntoEvent>(&self, steps: impl IntoIterator<Item = E>) -> FanOut<DB> {
        let steps = steps.into_iter().map(|step| step.into_event(self.max_payload())).collect();
        FanOut { outbox: self.clone(), steps, join: NewJoin::default(), wait: JoinWait::new() }
    }
}

impl<DB: Database> Tx<'_, DB> {
    /// As [`Outbox::fan_out`], to be written in this transaction: `tx.fan_out(steps).then(event).write(tx).await?`.
    pub fn fan_out<E: IntoEvent>(&self, steps: impl IntoIterator<Item = E>) -> FanOut<DB> {
        self.outbox().fan_out(steps)
    }
}

impl<DB: Database> Joins<'_, '_, DB> {
    /// Starts a join.
    pub async fn start(&mut self, join: NewJoin) -> Result<Join> {
        join.check()?;
        self.act(JoinAct::Start { id: JoinId::generate(), join }).await
    }

    /// Makes an event a step of a join. One that is already settled counts at once. An event may be a step of several
    /// joins.
    ///
    /// The event must be in this database. The join may be elsewhere: `attach(join.id.at("acme"), &event)`. Then what
    /// becomes of the event is told to it by the relay of a [`Fleet`](crate::Fleet) that serves both.
    pub async fn attach(&mut self, join: impl Into<JoinAt>, step: &EventId) -> Result<()> {
        self.attach_all(join, [step]).await
    }

    /// Makes many events steps of a join, in a few statements.
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
            self.run(JoinAct::Attach { join, home, steps }).await?;
        }
        Ok(())
    }

    /// Counts a step as completed. One that was not attached is attached by this.
    pub async fn completed(&mut self, join: &JoinId, step: &EventId) -> Result<Join> {
        self.report(join, step, Step::Completed).await
    }

    /// Counts a step as failed. One that was not attached is attached by this.
    pub async fn failed(&mut self, join: &JoinId, step: &EventId) -> Result<Join> {
        self.report(join, step, Step::Failed).await
    }

    async fn report(&mut self, join: &JoinId, step: &EventId, became: Step) -> Result<Join> {
        self.act(JoinAct::Report { join: join.clone(), step: step.clone(), became }).await
    }

    /// Says what follows. If all steps are settled, it follows at once. A join has one answer to this: saying the same
    /// again changes nothing, saying something else is an error.
    pub async fn wait(&mut self, join: &JoinId, wait: JoinWait) -> Result<Join> {
        let decision = wait.decide(&self.outbox)?;
        self.act(JoinAct::Wait { join: join.clone(), decision }).await
    }

    /// Gives a pending join up: nothing follows, whatever becomes of its steps. One that is closed stays as it is.
    pub async fn cancel(&mut self, join: &JoinId) -> Result<Join> {
        self.act(JoinAct::Cancel { join: join.clone() }).await
    }

    async fn act(&mut self, act: JoinAct) -> Result<Join> {
        let id = act.join().clone();
        self.run(act).await?.ok_or_else(|| JoinError::Unknown { id }.into())
    }

    async fn run(&mut self, act: JoinAct) -> Result<Option<Join>> {
        let acted = match &mut self.tx {
            Some(tx) => self.outbox.join_in(tx, &act).await?,
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

/// Many events, and what follows them. Made by [`Outbox::fan_out`].
#[must_use = "nothing is written before `write` or `send`"]
#[derive(Debug)]
pub struct FanOut<DB: Database> {
    outbox: Outbox<DB>,
    steps: Result<Vec<Event>, EventError>,
    join: NewJoin,
    wait: JoinWait,
}

/// A join that was written with its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FannedOut {
    /// The join.
    pub join: JoinId,
    /// The events that it waits for. Fewer than were given if a hook suppressed some, or their deduplication keys
    /// were taken.
    pub steps: Vec<EventId>,
}

impl<DB: Database> FanOut<DB> {
    /// Written when all steps are settled and none of them is dead.
    pub fn then(mut self, event: impl IntoEvent) -> Self {
        self.wait = self.wait.then(event);
        self
    }

    /// Written when all steps are settled and some of them are dead.
    pub fn if_failed(mut self, event: impl IntoEvent) -> Self {
        self.wait = self.wait.if_failed(event);
        self
    }

    /// A dead step does not fail the join: [`then`](FanOut::then) follows when all are settled, dead or done.
    pub fn allow_failures(mut self) -> Self {
        self.wait = self.wait.allow_failures();
        self
    }

    /// What the join belongs to: a customer, a tenant, a run.
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.join = self.join.group(key);
        self
    }

    /// Whatever you want to remember.
    pub fn metadata(mut self, text: impl Into<String>) -> Self {
        self.join = self.join.metadata(text);
        self
    }

    /// Writes the events and the join in your transaction. Without a single step it is an error.
    pub async fn write(self, tx: &mut Tx<'_, DB>) -> Result<FannedOut> {
        let Self { outbox, steps, mut join, wait } = self;
        let decision = wait.decide(&outbox)?;
        let steps = outbox.write_all(tx, steps?).await?;
        join.expected =
            u32::try_from(steps.len()).map_err(|_| JoinError::Steps { steps: steps.len() as u64 })?;
        join.check()?;
        let id = JoinId::generate();
        for act in [
            JoinAct::Start { id: id.clone(), join },
            JoinAct::Attach { join: id.clone(), home: String::new(), steps: steps.clone() },
            JoinAct::Wait { join: id.clone(), decision },
        ] {
            outbox.join_in(tx, &act).await?;
        }
        Ok(FannedOut { join: id, steps })
    }

    /// Writes the events and the join in a transaction of their own.
    pub async fn send(self) -> Result<FannedOut> {
        let mut tx = self.outbox.begin().await?;
        let fanned_out = self.write(&mut tx).await?;
        tx.commit().await?;
        Ok(fanned_out)
    }
}

/// Where joins live that are not in the database at hand.
pub(crate) trait Homes: Send + Sync {
    /// The store of this name.
    fn home(&self, name: &str) -> Option<SharedStore>;

    /// Something was written there.
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
    fn a_step_counts_once_and_only_a_failed_one_changes_its_mind() {
        use Step::{Completed, Failed};
        let change = |completed, failed| Some(Change { completed, failed });
        assert_eq!(Change::of(None, Completed), change(1, 0));
        assert_eq!(Change::of(None, Failed), change(0, 1));
        assert_eq!(Change::of(Some(Failed), Completed), change(1, -1));
        assert_eq!(Change::of(Some(Completed), Completed), None);
        assert_eq!(Change::of(Some(Completed), Failed), None);
        assert_eq!(Change::of(Some(Failed), Failed), None);
    }

    #[test]
    fn a_join_closes_when_all_steps_are_in_and_somebody_has_said_what_follows() {
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
