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

/// A batch is full with this many verdicts. What was said together is written together, so it may have some more.
const BATCH: usize = 2_000;

/// How long to wait before verdicts are tried again that the database refused: at first, and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What became of an event.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) settlement: Settlement,
    /// Whether it is in the database already: the handler's own transaction settled it.
    pub(crate) written: bool,
    /// The event, if it is to be counted and could be decoded.
    pub(crate) subject: Option<Subject>,
    /// Its part of the [byte budget](super::bytes::ByteBudget), which the event takes until then.
    pub(crate) _memory: Option<Arc<ReservedBytes>>,
}

impl Told {
    pub(crate) fn to_write(settlement: Settlement) -> Self {
        Self { settlement, written: false, subject: None, _memory: None }
    }
}

/// What a worker says to the settler.
#[derive(Debug)]
pub(crate) enum Spoken {
    /// Verdicts that belong together: one, or a failed event and those of its key behind it.
    Verdicts {
        /// What became of the events.
        told: Vec<Told>,
        /// The epoch that they were taken in; 0 with leases.
        epoch: i64,
        /// Their run, if they have an ordering key.
        key: Option<RunKey>,
        /// Whether handling of the key has halted until this is written.
        halted: bool,
        /// Whether somebody waits for it: a key for its next events, an event for its next attempt.
        urgent: bool,
    },
    /// Somebody waits until all that was said before is written.
    Waiting(oneshot::Sender<()>),
    /// Nothing comes after this.
    Last,
}

impl Spoken {
    /// Of events without a key.
    pub(crate) fn verdicts(told: Vec<Told>, epoch: i64) -> Self {
        let urgent = told.iter().any(|told| told.settlement.verdict != Verdict::Done);
        Spoken::Verdicts { told, epoch, key: None, halted: false, urgent }
    }

    /// Whether it may wait a little for others to be written with.
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

/// The workers' side of the settler. Verdicts that are not written yet are counted: when there are many of them, workers wait
/// before they go on, however many they say at a time. What a crash repeats is bounded by that, and so is memory.
pub(crate) struct Speaker {
    spoken: mpsc::UnboundedSender<Spoken>,
    /// As many permits as there is room for verdicts.
    room: Semaphore,
    capacity: usize,
    /// Somebody waits, or there is much to write: do not linger.
    hurry: Notify,
}

impl Speaker {
    /// With room for so many verdicts, and where they are heard.
    pub(crate) fn new(capacity: usize) -> (Self, mpsc::UnboundedReceiver<Spoken>) {
        let (spoken, heard) = mpsc::unbounded_channel();
        (Self { spoken, room: Semaphore::new(capacity), capacity, hurry: Notify::new() }, heard)
    }

    /// How much room something takes. The last word takes some as well: it waits behind those that wait for room.
    fn size(&self, spoken: &Spoken) -> u32 {
        spoken.len().clamp(1, self.capacity).try_into().unwrap_or(u32::MAX)
    }

    /// Says something, when there is room for it.
    pub(crate) async fn say(&self, spoken: Spoken) {
        if let Ok(room) = self.room.acquire_many(self.size(&spoken)).await {
            room.forget();
        }
        self.hand_over(spoken);
    }

    /// The same from where waiting is not possible: gives it back if there is no room.
    fn try_say(&self, spoken: Spoken) -> Result<(), Spoken> {
        match self.room.try_acquire_many(self.size(&spoken)) {
            Ok(room) => room.forget(),
            Err(_) => return Err(spoken),
        }
        self.hand_over(spoken);
        Ok(())
    }

    /// Waits until what was said before is written, or not this node's to write any more.
    pub(crate) async fn catch_up(&self) {
        let (waiting, written) = oneshot::channel();
        self.say(Spoken::Waiting(waiting)).await;
        // Nobody answers; the question is dropped when all before it is written.
        let _ = written.await;
    }

    fn hand_over(&self, spoken: Spoken) {
        let urgent = !spoken.can_wait();
        // Nobody hears it any more once the relay is over.
        let _ = self.spoken.send(spoken);
        let waiting = self.capacity.saturating_sub(self.room.available_permits());
        if urgent || waiting >= self.enough() {
            self.hurry.notify_one();
        }
    }

