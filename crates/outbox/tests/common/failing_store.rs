//! A store that fails on purpose, and otherwise forwards to another store.

#![allow(dead_code, missing_docs, reason = "each test binary uses its own share")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox::store::{
    AdminStore, AppendNotifier, Attempt, Audit, AuditEntry, Backlog, BlockedKeys, BoundedRead, Breakdown,
    Claim, ClusterView, Completion, Cursor, DeliveryFacts, Edit, EventMetadata, Filter, Holder,
    InsertNotifier, JoinCommand, JoinFilter, JoinMember, JoinOutcome, Leadership, LogStore, Node, NodeId,
    NodeState, Origin, Overview, Page, PageRequest, ProgressUpdate, Purge, Released, Replayed, Settled,
    Settlement, SharedStore, Stats, StatusGroup, Store, StoredEvent, StoredLogEvent, SubscriptionStore, Take,
    Taken, Unreadable, UnroutedEvents, Watermark,
};
use outbox::{
    Appended, Condition, Error, Event, EventId, Join, JoinId, Position, Query, Result, Step, SubscriptionId,
    SubscriptionState, SubscriptionStatus,
};

/// Operation of the store that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Settle,
    Take,
    Lead,
    Save,
    Read,
    Advance,
    Extend,
    Announce,
    InsertNotifier,
    Purge,
    Start,
    Listen,
}

/// Fails the first calls of one kind.
pub struct FailingStore {
    inner: SharedStore,
    at: Operation,
    /// Number of calls of that operation that succeed first.
    before: AtomicUsize,
    left: AtomicUsize,
    failed: AtomicUsize,
    calls: AtomicUsize,
    scanned: AtomicUsize,
    /// Cursor of the last window that did not begin at the start of the table.
    read_from: std::sync::Mutex<Option<Cursor>>,
    error: fn() -> Error,
    /// Duration of a read from the start of the table; a release takes six times as long.
    slow: Duration,
    /// Minimum duration of each take.
    pace: Duration,
    /// Where takes and purges wait.
    stalls: Option<[Stall; 2]>,
    /// Draws the fault of each call, if faults are random.
    rng: Option<std::sync::Mutex<rand::rngs::SmallRng>>,
}

/// Blocks the calls of an operation until they are let through.
struct Stall {
    at: Operation,
    began: tokio::sync::watch::Sender<usize>,
    gate: tokio::sync::Semaphore,
}

/// Fault of one call, drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Delayed,
    Failed,
    /// The operation is carried out, and its answer is lost.
    AnswerLost,
}

impl std::fmt::Debug for FailingStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} that fails in {:?}", self.inner, self.at)
    }
}

impl FailingStore {
    /// Fails this many settlements.
    pub fn settle(inner: SharedStore, times: usize, error: fn() -> Error) -> Arc<Self> {
        Self::new(inner, Operation::Settle, times, error)
    }

    /// Fails this many takes.
    pub fn take(inner: SharedStore, times: usize, error: fn() -> Error) -> Arc<Self> {
        Self::new(inner, Operation::Take, times, error)
    }

    /// Fails this many attempts to lead.
    pub fn lead(inner: SharedStore, times: usize, error: fn() -> Error) -> Arc<Self> {
        Self::new(inner, Operation::Lead, times, error)
    }

    /// The log of the store behind it.
    fn inner_log(&self) -> &dyn LogStore {
        self.inner.log().expect("the store behind has a log")
    }

    /// Fails this many calls of an operation.
    pub fn new(inner: SharedStore, at: Operation, times: usize, error: fn() -> Error) -> Arc<Self> {
        Arc::new(Self::made(inner, at, times, error))
    }

    /// Fails nothing, but delays reads from the start of the table by this long, and releases by
    /// six times as long.
    pub fn slow(inner: SharedStore, slow: Duration) -> Arc<Self> {
        let never = Self::made(inner, Operation::Take, 0, || Error::Store("never".into()));
        Arc::new(Self { slow, ..never })
    }

