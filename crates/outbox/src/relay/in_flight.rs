//! Events that this node holds: each from its reservation or take until its settlement is in the
//! database. An event is in here at most once, so it is never handled twice at a time.

use std::collections::{HashMap, HashSet};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::sync::Mutex;
use crate::event::EventId;
use crate::store::{Claim, Settlement, Verdict};

/// Tells one claim of an event by this node from another: the claim counter with leases, the epoch
/// with leadership.
pub(crate) type Fence = i64;

/// The events that this node holds.
#[derive(Default)]
pub(crate) struct InFlight {
    inner: Mutex<InFlightState>,
}

#[derive(Default)]
struct InFlightState {
    entries: HashMap<EventId, HeldEvent>,
    /// Settled since the current read began: that read may have seen their rows before.
    settled: HashSet<EventId>,
    presence: Option<Presence>,
    /// How many entries have another claim than their job.
    reclaimed: usize,
}

/// How long this node's announcements protect its leases.
///
/// Other nodes release the leases of a node that has not announced itself for its presence time, by
/// the database's clock. A lease has no value after that, and this node has to stop relying on it
/// first. Both clocks run at the same speed:
///
/// - `until` counts from before the announcement was sent, hence it ends before the database's time
///   does. After that no event is started.
/// - An announcement that is answered before `until` was stored before any node could release
///   anything: presence goes on.
/// - An announcement that is answered later may have been stored too late: in the meantime every
///   lease may have been released, and its event settled by another node. A release and an
///   announcement exclude each other, so every request sent to the database after the answer
///   (`since`) sees that release. Leases that were taken or renewed before are not trusted until
///   they are renewed; renewing names the claim, which a release increments.
///
/// A verdict needs none of this: it names its claim.
#[derive(Clone, Copy)]
struct Presence {
    since: Instant,
    until: Instant,
}

struct HeldEvent {
    fence: Fence,
    /// The claim under which the job was queued: an earlier one, if this node has claimed the event
    /// again since.
    first: Fence,
    /// When the lease runs out, by this process's own clock, counted from before the lease was
    /// requested. `None`: held by leadership, not by a lease.
    until: Option<Instant>,
    /// The writer's transaction is still open. The writer has locked the row, and on some databases
    /// every other access waits for that lock: the lease is neither renewed nor released.
    uncommitted: bool,
    running: bool,
    lost: bool,
    /// Whether the event may have crashed its previous holder.
    suspect: bool,
    /// A verdict is being written that makes the event pending again: its next claim is a new
    /// delivery.
    given_up: bool,
}

impl HeldEvent {
    fn new(fence: Fence, until: Option<Instant>) -> Self {
        let (uncommitted, running, lost, suspect, given_up) = Default::default();
        Self { fence, first: fence, until, uncommitted, running, lost, suspect, given_up }
    }

    /// Whether this entry stands for a job of this claim.
    fn matches(&self, fence: Fence) -> bool {
        (self.first..=self.fence).contains(&fence)
    }

    /// Whether only this node has claimed the event between the claim of this entry and a new one:
    /// the lease of a row ran out and was claimed again, or a group lease did, which increments the
    /// claims once more. Every other holder and every fence increments the claims as well, and so
    /// does a verdict of this node that makes the event pending again.
    fn is_reclaimed_by(&self, fence: Fence) -> bool {
        let next = if self.fence == 0 { 2 } else { self.fence + 1 };
        !self.uncommitted && !self.given_up && fence == next
    }
}

impl InFlightState {
    fn remove(&mut self, id: &EventId) {
        let removed = self.entries.remove(id);
        self.reclaimed -= usize::from(removed.is_some_and(|entry| entry.first != entry.fence));
    }

    /// Whether an answer to a request of that time can be trusted: a lease from before presence
    /// lapsed cannot.
    fn trusts(&self, asked: Instant) -> bool {
        self.presence.is_none_or(|presence| asked >= presence.since)
    }
}

