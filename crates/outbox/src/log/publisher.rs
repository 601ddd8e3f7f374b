//! Publishers: destinations of events. The same publisher serves a topic of the log and, as a
//! `Destination`, the queue.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::query::Position;
use crate::event::Event;
use crate::handler::Failure;

/// Publishes events to a broker, a webhook, a read model.
///
/// ```
/// use async_trait::async_trait;
/// use outbox::{Outgoing, PublishError, Publisher};
///
/// struct Console;
///
/// #[async_trait]
/// impl Publisher for Console {
///     fn name(&self) -> &str {
///         "console"
///     }
///
///     async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
///         for event in events {
///             println!("{} {}", event.event_type(), String::from_utf8_lossy(event.payload_bytes()));
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// [`Topic::to`](crate::Topic::to) sends events of the log to it,
/// [`RelayBuilder::forward`](crate::RelayBuilder::forward) events of the queue.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Its name. Its position is stored under this name, so the name must not change.
    fn name(&self) -> &str;

    /// Publishes these events in this order, and returns when the destination has accepted them.
    /// Events that are reported as failed are published again: receivers recognise repeats by the
    /// event's id. A publisher that knows the result of each event reports it: see
    /// [`PublishError`].
    ///
    /// No event of an [ordering key](Event::ordering_key) may arrive before an earlier one: after a
    /// failed event, the later events of its key are [`NotAttempted`](EventResult::NotAttempted).
    /// Several batches may be in flight concurrently, but never two with the same key.
    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError>;

    /// Checks quickly whether publishing is possible now, for example by checking a connection.
    /// While it returns an error nothing is published and no attempt is counted; the error's reason
    /// is shown to operators. After an outage the relay calls it until it returns `Ok`, so it
    /// connects if necessary.
    async fn health(&self) -> Result<(), Unavailable> {
        Ok(())
    }
}

/// Why a destination cannot be used at the moment, as its client reports it: connection refused,
/// unknown host, failed TLS handshake, wrong password, missing stream. Must not contain
/// credentials.
///
/// ```
/// use outbox::Unavailable;
///
/// let connected = false;
/// let health = Unavailable::unless(connected, "connection refused by 127.0.0.1:4222");
/// assert_eq!(health.unwrap_err().reason(), "connection refused by 127.0.0.1:4222");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

impl Unavailable {
    /// A destination that is unavailable for this reason.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self(reason.to_string())
    }

    /// `Ok` if the destination is available, otherwise this reason.
    pub fn unless(available: bool, reason: impl fmt::Display) -> Result<(), Self> {
        if available { Ok(()) } else { Err(Self::new(reason)) }
    }

    /// The reason, for operators.
    pub fn reason(&self) -> &str {
        &self.0
    }
}

/// A publisher that is shared with other code.
#[async_trait]
impl<P: Publisher + ?Sized> Publisher for Arc<P> {
    fn name(&self) -> &str {
        (**self).name()
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        (**self).publish_batch(events).await
    }

    async fn health(&self) -> Result<(), Unavailable> {
        (**self).health().await
    }
}

/// An event on its way to a publisher. Reads like the [`Event`] itself; cheap to clone.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub(crate) event: Event,
    pub(crate) position: Option<Position>,
    pub(crate) attempt: u32,
    pub(crate) epoch: Option<i64>,
    pub(crate) seq: Option<i64>,
    pub(crate) created_at: Option<DateTime<Utc>>,
}

impl Outgoing {
    /// An event of the queue, on its first attempt. For tests of publishers: relays create their
    /// own.
    ///
    /// ```
    /// use outbox::{Event, Outgoing, Position};
    ///
    /// let event = Event::new("DepositMade").tag("wallet_id", "w1").json(&100).build()?;
    /// let outgoing = Outgoing::new(event).at(Position::new(7));
    /// assert_eq!((outgoing.attempt(), outgoing.position()), (1, Some(Position::new(7))));
    /// # Ok::<(), outbox::EventError>(())
    /// ```
    pub fn new(event: Event) -> Self {
        Self { event, position: None, attempt: 1, epoch: None, seq: None, created_at: None }
    }