    /// Fails nothing, but delays each take by this long.
    pub fn paced(inner: SharedStore, pace: Duration) -> Arc<Self> {
        let never = Self::made(inner, Operation::Take, 0, || Error::Store("never".into()));
        Arc::new(Self { pace, ..never })
    }

    fn made(inner: SharedStore, at: Operation, times: usize, error: fn() -> Error) -> Self {
        Self {
            inner,
            at,
            before: 0.into(),
            left: times.into(),
            failed: 0.into(),
            calls: 0.into(),
            scanned: 0.into(),
            read_from: Default::default(),
            error,
            slow: Duration::ZERO,
            pace: Duration::ZERO,
            stalls: None,
            rng: None,
        }
    }

    /// Fails nothing, but blocks takes and purges until they are let through.
    pub fn stalling(inner: SharedStore) -> Arc<Self> {
        let stall = |at| Stall {
            at,
            began: tokio::sync::watch::Sender::new(0),
            gate: tokio::sync::Semaphore::new(0),
        };
        let never = Self::made(inner, Operation::Take, 0, || Error::Store("never".into()));
        Arc::new(Self { stalls: Some([stall(Operation::Take), stall(Operation::Purge)]), ..never })
    }

    fn stall(&self, at: Operation) -> Option<&Stall> {
        self.stalls.as_ref()?.iter().find(|stall| stall.at == at)
    }

    /// Number of calls that have begun, of an operation that stalls.
    pub fn began(&self, at: Operation) -> tokio::sync::watch::Receiver<usize> {
        self.stall(at).expect("this operation stalls").began.subscribe()
    }

    /// Lets calls of an operation through from now on.
    pub fn let_through(&self, at: Operation) {
        self.stall(at).expect("this operation stalls").gate.close();
    }

    async fn wait(&self, at: Operation) {
        if let Some(stall) = self.stall(at) {
            stall.began.send_modify(|began| *began += 1);
            let _ = stall.gate.acquire().await;
        }
    }

    /// Draws faults at random: takes and settlements are delayed, fail, or settle and lose the
    /// answer. Each fault looks like a database that is unavailable for a moment.
    pub fn random_faults(inner: SharedStore, seed: u64) -> Arc<Self> {
        let never = Self::made(inner, Operation::Take, 0, || sqlx::Error::PoolTimedOut.into());
        let rng = rand::SeedableRng::seed_from_u64(seed);
        Arc::new(Self { rng: Some(std::sync::Mutex::new(rng)), ..never })
    }

    /// Draws the fault of a call, and waits if the call is delayed.
    async fn fault(&self) -> Fault {
        let Some(rng) = &self.rng else { return Fault::None };
        let drawn = rand::Rng::random_range(&mut *rng.lock().unwrap(), 0..10);
        let fault = match drawn {
            0 => Fault::Failed,
            1 => Fault::AnswerLost,
            2 | 3 => Fault::Delayed,
            _ => Fault::None,
        };
        if fault == Fault::Delayed {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        fault
    }

    /// Lets this many calls of the operation through before any fails.
    pub fn after(&self, calls: usize) {
        self.before.store(calls, Ordering::SeqCst);
    }

    /// Fails nothing from now on.
    pub fn heal(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    /// Fails nothing, and only counts calls.
    pub fn never(inner: SharedStore) -> Arc<Self> {
        Self::settle(inner, 0, || Error::Store("never".into()))
    }

    /// Number of takes, settlements and extensions since the last call of this function.
    pub fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::SeqCst)
    }

    /// Number of rows that were scanned since the last call of this function.
    pub fn scanned(&self) -> usize {
        self.scanned.swap(0, Ordering::SeqCst)
    }

    /// Cursor of the last window that did not begin at the start of the table.
    pub fn read_from(&self) -> Option<Cursor> {
        *self.read_from.lock().unwrap()
    }

