//! The work queue: the event table as a queue from which any process claims items, without a relay.
//!
//! It only uses the [store](crate::store): a relay on the same table takes events by the same
//! leases.

mod claim;
mod id;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

pub use id::{WorkItemId, WorkItemIdError};

use crate::error::{Error, Result};
use crate::escape::Escaped;
use crate::event::Event;
use crate::handler::{Failure, Outcome};
use crate::relay::hot::HotPath;
use crate::retry::{Backoff, RetryPolicy, decide};
use crate::store::{Completion, Delivery, Holder, NodeId, OnDead, Settled, Settlement, SharedStore, Verdict};

/// Maximum number of ids per call of the store; a longer list takes several calls.
const CHUNK: usize = 1_000;

/// The event table as a work queue: claim items for a time, work, and settle each item.
///
/// For processes that claim work at their own pace, where a [`Relay`](crate::Relay) would call
/// their handlers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # use std::time::Duration;
/// # use outbox::{Event, NodeId, Outbox, WorkItem};
/// # async fn work(_: &WorkItem) -> Result<(), std::fmt::Error> { Ok(()) }
/// # let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// outbox.send(Event::new("email.send").json(&"ada@example.org")).await?;
///
/// let queue = outbox.queue();                       // or WorkQueue::new(store)
/// let me = NodeId::generate();
/// for item in queue.claim(&me, Duration::from_secs(30), 50).await? {
///     match work(&item).await {                     // an item reads like its event
///         Ok(()) => queue.ack(&me, [item.id()]).await?,
///         Err(e) => queue.abandon(&me, [item.id()], &e).await?,      // back after a pause; dead after 10 attempts
///     };
/// }
/// # assert_eq!(outbox.admin().stats().await?.done, 1);
/// # Ok(()) }
/// ```
///
/// # Guarantees
///
/// - **An item has one owner at a time**, by the database's clock. The next claim takes over an
///   expired lease by itself; [`extend`](WorkQueue::extend) renews a lease.
/// - **Only the newest claim counts.** An owner that was too slow changes nothing any more, even if
///   the newer claim is its own. Each call returns how many items it took effect on, and silently
///   skips ids that are unknown, of another owner, of an older claim, or repeated. Until the item
///   is claimed again, its owner may settle it even after its lease has expired.
/// - **Delivery is at least once.** If a worker dies between its work and its ack, the item is
///   claimed again. [`message`](WorkItemId::message) is the key for deduplication; see
///   [`once`](crate::Tx::once).
/// - **Order per key**: an item is not claimed while an earlier one of its
///   [`ordering_key`](crate::EventBuilder::ordering_key) is leased, waits for its retry, or is dead
///   (see [`on_dead`](WorkQueue::on_dead)). One claim may hold several items of a key, in their
///   order: work on them one after another, and [`release`](WorkQueue::release) the rest of a key
///   when one was not done.
/// - **An item that crashes its workers is dead-lettered.** An item whose owner vanished may be the
///   cause, so its claims are counted; after three such claims without a settlement it is
///   dead-lettered. The items of a lost batch may be claimed together once; after that a claim
///   holds at most one such item.
///
/// Each call is one transaction for up to 1,000 ids, and takes this number of round trips to the
/// server, however many ids there are:
///
/// | call | PostgreSQL | MySQL, MariaDB |
/// | --- | --- | --- |
/// | `ack`, `release`, `extend` | 1 | 1 |
/// | `abandon`, `fail` | 1 | 4 |
/// | `claim` | 4; 3 if nothing is due | 4; 3 if nothing is due |
/// | `claim` of items with ordering keys | 5 | 5 |
/// | `reap_expired` | 1 | 1 |
///
/// This applies to a connection that was used within the last second; a connection that was idle
/// for longer is first tested. A claim that goes past blocked or suspect items takes as many again
/// for each window, and settling steps of a [join](crate::Joins) is a short transaction of up to
/// ten statements. A failed call may be repeated: a settlement takes effect only once. While a
/// `single_node` relay runs on the table, it holds the whole table, and nothing can be claimed;
/// this is logged once.
#[derive(Clone)]
pub struct WorkQueue {
    store: SharedStore,
    retry: Arc<dyn RetryPolicy>,
    completion: Completion,
    on_dead: OnDead,
    holder_check: Arc<claim::HolderCheck>,
    /// Wakes the relay of this process, if there is one: it delivers the events that settling an
    /// item writes.
    door: HotPath,
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue")
            .field("store", &self.store)
            .field("retry", &self.retry)
            .field("completion", &self.completion)
            .field("on_dead", &self.on_dead)
            .finish()
    }
}

