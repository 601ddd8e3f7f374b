//! Looking at the pairs of a log, and setting them right.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::pair::{PairId, PairState, PairStatus};
use super::query::Position;
use super::store::{OpenAppend, Unreadable, log_of};
use crate::admin::purge_log;
use crate::error::{Error, Result};
use crate::store::SharedStore;

/// The publishers of a log: where they stand, how far behind they are; pausing, resuming and resetting them.
///
/// What is said here is in the table when the call returns. Whoever leads a pair sees it within seconds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{PairStatus, Position};
///
/// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// # let pair = outbox::PairId::new("wallet-events", "KafkaPublisher");
/// # outbox.store().log().unwrap().register(&[(pair, false)]).await?;
/// let admin = outbox.log_admin();
/// for lag in admin.lag().await? {
///     println!("{} is {}, {} positions behind", lag.id, lag.status, lag.behind);
/// }
/// admin.pause("KafkaPublisher").await?;                                   // in all topics
/// assert_eq!(admin.pair("wallet-events", "KafkaPublisher").await?.status, PairStatus::Paused);
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

/// How far behind the end of the log a pair is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairLag {
    /// Which pair.
    pub id: PairId,
    /// Whether it publishes.
    pub status: PairStatus,
    /// Everything up to here was published, or is not for it.
    pub position: Position,
    /// The greatest position there is.
    pub head: Position,
    /// How many positions are between the two. Not all of them need be events, nor events of this topic.
    pub behind: u64,
    /// The open transaction that it waits for, if it does: since when, and of which backend. PostgreSQL only.
    pub waits_for: Option<OpenAppend>,
}

impl LogAdmin {
    /// For a store without an [`Outbox`](crate::Outbox).
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// Where all pairs stand, by topic and publisher. There is one for each that ever started.
    pub async fn pairs(&self) -> Result<Vec<PairState>> {
        log_of(&*self.store)?.pairs().await
    }

    /// Where one pair stands.
    pub async fn pair(&self, topic: &str, publisher: &str) -> Result<PairState> {
        let found = self.pairs().await?.into_iter();
        let mut found = found.filter(|pair| pair.id.topic() == topic && pair.id.publisher() == publisher);
        found.next().ok_or_else(|| unknown(publisher, Some(topic)))
    }

    /// Events that publishers have passed over because they cannot be read, the greatest positions first.
    ///
    /// An entry is a record: it stays when the row of the log is repaired.
    pub async fn unreadable(&self, limit: usize) -> Result<Vec<Unreadable>> {
        log_of(&*self.store)?.unreadable(limit).await
    }

    /// Keeps a publisher from being given events, in all topics. What it is being given right now is the last. Returns how
    /// many pairs that are.
    pub async fn pause(&self, publisher: &str) -> Result<u64> {
        self.set(publisher, None, PairStatus::Paused).await
    }

    /// The same in one topic.
    pub async fn pause_in(&self, topic: &str, publisher: &str) -> Result<()> {
        self.set(publisher, Some(topic), PairStatus::Paused).await.map(drop)
    }

    /// Goes on with a publisher that was paused, or that failed, in all topics: from where it stands, with no errors behind
    /// it. Returns how many pairs that are.
    pub async fn resume(&self, publisher: &str) -> Result<u64> {
        self.set(publisher, None, PairStatus::Active).await
    }

    /// The same in one topic.
    pub async fn resume_in(&self, topic: &str, publisher: &str) -> Result<()> {
        self.set(publisher, Some(topic), PairStatus::Active).await.map(drop)
    }

    /// Sets a pair to a position, back or forwards: what comes after it is published, again or for the first time. Errors are
    /// forgotten; a pause stays. Whoever publishes right now can no longer move it.
    pub async fn reset(&self, topic: &str, publisher: &str, position: Position) -> Result<()> {
        let log = log_of(&*self.store)?;
        let head = log.head().await?;
        if position > head {
            // It would publish nothing until the log gets there, and nobody would know why.
            return Err(Error::BeyondHead { position, head });
        }
        match log.reset(&PairId::new(topic, publisher), position).await? {
            true => {
                self.notify().await;
                Ok(())
            }
            false => Err(unknown(publisher, Some(topic))),
        }
    }

    /// The same to a time: what was stored since then is published. Returns the position.
    pub async fn reset_to_time(&self, topic: &str, publisher: &str, time: DateTime<Utc>) -> Result<Position> {
        let position = log_of(&*self.store)?.position_at(time).await?;
        self.reset(topic, publisher, position).await?;
        Ok(position)
    }

    /// Deletes events that were stored longer ago than this and that every publisher has passed, 500 at a time. Returns how many.
    /// The last event stays. Also [`PurgeSettings::log_retention`](crate::PurgeSettings::log_retention).
    ///
    /// They are gone for [projections and conditions](crate::Log::project) as well, and for publishers that are added or reset
    /// later. A publisher that no relay runs any more keeps everything behind its position: delete its row.
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

    /// How far behind the end of the log all pairs are, by topic and publisher.
    pub async fn lag(&self) -> Result<Vec<PairLag>> {
        let log = log_of(&*self.store)?;
        // The head last: a pair that moves meanwhile shows more than it has, not less.
        let (pairs, head) = (log.pairs().await?, log.head().await?);
        let waiting =
            if pairs.iter().any(|pair| pair.position < head) { log.waiting().await? } else { Vec::new() };
        let mut waiting: HashMap<PairId, OpenAppend> = waiting.into_iter().collect();
        let lag = |PairState { id, status, position, .. }| {
            let behind = u64::try_from(head.get() - position.get()).unwrap_or(0);
            let waits_for = waiting.remove(&id);
            PairLag { id, status, position, head, behind, waits_for }
        };
        Ok(pairs.into_iter().map(lag).collect())
    }

    async fn set(&self, publisher: &str, topic: Option<&str>, status: PairStatus) -> Result<u64> {
        match log_of(&*self.store)?.set_status(publisher, topic, status).await? {
            0 => Err(unknown(publisher, topic)),
            pairs => {
                self.notify().await;
                Ok(pairs)
            }
        }
    }

    /// Has relays look at the pairs, where the database carries notifications. They look by themselves soon enough.
    async fn notify(&self) {
        if let Err(error) = self.store.ring().await {
            tracing::debug!(store = self.store.name(), %error, "could not notify relays: they look by themselves");
        }
    }
}

fn unknown(publisher: &str, topic: Option<&str>) -> Error {
    Error::UnknownPair { publisher: publisher.to_owned(), topic: topic.map(str::to_owned) }
}
