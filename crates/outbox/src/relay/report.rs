//! Telling a join in another database what became of one of its steps.
//!
//! The database of the step writes an event with the settlement; this handles that event. It is an event like any
//! other, so it comes at least once, and a join counts a step once however often it is told.

use std::time::Duration;

use super::Engine;
use crate::error::Error;
use crate::event::EventId;
use crate::handler::{Cx, Failure, Outcome};
use crate::join::{JoinError, JoinId, Report};
use crate::store::JoinAct;

/// When to look again for a database that is not known, or not well. Not an attempt: a report must not be lost because a
/// database is away for a day.
const LATER: Duration = Duration::from_secs(5);

/// How long to wait for a join that is not there.
const PATIENCE: chrono::Duration = chrono::Duration::days(1);

/// Tells the join.
pub(super) async fn tell(engine: &Engine, cx: &Cx) -> Result<Outcome, Failure> {
    let Report { home, join, step, became } = cx.payload()?;
    let homes = engine.place.as_ref().map(|place| &*place.homes);
    let Some(store) = homes.and_then(|homes| homes.home(&home)) else {
        let (store, event) = (engine.name(), cx.id());
        tracing::warn!(store, %event, home, join, "no database of this name here: the relay of a fleet that has it tells the join");
        return Ok(Outcome::RetryAfter(LATER));
    };
    let act = JoinAct::Report { join: JoinId::from(join), step: EventId::from(step), became };
    match store.join(&act).await {
        Ok(acted) => {
            if let Some(homes) = homes.filter(|_| acted.wrote) {
                homes.wake(&home);
            }
            Ok(Outcome::Done)
        }
        // It was given up, or needs no more: nothing is left to tell.
        Err(Error::Join(JoinError::Closed { .. })) => Ok(Outcome::Done),
        Err(error @ Error::Join(JoinError::Full { .. })) => Err(Failure::dead(error)),
        // A join that is not known may be one whose transaction is still open, but not for ever.
        Err(error @ Error::Join(_)) if chrono::Utc::now() - cx.occurred_at() > PATIENCE => {
            Err(Failure::dead(error))
        }
        Err(error) => {
            tracing::warn!(store = engine.name(), event = %cx.id(), home, %error, "could not tell a join");
            Ok(Outcome::RetryAfter(LATER))
        }
    }
}
