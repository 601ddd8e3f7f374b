//! Order per key: nothing starts before what comes earlier is settled, and nothing comes again after what comes later.

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
    /// Its transaction was begun here.
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

/// Whoever began to write after another had committed has the greater number.
fn check_sequence_numbers(events: &[KeyEvent<'_>], verdict: &mut Verdict) {
    let mut first: Option<&KeyEvent<'_>> = None;
    for event in events.iter().rev() {
        let later = first.filter(|later| later.committed.is_some_and(|line| line.record.t < event.written));
        if let Some(later) = later {
            let text = format!("{} was committed before it was written, and comes after it", later.id);
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
    // What was settled last of all that comes before.
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

/// One that comes again after later ones of its key had started was not settled, and so they were not: they come again after it, or
/// whoever goes by the last one is left with the wrong one.
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
            let text = format!("it came again after {} of the same key, which did not", later.id);
            let proof = [lines_of(event.runs), lines_of(later.runs)].concat();
            verdict.add(Breach::Order, event.id, text, proof);
        }
    }
}

/// When it can first have been settled.
fn settled_at(event: &KeyEvent<'_>, state: &State) -> u64 {
    let settles = |run: &&Run<'_>| match run.outcome {
        Some(HandlerOutcome::Done | HandlerOutcome::Dead) => true,
        Some(HandlerOutcome::Failed) => event.spec.kind == Kind::Worn && run.attempt >= WORN_OUT_AFTER,
        _ => false,
    };
    // An event that was dead-lettered for ending processes was given up after it was last started. What
    // a process that was stopped meanwhile says of it comes too late, or the row would not be dead.
    let died_of_crashes = state.rows.get(event.id).is_some_and(Row::died_of_crashes);
    let crashed = died_of_crashes.then(|| event.runs.last().map_or(0, |run| run.start));
    let finished = || event.runs.iter().filter(settles).map(|run| run.end).min();
    crashed.or_else(finished).unwrap_or(u64::MAX)
}
