//! Health of a relay: last successes, current errors, database calls that do not return.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::Utc;
use tokio::sync::Notify;

use crate::metrics::Metrics;
use crate::store::{RelayHealth, RelayTask, TaskError};

/// Time limit of a call (plus three poll intervals for a take) before it counts as an error.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// How long the database may refuse a verdict before that counts as an error.
const REFUSED_LIMIT: Duration = Duration::from_secs(5);

/// Health of one relay. Tasks report to it; probes, `announce` and metrics read it.
pub(crate) struct Monitor {
    inner: Mutex<MonitorState>,
    /// Notified when an error begins, lasts, changes or ends.
    changed: Notify,
    metrics: Metrics,
    poll_interval: Duration,
}

#[derive(Default)]
struct MonitorState {
    health: RelayHealth,
    errors: BTreeMap<RelayTask, TaskError>,
    /// Database calls that have not returned yet.
    pending: BTreeMap<RelayTask, Instant>,
    /// How many verdicts the database refuses, and since when, while it accepts others.
    refused: Option<(usize, chrono::DateTime<Utc>)>,
}

impl Monitor {
    pub(crate) fn new(metrics: Metrics, poll_interval: Duration) -> Self {
        Self { inner: Mutex::default(), changed: Notify::new(), metrics, poll_interval }
    }

    /// Ignores poisoning: health must be reported after a panic too, and each field is valid by
    /// itself.
    fn inner(&self) -> MutexGuard<'_, MonitorState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the start of a database call.
    pub(crate) fn began(&self, task: RelayTask) {
        self.inner().pending.insert(task, Instant::now());
    }

    /// Records that the call returned without an error.
    pub(crate) fn succeeded(&self, task: RelayTask) {
        let mut inner = self.inner();
        inner.pending.remove(&task);
        let now = Utc::now();
        match task {
            RelayTask::Take => {
                inner.health.last_take = Some(now);
                self.metrics.last_take.set(seconds(now));
            }
            RelayTask::Settle => {
                inner.health.last_settlement = Some(now);
                self.metrics.last_settlement.set(seconds(now));
            }
            _ => {}
        }
        self.clear(&mut inner, task);
    }

    /// Records that the task has nothing to do, for example because another relay holds the table.
    /// Its earlier errors are cleared.
    pub(crate) fn idle(&self, task: RelayTask) {
        let mut inner = self.inner();
        inner.pending.remove(&task);
        self.clear(&mut inner, task);
    }

    fn clear(&self, inner: &mut MonitorState, task: RelayTask) {
        if inner.errors.remove(&task).is_some() {
            let refused = task == RelayTask::Settle && inner.refused.is_some();
            self.metrics.failing(task).set(if refused { 1.0 } else { 0.0 });
            self.changed.notify_one();
        }
    }

    /// Records that the call returned an error, or the task panicked.
    pub(crate) fn failed(&self, task: RelayTask, error: &str) {
        self.metrics.errors(task).increment(1);
        let mut inner = self.inner();
        inner.pending.remove(&task);
        let before = inner.errors.remove(&task);
        let (since, failures) =
            before.as_ref().map_or((Utc::now(), 0), |error| (error.since, error.failures));
        let now = TaskError::new(task, since, error, failures + 1);
        let is_change =
            before.is_none_or(|before| before.is_lasting() != now.is_lasting() || before.error != now.error);
        inner.errors.insert(task, now);
        drop(inner);
        if is_change {
            self.metrics.failing(task).set(1.0);
            self.changed.notify_one();
        }
    }

    /// Records how many verdicts the database refuses at the moment, for a reason of their own.
    /// Verdicts that it accepts do not end that.
    pub(crate) fn refused(&self, count: usize) {
        let mut inner = self.inner();
        let before = inner.refused.take();
        inner.refused = (count > 0).then(|| (count, before.map_or_else(Utc::now, |(_, since)| since)));
        if before.is_some() != inner.refused.is_some() {
            let failing = count > 0 || inner.errors.contains_key(&RelayTask::Settle);
            self.metrics.failing(RelayTask::Settle).set(if failing { 1.0 } else { 0.0 });
            self.changed.notify_one();
        }
    }

    /// Records a delivery to a destination.
    pub(crate) fn published(&self, destination: &str) {
        let now = Utc::now();
        let published = &mut self.inner().health.published;
        if let Some(last) = published.get_mut(destination) {
            *last = now;
        } else if published.len() < RelayHealth::DESTINATIONS {
            published.insert(destination.to_owned(), now);
        }
    }

    /// Records why the relay has ended.
    pub(crate) fn ended(&self, why: &str) {
        self.inner().health.ended = Some(why.to_owned());
        self.changed.notify_one();
    }

