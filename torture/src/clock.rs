//! One clock for all processes on the machine.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine booted. A direct system call, which libfaketime does not
/// intercept.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1_000
}

/// Seconds from `begin` to `moment`.
pub fn since(begin: u64, moment: u64) -> f64 {
    moment.saturating_sub(begin) as f64 / 1e6
}
