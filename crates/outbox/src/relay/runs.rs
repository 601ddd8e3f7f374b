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
use crate::store::{Reach, RunId};

/// A key queue of one epoch; with leases there is one epoch. After another node has led, a worker
/// that is still busy with an event of a queue does not find the queue any more, even if the key
/// was taken anew since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunKey {
    pub(crate) id: RunId,
    pub(crate) epoch: i64,
}

/// How many events of one key a worker handles before other work units get a turn.
pub(crate) const TURN: usize = 64;

/// The queues of all keys. A queue is kept until all its events are settled: later events of the
/// key may be taken before that.
#[derive(Default)]
pub(crate) struct Runs {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    runs: HashMap<RunKey, Run>,
    /// How many queues of each key go to one destination only.
    split: HashMap<Arc<str>, usize>,
    /// Keys with rows that a read skipped, because an earlier event held them back.
    behind: HashSet<Arc<str>>,
    /// Keys with skipped rows that can be read now.
    free: Vec<Arc<str>>,
    /// Queues whose halt ended since the current read began: that read may be older.
    unsure: HashSet<RunId>,
    /// Keys with a queue that ended since then.
    ended: HashSet<Arc<str>>,
}

impl Inner {
    /// The queue that an event belongs to; `None` if the event cannot be added now.
    fn place(&self, run: RunKey) -> Option<RunKey> {
        let whole = RunKey { id: RunId::of_key(run.id.key.clone()), epoch: run.epoch };
        if self.runs.contains_key(&whole) {
            return Some(whole);
        }
        let is_split = run.id.destination.is_none() && self.split.contains_key(&run.id.key);
        (!is_split).then_some(run)
    }

    /// Whether the current read may be older than the end of a halt of this queue.
    fn is_unsure(&self, id: &RunId) -> bool {
        let same = |unsure: &RunId| {
            let whole = id.destination.is_none() || unsure.destination.is_none();
            unsure.key == id.key && (whole || unsure.destination == id.destination)
        };
        !self.unsure.is_empty() && self.unsure.iter().any(same)
    }

    fn remove(&mut self, run: &RunKey) {
        if self.runs.remove(run).is_some() && run.id.destination.is_some() {
            match self.split.get_mut(&run.id.key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.split.remove(&run.id.key)),
            }
        }
    }
}

struct Run {
    queue: VecDeque<Job>,
    state: State,
    /// The newest event taken: all events of the key (and destination, if the queue has one) up to
    /// it are in this queue.
    frontier: Reach,
    /// Whether another node may hold some of the events by now.
    doubtful: bool,
    /// Whether the database refused a verdict: no event of the queue is handled until that verdict
    /// is written.
    refused: bool,
    unsettled: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
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
    pub(crate) scheduled: Vec<RunKey>,
    /// Jobs that were not added: an earlier event of their key was not done just now.
    pub(crate) refused: Vec<Job>,
}

/// How a worker of a key treats the next event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Handles it.
    Here,
    /// Handles it after all events handled before it are settled.
    Caught,
    /// Leaves it to a publisher.
    Elsewhere,
}

/// The next event of a key.
pub(crate) enum Next {
    /// To be handled now.
    Job(Job),
    /// Still queued, for this reason.
    Not(Way),
    /// There is none.
    Nothing,
    /// An earlier verdict could not be written: the event is released, and waits.
    Refused,
}