/// A claimed item. Reads like its [`Event`].
#[derive(Clone, Debug)]
pub struct WorkItem {
    id: WorkItemId,
    event: Event,
    seq: Option<i64>,
    created_at: Option<DateTime<Utc>>,
    last_error: Option<String>,
}

impl WorkItem {
    fn new(delivery: Delivery) -> Self {
        let id = WorkItemId::new(delivery.event.id().clone(), delivery.claim, delivery.attempts);
        let Delivery { event, seq, created_at, last_error, .. } = delivery;
        Self { id, event, seq, created_at, last_error }
    }

    /// This claim of the message, to settle it with. The message's own id is
    /// [`message`](WorkItemId::message).
    pub fn id(&self) -> &WorkItemId {
        &self.id
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.id.attempts() + 1
    }

    /// Sequence number in the table.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// When the database stored it, by the database's clock.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }

    /// Error of the last [`abandon`](WorkQueue::abandon); `None` if it was not abandoned.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use std::time::Duration;
    /// # use outbox::{Backoff, Event, NodeId, Outbox};
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// # let me = NodeId::generate();
    /// # let minute = Duration::from_secs(60);
    /// outbox.send(Event::new("email.send").json(&"ada@example.org")).await?;
    /// let queue = outbox.queue();
    /// let item = queue.claim(&me, minute, 1).await?.remove(0);
    /// assert_eq!(item.last_error(), None);
    /// queue.abandon_after(&me, [item.id()], Duration::ZERO, "no answer").await?;
    /// assert_eq!(queue.claim(&me, minute, 1).await?[0].last_error(), Some("no answer"));
    /// # Ok(()) }
    /// ```
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

impl Deref for WorkItem {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

impl WorkQueue {
    /// Maximum lease: a year.
    pub const MAX_LEASE: Duration = Duration::from_secs(365 * 86_400);

    /// Maximum batch of [`claim`](WorkQueue::claim). 1 to 100 perform best.
    pub const MAX_BATCH: usize = 10_000;

    /// A queue on a store, without an outbox. See [`Outbox::queue`](crate::Outbox::queue).
    pub fn new(store: SharedStore) -> Self {
        Self {
            store,
            retry: Arc::new(Backoff::powers_of_two()),
            completion: Completion::Keep,
            on_dead: OnDead::Hold,
            holder_check: Arc::default(),
            door: HotPath::default(),
        }
    }

    /// Wakes the relay of this hot path when events are written.
    pub(crate) fn waking(mut self, door: HotPath) -> Self {
        self.door = door;
        self
    }

    /// Wakes the relay of this process if a settlement wrote events: follow-ups of joins.
    fn wake_if(&self, wrote: bool) {
        if let Some(engine) = self.door.engine().filter(|_| wrote) {
            engine.wake.notify_one();
        }
    }

    /// When abandoned items are retried, and when they are dead-lettered;
    /// [`Backoff::powers_of_two`] if not set, with ten attempts.
    #[must_use]
    pub fn retry(mut self, retry: impl RetryPolicy) -> Self {
        self.retry = Arc::new(retry);
        self
    }

    /// Whether done items are kept or deleted; they are kept until purged if not set.
    #[must_use]
    pub fn completion(mut self, completion: Completion) -> Self {
        self.completion = completion;
        self
    }

