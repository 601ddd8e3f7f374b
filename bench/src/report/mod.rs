//! Reports figures: as tables in the terminal, and as markdown with charts.

mod markdown;
mod table;

use std::fs;
use std::path::Path;

use crate::chart;
use crate::facts::Fact;
use crate::figures::{Bound, Case, Part, Series, Sheet, Spread, Wanted};
use crate::text::{self, slug};
use table::Table;

/// A scenario's tables, for the terminal.
pub(crate) fn terminal(sheet: &Sheet) -> String {
    let mut text = format!("\n{}\n", sheet.title);
    for part in &sheet.parts {
        if part.title != sheet.title {
            text += &format!("  {}\n", part.title);
        }
        text += &of_part(part).terminal("  ");
    }
    for note in &sheet.notes {
        text += &format!("  {note}\n");
    }
    text
}

/// All bounds, for the terminal.
pub(crate) fn bounds(sheets: &[Sheet]) -> String {
    format!("\nRequired\n{}", of_bounds(sheets).terminal("  "))
}

/// Writes `RESULTS.md` and its charts into a folder.
pub(crate) fn write(folder: &Path, facts: &[Fact], sheets: &[Sheet]) -> anyhow::Result<()> {
    let charts = folder.join("charts");
    // Remove the charts of an earlier run, which may have drawn others.
    if charts.exists() {
        fs::remove_dir_all(&charts)?;
    }
    fs::create_dir_all(&charts)?;
    let drawn = chart::bounds(&all_bounds(sheets));
    if let Some(drawn) = &drawn {
        fs::write(charts.join(markdown::BOUNDS), drawn)?;
    }
    for sheet in sheets {
        for part in &sheet.parts {
            fs::write(charts.join(file(sheet, part)), chart::draw(part))?;
        }
    }
    fs::write(folder.join("RESULTS.md"), markdown::results(facts, sheets, drawn.is_some()))?;
    Ok(())
}

/// File name of a part's chart.
fn file(sheet: &Sheet, part: &Part) -> String {
    format!("{}-{}.svg", sheet.name, slug(&part.title))
}

fn of_part(part: &Part) -> Table {
    let mut table = Table::new(["case", "ours", "", "beside", "", "ratio"]);
    for case in &part.cases {
        let mut rows: Vec<_> =
            case.pairs().map(|(_, other, ratio)| row(case, part, Some((other, ratio)))).collect();
        if rows.is_empty() {
            rows.extend(case.series.first().map(|_| row(case, part, None)));
        }
        rows.into_iter().for_each(|row| table.row(row));
    }
    table
}

/// A row of the table: a case, and another contestant with the ratio.
fn row(case: &Case, part: &Part, beside: Option<(&Series, Option<Spread>)>) -> [String; 6] {
    let ours = &case.series[0];
    let mut cells = [
        case.name.clone(),
        ours.who.clone(),
        text::spread(ours.spread(), part.unit),
        "–".to_owned(),
        "–".to_owned(),
        "–".to_owned(),
    ];
    if let Some((other, ratio)) = beside {
        cells[3].clone_from(&other.who);
        cells[4] = text::spread(other.spread(), part.unit);
        cells[5] = text::ratio(ratio);
    }
    cells
}

fn all_bounds(sheets: &[Sheet]) -> Vec<&Bound> {
    sheets.iter().flat_map(|sheet| &sheet.bounds).collect()
}

fn of_bounds(sheets: &[Sheet]) -> Table {
    let mut table = Table::new(["", "what", "required", "measured"]);
    for bound in all_bounds(sheets) {
        let mark = match bound.holds() {
            Some(true) => "pass",
            Some(false) => "MISS",
            None => "–",
        };
        let (sign, wanted) = match bound.wanted {
            Wanted::AtLeast(wanted) => ("≥", wanted),
            Wanted::AtMost(wanted) => ("≤", wanted),
        };
        let found = match bound.found {
            Some(found) => {
                let [low, median, high] = [found.low, found.median, found.high].map(text::figure);
                format!("{median} ({low} to {high}) {}", bound.unit)
            }
            None => "not measured".to_owned(),
        };
        table.row([mark.to_owned(), bound.what.clone(), format!("{sign} {wanted} {}", bound.unit), found]);
    }
    table
}
