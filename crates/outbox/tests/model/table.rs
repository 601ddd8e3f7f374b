//! The expected table: a list of rows and a few `if`s.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::store::{Claim, Filter, Holder, KeyProgress, KeyQueueId, Origin, Settlement, Take, Verdict};
use outbox::{Completion, EventId, NodeId, OnDead, Status};

use crate::steps::Destinations;

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
    /// The group lease of the row, until that is deleted.
    pub group: Option<usize>,
    pub claims: Claim,
    pub crashes: u32,
    /// Failed attempts: number of attempts so far, node, whether the event was dead-lettered, and
    /// error.
    pub history: Vec<(u32, NodeId, bool, String)>,
}

impl Row {
    pub fn unlock(&mut self) {
        self.locked_by = None;
        self.locked_until = None;
        self.group = None;
    }
}

/// A lease of many events at once.
#[derive(Clone, Debug)]
pub struct GroupLease {
    pub owner: NodeId,
    pub until: DateTime<Utc>,
    /// It expired, and was deleted.
    pub deleted: bool,
}

/// The lease on the whole table.
#[derive(Clone, Debug, Default)]
pub struct Lead {
    pub holder: Option<NodeId>,
    pub epoch: i64,
    pub until: Option<DateTime<Utc>>,
}

/// A delivery that its taker believes to hold.
#[derive(Clone, Debug)]
pub struct Taken {
    pub id: EventId,
    pub claim: Claim,
    pub by: Holder,
    /// The group lease of the delivery.
    pub group: Option<usize>,
    /// Whether its taker has settled it.
    pub settled: bool,
}

/// Events of a key that a relay believes to hold, as the relay remembers them: it does not know
/// which leases it has lost.
///
/// The policy for dead events and the destinations are settings of a relay: a relay that takes with
/// several settings counts as several relays.
#[derive(Clone, Debug)]
pub struct KeyQueue {
    pub owner: NodeId,
    pub settings: (OnDead, Destinations),
    pub id: KeyQueueId,
    /// All events of the queue up to here are in it, or were.
    pub frontier: KeyProgress,
    /// Events that it has not settled.
    pub left: Vec<(EventId, Claim)>,
}

impl KeyQueue {
    pub fn is(&self, owner: &NodeId, settings: (OnDead, Destinations)) -> bool {
        self.owner == *owner && self.settings == settings
    }

    /// Adds a row that this owner has just taken.
    pub fn join(queues: &mut Vec<KeyQueue>, owner: &NodeId, settings: (OnDead, Destinations), row: &Row) {
        let key = row.key.clone().expect("only keys have queues");
        let destination = settings.1.destinations().get(&row.event_type).copied();
        let mut of_key = queues.iter().filter(|run| run.is(owner, settings) && run.id.key == key);
        // As long as one event of a key may go to any destination, the whole key is one queue.
        let whole = of_key.clone().any(|run| run.id.destination.is_none());
        if !whole && destination.is_none() && of_key.next().is_some() {
            // An event that may go to any destination does not join a queue of one destination: a
            // relay releases it.
            return;
        }
        let id = KeyQueueId { key, destination: destination.filter(|_| !whole) };
        let i = queues.iter().position(|run| run.is(owner, settings) && run.id == id).unwrap_or_else(|| {
            let frontier = KeyProgress { seq: 0, group_lease: true };
            queues.push(KeyQueue { owner: owner.clone(), settings, id, frontier, left: Vec::new() });
            queues.len() - 1
        });
        let run = &mut queues[i];
        run.frontier.seq = run.frontier.seq.max(row.seq);
        run.frontier.group_lease &= row.claims == 0;
        run.left.push((row.id.clone(), row.claims));
    }

