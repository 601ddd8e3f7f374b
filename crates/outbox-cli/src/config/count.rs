//! Numbers of things.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// How many: at least one, at most `MOST`, which is a million unless it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count<const MOST: u32 = 1_000_000>(u32);

/// How many bytes: at most a gibibyte.
pub(crate) type Bytes = Count<{ 1 << 30 }>;

impl<const MOST: u32> Count<MOST> {
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn get_u32(self) -> u32 {
        self.0
    }

    fn expected() -> String {
        let digits = MOST.to_string();
        let mut grouped = String::new();
        for (n, digit) in digits.chars().enumerate() {
            if n > 0 && (digits.len() - n).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        format!("a whole number from 1 to {grouped}")
    }
}

impl<const MOST: u32> TryFrom<i64> for Count<MOST> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match u32::try_from(number) {
            Ok(count) if (1..=MOST).contains(&count) => Ok(Self(count)),
            _ => Err(format!("{number} is not {}", Self::expected())),
        }
    }
}

impl<const MOST: u32> FromStr for Count<MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: i64 = text.parse().map_err(|_| format!("{text} is not {}", Self::expected()))?;
        number.try_into()
    }
}

impl<const MOST: u32> fmt::Display for Count<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de, const MOST: u32> Deserialize<'de> for Count<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written<const MOST: u32>;

        impl<const MOST: u32> Visitor<'_> for Written<MOST> {
            type Value = Count<MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&Count::<MOST>::expected())
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Count<MOST>, E> {
                number.try_into().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_bytes_have_limits_of_their_own() {
        assert_eq!("1000000".parse::<Count>().map(Count::get), Ok(1_000_000));
        assert_eq!("67108864".parse::<Bytes>().map(Count::get), Ok(64 << 20));
        assert_eq!("0".parse::<Count>().unwrap_err(), "0 is not a whole number from 1 to 1,000,000");
        assert_eq!("x".parse::<Bytes>().unwrap_err(), "x is not a whole number from 1 to 1,073,741,824");
    }
}
