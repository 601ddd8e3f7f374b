//! Counters of what this relay has settled since it started, shown to operators in the row of the
//! node.

use std::sync::Mutex;
use std::time::Instant;

use tokio::sync::Notify;

use super::Job;
use crate::event::Event;
use crate::store::{Counts, Settlement, Verdict};

/// Event type and due time of a settled event.
#[derive(Debug)]
pub(crate) struct Observation {
    /// The whole event, because a clone only costs a reference count: its type alone would be a
    /// string to copy.
    event: Event,
    /// By this process's clock; `None` if the time is before the start of that clock.
    due: Option<Instant>,
}

impl Observation {
    pub(crate) fn of(job: &Job) -> Self {
        let delivery = &job.delivery;
        Self { event: delivery.event.clone(), due: job.taken.checked_sub(delivery.waited) }
    }
}

/// The counters. Only the settler counts, a batch at a time.
#[derive(Default)]
pub(crate) struct RelayStats {
    counts: Mutex<Counts>,
    changed: Notify,
}

impl RelayStats {
    /// Counts a batch of settlements. An event that cannot be decoded has no observation, and no
    /// type.
    pub(crate) fn add<'a>(
        &self,
        settlements: impl Iterator<Item = (&'a Settlement, &'a Option<Observation>)>,
    ) {
        let now = Instant::now();
        let mut counts = self.counts.lock().expect("no code panics while it holds this lock");
        let mut any = false;
        for (settlement, observation) in settlements {
            let event_type = observation.as_ref().map(|observation| observation.event.event_type().as_str());
            any |= !settlement.verdict.is_release();
            match &settlement.verdict {
                Verdict::Done => {
                    counts.delivered += 1;
                    if let Some(name) = event_type {
                        counts.of_type(name).delivered += 1;
                    }
                    if let Some(due) = observation.as_ref().and_then(|observation| observation.due) {
                        counts.took(now.saturating_duration_since(due));
                    }
                }
                Verdict::Again { counted: true, .. } => {
                    counts.failed += 1;
                    if let Some(name) = event_type {
                        counts.of_type(name).failed += 1;
                    }
                }
                Verdict::Again { counted: false, .. } => counts.deferred += 1,
                Verdict::Dead { .. } => {
                    counts.dead += 1;
                    if let Some(name) = event_type {
                        counts.of_type(name).dead += 1;
                    }
                }
                Verdict::Released | Verdict::ReleasedSuspect => {}
            }
        }
        drop(counts);
        if any {
            self.changed.notify_one();
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.lock().expect("no code panics while it holds this lock").clone()
    }

    /// Waits until a counter has changed since the last return.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
