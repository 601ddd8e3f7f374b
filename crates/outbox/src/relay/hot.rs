//! Hot path: hands committed events from writers to the relay of the same process, without reading
//! them back.
//!
//! A slot is reserved before the row is inserted, so a hand-over never fails and a full queue does
//! not delay a write. A reserved event counts as held from then on, so the poller, which may see
//! the row the moment it is committed, skips it.

use std::fmt;
use std::sync::{Arc, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{Engine, Job, fence};
use crate::event::{Due, Event, EventId};
use crate::sql::dialect::BirthLease;
use crate::store::{Claim, Delivery, Holder, Settlement, Verdict};

/// Connects writers to the relay of the same process. Open while a relay runs.
#[derive(Clone, Default)]
pub(crate) struct HotPath {
    state: Arc<RwLock<HotPathState>>,
    /// Notified when events were appended to the log.
    pub(crate) bell: Arc<Notify>,
}

/// State of the hot path.
#[derive(Default)]
enum HotPathState {
    #[default]
    Closed,
    /// A relay is about to start.
    Starting,
    Open(Arc<Engine>),
}

impl fmt::Debug for HotPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.engine().is_some() { "open" } else { "closed" })
    }
}

impl HotPath {
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        match &*self.state.read().expect("no code panics while it holds this lock") {
            HotPathState::Open(engine) => Some(engine.clone()),
            HotPathState::Closed | HotPathState::Starting => None,
        }
    }

    fn state(&self) -> RwLockWriteGuard<'_, HotPathState> {
        self.state.write().expect("no code panics while it holds this lock")
    }

    /// Reserves the hot path for a relay that is about to start. Dropping the guard frees it.
    /// `None`: another relay has it.
    pub(crate) fn claim(&self) -> Option<HotPathGuard> {
        let mut state = self.state();
        if !matches!(*state, HotPathState::Closed) {
            return None;
        }
        *state = HotPathState::Starting;
        Some(HotPathGuard(self.clone()))
    }

    pub(crate) fn close(&self, engine: &Arc<Engine>) {
        let mut state = self.state();
        if matches!(&*state, HotPathState::Open(current) if Arc::ptr_eq(current, engine)) {
            *state = HotPathState::Closed;
        }
    }
}

/// The right to open the hot path.
pub(crate) struct HotPathGuard(HotPath);

impl HotPathGuard {
    pub(crate) fn open(self, engine: Arc<Engine>) {
        *self.0.state() = HotPathState::Open(engine);
    }
}

impl Drop for HotPathGuard {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if matches!(*state, HotPathState::Starting) {
            *state = HotPathState::Closed;
        }
    }
}

/// How long a commit whose answer was lost may still be in progress.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A slot in the hot queue for one event. If dropped, the poller delivers the event.
pub(crate) struct Reservation {
    engine: Arc<Engine>,
    slot: Option<OwnedSemaphorePermit>,
    event: Event,
    epoch: i64,
    claim: Claim,
    since: Instant,
    created_at: Option<DateTime<Utc>>,
}

/// Whether an event that is about to be written goes the hot path.
pub(crate) enum Reserved {
    /// A slot is reserved for it.
    Slot(Reservation),
    /// The poller delivers it: it is delayed, is ordered, has an expiry time, or is not routed by
    /// this relay.
    Poller,
    /// It could go the hot path, but the hot queue is full.
    Full,
}

