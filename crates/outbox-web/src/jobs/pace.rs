//! Limits a job to a number of rows per second.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// Maximum number of rows in a batch.
const MAX_BATCH: usize = 500;

/// Pacing of a job.
pub(crate) struct Pace {
    rate: Option<u32>,
    began: Instant,
    changed: u64,
}

impl Pace {
    pub(crate) fn new(rate: Option<u32>) -> Self {
        Self { rate, began: Instant::now(), changed: 0 }
    }

    /// Number of rows to change at once: the rate of a tenth of a second.
    pub(crate) fn batch(&self) -> usize {
        self.rate.map_or(MAX_BATCH, |rate| (rate as usize / 10).clamp(1, MAX_BATCH))
    }

    /// Adds to the number of changed rows and waits until the next batch is due. Returns false if
    /// the job is to stop.
    pub(crate) async fn wait(&mut self, changed: u64, stop: &CancellationToken) -> bool {
        self.changed += changed;
        tokio::select! {
            () = stop.cancelled() => false,
            () = tokio::time::sleep(self.due().saturating_sub(self.began.elapsed())) => !stop.is_cancelled(),
        }
    }

    /// Time after the start at which the rows changed so far are due.
    fn due(&self) -> Duration {
        self.rate
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(self.changed as f64 / f64::from(rate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_bounds_batches_and_sets_when_the_next_is_due() {
        assert_eq!(Pace::new(None).batch(), MAX_BATCH);
        assert_eq!(Pace::new(Some(1)).batch(), 1);
        assert_eq!(Pace::new(Some(1_000)).batch(), 100);
        assert_eq!(Pace::new(Some(100_000)).batch(), MAX_BATCH);
        let pace = Pace { changed: 50, ..Pace::new(Some(100)) };
        assert_eq!(pace.due(), Duration::from_millis(500));
        assert_eq!(Pace { changed: 50, ..Pace::new(None) }.due(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_job_that_is_stopped_does_not_wait() {
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(!Pace::new(Some(1)).wait(1_000, &stop).await);
        assert!(!Pace::new(None).wait(1, &stop).await);
    }
}
