//! Settling: one task writes verdicts to the database, in batches.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use super::bytes::ReservedBytes;
use super::key_queues::KeyQueueRef;
use super::stats::Observation;
use super::{Engine, fence};
use crate::error::Error;
use crate::escape::Escaped;
use crate::store::{Holder, RelayTask, Settled, Settlement, Verdict};

/// A batch is full with this many verdicts. The verdicts of one request are written together, so a
/// batch may have some more.
const BATCH: usize = 2_000;

/// Pause before the next try of verdicts that the database refused: at first, and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Verdict on one event.
#[derive(Debug)]
pub(crate) struct EventVerdict {
    pub(crate) settlement: Settlement,
    /// Whether the verdict is in the database already: the handler's own transaction settled the
    /// event.
    pub(crate) written: bool,
    /// The event, if it is to be counted and could be decoded.
    pub(crate) observation: Option<Observation>,
    /// Share of the [byte budget](super::bytes::ByteBudget), which the event uses until the verdict
    /// is written.
    pub(crate) _memory: Option<Arc<ReservedBytes>>,
}

impl EventVerdict {
    pub(crate) fn to_write(settlement: Settlement) -> Self {
        Self { settlement, written: false, observation: None, _memory: None }
    }
}

/// A request to the settler.
#[derive(Debug)]
pub(crate) enum SettleRequest {
    /// Verdicts that belong together: one, or that of a failed event and of the later events of its
    /// key.
    Verdicts {
        /// The verdicts.
        entries: Vec<EventVerdict>,
        /// Epoch in which the events were taken; 0 with leases.
        epoch: i64,
        /// Their key queue, if they have an ordering key.
        key: Option<KeyQueueRef>,
        /// Whether handling of the key has halted until this is written.
        halted: bool,
        /// Whether it must not wait for a batch: the key waits for its next events, or the event
        /// for its next attempt.
        urgent: bool,
    },
    /// Dropped once every earlier request is written.
    Flush(oneshot::Sender<()>),
    /// The last request.
    Last,
}

impl SettleRequest {
    /// Verdicts on events without a key.
    pub(crate) fn verdicts(entries: Vec<EventVerdict>, epoch: i64) -> Self {
        let urgent = entries.iter().any(|entry| entry.settlement.verdict != Verdict::Done);
        SettleRequest::Verdicts { entries, epoch, key: None, halted: false, urgent }
    }

    /// Whether it may wait a little to be written in a batch with others.
    fn can_wait(&self) -> bool {
        matches!(self, SettleRequest::Verdicts { urgent: false, .. })
    }

    fn len(&self) -> usize {
        match self {
            SettleRequest::Verdicts { entries, .. } => entries.len(),
            SettleRequest::Flush(_) | SettleRequest::Last => 0,
        }
    }
}

/// The workers' side of the settler. Unwritten verdicts are counted: when there are many of them,
/// workers wait before they go on, however many they send at a time. This bounds memory, and the
/// deliveries that a crash repeats.
pub(crate) struct SettleQueue {
    sender: mpsc::UnboundedSender<SettleRequest>,
    /// One permit for each verdict that may still be queued.
    permits: Semaphore,
    capacity: usize,
    /// A caller waits, or there is much to write: end the batch delay.
    flush_now: Notify,
}

impl SettleQueue {
    /// A queue of this capacity, and its receiver.
    pub(crate) fn new(capacity: usize) -> (Self, mpsc::UnboundedReceiver<SettleRequest>) {
        let (sender, requests) = mpsc::unbounded_channel();
        (Self { sender, permits: Semaphore::new(capacity), capacity, flush_now: Notify::new() }, requests)
    }

    /// How many permits a request takes. `Last` takes one as well, so that it queues behind the
    /// requests that wait for permits.
    fn size(&self, request: &SettleRequest) -> u32 {
        request.len().clamp(1, self.capacity).try_into().unwrap_or(u32::MAX)
    }

    /// Sends a request, when there is capacity for it.
    pub(crate) async fn send(&self, request: SettleRequest) {
        if let Ok(permits) = self.permits.acquire_many(self.size(&request)).await {
            permits.forget();
        }
        self.enqueue(request);
    }

