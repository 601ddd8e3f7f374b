//! Histogram of latencies, of bounded size.

use std::time::Duration;

/// Counts durations in buckets about 3 % wide.
#[derive(Default)]
pub(crate) struct Latencies {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

/// Number of buckets per power of two, as an exponent of two.
const BITS: u32 = 5;

impl Latencies {
    pub(crate) fn record(&mut self, latency: Duration) {
        let bucket = bucket(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.max = self.max.max(latency);
    }

    /// Duration that this percentage did not exceed; `None` if nothing was recorded.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(Duration::from_micros(upper(bucket)).min(self.max))
    }

    pub(crate) fn max(&self) -> Option<Duration> {
        (self.total > 0).then_some(self.max)
    }
}

/// Bucket of a value: one per microsecond at first, then increasingly wide ones.
fn bucket(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(BITS + 1);
    ((u64::from(shift) << BITS) + (micros >> shift)) as usize
}

/// The largest value in a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> BITS).saturating_sub(1);
    ((bucket - (shift << BITS)) << shift) + (1 << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_its_bucket_and_close_to_its_end() {
        for micros in (0..5_000).chain((1..50).map(|i| i * 777_777)) {
            let end = upper(bucket(micros));
            assert!(end >= micros && end <= micros + micros / 30, "{micros} is counted as {end}");
        }
    }

    #[test]
    fn percentiles_match_the_recorded_durations() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(50), None);
        (1..=100).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        let p50 = latencies.percentile(50).unwrap().as_micros();
        assert!((50_000..51_600).contains(&p50), "{p50}");
        assert_eq!(latencies.percentile(100), Some(Duration::from_millis(100)));
        assert_eq!(latencies.max(), Some(Duration::from_millis(100)));
    }
}
