//! What people ask of a store, and what they change by hand.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Attempt, Audit, BlockedKeys, Breakdown, Deed, Edit, EventMetadata, NodeId, Overview, Page, PageAsk,
    Released, Shelf, UnroutedEvents,
};
use crate::error::Result;
use crate::event::EventId;

/// The part of a [`Store`](super::Store) that people use: by [`Admin`](crate::Admin), a dashboard, a command line.
///
/// How long each takes does not depend on how many events there are.
#[async_trait]
pub trait AdminStore: Send + Sync + 'static {
    /// Events page by page, in the order of an index. Each one that matches and keeps its place all the while is on exactly one page,
    /// whatever happens to others; one that is put off, or settled, may be missed or come again.
    async fn page(&self, ask: &PageAsk) -> Result<Page>;

    /// One event without the contents of its payload and headers.
    async fn metadata(&self, id: &EventId) -> Result<Option<EventMetadata>>;

    /// The same of the event with this place in the table, whatever its id is.
    async fn metadata_at(&self, seq: i64) -> Result<Option<EventMetadata>>;

    /// What stands in the table, at a glance. Counts stop at `most`, which is a million at most.
    async fn overview(&self, most: u64) -> Result<Overview>;

    /// Of the first `look_at` events of a shelf: how many of each type, and the oldest of each.
    async fn breakdown(&self, shelf: Shelf, look_at: usize) -> Result<Breakdown>;

    /// Of the first `look_at` pending events: those that no running relay [routes](super::NodeState::routes). Empty if no relay
    /// runs, or if one routes everything.
    async fn unrouted(&self, look_at: usize) -> Result<UnroutedEvents>;

    /// The last failed attempts of an event, oldest first.
    async fn attempts(&self, id: &EventId, limit: usize) -> Result<Vec<Attempt>>;

    /// Deletes one batch of failed attempts that are older than this. Returns how many.
    async fn purge_attempts(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// Keys whose first dead event holds back others, among the first `look_at` dead events.
    ///
    /// They are held back by relays that [hold](super::OnDead::Hold); those that skip go on without it.
    async fn blocked_keys(&self, look_at: usize, limit: usize) -> Result<BlockedKeys>;

    /// Has a dead event count as settled: it is DONE by this hand, its error stays, its key goes on. Returns whether there was one.
    ///
    /// As a step of a join it stays failed, as which it was counted when it died: what follows a success must not follow
    /// from work that was not done.
    async fn skip(&self, id: &EventId, by: &NodeId) -> Result<bool>;

    /// Gives a dead event another payload. It stays dead until it is replayed. Returns whether there was one.
    async fn edit(&self, id: &EventId, edit: &Edit) -> Result<bool>;

    /// Frees everything that a node holds: its leases on events, and the leadership of the whole table.
    ///
    /// The claims of those events rise, so that the node settles none of them any more, and they are suspect, as after a lease
    /// that ran out: one of them may be what ended the node. A node that still runs handles what it has in memory until it
    /// hears that it has lost it, at its next renewal: meanwhile events may be handled twice, and out of the order of their keys.
    async fn release_node(&self, node: &NodeId) -> Result<Released>;

    /// Writes down who changes what, before it is done. Returns the place in the book.
    async fn audit(&self, deed: &Deed) -> Result<i64>;

    /// Adds what came of it, and to how many things.
    async fn audited(&self, id: i64, outcome: &str, count: Option<u64>) -> Result<()>;

    /// Deletes one batch of audit entries that are older than this, the first ones first. Returns how many.
    async fn purge_audits(&self, older_than: Duration, limit: usize) -> Result<u64>;

    /// What was written down before this place, the last first.
    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<Audit>>;
}
