//! A subscription: a topic, a publisher, and its pacing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::pacing::{Pace, PacingSettings};
use super::publisher::Publisher;
use super::query::Position;
use super::topic::{MAX_NAME, Topic};
use crate::error::{Error, Result};
use crate::event::check_text;
use crate::store::NodeId;

/// Name of a subscription: a topic and a publisher. Each has its own position in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId {
    topic: Arc<str>,
    publisher: Arc<str>,
}

impl SubscriptionId {
    /// The subscription of these names.
    pub fn new(topic: impl Into<Arc<str>>, publisher: impl Into<Arc<str>>) -> Self {
        Self { topic: topic.into(), publisher: publisher.into() }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The publisher's name.
    pub fn publisher(&self) -> &str {
        &self.publisher
    }
}

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.topic, self.publisher))
    }
}

/// A topic, a publisher, and the pacing of publishing. Created by [`Topic::to`], started by
/// [`RelayBuilder::publish`](crate::RelayBuilder::publish).
#[derive(Clone)]
#[must_use = "it does nothing until a relay has it: `relay.publish(…)`"]
pub struct Subscription {
    pub(crate) id: SubscriptionId,
    pub(crate) topic: Topic,
    pub(crate) publisher: Arc<dyn Publisher>,
    pub(crate) pace: PacingSettings,
    pub(crate) from_now: bool,
}

impl Subscription {
    pub(crate) fn new(topic: Topic, publisher: Arc<dyn Publisher>) -> Self {
        let id = SubscriptionId { topic: topic.shared_name(), publisher: publisher.name().into() };
        Self { id, topic, publisher, pace: PacingSettings::default(), from_now: false }
    }

    /// Maximum number of events of a batch; 100 if not set.
    pub fn batch(mut self, events: usize) -> Self {
        self.pace.batch = Some(events);
        self
    }

    /// Minimum time from the start of one batch to the start of the next; if not set, batches
    /// follow each other as long as there are events. Events that are appended meanwhile wait for
    /// the next batch.
    ///
    /// A failed batch is retried by its own rule ([`retry`](Subscription::retry)). The time is
    /// measured by the leader: another node, or the same one after a restart, publishes its first
    /// batch immediately.
    ///
    /// ```
    /// use std::time::Duration;
    /// use outbox::{TracingPublisher, Topic};
    ///
    /// // Up to 500 events every ten seconds.
    /// let pair = Topic::new("wallet-events").to(TracingPublisher::new()).batch(500).interval(Duration::from_secs(10));
    /// # let _ = pair;
    /// ```
    pub fn interval(mut self, interval: Duration) -> Self {
        self.pace.interval = Some(interval);
        self
    }

    /// Poll interval without notifications; every second if not set. After an append in the same
    /// process it polls immediately.
    pub fn every(mut self, interval: Duration) -> Self {
        self.pace.every = Some(interval);
        self
    }

    /// After `polls` polls without an event each wait is twice as long, or [longer by another
    /// factor](Subscription::idle_multiplier), up to `longest`; 3 and a minute if not set. An event
    /// or a notification restores the interval.
    pub fn idle(mut self, polls: u32, longest: Duration) -> Self {
        (self.pace.idle_after, self.pace.idle_max) = (Some(polls), Some(longest));
        self
    }

    /// Factor by which waits grow while polls find no event; 2 if not set. From 1 to 1,000.
    ///
    /// ```
    /// use std::time::Duration;
    /// use outbox::{TracingPublisher, Topic};
    ///
    /// // Polls after 1 s, 1 s, 1.5 s, 2.25 s … 30 s.
    /// let pair = Topic::new("audit").to(TracingPublisher::new()).idle(2, Duration::from_secs(30)).idle_multiplier(1.5);
    /// # let _ = pair;
    /// ```
    pub fn idle_multiplier(mut self, factor: f64) -> Self {
        self.pace.idle_multiplier = Some(factor);
        self
    }

