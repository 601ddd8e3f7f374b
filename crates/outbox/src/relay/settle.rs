//! Settling: one task writes verdicts to the database, in batches.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use super::bytes::ReservedBytes;
use super::runs::RunKey;
use super::tally::Subject;
use super::{Engine, tag};
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
pub(crate) struct Told {
    pub(crate) settlement: Settlement,
    /// Whether the verdict is in the database already: the handler's own transaction settled the
    /// event.
    pub(crate) written: bool,
    /// The event, if it is to be counted and could be decoded.
    pub(crate) subject: Option<Subject>,
    /// Share of the [byte budget](super::bytes::ByteBudget), which the event uses until the verdict
    /// is written.
    pub(crate) _memory: Option<Arc<ReservedBytes>>,
}

impl Told {
    pub(crate) fn to_write(settlement: Settlement) -> Self {
        Self { settlement, written: false, subject: None, _memory: None }
    }
}

/// A request to the settler.
#[derive(Debug)]
pub(crate) enum Spoken {
    /// Verdicts that belong together: one, or that of a failed event and of the later events of its
    /// key.
    Verdicts {
        /// The verdicts.
        told: Vec<Told>,
        /// Epoch in which the events were taken; 0 with leases.
        epoch: i64,
        /// Their key queue, if they have an ordering key.
        key: Option<RunKey>,
        /// Whether handling of the key has halted until this is written.
        halted: bool,
        /// Whether it must not wait for a batch: the key waits for its next events, or the event
        /// for its next attempt.
        urgent: bool,
    },
    /// Dropped once every earlier request is written.
    Waiting(oneshot::Sender<()>),
    /// The last request.
    Last,
}

impl Spoken {
    /// Verdicts on events without a key.
    pub(crate) fn verdicts(told: Vec<Told>, epoch: i64) -> Self {
        let urgent = told.iter().any(|told| told.settlement.verdict != Verdict::Done);
        Spoken::Verdicts { told, epoch, key: None, halted: false, urgent }
    }

    /// Whether it may wait a little to be written in a batch with others.
    fn can_wait(&self) -> bool {
        matches!(self, Spoken::Verdicts { urgent: false, .. })
    }

    fn len(&self) -> usize {
        match self {
            Spoken::Verdicts { told, .. } => told.len(),
            Spoken::Waiting(_) | Spoken::Last => 0,
        }
    }
}

/// The workers' side of the settler. Unwritten verdicts are counted: when there are many of them,
/// workers wait before they go on, however many they send at a time. This bounds memory, and the
/// deliveries that a crash repeats.
pub(crate) struct Speaker {
    spoken: mpsc::UnboundedSender<Spoken>,
    /// One permit for each verdict that may still be queued.
    room: Semaphore,
    capacity: usize,
    /// A caller waits, or there is much to write: end the batch delay.
    hurry: Notify,
}

impl Speaker {
    /// A queue of this capacity, and its receiver.
    pub(crate) fn new(capacity: usize) -> (Self, mpsc::UnboundedReceiver<Spoken>) {
        let (spoken, heard) = mpsc::unbounded_channel();
        (Self { spoken, room: Semaphore::new(capacity), capacity, hurry: Notify::new() }, heard)
    }

    /// How many permits a request takes. `Last` takes one as well, so that it queues behind the
    /// requests that wait for permits.
    fn size(&self, spoken: &Spoken) -> u32 {
        spoken.len().clamp(1, self.capacity).try_into().unwrap_or(u32::MAX)
    }

    /// Sends a request, when there is capacity for it.
    pub(crate) async fn say(&self, spoken: Spoken) {
        if let Ok(room) = self.room.acquire_many(self.size(&spoken)).await {
            room.forget();
        }
        self.hand_over(spoken);
    }

    /// As `send`, where waiting is not possible: returns the request if there is no capacity.
    fn try_say(&self, spoken: Spoken) -> Result<(), Spoken> {
        match self.room.try_acquire_many(self.size(&spoken)) {
            Ok(room) => room.forget(),
            Err(_) => return Err(spoken),
        }
        self.hand_over(spoken);
        Ok(())
    }

