//! The responses to requests of the log relay, and its reactions to them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::chunks::Chunk;
use super::subscription::{BatchOutcome, Leader};
use super::{ADVANCE_PAUSE, LEASE_END_MARGIN, LogRelay, Recheck};
use crate::error::{Error, Result};
use crate::log::{
    ClusterView, Position, ProgressUpdate, SubscriptionId, SubscriptionState, SubscriptionStatus, Watermark,
};
use crate::store::RelayTask;

/// The shortest time between two queries of the safe position.
const MIN_ADVANCE_INTERVAL: Duration = Duration::from_millis(1);
/// Pause before the next poll of the head after a change.
const SHORTEST_WATCH_PAUSE: Duration = Duration::from_millis(4);
/// How long published positions wait to be saved in a batch with others, at least and at most.
const SAVE_DELAY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// How often positions are saved that only moved over events which the topic does not select.
const QUIET_SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two warnings.
const WARN_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after an error of the database.
const ERROR_PAUSE: Duration = Duration::from_millis(250);

/// Responses that the log relay receives.
pub(super) enum Response {
    Advanced {
        watermark: Watermark,
        result: Result<()>,
        polled: bool,
    },
    Head(Result<Position>),
    Read {
        from: Position,
        result: Result<Chunk>,
    },
    Published {
        index: usize,
        batch: u64,
        outcome: BatchOutcome,
    },
    Saved {
        moves: Vec<ProgressUpdate>,
        result: Result<Vec<SubscriptionId>>,
    },
    HeartbeatSent {
        asked: Instant,
        ttl: Duration,
        result: Result<ClusterView>,
    },
    Claimed {
        asked: Instant,
        result: Result<Vec<SubscriptionState>>,
    },
    /// Result of a request that has no other effect, and the message if it failed.
    Updated {
        what: &'static str,
        result: Result<()>,
    },
    /// The request panicked, and will not answer.
    Lost(Request),
    /// A caller waits until everything is published.
    WaitIdle(oneshot::Sender<()>),
}

/// A running request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Advance,
    Watch,
    Read(Position),
    Save,
    Heartbeat,
    Update,
}

impl Response {
    /// Name of the request, and its error if it failed.
    fn request_result(&self) -> Option<(&'static str, Option<String>)> {
        fn failure<T>(result: &Result<T>) -> Option<String> {
            result.as_ref().err().map(ToString::to_string)
        }
        Some(match self {
            Response::Advanced { result, .. } => ("advance", failure(result)),
            Response::Head(result) => ("watch", failure(result)),
            Response::Read { result, .. } => ("read", failure(result)),
            Response::Saved { result, .. } => ("save", failure(result)),
            Response::HeartbeatSent { result, .. } => ("heartbeat", failure(result)),
            Response::Claimed { result, .. } => ("claim", failure(result)),
            Response::Lost(request) => {
                let name = match request {
                    Request::Advance => "advance",
                    Request::Watch => "watch",
                    Request::Read(_) => "read",
                    Request::Save => "save",
                    Request::Heartbeat => "heartbeat",
                    Request::Update => return None,
                };
                (name, Some("the store panicked".to_owned()))
            }
            Response::Published { .. } | Response::Updated { .. } | Response::WaitIdle(_) => return None,
        })
    }
}