    /// Sends a request without waiting; returns the request if there is no capacity.
    fn try_send(&self, request: SettleRequest) -> Result<(), SettleRequest> {
        match self.permits.try_acquire_many(self.size(&request)) {
            Ok(permits) => permits.forget(),
            Err(_) => return Err(request),
        }
        self.enqueue(request);
        Ok(())
    }

    /// Waits until every earlier request is written, or this node may no longer write it.
    pub(crate) async fn flush(&self) {
        let (waiting, written) = oneshot::channel();
        self.send(SettleRequest::Flush(waiting)).await;
        // Nothing is sent on this channel; the sender is dropped when all requests before it are
        // written.
        let _ = written.await;
    }

    fn enqueue(&self, request: SettleRequest) {
        let urgent = !request.can_wait();
        // The receiver is gone once the relay has ended.
        let _ = self.sender.send(request);
        let waiting = self.capacity.saturating_sub(self.permits.available_permits());
        if urgent || waiting >= self.full_batch() {
            self.flush_now.notify_one();
        }
    }

    /// How many verdicts need not wait for more: a full batch, or so many that workers will soon
    /// wait for capacity.
    fn full_batch(&self) -> usize {
        BATCH.min(self.capacity / 2)
    }

    /// Returns the permits of a written request.
    fn written(&self, size: u32) {
        self.permits.add_permits(size as usize);
    }
}

impl Engine {
    /// Sends a request to the settler where waiting is not possible.
    pub(crate) fn settle_later(self: &Arc<Self>, request: SettleRequest) {
        if let Err(request) = self.settler.try_send(request) {
            let engine = self.clone();
            tokio::spawn(async move { engine.settler.send(request).await });
        }
    }
}

/// Verdicts that are written together or not at all: all that one request has for one key queue, or
/// for events without a key.
#[derive(Clone)]
struct Group {
    all: Arc<Vec<EventVerdict>>,
    /// The part of `all` that belongs to this group.
    range: Range<usize>,
    epoch: i64,
    key: Option<KeyQueueRef>,
    halted: bool,
}

impl Group {
    fn new(entries: Vec<EventVerdict>, epoch: i64, key: Option<KeyQueueRef>, halted: bool) -> Self {
        Self { range: 0..entries.len(), all: Arc::new(entries), epoch, key, halted }
    }

    fn entries(&self) -> &[EventVerdict] {
        &self.all[self.range.clone()]
    }

    /// The settlements that this holder has to write.
    fn to_write(&self, by: &Holder) -> impl Iterator<Item = &Settlement> {
        // With leadership only memory knows which events were released, so there is nothing to
        // write, except for a suspect, which the next leader has to know of.
        let leased = matches!(by, Holder::Lease { .. });
        let unwritten = self.entries().iter().filter(|entry| !entry.written).map(|entry| &entry.settlement);
        unwritten.filter(move |settlement| leased || settlement.verdict != Verdict::Released)
    }

    /// The smallest groups that can be written by themselves: events without a key do not wait for
    /// each other.
    fn split(self) -> Vec<Self> {
        if self.key.is_some() {
            return vec![self];
        }
        self.range.clone().map(|n| Self { range: n..n + 1, ..self.clone() }).collect()
    }
}

/// Number of verdicts in these requests.
fn verdict_count(batch: &[SettleRequest]) -> usize {
    batch.iter().map(SettleRequest::len).sum()
}

/// Why a write did not succeed.
enum WriteFailure {
    /// The database refuses this group, for a reason of the group's own.
    Refused(Error),
    /// The relay ends, and the database has not answered within the drain time.
    OutOfTime(Error),
    /// This node may no longer write these verdicts.
    NotHeld,
}

/// Groups that the database refused. Behind each wait the later verdicts of its key: a verdict of a
/// key is never written before an earlier one.
struct RefusedGroups {
    groups: Vec<Group>,
    /// When they are tried again.
    next: Instant,
    pause: Duration,
}

impl RefusedGroups {
    fn new() -> Self {
        Self { groups: Vec::new(), next: Instant::now(), pause: SHORTEST_PAUSE }
    }

    fn contains(&self, key: Option<&KeyQueueRef>) -> bool {
        key.is_some() && self.groups.iter().any(|group| group.key.as_ref() == key)
    }

    /// Adds groups, to be tried after the current pause. None of them is written before those that
    /// are here.
    fn add(&mut self, groups: Vec<Group>) {
        if groups.is_empty() {
            return;
        }
        if self.groups.is_empty() {
            self.pause = SHORTEST_PAUSE;
            self.next = Instant::now() + self.pause;
        }
        self.groups.extend(groups);
    }

