//! The store port: what the relay asks of a database, and the words it asks with.
//!
//! [`SqlStore`](crate::sql::SqlStore) answers for PostgreSQL, MySQL/MariaDB and SQLite. Whoever writes
//! another store implements [`Store`] and runs [`testing::conformance`](crate::testing::conformance).
//!
//! Three rules hold everywhere:
//! - **The database's clock decides.** Times go in as durations and are added to the database's now.
//! - **Every settlement is fenced.** It names the claim it settles; a stale holder changes no row.
//! - **Order per key is the store's.** [`take`](Store::take) never returns an event of a key while an
//!   earlier one of that key, as far as it goes to the same [destination](Take::destinations), is unsettled and not part
//!   of the same answer (or of what the taker holds).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::event::{Event, EventId};
pub use crate::explain::Circumstances;
use crate::join::{Decision, Join, JoinId, JoinStatus, NewJoin, Step};
pub use crate::log::{
    BoundedRead, Frontier, LogStore, Move, OpenAppend, PairStore, Roll, Stored, Unreadable,
};

mod admin;
mod deed;
mod health;
mod look;
mod node;
mod routed;

pub use admin::AdminStore;
pub use deed::{Audit, Deed, Edit};
pub use health::{RelayHealth, RelayTask, TaskError};
pub(crate) use look::MOST_LOOKED_AT;
pub use look::{
    Attempt, BlockedKey, BlockedKeys, Breakdown, Counted, EventMetadata, EventRow, Overview, Page, PageAsk,
    Shelf, TypeCount,
};
pub use node::{Counts, Node, NodeId, NodeOutage, NodeState, Released, TypeCounts};
pub(crate) use routed::takers;
pub use routed::{NodeRoutes, Routed, UnroutedEvents, UnroutedType};

/// Where the events of one outbox live.
#[async_trait]
pub trait Store: AdminStore + fmt::Debug {
    /// What to call it in log lines and metrics. Never holds credentials.
    fn name(&self) -> &str;

    /// Writes events in a transaction of their own. Returns the ids that were stored: an event whose
    /// deduplication key is already there is left out.
    async fn insert(&self, events: &[Event]) -> Result<Vec<EventId>>;

    /// Takes due events for handling, oldest first.
    async fn take(&self, take: &Take) -> Result<Taken>;

