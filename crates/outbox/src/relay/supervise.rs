//! Supervision: every background task of a relay runs under a supervisor that catches panics.
//!
//! A task that panics is logged with its name and the message, and runs again after a pause. Shared
//! state survives: the settler keeps its receiver and the batch it was writing, the taker begins a
//! new pass over the table, the log relay takes its publishers again from the table under a new
//! name. Five panics of a task within a minute end the relay with an error.
//!
//! Two kinds of panic end the relay at once, because no restart is safe:
//!
//! - A worker's. The events that it was handling may have been handled or not, and their key has no
//!   worker any more. The relay leaves them leased, as a crash does: they are redelivered as
//!   suspects when the lease has run out.
//! - One between the claim of events and their being queued, or with a lock held (a poisoned lock
//!   makes every task that uses it panic): events would be held, and renewed, that no task knows
//!   of.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::monitor::Monitor;
use crate::error::Error;
use crate::escape::Escaped;
use crate::store::RelayTask;

/// Number of panics of a task within [`WINDOW`] that end the relay.
const MAX_PANICS: usize = 5;

/// Time within which [`MAX_PANICS`] panics of a task end the relay.
const WINDOW: Duration = Duration::from_secs(60);

/// The pause after the first panic. Doubles with each one that follows within the window.
const PAUSE: Duration = Duration::from_millis(100);

/// Reaction to a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterPanic {
    Restart { after: Duration },
    End,
}

/// Panics of a task within the last minute.
#[derive(Default)]
struct Panics(VecDeque<Instant>);

impl Panics {
    /// Decides the reaction to a panic at this moment.
    fn panicked(&mut self, at: Instant) -> AfterPanic {
        self.0.retain(|before| at.saturating_duration_since(*before) < WINDOW);
        self.0.push_back(at);
        match self.0.len() {
            count if count >= MAX_PANICS => AfterPanic::End,
            count => AfterPanic::Restart { after: PAUSE * (1 << (count - 1)) },
        }
    }
}

/// Why a relay has ended.
#[derive(Clone, Debug)]
pub(crate) struct TaskFailure {
    pub(crate) task: RelayTask,
    pub(crate) cause: String,
}

impl From<TaskFailure> for Error {
    fn from(TaskFailure { task, cause }: TaskFailure) -> Self {
        Error::TaskFailed { task, cause }
    }
}

/// Runs the tasks of one relay.
pub(crate) struct Supervisor {
    store: Arc<str>,
    monitor: Arc<Monitor>,
    panics: Mutex<HashMap<RelayTask, Panics>>,
    failed: watch::Sender<Option<TaskFailure>>,
}

impl Supervisor {
    pub(crate) fn new(store: &str, monitor: Arc<Monitor>) -> Self {
        Self { store: store.into(), monitor, panics: Mutex::default(), failed: watch::Sender::new(None) }
    }

    fn panics(&self) -> MutexGuard<'_, HashMap<RelayTask, Panics>> {
        self.panics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task, and again after a panic. All tasks of one kind are counted together.
    pub(crate) fn spawn<F>(
        self: &Arc<Self>,
        task: RelayTask,
        mut run: impl FnMut() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let supervisor = self.clone();
        tokio::spawn(async move {
            loop {
                let Err(panic) = AssertUnwindSafe(run()).catch_unwind().await else { return };
                let cause = message(&*panic);
                let reaction = supervisor.panics().entry(task).or_default().panicked(Instant::now());
                match reaction {
                    AfterPanic::Restart { after } => {
                        let store = &*supervisor.store;
                        tracing::error!(store, %task, cause, restart_in = ?after, "a task of the relay panicked");
                        supervisor.monitor.failed(task, &format!("the task panicked: {cause}"));
                        tokio::time::sleep(after).await;
                    }
                    AfterPanic::End => {
                        let cause =
                            format!("{MAX_PANICS} panics within {} s, the last: {cause}", WINDOW.as_secs());
                        return supervisor.end(task, cause);
                    }
                }
            }
        })
    }

