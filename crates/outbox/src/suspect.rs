//! Events whose holder vanished: any of them may be what made it vanish.
//!
//! They are counted before they are handled again. One that is started again and again without ever coming to an end
//! is buried, so that it cannot take down one process after another for ever.

use crate::event::EventId;
use crate::store::{Claim, Holder, Store};

/// How often an event may be started after its holder vanished, before it is taken for what made them vanish.
const MAX_CRASHES: u32 = 3;

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
            tracing::error!(store = store.name(), %event, starts, "event is dead: its handler never came back");
            Start::Bury(format!("its handler was started {MAX_CRASHES} times and never came back"))
        }
        Ok(Some(_)) => Start::Go,
        Ok(None) => Start::Leave,
        Err(error) => {
            // Safer not to run it uncounted; it comes again.
            tracing::warn!(store = store.name(), %event, %error, "could not count a start");
            Start::Leave
        }
    }
}
