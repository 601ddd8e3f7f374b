//! What people see of a store: pages, counts and what went wrong. Nothing here holds a payload.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Cursor, Filter, NodeId, Status};
use crate::event::EventId;

/// More rows than this are never looked at by one call.
pub(crate) const MOST_LOOKED_AT: usize = 100_000;

/// A part of the table that can be read in the order of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shelf {
    /// What is still to be delivered, NEW or RETRY: by the time it is due.
    #[default]
    Pending,
    /// What is done: by the time it was done.
    Done,
    /// What is dead: by its place in the table; on MySQL and MariaDB by the time it was last due.
    Dead,
}

/// Which page to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAsk {
    /// Of what.
    pub shelf: Shelf,
    /// What it must be like. `status`, `pending`, `after_seq` and `upto_seq` do not count here. With an ordering key, pending and
    /// dead events come by their place in the table.
    pub filter: Filter,
    /// The last ones first.
    pub newest_first: bool,
    /// Where the last page ended.
    pub after: Option<Cursor>,
    /// How many rows to return at most: 1 to 1,000.
    pub limit: usize,
    /// How many rows to look at, at most: 1 to 100,000.
    pub look_at: usize,
}

impl PageAsk {
    /// More rows than this are not returned at once.
    pub(crate) const MOST: usize = 1_000;
}

impl Default for PageAsk {
    /// The first 50 events that are pending, among the first 5,000.
    fn default() -> Self {
        Self {
            shelf: Shelf::Pending,
            filter: Filter::default(),
            newest_first: false,
            after: None,
            limit: 50,
            look_at: 5_000,
        }
    }
}

/// Some events, in the order of their shelf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Page {
    /// Those that match. Where few do, a page may have few or none, and still go on.
    pub rows: Vec<EventRow>,
    /// Where to go on; `None`: the end was reached.
    pub next: Option<Cursor>,
}

/// An event as it stands in the table, without its payload and headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EventRow {
    /// Its id.
    pub id: EventId,
    /// Its place in the table.
    pub seq: i64,
    /// Its type.
    pub event_type: String,
    /// The type of its aggregate.
    pub aggregate_type: String,
    /// Its aggregate.
    pub aggregate_id: Option<String>,
    /// Its tenant.
    pub tenant_id: Option<String>,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// What it belongs to.
    pub correlation_id: Option<String>,
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
    /// Who made it DONE or DEAD.
    pub done_by: Option<NodeId>,
    /// Why it last failed: the first 500 characters.
    pub last_error: Option<String>,
    /// Who holds it, and until when.
    pub lease: Option<(NodeId, DateTime<Utc>)>,
    /// How large its payload is.
    pub payload_bytes: u64,
}

/// An event as it stands in the table, with all columns but the contents of its payload and headers: their
/// sizes are there instead. Reading one costs the same however large the payload is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EventMetadata {
    /// What a page shows; its `last_error` is not cut to 500 characters here.
    #[serde(flatten)]
    pub row: EventRow,
    /// Its deduplication key.
    pub dedup_key: Option<String>,
    /// The content type of its payload.
    pub content_type: String,
    /// When it happened, as its writer says; `None` if that cannot be read.
    pub occurred_at: Option<DateTime<Utc>>,
    /// When it expires.
    pub expires_at: Option<DateTime<Utc>>,
    /// How many bytes its headers have, as JSON.
    pub headers_bytes: u64,
    /// Why a relay cannot read it, as far as sizes and the columns other than the payload tell.
    pub unreadable: Option<String>,
}

/// A count that stops somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// How many were counted.
    pub count: u64,
    /// Whether there are more: counting stopped there.
    pub more: bool,
}

impl Counted {
    /// Of one more than `most` that were looked at.
    pub(crate) fn upto(found: u64, most: u64) -> Self {
        Self { count: found.min(most), more: found > most }
    }
}

/// What stands in the table, at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Overview {
    /// The database's clock.
    pub now: DateTime<Utc>,
    /// To be delivered now, those that somebody holds among them.
    pub due: Counted,
    /// To be delivered later, retries among them.
    pub delayed: Counted,
    /// Failed before, and to be tried again: among those that were counted as due and as delayed.
    pub retrying: Counted,
    /// Held by somebody: among the same.
    pub held: Counted,
    /// Given up.
    pub dead: Counted,
    /// How long the oldest due event has waited.
    pub oldest_due: Option<Duration>,
    /// When something last became DONE or DEAD.
    pub last_settled: Option<DateTime<Utc>>,
    /// Who leads the whole table, if anybody does.
    pub leader: Option<NodeId>,
    /// The greatest number that an event was given: how much was ever written, roughly. 0 if that is not known: on PostgreSQL the
    /// user may lack the right to look at the sequence. On MySQL it may fall when the table is emptied.
    pub last_seq: i64,
    /// How many rows the table has, as the database itself estimates.
    pub rows: Option<u64>,
}

/// Of the first events of a shelf, how many there are of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    /// The most frequent first.
    pub types: Vec<TypeCount>,
    /// How many events were looked at.
    pub looked_at: u64,
    /// Whether there are more.
    pub more: bool,
}

/// How many events there are of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeCount {
    /// The type.
    pub event_type: String,
    /// How many.
    pub count: u64,
    /// When the oldest of them was stored.
    pub oldest: Option<DateTime<Utc>>,
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Attempt {
    /// When.
    pub at: DateTime<Utc>,
    /// How many attempts there had been, this one among them if it counted. Begins anew with a replay.
    pub number: u32,
    /// Whose it was.
    pub node: NodeId,
    /// Whether the event died of it.
    pub fatal: bool,
    /// Why, for people.
    pub error: String,
}

/// Keys whose first dead event holds back others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockedKeys {
    /// By the place of the dead event in the table.
    pub keys: Vec<BlockedKey>,
    /// Whether there may be more.
    pub more: bool,
}

/// A key whose first dead event holds back others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockedKey {
    /// The key.
    pub key: String,
    /// The dead event.
    pub head: EventRow,
    /// How many wait behind it.
    pub behind: Counted,
}