    /// Writes verdicts. Each counts as a step of its event's [joins](JoinAct), in the same transaction. Says how many
    /// took effect; the rest were stale.
    async fn settle(
        &self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled>;

    /// Renews leases. Returns the ids that are still held; the others were lost. What was taken [together](Take::together) is
    /// renewed as a whole: an event of it that somebody has deleted since is among them.
    async fn extend(
        &self,
        owner: &NodeId,
        lease: Duration,
        held: &[(EventId, Claim)],
    ) -> Result<Vec<EventId>>;

    /// Makes the table order events by aggregate. From now on every event that is written with an
    /// aggregate id and without a key, by whatever program, gets its aggregate as key. Pending events
    /// get theirs as well: returns how many.
    async fn order_by_aggregate(&self) -> Result<u64>;

    /// Frees rows whose lease has run out. [`take`](Store::take) takes such rows over by itself; this is for
    /// those who want to see them free.
    async fn reap(&self) -> Result<u64>;

    /// Counts that an event which may have killed its process before is about to be handled again, and
    /// says how often that has happened. `None`: the claim is stale, do not handle it.
    async fn count_start(&self, by: &Holder, id: &EventId, claim: Claim) -> Result<Option<u32>>;

    /// Takes, keeps or renews a named lease for `ttl`.
    async fn lead(&self, name: &str, holder: &NodeId, ttl: Duration) -> Result<Leadership>;

    /// Gives a named lease back, if it is still held in this epoch. Unless `clean`, the next holder takes it
    /// over as from a holder that vanished, but at once.
    async fn resign(&self, name: &str, holder: &NodeId, epoch: i64, clean: bool) -> Result<()>;

    /// Who holds a named lease now, if anybody.
    async fn leader(&self, name: &str) -> Result<Option<NodeId>>;

    /// Deletes one batch of old rows. Returns how many; fewer than the limit means that no more were found.
    async fn purge(&self, purge: Purge) -> Result<u64>;

    /// Deletes one batch of inbox entries older than this. Returns how many.
    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Lists events that match, oldest first.
    async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<StoredEvent>>;

    /// Counts events that match.
    async fn count(&self, filter: &Filter) -> Result<u64>;

    /// One event and where it stands.
    async fn find(&self, id: &EventId) -> Result<Option<StoredEvent>>;

    /// Everything in the database that decides when an event is delivered: the event itself, what stands before it in its
    /// key and in the queue, and who is at work.
    async fn circumstances(&self, id: &EventId) -> Result<Circumstances>;

    /// How many events that match there are of each type, the most frequent first.
    async fn types(&self, filter: &Filter, limit: usize) -> Result<Vec<(String, u64)>>;

    /// Makes up to `limit` matching dead events new again, oldest first, with no attempts behind them.
    async fn replay(&self, filter: &Filter, limit: usize) -> Result<Replayed>;

    /// Deletes a pending event that nobody holds. Returns whether there was one.
    async fn cancel(&self, id: &EventId) -> Result<bool>;

    /// How many events there are by status, and how old the oldest due one is.
    async fn stats(&self) -> Result<Stats>;

    /// How many events are pending and how long the oldest due one has waited. Cheap: reads pending rows only.
    async fn backlog(&self) -> Result<Backlog>;

    /// How long the oldest due event has waited, whether anybody can take it or not. Cheaper than [`backlog`](Store::backlog).
    async fn oldest_due(&self) -> Result<Option<Duration>> {
        Ok(self.backlog().await?.oldest_due)
    }

    /// The place of the last pending event that has been due for longer than this. A taker that has read everything up to
    /// there goes on behind it, past events that it [leaves alone](Take::only). `None`: there is none, or it is not known.
    async fn last_due(&self, longer_than: Duration) -> Result<Option<Cursor>> {
        let _ = longer_than;
        Ok(None)
    }

    /// Does something to a join, in one transaction. Everything may be said twice and counts once.
    async fn join(&self, act: &JoinAct) -> Result<Acted>;

    /// Joins that match, oldest first.
    async fn joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>>;

    /// The steps of a join, and what became of them, by id, after this one.
    async fn steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>>;

    /// The row that attaches an event of this database to a join, wherever the join is. `None`: there is no such row.
    async fn member(&self, join: &JoinId, step: &EventId) -> Result<Option<JoinMember>>;

    /// Deletes one batch of joins that were closed longer ago than this, with their steps. Returns how many.
    async fn purge_joins(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Says that a relay runs, and what it says of itself. Forgets those that were last seen over a day ago.
    ///
    /// A relay that has not announced itself for its [presence](Node::presence) has vanished, by the database's clock, and
    /// [`release_vanished`](Store::release_vanished) releases its leases.
    ///
    /// Returns whether another relay may have vanished. `true` if the database does not tell.
    async fn announce(&self, node: &NodeId, state: &NodeState) -> Result<bool>;

    /// A relay has stopped.
    async fn retire(&self, node: &NodeId) -> Result<()>;

    /// The relays that were seen, the one that was seen last first.
    async fn nodes(&self) -> Result<Vec<Node>>;

    /// Releases the leases on events of relays that have vanished, once each: by [`release_node`](AdminStore::release_node),
    /// apart from leadership, which runs out sooner. Returns those relays, and how many events each held.
    ///
    /// An announcement waits for a release that has begun. So of the two one comes first: either the relay is seen in time and
    /// keeps everything, or everything is released before its announcement is answered.
    async fn release_vanished(&self) -> Result<Vec<(NodeId, u64)>>;

    /// A watch that is called when something is written, where the database carries calls.
    async fn watch(&self) -> Result<Option<Box<dyn Watch>>> {
        Ok(None)
    }

    /// Hears when another process says that something was appended, where the database carries such news. They are hints:
    /// some may be lost.
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        Ok(None)
    }

    /// Says so.
    async fn ring(&self) -> Result<()> {
        Ok(())
    }

    /// The log beside the events, if the store has one.
    fn log(&self) -> Option<&(dyn LogStore + 'static)> {
        None
    }

    /// Creates or upgrades the tables. Safe to call at every start, from every node.
    async fn migrate(&self) -> Result<()>;

    /// Says whether the tables are there and of the right version.
    async fn check_schema(&self) -> Result<()>;
}

/// Hears what other processes say.
#[async_trait]
pub trait Listener: Send {
    /// Waits for the next notification of another process.
    async fn heard(&mut self) -> Result<()>;