    /// Number of calls that have failed.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }

    fn fail(&self, at: Operation) -> Result<()> {
        let count_down = |count: &AtomicUsize| {
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        };
        let fails = at == self.at && !count_down(&self.before) && count_down(&self.left);
        if fails {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err((self.error)());
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Store for FailingStore {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn insert(&self, events: &[Event]) -> Result<Vec<EventId>> {
        self.inner.insert(events).await
    }

    async fn take(&self, take: &Take) -> Result<Taken> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.wait(Operation::Take).await;
        self.fail(Operation::Take)?;
        // A claim whose answer is lost has to expire first, which takes longer than a test.
        if self.fault().await == Fault::Failed {
            return Err((self.error)());
        }
        if let Origin::After(cursor) = take.from {
            *self.read_from.lock().unwrap() = Some(cursor);
        }
        if take.from == Origin::Start {
            tokio::time::sleep(self.slow).await;
        }
        if !self.pace.is_zero() {
            tokio::time::sleep(self.pace).await;
        }
        let taken = self.inner.take(take).await?;
        self.scanned.fetch_add(taken.scanned, Ordering::SeqCst);
        Ok(taken)
    }

    async fn settle(
        &self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.fail(Operation::Settle)?;
        if settlements.iter().any(|settlement| settlement.verdict.is_release()) {
            tokio::time::sleep(6 * self.slow).await;
        }
        match self.fault().await {
            Fault::Failed => Err((self.error)()),
            Fault::AnswerLost => {
                self.inner.settle(by, completion, settlements).await?;
                Err((self.error)())
            }
            Fault::None | Fault::Delayed => self.inner.settle(by, completion, settlements).await,
        }
    }

    async fn extend(
        &self,
        owner: &NodeId,
        lease: Duration,
        held: &[(EventId, Claim)],
    ) -> Result<Vec<EventId>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.fail(Operation::Extend)?;
        self.inner.extend(owner, lease, held).await
    }

    async fn order_by_aggregate(&self) -> Result<u64> {
        self.inner.order_by_aggregate().await
    }

    async fn reap(&self) -> Result<u64> {
        self.inner.reap().await
    }

    async fn count_start(&self, by: &Holder, id: &EventId, claim: Claim) -> Result<Option<u32>> {
        self.fail(Operation::Start)?;
        self.inner.count_start(by, id, claim).await
    }

    async fn lead(&self, name: &str, holder: &NodeId, ttl: Duration) -> Result<Leadership> {
        self.fail(Operation::Lead)?;
        self.inner.lead(name, holder, ttl).await
    }

    async fn resign(&self, name: &str, holder: &NodeId, epoch: i64, clean: bool) -> Result<()> {
        self.inner.resign(name, holder, epoch, clean).await
    }

    async fn leader(&self, name: &str) -> Result<Option<NodeId>> {
        self.inner.leader(name).await
    }

    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.inner.purge_inbox(older_than, limit).await
    }

    async fn purge(&self, purge: Purge) -> Result<u64> {
        self.wait(Operation::Purge).await;
        self.fail(Operation::Purge)?;
        self.inner.purge(purge).await
    }

    async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<StoredEvent>> {
        self.inner.list(filter, limit).await
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        self.inner.count(filter).await
    }

    async fn find(&self, id: &EventId) -> Result<Option<StoredEvent>> {
        self.inner.find(id).await
    }

    async fn delivery_facts(&self, id: &EventId) -> Result<DeliveryFacts> {
        self.inner.delivery_facts(id).await
    }

