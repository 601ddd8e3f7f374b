//! The two bounded queues between taking and handling: hot (after commit) and cold (from the
//! poller).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Job;
use super::runs::RunKey;
use super::sync::{AtomicUsize, Mutex};

/// Work for one worker.
pub(crate) enum Strand {
    /// One event without a key.
    One(Job),
    /// The events of a key (and destination, if the queue has one), one after another.
    /// [`KeyQueues`](super::key_queues::KeyQueues) holds the events.
    Key(RunKey),
}

/// A worker scans this many times as many work units as it wants to add to its batch.
const LOOK: usize = 4;

/// Both queues. Workers take two units from the hot queue for each one from the cold queue, so
/// neither starves.
pub(crate) struct Lanes {
    queues: Mutex<Queues>,
    /// One permit for each queued work unit.
    ready: Semaphore,
    /// The slots of the hot queue. One is reserved before its event is written, so a hand-over
    /// never fails.
    places: Arc<Semaphore>,
    hot_capacity: usize,
    cold_capacity: usize,
    /// Events, not work units, in the cold queue.
    cold_events: AtomicUsize,
    /// Notified when the cold queue has become half empty.
    room: Notify,
}

struct Queues {
    hot: VecDeque<(Strand, OwnedSemaphorePermit)>,
    cold: VecDeque<Strand>,
    turn: u8,
    closing: bool,
}

