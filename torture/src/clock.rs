//! One clock for all processes of the machine.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine was started. Asked of the kernel directly: a library that shifts the clock of a process does not
/// get between.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1_000
}

/// A moment, in seconds since another one.
pub fn since(begin: u64, moment: u64) -> f64 {
    moment.saturating_sub(begin) as f64 / 1e6
}
