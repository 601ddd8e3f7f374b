//! The responses to requests of the log relay, and its reactions to them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::chunks::Chunk;
use super::strand::{Lead, Outcome};
use super::{AFTER_THE_END, Desk, Doubt, UNDECIDED};
use crate::error::{Error, Result};
use crate::log::{Frontier, Move, PairId, PairState, PairStatus, Position, Roll};
use crate::store::RelayTask;

/// The shortest time between two queries of the safe position.
const BREATH: Duration = Duration::from_millis(1);
/// Pause before the next poll of the head after a change.
const SOON: Duration = Duration::from_millis(4);
/// How long published positions wait to be saved in a batch with others, at least and at most.
const LINGER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// How often positions are saved that only moved over events which the topic does not select.
const QUIETLY: Duration = Duration::from_secs(1);
/// The shortest time between two warnings.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after an error of the database.
const TROUBLE: Duration = Duration::from_millis(250);

/// Responses that the log relay receives.
pub(super) enum News {
    Advanced {
        frontier: Frontier,
        result: Result<()>,
        looked: bool,
    },
    Head(Result<Position>),
    Read {
        from: Position,
        result: Result<Chunk>,
    },
    Published {
        pair: usize,
        batch: u64,
        outcome: Outcome,
    },
    Saved {
        moves: Vec<Move>,
        result: Result<Vec<PairId>>,
    },
    Tended {
        asked: Instant,
        ttl: Duration,
        result: Result<Roll>,
    },
    Claimed {
        asked: Instant,
        result: Result<Vec<PairState>>,
    },
    /// Result of a request that has no other effect, and the message if it failed.
    Told {
        what: &'static str,
        result: Result<()>,
    },
    /// The request panicked, and will not answer.
    Lost(Errand),
    /// A caller waits until everything is published.
    Quiet(oneshot::Sender<()>),
}

/// A running request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Errand {
    Advance,
    Watch,
    Read(Position),
    Save,
    Tend,
    Tell,
}

impl News {
    /// Name of the request, and its error if it failed.
    fn question(&self) -> Option<(&'static str, Option<String>)> {
        fn failure<T>(result: &Result<T>) -> Option<String> {
            result.as_ref().err().map(ToString::to_string)
        }
        Some(match self {
            News::Advanced { result, .. } => ("advance", failure(result)),
            News::Head(result) => ("watch", failure(result)),
            News::Read { result, .. } => ("read", failure(result)),
            News::Saved { result, .. } => ("save", failure(result)),
            News::Tended { result, .. } => ("tend", failure(result)),
            News::Claimed { result, .. } => ("claim", failure(result)),
            News::Lost(errand) => {
                let question = match errand {
                    Errand::Advance => "advance",
                    Errand::Watch => "watch",
                    Errand::Read(_) => "read",
                    Errand::Save => "save",
                    Errand::Tend => "tend",
                    Errand::Tell => return None,
                };
                (question, Some("the store panicked".to_owned()))
            }
            News::Published { .. } | News::Told { .. } | News::Quiet(_) => return None,
        })
    }
}

impl Desk {
    pub(super) fn hear(&mut self, news: News) {
        let now = Instant::now();
        self.note(&news);
        match news {
            News::Advanced { frontier, result, looked } => self.advanced(frontier, result, looked, now),
            News::Head(result) => {
                self.watching = false;
                match result {
                    Ok(head) if head > self.head => {
                        self.head = head;
                        self.watch_soon(now);
                        self.hint();
                    }
                    Ok(_) => {}
                    Err(error) => self.complain(&error, "could not query the head of the log"),
                }
            }
            News::Read { from, result } => {
                self.reading.retain(|reading| *reading != from);
                match result {
                    Ok(chunk) => {
                        self.chunks.add(chunk);
                    }
                    Err(error) => {
                        self.complain(&error, "could not read the log");
                        self.read_at = now + TROUBLE;
                    }
                }
            }
            News::Published { pair, batch, outcome } => self.published(pair, batch, &outcome, now),
            News::Saved { moves, result } => self.saved(&moves, result, now),
            News::Tended { asked, ttl, result } => match result {
                Ok(roll) => {
                    let claims = self.meet(asked, ttl, &roll);
                    self.forget_troubles(claims.is_empty());
                    self.claim(claims, asked, ttl);
                    self.note_decided();
                }
                Err(error) => {
                    self.complain(&error, "could not renew the leases of publishers");
                    self.tending = false;
                    self.tend_at = now + TROUBLE;
                }
            },
            News::Claimed { asked, result } => {
                self.tending = false;
                match result {
                    Ok(states) => {
                        self.claimed(asked, &states);
                        self.knows_leads(asked);
                    }
                    Err(error) => self.complain(&error, "could not claim publishers"),
                }
            }
            News::Told { what, result } => {
                if let Err(error) = result {
                    self.complain(&error, what);
                }
            }
            News::Lost(errand) => self.lost(errand, now),
            News::Quiet(told) => {
                self.hint();
                self.waiting.push(told);
            }
        }
    }

