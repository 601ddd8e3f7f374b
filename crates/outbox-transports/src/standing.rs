//! How a destination stands: well of late, or to be left alone for a moment.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// For this long after it took an event a destination counts as well.
const FRESH: Duration = Duration::from_secs(5);
/// How long it is left alone after an outage, at first.
const SHORTEST: Duration = Duration::from_millis(500);
/// And at most: when it is there again, its events should not wait for long.
const LONGEST: Duration = Duration::from_secs(2);
/// What is known of a destination. An outage that a connection does not show, a gateway that answers 503 for one, would else cost
/// every event its attempts.
#[derive(Debug, Default)]
pub(crate) struct Standing(Mutex<State>);

#[derive(Clone, Debug, Default)]
struct State {
    well_at: Option<Instant>,
    pause_until: Option<Instant>,
    /// In a row.
    pauses: u32,
    /// Why it was away.
    reason: String,
    /// What was last said of it.
    said: Option<String>,
}

impl Standing {
    pub(crate) fn took_one(&self) {
        *self.lock() = State { well_at: Some(Instant::now()), ..State::default() };
    }

    /// It was not there: leaves it alone, for longer each time.
    pub(crate) fn was_away(&self, reason: &str) {
        let mut state = self.lock();
        reason.clone_into(&mut state.reason);
        // Many requests fail at once: that is one outage.
        if !state.is_paused() {
            let pause = SHORTEST.saturating_mul(1 << state.pauses.min(16)).min(LONGEST);
            let pauses = state.pauses.saturating_add(1);
            (state.well_at, state.pause_until, state.pauses) = (None, Some(Instant::now() + pause), pauses);
        }
    }

    /// It did not answer: whether it is still there has to be looked at.
    #[cfg(any(test, feature = "webhook"))]
    pub(crate) fn is_in_doubt(&self) {
        self.lock().well_at = None;
    }

    /// Says why it is not there, once: whoever asks whether it is hears only that it is not.
    pub(crate) fn is_missing(&self, publisher: &str, reason: &str) {
        let mut state = self.lock();
        if state.said.as_deref() != Some(reason) {
            tracing::warn!(publisher, "not available: {reason}");
            state.said = Some(reason.to_owned());
        }
    }

    /// Why it is left alone at the moment, if it is.
    pub(crate) fn paused(&self) -> Option<String> {
        let state = self.lock();
        state.is_paused().then(|| state.reason.clone())
    }

    /// Whether it took an event just now.
    pub(crate) fn is_fresh(&self) -> bool {
        self.lock().well_at.is_some_and(|at| at.elapsed() < FRESH)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl State {
    fn is_paused(&self) -> bool {
        self.pause_until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_that_was_away_is_left_alone_until_it_takes_one() {
        let standing = Standing::default();
        assert!(standing.paused().is_none() && !standing.is_fresh());
        standing.took_one();
        assert!(standing.paused().is_none() && standing.is_fresh());
        standing.is_in_doubt();
        assert!(standing.paused().is_none() && !standing.is_fresh());
        for _ in 0..100 {
            standing.was_away("answers 503");
        }
        assert_eq!(standing.paused().as_deref(), Some("answers 503"));
        assert!(!standing.is_fresh());
        assert_eq!(standing.lock().pauses, 1, "a hundred failures at once are one outage");
        standing.took_one();
        assert_eq!(standing.paused(), None);
    }
}
