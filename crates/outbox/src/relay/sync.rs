//! The locks and counters of the queues. In the product they are those of the standard library.
//!
//! In unit tests each use of one is a place where another thread may come first: `schedules.rs` runs the queues in one
//! order of threads after another. Nothing waits while it holds such a lock.

#[cfg(not(test))]
pub(crate) use std::sync::Mutex;
#[cfg(not(test))]
pub(crate) use std::sync::atomic::AtomicUsize;

#[cfg(test)]
pub(crate) use watched::{AtomicUsize, Mutex, explore};

#[cfg(test)]
mod watched {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;
    use std::sync::{LockResult, MutexGuard};

    thread_local! {
        /// Whether this thread explores. All threads of a schedule share one thread of the system.
        static EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs something in as many random orders of its threads.
    pub(crate) fn explore(orders: usize, run: impl Fn() + Send + Sync + 'static) {
        EXPLORING.set(true);
        shuttle::check_random(run, orders);
        EXPLORING.set(false);
    }

    /// Another thread may come first.
    fn others_first() {
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
            others_first();
            self.0.lock()
        }
    }

    pub(crate) struct AtomicUsize(std::sync::atomic::AtomicUsize);

    impl AtomicUsize {
        pub(crate) fn new(value: usize) -> Self {
            Self(std::sync::atomic::AtomicUsize::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> usize {
            others_first();
            let value = self.0.load(order);
            // What was read may be out of date before anything is done about it.
            others_first();
            value
        }

        pub(crate) fn store(&self, value: usize, order: Ordering) {
            others_first();
            self.0.store(value, order);
        }

        pub(crate) fn fetch_add(&self, value: usize, order: Ordering) -> usize {
            others_first();
            self.0.fetch_add(value, order)
        }

        pub(crate) fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            update: impl FnMut(usize) -> Option<usize>,
        ) -> Result<usize, usize> {
            others_first();
            self.0.fetch_update(set, fetch, update)
        }
    }
}
