//! Destinations of queue events: a publisher behind a circuit breaker, and routers that choose
//! between several.
//!
//! The breaker is open while the destination is unavailable: then no events are taken for it, no
//! attempt is counted, and events for other destinations are delivered. Only a delivery closes it
//! again: once the publisher is [healthy](Publisher::health), the breaker is half open, and one
//! event is sent as a probe.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use tokio::sync::watch;

use crate::event::{Event, EventId, EventType};
use crate::log::Publisher;
use crate::retry::RetryPolicy;
use crate::store::Routed;

/// The pause before the next health check, after the first failure and at most. Doubles with each
/// failed probe.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// The longest pause between two calls of [`Publisher::health`], which cost the database nothing.
const HEALTH_PAUSE: Duration = Duration::from_secs(5);

/// Time limit of one call of [`Publisher::health`].
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a destination may be unavailable to one event, while it accepts others, before that
/// counts as an attempt.
const UNCOUNTED: u32 = 3;

/// For how many events [`UNCOUNTED`] is tracked.
const TRACKED: usize = 10_000;

/// A publisher of queue events, with a retry policy. Cheap to clone; clones share the connection
/// and its [availability](Destination::outage).
///
/// ```
/// use std::time::Duration;
/// use outbox::{Backoff, Destination, LogPublisher};
///
/// let broker = Destination::new(LogPublisher::new());
/// let patient = broker.clone().retry(Backoff::default().max_attempts(50));
/// assert_eq!(broker.name(), "log");
/// assert!(patient.outage().is_none());
/// ```
#[derive(Clone)]
pub struct Destination {
    pub(crate) gate: Arc<Gate>,
    pub(crate) retry: Option<Arc<dyn RetryPolicy>>,
}

impl Destination {
    /// Sends events to this publisher, in batches.
    pub fn new(publisher: impl Publisher) -> Self {
        Self { gate: Arc::new(Gate::new(Arc::new(publisher))), retry: None }
    }

    /// Sets a retry policy of its own. If not set, the relay's [own
    /// policy](crate::RelayBuilder::retry) applies if there is one, and
    /// [`Backoff::publishing`](crate::Backoff::publishing) otherwise: about a day. An outage of the
    /// destination is not a failure of any event.
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry = Some(Arc::new(policy));
        self
    }

    /// The name of its publisher.
    pub fn name(&self) -> &str {
        self.gate.publisher.name()
    }

    /// The current outage: since when, and why.
    pub fn outage(&self) -> Option<Outage> {
        self.gate.outage()
    }

    /// Whether both share a connection and a circuit breaker.
    pub fn is_same(&self, other: &Destination) -> bool {
        Arc::ptr_eq(&self.gate, &other.gate)
    }
}

impl<P: Publisher> From<P> for Destination {
    fn from(publisher: P) -> Self {
        Self::new(publisher)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination").field("name", &self.name()).field("outage", &self.outage()).finish()
    }
}

/// A destination cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Since when.
    pub since: DateTime<Utc>,
    /// The reason, for operators.
    pub reason: String,
}

/// Chooses the destination of an event. Must be pure and fast: it is called for every event.
///
/// ```
/// use outbox::{Destination, Event, Router};
///
/// struct ByTenant { acme: Destination, others: Destination }
///
/// impl Router for ByTenant {
///     fn route(&self, event: &Event) -> Option<Destination> {
///         Some(if event.tenant_id() == Some("acme") { self.acme.clone() } else { self.others.clone() })
///     }
/// }
/// ```
pub trait Router: Send + Sync + 'static {
    /// The destination of this event; `None`: no destination, as an event that has no handler.
    fn route(&self, event: &Event) -> Option<Destination>;

    /// The destination of *all* events of a type, whatever their other fields; `None` if it depends
    /// on them. During an outage events of such a type stay in the table; others are snoozed one by
    /// one.
    fn of_type(&self, event_type: &EventType) -> Option<Destination> {
        let _ = event_type;
        None
    }

    /// The events that may have a destination, by their types; `None` if any may. A relay that
    /// [leaves](crate::Unrouted::Leave) events without a route to others takes only these. Called
    /// at each poll: the answer may change.
    fn routed(&self) -> Option<Arc<Routed>> {
        None
    }
}

