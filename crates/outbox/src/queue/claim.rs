//! Claiming: leases windows of rows until the batch is full, and releases rows that may not be
//! handed out.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{WorkItem, WorkQueue};
use crate::error::Result;
use crate::escape::Escaped;
use crate::event::{Event, EventId};
use crate::poison::{self, Admission};
use crate::store::{Claim, EXCLUSIVE, Holder, NodeId, OnDead, Origin, Settlement, Take, Taken, Verdict};

/// Maximum window. Behind blocked rows the windows grow up to this size, so that a small batch
/// finds items far behind them.
const MAX_WINDOW: usize = 500;

/// Maximum number of bytes per window.
const MAX_WINDOW_BYTES: usize = 64 << 20;

/// Maximum number of windows with suspects that have to wait: each of their rows is leased and
/// released.
const SUSPECT_WINDOWS: u32 = 4;

/// Interval at which an empty queue checks whether a relay holds the whole table.
const HOLDER_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Checks whether a queue is empty because a relay holds the whole table.
#[derive(Default)]
pub(super) struct HolderCheck(Mutex<HolderCheckState>);

#[derive(Default)]
struct HolderCheckState {
    checked_at: Option<Instant>,
    reported: bool,
}

impl HolderCheck {
    fn is_due(&self) -> bool {
        let mut state = self.0.lock().expect("no panic while this lock is held");
        let due = !state.reported && state.checked_at.is_none_or(|at| at.elapsed() >= HOLDER_CHECK_INTERVAL);
        if due {
            state.checked_at = Some(Instant::now());
        }
        due
    }

    /// Whether the holder has not been reported before.
    fn report_once(&self) -> bool {
        let mut state = self.0.lock().expect("no panic while this lock is held");
        !std::mem::replace(&mut state.reported, true)
    }
}

/// A claim in progress.
struct Claiming<'a> {
    queue: &'a WorkQueue,
    by: Holder,
    batch: usize,
    items: Vec<WorkItem>,
    /// `None` without a suspect among the items; else whether the suspect must be alone.
    suspect: Option<bool>,
}

/// Rows of a window that are not handed out, to be settled or released.
#[derive(Default)]
struct Withheld {
    settlements: Vec<Settlement>,
    /// Suspects that are released as suspects.
    suspects: Vec<(EventId, Claim)>,
    /// Keys of which an event is released or dead: their later events wait.
    blocked_keys: HashSet<String>,
}

impl Withheld {
    fn settle(&mut self, id: &EventId, claim: Claim, verdict: Verdict) {
        self.settlements.push(Settlement { id: id.clone(), claim, verdict });
    }

    fn block_key(&mut self, event: &Event) {
        self.blocked_keys.extend(event.ordering_key().map(str::to_owned));
    }

    fn dead_letter(&mut self, event: &Event, claim: Claim, reason: String, on_dead: OnDead) {
        self.settle(event.id(), claim, Verdict::Dead { counted: false, reason });
        if on_dead == OnDead::Hold {
            self.block_key(event);
        }
    }
}

