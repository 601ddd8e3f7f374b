//! Publishers without a broker: one that logs, one that counts, one that tests wait for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::publisher::{Outgoing, PublishError, Publisher, Unavailable};
use super::query::Position;
use crate::escape::Escaped;
use crate::event::EventType;

/// Writes a log line at INFO for every event: its id, type and position, and its number of tags.
/// Never its payload.
///
/// ```
/// use outbox::{TracingPublisher, Publisher, Topic};
///
/// let pair = Topic::new("wallet-events").required_tags(["wallet_id"]).to(TracingPublisher::new());
/// assert_eq!(pair.id().publisher(), "log");
/// assert_eq!(TracingPublisher::named("audit").name(), "audit");
/// ```
#[derive(Clone, Debug)]
pub struct TracingPublisher {
    name: Arc<str>,
}

impl Default for TracingPublisher {
    fn default() -> Self {
        Self::new()
    }
}

impl TracingPublisher {
    /// Named `log`.
    pub fn new() -> Self {
        Self::named("log")
    }

    /// With another name: for a topic with two of them.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into() }
    }
}

#[async_trait]
impl Publisher for TracingPublisher {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        for event in events {
            let (id, event_type, position) = (event.id(), event.event_type(), event.position());
            let (position, tags) = (position.map(Position::get), event.tags().len());
            tracing::info!(publisher = &*self.name, event = %Escaped(id), event_type = %Escaped(event_type), position, tags, "event published");
        }
        Ok(())
    }
}

/// Counts published events, on its own or in front of another publisher. Clones share their counts.
///
/// ```
/// use outbox::{TracingPublisher, Publisher, StatisticsPublisher, Topic};
///
/// let counted = StatisticsPublisher::of(TracingPublisher::new());     // counts what the other one publishes
/// assert_eq!(counted.name(), "log");                              // and has its name
/// let pair = Topic::new("everything").to(counted.clone());
/// # let _ = pair;
/// let seen = counted.statistics();
/// assert_eq!((seen.total, seen.of("DepositMade")), (0, 0));
/// ```
#[derive(Clone)]
pub struct StatisticsPublisher {
    name: Arc<str>,
    inner: Option<Arc<dyn Publisher>>,
    counts: Arc<Mutex<Statistics>>,
}

/// Counts of a [`StatisticsPublisher`]. A repeated event counts again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of published events.
    pub total: u64,
    /// Number of published events by event type.
    pub by_type: BTreeMap<String, u64>,
    /// Number of batches that failed, in part or as a whole.
    pub failures: u64,
    /// The position of the last event, if it came from a log.
    pub last_position: Option<Position>,
}

impl Statistics {
    /// Number of published events of a type.
    pub fn of(&self, event_type: impl Into<EventType>) -> u64 {
        self.by_type.get(event_type.into().as_str()).copied().unwrap_or_default()
    }

    fn count(&mut self, events: &[Outgoing]) {
        for event in events {
            self.total += 1;
            let event_type = event.event_type().as_str();
            match self.by_type.get_mut(event_type) {
                Some(count) => *count += 1,
                None => drop(self.by_type.insert(event_type.to_owned(), 1)),
            }
            self.last_position = event.position().or(self.last_position);
        }
    }
}

impl Default for StatisticsPublisher {
    fn default() -> Self {
        Self::new()
    }
}

impl StatisticsPublisher {
    /// Named `statistics`; counts, and does nothing else.
    pub fn new() -> Self {
        Self::named("statistics")
    }

    /// Counts, and does nothing else, under this name.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), inner: None, counts: Arc::default() }
    }

    /// Counts the events that another publisher publishes, under its name.
    pub fn of(publisher: impl Publisher) -> Self {
        let named = Self::named(publisher.name());
        Self { inner: Some(Arc::new(publisher)), ..named }
    }

    /// The counts so far.
    pub fn statistics(&self) -> Statistics {
        self.counts().clone()
    }

    fn counts(&self) -> MutexGuard<'_, Statistics> {
        self.counts.lock().expect("counting does not panic")
    }
}

impl fmt::Debug for StatisticsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatisticsPublisher")
            .field("name", &self.name)
            .field("counts", &self.statistics())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Publisher for StatisticsPublisher {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let published = match &self.inner {
            Some(inner) => inner.publish_batch(events).await,
            None => Ok(()),
        };
        let mut counts = self.counts();
        match &published {
            Ok(()) => counts.count(events),
            Err(error) => {
                counts.count(&events[..error.published().min(events.len())]);
                counts.failures += 1;
            }
        }
        drop(counts);
        published
    }

    async fn health(&self) -> Result<(), Unavailable> {
        match &self.inner {
            Some(inner) => inner.health().await,
            None => Ok(()),
        }
    }
}

/// Keeps the events that it is given, for a test to wait for. Clones share the latch.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use std::time::Duration;
/// use outbox::{Event, LatchPublisher, Outbox};
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// outbox.migrate().await?;
/// let latch = LatchPublisher::expecting(1);
/// let relay = outbox.single_node().forward(["order.placed"], latch.clone()).start().await?;
///
/// outbox.send(Event::new("order.placed").json(&42)).await?;
/// let arrived = latch.wait(Duration::from_secs(30)).await.expect("it arrives");
/// assert_eq!(arrived[0].payload::<u32>().unwrap(), 42);
/// # relay.stop().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LatchPublisher {
    name: Arc<str>,
    expected: usize,
    arrived: watch::Sender<Vec<Outgoing>>,
}

