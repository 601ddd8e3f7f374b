//! [`AdminStore`] on SQL: forwards each method to the file that implements it.

use std::time::Duration;

use async_trait::async_trait;

use super::dialect::Database;
use super::store::SqlStore;
use crate::error::Result;
use crate::event::EventId;
use crate::store::{
    AdminStore, Attempt, Audit, AuditEntry, BlockedKeys, Breakdown, Edit, EventMetadata, NodeId, Overview,
    Page, PageRequest, Released, StatusGroup, UnroutedEvents,
};

#[async_trait]
impl<DB: Database> AdminStore for SqlStore<DB> {
    async fn page(&self, ask: &PageRequest) -> Result<Page> {
        self.read_page(ask).await
    }

    async fn metadata(&self, id: &EventId) -> Result<Option<EventMetadata>> {
        self.read_metadata(id).await
    }

    async fn metadata_at(&self, seq: i64) -> Result<Option<EventMetadata>> {
        self.read_metadata_at(seq).await
    }

    async fn overview(&self, most: u64) -> Result<Overview> {
        self.see_overview(most).await
    }

    async fn breakdown(&self, status_group: StatusGroup, scan_limit: usize) -> Result<Breakdown> {
        self.break_down(status_group, scan_limit).await
    }

    async fn unrouted(&self, scan_limit: usize) -> Result<UnroutedEvents> {
        self.find_unrouted(scan_limit).await
    }

    async fn attempts(&self, id: &EventId, limit: usize) -> Result<Vec<Attempt>> {
        self.list_attempts(id, limit).await
    }

    async fn purge_attempts(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.purge_old_attempts(older_than, limit).await
    }

    async fn blocked_keys(&self, scan_limit: usize, limit: usize) -> Result<BlockedKeys> {
        self.find_blocked_keys(scan_limit, limit).await
    }

    async fn skip(&self, id: &EventId, by: &NodeId) -> Result<bool> {
        self.skip_dead(id, by).await
    }

    async fn edit(&self, id: &EventId, edit: &Edit) -> Result<bool> {
        self.edit_dead(id, edit).await
    }

    async fn release_node(&self, node: &NodeId) -> Result<Released> {
        self.release_all_of(node).await
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<i64> {
        self.retried(|| self.write_audit_entry(entry)).await
    }

    async fn finish_audit(&self, id: i64, outcome: &str, count: Option<u64>) -> Result<()> {
        self.write_outcome(id, outcome, count).await
    }

    async fn purge_audits(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.purge_old_audits(older_than, limit).await
    }

    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<Audit>> {
        self.list_audit_entries(before, limit).await
    }
}
