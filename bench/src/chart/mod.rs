//! Charts as SVG: a card with its own background, light or dark as the reader's system.

mod axis;
mod bars;
mod bounds;
mod lines;
mod svg;

use crate::figures::{Bound, Drawing, Part};

/// Width of every chart.
const WIDTH: f64 = 820.0;
/// Space between the edge and the content.
const MARGIN: f64 = 20.0;
/// Top of the drawing, below title and subtitle.
const TOP: f64 = 64.0;

/// The chart of a part.
pub(crate) fn draw(part: &Part) -> String {
    match part.drawing {
        Drawing::Bars => bars::draw(part),
        Drawing::Lines => lines::draw(part),
    }
}

/// Draws ratios with their bounds; `None` if there are none.
pub(crate) fn bounds(bounds: &[&Bound]) -> Option<String> {
    bounds::draw(bounds)
}

/// The contestants of a part, in the order of their colours.
fn contestants(part: &Part) -> Vec<&str> {
    let mut all = Vec::new();
    for series in part.cases.iter().flat_map(|case| &case.series) {
        if !all.contains(&series.who.as_str()) {
            all.push(series.who.as_str());
        }
    }
    all
}

/// CSS class of a contestant's colour; the first contestant is the outbox.
fn colour(contestants: &[&str], who: &str) -> String {
    let place = contestants.iter().position(|other| *other == who).unwrap_or(0);
    // The outbox's colour is not reused.
    let place = if place == 0 { 0 } else { (place - 1) % (svg::COLOURS.len() - 1) + 1 };
    format!("c{place}")
}
