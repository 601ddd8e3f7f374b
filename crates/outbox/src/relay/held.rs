//! What this node holds: every event from the moment it is reserved or taken until its settlement is in the
//! database. No event is in here twice, so none is handled twice at a time.

use std::collections::{HashMap, HashSet};
use std::sync::MutexGuard;
use std::time::Instant;

use super::sync::Mutex;
use crate::event::EventId;
use crate::store::Claim;

/// What tells one hold of an event from another: the claim with leases, the epoch with leadership.
pub(crate) type Tag = i64;

/// The events that this node holds.
#[derive(Default)]
pub(crate) struct Held {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<EventId, Entry>,
    /// Settled since the current read began: that read may have seen them before.
    settled: HashSet<EventId>,
}

struct Entry {
    tag: Tag,
    /// When the lease runs out here, by this process's own clock, counted from before it was asked for. `None`: held
    /// by leadership, not by a lease.
    until: Option<Instant>,
    /// Its transaction is still open. The row is locked by the writer then, and on some databases whoever touches it
    /// waits: it is neither renewed nor given back.
    uncommitted: bool,
    running: bool,
    lost: bool,
}

impl Entry {
    fn new(tag: Tag, until: Option<Instant>) -> Self {
        Self { tag, until, uncommitted: false, running: false, lost: false }
    }
}

impl Held {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no one panics while holding this lock")
    }

    /// Takes an event in, unless it is already here or was settled while it was being read.
    pub(crate) fn admit(&self, id: &EventId, tag: Tag, until: Option<Instant>) -> bool {
        self.take_in(id, Entry::new(tag, until))
    }

    /// Takes an event in that is about to be written, unless it is already here.
    pub(crate) fn reserve(&self, id: &EventId, tag: Tag, until: Option<Instant>) -> bool {
        self.take_in(id, Entry { uncommitted: true, ..Entry::new(tag, until) })
    }

    fn take_in(&self, id: &EventId, entry: Entry) -> bool {
        let mut inner = self.inner();
        let free = !inner.settled.contains(id) && !inner.entries.contains_key(id);
        if free {
            inner.entries.insert(id.clone(), entry);
        }
        free
    }

    /// An event that was reserved is committed.
    pub(crate) fn committed(&self, id: &EventId, tag: Tag) {
        if let Some(entry) = self.inner().entries.get_mut(id).filter(|entry| entry.tag == tag) {
            entry.uncommitted = false;
        }
    }

    /// Takes an event in under a claim that the database has just given. An older claim of ours was lost then.
    pub(crate) fn admit_claimed(&self, id: &EventId, tag: Tag, until: Instant) {
        self.inner().entries.insert(id.clone(), Entry::new(tag, Some(until)));
    }

    /// Whether the event may be handled now, under this claim. Then it counts as running.
    pub(crate) fn start(&self, id: &EventId, tag: Tag, now: Instant) -> bool {
        match self.inner().entries.get_mut(id) {
            Some(entry) if entry.tag == tag && !entry.lost && entry.until.is_none_or(|until| now < until) => {
                entry.running = true;
                true
            }
            _ => false,
        }
    }

    /// Lets events go whose settlement is in the database.
    pub(crate) fn settled<'a>(&self, settled: impl IntoIterator<Item = (&'a EventId, Tag)>, remember: bool) {
        let mut inner = self.inner();
        for (id, tag) in settled {
            if inner.entries.get(id).is_some_and(|entry| entry.tag == tag) {
                inner.entries.remove(id);
            }
            if remember {
                inner.settled.insert(id.clone());
            }
        }
    }

    /// Lets an event go that was never handled.
    pub(crate) fn forget(&self, id: &EventId, tag: Tag) {
        self.settled([(id, tag)], false);
    }

    /// A read of the database begins: whatever was settled before cannot appear in it any more.
    pub(crate) fn begin_read(&self) {
        self.inner().settled.clear();
    }

    /// The leases to renew.
    pub(crate) fn leases(&self) -> Vec<(EventId, Claim)> {
        let inner = self.inner();
        let renewable = |entry: &Entry| entry.until.is_some() && !entry.lost && !entry.uncommitted;
        let leased = inner.entries.iter().filter(|(_, entry)| renewable(entry));
        leased.map(|(id, entry)| (id.clone(), entry.tag as Claim)).collect()
    }

    /// What became of renewing `asked`: those in `kept` last until then, the others are lost. Returns how many were.
    pub(crate) fn renewed(
        &self,
        asked: &[(EventId, Claim)],
        kept: &HashSet<EventId>,
        until: Instant,
    ) -> usize {
        let mut inner = self.inner();
        let mut lost = 0;
        for (id, claim) in asked {
            let Some(entry) = inner.entries.get_mut(id).filter(|entry| entry.tag == Tag::from(*claim)) else {
                continue;
            };
            if kept.contains(id) {
                entry.until = Some(until);
            } else {
                entry.lost = true;
                lost += 1;
            }
        }
        lost
    }

    /// Everything held that no handler is at, or simply everything.
    pub(crate) fn remaining(&self, with_running: bool) -> Vec<(EventId, Claim)> {
        let inner = self.inner();
        let committed = inner.entries.iter().filter(|(_, entry)| !entry.uncommitted);
        let remaining = committed.filter(|(_, entry)| with_running || !entry.running);
        remaining.map(|(id, entry)| (id.clone(), entry.tag as Claim)).collect()
    }

    /// Lets go of everything: the right to it is lost.
    pub(crate) fn clear(&self) {
        *self.inner() = Inner::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.inner().entries.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_held_is_not_admitted_again() {
        let held = Held::default();
        let id = EventId::generate();
        assert!(held.admit(&id, 0, None));
        assert!(!held.admit(&id, 0, None));
        held.forget(&id, 0);
        assert!(held.admit(&id, 0, None));
    }

    /// A poll that began before a settlement was committed still sees the row.
    #[test]
    fn what_was_settled_during_a_read_is_not_admitted_by_it() {
        let held = Held::default();
        let id = EventId::generate();
        held.begin_read();
        assert!(held.admit(&id, 0, None));
        held.settled([(&id, 0)], true);
        assert!(!held.admit(&id, 0, None), "the read may be older than the settlement");
        held.begin_read();
        assert!(held.admit(&id, 0, None), "a later read is not");
    }

    #[test]
    fn a_lease_that_ran_out_or_was_lost_starts_nothing() {
        let held = Held::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(30);
        let (a, b) = (EventId::generate(), EventId::generate());
        held.admit(&a, 1, Some(now));
        held.admit(&b, 1, Some(later));
        assert!(!held.start(&a, 1, now));
        assert!(!held.start(&b, 2, now), "another claim");
        assert!(held.start(&b, 1, now));

        let asked = held.leases();
        assert_eq!(held.renewed(&asked, &HashSet::from([a.clone()]), later), 1);
        assert!(held.start(&a, 1, now), "renewed");
        assert!(!held.start(&b, 1, now), "lost");
    }

    #[test]
    fn an_old_claim_does_not_settle_a_new_one() {
        let held = Held::default();
        let id = EventId::generate();
        let until = Instant::now() + Duration::from_secs(30);
        held.admit_claimed(&id, 1, until);
        held.admit_claimed(&id, 2, until);
        held.settled([(&id, 1)], false);
        assert_eq!(held.len(), 1);
    }
}
