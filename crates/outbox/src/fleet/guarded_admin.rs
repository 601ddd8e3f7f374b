//! Administrative operations on a fleet's store: the same permits as for the relay, with longer
//! limits.

use std::time::Duration;

use async_trait::async_trait;

use super::guarded::GuardedStore;
use crate::error::Result;
use crate::event::EventId;
use crate::store::{
    AdminStore, Attempt, Audit, AuditEntry, BlockedKeys, Breakdown, Edit, EventMetadata, NodeId, Overview,
    Page, PageRequest, Released, StatusGroup, UnroutedEvents,
};

#[async_trait]
impl AdminStore for GuardedStore {
    async fn page(&self, ask: &PageRequest) -> Result<Page> {
        self.slow(self.inner.page(ask)).await
    }

    async fn metadata(&self, id: &EventId) -> Result<Option<EventMetadata>> {
        self.slow(self.inner.metadata(id)).await
    }

    async fn metadata_at(&self, seq: i64) -> Result<Option<EventMetadata>> {
        self.slow(self.inner.metadata_at(seq)).await
    }

    async fn overview(&self, most: u64) -> Result<Overview> {
        self.slow(self.inner.overview(most)).await
    }

    async fn breakdown(&self, status_group: StatusGroup, scan_limit: usize) -> Result<Breakdown> {
        self.slow(self.inner.breakdown(status_group, scan_limit)).await
    }

    async fn unrouted(&self, scan_limit: usize) -> Result<UnroutedEvents> {
        self.slow(self.inner.unrouted(scan_limit)).await
    }

    async fn attempts(&self, id: &EventId, limit: usize) -> Result<Vec<Attempt>> {
        self.slow(self.inner.attempts(id, limit)).await
    }

    async fn purge_attempts(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.slow(self.inner.purge_attempts(older_than, limit)).await
    }

    async fn blocked_keys(&self, scan_limit: usize, limit: usize) -> Result<BlockedKeys> {
        self.slow(self.inner.blocked_keys(scan_limit, limit)).await
    }

    async fn skip(&self, id: &EventId, by: &NodeId) -> Result<bool> {
        self.slow(self.inner.skip(id, by)).await
    }

    async fn edit(&self, id: &EventId, edit: &Edit) -> Result<bool> {
        self.slow(self.inner.edit(id, edit)).await
    }

    async fn release_node(&self, node: &NodeId) -> Result<Released> {
        self.slow(self.inner.release_node(node)).await
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<i64> {
        self.slow(self.inner.audit(entry)).await
    }

    async fn finish_audit(&self, id: i64, outcome: &str, count: Option<u64>) -> Result<()> {
        self.slow(self.inner.finish_audit(id, outcome, count)).await
    }

    async fn purge_audits(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.slow(self.inner.purge_audits(older_than, limit)).await
    }

    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<Audit>> {
        self.slow(self.inner.audits(before, limit)).await
    }
}
