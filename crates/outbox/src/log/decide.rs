//! Decisions: project, decide, append, and decide again after a conflict.

use std::time::Duration;

use super::log::{Log, Projection};
use super::query::{Condition, Position, Query};
use super::{Appended, LogEvent};
use crate::error::{Error, Result};
use crate::event::{Event, IntoEvent};
use crate::sql::Database;
use crate::tx::Tx;

/// Number of tries of a decision, unless [`Decision::tries`] sets another one.
const TRIES: u32 = 10;

/// Upper limit of the first pause after a conflict. It doubles with each conflict.
const PAUSE: Duration = Duration::from_millis(4);

/// Maximum of that limit.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Options of [`Log::decide`] and [`Tx::decide`]: the query that the decision is based on, requests
/// that are carried out once, and the number of tries. A [`Query`] alone is a decision with the
/// defaults.
///
/// ```
/// use outbox::{Decision, Query};
///
/// let decision = Decision::on(Query::tag("wallet_id", "w1"))
///     .once(Query::tag("request_id", "r7"))
///     .tries(50);
/// # let _ = decision;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision does nothing until it is passed to `decide`"]
pub struct Decision {
    query: Query,
    once: Vec<Query>,
    tries: u32,
}

impl Decision {
    /// A decision on the events that this query selects.
    pub fn on(query: Query) -> Self {
        Self { query, once: Vec::new(), tries: TRIES }
    }

    /// Appends nothing if an event matches this query: the request was carried out before. The
    /// result is [`Appended::Already`], also where the decision would now be a refusal. The decided
    /// events must match the query, so that a repeated request finds them.
    pub fn once(mut self, query: Query) -> Self {
        self.once.push(query);
        self
    }

    /// Number of tries before a conflict is returned: 10 unless set, at least 1. Each conflict is
    /// caused by another append that succeeded, so of `n` concurrent decisions that append once,
    /// none needs more than `n` tries.
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// The condition of an append that is based on this projection.
    fn condition<S>(&self, read: &Projection<S>) -> Condition {
        self.once.iter().cloned().fold(read.unchanged(), Condition::once)
    }
}

impl From<Query> for Decision {
    fn from(query: Query) -> Self {
        Self::on(query)
    }
}

/// Result of a decision: its basis, and the events that were appended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decided<S> {
    /// State that the decision was based on. It does not include the appended events.
    pub state: S,
    /// All matching events up to here are in the state.
    pub position: Position,
    /// The appended events; [`Appended::New`] without positions if the decision was an empty list.
    pub appended: Appended,
    /// Number of conflicts after which the decision was made again.
    pub conflicts: u32,
}

impl<S> Decided<S> {
    fn new(read: Projection<S>, appended: Appended, conflicts: u32) -> Self {
        Self { state: read.state, position: read.position, appended, conflicts }
    }

    /// The positions of the appended events; empty if nothing was appended.
    pub fn positions(&self) -> &[Position] {
        self.appended.positions()
    }
}

/// Error of a decision: a refusal by the application, or an error of the outbox. Nothing was
/// appended, unless the outbox returned [`Error::CommitUnknown`] or [`Error::Unavailable`].
///
/// It is an error that `?` converts if the refusal is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError<R> {
    /// The application refused.
    #[error(transparent)]
    Refused(R),
    /// An error of the outbox. [`Error::Conflict`]: each try met with a conflict.
    #[error(transparent)]
    Outbox(#[from] Error),
}

