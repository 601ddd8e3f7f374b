//! Outcome of each event: delivered, correctly dead-lettered, or never committed.

use super::facts::{Facts, Run, Tx, lines_of};
use super::{Breach, Verdict};
use crate::history::{Commit, HandlerOutcome, Line};
use crate::state::{Row, State};
use crate::work::{Kind, Spec};

pub(super) fn check(facts: &Facts<'_>, state: &State, verdict: &mut Verdict) {
    for tx in facts.txs.values() {
        check_commit_report(tx, state, verdict);
    }
    for (spec, tx) in facts.written() {
        if spec.kind == Kind::Log || !facts.arena.has_handlers() {
            continue;
        }
        let runs = facts.runs_of(&spec.id);
        if state.markers.contains(&spec.id) {
            check_committed(facts, spec, tx, runs, state, verdict);
        } else {
            check_absent(spec, tx, runs, state, verdict);
        }
        if spec.kind == Kind::Book {
            check_booked(spec, tx, runs, state, verdict);
        }
    }
    for (id, runs) in &facts.runs {
        if !facts.specs.contains_key(id) {
            verdict.add(Breach::Phantom, id, "it was delivered, and no writer wrote it", lines_of(runs));
        }
        let ended_badly =
            |run: &&Run<'_>| matches!(run.outcome, Some(HandlerOutcome::Failed | HandlerOutcome::Panicked));
        verdict.counts.retried += runs.iter().filter(ended_badly).count();
        verdict.counts.broken_off +=
            runs.iter().filter(|run| matches!(run.outcome, None | Some(HandlerOutcome::Dropped))).count();
        verdict.counts.delivered += usize::from(runs.iter().any(Run::is_done));
    }
    let booked: u64 = state.ledger.values().sum();
    if booked != state.balance {
        let text = format!("{booked} bookings make a balance of {}", state.balance);
        verdict.add(Breach::Ledger, "account", text, Vec::new());
    }
    for (id, row) in state.rows.iter().filter(|(id, row)| row.is_pending() && !facts.is_foreign(id)) {
        let text = format!(
            "it is still pending, with status {}, {} attempts: {}",
            row.status, row.attempts, row.error
        );
        verdict.add(Breach::Stuck, id, text, lines_of(facts.runs_of(id)));
    }
}

/// Checks the result that the writer saw against the markers.
fn check_commit_report(tx: &Tx<'_>, state: &State, verdict: &mut Verdict) {
    let marked: Vec<&Spec> =
        tx.specs.iter().filter(|spec| !matches!(spec.kind, Kind::Then | Kind::Sorry)).collect();
    let there = marked.iter().filter(|spec| state.markers.contains(&spec.id)).count();
    let proof = || [Some(tx.writing), tx.ended].into_iter().flatten().collect::<Vec<&Line>>();
    let wrong = match tx.how {
        _ if there > 0 && there < marked.len() => "its transaction was committed in part",
        Some(Commit::Committed) if there == 0 => "its commit was confirmed, and it is missing",
        Some(Commit::RolledBack) if there > 0 => "it was rolled back, and is committed",
        Some(Commit::Failed) if there > 0 => "its transaction was reported as failed, and it is committed",
        _ => return,
    };
    verdict.add(Breach::Misreported, &marked[0].id, wrong, proof());
}

fn check_committed(
    facts: &Facts<'_>,
    spec: &Spec,
    tx: &Tx<'_>,
    runs: &[Run<'_>],
    state: &State,
    verdict: &mut Verdict,
) {
    let row = state.rows.get(&spec.id);
    let proof = || [vec![tx.writing], tx.ended.into_iter().collect(), lines_of(runs)].concat();
    if let Some(row) = row.filter(|row| row.is_dead()) {
        if let Some(text) = wrongly_dead(facts, spec, runs, row) {
            verdict.add(Breach::WrongDead, &spec.id, text, proof());
        }
        return;
    }
    if row.is_some_and(Row::is_pending) {
        return; // Reported as stuck below.
    }
    if spec.kind.must_die() || spec.is_killer() {
        let text = format!("it should be dead, and its row is {row:?}");
        verdict.add(Breach::NotDead, &spec.id, text, proof());
    } else if !runs.iter().any(Run::is_done) {
        let text = format!("it was committed and never handled to the end; its row is {row:?}");
        verdict.add(Breach::Lost, &spec.id, text, proof());
    } else if row.is_none() && facts.arena.keeps_rows() {
        verdict.add(Breach::Lost, &spec.id, "its row is missing, and this arena keeps rows", proof());
    }
}

/// Explains why an event should not be dead; `None` if it should be.
fn wrongly_dead(facts: &Facts<'_>, spec: &Spec, runs: &[Run<'_>], row: &Row) -> Option<String> {
    if row.died_of_crashes() {
        let first = runs.first().map_or(0, |run| run.start);
        let last = runs.last().map_or(0, |run| run.end);
        let disruptions = facts.disruptions(first, last.saturating_add(super::facts::GRACE));
        // Three starts without an outcome dead-letter an event; not every start need have reached
        // the handler.
        let enough = spec.is_killer() || disruptions >= 3;
        let text =
            format!("it was dead-lettered for crashes, after {disruptions} disruptions: {}", row.error);
        return (!enough).then_some(text);
    }
    match spec.kind {
        Kind::Doomed if runs.iter().any(|run| run.outcome == Some(HandlerOutcome::Dead)) => None,
        Kind::Worn if row.attempts == crate::arena::WORN_OUT_AFTER => None,
        _ => Some(format!("it is dead after {} attempts: {}", row.attempts, row.error)),
    }
}

fn check_absent(spec: &Spec, tx: &Tx<'_>, runs: &[Run<'_>], state: &State, verdict: &mut Verdict) {
    let row = state.rows.get(&spec.id);
    if runs.is_empty() && row.is_none() {
        return;
    }
    let what = if runs.is_empty() { "it has a row" } else { "it was delivered" };
    let proof = [vec![tx.writing], tx.ended.into_iter().collect(), lines_of(runs)].concat();
    verdict.add(Breach::Phantom, &spec.id, format!("{what}, and was never committed"), proof);
}

fn check_booked(spec: &Spec, tx: &Tx<'_>, runs: &[Run<'_>], state: &State, verdict: &mut Verdict) {
    let row = state.rows.get(&spec.id);
    let due = state.markers.contains(&spec.id) && row.is_none_or(|row| row.status == 1);
    let times = state.ledger.get(&spec.id).copied().unwrap_or(0);
    if times != u64::from(due) {
        let text = format!("it was booked {times} times instead of {}; its row is {row:?}", u64::from(due));
        let proof = [vec![tx.writing], tx.ended.into_iter().collect(), lines_of(runs)].concat();
        verdict.add(Breach::Ledger, &spec.id, text, proof);
    }
}
