//! Limits of concurrent calls, of handlers that have one.
//!
//! An event whose handler is called often enough already is set aside, so that its worker is free
//! for others. Few events are set aside: then their types are left in the table, until half of them
//! have been handled.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, MutexGuard, Weak};

use super::Engine;
use super::dispatch::release_unit;
use super::queues::WorkUnit;
use super::routes::Routes;
use super::sync::Mutex;
use crate::event::Event;

/// A limit of concurrent calls, by its position in the relay's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitId(pub(super) usize);

/// How many calls of a handler may run at once.
#[derive(Clone, Debug)]
pub(super) struct CallLimit {
    pub(super) calls: usize,
    /// Types of which every event goes to this handler.
    pub(super) types: BTreeSet<String>,
}

impl CallLimit {
    /// With more work units set aside than this, the types are left in the table.
    fn most_waiting(&self) -> usize {
        self.calls.saturating_mul(2).max(16)
    }
}

/// The limits of a relay, with the calls that run and the work units that wait.
pub(crate) struct Limits {
    limits: Vec<CallLimit>,
    states: Mutex<Vec<LimitState>>,
}

#[derive(Default)]
struct LimitState {
    running: usize,
    waiting: VecDeque<WorkUnit>,
    /// Whether the types are left in the table.
    is_full: bool,
}

/// How a work unit goes on.
pub(super) enum Admitting {
    /// Its next event may be handled, while the permit exists if there is one.
    Now(WorkUnit, Option<CallPermit>),
    /// It is set aside, or released.
    Later,
}

/// The permission for one call. When it is dropped, the first work unit that waits gets it.
pub(crate) struct CallPermit {
    engine: Weak<Engine>,
    limit: LimitId,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let Some(engine) = self.engine.upgrade() else { return };
        let limit = &engine.limits.limits[self.limit.0];
        let (next, wake) = {
            let mut states = engine.limits.states();
            let state = &mut states[self.limit.0];
            let next = state.waiting.pop_front();
            if next.is_none() {
                state.running = state.running.saturating_sub(1);
            }
            let wake = state.is_full && state.waiting.len() <= limit.most_waiting() / 2;
            state.is_full &= !wake;
            (next, wake)
        };
        if let Some(unit) = next {
            let permit = Self { engine: self.engine.clone(), limit: self.limit };
            engine.queues.push_cold(vec![WorkUnit::Admitted(Box::new(unit), permit)]);
        }
        if wake {
            engine.wake.notify_one();
        }
    }
}

impl Limits {
    pub(super) fn new(limits: Vec<CallLimit>) -> Self {
        let states = limits.iter().map(|_| LimitState::default()).collect();
        Self { limits, states: Mutex::new(states) }
    }

    fn states(&self) -> MutexGuard<'_, Vec<LimitState>> {
        self.states.lock().expect("no code panics while it holds this lock")
    }

    /// Types that are left in the table.
    pub(super) fn full_types(&self) -> impl Iterator<Item = String> {
        let mut full = Vec::new();
        if !self.limits.is_empty() {
            for (limit, _) in self.limits.iter().zip(&*self.states()).filter(|(_, state)| state.is_full) {
                full.extend(limit.types.iter().cloned());
            }
        }
        full.into_iter()
    }

    /// Whether an event that is written may go the hot path. Events whose type does not determine
    /// the limit cannot be left in the table: the cold queue bounds their number.
    pub(super) fn allows_hot(&self, routes: &Routes, event: &Event) -> bool {
        let Some(id) = routes.limit(event) else { return true };
        self.limits[id.0].types.contains(event.event_type().as_str()) && !self.states()[id.0].is_full
    }

    /// Forgets the work units that are set aside.
    pub(super) fn clear(&self) {
        let mut forgotten = Vec::new();
        for state in &mut *self.states() {
            forgotten.push(std::mem::take(&mut state.waiting));
            state.is_full = false;
        }
    }

    /// Begins a call; gives the unit back if it must be released.
    fn begin(&self, id: LimitId, unit: WorkUnit) -> Begun {
        let limit = &self.limits[id.0];
        let mut states = self.states();
        let state = &mut states[id.0];
        if state.running < limit.calls {
            state.running += 1;
            return Begun::Now(unit);
        }
        if state.is_full {
            return Begun::Release(unit);
        }
        state.waiting.push_back(unit);
        state.is_full = !limit.types.is_empty() && state.waiting.len() >= limit.most_waiting();
        Begun::Later
    }
}

enum Begun {
    Now(WorkUnit),
    Later,
    Release(WorkUnit),
}

/// Begins a call for the next event of a work unit if its handler has a free one. Otherwise the
/// unit is set aside, or released if too many are.
pub(super) async fn admit(engine: &Arc<Engine>, unit: WorkUnit) -> Admitting {
    let (unit, permit) = match unit {
        WorkUnit::Admitted(unit, permit) => (*unit, Some(permit)),
        unit => (unit, None),
    };
    let limit = engine.limit(&unit);
    if permit.as_ref().map(|permit| permit.limit) == limit {
        return Admitting::Now(unit, permit);
    }
    // The next event of its key has another handler by now.
    drop(permit);
    let Some(limit) = limit else { return Admitting::Now(unit, None) };
    match engine.limits.begin(limit, unit) {
        Begun::Now(unit) => Admitting::Now(unit, Some(CallPermit { engine: Arc::downgrade(engine), limit })),
        Begun::Later => Admitting::Later,
        Begun::Release(unit) => {
            release_unit(engine, unit).await;
            Admitting::Later
        }
    }
}

impl Engine {
    /// The limit that applies to the next event of a work unit.
    fn limit(&self, unit: &WorkUnit) -> Option<LimitId> {
        if self.limits.limits.is_empty() {
            return None;
        }
        match unit {
            WorkUnit::One(job) => self.routes.limit(&job.delivery.event),
            WorkUnit::Key(queue) => {
                self.key_queues.peek(queue, |job| self.routes.limit(&job.delivery.event)).flatten()
            }
            WorkUnit::Admitted(unit, _) => self.limit(unit),
        }
    }
}