    /// Waits until an error begins, lasts, changes or ends.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The current health.
    pub(crate) fn health(&self) -> RelayHealth {
        let (inner, now) = (self.inner(), Instant::now());
        let mut errors = inner.errors.clone();
        for (task, began) in &inner.pending {
            if let Some(waited) = stalled(now.saturating_duration_since(*began), self.stall_limit(*task)) {
                let ago = chrono::Duration::from_std(waited).unwrap_or_default();
                let since = errors.get(task).map_or_else(|| Utc::now() - ago, |error| error.since);
                let error = format!("no answer from the database for {} s", waited.as_secs());
                errors.insert(*task, TaskError::stalled(*task, since, &error));
            }
        }
        if let Some((count, since)) = inner.refused
            && (Utc::now() - since).to_std().is_ok_and(|lasted| lasted >= REFUSED_LIMIT)
        {
            let error = format!("the database refuses to settle {count} events, which are tried again");
            errors
                .entry(RelayTask::Settle)
                .or_insert_with(|| TaskError::stalled(RelayTask::Settle, since, &error));
        }
        RelayHealth { errors: errors.into_values().collect(), ..inner.health.clone() }
    }

    fn stall_limit(&self, task: RelayTask) -> Duration {
        match task {
            RelayTask::Take => self.poll_interval.saturating_mul(3).saturating_add(STALL_LIMIT),
            _ => STALL_LIMIT,
        }
    }
}

/// How long a call has not returned, if that is longer than allowed.
fn stalled(waited: Duration, stall_limit: Duration) -> Option<Duration> {
    (waited > stall_limit).then_some(waited)
}

#[expect(clippy::cast_precision_loss, reason = "a time is good enough to the millisecond")]
fn seconds(time: chrono::DateTime<Utc>) -> f64 {
    time.timestamp_millis() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor() -> Monitor {
        Monitor::new(Metrics::new("outbox", "main"), Duration::from_secs(5))
    }

    #[test]
    fn an_error_keeps_its_beginning_until_a_success() {
        let monitor = monitor();
        assert_eq!(monitor.health(), RelayHealth::default());
        monitor.failed(RelayTask::Take, "no such table");
        let first = monitor.health().errors[0].clone();
        monitor.failed(RelayTask::Take, "no such column");
        monitor.failed(RelayTask::Take, "no such column");
        let health = monitor.health();
        let problem = health.problem(RelayTask::Take).expect("three times in a row");
        assert_eq!(
            (problem.since, problem.error.as_str(), problem.failures),
            (first.since, "no such column", 3)
        );
        assert_eq!(health.last_take, None);
        monitor.succeeded(RelayTask::Take);
        let health = monitor.health();
        assert!(health.errors.is_empty() && health.last_take.is_some(), "{health:?}");
    }

    #[test]
    fn a_call_that_does_not_return_is_an_error() {
        let (stall_limit, second) = (Duration::from_secs(45), Duration::from_secs(1));
        assert_eq!(stalled(stall_limit, stall_limit), None);
        assert_eq!(stalled(stall_limit + second, stall_limit), Some(stall_limit + second));
        let monitor = monitor();
        assert_eq!(monitor.stall_limit(RelayTask::Take), stall_limit, "three polls, and 30 s");
        let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(60)) else { return };
        monitor.inner().pending.insert(RelayTask::Take, long_ago);
        let health = monitor.health();
        let problem = health.problem(RelayTask::Take).expect("it hangs").to_string();
        assert!(problem.ends_with("no answer from the database for 60 s"), "{problem}");
        monitor.idle(RelayTask::Take);
        assert_eq!(monitor.health(), RelayHealth::default());
    }

    #[test]
    fn verdicts_that_are_refused_are_an_error_though_others_are_written() {
        let monitor = monitor();
        monitor.refused(3);
        assert_eq!(monitor.health().problem(RelayTask::Settle), None, "that may pass in a moment");
        monitor.inner().refused = Some((3, Utc::now() - chrono::Duration::seconds(6)));
        monitor.failed(RelayTask::Settle, "no");
        monitor.succeeded(RelayTask::Settle);
        monitor.refused(2);
        let health = monitor.health();
        let problem = health.problem(RelayTask::Settle).expect("for 6 s now").to_string();
        assert!(problem.contains("refuses to settle 2 events"), "{problem}");
        monitor.refused(0);
        assert_eq!(monitor.health().problem(RelayTask::Settle), None);
    }

    #[tokio::test]
    async fn a_change_is_reported_once() {
        let monitor = monitor();
        monitor.failed(RelayTask::Take, "no");
        monitor.changed().await;
        monitor.failed(RelayTask::Take, "no");
        let waits = tokio::time::timeout(Duration::from_millis(10), monitor.changed()).await;
        assert!(waits.is_err(), "nothing new");
        monitor.failed(RelayTask::Take, "no");
        monitor.changed().await;
        monitor.succeeded(RelayTask::Take);
        monitor.changed().await;
    }

    #[test]
    fn destinations_are_bounded() {
        let monitor = monitor();
        (0..200).for_each(|n| monitor.published(&format!("to-{n}")));
        monitor.published("to-7");
        assert_eq!(monitor.health().published.len(), RelayHealth::DESTINATIONS);
    }
}
