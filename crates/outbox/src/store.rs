//! The store port: the operations that the relay needs from a database, and their types.
//!
//! [`SqlStore`](crate::sql::SqlStore) implements the port for PostgreSQL, MySQL/MariaDB and SQLite.
//! Another store implements [`Store`] and runs
//! [`testing::conformance`](crate::testing::conformance).
//!
//! Three rules apply to every store:
//! - **The database's clock decides.** Callers pass durations; the store adds them to the
//!   database's current time.
//! - **Every settlement is fenced.** A settlement names the claim that it settles; a settlement
//!   with a stale claim changes no row.
//! - **The store keeps the order per key.** [`take`](Store::take) never returns an event of a key
//!   while an earlier event of that key with the same [destination](Take::destinations) is
//!   unsettled, unless that earlier event is part of the same result or already held by the caller.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::event::{Event, EventId};
pub use crate::explain::DeliveryFacts;
use crate::join::{FollowUp, Join, JoinId, JoinStatus, NewJoin, Step};
pub use crate::log::{
    BoundedRead, ClusterView, LogStore, OpenAppend, ProgressUpdate, StoredLogEvent, SubscriptionStore,
    Unreadable, Watermark,
};

mod admin;
mod audit;
mod health;
mod node;
mod routed;
mod views;

pub use admin::AdminStore;
pub use audit::{Audit, AuditEntry, Edit};
pub use health::{RelayHealth, RelayTask, TaskError};
pub use node::{Counts, Node, NodeId, NodeOutage, NodeState, Released, TypeCounts};
pub(crate) use routed::takers;
pub use routed::{NodeRoutes, Routed, UnroutedEvents, UnroutedType};
pub(crate) use views::MAX_SCAN;
pub use views::{
    Attempt, BlockedKey, BlockedKeys, BoundedCount, Breakdown, EventMetadata, EventRow, Overview, Page,
    PageRequest, StatusGroup, TypeCount,
};

/// Storage of the events of one outbox.
#[async_trait]
pub trait Store: AdminStore + fmt::Debug {
    /// Name of the store in log lines and metrics. Never contains credentials.
    fn name(&self) -> &str;

    /// Writes events in their own transaction. Returns the ids that were stored: an event whose
    /// deduplication key already exists is left out.
    async fn insert(&self, events: &[Event]) -> Result<Vec<EventId>>;

    /// Takes due events for dispatch, oldest first.
    async fn take(&self, take: &Take) -> Result<Taken>;