impl<R: Router + ?Sized> Router for Arc<R> {
    fn route(&self, event: &Event) -> Option<Destination> {
        (**self).route(event)
    }

    fn of_type(&self, event_type: &EventType) -> Option<Destination> {
        (**self).of_type(event_type)
    }

    fn routed(&self) -> Option<Arc<Routed>> {
        (**self).routed()
    }
}

/// Sends all events to one destination.
impl Router for Destination {
    fn route(&self, _: &Event) -> Option<Destination> {
        Some(self.clone())
    }

    fn of_type(&self, _: &EventType) -> Option<Destination> {
        Some(self.clone())
    }
}

/// Circuit breaker: decides whether events are sent to a destination.
pub(crate) struct Gate {
    pub(crate) publisher: Arc<dyn Publisher>,
    /// Identifies the destination within the process.
    pub(crate) id: u64,
    state: Mutex<State>,
    phase: watch::Sender<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Events are sent.
    Open,
    /// No event is sent until the publisher is healthy.
    Shut,
    /// The publisher is healthy: one event may be sent as a probe. Each half-open phase has a
    /// number of its own.
    HalfOpen(u64),
}

#[derive(Default)]
struct State {
    outage: Option<Outage>,
    /// Outages and failed probes. Each batch that is published while the breaker is closed
    /// subtracts one.
    failures: u32,
    half_opened: u64,
    /// Whether a probe is running.
    probing: bool,
    /// How many batches were published, in whole or in part.
    published: u64,
    uncounted: HashMap<EventId, Uncounted>,
}

/// How often the destination was unavailable to an event, and how many batches had been published
/// by then.
struct Uncounted {
    times: u32,
    published: u64,
}

/// Whether a batch may be sent.
pub(crate) enum Admission {
    /// It may.
    Open,
    /// One event of it may, to find out whether the destination is available.
    Probe(Probe),
    /// No.
    Refused,
}

impl Gate {
    fn new(publisher: Arc<dyn Publisher>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { publisher, id, state: Mutex::default(), phase: watch::Sender::new(Phase::Open) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        self.state().outage.clone()
    }

    /// The reason of the current outage.
    pub(crate) fn reason(&self) -> String {
        self.outage().map(|outage| outage.reason).unwrap_or_default()
    }

    pub(crate) fn is_shut(&self) -> bool {
        *self.phase.borrow() != Phase::Open
    }

    /// The number of the half-open phase, if no probe is running in it.
    pub(crate) fn wants_probe(&self) -> Option<u64> {
        let state = self.state();
        match *self.phase.borrow() {
            Phase::HalfOpen(number) => (!state.probing).then_some(number),
            Phase::Open | Phase::Shut => None,
        }
    }

    /// Subscribes to changes of the phase.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Decides whether one batch may be sent.
    pub(crate) fn admit(self: &Arc<Self>) -> Admission {
        let mut state = self.state();
        match *self.phase.borrow() {
            Phase::Open => Admission::Open,
            Phase::HalfOpen(_) if !state.probing => {
                state.probing = true;
                Admission::Probe(Probe { gate: self.clone() })
            }
            Phase::HalfOpen(_) | Phase::Shut => Admission::Refused,
        }
    }

    /// Opens the breaker: a delivery found the destination unavailable.
    pub(crate) fn shut(self: &Arc<Self>, reason: &str) {
        let mut state = self.state();
        if let Some(outage) = &mut state.outage {
            reason.clone_into(&mut outage.reason);
            return;
        }
        state.outage = Some(Outage { since: Utc::now(), reason: reason.to_owned() });
        state.failures = state.failures.saturating_add(1);
        let pause = pause_after(state.failures);
        self.phase.send_replace(Phase::Shut);
        drop(state);
        tracing::warn!(
            destination = self.publisher.name(),
            reason,
            "destination unavailable: its events wait"
        );
        tokio::spawn(watch_health(Arc::downgrade(self), pause));
    }

    /// Records a published batch. That does not close a breaker that has opened meanwhile: only a
    /// probe does.
    pub(crate) fn works(&self) {
        let mut state = self.state();
        state.published = state.published.wrapping_add(1);
        if *self.phase.borrow() == Phase::Open {
            state.failures = state.failures.saturating_sub(1);
        }
    }

    /// Forgets events that were published.
    pub(crate) fn forget<'a>(&self, ids: impl Iterator<Item = &'a EventId>) {
        let mut state = self.state();
        if !state.uncounted.is_empty() {
            for id in ids {
                state.uncounted.remove(id);
            }
        }
    }

