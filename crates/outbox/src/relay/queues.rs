//! The two bounded queues between taking and handling: hot (after commit) and cold (from the
//! poller).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Job;
use super::key_queues::KeyQueueRef;
use super::limits::CallPermit;
use super::sync::{AtomicUsize, Mutex};

/// Work for one worker.
pub(crate) enum WorkUnit {
    /// One event without a key.
    One(Job),
    /// The events of a key (and destination, if the queue has one), one after another.
    /// [`KeyQueues`](super::key_queues::KeyQueues) holds the events.
    Key(KeyQueueRef),
    /// A unit that was set aside, with the permit for its next event.
    Admitted(Box<WorkUnit>, CallPermit),
}

/// A worker scans this many times as many work units as it wants to add to its batch.
const SCAN_FACTOR: usize = 4;

/// Both queues. Workers take two units from the hot queue for each one from the cold queue, so
/// neither starves.
pub(crate) struct Queues {
    state: Mutex<QueuesState>,
    /// One permit for each queued work unit.
    ready: Semaphore,
    /// The slots of the hot queue. One is reserved before its event is written, so a hand-over
    /// never fails.
    hot_slots: Arc<Semaphore>,
    hot_capacity: usize,
    cold_capacity: usize,
    /// Events, not work units, in the cold queue.
    cold_events: AtomicUsize,
    /// Notified when the cold queue has become half empty.
    drained: Notify,
}

struct QueuesState {
    hot: VecDeque<(WorkUnit, OwnedSemaphorePermit)>,
    cold: VecDeque<WorkUnit>,
    turn: u8,
    closing: bool,
}

impl Queues {
    pub(crate) fn new(hot_capacity: usize, cold_capacity: usize) -> Self {
        Self {
            state: Mutex::new(QueuesState {
                hot: VecDeque::new(),
                cold: VecDeque::new(),
                turn: 0,
                closing: false,
            }),
            ready: Semaphore::new(0),
            hot_slots: Arc::new(Semaphore::new(hot_capacity)),
            hot_capacity,
            cold_capacity,
            cold_events: AtomicUsize::new(0),
            drained: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueuesState> {
        self.state.lock().expect("no code panics while it holds this lock")
    }

    /// Reserves a slot in the hot queue, if there is one.
    pub(crate) fn reserve(&self) -> Option<OwnedSemaphorePermit> {
        self.hot_slots.clone().try_acquire_owned().ok()
    }

    /// Puts an event into its reserved slot. False if no worker will take it any more.
    pub(crate) fn push_hot(&self, job: Job, slot: OwnedSemaphorePermit) -> bool {
        let mut state = self.state();
        if state.closing {
            return false;
        }
        state.hot.push_back((WorkUnit::One(job), slot));
        drop(state);
        self.ready.add_permits(1);
        true
    }

    /// How many more events the cold queue accepts.
    pub(crate) fn cold_free(&self) -> usize {
        self.cold_capacity.saturating_sub(self.cold_events.load(Ordering::Acquire))
    }

    /// Counts events into the cold queue, before the work units that hold them are pushed.
    pub(crate) fn count_cold(&self, events: usize) {
        self.cold_events.fetch_add(events, Ordering::AcqRel);
    }

    /// Counts events out of the cold queue.
    pub(crate) fn uncount_cold(&self, events: usize) {
        // Not below zero: `clear` may have reset the count in the meantime.
        let less = |before: usize| Some(before.saturating_sub(events));
        let before =
            self.cold_events.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).unwrap_or_default();
        let half = self.cold_capacity / 2;
        if before > half && before.saturating_sub(events) <= half {
            self.drained.notify_one();
        }
    }

    /// Puts work units into the cold queue, and wakes as many workers.
    pub(crate) fn push_cold(&self, units: Vec<WorkUnit>) {
        let count = units.len();
        self.state().cold.extend(units);
        self.ready.add_permits(count);
    }

    /// The next work unit; `None` when the queues are closed and empty.
    pub(crate) async fn next(&self) -> Option<WorkUnit> {
        loop {
            self.ready.acquire().await.ok()?.forget();
            let mut state = self.state();
            state.turn = (state.turn + 1) % 3;
            let unit = if state.turn == 0 && !state.cold.is_empty() {
                state.cold.pop_front()
            } else {
                let hot = state.hot.pop_front().map(|(unit, _slot)| unit);
                hot.or_else(|| state.cold.pop_front())
            };
            // A permit without a work unit: the queues were cleared, or closed.
            if unit.is_some() || state.closing {
                return unit;
            }
        }
    }

    /// Removes up to `most` wanted work units from the front of the queues. Does not wait.
    pub(crate) fn take_more(&self, most: usize, wanted: impl Fn(&WorkUnit) -> bool) -> Vec<WorkUnit> {
        let mut taken = Vec::new();
        let mut state = self.state();
        pick(&mut state.hot, most, &mut taken, |(unit, _)| wanted(unit), |(unit, _slot)| unit);
        pick(&mut state.cold, most, &mut taken, &wanted, |unit| unit);
        drop(state);
        // Their permits. If a worker holds one of them already, that worker finds the queues empty
        // and waits again.
        if let Ok(permits) = self.ready.try_acquire_many(taken.len() as u32) {
            permits.forget();
        }
        taken
    }

    /// Waits until the cold queue is half empty.
    pub(crate) async fn wait_for_free(&self) {
        while self.cold_free() < self.cold_capacity.div_ceil(2) {
            self.drained.notified().await;
        }
    }

    /// How many events wait in the hot and in the cold queue.
    pub(crate) fn depths(&self) -> (usize, usize) {
        (self.hot_capacity - self.hot_slots.available_permits(), self.cold_events.load(Ordering::Relaxed))
    }

    /// Lets workers finish the queued work, and then end.
    pub(crate) fn close(&self, workers: usize) {
        self.state().closing = true;
        self.ready.add_permits(workers);
    }

    /// Drops all queued work.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        // Dropped without the lock: a call permit adds a work unit when it is dropped.
        let units = (std::mem::take(&mut state.hot), std::mem::take(&mut state.cold));
        drop(state);
        drop(units);
        self.cold_events.store(0, Ordering::Release);
        self.drained.notify_one();
    }
}

