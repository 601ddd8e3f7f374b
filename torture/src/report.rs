//! The summary table.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets};

use crate::checker::{Breach, Counts, Verdict};
use crate::world::Outcome;

/// Maximum number of violations shown of each kind; there may be thousands.
const SHOWN: usize = 10;

type Count = fn(&Counts) -> usize;

/// Renders counts, injected faults and violations.
pub fn table(outcome: &Outcome) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let arenas: Vec<Cell> = outcome.verdicts.keys().map(|arena| right(arena.to_string())).collect();
    table.add_row([vec![Cell::new("")], arenas].concat());
    let counts: [(&str, Count); 17] = [
        ("written", |c| c.written),
        ("rolled back", |c| c.rolled_back),
        ("unknown commits", |c| c.unknown),
        ("  of these there", |c| c.unknown_there),
        ("delivered", |c| c.delivered),
        ("twice", |c| c.twice),
        ("retried", |c| c.retried),
        ("broken off", |c| c.broken_off),
        ("dead", |c| c.dead),
        ("  of these after crashes", |c| c.dead_by_crashes),
        ("beside an expired lease", |c| c.excused_overlaps),
        ("events of the log", |c| c.log),
        ("joins", |c| c.joins),
        ("received by webhook", |c| c.received),
        ("hostile rows", |c| c.foreign),
        ("  of these delivered", |c| c.foreign_delivered),
        ("  of these dead", |c| c.foreign_dead),
    ];
    for (name, count) in counts {
        row(&mut table, name, outcome, |verdict| count(&verdict.counts));
    }
    for breach in BREACHES {
        row(&mut table, breach.name(), outcome, |verdict| {
            verdict.by_breach().get(&breach).copied().unwrap_or(0)
        });
    }
    let mut text = format!("\n{table}\n\nfaults:");
    for (fault, count) in &outcome.faults {
        let _ = write!(text, " {fault} {count}");
    }
    text
}

const BREACHES: [Breach; 14] = [
    Breach::Lost,
    Breach::Phantom,
    Breach::Misreported,
    Breach::Stuck,
    Breach::Order,
    Breach::Overlap,
    Breach::Again,
    Breach::WrongDead,
    Breach::NotDead,
    Breach::Join,
    Breach::Ledger,
    Breach::Position,
    Breach::Process,
    Breach::Endless,
];

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn row(table: &mut Table, name: &str, outcome: &Outcome, count: impl Fn(&Verdict) -> usize) {
    let cells = outcome.verdicts.values().map(|verdict| right(count(verdict).to_string())).collect();
    table.add_row([vec![Cell::new(name)], cells].concat());
}

/// Describes the violations, each with its proof.
pub fn violations<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        for (breach, count) in verdict.by_breach() {
            let some = verdict.violations.iter().filter(|violation| violation.breach == breach);
            for violation in some.take(SHOWN) {
                let _ = writeln!(text, "{violation}\n");
            }
            if count > SHOWN {
                let _ = writeln!(text, "… and {} more of {}\n", count - SHOWN, breach.name());
            }
        }
    }
    text
}