impl Runs {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no code panics while it holds this lock")
    }

    /// Marks the start of a read. Returns the newest event of each queue in memory, for
    /// [`Take::frontiers`](crate::store::Take::frontiers).
    pub(crate) fn begin_read(&self) -> HashMap<RunId, Reach> {
        let mut inner = self.inner();
        inner.ended.clear();
        inner.unsure.clear();
        let mut frontiers: HashMap<RunId, Reach> = HashMap::new();
        for (RunKey { id, .. }, run) in inner.runs.iter().filter(|(_, run)| !run.doubtful) {
            let frontier = frontiers.entry(id.clone()).or_insert(run.frontier);
            // A queue of an epoch that is over may be left: then less of the key is known.
            if run.frontier.seq < frontier.seq {
                *frontier = run.frontier;
            }
        }
        frontiers
    }

    /// Some leases were lost. Until every queue that exists now is settled, its newest event is not
    /// reported to `take`: another node may hold part of the queue.
    pub(crate) fn doubt(&self) {
        self.inner().runs.values_mut().for_each(|run| run.doubtful = true);
    }

    /// Adds jobs, those of each key in order.
    pub(crate) fn push(&self, jobs: Vec<(RunId, Job)>) -> Pushed {
        let mut pushed = Pushed::default();
        let mut freed = HashSet::new();
        // Keys with a refused event that all later ones have to wait for.
        let mut closed: HashSet<Arc<str>> = HashSet::new();
        let mut guard = self.inner();
        let inner = &mut *guard;
        for (id, job) in jobs {
            let run = RunKey { id: id.clone(), epoch: job.epoch };
            let place = inner.place(run).filter(|_| !closed.contains(&id.key));
            let halted =
                place.as_ref().and_then(|place| inner.runs.get(place)).map(|run| run.state == State::Halted);
            let refused = place.is_none() || halted == Some(true);
            let unsure = inner.is_unsure(&id);
            let Some(place) = place.filter(|_| !refused && !unsure) else {
                if !refused && freed.insert(id.key.clone()) {
                    inner.free.push(id.key.clone());
                }
                if id.destination.is_none() {
                    closed.insert(id.key.clone());
                }
                inner.behind.insert(id.key);
                pushed.refused.push(job);
                continue;
            };
            if halted.is_none() && place.id.destination.is_some() {
                *inner.split.entry(place.id.key.clone()).or_default() += 1;
            }
            let run = inner.runs.entry(place.clone()).or_insert_with(|| Run {
                queue: VecDeque::new(),
                state: State::Idle,
                frontier: Reach { seq: 0, together: true },
                doubtful: false,
                refused: false,
                unsettled: 0,
            });
            run.unsettled += 1;
            run.frontier.seq = run.frontier.seq.max(job.delivery.seq.unwrap_or_default());
            run.frontier.together &= job.delivery.claim == 0;
            run.queue.push_back(job);
            if run.state != State::Scheduled {
                run.state = State::Scheduled;
                pushed.scheduled.push(place);
            }
        }
        pushed
    }

    /// The next event of a queue for its worker, if that step is possible now.
    pub(crate) fn next(&self, key: &RunKey, way: impl FnOnce(&Job) -> Way) -> Next {
        let mut inner = self.inner();
        let Some(run) = inner.runs.get_mut(key) else { return Next::Nothing };
        let Some(job) = run.queue.front() else {
            self.rest(&mut inner, key);
            return Next::Nothing;
        };
        if run.refused {
            return Next::Refused;
        }
        let unwritten = run.unsettled > run.queue.len();
        match way(job) {
            Way::Caught if unwritten => Next::Not(Way::Caught),
            Way::Here | Way::Caught => run.queue.pop_front().map_or(Next::Nothing, Next::Job),
            Way::Elsewhere => Next::Not(Way::Elsewhere),
        }
    }

    /// Marks a queue that has no event left to handle.
    fn rest(&self, inner: &mut Inner, key: &RunKey) {
        let Some(run) = inner.runs.get_mut(key) else { return };
        run.state = State::Idle;
        if run.unsettled == 0 {
            inner.remove(key);
        }
    }

    /// Inspects the next event of a key.
    pub(crate) fn peek<T>(&self, key: &RunKey, look: impl FnOnce(&Job) -> T) -> Option<T> {
        self.inner().runs.get(key)?.queue.front().map(look)
    }

    /// Removes the next events of a key for its worker: at most this many, while they are wanted.
    pub(crate) fn next_while(&self, key: &RunKey, most: usize, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut inner = self.inner();
        let Some(run) = inner.runs.get_mut(key) else { return Vec::new() };
        let most = most.min(run.queue.len());
        let count = (0..most).find(|n| !wanted(&run.queue[*n])).unwrap_or(most);
        run.queue.drain(..count).collect()
    }

    /// Ends a worker's turn: true if the queue has more events, and needs a worker.
    pub(crate) fn goes_on(&self, key: &RunKey) -> bool {
        let mut inner = self.inner();
        let more = inner.runs.get(key).is_some_and(|run| !run.queue.is_empty());
        if !more {
            self.rest(&mut inner, key);
        }
        more
    }

    /// Records that the database refused a verdict of this key. No further event of the key is
    /// handled until that verdict is written.
    pub(crate) fn refused(&self, key: &RunKey) {
        if let Some(run) = self.inner().runs.get_mut(key) {
            (run.refused, run.doubtful) = (true, true);
        }
    }

    pub(crate) fn is_refused(&self, key: &RunKey) -> bool {
        self.inner().runs.get(key).is_some_and(|run| run.refused)
    }

    /// Halts a key: an event was not done, so no later one is handled. Returns the jobs that were
    /// still queued.
    pub(crate) fn halt(&self, key: &RunKey) -> Vec<Job> {
        let mut inner = self.inner();
        inner.behind.insert(key.id.key.clone());
        let Some(run) = inner.runs.get_mut(key) else { return Vec::new() };
        run.state = State::Halted;
        std::mem::take(&mut run.queue).into()
    }

    /// Records how many events of these queues are settled in the database; `true` if that ends a
    /// halt.
    pub(crate) fn settled(&self, runs: impl IntoIterator<Item = (RunKey, usize, bool)>) {
        let mut guard = self.inner();
        let inner = &mut *guard;
        for (key, events, halted) in runs {
            if let Some(run) = inner.runs.get_mut(&key) {
                run.unsettled = run.unsettled.saturating_sub(events);
                let over = match run.state {
                    State::Halted => halted,
                    State::Idle => run.unsettled == 0,
                    State::Scheduled => false,
                };
                if !over {
                    continue;
                }
                inner.remove(&key);
                if halted {
                    inner.unsure.insert(key.id.clone());
                }
            }
            let key = key.id.key;
            inner.ended.insert(key.clone());
            if inner.behind.remove(&key) {
                inner.free.push(key);
            }
        }
    }

    /// Remembers keys with skipped rows.
    pub(crate) fn leave_behind(&self, keys: Vec<Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            // The event that held the key back may be settled since the read: no further settlement
            // would make the key resumable.
            if inner.ended.contains(&key) {
                inner.free.push(key);
            } else {
                inner.behind.insert(key);
            }
        }
    }

    /// Marks keys as resumable: nothing is known of their remaining rows.
    pub(crate) fn set_free(&self, keys: Vec<Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            inner.behind.remove(&key);
            inner.free.push(key);
        }
    }

    /// Forgets keys that have no rows left.
    pub(crate) fn not_behind<'a>(&self, keys: impl IntoIterator<Item = &'a Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            inner.behind.remove(key);
        }
    }

    /// Removes and returns resumable keys, at most this many.
    pub(crate) fn take_free(&self, most: usize) -> Vec<Arc<str>> {
        let mut inner = self.inner();
        let keep = inner.free.len().saturating_sub(most);
        let mut keys = inner.free.split_off(keep);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.inner().free.is_empty()
    }

    /// Forgets all skipped keys: a full pass over the table sees every key.
    pub(crate) fn forget_behind(&self) {
        let mut inner = self.inner();
        inner.behind.clear();
        inner.free.clear();
    }

    /// Drops all queues and their jobs: the right to hold the events is lost.
    pub(crate) fn clear(&self) {
        *self.inner() = Inner::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::job;

    /// The handler was still running while another node led, and then this one again.
    #[test]
    fn a_worker_of_an_epoch_that_is_over_takes_nothing_of_the_next() {
        let runs = Runs::default();
        let of = |epoch| vec![(RunId::of_key("k"), Job { epoch, ..job("e") })];
        let old = runs.push(of(5)).scheduled.remove(0);
        assert!(matches!(runs.next(&old, |_| Way::Here), Next::Job(_)));
        runs.clear();
        let new = runs.push(of(7)).scheduled.remove(0);
        assert!(matches!(runs.next(&old, |_| Way::Here), Next::Nothing));
        assert!(runs.halt(&old).is_empty());
        runs.settled([(old, 1, true)]);
        assert!(matches!(runs.next(&new, |_| Way::Here), Next::Job(_)));
    }
}