    /// Keeps the groups that were refused again.
    fn put_back(&mut self, groups: Vec<Group>, progress: bool) {
        self.pause = if progress { SHORTEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        self.next = Instant::now() + self.pause;
        self.groups = groups;
    }
}

/// The settling task. It retries for as long as its relay runs: an event with a verdict is not
/// dropped before the verdict is written, or another relay holds the event.
///
/// Its state survives a panic: the next run continues with the batch that was being written.
/// Verdicts that are already written are written again then, which changes nothing, as after a lost
/// answer.
pub(crate) struct Settler {
    engine: Arc<Engine>,
    requests: mpsc::UnboundedReceiver<SettleRequest>,
    /// Received, to be written next.
    gathered: Vec<SettleRequest>,
    batch: Option<SettleBatch>,
    refused_groups: RefusedGroups,
}

/// The requests that are being written.
#[derive(Default)]
struct SettleBatch {
    groups: Vec<Group>,
    /// Callers that wait until the batch is written. Nothing is sent to them.
    waiting: Vec<oneshot::Sender<()>>,
    /// No request comes after this batch.
    last: bool,
    /// Permits that the requests hold.
    sizes: Vec<u32>,
}

impl SettleBatch {
    fn new(all: Vec<SettleRequest>, sizes: Vec<u32>) -> Self {
        let mut batch = Self { sizes, ..Self::default() };
        for request in all {
            match request {
                SettleRequest::Verdicts { entries, epoch, key, halted, .. } => {
                    batch.groups.push(Group::new(entries, epoch, key, halted));
                }
                SettleRequest::Flush(waiter) => batch.waiting.push(waiter),
                SettleRequest::Last => batch.last = true,
            }
        }
        // An older epoch before a newer one; within one in the order of sending.
        batch.groups.sort_by_key(|group| group.epoch);
        batch
    }
}

impl Settler {
    pub(crate) fn new(engine: Arc<Engine>, requests: mpsc::UnboundedReceiver<SettleRequest>) -> Self {
        Self { engine, requests, gathered: Vec::new(), batch: None, refused_groups: RefusedGroups::new() }
    }

    pub(crate) async fn run(&mut self) {
        loop {
            if self.batch.is_none() {
                if self.gathered.is_empty() {
                    let again = !self.refused_groups.groups.is_empty();
                    let first = tokio::select! {
                        first = self.requests.recv() => first,
                        () = tokio::time::sleep_until(self.refused_groups.next.into()), if again => {
                            self.retry_refused().await;
                            self.report_refused();
                            self.engine.progress.notify_waiters();
                            continue;
                        }
                    };
                    let Some(first) = first else { return };
                    self.gathered.push(first);
                }
                self.fill();
                self.batch_delay().await;
                let sizes = self.gathered.iter().map(|request| self.engine.settler.size(request)).collect();
                self.batch = Some(SettleBatch::new(std::mem::take(&mut self.gathered), sizes));
            }
            self.settle().await;
            self.report_refused();
            let Some(SettleBatch { waiting, last, sizes, .. }) = self.batch.take() else { return };
            drop(waiting);
            sizes.into_iter().for_each(|size| self.engine.settler.written(size));
            self.engine.progress.notify_waiters();
            if last {
                self.finish().await;
                return;
            }
        }
    }

    /// Adds requests that are already queued, until the batch is full.
    fn fill(&mut self) {
        let mut count = verdict_count(&self.gathered);
        while count < BATCH
            && let Ok(request) = self.requests.try_recv()
        {
            count += request.len();
            self.gathered.push(request);
        }
    }

    /// Lets verdicts that can wait be joined by others for a few milliseconds: one write for many
    /// costs the database far less than many writes, and the handlers do not wait for it.
    async fn batch_delay(&mut self) {
        let full_batch = self.engine.settler.full_batch();
        let over = tokio::time::sleep(self.engine.settings.linger);
        tokio::pin!(over);
        // The notification may refer to a request that is already written; if the batch is still
        // small, keep waiting.
        while verdict_count(&self.gathered) < full_batch && self.gathered.iter().all(SettleRequest::can_wait)
        {
            let in_time = tokio::select! {
                () = &mut over => false,
                () = self.engine.settler.flush_now.notified() => true,
            };
            self.fill();
            if !in_time {
                return;
            }
        }
    }

