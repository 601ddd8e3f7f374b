//! The table as it should be: a list of rows and a few `if`s.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::store::{Claim, Filter, Holder, Origin, Reach, RunId, Settlement, Take, Verdict};
use outbox::{Completion, EventId, NodeId, OnDead, Status};

use crate::steps::Apart;

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub id: EventId,
    pub seq: i64,
    pub event_type: String,
    pub key: Option<Arc<str>>,
    pub dedup: Option<String>,
    pub expires_at: Option<DateTime<Utc>>,
    pub status: Status,
    pub attempts: u32,
    pub created_at: DateTime<Utc>,
    pub available_at: DateTime<Utc>,
    pub done_at: Option<DateTime<Utc>>,
    pub done_by: Option<NodeId>,
    pub last_error: Option<String>,
    pub locked_by: Option<NodeId>,
    pub locked_until: Option<DateTime<Utc>>,
    /// The list that it is leased by, until that is taken away.
    pub list: Option<usize>,
    pub claims: Claim,
    pub crashes: u32,
    /// The attempts that failed: how many there had been, whose it was, whether the event died of it, and why.
    pub history: Vec<(u32, NodeId, bool, String)>,
}

impl Row {
    pub fn unlock(&mut self) {
        self.locked_by = None;
        self.locked_until = None;
        self.list = None;
    }
}

/// A lease of many events at once.
#[derive(Clone, Debug)]
pub struct List {
    pub owner: NodeId,
    pub until: DateTime<Utc>,
    /// It ran out, and was taken away.
    pub over: bool,
}

/// The lease on the whole table.
#[derive(Clone, Debug, Default)]
pub struct Lead {
    pub holder: Option<NodeId>,
    pub epoch: i64,
    pub until: Option<DateTime<Utc>>,
}

/// What some taker believes to hold.
#[derive(Clone, Debug)]
pub struct Taken {
    pub id: EventId,
    pub claim: Claim,
    pub by: Holder,
    /// The list that it came with.
    pub list: Option<usize>,
    /// Whether its taker has told what became of it.
    pub told: bool,
}

/// The events of a key that a relay believes to have in hand, as it remembers them: it does not know what it has lost.
///
/// What dead events do to a key, and which events go to different destinations, are settings of a relay: one that is asked with
/// several is like several.
#[derive(Clone, Debug)]
pub struct Run {
    pub owner: NodeId,
    pub settings: (OnDead, Apart),
    pub id: RunId,
    /// Everything of the run up to here is in it, or was.
    pub frontier: Reach,
    /// What it has not told the verdict of.
    pub left: Vec<(EventId, Claim)>,
}

impl Run {
    pub fn is(&self, owner: &NodeId, settings: (OnDead, Apart)) -> bool {
        self.owner == *owner && self.settings == settings
    }

    /// This owner has just taken this row.
    pub fn join(runs: &mut Vec<Run>, owner: &NodeId, settings: (OnDead, Apart), row: &Row) {
        let key = row.key.clone().expect("only keys have runs");
        let destination = settings.1.destinations().get(&row.event_type).copied();
        let mut of_key = runs.iter().filter(|run| run.is(owner, settings) && run.id.key == key);
        // As long as one of a key may go anywhere, all of the key is one run.
        let whole = of_key.clone().any(|run| run.id.destination.is_none());
        if !whole && destination.is_none() && of_key.next().is_some() {
            // What may go anywhere does not join those that go to one destination: a relay gives it back.
            return;
        }
        let id = RunId { key, destination: destination.filter(|_| !whole) };
        let i = runs.iter().position(|run| run.is(owner, settings) && run.id == id).unwrap_or_else(|| {
            let frontier = Reach { seq: 0, together: true };
            runs.push(Run { owner: owner.clone(), settings, id, frontier, left: Vec::new() });
            runs.len() - 1
        });
        let run = &mut runs[i];
        run.frontier.seq = run.frontier.seq.max(row.seq);
        run.frontier.together &= row.claims == 0;
        run.left.push((row.id.clone(), row.claims));
    }

