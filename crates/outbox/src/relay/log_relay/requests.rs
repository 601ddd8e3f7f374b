//! Requests of the log relay to the database and to publishers. Each is a task of its own, which
//! ends with one response.

use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::chunks::{Chunk, Gathered, MAX_BYTES, MAX_ROWS};
use super::log_handle::LogHandle;
use super::responses::{Request, Response};
use super::subscription::{BatchOutcome, Leader};
use super::{IDLE_LEASE_FACTOR, LogRelay, Recheck};
use crate::error::Result;
use crate::log::{
    ClusterView, LogEvent, Outgoing, Position, ProgressUpdate, Publisher, Query, StoredLogEvent,
    SubscriptionId,
};
use crate::relay::dispatch::guarded;

/// How many reads may run at the same time.
const READS: usize = 2;

impl LogRelay {
    /// Queries the safe position, and the head of the log, when it is time to.
    pub(super) fn poll_log(&mut self, now: Instant) {
        if now >= self.next_advance()
            && let Some(mut watermark) = self.watermark.take()
        {
            let polled = !self.hinted && now >= self.earliest_poll();
            self.hinted = false;
            if self.recheck == Recheck::Needed {
                self.recheck = Recheck::Running;
            }
            self.request(Request::Advance, async move |log| {
                let result = log.advance(&mut watermark).await;
                Response::Advanced { watermark, result, polled }
            });
        }
        if now >= self.watch_at && self.has_to_watch() {
            self.watching = true;
            self.watch_pause = (self.watch_pause * 2).min(self.watch);
            self.watch_at = now + self.watch_pause;
            self.request(Request::Watch, async move |log| Response::Head(log.head().await));
        }
    }

    /// Sends the next batch of a subscription to its publisher.
    pub(super) fn send_next(&mut self, index: usize, now: Instant) {
        let subscription = &mut self.subscriptions[index];
        let Some(leader) = subscription.leader.as_mut().filter(|leader| leader.is_ready(now)) else { return };
        if leader.cursor >= self.safe || self.recheck != Recheck::NotNeeded || self.confirm_after.is_some() {
            return;
        }
        let (batch_size, mark) = (leader.pacing.batch_size(), (leader.pacing.errors + 1, leader.epoch));
        let gathered =
            self.chunks.gather(&subscription.definition.topic, leader.cursor, self.safe, batch_size, mark);
        let Gathered { events, upto, missing } = gathered;
        // The next range too, before it is needed: reading goes on while publishers work.
        let ahead = if missing { upto } else { self.chunks.after(upto).map_or(upto, |chunk| chunk.upto) };
        if events.is_empty() {
            leader.cursor = leader.cursor.max(upto);
            return self.want(ahead);
        }
        let span = tracing::debug_span!(
            "outbox.publish", store = self.log.name(), subscription = %subscription.definition.id, events = events.len()
        );
        let (publisher, limit) =
            (subscription.definition.publisher.clone(), subscription.definition.pace().timeout);
        self.batches += 1;
        let (responses, batch) = (self.responses.clone(), self.batches);
        let positions: Vec<Position> = events.iter().filter_map(|event| event.position).collect();
        let task = tokio::spawn(
            async move {
                let outcome = publish(&*publisher, &events, limit).await;
                let _ = responses.send(Response::Published { index, batch, outcome });
            }
            .instrument(span),
        );
        leader.sent(batch, positions, upto, task.abort_handle(), now);
        self.want(ahead);
    }

    /// Records that a subscription needs the range after a position.
    fn want(&mut self, from: Position) {
        if !self.wanted.contains(&from) {
            self.wanted.push(from);
        }
    }

    /// Reads wanted ranges, in the order in which they were requested.
    pub(super) fn read(&mut self, now: Instant) {
        if now < self.read_at {
            return;
        }
        let (reading, chunks, safe) = (&self.reading, &self.chunks, self.safe);
        self.wanted.retain(|from| !reading.contains(from) && !chunks.covers(*from) && *from < safe);
        let free = READS.saturating_sub(self.reading.len()).min(self.wanted.len());
        for from in self.wanted.drain(..free).collect::<Vec<_>>() {
            let upto = self.chunks.read_end(from, safe);
            self.reading.push(from);
            self.request(Request::Read(from), async move |log| Response::Read {
                from,
                result: read_chunk(&log, from, upto, safe).await,
            });
        }
    }