impl LatchPublisher {
    /// Named `latch`; opens when this many events have arrived.
    pub fn expecting(events: usize) -> Self {
        Self { name: "latch".into(), expected: events, arrived: watch::Sender::new(Vec::new()) }
    }

    /// With another name.
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Waits until as many events as expected have arrived. Returns all that have, in order of
    /// arrival, including repeats.
    pub async fn wait(&self, limit: Duration) -> Result<Vec<Outgoing>, LatchError> {
        let mut arrived = self.arrived.subscribe();
        let enough = arrived.wait_for(|arrived| arrived.len() >= self.expected);
        let opened = match tokio::time::timeout(limit, enough).await {
            Ok(Ok(arrived)) => Some(arrived.clone()),
            Ok(Err(_)) | Err(_) => None,
        };
        opened.ok_or_else(|| LatchError { expected: self.expected, arrived: self.arrived(), limit })
    }

    /// The events that have arrived so far.
    pub fn arrived(&self) -> Vec<Outgoing> {
        self.arrived.borrow().clone()
    }
}

#[async_trait]
impl Publisher for LatchPublisher {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.arrived.send_modify(|arrived| arrived.extend_from_slice(events));
        Ok(())
    }
}

/// Fewer events arrived than a [`LatchPublisher`] expected.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} of {expected} events arrived within {limit:?}", .arrived.len())]
pub struct LatchError {
    /// Number of expected events.
    pub expected: usize,
    /// The events that arrived.
    pub arrived: Vec<Outgoing>,
    /// The time limit.
    pub limit: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::handler::Failure;

    fn outgoing(event_type: &str, position: Option<i64>) -> Outgoing {
        let event = Event::new(event_type).json(&()).build().unwrap();
        let outgoing = Outgoing::new(event);
        match position {
            Some(position) => outgoing.at(Position::new(position)),
            None => outgoing,
        }
    }

    /// Publishes this many events of a batch, fails on the next, and is never healthy.
    struct Takes(usize);

    #[async_trait]
    impl Publisher for Takes {
        fn name(&self) -> &'static str {
            "takes"
        }

        async fn publish_batch(&self, _: &[Outgoing]) -> Result<(), PublishError> {
            Err(PublishError::after(self.0, Failure::retry("no more")))
        }

        async fn health(&self) -> Result<(), Unavailable> {
            Err(Unavailable::new("it is not healthy"))
        }
    }

    #[tokio::test]
    async fn statistics_count_by_type_and_remember_the_last_position() {
        let publisher = StatisticsPublisher::new();
        let handle = publisher.clone();
        publisher.publish_batch(&[outgoing("a", Some(3)), outgoing("b", Some(5))]).await.unwrap();
        publisher.publish_batch(&[outgoing("a", None)]).await.unwrap();
        let seen = handle.statistics();
        assert_eq!((seen.total, seen.of("a"), seen.of("b"), seen.of("c")), (3, 2, 1, 0));
        assert_eq!((seen.last_position, seen.failures), (Some(Position::new(5)), 0));
        assert!(publisher.health().await.is_ok());
        assert_eq!(publisher.name(), "statistics");
    }

    #[tokio::test]
    async fn statistics_of_another_publisher_count_only_what_it_published() {
        let counted = StatisticsPublisher::of(Takes(1));
        let batch = [outgoing("a", Some(1)), outgoing("b", Some(2))];
        let error = counted.publish_batch(&batch).await.unwrap_err();
        assert_eq!(
            error,
            PublishError::after(1, Failure::retry("no more")),
            "the error is returned unchanged"
        );
        let seen = counted.statistics();
        assert_eq!((seen.total, seen.of("a"), seen.failures), (1, 1, 1));
        assert_eq!(seen.last_position, Some(Position::new(1)));
        assert_eq!(counted.name(), "takes");
        assert!(counted.health().await.is_err());
        // A publisher that reports more published events than the batch has.
        let excessive = StatisticsPublisher::of(Takes(7));
        excessive.publish_batch(&batch).await.unwrap_err();
        assert_eq!(excessive.statistics().total, 2);
    }

    #[tokio::test]
    async fn a_latch_opens_when_enough_has_arrived() {
        let latch = LatchPublisher::expecting(3).named("test");
        assert_eq!(latch.name(), "test");
        latch.publish_batch(&[outgoing("a", Some(1))]).await.unwrap();
        let missing = latch.wait(Duration::from_millis(10)).await.unwrap_err();
        assert_eq!((missing.arrived.len(), missing.expected), (1, 3));
        assert_eq!(missing.to_string(), "1 of 3 events arrived within 10ms");

        let waiting = tokio::spawn({
            let latch = latch.clone();
            async move { latch.wait(Duration::from_secs(60)).await }
        });
        latch.publish_batch(&[outgoing("b", Some(2)), outgoing("c", None)]).await.unwrap();
        let types: Vec<String> =
            waiting.await.unwrap().unwrap().iter().map(|e| e.event_type().as_str().to_owned()).collect();
        assert_eq!(types, ["a", "b", "c"]);
        assert_eq!(latch.arrived().len(), 3);
        assert!(LatchPublisher::expecting(0).wait(Duration::ZERO).await.unwrap().is_empty());
    }
}
