//! `RESULTS.md`.

use super::{file, of_bounds, of_part};
use crate::facts::Fact;
use crate::figures::Sheet;

/// The chart of what is wanted and what was found.
pub(super) const BOUNDS: &str = "wanted.svg";

const HEAD: &str = "# Results

Made by `cargo xtask bench`; [README.md](README.md) says how to run and to read it. Each figure is the median of the rounds, with the
lowest and the highest beside it. A ratio is ours in parts of theirs, taken round by round: for speeds more is better, for times and
memory less is. Machines and days differ; ratios within a run mean something, single figures do not.
";

pub(super) fn results(facts: &[Fact], sheets: &[Sheet], with_chart_of_bounds: bool) -> String {
    let mut text = HEAD.to_owned() + "\n| | |\n| --- | --- |\n";
    for (what, is) in facts {
        text += &format!("| {what} | {is} |\n");
    }
    if sheets.iter().any(|sheet| !sheet.bounds.is_empty()) {
        text += "\n## Wanted, and found\n\nHeld by the median. Where a run is quick, so is what it says here.\n\n";
        text += &of_bounds(sheets).markdown();
    }
    if with_chart_of_bounds {
        text += &format!("\n![The ratios that are wanted, and those that were found](charts/{BOUNDS})\n");
    }
    for sheet in sheets {
        text += &format!("\n## {}\n\n{}\n", sheet.title, sheet.about);
        for part in &sheet.parts {
            text += &format!("\n![{}](charts/{})\n\n", part.title, file(sheet, part));
            text += &of_part(part).markdown();
        }
        if !sheet.notes.is_empty() {
            text.push('\n');
        }
        for note in &sheet.notes {
            text += &format!("- {note}\n");
        }
    }
    text
}
