//! The events of each ordering key that this node has taken: handled one after another, up to the first that is not
//! done.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, MutexGuard};

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
    runs: HashMap<Arc<str>, Run>,
    /// Keys of which rows were passed by, because an earlier event was in the way.
    behind: HashSet<Arc<str>>,
    /// Keys of which rows were passed by and that are free now.
    free: Vec<Arc<str>>,
    /// Keys whose halt ended since the current read began: that read may be older.
    unsure: HashSet<Arc<str>>,
    /// Keys of which something was settled since then.
    moved: HashSet<Arc<str>>,
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

/// What became of jobs that were offered to their runs.
#[derive(Default)]
pub(crate) struct Pushed {
    /// Keys that need a worker.
    pub(crate) scheduled: Vec<Arc<str>>,
    /// Those that were not taken in: an earlier event of their key was not done just now.
    pub(crate) refused: Vec<Job>,
}

/// What a worker at a key does about its next event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Handles it.
    Here,
    /// Handles it when all that was handled before it is settled.
    Caught,
    /// Leaves it: a publisher gets it.
    Elsewhere,
}

/// The next event of a key.
pub(crate) enum Next {
    /// It is to be handled.
    Job(Job),
    /// It is still there, and this is in the way.
    Not(Way),
    /// There is none.
    Nothing,
}

impl Runs {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no one panics while holding this lock")
    }

    /// A read of the database begins. Returns the newest event of each key that is in memory, for
    /// [`Take::frontiers`](crate::store::Take::frontiers).
    pub(crate) fn begin_read(&self) -> HashMap<Arc<str>, Reach> {
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

    /// Offers jobs, those of each key in order.
    pub(crate) fn push(&self, jobs: Vec<(Arc<str>, Job)>) -> Pushed {
        let mut pushed = Pushed::default();
        let mut freed = HashSet::new();
        let mut inner = self.inner();
        let Inner { runs, behind, free, unsure, .. } = &mut *inner;
        for (key, job) in jobs {
            let halted = runs.get(&key).is_some_and(|run| run.state == State::Halted);
            if halted || unsure.contains(&key) {
                if !halted && freed.insert(key.clone()) {
                    free.push(key.clone());
                }
                behind.insert(key);
                pushed.refused.push(job);
                continue;
            }
            let run = runs.entry(key.clone()).or_insert_with(|| Run {
                queue: VecDeque::new(),
                state: State::Idle,
                frontier: Reach { seq: 0, together: true },
                doubtful: false,
                unsettled: 0,
            });
            run.unsettled += 1;
            run.frontier.seq = run.frontier.seq.max(job.delivery.seq.unwrap_or_default());
            run.frontier.together &= job.delivery.claim == 0;
            run.queue.push_back(job);
            if run.state != State::Scheduled {
                run.state = State::Scheduled;
                pushed.scheduled.push(key);
            }
        }
        pushed
    }

    /// The next event of a key for the worker that is at it, if that is the way.
    pub(crate) fn next(&self, key: &str, way: impl FnOnce(&Job) -> Way) -> Next {
        let mut inner = self.inner();
        let Some(run) = inner.runs.get_mut(key) else { return Next::Nothing };
        let Some(job) = run.queue.front() else {
            self.rest(&mut inner, key);
            return Next::Nothing;
        };
        let unwritten = run.unsettled > run.queue.len();
        match way(job) {
            Way::Caught if unwritten => Next::Not(Way::Caught),
            Way::Here | Way::Caught => run.queue.pop_front().map_or(Next::Nothing, Next::Job),
            Way::Elsewhere => Next::Not(Way::Elsewhere),
        }
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

    /// An event was not done: nothing more of its key is handled. Returns what was still queued.
    pub(crate) fn halt(&self, key: &Arc<str>) -> Vec<Job> {
        let mut inner = self.inner();
        inner.behind.insert(key.clone());
        let Some(run) = inner.runs.get_mut(key) else { return Vec::new() };
        run.state = State::Halted;
        std::mem::take(&mut run.queue).into()
    }

    /// So many events of these keys are settled in the database; `true` if that ends a halt.
    pub(crate) fn settled(&self, keys: impl IntoIterator<Item = (Arc<str>, usize, bool)>) {
        let mut inner = self.inner();
        let Inner { runs, behind, free, unsure, moved } = &mut *inner;
        for (key, events, halted) in keys {
            moved.insert(key.clone());
            if let Some(run) = runs.get_mut(&key) {
                run.unsettled = run.unsettled.saturating_sub(events);
                let over = match run.state {
                    State::Halted => halted,
                    State::Idle => run.unsettled == 0,
                    State::Scheduled => false,
                };
                if !over {
                    continue;
                }
                runs.remove(&key);
                if halted {
                    unsure.insert(key.clone());
                }
            }
            if behind.remove(&key) {
                free.push(key);
            }
        }
    }

    /// Remembers keys of which rows were passed by.
    pub(crate) fn leave_behind(&self, keys: Vec<Arc<str>>) {
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
    pub(crate) fn not_behind<'a>(&self, keys: impl IntoIterator<Item = &'a Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            inner.behind.remove(key);
        }
    }

    /// Keys of which rows were passed by and that are free now, at most this many.
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
