//! The events of each ordering key that this node has taken: handled one after another, up to the first that is not
//! done.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::MutexGuard;

use super::Job;
use super::sync::Mutex;
use crate::store::Reach;

/// How many events of one key a worker handles before the others get a turn.
pub(crate) const TURN: usize = 64;

/// The runs of all keys. A run is remembered until all of it is settled: what comes after it may be taken before that.
#[derive(Default)]
pub(crate) struct Runs {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    runs: HashMap<String, Run>,
    /// Keys of which rows were passed by, because an earlier event was in the way.
    behind: HashSet<String>,
    /// Keys of which rows were passed by and that are free now.
    free: Vec<String>,
    /// Keys whose halt ended since the current read began: that read may be older.
    unsure: HashSet<String>,
    /// Keys of which something was settled since then.
    moved: HashSet<String>,
}

struct Run {
    queue: VecDeque<Job>,
    state: State,
    /// The newest event taken: everything of the key up to it is in this run.
    frontier: Reach,
    /// Whether some of it may be somebody else's by now.
    doubtful: bool,
    unsettled: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A worker is at it, or will be.
    Scheduled,
    /// Nothing left to handle.
    Idle,
    /// An event was not done, and that is not in the database yet.
    Halted,
}

/// What became of jobs that were offered to a run.
pub(crate) enum Pushed {
    /// Taken in; the key needs a worker.
    Schedule,
    /// Taken in; a worker is at it.
    Joined,
    /// Not taken in: an earlier event was not done just now.
    Refused(Vec<Job>),
}

impl Runs {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no one panics while holding this lock")
    }

    /// A read of the database begins. Returns the newest event of each key that is in memory, for
    /// [`Take::frontiers`](crate::store::Take::frontiers).
    pub(crate) fn begin_read(&self) -> HashMap<String, Reach> {
        let mut inner = self.inner();
        inner.moved.clear();
        inner.unsure.clear();
        let sure = inner.runs.iter().filter(|(_, run)| !run.doubtful);
        sure.map(|(key, run)| (key.clone(), run.frontier)).collect()
    }

    /// Leases were lost: until what there is now is settled, nobody goes on from where it ends.
    pub(crate) fn doubt(&self) {
        self.inner().runs.values_mut().for_each(|run| run.doubtful = true);
    }

    /// Offers jobs of a key, in order.
    pub(crate) fn push(&self, key: &str, jobs: Vec<Job>) -> Pushed {
        let mut inner = self.inner();
        let halted = inner.runs.get(key).is_some_and(|run| run.state == State::Halted);
        if halted || inner.unsure.contains(key) {
            inner.behind.insert(key.to_owned());
            if !halted {
                inner.free.push(key.to_owned());
            }
            return Pushed::Refused(jobs);
        }
        let run = inner.runs.entry(key.to_owned()).or_insert_with(|| Run {
            queue: VecDeque::new(),
            state: State::Idle,
            frontier: Reach { seq: 0, together: true },
            doubtful: false,
            unsettled: 0,
        });
        run.unsettled += jobs.len();
        for delivery in jobs.iter().map(|job| &job.delivery) {
            run.frontier.seq = run.frontier.seq.max(delivery.seq.unwrap_or_default());
            run.frontier.together &= delivery.claim == 0;
        }
        run.queue.extend(jobs);
        if run.state == State::Scheduled {
            return Pushed::Joined;
        }
        run.state = State::Scheduled;
        Pushed::Schedule
    }

    /// The next event of a key for the worker that is at it.
    pub(crate) fn next(&self, key: &str) -> Option<Job> {
        let mut inner = self.inner();
        let run = inner.runs.get_mut(key)?;
        let job = run.queue.pop_front();
        if job.is_none() {
            self.rest(&mut inner, key);
        }
        job
    }

    /// Nothing is left to handle of a key.
    fn rest(&self, inner: &mut Inner, key: &str) {
        let Some(run) = inner.runs.get_mut(key) else { return };
        run.state = State::Idle;
        if run.unsettled == 0 {
            inner.runs.remove(key);
        }
    }

    /// Looks at the next event of a key.
    pub(crate) fn peek<T>(&self, key: &str, look: impl FnOnce(&Job) -> T) -> Option<T> {
        self.inner().runs.get(key)?.queue.front().map(look)
    }

    /// The next events of a key for the worker that is at it: at most this many, while they are wanted.
    pub(crate) fn next_while(&self, key: &str, most: usize, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut inner = self.inner();
        let Some(run) = inner.runs.get_mut(key) else { return Vec::new() };
        let most = most.min(run.queue.len());
        let count = (0..most).find(|n| !wanted(&run.queue[*n])).unwrap_or(most);
        run.queue.drain(..count).collect()
    }

    /// The worker at a key is done with what it took: true if there is more, and the key needs a worker.
    pub(crate) fn goes_on(&self, key: &str) -> bool {
        let mut inner = self.inner();
        let more = inner.runs.get(key).is_some_and(|run| !run.queue.is_empty());
        if !more {
            self.rest(&mut inner, key);
        }
        more
    }

    /// Whether something of the key was handled that is not settled yet.
    pub(crate) fn has_unwritten(&self, key: &str) -> bool {
        self.inner().runs.get(key).is_some_and(|run| run.unsettled > run.queue.len())
    }

    /// An event was not done: nothing more of its key is handled. Returns what was still queued.
    pub(crate) fn halt(&self, key: &str) -> Vec<Job> {
        let mut inner = self.inner();
        inner.behind.insert(key.to_owned());
        let Some(run) = inner.runs.get_mut(key) else { return Vec::new() };
        run.state = State::Halted;
        std::mem::take(&mut run.queue).into()
    }

    /// This many events of the key are settled in the database; `halted` if that ends a halt.
    pub(crate) fn settled(&self, key: &str, events: usize, halted: bool) {
        let mut inner = self.inner();
        inner.moved.insert(key.to_owned());
        if let Some(run) = inner.runs.get_mut(key) {
            run.unsettled = run.unsettled.saturating_sub(events);
            let over = match run.state {
                State::Halted => halted,
                State::Idle => run.unsettled == 0,
                State::Scheduled => false,
            };
            if !over {
                return;
            }
            inner.runs.remove(key);
            if halted {
                inner.unsure.insert(key.to_owned());
            }
        }
        if inner.behind.remove(key) {
            inner.free.push(key.to_owned());
        }
    }

    /// Remembers keys of which rows were passed by.
    pub(crate) fn leave_behind(&self, keys: Vec<String>) {
        let mut inner = self.inner();
        for key in keys {
            // What was in the way may be gone since the read: nobody would say so again.
            if inner.moved.contains(&key) && !inner.runs.contains_key(&key) {
                inner.free.push(key);
            } else {
                inner.behind.insert(key);
            }
        }
    }

    /// Keys of which no rows are left.
    pub(crate) fn not_behind<'a>(&self, keys: impl IntoIterator<Item = &'a String>) {
        let mut inner = self.inner();
        for key in keys {
            inner.behind.remove(key);
        }
    }

    /// Keys of which rows were passed by and that are free now, at most this many.
    pub(crate) fn take_free(&self, most: usize) -> Vec<String> {
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

    /// A full pass over the table has seen every key: nothing is behind any more.
    pub(crate) fn forget_behind(&self) {
        let mut inner = self.inner();
        inner.behind.clear();
        inner.free.clear();
    }

    /// Everything that is queued, and no run at all: the right to them is lost.
    pub(crate) fn clear(&self) {
        *self.inner() = Inner::default();
    }
}
