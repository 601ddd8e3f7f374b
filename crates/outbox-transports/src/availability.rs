//! Availability of a destination: recently reachable, or paused after an outage.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a destination counts as available after it accepted an event.
const RECENT: Duration = Duration::from_secs(5);
/// Length of the first pause after an outage.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause: once the destination is back, its events should not wait for long.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Last known state of a destination. Some outages do not show in the connection, for example a
/// gateway that answers 503. Without a pause such an outage would use up the attempts of every
/// event.
#[derive(Debug, Default)]
pub(crate) struct Availability(Mutex<AvailabilityState>);

#[derive(Clone, Debug, Default)]
struct AvailabilityState {
    last_success: Option<Instant>,
    pause_until: Option<Instant>,
    /// Number of pauses since the last success.
    consecutive_pauses: u32,
    /// The reason of the last outage.
    reason: String,
    /// The reason that was logged last.
    warned_reason: Option<String>,
}

impl Availability {
    pub(crate) fn record_success(&self) {
        *self.lock() =
            AvailabilityState { last_success: Some(Instant::now()), ..AvailabilityState::default() };
    }

    /// Records an outage and pauses the destination, longer after each consecutive outage.
    pub(crate) fn record_outage(&self, reason: &str) {
        let mut state = self.lock();
        reason.clone_into(&mut state.reason);
        // Concurrent requests that fail together are one outage.
        if !state.is_paused() {
            let pause = MIN_PAUSE.saturating_mul(1 << state.consecutive_pauses.min(16)).min(MAX_PAUSE);
            let consecutive_pauses = state.consecutive_pauses.saturating_add(1);
            (state.last_success, state.pause_until, state.consecutive_pauses) =
                (None, Some(Instant::now() + pause), consecutive_pauses);
        }
    }

    /// Clears the last success after a missing response, so that the next health check probes the
    /// destination.
    #[cfg(any(test, feature = "webhook"))]
    pub(crate) fn invalidate(&self) {
        self.lock().last_success = None;
    }

    /// Logs why the destination is unavailable, once per reason: the health check's caller only
    /// learns that it is.
    pub(crate) fn warn_unavailable(&self, publisher: &str, reason: &str) {
        let mut state = self.lock();
        if state.warned_reason.as_deref() != Some(reason) {
            tracing::warn!(publisher, "destination unavailable: {reason}");
            state.warned_reason = Some(reason.to_owned());
        }
    }

    /// The reason of the last outage while the destination is paused.
    pub(crate) fn paused(&self) -> Option<String> {
        let state = self.lock();
        state.is_paused().then(|| state.reason.clone())
    }

    /// Whether the destination accepted an event within [`RECENT`].
    pub(crate) fn is_recently_up(&self) -> bool {
        self.lock().last_success.is_some_and(|at| at.elapsed() < RECENT)
    }

    fn lock(&self) -> MutexGuard<'_, AvailabilityState> {
        self.0.lock().expect("no panic while the lock is held")
    }
}

impl AvailabilityState {
    fn is_paused(&self) -> bool {
        self.pause_until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_paused_after_an_outage_until_it_accepts_an_event() {
        let availability = Availability::default();
        assert!(availability.paused().is_none() && !availability.is_recently_up());
        availability.record_success();
        assert!(availability.paused().is_none() && availability.is_recently_up());
        availability.invalidate();
        assert!(availability.paused().is_none() && !availability.is_recently_up());
        for _ in 0..100 {
            availability.record_outage("answers 503");
        }
        assert_eq!(availability.paused().as_deref(), Some("answers 503"));
        assert!(!availability.is_recently_up());
        assert_eq!(availability.lock().consecutive_pauses, 1, "a hundred failures at once are one outage");
        availability.record_success();
        assert_eq!(availability.paused(), None);
    }
}
