//! When a subscription polls and retries, and its batch size: decided in pure functions.

use std::time::{Duration, Instant};

use crate::handler::{Again, Failure};
use crate::log::{Pace, SubscriptionStatus};

/// The pause before an unavailable destination is tried again, at first and at most.
const UNAVAILABLE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// State of a subscription between two batches.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    pace: Pace,
    /// Consecutive polls that found nothing.
    empty_polls: u32,
    /// When to poll, unless a hint comes before.
    pub(super) poll_at: Instant,
    /// Consecutive errors.
    pub(super) errors: u32,
    pub(super) last_error: Option<String>,
    /// Consecutive tries that found the destination unavailable.
    unavailable: u32,
    /// The earliest time of the next batch.
    pub(super) try_at: Instant,
    /// When the batch that is with the publisher was sent.
    sent_at: Instant,
    /// How many events to send: one while the publisher fails.
    batch_size: usize,
}

impl Pacing {
    /// Continues with the errors in the table.
    pub(super) fn new(pace: Pace, errors: u32, last_error: Option<String>, now: Instant) -> Self {
        let batch_size = if errors > 0 { 1 } else { pace.batch };
        Self {
            pace,
            empty_polls: 0,
            poll_at: now,
            errors,
            last_error,
            unavailable: 0,
            try_at: now,
            sent_at: now,
            batch_size,
        }
    }

