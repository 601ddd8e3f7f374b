//! One pair on this node: where it stands, what is under way, what is still to be saved.

use std::time::{Duration, Instant};

use metrics::{Counter, Gauge};

use super::rhythm::Rhythm;
use crate::handler::Failure;
use crate::log::{Move, Pair, PairId, PairState, PairStatus, Position};
use crate::metrics::PairMetrics;

/// A pair that this node runs, whether it leads it or not.
pub(super) struct Strand {
    pub(super) pair: Pair,
    pub(super) lead: Option<Lead>,
    pub(super) meters: Meters,
}

/// What is counted of a pair.
pub(super) struct Meters {
    pub(super) published: Counter,
    pub(super) errors: Counter,
    pub(super) leading: Gauge,
    pub(super) takeovers: Counter,
    pub(super) lag: Gauge,
}

impl Meters {
    pub(super) fn new(metrics: &PairMetrics<'_>, pair: &PairId) -> Self {
        Self {
            published: metrics.counter("log.published", pair),
            errors: metrics.counter("log.errors", pair),
            leading: metrics.gauge("log.leading", pair),
            takeovers: metrics.counter("log.takeovers", pair),
            lag: metrics.gauge("log.lag", pair),
        }
    }
}

/// A pair that this node leads.
pub(super) struct Lead {
    pub(super) epoch: i64,
    /// By this process's own clock, counted from before leadership was asked for.
    pub(super) until: Instant,
    /// What the table says.
    pub(super) saved: Saved,
    /// Whether the table is being told something else right now, and when it last answered.
    pub(super) saving: bool,
    pub(super) saved_at: Instant,
    /// Everything up to here is done with.
    pub(super) cursor: Position,
    /// Whether something was published that the table does not know of.
    pub(super) published: bool,
    pub(super) rhythm: Rhythm,
    pub(super) paused: bool,
    /// To be given to another node, as soon as it is at rest.
    pub(super) giving_up: bool,
    pub(super) in_flight: Option<InFlight>,
}

/// Where a pair stands in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) position: Position,
    pub(super) errors: u32,
    pub(super) last_error: Option<String>,
}

/// A batch that a publisher is at.
pub(super) struct InFlight {
    /// Which one: no two of a desk have the same number.
    batch: u64,
    /// The positions of its events.
    positions: Vec<Position>,
    /// Everything up to here is done with when it is published.
    upto: Position,
    task: tokio::task::AbortHandle,
}

impl Drop for InFlight {
    /// Nothing waits for the batch any more, be it because the whole log relay panicked: another leader may publish it.
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Outcome {
    Published,
    /// So many from its start were published, then it failed.
    Failed(usize, Failure),
    /// So many from its start were published, then there was no destination any more: no error of an event.
    Unavailable(usize, String),
}

impl Strand {
    pub(super) fn id(&self) -> &PairId {
        &self.pair.id
    }

    /// Leads from now on, from where the table says.
    pub(super) fn take(&mut self, state: &PairState, asked: Instant, ttl: Duration, now: Instant) {
        let rhythm = Rhythm::new(self.pair.pace(), state.error_count, state.last_error.clone(), now);
        self.lead = Some(Lead {
            epoch: state.epoch,
            until: asked + ttl,
            saved: Saved::of(state),
            saving: false,
            saved_at: now,
            cursor: state.position,
            published: false,
            rhythm,
            paused: state.status == PairStatus::Paused,
            giving_up: false,
            in_flight: None,
        });
        self.meters.leading.set(1.0);
    }

    /// Leads no more. What is under way is another's to publish.
    pub(super) fn lose(&mut self) {
        if let Some(mut lead) = self.lead.take() {
            lead.abandon();
            self.meters.leading.set(0.0);
        }
    }
}

impl Saved {
    fn of(state: &PairState) -> Self {
        Self { position: state.position, errors: state.error_count, last_error: state.last_error.clone() }
    }
}

impl Lead {
    /// Whether it may publish now.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.in_flight.is_none()
            && !self.paused
            && !self.giving_up
            && now < self.until
            && now >= self.rhythm.try_at
    }

    /// Whether it publishes nothing for a reason that may last.
    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.paused || self.giving_up || now < self.rhythm.try_at
    }

    /// A batch is with the publisher.
    pub(super) fn sent(
        &mut self,
        batch: u64,
        positions: Vec<Position>,
        upto: Position,
        task: tokio::task::AbortHandle,
        now: Instant,
    ) {
        self.rhythm.sent(now);
        self.in_flight = Some(InFlight { batch, positions, upto, task });
    }

    /// Whether this is the batch that is with the publisher.
    pub(super) fn is_at(&self, batch: u64) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.batch == batch)
    }

    /// Waits no longer for what is with the publisher: it comes again, in smaller pieces.
    pub(super) fn abandon(&mut self) {
        if let Some(in_flight) = self.in_flight.take() {
            self.rhythm.abandoned(in_flight.positions.len());
        }
    }

    /// What became of it. Returns how many events were published.
    pub(super) fn ended(&mut self, outcome: &Outcome, now: Instant, random: f64) -> usize {
        let Some(batch) = self.in_flight.take() else { return 0 };
        let published = match outcome {
            Outcome::Published => {
                self.cursor = self.cursor.max(batch.upto);
                self.rhythm.went_well(now);
                batch.positions.len()
            }
            Outcome::Failed(published, failure) => {
                // One that claims more than it was given has published all of it, and still failed.
                let published = (*published).min(batch.positions.len());
                if published > 0 {
                    self.cursor = self.cursor.max(batch.positions[published - 1]);
                    // It moves: these are not errors in a row.
                    self.rhythm.went_well(now);
                }
                self.rhythm.failed(now, batch.positions.len() - published, failure, random);
                published
            }
            Outcome::Unavailable(published, reason) => {
                let published = (*published).min(batch.positions.len());
                if published > 0 {
                    self.cursor = self.cursor.max(batch.positions[published - 1]);
                }
                self.rhythm.unavailable(now, reason, random);
                published
            }
        };
        self.published |= published > 0;
        published
    }

    /// Whether the table should be told at once: something was published, or went wrong, or is well again.
    pub(super) fn has_news(&self) -> bool {
        self.published
            || self.rhythm.errors != self.saved.errors
            || self.rhythm.last_error != self.saved.last_error
    }

    /// Whether the table is behind at all.
    pub(super) fn is_behind(&self) -> bool {
        self.cursor > self.saved.position || self.has_news()
    }

    /// What to tell the table.
    pub(super) fn to_save(&self, id: &PairId) -> Move {
        Move {
            pair: id.clone(),
            epoch: self.epoch,
            from: self.saved.position,
            to: self.cursor,
            status: self.rhythm.status(),
            error_count: self.rhythm.errors,
            last_error: self.rhythm.last_error.clone(),
        }
    }

    /// The table knows.
    pub(super) fn was_saved(&mut self, saved: &Move) {
        self.saved =
            Saved { position: saved.to, errors: saved.error_count, last_error: saved.last_error.clone() };
    }
}