    /// Writes verdicts. Each verdict counts as a step of its event's [joins](JoinCommand), in the
    /// same transaction. Returns how many took effect; the others were stale.
    async fn settle(
        &self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled>;

    /// Renews leases. Returns the ids that are still held; the other leases were lost. Events that
    /// were taken under a [group lease](Take::group_lease) are renewed as a whole, so the result
    /// may contain an event that was deleted in the meantime.
    async fn extend(
        &self,
        owner: &NodeId,
        lease: Duration,
        held: &[(EventId, Claim)],
    ) -> Result<Vec<EventId>>;

    /// Orders the events of the table by aggregate. From now on every event that any program writes
    /// with an aggregate id and without a key gets its aggregate as key. Pending events get their
    /// key as well: returns how many.
    async fn order_by_aggregate(&self) -> Result<u64>;

    /// Clears the leases of events whose lease has expired, group leases too, and returns the
    /// number of these events. [`take`](Store::take) takes such events over by itself; this method
    /// only makes them visible as free.
    async fn reap(&self) -> Result<u64>;

    /// Counts another start of an event that may have crashed its process before, and returns the
    /// number of starts. `None`: the claim is stale, do not handle the event.
    async fn count_start(&self, by: &Holder, id: &EventId, claim: Claim) -> Result<Option<u32>>;

    /// Acquires, keeps or renews a named lease for `ttl`.
    async fn lead(&self, name: &str, holder: &NodeId, ttl: Duration) -> Result<Leadership>;

    /// Releases a named lease if it is still held in this epoch. Unless `clean`, the next holder
    /// acquires the lease as from a holder that crashed, but immediately.
    async fn resign(&self, name: &str, holder: &NodeId, epoch: i64, clean: bool) -> Result<()>;

    /// Current holder of a named lease.
    async fn leader(&self, name: &str) -> Result<Option<NodeId>>;

    /// Deletes one batch of old rows. Returns how many; fewer than the limit means that none are
    /// left.
    async fn purge(&self, purge: Purge) -> Result<u64>;

    /// Deletes one batch of inbox entries older than this. Returns how many.
    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Lists matching events, oldest first.
    async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<StoredEvent>>;

    /// Counts matching events.
    async fn count(&self, filter: &Filter) -> Result<u64>;

    /// One event with its current state.
    async fn find(&self, id: &EventId) -> Result<Option<StoredEvent>>;

    /// Everything in the database that decides when an event is delivered: the event itself, the
    /// events before it in its key and in the queue, and the running relays.
    async fn delivery_facts(&self, id: &EventId) -> Result<DeliveryFacts>;

    /// Number of matching events per type, the most frequent type first.
    async fn types(&self, filter: &Filter, limit: usize) -> Result<Vec<(String, u64)>>;

    /// Resets up to `limit` matching dead events to NEW, oldest first, with zero attempts.
    async fn replay(&self, filter: &Filter, limit: usize) -> Result<Replayed>;

    /// Deletes a pending event that is not leased. Returns whether such an event existed.
    async fn cancel(&self, id: &EventId) -> Result<bool>;

    /// Number of events by status, and age of the oldest due event.
    async fn stats(&self) -> Result<Stats>;

    /// Number of pending events and age of the oldest due event. Cheap: reads pending rows only.
    async fn backlog(&self) -> Result<Backlog>;

    /// Age of the oldest due event, whether it is leased or not. Cheaper than
    /// [`backlog`](Store::backlog).
    async fn oldest_due(&self) -> Result<Option<Duration>> {
        Ok(self.backlog().await?.oldest_due)
    }

    /// Cursor of the last pending event that has been due for longer than this. A relay that has
    /// read everything up to this cursor continues behind it, past events that [`Take::only`]
    /// leaves out. `None`: no such event, or unknown.
    async fn last_due(&self, longer_than: Duration) -> Result<Option<Cursor>> {
        let _ = longer_than;
        Ok(None)
    }

    /// Applies a command to a join, in one transaction. Commands are idempotent.
    async fn join(&self, act: &JoinCommand) -> Result<JoinOutcome>;

    /// Matching joins, oldest first.
    async fn joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>>;

    /// The steps of a join and their outcomes, ordered by id, after this id.
    async fn steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>>;

    /// The row that attaches an event of this database to a join, in whichever database the join
    /// is. `None`: no such row.
    async fn member(&self, join: &JoinId, step: &EventId) -> Result<Option<JoinMember>>;

    /// Deletes one batch of joins that were closed longer ago than this, with their steps. Returns
    /// how many.
    async fn purge_joins(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Writes the presence row of a running relay, with its state. Deletes rows of relays that were
    /// last seen over a day ago.
    ///
    /// A relay that has not announced itself for its [presence](Node::presence), by the database's
    /// clock, has vanished; [`release_vanished`](Store::release_vanished) releases its leases.
    ///
    /// Returns whether another relay may have vanished; `true` if the database does not report it.
    async fn announce(&self, node: &NodeId, state: &NodeState) -> Result<bool>;

    /// Removes the presence row of a relay that has stopped.
    async fn retire(&self, node: &NodeId) -> Result<()>;

    /// Relays with a presence row, the most recently seen first.
    async fn nodes(&self) -> Result<Vec<Node>>;

    /// Releases the event leases of relays that have vanished, once per relay, by
    /// [`release_node`](AdminStore::release_node). Leadership is left out: it expires sooner.
    /// Returns those relays, and how many events each held.
    ///
    /// An announcement waits for a release that has begun. So either the relay announces itself in
    /// time and keeps all leases, or all leases are released before the announcement returns.
    async fn release_vanished(&self) -> Result<Vec<(NodeId, u64)>>;

    /// A notifier that reports inserts, where the database can send notifications.
    async fn watch(&self) -> Result<Option<Box<dyn InsertNotifier>>> {
        Ok(None)
    }

    /// Subscribes to notifications of appends by other processes, where the database can send them.
    /// Notifications are hints: some may be lost.
    async fn listen(&self) -> Result<Option<Box<dyn AppendNotifier>>> {
        Ok(None)
    }

    /// Sends such a notification.
    async fn ring(&self) -> Result<()> {
        Ok(())
    }

    /// The event log of the same database, if the store has one.
    fn log(&self) -> Option<&(dyn LogStore + 'static)> {
        None
    }

    /// Creates or upgrades the tables. Safe to call at every start, from every node.
    async fn migrate(&self) -> Result<()>;

    /// Checks that the tables exist and have the right version.
    async fn check_schema(&self) -> Result<()>;
}

/// Receives notifications of other processes.
#[async_trait]
pub trait AppendNotifier: Send {
    /// Waits for the next notification of another process.
    async fn heard(&mut self) -> Result<()>;

    /// Asks writers to notify of each append from now on. Appends that were committed before are
    /// not notified: read the log once more.
    async fn ask_for_calls(&mut self) -> Result<AppendNotifications> {
        Ok(AppendNotifications::Unsupported)
    }

    /// Tells writers that they need not notify any more.
    async fn end_calls(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Whether writers notify relays of an append to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendNotifications {
    /// Never: the log has to be polled.
    Unsupported,
    /// Writers notify from now on.
    Armed,
    /// Another relay has armed the notifications and forwards them.
    ByAnother,
    /// Not yet: a transaction that has appended is still open and will not notify.
    NotYet,
}

/// Lets a relay sleep until an event is inserted. One relay per table holds the notifier's lock; it
/// forwards notifications to the others.
#[async_trait]
pub trait InsertNotifier: Send {
    /// Whether this relay holds the notifier's lock; tries to acquire the lock if it is free.
    async fn is_ours(&mut self) -> Result<bool>;

    /// Asks writers to notify from now on. False: a transaction that is writing right now will not
    /// notify. Events committed before are not notified: read the table once more.
    async fn arm(&mut self) -> Result<bool>;

    /// Tells writers that they need not notify any more.
    async fn disarm(&mut self) -> Result<()>;

    /// Waits for a notification.
    async fn called(&mut self) -> Result<()>;

    /// Ends the notifier, and returns when its connection is closed. Dropping a notifier closes the
    /// connection later.
    async fn end(self: Box<Self>) {}
}

/// A store that is shared by the relay and other components.
pub type SharedStore = Arc<dyn Store>;

/// Claim counter of a row; increases with every claim. A settlement names its claim, so a late
/// settlement changes nothing, even if the same node has claimed the event again since.
pub type Claim = i32;

/// The owner under which events are taken and settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Each row is leased to a node for a time. For several nodes, and handlers of any duration.
    Lease {
        /// The node.
        owner: NodeId,
        /// Duration of the lease.
        lease: Duration,
    },
    /// One node holds the whole table, by the named lease [`EXCLUSIVE`] in this epoch. Rows are
    /// read without being written; the node tracks the taken events in memory.
    Exclusive {
        /// The node.
        owner: NodeId,
        /// The epoch that [`lead`](Store::lead) returned.
        epoch: i64,
    },
}

impl Holder {
    /// The node that holds the events.
    pub fn owner(&self) -> &NodeId {
        match self {
            Holder::Lease { owner, .. } | Holder::Exclusive { owner, .. } => owner,
        }
    }
}

/// Name of the lease on the whole table.
pub const EXCLUSIVE: &str = "exclusive";

/// Result of [`lead`](Store::lead).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Held in this epoch. `clean` is false when the previous holder never released the lease: it
    /// crashed or hangs.
    Held {
        /// Increases with each change of holder.
        epoch: i64,
        /// Whether the previous holder released the lease.
        clean: bool,
    },
    /// Held by another node.
    HeldBy {
        /// The holder.
        holder: NodeId,
        /// Time until the lease expires, unless it is renewed.
        remaining: Duration,
    },
}

/// Position in the order in which events are read: that of the last event that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// When the event became available; for [done](StatusGroup::Done) events, when it was done.
    pub at: DateTime<Utc>,
    /// Sequence number of the event.
    pub seq: i64,
}

/// Parameters of [`Store::take`].
#[derive(Clone, Debug)]
pub struct Take {
    /// The owner under which events are taken.
    pub by: Holder,
    /// Where to start reading.
    pub from: Origin,
    /// Maximum number of rows to read.
    pub limit: usize,
    /// Leaves out events that were created more recently than this.
    pub skip_recent: Duration,
    /// Whether the later events of a dead event's key wait.
    pub on_dead: OnDead,
    /// Leaves out events of these types. They still block the later events of their keys that
    /// [`destinations`](Take::destinations) does not assign to another destination.
    pub skip_types: Vec<String>,
    /// Takes only these events; `None`: all. The others stay pending for a relay that routes them,
    /// and block the later events of their keys.
    pub only: Option<Arc<Routed>>,
    /// Takes at most one event, of one of these types, to test whether their destination is
    /// available again. The [cursor](Taken::cursor) is then that event's position.
    pub probe: Option<Vec<String>>,
    /// Destination of each event type whose events all have the same destination: a number that is
    /// only compared. An event of a listed type is blocked by earlier events of its key with the
    /// same destination and by earlier events whose type is not listed; an event whose type is not
    /// listed, by all earlier events of its key. Empty: all earlier events block.
    pub destinations: BTreeMap<String, u64>,
    /// The newest event of each key queue that the caller already holds. Every event of that queue
    /// up to it counts as taken; with [`Holder::Lease`], only events that are still leased to the
    /// caller.
    pub held_up_to: HashMap<KeyQueueId, KeyProgress>,
    /// Whether events may share a group lease, which is far cheaper on a database that supports it.
    /// Only this store instance, and no other with the same owner, can then settle and extend the
    /// events it took.
    pub group_lease: bool,
    /// Maximum number of bytes of events to take. The first event is taken whatever its size.
    pub max_bytes: usize,
    /// Leaves out, and [counts](Taken::unkeyed), events with an aggregate id and without a key.
    pub by_aggregate: bool,
}

/// Identifies events that are delivered one after another: all events of an ordering key, or those
/// of one destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyQueueId {
    /// The ordering key.
    pub key: Arc<str>,
    /// The destination's number in [`Take::destinations`]; `None` for all events of the key.
    pub destination: Option<u64>,
}

