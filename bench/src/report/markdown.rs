//! Renders `RESULTS.md`.

use super::{file, of_bounds, of_part};
use crate::facts::Fact;
use crate::figures::Sheet;

/// File name of the chart of required and measured ratios.
pub(super) const BOUNDS: &str = "wanted.svg";

const HEAD: &str = "# Results

Made by `cargo xtask bench`; [README.md](README.md) describes how to run and to read it. Each figure is the median of the rounds, with the
lowest and the highest beside it. A ratio is the outbox's figure divided by the other's, round by round: for speeds more is
better, for times and memory less is. Compare ratios within a run, not single figures of different runs.
";

pub(super) fn results(facts: &[Fact], sheets: &[Sheet], with_chart_of_bounds: bool) -> String {
    let mut text = HEAD.to_owned() + "\n| | |\n| --- | --- |\n";
    for (what, is) in facts {
        text += &format!("| {what} | {is} |\n");
    }
    if sheets.iter().any(|sheet| !sheet.bounds.is_empty()) {
        text += "\n## Required and measured\n\nThe median decides. A quick run is less precise.\n\n";
        text += &of_bounds(sheets).markdown();
    }
    if with_chart_of_bounds {
        text += &format!("\n![Required and measured ratios](charts/{BOUNDS})\n");
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
