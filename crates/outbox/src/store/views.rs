//! Read models for operators: pages of events, counts and errors. No type here holds a payload.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Cursor, Filter, NodeId, Status};
use crate::event::EventId;

/// Maximum number of rows that one call reads.
pub(crate) const MAX_SCAN: usize = 100_000;

/// A group of statuses whose events can be read in the order of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusGroup {
    /// NEW or RETRY events, by the time they are due.
    #[default]
    Pending,
    /// DONE events, by the time they were done.
    Done,
    /// DEAD events, by sequence number; on MySQL and MariaDB by the time they were last due.
    Dead,
}

/// Which page to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The status group.
    pub status_group: StatusGroup,
    /// Which events match. `status`, `pending`, `after_seq` and `upto_seq` are ignored. With an
    /// ordering key, pending and dead events are ordered by sequence number.
    pub filter: Filter,
    /// Reverses the order.
    pub newest_first: bool,
    /// Where the previous page ended.
    pub after: Option<Cursor>,
    /// Maximum number of rows to return: 1 to 1,000.
    pub limit: usize,
    /// Maximum number of rows to read: 1 to 100,000.
    pub scan_limit: usize,
}

impl PageRequest {
    /// Maximum number of rows on a page.
    pub(crate) const MOST: usize = 1_000;
}

impl Default for PageRequest {
    /// The first 50 pending events, among the first 5,000.
    fn default() -> Self {
        Self {
            status_group: StatusGroup::Pending,
            filter: Filter::default(),
            newest_first: false,
            after: None,
            limit: 50,
            scan_limit: 5_000,
        }
    }
}

/// A page of events, in the order of their status group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Page {
    /// Matching events. Where few match, a page may hold few or none and still have a next page.
    pub rows: Vec<EventRow>,
    /// Where the next page starts; `None`: the end was reached.
    pub next: Option<Cursor>,
}

/// An event and its state in the table, without its payload and headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EventRow {
    /// Its id.
    pub id: EventId,
    /// Sequence number in the table.
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
    /// Its correlation id.
    pub correlation_id: Option<String>,
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
    /// The node that made the event DONE or DEAD.
    pub done_by: Option<NodeId>,
    /// Error of the last failed attempt: the first 500 characters.
    pub last_error: Option<String>,
    /// Lease holder and expiry time.
    pub lease: Option<(NodeId, DateTime<Utc>)>,
    /// Size of its payload in bytes.
    pub payload_bytes: u64,
}

/// An event and its state in the table, with all columns except the contents of its payload and
/// headers, whose sizes are given instead. Reading one costs the same however large the payload is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EventMetadata {
    /// The columns of a page; here `last_error` is not cut to 500 characters.
    #[serde(flatten)]
    pub row: EventRow,
    /// Its deduplication key.
    pub dedup_key: Option<String>,
    /// The content type of its payload.
    pub content_type: String,
    /// Time of the event according to its writer; `None` if it cannot be decoded.
    pub occurred_at: Option<DateTime<Utc>>,
    /// When it expires.
    pub expires_at: Option<DateTime<Utc>>,
    /// Size of its headers as JSON, in bytes.
    pub headers_bytes: u64,
    /// Why a relay cannot decode the event, as far as sizes and the columns other than the payload
    /// show.
    pub unreadable: Option<String>,
}

/// A count up to a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BoundedCount {
    /// Number counted.
    pub count: u64,
    /// Whether there are more: counting stopped at the limit.
    pub more: bool,
}

impl BoundedCount {
    /// The count after reading at most one more than `most`.
    pub(crate) fn upto(found: u64, most: u64) -> Self {
        Self { count: found.min(most), more: found > most }
    }
}

/// State of the table in a few counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Overview {
    /// The database's clock.
    pub now: DateTime<Utc>,
    /// Due events, including leased ones.
    pub due: BoundedCount,
    /// Events due later, including retries.
    pub delayed: BoundedCount,
    /// Events that failed before and will be retried, among those counted as due and as delayed.
    pub retrying: BoundedCount,
    /// Leased events, among the same.
    pub held: BoundedCount,
    /// Dead-lettered events.
    pub dead: BoundedCount,
    /// Age of the oldest due event.
    pub oldest_due: Option<Duration>,
    /// When an event last became DONE or DEAD.
    pub last_settled: Option<DateTime<Utc>>,
    /// Leader of the whole table.
    pub leader: Option<NodeId>,
    /// The highest sequence number given out: roughly the number of events ever written. 0 if
    /// unknown: on PostgreSQL the user may lack the privilege to read the sequence. On MySQL it may
    /// decrease when the table is emptied.
    pub last_seq: i64,
    /// Number of rows of the table, as estimated by the database.
    pub rows: Option<u64>,
}

/// Counts per type among the first events of a status group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    /// The most frequent type first.
    pub types: Vec<TypeCount>,
    /// Number of events that were read.
    pub scanned: u64,
    /// Whether there are more.
    pub more: bool,
}

/// Number of events of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeCount {
    /// The type.
    pub event_type: String,
    /// Number of events.
    pub count: u64,
    /// When the oldest of them was stored.
    pub oldest: Option<DateTime<Utc>>,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Time of the attempt.
    pub at: DateTime<Utc>,
    /// Number of attempts so far, including this one if it counted. Restarts with a replay.
    pub number: u32,
    /// The node that made the attempt.
    pub node: NodeId,
    /// Whether the event was dead-lettered by it.
    pub fatal: bool,
    /// The cause, human-readable.
    pub error: String,
}

/// Keys whose first dead event blocks later events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockedKeys {
    /// Ordered by the sequence number of the dead event.
    pub keys: Vec<BlockedKey>,
    /// Whether there may be more.
    pub more: bool,
}

/// A key whose first dead event blocks later events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockedKey {
    /// The key.
    pub key: String,
    /// The dead event.
    pub head: EventRow,
    /// Number of events blocked by it.
    pub waiting: BoundedCount,
}