    /// How many verdicts need not wait for more: a full batch, or so many that workers will soon wait for room.
    fn enough(&self) -> usize {
        BATCH.min(self.capacity / 2)
    }

    /// What was said is written.
    fn written(&self, size: u32) {
        self.room.add_permits(size as usize);
    }
}

impl Engine {
    /// Says something to the settler from where waiting is not possible.
    pub(crate) fn speak(self: &Arc<Self>, spoken: Spoken) {
        if let Err(spoken) = self.settler.try_say(spoken) {
            let engine = self.clone();
            tokio::spawn(async move { engine.settler.say(spoken).await });
        }
    }
}

/// Verdicts that are written together or not at all: all that was said at once of one run, or of events without a key.
#[derive(Clone)]
struct Group {
    all: Arc<Vec<Told>>,
    /// Which of them.
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

    /// What is to be written in the name of this holder.
    fn to_write(&self, by: &Holder) -> impl Iterator<Item = &Settlement> {
        // With leadership memory alone knows what was given back: there is nothing to write, but for a suspect, which
        // the next leader has to know of.
        let leased = matches!(by, Holder::Lease { .. });
        let unwritten = self.told().iter().filter(|told| !told.written).map(|told| &told.settlement);
        unwritten.filter(move |settlement| leased || settlement.verdict != Verdict::Released)
    }

    /// The smallest groups that can be written by themselves: events without a key do not wait for each other.
    fn split(self) -> Vec<Self> {
        if self.key.is_some() {
            return vec![self];
        }
        self.range.clone().map(|n| Self { range: n..n + 1, ..self.clone() }).collect()
    }
}

/// How many verdicts there are.
fn verdicts(batch: &[Spoken]) -> usize {
    batch.iter().map(Spoken::len).sum()
}

/// Why a write did not succeed.
enum Obstacle {
    /// The database refuses this group, for a reason of the group's own.
    Refused(Error),
    /// The relay ends, and the database has not answered for as long as that may take.
    OutOfTime(Error),
    /// The right to write is gone.
    NotHeld,
}

/// Groups that the database refused. Behind each wait the later verdicts of its key: a verdict of a key is never written before
/// an earlier one.
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

    /// Takes groups in, to be tried after the current pause. None of them is written before those that are here.
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

    /// These were tried again in vain.
    fn put_back(&mut self, groups: Vec<Group>, progress: bool) {
        self.pause = if progress { SHORTEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        self.next = Instant::now() + self.pause;
        self.groups = groups;
    }
}

/// The settling task. It tries for as long as its relay lives: an event whose verdict was said is not let go before that is written,
/// or another relay holds the event.
///
/// Its state survives a panic: the next run goes on with the batch that was being written. What is written already is written again
/// then, which changes nothing, as after an answer that was lost.
pub(crate) struct Settler {
    engine: Arc<Engine>,
    heard: mpsc::UnboundedReceiver<Spoken>,
    /// Heard, to be written next.
    gathered: Vec<Spoken>,
    batch: Option<Batch>,
    aside: Aside,
}

/// What is being written.
#[derive(Default)]
struct Batch {
    groups: Vec<Group>,
    /// Those who wait until it is written. Nothing is sent to them.
    waiting: Vec<oneshot::Sender<()>>,
    /// Nothing comes after it.
    last: bool,
    /// Room that it takes.
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
        // An older epoch before a newer one; within one as they were said.
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

    /// Adds what has been said, until the batch is full.
    fn fill(&mut self) {
        let mut verdicts = verdicts(&self.gathered);
        while verdicts < BATCH
            && let Ok(spoken) = self.heard.try_recv()
        {
            verdicts += spoken.len();
            self.gathered.push(spoken);
        }
    }

