//! Pacing of a subscription: how fast it publishes, and how long it waits.

use std::time::Duration;

/// Pacing settings of a subscription, as far as they are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PacingSettings {
    pub(crate) batch: Option<usize>,
    pub(crate) interval: Option<Duration>,
    pub(crate) every: Option<Duration>,
    pub(crate) idle_after: Option<u32>,
    pub(crate) idle_multiplier: Option<f64>,
    pub(crate) idle_max: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) fails_after: Option<u32>,
    pub(crate) retry_base: Option<Duration>,
    pub(crate) retry_max: Option<Duration>,
}

impl PacingSettings {
    /// Fills in unset values from other settings.
    pub(crate) fn or(&self, others: &Self) -> Self {
        Self {
            batch: self.batch.or(others.batch),
            interval: self.interval.or(others.interval),
            every: self.every.or(others.every),
            idle_after: self.idle_after.or(others.idle_after),
            idle_multiplier: self.idle_multiplier.or(others.idle_multiplier),
            idle_max: self.idle_max.or(others.idle_max),
            timeout: self.timeout.or(others.timeout),
            fails_after: self.fails_after.or(others.fails_after),
            retry_base: self.retry_base.or(others.retry_base),
            retry_max: self.retry_max.or(others.retry_max),
        }
    }

    /// Fills in unset values from the defaults.
    pub(crate) fn resolve(&self) -> Pace {
        let Pace {
            batch,
            interval,
            every,
            idle_after,
            idle_multiplier,
            idle_max,
            timeout,
            fails_after,
            retry_base,
            retry_max,
        } = Pace::default();
        Pace {
            batch: self.batch.unwrap_or(batch),
            interval: self.interval.unwrap_or(interval),
            every: self.every.unwrap_or(every),
            idle_after: self.idle_after.unwrap_or(idle_after),
            idle_multiplier: self.idle_multiplier.unwrap_or(idle_multiplier),
            idle_max: self.idle_max.unwrap_or(idle_max),
            timeout: self.timeout.unwrap_or(timeout),
            fails_after: self.fails_after.unwrap_or(fails_after),
            retry_base: self.retry_base.unwrap_or(retry_base),
            retry_max: self.retry_max.unwrap_or(retry_max),
        }
    }
}

/// Pacing of a subscription.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pace {
    pub(crate) batch: usize,
    /// Minimum time from the start of a batch to the start of the next.
    pub(crate) interval: Duration,
    pub(crate) every: Duration,
    pub(crate) idle_after: u32,
    pub(crate) idle_multiplier: f64,
    pub(crate) idle_max: Duration,
    pub(crate) timeout: Duration,
    pub(crate) fails_after: u32,
    pub(crate) retry_base: Duration,
    pub(crate) retry_max: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            batch: 100,
            interval: Duration::ZERO,
            every: Duration::from_secs(1),
            idle_after: 3,
            idle_multiplier: 2.0,
            idle_max: Duration::from_secs(60),
            timeout: Duration::from_secs(30),
            fails_after: 5,
            retry_base: Duration::from_millis(500),
            retry_max: Duration::from_secs(60),
        }
    }
}

impl Pace {
    /// The wait after this many polls in a row that found no event.
    pub(crate) fn idle_wait(&self, empty: u32) -> Duration {
        let longest = self.idle_max.max(self.every);
        let steps = i32::try_from(empty.saturating_sub(self.idle_after)).unwrap_or(i32::MAX);
        // Infinite or too large for a duration: the longest wait.
        let wait = self.every.as_secs_f64() * self.idle_multiplier.powi(steps);
        Duration::try_from_secs_f64(wait).unwrap_or(longest).min(longest)
    }
}
