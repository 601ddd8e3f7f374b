//! Durations in settings: `500ms`, `5s`, `1m`, `2h`.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// Deserializes a duration from text. The maximum is 24 hours.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_any(DurationVisitor)
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"5s\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).map_err(E::custom)
    }

    // A number without a unit is a common mistake and gets a helpful error.
    fn visit_i64<E: Error>(self, number: i64) -> Result<Duration, E> {
        Err(E::invalid_type(Unexpected::Signed(number), &self))
    }
}

fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_millis = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let time = unit_millis
        .zip(number.parse::<u64>().ok())
        .and_then(|(unit_millis, number)| number.checked_mul(unit_millis));
    match time.map(Duration::from_millis) {
        None => Err("write a whole number and its unit, as in 500ms, 5s, 1m or 2h".to_owned()),
        Some(Duration::ZERO) => {
            Err("a duration of zero is not allowed: omit the setting for the default".to_owned())
        }
        Some(time) if time > Duration::from_secs(86_400) => {
            Err(format!("{text} is too long: use at most 24h"))
        }
        Some(time) => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_duration_is_its_number_and_unit_and_no_other_text_is_valid(
            number in 0..100_000_000_u64,
            unit in prop::sample::select(vec![("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]),
            text in prop_oneof![any::<String>(), "[0-9]{0,22}[a-z]{0,2}", "[+-][0-9]{1,3}s"],
        ) {
            let time = Some(Duration::from_millis(number * unit.1)).filter(|time| (1..=86_400_000).contains(&time.as_millis()));
            prop_assert_eq!(parse(&format!("{number}{}", unit.0)).ok(), time);
            if let Ok(time) = parse(&text) {
                prop_assert!(text.starts_with(|c: char| c.is_ascii_digit()) && time <= Duration::from_secs(86_400), "{}", text);
            }
        }
    }

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        for (text, ms) in [("500ms", 500), ("5s", 5_000), ("1m", 60_000), ("2h", 7_200_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5s", "5 s", "0s", "25h", "99999999999999999999s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
