//! In whose name this node acts: by leases on rows, or as the one holder of the whole table.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::RelaySettings;
use crate::event::EventId;
use crate::store::{Holder, NodeId};

/// What this node may do right now.
pub(crate) struct Station {
    owner: NodeId,
    lease: Duration,
    exclusive: bool,
    leading: Mutex<Option<Leading>>,
}

#[derive(Clone, Copy)]
struct Leading {
    epoch: i64,
    /// By this process's own clock, counted from before leadership was asked for.
    until: Instant,
    /// How many more events to treat with care: what the one before us, who vanished, may have had in hand.
    suspects: usize,
}

impl Station {
    pub(crate) fn new(settings: &RelaySettings) -> Self {
        let exclusive = settings.mode.is_exclusive();
        // A node that was given a name and restarted must not pass for the process it was before, which may still run.
        let life = EventId::generate();
        let owner = if exclusive {
            format!("{}:{}", settings.node, &life.as_str()[16..]).into()
        } else {
            settings.node.clone()
        };
        Self { owner, lease: settings.lease, exclusive, leading: Mutex::new(None) }
    }

    /// The name under which this node holds.
    pub(crate) fn owner(&self) -> &NodeId {
        &self.owner
    }

    fn leading(&self) -> std::sync::MutexGuard<'_, Option<Leading>> {
        self.leading.lock().expect("no one panics while holding this lock")
    }

    /// In whose name to act now; `None` while somebody else holds the table.
    pub(crate) fn holder(&self) -> Option<Holder> {
        if !self.exclusive {
            return Some(Holder::Lease { owner: self.owner.clone(), lease: self.lease });
        }
        let leading = (*self.leading())?;
        (Instant::now() < leading.until)
            .then(|| Holder::Exclusive { owner: self.owner.clone(), epoch: leading.epoch })
    }

    /// In whose name to settle what was taken in this epoch. Whether it is over is for the database to say.
    pub(crate) fn holder_in(&self, epoch: i64) -> Holder {
        let owner = self.owner.clone();
        if self.exclusive {
            Holder::Exclusive { owner, epoch }
        } else {
            Holder::Lease { owner, lease: self.lease }
        }
    }

    /// The epoch that jobs taken now belong to; 0 with leases.
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
    pub(crate) fn covers(&self, epoch: i64) -> bool {
        self.epoch() == Some(epoch)
    }

    /// Whether verdicts on events of this epoch may still be written, as far as this node knows. Not asked of its
    /// clock: leadership that ran out is this node's still if no other node has taken it, and the fence of a
    /// settlement tells.
    pub(crate) fn may_settle(&self, epoch: i64) -> bool {
        !self.exclusive || self.leading().is_some_and(|leading| leading.epoch == epoch)
    }

    /// Leads in this epoch until then. Returns whether that is news; `suspects` counts only if it is.
    pub(crate) fn lead(&self, epoch: i64, until: Instant, suspects: usize) -> bool {
        let mut leading = self.leading();
        match &mut *leading {
            Some(current) if current.epoch == epoch => {
                current.until = until;
                false
            }
            _ => {
                *leading = Some(Leading { epoch, until, suspects });
                true
            }
        }
    }

    /// Leads no more. Returns whether it did.
    pub(crate) fn step_down(&self) -> bool {
        self.leading().take().is_some()
    }

    /// Whether there may be events to treat with care that were not read yet.
    pub(crate) fn expects_suspects(&self) -> bool {
        self.leading().is_some_and(|leading| leading.suspects > 0)
    }

    /// Whether the next event read is one to treat with care.
    pub(crate) fn next_is_suspect(&self) -> bool {
        match &mut *self.leading() {
            Some(leading) if leading.suspects > 0 => {
                leading.suspects -= 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database that was away for longer than leadership lasts takes the verdicts when it is back.
    #[test]
    fn verdicts_may_be_written_after_leadership_ran_out_and_not_after_it_was_lost() {
        let (owner, lease) = (NodeId::from("a"), Duration::from_secs(30));
        let station = Station { owner, lease, exclusive: true, leading: Mutex::new(None) };
        assert!(!station.may_settle(5));
        let now = Instant::now();
        assert!(station.lead(5, now, 0));
        assert!(!station.covers(5), "nothing more is handled");
        assert!(station.may_settle(5) && !station.may_settle(4));
        assert!(station.lead(7, now + lease, 0), "another node has led in epoch 6");
        assert!(!station.may_settle(5));
        station.step_down();
        assert!(!station.may_settle(7));
    }
}
