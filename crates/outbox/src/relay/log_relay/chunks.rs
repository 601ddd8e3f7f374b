//! Cache of log events, shared by all subscriptions of this node: read once, published to many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::log::{LogEvent, Outgoing, Position, Topic};

/// Bytes of events that are cached for other subscriptions.
const CACHE_BYTES: usize = 24 << 20;
/// Bytes that one read should return.
const READ_BYTES: usize = 2 << 20;
/// How many positions one read covers at first, at least and at most.
const SPAN: (i64, i64, i64) = (100, 16, 1_000);
/// The most rows and the most bytes that such a read returns: sizes may change from one event to
/// the next.
pub(super) const MAX_ROWS: usize = 1_000;
pub(super) const MAX_BYTES: usize = 16 << 20;
/// How long cached rows are valid: an event may be repaired or deleted.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// Memory of an event besides its payload.
const OVERHEAD: usize = 400;

/// A range of the log without gaps: all events after one position and up to another.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) from: Position,
    pub(super) upto: Position,
    pub(super) rows: Vec<LogEvent>,
}

impl Chunk {
    fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.payload_bytes().len() + OVERHEAD).sum::<usize>() + OVERHEAD
    }
}

/// Ranges that do not overlap, and may have gaps between them.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    cached: BTreeMap<Position, CachedChunk>,
    bytes: usize,
    clock: u64,
    /// The average size of an event, once some were read.
    size: Option<usize>,
}

#[derive(Debug)]
struct CachedChunk {
    chunk: Arc<Chunk>,
    read: Instant,
    bytes: usize,
    used: u64,
}

impl Chunks {
    /// The cached range that contains the next position.
    pub(super) fn after(&mut self, position: Position) -> Option<Arc<Chunk>> {
        self.clock += 1;
        let (_, cached) = self.cached.range_mut(..=position).next_back()?;
        if cached.chunk.upto <= position || cached.read.elapsed() > CACHE_TTL {
            return None;
        }
        cached.used = self.clock;
        Some(cached.chunk.clone())
    }

    /// Whether the range after this position is cached.
    pub(super) fn covers(&self, position: Position) -> bool {
        let cached = self.cached.range(..=position).next_back();
        cached.is_some_and(|(_, cached)| cached.chunk.upto > position && cached.read.elapsed() <= CACHE_TTL)
    }

    /// Removes all ranges.
    pub(super) fn clear(&mut self) {
        (self.cached, self.bytes) = (BTreeMap::new(), 0);
    }

    /// How far to read from here: as much as fits into memory, and not into a cached range.
    pub(super) fn read_end(&self, from: Position, safe: Position) -> Position {
        let (first, least, most) = SPAN;
        let span = self.size.map_or(first, |size| i64::try_from(READ_BYTES / size.max(1)).unwrap_or(most));
        let upto = Position::new(from.get().saturating_add(span.clamp(least, most))).min(safe);
        match self
            .cached
            .range(from..)
            .find(|(start, cached)| **start > from && cached.read.elapsed() <= CACHE_TTL)
        {
            Some((start, _)) => upto.min(*start),
            None => upto,
        }
    }

    /// Adds a range, and evicts the least recently used ones.
    pub(super) fn add(&mut self, chunk: Chunk) -> Arc<Chunk> {
        let bytes = chunk.bytes();
        if !chunk.rows.is_empty() {
            let size = bytes / chunk.rows.len();
            self.size = Some(self.size.map_or(size, |before| (before * 3 + size) / 4));
        }
        let chunk = Arc::new(chunk);
        self.clock += 1;
        let cached = CachedChunk { chunk: chunk.clone(), read: Instant::now(), bytes, used: self.clock };
        self.bytes += bytes;
        if let Some(replaced) = self.cached.insert(chunk.from, cached) {
            self.bytes -= replaced.bytes;
        }
        while self.bytes > CACHE_BYTES && self.cached.len() > 2 {
            let oldest = self.cached.iter().min_by_key(|(_, cached)| cached.used).map(|(from, _)| *from);
            let Some(cached) = oldest.and_then(|from| self.cached.remove(&from)) else { break };
            self.bytes -= cached.bytes;
        }
        chunk
    }