    /// Saves the positions of all subscriptions in one statement.
    pub(super) fn save(&mut self, now: Instant) {
        if self.saving {
            return;
        }
        let loud = now >= self.save_at && self.leaders().any(Leader::has_unsaved_result);
        let quiet = now >= self.quiet_save_at && self.leaders().any(Leader::needs_saving);
        let last = self.stopping.is_some() && now >= self.save_at;
        if !loud && !quiet && !last {
            return;
        }
        let moves: Vec<ProgressUpdate> = self
            .subscriptions
            .iter_mut()
            .filter_map(|subscription| {
                let leader = subscription.leader.as_mut().filter(|leader| leader.needs_saving())?;
                leader.published = false;
                leader.saving = true;
                Some(leader.to_save(&subscription.definition.id))
            })
            .collect();
        if moves.is_empty() {
            return;
        }
        self.saving = true;
        self.save_at = now;
        let node = self.node.clone();
        self.request(Request::Save, async move |log| {
            let result = log.save(&node, &moves).await;
            Response::Saved { moves, result }
        });
    }

    /// Renews this node's leases, and reads who leads what.
    pub(super) fn heartbeat(&mut self, now: Instant) {
        if self.heartbeat_running || now < self.heartbeat_at {
            return;
        }
        self.heartbeat_running = true;
        let ttl = if self.is_idle(now) { self.ttl * IDLE_LEASE_FACTOR } else { self.ttl };
        for leader in self.subscriptions.iter_mut().filter_map(|subscription| subscription.leader.as_mut()) {
            // The lease in the table may be shorter from now on, also if the answer is lost.
            leader.until = leader.until.min(now + ttl);
        }
        let node = self.node.clone();
        self.request(Request::Heartbeat, async move |log| {
            let result = log.tend(&node, ttl).await;
            Response::HeartbeatSent { asked: now, ttl, result }
        });
    }

    /// Releases the subscriptions above this node's quota, once they are at rest.
    pub(super) fn release_surplus(&mut self) {
        if self.saving {
            return;
        }
        let mut released = Vec::new();
        for subscription in &mut self.subscriptions {
            let at_rest = subscription
                .leader
                .as_ref()
                .filter(|l| l.releasing && l.in_flight.is_none() && !l.needs_saving());
            if let Some(leader) = at_rest {
                released.push((subscription.definition.id.clone(), leader.epoch));
                subscription.stop_leading();
            }
        }
        self.release(released);
    }

    pub(super) fn release(&mut self, subscriptions: Vec<(SubscriptionId, i64)>) {
        if subscriptions.is_empty() {
            return;
        }
        let node = self.node.clone();
        self.request(Request::Update, async move |log| {
            let result = log.release(&node, &subscriptions).await;
            log.notify_nodes().await;
            Response::Updated { what: "could not hand over publishers", result }
        });
    }

    /// Stores the safe position, for nodes that start later.
    pub(super) fn store_watermark(&mut self) {
        let safe = self.safe;
        if safe <= self.stored_watermark {
            return;
        }
        self.stored_watermark = safe;
        self.request(Request::Update, async move |log| {
            let result = log.store_watermark(safe).await;
            Response::Updated { what: "could not store the safe position of the log", result }
        });
    }

    /// Creates rows that were deleted.
    pub(super) fn register_missing(&mut self, view: &ClusterView) {
        let there: HashSet<&SubscriptionId> = view.subscriptions.iter().map(|state| &state.id).collect();
        let missing = self.subscriptions.iter().filter(|subscription| !there.contains(subscription.id()));
        let missing: Vec<(SubscriptionId, bool)> =
            missing.map(|s| (s.id().clone(), s.definition.from_now)).collect();
        if missing.is_empty() {
            return;
        }
        for (id, _) in &missing {
            self.subscriptions[self.index[id]].stop_leading();
        }
        self.request(Request::Update, async move |log| {
            let result = log.register(&missing).await;
            Response::Updated { what: "could not create the rows of publishers", result }
        });
    }

