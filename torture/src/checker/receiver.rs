//! Events at the webhook receiver: every committed event arrives, nothing else does, and in order
//! per key. However the receiver misbehaves, no event is dead-lettered for it.

use std::collections::BTreeMap;

use super::facts::Facts;
use super::{Breach, Verdict};
use crate::history::{Line, Op};
use crate::state::{Row, State};
use crate::work::Kind;

pub(super) fn check(facts: &Facts<'_>, state: &State, verdict: &mut Verdict) {
    let mut first: BTreeMap<&str, &Line> = BTreeMap::new();
    let mut keys: BTreeMap<&str, (&str, Option<i64>, &Line)> = BTreeMap::new();
    for line in &facts.lines {
        let Op::Received { id, seq } = &line.record.op else { continue };
        if facts.is_foreign(id) {
            continue;
        }
        let Some((spec, _)) = facts.specs.get(id.as_str()).filter(|(spec, _)| spec.kind == Kind::Hook) else {
            verdict.add(
                Breach::Phantom,
                id,
                "it was received, and no process wrote it for a webhook",
                vec![line],
            );
            continue;
        };
        if !state.markers.contains(id) {
            verdict.add(Breach::Phantom, id, "it was received, and was never committed", vec![line]);
        }
        if let Some(once) = first.get(id.as_str()) {
            verdict.counts.twice += 1;
            if facts.disruptions(0, line.record.t) + facts.outages(line.record.t) == 0 {
                let text = "it was received twice, and no process had been disrupted";
                verdict.add(Breach::Again, id, text, vec![once, line]);
            }
            continue;
        }
        first.insert(id, line);
        let Some(key) = &spec.key else { continue };
        if let Some((before, _, at)) =
            keys.insert(key, (id, *seq, line)).filter(|(_, before, _)| before >= seq)
        {
            let text = format!("it was received after {before}, which comes later in the key");
            verdict.add(Breach::Order, id, text, vec![at, line]);
        }
    }
    for (spec, tx) in facts.written().filter(|(spec, _)| spec.kind == Kind::Hook) {
        let (there, row) = (state.markers.contains(&spec.id), state.rows.get(&spec.id));
        let received = first.get(spec.id.as_str()).copied();
        let proof = || [Some(tx.writing), tx.ended, received].into_iter().flatten().collect::<Vec<_>>();
        if let Some(row) = row.filter(|row| row.is_dead()) {
            let text = format!(
                "it is dead, and a receiver that recovers must not dead-letter events: {}",
                row.error
            );
            verdict.add(Breach::WrongDead, &spec.id, text, proof());
        } else if there && received.is_none() && !row.is_some_and(Row::is_pending) {
            verdict.add(Breach::Lost, &spec.id, "it was committed, and never received", proof());
        }
    }
    verdict.counts.received = first.len();
}