impl<DB: Database> Log<DB> {
    /// Decides by the events that a query selects, and appends the decided events on the condition
    /// that no matching event was appended since. After a conflict it reads the new events and
    /// decides again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use outbox::{DecideError, Event, EventBuilder, LogEvent, Outbox, Query};
    ///
    /// #[derive(Debug, PartialEq, thiserror::Error)]
    /// #[error("the course is full")]
    /// struct Full;
    ///
    /// #[derive(Default)]
    /// struct Course { places: usize, students: Vec<String> }
    ///
    /// impl Course {
    ///     fn apply(mut self, event: &LogEvent) -> Self {
    ///         match event.event_type().as_str() {
    ///             "CourseDefined" => self.places = event.payload().unwrap_or_default(),
    ///             "StudentSubscribed" => self.students.extend(event.payload::<String>()),
    ///             _ => {}
    ///         }
    ///         self
    ///     }
    ///
    ///     fn subscribe(&self, student: &str) -> Result<Vec<EventBuilder>, Full> {
    ///         if self.students.iter().any(|known| known == student) {
    ///             return Ok(Vec::new());                         // nothing to append, which is no error
    ///         }
    ///         if self.students.len() >= self.places {
    ///             return Err(Full);
    ///         }
    ///         Ok(vec![Event::new("StudentSubscribed").tag("course", "c1").json(&student)])
    ///     }
    /// }
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// outbox.migrate().await?;
    /// let log = outbox.log();
    /// log.append([Event::new("CourseDefined").tag("course", "c1").json(&1)]).await?;
    ///
    /// let course = || Query::tag("course", "c1");
    /// let ada = log.decide(course(), Course::default(), Course::apply, |c| c.subscribe("ada")).await?;
    /// assert_eq!(ada.positions().len(), 1);
    ///
    /// let grace = log.decide(course(), Course::default(), Course::apply, |c| c.subscribe("grace")).await;
    /// assert!(matches!(grace, Err(DecideError::Refused(Full))));
    /// # Ok(()) }
    /// ```
    ///
    /// `apply` gets each event once, in order; `decide` is called again after each conflict, so it
    /// should have no effects of its own. No connection is held and no transaction is open while
    /// they run. The decided events should match the query: a decision whose events it does not
    /// select conflicts with none of its own kind.
    ///
    /// After ten conflicts, or [`Decision::tries`], the result is [`Error::Conflict`]. The pauses
    /// between the tries are random, and their limit doubles from 4 ms to 500 ms. A deadlock or a
    /// serialization failure of the append is retried within the try, as by
    /// [`append_if`](Log::append_if). All other errors end the decision:
    /// [`Error::CommitUnknown`] most of all, after which the events may have been appended. To make
    /// the call repeatable in that case, use [`Decision::once`].
    ///
    /// In a transaction of yours, use [`Tx::decide`].
    pub async fn decide<S, E, R>(
        &self,
        decision: impl Into<Decision>,
        initial: S,
        mut apply: impl FnMut(S, &LogEvent) -> S,
        mut decide: impl FnMut(&S) -> Result<E, R>,
    ) -> Result<Decided<S>, DecideError<R>>
    where
        E: IntoIterator<Item: IntoEvent>,
    {
        let decision = decision.into();
        let mut read =
            Projection { state: initial, position: Position::START, query: decision.query.clone() };
        let mut conflicts = 0;
        loop {
            read = self.project_further(read, &mut apply).await?;
            // Built before the next await: the application's iterator need not be `Send`.
            let decided = decide(&read.state).map(|events| self.outbox().prepare_for_log(events));
            let events = match built(decided)? {
                Ok(events) => events,
                Err(nothing) => {
                    let is_repeated = self.is_any(&decision.once).await?;
                    return nothing.decided(read, is_repeated, conflicts);
                }
            };
            match self.append_built(events, decision.condition(&read)).await {
                Ok(appended) => return Ok(Decided::new(read, appended, conflicts)),
                Err(Error::Conflict { .. }) if conflicts + 1 < decision.tries => {
                    let pause = pause(conflicts, rand::random());
                    conflicts += 1;
                    tracing::debug!(position = %read.position, conflicts, ?pause, "conflict: deciding again");
                    tokio::time::sleep(pause).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether an event matches one of these queries.
    async fn is_any(&self, queries: &[Query]) -> Result<bool> {
        for query in queries {
            if !self.read(query, Position::START, 1).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<DB: Database> Tx<'_, DB> {
    /// Decides and appends in this transaction: see [`Log::decide`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use outbox::{Decision, Event, EventBuilder, LogEvent, Outbox, Query};
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// # outbox.log().append([Event::new("DepositMade").tag("wallet_id", "w1").json(&20)]).await?;
    /// fn withdraw(balance: &i64) -> Result<Option<EventBuilder>, std::io::Error> {
    ///     let withdrawal = Event::new("WithdrawalMade").tag("wallet_id", "w1").json(&-15);
    ///     if *balance >= 15 { Ok(Some(withdrawal)) } else { Err(std::io::Error::other("not enough money")) }
    /// }
    ///
    /// let mut tx = outbox.begin().await?;
    /// let wallet = Query::tag("wallet_id", "w1");
    /// let sum = |sum, event: &LogEvent| sum + event.payload::<i64>().unwrap_or_default();
    /// tx.decide(wallet, 0, sum, withdraw).await?;
    /// tx.write(Event::new("mail.send").json(&"w1")).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Decides once, whatever [`Decision::tries`] says: the transaction has read and written other
    /// rows before, and only the caller can repeat those. The read events stay locked until the
    /// transaction ends, as by [`Tx::project`], so that a conflict is an exception; what happens
    /// instead is that another transaction waits, or that the database ends one of two in a
    /// deadlock ([`Error::is_transient`]). Roll back after such an error and after a conflict, and
    /// repeat the transaction.
    ///
    /// A refusal, and an empty decision, leave the transaction as it was, with these locks.
    pub async fn decide<S, E, R>(
        &mut self,
        decision: impl Into<Decision>,
        initial: S,
        apply: impl FnMut(S, &LogEvent) -> S,
        decide: impl FnOnce(&S) -> Result<E, R>,
    ) -> Result<Decided<S>, DecideError<R>>
    where
        E: IntoIterator<Item: IntoEvent>,
    {
        self.is_whole()?;
        let decision = decision.into();
        let read = self.project(decision.query.clone(), initial, apply).await?;
        let decided = decide(&read.state).map(|events| self.outbox().prepare_for_log(events));
        match built(decided)? {
            Ok(events) => {
                let appended = self.append_built(events, decision.condition(&read)).await?;
                Ok(Decided::new(read, appended, 0))
            }
            Err(nothing) => {
                let is_repeated = self.is_any(&decision.once).await?;
                nothing.decided(read, is_repeated, 0)
            }
        }
    }

    /// Whether an event matches one of these queries.
    async fn is_any(&mut self, queries: &[Query]) -> Result<bool> {
        for query in queries {
            if !self.read_log_as(query, Position::START, 1, true).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A decision that appends nothing.
enum NoAppend<R> {
    Empty,
    Refused(R),
}

impl<R> NoAppend<R> {
    /// Result of the decision. A request that was carried out before is neither refused nor empty:
    /// its own events may be the reason.
    fn decided<S>(
        self,
        read: Projection<S>,
        is_repeated: bool,
        conflicts: u32,
    ) -> Result<Decided<S>, DecideError<R>> {
        match self {
            _ if is_repeated => Ok(Decided::new(read, Appended::Already, conflicts)),
            NoAppend::Empty => Ok(Decided::new(read, Appended::New(Vec::new()), conflicts)),
            NoAppend::Refused(refusal) => Err(DecideError::Refused(refusal)),
        }
    }
}

/// The events to append, or the reason for which there are none.
fn built<R>(decided: Result<Result<Vec<Event>>, R>) -> Result<Result<Vec<Event>, NoAppend<R>>> {
    Ok(match decided.map_err(NoAppend::Refused) {
        Err(refused) => Err(refused),
        Ok(events) => match events? {
            events if events.is_empty() => Err(NoAppend::Empty),
            events => Ok(events),
        },
    })
}

/// Pause after a conflict, by the number of earlier conflicts and a random number below 1. Random
/// over the whole range, so that concurrent decisions do not meet again.
fn pause(conflicts: u32, random: f64) -> Duration {
    PAUSE.saturating_mul(1 << conflicts.min(16)).min(LONGEST_PAUSE).mul_f64(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_random_and_grow_up_to_a_limit() {
        let millis = |conflicts, random| pause(conflicts, random).as_millis();
        assert_eq!(
            (0..9).map(|n| millis(n, 1.0)).collect::<Vec<_>>(),
            [4, 8, 16, 32, 64, 128, 256, 500, 500]
        );
        assert_eq!(millis(u32::MAX, 1.0), 500);
        assert_eq!((millis(3, 0.0), millis(3, 0.5)), (0, 16));
    }
}
