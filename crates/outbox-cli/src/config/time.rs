//! Times as people write them: `500ms`, `5s`, `1m`, `2h`, `7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// The longest time: far beyond sense, and far below what overflows.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A time of at least `MIN` milliseconds, and at most a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time<const MIN: u64 = 0>(pub(crate) Duration);

const HOW: &str = "write a whole number and its unit, as in 500ms, 5s, 1m, 2h or 7d";

impl<const MIN: u64> FromStr for Time<MIN> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: Option<u64> = number.parse().ok();
        let seconds = |each: u64| number.and_then(|n| n.checked_mul(each)).map(Duration::from_secs);
        let time = match unit {
            "ms" => number.map(Duration::from_millis),
            "s" => seconds(1),
            "m" => seconds(60),
            "h" => seconds(3_600),
            "d" => seconds(86_400),
            _ => None,
        };
        let time = time.ok_or(HOW)?;
        let least = Duration::from_millis(MIN);
        if time < least {
            return Err(format!("{text} is too short: use at least {}", Time::<0>(least)));
        }
        if time > YEAR {
            return Err(format!("{text} is too long: use at most 365d"));
        }
        Ok(Self(time))
    }
}

impl<const MIN: u64> fmt::Display for Time<MIN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
        match units.into_iter().find(|(_, each)| ms > 0 && ms.is_multiple_of(*each)) {
            Some((unit, each)) => write!(f, "{}{unit}", ms / each),
            None => f.write_str("0s"),
        }
    }
}

impl<'de, const MIN: u64> Deserialize<'de> for Time<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written<const MIN: u64>;

        impl<const MIN: u64> Visitor<'_> for Written<MIN> {
            type Value = Time<MIN>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"5s\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Time<MIN>, E> {
                text.parse().map_err(E::custom)
            }

            // The mistake that everybody makes once.
            fn visit_i64<E: Error>(self, number: i64) -> Result<Time<MIN>, E> {
                Err(E::invalid_type(Unexpected::Signed(number), &self))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_numbers_with_a_unit() {
        for (text, ms) in
            [("500ms", 500), ("5s", 5_000), ("1m", 60_000), ("2h", 7_200_000), ("7d", 604_800_000), ("0s", 0)]
        {
            let time: Time = text.parse().unwrap();
            assert_eq!(time, Time(Duration::from_millis(ms)), "{text}");
            assert_eq!(time.to_string(), text);
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "5 s",
            "5w",
            "99999999999999999999s",
            "18446744073709551615h",
            "366d",
        ] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_that_is_too_short_is_told_the_least() {
        assert_eq!("99ms".parse::<Time<100>>(), Err("99ms is too short: use at least 100ms".to_owned()));
        assert!("100ms".parse::<Time<100>>().is_ok());
    }
}
