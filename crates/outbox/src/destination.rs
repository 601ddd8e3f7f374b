//! Where the events of the queue go: a publisher behind a gate, and routers that choose between several.
//!
//! The gate is shut while the destination is not available. Then nothing is taken for it, no attempt is counted, and what
//! goes elsewhere goes on. One task asks the publisher whether it is [healthy](Publisher::is_healthy), and opens the gate again.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use tokio::sync::watch;

use crate::event::{Event, EventType};
use crate::log::Publisher;
use crate::retry::RetryPolicy;

/// How long after an outage began its end is asked for, at first and at most.
const PROBE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A publisher of the queue's events, and how failures are retried. Cheap to clone; clones share the connection and know
/// together whether it is [available](Destination::outage).
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
    /// Events go to this publisher, in batches.
    pub fn new(publisher: impl Publisher) -> Self {
        Self { gate: Arc::new(Gate::new(Arc::new(publisher))), retry: None }
    }

    /// Retries failures by a policy of its own. An outage is not a failure of any event.
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry = Some(Arc::new(policy));
        self
    }

    /// What its publisher is called.
    pub fn name(&self) -> &str {
        self.gate.publisher.name()
    }

    /// Since when, and why, it is not available.
    pub fn outage(&self) -> Option<Outage> {
        self.gate.outage()
    }

    /// Whether both share a connection and a gate.
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
    /// Why, for people.
    pub reason: String,
}

/// Chooses where an event goes. Pure, and quick: it is asked for every event.
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
    /// Where this event goes; `None`: nowhere, as an event that has no handler.
    fn route(&self, event: &Event) -> Option<Destination>;

    /// Where *all* events of a type go, whatever else they have; `None` if that depends. During an outage events of
    /// such a type stay where they are; others are put off one by one.
    fn of_type(&self, event_type: &EventType) -> Option<Destination> {
        let _ = event_type;
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
}

/// Everything goes to one destination.
impl Router for Destination {
    fn route(&self, _: &Event) -> Option<Destination> {
        Some(self.clone())
    }

    fn of_type(&self, _: &EventType) -> Option<Destination> {
        Some(self.clone())
    }
}

/// Open while the destination is available.
pub(crate) struct Gate {
    pub(crate) publisher: Arc<dyn Publisher>,
    state: Mutex<State>,
    /// Whether it is shut, for those who wait.
    shut: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    outage: Option<Outage>,
    /// Outages since something was last published.
    failures: u32,
}

impl Gate {
    fn new(publisher: Arc<dyn Publisher>) -> Self {
        Self { publisher, state: Mutex::default(), shut: watch::Sender::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no one panics while holding this lock")
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        self.state().outage.clone()
    }

    pub(crate) fn is_shut(&self) -> bool {
        *self.shut.borrow()
    }

    /// The destination is not available. Says whether that is news; then a task asks until it is.
    pub(crate) fn shut(self: &Arc<Self>, reason: &str) -> bool {
        let mut state = self.state();
        if state.outage.is_some() {
            return false;
        }
        state.outage = Some(Outage { since: Utc::now(), reason: reason.to_owned() });
        state.failures = state.failures.saturating_add(1);
        let pause = first_pause(state.failures);
        self.shut.send_replace(true);
        drop(state);
        tracing::warn!(destination = self.publisher.name(), reason, "not available: its events wait");
        tokio::spawn(probe(Arc::downgrade(self), pause));
        true
    }

    /// It is available again, as far as can be told.
    fn open(&self) {
        let outage = self.state().outage.take();
        self.shut.send_replace(false);
        if let Some(outage) = outage {
            let lasted = (Utc::now() - outage.since).to_std().unwrap_or_default();
            tracing::info!(destination = self.publisher.name(), ?lasted, "available again");
        }
    }

    /// Something was published.
    pub(crate) fn works(&self) {
        self.state().failures = 0;
    }

    /// Waits until it is open.
    pub(crate) async fn opened(&self) {
        // The sender is this gate's own: it cannot be gone.
        let _ = self.shut.subscribe().wait_for(|shut| !shut).await;
    }
}

/// One that fails again right after it seemed to be back is asked less often.
fn first_pause(failures: u32) -> Duration {
    PROBE.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PROBE.1)
}

/// Asks until the destination is available, or nobody is interested any more.
async fn probe(gate: Weak<Gate>, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        pause = (pause * 2).min(PROBE.1);
        let Some(gate) = gate.upgrade() else { return };
        let asked = AssertUnwindSafe(gate.publisher.is_healthy()).catch_unwind();
        if matches!(tokio::time::timeout(PATIENCE, asked).await, Ok(Ok(true))) {
            return gate.open();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::log::{Outgoing, PublishError};

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

        async fn is_healthy(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn a_gate_opens_when_its_publisher_is_healthy_again() {
        let moody = Arc::new(Moody::default());
        let destination = Destination::new(moody.clone());
        assert!(destination.gate.shut("gone"));
        assert!(!destination.gate.shut("gone as well"), "known");
        assert_eq!(destination.outage().unwrap().reason, "gone");
        tokio::time::sleep(PROBE.0 * 2).await;
        assert!(destination.clone().gate.is_shut());
        moody.0.store(true, Ordering::SeqCst);
        tokio::time::timeout(PROBE.1 * 10, destination.gate.opened())
            .await
            .expect("it is asked again and again");
        assert_eq!(destination.outage(), None);
    }

    #[test]
    fn one_that_keeps_failing_is_asked_less_often() {
        let pauses: Vec<u128> = [1, 2, 3, 4, 40, u32::MAX].map(|n| first_pause(n).as_millis()).into();
        assert_eq!(pauses, [250, 500, 1_000, 1_000, 1_000, 1_000]);
    }
}
