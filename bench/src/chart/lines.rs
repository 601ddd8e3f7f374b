//! A line for each contestant over the cases.

use super::axis::{self, Axis};
use super::svg::{Align, Svg, width_of};
use super::{MARGIN, TOP, WIDTH, colour, contestants};
use crate::figures::Part;
use crate::text::figure;

const HEIGHT: f64 = 260.0;
const LEGEND_ROW: f64 = 20.0;
/// Space at the left for the labels of the axis.
const LEFT: f64 = MARGIN + 50.0;

pub(super) fn draw(part: &Part) -> String {
    let contestants = contestants(part);
    let lines: Vec<Vec<Option<f64>>> = contestants.iter().map(|who| line(part, who)).collect();
    let all: Vec<f64> = lines.iter().flatten().flatten().copied().collect();
    let axis = Axis::around(&all);
    let mut svg = Svg::new(&part.title, part.unit.words());
    let top = legend(&mut svg, &contestants) + 12.0;

    let y = |figure: f64| top + HEIGHT * (1.0 - axis.place(figure));
    let step = (WIDTH - LEFT - MARGIN) / part.cases.len().max(1) as f64;
    let x = |case: usize| LEFT + step * (case as f64 + 0.5);
    for tick in axis.ticks() {
        svg.line((LEFT, y(tick)), (WIDTH - MARGIN, y(tick)), "grid");
        svg.text(LEFT - 8.0, y(tick) + 4.0, Align::Right, "soft", &axis::label(tick));
    }
    for (place, case) in part.cases.iter().enumerate() {
        svg.text(x(place), top + HEIGHT + 20.0, Align::Middle, "strong", &case.name);
    }
    // The outbox's line comes last, on top of the others.
    for (who, line) in contestants.iter().zip(&lines).rev() {
        let points = line.iter().enumerate().filter_map(|(place, at)| Some((x(place), y((*at)?))));
        let points: Vec<(f64, f64)> = points.collect();
        let class = colour(&contestants, who);
        svg.path(&points, &class);
        points.iter().for_each(|point| svg.dot(*point, &class));
    }
    for (place, at) in lines.first().into_iter().flatten().enumerate() {
        if let Some(at) = at {
            // Below the point at the upper edge, above it elsewhere.
            let offset = if y(*at) < top + 16.0 { 18.0 } else { -9.0 };
            svg.text(x(place), y(*at) + offset, Align::Middle, "halo", &figure(*at));
        }
    }
    svg.finish(top + HEIGHT + 40.0)
}

/// The medians of a contestant, case by case.
fn line(part: &Part, who: &str) -> Vec<Option<f64>> {
    let median = |case: &crate::figures::Case| {
        case.series.iter().find(|series| series.who == who)?.spread().map(|spread| spread.median)
    };
    part.cases.iter().map(median).collect()
}

/// Draws the legend, in as many rows as needed; returns its lower edge.
fn legend(svg: &mut Svg, contestants: &[&str]) -> f64 {
    let (mut x, mut y) = (MARGIN, TOP + 4.0);
    for who in contestants {
        let width = 18.0 + width_of(who) + 18.0;
        if x > MARGIN && x + width > WIDTH - MARGIN {
            (x, y) = (MARGIN, y + LEGEND_ROW);
        }
        svg.rect(x, y, 12.0, 12.0, &colour(contestants, who));
        svg.text(x + 18.0, y + 10.0, Align::Left, "", who);
        x += width;
    }
    y + LEGEND_ROW
}