impl LogRelay {
    pub(super) fn on_response(&mut self, response: Response) {
        let now = Instant::now();
        self.record_result(&response);
        match response {
            Response::Advanced { watermark, result, polled } => self.advanced(watermark, result, polled, now),
            Response::Head(result) => {
                self.watching = false;
                match result {
                    Ok(head) if head > self.head => {
                        self.head = head;
                        self.watch_soon(now);
                        self.hint();
                    }
                    Ok(_) => {}
                    Err(error) => self.warn_throttled(&error, "could not query the head of the log"),
                }
            }
            Response::Read { from, result } => {
                self.reading.retain(|reading| *reading != from);
                match result {
                    Ok(chunk) => {
                        self.chunks.add(chunk);
                    }
                    Err(error) => {
                        self.warn_throttled(&error, "could not read the log");
                        self.read_at = now + ERROR_PAUSE;
                    }
                }
            }
            Response::Published { index, batch, outcome } => self.published(index, batch, &outcome, now),
            Response::Saved { moves, result } => self.saved(&moves, result, now),
            Response::HeartbeatSent { asked, ttl, result } => match result {
                Ok(view) => {
                    let claims = self.reconcile(asked, ttl, &view);
                    self.clear_obsolete_errors(claims.is_empty());
                    self.claim(claims, asked, ttl);
                    self.store_watermark();
                }
                Err(error) => {
                    self.warn_throttled(&error, "could not renew the leases of publishers");
                    self.heartbeat_running = false;
                    self.heartbeat_at = now + ERROR_PAUSE;
                }
            },
            Response::Claimed { asked, result } => {
                self.heartbeat_running = false;
                match result {
                    Ok(states) => {
                        self.claimed(asked, &states);
                        self.leaders_confirmed(asked);
                    }
                    Err(error) => self.warn_throttled(&error, "could not claim publishers"),
                }
            }
            Response::Updated { what, result } => {
                if let Err(error) = result {
                    self.warn_throttled(&error, what);
                }
            }
            Response::Lost(request) => self.request_lost(request, now),
            Response::WaitIdle(done) => {
                self.hint();
                self.idle_waiters.push(done);
            }
        }
    }

    /// Drops the cache and all leaderships: the log has gone back, after a failover or a restore,
    /// and the state in memory is invalid.
    fn start_over(&mut self) {
        tracing::error!(
            store = self.log.name(), node = %self.node,
            "the log ends before the published position: starting again from the positions in the table"
        );
        self.chunks.clear();
        self.stored_watermark = Position::START;
        let mut led = Vec::new();
        for subscription in &mut self.subscriptions {
            if let Some(leader) = &subscription.leader {
                led.push((subscription.definition.id.clone(), leader.epoch));
                subscription.stop_leading();
                self.lost_at = Some(Instant::now());
            }
        }
        self.release(led);
    }

    /// Schedules another request for one that panicked.
    fn request_lost(&mut self, request: Request, now: Instant) {
        tracing::error!(store = self.log.name(), node = %self.node, ?request, "the store panicked: retrying the request");
        let later = now + ERROR_PAUSE;
        match request {
            Request::Advance => {
                self.watermark = Some(Watermark::from(self.safe));
                self.retry_advance(later);
            }
            Request::Watch => (self.watching, self.watch_at) = (false, later),
            Request::Read(from) => {
                self.reading.retain(|reading| *reading != from);
                self.read_at = later;
            }
            Request::Save => {
                (self.saving, self.save_at) = (false, later);
                for leader in
                    self.subscriptions.iter_mut().filter_map(|subscription| subscription.leader.as_mut())
                {
                    leader.published |= std::mem::take(&mut leader.saving);
                }
            }
            Request::Heartbeat => (self.heartbeat_running, self.heartbeat_at) = (false, later),
            Request::Update => {}
        }
    }

    fn retry_advance(&mut self, later: Instant) {
        (self.advance_at, self.hinted) = (later, true);
        if self.recheck == Recheck::Running {
            self.recheck = Recheck::Needed;
        }
    }

    /// Drops the cache and requests the safe position again: cached rows may differ from the log by
    /// now, and the log may be shorter than it was.
    fn recheck(&mut self) {
        self.chunks.clear();
        (self.recheck, self.hinted) = (Recheck::Needed, true);
    }

    /// Schedules the next poll of the head soon: after a change there may be more.
    fn watch_soon(&mut self, now: Instant) {
        self.watch_pause = SHORTEST_WATCH_PAUSE.min(self.watch);
        self.watch_at = now + self.watch_pause;
    }

