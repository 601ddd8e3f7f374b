//! Reports the outcome of a step to a join in another database.
//!
//! The database of the step writes a report, an event of the type [`REPORT`](crate::join::REPORT),
//! in the transaction of the settlement; this module handles that event. A report is delivered at
//! least once, and a join counts a step once, however often it is reported.
//!
//! Every writer of the table can insert a row of that type. A report is therefore accepted only if
//! the reporting database has the row that attaches the step to the join, with the same home and
//! the same outcome: writers have no privileges on that table.

use std::time::Duration;

use super::Engine;
use crate::error::Error;
use crate::escape::Escaped;
use crate::event::EventId;
use crate::handler::{Context, Failure, Outcome};
use crate::join::{JoinError, JoinId, REPORT_TIMEOUT, Report, Step};
use crate::store::{JoinCommand, JoinMember};

/// Bounds of the delay before a report is tried again, which is otherwise the age of the report.
/// Not an attempt: a report must not be dead-lettered because the join's database is down for an
/// hour.
const SOONEST: Duration = Duration::from_secs(5);
const LATEST: Duration = Duration::from_secs(600);

/// Verifies a report and delivers it to the join.
pub(super) async fn deliver(engine: &Engine, cx: &Context) -> Result<Outcome, Failure> {
    let report: Report = match cx.payload() {
        Ok(report) => report,
        Err(_) => return Err(Failure::dead("forged join report: the payload is not a report")),
    };
    let Report { home, join, step, became } = report;
    if [&home, &join, &step].iter().any(|text| text.contains('\0')) {
        return Err(Failure::dead("forged join report: a text in the payload contains NUL"));
    }
    let (join, step) = (JoinId::from(join), EventId::from(step));
    let age = age(cx);
    let member = match engine.store.member(&join, &step).await {
        Ok(member) => member,
        Err(error) => {
            let outcome = unverified(&error, age);
            if outcome.is_ok() {
                let (store, event) = (engine.name(), cx.id());
                tracing::warn!(store, event = %Escaped(event), %error, "could not verify a join report: trying again");
            }
            return outcome;
        }
    };
    match verify(member.as_ref(), &home, became) {
        Verified::Genuine => {}
        Verified::Outdated => return Ok(Outcome::Done),
        Verified::Forged(reason) => return Err(Failure::dead(format!("forged join report: {reason}"))),
    }
    let homes = engine.fleet.as_ref().map(|fleet| &*fleet.homes);
    let Some(store) = homes.and_then(|homes| homes.home(&home)) else {
        if age > REPORT_TIMEOUT {
            return Err(Failure::dead(
                "the join's database has been unknown to this relay for a day: replay this report \
                 when a fleet has it",
            ));
        }
        let (store, event) = (engine.name(), cx.id());
        tracing::warn!(store, event = %Escaped(event), home, join = %Escaped(&join), "the join's database is unknown to this relay: the relay of a fleet that has it delivers the report");
        return Ok(Outcome::Snooze(pause(age)));
    };
    let act = JoinCommand::Report { join, step, became };
    match store.join(&act).await {
        Ok(acted) => {
            if let Some(homes) = homes.filter(|_| acted.wrote) {
                homes.wake(&home);
            }
            Ok(Outcome::Done)
        }
        // The join was given up, or needs no more steps: there is nothing to report.
        Err(Error::Join(JoinError::Closed { .. })) => Ok(Outcome::Done),
        Err(error @ Error::Join(JoinError::Full { .. })) => Err(Failure::dead(error)),
        // An unknown join may have been created by a transaction that is still open, but not for
        // ever.
        Err(error @ Error::Join(_)) if age > REPORT_TIMEOUT => Err(Failure::dead(error)),
        Err(error) => {
            tracing::warn!(store = engine.name(), event = %Escaped(cx.id()), home, %error, "could not report a step to its join");
            Ok(Outcome::Snooze(pause(age)))
        }
    }
}