impl KeyQueueId {
    /// All events of a key.
    pub fn of_key(key: impl Into<Arc<str>>) -> Self {
        Self { key: key.into(), destination: None }
    }
}

/// How much of a key queue the caller holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyProgress {
    /// Sequence number of the newest event held.
    pub seq: i64,
    /// Whether all held events were taken under a [group lease](Take::group_lease). A dead event
    /// before the newest that is replayed in the meantime may then be skipped.
    pub group_lease: bool,
}

/// Where [`Store::take`] starts to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the oldest pending event.
    Start,
    /// After this cursor. Misses late commits before it, and rows that other nodes released.
    After(Cursor),
    /// Only events of these keys.
    Keys(Vec<Arc<str>>),
}

/// Effect of a dead event on the later events of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDead {
    /// The later events wait until the dead event is replayed or removed.
    #[default]
    Hold,
    /// The later events are delivered without it.
    Skip,
}

/// Result of [`Store::take`].
#[derive(Debug, Default)]
pub struct Taken {
    /// Events to dispatch, in this order.
    pub deliveries: Vec<Delivery>,
    /// Number of rows that could be neither leased nor settled and were dead-lettered instead.
    pub dead_lettered: usize,
    /// Taken rows that cannot be decoded into events: to be dead-lettered with this reason.
    pub undecodable: Vec<(EventId, Claim, String)>,
    /// Position of the last row that was read, whether it was taken or not.
    pub cursor: Option<Cursor>,
    /// Number of rows that were read; fewer than the limit means that the end was reached.
    pub scanned: usize,
    /// Number of events that were left out because they are to be ordered by aggregate and have no
    /// key yet: [`Store::order_by_aggregate`] gives them one.
    pub unkeyed: usize,
    /// Keys with due events that were skipped because an earlier event of the key blocks them.
    pub blocked_keys: Vec<Arc<str>>,
    /// Types of the skipped events and of the events that block them.
    pub skipped_types: BTreeSet<String>,
}