    /// Reports to the monitor whether the log can be published: not while any of the requests
    /// fails.
    fn record_result(&mut self, response: &Response) {
        let Some((name, failure)) = response.request_result() else { return };
        match failure {
            Some(error) => {
                self.monitor.failed(RelayTask::LogRelay, &error);
                self.failing_requests.insert(name, error);
            }
            None => {
                if self.failing_requests.remove(name).is_some() && self.failing_requests.is_empty() {
                    self.monitor.succeeded(RelayTask::LogRelay);
                }
            }
        }
    }

    /// Clears the errors of requests that need not be repeated: for example, this node leads no
    /// subscription.
    fn clear_obsolete_errors(&mut self, nothing_to_claim: bool) {
        if self.failing_requests.is_empty() {
            return;
        }
        let leads_none = self.leaders().next().is_none();
        let all_read = self.reading.is_empty() && self.leaders().all(|leader| leader.cursor >= self.safe);
        let all_saved = !self.saving && !self.leaders().any(Leader::needs_saving);
        self.failing_requests.retain(|name, _| match *name {
            "claim" => !nothing_to_claim,
            "watch" => !leads_none,
            "read" => !all_read,
            "save" => !all_saved,
            _ => true,
        });
        if self.failing_requests.is_empty() {
            self.monitor.succeeded(RelayTask::LogRelay);
        }
    }

    /// Logs a warning, but not four times a second for as long as a database is down.
    pub(super) fn warn_throttled(&mut self, error: &Error, what: &str) {
        let now = Instant::now();
        if self.warn_at <= now {
            self.warn_at = now + WARN_INTERVAL;
            tracing::warn!(store = self.log.name(), node = %self.node, %error, "{what}");
        } else {
            tracing::debug!(store = self.log.name(), node = %self.node, %error, "{what}");
        }
    }

    pub(super) fn advanced(&mut self, watermark: Watermark, result: Result<()>, polled: bool, now: Instant) {
        self.advance_at = now + MIN_ADVANCE_INTERVAL;
        let (safe, seen) = (watermark.safe, watermark.seen);
        self.watermark = Some(watermark);
        if let Err(error) = result {
            self.warn_throttled(&error, "could not query the safe position of the log");
            self.retry_advance(now + ERROR_PAUSE);
            return;
        }
        if self.recheck == Recheck::Running {
            self.recheck = Recheck::NotNeeded;
        }
        let moved = safe > self.safe;
        if safe < self.safe {
            self.start_over();
        }
        self.safe = safe;
        self.head = seen.max(safe);
        if moved {
            self.changed_at = now;
            self.watch_soon(now);
        }
        self.advance_pause =
            if moved { ADVANCE_PAUSE.0 } else { (self.advance_pause * 3 / 2).min(ADVANCE_PAUSE.1) };
        for leader in self.subscriptions.iter_mut().filter_map(|subscription| subscription.leader.as_mut()) {
            if moved {
                leader.pacing.hinted(now);
            } else if polled && now >= leader.pacing.poll_at {
                leader.pacing.record_empty_poll(now);
            }
        }
    }

    pub(super) fn published(&mut self, index: usize, batch: u64, outcome: &BatchOutcome, now: Instant) {
        let subscription = &mut self.subscriptions[index];
        // The batch may have been given up meanwhile, and another one be in flight.
        let Some(leader) = subscription.leader.as_mut().filter(|leader| leader.is_sending(batch)) else {
            return;
        };
        let before = leader.pacing.status();
        let published = leader.finish(outcome, now, rand::random());
        subscription.meters.published.increment(published as u64);
        let (store, id, status) = (self.log.name(), &subscription.definition.id, leader.pacing.status());
        match outcome {
            BatchOutcome::Published if before != status => {
                tracing::info!(store, subscription = %id, "the publisher works again");
            }
            BatchOutcome::Published => {}
            BatchOutcome::Failed(_, failure) => {
                subscription.meters.errors.increment(1);
                let errors = leader.pacing.errors;
                let retry_in = leader.pacing.try_at.saturating_duration_since(now);
                tracing::error!(store, subscription = %id, errors, %status, ?retry_in, error = %failure, "could not publish");
            }
            BatchOutcome::Unavailable(_, reason) => {
                let retry_in = leader.pacing.try_at.saturating_duration_since(now);
                tracing::warn!(store, subscription = %id, reason, ?retry_in, "the publisher's destination is not available");
            }
        }
    }