    async fn types(&self, filter: &Filter, limit: usize) -> Result<Vec<(String, u64)>> {
        self.inner.types(filter, limit).await
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<Replayed> {
        self.inner.replay(filter, limit).await
    }

    async fn cancel(&self, id: &EventId) -> Result<bool> {
        self.inner.cancel(id).await
    }

    async fn stats(&self) -> Result<Stats> {
        self.inner.stats().await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.inner.backlog().await
    }

    async fn join(&self, act: &JoinCommand) -> Result<JoinOutcome> {
        self.inner.join(act).await
    }

    async fn joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>> {
        self.inner.joins(filter, limit).await
    }

    async fn steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>> {
        self.inner.steps(join, after, limit).await
    }

    async fn member(&self, join: &JoinId, step: &EventId) -> Result<Option<JoinMember>> {
        self.inner.member(join, step).await
    }

    async fn purge_joins(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.inner.purge_joins(older_than, limit).await
    }

    async fn oldest_due(&self) -> Result<Option<Duration>> {
        self.inner.oldest_due().await
    }

    async fn last_due(&self, longer_than: Duration) -> Result<Option<Cursor>> {
        self.inner.last_due(longer_than).await
    }

    async fn announce(&self, node: &NodeId, state: &NodeState) -> Result<bool> {
        self.fail(Operation::Announce)?;
        self.inner.announce(node, state).await
    }

    async fn retire(&self, node: &NodeId) -> Result<()> {
        self.inner.retire(node).await
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        self.inner.nodes().await
    }

    async fn release_vanished(&self) -> Result<Vec<(NodeId, u64)>> {
        self.inner.release_vanished().await
    }

    async fn watch(&self) -> Result<Option<Box<dyn InsertNotifier>>> {
        self.fail(Operation::InsertNotifier)?;
        self.inner.watch().await
    }

    async fn listen(&self) -> Result<Option<Box<dyn AppendNotifier>>> {
        self.fail(Operation::Listen)?;
        self.inner.listen().await
    }

    fn log(&self) -> Option<&(dyn LogStore + 'static)> {
        Some(self)
    }

    async fn migrate(&self) -> Result<()> {
        self.inner.migrate().await
    }

    async fn check_schema(&self) -> Result<()> {
        self.inner.check_schema().await
    }
}

#[async_trait::async_trait]
impl AdminStore for FailingStore {
    async fn page(&self, ask: &PageRequest) -> Result<Page> {
        self.inner.page(ask).await
    }

    async fn metadata(&self, id: &EventId) -> Result<Option<EventMetadata>> {
        self.inner.metadata(id).await
    }

    async fn metadata_at(&self, seq: i64) -> Result<Option<EventMetadata>> {
        self.inner.metadata_at(seq).await
    }

    async fn overview(&self, most: u64) -> Result<Overview> {
        self.inner.overview(most).await
    }

    async fn breakdown(&self, status_group: StatusGroup, scan_limit: usize) -> Result<Breakdown> {
        self.inner.breakdown(status_group, scan_limit).await
    }

    async fn unrouted(&self, scan_limit: usize) -> Result<UnroutedEvents> {
        self.inner.unrouted(scan_limit).await
    }

    async fn attempts(&self, id: &EventId, limit: usize) -> Result<Vec<Attempt>> {
        self.inner.attempts(id, limit).await
    }

    async fn purge_attempts(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.inner.purge_attempts(older_than, limit).await
    }

    async fn blocked_keys(&self, scan_limit: usize, limit: usize) -> Result<BlockedKeys> {
        self.inner.blocked_keys(scan_limit, limit).await
    }

    async fn skip(&self, id: &EventId, by: &NodeId) -> Result<bool> {
        self.inner.skip(id, by).await
    }

    async fn edit(&self, id: &EventId, edit: &Edit) -> Result<bool> {
        self.inner.edit(id, edit).await
    }

    async fn release_node(&self, node: &NodeId) -> Result<Released> {
        self.inner.release_node(node).await
    }

    async fn audit(&self, entry: &AuditEntry) -> Result<i64> {
        self.inner.audit(entry).await
    }