    /// Time limit of a batch, after which it counts as failed; 30 seconds if not set.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.pace.timeout = Some(limit);
        self
    }

    /// Number of errors in a row after which the subscription is FAILED: from then on one event at
    /// a time is tried, and the first success makes it ACTIVE again; 5 if not set.
    pub fn fails_after(mut self, errors: u32) -> Self {
        self.pace.fails_after = Some(errors);
        self
    }

    /// First and longest wait after an error, doubling in between; half a second and a minute if
    /// not set.
    pub fn retry(mut self, first: Duration, longest: Duration) -> Self {
        (self.pace.retry_base, self.pace.retry_max) = (Some(first), Some(longest));
        self
    }

    /// Starts with events that are appended from now on, instead of with the first event of the
    /// log. Applies to the first start of a subscription only: from then on it has a position.
    /// Events that are being appended at that moment may or may not be included.
    pub fn from_now(mut self) -> Self {
        self.from_now = true;
        self
    }

    /// Fills in unset pacing from other settings.
    pub(crate) fn or(mut self, others: &PacingSettings) -> Self {
        self.pace = self.pace.or(others);
        self
    }

    /// The pacing, with defaults for unset values.
    pub(crate) fn pace(&self) -> Pace {
        self.pace.resolve()
    }

    /// The names of topic and publisher.
    pub fn id(&self) -> &SubscriptionId {
        &self.id
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.topic.check()?;
        let of_this = |what: &dyn fmt::Display| format!("subscription {}: {what}", self.id);
        check_text("publisher name", self.id.publisher(), MAX_NAME)
            .map_err(|e| Error::setting_by(of_this(&e), e))?;
        let pace = self.pace();
        let year = Duration::from_secs(365 * 86_400);
        for (name, ok) in [
            ("batch must be 1 to 100,000", (1..=100_000).contains(&pace.batch)),
            ("interval must be at most a year", pace.interval <= year),
            ("every must be 1 ms to a year", pace.every >= Duration::from_millis(1) && pace.every <= year),
            ("idle must be at most a year", pace.idle_max <= year),
            ("idle_multiplier must be 1 to 1,000", (1.0..=1_000.0).contains(&pace.idle_multiplier)),
            (
                "timeout must be more than 0 and at most a year",
                !pace.timeout.is_zero() && pace.timeout <= year,
            ),
            ("fails_after must be greater than 0", pace.fails_after > 0),
            (
                "retry must be more than 0 and at most a year",
                !pace.retry_base.is_zero() && pace.retry_max <= year,
            ),
        ] {
            if !ok {
                return Err(Error::setting(of_this(&name)));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id).field("pace", &self.pace).finish_non_exhaustive()
    }
}

/// Whether a subscription publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SubscriptionStatus {
    /// Publishes.
    #[default]
    Active,
    /// Paused by an operator.
    Paused,
    /// Fails repeatedly. The subscription is still tried, one event at a time, and becomes active
    /// by itself.
    Failed,
}

impl SubscriptionStatus {
    /// The text in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            SubscriptionStatus::Active => "ACTIVE",
            SubscriptionStatus::Paused => "PAUSED",
            SubscriptionStatus::Failed => "FAILED",
        }
    }

    /// The status of a text in the table. An unknown text counts as paused: another program may
    /// have set it on purpose.
    pub(crate) fn from_stored(text: &str) -> Self {
        match text {
            "ACTIVE" => SubscriptionStatus::Active,
            "FAILED" => SubscriptionStatus::Failed,
            _ => SubscriptionStatus::Paused,
        }
    }
}

impl fmt::Display for SubscriptionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// State of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionState {
    /// The subscription.
    pub id: SubscriptionId,
    /// Whether it publishes.
    pub status: SubscriptionStatus,
    /// Every event up to here was published, or is not selected by its topic.
    pub position: Position,
    /// Number of errors in a row.
    pub error_count: u32,
    /// The last error.
    pub last_error: Option<String>,
    /// Its leader; with no time [remaining](SubscriptionState::remaining), its last leader.
    pub leader: Option<NodeId>,
    /// Increases with every change of leader.
    pub epoch: i64,
    /// Time until the leader's lease expires, unless it is renewed.
    pub remaining: Duration,
    /// When its position last moved.
    pub updated_at: DateTime<Utc>,
}

impl SubscriptionState {
    /// Whether the subscription has no leader: the lease was released or has expired.
    pub fn is_free(&self) -> bool {
        self.leader.is_none() || self.remaining.is_zero()
    }
}
