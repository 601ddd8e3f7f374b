//! Publishers: where events go. The same one serves a log's topic and, as a handler, the queue.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;

use super::query::Position;
use crate::event::Event;
use crate::handler::{Cx, Failure, Handler, Outcome};

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

    /// Publishes these events, in this order. Said to have failed, they come again: receivers tell repeats by the event's
    /// id. One that knows how far it got says so, and only the rest comes again: [`PublishError::after`].
    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError>;

    /// Whether it makes sense to try now. Asked before every batch; while it is false nothing is published, and no error is
    /// counted.
    async fn is_healthy(&self) -> bool {
        true
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

    async fn is_healthy(&self) -> bool {
        (**self).is_healthy().await
    }
}

/// An event on its way to a publisher. Reads like the [`Event`] itself; cheap to clone.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub(crate) event: Event,
    pub(crate) position: Option<Position>,
    pub(crate) attempt: u32,
    pub(crate) epoch: Option<i64>,
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
        Self { event, position: None, attempt: 1, epoch: None }
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
/// Any error becomes one with `?`: then nothing of the batch counts as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishError {
    pub(crate) published: usize,
    pub(crate) failure: Failure,
}

impl PublishError {
    /// So many events from the start of the batch *were* published, and the one after them failed.
    pub fn after(published: usize, failure: impl Into<Failure>) -> Self {
        Self { published, failure: failure.into() }
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl From<Failure> for PublishError {
    fn from(failure: Failure) -> Self {
        Self { published: 0, failure }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for PublishError {
    fn from(error: E) -> Self {
        Failure::from(error).into()
    }
}

/// A publisher as a handler of the queue.
pub(crate) struct Forward(pub(crate) Arc<dyn Publisher>);

#[async_trait]
impl Handler for Forward {
    async fn handle(&self, cx: Cx) -> Result<Outcome, Failure> {
        if !self.0.is_healthy().await {
            // Not the event's fault: no attempt.
            return Ok(Outcome::RetryAfter(UNHEALTHY_PAUSE));
        }
        let outgoing = Outgoing { attempt: cx.attempt, ..Outgoing::new(cx.event) };
        match self.0.publish_batch(std::slice::from_ref(&outgoing)).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if error.published > 0 => Ok(Outcome::Done),
            // Nor is what has become of it since.
            Err(_) if !self.0.is_healthy().await => Ok(Outcome::RetryAfter(UNHEALTHY_PAUSE)),
            Err(error) => Err(error.failure),
        }
    }
}

/// How long an event of the queue waits for a publisher that is not healthy.
const UNHEALTHY_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