/// An event on its way to a handler.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The event.
    pub event: Event,
    /// Sequence number in the table. Unknown on the hot path, where order is not requested.
    pub seq: Option<i64>,
    /// Number of failed attempts so far.
    pub attempts: u32,
    /// The claim to settle the event with.
    pub claim: Claim,
    /// Time from the take until the event expires; zero or less means that it has expired.
    pub expires_in: Option<chrono::Duration>,
    /// Time that the event had waited when it was taken.
    pub waited: Duration,
    /// Set if the previous holder never settled or released the event, so that the event may have
    /// crashed it: number of starts [counted](Store::count_start) since then.
    pub suspect: Option<u32>,
    /// When the database stored it.
    pub created_at: Option<DateTime<Utc>>,
    /// Error of the last failed attempt.
    pub last_error: Option<String>,
}

/// Outcome of one delivery, to be written by [`Store::settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The event.
    pub id: EventId,
    /// The claim under which it was delivered.
    pub claim: Claim,
    /// The outcome.
    pub verdict: Verdict,
}

/// Outcome of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Done,
    /// Delivered again later.
    Again {
        /// Earliest time of the next delivery, from now.
        after: Duration,
        /// Whether this was an attempt (the event becomes RETRY) or not (it stays NEW).
        counted: bool,
        /// The cause, human-readable.
        error: Option<String>,
    },
    /// Dead-lettered: not delivered again unless it is replayed.
    Dead {
        /// Whether this was an attempt.
        counted: bool,
        /// The cause, human-readable.
        reason: String,
    },
    /// Not handled: released unchanged.
    Released,
    /// Not handled, and still suspect: the previous holder may have crashed on the event, and no
    /// handler has completed it since.
    ReleasedSuspect,
}

