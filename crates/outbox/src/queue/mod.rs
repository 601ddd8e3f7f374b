//! The work queue: the table of events as a queue that any process may take from, without a relay.
//!
//! It is a face of the [store](crate::store) and nothing more: a relay on the same table takes by the same leases.

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
use crate::relay::hot::HotDoor;
use crate::retry::{Backoff, RetryPolicy, decide};
use crate::store::{Completion, Delivery, Holder, NodeId, OnDead, Settled, Settlement, SharedStore, Verdict};

/// How many ids go to the database in one call; a longer list takes several.
const CHUNK: usize = 1_000;

/// The table of events as a work queue: claim items for a time, work, and say what became of each.
///
/// For processes that want to take work at their own pace, where a [`Relay`](crate::Relay) would call their handlers.
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
/// # What holds
///
/// - **An item has one owner at a time**, by the database's clock. A lease that runs out is taken over by the next
///   claim, without anybody reaping; [`extend`](WorkQueue::extend) keeps it.
/// - **Only the newest claim counts.** Whoever was too slow changes nothing any more, also if it was the same owner. The
///   answers tell: each call returns how many items it took effect on, and silently passes over ids that are unknown,
///   another's, of an older claim, or named twice. Until somebody else has claimed the item, its owner may settle it
///   even after its lease.
/// - **Nothing is done exactly once.** A worker that dies between its work and its ack leaves the item to the next one.
///   [`message`](WorkItemId::message) is the key for doing things once; see [`once`](crate::Outbox::once).
/// - **Order per key**: an item is not claimed while an earlier one of its
///   [`ordering_key`](crate::EventBuilder::ordering_key) is out, waits for its retry, or is dead (see
///   [`on_dead`](WorkQueue::on_dead)). One claim may hold several of a key, in their order: work on those one after
///   another, and [`release`](WorkQueue::release) the rest of a key when one was not done.
/// - **An item that kills its workers is dead in the end.** An item whose owner vanished may be the reason, so it is counted
///   when it is claimed; after three such claims without an end it is dead. The items of a lost batch may come together once;
///   after that a claim holds at most one such item.
///
/// Each call is one transaction for up to 1,000 ids, and takes this many round trips to the server, however many ids there
/// are:
///
/// | call | PostgreSQL | MySQL, MariaDB |
/// | --- | --- | --- |
/// | `ack`, `release`, `extend` | 1 | 1 |
/// | `abandon`, `fail` | 1 | 4 |
/// | `claim` | 4; 3 if nothing is due | 4; 3 if nothing is due |
/// | `claim` of items with ordering keys | 5 | 5 |
/// | `reap_expired` | 1 | 1 |
///
/// That is on a connection that was in use within the last second; one that was idle for longer is asked first whether it is
/// alive. A claim that goes past blocked or suspect items takes as many again for each window, and settling steps of a
/// [join](crate::Joins) is a short transaction of up to ten statements. A call that failed may be made again: what took effect does
/// not do so twice. While a `single_node` relay runs on the table it holds all of it, and nothing can be
/// claimed; that is logged once.
#[derive(Clone)]
pub struct WorkQueue {
    store: SharedStore,
    retry: Arc<dyn RetryPolicy>,
    completion: Completion,
    on_dead: OnDead,
    lookout: Arc<claim::Lookout>,
    /// The relay of this process, if there is one: it delivers what settling an item writes.
    door: HotDoor,
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

/// An item that was claimed. Reads like its [`Event`].
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

    /// This claim of the message, to settle it with. The message's own id is [`message`](WorkItemId::message).
    pub fn id(&self) -> &WorkItemId {
        &self.id
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.id.attempts() + 1
    }

    /// Its place in the table.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// When the database stored it, by the database's clock.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }

    /// Why it was [abandoned](WorkQueue::abandon) last; `None` if it was not.
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
    /// The longest lease: a year.
    pub const MAX_LEASE: Duration = Duration::from_secs(365 * 86_400);

    /// The largest batch that [`claim`](WorkQueue::claim) takes. 1 to 100 do best.
    pub const MAX_BATCH: usize = 10_000;

    /// A queue on a store alone. See [`Outbox::queue`](crate::Outbox::queue).
    pub fn new(store: SharedStore) -> Self {
        Self {
            store,
            retry: Arc::new(Backoff::powers_of_two()),
            completion: Completion::Keep,
            on_dead: OnDead::Hold,
            lookout: Arc::default(),
            door: HotDoor::default(),
        }
    }

    /// Wakes the relay behind this door when events are written.
    pub(crate) fn waking(mut self, door: HotDoor) -> Self {
        self.door = door;
        self
    }

