//! The log of a fleet's store, within the same limits.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::guarded::GuardedStore;
use crate::error::Result;
use crate::event::Event;
use crate::log::{
    Appended, BoundedRead, ClusterView, Condition, LogStore, OpenAppend, Position, ProgressUpdate, Query,
    StoredLogEvent, SubscriptionId, SubscriptionState, SubscriptionStatus, SubscriptionStore, Unreadable,
    Watermark, log_of,
};
use crate::store::NodeId;

impl GuardedStore {
    fn inner_log(&self) -> Result<&dyn LogStore> {
        log_of(&*self.inner)
    }
}

/// Appends and decisions wait for other transactions, so they may take long.
#[async_trait]
impl LogStore for GuardedStore {
    async fn append(&self, events: &[Event], condition: &Condition) -> Result<Appended> {
        self.slow(self.inner_log()?.append(events, condition)).await
    }

    async fn read(
        &self,
        query: &Query,
        after: Position,
        upto: Option<Position>,
        limit: usize,
    ) -> Result<Vec<StoredLogEvent>> {
        self.quick(self.inner_log()?.read(query, after, upto, limit)).await
    }

    async fn read_bounded(
        &self,
        after: Position,
        upto: Position,
        limit: usize,
        max_bytes: usize,
    ) -> Result<BoundedRead> {
        self.quick(self.inner_log()?.read_bounded(after, upto, limit, max_bytes)).await
    }

    async fn note_unreadable(&self, position: Position, reason: &str) -> Result<bool> {
        self.quick(self.inner_log()?.note_unreadable(position, reason)).await
    }

    async fn unreadable(&self, limit: usize) -> Result<Vec<Unreadable>> {
        self.quick(self.inner_log()?.unreadable(limit)).await
    }

    async fn purge_log(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.slow(self.inner_log()?.purge_log(older_than, limit)).await
    }

    async fn waiting(&self) -> Result<Vec<(SubscriptionId, OpenAppend)>> {
        self.quick(self.inner_log()?.waiting()).await
    }

    async fn settled(&self, query: &Query) -> Result<Position> {
        self.slow(self.inner_log()?.settled(query)).await
    }

    async fn advance(&self, watermark: &mut Watermark) -> Result<()> {
        self.quick(self.inner_log()?.advance(watermark)).await
    }

    async fn stored_watermark(&self) -> Result<Position> {
        self.quick(self.inner_log()?.stored_watermark()).await
    }

    async fn store_watermark(&self, safe: Position) -> Result<()> {
        self.quick(self.inner_log()?.store_watermark(safe)).await
    }

    async fn head(&self) -> Result<Position> {
        self.quick(self.inner_log()?.head()).await
    }

    async fn position_at(&self, time: DateTime<Utc>) -> Result<Position> {
        self.slow(self.inner_log()?.position_at(time)).await
    }
}

#[async_trait]
impl SubscriptionStore for GuardedStore {
    async fn register(&self, subscriptions: &[(SubscriptionId, bool)]) -> Result<()> {
        self.quick(self.inner_log()?.register(subscriptions)).await
    }

    async fn tend(&self, node: &NodeId, ttl: Duration) -> Result<ClusterView> {
        self.quick(self.inner_log()?.tend(node, ttl)).await
    }

    async fn subscriptions(&self) -> Result<Vec<SubscriptionState>> {
        self.quick(self.inner_log()?.subscriptions()).await
    }

    async fn claim(
        &self,
        node: &NodeId,
        ttl: Duration,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<SubscriptionState>> {
        self.quick(self.inner_log()?.claim(node, ttl, subscriptions)).await
    }

    async fn save(&self, node: &NodeId, moves: &[ProgressUpdate]) -> Result<Vec<SubscriptionId>> {
        self.quick(self.inner_log()?.save(node, moves)).await
    }

    async fn release(&self, node: &NodeId, subscriptions: &[(SubscriptionId, i64)]) -> Result<()> {
        self.quick(self.inner_log()?.release(node, subscriptions)).await
    }

    async fn leave(&self, node: &NodeId) -> Result<()> {
        self.quick(self.inner_log()?.leave(node)).await
    }

    async fn set_status(
        &self,
        publisher: &str,
        topic: Option<&str>,
        status: SubscriptionStatus,
    ) -> Result<u64> {
        self.slow(self.inner_log()?.set_status(publisher, topic, status)).await
    }

    async fn reset(&self, subscription: &SubscriptionId, position: Position) -> Result<bool> {
        self.slow(self.inner_log()?.reset(subscription, position)).await
    }
}
