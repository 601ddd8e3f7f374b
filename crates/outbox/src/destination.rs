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
/// use outbox::{Backoff, Destination, TracingPublisher};
///
/// let broker = Destination::new(TracingPublisher::new());
/// let patient = broker.clone().retry(Backoff::default().max_attempts(50));
/// assert_eq!(broker.name(), "log");
/// assert!(patient.outage().is_none());
/// ```
#[derive(Clone)]
pub struct Destination {
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) retry: Option<Arc<dyn RetryPolicy>>,
}

impl Destination {
    /// Sends events to this publisher, in batches.
    pub fn new(publisher: impl Publisher) -> Self {
        Self { breaker: Arc::new(Breaker::new(Arc::new(publisher))), retry: None }
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
        self.breaker.publisher.name()
    }

    /// The current outage: since when, and why.
    pub fn outage(&self) -> Option<Outage> {
        self.breaker.outage()
    }

    /// Whether both share a connection and a circuit breaker.
    pub fn is_same(&self, other: &Destination) -> bool {
        Arc::ptr_eq(&self.breaker, &other.breaker)
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
pub(crate) struct Breaker {
    pub(crate) publisher: Arc<dyn Publisher>,
    /// Identifies the destination within the process.
    pub(crate) id: u64,
    state: Mutex<BreakerState>,
    phase: watch::Sender<BreakerPhase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerPhase {
    /// Events are sent.
    Closed,
    /// No event is sent until the publisher is healthy.
    Open,
    /// The publisher is healthy: one event may be sent as a probe. Each half-open phase has a
    /// number of its own.
    HalfOpen(u64),
}

#[derive(Default)]
struct BreakerState {
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
pub(crate) enum BreakerDecision {
    /// The whole batch may be sent.
    Allowed,
    /// One event of the batch may be sent, to find out whether the destination is available.
    Probe(Probe),
    /// No event may be sent.
    Refused,
}

impl Breaker {
    fn new(publisher: Arc<dyn Publisher>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { publisher, id, state: Mutex::default(), phase: watch::Sender::new(BreakerPhase::Closed) }
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().expect("no code panics while it holds this lock")
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        self.state().outage.clone()
    }

    /// The reason of the current outage.
    pub(crate) fn reason(&self) -> String {
        self.outage().map(|outage| outage.reason).unwrap_or_default()
    }

    /// Whether the breaker is open or half open.
    pub(crate) fn is_tripped(&self) -> bool {
        *self.phase.borrow() != BreakerPhase::Closed
    }

    /// The number of the half-open phase, if no probe is running in it.
    pub(crate) fn wants_probe(&self) -> Option<u64> {
        let state = self.state();
        match *self.phase.borrow() {
            BreakerPhase::HalfOpen(number) => (!state.probing).then_some(number),
            BreakerPhase::Closed | BreakerPhase::Open => None,
        }
    }

    /// Subscribes to changes of the phase.
    pub(crate) fn phases(&self) -> watch::Receiver<BreakerPhase> {
        self.phase.subscribe()
    }

    /// Decides whether one batch may be sent.
    pub(crate) fn admit(self: &Arc<Self>) -> BreakerDecision {
        let mut state = self.state();
        match *self.phase.borrow() {
            BreakerPhase::Closed => BreakerDecision::Allowed,
            BreakerPhase::HalfOpen(_) if !state.probing => {
                state.probing = true;
                BreakerDecision::Probe(Probe { breaker: self.clone() })
            }
            BreakerPhase::HalfOpen(_) | BreakerPhase::Open => BreakerDecision::Refused,
        }
    }

    /// Opens the breaker: a delivery found the destination unavailable.
    pub(crate) fn trip(self: &Arc<Self>, reason: &str) {
        let mut state = self.state();
        if let Some(outage) = &mut state.outage {
            reason.clone_into(&mut outage.reason);
            return;
        }
        state.outage = Some(Outage { since: Utc::now(), reason: reason.to_owned() });
        state.failures = state.failures.saturating_add(1);
        let pause = pause_after(state.failures);
        self.phase.send_replace(BreakerPhase::Open);
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
    pub(crate) fn record_success(&self) {
        let mut state = self.state();
        state.published = state.published.wrapping_add(1);
        if *self.phase.borrow() == BreakerPhase::Closed {
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
    pub(crate) fn must_send_alone(&self, id: &EventId) -> bool {
        self.state().uncounted.get(id).is_some_and(|known| known.times > 1)
    }

    /// Whether there are such events.
    pub(crate) fn any_must_send_alone(&self) -> bool {
        self.state().uncounted.values().any(|known| known.times > 1)
    }

    /// Records that the destination was unavailable when this event was sent. True if that happened
    /// often while other events were published, and the event was sent `alone`: then it is the
    /// event's failure.
    pub(crate) fn record_unavailable(&self, id: &EventId, alone: bool) -> bool {
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
        self.phase.send_replace(BreakerPhase::HalfOpen(state.half_opened));
    }
}

/// The right to send one event to a destination that may be available again. If dropped without a
/// result, another event may be the probe.
pub(crate) struct Probe {
    breaker: Arc<Breaker>,
}

impl Probe {
    /// The event was published: the destination is available.
    pub(crate) fn succeeded(self) {
        let mut state = self.breaker.state();
        let outage = state.outage.take();
        self.breaker.phase.send_replace(BreakerPhase::Closed);
        drop(state);
        if let Some(outage) = outage {
            let lasted = (Utc::now() - outage.since).to_std().unwrap_or_default();
            tracing::info!(
                destination = self.breaker.publisher.name(),
                ?lasted,
                "destination available again"
            );
        }
    }

    /// The destination is unavailable.
    pub(crate) fn failed(self, reason: &str) {
        let mut state = self.breaker.state();
        state.failures = state.failures.saturating_add(1);
        if let Some(outage) = &mut state.outage {
            reason.clone_into(&mut outage.reason);
        }
        self.reopen(pause_after(state.failures), state);
    }

    /// The destination refused this event. Another one may be accepted.
    pub(crate) fn refused(self) {
        self.reopen(PAUSE.0, self.breaker.state());
    }

    fn reopen(&self, pause: Duration, state: MutexGuard<'_, BreakerState>) {
        self.breaker.phase.send_replace(BreakerPhase::Open);
        drop(state);
        tracing::debug!(
            destination = self.breaker.publisher.name(),
            ?pause,
            "probe failed: events of the destination keep waiting"
        );
        tokio::spawn(watch_health(Arc::downgrade(&self.breaker), pause));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.breaker.state().probing = false;
    }
}

/// The pause after so many consecutive failures, before jitter.
fn pause_after(failures: u32) -> Duration {
    PAUSE.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE.1)
}

/// Waits, and then calls [`Publisher::health`] until it succeeds or the destination is dropped.
async fn watch_health(breaker: Weak<Breaker>, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        pause = (pause * 2).min(HEALTH_PAUSE);
        let Some(breaker) = breaker.upgrade() else { return };
        let health = AssertUnwindSafe(breaker.publisher.health()).catch_unwind();
        match tokio::time::timeout(HEALTH_TIMEOUT, health).await {
            Ok(Ok(Ok(()))) => return breaker.half_open(),
            Ok(Ok(Err(unavailable))) => breaker.still_unavailable(unavailable.reason()),
            Ok(Err(_)) => breaker.still_unavailable("the publisher's health check panicked"),
            Err(_) => {
                breaker.still_unavailable(&format!(
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
    struct FlakyPublisher(AtomicBool);

    #[async_trait]
    impl Publisher for FlakyPublisher {
        fn name(&self) -> &'static str {
            "flaky"
        }

        async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
            Ok(())
        }

        async fn health(&self) -> Result<(), Unavailable> {
            Unavailable::unless(self.0.load(Ordering::SeqCst), "connection refused")
        }
    }

    fn probe(breaker: &Arc<Breaker>) -> Option<Probe> {
        match breaker.admit() {
            BreakerDecision::Probe(probe) => Some(probe),
            BreakerDecision::Allowed | BreakerDecision::Refused => None,
        }
    }

    async fn half_opened(breaker: &Breaker) {
        let _ = breaker.phases().wait_for(|phase| matches!(phase, BreakerPhase::HalfOpen(_))).await;
    }

    /// A healthy publisher half opens the breaker; one probe is sent at a time; its success closes
    /// the breaker.
    #[tokio::test]
    async fn only_the_success_of_one_probe_closes_a_breaker() {
        let flaky = Arc::new(FlakyPublisher::default());
        let destination = Destination::new(flaky.clone());
        let breaker = &destination.breaker;
        breaker.trip("gone");
        assert_eq!(destination.outage().unwrap().reason, "gone");
        while destination.outage().unwrap().reason == "gone" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(matches!(breaker.admit(), BreakerDecision::Refused));
        assert_eq!(destination.outage().unwrap().reason, "connection refused", "the reason is the latest");
        flaky.0.store(true, Ordering::SeqCst);
        half_opened(breaker).await;
        let first = probe(breaker).expect("a probe may pass");
        assert!(matches!(breaker.admit(), BreakerDecision::Refused), "one at a time");
        drop(first);
        probe(breaker).expect("it had no result").refused();
        assert!(matches!(breaker.admit(), BreakerDecision::Refused));
        half_opened(breaker).await;
        probe(breaker).expect("another may").failed("503");
        assert_eq!(destination.outage().unwrap().reason, "503");
        breaker.record_success();
        assert!(breaker.is_tripped(), "a batch that was under way before proves nothing");
        half_opened(breaker).await;
        probe(breaker).expect("and again").succeeded();
        assert!(matches!(breaker.admit(), BreakerDecision::Allowed));
        assert_eq!(destination.outage(), None);
    }

    #[test]
    fn each_failed_probe_doubles_the_pause_up_to_half_a_minute() {
        let pauses: Vec<u128> = [1, 2, 3, 4, 8, 40, u32::MAX].map(|n| pause_after(n).as_millis()).into();
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 30_000, 30_000, 30_000]);
    }

    /// During a real outage nothing is published, and no event is the cause.
    #[tokio::test]
    async fn an_event_that_fails_while_others_are_published_is_blamed_in_the_end() {
        let breaker = Destination::new(FlakyPublisher::default()).breaker;
        let id = EventId::generate();
        assert!((0..100).all(|_| !breaker.record_unavailable(&id, true)));
        assert!(!breaker.must_send_alone(&id));
        for _ in 0..100 {
            breaker.record_success();
            assert!(!breaker.record_unavailable(&id, false), "it may have been another one of the batch");
        }
        assert!(breaker.must_send_alone(&id) && breaker.any_must_send_alone());
        assert!(!breaker.record_unavailable(&id, true), "nothing was published since");
        breaker.record_success();
        assert!(breaker.record_unavailable(&id, true));
        assert!(!breaker.any_must_send_alone(), "it starts anew");
        breaker.record_success();
        assert!(!breaker.record_unavailable(&id, true));
        breaker.record_success();
        assert!(!breaker.record_unavailable(&id, true));
        breaker.forget([&id].into_iter());
        breaker.record_success();
        assert!(!breaker.record_unavailable(&id, true), "it was published");
    }
}
