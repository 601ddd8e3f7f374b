//! Formats figures.

use crate::figures::{Spread, Unit};

/// A whole number with a comma between thousands: `1,234,567`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 && digits != "0" { format!("-{text}") } else { text }
}

/// A number with three significant places or more: `0.042`, `1.7`, `12,345`.
pub(crate) fn figure(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 => thousands(number),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// A spread with its unit: `12,345 (11,900 to 12,800) ev/s`.
pub(crate) fn spread(of: Option<Spread>, unit: Unit) -> String {
    match of {
        Some(Spread { low, median, high }) => {
            format!("{} ({} to {}) {}", figure(median), figure(low), figure(high), unit.short())
        }
        None => "–".to_owned(),
    }
}

/// A ratio: `0.72 (0.65 to 0.80)`.
pub(crate) fn ratio(of: Option<Spread>) -> String {
    match of {
        Some(Spread { low, median, high }) => format!("{median:.2} ({low:.2} to {high:.2})"),
        None => "–".to_owned(),
    }
}

/// A name for a file or a link: `Cold drain, 2 nodes` becomes `cold-drain-2-nodes`.
pub(crate) fn slug(title: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let joined: String = title.replace(',', "").chars().map(plain).collect();
    joined.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!(thousands(0.4), "0");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(1_000.0), "1,000");
        assert_eq!(thousands(-12_345_678.0), "-12,345,678");
    }

    #[test]
    fn small_figures_keep_their_places() {
        assert_eq!(
            [0.0421, 1.74, 17.44, 123.4, 12_345.6].map(figure),
            ["0.042", "1.74", "17.4", "123", "12,346"]
        );
    }

    #[test]
    fn a_spread_is_shown_beside_its_median() {
        let found = Spread::of([10_000.0, 12_000.0, 15_000.0]);
        assert_eq!(spread(found, Unit::EventsPerSecond), "12,000 (10,000 to 15,000) ev/s");
        assert_eq!(ratio(Spread::of([0.5, 1.0])), "0.75 (0.50 to 1.00)");
        assert_eq!(ratio(None), "–");
    }

    #[test]
    fn a_file_is_named_after_its_title() {
        assert_eq!(slug("Commit to handler, 1,000 events/s"), "commit-to-handler-1000-events-s");
    }
}
