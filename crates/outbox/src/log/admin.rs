//! Inspecting and repairing the subscriptions of a log.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::query::Position;
use super::store::{OpenAppend, Unreadable, log_of};
use super::subscription::{SubscriptionId, SubscriptionState, SubscriptionStatus};
use crate::admin::purge_log;
use crate::error::{Error, Result};
use crate::store::SharedStore;

/// The subscriptions of a log: their state and lag; pausing, resuming and resetting them.
///
/// Changes are in the table when a call returns. The leader of a subscription sees them within
/// seconds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{SubscriptionStatus, Position};
///
/// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// # let pair = outbox::SubscriptionId::new("wallet-events", "KafkaPublisher");
/// # outbox.store().log().unwrap().register(&[(pair, false)]).await?;
/// let admin = outbox.log_admin();
/// for lag in admin.lag().await? {
///     println!("{} is {}, {} positions behind", lag.id, lag.status, lag.behind);
/// }
/// admin.pause("KafkaPublisher").await?;                                   // in all topics
/// assert_eq!(admin.subscription("wallet-events", "KafkaPublisher").await?.status, SubscriptionStatus::Paused);
///
/// admin.reset("wallet-events", "KafkaPublisher", Position::START).await?; // everything again
/// admin.resume_in("wallet-events", "KafkaPublisher").await?;
///
/// let unknown = admin.pause("KafkaPublsher").await.unwrap_err();
/// assert!(unknown.to_string().contains("KafkaPublsher"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LogAdmin {
    store: SharedStore,
}

/// Distance of a subscription from the end of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The subscription.
    pub id: SubscriptionId,
    /// Whether it publishes.
    pub status: SubscriptionStatus,
    /// Every event up to here was published, or is not selected by its topic.
    pub position: Position,
    /// The highest position.
    pub head: Position,
    /// Number of positions between the two. Not every position is an event, or an event of this
    /// topic.
    pub behind: u64,
    /// The open transaction that blocks it, if any. PostgreSQL only.
    pub waits_for: Option<OpenAppend>,
}

impl LogAdmin {
    /// For a store without an [`Outbox`](crate::Outbox).
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// All subscriptions, by topic and publisher. There is one for each that was ever started.
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionState>> {
        log_of(&*self.store)?.subscriptions().await
    }

    /// One subscription.
    pub async fn subscription(&self, topic: &str, publisher: &str) -> Result<SubscriptionState> {
        let found = self.subscriptions().await?.into_iter();
        let mut found = found.filter(|subscription| {
            subscription.id.topic() == topic && subscription.id.publisher() == publisher
        });
        found.next().ok_or_else(|| unknown(publisher, Some(topic)))
    }

    /// Undecodable events that publishers have skipped, the highest positions first.
    ///
    /// An entry is a record: it stays when the row of the log is repaired.
    pub async fn unreadable(&self, limit: usize) -> Result<Vec<Unreadable>> {
        log_of(&*self.store)?.unreadable(limit).await
    }

    /// Pauses a publisher in all topics. The batch that is being published is the last one. Returns
    /// the number of subscriptions.
    pub async fn pause(&self, publisher: &str) -> Result<u64> {
        self.set(publisher, None, SubscriptionStatus::Paused).await
    }

    /// Pauses a publisher in one topic.
    pub async fn pause_in(&self, topic: &str, publisher: &str) -> Result<()> {
        self.set(publisher, Some(topic), SubscriptionStatus::Paused).await.map(drop)
    }

    /// Resumes a paused or failed publisher in all topics: from its position, with errors cleared.
    /// Returns the number of subscriptions.
    pub async fn resume(&self, publisher: &str) -> Result<u64> {
        self.set(publisher, None, SubscriptionStatus::Active).await
    }

    /// Resumes a publisher in one topic.
    pub async fn resume_in(&self, topic: &str, publisher: &str) -> Result<()> {
        self.set(publisher, Some(topic), SubscriptionStatus::Active).await.map(drop)
    }

    /// Sets a subscription to a position, backwards or forwards: later events are published, again
    /// or for the first time. Errors are cleared; a pause stays. A leader that is publishing right
    /// now can no longer move the subscription.
    pub async fn reset(&self, topic: &str, publisher: &str, position: Position) -> Result<()> {
        let log = log_of(&*self.store)?;
        let head = log.head().await?;
        if position > head {
            // It would publish nothing until the log reaches that position, with no visible cause.
            return Err(Error::BeyondHead { position, head });
        }
        match log.reset(&SubscriptionId::new(topic, publisher), position).await? {
            true => {
                self.notify().await;
                Ok(())
            }
            false => Err(unknown(publisher, Some(topic))),
        }
    }

    /// Resets a subscription to a time: events that were stored since then are published. Returns
    /// the position.
    pub async fn reset_to_time(&self, topic: &str, publisher: &str, time: DateTime<Utc>) -> Result<Position> {
        let position = log_of(&*self.store)?.position_at(time).await?;
        self.reset(topic, publisher, position).await?;
        Ok(position)
    }

    /// Deletes events that were stored longer ago than this and that every publisher has passed,
    /// 500 at a time. Returns how many. The last event stays. See also
    /// [`PurgeSettings::log_retention`](crate::PurgeSettings::log_retention).
    ///
    /// Deleted events are missing for [projections and conditions](crate::Log::project) as well,
    /// and for publishers that are added or reset later. A publisher that no relay runs any more
    /// keeps all events after its position: delete its row.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let year = std::time::Duration::from_secs(365 * 86_400);
    /// assert_eq!(outbox.log_admin().purge(year).await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn purge(&self, older_than: Duration) -> Result<u64> {
        log_of(&*self.store)?;
        purge_log(&*self.store, older_than, 500, &CancellationToken::new()).await
    }

    /// Lag of all subscriptions, by topic and publisher.
    pub async fn lag(&self) -> Result<Vec<Lag>> {
        let log = log_of(&*self.store)?;
        // The head last: a subscription that moves meanwhile shows a larger lag than it has, not a
        // smaller one.
        let (subscriptions, head) = (log.subscriptions().await?, log.head().await?);
        let waiting = if subscriptions.iter().any(|subscription| subscription.position < head) {
            log.waiting().await?
        } else {
            Vec::new()
        };
        let mut waiting: HashMap<SubscriptionId, OpenAppend> = waiting.into_iter().collect();
        let lag = |SubscriptionState { id, status, position, .. }| {
            let behind = u64::try_from(head.get() - position.get()).unwrap_or(0);
            let waits_for = waiting.remove(&id);
            Lag { id, status, position, head, behind, waits_for }
        };
        Ok(subscriptions.into_iter().map(lag).collect())
    }

    async fn set(&self, publisher: &str, topic: Option<&str>, status: SubscriptionStatus) -> Result<u64> {
        match log_of(&*self.store)?.set_status(publisher, topic, status).await? {
            0 => Err(unknown(publisher, topic)),
            subscriptions => {
                self.notify().await;
                Ok(subscriptions)
            }
        }
    }

    /// Notifies relays to read the subscriptions, where the database supports notifications. They
    /// poll soon anyway.
    async fn notify(&self) {
        if let Err(error) = self.store.ring().await {
            tracing::debug!(store = self.store.name(), %error, "could not notify relays of a changed subscription: they poll it later");
        }
    }
}

fn unknown(publisher: &str, topic: Option<&str>) -> Error {
    Error::UnknownSubscription { publisher: publisher.to_owned(), topic: topic.map(str::to_owned) }
}