    /// Asks writers to notify of each append from now on. Events that were committed before are not notified of: look once more.
    async fn ask_for_calls(&mut self) -> Result<Calls> {
        Ok(Calls::Unsupported)
    }

    /// Writers need not notify any more.
    async fn end_calls(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Whether writers notify relays of an append to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// They never do: the log has to be polled.
    Unsupported,
    /// They do, from now on.
    Armed,
    /// Another relay has asked them to, and passes on what it hears.
    ByAnother,
    /// Not yet: a transaction that has appended is still open, and will not notify.
    NotYet,
}

/// Lets a relay sleep until something is written. One relay of a table has the watch; the others hear what it hears.
#[async_trait]
pub trait Watch: Send {
    /// Whether this one has the watch now: asks for it if nobody has it.
    async fn is_ours(&mut self) -> Result<bool>;

    /// From now on whoever writes calls. False: somebody is writing right now, and will not call. What was committed before
    /// is not called for: look once more.
    async fn lie_down(&mut self) -> Result<bool>;

    /// Nobody needs to call any more.
    async fn get_up(&mut self) -> Result<()>;

    /// Waits for a call.
    async fn called(&mut self) -> Result<()>;

    /// Ends it, and returns when its connection is closed. Dropping a watch closes it later.
    async fn end(self: Box<Self>) {}
}

/// A store that the relay and others share.
pub type SharedStore = Arc<dyn Store>;

/// Rises with every claim of a row. A settlement names the claim it belongs to, so one that comes too late
/// changes nothing, even if the same node has claimed the event again since.
pub type Claim = i32;

/// In whose name events are taken and settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Each row is leased to a node for a time. For several nodes, and handlers of any length.
    Lease {
        /// Who.
        owner: NodeId,
        /// For how long.
        lease: Duration,
    },
    /// One node holds the whole table, by the named lease [`EXCLUSIVE`] in this epoch. Rows are read without
    /// being written; the node's memory knows what it has.
    Exclusive {
        /// Who.
        owner: NodeId,
        /// The epoch that [`lead`](Store::lead) gave.
        epoch: i64,
    },
}

impl Holder {
    /// Who holds.
    pub fn owner(&self) -> &NodeId {
        match self {
            Holder::Lease { owner, .. } | Holder::Exclusive { owner, .. } => owner,
        }
    }
}

/// The named lease that stands for the whole table.
pub const EXCLUSIVE: &str = "exclusive";

/// The answer to [`lead`](Store::lead).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Held in this epoch. `clean` is false when the one before never gave it back: it crashed or hangs.
    Held {
        /// Rises with each change of holder.
        epoch: i64,
        /// Whether the holder before us gave it back.
        clean: bool,
    },
    /// Somebody else holds it.
    HeldBy {
        /// Who.
        holder: NodeId,
        /// For how much longer, unless renewed.
        remaining: Duration,
    },
}

/// A place in the order in which events are read: the last one that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    /// When it became available; on the shelf of [done](Shelf::Done) events, when it was done.
    pub at: DateTime<Utc>,
    /// Its sequence number.
    pub seq: i64,
}