    /// Writes the batch and drops its events. Refused groups are kept for later.
    async fn settle(&mut self) {
        while let Some(epoch) = self.batch.as_ref().and_then(|batch| Some(batch.groups.first()?.epoch)) {
            let all = self.batch.as_ref().map_or(&[][..], |batch| &batch.groups);
            let of_epoch = || all.iter().filter(|group| group.epoch == epoch).cloned();
            let (deferred, groups): (Vec<_>, Vec<_>) =
                of_epoch().partition(|group| self.refused_groups.contains(group.key.as_ref()));
            let mut left = self.write(epoch, groups).await;
            // A few refused groups do not delay the others; more than the capacity do.
            while self.refused_groups.groups.len() + left.len() > self.engine.settler.capacity
                && !self.engine.stop.is_cancelled()
            {
                tokio::time::sleep(LONGEST_PAUSE).await;
                left = self.write(epoch, left).await;
                self.retry_refused().await;
            }
            if let Some(batch) = &mut self.batch {
                batch.groups.retain(|group| group.epoch != epoch);
            }
            self.keep_refused(deferred);
            self.keep_refused(left);
        }
    }

    fn keep_refused(&mut self, groups: Vec<Group>) {
        for key in groups.iter().filter_map(|group| group.key.as_ref()) {
            self.engine.key_queues.refused(key);
        }
        self.refused_groups.add(groups);
    }

    /// Writes refused groups, as far as the database accepts them now.
    async fn retry_refused(&mut self) {
        let all = self.refused_groups.groups.len();
        let epochs: BTreeSet<i64> = self.refused_groups.groups.iter().map(|group| group.epoch).collect();
        let mut left = Vec::new();
        for epoch in epochs {
            let of_epoch =
                self.refused_groups.groups.iter().filter(|group| group.epoch == epoch).cloned().collect();
            left.extend(self.write(epoch, of_epoch).await);
        }
        let progress = left.len() < all;
        self.refused_groups.put_back(left, progress);
    }

    /// Reports refused verdicts to the monitor separately: other verdicts are written meanwhile.
    fn report_refused(&self) {
        let refused = self.refused_groups.groups.iter().map(|group| group.range.len()).sum();
        self.engine.monitor.refused(refused);
    }

    /// The relay ends: the events of refused verdicts stay as they are in the database, and are
    /// redelivered when their lease runs out.
    async fn finish(&mut self) {
        if self.refused_groups.groups.is_empty() {
            return;
        }
        self.retry_refused().await;
        self.report_refused();
        let store = self.engine.name();
        for group in std::mem::take(&mut self.refused_groups.groups) {
            for EventVerdict { settlement: s, .. } in group.entries() {
                tracing::error!(store, event = %Escaped(&s.id), "the relay ends before the event is settled: the event is redelivered");
            }
            self.release(&group);
        }
    }

    /// Writes groups of one epoch and drops their events. Returns the groups that the database
    /// refuses, and with each the later ones of its key.
    async fn write(&self, epoch: i64, groups: Vec<Group>) -> Vec<Group> {
        let engine = &self.engine;
        if !engine.ownership.may_settle(epoch) {
            // Another node has led since these events were taken.
            self.stale(groups);
            return Vec::new();
        }
        let by = engine.ownership.holder_in(epoch);
        let error = match self.write_one(&by, epoch, &groups).await {
            Ok(()) => {
                self.settled(&groups);
                return Vec::new();
            }
            Err(WriteFailure::NotHeld) => {
                self.stale(groups);
                return Vec::new();
            }
            Err(WriteFailure::OutOfTime(error)) => {
                tracing::error!(store = engine.name(), %error, "could not settle events before the relay ends");
                return groups;
            }
            Err(WriteFailure::Refused(error)) => error,
        };
        self.write_each(&by, epoch, groups, &error).await
    }