    /// Whether the later items of a dead item's key wait; they do if not set.
    #[must_use]
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// Claims up to `batch` due items, oldest first, for the duration of the lease. Empty if there
    /// are none.
    ///
    /// The owner is the name of a process, or of a worker in it. No two may share one. An item past
    /// its [`expires_at`](crate::EventBuilder::expires_at) and an undecodable item are
    /// dead-lettered, and not returned.
    ///
    /// A claim that is dropped half way may leave items leased until their lease expires.
    pub async fn claim(&self, owner: &NodeId, lease: Duration, batch: usize) -> Result<Vec<WorkItem>> {
        check_owner(owner)?;
        check_lease(lease)?;
        if batch == 0 || batch > Self::MAX_BATCH {
            return Err(Error::setting(format!("batch is {batch}: use 1 to {}", Self::MAX_BATCH)));
        }
        let items = self.fill(owner, lease, batch).await?;
        tracing::debug!(store = self.store.name(), %owner, count = items.len(), "claimed work items");
        Ok(items)
    }

    /// Marks items as done. Returns how many took effect.
    pub async fn ack(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
    ) -> Result<u64> {
        self.settle(owner, newest(ids), |_| Verdict::Done).await
    }

    /// Reports items as failed. They are retried as the [retry policy](WorkQueue::retry) decides,
    /// or dead-lettered when it gives up. Counts as an attempt, and the error is stored. Returns
    /// how many took effect.
    pub async fn abandon(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
        error: impl fmt::Display,
    ) -> Result<u64> {
        self.again(owner, newest(ids), Failure::retry(error)).await
    }

    /// Reports items as failed, to be retried after this delay. Counts as an attempt, like
    /// [`abandon`](WorkQueue::abandon).
    pub async fn abandon_after(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
        delay: Duration,
        error: impl fmt::Display,
    ) -> Result<u64> {
        self.again(owner, newest(ids), Failure::retry_after(delay, error)).await
    }

    /// Dead-letters items: they are not claimed again, unless they are
    /// [replayed](crate::Admin::replay). Returns how many took effect.
    pub async fn fail(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
        error: impl fmt::Display,
    ) -> Result<u64> {
        let reason = error.to_string();
        self.settle(owner, newest(ids), |_| Verdict::Dead { counted: false, reason: reason.clone() }).await
    }

    /// Releases items unchanged, so that they can be claimed immediately. Not an attempt. Returns
    /// how many took effect.
    pub async fn release(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
    ) -> Result<u64> {
        self.settle(owner, newest(ids), |_| Verdict::Released).await
    }

    /// Renews leases for this long from now. Returns the items that are still held: stop working on
    /// the others.
    ///
    /// Renew at a third of the lease, for as long as the work takes.
    pub async fn extend(
        &self,
        owner: &NodeId,
        lease: Duration,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
    ) -> Result<Vec<WorkItemId>> {
        check_lease(lease)?;
        let mut held = Vec::new();
        for some in newest(ids).chunks(CHUNK) {
            let claims: Vec<_> = some.iter().map(|id| (id.message().clone(), id.claim())).collect();
            let kept = self.store.extend(owner, lease, &claims).await?;
            let kept: std::collections::HashSet<_> = kept.iter().collect();
            held.extend(some.iter().filter(|id| kept.contains(id.message())).cloned());
        }
        Ok(held)
    }

    /// Clears the leases of items whose lease has expired, so that they show as free. Returns how
    /// many.
    ///
    /// Optional: [`claim`](WorkQueue::claim) takes such items over by itself.
    pub async fn reap_expired(&self) -> Result<u64> {
        let count = self.store.reap().await?;
        if count > 0 {
            tracing::info!(store = self.store.name(), count, "freed work items whose lease had run out");
        }
        Ok(count)
    }