    /// Gives verdicts that can wait a few milliseconds of company: one write for many costs the database far less than
    /// many writes, and the handlers have long gone on.
    async fn linger(&mut self) {
        let enough = self.engine.settler.enough();
        let over = tokio::time::sleep(self.engine.settings.linger);
        tokio::pin!(over);
        // Being told to hurry may be about what was written since: then there is time.
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

    /// Writes the batch and lets go of its events. What the database refuses is put aside.
    async fn settle(&mut self) {
        while let Some(epoch) = self.batch.as_ref().and_then(|batch| Some(batch.groups.first()?.epoch)) {
            let all = self.batch.as_ref().map_or(&[][..], |batch| &batch.groups);
            let of_epoch = || all.iter().filter(|group| group.epoch == epoch).cloned();
            let (behind, groups): (Vec<_>, Vec<_>) =
                of_epoch().partition(|group| self.aside.holds(group.key.as_ref()));
            let mut left = self.write(epoch, groups).await;
            // A few that are refused do not hold up the others; so many do.
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

    /// Writes what was put aside, as far as the database takes it now.
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

    /// Health counts refused verdicts apart: other verdicts are written meanwhile.
    fn report_refused(&self) {
        let refused = self.aside.groups.iter().map(|group| group.range.len()).sum();
        self.engine.monitor.refused(refused);
    }

    /// The relay ends: what is refused now stays as it is in the database, and comes again when its lease runs out.
    async fn end(&mut self) {
        if self.aside.groups.is_empty() {
            return;
        }
        self.try_again().await;
        self.report_refused();
        let store = self.engine.name();
        for group in std::mem::take(&mut self.aside.groups) {
            for Told { settlement: s, .. } in group.told() {
                tracing::error!(store, event = %Escaped(&s.id), "the relay ends without having settled the event: it comes again");
            }
            self.let_go(&group);
        }
    }

    /// Writes groups of one epoch and lets go of their events. Returns those that the database refuses, and with each the later ones of
    /// its key.
    async fn write(&self, epoch: i64, groups: Vec<Group>) -> Vec<Group> {
        let engine = &self.engine;
        if !engine.station.may_settle(epoch) {
            // Another node has led since these were taken.
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
                tracing::error!(store = engine.name(), %error, "could not settle before the relay ends");
                return groups;
            }
            Err(Obstacle::Refused(error)) => error,
        };
        self.write_each(&by, epoch, groups, &error).await
    }

    /// The groups as a whole are refused: writes one by one, so that one bad verdict does not hold up the others.
    async fn write_each(&self, by: &Holder, epoch: i64, groups: Vec<Group>, error: &Error) -> Vec<Group> {
        let engine = &self.engine;
        let groups: Vec<Group> = groups.into_iter().flat_map(Group::split).collect();
        if groups.len() > 1 {
            tracing::warn!(store = engine.name(), %error, "a batch of verdicts was refused, writing them one by one");
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

    /// Writes groups in one go. Tries again for as long as the database is in trouble, and not the verdicts.
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
                // The lease of an event may have run out while this waited, and been claimed again by this node.
                engine.held.update_claims(&mut to_write);
            }
            let error = match engine.store.settle(by, engine.settings.completion, &to_write).await {
                Ok(Settled { moved, wrote }) => {
                    engine.monitor.succeeded(RelayTask::Settle);
                    if wrote {
                        // What follows a join is there to be taken.
                        engine.wake.notify_one();
                    }
                    let stale = (to_write.len() as u64).saturating_sub(moved);
                    if stale > 0 {
                        engine.metrics.stale.increment(stale);
                        tracing::warn!(
                            store = engine.name(),
                            stale,
                            "verdicts came too late: others hold the events"
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

    /// These are written.
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
            // They lie before the place that the taker has come to, and no key leads back to them.
            engine.look_everywhere();
        } else if engine.runs.has_free() {
            engine.wake.notify_one();
        }
    }

    /// These are not this node's to write any more.
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

    /// Whatever becomes of these events is not for this node to say.
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

    /// Has the taker look when what is to be tried again is due.
    fn remind<'a>(&self, told: impl Iterator<Item = &'a Told>) {
        for Told { settlement, .. } in told {
            match &settlement.verdict {
                // What is too far away to be a time is too far away to wait for.
                Verdict::Again { after, .. } => {
                    if let Some(time) = Instant::now().checked_add(*after) {
                        self.engine.alarm.at(time);
                    }
                }
                // What it held back may be free now.
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

    /// However many are said at a time: it is verdicts that are counted, not words.
    #[tokio::test]
    async fn workers_wait_while_many_verdicts_are_unwritten() {
        let (speaker, mut heard) = Speaker::new(1_000);
        for _ in 0..4 {
            speaker.say(done(250)).await;
        }
        assert!(speaker.try_say(done(1)).is_err(), "there is no room");
        let first = heard.recv().await.expect("something was said");
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
