//! The store of a fleet's database, with its share of the connections and a time limit per
//! operation.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::error::{Error, RedactedError, Result};
use crate::event::{Event, EventId};
use crate::join::{Join, JoinId, Step};
use crate::sql::budget::Seat;
use crate::store::{
    Backlog, Claim, Completion, Cursor, DeliveryFacts, Filter, Holder, InsertNotifier, JoinCommand,
    JoinFilter, JoinMember, JoinOutcome, Leadership, LogStore, Node, NodeId, NodeState, Purge, Replayed,
    Settled, Settlement, SharedStore, Stats, Store, StoredEvent, Take, Taken,
};

/// Factor by which administrative operations and migrations may take longer than operations of the
/// relay.
const SLOW_FACTOR: u32 = 12;

/// Runs one operation per permit, and drops the operation at its time limit, which closes its
/// connection.
pub(crate) struct GuardedStore {
    pub(super) inner: SharedStore,
    pub(crate) seat: Arc<Seat>,
    /// Whether to migrate before the first operation.
    migrate: bool,
    migrated: OnceCell<()>,
}

impl fmt::Debug for GuardedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl GuardedStore {
    pub(crate) fn new(inner: SharedStore, seat: Arc<Seat>, migrate: bool) -> Self {
        Self { inner, seat, migrate, migrated: OnceCell::new() }
    }

    /// Migrates once, if requested.
    pub(crate) async fn prepare(&self) -> Result<()> {
        if self.migrate {
            self.migrated.get_or_try_init(|| self.within(SLOW_FACTOR, self.inner.migrate())).await?;
        }
        Ok(())
    }

    /// Runs an operation of the relay.
    pub(super) async fn quick<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        self.prepare().await?;
        self.within(1, operation).await
    }

    /// Runs an administrative operation, which may take long.
    pub(super) async fn slow<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        self.prepare().await?;
        self.within(SLOW_FACTOR, operation).await
    }

    async fn within<T>(&self, times: u32, operation: impl Future<Output = Result<T>>) -> Result<T> {
        let _permit = self.seat.enter().await?;
        // One unit more for connecting, which has its own limit: a claim must not be dropped just
        // after it was sent because connecting took long.
        let limit: Duration = self.seat.patience * (times + 1);
        let failures = self.seat.failures();
        let Ok(result) = tokio::time::timeout(limit, operation).await else {
            let reason = format!("no answer within {limit:?}");
            self.seat.is_in_trouble(&reason);
            return Err(self.seat.unavailable(reason));
        };
        match &result {
            Ok(_) => self.seat.is_well(),
            // A failed connection has been recorded already.
            Err(Error::Database(e)) if is_lost(e.inner()) && self.seat.failures() == failures => {
                self.seat.is_in_trouble(&RedactedError(e.inner()).to_string());
            }
            Err(_) => {}
        }
        result
    }
}

/// Whether the connection is broken, as opposed to an error of the statement.
fn is_lost(error: &sqlx::Error) -> bool {
    use sqlx::Error::{Io, Protocol, Tls, WorkerCrashed};
    matches!(error, Io(_) | Tls(_) | Protocol(_) | WorkerCrashed)
}

#[async_trait]
impl Store for GuardedStore {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn insert(&self, events: &[Event]) -> Result<Vec<EventId>> {
        self.quick(self.inner.insert(events)).await
    }

    async fn take(&self, take: &Take) -> Result<Taken> {
        self.quick(self.inner.take(take)).await
    }

    async fn settle(
        &self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        self.quick(self.inner.settle(by, completion, settlements)).await
    }

    /// Without a permit: the notifier's connection has its own, for as long as it is open.
    async fn watch(&self) -> Result<Option<Box<dyn InsertNotifier>>> {
        self.inner.watch().await
    }