    async fn finish_audit(&self, id: i64, outcome: &str, count: Option<u64>) -> Result<()> {
        self.inner.finish_audit(id, outcome, count).await
    }

    async fn purge_audits(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.inner.purge_audits(older_than, limit).await
    }

    async fn audits(&self, before: Option<i64>, limit: usize) -> Result<Vec<Audit>> {
        self.inner.audits(before, limit).await
    }
}

#[async_trait::async_trait]
impl LogStore for FailingStore {
    async fn append(&self, events: &[Event], condition: &Condition) -> Result<Appended> {
        self.inner_log().append(events, condition).await
    }

    async fn read(
        &self,
        query: &Query,
        after: Position,
        upto: Option<Position>,
        limit: usize,
    ) -> Result<Vec<StoredLogEvent>> {
        self.fail(Operation::Read)?;
        self.inner_log().read(query, after, upto, limit).await
    }

    async fn read_bounded(
        &self,
        after: Position,
        upto: Position,
        limit: usize,
        max_bytes: usize,
    ) -> Result<BoundedRead> {
        self.fail(Operation::Read)?;
        self.inner_log().read_bounded(after, upto, limit, max_bytes).await
    }

    async fn note_unreadable(&self, position: Position, reason: &str) -> Result<bool> {
        self.inner_log().note_unreadable(position, reason).await
    }

    async fn unreadable(&self, limit: usize) -> Result<Vec<Unreadable>> {
        self.inner_log().unreadable(limit).await
    }

    async fn purge_log(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.inner_log().purge_log(older_than, limit).await
    }

    async fn settled(&self, query: &Query) -> Result<Position> {
        self.inner_log().settled(query).await
    }

    async fn advance(&self, watermark: &mut Watermark) -> Result<()> {
        self.fail(Operation::Advance)?;
        self.inner_log().advance(watermark).await
    }

    async fn stored_watermark(&self) -> Result<Position> {
        self.inner_log().stored_watermark().await
    }

    async fn store_watermark(&self, safe: Position) -> Result<()> {
        self.inner_log().store_watermark(safe).await
    }

    async fn head(&self) -> Result<Position> {
        self.inner_log().head().await
    }

    async fn position_at(&self, time: chrono::DateTime<chrono::Utc>) -> Result<Position> {
        self.inner_log().position_at(time).await
    }
}

#[async_trait::async_trait]
impl SubscriptionStore for FailingStore {
    async fn register(&self, subscriptions: &[(SubscriptionId, bool)]) -> Result<()> {
        self.inner_log().register(subscriptions).await
    }

    async fn tend(&self, node: &NodeId, ttl: Duration) -> Result<ClusterView> {
        self.fail(Operation::Lead)?;
        self.inner_log().tend(node, ttl).await
    }

    async fn subscriptions(&self) -> Result<Vec<SubscriptionState>> {
        self.inner_log().subscriptions().await
    }

    async fn claim(
        &self,
        node: &NodeId,
        ttl: Duration,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<SubscriptionState>> {
        self.inner_log().claim(node, ttl, subscriptions).await
    }

    async fn save(&self, node: &NodeId, moves: &[ProgressUpdate]) -> Result<Vec<SubscriptionId>> {
        self.fail(Operation::Save)?;
        self.inner_log().save(node, moves).await
    }

    async fn release(&self, node: &NodeId, subscriptions: &[(SubscriptionId, i64)]) -> Result<()> {
        self.inner_log().release(node, subscriptions).await
    }

    async fn leave(&self, node: &NodeId) -> Result<()> {
        self.inner_log().leave(node).await
    }

    async fn set_status(
        &self,
        publisher: &str,
        topic: Option<&str>,
        status: SubscriptionStatus,
    ) -> Result<u64> {
        self.inner_log().set_status(publisher, topic, status).await
    }

    async fn reset(&self, subscription: &SubscriptionId, position: Position) -> Result<bool> {
        self.inner_log().reset(subscription, position).await
    }
}
