//! Memory of events that were read from the table: bounded in bytes, besides their number.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Bytes of events that a relay holds at most, unless set otherwise.
pub(crate) const QUEUE_BYTES: usize = 64 << 20;

/// Bytes that events in memory may use. The relays of a fleet share one budget.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    total: usize,
    used: AtomicUsize,
    freed: Notify,
}

impl ByteBudget {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicUsize::new(0), freed: Notify::new() })
    }

    /// Bytes that the next read may use; `None` if the read has to wait. Reads wait until a quarter
    /// is free: reading row by row would cost a round trip each.
    pub(crate) fn available(&self) -> Option<usize> {
        self.available_with(self.used.load(Ordering::Acquire))
    }

    fn available_with(&self, used: usize) -> Option<usize> {
        let left = self.total.saturating_sub(used);
        (used == 0 || left >= self.total.div_ceil(4)).then_some(left)
    }

    /// Waits until a read may start.
    pub(crate) async fn wait_for_available(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // From here on no notification is missed.
            freed.as_mut().enable();
            if self.available().is_some() {
                return;
            }
            freed.await;
        }
    }

    /// Counts bytes as used until the guard is dropped. Never waits: the bytes are in memory
    /// already.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> ReservedBytes {
        self.used.fetch_add(bytes, Ordering::AcqRel);
        ReservedBytes { budget: self.clone(), bytes }
    }
}

/// Bytes of one event in memory.
#[derive(Debug)]
pub(crate) struct ReservedBytes {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        // Computed from one value: of two guards that are dropped at once, exactly one sees the
        // step from full to available.
        let before = self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
        let available = |used| self.budget.available_with(used).is_some();
        if !available(before) && available(before - self.bytes) {
            self.budget.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn reads_wait_until_a_quarter_of_the_budget_is_free() {
        let budget = ByteBudget::new(100);
        assert_eq!(budget.available(), Some(100));
        let (large, small) = (budget.reserve(70), budget.reserve(6));
        assert_eq!(budget.available(), None, "24 of 100 are left");
        let waiting = tokio::time::timeout(Duration::from_millis(1), budget.wait_for_available());
        assert!(waiting.await.is_err());
        drop(small);
        assert_eq!(budget.available(), Some(30));
        let huge = budget.reserve(1_000);
        let wait = tokio::spawn({
            let budget = budget.clone();
            async move { budget.wait_for_available().await }
        });
        drop(large);
        assert_eq!(budget.available(), None, "more is used than there is");
        drop(huge);
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it is woken up").unwrap();
        assert_eq!(budget.available(), Some(100));
    }
}