    /// The log has gone back, after a failover or a restore: the state in memory is invalid.
    fn start_over(&mut self) {
        tracing::error!(
            store = self.log.name(), node = %self.node,
            "the log ends before the published position: starting again from the positions in the table"
        );
        self.chunks.clear();
        self.noted = Position::START;
        let mut led = Vec::new();
        for strand in &mut self.strands {
            if let Some(lead) = &strand.lead {
                led.push((strand.pair.id.clone(), lead.epoch));
                strand.lose();
                self.lost_at = Some(Instant::now());
            }
        }
        self.release(led);
    }

    /// Schedules another request for one that panicked.
    fn lost(&mut self, errand: Errand, now: Instant) {
        tracing::error!(store = self.log.name(), node = %self.node, ?errand, "the store panicked: retrying the request");
        let later = now + TROUBLE;
        match errand {
            Errand::Advance => {
                self.frontier = Some(Frontier::from(self.safe));
                self.ask_again_how_far(later);
            }
            Errand::Watch => (self.watching, self.watch_at) = (false, later),
            Errand::Read(from) => {
                self.reading.retain(|reading| *reading != from);
                self.read_at = later;
            }
            Errand::Save => {
                (self.saving, self.save_at) = (false, later);
                for lead in self.strands.iter_mut().filter_map(|strand| strand.lead.as_mut()) {
                    lead.published |= std::mem::take(&mut lead.saving);
                }
            }
            Errand::Tend => (self.tending, self.tend_at) = (false, later),
            Errand::Tell => {}
        }
    }

    fn ask_again_how_far(&mut self, later: Instant) {
        (self.advance_at, self.hinted) = (later, true);
        if self.doubt == Doubt::Asked {
            self.doubt = Doubt::Raised;
        }
    }

    /// Cached rows may differ from the log by now, and the log may be shorter than it was.
    fn doubt(&mut self) {
        self.chunks.clear();
        (self.doubt, self.hinted) = (Doubt::Raised, true);
    }

    /// After a change there may be more.
    fn watch_soon(&mut self, now: Instant) {
        self.watch_pause = SOON.min(self.watch);
        self.watch_at = now + self.watch_pause;
    }

    /// Reports to the monitor whether the log can be published: not while any of the requests
    /// fails.
    fn note(&mut self, news: &News) {
        let Some((question, failure)) = news.question() else { return };
        match failure {
            Some(error) => {
                self.monitor.failed(RelayTask::LogRelay, &error);
                self.troubles.insert(question, error);
            }
            None => {
                if self.troubles.remove(question).is_some() && self.troubles.is_empty() {
                    self.monitor.succeeded(RelayTask::LogRelay);
                }
            }
        }
    }

    /// Clears the errors of requests that need not be repeated: for example, this node leads no
    /// subscription.
    fn forget_troubles(&mut self, nothing_to_claim: bool) {
        if self.troubles.is_empty() {
            return;
        }
        let leads_none = self.leads().next().is_none();
        let all_read = self.reading.is_empty() && self.leads().all(|lead| lead.cursor >= self.safe);
        let all_saved = !self.saving && !self.leads().any(Lead::is_behind);
        self.troubles.retain(|question, _| match *question {
            "claim" => !nothing_to_claim,
            "watch" => !leads_none,
            "read" => !all_read,
            "save" => !all_saved,
            _ => true,
        });
        if self.troubles.is_empty() {
            self.monitor.succeeded(RelayTask::LogRelay);
        }
    }

    /// Logs a warning, but not four times a second for as long as a database is down.
    pub(super) fn complain(&mut self, error: &Error, what: &str) {
        let now = Instant::now();
        if self.complain_at <= now {
            self.complain_at = now + PATIENCE;
            tracing::warn!(store = self.log.name(), node = %self.node, %error, "{what}");
        } else {
            tracing::debug!(store = self.log.name(), node = %self.node, %error, "{what}");
        }
    }

