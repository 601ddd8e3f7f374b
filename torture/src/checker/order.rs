//! Order per key: no event starts before all earlier ones are settled, and none is redelivered
//! after a later one.

use std::collections::BTreeMap;

use super::facts::{Facts, Run, lines_of};
use super::{Breach, Verdict};
use crate::arena::WORN_OUT_AFTER;
use crate::history::{Commit, HandlerOutcome, Line};
use crate::state::{Row, State};
use crate::work::{Kind, Spec};

/// An event of a key.
struct KeyEvent<'a> {
    id: &'a str,
    spec: &'a Spec,
    seq: i64,
    runs: &'a [Run<'a>],
    written: u64,
    committed: Option<&'a Line>,
    /// The line that announces its transaction.
    writing: &'a Line,
}

pub(super) fn check(facts: &Facts<'_>, state: &State, verdict: &mut Verdict) {
    let mut keys: BTreeMap<&str, Vec<KeyEvent<'_>>> = BTreeMap::new();
    for (spec, tx) in facts.written() {
        let Some(key) = &spec.key else { continue };
        let runs = facts.runs_of(&spec.id);
        let row = state.rows.get(&spec.id);
        let Some(seq) = runs.iter().find_map(|run| run.seq).or(row.map(|row| row.seq)) else { continue };
        let committed = tx.ended.filter(|_| tx.how == Some(Commit::Committed));
        let written = tx.writing.record.t;
        keys.entry(key).or_default().push(KeyEvent {
            id: &spec.id,
            spec,
            seq,
            runs,
            written,
            committed,
            writing: tx.writing,
        });
    }
    for events in keys.values_mut() {
        events.sort_by_key(|event| event.seq);
        check_sequence_numbers(events, verdict);
        check_one_at_a_time(facts, events, state, verdict);
    }
}

/// An event whose writing began after another was committed has the greater sequence number.
fn check_sequence_numbers(events: &[KeyEvent<'_>], verdict: &mut Verdict) {
    let mut first: Option<&KeyEvent<'_>> = None;
    for event in events.iter().rev() {
        let later = first.filter(|later| later.committed.is_some_and(|line| line.record.t < event.written));
        if let Some(later) = later {
            let text = format!(
                "{} was committed before this event was written, and has the greater sequence number",
                later.id
            );
            let proof = [Some(event.writing), later.committed].into_iter().flatten().collect();
            verdict.add(Breach::Order, event.id, text, proof);
        }
        let sooner = |a: &KeyEvent<'_>| a.committed.map_or(u64::MAX, |line| line.record.t);
        if first.is_none_or(|first| sooner(event) < sooner(first)) {
            first = Some(event);
        }
    }
}

fn check_one_at_a_time(facts: &Facts<'_>, events: &[KeyEvent<'_>], state: &State, verdict: &mut Verdict) {
    // The earlier event that was settled last.
    let mut settled: Option<(u64, &KeyEvent<'_>)> = None;
    for event in events {
        if let (Some((when, before)), Some(run)) = (settled, event.runs.first())
            && run.start < when
        {
            let text = format!("it started before {} of the same key was settled", before.id);
            let proof = [lines_of(before.runs), lines_of(event.runs)].concat();
            verdict.add(Breach::Order, event.id, text, proof);
        }
        let end = settled_at(event, state);
        if settled.is_none_or(|(when, _)| end > when) {
            settled = Some((end, event));
        }
    }
    for (n, event) in events.iter().enumerate() {
        for run in event.runs {
            check_redelivery(facts, event, run, &events[n + 1..], verdict);
        }
    }
}

/// An event that is redelivered after later events of its key had started was not settled, so the
/// later ones were not settled either. They must be redelivered after it, or a consumer that keeps
/// the last state ends with the wrong one.
fn check_redelivery(
    facts: &Facts<'_>,
    event: &KeyEvent<'_>,
    run: &Run<'_>,
    rest: &[KeyEvent<'_>],
    verdict: &mut Verdict,
) {
    if facts.just_resumed(run.process, run.start) {
        return;
    }
    let started =
        rest.iter().take_while(|later| later.runs.first().is_some_and(|first| first.start < run.start));
    for later in started {
        if !later.runs.iter().any(|again| again.start > run.start) {
            let text = format!("it was redelivered after {} of the same key, which was not", later.id);
            let proof = [lines_of(event.runs), lines_of(later.runs)].concat();
            verdict.add(Breach::Order, event.id, text, proof);
        }
    }
}

/// The earliest time at which the event can have been settled.
fn settled_at(event: &KeyEvent<'_>, state: &State) -> u64 {
    let settles = |run: &&Run<'_>| match run.outcome {
        Some(HandlerOutcome::Done | HandlerOutcome::Dead) => true,
        Some(HandlerOutcome::Failed) => event.spec.kind == Kind::Worn && run.attempt >= WORN_OUT_AFTER,
        _ => false,
    };
    // An event that was dead-lettered for crashing processes was given up after its last start. The
    // verdict of a process that was stopped meanwhile comes too late, or the row would not be dead.
    let died_of_crashes = state.rows.get(event.id).is_some_and(Row::died_of_crashes);
    let crashed = died_of_crashes.then(|| event.runs.last().map_or(0, |run| run.start));
    let finished = || event.runs.iter().filter(settles).map(|run| run.end).min();
    crashed.or_else(finished).unwrap_or(u64::MAX)
}