    /// Writes the groups one by one after the database refused them together, so that one bad
    /// verdict does not delay the others.
    async fn write_each(&self, by: &Holder, epoch: i64, groups: Vec<Group>, error: &Error) -> Vec<Group> {
        let engine = &self.engine;
        let groups: Vec<Group> = groups.into_iter().flat_map(Group::split).collect();
        if groups.len() > 1 {
            tracing::warn!(store = engine.name(), %error, "the database refused a batch of verdicts: writing them one by one");
        }
        let (mut settled, mut left) = (Vec::new(), Vec::new());
        let mut refused: HashSet<KeyQueueRef> = HashSet::new();
        let (mut first, mut over) = (None, false);
        for group in groups {
            if over || group.key.as_ref().is_some_and(|key| refused.contains(key)) {
                left.push(group);
                continue;
            }
            match self.write_one(by, epoch, std::slice::from_ref(&group)).await {
                Ok(()) => settled.push(group),
                Err(WriteFailure::NotHeld) => self.stale(vec![group]),
                Err(WriteFailure::Refused(error)) => {
                    first.get_or_insert((
                        group.entries().first().map(|entry| entry.settlement.id.clone()),
                        error,
                    ));
                    refused.extend(group.key.clone());
                    left.push(group);
                }
                Err(WriteFailure::OutOfTime(_)) => {
                    over = true;
                    left.push(group);
                }
            }
        }
        self.settled(&settled);
        if let Some((Some(event), error)) = first {
            let count = left.len();
            tracing::error!(
                store = engine.name(), event = %Escaped(&event), %error, count,
                "the database refuses to settle events: they stay held, and are tried again"
            );
        }
        left
    }

