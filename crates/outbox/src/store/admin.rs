//! Administrative operations of a store: reading its state, and changes made by operators.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Attempt, Audit, AuditEntry, BlockedKeys, Breakdown, Edit, EventMetadata, NodeId, Overview, Page,
    PageRequest, Released, StatusGroup, UnroutedEvents,
};
use crate::error::Result;
use crate::event::EventId;

/// The administrative part of a [`Store`](super::Store), used by [`Admin`](crate::Admin), the
/// dashboard and the command line.
///
/// The run time of each method does not depend on the number of events.
#[async_trait]
pub trait AdminStore: Send + Sync + 'static {
    /// Events page by page, in the order of an index. Each matching event that keeps its position
    /// meanwhile is on exactly one page, whatever happens to other events; an event that is snoozed
    /// or settled meanwhile may be missed or returned twice.
    async fn page(&self, ask: &PageRequest) -> Result<Page>;

    /// One event without the contents of its payload and headers.
    async fn metadata(&self, id: &EventId) -> Result<Option<EventMetadata>>;

    /// The event with this sequence number, without the contents of its payload and headers.
    async fn metadata_at(&self, seq: i64) -> Result<Option<EventMetadata>>;

    /// Counts of the table by state. Counting stops at `most`, at most a million.
    async fn overview(&self, most: u64) -> Result<Overview>;

    /// Number and oldest event of each type, among the first `scan_limit` events of a status group.
    async fn breakdown(&self, status_group: StatusGroup, scan_limit: usize) -> Result<Breakdown>;

    /// Events that no running relay [routes](super::NodeState::routes), among the first
    /// `scan_limit` pending events. Empty if no relay runs, or if one routes everything.
    async fn unrouted(&self, scan_limit: usize) -> Result<UnroutedEvents>;

    /// The last failed attempts of an event, oldest first.
    async fn attempts(&self, id: &EventId, limit: usize) -> Result<Vec<Attempt>>;

    /// Deletes one batch of failed attempts older than this. Returns how many.
    async fn purge_attempts(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Keys whose first dead event blocks later events, among the first `scan_limit` dead events.
    ///
    /// The later events are blocked for relays with [`OnDead::Hold`](super::OnDead::Hold); relays
    /// with [`OnDead::Skip`](super::OnDead::Skip) deliver them.
    async fn blocked_keys(&self, scan_limit: usize, limit: usize) -> Result<BlockedKeys>;

    /// Settles a dead event: it becomes DONE by this operator, keeps its error, and unblocks its
    /// key. Returns whether such a dead event existed.
    ///
    /// As a step of a join the event stays failed, as it was counted when it was dead-lettered: the
    /// follow-up of a success must not be triggered by work that was not done.
    async fn skip(&self, id: &EventId, by: &NodeId) -> Result<bool>;

    /// Replaces the payload of a dead event. The event stays dead until it is replayed. Returns
    /// whether such a dead event existed.
    async fn edit(&self, id: &EventId, edit: &Edit) -> Result<bool>;

    /// Releases everything that a node holds: its leases on events, and the leadership of the whole
    /// table.
    ///
    /// The claim counters of those events increase, so that the node can no longer settle them, and
    /// the events become suspect, as after an expired lease: one of them may have crashed the node.
    /// A node that still runs handles the events it has in memory until its next renewal reports
    /// the lost leases: meanwhile events may be handled twice, and out of the order of their keys.
    async fn release_node(&self, node: &NodeId) -> Result<Released>;

    /// Writes an audit entry before the change is made. Returns the id of the entry.
    async fn audit(&self, entry: &AuditEntry) -> Result<i64>;

    /// Completes an audit entry with its outcome and the number of changed rows.
    async fn finish_audit(&self, id: i64, outcome: &str, count: Option<u64>) -> Result<()>;

    /// Deletes one batch of audit entries older than this, oldest first. Returns how many.
    async fn purge_audits(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Audit entries before this id, newest first.
    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<Audit>>;
}