    pub(super) fn advanced(&mut self, frontier: Frontier, result: Result<()>, looked: bool, now: Instant) {
        self.advance_at = now + BREATH;
        let (safe, seen) = (frontier.safe, frontier.seen);
        self.frontier = Some(frontier);
        if let Err(error) = result {
            self.complain(&error, "could not query the safe position of the log");
            self.ask_again_how_far(now + TROUBLE);
            return;
        }
        if self.doubt == Doubt::Asked {
            self.doubt = Doubt::None;
        }
        let moved = safe > self.safe;
        if safe < self.safe {
            self.start_over();
        }
        self.safe = safe;
        self.head = seen.max(safe);
        if moved {
            self.news_at = now;
            self.watch_soon(now);
        }
        self.undecided = if moved { UNDECIDED.0 } else { (self.undecided * 3 / 2).min(UNDECIDED.1) };
        for lead in self.strands.iter_mut().filter_map(|strand| strand.lead.as_mut()) {
            if moved {
                lead.rhythm.hinted(now);
            } else if looked && now >= lead.rhythm.look_at {
                lead.rhythm.looked_in_vain(now);
            }
        }
    }

    pub(super) fn published(&mut self, pair: usize, batch: u64, outcome: &Outcome, now: Instant) {
        let strand = &mut self.strands[pair];
        // The batch may have been given up meanwhile, and another one be in flight.
        let Some(lead) = strand.lead.as_mut().filter(|lead| lead.is_at(batch)) else { return };
        let before = lead.rhythm.status();
        let published = lead.ended(outcome, now, rand::random());
        strand.meters.published.increment(published as u64);
        let (store, pair, status) = (self.log.name(), &strand.pair.id, lead.rhythm.status());
        match outcome {
            Outcome::Published if before != status => {
                tracing::info!(store, %pair, "the publisher works again");
            }
            Outcome::Published => {}
            Outcome::Failed(_, failure) => {
                strand.meters.errors.increment(1);
                let errors = lead.rhythm.errors;
                let retry_in = lead.rhythm.try_at.saturating_duration_since(now);
                tracing::error!(store, %pair, errors, %status, ?retry_in, error = %failure, "could not publish");
            }
            Outcome::Unavailable(_, reason) => {
                let retry_in = lead.rhythm.try_at.saturating_duration_since(now);
                tracing::warn!(store, %pair, reason, ?retry_in, "the publisher's destination is not available");
            }
        }
    }

    pub(super) fn saved(&mut self, moves: &[Move], result: Result<Vec<PairId>>, now: Instant) {
        self.saving = false;
        for told in moves {
            if let Some(lead) = self.led_in(&told.pair, told.epoch) {
                (lead.saving, lead.saved_at) = (false, now);
            }
        }
        // Saving may take a fifth of the time: with many subscriptions, or a slow database, rows
        // are updated less often.
        let took = now.saturating_duration_since(self.save_at);
        self.save_at = now + (took * 4).clamp(LINGER.0, LINGER.1);
        self.quiet_save_at = now + QUIETLY;
        let moved: HashSet<PairId> = match result {
            Ok(moved) => moved.into_iter().collect(),
            Err(error) => {
                self.complain(&error, "could not save positions");
                self.save_at = now + TROUBLE;
                for unsaved in moves {
                    if let Some(lead) = self.led_in(&unsaved.pair, unsaved.epoch) {
                        lead.published = true;
                    }
                }
                return;
            }
        };
        let mut lost = Vec::new();
        for saved in moves {
            if moved.contains(&saved.pair) {
                if let Some(lead) = self.led_in(&saved.pair, saved.epoch) {
                    lead.was_saved(saved);
                }
            } else if self.led_in(&saved.pair, saved.epoch).is_some() {
                tracing::warn!(
                    store = self.log.name(), pair = %saved.pair,
                    "another node leads the publisher, or its position was set: starting again from the position in the table"
                );
                self.strands[self.index[&saved.pair]].lose();
                self.lost_at = Some(now);
                lost.push((saved.pair.clone(), saved.epoch));
            }
        }
        self.release(lost);
    }

    pub(super) fn led_in(&mut self, pair: &PairId, epoch: i64) -> Option<&mut Lead> {
        let strand = &mut self.strands[*self.index.get(pair)?];
        strand.lead.as_mut().filter(|lead| lead.epoch == epoch)
    }

