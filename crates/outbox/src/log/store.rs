//! The port through which the log uses a database.
//!
//! Two rules apply to every store:
//! - **The watermark is final.** Every event up to the position that [`advance`](LogStore::advance)
//!   reports as safe is committed and visible, and no other event will ever appear there.
//!   Publishers read no further.
//! - **Every move of a subscription is fenced.** A move names leader, epoch and the position it
//!   starts from; a stale leader moves nothing.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::query::{Condition, Position, Query};
use super::subscription::{SubscriptionId, SubscriptionState, SubscriptionStatus};
use super::watermark::Watermark;
use super::{Appended, LogEvent};
use crate::error::{Error, Result};
use crate::escape::Escaped;
use crate::event::Event;
use crate::store::{NodeId, Store};

/// The log of one outbox.
#[async_trait]
pub trait LogStore: SubscriptionStore {
    /// Appends events in their own transaction, if the condition holds.
    async fn append(&self, events: &[Event], condition: &Condition) -> Result<Appended>;

    /// Matching events by position, after `after` and up to `upto`.
    async fn read(
        &self,
        query: &Query,
        after: Position,
        upto: Option<Position>,
        limit: usize,
    ) -> Result<Vec<StoredLogEvent>>;

    /// All events after one position and up to another, for publishing: as many as fit into
    /// `max_bytes`, and at least one.
    async fn read_bounded(
        &self,
        after: Position,
        upto: Position,
        limit: usize,
        max_bytes: usize,
    ) -> Result<BoundedRead>;

    /// Records an undecodable event before publishers skip it. Returns whether it was not recorded
    /// before.
    async fn note_unreadable(&self, position: Position, reason: &str) -> Result<bool>;

    /// Undecodable events that publishers have skipped, newest first.
    async fn unreadable(&self, limit: usize) -> Result<Vec<Unreadable>>;

    /// A position up to which the result of a query is final: transactions that might still commit
    /// a matching event have been waited for, and later appends get higher positions.
    async fn settled(&self, query: &Query) -> Result<Position>;

    /// Advances the watermark, for all queries and without waiting for other transactions. The
    /// state of the observation is kept in the watermark, which is passed from call to call.
    async fn advance(&self, watermark: &mut Watermark) -> Result<()>;

    /// The last stored watermark, from which a node may start.
    async fn stored_watermark(&self) -> Result<Position>;

    /// Stores the watermark.
    async fn store_watermark(&self, safe: Position) -> Result<()>;

    /// Subscriptions that cannot advance because a transaction that has appended is still open, and
    /// that transaction: the oldest, if there are several. PostgreSQL only: on other databases an
    /// open append blocks other appends, not publishers.
    async fn waiting(&self) -> Result<Vec<(SubscriptionId, OpenAppend)>> {
        Ok(Vec::new())
    }

    /// Deletes one batch of events that were stored longer ago than this and that every
    /// subscription has passed, oldest first. Returns how many. A subscription that is paused,
    /// fails or is no longer run by any relay counts with the position in its row. The last event
    /// of the log stays, so that the end of the log does not go back.
    async fn purge_log(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// The highest position, final or not.
    async fn head(&self) -> Result<Position>;

    /// The last position that was stored before this time.
    async fn position_at(&self, time: DateTime<Utc>) -> Result<Position>;
}

/// Positions and leaders of the log's subscriptions.
#[async_trait]
pub trait SubscriptionStore: Send + Sync {
    /// Creates rows for subscriptions that have none. `true`: at the head of the log instead of its
    /// start.
    async fn register(&self, subscriptions: &[(SubscriptionId, bool)]) -> Result<()>;

    /// Writes the heartbeat of this node, renews its leases, and returns the nodes and
    /// subscriptions. A lease that was not renewed in time is not renewed: another node may be
    /// about to take it, so it has to be [claimed](SubscriptionStore::claim) again.
    async fn tend(&self, node: &NodeId, ttl: Duration) -> Result<ClusterView>;

    /// All subscriptions, by name.
    async fn subscriptions(&self) -> Result<Vec<SubscriptionState>>;

