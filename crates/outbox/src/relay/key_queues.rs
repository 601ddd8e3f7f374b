//! Events of each ordering key that this node has taken: handled one after another, up to the first
//! that is not done.
//!
//! Events of a key that go to different destinations are in different queues, which run
//! concurrently. A key with an event that has no fixed destination, for example one for a handler,
//! has one queue for all its events as long as this node holds that event.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, MutexGuard};

use super::Job;
use super::sync::Mutex;
use crate::store::{KeyProgress, KeyQueueId};

/// A key queue of one epoch; with leases there is one epoch. After another node has led, a worker
/// that is still busy with an event of a queue does not find the queue any more, even if the key
/// was taken anew since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyQueueRef {
    pub(crate) id: KeyQueueId,
    pub(crate) epoch: i64,
}

/// How many events of one key a worker handles before other work units get a turn.
pub(crate) const TURN: usize = 64;

/// The queues of all keys. A queue is kept until all its events are settled: later events of the
/// key may be taken before that.
#[derive(Default)]
pub(crate) struct KeyQueues {
    inner: Mutex<KeyQueuesState>,
}

#[derive(Default)]
struct KeyQueuesState {
    queues: HashMap<KeyQueueRef, KeyQueue>,
    /// How many queues of each key go to one destination only.
    by_destination: HashMap<Arc<str>, usize>,
    /// Keys with rows that a read skipped, because an earlier event held them back.
    skipped: HashSet<Arc<str>>,
    /// Keys with skipped rows that can be read now.
    resumable: Vec<Arc<str>>,
    /// Queues whose halt ended since the current read began: that read may be older.
    ended_halts: HashSet<KeyQueueId>,
    /// Keys with a queue that ended since then.
    ended: HashSet<Arc<str>>,
}

impl KeyQueuesState {
    /// The queue that an event belongs to; `None` if the event cannot be added now.
    fn target(&self, queue: KeyQueueRef) -> Option<KeyQueueRef> {
        let whole = KeyQueueRef { id: KeyQueueId::of_key(queue.id.key.clone()), epoch: queue.epoch };
        if self.queues.contains_key(&whole) {
            return Some(whole);
        }
        let is_split = queue.id.destination.is_none() && self.by_destination.contains_key(&queue.id.key);
        (!is_split).then_some(queue)
    }

    /// Whether the current read may be older than the end of a halt of this queue.
    fn may_predate_halt_end(&self, id: &KeyQueueId) -> bool {
        let same = |ended: &KeyQueueId| {
            let whole = id.destination.is_none() || ended.destination.is_none();
            ended.key == id.key && (whole || ended.destination == id.destination)
        };
        !self.ended_halts.is_empty() && self.ended_halts.iter().any(same)
    }

    fn remove(&mut self, queue: &KeyQueueRef) {
        if self.queues.remove(queue).is_some() && queue.id.destination.is_some() {
            match self.by_destination.get_mut(&queue.id.key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.by_destination.remove(&queue.id.key)),
            }
        }
    }
}

struct KeyQueue {
    jobs: VecDeque<Job>,
    state: KeyQueueState,
    /// The newest event taken: all events of the key (and destination, if the queue has one) up to
    /// it are in this queue.
    newest: KeyProgress,
    /// Whether another node may hold some of the events by now.
    uncertain: bool,
    /// Whether the database refused a verdict: no event of the queue is handled until that verdict
    /// is written.
    refused: bool,
    unsettled: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyQueueState {
    /// A worker handles it, or will.
    Scheduled,
    /// No event left to handle.
    Idle,
    /// An event was not done, and its verdict is not in the database yet.
    Halted,
}

/// Result of adding jobs to their queues.
#[derive(Default)]
pub(crate) struct Pushed {
    /// Queues that need a worker.
    pub(crate) scheduled: Vec<KeyQueueRef>,
    /// Jobs that were not added: an earlier event of their key was not done just now.
    pub(crate) refused: Vec<Job>,
}

/// How a worker of a key treats the next event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Handles it.
    Handle,
    /// Handles it after all events handled before it are settled.
    HandleWhenSettled,
    /// Leaves it to a publisher.
    Publish,
}

/// The next event of a key.
pub(crate) enum NextEvent {
    /// To be handled now.
    Job(Job),
    /// Still queued, for this reason.
    Blocked(NextStep),
    /// There is none.
    Empty,
    /// An earlier verdict could not be written: the event is released, and waits.
    Refused,
}

