//! Requests of the log relay to the database and to publishers. Each is a task of its own, which
//! ends with one response.

use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::book::Book;
use super::chunks::{Chunk, Gathered, MOST, MOST_BYTES};
use super::news::{Errand, News};
use super::strand::{Lead, Outcome};
use super::{CALM_LEASE, Desk, Doubt};
use crate::error::Result;
use crate::log::{LogEvent, Move, Outgoing, PairId, Position, Publisher, Query, Roll, Stored};
use crate::relay::dispatch::guarded;

/// How many reads may run at the same time.
const READS: usize = 2;

impl Desk {
    /// Queries the safe position, and the head of the log, when it is time to.
    pub(super) fn look(&mut self, now: Instant) {
        if now >= self.next_advance()
            && let Some(mut frontier) = self.frontier.take()
        {
            let looked = !self.hinted && now >= self.earliest_look();
            self.hinted = false;
            if self.doubt == Doubt::Raised {
                self.doubt = Doubt::Asked;
            }
            self.errand(Errand::Advance, async move |log| {
                let result = log.advance(&mut frontier).await;
                News::Advanced { frontier, result, looked }
            });
        }
        if now >= self.watch_at && self.has_to_watch() {
            self.watching = true;
            self.watch_pause = (self.watch_pause * 2).min(self.watch);
            self.watch_at = now + self.watch_pause;
            self.errand(Errand::Watch, async move |log| News::Head(log.head().await));
        }
    }