impl Verdict {
    /// Whether the event was released without having been handled.
    pub fn is_release(&self) -> bool {
        matches!(self, Self::Released | Self::ReleasedSuspect)
    }
}

/// Result of [`Store::settle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Number of verdicts that took effect.
    pub moved: u64,
    /// Whether events were written with them: the follow-ups of joins.
    pub wrote: bool,
}

/// Whether the row of a done event is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// The row stays with status DONE until it is purged.
    #[default]
    Keep,
    /// The row is deleted. Faster, and leaves no history.
    Delete,
}

/// Parameters of [`Store::purge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Which rows.
    pub what: Purgeable,
    /// Only rows older than this.
    pub older_than: Duration,
    /// Maximum number of rows.
    pub limit: usize,
}

/// Which rows may be purged. The status decides; the age counts from `done_at`, or from
/// `created_at` where another writer has left `done_at` NULL. Steps of open joins stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purgeable {
    /// DONE rows.
    Done,
    /// DEAD rows, except those that block their key: a dead event with an ordering key stays while
    /// a later event of its key is pending; otherwise the later event would be delivered as if the
    /// dead one had been.
    Dead,
    /// First DONE rows, then DEAD rows.
    Finished,
    /// All rows: pending rows by the time they became available, and dead rows even where they
    /// block their key. For tables that only CDC reads.
    Everything,
}

/// Status of a stored event. The numbers are the values in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(i16)]
pub enum Status {
    /// Waiting for its first delivery, or snoozed by its handler.
    New = 0,
    /// Handled.
    Done = 1,
    /// Failed, and waiting to be retried.
    Retry = 2,
    /// Dead-lettered.
    Dead = 3,
}

impl Status {
    /// The status with this number in the table.
    pub fn from_code(code: i16) -> Option<Self> {
        [Status::New, Status::Done, Status::Retry, Status::Dead].into_iter().find(|s| *s as i16 == code)
    }

    /// Whether the event is still to be delivered.
    pub fn is_pending(self) -> bool {
        matches!(self, Status::New | Status::Retry)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::New => "NEW",
            Status::Done => "DONE",
            Status::Retry => "RETRY",
            Status::Dead => "DEAD",
        })
    }
}

/// Which events to list, count or replay. The default matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this status.
    pub status: Option<Status>,
    /// Only pending events: NEW or RETRY.
    pub pending: bool,
    /// Only this type.
    pub event_type: Option<String>,
    /// Only this aggregate type.
    pub aggregate_type: Option<String>,
    /// Only this aggregate.
    pub aggregate_id: Option<String>,
    /// Only this tenant.
    pub tenant_id: Option<String>,
    /// Only this ordering key.
    pub ordering_key: Option<String>,
    /// Only this correlation id.
    pub correlation_id: Option<String>,
    /// Only this event.
    pub id: Option<EventId>,
    /// Only events after this sequence number, to read page by page.
    pub after_seq: Option<i64>,
    /// Only events up to this sequence number.
    pub upto_seq: Option<i64>,
    /// Only events that were stored longer ago than this.
    pub older_than: Option<Duration>,
    /// Only events that were stored more recently than this.
    pub newer_than: Option<Duration>,
    /// Only events that became DONE or DEAD longer ago than this.
    pub settled_before: Option<Duration>,
    /// Only events that became DONE or DEAD more recently than this.
    pub settled_within: Option<Duration>,
}

