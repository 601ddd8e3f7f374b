//! Ratios with a lower bound: a bar for the measured ratio, a mark for the bound.

use super::axis::{self, Axis};
use super::svg::{Align, Svg, width_of};
use super::{MARGIN, TOP, WIDTH};
use crate::figures::{Bound, Wanted};

const ROW: f64 = 40.0;
const THICK: f64 = 13.0;

pub(super) fn draw(bounds: &[&Bound]) -> Option<String> {
    let ratio = |bound: &&Bound| match (bound.wanted, bound.found) {
        (Wanted::AtLeast(wanted), Some(found)) => Some((bound.what.clone(), wanted, found)),
        _ => None,
    };
    let ratios: Vec<_> = bounds.iter().filter_map(ratio).collect();
    let greatest = ratios.iter().map(|(_, wanted, found)| wanted.max(found.high)).reduce(f64::max)?;
    let axis = Axis::from_zero(greatest * 1.02);
    let label = |wanted, median| format!("{median:.2}, required {wanted}");
    let labels: Vec<String> = ratios.iter().map(|(_, wanted, found)| label(wanted, found.median)).collect();
    let room = labels.iter().map(|label| width_of(label)).fold(0.0, f64::max) + 16.0;
    let at = |figure: f64| MARGIN + axis.place(figure) * (WIDTH - 2.0 * MARGIN - room);

    let mut svg = Svg::new(
        "Ratios, required and measured",
        "outbox divided by the other, more is better; the red mark is the bound, thin lines reach from the lowest round to the highest",
    );
    let bottom = TOP + ROW * ratios.len() as f64 + 8.0;
    for tick in axis.ticks() {
        svg.line((at(tick), TOP), (at(tick), bottom), "grid");
        svg.text(at(tick), bottom + 16.0, Align::Middle, "soft", &axis::label(tick));
    }
    for (place, ((what, wanted, found), label)) in ratios.iter().zip(&labels).enumerate() {
        let y = TOP + ROW * place as f64;
        svg.text(MARGIN, y + 15.0, Align::Left, "halo", what);
        let middle = y + 28.0;
        svg.rect(MARGIN, middle - THICK / 2.0, at(found.median) - MARGIN, THICK, "c0");
        svg.line((at(found.low), middle), (at(found.high), middle), "whisker");
        svg.line((at(*wanted), middle - 10.0), (at(*wanted), middle + 10.0), "goal");
        svg.text(at(found.high.max(*wanted)) + 8.0, middle + 4.0, Align::Left, "halo", label);
    }
    Some(svg.finish(bottom + 30.0))
}
