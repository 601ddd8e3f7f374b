//! Publishers: where events go. The same one serves a log's topic and, as a handler, the queue.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::query::Position;
use crate::event::Event;
use crate::handler::Failure;

/// Tells the world: a broker, a webhook, a read model.
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
/// [`Topic::to`](crate::Topic::to) sends the events of a log to it, [`RelayBuilder::forward`](crate::RelayBuilder::forward)
/// those of the queue.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// What it is called: its position is kept by this name, so it must not change.
    fn name(&self) -> &str;

    /// Publishes these events, in this order, and returns when the destination has them. Said to have failed, they come again:
    /// receivers tell repeats by the event's id. One that knows what became of each says so: see [`PublishError`].
    ///
    /// Of an [ordering key](Event::ordering_key) no event may arrive before an earlier one: after one has failed, those
    /// behind it are [`Untried`](Fate::Untried). Several batches may be under way at once, but never two with the same key.
    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError>;

    /// Checks quickly whether publishing makes sense now, for example by looking at a connection. While it
    /// returns an error nothing is published and no attempt is counted; the error's reason is shown to
    /// operators. After an outage the relay calls it until it returns `Ok`, so it connects if need be.
    async fn health(&self) -> Result<(), Unavailable> {
        Ok(())
    }
}

/// Why a destination cannot be used at the moment, as its client reports it: connection refused, unknown
/// host, failed TLS handshake, wrong password, missing stream. Must not contain credentials.
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

    /// `Ok` if the destination is available, and this reason otherwise.
    pub fn unless(available: bool, reason: impl fmt::Display) -> Result<(), Self> {
        if available { Ok(()) } else { Err(Self::new(reason)) }
    }

    /// The reason, for operators.
    pub fn reason(&self) -> &str {
        &self.0
    }
}

/// One that is used elsewhere too.
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
    /// An event of the queue, on its first attempt. For tests of publishers: relays make their own.
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

    /// The same as an event of the log, at this position.
    pub fn at(mut self, position: Position) -> Self {
        self.position = Some(position);
        self
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Its place in the log; `None` for an event of the queue.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// An event of the queue: its place in the table, known whenever order matters. A receiver that drops what is not
    /// above the last one it saw of a key drops every redelivery.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// When the database stored it; `None` if it came here without being read back.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }

    /// Rises each time that somebody takes the topic's publisher over, after a crash for instance; `None` for an event of the
    /// queue. Within an epoch every event comes once, unless it fails. A receiver that has seen a greater one knows that whoever
    /// sends this has lost the right to.
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

/// Why a batch was not published, and how much of it was.
///
/// Any error becomes one with `?`: then nothing of the batch counts as published, and nobody knows which event it was; the
/// relay finds out, by trying fewer at a time. A publisher that knows more says more:
///
/// ```
/// use outbox::{Failure, Fate, PublishError};
///
/// // The broker confirmed two events and refused the third; nothing was sent after it.
/// let _ = PublishError::after(2, Failure::dead("1,200,000 bytes are more than the 1,000,000 that the topic takes"));
///
/// // It confirmed the first and the third, refused the second, and the fourth waits behind that one.
/// let refused = Failure::retry("no leader for the partition");
/// let _ = PublishError::each(vec![Fate::Published, Fate::Failed(refused), Fate::Published, Fate::Untried]);
///
/// // It is not there at all: no event is to blame, and none uses up an attempt.
/// let _ = PublishError::unavailable("connection refused");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishError {
    known: Known,
    pub(crate) failure: Failure,
    /// Whether the destination is to blame, not an event.
    pub(crate) unavailable: bool,
}

/// How much is known of a batch that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// So many were published, the next one failed, the rest was not tried.
    After(usize),
    /// What became of each, from the first one on. Those beyond its end were not tried.
    Each(Vec<Fate>),
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The destination has it.
    Published,
    /// It was refused, or nobody knows.
    Failed(Failure),
    /// It was not sent: it waits behind one that failed, or behind an outage.
    Untried,
}

impl PublishError {
    fn new(known: Known, failure: Failure, unavailable: bool) -> Self {
        Self { known, failure, unavailable }
    }

    /// So many events from the start of the batch *were* published, the one after them failed, and the rest was not tried.
    pub fn after(published: usize, failure: impl Into<Failure>) -> Self {
        Self::new(Known::After(published), failure.into(), false)
    }

    /// What became of each event, in the order of the batch.
    pub fn each(fates: Vec<Fate>) -> Self {
        let first = fates.iter().find_map(|fate| match fate {
            Fate::Failed(failure) => Some(failure.clone()),
            Fate::Published | Fate::Untried => None,
        });
        let failure = first.unwrap_or_else(|| Failure::retry("not all events were published"));
        Self::new(Known::Each(fates), failure, false)
    }

    /// The destination cannot be reached, or takes nothing at the moment: no event is to blame. Nothing is sent to it until it
    /// is [healthy](Publisher::health) again.
    pub fn unavailable(reason: impl fmt::Display) -> Self {
        Self::new(Known::Nothing, Failure::retry(reason), true)
    }

    /// The same where more is known: of each event, in the order of the batch.
    pub fn unavailable_with(fates: Vec<Fate>, reason: impl fmt::Display) -> Self {
        Self::new(Known::Each(fates), Failure::retry(reason), true)
    }

    /// Whether the destination is to blame, and no event.
    pub fn is_unavailable(&self) -> bool {
        self.unavailable
    }

    /// What became of the event at this place; `None` if nobody knows.
    pub fn fate(&self, index: usize) -> Option<Fate> {
        match &self.known {
            Known::Nothing => None,
            Known::After(published) => Some(match index.cmp(published) {
                Ordering::Less => Fate::Published,
                Ordering::Equal => Fate::Failed(self.failure.clone()),
                Ordering::Greater => Fate::Untried,
            }),
            Known::Each(fates) => Some(fates.get(index).cloned().unwrap_or(Fate::Untried)),
        }
    }

    /// How many events from the start of the batch were published.
    pub fn published(&self) -> usize {
        match &self.known {
            Known::Nothing => 0,
            Known::After(published) => *published,
            Known::Each(fates) => fates.iter().take_while(|fate| **fate == Fate::Published).count(),
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
        Self::new(Known::Nothing, failure, false)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for PublishError {
    fn from(error: E) -> Self {
        Failure::from(error).into()
    }
}
