//! Settling: one task writes verdicts to the database, in batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use super::tally::Subject;
use super::{Engine, tag};
use crate::error::Error;
use crate::store::{Holder, Settled, Settlement, Verdict};

/// A batch is full with this many verdicts. What was said together is written together, so it may have some more.
const BATCH: usize = 2_000;

/// How long a database may refuse all verdicts before their events are let go, and so handled again: it may be
/// read-only for a while, or full.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// The same for some verdicts when others were taken.
const REFUSED_ALONE: Duration = Duration::from_millis(500);

/// What became of an event.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) settlement: Settlement,
    /// Whether it is in the database already: the handler's own transaction settled it.
    pub(crate) written: bool,
    /// The event, if it is to be counted and could be decoded.
    pub(crate) subject: Option<Subject>,
}

impl Told {
    pub(crate) fn to_write(settlement: Settlement) -> Self {
        Self { settlement, written: false, subject: None }
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
        /// Their ordering key.
        key: Option<Arc<str>>,
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

/// Verdicts of one kind, and what each is about.
#[derive(Default)]
struct Verdicts {
    settlements: Vec<Settlement>,
    subjects: Vec<Option<Subject>>,
}

impl Verdicts {
    fn add(&mut self, told: Told) {
        self.settlements.push(told.settlement);
        self.subjects.push(told.subject);
    }

    fn extend(&mut self, others: Self) {
        self.settlements.extend(others.settlements);
        self.subjects.extend(others.subjects);
    }
}

/// How many verdicts there are.
fn verdicts(batch: &[Spoken]) -> usize {
    batch.iter().map(Spoken::len).sum()
}

/// The settling task.
pub(crate) struct Settler {
    engine: Arc<Engine>,
    heard: mpsc::UnboundedReceiver<Spoken>,
}

impl Settler {
    pub(crate) fn new(engine: Arc<Engine>, heard: mpsc::UnboundedReceiver<Spoken>) -> Self {
        Self { engine, heard }
    }

    pub(crate) async fn run(mut self) {
        while let Some(first) = self.heard.recv().await {
            let mut batch = vec![first];
            self.fill(&mut batch);
            self.linger(&mut batch).await;
            let last = batch.iter().any(|spoken| matches!(spoken, Spoken::Last));
            let sizes: Vec<u32> = batch.iter().map(|spoken| self.engine.settler.size(spoken)).collect();
            let waiting = self.settle(batch).await;
            drop(waiting);
            sizes.into_iter().for_each(|size| self.engine.settler.written(size));
            self.engine.progress.notify_waiters();
            if last {
                return;
            }
        }
    }

    /// Adds what has been said, until the batch is full.
    fn fill(&mut self, batch: &mut Vec<Spoken>) {
        let mut verdicts = verdicts(batch);
        while verdicts < BATCH
            && let Ok(spoken) = self.heard.try_recv()
        {
            verdicts += spoken.len();
            batch.push(spoken);
        }
    }

    /// Gives verdicts that can wait a few milliseconds of company: one write for many costs the database far less than
    /// many writes, and the handlers have long gone on.
    async fn linger(&mut self, batch: &mut Vec<Spoken>) {
        let enough = self.engine.settler.enough();
        let over = tokio::time::sleep(self.engine.settings.linger);
        tokio::pin!(over);
        // Being told to hurry may be about what was written since: then there is time.
        while verdicts(batch) < enough && batch.iter().all(Spoken::can_wait) {
            let in_time = tokio::select! {
                () = &mut over => false,
                () = self.engine.settler.hurry.notified() => true,
            };
            self.fill(batch);
            if !in_time {
                return;
            }
        }
    }

    /// Writes a batch and lets go of its events. Returns those who wait for that.
    async fn settle(&self, batch: Vec<Spoken>) -> Vec<oneshot::Sender<()>> {
        let engine = &self.engine;
        // Those to write, and those that are written.
        let mut by_epoch: HashMap<i64, (Verdicts, Verdicts)> = HashMap::new();
        let (mut keys, mut waiting) = (Vec::new(), Vec::new());
        let mut given_back = false;
        for spoken in batch {
            let count = spoken.len();
            let (told, epoch, key, halted) = match spoken {
                Spoken::Verdicts { told, epoch, key, halted, .. } => (told, epoch, key, halted),
                Spoken::Waiting(waiter) => {
                    waiting.push(waiter);
                    continue;
                }
                Spoken::Last => continue,
            };
            given_back |=
                key.is_none() && told.iter().any(|told| told.settlement.verdict == Verdict::Released);
            keys.extend(key.map(|key| (key, count, halted)));
            let (to_write, written) = by_epoch.entry(epoch).or_default();
            for told in told {
                if told.written { written.add(told) } else { to_write.add(told) }
            }
        }
        for (epoch, (mut verdicts, written)) in by_epoch {
            if !engine.station.covers(epoch) {
                // Taken when this node still led: it does not speak for these any more. If it leads again in the same
                // epoch, they are read again.
                engine.metrics.stale.increment(verdicts.settlements.len() as u64);
                let all = verdicts.settlements.iter().chain(&written.settlements);
                engine.held.settled(all.map(|s| (&s.id, tag(epoch, s.claim))), false);
                self.count(&written);
                continue;
            }
            let by = engine.station.holder_in(epoch);
            self.write(&by, &verdicts.settlements).await;
            verdicts.extend(written);
            let exclusive = engine.station.is_exclusive();
            let settled = verdicts.settlements.iter().map(|s| (&s.id, tag(epoch, s.claim)));
            engine.held.settled(settled, exclusive);
            self.count(&verdicts);
            self.remind(&verdicts.settlements);
        }
        engine.runs.settled(keys);
        if given_back {
            // They lie before the place that the taker has come to, and no key leads back to them.
            engine.look_everywhere();
        } else if engine.runs.has_free() {
            engine.wake.notify_one();
        }
        waiting
    }

    /// Writes until it is written, or until the right to write is gone.
    async fn write(&self, by: &Holder, settlements: &[Settlement]) {
        let engine = &self.engine;
        // With leadership memory alone knows what was given back: there is nothing to write.
        let mut to_write: Vec<Settlement> = settlements
            .iter()
            .filter(|s| matches!(by, Holder::Lease { .. }) || s.verdict != Verdict::Released)
            .cloned()
            .collect();
        if to_write.is_empty() {
            return;
        }
        let began = Instant::now();
        let mut patience = REFUSED_FOR;
        let mut pause = Duration::from_millis(20);
        loop {
            let error = match engine.store.settle(by, engine.settings.completion, &to_write).await {
                Ok(Settled { moved, wrote }) => {
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
                    return;
                }
                Err(error) => error,
            };
            if !error.is_transient() && to_write.len() > 1 {
                let all = to_write.len();
                to_write = self.write_each(by, to_write, &error).await;
                if to_write.len() < all {
                    // It is not the database that is in trouble but these verdicts: the others should not wait long.
                    patience = REFUSED_ALONE;
                }
            }
            let give_up = if error.is_transient() {
                engine.stop.is_cancelled() && began.elapsed() > engine.settings.drain
            } else {
                began.elapsed() > patience
            };
            if to_write.is_empty() || engine.station.holder().is_none() {
                return;
            }
            if give_up {
                tracing::error!(store = engine.name(), %error, "gave up settling: the events will come again");
                return;
            }
            tracing::warn!(store = engine.name(), %error, count = to_write.len(), "could not settle, trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// The batch as a whole is refused: writes one by one, so that one bad verdict does not hold up the others.
    /// Returns what was refused.
    async fn write_each(&self, by: &Holder, settlements: Vec<Settlement>, error: &Error) -> Vec<Settlement> {
        let engine = &self.engine;
        tracing::error!(store = engine.name(), %error, "a batch of verdicts was refused, writing them one by one");
        let mut refused = Vec::new();
        for settlement in settlements {
            let one = std::slice::from_ref(&settlement);
            match engine.store.settle(by, engine.settings.completion, one).await {
                Ok(Settled { wrote: false, .. }) => {}
                Ok(Settled { wrote: true, .. }) => engine.wake.notify_one(),
                Err(error) => {
                    tracing::error!(store = engine.name(), event = %settlement.id, %error, "could not settle");
                    refused.push(settlement);
                }
            }
        }
        refused
    }

    fn count(&self, verdicts: &Verdicts) {
        self.engine.tally.add(&verdicts.settlements, &verdicts.subjects);
        let metrics = &self.engine.metrics;
        let (mut done, mut again, mut deferred, mut dead) = (0, 0, 0, 0);
        for settlement in &verdicts.settlements {
            match &settlement.verdict {
                Verdict::Done => done += 1,
                Verdict::Again { counted: true, .. } => again += 1,
                Verdict::Again { counted: false, .. } => deferred += 1,
                Verdict::Dead { .. } => dead += 1,
                Verdict::Released => {}
            }
        }
        metrics.success.increment(done);
        metrics.failure.increment(again);
        metrics.deferred.increment(deferred);
        metrics.dead.increment(dead);
    }

    /// Has the taker look when what is to be tried again is due.
    fn remind(&self, settlements: &[Settlement]) {
        for settlement in settlements {
            match &settlement.verdict {
                // What is too far away to be a time is too far away to wait for.
                Verdict::Again { after, .. } => {
                    if let Some(time) = Instant::now().checked_add(*after) {
                        self.engine.alarm.at(time);
                    }
                }
                // What it held back may be free now.
                Verdict::Dead { .. } => self.engine.wake.notify_one(),
                Verdict::Done | Verdict::Released => {}
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