    /// Sends the next batch of a subscription to its publisher.
    pub(super) fn feed(&mut self, pair: usize, now: Instant) {
        let strand = &mut self.strands[pair];
        let Some(lead) = strand.lead.as_mut().filter(|lead| lead.is_ready(now)) else { return };
        if lead.cursor >= self.safe || self.doubt != Doubt::None || self.ask_first.is_some() {
            return;
        }
        let (width, mark) = (lead.rhythm.width(), (lead.rhythm.errors + 1, lead.epoch));
        let gathered = self.chunks.gather(&strand.pair.topic, lead.cursor, self.safe, width, mark);
        let Gathered { events, upto, missing } = gathered;
        // The next range too, before it is needed: reading goes on while publishers work.
        let ahead = if missing { upto } else { self.chunks.after(upto).map_or(upto, |chunk| chunk.upto) };
        if events.is_empty() {
            lead.cursor = lead.cursor.max(upto);
            return self.want(ahead);
        }
        let span = tracing::debug_span!(
            "outbox.publish", store = self.log.name(), pair = %strand.pair.id, events = events.len()
        );
        let (publisher, limit) = (strand.pair.publisher.clone(), strand.pair.pace().timeout);
        self.batches += 1;
        let (news, batch) = (self.news.clone(), self.batches);
        let positions: Vec<Position> = events.iter().filter_map(|event| event.position).collect();
        let task = tokio::spawn(
            async move {
                let outcome = publish(&*publisher, &events, limit).await;
                let _ = news.send(News::Published { pair, batch, outcome });
            }
            .instrument(span),
        );
        lead.sent(batch, positions, upto, task.abort_handle(), now);
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
            let upto = self.chunks.reach(from, safe);
            self.reading.push(from);
            self.errand(Errand::Read(from), async move |log| News::Read {
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
        let loud = now >= self.save_at && self.leads().any(Lead::has_news);
        let quiet = now >= self.quiet_save_at && self.leads().any(Lead::is_behind);
        let last = self.stopping.is_some() && now >= self.save_at;
        if !loud && !quiet && !last {
            return;
        }
        let moves: Vec<Move> = self
            .strands
            .iter_mut()
            .filter_map(|strand| {
                let lead = strand.lead.as_mut().filter(|lead| lead.is_behind())?;
                lead.published = false;
                lead.saving = true;
                Some(lead.to_save(&strand.pair.id))
            })
            .collect();
        if moves.is_empty() {
            return;
        }
        self.saving = true;
        self.save_at = now;
        let node = self.node.clone();
        self.errand(Errand::Save, async move |log| {
            let result = log.save(&node, &moves).await;
            News::Saved { moves, result }
        });
    }

    /// Renews this node's leases, and reads who leads what.
    pub(super) fn tend(&mut self, now: Instant) {
        if self.tending || now < self.tend_at {
            return;
        }
        self.tending = true;
        let ttl = if self.is_calm(now) { self.ttl * CALM_LEASE } else { self.ttl };
        for lead in self.strands.iter_mut().filter_map(|strand| strand.lead.as_mut()) {
            // The lease in the table may be shorter from now on, also if the answer is lost.
            lead.until = lead.until.min(now + ttl);
        }
        let node = self.node.clone();
        self.errand(Errand::Tend, async move |log| {
            let result = log.tend(&node, ttl).await;
            News::Tended { asked: now, ttl, result }
        });
    }

    /// Releases the subscriptions above this node's quota, once they are at rest.
    pub(super) fn give_up(&mut self) {
        if self.saving {
            return;
        }
        let mut released = Vec::new();
        for strand in &mut self.strands {
            let at_rest =
                strand.lead.as_ref().filter(|l| l.giving_up && l.in_flight.is_none() && !l.is_behind());
            if let Some(lead) = at_rest {
                released.push((strand.pair.id.clone(), lead.epoch));
                strand.lose();
            }
        }
        self.release(released);
    }

    pub(super) fn release(&mut self, pairs: Vec<(PairId, i64)>) {
        if pairs.is_empty() {
            return;
        }
        let node = self.node.clone();
        self.errand(Errand::Tell, async move |log| {
            let result = log.release(&node, &pairs).await;
            log.ring().await;
            News::Told { what: "could not hand over publishers", result }
        });
    }

    /// Stores the safe position, for nodes that start later.
    pub(super) fn note_decided(&mut self) {
        let safe = self.safe;
        if safe <= self.noted {
            return;
        }
        self.noted = safe;
        self.errand(Errand::Tell, async move |log| {
            let result = log.note_decided(safe).await;
            News::Told { what: "could not store the safe position of the log", result }
        });
    }

    /// Creates rows that were deleted.
    pub(super) fn register_missing(&mut self, roll: &Roll) {
        let there: HashSet<&PairId> = roll.pairs.iter().map(|state| &state.id).collect();
        let missing = self.strands.iter().filter(|strand| !there.contains(strand.id()));
        let missing: Vec<(PairId, bool)> = missing.map(|s| (s.id().clone(), s.pair.from_now)).collect();
        if missing.is_empty() {
            return;
        }
        for (pair, _) in &missing {
            self.strands[self.index[pair]].lose();
        }
        self.errand(Errand::Tell, async move |log| {
            let result = log.register(&missing).await;
            News::Told { what: "could not create the rows of publishers", result }
        });
    }

    pub(super) fn claim(&mut self, pairs: Vec<PairId>, asked: Instant, lease: Duration) {
        // Counted from the time of the request, as the lease is. An idle node sends a heartbeat
        // twice per lease, and when the lease of another node should have ended.
        self.long_lease = lease > self.ttl;
        self.tend_at = if self.ask_first.is_some() {
            asked
        } else if self.long_lease && pairs.is_empty() {
            let at = asked + lease / 2;
            self.others_end.map_or(at, |end| at.min(end.max(asked + self.ttl / 4)))
        } else {
            asked + self.ttl / 4
        };
        if pairs.is_empty() {
            self.tending = false;
            self.knows_leads(asked);
            return;
        }
        let (node, ttl) = (self.node.clone(), self.ttl);
        self.errand(Errand::Tend, async move |log| {
            let asked = Instant::now();
            let result = log.claim(&node, ttl, &pairs).await;
            News::Claimed { asked, result }
        });
    }

    /// Runs a request in a task of its own, which ends with one response.
    fn errand<F: Future<Output = News> + Send + 'static>(&self, errand: Errand, ask: impl FnOnce(Book) -> F) {
        let (news, asking) = (self.news.clone(), ask(self.log.clone()));
        tokio::spawn(async move {
            let answer = AssertUnwindSafe(asking).catch_unwind().await;
            news.send(answer.unwrap_or(News::Lost(errand)))
        });
    }
}

/// Checks the publisher's health, and publishes. A panic and a timeout are failures like any other.
async fn publish(publisher: &dyn Publisher, events: &[Outgoing], limit: Duration) -> Outcome {
    let published = async {
        if let Err(unavailable) = publisher.health().await {
            return Ok(Outcome::Unavailable(0, unavailable.to_string()));
        }
        Ok(match publisher.publish_batch(events).await {
            Ok(()) => Outcome::Published,
            Err(error) if error.is_unavailable() => {
                Outcome::Unavailable(error.published(), error.to_string())
            }
            Err(error) => Outcome::Failed(error.published(), error.failure),
        })
    };
    guarded("the publisher", limit, published).await.unwrap_or_else(|failure| Outcome::Failed(0, failure))
}

/// Reads a range of the log. Events that cannot be read are recorded and left out: they would block
/// every publisher for ever.
async fn read_chunk(log: &Book, from: Position, upto: Position, safe: Position) -> Result<Chunk> {
    // One limit, and so one statement, whatever the range.
    let read = log.read_bounded(from, upto, MOST, MOST_BYTES).await?;
    if !read.rows.is_empty() || upto >= safe {
        let upto = read.rows.last().filter(|_| read.cut).map_or(upto, position);
        return Ok(Chunk { from, upto, rows: readable(log, read.rows).await? });
    }
    // Empty: a purge may have left a wide gap.
    let next = log.read(&Query::all(), upto, Some(safe), 1).await?;
    let upto = next.first().map_or(safe, |row| Position::new(position(row).get() - 1));
    Ok(Chunk { from, upto, rows: Vec::new() })
}

fn position(row: &Stored) -> Position {
    match row {
        Ok(event) => event.position,
        Err((position, _)) => *position,
    }
}

async fn readable(log: &Book, rows: Vec<Stored>) -> Result<Vec<LogEvent>> {
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