impl InFlight {
    fn inner(&self) -> MutexGuard<'_, InFlightState> {
        self.inner.lock().expect("no code panics while it holds this lock")
    }

    /// Adds an event, unless it is already here or was settled while it was being read.
    pub(crate) fn admit(&self, id: &EventId, fence: Fence, until: Option<Instant>) -> bool {
        self.insert(id, HeldEvent::new(fence, until))
    }

    /// Adds an event that is about to be written, unless it is already here.
    pub(crate) fn reserve(&self, id: &EventId, fence: Fence, until: Option<Instant>) -> bool {
        self.insert(id, HeldEvent { uncommitted: true, ..HeldEvent::new(fence, until) })
    }

    fn insert(&self, id: &EventId, entry: HeldEvent) -> bool {
        let mut inner = self.inner();
        let free = !inner.settled.contains(id) && !inner.entries.contains_key(id);
        if free {
            inner.entries.insert(id.clone(), entry);
        }
        free
    }

    /// Marks a reserved event as committed.
    pub(crate) fn committed(&self, id: &EventId, fence: Fence) {
        if let Some(entry) = self.inner().entries.get_mut(id).filter(|entry| entry.matches(fence)) {
            entry.uncommitted = false;
        }
    }

    /// Adds an event under a claim that the database has just granted, for a lease that was
    /// requested then. Returns whether the event has to be queued.
    ///
    /// If this node had an older claim, that claim ran out. If no other node has claimed the event
    /// since, its job goes on under the new claim: it may be running, or its verdict may be about
    /// to be written. To handle it a second time would be useless, and out of order if this node
    /// holds later events of its key. Otherwise the older claim was lost.
    pub(crate) fn admit_claimed(
        &self,
        id: &EventId,
        fence: Fence,
        asked: Instant,
        lease: Duration,
        suspect: bool,
    ) -> bool {
        let mut inner = self.inner();
        let until = Some(if inner.trusts(asked) { asked + lease } else { asked });
        let InFlightState { entries, reclaimed, .. } = &mut *inner;
        match entries.get_mut(id) {
            Some(entry) if entry.is_reclaimed_by(fence) => {
                *reclaimed += usize::from(entry.first == entry.fence);
                (entry.fence, entry.until, entry.lost) = (fence, until, false);
                false
            }
            _ => {
                inner.remove(id);
                inner.entries.insert(id.clone(), HeldEvent { suspect, ..HeldEvent::new(fence, until) });
                true
            }
        }
    }

    /// Updates verdicts that are about to be written to the claims under which their events are
    /// held now.
    pub(crate) fn update_claims(&self, settlements: &mut [Settlement]) {
        let mut inner = self.inner();
        let reclaimed = inner.reclaimed > 0;
        for settlement in settlements {
            let comes_again = settlement.verdict != Verdict::Done;
            if !reclaimed && !comes_again {
                continue;
            }
            if let Some(entry) = inner.entries.get_mut(&settlement.id)
                && entry.matches(settlement.claim.into())
            {
                settlement.claim = entry.fence as Claim;
                entry.given_up |= comes_again;
            }
        }
    }

    /// Records an announcement that lasts for this presence time: sent at `asked`, answered at
    /// `now`. Returns whether presence had lapsed, so that no lease is trusted before it is
    /// renewed.
    pub(crate) fn announced(&self, asked: Instant, now: Instant, presence: Duration) -> bool {
        let mut inner = self.inner();
        let until = asked + presence;
        match &mut inner.presence {
            Some(current) if now < current.until => {
                current.until = current.until.max(until);
                false
            }
            lapsed => {
                let had_any = lapsed.is_some();
                *lapsed = Some(Presence { since: now, until });
                for entry in inner.entries.values_mut() {
                    entry.until = entry.until.map(|until| until.min(now));
                }
                had_any
            }
        }
    }

    /// For how long this node has been present without a gap; `None` while it is not.
    pub(crate) fn present_for(&self, now: Instant) -> Option<Duration> {
        let presence = self.inner().presence?;
        (now < presence.until).then(|| now.duration_since(presence.since))
    }

    /// Whether the event may be handled now, under this claim. If so, it counts as running.
    pub(crate) fn start(&self, id: &EventId, fence: Fence, now: Instant) -> bool {
        let mut inner = self.inner();
        let present = inner.presence.is_none_or(|presence| now < presence.until);
        match inner.entries.get_mut(id) {
            Some(entry)
                if entry.matches(fence)
                    && !entry.lost
                    && entry.until.is_none_or(|until| present && now < until) =>
            {
                entry.running = true;
                true
            }
            _ => false,
        }
    }

    /// The current claim of an event whose job was queued under this one. `None` if this node does
    /// not hold the event, or holds it by leadership.
    pub(crate) fn claim(&self, id: &EventId, fence: Fence) -> Option<Claim> {
        let inner = self.inner();
        let entry = inner.entries.get(id).filter(|entry| entry.until.is_some() && entry.matches(fence))?;
        Claim::try_from(entry.fence).ok()
    }

    /// Removes events whose settlement is in the database.
    pub(crate) fn settled<'a>(
        &self,
        settled: impl IntoIterator<Item = (&'a EventId, Fence)>,
        remember: bool,
    ) {
        let mut inner = self.inner();
        for (id, fence) in settled {
            if inner.entries.get(id).is_some_and(|entry| entry.matches(fence)) {
                inner.remove(id);
            }
            if remember {
                inner.settled.insert(id.clone());
            }
        }
    }

    /// Removes an event that was never handled.
    pub(crate) fn forget(&self, id: &EventId, fence: Fence) {
        self.settled([(id, fence)], false);
    }

    /// Marks the start of a read: events settled before cannot appear in it any more.
    pub(crate) fn begin_read(&self) {
        self.inner().settled.clear();
    }

    /// The leases to renew.
    pub(crate) fn leases(&self) -> Vec<(EventId, Claim)> {
        let inner = self.inner();
        let renewable = |entry: &HeldEvent| entry.until.is_some() && !entry.lost && !entry.uncommitted;
        let leased = inner.entries.iter().filter(|(_, entry)| renewable(entry));
        leased.map(|(id, entry)| (id.clone(), entry.fence as Claim)).collect()
    }

    /// Applies the answer to a renewal of `leases` that was sent at `asked`: those in `kept` last
    /// for another lease time, the others are lost. Returns how many were lost.
    pub(crate) fn renewed(
        &self,
        leases: &[(EventId, Claim)],
        kept: &HashSet<EventId>,
        asked: Instant,
        lease: Duration,
    ) -> usize {
        let mut inner = self.inner();
        let trusted = inner.trusts(asked);
        let mut lost = 0;
        for (id, claim) in leases {
            let Some(entry) = inner.entries.get_mut(id).filter(|entry| entry.fence == Fence::from(*claim))
            else {
                continue;
            };
            if kept.contains(id) {
                if trusted {
                    entry.until = Some(asked + lease);
                }
            } else {
                entry.lost = true;
                lost += 1;
            }
        }
        lost
    }

    /// Settlements that release all held events, without those that a handler is running unless
    /// `with_running`.
    pub(crate) fn remaining(&self, with_running: bool) -> Vec<Settlement> {
        let inner = self.inner();
        let committed = inner.entries.iter().filter(|(_, entry)| !entry.uncommitted);
        let remaining = committed.filter(|(_, entry)| with_running || !entry.running);
        let released = |(id, entry): (&EventId, &HeldEvent)| {
            let verdict = if entry.suspect { Verdict::ReleasedSuspect } else { Verdict::Released };
            Settlement { id: id.clone(), claim: entry.fence as Claim, verdict }
        };
        remaining.map(released).collect()
    }

    /// Removes everything: the right to hold the events is lost.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner();
        (inner.entries, inner.settled, inner.reclaimed) = Default::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.inner().entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_event_is_not_admitted_again() {
        let in_flight = InFlight::default();
        let id = EventId::generate();
        assert!(in_flight.admit(&id, 0, None));
        assert!(!in_flight.admit(&id, 0, None));
        in_flight.forget(&id, 0);
        assert!(in_flight.admit(&id, 0, None));
    }

    /// A poll that began before a settlement was committed still sees the row.
    #[test]
    fn an_event_settled_during_a_read_is_not_admitted_by_it() {
        let in_flight = InFlight::default();
        let id = EventId::generate();
        in_flight.begin_read();
        assert!(in_flight.admit(&id, 0, None));
        in_flight.settled([(&id, 0)], true);
        assert!(!in_flight.admit(&id, 0, None), "the read may be older than the settlement");
        in_flight.begin_read();
        assert!(in_flight.admit(&id, 0, None), "a later read is not");
    }

    #[test]
    fn a_lease_that_ran_out_or_was_lost_starts_nothing() {
        let in_flight = InFlight::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(30);
        let (a, b) = (EventId::generate(), EventId::generate());
        in_flight.admit(&a, 1, Some(now));
        in_flight.admit(&b, 1, Some(later));
        assert!(!in_flight.start(&a, 1, now));
        assert!(!in_flight.start(&b, 2, now), "another claim");
        assert!(in_flight.start(&b, 1, now));

        let asked = in_flight.leases();
        assert_eq!(in_flight.renewed(&asked, &HashSet::from([a.clone()]), now, Duration::from_secs(30)), 1);
        assert!(in_flight.start(&a, 1, now), "renewed");
        assert!(!in_flight.start(&b, 1, now), "lost");
    }

    #[test]
    fn an_old_claim_does_not_settle_a_new_one() {
        let in_flight = InFlight::default();
        let id = EventId::generate();
        let (asked, lease) = (Instant::now(), Duration::from_secs(30));
        assert!(in_flight.admit_claimed(&id, 1, asked, lease, false));
        assert!(in_flight.admit_claimed(&id, 3, asked, lease, false), "another node had it in between");
        in_flight.settled([(&id, 1)], false);
        assert_eq!(in_flight.len(), 1);
        assert!(!in_flight.start(&id, 1, asked));
    }

    /// The verdict is written under the new claim, so that the event is not handled twice.
    #[test]
    fn a_job_goes_on_under_the_next_claim_if_no_other_node_had_the_event() {
        let in_flight = InFlight::default();
        let (asked, lease) = (Instant::now(), Duration::from_secs(30));
        for (first, second) in [(1, 2), (0, 2)] {
            let id = EventId::generate();
            assert!(in_flight.admit_claimed(&id, first, asked, lease, false));
            assert!(!in_flight.admit_claimed(&id, second, asked, lease, true), "it is queued already");
            assert!(in_flight.start(&id, first, asked));
            let mut verdicts = [Settlement { id: id.clone(), claim: first as Claim, verdict: Verdict::Done }];
            in_flight.update_claims(&mut verdicts);
            assert_eq!(Fence::from(verdicts[0].claim), second);
            assert_eq!(in_flight.leases(), [(id.clone(), second as Claim)], "the new claim is renewed");
            in_flight.settled([(&id, first)], false);
            assert_eq!((in_flight.len(), in_flight.inner().reclaimed), (0, 0));
        }
    }

    /// 0 to 1 is no claim: a group lease was released, or its holder was fenced, and this node does
    /// not hold the event.
    #[test]
    fn a_claim_that_skips_one_is_a_new_hold() {
        let in_flight = InFlight::default();
        let (asked, lease) = (Instant::now(), Duration::from_secs(30));
        for (first, second) in [(0, 1), (0, 3), (1, 3), (2, 2)] {
            let id = EventId::generate();
            in_flight.admit_claimed(&id, first, asked, lease, false);
            assert!(in_flight.admit_claimed(&id, second, asked, lease, false), "{first} to {second}");
        }
    }

    /// An event of a group lease that is released has claims of 1, and its next claim is 2, as if
    /// the group lease had run out.
    #[test]
    fn an_event_that_is_being_given_back_is_delivered_anew() {
        let in_flight = InFlight::default();
        let (asked, lease) = (Instant::now(), Duration::from_secs(30));
        for (verdict, anew) in [(Verdict::Released, true), (Verdict::Done, false)] {
            let id = EventId::generate();
            in_flight.admit_claimed(&id, 0, asked, lease, false);
            in_flight.update_claims(&mut [Settlement { id: id.clone(), claim: 0, verdict }]);
            assert_eq!(in_flight.admit_claimed(&id, 2, asked, lease, false), anew);
            in_flight.settled([(&id, 0)], false);
            assert_eq!(
                in_flight.leases().iter().any(|(leased, _)| *leased == id),
                anew,
                "the new delivery is held"
            );
        }
    }

    #[test]
    fn an_event_whose_transaction_is_open_is_not_taken_over_by_its_next_claim() {
        let in_flight = InFlight::default();
        let (id, now) = (EventId::generate(), Instant::now());
        assert!(in_flight.reserve(&id, 1, Some(now)));
        assert!(in_flight.admit_claimed(&id, 2, now, Duration::from_secs(30), false));
    }

    #[test]
    fn a_suspect_is_given_back_as_one() {
        let in_flight = InFlight::default();
        let (id, now) = (EventId::generate(), Instant::now());
        in_flight.admit_claimed(&id, 1, now, Duration::from_secs(30), true);
        assert_eq!(in_flight.remaining(false)[0].verdict, Verdict::ReleasedSuspect);
    }

    const LEASE: Duration = Duration::from_secs(60);
    const PRESENCE: Duration = Duration::from_secs(20);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    /// Other nodes may have released its leases since.
    #[test]
    fn a_node_that_could_not_announce_itself_starts_nothing() {
        let (in_flight, start) = (InFlight::default(), Instant::now());
        let id = EventId::generate();
        assert!(!in_flight.announced(start, start, PRESENCE));
        in_flight.admit_claimed(&id, 1, start, LEASE, false);
        assert!(in_flight.start(&id, 1, at(start, 19)));
        assert!(!in_flight.start(&id, 1, at(start, 20)), "the lease lasts, presence does not");
        assert_eq!(in_flight.present_for(at(start, 20)), None);
    }

    #[test]
    fn presence_goes_on_while_it_is_renewed_in_time() {
        let (in_flight, start) = (InFlight::default(), Instant::now());
        let id = EventId::generate();
        in_flight.announced(start, start, PRESENCE);
        in_flight.admit_claimed(&id, 1, start, LEASE, false);
        assert!(!in_flight.announced(at(start, 15), at(start, 19), PRESENCE));
        assert!(in_flight.start(&id, 1, at(start, 34)));
        assert_eq!(in_flight.present_for(at(start, 34)), Some(Duration::from_secs(34)));
        assert!(!in_flight.start(&id, 1, at(start, 35)), "it counts from before the announcement was sent");
    }

    #[test]
    fn after_a_lapse_a_lease_is_worth_nothing_until_it_is_renewed() {
        let (in_flight, start) = (InFlight::default(), Instant::now());
        let (old, late) = (EventId::generate(), EventId::generate());
        in_flight.announced(start, start, PRESENCE);
        in_flight.admit_claimed(&old, 1, start, LEASE, false);
        let (asked, leases) = (at(start, 12), in_flight.leases());
        assert!(in_flight.announced(at(start, 15), at(start, 21), PRESENCE), "the answer came too late");
        assert_eq!(in_flight.present_for(at(start, 22)), Some(Duration::from_secs(1)));
        assert!(!in_flight.start(&old, 1, at(start, 22)));
        // An answer to a request sent before that announcement's answer may be older than a
        // release.
        in_flight.renewed(&leases, &HashSet::from([old.clone()]), asked, LEASE);
        in_flight.admit_claimed(&late, 1, at(start, 20), LEASE, false);
        assert!(!in_flight.start(&old, 1, at(start, 22)) && !in_flight.start(&late, 1, at(start, 22)));
        let leases = in_flight.leases();
        in_flight.renewed(&leases, &HashSet::from([old.clone()]), at(start, 22), LEASE);
        assert!(in_flight.start(&old, 1, at(start, 23)), "renewed since");
        assert!(!in_flight.start(&late, 1, at(start, 23)), "lost");
    }

    /// The event is held by leadership, which has its own lease.
    #[test]
    fn leadership_does_not_need_presence() {
        let (in_flight, start) = (InFlight::default(), Instant::now());
        let id = EventId::generate();
        in_flight.announced(start, start, PRESENCE);
        in_flight.admit(&id, 7, None);
        assert!(in_flight.start(&id, 7, at(start, 60)));
    }
}
