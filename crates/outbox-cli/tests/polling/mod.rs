//! Polling of conditions that have no signal, such as the state of another process.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Time limit for every wait, unless a test has a reason for another.
pub const TIMEOUT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(20);

/// Waits until the condition holds. A failure shows the details.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool, details: impl Fn() -> String) {
    let attempt = async || if condition().await { Ok(()) } else { Err("") };
    within(TIMEOUT, what, attempt, details).await;
}

/// Waits until the function returns a value, for at most this long. A failure shows the last error
/// of the function, and the details.
pub async fn within<T, E: Display>(
    limit: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
    details: impl Fn() -> String,
) -> T {
    let end = Instant::now() + limit;
    loop {
        let error = match attempt().await {
            Ok(value) => return value,
            Err(error) => error,
        };
        assert!(Instant::now() < end, "not within {limit:?}: {what} {error}\n{}", details());
        tokio::time::sleep(PAUSE).await;
    }
}