/// Moves wanted items from the front of a queue, until there are `most`. The others keep their
/// positions.
fn pick<T>(
    queue: &mut VecDeque<T>,
    most: usize,
    taken: &mut Vec<WorkUnit>,
    wanted: impl Fn(&T) -> bool,
    unit: impl Fn(T) -> WorkUnit,
) {
    let mut left = Vec::new();
    for _ in 0..most * SCAN_FACTOR {
        if taken.len() >= most {
            break;
        }
        match queue.pop_front() {
            Some(item) if wanted(&item) => taken.push(unit(item)),
            Some(item) => left.push(item),
            None => break,
        }
    }
    left.into_iter().rev().for_each(|item| queue.push_front(item));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::job;

    async fn queue_of(queues: &Queues) -> &'static str {
        match queues.next().await {
            Some(WorkUnit::One(job)) if job.delivery.event.event_type() == "hot" => "hot",
            Some(_) => "cold",
            None => "closed",
        }
    }

    #[tokio::test]
    async fn workers_take_two_hot_for_one_cold() {
        let queues = Queues::new(10, 10);
        for _ in 0..6 {
            queues.push_hot(job("hot"), queues.reserve().unwrap());
        }
        queues.push_cold((0..3).map(|_| WorkUnit::One(job("cold"))).collect());
        let mut order = Vec::new();
        for _ in 0..9 {
            order.push(queue_of(&queues).await);
        }
        assert_eq!(order, ["hot", "hot", "cold", "hot", "hot", "cold", "hot", "hot", "cold"]);
    }

    #[tokio::test]
    async fn an_empty_queue_leaves_its_turn_to_the_other() {
        let queues = Queues::new(10, 10);
        queues.push_cold((0..4).map(|_| WorkUnit::One(job("cold"))).collect());
        for _ in 0..4 {
            assert_eq!(queue_of(&queues).await, "cold");
        }
    }

    #[tokio::test]
    async fn slots_are_bounded_and_free_again_when_a_worker_takes() {
        let queues = Queues::new(2, 10);
        let (a, b) = (queues.reserve().unwrap(), queues.reserve().unwrap());
        assert!(queues.reserve().is_none());
        queues.push_hot(job("hot"), a);
        drop(b);
        assert_eq!(queues.depths().0, 1);
        assert!(queues.next().await.is_some());
        assert_eq!(queues.depths().0, 0);
    }

    #[tokio::test]
    async fn units_that_are_not_wanted_keep_their_position() {
        let queues = Queues::new(10, 100);
        let types = ["a", "b", "a", "c", "a", "b"];
        queues.push_cold(types.map(|event_type| WorkUnit::One(job(event_type))).into());
        let is = |unit: &WorkUnit, event_type: &str| matches!(unit, WorkUnit::One(job) if job.delivery.event.event_type() == event_type);
        assert_eq!(queues.take_more(2, |unit| is(unit, "a")).len(), 2);
        for expected in ["b", "c", "a", "b"] {
            let next = queues.next().await.expect("there are four left");
            assert!(is(&next, expected), "{expected}");
        }
        assert!(queues.take_more(2, |_| true).is_empty());
    }

    #[tokio::test]
    async fn closed_queues_are_emptied_first() {
        let queues = Queues::new(2, 10);
        queues.push_cold(vec![WorkUnit::One(job("cold"))]);
        queues.close(1);
        assert_eq!(queue_of(&queues).await, "cold");
        assert_eq!(queue_of(&queues).await, "closed");
        let slot = queues.reserve().unwrap();
        assert!(!queues.push_hot(job("hot"), slot), "no worker would take it");
    }

    /// Leadership can be lost after a worker has taken a work unit and before it has counted the
    /// events out.
    #[tokio::test]
    async fn cleared_events_are_not_counted_out_again() {
        let queues = Queues::new(2, 10);
        queues.count_cold(3);
        queues.clear();
        queues.uncount_cold(3);
        assert_eq!(queues.cold_free(), 10);
    }
}
