//! Events whose holder vanished: any of them may be what made it vanish.
//!
//! They are counted before they are handled again. One that is started again and again without ever coming to an end
//! is buried, so that it cannot take down one process after another for ever.
//!
//! A process that vanishes leaves many behind, of which one at most is to blame. So they run together at first, each counted;
//! those that are still there when that was the end of a process too run one at a time.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::escape::Escaped;
use crate::event::EventId;
use crate::store::{Claim, Delivery, Holder, Store, Verdict};

/// How often an event may be started after its holder vanished, before it is taken for what made them vanish.
const MAX_CRASHES: u32 = 3;

/// How many are handled at the same time, at most.
const TOGETHER: u32 = 1024;

impl Delivery {
    /// Whether nothing else that is suspect may be in hand beside it: what was so before did not come to its end.
    pub(crate) fn goes_alone(&self) -> bool {
        self.suspect.is_some_and(|starts| starts > 0)
    }

    /// It is given back without having been handled. A suspect stays one, or a clean stop between two crashes would clear it.
    pub(crate) fn released(&self) -> Verdict {
        if self.suspect.is_some() { Verdict::ReleasedSuspect } else { Verdict::Released }
    }
}

/// Lets suspects in, together or alone.
pub(crate) struct Suspects(Semaphore);

/// Held from before a suspect is counted until what became of it is said.
pub(crate) type Admitted<'a> = SemaphorePermit<'a>;

impl Default for Suspects {
    fn default() -> Self {
        Self(Semaphore::new(TOGETHER as usize))
    }
}

impl Suspects {
    /// Waits until this one may be handled. Whoever is inside already must not ask again: it could wait for itself.
    pub(crate) async fn admit(&self, alone: bool) -> Admitted<'_> {
        self.0.acquire_many(if alone { TOGETHER } else { 1 }).await.expect("it is never closed")
    }
}

/// What to do with an event that may have ended its holder.
#[derive(Debug)]
pub(crate) enum Start {
    /// Handle it; the start is counted.
    Go,
    /// It is dead, for this reason.
    Bury(String),
    /// Leave it: it is not ours any more, or the start could not be counted.
    Leave,
}

/// Notes in the database that such an event is about to be handled.
pub(crate) async fn start(store: &dyn Store, by: &Holder, event: &EventId, claim: Claim) -> Start {
    match store.count_start(by, event, claim).await {
        Ok(Some(starts)) if starts > MAX_CRASHES => {
            tracing::error!(store = store.name(), event = %Escaped(event), starts, "event is dead: its handler never came back");
            Start::Bury(format!("its handler was started {MAX_CRASHES} times and never came back"))
        }
        Ok(Some(_)) => Start::Go,
        Ok(None) => Start::Leave,
        Err(error) => {
            // Safer not to run it uncounted; it comes again.
            tracing::warn!(store = store.name(), event = %Escaped(event), %error, "could not count a start");
            Start::Leave
        }
    }
}