    /// Compares the state in memory with the table. Returns the subscriptions to claim.
    pub(super) fn meet(&mut self, asked: Instant, ttl: Duration, roll: &Roll) -> Vec<PairId> {
        let now = Instant::now();
        self.ask_first = self.ask_first.filter(|at| *at > asked);
        let of_others = |state: &&PairState| !state.is_free() && state.leader.as_ref() != Some(&self.node);
        let ends = roll.pairs.iter().filter(of_others).map(|state| now + state.remaining + AFTER_THE_END);
        self.others_end = ends.min();
        let orphaned = roll.pairs.iter().filter(|state| state.is_free());
        let orphaned = orphaned.filter_map(|state| Some((state.id.clone(), state.leader.clone()?)));
        self.orphaned = orphaned.filter(|(_, leader)| *leader != self.node).collect();
        let (mut stray, mut set) = (Vec::new(), false);
        for state in &roll.pairs {
            let Some(&pair) = self.index.get(&state.id) else { continue };
            let strand = &mut self.strands[pair];
            strand.meters.lag.set((self.head.get() - state.position.get()).max(0) as f64);
            let ours = state.leader.as_ref() == Some(&self.node) && !state.is_free();
            match &mut strand.lead {
                Some(lead) if ours && lead.epoch == state.epoch => {
                    lead.until = asked + ttl;
                    lead.paused = state.status == PairStatus::Paused;
                    // Only a state that was read after the last save, and before the next, can be
                    // compared with it.
                    let comparable = !lead.saving && lead.saved_at <= asked;
                    if comparable && !lead.published && lead.in_flight.is_none() {
                        if state.position != lead.saved.position {
                            tracing::info!(store = self.log.name(), pair = %state.id, position = %state.position, "the position was set");
                            strand.take(state, asked, ttl, now);
                            set = true;
                        } else if lead.saved.errors > 0 && state.error_count == 0 {
                            lead.rhythm.forgive(now);
                            lead.saved.errors = 0;
                            lead.saved.last_error = None;
                        }
                    }
                }
                Some(_) => {
                    tracing::warn!(store = self.log.name(), pair = %state.id, "this node no longer leads the publisher");
                    strand.lose();
                }
                None if ours => stray.push((state.id.clone(), state.epoch)),
                None => {}
            }
        }
        self.release(stray);
        if set {
            self.doubt();
        }
        if self.stopping.is_some() {
            return Vec::new();
        }
        let runs: HashSet<PairId> = self.index.keys().cloned().collect();
        self.register_missing(roll);
        let leads: HashSet<PairId> =
            self.strands.iter().filter(|s| s.lead.is_some()).map(|s| s.id().clone()).collect();
        let change = self.share.change(&self.node, &runs, &leads, roll);
        let surplus: HashSet<PairId> = change.give_up.into_iter().collect();
        for strand in &mut self.strands {
            let gives_up = surplus.contains(&strand.pair.id);
            if let Some(lead) = &mut strand.lead {
                lead.giving_up = gives_up;
            }
        }
        change.claim
    }

    pub(super) fn claimed(&mut self, asked: Instant, states: &[PairState]) {
        let now = Instant::now();
        for state in states {
            let Some(&pair) = self.index.get(&state.id) else { continue };
            let strand = &mut self.strands[pair];
            if let Some(before) = self.orphaned.remove(&state.id) {
                strand.meters.takeovers.increment(1);
                tracing::warn!(
                    store = self.log.name(), pair = %state.id, epoch = state.epoch, %before,
                    "took over the publisher: its leader has not renewed its lease"
                );
            } else {
                tracing::debug!(store = self.log.name(), pair = %state.id, epoch = state.epoch, "this node leads the publisher");
            }
            strand.take(state, asked, self.ttl, now);
        }
        if !states.is_empty() {
            self.news_at = now;
            self.doubt();
        }
    }

    /// Records that the table was read at that time, and every wanted subscription is claimed.
    pub(super) fn knows_leads(&mut self, asked: Instant) {
        self.lost_at = self.lost_at.filter(|lost| *lost > asked);
    }

    /// Whether this node is about to claim a publisher that no node leads, because its lease ran
    /// out, for example while writers kept SQLite busy.
    fn may_lead_more(&self) -> bool {
        (self.tending || self.lost_at.is_some()) && self.strands.iter().any(|strand| strand.lead.is_none())
    }

    /// Notifies callers that wait until everything is published.
    pub(super) fn say_if_quiet(&mut self, now: Instant) {
        if self.waiting.is_empty()
            || self.hinted
            || self.frontier.is_none()
            || self.safe < self.head
            || self.saving
            || self.ask_first.is_some()
            || self.may_lead_more()
        {
            return;
        }
        let busy = |lead: &Lead| {
            lead.in_flight.is_some() || (!lead.is_held(now) && (lead.cursor < self.safe || lead.has_news()))
        };
        if !self.leads().any(busy) {
            self.waiting.drain(..).for_each(|told| _ = told.send(()));
        }
    }
}