    pub(super) fn saved(
        &mut self,
        moves: &[ProgressUpdate],
        result: Result<Vec<SubscriptionId>>,
        now: Instant,
    ) {
        self.saving = false;
        for saved in moves {
            if let Some(leader) = self.leader_in(&saved.subscription, saved.epoch) {
                (leader.saving, leader.saved_at) = (false, now);
            }
        }
        // Saving may take a fifth of the time: with many subscriptions, or a slow database, rows
        // are updated less often.
        let took = now.saturating_duration_since(self.save_at);
        self.save_at = now + (took * 4).clamp(SAVE_DELAY.0, SAVE_DELAY.1);
        self.quiet_save_at = now + QUIET_SAVE_INTERVAL;
        let moved: HashSet<SubscriptionId> = match result {
            Ok(moved) => moved.into_iter().collect(),
            Err(error) => {
                self.warn_throttled(&error, "could not save positions");
                self.save_at = now + ERROR_PAUSE;
                for unsaved in moves {
                    if let Some(leader) = self.leader_in(&unsaved.subscription, unsaved.epoch) {
                        leader.published = true;
                    }
                }
                return;
            }
        };
        let mut lost = Vec::new();
        for saved in moves {
            if moved.contains(&saved.subscription) {
                if let Some(leader) = self.leader_in(&saved.subscription, saved.epoch) {
                    leader.mark_saved(saved);
                }
            } else if self.leader_in(&saved.subscription, saved.epoch).is_some() {
                tracing::warn!(
                    store = self.log.name(), subscription = %saved.subscription,
                    "another node leads the publisher, or its position was set: starting again from the position in the table"
                );
                self.subscriptions[self.index[&saved.subscription]].stop_leading();
                self.lost_at = Some(now);
                lost.push((saved.subscription.clone(), saved.epoch));
            }
        }
        self.release(lost);
    }

    pub(super) fn leader_in(&mut self, id: &SubscriptionId, epoch: i64) -> Option<&mut Leader> {
        let subscription = &mut self.subscriptions[*self.index.get(id)?];
        subscription.leader.as_mut().filter(|leader| leader.epoch == epoch)
    }