/// What to take.
#[derive(Clone, Debug)]
pub struct Take {
    /// In whose name.
    pub by: Holder,
    /// Where to read.
    pub from: Origin,
    /// How many rows to look at, at most.
    pub limit: usize,
    /// Leave alone what was created more recently than this.
    pub skip_recent: Duration,
    /// What a dead event does to the later events of its key.
    pub on_dead: OnDead,
    /// Leave alone events of these types. They still hold back the later events of their keys, as far as
    /// [`destinations`](Take::destinations) does not tell them apart.
    pub skip_types: Vec<String>,
    /// Take only these events; `None`: all. The others stay as they are, for a taker that routes them, and hold back the later
    /// events of their keys.
    pub only: Option<Arc<Routed>>,
    /// Take no more than one event, of one of these types: to find out whether their destination is available again. The
    /// [cursor](Taken::cursor) is the place of that event then.
    pub probe: Option<Vec<String>>,
    /// The destination of each event type whose events all go to the same one: a number that is only compared. An event of such
    /// a type is held back by earlier events of its key that go there too, and by those whose type is not listed; an event
    /// whose type is not listed, by all earlier ones. Empty: by all earlier ones.
    pub destinations: BTreeMap<String, u64>,
    /// The newest event of each run that the taker already holds. Everything of that run up to there counts as taken; with
    /// [`Holder::Lease`] only what is still leased to the taker.
    pub frontiers: HashMap<RunId, Reach>,
    /// Whether events may be leased together, which costs a database that can do so far less. Then only this store, and no
    /// other one with the same owner, can settle and extend what it took.
    pub together: bool,
    /// How many bytes of events to take at most. The first event is taken however large it is.
    pub max_bytes: usize,
    /// Leave alone, and [count](Taken::unkeyed), events with an aggregate id and without a key.
    pub by_aggregate: bool,
}

/// Names events that are delivered one after another: those of an ordering key, or those of them that go to one destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId {
    /// The ordering key.
    pub key: Arc<str>,
    /// The number that [`Take::destinations`] gives the destination; `None` for all events of the key.
    pub destination: Option<u64>,
}

impl RunId {
    /// All events of a key.
    pub fn of_key(key: impl Into<Arc<str>>) -> Self {
        Self { key: key.into(), destination: None }
    }
}

/// How much of a run a taker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The newest event of it.
    pub seq: i64,
    /// Whether all of it was taken [together](Take::together) with others. Then a dead event before the newest that is replayed
    /// in the meantime may be passed by.
    pub together: bool,
}

/// Where [`Store::take`] starts to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the oldest pending event.
    Start,
    /// After this place. Does not see late commits before it, nor rows that others gave back.
    After(Cursor),
    /// Only events of these keys.
    Keys(Vec<Arc<str>>),
}

/// What a dead event does to the later events of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDead {
    /// They wait until it is replayed or removed.
    #[default]
    Hold,
    /// They go on without it.
    Skip,
}

/// What was taken.
#[derive(Debug, Default)]
pub struct Taken {
    /// To be handled, in this order.
    pub deliveries: Vec<Delivery>,
    /// How many rows could be neither leased nor settled, and were dead-lettered instead.
    pub dead_lettered: usize,
    /// Taken, but cannot be turned into events: to be dead-lettered with this reason.
    pub undecodable: Vec<(EventId, Claim, String)>,
    /// The place after the last row looked at, whether it was taken or not.
    pub cursor: Option<Cursor>,
    /// How many rows were looked at: fewer than the limit means the end was reached.
    pub scanned: usize,
    /// How many events were left alone because they should be ordered by aggregate and have no key
    /// yet: [`Store::order_by_aggregate`] gives them one.
    pub unkeyed: usize,
    /// Keys of which rows were left behind, because an earlier event of the key is in the way.
    pub behind: Vec<Arc<str>>,
    /// The types of the events that were left behind, and of those that are in their way.
    pub behind_types: BTreeSet<String>,
}