    /// Waits until every earlier request is written, or this node may no longer write it.
    pub(crate) async fn catch_up(&self) {
        let (waiting, written) = oneshot::channel();
        self.say(Spoken::Waiting(waiting)).await;
        // Nothing is sent on this channel; the sender is dropped when all requests before it are
        // written.
        let _ = written.await;
    }

    fn hand_over(&self, spoken: Spoken) {
        let urgent = !spoken.can_wait();
        // The receiver is gone once the relay has ended.
        let _ = self.spoken.send(spoken);
        let waiting = self.capacity.saturating_sub(self.room.available_permits());
        if urgent || waiting >= self.enough() {
            self.hurry.notify_one();
        }
    }

    /// How many verdicts need not wait for more: a full batch, or so many that workers will soon
    /// wait for capacity.
    fn enough(&self) -> usize {
        BATCH.min(self.capacity / 2)
    }

    /// Returns the permits of a written request.
    fn written(&self, size: u32) {
        self.room.add_permits(size as usize);
    }
}

impl Engine {
    /// Sends a request to the settler where waiting is not possible.
    pub(crate) fn speak(self: &Arc<Self>, spoken: Spoken) {
        if let Err(spoken) = self.settler.try_say(spoken) {
            let engine = self.clone();
            tokio::spawn(async move { engine.settler.say(spoken).await });
        }
    }
}

/// Verdicts that are written together or not at all: all that one request has for one key queue, or
/// for events without a key.
#[derive(Clone)]
struct Group {
    all: Arc<Vec<Told>>,
    /// The part of `all` that belongs to this group.
    range: Range<usize>,
    epoch: i64,
    key: Option<RunKey>,
    halted: bool,
}

impl Group {
    fn new(told: Vec<Told>, epoch: i64, key: Option<RunKey>, halted: bool) -> Self {
        Self { range: 0..told.len(), all: Arc::new(told), epoch, key, halted }
    }

    fn told(&self) -> &[Told] {
        &self.all[self.range.clone()]
    }

