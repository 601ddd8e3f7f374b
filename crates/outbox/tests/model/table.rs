//! The table as it should be: a list of rows and a few `if`s.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::store::{Claim, Filter, Holder, Origin, Settlement, Take, Verdict};
use outbox::{Completion, EventId, NodeId, OnDead, Status};

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub id: EventId,
    pub seq: i64,
    pub event_type: String,
    pub key: Option<String>,
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
    pub claims: Claim,
    pub crashes: u32,
    /// The attempts that failed: how many there had been, whose it was, whether the event died of it, and why.
    pub history: Vec<(u32, NodeId, bool, String)>,
}

impl Row {
    pub fn is_free(&self, now: DateTime<Utc>) -> bool {
        self.status.is_pending() && self.locked_until.is_none_or(|until| until <= now)
    }

    pub fn unlock(&mut self) {
        self.locked_by = None;
        self.locked_until = None;
    }
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
}

#[derive(Debug, Default)]
pub struct Model {
    pub rows: Vec<Row>,
    pub lead: Lead,
}

impl Model {
    /// The rows that a take looks at, and those of them that it may have.
    pub fn take(&self, take: &Take, now: DateTime<Utc>) -> (Vec<usize>, Vec<usize>) {
        let open = match &take.by {
            Holder::Lease { .. } => self.lead.until.is_none_or(|until| until <= now),
            Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch),
        };
        let mut window: Vec<usize> = (0..self.rows.len())
            .filter(|i| {
                let row = &self.rows[*i];
                open && row.is_free(now)
                    && row.available_at <= now
                    && row.created_at <= now - take.skip_recent
                    && !take.skip_types.contains(&row.event_type)
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
        let has = |i: &usize| {
            let row = &self.rows[*i];
            // What the taker has in hand already is not in its way.
            let in_hand =
                row.key.as_ref().and_then(|key| take.frontiers.get(key)).map_or(0, |reach| reach.seq);
            let in_the_way = |(j, other): (usize, &Row)| {
                let blocks = match take.on_dead {
                    OnDead::Hold => other.status != Status::Done,
                    OnDead::Skip => other.status.is_pending(),
                };
                other.key == row.key
                    && in_hand < other.seq
                    && other.seq < row.seq
                    && blocks
                    && !window.contains(&j)
            };
            row.key.is_none() || !self.rows.iter().enumerate().any(in_the_way)
        };
        let taken = window.iter().copied().filter(has).collect();
        (window, taken)
    }

    pub fn leads(&self, owner: &NodeId, epoch: i64) -> bool {
        self.lead.holder.as_ref() == Some(owner) && self.lead.epoch == epoch
    }

    pub fn holds(&self, row: &Row, claim: Claim, by: &Holder) -> bool {
        row.status.is_pending()
            && row.claims == claim
            && match by {
                Holder::Lease { owner, .. } => row.locked_by.as_ref() == Some(owner),
                Holder::Exclusive { owner, epoch } => self.leads(owner, *epoch),
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