/// An event on its way to a handler.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The event.
    pub event: Event,
    /// Its place in the order of the table. Unknown on the hot path, where order is not asked for.
    pub seq: Option<i64>,
    /// How many times a handler has failed before.
    pub attempts: u32,
    /// The claim to settle it with.
    pub claim: Claim,
    /// How long after it was taken it expires; zero or less means it already has.
    pub expires_in: Option<chrono::Duration>,
    /// How long it had waited when it was taken.
    pub waited: Duration,
    /// Set if whoever held it last never came back, so that it may be what killed them: how many of its starts since then
    /// were [counted](Store::count_start).
    pub suspect: Option<u32>,
    /// When the database stored it.
    pub created_at: Option<DateTime<Utc>>,
    /// Why it failed last, if it did.
    pub last_error: Option<String>,
}

/// What became of one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Which event.
    pub id: EventId,
    /// Under which claim.
    pub claim: Claim,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Done,
    /// To be handled again.
    Again {
        /// Not before this much time has passed.
        after: Duration,
        /// Whether this was an attempt (the event becomes RETRY) or not (it stays NEW).
        counted: bool,
        /// Why, for people.
        error: Option<String>,
    },
    /// Never to be handled again, unless a person replays it.
    Dead {
        /// Whether this was an attempt.
        counted: bool,
        /// Why, for people.
        reason: String,
    },
    /// Not handled at all: given back as it was.
    Released,
    /// Not handled at all, and still suspect: the holder before may have vanished because of it, and no
    /// handler has come to an end with it since.
    ReleasedSuspect,
}

impl Verdict {
    /// Whether the event was given back without having been handled.
    pub fn is_release(&self) -> bool {
        matches!(self, Self::Released | Self::ReleasedSuspect)
    }
}

/// What settling changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// How many verdicts took effect.
    pub moved: u64,
    /// Whether events were written with them: what follows a join.
    pub wrote: bool,
}

/// What happens to an event that is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// It stays as a DONE row until it is purged.
    #[default]
    Keep,
    /// Its row is deleted. Faster, and leaves no history.
    Delete,
}

/// Which rows a purge deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Which rows.
    pub what: Purgeable,
    /// Only those older than this.
    pub older_than: Duration,
    /// At most this many.
    pub limit: usize,
}

/// Which rows may be purged. The status decides; the age counts from `done_at`, or from `created_at` where another writer has
/// left `done_at` NULL. Steps of joins that are still open stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purgeable {
    /// DONE rows.
    Done,
    /// DEAD rows, apart from those that hold back their key: a dead event with an ordering key stays while a later event of
    /// its key is pending, or the later event would be delivered as if the dead one had been.
    Dead,
    /// First DONE rows, then DEAD rows.
    Finished,
    /// All rows, those that are pending by the time they became available, and dead ones also where they hold back their key:
    /// for tables that only CDC reads.
    Everything,
}

/// The state of a stored event. The numbers are what the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(i16)]
pub enum Status {
    /// Waiting for its first delivery, or put off by its handler.
    New = 0,
    /// Handled.
    Done = 1,
    /// Failed, and waiting to be tried again.
    Retry = 2,
    /// Given up.
    Dead = 3,
}

impl Status {
    /// From the number in the table.
    pub fn from_code(code: i16) -> Option<Self> {
        [Status::New, Status::Done, Status::Retry, Status::Dead].into_iter().find(|s| *s as i16 == code)
    }

    /// Whether it is still to be delivered.
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

/// Which events to list, count or replay. Empty: all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this status.
    pub status: Option<Status>,
    /// Only what is still to be delivered: NEW or RETRY.
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
    /// Only events after this place, to read page by page.
    pub after_seq: Option<i64>,
    /// Only events up to this place.
    pub upto_seq: Option<i64>,
    /// Only those that were stored longer ago than this.
    pub older_than: Option<Duration>,
    /// Only those that were stored more recently than this.
    pub newer_than: Option<Duration>,
    /// Only those that became DONE or DEAD longer ago than this.
    pub settled_before: Option<Duration>,
    /// Only those that became DONE or DEAD more recently than this.
    pub settled_within: Option<Duration>,
}

