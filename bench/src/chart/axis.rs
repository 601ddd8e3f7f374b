//! Maps figures to positions on an axis, and selects round tick marks.

/// An axis from 0, or a logarithmic one.
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// From 0 to the greatest figure.
    pub(super) fn from_zero(greatest: f64) -> Self {
        Self { low: 0.0, high: if greatest > 0.0 { greatest } else { 1.0 }, logarithmic: false }
    }

    /// Covers all of these figures: logarithmic if they differ by more than a factor of 20, since
    /// small ones would not be distinguishable otherwise.
    pub(super) fn around(figures: &[f64]) -> Self {
        let above_zero = || figures.iter().copied().filter(|figure| *figure > 0.0);
        let (low, high) = (above_zero().fold(f64::MAX, f64::min), above_zero().fold(0.0, f64::max));
        if high / low < 20.0 || high <= 0.0 {
            return Self::from_zero(high * 1.1);
        }
        let (low, high) = (10_f64.powf(low.log10().floor()), high * 1.5);
        Self { low, high, logarithmic: true }
    }

    /// Position between 0 and 1, clamped to the ends of the axis.
    pub(super) fn place(&self, figure: f64) -> f64 {
        let place = if self.logarithmic {
            (figure.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (figure - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }

    /// Round figures along the axis.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.high / self.low).log10().ceil() as i32;
            return (0..=decades)
                .map(|decade| self.low * 10_f64.powi(decade))
                .filter(|tick| *tick <= self.high)
                .collect();
        }
        let step = round_step((self.high - self.low) / 4.0);
        (0..).map(|n| self.low + f64::from(n) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn round_step(at_least: f64) -> f64 {
    let ten = 10_f64.powf(at_least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.map(|step| step * ten).into_iter().find(|step| *step >= at_least * 0.999).unwrap_or(10.0 * ten)
}

/// A short label: `20 k`, `0.05`.
pub(super) fn label(figure: f64) -> String {
    let plain = |figure: f64| {
        let text = format!("{figure:.3}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    if figure >= 1_000_000.0 {
        format!("{} M", plain(figure / 1_000_000.0))
    } else if figure >= 10_000.0 {
        format!("{} k", plain(figure / 1_000.0))
    } else {
        plain(figure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        assert_eq!(Axis::from_zero(97_000.0).ticks(), [0.0, 25_000.0, 50_000.0, 75_000.0]);
        assert_eq!(Axis::from_zero(1.0).ticks(), [0.0, 0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn figures_far_apart_make_a_logarithmic_axis() {
        let axis = Axis::around(&[0.2, 0.0, 300.0]);
        let labels: Vec<String> = axis.ticks().into_iter().map(label).collect();
        assert_eq!(labels, ["0.1", "1", "10", "100"]);
        assert_eq!(axis.place(0.0), 0.0);
        assert!(axis.place(300.0) > 0.9 && axis.place(300.0) < 1.0);
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(
            [0.0, 0.05, 2_500.0, 25_000.0, 1_500_000.0].map(label),
            ["0", "0.05", "2500", "25 k", "1.5 M"]
        );
    }
}
