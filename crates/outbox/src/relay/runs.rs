//! The events of each ordering key that this node has taken: handled one after another, up to the first that is not
//! done.
//!
//! Events of a key that go to different destinations are different runs, side by side. A key of which some event may go
//! anywhere, to a handler say, has one run for all of it as long as that event is in hand.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, MutexGuard};

use super::Job;
use super::sync::Mutex;
use crate::store::{Reach, RunId};

/// A run of one epoch; with leases there is one epoch. After another node has led, a worker that is still busy with an
/// event of a run does not find the run any more, though the key was taken anew since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunKey {
    pub(crate) id: RunId,
    pub(crate) epoch: i64,
}

/// How many events of one key a worker handles before the others get a turn.
pub(crate) const TURN: usize = 64;

/// The runs of all keys. A run is remembered until all of it is settled: what comes after it may be taken before that.
#[derive(Default)]
pub(crate) struct Runs {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    runs: HashMap<RunKey, Run>,
    /// How many runs of each key go to one destination only.
    split: HashMap<Arc<str>, usize>,
    /// Keys of which rows were passed by, because an earlier event was in the way.
    behind: HashSet<Arc<str>>,
    /// Keys of which rows were passed by and that are free now.
    free: Vec<Arc<str>>,
    /// Runs whose halt ended since the current read began: that read may be older.
    unsure: HashSet<RunId>,
    /// Keys of which a run ended since then.
    ended: HashSet<Arc<str>>,
}

impl Inner {
    /// The run that an event belongs to; `None` if it cannot be taken in now.
    fn place(&self, run: RunKey) -> Option<RunKey> {
        let whole = RunKey { id: RunId::of_key(run.id.key.clone()), epoch: run.epoch };
        if self.runs.contains_key(&whole) {
            return Some(whole);
        }
        let is_split = run.id.destination.is_none() && self.split.contains_key(&run.id.key);
        (!is_split).then_some(run)
    }

    /// Whether the current read may be older than the end of a halt of this run.
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
    /// The newest event taken: everything of the key, or of it for the destination, up to it is in this run.
    frontier: Reach,
    /// Whether some of it may be somebody else's by now.
    doubtful: bool,
    /// Whether the database refused a verdict of it: nothing more is handled until that is written.
    refused: bool,
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
    /// Runs that need a worker.
    pub(crate) scheduled: Vec<RunKey>,
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
    /// What comes before it could not be settled: it goes back, and waits.
    Refused,
}

impl Runs {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no one panics while holding this lock")
    }

    /// A read of the database begins. Returns the newest event of each run that is in memory, for
    /// [`Take::frontiers`](crate::store::Take::frontiers).
    pub(crate) fn begin_read(&self) -> HashMap<RunId, Reach> {
        let mut inner = self.inner();
        inner.ended.clear();
        inner.unsure.clear();
        let mut frontiers: HashMap<RunId, Reach> = HashMap::new();
        for (RunKey { id, .. }, run) in inner.runs.iter().filter(|(_, run)| !run.doubtful) {
            let frontier = frontiers.entry(id.clone()).or_insert(run.frontier);
            // Of a run whose epoch is over there may be some left: then less of the key is known.
            if run.frontier.seq < frontier.seq {
                *frontier = run.frontier;
            }
        }
        frontiers
    }

    /// Leases were lost: until what there is now is settled, nobody goes on from where it ends.
    pub(crate) fn doubt(&self) {
        self.inner().runs.values_mut().for_each(|run| run.doubtful = true);
    }

    /// Offers jobs, those of each key in order.
    pub(crate) fn push(&self, jobs: Vec<(RunId, Job)>) -> Pushed {
        let mut pushed = Pushed::default();
        let mut freed = HashSet::new();
        // Keys of which an event was refused that all later ones have to wait for.
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

    /// The next event of a run for the worker that is at it, if that is the way.
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

    /// Nothing is left to handle of a key.
    fn rest(&self, inner: &mut Inner, key: &RunKey) {
        let Some(run) = inner.runs.get_mut(key) else { return };
        run.state = State::Idle;
        if run.unsettled == 0 {
            inner.remove(key);
        }
    }

    /// Looks at the next event of a key.
    pub(crate) fn peek<T>(&self, key: &RunKey, look: impl FnOnce(&Job) -> T) -> Option<T> {
        self.inner().runs.get(key)?.queue.front().map(look)
    }

    /// The next events of a key for the worker that is at it: at most this many, while they are wanted.
    pub(crate) fn next_while(&self, key: &RunKey, most: usize, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut inner = self.inner();
        let Some(run) = inner.runs.get_mut(key) else { return Vec::new() };
        let most = most.min(run.queue.len());
        let count = (0..most).find(|n| !wanted(&run.queue[*n])).unwrap_or(most);
        run.queue.drain(..count).collect()
    }

    /// The worker at a key is done with what it took: true if there is more, and the key needs a worker.
    pub(crate) fn goes_on(&self, key: &RunKey) -> bool {
        let mut inner = self.inner();
        let more = inner.runs.get(key).is_some_and(|run| !run.queue.is_empty());
        if !more {
            self.rest(&mut inner, key);
        }
        more
    }

    /// The database refused a verdict of this key. It is not taken any further until that is written.
    pub(crate) fn refused(&self, key: &RunKey) {
        if let Some(run) = self.inner().runs.get_mut(key) {
            (run.refused, run.doubtful) = (true, true);
        }
    }

    pub(crate) fn is_refused(&self, key: &RunKey) -> bool {
        self.inner().runs.get(key).is_some_and(|run| run.refused)
    }

    /// An event was not done: nothing more of its key is handled. Returns what was still queued.
    pub(crate) fn halt(&self, key: &RunKey) -> Vec<Job> {
        let mut inner = self.inner();
        inner.behind.insert(key.id.key.clone());
        let Some(run) = inner.runs.get_mut(key) else { return Vec::new() };
        run.state = State::Halted;
        std::mem::take(&mut run.queue).into()
    }

    /// So many events of these runs are settled in the database; `true` if that ends a halt.
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

    /// Remembers keys of which rows were passed by.
    pub(crate) fn leave_behind(&self, keys: Vec<Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            // What was in the way may be gone since the read: nobody would say so again.
            if inner.ended.contains(&key) {
                inner.free.push(key);
            } else {
                inner.behind.insert(key);
            }
        }
    }

    /// Remembers keys as free: nothing is known of what is left of them.
    pub(crate) fn set_free(&self, keys: Vec<Arc<str>>) {
        let mut inner = self.inner();
        for key in keys {
            inner.behind.remove(&key);
            inner.free.push(key);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::job;

    /// Its handler was still busy while another node led, and this one again.
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
