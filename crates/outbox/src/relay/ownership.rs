//! The right of this node to act: leases on rows, or leadership of the whole table.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::RelaySettings;
use crate::event::EventId;
use crate::store::{Holder, NodeId};

/// Ownership of this node at this moment.
pub(crate) struct Ownership {
    owner: NodeId,
    lease: Duration,
    exclusive: bool,
    term: Mutex<Option<Term>>,
}

#[derive(Clone, Copy)]
struct Term {
    epoch: i64,
    /// By this process's own clock, counted from before leadership was requested.
    until: Instant,
    /// How many more events to treat as suspects: those that the previous leader, which vanished,
    /// may have held.
    suspects: usize,
}

impl Ownership {
    pub(crate) fn new(settings: &RelaySettings) -> Self {
        let exclusive = settings.mode.is_exclusive();
        // A node that was given a name and restarted must not pass for its previous process, which
        // may still run.
        let life = EventId::generate();
        let owner = if exclusive {
            format!("{}:{}", settings.node, &life.as_str()[16..]).into()
        } else {
            settings.node.clone()
        };
        Self { owner, lease: settings.lease, exclusive, term: Mutex::new(None) }
    }

    /// The owner name in leases and leadership.
    pub(crate) fn owner(&self) -> &NodeId {
        &self.owner
    }

    fn term(&self) -> std::sync::MutexGuard<'_, Option<Term>> {
        self.term.lock().expect("no code panics while it holds this lock")
    }

    /// The holder to take events as; `None` while another node holds the table.
    pub(crate) fn holder(&self) -> Option<Holder> {
        if !self.exclusive {
            return Some(Holder::Lease { owner: self.owner.clone(), lease: self.lease });
        }
        let term = (*self.term())?;
        (Instant::now() < term.until)
            .then(|| Holder::Exclusive { owner: self.owner.clone(), epoch: term.epoch })
    }

    /// The holder to settle events of this epoch as. The database decides whether the epoch is
    /// over.
    pub(crate) fn holder_in(&self, epoch: i64) -> Holder {
        let owner = self.owner.clone();
        if self.exclusive {
            Holder::Exclusive { owner, epoch }
        } else {
            Holder::Lease { owner, lease: self.lease }
        }
    }

    /// The epoch of jobs taken now; 0 with leases.
    pub(crate) fn epoch(&self) -> Option<i64> {
        match self.holder()? {
            Holder::Lease { .. } => Some(0),
            Holder::Exclusive { epoch, .. } => Some(epoch),
        }
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Whether a job of this epoch may still be handled.
    pub(crate) fn is_current(&self, epoch: i64) -> bool {
        self.epoch() == Some(epoch)
    }

    /// Whether verdicts on events of this epoch may still be written, as far as this node knows.
    /// Does not ask the clock: leadership that ran out is still this node's if no other node has
    /// taken it, and the fence of a settlement decides.
    pub(crate) fn may_settle(&self, epoch: i64) -> bool {
        !self.exclusive || self.term().is_some_and(|term| term.epoch == epoch)
    }

    /// Leads in this epoch until then. Returns whether the epoch is new; `suspects` counts only if
    /// it is.
    pub(crate) fn lead(&self, epoch: i64, until: Instant, suspects: usize) -> bool {
        let mut term = self.term();
        match &mut *term {
            Some(current) if current.epoch == epoch => {
                current.until = until;
                false
            }
            _ => {
                *term = Some(Term { epoch, until, suspects });
                true
            }
        }
    }

    /// Ends leadership. Returns whether this node led.
    pub(crate) fn release(&self) -> bool {
        self.term().take().is_some()
    }

    /// Whether suspects of the previous leader may still be unread.
    pub(crate) fn expects_suspects(&self) -> bool {
        self.term().is_some_and(|term| term.suspects > 0)
    }

    /// Whether the next event that is read is to be treated as a suspect.
    pub(crate) fn next_is_suspect(&self) -> bool {
        match &mut *self.term() {
            Some(term) if term.suspects > 0 => {
                term.suspects -= 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database that was away for longer than leadership lasts accepts the verdicts when it is
    /// back.
    #[test]
    fn verdicts_may_be_written_after_leadership_ran_out_and_not_after_it_was_lost() {
        let (owner, lease) = (NodeId::from("a"), Duration::from_secs(30));
        let ownership = Ownership { owner, lease, exclusive: true, term: Mutex::new(None) };
        assert!(!ownership.may_settle(5));
        let now = Instant::now();
        assert!(ownership.lead(5, now, 0));
        assert!(!ownership.is_current(5), "nothing more is handled");
        assert!(ownership.may_settle(5) && !ownership.may_settle(4));
        assert!(ownership.lead(7, now + lease, 0), "another node has led in epoch 6");
        assert!(!ownership.may_settle(5));
        ownership.release();
        assert!(!ownership.may_settle(7));
    }
}