impl WorkQueue {
    /// Claims items until the batch is full or no more are due.
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
                // Items that are already claimed are returned rather than left to their lease.
                Err(error) if !claiming.items.is_empty() => {
                    tracing::warn!(store = self.store.name(), %error, "could not claim a full batch");
                    break;
                }
                Err(error) => return Err(error),
            };
            let (scanned, cursor) = (taken.scanned, taken.cursor);
            if first && scanned == 0 {
                self.warn_if_table_is_held().await;
            }
            let before = claiming.items.len();
            let withheld = claiming.sort(taken).await;
            suspect_windows += u32::from(!withheld.suspects.is_empty());
            claiming.write_back(withheld).await;
            let missing = batch - claiming.items.len();
            let Some(cursor) = cursor.filter(|_| scanned >= limit && missing > 0) else { break };
            if suspect_windows >= SUSPECT_WINDOWS {
                break;
            }
            let mostly_withheld = (claiming.items.len() - before) * 2 < scanned;
            limit = if mostly_withheld { missing.max((limit * 2).min(MAX_WINDOW)) } else { missing };
            from = Origin::After(cursor);
        }
        Ok(claiming.items)
    }

    /// Warns once that a relay holds the whole table, so that nothing can be claimed from it.
    async fn warn_if_table_is_held(&self) {
        if !self.holder_check.is_due() {
            return;
        }
        match self.store.leader(EXCLUSIVE).await {
            Ok(Some(holder)) if self.holder_check.report_once() => tracing::warn!(
                store = self.store.name(), %holder,
                "nothing can be claimed: a single_node relay holds this outbox; use multi_node beside a work queue"
            ),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(store = self.store.name(), %error, "could not read the holder of the outbox");
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
            held_up_to: HashMap::new(),
            // Every process with the owner's name may settle claimed items, not only this store
            // instance.
            group_lease: false,
            max_bytes: MAX_WINDOW_BYTES,
            by_aggregate: false,
        }
    }

    /// Adds the rows that may be handed out to the items, and withholds the others.
    async fn sort(&mut self, taken: Taken) -> Withheld {
        let (store, on_dead) = (&*self.queue.store, self.queue.on_dead);
        let mut withheld = Withheld::default();
        let undecodable = !taken.undecodable.is_empty();
        for (id, claim, reason) in taken.undecodable {
            tracing::error!(store = store.name(), event = %Escaped(&id), reason, "an event cannot be decoded");
            let reason = format!("cannot be decoded: {reason}");
            withheld.settle(&id, claim, Verdict::Dead { counted: false, reason });
        }
        for delivery in taken.deliveries {
            let (event, claim) = (&delivery.event, delivery.claim);
            let key = event.ordering_key();
            // The key of an undecodable event is unknown: events with keys wait until it is dead.
            let waits = key.is_some_and(|key| undecodable || withheld.blocked_keys.contains(key));
            let too_many = delivery.suspect.is_some()
                && self.suspect.is_some_and(|alone| alone || delivery.must_run_alone());
            if waits || self.items.len() >= self.batch || too_many {
                if delivery.suspect.is_some() {
                    withheld.suspects.push((event.id().clone(), claim));
                } else {
                    withheld.settle(event.id(), claim, Verdict::Released);
                }
                withheld.block_key(event);
                continue;
            }
            if delivery.expires_in.is_some_and(|left| left <= chrono::Duration::zero()) {
                tracing::error!(store = store.name(), event = %Escaped(event.id()), event_type = %Escaped(event.event_type()), "event is dead: expired");
                withheld.dead_letter(event, claim, "expired".to_owned(), on_dead);
                continue;
            }
            if delivery.suspect.is_some() {
                match poison::start(store, &self.by, event.id(), claim).await {
                    Admission::Run => self.suspect = Some(delivery.must_run_alone()),
                    Admission::DeadLetter(reason) => {
                        withheld.dead_letter(event, claim, reason, on_dead);
                        continue;
                    }
                    Admission::Skip => {
                        withheld.suspects.push((event.id().clone(), claim));
                        withheld.block_key(event);
                        continue;
                    }
                }
            }
            self.items.push(WorkItem::new(delivery));
        }
        withheld
    }

    /// Settles or releases withheld rows. A row whose settlement fails is free again when its lease
    /// expires.
    async fn write_back(&self, withheld: Withheld) {
        let store = &*self.queue.store;
        if !withheld.settlements.is_empty() {
            match store.settle(&self.by, self.queue.completion, &withheld.settlements).await {
                // A dead step may close its join.
                Ok(settled) => self.queue.wake_if(settled.wrote),
                Err(error) => {
                    tracing::warn!(store = store.name(), %error, "could not release withheld work items: their leases have to expire");
                }
            }
        }
        // A lease of zero is an expired one: the row is free and still suspect, which a release
        // would clear.
        if !withheld.suspects.is_empty()
            && let Err(error) = store.extend(self.by.owner(), Duration::ZERO, &withheld.suspects).await
        {
            tracing::warn!(store = store.name(), %error, "could not release withheld work items: their leases have to expire");
        }
    }
}