/// Result of [`Store::replay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Number of events reset to NEW.
    pub moved: u64,
    /// Sequence number of the last event that was read, to continue [after](Filter::after_seq);
    /// `None` if no event matched.
    pub last: Option<i64>,
}

/// An event and its state in the table.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    /// The event, or why it cannot be read.
    pub event: Result<Event, crate::error::DecodeError>,
    /// Sequence number in the table.
    pub seq: i64,
    /// Status.
    pub status: Status,
    /// Number of failed attempts.
    pub attempts: u32,
    /// When the database stored it.
    pub created_at: DateTime<Utc>,
    /// When it may next be delivered.
    pub available_at: DateTime<Utc>,
    /// When it became DONE or DEAD.
    pub done_at: Option<DateTime<Utc>>,
    /// Error of the last failed attempt.
    pub last_error: Option<String>,
    /// The node that made the event DONE or DEAD.
    pub done_by: Option<NodeId>,
    /// Lease holder and expiry time.
    pub lease: Option<(NodeId, DateTime<Utc>)>,
}

/// A command to a join.
#[derive(Clone, Debug)]
pub enum JoinCommand {
    /// Starts a join.
    Start {
        /// Id of the new join.
        id: JoinId,
        /// Its parameters.
        join: NewJoin,
    },
    /// Attaches events as steps. Events that are already settled count immediately.
    Attach {
        /// The join.
        join: JoinId,
        /// Name of the database that holds the join; empty for this one.
        home: String,
        /// The events, which are in this database.
        steps: Vec<EventId>,
    },
    /// Reports the outcome of a step; attaches the step first if necessary.
    Report {
        /// The join.
        join: JoinId,
        /// The step.
        step: EventId,
        /// Outcome of the step.
        became: Step,
    },
    /// Sets the follow-up.
    Wait {
        /// The join.
        join: JoinId,
        /// The follow-up.
        decision: FollowUp,
    },
    /// Cancels the join.
    Cancel {
        /// The join.
        join: JoinId,
    },
}

impl JoinCommand {
    /// The join that the command applies to.
    pub fn join(&self) -> &JoinId {
        match self {
            JoinCommand::Start { id, .. } => id,
            JoinCommand::Attach { join, .. }
            | JoinCommand::Report { join, .. }
            | JoinCommand::Wait { join, .. }
            | JoinCommand::Cancel { join } => join,
        }
    }
}

/// The row that attaches an event to a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinMember {
    /// Name of the database that holds the join; empty for the event's own.
    pub home: String,
    /// Outcome of the step; `None` while the event is pending.
    pub status: Option<Step>,
}

/// Result of [`Store::join`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinOutcome {
    /// The join after the command; `None` if the join is in another database.
    pub join: Option<Join>,
    /// Whether events were written with it: the join's follow-ups.
    pub wrote: bool,
}

/// Which joins to list. The default matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinFilter {
    /// Only this join.
    pub id: Option<JoinId>,
    /// Only this status.
    pub status: Option<JoinStatus>,
    /// Only joins of this group.
    pub grouping_key: Option<String>,
    /// Only joins after this id, to read page by page.
    pub after: Option<JoinId>,
}

/// Number of events by status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Waiting for their first delivery.
    pub new: u64,
    /// Waiting to be retried.
    pub retry: u64,
    /// Handled, and not yet purged.
    pub done: u64,
    /// Dead-lettered.
    pub dead: u64,
    /// Age of the oldest due event.
    pub oldest_due: Option<Duration>,
}

/// Events that are still to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of pending events, due or not.
    pub pending: u64,
    /// Number of pending events that are due and not leased.
    pub free: u64,
    /// Age of the oldest due event.
    pub oldest_due: Option<Duration>,
}

/// Maximum length of a stored error text, in characters.
pub const MAX_ERROR: usize = 4_000;

/// Truncates a text to [`MAX_ERROR`] characters.
pub(crate) fn short_error(text: &str) -> String {
    short(text, MAX_ERROR)
}

/// Truncates a text to this many characters, and replaces NUL, which PostgreSQL cannot store.
pub(crate) fn short(text: &str, limit: usize) -> String {
    text.chars().map(|c| if c == '\0' { '\u{fffd}' } else { c }).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_errors_are_cut_between_characters() {
        let long = "ä".repeat(MAX_ERROR + 10);
        assert_eq!(short_error(&long).chars().count(), MAX_ERROR);
        assert_eq!(short_error("a\0b"), "a\u{fffd}b");
    }
}