    async fn extend(
        &self,
        owner: &NodeId,
        lease: Duration,
        held: &[(EventId, Claim)],
    ) -> Result<Vec<EventId>> {
        self.quick(self.inner.extend(owner, lease, held)).await
    }

    async fn order_by_aggregate(&self) -> Result<u64> {
        self.slow(self.inner.order_by_aggregate()).await
    }

    async fn reap(&self) -> Result<u64> {
        self.slow(self.inner.reap()).await
    }

    async fn count_start(&self, by: &Holder, id: &EventId, claim: Claim) -> Result<Option<u32>> {
        self.quick(self.inner.count_start(by, id, claim)).await
    }

    async fn lead(&self, name: &str, holder: &NodeId, ttl: Duration) -> Result<Leadership> {
        self.quick(self.inner.lead(name, holder, ttl)).await
    }

    async fn resign(&self, name: &str, holder: &NodeId, epoch: i64, clean: bool) -> Result<()> {
        self.quick(self.inner.resign(name, holder, epoch, clean)).await
    }

    async fn leader(&self, name: &str) -> Result<Option<NodeId>> {
        self.quick(self.inner.leader(name)).await
    }

    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.slow(self.inner.purge_inbox(older_than, limit)).await
    }

    async fn join(&self, act: &JoinCommand) -> Result<JoinOutcome> {
        self.quick(self.inner.join(act)).await
    }

    async fn joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>> {
        self.slow(self.inner.joins(filter, limit)).await
    }

    async fn steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>> {
        self.slow(self.inner.steps(join, after, limit)).await
    }

    async fn member(&self, join: &JoinId, step: &EventId) -> Result<Option<JoinMember>> {
        self.slow(self.inner.member(join, step)).await
    }

    async fn purge_joins(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.slow(self.inner.purge_joins(older_than, limit)).await
    }

    async fn purge(&self, purge: Purge) -> Result<u64> {
        self.slow(self.inner.purge(purge)).await
    }

    async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<StoredEvent>> {
        self.slow(self.inner.list(filter, limit)).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.slow(self.inner.count(filter)).await
    }

    async fn find(&self, id: &EventId) -> Result<Option<StoredEvent>> {
        self.slow(self.inner.find(id)).await
    }

    async fn delivery_facts(&self, id: &EventId) -> Result<DeliveryFacts> {
        self.slow(self.inner.delivery_facts(id)).await
    }

    async fn types(&self, filter: &Filter, limit: usize) -> Result<Vec<(String, u64)>> {
        self.slow(self.inner.types(filter, limit)).await
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<Replayed> {
        self.slow(self.inner.replay(filter, limit)).await
    }

    async fn cancel(&self, id: &EventId) -> Result<bool> {
        self.slow(self.inner.cancel(id)).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.slow(self.inner.stats()).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.slow(self.inner.backlog()).await
    }

    async fn oldest_due(&self) -> Result<Option<Duration>> {
        self.quick(self.inner.oldest_due()).await
    }

    async fn last_due(&self, longer_than: Duration) -> Result<Option<Cursor>> {
        self.quick(self.inner.last_due(longer_than)).await
    }

    async fn announce(&self, node: &NodeId, state: &NodeState) -> Result<bool> {
        self.quick(self.inner.announce(node, state)).await
    }

    async fn retire(&self, node: &NodeId) -> Result<()> {
        self.quick(self.inner.retire(node)).await
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        self.slow(self.inner.nodes()).await
    }

    async fn release_vanished(&self) -> Result<Vec<(NodeId, u64)>> {
        self.slow(self.inner.release_vanished()).await
    }

    fn log(&self) -> Option<&(dyn LogStore + 'static)> {
        self.inner.log().map(|_| self as &dyn LogStore)
    }

    async fn migrate(&self) -> Result<()> {
        self.within(SLOW_FACTOR, self.inner.migrate()).await
    }

    async fn check_schema(&self) -> Result<()> {
        self.quick(self.inner.check_schema()).await
    }
}
