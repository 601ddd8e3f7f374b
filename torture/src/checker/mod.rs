//! Decides: a pure function of what happened and of what the database says in the end.
//!
//! Nothing here asks a clock or a database. Every violation names the event and shows the lines of the history that prove it.

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

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breach {
    /// Committed, and never delivered.
    Lost,
    /// Delivered, and never committed.
    Phantom,
    /// What the writer was told of its transaction is not so.
    Misreported,
    /// Still waiting after everything had time to settle.
    Stuck,
    /// Delivered again although nothing happened to the one who had done it.
    Again,
    /// An event of a key started before an earlier one was settled, or came again after a later one.
    Order,
    /// Two handlers had one event at the same time, and the first one's lease had not run out.
    Overlap,
    /// Dead, and nothing was wrong with it.
    WrongDead,
    /// Not dead, and should be.
    NotDead,
    /// A join's counters, or what follows it, are wrong.
    Join,
    /// Booked not at all, or more than once.
    Ledger,
    /// A position of the log was skipped, or went back.
    Position,
    /// A process ended by itself, or would not end.
    Process,
    /// A row that is not part of the work is delivered again and again.
    Endless,
}

impl Breach {
    /// In the table.
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

/// Something that must not have happened, and did.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What it is.
    pub breach: Breach,
    /// Of which event, join, publisher or process.
    pub of: String,
    /// In words.
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

/// How much there was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that were committed.
    pub written: usize,
    /// Events of transactions that were rolled back, or failed.
    pub rolled_back: usize,
    /// Transactions of which the writer was not told how they ended.
    pub unknown: usize,
    /// Of these, those that were committed.
    pub unknown_there: usize,
    /// Events that were delivered.
    pub delivered: usize,
    /// Deliveries of what had been delivered before.
    pub twice: usize,
    /// Attempts that failed or panicked.
    pub retried: usize,
    /// Attempts that did not come to an end.
    pub broken_off: usize,
    /// Dead events.
    pub dead: usize,
    /// Of these, those that were taken for what ends processes.
    pub dead_by_crashes: usize,
    /// Deliveries side by side where the first one's lease had run out.
    pub excused_overlaps: usize,
    /// Events of the log.
    pub log: usize,
    /// Joins.
    pub joins: usize,
    /// Rows that are not part of the work.
    pub foreign: usize,
    /// Of these, those that were delivered.
    pub foreign_delivered: usize,
    /// Of these, those that are dead.
    pub foreign_dead: usize,
    /// Events that the receiver of webhooks took.
    pub received: usize,
}

/// What the checker says of one arena.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// How much there was.
    pub counts: Counts,
    /// What must not have happened.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// How many of each there are.
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

/// Holds the history of an arena against its state. `lines` may have those of other arenas as well.
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
        let text = "it ended although nobody did that to it, or not as it should; see its log";
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