    /// Has the relay of this process look, if events were written by a settlement: what follows a join.
    fn wake_if(&self, wrote: bool) {
        if let Some(engine) = self.door.engine().filter(|_| wrote) {
            engine.wake.notify_one();
        }
    }

    /// When abandoned items come back, and when they are given up; [`Backoff::powers_of_two`] if not set, with ten
    /// attempts.
    #[must_use]
    pub fn retry(mut self, retry: impl RetryPolicy) -> Self {
        self.retry = Arc::new(retry);
        self
    }

    /// What happens to items that are done; they are kept until purged if not set.
    #[must_use]
    pub fn completion(mut self, completion: Completion) -> Self {
        self.completion = completion;
        self
    }

    /// What a dead item does to the later ones of its key; they wait if not set.
    #[must_use]
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// Claims up to `batch` items that are due, oldest first, for the time of the lease. Empty if there are none.
    ///
    /// The owner is whoever works: the name of a process, or of a worker in it. No two may share one. An item past its
    /// [`expires_at`](crate::EventBuilder::expires_at) and one that cannot be decoded are dead, and not handed out.
    ///
    /// A claim that is dropped half way may leave items leased until their lease runs out.
    pub async fn claim(&self, owner: &NodeId, lease: Duration, batch: usize) -> Result<Vec<WorkItem>> {
        check_owner(owner)?;
        check_lease(lease)?;
        if batch == 0 || batch > Self::MAX_BATCH {
            return Err(Error::Setting(format!("batch is {batch}: use 1 to {}", Self::MAX_BATCH)));
        }
        let items = self.fill(owner, lease, batch).await?;
        tracing::debug!(store = self.store.name(), %owner, count = items.len(), "claimed work items");
        Ok(items)
    }

    /// The items are done. Returns how many took effect.
    pub async fn ack(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
    ) -> Result<u64> {
        self.settle(owner, newest(ids), |_| Verdict::Done).await
    }

    /// The items failed, and come back when the [retry policy](WorkQueue::retry) says; they are dead when it says no
    /// more. Counts as an attempt, and the error is kept for people to read. Returns how many took effect.
    pub async fn abandon(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
        error: impl fmt::Display,
    ) -> Result<u64> {
        self.again(owner, newest(ids), Failure::retry(error)).await
    }

    /// As [`abandon`](WorkQueue::abandon), to come back after this delay. Counts against the attempts too.
    pub async fn abandon_after(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
        delay: Duration,
        error: impl fmt::Display,
    ) -> Result<u64> {
        self.again(owner, newest(ids), Failure::retry_after(delay, error)).await
    }

    /// The items are dead: never claimed again, unless a person [replays](crate::Admin::replay) them. Returns how many
    /// took effect.
    pub async fn fail(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
        error: impl fmt::Display,
    ) -> Result<u64> {
        let reason = error.to_string();
        self.settle(owner, newest(ids), |_| Verdict::Dead { counted: false, reason: reason.clone() }).await
    }

    /// Gives items back as they were, free at once. Not an attempt. Returns how many took effect.
    pub async fn release(
        &self,
        owner: &NodeId,
        ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>,
    ) -> Result<u64> {
        self.settle(owner, newest(ids), |_| Verdict::Released).await
    }

    /// Leases items for this long from now. Returns those that are still held: stop working on the others.
    ///
    /// Do it at a third of the lease, for as long as the work takes.
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

    /// Frees items whose lease has run out, so that they show as free. Returns how many.
    ///
    /// Nobody needs to: [`claim`](WorkQueue::claim) takes such items by itself.
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

    /// Writes verdicts on items, as many at a time as is good for the database.
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
        let passed_over = (settlements.len() as u64).saturating_sub(settled);
        if passed_over > 0 {
            tracing::debug!(store, %owner, passed_over, "work items were not the owner's to settle any more");
        }
        if settled == 0 {
            return;
        }
        let dead = |s: &&Settlement| matches!(s.verdict, Verdict::Dead { .. });
        if passed_over > 0 {
            // Which of them took effect is not known.
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

/// Each message once, under its newest claim: older ones are over.
fn newest(ids: impl IntoIterator<Item = impl Borrow<WorkItemId>>) -> Vec<WorkItemId> {
    let mut newest: Vec<WorkItemId> = Vec::new();
    let mut places = HashMap::new();
    for id in ids {
        let id: &WorkItemId = id.borrow();
        let place = *places.entry(id.message().clone()).or_insert(newest.len());
        match newest.get_mut(place) {
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
        return Err(Error::Setting(rule.to_owned()));
    }
    Ok(())
}

fn check_lease(lease: Duration) -> Result<()> {
    if lease.is_zero() || lease > WorkQueue::MAX_LEASE {
        return Err(Error::Setting(format!("lease is {lease:?}: use more than 0 and at most a year")));
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
