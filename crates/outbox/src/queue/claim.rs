//! Claiming: windows of rows are leased until the batch is full, and what may not be handed out goes back.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{WorkItem, WorkQueue};
use crate::error::Result;
use crate::escape::Escaped;
use crate::event::{Event, EventId};
use crate::poison::{self, Start};
use crate::store::{Claim, EXCLUSIVE, Holder, NodeId, OnDead, Origin, Settlement, Take, Taken, Verdict};

/// Behind rows that cannot be had, windows grow up to this, so that a small batch finds what is far behind.
const WIDEST: usize = 500;

/// How many bytes one window may bring.
const MOST_BYTES: usize = 64 << 20;

/// How many windows with suspects that have to wait a claim goes past: each of their rows is leased and given back.
const SUSPECT_WINDOWS: u32 = 4;

/// How often an empty queue looks whether a relay holds the whole table.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Finds out why a queue is empty.
#[derive(Default)]
pub(super) struct Lookout(Mutex<Looked>);

#[derive(Default)]
struct Looked {
    at: Option<Instant>,
    told: bool,
}

impl Lookout {
    fn is_due(&self) -> bool {
        let mut looked = self.0.lock().expect("no one panics while holding this lock");
        let due = !looked.told && looked.at.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if due {
            looked.at = Some(Instant::now());
        }
        due
    }

    /// Whether it is news that somebody holds the table.
    fn tell(&self) -> bool {
        let mut looked = self.0.lock().expect("no one panics while holding this lock");
        !std::mem::replace(&mut looked.told, true)
    }
}

/// A claim under way.
struct Claiming<'a> {
    queue: &'a WorkQueue,
    by: Holder,
    batch: usize,
    items: Vec<WorkItem>,
    /// Whether there is a suspect among the items, and then whether it is there alone.
    suspect: Option<bool>,
}

/// What a window gave beside items, to be written back.
#[derive(Default)]
struct Aside {
    settlements: Vec<Settlement>,
    /// Suspects that are given back as suspects.
    suspects: Vec<(EventId, Claim)>,
    /// Keys of which one event goes back or is dead: the later ones wait.
    halted: HashSet<String>,
}

impl Aside {
    fn settle(&mut self, id: &EventId, claim: Claim, verdict: Verdict) {
        self.settlements.push(Settlement { id: id.clone(), claim, verdict });
    }

    fn halt(&mut self, event: &Event) {
        self.halted.extend(event.ordering_key().map(str::to_owned));
    }

    fn bury(&mut self, event: &Event, claim: Claim, reason: String, on_dead: OnDead) {
        self.settle(event.id(), claim, Verdict::Dead { counted: false, reason });
        if on_dead == OnDead::Hold {
            self.halt(event);
        }
    }
}

impl WorkQueue {
    /// Claims items until the batch is full or nothing more is due.
    pub(super) async fn fill(&self, owner: &NodeId, lease: Duration, batch: usize) -> Result<Vec<WorkItem>> {
        let by = Holder::Lease { owner: owner.clone(), lease };
        let mut claiming = Claiming { queue: self, by, batch, items: Vec::new(), suspect: None };
        let mut from = Origin::Start;
        let mut limit = batch;
        let mut suspect_windows = 0;
        loop {
            let first = from == Origin::Start;
            let taken = match self.store.take(&claiming.take(from, limit)).await {
                Ok(taken) => taken,
                // What is claimed is claimed: it is better handed out than left to its lease.
                Err(error) if !claiming.items.is_empty() => {
                    tracing::warn!(store = self.store.name(), %error, "claimed less than there may be");
                    break;
                }
                Err(error) => return Err(error),
            };
            let (scanned, cursor) = (taken.scanned, taken.cursor);
            if first && scanned == 0 {
                self.look_for_a_holder().await;
            }
            let before = claiming.items.len();
            let aside = claiming.sort(taken).await;
            suspect_windows += u32::from(!aside.suspects.is_empty());
            claiming.write_back(aside).await;
            let room = batch - claiming.items.len();
            let Some(cursor) = cursor.filter(|_| scanned >= limit && room > 0) else { break };
            if suspect_windows >= SUSPECT_WINDOWS {
                break;
            }
            let vain = (claiming.items.len() - before) * 2 < scanned;
            limit = if vain { room.max((limit * 2).min(WIDEST)) } else { room };
            from = Origin::After(cursor);
        }
        Ok(claiming.items)
    }