    /// The settlements that this holder has to write.
    fn to_write(&self, by: &Holder) -> impl Iterator<Item = &Settlement> {
        // With leadership only memory knows which events were released, so there is nothing to
        // write, except for a suspect, which the next leader has to know of.
        let leased = matches!(by, Holder::Lease { .. });
        let unwritten = self.told().iter().filter(|told| !told.written).map(|told| &told.settlement);
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
fn verdicts(batch: &[Spoken]) -> usize {
    batch.iter().map(Spoken::len).sum()
}

/// Why a write did not succeed.
enum Obstacle {
    /// The database refuses this group, for a reason of the group's own.
    Refused(Error),
    /// The relay ends, and the database has not answered within the drain time.
    OutOfTime(Error),
    /// This node may no longer write these verdicts.
    NotHeld,
}

/// Groups that the database refused. Behind each wait the later verdicts of its key: a verdict of a
/// key is never written before an earlier one.
struct Aside {
    groups: Vec<Group>,
    /// When they are tried again.
    next: Instant,
    pause: Duration,
}

impl Aside {
    fn new() -> Self {
        Self { groups: Vec::new(), next: Instant::now(), pause: SHORTEST_PAUSE }
    }

    fn holds(&self, key: Option<&RunKey>) -> bool {
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
    heard: mpsc::UnboundedReceiver<Spoken>,
    /// Received, to be written next.
    gathered: Vec<Spoken>,
    batch: Option<Batch>,
    aside: Aside,
}

/// The requests that are being written.
#[derive(Default)]
struct Batch {
    groups: Vec<Group>,
    /// Callers that wait until the batch is written. Nothing is sent to them.
    waiting: Vec<oneshot::Sender<()>>,
    /// No request comes after this batch.
    last: bool,
    /// Permits that the requests hold.
    sizes: Vec<u32>,
}

impl Batch {
    fn new(all: Vec<Spoken>, sizes: Vec<u32>) -> Self {
        let mut batch = Self { sizes, ..Self::default() };
        for spoken in all {
            match spoken {
                Spoken::Verdicts { told, epoch, key, halted, .. } => {
                    batch.groups.push(Group::new(told, epoch, key, halted));
                }
                Spoken::Waiting(waiter) => batch.waiting.push(waiter),
                Spoken::Last => batch.last = true,
            }
        }
        // An older epoch before a newer one; within one in the order of sending.
        batch.groups.sort_by_key(|group| group.epoch);
        batch
    }
}

impl Settler {
    pub(crate) fn new(engine: Arc<Engine>, heard: mpsc::UnboundedReceiver<Spoken>) -> Self {
        Self { engine, heard, gathered: Vec::new(), batch: None, aside: Aside::new() }
    }

    pub(crate) async fn run(&mut self) {
        loop {
            if self.batch.is_none() {
                if self.gathered.is_empty() {
                    let again = !self.aside.groups.is_empty();
                    let first = tokio::select! {
                        first = self.heard.recv() => first,
                        () = tokio::time::sleep_until(self.aside.next.into()), if again => {
                            self.try_again().await;
                            self.report_refused();
                            self.engine.progress.notify_waiters();
                            continue;
                        }
                    };
                    let Some(first) = first else { return };
                    self.gathered.push(first);
                }
                self.fill();
                self.linger().await;
                let sizes = self.gathered.iter().map(|spoken| self.engine.settler.size(spoken)).collect();
                self.batch = Some(Batch::new(std::mem::take(&mut self.gathered), sizes));
            }
            self.settle().await;
            self.report_refused();
            let Some(Batch { waiting, last, sizes, .. }) = self.batch.take() else { return };
            drop(waiting);
            sizes.into_iter().for_each(|size| self.engine.settler.written(size));
            self.engine.progress.notify_waiters();
            if last {
                self.end().await;
                return;
            }
        }
    }

    /// Adds requests that are already queued, until the batch is full.
    fn fill(&mut self) {
        let mut verdicts = verdicts(&self.gathered);
        while verdicts < BATCH
            && let Ok(spoken) = self.heard.try_recv()
        {
            verdicts += spoken.len();
            self.gathered.push(spoken);
        }
    }

    /// Lets verdicts that can wait be joined by others for a few milliseconds: one write for many
    /// costs the database far less than many writes, and the handlers do not wait for it.
    async fn linger(&mut self) {
        let enough = self.engine.settler.enough();
        let over = tokio::time::sleep(self.engine.settings.linger);
        tokio::pin!(over);
        // The notification may refer to a request that is already written; if the batch is still
        // small, keep waiting.
        while verdicts(&self.gathered) < enough && self.gathered.iter().all(Spoken::can_wait) {
            let in_time = tokio::select! {
                () = &mut over => false,
                () = self.engine.settler.hurry.notified() => true,
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
            let (behind, groups): (Vec<_>, Vec<_>) =
                of_epoch().partition(|group| self.aside.holds(group.key.as_ref()));
            let mut left = self.write(epoch, groups).await;
            // A few refused groups do not delay the others; more than the capacity do.
            while self.aside.groups.len() + left.len() > self.engine.settler.capacity
                && !self.engine.stop.is_cancelled()
            {
                tokio::time::sleep(LONGEST_PAUSE).await;
                left = self.write(epoch, left).await;
                self.try_again().await;
            }
            if let Some(batch) = &mut self.batch {
                batch.groups.retain(|group| group.epoch != epoch);
            }
            self.put_aside(behind);
            self.put_aside(left);
        }
    }

    fn put_aside(&mut self, groups: Vec<Group>) {
        for key in groups.iter().filter_map(|group| group.key.as_ref()) {
            self.engine.runs.refused(key);
        }
        self.aside.add(groups);
    }

    /// Writes refused groups, as far as the database accepts them now.
    async fn try_again(&mut self) {
        let all = self.aside.groups.len();
        let epochs: BTreeSet<i64> = self.aside.groups.iter().map(|group| group.epoch).collect();
        let mut left = Vec::new();
        for epoch in epochs {
            let of_epoch = self.aside.groups.iter().filter(|group| group.epoch == epoch).cloned().collect();
            left.extend(self.write(epoch, of_epoch).await);
        }
        let progress = left.len() < all;
        self.aside.put_back(left, progress);
    }

    /// Reports refused verdicts to the monitor separately: other verdicts are written meanwhile.
    fn report_refused(&self) {
        let refused = self.aside.groups.iter().map(|group| group.range.len()).sum();
        self.engine.monitor.refused(refused);
    }

    /// The relay ends: the events of refused verdicts stay as they are in the database, and are
    /// redelivered when their lease runs out.
    async fn end(&mut self) {
        if self.aside.groups.is_empty() {
            return;
        }
        self.try_again().await;
        self.report_refused();
        let store = self.engine.name();
        for group in std::mem::take(&mut self.aside.groups) {
            for Told { settlement: s, .. } in group.told() {
                tracing::error!(store, event = %Escaped(&s.id), "the relay ends before the event is settled: the event is redelivered");
            }
            self.let_go(&group);
        }
    }

    /// Writes groups of one epoch and drops their events. Returns the groups that the database
    /// refuses, and with each the later ones of its key.
    async fn write(&self, epoch: i64, groups: Vec<Group>) -> Vec<Group> {
        let engine = &self.engine;
        if !engine.station.may_settle(epoch) {
            // Another node has led since these events were taken.
            self.stale(groups);
            return Vec::new();
        }
        let by = engine.station.holder_in(epoch);
        let error = match self.write_one(&by, epoch, &groups).await {
            Ok(()) => {
                self.settled(&groups);
                return Vec::new();
            }
            Err(Obstacle::NotHeld) => {
                self.stale(groups);
                return Vec::new();
            }
            Err(Obstacle::OutOfTime(error)) => {
                tracing::error!(store = engine.name(), %error, "could not settle events before the relay ends");
                return groups;
            }
            Err(Obstacle::Refused(error)) => error,
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
        let mut refused: HashSet<RunKey> = HashSet::new();
        let (mut first, mut over) = (None, false);
        for group in groups {
            if over || group.key.as_ref().is_some_and(|key| refused.contains(key)) {
                left.push(group);
                continue;
            }
            match self.write_one(by, epoch, std::slice::from_ref(&group)).await {
                Ok(()) => settled.push(group),
                Err(Obstacle::NotHeld) => self.stale(vec![group]),
                Err(Obstacle::Refused(error)) => {
                    first.get_or_insert((group.told().first().map(|told| told.settlement.id.clone()), error));
                    refused.extend(group.key.clone());
                    left.push(group);
                }
                Err(Obstacle::OutOfTime(_)) => {
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
    async fn write_one(&self, by: &Holder, epoch: i64, groups: &[Group]) -> Result<(), Obstacle> {
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
                engine.held.update_claims(&mut to_write);
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
            if !engine.station.may_settle(epoch) {
                return Err(Obstacle::NotHeld);
            }
            if !error.is_transient() {
                return Err(Obstacle::Refused(error));
            }
            if engine.stop.is_cancelled() && began.elapsed() > engine.settings.drain {
                return Err(Obstacle::OutOfTime(error));
            }
            tracing::warn!(store = engine.name(), %error, count = to_write.len(), "could not settle, trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Updates the state in memory after these groups are written.
    fn settled(&self, groups: &[Group]) {
        let engine = &self.engine;
        let exclusive = engine.station.is_exclusive();
        let given_back = groups.iter().any(|group| {
            let released = |told: &Told| told.settlement.verdict.is_release();
            group.key.is_none() && group.told().iter().any(released)
        });
        let events = groups.iter().flat_map(|group| group.told().iter().map(|told| (group.epoch, told)));
        let settled = events.map(|(epoch, Told { settlement: s, .. })| (&s.id, tag(epoch, s.claim)));
        engine.held.settled(settled, exclusive);
        let all = || groups.iter().flat_map(Group::told);
        self.remind(all());
        self.count(all());
        let keys =
            groups.iter().filter_map(|group| Some((group.key.clone()?, group.range.len(), group.halted)));
        engine.runs.settled(keys);
        if given_back {
            // The released events lie before the taker's cursor, and no key leads back to them.
            engine.look_everywhere();
        } else if engine.runs.has_free() {
            engine.wake.notify_one();
        }
    }

    /// Drops groups that this node may no longer write.
    fn stale(&self, groups: Vec<Group>) {
        for group in groups {
            let unwritten = group.told().iter().filter(|told| !told.written).count();
            self.engine.metrics.stale.increment(unwritten as u64);
            self.let_go(&group);
            self.count(group.told().iter().filter(|told| told.written));
            let (events, halted) = (group.range.len(), group.halted);
            self.engine.runs.settled(group.key.map(|key| (key, events, halted)));
        }
        if self.engine.runs.has_free() {
            self.engine.wake.notify_one();
        }
    }

    /// Removes the events of a group from memory: another holder decides about them.
    fn let_go(&self, group: &Group) {
        let all = group.told().iter().map(|Told { settlement: s, .. }| (&s.id, tag(group.epoch, s.claim)));
        self.engine.held.settled(all, false);
    }

    fn count<'a>(&self, told: impl Iterator<Item = &'a Told> + Clone) {
        self.engine.tally.add(told.clone().map(|told| (&told.settlement, &told.subject)));
        let metrics = &self.engine.metrics;
        let (mut done, mut again, mut deferred, mut dead) = (0, 0, 0, 0);
        for Told { settlement, .. } in told {
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
    fn remind<'a>(&self, told: impl Iterator<Item = &'a Told>) {
        for Told { settlement, .. } in told {
            match &settlement.verdict {
                // A time beyond the range of the clock is too far away to wait for.
                Verdict::Again { after, .. } => {
                    if let Some(time) = Instant::now().checked_add(*after) {
                        self.engine.alarm.at(time);
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

    fn done(count: usize) -> Spoken {
        let one = || Settlement { id: EventId::generate(), claim: 1, verdict: Verdict::Done };
        Spoken::verdicts((0..count).map(|_| Told::to_write(one())).collect(), 0)
    }

    /// However many are sent at a time: the limit counts verdicts, not requests.
    #[tokio::test]
    async fn workers_wait_while_many_verdicts_are_unwritten() {
        let (speaker, mut heard) = Speaker::new(1_000);
        for _ in 0..4 {
            speaker.say(done(250)).await;
        }
        assert!(speaker.try_say(done(1)).is_err(), "the queue is full");
        let first = heard.recv().await.expect("a request was sent");
        speaker.written(speaker.size(&first));
        assert!(speaker.try_say(done(250)).is_ok());
    }

    #[tokio::test]
    async fn more_than_there_is_room_for_is_said_alone() {
        let (speaker, _heard) = Speaker::new(100);
        speaker.say(done(250)).await;
        assert!(speaker.try_say(done(1)).is_err());
    }

    #[tokio::test]
    async fn the_last_word_comes_behind_those_that_wait() {
        let (speaker, mut heard) = Speaker::new(10);
        let speaker = Arc::new(speaker);
        speaker.say(done(10)).await;
        let (first, second) = (speaker.clone(), speaker.clone());
        let waits = tokio::spawn(async move { first.say(done(3)).await });
        tokio::task::yield_now().await;
        let last = tokio::spawn(async move { second.say(Spoken::Last).await });
        tokio::task::yield_now().await;
        speaker.written(10);
        waits.await.expect("it does not panic");
        last.await.expect("it does not panic");
        let mut lengths = Vec::new();
        while let Ok(spoken) = heard.try_recv() {
            lengths.push(spoken.len());
        }
        assert_eq!(lengths, [10, 3, 0]);
    }
}
