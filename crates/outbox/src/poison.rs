//! Suspects: events whose holder vanished. Any of them may have crashed it.
//!
//! The database counts each start of a suspect before the suspect is handled. One that is started
//! several times and never finishes is dead-lettered, so that it cannot crash one process after
//! another for ever.
//!
//! A process that vanishes leaves many events, of which at most one is the cause. So they run
//! concurrently at first, each counted; those that are left after another crash run one at a time.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::escape::Escaped;
use crate::event::EventId;
use crate::store::{Claim, Delivery, Holder, Store, Verdict};

/// How often an event may be started after its holder vanished, before it counts as the cause and
/// is dead-lettered.
const MAX_CRASHES: u32 = 3;

/// How many are handled at the same time, at most.
const MAX_CONCURRENT: u32 = 1024;

impl Delivery {
    /// Whether no other suspect may be handled at the same time: an earlier start of this event did
    /// not finish.
    pub(crate) fn must_run_alone(&self) -> bool {
        self.suspect.is_some_and(|starts| starts > 0)
    }

    /// Verdict that releases the event unhandled. A suspect stays one, or a clean stop between two
    /// crashes would clear it.
    pub(crate) fn released(&self) -> Verdict {
        if self.suspect.is_some() { Verdict::ReleasedSuspect } else { Verdict::Released }
    }
}

/// Admits suspects, concurrently or alone.
pub(crate) struct CrashGuard(Semaphore);

/// Held from before a suspect's start is counted until its verdict is sent.
pub(crate) type Admitted<'a> = SemaphorePermit<'a>;

impl Default for CrashGuard {
    fn default() -> Self {
        Self(Semaphore::new(MAX_CONCURRENT as usize))
    }
}

impl CrashGuard {
    /// Waits until this suspect may be handled. A caller that holds a permit must not call it
    /// again: it could wait for itself.
    pub(crate) async fn admit(&self, alone: bool) -> Admitted<'_> {
        self.0.acquire_many(if alone { MAX_CONCURRENT } else { 1 }).await.expect("it is never closed")
    }
}

/// Decision about a suspect.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Handle it; the start is counted.
    Run,
    /// It is dead, for this reason.
    DeadLetter(String),
    /// Skip it: this node no longer holds it, or the start could not be counted.
    Skip,
}

/// Records in the database that a suspect is about to be handled.
pub(crate) async fn start(store: &dyn Store, by: &Holder, event: &EventId, claim: Claim) -> Admission {
    match store.count_start(by, event, claim).await {
        Ok(Some(starts)) if starts > MAX_CRASHES => {
            tracing::error!(store = store.name(), event = %Escaped(event), starts, "event is dead: its handler never came back");
            Admission::DeadLetter(format!("its handler was started {MAX_CRASHES} times and never came back"))
        }
        Ok(Some(_)) => Admission::Run,
        Ok(None) => Admission::Skip,
        Err(error) => {
            // Not handled uncounted; the event is redelivered.
            tracing::warn!(store = store.name(), event = %Escaped(event), %error, "could not count the start of a suspect event: skipping it");
            Admission::Skip
        }
    }
}