/// What a replay came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many events are new again.
    pub moved: u64,
    /// The place of the last one that was looked at, to go on [after](Filter::after_seq); `None` if nothing matched.
    pub last: Option<i64>,
}

/// An event as it stands in the table.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    /// The event, or why it cannot be read.
    pub event: Result<Event, crate::error::DecodeError>,
    /// Its place in the table.
    pub seq: i64,
    /// Where it stands.
    pub status: Status,
    /// How many times a handler has failed.
    pub attempts: u32,
    /// When the database stored it.
    pub created_at: DateTime<Utc>,
    /// When it may next be delivered.
    pub available_at: DateTime<Utc>,
    /// When it became DONE or DEAD.
    pub done_at: Option<DateTime<Utc>>,
    /// Why it last failed.
    pub last_error: Option<String>,
    /// Who made it DONE or DEAD.
    pub done_by: Option<NodeId>,
    /// Who holds it, and until when.
    pub lease: Option<(NodeId, DateTime<Utc>)>,
}

/// What is done to a join.
#[derive(Clone, Debug)]
pub enum JoinAct {
    /// Starts it.
    Start {
        /// Its id.
        id: JoinId,
        /// What it is to be.
        join: NewJoin,
    },
    /// Makes events steps of it. Those already settled count at once.
    Attach {
        /// Which join.
        join: JoinId,
        /// The name of the database that the join is in; empty for this one.
        home: String,
        /// The events, which are in this database.
        steps: Vec<EventId>,
    },
    /// Counts a step; attaches it first if need be.
    Report {
        /// Which join.
        join: JoinId,
        /// Which step.
        step: EventId,
        /// What became of it.
        became: Step,
    },
    /// Says what follows.
    Wait {
        /// Which join.
        join: JoinId,
        /// What.
        decision: Decision,
    },
    /// Gives it up.
    Cancel {
        /// Which join.
        join: JoinId,
    },
}

impl JoinAct {
    /// The join that it is about.
    pub fn join(&self) -> &JoinId {
        match self {
            JoinAct::Start { id, .. } => id,
            JoinAct::Attach { join, .. }
            | JoinAct::Report { join, .. }
            | JoinAct::Wait { join, .. }
            | JoinAct::Cancel { join } => join,
        }
    }
}

/// The row that attaches an event to a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinMember {
    /// The name of the database that the join is in; empty for the event's own.
    pub home: String,
    /// Outcome of the step; `None` while the event is pending.
    pub status: Option<Step>,
}

/// What an act led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acted {
    /// The join after it; `None` if the join is in another database.
    pub join: Option<Join>,
    /// Whether events were written with it: what follows the join.
    pub wrote: bool,
}

/// Which joins to list. Empty: all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinFilter {
    /// Only this one.
    pub id: Option<JoinId>,
    /// Only this status.
    pub status: Option<JoinStatus>,
    /// Only of this group.
    pub grouping_key: Option<String>,
    /// Only those after this one, to read page by page.
    pub after: Option<JoinId>,
}

/// How many events there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Waiting for their first delivery.
    pub new: u64,
    /// Waiting to be tried again.
    pub retry: u64,
    /// Handled, and not yet purged.
    pub done: u64,
    /// Given up.
    pub dead: u64,
    /// How long the oldest due event has waited.
    pub oldest_due: Option<Duration>,
}

/// What is still to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// How many events are pending, due or not.
    pub pending: u64,
    /// How many of them are due and held by nobody.
    pub free: u64,
    /// How long the oldest due event has waited.
    pub oldest_due: Option<Duration>,
}

/// The longest error text that is kept, in characters.
pub const MAX_ERROR: usize = 4_000;

/// Cuts a text to [`MAX_ERROR`] characters.
pub(crate) fn short_error(text: &str) -> String {
    short(text, MAX_ERROR)
}

/// Cuts a text to so many characters, and takes out what PostgreSQL cannot store.
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