    pub(super) fn claim(&mut self, subscriptions: Vec<SubscriptionId>, asked: Instant, lease: Duration) {
        // Counted from the time of the request, as the lease is. An idle node sends a heartbeat
        // twice per lease, and when the lease of another node should have ended.
        self.long_lease = lease > self.ttl;
        self.heartbeat_at = if self.confirm_after.is_some() {
            asked
        } else if self.long_lease && subscriptions.is_empty() {
            let at = asked + lease / 2;
            self.others_expire_at.map_or(at, |end| at.min(end.max(asked + self.ttl / 4)))
        } else {
            asked + self.ttl / 4
        };
        if subscriptions.is_empty() {
            self.heartbeat_running = false;
            self.leaders_confirmed(asked);
            return;
        }
        let (node, ttl) = (self.node.clone(), self.ttl);
        self.request(Request::Heartbeat, async move |log| {
            let asked = Instant::now();
            let result = log.claim(&node, ttl, &subscriptions).await;
            Response::Claimed { asked, result }
        });
    }

    /// Runs a request in a task of its own, which ends with one response.
    fn request<F: Future<Output = Response> + Send + 'static>(
        &self,
        request: Request,
        ask: impl FnOnce(LogHandle) -> F,
    ) {
        let (responses, asking) = (self.responses.clone(), ask(self.log.clone()));
        tokio::spawn(async move {
            let answer = AssertUnwindSafe(asking).catch_unwind().await;
            responses.send(answer.unwrap_or(Response::Lost(request)))
        });
    }
}

/// Checks the publisher's health, and publishes. A panic and a timeout are failures like any other.
async fn publish(publisher: &dyn Publisher, events: &[Outgoing], limit: Duration) -> BatchOutcome {
    let published = async {
        if let Err(unavailable) = publisher.health().await {
            return Ok(BatchOutcome::Unavailable(0, unavailable.to_string()));
        }
        Ok(match publisher.publish_batch(events).await {
            Ok(()) => BatchOutcome::Published,
            Err(error) if error.is_unavailable() => {
                BatchOutcome::Unavailable(error.published(), error.to_string())
            }
            Err(error) => BatchOutcome::Failed(error.published(), error.failure),
        })
    };
    guarded("the publisher", limit, published)
        .await
        .unwrap_or_else(|failure| BatchOutcome::Failed(0, failure))
}

/// Reads a range of the log. Events that cannot be read are recorded and left out: they would block
/// every publisher for ever.
async fn read_chunk(log: &LogHandle, from: Position, upto: Position, safe: Position) -> Result<Chunk> {
    // One limit, and so one statement, whatever the range.
    let read = log.read_bounded(from, upto, MAX_ROWS, MAX_BYTES).await?;
    if !read.rows.is_empty() || upto >= safe {
        let upto = read.rows.last().filter(|_| read.cut).map_or(upto, position);
        return Ok(Chunk { from, upto, rows: readable(log, read.rows).await? });
    }
    // Empty: a purge may have left a wide gap.
    let next = log.read(&Query::all(), upto, Some(safe), 1).await?;
    let upto = next.first().map_or(safe, |row| Position::new(position(row).get() - 1));
    Ok(Chunk { from, upto, rows: Vec::new() })
}

fn position(row: &StoredLogEvent) -> Position {
    match row {
        Ok(event) => event.position,
        Err((position, _)) => *position,
    }
}

async fn readable(log: &LogHandle, rows: Vec<StoredLogEvent>) -> Result<Vec<LogEvent>> {
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        match row {
            Ok(event) => events.push(event),
            Err((position, reason)) => {
                if log.note_unreadable(position, &reason).await? {
                    tracing::error!(
                        store = log.name(), %position, reason,
                        "an event of the log cannot be read: publishers skip it"
                    );
                }
            }
        }
    }
    Ok(events)
}
