//! Messages behind the broker: every committed event arrives, nothing else does, in order per key,
//! and each is booked once.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::{Breach, Verdict};
use crate::history::{Line, Op};
use crate::state::{Row, State};
use crate::work::Kind;

/// An arrival in the stream.
struct Arrival<'a> {
    id: &'a str,
    seq: Option<i64>,
    line: &'a Line,
}

pub(super) fn check(facts: &Facts<'_>, state: &State, verdict: &mut Verdict) {
    // The reader gets a message again if its acknowledgement was lost, so arrivals are identified
    // by their position in the stream.
    let mut stream: BTreeMap<u64, Arrival<'_>> = BTreeMap::new();
    for line in &facts.lines {
        if let Op::Arrived { id, seq, place } = &line.record.op
            && !facts.is_foreign(id)
        {
            stream.entry(*place).or_insert(Arrival { id, seq: *seq, line });
        }
    }
    let mut first: BTreeMap<&str, &Arrival<'_>> = BTreeMap::new();
    let mut keys: BTreeMap<&str, &Arrival<'_>> = BTreeMap::new();
    for arrival in stream.values() {
        let Some((spec, _)) = facts.specs.get(arrival.id) else {
            verdict.add(
                Breach::Phantom,
                arrival.id,
                "it arrived, and no writer wrote it",
                vec![arrival.line],
            );
            continue;
        };
        if !state.markers.contains(arrival.id) {
            verdict.add(
                Breach::Phantom,
                arrival.id,
                "it arrived, and was never committed",
                vec![arrival.line],
            );
        }
        if let Some(once) = first.get(arrival.id) {
            verdict.counts.twice += 1;
            // The publishing relay is not known here: it may be any relay that was disrupted.
            if facts.disruptions(0, arrival.line.record.t) + facts.outages(arrival.line.record.t) == 0 {
                let text = "it arrived twice, and no process had been disrupted";
                verdict.add(Breach::Again, arrival.id, text, vec![once.line, arrival.line]);
            }
            continue;
        }
        first.insert(arrival.id, arrival);
        let Some(key) = &spec.key else { continue };
        if arrival.seq.is_none() {
            verdict.add(
                Breach::Order,
                arrival.id,
                "it has a key, and no sequence number",
                vec![arrival.line],
            );
        }
        if let Some(before) = keys.insert(key, arrival).filter(|before| before.seq >= arrival.seq) {
            let text = format!("it arrived after {}, which comes later in the key", before.id);
            verdict.add(Breach::Order, arrival.id, text, vec![before.line, arrival.line]);
        }
    }
    for (spec, tx) in facts.written().filter(|(spec, _)| spec.kind != Kind::Hook) {
        let there = state.markers.contains(&spec.id);
        let row = state.rows.get(&spec.id);
        let proof = || {
            let arrival = first.get(spec.id.as_str()).map(|arrival| arrival.line);
            [Some(tx.writing), tx.ended, arrival].into_iter().flatten().collect::<Vec<_>>()
        };
        if let Some(row) = row.filter(|row| row.is_dead()) {
            let text =
                format!("it is dead, and an unavailable broker must not dead-letter events: {}", row.error);
            verdict.add(Breach::WrongDead, &spec.id, text, proof());
        } else if there && !first.contains_key(spec.id.as_str()) && !row.is_some_and(Row::is_pending) {
            verdict.add(Breach::Lost, &spec.id, "it was committed, and never arrived", proof());
        }
        let times = state.ledger.get(&spec.id).copied().unwrap_or(0);
        if times != u64::from(first.contains_key(spec.id.as_str())) {
            verdict.add(Breach::Ledger, &spec.id, format!("it was booked {times} times"), proof());
        }
    }
    verdict.counts.delivered = first.len();
}
