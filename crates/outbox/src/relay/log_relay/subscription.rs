//! One subscription on this node: its position, its batch in flight, and its unsaved changes.

use std::time::{Duration, Instant};

use metrics::{Counter, Gauge};

use super::pacing::Pacing;
use crate::handler::Failure;
use crate::log::{
    Position, ProgressUpdate, Subscription, SubscriptionId, SubscriptionState, SubscriptionStatus,
};
use crate::metrics::SubscriptionMetrics;

/// A subscription that this node runs, whether it leads it or not.
pub(super) struct LocalSubscription {
    pub(super) definition: Subscription,
    pub(super) leader: Option<Leader>,
    pub(super) meters: Meters,
}

/// Metrics of a subscription.
pub(super) struct Meters {
    pub(super) published: Counter,
    pub(super) errors: Counter,
    pub(super) leading: Gauge,
    pub(super) takeovers: Counter,
    pub(super) lag: Gauge,
}

impl Meters {
    pub(super) fn new(metrics: &SubscriptionMetrics<'_>, id: &SubscriptionId) -> Self {
        Self {
            published: metrics.counter("log.published", id),
            errors: metrics.counter("log.errors", id),
            leading: metrics.gauge("log.leading", id),
            takeovers: metrics.counter("log.takeovers", id),
            lag: metrics.gauge("log.lag", id),
        }
    }
}

/// State of a subscription that this node leads.
pub(super) struct Leader {
    pub(super) epoch: i64,
    /// By this process's own clock, counted from before leadership was requested.
    pub(super) until: Instant,
    /// The state in the table.
    pub(super) saved: Saved,
    /// Whether a save is running, and when the last one was answered.
    pub(super) saving: bool,
    pub(super) saved_at: Instant,
    /// All events up to here are published or not selected.
    pub(super) cursor: Position,
    /// Whether events were published whose position is not saved.
    pub(super) published: bool,
    pub(super) pacing: Pacing,
    pub(super) paused: bool,
    /// To be released for another node, as soon as it is at rest.
    pub(super) releasing: bool,
    pub(super) in_flight: Option<BatchInFlight>,
}

/// State of a subscription in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) position: Position,
    pub(super) errors: u32,
    pub(super) last_error: Option<String>,
}

/// A batch that is with a publisher.
pub(super) struct BatchInFlight {
    /// Number of the batch, unique within a log relay.
    batch: u64,
    /// The positions of its events.
    positions: Vec<Position>,
    /// The position of the subscription once the batch is published.
    upto: Position,
    task: tokio::task::AbortHandle,
}

impl Drop for BatchInFlight {
    /// Cancels the batch when nothing waits for it any more, also after a panic of the whole log
    /// relay: another leader may publish it.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Outcome of a batch.
#[derive(Debug)]
pub(super) enum BatchOutcome {
    Published,
    /// So many events from its start were published, then it failed.
    Failed(usize, Failure),
    /// So many events from its start were published, then the destination became unavailable: not
    /// an error of an event.
    Unavailable(usize, String),
}

impl LocalSubscription {
    pub(super) fn id(&self) -> &SubscriptionId {
        &self.definition.id
    }

    /// Starts to lead, from the state in the table.
    pub(super) fn start_leading(
        &mut self,
        state: &SubscriptionState,
        asked: Instant,
        ttl: Duration,
        now: Instant,
    ) {
        let pacing = Pacing::new(self.definition.pace(), state.error_count, state.last_error.clone(), now);
        self.leader = Some(Leader {
            epoch: state.epoch,
            until: asked + ttl,
            saved: Saved::of(state),
            saving: false,
            saved_at: now,
            cursor: state.position,
            published: false,
            pacing,
            paused: state.status == SubscriptionStatus::Paused,
            releasing: false,
            in_flight: None,
        });
        self.meters.leading.set(1.0);
    }

    /// Stops to lead. The batch in flight is left to the next leader.
    pub(super) fn stop_leading(&mut self) {
        if let Some(mut leader) = self.leader.take() {
            leader.abandon();
            self.meters.leading.set(0.0);
        }
    }
}

impl Saved {
    fn of(state: &SubscriptionState) -> Self {
        Self { position: state.position, errors: state.error_count, last_error: state.last_error.clone() }
    }
}

impl Leader {
    /// Whether it may publish now.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.in_flight.is_none()
            && !self.paused
            && !self.releasing
            && now < self.until
            && now >= self.pacing.try_at
    }

    /// Whether it publishes nothing for a reason that may last.
    pub(super) fn is_suspended(&self, now: Instant) -> bool {
        self.paused || self.releasing || now < self.pacing.try_at
    }

    /// Records a batch that was sent to the publisher.
    pub(super) fn sent(
        &mut self,
        batch: u64,
        positions: Vec<Position>,
        upto: Position,
        task: tokio::task::AbortHandle,
        now: Instant,
    ) {
        self.pacing.sent(now);
        self.in_flight = Some(BatchInFlight { batch, positions, upto, task });
    }

    /// Whether this batch is with the publisher.
    pub(super) fn is_sending(&self, batch: u64) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.batch == batch)
    }

    /// Gives up the batch that is with the publisher: its events are sent again, in smaller
    /// batches.
    pub(super) fn abandon(&mut self) {
        if let Some(in_flight) = self.in_flight.take() {
            self.pacing.abandoned(in_flight.positions.len());
        }
    }

    /// Applies the outcome of the batch. Returns how many events were published.
    pub(super) fn finish(&mut self, outcome: &BatchOutcome, now: Instant, random: f64) -> usize {
        let Some(batch) = self.in_flight.take() else { return 0 };
        let published = match outcome {
            BatchOutcome::Published => {
                self.cursor = self.cursor.max(batch.upto);
                self.pacing.succeeded(now);
                batch.positions.len()
            }
            BatchOutcome::Failed(published, failure) => {
                // A publisher that reports more events than it was given has published all of them,
                // and still failed.
                let published = (*published).min(batch.positions.len());
                if published > 0 {
                    self.cursor = self.cursor.max(batch.positions[published - 1]);
                    // The position has moved: these are not consecutive errors.
                    self.pacing.succeeded(now);
                }
                self.pacing.failed(now, batch.positions.len() - published, failure, random);
                published
            }
            BatchOutcome::Unavailable(published, reason) => {
                let published = (*published).min(batch.positions.len());
                if published > 0 {
                    self.cursor = self.cursor.max(batch.positions[published - 1]);
                }
                self.pacing.unavailable(now, reason, random);
                published
            }
        };
        self.published |= published > 0;
        published
    }

    /// Whether to save soon: events were published, or an error began or ended.
    pub(super) fn has_unsaved_result(&self) -> bool {
        self.published
            || self.pacing.errors != self.saved.errors
            || self.pacing.last_error != self.saved.last_error
    }

    /// Whether the state in the table is behind at all.
    pub(super) fn needs_saving(&self) -> bool {
        self.cursor > self.saved.position || self.has_unsaved_result()
    }

    /// The update to save.
    pub(super) fn to_save(&self, id: &SubscriptionId) -> ProgressUpdate {
        ProgressUpdate {
            subscription: id.clone(),
            epoch: self.epoch,
            from: self.saved.position,
            to: self.cursor,
            status: self.pacing.status(),
            error_count: self.pacing.errors,
            last_error: self.pacing.last_error.clone(),
        }
    }

    /// Records that the update is saved.
    pub(super) fn mark_saved(&mut self, saved: &ProgressUpdate) {
        self.saved =
            Saved { position: saved.to, errors: saved.error_count, last_error: saved.last_error.clone() };
    }
}