    /// Says once that a relay holds the whole table, so that nothing can be claimed from it.
    async fn look_for_a_holder(&self) {
        if !self.lookout.is_due() {
            return;
        }
        match self.store.leader(EXCLUSIVE).await {
            Ok(Some(holder)) if self.lookout.tell() => tracing::warn!(
                store = self.store.name(), %holder,
                "nothing can be claimed: a single_node relay holds this outbox; use multi_node beside a work queue"
            ),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(store = self.store.name(), %error, "could not see who holds the outbox");
            }
        }
    }
}

impl Claiming<'_> {
    fn take(&self, from: Origin, limit: usize) -> Take {
        Take {
            by: self.by.clone(),
            from,
            limit,
            skip_recent: Duration::ZERO,
            on_dead: self.queue.on_dead,
            skip_types: Vec::new(),
            only: None,
            probe: None,
            destinations: Default::default(),
            frontiers: HashMap::new(),
            // Whoever has the owner's name may settle what was claimed.
            together: false,
            max_bytes: MOST_BYTES,
            by_aggregate: false,
        }
    }

    /// Adds to the items what may be handed out, and puts the rest aside.
    async fn sort(&mut self, taken: Taken) -> Aside {
        let (store, on_dead) = (&*self.queue.store, self.queue.on_dead);
        let mut aside = Aside::default();
        let undecodable = !taken.undecodable.is_empty();
        for (id, claim, reason) in taken.undecodable {
            tracing::error!(store = store.name(), event = %Escaped(&id), reason, "an event cannot be decoded");
            let reason = format!("cannot be decoded: {reason}");
            aside.settle(&id, claim, Verdict::Dead { counted: false, reason });
        }
        for delivery in taken.deliveries {
            let (event, claim) = (&delivery.event, delivery.claim);
            let key = event.ordering_key();
            // Beside one that cannot be decoded any key may be its key: they are had when it is dead.
            let waits = key.is_some_and(|key| undecodable || aside.halted.contains(key));
            let too_many = delivery.suspect.is_some()
                && self.suspect.is_some_and(|alone| alone || delivery.goes_alone());
            if waits || self.items.len() >= self.batch || too_many {
                if delivery.suspect.is_some() {
                    aside.suspects.push((event.id().clone(), claim));
                } else {
                    aside.settle(event.id(), claim, Verdict::Released);
                }
                aside.halt(event);
                continue;
            }
            if delivery.expires_in.is_some_and(|left| left <= chrono::Duration::zero()) {
                tracing::error!(store = store.name(), event = %Escaped(event.id()), event_type = %Escaped(event.event_type()), "event is dead: expired");
                aside.bury(event, claim, "expired".to_owned(), on_dead);
                continue;
            }
            if delivery.suspect.is_some() {
                match poison::start(store, &self.by, event.id(), claim).await {
                    Start::Go => self.suspect = Some(delivery.goes_alone()),
                    Start::Bury(reason) => {
                        aside.bury(event, claim, reason, on_dead);
                        continue;
                    }
                    Start::Leave => {
                        aside.suspects.push((event.id().clone(), claim));
                        aside.halt(event);
                        continue;
                    }
                }
            }
            self.items.push(WorkItem::new(delivery));
        }
        aside
    }

    /// Writes what was put aside. What cannot be written is free again when its lease runs out.
    async fn write_back(&self, aside: Aside) {
        let store = &*self.queue.store;
        if !aside.settlements.is_empty() {
            match store.settle(&self.by, self.queue.completion, &aside.settlements).await {
                // A step that is dead may end its join.
                Ok(settled) => self.queue.wake_if(settled.wrote),
                Err(error) => {
                    tracing::warn!(store = store.name(), %error, "could not give back what was claimed: it waits for its lease");
                }
            }
        }
        // A lease of no time is one that has run out: free, and still suspect, which a release would forget.
        if !aside.suspects.is_empty()
            && let Err(error) = store.extend(self.by.owner(), Duration::ZERO, &aside.suspects).await
        {
            tracing::warn!(store = store.name(), %error, "could not give back what was claimed: it waits for its lease");
        }
    }
}
