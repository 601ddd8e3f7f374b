//! When to retry, and when to give up: decided in pure functions.

use std::fmt;
use std::time::Duration;

use crate::handler::{Again, Failure, Outcome};
use crate::store::Verdict;

/// Decides after a failure whether and when to retry.
pub trait RetryPolicy: fmt::Debug + Send + Sync + 'static {
    /// The delay before the next attempt, after this many have failed; `None` to give up. `random`
    /// is in `[0, 1)`, for jitter.
    fn delay(&self, failed: u32, random: f64) -> Option<Duration>;
}

/// Exponential backoff with jitter, up to a number of attempts.
///
/// The default, for handlers, waits `min(60 s, 200 ms × 2^(n−1))`, times a random factor in
/// `[0.5, 1.5)`, and gives up after the tenth attempt: after about 100 s.
/// [Publishing](Backoff::publishing) is retried for about a day.
///
/// ```
/// use std::time::Duration;
/// use outbox::{Backoff, RetryPolicy};
///
/// let policy = Backoff::default().base(Duration::from_secs(1)).max_attempts(3).no_jitter();
/// assert_eq!(policy.delay(1, 0.0), Some(Duration::from_secs(1)));
/// assert_eq!(policy.delay(2, 0.0), Some(Duration::from_secs(2)));
/// assert_eq!(policy.delay(3, 0.0), None);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempts: u32,
    jitter: bool,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(200), max: Duration::from_secs(60), attempts: 10, jitter: true }
    }
}

impl Backoff {
    /// The default for publishing: waits `min(10 min, 1 s × 2^(n−1))`, times a random factor in
    /// `[0.5, 1.5)`, and gives up after 154 attempts, which span about 24 hours: time to repair a
    /// receiver.
    pub fn publishing() -> Self {
        Self { base: Duration::from_secs(1), max: Duration::from_secs(600), attempts: 154, jitter: true }
    }

    /// `min(2^n s, 60 s)` after the n-th failure, without jitter.
    pub fn powers_of_two() -> Self {
        Self { base: Duration::from_secs(2), jitter: false, ..Self::default() }
    }

    /// One attempt: a failure is final.
    pub fn never() -> Self {
        Self { attempts: 1, ..Self::default() }
    }

    /// The delay after the first failure.
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// The longest delay, before jitter.
    pub fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// How many attempts to make in all; 0 is taken as 1.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Exact delays. Events that failed together are retried together: beware of a stampede.
    pub fn no_jitter(mut self) -> Self {
        self.jitter = false;
        self
    }
}

impl RetryPolicy for Backoff {
    fn delay(&self, failed: u32, random: f64) -> Option<Duration> {
        if failed >= self.attempts {
            return None;
        }
        let doublings = failed.saturating_sub(1).min(31);
        let delay = self.base.saturating_mul(1 << doublings).min(self.max);
        let jittered = || Duration::try_from_secs_f64(delay.as_secs_f64() * (0.5 + random)).unwrap_or(delay);
        Some(if self.jitter { jittered() } else { delay })
    }
}

/// Verdict on an event after its handler has returned. `attempts` is how often it had failed
/// before.
pub(crate) fn decide(
    result: Result<Outcome, Failure>,
    attempts: u32,
    policy: &dyn RetryPolicy,
    random: f64,
) -> Verdict {
    match result {
        Ok(Outcome::Done) => Verdict::Done,
        Ok(Outcome::Snooze(after)) => Verdict::Again { after, counted: false, error: None },
        Ok(Outcome::Dead(reason)) => Verdict::Dead { counted: false, reason },
        Err(failure) if failure.again == Again::Never => {
            Verdict::Dead { counted: false, reason: failure.stored() }
        }
        Err(failure) => match (policy.delay(attempts + 1, random), failure.again) {
            (None, _) => Verdict::Dead { counted: true, reason: failure.stored() },
            (Some(_), Again::After(after)) | (Some(after), _) => {
                Verdict::Again { after, counted: true, error: Some(failure.stored()) }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    fn default_delays(random: f64) -> Vec<Option<Duration>> {
        (1..=10).map(|failed| Backoff::default().delay(failed, random)).collect()
    }

    #[test]
    fn the_default_doubles_from_200_ms_to_60_s_and_gives_up_after_ten() {
        let expected = [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200];
        for (delay, ms) in default_delays(0.5).into_iter().zip(expected) {
            assert_eq!(delay, Some(Duration::from_millis(ms)));
        }
        assert_eq!(default_delays(0.5)[9], None);
        assert_eq!(Backoff::default().max_attempts(99).delay(40, 0.5), Some(60 * SEC));
    }

    #[test]
    fn publishing_is_retried_for_a_day() {
        let policy = Backoff::publishing();
        let delays: Vec<Duration> = (1..).map_while(|failed| policy.delay(failed, 0.5)).collect();
        assert_eq!((delays[0], delays[1], delays[152]), (SEC, 2 * SEC, 600 * SEC));
        let day = 24 * 3_600 * SEC;
        let all: Duration = delays.into_iter().sum();
        assert!(all > day && all < day + 600 * SEC, "{all:?}");
    }

    #[test]
    fn jitter_is_between_a_half_and_one_and_a_half() {
        assert_eq!(default_delays(0.0)[0], Some(Duration::from_millis(100)));
        assert!(default_delays(0.999)[0] < Some(Duration::from_millis(300)));
    }

    #[test]
    fn powers_of_two_are_seconds() {
        let policy = Backoff::powers_of_two();
        let delays: Vec<_> = (1..=7).filter_map(|n| policy.delay(n, 0.3)).map(|d| d.as_secs()).collect();
        assert_eq!(delays, [2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn every_row_of_the_table_of_outcomes() {
        let policy = Backoff::default().max_attempts(3);
        let decide = |result, attempts| super::decide(result, attempts, &policy, 0.5);
        let failure = || Err(Failure::retry("no"));
        let after = |after| Err(Failure::retry_after(after, "no"));
        let error = || Some("no".to_owned());

        assert_eq!(decide(Ok(Outcome::Done), 0), Verdict::Done);
        assert_eq!(
            decide(Ok(Outcome::Snooze(SEC)), 99),
            Verdict::Again { after: SEC, counted: false, error: None },
            "asking for time is not an attempt, however often"
        );
        assert_eq!(
            decide(Ok(Outcome::Dead("bad".into())), 0),
            Verdict::Dead { counted: false, reason: "bad".into() }
        );
        assert_eq!(
            decide(Err(Failure::dead("bad")), 0),
            Verdict::Dead { counted: false, reason: "bad".into() }
        );
        assert_eq!(
            decide(failure(), 0),
            Verdict::Again { after: Duration::from_millis(200), counted: true, error: error() }
        );
        assert_eq!(
            decide(failure(), 1),
            Verdict::Again { after: Duration::from_millis(400), counted: true, error: error() }
        );
        assert_eq!(decide(failure(), 2), Verdict::Dead { counted: true, reason: "no".into() });
        assert_eq!(
            decide(after(7 * SEC), 1),
            Verdict::Again { after: 7 * SEC, counted: true, error: error() }
        );
        assert_eq!(
            decide(after(7 * SEC), 2),
            Verdict::Dead { counted: true, reason: "no".into() },
            "a handler's own delay counts against the attempts"
        );
    }
}