impl Lanes {
    pub(crate) fn new(hot_capacity: usize, cold_capacity: usize) -> Self {
        Self {
            queues: Mutex::new(Queues {
                hot: VecDeque::new(),
                cold: VecDeque::new(),
                turn: 0,
                closing: false,
            }),
            ready: Semaphore::new(0),
            places: Arc::new(Semaphore::new(hot_capacity)),
            hot_capacity,
            cold_capacity,
            cold_events: AtomicUsize::new(0),
            room: Notify::new(),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("no code panics while it holds this lock")
    }

    /// Reserves a slot in the hot queue, if there is one.
    pub(crate) fn reserve(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Puts an event into its reserved slot. False if no worker will take it any more.
    pub(crate) fn push_hot(&self, job: Job, place: OwnedSemaphorePermit) -> bool {
        let mut queues = self.queues();
        if queues.closing {
            return false;
        }
        queues.hot.push_back((Strand::One(job), place));
        drop(queues);
        self.ready.add_permits(1);
        true
    }

    /// How many more events the cold queue accepts.
    pub(crate) fn cold_room(&self) -> usize {
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
            self.room.notify_one();
        }
    }

    /// Puts work units into the cold queue, and wakes as many workers.
    pub(crate) fn push_cold(&self, strands: Vec<Strand>) {
        let count = strands.len();
        self.queues().cold.extend(strands);
        self.ready.add_permits(count);
    }

    /// The next work unit; `None` when the queues are closed and empty.
    pub(crate) async fn next(&self) -> Option<Strand> {
        loop {
            self.ready.acquire().await.ok()?.forget();
            let mut queues = self.queues();
            queues.turn = (queues.turn + 1) % 3;
            let strand = if queues.turn == 0 && !queues.cold.is_empty() {
                queues.cold.pop_front()
            } else {
                let hot = queues.hot.pop_front().map(|(strand, _place)| strand);
                hot.or_else(|| queues.cold.pop_front())
            };
            // A permit without a work unit: the queues were cleared, or closed.
            if strand.is_some() || queues.closing {
                return strand;
            }
        }
    }

    /// Removes up to `most` wanted work units from the front of the queues. Does not wait.
    pub(crate) fn take_more(&self, most: usize, wanted: impl Fn(&Strand) -> bool) -> Vec<Strand> {
        let mut taken = Vec::new();
        let mut queues = self.queues();
        pick(&mut queues.hot, most, &mut taken, |(strand, _)| wanted(strand), |(strand, _place)| strand);
        pick(&mut queues.cold, most, &mut taken, &wanted, |strand| strand);
        drop(queues);
        // Their permits. If a worker holds one of them already, that worker finds the queues empty
        // and waits again.
        if let Ok(permits) = self.ready.try_acquire_many(taken.len() as u32) {
            permits.forget();
        }
        taken
    }

    /// Waits until the cold queue is half empty.
    pub(crate) async fn wait_for_room(&self) {
        while self.cold_room() < self.cold_capacity.div_ceil(2) {
            self.room.notified().await;
        }
    }

    /// How many events wait in the hot and in the cold queue.
    pub(crate) fn depths(&self) -> (usize, usize) {
        (self.hot_capacity - self.places.available_permits(), self.cold_events.load(Ordering::Relaxed))
    }

    /// Lets workers finish the queued work, and then end.
    pub(crate) fn close(&self, workers: usize) {
        self.queues().closing = true;
        self.ready.add_permits(workers);
    }

    /// Drops all queued work.
    pub(crate) fn clear(&self) {
        let mut queues = self.queues();
        queues.hot.clear();
        queues.cold.clear();
        drop(queues);
        self.cold_events.store(0, Ordering::Release);
        self.room.notify_one();
    }
}

/// Moves wanted items from the front of a queue, until there are `most`. The others keep their
/// positions.
fn pick<T>(
    queue: &mut VecDeque<T>,
    most: usize,
    taken: &mut Vec<Strand>,
    wanted: impl Fn(&T) -> bool,
    strand: impl Fn(T) -> Strand,
) {
    let mut left = Vec::new();
    for _ in 0..most * LOOK {
        if taken.len() >= most {
            break;
        }
        match queue.pop_front() {
            Some(item) if wanted(&item) => taken.push(strand(item)),
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

    async fn lane_of(lanes: &Lanes) -> &'static str {
        match lanes.next().await {
            Some(Strand::One(job)) if job.delivery.event.event_type() == "hot" => "hot",
            Some(_) => "cold",
            None => "closed",
        }
    }

    #[tokio::test]
    async fn workers_take_two_hot_for_one_cold() {
        let lanes = Lanes::new(10, 10);
        for _ in 0..6 {
            lanes.push_hot(job("hot"), lanes.reserve().unwrap());
        }
        lanes.push_cold((0..3).map(|_| Strand::One(job("cold"))).collect());
        let mut order = Vec::new();
        for _ in 0..9 {
            order.push(lane_of(&lanes).await);
        }
        assert_eq!(order, ["hot", "hot", "cold", "hot", "hot", "cold", "hot", "hot", "cold"]);
    }

    #[tokio::test]
    async fn an_empty_lane_leaves_its_turn_to_the_other() {
        let lanes = Lanes::new(10, 10);
        lanes.push_cold((0..4).map(|_| Strand::One(job("cold"))).collect());
        for _ in 0..4 {
            assert_eq!(lane_of(&lanes).await, "cold");
        }
    }

    #[tokio::test]
    async fn places_are_bounded_and_come_back_when_a_worker_takes() {
        let lanes = Lanes::new(2, 10);
        let (a, b) = (lanes.reserve().unwrap(), lanes.reserve().unwrap());
        assert!(lanes.reserve().is_none());
        lanes.push_hot(job("hot"), a);
        drop(b);
        assert_eq!(lanes.depths().0, 1);
        assert!(lanes.next().await.is_some());
        assert_eq!(lanes.depths().0, 0);
    }

    #[tokio::test]
    async fn what_is_not_taken_along_keeps_its_place() {
        let lanes = Lanes::new(10, 100);
        let types = ["a", "b", "a", "c", "a", "b"];
        lanes.push_cold(types.map(|event_type| Strand::One(job(event_type))).into());
        let is = |strand: &Strand, event_type: &str| matches!(strand, Strand::One(job) if job.delivery.event.event_type() == event_type);
        assert_eq!(lanes.take_more(2, |strand| is(strand, "a")).len(), 2);
        for expected in ["b", "c", "a", "b"] {
            let next = lanes.next().await.expect("there are four left");
            assert!(is(&next, expected), "{expected}");
        }
        assert!(lanes.take_more(2, |_| true).is_empty());
    }

    #[tokio::test]
    async fn closed_lanes_are_emptied_first() {
        let lanes = Lanes::new(2, 10);
        lanes.push_cold(vec![Strand::One(job("cold"))]);
        lanes.close(1);
        assert_eq!(lane_of(&lanes).await, "cold");
        assert_eq!(lane_of(&lanes).await, "closed");
        let place = lanes.reserve().unwrap();
        assert!(!lanes.push_hot(job("hot"), place), "no worker would take it");
    }

    /// Leadership can be lost after a worker has taken a work unit and before it has counted the
    /// events out.
    #[tokio::test]
    async fn what_was_cleared_is_not_counted_out_again() {
        let lanes = Lanes::new(2, 10);
        lanes.count_cold(3);
        lanes.clear();
        lanes.uncount_cold(3);
        assert_eq!(lanes.cold_room(), 10);
    }
}