    /// Makes the event an event of the log, at this position.
    pub fn at(mut self, position: Position) -> Self {
        self.position = Some(position);
        self
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Its position in the log; `None` for an event of the queue.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// Number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Sequence number of an event of the queue, known whenever order matters. A receiver that
    /// ignores events that are not above the last one of their key ignores every redelivery.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// When the database stored it; `None` if it was not read back from the database.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }

    /// Increases each time another relay takes over the topic's publisher, after a crash for
    /// instance; `None` for an event of the queue. Within an epoch every event is sent once, unless
    /// it fails. A receiver that has seen a higher epoch knows that the sender has lost its lease.
    pub fn epoch(&self) -> Option<i64> {
        self.epoch
    }
}

impl Deref for Outgoing {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// Why a batch was not published, and which of its events were.
///
/// Any error converts to one with `?`: then no event of the batch counts as published, and the
/// failed event is unknown; the relay finds it by publishing smaller batches. A publisher that
/// knows more reports more:
///
/// ```
/// use outbox::{Failure, EventResult, PublishError};
///
/// // The broker confirmed two events and refused the third; nothing was sent after it.
/// let _ = PublishError::after(2, Failure::dead("1,200,000 bytes are more than the 1,000,000 that the topic accepts"));
///
/// // It confirmed the first and the third, refused the second, and the fourth was not sent because the second blocks it.
/// let refused = Failure::retry("no leader for the partition");
/// let _ = PublishError::each(vec![EventResult::Published, EventResult::Failed(refused), EventResult::Published, EventResult::NotAttempted]);
///
/// // It is unavailable: no event is the cause, and no attempt is counted.
/// let _ = PublishError::unavailable("connection refused");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishError {
    known: KnownResults,
    pub(crate) failure: Failure,
    /// Whether the destination is the cause, not an event.
    pub(crate) unavailable: bool,
}

/// Knowledge about a batch that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KnownResults {
    Nothing,
    /// This many were published, the next one failed, the rest was not tried.
    After(usize),
    /// The result of each event, from the first one. Events beyond its end were not tried.
    Each(Vec<EventResult>),
}

/// Result of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventResult {
    /// The destination has accepted it.
    Published,
    /// Refused, or unknown.
    Failed(Failure),
    /// Not sent: blocked by a failed event or by an outage.
    NotAttempted,
}

impl PublishError {
    fn new(known: KnownResults, failure: Failure, unavailable: bool) -> Self {
        Self { known, failure, unavailable }
    }

    /// The first `published` events of the batch *were* published, the next one failed, and the
    /// rest was not tried.
    pub fn after(published: usize, failure: impl Into<Failure>) -> Self {
        Self::new(KnownResults::After(published), failure.into(), false)
    }

    /// The result of each event, in the order of the batch.
    pub fn each(fates: Vec<EventResult>) -> Self {
        let first = fates.iter().find_map(|fate| match fate {
            EventResult::Failed(failure) => Some(failure.clone()),
            EventResult::Published | EventResult::NotAttempted => None,
        });
        let failure = first.unwrap_or_else(|| Failure::retry("not all events were published"));
        Self::new(KnownResults::Each(fates), failure, false)
    }

    /// The destination cannot be reached, or accepts no event at the moment: no event is the cause.
    /// Nothing is sent to it until it is [healthy](Publisher::health) again.
    pub fn unavailable(reason: impl fmt::Display) -> Self {
        Self::new(KnownResults::Nothing, Failure::retry(reason), true)
    }

    /// As [`unavailable`](Self::unavailable), with the result of each event, in the order of the
    /// batch.
    pub fn unavailable_with(fates: Vec<EventResult>, reason: impl fmt::Display) -> Self {
        Self::new(KnownResults::Each(fates), Failure::retry(reason), true)
    }

    /// Whether the destination is the cause, and no event.
    pub fn is_unavailable(&self) -> bool {
        self.unavailable
    }

    /// The result of the event at this index; `None` if unknown.
    pub fn fate(&self, index: usize) -> Option<EventResult> {
        match &self.known {
            KnownResults::Nothing => None,
            KnownResults::After(published) => Some(match index.cmp(published) {
                Ordering::Less => EventResult::Published,
                Ordering::Equal => EventResult::Failed(self.failure.clone()),
                Ordering::Greater => EventResult::NotAttempted,
            }),
            KnownResults::Each(fates) => Some(fates.get(index).cloned().unwrap_or(EventResult::NotAttempted)),
        }
    }

    /// Number of events from the start of the batch that were published.
    pub fn published(&self) -> usize {
        match &self.known {
            KnownResults::Nothing => 0,
            KnownResults::After(published) => *published,
            KnownResults::Each(fates) => {
                fates.iter().take_while(|fate| **fate == EventResult::Published).count()
            }
        }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl From<Failure> for PublishError {
    fn from(failure: Failure) -> Self {
        Self::new(KnownResults::Nothing, failure, false)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for PublishError {
    fn from(error: E) -> Self {
        Failure::from(error).into()
    }
}