    /// Whether the destination was unavailable more than once when this event was sent, while it
    /// accepted others: then the event is sent alone.
    pub(crate) fn suspects(&self, id: &EventId) -> bool {
        self.state().uncounted.get(id).is_some_and(|known| known.times > 1)
    }

    /// Whether there are such events.
    pub(crate) fn suspects_any(&self) -> bool {
        self.state().uncounted.values().any(|known| known.times > 1)
    }

    /// Records that the destination was unavailable when this event was sent. True if that happened
    /// often while other events were published, and the event was sent `alone`: then it is the
    /// event's failure.
    pub(crate) fn blames(&self, id: &EventId, alone: bool) -> bool {
        let mut state = self.state();
        let published = state.published;
        if state.uncounted.len() >= TRACKED && !state.uncounted.contains_key(id) {
            state.uncounted.clear();
        }
        match state.uncounted.get_mut(id) {
            None => {
                state.uncounted.insert(id.clone(), Uncounted { times: 1, published });
                false
            }
            Some(known) if known.published == published => false,
            Some(known) => {
                *known = Uncounted { times: known.times.saturating_add(1), published };
                let blamed = alone && known.times >= UNCOUNTED;
                if blamed {
                    state.uncounted.remove(id);
                }
                blamed
            }
        }
    }

    /// Records the reason of a failed call of [`Publisher::health`].
    fn still_unavailable(&self, reason: &str) {
        if let Some(outage) = &mut self.state().outage {
            reason.clone_into(&mut outage.reason);
        }
    }

    fn half_open(&self) {
        let mut state = self.state();
        state.half_opened += 1;
        self.phase.send_replace(Phase::HalfOpen(state.half_opened));
    }
}

/// The right to send one event to a destination that may be available again. If dropped without a
/// result, another event may be the probe.
pub(crate) struct Probe {
    gate: Arc<Gate>,
}

impl Probe {
    /// The event was published: the destination is available.
    pub(crate) fn succeeded(self) {
        let mut state = self.gate.state();
        let outage = state.outage.take();
        self.gate.phase.send_replace(Phase::Open);
        drop(state);
        if let Some(outage) = outage {
            let lasted = (Utc::now() - outage.since).to_std().unwrap_or_default();
            tracing::info!(destination = self.gate.publisher.name(), ?lasted, "destination available again");
        }
    }

    /// The destination is unavailable.
    pub(crate) fn failed(self, reason: &str) {
        let mut state = self.gate.state();
        state.failures = state.failures.saturating_add(1);
        if let Some(outage) = &mut state.outage {
            reason.clone_into(&mut outage.reason);
        }
        self.again(pause_after(state.failures), state);
    }

    /// The destination refused this event. Another one may be accepted.
    pub(crate) fn refused(self) {
        self.again(PAUSE.0, self.gate.state());
    }

    fn again(&self, pause: Duration, state: MutexGuard<'_, State>) {
        self.gate.phase.send_replace(Phase::Shut);
        drop(state);
        tracing::debug!(destination = self.gate.publisher.name(), ?pause, "probe failed: events of the destination keep waiting");
        tokio::spawn(watch_health(Arc::downgrade(&self.gate), pause));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.gate.state().probing = false;
    }
}

/// The pause after so many consecutive failures, before jitter.
fn pause_after(failures: u32) -> Duration {
    PAUSE.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE.1)
}

