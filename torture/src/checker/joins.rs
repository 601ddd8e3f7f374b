//! Joins: the counters match the outcomes of the steps, and exactly the expected follow-up is
//! delivered.

use std::collections::BTreeMap;

use super::facts::{Facts, Run, Tx, lines_of};
use super::{Breach, Verdict};
use crate::state::{JoinRow, Row, State};
use crate::work::{Kind, Spec};

pub(super) fn check(facts: &Facts<'_>, state: &State, verdict: &mut Verdict) {
    let mut groups: BTreeMap<&str, (Vec<&Spec>, &Tx<'_>)> = BTreeMap::new();
    for (spec, tx) in facts.specs.values() {
        if let (Some(group), Some(tx)) = (&spec.join, facts.txs.get(tx)) {
            groups.entry(group).or_insert((Vec::new(), tx)).0.push(spec);
        }
    }
    for group in state.joins.keys().filter(|group| !groups.contains_key(group.as_str())) {
        verdict.add(Breach::Join, group, "the join exists, and no writer wrote it", Vec::new());
    }
    for (group, (specs, tx)) in groups {
        let is_step = |spec: &&&Spec| !matches!(spec.kind, Kind::Then | Kind::Sorry);
        let steps: Vec<&Spec> = specs.iter().filter(is_step).copied().collect();
        let there = steps.iter().any(|step| state.markers.contains(&step.id));
        let dead = |step: &&&Spec| state.rows.get(&step.id).is_some_and(Row::is_dead);
        let failed = steps.iter().filter(dead).count() as u64;
        let count = steps.len() as u64;
        let expected = there.then(|| JoinRow {
            expected: count,
            attached: count,
            completed: count - failed,
            failed,
            status: if failed > 0 { 2 } else { 1 },
        });
        let found = state.joins.get(group);
        if found != expected.as_ref() {
            let text = format!("expected {expected:?}, found {found:?}");
            let proof = [Some(tx.writing), tx.ended].into_iter().flatten().collect();
            verdict.add(Breach::Join, group, text, proof);
        }
        for spec in specs {
            let follows = match spec.kind {
                Kind::Then => there && failed == 0,
                Kind::Sorry => there && failed > 0,
                _ => continue,
            };
            let runs = facts.runs_of(&spec.id);
            let row = state.rows.get(&spec.id);
            let came = runs.iter().any(Run::is_done);
            let extra = !follows && (!runs.is_empty() || row.is_some());
            // A pending follow-up is reported as stuck elsewhere.
            let missing =
                follows && !came && !row.is_some_and(|row| row.is_pending() || row.died_of_crashes());
            if extra || missing {
                let text = format!(
                    "it {} follow, and {}",
                    if follows { "should" } else { "should not" },
                    if came { "was delivered" } else { "was not delivered" }
                );
                let proof = [vec![tx.writing], lines_of(runs)].concat();
                verdict.add(Breach::Join, &spec.id, text, proof);
            }
        }
    }
}
