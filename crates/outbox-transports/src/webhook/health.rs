//! Tells an outage of the receiver from the failure of a single event.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a receiver counts as available after it accepted an event. A refusal in this time is
/// the event's failure.
const RECENT: Duration = Duration::from_secs(2);

/// Number of consecutive outages that may begin with the same event before they count as failures
/// of this event.
const BLAME_AFTER: u32 = 3;

/// Recent responses of one URL. A receiver that answers 503 may be down or may refuse a single
/// event: whether it accepts other events decides.
#[derive(Debug, Default)]
pub(super) struct ReceiverHealth(Mutex<ReceiverState>);

#[derive(Debug, Default)]
struct ReceiverState {
    last_success: Option<Instant>,
    /// The event that the last outages began with, and the number of these outages.
    first_refused: Option<(String, u32)>,
}

impl ReceiverHealth {
    fn state(&self) -> MutexGuard<'_, ReceiverState> {
        self.0.lock().expect("no panic while the lock is held")
    }

    /// Records that the receiver accepted an event.
    pub(super) fn record_success(&self) {
        *self.state() = ReceiverState { last_success: Some(Instant::now()), first_refused: None };
    }

    /// Whether the receiver accepted an event since `start` or within [`RECENT`].
    pub(super) fn succeeded_since(&self, start: Instant) -> bool {
        self.state().last_success.is_some_and(|at| at >= start || at.elapsed() < RECENT)
    }

    /// Records an outage that begins with a refusal of this event. Returns whether the refusal
    /// counts as a failure of the event too. Otherwise every probe would try the same event that is
    /// always refused, and no other event could show that the receiver is available.
    pub(super) fn blame_event(&self, event: &str) -> bool {
        let mut state = self.state();
        let times = match &state.first_refused {
            Some((first_refused, times)) if first_refused == event => times + 1,
            _ => 1,
        };
        let is_to_blame = times >= BLAME_AFTER;
        state.first_refused = (!is_to_blame).then(|| (event.to_owned(), times));
        is_to_blame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_several_outages_begin_with_is_blamed() {
        let health = ReceiverHealth::default();
        let blamed = |event| health.blame_event(event);
        assert_eq!(["a", "a", "a", "a"].map(blamed), [false, false, true, false]);
        assert_eq!(["b", "a", "b", "b", "b"].map(blamed), [false, false, false, false, true]);
        assert_eq!(["c", "c"].map(blamed), [false, false]);
        health.record_success();
        assert!(!health.blame_event("c"), "the receiver was available in between");
        assert!(health.succeeded_since(Instant::now()), "a moment ago");
    }
}