/// Time since the database stored the report. `occurred_at` does not count: any writer can set it.
fn age(cx: &Context) -> Duration {
    let created_at = cx.created_at().unwrap_or_else(chrono::Utc::now);
    (chrono::Utc::now() - created_at).to_std().unwrap_or_default()
}

/// Outcome of a report whose step could not be read. Transient errors are retried without end.
/// Other errors are retried for [`REPORT_TIMEOUT`]: a missing privilege, an unfinished migration
/// or a pool that closes while the relay stops must not dead-letter a genuine report.
fn unverified(error: &Error, age: Duration) -> Result<Outcome, Failure> {
    if error.is_transient() {
        return Ok(Outcome::Snooze(SOONEST));
    }
    if age > REPORT_TIMEOUT {
        return Err(Failure::dead(format!("the join report could not be verified for a day: {error}")));
    }
    Ok(Outcome::Snooze(pause(age)))
}

fn pause(age: Duration) -> Duration {
    age.clamp(SOONEST, LATEST)
}

/// Result of comparing a report with the row of its step.
#[derive(Debug, PartialEq, Eq)]
enum Verified {
    /// The row has the same home and outcome.
    Genuine,
    /// The step failed, was replayed and is completed by now: a later report has that outcome.
    Outdated,
    /// The row differs, or there is none.
    Forged(&'static str),
}

fn verify(member: Option<&JoinMember>, home: &str, became: Step) -> Verified {
    let Some(member) = member else {
        return Verified::Forged(
            "no event of this database is such a step of the join, or its row was purged",
        );
    };
    // A database that has two names is its own neighbour: the first report makes the step one of
    // its own.
    if member.home != home && !member.home.is_empty() {
        return Verified::Forged("the step belongs to a join in another database");
    }
    match (member.status, became) {
        (Some(status), became) if status == became => Verified::Genuine,
        (Some(Step::Completed), Step::Failed) => Verified::Outdated,
        (None, _) => Verified::Forged("the step is not settled"),
        _ => Verified::Forged("the step has another outcome"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_accepted_only_if_the_row_of_its_step_agrees() {
        use Step::{Completed, Failed};
        let member = |home: &str, status| Some(JoinMember { home: home.to_owned(), status });
        for (member, became, is_genuine) in [
            (member("acme", Some(Completed)), Completed, true),
            (member("acme", Some(Failed)), Failed, true),
            (member("", Some(Completed)), Completed, true),
            (member("acme", Some(Failed)), Completed, false),
            (member("acme", None), Completed, false),
            (member("acme", None), Failed, false),
            (member("other", Some(Completed)), Completed, false),
            (None, Completed, false),
        ] {
            let verified = verify(member.as_ref(), "acme", became);
            assert_eq!(verified == Verified::Genuine, is_genuine, "{member:?} {became:?}: {verified:?}");
            assert_ne!(verified, Verified::Outdated);
        }
        assert_eq!(verify(member("acme", Some(Completed)).as_ref(), "acme", Failed), Verified::Outdated);
    }

    #[test]
    fn a_report_that_cannot_be_verified_is_dead_after_a_day_unless_the_error_is_transient() {
        let (young, old) = (Duration::from_secs(60), REPORT_TIMEOUT + Duration::from_secs(1));
        let away = Error::Unavailable { store: "acme".to_owned(), reason: "no answer".to_owned() };
        for age in [young, old] {
            assert_eq!(unverified(&away, age), Ok(Outcome::Snooze(SOONEST)));
        }
        let closed = Error::from(sqlx::Error::PoolClosed);
        assert_eq!(unverified(&closed, young), Ok(Outcome::Snooze(young)));
        assert!(unverified(&closed, old).is_err_and(|failure| failure.is_dead()));
    }

    #[test]
    fn a_report_is_tried_less_and_less_often() {
        for (age, seconds) in [(0, 5), (60, 60), (86_000, 600)] {
            assert_eq!(pause(Duration::from_secs(age)), Duration::from_secs(seconds));
        }
    }
}
