//! Polling of conditions that have no signal. A condition that does not hold in time fails the test
//! with its description.

#![allow(dead_code, missing_docs, reason = "each test binary uses its own share")]

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How often a condition is polled, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    pub pause: Duration,
    pub limit: Duration,
}

impl Poll {
    /// The limit is less than the time limit of a test, so that the failure names the condition.
    pub const DEFAULT: Self = Self { pause: Duration::from_millis(5), limit: Duration::from_secs(120) };

    /// For queries of InnoDB's own tables, such as `innodb_trx`: InnoDB answers from a cache that
    /// it refreshes only after 100 ms without a query.
    pub const INNODB: Self = Self { pause: Duration::from_millis(150), ..Self::DEFAULT };

    /// Waits until the condition holds.
    pub async fn until(self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        self.value(what, async || condition().await.then_some(()).ok_or("false")).await;
    }

    /// Waits until the function returns a value. A failure shows the last error of the function.
    pub async fn value<T, E: Debug>(self, what: &str, mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
        let began = Instant::now();
        loop {
            let error = match attempt().await {
                Ok(value) => return value,
                Err(error) => error,
            };
            assert!(began.elapsed() < self.limit, "not within {:?}: {what}: {error:?}", self.limit);
            tokio::time::sleep(self.pause).await;
        }
    }
}

/// Waits until a condition that has no signal holds.
pub async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    Poll::DEFAULT.until(what, condition).await;
}