    /// Writes groups in one transaction. Retries as long as the database fails, and not the
    /// verdicts.
    async fn write_one(&self, by: &Holder, epoch: i64, groups: &[Group]) -> Result<(), WriteFailure> {
        let engine = &self.engine;
        let mut to_write: Vec<Settlement> =
            groups.iter().flat_map(|group| group.to_write(by)).cloned().collect();
        if to_write.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let mut pause = SHORTEST_PAUSE;
        loop {
            engine.monitor.began(RelayTask::Settle);
            if matches!(by, Holder::Lease { .. }) {
                // The lease of an event may have run out while this write waited, and been claimed
                // again by this node.
                engine.in_flight.update_claims(&mut to_write);
            }
            let error = match engine.store.settle(by, engine.settings.completion, &to_write).await {
                Ok(Settled { moved, wrote }) => {
                    engine.monitor.succeeded(RelayTask::Settle);
                    if wrote {
                        // The follow-up event of a join is ready to be taken.
                        engine.wake.notify_one();
                    }
                    let stale = (to_write.len() as u64).saturating_sub(moved);
                    if stale > 0 {
                        engine.metrics.stale.increment(stale);
                        tracing::warn!(
                            store = engine.name(),
                            stale,
                            "stale verdicts dropped: other nodes hold the events"
                        );
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            engine.monitor.failed(RelayTask::Settle, &error.to_string());
            if !engine.ownership.may_settle(epoch) {
                return Err(WriteFailure::NotHeld);
            }
            if !error.is_transient() {
                return Err(WriteFailure::Refused(error));
            }
            if engine.stop.is_cancelled() && began.elapsed() > engine.settings.drain {
                return Err(WriteFailure::OutOfTime(error));
            }
            tracing::warn!(store = engine.name(), %error, count = to_write.len(), "could not settle, trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Updates the state in memory after these groups are written.
    fn settled(&self, groups: &[Group]) {
        let engine = &self.engine;
        let exclusive = engine.ownership.is_exclusive();
        let any_released = groups.iter().any(|group| {
            let released = |entry: &EventVerdict| entry.settlement.verdict.is_release();
            group.key.is_none() && group.entries().iter().any(released)
        });
        let events = groups.iter().flat_map(|group| group.entries().iter().map(|entry| (group.epoch, entry)));
        let settled =
            events.map(|(epoch, EventVerdict { settlement: s, .. })| (&s.id, fence(epoch, s.claim)));
        engine.in_flight.settled(settled, exclusive);
        let all = || groups.iter().flat_map(Group::entries);
        self.schedule_retries(all());
        self.count(all());
        let keys =
            groups.iter().filter_map(|group| Some((group.key.clone()?, group.range.len(), group.halted)));
        engine.key_queues.settled(keys);
        if any_released {
            // The released events lie before the taker's cursor, and no key leads back to them.
            engine.request_rescan();
        } else if engine.key_queues.has_resumable() {
            engine.wake.notify_one();
        }
    }

    /// Drops groups that this node may no longer write.
    fn stale(&self, groups: Vec<Group>) {
        for group in groups {
            let unwritten = group.entries().iter().filter(|entry| !entry.written).count();
            self.engine.metrics.stale.increment(unwritten as u64);
            self.release(&group);
            self.count(group.entries().iter().filter(|entry| entry.written));
            let (events, halted) = (group.range.len(), group.halted);
            self.engine.key_queues.settled(group.key.map(|key| (key, events, halted)));
        }
        if self.engine.key_queues.has_resumable() {
            self.engine.wake.notify_one();
        }
    }

    /// Removes the events of a group from memory: another holder decides about them.
    fn release(&self, group: &Group) {
        let all = group
            .entries()
            .iter()
            .map(|EventVerdict { settlement: s, .. }| (&s.id, fence(group.epoch, s.claim)));
        self.engine.in_flight.settled(all, false);
    }

    fn count<'a>(&self, entries: impl Iterator<Item = &'a EventVerdict> + Clone) {
        self.engine.stats.add(entries.clone().map(|entry| (&entry.settlement, &entry.observation)));
        let metrics = &self.engine.metrics;
        let (mut done, mut again, mut deferred, mut dead) = (0, 0, 0, 0);
        for EventVerdict { settlement, .. } in entries {
            match &settlement.verdict {
                Verdict::Done => done += 1,
                Verdict::Again { counted: true, .. } => again += 1,
                Verdict::Again { counted: false, .. } => deferred += 1,
                Verdict::Dead { .. } => dead += 1,
                Verdict::Released | Verdict::ReleasedSuspect => {}
            }
        }
        metrics.success.increment(done);
        metrics.failure.increment(again);
        metrics.deferred.increment(deferred);
        metrics.dead.increment(dead);
    }

    /// Wakes the taker when events that are to be retried become due.
    fn schedule_retries<'a>(&self, entries: impl Iterator<Item = &'a EventVerdict>) {
        for EventVerdict { settlement, .. } in entries {
            match &settlement.verdict {
                // A time beyond the range of the clock is too far away to wait for.
                Verdict::Again { after, .. } => {
                    if let Some(time) = Instant::now().checked_add(*after) {
                        self.engine.due_timer.at(time);
                    }
                }
                // Events that it held back may be takeable now.
                Verdict::Dead { .. } => self.engine.wake.notify_one(),
                Verdict::Done | Verdict::Released | Verdict::ReleasedSuspect => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventId;

    fn done(count: usize) -> SettleRequest {
        let one = || Settlement { id: EventId::generate(), claim: 1, verdict: Verdict::Done };
        SettleRequest::verdicts((0..count).map(|_| EventVerdict::to_write(one())).collect(), 0)
    }

    /// However many are sent at a time: the limit counts verdicts, not requests.
    #[tokio::test]
    async fn workers_wait_while_many_verdicts_are_unwritten() {
        let (settle_queue, mut requests) = SettleQueue::new(1_000);
        for _ in 0..4 {
            settle_queue.send(done(250)).await;
        }
        assert!(settle_queue.try_send(done(1)).is_err(), "the queue is full");
        let first = requests.recv().await.expect("a request was sent");
        settle_queue.written(settle_queue.size(&first));
        assert!(settle_queue.try_send(done(250)).is_ok());
    }

    #[tokio::test]
    async fn a_request_above_the_capacity_is_sent_alone() {
        let (settle_queue, _requests) = SettleQueue::new(100);
        settle_queue.send(done(250)).await;
        assert!(settle_queue.try_send(done(1)).is_err());
    }

    #[tokio::test]
    async fn the_last_request_queues_behind_those_that_wait() {
        let (settle_queue, mut requests) = SettleQueue::new(10);
        let settle_queue = Arc::new(settle_queue);
        settle_queue.send(done(10)).await;
        let (first, second) = (settle_queue.clone(), settle_queue.clone());
        let waits = tokio::spawn(async move { first.send(done(3)).await });
        tokio::task::yield_now().await;
        let last = tokio::spawn(async move { second.send(SettleRequest::Last).await });
        tokio::task::yield_now().await;
        settle_queue.written(10);
        waits.await.expect("it does not panic");
        last.await.expect("it does not panic");
        let mut lengths = Vec::new();
        while let Ok(request) = requests.try_recv() {
            lengths.push(request.len());
        }
        assert_eq!(lengths, [10, 3, 0]);
    }
}