impl Engine {
    /// Reserves a slot for an event, if it may go the hot path.
    pub(crate) fn reserve(self: &Arc<Self>, event: &Event) -> Reserved {
        if !self.settings.hot
            || event.is_delayed()
            || event.ordering_key().is_some()
            || event.expires_at().is_some()
            // The event would be released at once, which is a write.
            || self.outages.leaves_in_table(event.event_type())
            || !self.limits.allows_hot(&self.routes, event)
            || self.paused.contains(event.event_type().as_str())
            // Written without a lease, for a relay that routes it.
            || self.routes.leaves(event)
        {
            return Reserved::Poller;
        }
        let Some(epoch) = self.ownership.epoch() else { return Reserved::Poller };
        let Some(slot) = self.queues.reserve() else { return Reserved::Full };
        let since = Instant::now();
        let (claim, until) =
            if self.ownership.is_exclusive() { (0, None) } else { (1, Some(since + self.settings.lease)) };
        if !self.in_flight.reserve(event.id(), fence(epoch, claim), until) {
            return Reserved::Poller;
        }
        Reserved::Slot(Reservation {
            engine: self.clone(),
            slot: Some(slot),
            event: event.clone(),
            epoch,
            claim,
            since,
            created_at: None,
        })
    }

    /// The lease that rows with a slot are inserted with, if rows are leased.
    pub(crate) fn birth_lease(&self) -> Option<BirthLease> {
        let exclusive = self.ownership.is_exclusive();
        (!exclusive).then(|| BirthLease { owner: self.node().clone(), lease: self.settings.lease })
    }

    /// Releases a row that was inserted with a lease of this node, which will not handle it.
    fn release_one(self: &Arc<Self>, id: &EventId, claim: Claim, after: Duration) {
        let Some(by @ Holder::Lease { .. }) = self.ownership.holder() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let released = Settlement { id: id.clone(), claim, verdict: Verdict::Released };
        let engine = self.clone();
        runtime.spawn(async move {
            tokio::time::sleep(after).await;
            if let Err(error) = engine.store.settle(&by, engine.settings.completion, &[released]).await {
                tracing::warn!(store = engine.name(), %error, "could not release an event: it waits until its lease runs out");
            }
        });
    }

    /// Wakes the poller for a committed event that does not go the hot path.
    pub(crate) fn hint(&self, event: &Event) {
        if self.routes.leaves(event) {
            return;
        }
        match event.due() {
            Due::Now => self.wake.notify_one(),
            Due::After(delay) => self.due_timer.at(Instant::now() + delay),
            Due::At(at) | Due::Later(at) => {
                let delay = (at - chrono::Utc::now()).to_std().unwrap_or_default();
                self.due_timer.at(Instant::now() + delay);
            }
        }
    }
}

impl Reservation {
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    /// Records when the database stored the event.
    pub(crate) fn stored_at(&mut self, at: DateTime<Utc>) {
        self.created_at = Some(at);
    }

    /// Hands the committed event over to the workers.
    pub(crate) fn hand_over(mut self) {
        let engine = self.engine.clone();
        if engine.stop.is_cancelled() {
            // Too late for this relay: the next one takes the event.
            return engine.release_one(self.event.id(), self.claim, Duration::ZERO);
        }
        let Some(slot) = self.slot.take() else { return };
        engine.in_flight.committed(self.event.id(), fence(self.epoch, self.claim));
        let delivery = Delivery {
            event: self.event.clone(),
            seq: None,
            attempts: 0,
            claim: self.claim,
            expires_in: None,
            waited: Duration::ZERO,
            suspect: None,
            created_at: self.created_at,
            last_error: None,
        };
        let job = Job { delivery, epoch: self.epoch, taken: self.since, cold: false, memory: None };
        if engine.queues.push_hot(job, slot) {
            engine.metrics.hot_enqueued.increment(1);
        } else {
            engine.in_flight.forget(self.event.id(), fence(self.epoch, self.claim));
            engine.release_one(self.event.id(), self.claim, Duration::ZERO);
        }
    }

    /// Releases the row of an event whose commit is unknown, once the commit is surely over.
    pub(crate) fn release_later(self) {
        self.engine.release_one(self.event.id(), self.claim, COMMIT_TIMEOUT);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.slot.take().is_some() {
            self.engine.in_flight.forget(self.event.id(), fence(self.epoch, self.claim));
        }
    }
}