    /// Its owner has told verdicts, in time or not. A run is over when all of it is done, or one of it is not.
    pub fn settle(runs: &mut Vec<Run>, owner: &NodeId, settlements: &[Settlement]) {
        for s in settlements {
            let told = |left: &(EventId, Claim)| left.0 == s.id && left.1 == s.claim;
            let is_it = |run: &Run| run.owner == *owner && run.left.iter().any(told);
            let Some(i) = runs.iter().position(is_it) else { continue };
            runs[i].left.retain(|left| !told(left));
            if runs[i].left.is_empty() || s.verdict != Verdict::Done {
                runs.remove(i);
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Model {
    pub rows: Vec<Row>,
    /// All that there ever were.
    pub lists: Vec<List>,
    pub lead: Lead,
}

impl Model {
    /// Who holds a row and until when, or did so last.
    pub fn lease<'a>(&'a self, row: &'a Row) -> Option<(&'a NodeId, DateTime<Utc>)> {
        match row.list {
            Some(list) => Some((&self.lists[list].owner, self.lists[list].until)),
            None => row.locked_by.as_ref().zip(row.locked_until),
        }
    }

    /// Pending, and nobody holds it.
    pub fn is_free(&self, row: &Row, now: DateTime<Utc>) -> bool {
        row.status.is_pending() && self.lease(row).is_none_or(|(_, until)| until <= now)
    }

    /// Takes away lists that ran out. What is left of them is leased by its rows from then on, and suspect.
    pub fn reap_lists(&mut self, now: DateTime<Utc>) {
        for list in self.lists.iter_mut().filter(|list| list.until <= now) {
            list.over = true;
        }
        for row in &mut self.rows {
            if row.list.is_some_and(|list| self.lists[list].over) {
                row.list = None;
                row.claims += 1;
                row.locked_until = Some(now);
            }
        }
    }

    /// Takes keys away from every other holder, since one of their events was taken over. A holder that stalled past its lease
    /// may still have later events of the key, and must not settle them before the event that was taken over.
    ///
    /// An event whose lease ran out is fenced once.
    pub fn fence(&mut self, keys: &HashSet<Arc<str>>, taker: &NodeId, now: DateTime<Utc>) {
        let is_fenced = |row: &&mut Row| {
            row.status.is_pending() && row.key.as_ref().is_some_and(|key| keys.contains(key))
        };
        let mut unlisted = HashSet::new();
        for row in self.rows.iter_mut().filter(is_fenced) {
            match row.list {
                Some(list) if self.lists[list].owner != *taker => {
                    unlisted.insert(list);
                }
                None if row.locked_until.is_some_and(|until| until > DateTime::UNIX_EPOCH)
                    && row.locked_by.as_ref() != Some(taker) =>
                {
                    row.claims += 1;
                    if row.locked_until.is_some_and(|until| until <= now) {
                        (row.locked_by, row.locked_until) = (None, Some(DateTime::UNIX_EPOCH));
                    }
                }
                _ => {}
            }
        }
        for list in unlisted {
            let List { owner, until, over } = &mut self.lists[list];
            *over = true;
            for row in self.rows.iter_mut().filter(|row| row.list == Some(list)) {
                row.list = None;
                row.claims += 2;
                row.locked_by = Some(owner.clone());
                row.locked_until = Some(*until);
            }
        }
    }

    /// Whether two events of a key are delivered in order: they go to the same destination, or one of them may go anywhere.
    pub fn is_ordered(take: &Take, one: &Row, other: &Row) -> bool {
        match (take.destinations.get(&one.event_type), take.destinations.get(&other.event_type)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }

    /// Whether a row is not in the way of a later one, because the taker has it in hand already. A lease that ran out is no such
    /// hold.
    pub fn is_in_hand(&self, row: &Row, later: &Row, take: &Take, now: DateTime<Utc>) -> bool {
        let destination = take.destinations.get(&later.event_type).copied();
        let ids =
            [destination, None].map(|destination| RunId { key: later.key.clone().unwrap(), destination });
        ids.iter().filter_map(|id| take.frontiers.get(id)).any(|reach| row.seq <= reach.seq)
            && match &take.by {
                Holder::Lease { owner, .. } => {
                    row.status.is_pending()
                        && self.lease(row).is_some_and(|(by, until)| by == owner && until > now)
                }
                Holder::Exclusive { .. } => true,
            }
    }

    /// The rows that a take looks at, and those of them that it may have.
    pub fn take(&self, take: &Take, now: DateTime<Utc>) -> (Vec<usize>, Vec<usize>) {
        let open = match &take.by {
            Holder::Lease { .. } => self.lead.until.is_none_or(|until| until <= now),
            Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch),
        };
        let mut window: Vec<usize> = (0..self.rows.len())
            .filter(|i| {
                let row = &self.rows[*i];
                // Whoever has a list may settle what is in it until it is taken away, which a reader does not do.
                open && self.is_free(row, now)
                    && row.list.is_none()
                    && row.available_at <= now
                    && row.created_at <= now - take.skip_recent
                    && !take.skip_types.contains(&row.event_type)
                    && take.only.as_ref().is_none_or(|only| only.takes(&row.event_type, "any"))
                    && match &take.from {
                        Origin::Start => true,
                        Origin::After(cursor) => (row.available_at, row.seq) > (cursor.at, cursor.seq),
                        Origin::Keys(keys) => row.key.as_ref().is_some_and(|key| keys.contains(key)),
                    }
            })
            .collect();
        if let Origin::Keys(keys) = &take.from {
            // Each key has its share of the limit.
            let share = take.limit / keys.iter().collect::<HashSet<_>>().len();
            let mut left: HashMap<_, _> = keys.iter().map(|key| (key, share.max(1))).collect();
            window.retain(|i| {
                let left = self.rows[*i].key.as_ref().and_then(|key| left.get_mut(key)).unwrap();
                let taken = *left > 0;
                *left = left.saturating_sub(1);
                taken
            });
        } else {
            window.sort_by_key(|i| (self.rows[*i].available_at, self.rows[*i].seq));
            window.truncate(take.limit);
        }
        // In the order of the table: what is left out is in the way of what comes behind it.
        let mut order = window.clone();
        order.sort_by_key(|i| self.rows[*i].seq);
        let mut taken: Vec<usize> = Vec::new();
        for i in order {
            let row = &self.rows[i];
            let in_the_way = |(j, other): (usize, &Row)| {
                let blocks = match take.on_dead {
                    OnDead::Hold => other.status != Status::Done,
                    OnDead::Skip => other.status.is_pending(),
                };
                other.key == row.key
                    && other.seq < row.seq
                    && blocks
                    && Self::is_ordered(take, row, other)
                    && !self.is_in_hand(other, row, take, now)
                    && !taken.contains(&j)
            };
            if row.key.is_none() || !self.rows.iter().enumerate().any(in_the_way) {
                taken.push(i);
            }
        }
        (window, taken)
    }

    pub fn leads(&self, owner: &NodeId, epoch: i64) -> bool {
        self.lead.holder.as_ref() == Some(owner) && self.lead.epoch == epoch
    }

    pub fn holds(&self, row: &Row, claim: Claim, by: &Holder) -> bool {
        row.status.is_pending()
            && row.claims == claim
            && match by {
                Holder::Lease { owner, .. } => self.lease(row).is_some_and(|(by, _)| by == owner),
                // Others may have listed it when the leader's lease had run out.
                Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch) && row.list.is_none(),
            }
    }

    pub fn settle(&mut self, by: &Holder, completion: Completion, s: &Settlement, now: DateTime<Utc>) -> u64 {
        let Some(i) = self.rows.iter().position(|row| row.id == s.id) else { return 0 };
        if !self.holds(&self.rows[i], s.claim, by) {
            return 0;
        }
        if s.verdict == Verdict::Done && completion == Completion::Delete {
            self.rows.remove(i);
            return 1;
        }
        let row = &mut self.rows[i];
        row.unlock();
        // Not visible, and nothing to a lease: each claim raises it anyway. But whoever holds the whole table claims
        // nothing, and must not settle twice either.
        row.claims += i32::from(s.verdict != Verdict::Done);
        match &s.verdict {
            Verdict::Done => {
                row.status = Status::Done;
                row.done_at = Some(now);
                row.done_by = Some(by.owner().clone());
            }
            Verdict::Again { after, counted, error } => {
                row.status = if *counted { Status::Retry } else { Status::New };
                row.attempts += u32::from(*counted);
                row.available_at = now + *after;
                if *counted {
                    let why = error.clone().unwrap_or_default();
                    row.history.push((row.attempts, by.owner().clone(), false, why));
                }
                row.last_error = error.clone().or(row.last_error.take());
                row.crashes = 0;
            }
            Verdict::Dead { counted, reason } => {
                row.status = Status::Dead;
                row.attempts += u32::from(*counted);
                row.done_at = Some(now);
                row.done_by = Some(by.owner().clone());
                row.history.push((row.attempts, by.owner().clone(), true, reason.clone()));
                row.last_error = Some(reason.clone());
                row.crashes = 0;
            }
            Verdict::Released => {}
            Verdict::ReleasedSuspect => row.locked_until = Some(now),
        }
        1
    }

    /// The rows that a filter selects, oldest first.
    pub fn matching(&self, filter: &Filter, now: DateTime<Utc>) -> Vec<usize> {
        let is =
            |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        let matches = |row: &Row| {
            let settled = |until: fn(DateTime<Utc>, DateTime<Utc>) -> bool, limit: Option<Duration>| {
                limit.is_none_or(|limit| row.done_at.is_some_and(|at| until(at, now - limit)))
            };
            filter.status.is_none_or(|status| status == row.status)
                && (!filter.pending || row.status.is_pending())
                && is(&filter.event_type, Some(&row.event_type))
                && is(&filter.ordering_key, row.key.as_deref())
                && filter.after_seq.is_none_or(|seq| row.seq > seq)
                && filter.upto_seq.is_none_or(|seq| row.seq <= seq)
                && filter.older_than.is_none_or(|age| row.created_at < now - age)
                && filter.newer_than.is_none_or(|age| row.created_at >= now - age)
                && settled(|at, end| at < end, filter.settled_before)
                && settled(|at, end| at >= end, filter.settled_within)
        };
        (0..self.rows.len()).filter(|i| matches(&self.rows[*i])).collect()
    }

    /// How many rows have this status.
    pub fn count(&self, status: Status) -> u64 {
        self.rows.iter().filter(|row| row.status == status).count() as u64
    }

    /// How long the oldest due row has waited.
    pub fn oldest_due(&self, now: DateTime<Utc>) -> Option<Duration> {
        let due = self.rows.iter().filter(|row| row.status.is_pending() && row.available_at <= now);
        due.map(|row| (now - row.available_at).to_std().unwrap_or_default()).max()
    }
}
