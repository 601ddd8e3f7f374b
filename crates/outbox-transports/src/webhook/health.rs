//! Whether a refusal is a receiver's outage or an event's failure.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// For so long after it took an event a receiver counts as well: what it refuses then is the event's failure.
const FRESH: Duration = Duration::from_secs(2);

/// How many outages in a row may begin with the same event before they count as that event's failures.
const SAME: u32 = 3;

/// What the last answers of one URL say. A receiver that answers 503 may be down, or may refuse a single
/// event: whether it takes others tells.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    took_at: Option<Instant>,
    /// The event that the last outages began with, and how many they were.
    first: Option<(String, u32)>,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics under this lock")
    }

    /// The receiver took an event.
    pub(super) fn took_one(&self) {
        *self.state() = State { took_at: Some(Instant::now()), first: None };
    }

    /// Whether the receiver took an event a moment ago, or since this time.
    pub(super) fn took_since(&self, start: Instant) -> bool {
        self.state().took_at.is_some_and(|at| at >= start || at.elapsed() < FRESH)
    }

    /// An outage begins with a refusal of this event. Returns whether it counts as a failure of the event
    /// too: otherwise an event that is always refused would be the one that every probe tries, and no other
    /// would show that the receiver is well.
    pub(super) fn is_to_blame(&self, event: &str) -> bool {
        let mut state = self.state();
        let times = match &state.first {
            Some((first, times)) if first == event => times + 1,
            _ => 1,
        };
        let is_to_blame = times >= SAME;
        state.first = (!is_to_blame).then(|| (event.to_owned(), times));
        is_to_blame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_every_outage_begins_with_is_to_blame() {
        let health = Health::default();
        let blamed = |event| health.is_to_blame(event);
        assert_eq!(["a", "a", "a", "a"].map(blamed), [false, false, true, false]);
        assert_eq!(["b", "a", "b", "b", "b"].map(blamed), [false, false, false, false, true]);
        assert_eq!(["c", "c"].map(blamed), [false, false]);
        health.took_one();
        assert!(!health.is_to_blame("c"), "the receiver was well in between");
        assert!(health.took_since(Instant::now()), "a moment ago");
    }
}