    async fn again(&self, owner: &NodeId, ids: Vec<WorkItemId>, failure: Failure) -> Result<u64> {
        self.settle(owner, ids, |id| {
            let failed: Result<Outcome, Failure> = Err(failure.clone());
            decide(failed, id.attempts(), &*self.retry, rand::random())
        })
        .await
    }

    /// Writes verdicts on items, in chunks of a suitable size for the database.
    async fn settle(
        &self,
        owner: &NodeId,
        ids: Vec<WorkItemId>,
        verdict: impl Fn(&WorkItemId) -> Verdict + Send,
    ) -> Result<u64> {
        let by = Holder::Lease { owner: owner.clone(), lease: Duration::ZERO };
        let mut total = 0;
        for some in ids.chunks(CHUNK) {
            let settlements: Vec<Settlement> = some
                .iter()
                .map(|id| Settlement { id: id.message().clone(), claim: id.claim(), verdict: verdict(id) })
                .collect();
            let Settled { moved, wrote } = self.store.settle(&by, self.completion, &settlements).await?;
            self.wake_if(wrote);
            self.report(owner, &settlements, moved);
            total += moved;
        }
        Ok(total)
    }

    fn report(&self, owner: &NodeId, settlements: &[Settlement], settled: u64) {
        let store = self.store.name();
        let stale = (settlements.len() as u64).saturating_sub(settled);
        if stale > 0 {
            tracing::debug!(store, %owner, stale, "work items not settled: their claims are stale");
        }
        if settled == 0 {
            return;
        }
        let dead = |s: &&Settlement| matches!(s.verdict, Verdict::Dead { .. });
        if stale > 0 {
            // It is unknown which of them took effect.
            let dead = settlements.iter().filter(dead).count();
            if dead > 0 {
                tracing::error!(store, %owner, at_most = dead, "work items are dead");
            }
            return;
        }
        for Settlement { id, verdict, .. } in settlements {
            match verdict {
                Verdict::Dead { reason, .. } => {
                    tracing::error!(store, %owner, event = %Escaped(id), reason, "event is dead");
                }
                Verdict::Again { after, error, .. } => {
                    tracing::warn!(store, %owner, event = %Escaped(id), retry_in = ?after, error, "work item was abandoned");
                }
                Verdict::Done | Verdict::Released | Verdict::ReleasedSuspect => {}
            }
        }
    }
}

/// Each message once, under its newest claim: older claims are stale.
fn newest(ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>) -> Vec<WorkItemId> {
    let mut newest: Vec<WorkItemId> = Vec::new();
    let mut indexes = HashMap::new();
    for id in ids {
        let id: &WorkItemId = id.borrow();
        let index = *indexes.entry(id.message().clone()).or_insert(newest.len());
        match newest.get_mut(index) {
            Some(other) if other.claim() >= id.claim() => {}
            Some(other) => *other = id.clone(),
            None => newest.push(id.clone()),
        }
    }
    newest
}

fn check_owner(owner: &NodeId) -> Result<()> {
    let name = owner.as_str();
    if name.is_empty() || name.chars().count() > 100 || name.chars().any(char::is_control) {
        let rule =
            "the owner must have 1 to 100 characters and no control characters: use NodeId::generate()";
        return Err(Error::setting(rule));
    }
    Ok(())
}

fn check_lease(lease: Duration) -> Result<()> {
    if lease.is_zero() || lease > WorkQueue::MAX_LEASE {
        return Err(Error::setting(format!("lease is {lease:?}: use more than 0 and at most a year")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventId;

    #[test]
    fn a_list_keeps_each_message_once_under_its_newest_claim() {
        let id = |message: &str, claim| WorkItemId::new(EventId::from(message), claim, 0);
        let ids = [id("a", 1), id("b", 2), id("a", 3), id("b", 1), id("b", 2)];
        assert_eq!(newest(&ids), [id("a", 3), id("b", 2)]);
        assert_eq!(newest(Vec::<WorkItemId>::new()), []);
    }
}