impl KeyQueues {
    fn inner(&self) -> MutexGuard<'_, KeyQueuesState> {
        self.inner.lock().expect("no code panics while it holds this lock")
    }

    /// Marks the start of a read. Returns the newest event of each queue in memory, for
    /// [`Take::held_up_to`](crate::store::Take::held_up_to).
    pub(crate) fn begin_read(&self) -> HashMap<KeyQueueId, KeyProgress> {
        let mut inner = self.inner();
        inner.ended.clear();
        inner.ended_halts.clear();
        let mut reported: HashMap<KeyQueueId, KeyProgress> = HashMap::new();
        for (KeyQueueRef { id, .. }, queue) in inner.queues.iter().filter(|(_, queue)| !queue.uncertain) {
            let entry = reported.entry(id.clone()).or_insert(queue.newest);
            // A queue of an epoch that is over may be left: then less of the key is known.
            if queue.newest.seq < entry.seq {
                *entry = queue.newest;
            }
        }
        reported
    }

    /// Stops reporting the newest event of every queue that exists now, until the queue is settled:
    /// some leases were lost, and another node may hold part of the queue.
    pub(crate) fn invalidate(&self) {
        self.inner().queues.values_mut().for_each(|queue| queue.uncertain = true);
    }

    /// Adds jobs, those of each key in order.
    pub(crate) fn push(&self, jobs: Vec<(KeyQueueId, Job)>) -> Pushed {
        let mut pushed = Pushed::default();
        let mut freed = HashSet::new();
        // Keys with a refused event that all later ones have to wait for.
        let mut closed: HashSet<Arc<str>> = HashSet::new();
        let mut guard = self.inner();
        let inner = &mut *guard;
        for (id, job) in jobs {
            let queue = KeyQueueRef { id: id.clone(), epoch: job.epoch };
            let target = inner.target(queue).filter(|_| !closed.contains(&id.key));
            let halted = target
                .as_ref()
                .and_then(|target| inner.queues.get(target))
                .map(|queue| queue.state == KeyQueueState::Halted);
            let refused = target.is_none() || halted == Some(true);
            let predates = inner.may_predate_halt_end(&id);
            let Some(target) = target.filter(|_| !refused && !predates) else {
                if !refused && freed.insert(id.key.clone()) {
                    inner.resumable.push(id.key.clone());
                }
                if id.destination.is_none() {
                    closed.insert(id.key.clone());
                }
                inner.skipped.insert(id.key);
                pushed.refused.push(job);
                continue;
            };
            if halted.is_none() && target.id.destination.is_some() {
                *inner.by_destination.entry(target.id.key.clone()).or_default() += 1;
            }
            let queue = inner.queues.entry(target.clone()).or_insert_with(|| KeyQueue {
                jobs: VecDeque::new(),
                state: KeyQueueState::Idle,
                newest: KeyProgress { seq: 0, group_lease: true },
                uncertain: false,
                refused: false,
                unsettled: 0,
            });
            queue.unsettled += 1;
            queue.newest.seq = queue.newest.seq.max(job.delivery.seq.unwrap_or_default());
            queue.newest.group_lease &= job.delivery.claim == 0;
            queue.jobs.push_back(job);
            if queue.state != KeyQueueState::Scheduled {
                queue.state = KeyQueueState::Scheduled;
                pushed.scheduled.push(target);
            }
        }
        pushed
    }

    /// The next event of a queue for its worker, if that step is possible now.
    pub(crate) fn next(&self, key: &KeyQueueRef, next_step: impl FnOnce(&Job) -> NextStep) -> NextEvent {
        let mut inner = self.inner();
        let Some(queue) = inner.queues.get_mut(key) else { return NextEvent::Empty };
        let Some(job) = queue.jobs.front() else {
            self.set_idle(&mut inner, key);
            return NextEvent::Empty;
        };
        if queue.refused {
            return NextEvent::Refused;
        }
        let unwritten = queue.unsettled > queue.jobs.len();
        match next_step(job) {
            NextStep::HandleWhenSettled if unwritten => NextEvent::Blocked(NextStep::HandleWhenSettled),
            NextStep::Handle | NextStep::HandleWhenSettled => {
                queue.jobs.pop_front().map_or(NextEvent::Empty, NextEvent::Job)
            }
            NextStep::Publish => NextEvent::Blocked(NextStep::Publish),
        }
    }

    /// Marks a queue that has no event left to handle.
    fn set_idle(&self, inner: &mut KeyQueuesState, key: &KeyQueueRef) {
        let Some(queue) = inner.queues.get_mut(key) else { return };
        queue.state = KeyQueueState::Idle;
        if queue.unsettled == 0 {
            inner.remove(key);
        }
    }

    /// Inspects the next event of a key.
    pub(crate) fn peek<T>(&self, key: &KeyQueueRef, look: impl FnOnce(&Job) -> T) -> Option<T> {
        self.inner().queues.get(key)?.jobs.front().map(look)
    }

    /// Removes the next events of a key for its worker: at most this many, while they are wanted.
    pub(crate) fn next_while(
        &self,
        key: &KeyQueueRef,
        most: usize,
        wanted: impl Fn(&Job) -> bool,
    ) -> Vec<Job> {
        let mut inner = self.inner();
        let Some(queue) = inner.queues.get_mut(key) else { return Vec::new() };
        let most = most.min(queue.jobs.len());
        let count = (0..most).find(|n| !wanted(&queue.jobs[*n])).unwrap_or(most);
        queue.jobs.drain(..count).collect()
    }

    /// Ends a worker's turn: true if the queue has more events, and needs a worker.
    pub(crate) fn end_turn(&self, key: &KeyQueueRef) -> bool {
        let mut inner = self.inner();
        let more = inner.queues.get(key).is_some_and(|queue| !queue.jobs.is_empty());
        if !more {
            self.set_idle(&mut inner, key);
        }
        more
    }

    /// Records that the database refused a verdict of this key. No further event of the key is
    /// handled until that verdict is written.
    pub(crate) fn refused(&self, key: &KeyQueueRef) {
        if let Some(queue) = self.inner().queues.get_mut(key) {
            (queue.refused, queue.uncertain) = (true, true);
        }
    }

    pub(crate) fn is_refused(&self, key: &KeyQueueRef) -> bool {
        self.inner().queues.get(key).is_some_and(|queue| queue.refused)
    }

    /// Halts a key: an event was not done, so no later one is handled. Returns the jobs that were
    /// still queued.
    pub(crate) fn halt(&self, key: &KeyQueueRef) -> Vec<Job> {
        let mut inner = self.inner();
        inner.skipped.insert(key.id.key.clone());
        let Some(queue) = inner.queues.get_mut(key) else { return Vec::new() };
        queue.state = KeyQueueState::Halted;
        std::mem::take(&mut queue.jobs).into()
    }

    /// Records how many events of these queues are settled in the database; `true` if that ends a
    /// halt.
    pub(crate) fn settled(&self, queues: impl IntoIterator<Item = (KeyQueueRef, usize, bool)>) {
        let mut guard = self.inner();
        let inner = &mut *guard;
        for (key, events, halted) in queues {
            if let Some(queue) = inner.queues.get_mut(&key) {
                queue.unsettled = queue.unsettled.saturating_sub(events);
                let over = match queue.state {
                    KeyQueueState::Halted => halted,
                    KeyQueueState::Idle => queue.unsettled == 0,
                    KeyQueueState::Scheduled => false,
                };
                if !over {
                    continue;
                }
                inner.remove(&key);
                if halted {
                    inner.ended_halts.insert(key.id.clone());
                }
            }
            let key = key.id.key;
            inner.ended.insert(key.clone());
            if inner.skipped.remove(&key) {
                inner.resumable.push(key);
            }
        }
    }

    /// Remembers keys with skipped rows.
    pub(crate) fn mark_skipped(&self, keys: Vec<Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            // The event that held the key back may be settled since the read: no further settlement
            // would make the key resumable.
            if inner.ended.contains(&key) {
                inner.resumable.push(key);
            } else {
                inner.skipped.insert(key);
            }
        }
    }

    /// Marks keys as resumable: nothing is known of their remaining rows.
    pub(crate) fn mark_resumable(&self, keys: Vec<Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            inner.skipped.remove(&key);
            inner.resumable.push(key);
        }
    }

    /// Forgets keys that have no rows left.
    pub(crate) fn clear_skipped<'a>(&self, keys: impl IntoIterator<Item = &'a Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            inner.skipped.remove(key);
        }
    }

    /// Removes and returns resumable keys, at most this many.
    pub(crate) fn take_resumable(&self, most: usize) -> Vec<Arc<str>> {
        let mut inner = self.inner();
        let keep = inner.resumable.len().saturating_sub(most);
        let mut keys = inner.resumable.split_off(keep);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    pub(crate) fn has_resumable(&self) -> bool {
        !self.inner().resumable.is_empty()
    }

    /// Forgets all skipped keys: a full pass over the table sees every key.
    pub(crate) fn forget_skipped(&self) {
        let mut inner = self.inner();
        inner.skipped.clear();
        inner.resumable.clear();
    }

    /// Drops all queues and their jobs: the right to hold the events is lost.
    pub(crate) fn clear(&self) {
        *self.inner() = KeyQueuesState::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::job;

    /// The handler was still running while another node led, and then this one again.
    #[test]
    fn a_worker_of_an_epoch_that_is_over_takes_nothing_of_the_next() {
        let queues = KeyQueues::default();
        let of = |epoch| vec![(KeyQueueId::of_key("k"), Job { epoch, ..job("e") })];
        let old = queues.push(of(5)).scheduled.remove(0);
        assert!(matches!(queues.next(&old, |_| NextStep::Handle), NextEvent::Job(_)));
        queues.clear();
        let new = queues.push(of(7)).scheduled.remove(0);
        assert!(matches!(queues.next(&old, |_| NextStep::Handle), NextEvent::Empty));
        assert!(queues.halt(&old).is_empty());
        queues.settled([(old, 1, true)]);
        assert!(matches!(queues.next(&new, |_| NextStep::Handle), NextEvent::Job(_)));
    }
}
