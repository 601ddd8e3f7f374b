//! Durations of settings, such as `500ms`, `5s`, `1m`, `2h` and `7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::{Serialize, Serializer};

use super::age::Age;

/// Maximum duration: far beyond any use, and far below an overflow.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A duration of at least `MIN` milliseconds, and at most a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time<const MIN: u64 = 0>(pub Duration);

impl<const MIN: u64> FromStr for Time<MIN> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Age(time) = text.parse()?;
        let least = Duration::from_millis(MIN);
        if time < least {
            return Err(format!("{text} is too short: use at least {}", Age(least)));
        }
        if time > YEAR {
            return Err(format!("{text} is too long: use at most 365d"));
        }
        Ok(Self(time))
    }
}

impl<const MIN: u64> fmt::Display for Time<MIN> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Age(self.0).fmt(f)
    }
}

impl<'de, const MIN: u64> Deserialize<'de> for Time<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor<const MIN: u64>;

        impl<const MIN: u64> Visitor<'_> for TimeVisitor<MIN> {
            type Value = Time<MIN>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"5s\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Time<MIN>, E> {
                text.parse().map_err(E::custom)
            }

            // A number without its unit.
            fn visit_i64<E: Error>(self, number: i64) -> Result<Time<MIN>, E> {
                Err(E::invalid_type(Unexpected::Signed(number), &self))
            }
        }

        deserializer.deserialize_any(TimeVisitor)
    }
}

impl<const MIN: u64> Serialize for Time<MIN> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_too_short_or_too_long_is_refused_with_the_limit() {
        assert_eq!("99ms".parse::<Time<100>>(), Err("99ms is too short: use at least 100ms".to_owned()));
        assert!("100ms".parse::<Time<100>>().is_ok());
        assert_eq!("366d".parse::<Time>(), Err("366d is too long: use at most 365d".to_owned()));
        assert_eq!("7d".parse::<Time>().unwrap().to_string(), "7d");
    }
}
