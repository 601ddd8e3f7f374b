//! The checker: a pure function of the history and of the tables at the end.
//!
//! The checker asks neither a clock nor a database. Every violation names the event and shows the
//! lines of the history that prove it.

mod broker;
mod duplicates;
mod facts;
mod foreign;
mod joins;
mod log;
mod order;
mod outcomes;
mod overlaps;
mod receiver;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use crate::arena::Arena;
use crate::history::{Commit, Line};
use crate::state::State;

pub use facts::Facts;

/// Kinds of violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// Committed, and never delivered.
    Lost,
    /// Delivered, and never committed.
    Phantom,
    /// The result that the writer saw does not match the database.
    Misreported,
    /// Still pending after the drain.
    Stuck,
    /// Delivered again although the process that had done it was not disrupted.
    Again,
    /// An event of a key started before an earlier one was settled, or was redelivered after a
    /// later one.
    Order,
    /// Two handlers ran the same event at the same time, and the first one's lease had not expired.
    Overlap,
    /// Dead-lettered without a reason.
    WrongDead,
    /// Not dead-lettered although it should be.
    NotDead,
    /// The counters or the follow-up of a join are wrong.
    Join,
    /// Not booked, or booked more than once.
    Ledger,
    /// A position of the log was skipped or went back.
    Position,
    /// A process ended unexpectedly, or did not stop when asked to.
    Process,
    /// A row that is not part of the workload is delivered without end.
    Endless,
}

impl Breach {
    /// Row label in the summary table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Phantom => "phantom",
            Self::Misreported => "misreported",
            Self::Stuck => "stuck",
            Self::Again => "again without cause",
            Self::Order => "order breaks",
            Self::Overlap => "overlaps",
            Self::WrongDead => "wrongly dead",
            Self::NotDead => "wrongly alive",
            Self::Join => "joins",
            Self::Ledger => "bookings",
            Self::Position => "positions",
            Self::Process => "processes",
            Self::Endless => "endless",
        }
    }
}

/// A violation.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Its kind.
    pub breach: Breach,
    /// The event, join, publisher or process.
    pub of: String,
    /// Description.
    pub text: String,
    /// The lines of the history that prove it.
    pub proof: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.breach.name(), self.of, self.text)?;
        for line in &self.proof {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Committed events.
    pub written: usize,
    /// Events of transactions that were rolled back or failed.
    pub rolled_back: usize,
    /// Transactions whose result the writer did not learn.
    pub unknown: usize,
    /// Of these, committed ones.
    pub unknown_there: usize,
    /// Delivered events.
    pub delivered: usize,
    /// Repeated deliveries of done events.
    pub twice: usize,
    /// Attempts that failed or panicked.
    pub retried: usize,
    /// Attempts without an outcome.
    pub broken_off: usize,
    /// Dead-lettered events.
    pub dead: usize,
    /// Of these, events that were dead-lettered because their processes crashed.
    pub dead_by_crashes: usize,
    /// Concurrent deliveries where the first one's lease had expired.
    pub excused_overlaps: usize,
    /// Events of the log.
    pub log: usize,
    /// Joins.
    pub joins: usize,
    /// Rows that are not part of the workload.
    pub foreign: usize,
    /// Of these, delivered ones.
    pub foreign_delivered: usize,
    /// Of these, dead-lettered ones.
    pub foreign_dead: usize,
    /// Events that the webhook receiver accepted.
    pub received: usize,
}

/// Verdict of the checker on one arena.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Counts of the run.
    pub counts: Counts,
    /// All violations.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Number of violations of each kind.
    pub fn by_breach(&self) -> BTreeMap<Breach, usize> {
        let mut counts = BTreeMap::new();
        for violation in &self.violations {
            *counts.entry(violation.breach).or_default() += 1;
        }
        counts
    }

    fn add(&mut self, breach: Breach, of: &str, text: impl Into<String>, proof: Vec<&Line>) {
        let proof = proof.into_iter().map(ToString::to_string).collect();
        self.violations.push(Violation { breach, of: of.to_owned(), text: text.into(), proof });
    }
}

/// Checks the history of an arena against its state. `lines` may contain those of other arenas.
pub fn check(arena: Arena, lines: &[Line], state: &State) -> Verdict {
    let facts = Facts::gather(arena, lines);
    let mut verdict = Verdict::default();
    count(&facts, state, &mut verdict.counts);
    outcomes::check(&facts, state, &mut verdict);
    if arena.has_handlers() {
        order::check(&facts, state, &mut verdict);
        overlaps::check(&facts, &mut verdict);
        duplicates::check(&facts, &mut verdict);
        joins::check(&facts, state, &mut verdict);
    } else {
        broker::check(&facts, state, &mut verdict);
        receiver::check(&facts, state, &mut verdict);
    }
    foreign::check(&facts, &mut verdict);
    if arena.has_log() {
        log::check(&facts, state, &mut verdict);
    }
    for (process, line) in facts.processes_that_failed() {
        let text = "it ended without a fault or a requested stop, or with the wrong status; see its log";
        verdict.add(Breach::Process, process, text, vec![line]);
    }
    verdict
}

fn count(facts: &Facts<'_>, state: &State, counts: &mut Counts) {
    for tx in facts.txs.values() {
        let is_there = tx.specs.first().is_some_and(|spec| state.markers.contains(&spec.id));
        if !is_there {
            counts.rolled_back += tx.specs.len();
        }
        if tx.how == Some(Commit::Unknown) {
            counts.unknown += 1;
            counts.unknown_there += usize::from(is_there);
        }
    }
    counts.written = state.markers.len();
    counts.log = state.log.len();
    counts.joins = state.joins.len();
    let (foreign, own): (Vec<_>, Vec<_>) = state.rows.iter().partition(|(id, _)| facts.is_foreign(id));
    counts.dead = own.iter().filter(|(_, row)| row.is_dead()).count();
    counts.dead_by_crashes = own.iter().filter(|(_, row)| row.died_of_crashes()).count();
    counts.foreign = facts.foreign.len();
    counts.foreign_delivered = facts.foreign_deliveries.len();
    counts.foreign_dead = foreign.iter().filter(|(_, row)| row.is_dead()).count();
}