    /// How many events the next batch may have.
    pub(super) fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Records that a batch is sent to the publisher.
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent_at = now;
    }

    pub(super) fn status(&self) -> SubscriptionStatus {
        if self.errors >= self.pace.fails_after {
            SubscriptionStatus::Failed
        } else {
            SubscriptionStatus::Active
        }
    }

    /// Records that there may be new events.
    pub(super) fn hinted(&mut self, now: Instant) {
        self.empty_polls = 0;
        self.poll_at = now + self.pace.every;
    }

    /// Records a scheduled poll that found nothing.
    pub(super) fn record_empty_poll(&mut self, now: Instant) {
        self.empty_polls = self.empty_polls.saturating_add(1);
        self.poll_at = now + self.pace.idle_wait(self.empty_polls);
    }

    /// Records a successful batch. Returns whether it ends a series of errors.
    pub(super) fn succeeded(&mut self, now: Instant) -> bool {
        let ends_errors = self.errors > 0 || self.last_error.is_some();
        (self.errors, self.last_error, self.unavailable) = (0, None, 0);
        if self.pace.interval.is_zero() {
            self.batch_size = (self.batch_size * 2).min(self.pace.batch);
            self.try_at = now;
        } else {
            // The next batch may be far away: it is a full one.
            self.batch_size = self.pace.batch;
            self.try_at = self.sent_at + self.pace.interval;
        }
        self.hinted(now);
        ends_errors
    }

    /// Records a failed batch of so many events. `random` is in `[0, 1)`.
    pub(super) fn failed(&mut self, now: Instant, tried: usize, failure: &Failure, random: f64) {
        self.errors = self.errors.saturating_add(1);
        self.last_error = Some(failure.message.clone());
        self.batch_size = if self.status() == SubscriptionStatus::Failed { 1 } else { (tried / 2).max(1) };
        let pause = match failure.again {
            Again::After(pause) => pause,
            Again::ByPolicy | Again::Never => {
                let doublings = (self.errors - 1).min(16);
                let pause = self.pace.retry_base.saturating_mul(1 << doublings).min(self.pace.retry_max);
                pause.mul_f64(0.75 + random / 2.0)
            }
        };
        self.try_at = now + pause.min(Duration::from_secs(365 * 86_400));
    }

    /// Records that a batch of so many events took longer than this node's lease.
    pub(super) fn abandoned(&mut self, tried: usize) {
        self.batch_size = (tried / 2).max(1);
    }

    /// Records that the destination is unavailable: not an error of the events. It is tried again
    /// with one event, less and less often. `random` is in `[0, 1)`.
    pub(super) fn unavailable(&mut self, now: Instant, reason: &str, random: f64) {
        self.unavailable = self.unavailable.saturating_add(1);
        self.last_error = Some(reason.to_owned());
        self.batch_size = 1;
        let (first, longest) = UNAVAILABLE;
        let pause = first.saturating_mul(1 << (self.unavailable - 1).min(16)).min(longest);
        self.try_at = now + pause.mul_f64(0.75 + random / 2.0);
    }

    /// Clears the errors after an operator has reset them: tries again at once.
    pub(super) fn reset_errors(&mut self, now: Instant) {
        *self = Self::new(self.pace.clone(), 0, None, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    fn pacing(now: Instant) -> Pacing {
        Pacing::new(Pace::default(), 0, None, now)
    }

    #[test]
    fn after_three_empty_polls_each_wait_doubles_up_to_a_minute_and_a_hint_resets() {
        let now = Instant::now();
        let mut pacing = pacing(now);
        let waits: Vec<u64> = (0..11)
            .map(|_| {
                pacing.record_empty_poll(now);
                (pacing.poll_at - now).as_secs()
            })
            .collect();
        assert_eq!(waits, [1, 1, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        pacing.hinted(now);
        assert_eq!(pacing.poll_at, now + SEC);
        pacing.record_empty_poll(now);
        assert_eq!(pacing.poll_at, now + SEC);
    }

    #[test]
    fn waits_grow_by_the_factor_and_never_beyond_the_longest() {
        let now = Instant::now();
        let year = 365 * 86_400 * SEC;
        let waits = |pace: Pace, looks: usize| {
            let mut pacing = Pacing::new(pace, 0, None, now);
            let mut wait = || {
                pacing.record_empty_poll(now);
                (pacing.poll_at - now).as_millis()
            };
            (0..looks).map(|_| wait()).collect::<Vec<_>>()
        };
        let pace = Pace { idle_after: 1, idle_multiplier: 1.5, idle_max: 3 * SEC, ..Pace::default() };
        assert_eq!(waits(pace, 5), [1_000, 1_500, 2_250, 3_000, 3_000]);
        let never = Pace { idle_after: u32::MAX, ..Pace::default() };
        assert_eq!(waits(never, 9), [1_000; 9]);
        let steep = Pace { idle_multiplier: 1_000.0, idle_max: year, every: year, ..Pace::default() };
        assert_eq!(waits(steep, 400).last(), Some(&year.as_millis()));
    }

    #[test]
    fn errors_narrow_the_batch_to_one_and_make_the_pair_failed_until_one_goes_through() {
        let now = Instant::now();
        let mut pacing = pacing(now);
        let failure = Failure::retry("no route");
        let mut seen = Vec::new();
        for _ in 0..6 {
            let tried = pacing.batch_size();
            pacing.failed(now, tried, &failure, 0.5);
            seen.push((pacing.batch_size(), pacing.status(), (pacing.try_at - now).as_millis()));
        }
        use SubscriptionStatus::{Active, Failed};
        assert_eq!(
            seen,
            [
                (50, Active, 500),
                (25, Active, 1_000),
                (12, Active, 2_000),
                (6, Active, 4_000),
                (1, Failed, 8_000),
                (1, Failed, 16_000),
            ]
        );
        assert!(pacing.succeeded(now), "it ends the errors");
        assert_eq!((pacing.status(), pacing.errors, pacing.batch_size(), pacing.try_at), (Active, 0, 2, now));
        for _ in 0..10 {
            pacing.succeeded(now);
        }
        assert_eq!(pacing.batch_size(), 100);
    }

    #[test]
    fn with_an_interval_one_batch_starts_in_that_time_and_a_failure_is_retried_sooner() {
        let now = Instant::now();
        let pace = Pace { interval: 3_600 * SEC, ..Pace::default() };
        let mut pacing = Pacing::new(pace, 0, None, now);
        assert_eq!(pacing.try_at, now, "the first one at once");
        pacing.sent(now);
        pacing.failed(now + SEC, 100, &Failure::retry("no route"), 0.5);
        assert_eq!(pacing.try_at, now + SEC + SEC / 2);
        pacing.sent(now + 2 * SEC);
        pacing.succeeded(now + 9 * SEC);
        assert_eq!(pacing.try_at, now + 3_602 * SEC, "from the start of the last one");
        assert_eq!(pacing.batch_size(), 100, "not half a batch, and an hour later the other half");
    }

    #[test]
    fn a_retry_delay_from_the_publisher_is_used() {
        let now = Instant::now();
        let mut pacing = pacing(now);
        pacing.failed(now, 1, &Failure::retry_after(7 * SEC, "busy"), 0.9);
        assert_eq!(pacing.try_at, now + 7 * SEC);
    }

    #[test]
    fn a_destination_that_is_unavailable_counts_no_error_and_is_probed_ever_less_often() {
        let now = Instant::now();
        let mut pacing = pacing(now);
        pacing.unavailable(now, "gone", 0.5);
        assert_eq!((pacing.try_at, pacing.batch_size()), (now + SEC / 4, 1));
        for _ in 0..20 {
            pacing.unavailable(now, "gone", 0.5);
        }
        assert_eq!((pacing.errors, pacing.status()), (0, SubscriptionStatus::Active));
        assert_eq!(pacing.try_at, now + 30 * SEC);
        assert!(pacing.last_error.is_some());
        pacing.reset_errors(now);
        assert_eq!((pacing.last_error, pacing.try_at), (None, now));
    }
}
