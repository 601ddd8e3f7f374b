//! Figures: the result of a scenario, and the input of the report.
//!
//! A [`Sheet`] is the result of one scenario. Each of its [`Part`]s becomes a table and a chart; a
//! part holds [`Case`]s, and a case holds a [`Series`] for each contestant: the outbox first, then
//! the others.

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    EventsPerSecond,
    TransactionsPerSecond,
    Milliseconds,
    Megabytes,
}

impl Unit {
    /// Long form, for the heading of a chart.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::EventsPerSecond => "events per second, more is better",
            Self::TransactionsPerSecond => "transactions per second, more is better",
            Self::Milliseconds => "milliseconds, less is better",
            Self::Megabytes => "megabytes, less is better",
        }
    }

    /// Short form, for the cell of a table.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::EventsPerSecond => "ev/s",
            Self::TransactionsPerSecond => "tx/s",
            Self::Milliseconds => "ms",
            Self::Megabytes => "MB",
        }
    }
}

/// Median, lowest and highest value of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// `None` if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { low, median, high })
    }
}

/// The values of one contestant, each with the number of its round.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) who: String,
    values: Vec<(usize, f64)>,
}

impl Series {
    pub(crate) fn spread(&self) -> Option<Spread> {
        Spread::of(self.values.iter().map(|(_, value)| *value))
    }

    /// Ratio of these values to the other's, round by round: noise of the machine affects both
    /// values of a round.
    pub(crate) fn ratio(&self, other: &Self) -> Option<Spread> {
        let in_round = |round| other.values.iter().find(|(theirs, _)| *theirs == round);
        let pairs = self.values.iter().filter_map(|(round, value)| Some(value / in_round(*round)?.1));
        Spread::of(pairs.filter(|ratio| ratio.is_finite()))
    }
}

/// One measurement, with the values of each contestant.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) series: Vec<Series>,
}

impl Case {
    /// Creates a case with these contestants, in display order; the outbox comes first.
    pub(crate) fn of(name: impl Into<String>, contestants: &[&str]) -> Self {
        let series = contestants.iter().map(|who| Series { who: (*who).to_owned(), values: Vec::new() });
        Self { name: name.into(), series: series.collect() }
    }

    /// Adds the value of a round. A new contestant is shown last.
    pub(crate) fn add(&mut self, round: usize, who: &str, value: f64) {
        if let Some(series) = self.series.iter_mut().find(|series| series.who == who) {
            series.values.push((round, value));
        } else {
            self.series.push(Series { who: who.to_owned(), values: vec![(round, value)] });
        }
    }

    /// Each other contestant with the outbox's series and its ratio to that contestant.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&Series, &Series, Option<Spread>)> {
        let ours = self.series.first();
        let others = self.series.iter().skip(1);
        others.filter_map(move |other| ours.map(|ours| (ours, other, ours.ratio(other))))
    }

    /// Ratio of the first contestant to this one.
    pub(crate) fn ratio_to(&self, who: &str) -> Option<Spread> {
        self.pairs().find(|(_, other, _)| other.who == who).and_then(|(.., ratio)| ratio)
    }
}

/// How a part is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Drawing {
    /// A group of bars for each case, a bar for each contestant.
    Bars,
    /// A point on the axis for each case, a line for each contestant.
    Lines,
}

/// Cases that share a table and a chart.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) title: String,
    pub(crate) unit: Unit,
    pub(crate) drawing: Drawing,
    pub(crate) cases: Vec<Case>,
}

impl Part {
    pub(crate) fn bars(title: impl Into<String>, unit: Unit, cases: Vec<Case>) -> Self {
        Self { title: title.into(), unit, drawing: Drawing::Bars, cases }
    }

    pub(crate) fn lines(title: impl Into<String>, unit: Unit, cases: Vec<Case>) -> Self {
        Self { title: title.into(), unit, drawing: Drawing::Lines, cases }
    }
}

/// Result of one scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    /// Name for `--only`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Description of the measurement and of the comparison.
    pub(crate) about: String,
    pub(crate) parts: Vec<Part>,
    pub(crate) bounds: Vec<Bound>,
    /// Remarks, such as which contestant did not run and why.
    pub(crate) notes: Vec<String>,
    /// Whether the scenario ended with an error.
    pub(crate) failed: bool,
}

/// The required value of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure and its required value.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) what: String,
    pub(crate) wanted: Wanted,
    pub(crate) unit: &'static str,
    pub(crate) found: Option<Spread>,
}

impl Bound {
    /// A ratio that must be at least this.
    pub(crate) fn at_least(what: impl Into<String>, wanted: f64, found: Option<Spread>) -> Self {
        Self { what: what.into(), wanted: Wanted::AtLeast(wanted), unit: "×", found }
    }

    /// A figure that must be at most this.
    pub(crate) fn at_most(
        what: impl Into<String>,
        wanted: f64,
        unit: &'static str,
        found: Option<Spread>,
    ) -> Self {
        Self { what: what.into(), wanted: Wanted::AtMost(wanted), unit, found }
    }

    /// Whether the median satisfies the bound; `None` if it was not measured.
    pub(crate) fn holds(&self) -> Option<bool> {
        let found = self.found?.median;
        Some(match self.wanted {
            Wanted::AtLeast(wanted) => found >= wanted,
            Wanted::AtMost(wanted) => found <= wanted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middle_ones() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { low: 1.0, median: 2.0, high: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0]), Some(Spread { low: 1.0, median: 2.5, high: 4.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let mut case = Case::of("drain", &["outbox", "by hand"]);
        for (round, ours, theirs) in [(0, 10.0, 20.0), (1, 100.0, 50.0), (2, 30.0, 30.0)] {
            case.add(round, "by hand", theirs);
            case.add(round, "outbox", ours);
        }
        assert_eq!(case.ratio_to("by hand"), Some(Spread { low: 0.5, median: 1.0, high: 2.0 }));
    }

    #[test]
    fn a_round_that_one_of_the_two_missed_does_not_count() {
        let mut case = Case::of("drain", &["outbox"]);
        case.add(0, "outbox", 10.0);
        case.add(1, "outbox", 30.0);
        case.add(1, "peer", 10.0);
        assert_eq!(case.ratio_to("peer"), Some(Spread { low: 3.0, median: 3.0, high: 3.0 }));
        assert_eq!(case.ratio_to("unknown"), None);
    }

    #[test]
    fn a_bound_is_held_by_the_median() {
        let found = Spread::of([0.1, 0.8, 0.9]);
        assert_eq!(Bound::at_least("x", 0.7, found).holds(), Some(true));
        assert_eq!(Bound::at_least("x", 0.85, found).holds(), Some(false));
        assert_eq!(Bound::at_most("x", 0.7, "ms", found).holds(), Some(false));
        assert_eq!(Bound::at_most("x", 0.7, "ms", None).holds(), None);
    }
}