    /// Runs a task whose panic ends the relay.
    pub(crate) fn spawn_once(
        self: &Arc<Self>,
        task: RelayTask,
        run: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let supervisor = self.clone();
        tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(run).catch_unwind().await {
                supervisor.end(task, format!("it panicked: {}", message(&*panic)));
            }
        })
    }

    /// Runs code that must not be left half done. `None` after a panic, which ends the relay.
    pub(crate) fn all_or_nothing<T>(&self, task: RelayTask, doing: impl FnOnce() -> T) -> Option<T> {
        match std::panic::catch_unwind(AssertUnwindSafe(doing)) {
            Ok(done) => Some(done),
            Err(panic) => {
                self.end(task, format!("it panicked: {}", message(&*panic)));
                None
            }
        }
    }

    /// Ends the relay. The first cause counts.
    fn end(&self, task: RelayTask, cause: String) {
        let failed = TaskFailure { task, cause };
        tracing::error!(store = &*self.store, %task, cause = failed.cause, "a task of the relay failed for good: the relay ends");
        self.monitor.failed(task, &failed.cause);
        self.monitor.ended(&Error::from(failed.clone()).to_string());
        self.failed.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(failed);
            is_first
        });
    }

    /// Why the relay has ended, if a task failed.
    pub(crate) fn failure(&self) -> Option<TaskFailure> {
        self.failed.borrow().clone()
    }

    /// Waits until a task has failed for good.
    pub(crate) async fn failed(&self) {
        // The supervisor owns the sender: it cannot be dropped.
        let _ = self.failed.subscribe().wait_for(Option::is_some).await;
    }
}

/// The message of a panic, which may quote text from rows.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Escaped(text.unwrap_or("(no message)")).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::metrics::Metrics;

    fn supervisor() -> Arc<Supervisor> {
        let monitor = Monitor::new(Metrics::new("outbox", "main"), Duration::from_secs(5));
        Arc::new(Supervisor::new("main", Arc::new(monitor)))
    }

    #[test]
    fn pauses_grow_and_the_fifth_panic_within_a_minute_ends_the_relay() {
        let (mut panics, start) = (Panics::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let pause = |ms| AfterPanic::Restart { after: Duration::from_millis(ms) };
        let reaction: Vec<AfterPanic> = (0..5).map(|n| panics.panicked(at(n))).collect();
        assert_eq!(reaction, [pause(100), pause(200), pause(400), pause(800), AfterPanic::End]);
    }

    #[test]
    fn a_panic_now_and_then_does_not_end_the_relay() {
        let (mut panics, start) = (Panics::default(), Instant::now());
        for n in 0..100 {
            let reaction = panics.panicked(start + Duration::from_secs(20) * n);
            assert_ne!(reaction, AfterPanic::End, "three within a minute at most");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_runs_again_after_a_panic_and_ends_when_it_returns() {
        let (supervisor, runs) = (supervisor(), Arc::new(AtomicUsize::new(0)));
        let counted = runs.clone();
        let task = supervisor.spawn(RelayTask::Take, move || {
            let counted = counted.clone();
            async move { assert!(counted.fetch_add(1, Ordering::SeqCst) >= 2, "not yet") }
        });
        task.await.expect("the supervisor does not panic");
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        assert!(supervisor.failure().is_none());
        let error = &supervisor.monitor.health().errors[0];
        assert_eq!((error.failures, error.error.as_str()), (2, "the task panicked: not yet"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_keeps_panicking_ends_the_relay_with_its_cause() {
        let supervisor = supervisor();
        let task = supervisor.spawn(RelayTask::Settle, || async { panic!("disk on {}", "fire") });
        supervisor.failed().await;
        task.await.expect("the supervisor does not panic");
        let failed = supervisor.failure().expect("it has failed");
        assert_eq!(failed.task, RelayTask::Settle);
        assert_eq!(failed.cause, "5 panics within 60 s, the last: disk on fire");
        assert!(supervisor.monitor.health().ended.is_some());
    }

    #[tokio::test]
    async fn a_panic_in_code_that_must_not_be_left_half_done_ends_the_relay_at_once() {
        let supervisor = supervisor();
        assert_eq!(supervisor.all_or_nothing(RelayTask::Take, || 7), Some(7));
        assert!(supervisor.failure().is_none());
        assert_eq!(supervisor.all_or_nothing(RelayTask::Take, || -> u8 { panic!("half") }), None);
        supervisor.spawn_once(RelayTask::Dispatch, async { panic!("later") }).await.expect("it is caught");
        let failed = supervisor.failure().expect("it has failed");
        assert_eq!((failed.task, failed.cause.as_str()), (RelayTask::Take, "it panicked: half"), "the first");
    }
}
