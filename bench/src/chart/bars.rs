//! A group of bars for each case; every bar has its name at its left and its figure at its right,
//! so no legend is needed.

use super::axis::{self, Axis};
use super::svg::{Align, Svg, width_of};
use super::{MARGIN, TOP, WIDTH, colour, contestants};
use crate::figures::{Case, Part, Series};
use crate::text::figure;

const ROW: f64 = 23.0;
const HEADING: f64 = 26.0;
const THICK: f64 = 15.0;

pub(super) fn draw(part: &Part) -> String {
    let all: Vec<&Series> = part.cases.iter().flat_map(|case| &case.series).collect();
    let greatest =
        all.iter().filter_map(|series| series.spread()).map(|spread| spread.high).fold(0.0, f64::max);
    let axis = Axis::from_zero(greatest);
    let widest =
        |texts: &mut dyn Iterator<Item = String>| texts.map(|text| width_of(&text)).fold(0.0, f64::max);
    let left = MARGIN + widest(&mut all.iter().map(|series| series.who.clone())) + 10.0;
    let labels = &mut part.cases.iter().flat_map(|case| case.series.iter().map(|series| value(case, series)));
    let plot = WIDTH - MARGIN - left - widest(labels) - 10.0;
    let at = |figure: f64| left + axis.place(figure) * plot;

    let one_series = all.iter().all(|series| series.who == all[0].who);
    let whisker = if one_series && part.cases.len() == all.len() {
        ""
    } else {
        "; thin lines reach from the lowest round to the highest"
    };
    let mut svg = Svg::new(&part.title, &format!("{}{whisker}", part.unit.words()));
    let rows = |case: &Case| HEADING + ROW * case.series.len() as f64;
    let bottom = TOP + part.cases.iter().map(rows).sum::<f64>() + 8.0;
    for tick in axis.ticks() {
        svg.line((at(tick), TOP), (at(tick), bottom), "grid");
        svg.text(at(tick), bottom + 16.0, Align::Middle, "soft", &axis::label(tick));
    }
    let contestants = contestants(part);
    let mut y = TOP;
    for case in &part.cases {
        svg.text(MARGIN, y + 18.0, Align::Left, "strong", &case.name);
        y += HEADING;
        for series in &case.series {
            let middle = y + ROW / 2.0;
            svg.text(left - 8.0, middle + 4.0, Align::Right, "", &series.who);
            let mut end = left;
            if let Some(spread) = series.spread() {
                let class = colour(&contestants, &series.who);
                svg.rect(left, middle - THICK / 2.0, at(spread.median) - left, THICK, &class);
                svg.line((at(spread.low), middle), (at(spread.high), middle), "whisker");
                end = at(spread.high.max(spread.median));
            }
            svg.text(end + 8.0, middle + 4.0, Align::Left, "halo", &value(case, series));
            y += ROW;
        }
    }
    svg.finish(bottom + 30.0)
}

/// The figure, and for another contestant the outbox's ratio to it.
fn value(case: &Case, series: &Series) -> String {
    let Some(spread) = series.spread() else { return "not measured".to_owned() };
    match case.ratio_to(&series.who) {
        Some(ratio) if series.who != case.series[0].who => {
            format!("{} · ratio {:.2}", figure(spread.median), ratio.median)
        }
        _ => figure(spread.median),
    }
}
