//! Durations of a settings file: `"500ms"`, `"5s"`, `"2m"`, `"1h"`.

use std::time::Duration;

use serde::{Deserialize as _, Deserializer};

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 24 * 3_600_000)];

/// For `#[serde(deserialize_with = "duration::deserialize")]`.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let written = crate::Text::deserialize(deserializer)?;
    parse(written.as_str()).map_err(serde::de::Error::custom)
}

fn parse(written: &str) -> Result<Duration, String> {
    let digits = written.find(|c: char| !c.is_ascii_digit()).unwrap_or(written.len());
    let (number, unit) = written.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit.trim_start()).map(|(_, millis)| *millis);
    let millis = unit.and_then(|unit| number.parse::<u64>().ok()?.checked_mul(unit));
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{written:?} is no duration: write \"500ms\", \"5s\", \"2m\" or \"1h\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_with_a_unit() {
        for (written, millis) in [("500ms", 500), ("5s", 5_000), ("2 m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(parse(written), Ok(Duration::from_millis(millis)), "{written}");
        }
        for written in ["", "5", "s", "-1s", "1.5s", "5 fortnights", "99999999999999999999s"] {
            assert!(parse(written).is_err(), "{written}");
        }
    }
}