    /// Removes the events that the owner has settled, in time or not. A queue ends when all of its
    /// events are done, or one of them is not.
    pub fn settle(queues: &mut Vec<KeyQueue>, owner: &NodeId, settlements: &[Settlement]) {
        for s in settlements {
            let settled = |left: &(EventId, Claim)| left.0 == s.id && left.1 == s.claim;
            let matches = |run: &KeyQueue| run.owner == *owner && run.left.iter().any(settled);
            let Some(i) = queues.iter().position(matches) else { continue };
            queues[i].left.retain(|left| !settled(left));
            if queues[i].left.is_empty() || s.verdict != Verdict::Done {
                queues.remove(i);
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Model {
    pub rows: Vec<Row>,
    /// All group leases that ever existed.
    pub groups: Vec<GroupLease>,
    pub lead: Lead,
}

impl Model {
    /// Holder of a row and end of its lease, or those of the last lease.
    pub fn lease<'a>(&'a self, row: &'a Row) -> Option<(&'a NodeId, DateTime<Utc>)> {
        match row.group {
            Some(group) => Some((&self.groups[group].owner, self.groups[group].until)),
            None => row.locked_by.as_ref().zip(row.locked_until),
        }
    }

    /// Whether a row is pending and not leased.
    pub fn is_free(&self, row: &Row, now: DateTime<Utc>) -> bool {
        row.status.is_pending() && self.lease(row).is_none_or(|(_, until)| until <= now)
    }

    /// Deletes expired group leases. Their remaining events are leased by their rows from then on,
    /// and suspect.
    pub fn reap_lists(&mut self, now: DateTime<Utc>) -> u64 {
        for group in self.groups.iter_mut().filter(|group| group.until <= now) {
            group.deleted = true;
        }
        let mut reaped = 0;
        for row in &mut self.rows {
            if row.group.is_some_and(|group| self.groups[group].deleted) {
                row.group = None;
                row.claims += 1;
                row.locked_until = Some(now);
                reaped += 1;
            }
        }
        reaped
    }

    /// Revokes keys from every other holder, since one of their events was taken over. A holder
    /// that stalled past its lease may still have later events of the key, and must not settle them
    /// before the event that was taken over.
    ///
    /// An event whose lease expired is fenced once.
    pub fn fence(&mut self, keys: &HashSet<Arc<str>>, taker: &NodeId, now: DateTime<Utc>) {
        let is_fenced = |row: &&mut Row| {
            row.status.is_pending() && row.key.as_ref().is_some_and(|key| keys.contains(key))
        };
        let mut revoked = HashSet::new();
        for row in self.rows.iter_mut().filter(is_fenced) {
            match row.group {
                Some(group) if self.groups[group].owner != *taker => {
                    revoked.insert(group);
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
        for group in revoked {
            let GroupLease { owner, until, deleted } = &mut self.groups[group];
            *deleted = true;
            for row in self.rows.iter_mut().filter(|row| row.group == Some(group)) {
                row.group = None;
                row.claims += 2;
                row.locked_by = Some(owner.clone());
                row.locked_until = Some(*until);
            }
        }
    }

    /// Whether two events of a key are delivered in order: they have the same destination, or one
    /// of them may go to any.
    pub fn is_ordered(take: &Take, one: &Row, other: &Row) -> bool {
        match (take.destinations.get(&one.event_type), take.destinations.get(&other.event_type)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }

    /// Whether a row does not block a later one, because the taker holds it already. An expired
    /// lease does not count.
    pub fn is_held_by_taker(&self, row: &Row, later: &Row, take: &Take, now: DateTime<Utc>) -> bool {
        let destination = take.destinations.get(&later.event_type).copied();
        let ids = [destination, None]
            .map(|destination| KeyQueueId { key: later.key.clone().unwrap(), destination });
        ids.iter().filter_map(|id| take.held_up_to.get(id)).any(|reach| row.seq <= reach.seq)
            && match &take.by {
                Holder::Lease { owner, .. } => {
                    row.status.is_pending()
                        && self.lease(row).is_some_and(|(by, until)| by == owner && until > now)
                }
                Holder::Exclusive { .. } => true,
            }
    }

    /// Rows in the window of a take, and those of them that it returns.
    pub fn take(&self, take: &Take, now: DateTime<Utc>) -> (Vec<usize>, Vec<usize>) {
        let open = match &take.by {
            Holder::Lease { .. } => self.lead.until.is_none_or(|until| until <= now),
            Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch),
        };
        let mut window: Vec<usize> = (0..self.rows.len())
            .filter(|i| {
                let row = &self.rows[*i];
                // The holder of a group lease may settle its events until it is deleted, which a
                // reader does not do.
                open && self.is_free(row, now)
                    && row.group.is_none()
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
            // Each key has an equal share of the limit.
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
        // In the order of the table: a row that is left out blocks the rows behind it.
        let mut order = window.clone();
        order.sort_by_key(|i| self.rows[*i].seq);
        let mut taken: Vec<usize> = Vec::new();
        for i in order {
            let row = &self.rows[i];
            let blocks_row = |(j, other): (usize, &Row)| {
                let blocks = match take.on_dead {
                    OnDead::Hold => other.status != Status::Done,
                    OnDead::Skip => other.status.is_pending(),
                };
                other.key == row.key
                    && other.seq < row.seq
                    && blocks
                    && Self::is_ordered(take, row, other)
                    && !self.is_held_by_taker(other, row, take, now)
                    && !taken.contains(&j)
            };
            if row.key.is_none() || !self.rows.iter().enumerate().any(blocks_row) {
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
                // Other nodes may have a group lease on it since the leader's lease expired.
                Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch) && row.group.is_none(),
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
        // Not visible, and without effect on a lease: each claim increments it anyway. But a leader
        // claims nothing, and must not settle twice either.
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

    /// Indexes of the rows that a filter selects, oldest first.
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

    /// Number of rows with this status.
    pub fn count(&self, status: Status) -> u64 {
        self.rows.iter().filter(|row| row.status == status).count() as u64
    }

    /// Waiting time of the oldest due row.
    pub fn oldest_due(&self, now: DateTime<Utc>) -> Option<Duration> {
        let due = self.rows.iter().filter(|row| row.status.is_pending() && row.available_at <= now);
        due.map(|row| (now - row.available_at).to_std().unwrap_or_default()).max()
    }
}