/// Waits, and then calls [`Publisher::health`] until it succeeds or the destination is dropped.
async fn watch_health(gate: Weak<Gate>, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        pause = (pause * 2).min(HEALTH_PAUSE);
        let Some(gate) = gate.upgrade() else { return };
        let health = AssertUnwindSafe(gate.publisher.health()).catch_unwind();
        match tokio::time::timeout(HEALTH_TIMEOUT, health).await {
            Ok(Ok(Ok(()))) => return gate.half_open(),
            Ok(Ok(Err(unavailable))) => gate.still_unavailable(unavailable.reason()),
            Ok(Err(_)) => gate.still_unavailable("the publisher's health check panicked"),
            Err(_) => {
                gate.still_unavailable(&format!(
                    "the publisher's health check did not finish within {HEALTH_TIMEOUT:?}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use async_trait::async_trait;

    use super::*;
    use crate::log::{Outgoing, PublishError, Unavailable};

    #[derive(Default)]
    struct Moody(AtomicBool);

    #[async_trait]
    impl Publisher for Moody {
        fn name(&self) -> &'static str {
            "moody"
        }

        async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
            Ok(())
        }

        async fn health(&self) -> Result<(), Unavailable> {
            Unavailable::unless(self.0.load(Ordering::SeqCst), "connection refused")
        }
    }

    fn probe(gate: &Arc<Gate>) -> Option<Probe> {
        match gate.admit() {
            Admission::Probe(probe) => Some(probe),
            Admission::Open | Admission::Refused => None,
        }
    }

    async fn half_opened(gate: &Gate) {
        let _ = gate.phases().wait_for(|phase| matches!(phase, Phase::HalfOpen(_))).await;
    }

    /// A healthy publisher half opens the breaker; one probe is sent at a time; its success closes
    /// the breaker.
    #[tokio::test]
    async fn only_the_success_of_one_probe_opens_a_gate() {
        let moody = Arc::new(Moody::default());
        let destination = Destination::new(moody.clone());
        let gate = &destination.gate;
        gate.shut("gone");
        assert_eq!(destination.outage().unwrap().reason, "gone");
        while destination.outage().unwrap().reason == "gone" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(matches!(gate.admit(), Admission::Refused));
        assert_eq!(destination.outage().unwrap().reason, "connection refused", "the reason is the latest");
        moody.0.store(true, Ordering::SeqCst);
        half_opened(gate).await;
        let first = probe(gate).expect("a probe may pass");
        assert!(matches!(gate.admit(), Admission::Refused), "one at a time");
        drop(first);
        probe(gate).expect("it had no result").refused();
        assert!(matches!(gate.admit(), Admission::Refused));
        half_opened(gate).await;
        probe(gate).expect("another may").failed("503");
        assert_eq!(destination.outage().unwrap().reason, "503");
        gate.works();
        assert!(gate.is_shut(), "a batch that was under way before proves nothing");
        half_opened(gate).await;
        probe(gate).expect("and again").succeeded();
        assert!(matches!(gate.admit(), Admission::Open));
        assert_eq!(destination.outage(), None);
    }

    #[test]
    fn each_failed_probe_doubles_the_pause_up_to_half_a_minute() {
        let pauses: Vec<u128> = [1, 2, 3, 4, 8, 40, u32::MAX].map(|n| pause_after(n).as_millis()).into();
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 30_000, 30_000, 30_000]);
    }

    /// During a real outage nothing is published, and no event is the cause.
    #[tokio::test]
    async fn an_event_that_others_pass_by_is_blamed_in_the_end() {
        let gate = Destination::new(Moody::default()).gate;
        let id = EventId::generate();
        assert!((0..100).all(|_| !gate.blames(&id, true)));
        assert!(!gate.suspects(&id));
        for _ in 0..100 {
            gate.works();
            assert!(!gate.blames(&id, false), "it may have been another one of the batch");
        }
        assert!(gate.suspects(&id) && gate.suspects_any());
        assert!(!gate.blames(&id, true), "nothing was published since");
        gate.works();
        assert!(gate.blames(&id, true));
        assert!(!gate.suspects_any(), "it starts anew");
        gate.works();
        assert!(!gate.blames(&id, true));
        gate.works();
        assert!(!gate.blames(&id, true));
        gate.forget([&id].into_iter());
        gate.works();
        assert!(!gate.blames(&id, true), "it was published");
    }
}