    /// Compares the state in memory with the table. Returns the subscriptions to claim.
    pub(super) fn reconcile(
        &mut self,
        asked: Instant,
        ttl: Duration,
        view: &ClusterView,
    ) -> Vec<SubscriptionId> {
        let now = Instant::now();
        self.confirm_after = self.confirm_after.filter(|at| *at > asked);
        let of_others =
            |state: &&SubscriptionState| !state.is_free() && state.leader.as_ref() != Some(&self.node);
        let ends =
            view.subscriptions.iter().filter(of_others).map(|state| now + state.remaining + LEASE_END_MARGIN);
        self.others_expire_at = ends.min();
        let orphaned = view.subscriptions.iter().filter(|state| state.is_free());
        let orphaned = orphaned.filter_map(|state| Some((state.id.clone(), state.leader.clone()?)));
        self.orphaned = orphaned.filter(|(_, leader)| *leader != self.node).collect();
        let (mut stray, mut set) = (Vec::new(), false);
        for state in &view.subscriptions {
            let Some(&index) = self.index.get(&state.id) else { continue };
            let subscription = &mut self.subscriptions[index];
            subscription.meters.lag.set((self.head.get() - state.position.get()).max(0) as f64);
            let ours = state.leader.as_ref() == Some(&self.node) && !state.is_free();
            match &mut subscription.leader {
                Some(leader) if ours && leader.epoch == state.epoch => {
                    leader.until = asked + ttl;
                    leader.paused = state.status == SubscriptionStatus::Paused;
                    // Only a state that was read after the last save, and before the next, can be
                    // compared with it.
                    let comparable = !leader.saving && leader.saved_at <= asked;
                    if comparable && !leader.published && leader.in_flight.is_none() {
                        if state.position != leader.saved.position {
                            tracing::info!(store = self.log.name(), subscription = %state.id, position = %state.position, "the position was set");
                            subscription.start_leading(state, asked, ttl, now);
                            set = true;
                        } else if leader.saved.errors > 0 && state.error_count == 0 {
                            leader.pacing.reset_errors(now);
                            leader.saved.errors = 0;
                            leader.saved.last_error = None;
                        }
                    }
                }
                Some(_) => {
                    tracing::warn!(store = self.log.name(), subscription = %state.id, "this node no longer leads the publisher");
                    subscription.stop_leading();
                }
                None if ours => stray.push((state.id.clone(), state.epoch)),
                None => {}
            }
        }
        self.release(stray);
        if set {
            self.recheck();
        }
        if self.stopping.is_some() {
            return Vec::new();
        }
        let running: HashSet<SubscriptionId> = self.index.keys().cloned().collect();
        self.register_missing(view);
        let leaders: HashSet<SubscriptionId> =
            self.subscriptions.iter().filter(|s| s.leader.is_some()).map(|s| s.id().clone()).collect();
        let rebalance = self.balancer.rebalance(&self.node, &running, &leaders, view);
        let surplus: HashSet<SubscriptionId> = rebalance.release.into_iter().collect();
        for subscription in &mut self.subscriptions {
            let releases = surplus.contains(&subscription.definition.id);
            if let Some(leader) = &mut subscription.leader {
                leader.releasing = releases;
            }
        }
        rebalance.claim
    }

    pub(super) fn claimed(&mut self, asked: Instant, states: &[SubscriptionState]) {
        let now = Instant::now();
        for state in states {
            let Some(&index) = self.index.get(&state.id) else { continue };
            let subscription = &mut self.subscriptions[index];
            if let Some(before) = self.orphaned.remove(&state.id) {
                subscription.meters.takeovers.increment(1);
                tracing::warn!(
                    store = self.log.name(), subscription = %state.id, epoch = state.epoch, %before,
                    "took over the publisher: its leader has not renewed its lease"
                );
            } else {
                tracing::debug!(store = self.log.name(), subscription = %state.id, epoch = state.epoch, "this node leads the publisher");
            }
            subscription.start_leading(state, asked, self.ttl, now);
        }
        if !states.is_empty() {
            self.changed_at = now;
            self.recheck();
        }
    }

    /// Records that the table was read at that time, and every wanted subscription is claimed.
    pub(super) fn leaders_confirmed(&mut self, asked: Instant) {
        self.lost_at = self.lost_at.filter(|lost| *lost > asked);
    }

    /// Whether this node is about to claim a publisher that no node leads, because its lease ran
    /// out, for example while writers kept SQLite busy.
    fn may_lead_more(&self) -> bool {
        (self.heartbeat_running || self.lost_at.is_some())
            && self.subscriptions.iter().any(|subscription| subscription.leader.is_none())
    }

    /// Notifies callers that wait until everything is published.
    pub(super) fn notify_idle(&mut self, now: Instant) {
        if self.idle_waiters.is_empty()
            || self.hinted
            || self.watermark.is_none()
            || self.safe < self.head
            || self.saving
            || self.confirm_after.is_some()
            || self.may_lead_more()
        {
            return;
        }
        let busy = |leader: &Leader| {
            leader.in_flight.is_some()
                || (!leader.is_suspended(now) && (leader.cursor < self.safe || leader.has_unsaved_result()))
        };
        if !self.leaders().any(busy) {
            self.idle_waiters.drain(..).for_each(|done| _ = done.send(()));
        }
    }
}
