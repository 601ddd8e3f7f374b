//! Long-running work: continues after the response, reports its progress, and can be stopped.
//!
//! Jobs are kept in memory. A job that a restart interrupts keeps the changes that it has made; its
//! audit entry then has no outcome.

mod pace;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use outbox::EventId;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

pub(crate) use self::pace::Pace;
use crate::audit::Pending;
use crate::problem::{ApiResult, Kind, Problem};
use crate::views::Count;

/// Maximum number of jobs that run at once.
const MAX_RUNNING: usize = 4;

/// Maximum number of jobs that are remembered, including running jobs.
const MAX_KEPT: usize = 100;

/// All jobs, oldest first, and the permits for further jobs.
pub(crate) struct Jobs {
    kept: Mutex<VecDeque<Arc<Job>>>,
    permits: Arc<Semaphore>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { kept: Mutex::default(), permits: Arc::new(Semaphore::new(MAX_RUNNING)) }
    }
}

/// Permit for one of the [`MAX_RUNNING`] jobs. Acquired before anything is counted or audited, so
/// that concurrent requests cannot all find the same permit free.
pub(crate) struct JobPermit(OwnedSemaphorePermit);

/// A running or finished job.
pub(crate) struct Job {
    id: String,
    kind: &'static str,
    database: String,
    actor: String,
    started_at: DateTime<Utc>,
    rate: Option<u32>,
    total: Option<Count>,
    done: AtomicU64,
    pub(crate) stop: CancellationToken,
    end: Mutex<Option<End>>,
}

struct End {
    at: DateTime<Utc>,
    state: JobState,
    error: Option<String>,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JobState {
    /// The job is running.
    Running,
    /// The job has finished its work.
    Done,
    /// The job was stopped by a request. Changes made before that remain.
    Stopped,
    /// The job has failed.
    Failed,
}

/// Progress and result of a job.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": "01jd2q7m3t5v9xkq8b4n6c0zra", "kind": "dead.replay", "database": "main", "actor": "ops", "state": "running",
    "done": 1200, "total": 5000, "more": false, "rate": 100, "started_at": "2026-01-31T12:00:00Z", "finished_at": null,
    "error": null,
}))]
pub(crate) struct JobView {
    /// The id of the job.
    id: String,
    /// The kind of the job: `dead.replay` or `purge`.
    kind: &'static str,
    /// The database that the job works on.
    database: String,
    /// The name of the token, or of the application's user, that started the job.
    actor: String,
    /// The state of the job.
    state: JobState,
    /// Number of rows changed so far.
    done: u64,
    /// Number of rows at the start; null if they were not counted.
    total: Option<u64>,
    /// Whether there were more rows than `total`: counting stops at a limit.
    more: bool,
    /// Maximum number of rows changed per second; null without a limit.
    rate: Option<u32>,
    /// When the job started.
    started_at: DateTime<Utc>,
    /// When the job ended.
    finished_at: Option<DateTime<Utc>>,
    /// Why the job failed.
    error: Option<String>,
}

/// Description of a job to start.
pub(crate) struct NewJob {
    pub(crate) kind: &'static str,
    pub(crate) actor: String,
    pub(crate) rate: Option<u32>,
    pub(crate) total: Option<Count>,
}

impl Jobs {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.kept.lock().expect("the lock on the jobs is never poisoned")
    }

    /// Acquires the permit for another job.
    pub(crate) fn permit(&self) -> ApiResult<JobPermit> {
        self.permits.clone().try_acquire_owned().map(JobPermit).map_err(|_| {
            Problem::new(Kind::TooMany, format!("{MAX_RUNNING} jobs are already running or starting"))
                .advice("Wait for a job to finish, or stop one: POST /api/outbox/jobs/{id}/stop.")
                .retry_after(std::time::Duration::from_secs(5))
        })
    }

    /// Starts a job whose audit entry is stored; the entry is completed when the job ends.
    pub(crate) fn start<W, F>(&self, permit: JobPermit, new: NewJob, pending: Pending, work: W) -> Arc<Job>
    where
        W: FnOnce(Arc<Job>) -> F,
        F: Future<Output = ApiResult<()>> + Send + 'static,
    {
        let job = Arc::new(Job {
            id: EventId::generate().as_str().to_lowercase(),
            kind: new.kind,
            database: pending.database.name.clone(),
            actor: new.actor,
            started_at: Utc::now(),
            rate: new.rate,
            total: new.total,
            done: AtomicU64::new(0),
            stop: CancellationToken::new(),
            end: Mutex::new(None),
        });
        self.remember(job.clone());
        let work = AssertUnwindSafe(work(job.clone())).catch_unwind();
        let running = job.clone();
        tokio::spawn(async move {
            let ended = work.await.unwrap_or_else(|_| Err(Problem::internal()));
            let (state, error) = match ended {
                Ok(()) if running.stop.is_cancelled() => (JobState::Stopped, None),
                Ok(()) => (JobState::Done, None),
                Err(problem) => (JobState::Failed, Some(problem.detail().to_owned())),
            };
            let outcome = match &error {
                Some(error) => format!("failed: {error}"),
                None if state == JobState::Stopped => "stopped".to_owned(),
                None => "done".to_owned(),
            };
            pending.finish(&outcome, Some(running.done())).await;
            running.finish(End { at: Utc::now(), state, error });
            drop(permit.0);
        });
        job
    }

    fn remember(&self, job: Arc<Job>) {
        let mut jobs = self.lock();
        if jobs.len() >= MAX_KEPT
            && let Some(ended) = jobs.iter().position(|job| !job.is_running())
        {
            jobs.remove(ended);
        }
        jobs.push_back(job);
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Job>> {
        self.lock().iter().find(|job| job.id == id).cloned()
    }

    /// All jobs, newest first.
    pub(crate) fn list(&self) -> Vec<JobView> {
        self.lock().iter().rev().map(|job| job.view()).collect()
    }
}

impl Job {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// Adds to the number of changed rows.
    pub(crate) fn add(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.lock_end().is_none()
    }

    fn lock_end(&self) -> std::sync::MutexGuard<'_, Option<End>> {
        self.end.lock().expect("the lock on a job's end is never poisoned")
    }

    fn finish(&self, end: End) {
        *self.lock_end() = Some(end);
    }

    pub(crate) fn view(&self) -> JobView {
        let end = self.lock_end();
        JobView {
            id: self.id.clone(),
            kind: self.kind,
            database: self.database.clone(),
            actor: self.actor.clone(),
            state: end.as_ref().map_or(JobState::Running, |end| end.state),
            done: self.done(),
            total: self.total.map(|total| total.count),
            more: self.total.is_some_and(|total| total.more),
            rate: self.rate,
            started_at: self.started_at,
            finished_at: end.as_ref().map(|end| end.at),
            error: end.as_ref().and_then(|end| end.error.clone()),
        }
    }
}