    /// The next events for a subscription at `cursor`: at most `batch_size` events, and none beyond
    /// `safe`.
    pub(super) fn gather(
        &mut self,
        topic: &Topic,
        cursor: Position,
        safe: Position,
        batch_size: usize,
        (attempt, epoch): (u32, i64),
    ) -> Gathered {
        let mut gathered = Gathered { events: Vec::new(), upto: cursor, missing: false };
        while gathered.upto < safe && gathered.events.len() < batch_size {
            let Some(chunk) = self.after(gathered.upto) else {
                gathered.missing = true;
                break;
            };
            let start = chunk.rows.partition_point(|event| event.position <= gathered.upto);
            for event in chunk.rows[start..].iter().take_while(|event| event.position <= safe) {
                gathered.upto = event.position;
                if topic.selects(&event.event) {
                    gathered.events.push(Outgoing {
                        event: event.event.clone(),
                        position: Some(event.position),
                        attempt,
                        epoch: Some(epoch),
                        seq: None,
                        created_at: Some(event.created_at),
                    });
                    if gathered.events.len() == batch_size {
                        return gathered;
                    }
                }
            }
            gathered.upto = chunk.upto.min(safe);
        }
        gathered
    }
}

/// Events to publish.
#[derive(Debug)]
pub(super) struct Gathered {
    /// In order; may be empty.
    pub(super) events: Vec<Outgoing>,
    /// The position of the subscription once these events are published.
    pub(super) upto: Position,
    /// The next range has to be read first.
    pub(super) missing: bool,
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;
    use crate::event::Event;

    fn at(n: i64) -> Position {
        Position::new(n)
    }

    fn event(n: i64, event_type: &str) -> LogEvent {
        let event = Event::new(event_type).json(&n).build().unwrap();
        LogEvent { position: at(n), event, created_at: Utc::now() }
    }

    fn chunk(from: i64, upto: i64, rows: Vec<LogEvent>) -> Chunk {
        Chunk { from: at(from), upto: at(upto), rows }
    }

    fn positions(gathered: &Gathered) -> Vec<i64> {
        gathered.events.iter().map(|event| event.position.unwrap().get()).collect()
    }

    #[test]
    fn a_subscription_gets_the_events_its_topic_selects_and_moves_past_the_rest() {
        let mut chunks = Chunks::default();
        chunks.add(chunk(0, 3, vec![event(1, "A"), event(2, "B"), event(3, "A")]));
        chunks.add(chunk(3, 9, vec![event(5, "B"), event(9, "B")]));
        let a = Topic::new("a").types(["A"]);

        let gathered = chunks.gather(&a, at(0), at(9), 10, (1, 1));
        assert_eq!((positions(&gathered), gathered.upto, gathered.missing), (vec![1, 3], at(9), false));

        let gathered = chunks.gather(&a, at(0), at(9), 1, (1, 1));
        assert_eq!((positions(&gathered), gathered.upto), (vec![1], at(1)), "no more than asked for");

        let gathered = chunks.gather(&a, at(3), at(9), 10, (1, 1));
        assert_eq!((positions(&gathered), gathered.upto), (vec![], at(9)), "nothing for it, and it moves on");

        let b = Topic::new("b").types(["B"]);
        let gathered = chunks.gather(&b, at(2), at(5), 10, (1, 1));
        assert_eq!(
            (positions(&gathered), gathered.upto),
            (vec![5], at(5)),
            "nothing beyond the safe position"
        );
    }

    #[test]
    fn a_range_that_is_not_cached_is_missing() {
        let mut chunks = Chunks::default();
        chunks.add(chunk(10, 12, vec![event(11, "A")]));
        let all = Topic::new("all");
        assert!(chunks.gather(&all, at(0), at(12), 5, (1, 1)).missing);
        let gathered = chunks.gather(&all, at(10), at(20), 5, (1, 1));
        assert_eq!((positions(&gathered), gathered.upto, gathered.missing), (vec![11], at(12), true));
        assert_eq!(chunks.read_end(at(5), at(20)), at(10), "not into a cached range");
        assert_eq!(chunks.read_end(at(12), at(20)), at(20));
    }

    #[test]
    fn memory_is_bounded_and_large_events_are_read_in_small_steps() {
        let mut chunks = Chunks::default();
        for n in 0..100 {
            let big = Event::new("big").bytes("x/y", vec![0; 1_000_000]).build().unwrap();
            let row = LogEvent { position: at(n + 1), event: big, created_at: Utc::now() };
            chunks.add(chunk(n, n + 1, vec![row]));
        }
        assert!(chunks.bytes <= CACHE_BYTES + 1_001_000);
        assert!(!chunks.covers(at(0)) && chunks.covers(at(99)));
        assert_eq!(chunks.read_end(at(100), at(1_000)), at(116));
    }
}
