//! Work that takes long: it goes on after the answer, tells how far it is, and can be stopped.
//!
//! Jobs live in memory. One that a restart ends has done what it has done; the audit shows that nobody wrote down its end.

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
use crate::deeds::Noted;
use crate::problem::{Answer, Kind, Problem};
use crate::views::Count;

/// How many jobs run at once.
const RUNNING: usize = 4;

/// How many are remembered, those that run among them.
const KEPT: usize = 100;

/// All jobs, the oldest first, and how many more may start.
pub(crate) struct Jobs {
    kept: Mutex<VecDeque<Arc<Job>>>,
    permits: Arc<Semaphore>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { kept: Mutex::default(), permits: Arc::new(Semaphore::new(RUNNING)) }
    }
}

/// One of the few jobs that may run at once: taken before anything is counted or written down, so that requests that come
/// together cannot all find a free one.
pub(crate) struct JobPermit(OwnedSemaphorePermit);

/// One piece of work.
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

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JobState {
    /// It runs.
    Running,
    /// It has done everything.
    Done,
    /// Somebody stopped it. What it had done stays done.
    Stopped,
    /// It could not go on.
    Failed,
}

/// A job as it stands.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": "01jd2q7m3t5v9xkq8b4n6c0zra", "kind": "dead.replay", "database": "main", "actor": "ops", "state": "running",
    "done": 1200, "total": 5000, "more": false, "rate": 100, "started_at": "2026-01-31T12:00:00Z", "finished_at": null,
    "error": null,
}))]
pub(crate) struct JobView {
    /// Its id.
    id: String,
    /// What it does: `dead.replay` or `purge`.
    kind: &'static str,
    /// In which database.
    database: String,
    /// Who started it.
    actor: String,
    /// Where it stands.
    state: JobState,
    /// How many events it has changed.
    done: u64,
    /// How many there were when it began, if they were counted.
    total: Option<u64>,
    /// Whether there were more than that: counting stopped there.
    more: bool,
    /// How many a second it changes at most.
    rate: Option<u32>,
    /// When it began.
    started_at: DateTime<Utc>,
    /// When it ended.
    finished_at: Option<DateTime<Utc>>,
    /// Why it failed.
    error: Option<String>,
}

/// What a job is to be.
pub(crate) struct NewJob {
    pub(crate) kind: &'static str,
    pub(crate) actor: String,
    pub(crate) rate: Option<u32>,
    pub(crate) total: Option<Count>,
}

impl Jobs {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.kept.lock().expect("no one panics while holding the jobs")
    }

    /// Permission to start another one.
    pub(crate) fn permit(&self) -> Answer<JobPermit> {
        self.permits.clone().try_acquire_owned().map(JobPermit).map_err(|_| {
            Problem::new(Kind::TooMany, format!("{RUNNING} jobs run already, or are about to start"))
                .advice("Wait for one to end, or stop one: POST /api/outbox/jobs/{id}/stop.")
                .retry_after(std::time::Duration::from_secs(5))
        })
    }

    /// Starts a job whose beginning was written down; its end will be.
    pub(crate) fn start<W, F>(&self, permit: JobPermit, new: NewJob, noted: Noted, work: W) -> Arc<Job>
    where
        W: FnOnce(Arc<Job>) -> F,
        F: Future<Output = Answer<()>> + Send + 'static,
    {
        let job = Arc::new(Job {
            id: EventId::generate().as_str().to_lowercase(),
            kind: new.kind,
            database: noted.database.name.clone(),
            actor: new.actor,
            started_at: Utc::now(),
            rate: new.rate,
            total: new.total,
            done: AtomicU64::new(0),
            stop: CancellationToken::new(),
            end: Mutex::new(None),
        });
        self.keep(job.clone());
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
            noted.end(&outcome, Some(running.done())).await;
            running.ends(End { at: Utc::now(), state, error });
            drop(permit.0);
        });
        job
    }

    fn keep(&self, job: Arc<Job>) {
        let mut jobs = self.lock();
        if jobs.len() >= KEPT
            && let Some(ended) = jobs.iter().position(|job| !job.runs())
        {
            jobs.remove(ended);
        }
        jobs.push_back(job);
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Job>> {
        self.lock().iter().find(|job| job.id == id).cloned()
    }

    /// All of them, the newest first.
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

    /// So many more were changed.
    pub(crate) fn add(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn runs(&self) -> bool {
        self.ended().is_none()
    }

    fn ended(&self) -> std::sync::MutexGuard<'_, Option<End>> {
        self.end.lock().expect("no one panics while holding the end of a job")
    }

    fn ends(&self, end: End) {
        *self.ended() = Some(end);
    }

    pub(crate) fn view(&self) -> JobView {
        let end = self.ended();
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
