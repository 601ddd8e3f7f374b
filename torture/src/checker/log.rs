//! The log: every publisher gets every event in order of positions, and saved positions never
//! decrease.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;
use super::{Breach, Verdict};
use crate::arena::PUBLISHERS;
use crate::history::{Line, Op};
use crate::state::State;
use crate::work::Kind;

pub(super) fn check(facts: &Facts<'_>, state: &State, verdict: &mut Verdict) {
    for (spec, tx) in facts.written().filter(|(spec, _)| spec.kind == Kind::Log) {
        let (marked, there) = (state.markers.contains(&spec.id), state.log.contains_key(&spec.id));
        let proof = || [Some(tx.writing), tx.ended].into_iter().flatten().collect();
        if marked && !there {
            verdict.add(Breach::Lost, &spec.id, "it was committed, and is not in the log", proof());
        } else if there && !marked {
            verdict.add(Breach::Phantom, &spec.id, "it is in the log, and was never committed", proof());
        }
    }
    let committed: BTreeSet<i64> = state.log.values().copied().collect();
    for publisher in PUBLISHERS {
        check_published(facts, publisher, &committed, verdict);
        let saved = state.progress.get(publisher).copied().unwrap_or(0);
        if committed.last().is_some_and(|head| saved < *head) {
            let text = format!("its saved position is {saved}, and the log ends at {:?}", committed.last());
            verdict.add(Breach::Stuck, publisher, text, Vec::new());
        }
    }
    check_saved(facts, verdict);
}

fn check_published(facts: &Facts<'_>, publisher: &str, committed: &BTreeSet<i64>, verdict: &mut Verdict) {
    let mut missing = committed.clone();
    let mut last: BTreeMap<(&str, Option<i64>), (i64, &Line)> = BTreeMap::new();
    for line in &facts.lines {
        let Op::Published { publisher: who, epoch, positions } = &line.record.op else { continue };
        if who != publisher {
            continue;
        }
        for position in positions {
            if !committed.contains(position) {
                let text = format!("position {position} was published, and was never committed");
                verdict.add(Breach::Phantom, publisher, text, vec![line]);
            }
            if missing.remove(position)
                && let Some(skipped) = missing.first().filter(|first| *first < position)
            {
                let text = format!("{position} was published before {skipped}, which was not published yet");
                verdict.add(Breach::Position, publisher, text, vec![line]);
            }
            let leadership = (line.record.p.as_str(), *epoch);
            if let Some((before, at)) = last.insert(leadership, (*position, line))
                && before >= *position
                && !facts.may_have_lost(leadership.0, at.record.t, line.record.t)
            {
                let text = format!(
                    "{position} came after {before} in one leadership, and the process was not disrupted"
                );
                verdict.add(Breach::Position, publisher, text, vec![at, line]);
            }
        }
    }
    if !missing.is_empty() {
        let text = format!("{} positions were never published: {missing:?}", missing.len());
        verdict.add(Breach::Lost, publisher, text, Vec::new());
    }
}

fn check_saved(facts: &Facts<'_>, verdict: &mut Verdict) {
    let mut last: BTreeMap<&str, (i64, &Line)> = BTreeMap::new();
    for line in &facts.lines {
        let Op::Position { publisher, position } = &line.record.op else { continue };
        if let Some((before, at)) = last.insert(publisher, (*position, line))
            && before > *position
        {
            let text = format!("the saved position went back from {before} to {position}");
            verdict.add(Breach::Position, publisher, text, vec![at, line]);
        }
    }
}