    /// Claims those of these subscriptions that have no leader, in a new epoch. Returns the claimed
    /// ones with their state. A subscription that this node already leads is not claimed again.
    async fn claim(
        &self,
        node: &NodeId,
        ttl: Duration,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<SubscriptionState>>;

    /// Moves subscriptions, and records errors. Returns those that moved: the others have another
    /// leader, or were reset. A move that is repeated because its response was lost counts as
    /// moved. A leader whose lease has expired may still move its subscriptions until another node
    /// claims them: published events need not be published again.
    async fn save(&self, node: &NodeId, moves: &[ProgressUpdate]) -> Result<Vec<SubscriptionId>>;

    /// Releases subscriptions, so that other nodes can claim them immediately.
    async fn release(&self, node: &NodeId, subscriptions: &[(SubscriptionId, i64)]) -> Result<()>;

    /// Releases all subscriptions of this node and deletes its heartbeat.
    async fn leave(&self, node: &NodeId) -> Result<()>;

    /// Sets the status of subscriptions: those of a publisher, of one topic if given. Active also
    /// clears errors. Returns how many there are.
    async fn set_status(
        &self,
        publisher: &str,
        topic: Option<&str>,
        status: SubscriptionStatus,
    ) -> Result<u64>;

    /// Sets a subscription to a position, forwards or backwards, and removes its leader. Clears
    /// errors; a failed subscription becomes active, a paused one stays paused. Returns whether
    /// such a subscription exists.
    async fn reset(&self, subscription: &SubscriptionId, position: Position) -> Result<bool>;
}

/// Result of [`read_bounded`](LogStore::read_bounded).
#[derive(Debug, Default)]
pub struct BoundedRead {
    /// By position.
    pub rows: Vec<StoredLogEvent>,
    /// Whether there are more, which exceeded `max_bytes`.
    pub cut: bool,
}

/// A transaction that has appended to the log and is still open, on PostgreSQL: events behind its
/// position wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenAppend {
    /// The process id of its backend, as in `pg_stat_activity`; `None` if it was prepared.
    pub backend: Option<i64>,
    /// The name under which it was prepared (`PREPARE TRANSACTION`).
    pub prepared: Option<String>,
    /// When it began; `None` if this role may not see it (`pg_read_all_stats`).
    pub since: Option<DateTime<Utc>>,
    /// The role that began it.
    pub user: Option<String>,
    /// The `application_name` of its session.
    pub application: Option<String>,
}

impl fmt::Display for OpenAppend {
    /// Identifies the transaction: `backend 4711 (role shop, application checkout)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.prepared, self.backend) {
            (Some(name), _) => write!(f, "prepared transaction {}", Escaped(name))?,
            (None, Some(backend)) => write!(f, "backend {backend}")?,
            (None, None) => f.write_str("a transaction of an unknown backend")?,
        }
        let user = self.user.as_ref().map(|user| format!("role {}", Escaped(user)));
        let application = self.application.as_ref().map(|name| format!("application {}", Escaped(name)));
        let about: Vec<String> = user.into_iter().chain(application).collect();
        if about.is_empty() { Ok(()) } else { write!(f, " ({})", about.join(", ")) }
    }
}

/// An undecodable event of the log that publishers have skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its position.
    pub position: Position,
    /// Why it cannot be decoded.
    pub reason: String,
    /// When a publisher first reached it.
    pub noted_at: DateTime<Utc>,
}

/// A row of the log: an event, or its position and why it cannot be decoded.
pub type StoredLogEvent = Result<LogEvent, (Position, String)>;

/// The nodes that publish the log, and all subscriptions.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// The running nodes, this one included.
    pub nodes: Vec<NodeId>,
    /// All subscriptions, by name.
    pub subscriptions: Vec<SubscriptionState>,
}

/// Progress of a subscription, reported by its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressUpdate {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// The leader's epoch.
    pub epoch: i64,
    /// Its position in the table.
    pub from: Position,
    /// Its new position.
    pub to: Position,
    /// New status: active with no errors, or failed. A pause that was set meanwhile stays.
    pub status: SubscriptionStatus,
    /// Number of errors in a row.
    pub error_count: u32,
    /// The last error.
    pub last_error: Option<String>,
}

/// The log of a store, or an error if the store has none.
pub(crate) fn log_of(store: &dyn Store) -> Result<&dyn LogStore> {
    store.log().ok_or_else(|| Error::Store(format!("the store {:?} has no event log", store.name()).into()))
}
