//! Locks and counters of the queues: those of the standard library, outside of unit tests.
//!
//! In unit tests each use is a point where the scheduler may switch threads: `schedules.rs` runs
//! the queues in many interleavings. No code waits while it holds such a lock.

#[cfg(not(test))]
pub(crate) use std::sync::Mutex;
#[cfg(not(test))]
pub(crate) use std::sync::atomic::AtomicUsize;

#[cfg(test)]
pub(crate) use instrumented::{AtomicUsize, Mutex, explore};

#[cfg(test)]
mod instrumented {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;
    use std::sync::{LockResult, MutexGuard};

    thread_local! {
        /// Whether this thread explores interleavings. All threads of a schedule share one OS
        /// thread.
        static EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a test in this many random interleavings of its threads.
    pub(crate) fn explore(orders: usize, run: impl Fn() + Send + Sync + 'static) {
        EXPLORING.set(true);
        shuttle::check_random(run, orders);
        EXPLORING.set(false);
    }

    /// A point where the scheduler may switch to another thread.
    fn switch_point() {
        if EXPLORING.get() {
            shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
        }
    }

    #[derive(Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            switch_point();
            self.0.lock()
        }
    }

    pub(crate) struct AtomicUsize(std::sync::atomic::AtomicUsize);

    impl AtomicUsize {
        pub(crate) fn new(value: usize) -> Self {
            Self(std::sync::atomic::AtomicUsize::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> usize {
            switch_point();
            let value = self.0.load(order);
            // The value may be out of date before it is used.
            switch_point();
            value
        }

        pub(crate) fn store(&self, value: usize, order: Ordering) {
            switch_point();
            self.0.store(value, order);
        }

        pub(crate) fn fetch_add(&self, value: usize, order: Ordering) -> usize {
            switch_point();
            self.0.fetch_add(value, order)
        }

        pub(crate) fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            update: impl FnMut(usize) -> Option<usize>,
        ) -> Result<usize, usize> {
            switch_point();
            self.0.fetch_update(set, fetch, update)
        }
    }
}
