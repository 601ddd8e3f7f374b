//! Charts as SVG, by hand: a card with a background of its own, light or dark as the reader's system is.

mod axis;
mod bars;
mod lines;
mod svg;
mod wanted;

use crate::figures::{Bound, Drawing, Part};

/// How wide every chart is.
const WIDTH: f64 = 820.0;
/// Between the edge and everything else.
const MARGIN: f64 = 20.0;
/// Where the drawing begins, below title and subtitle.
const TOP: f64 = 64.0;

/// The chart of a part.
pub(crate) fn draw(part: &Part) -> String {
    match part.drawing {
        Drawing::Bars => bars::draw(part),
        Drawing::Lines => lines::draw(part),
    }
}

/// Ratios beside what they are wanted to be; `None` if there is none.
pub(crate) fn bounds(bounds: &[&Bound]) -> Option<String> {
    wanted::draw(bounds)
}

/// Who is in a part, in the order of their colours.
fn contestants(part: &Part) -> Vec<&str> {
    let mut all = Vec::new();
    for series in part.cases.iter().flat_map(|case| &case.series) {
        if !all.contains(&series.who.as_str()) {
            all.push(series.who.as_str());
        }
    }
    all
}

/// The colour's class of a contestant: the first is always ours.
fn colour(contestants: &[&str], who: &str) -> String {
    let place = contestants.iter().position(|other| *other == who).unwrap_or(0);
    // Ours keeps its colour for itself.
    let place = if place == 0 { 0 } else { (place - 1) % (svg::COLOURS.len() - 1) + 1 };
    format!("c{place}")
}
