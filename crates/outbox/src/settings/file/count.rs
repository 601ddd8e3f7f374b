//! Numbers: counts and factors.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

/// A count from 1 to `MOST`, which is a million by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<const MOST: u32 = 1_000_000>(u32);

/// A number of bytes: at most a gibibyte.
pub type Bytes = Count<{ 1 << 30 }>;

impl<const MOST: u32> Count<MOST> {
    pub fn get(self) -> usize {
        self.0 as usize
    }

    pub fn get_u32(self) -> u32 {
        self.0
    }

    /// Limits the count to `LIMIT`.
    pub fn at_most<const LIMIT: u32>(self) -> Count<LIMIT> {
        Count(self.0.min(LIMIT))
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
        struct CountVisitor<const MOST: u32>;

        impl<const MOST: u32> Visitor<'_> for CountVisitor<MOST> {
            type Value = Count<MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&Count::<MOST>::expected())
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Count<MOST>, E> {
                number.try_into().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(CountVisitor)
    }
}

impl<const MOST: u32> Serialize for Count<MOST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

/// A factor by which waits grow: from 1 to 1,000.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor(f64);

impl Factor {
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Factor {
    type Error = String;

    fn try_from(factor: f64) -> Result<Self, String> {
        // False for NaN.
        if (1.0..=1_000.0).contains(&factor) {
            Ok(Self(factor))
        } else {
            Err(format!("{factor} is not a number from 1 to 1,000"))
        }
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FactorVisitor;

        impl Visitor<'_> for FactorVisitor {
            type Value = Factor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 1 to 1,000")
            }

            #[expect(clippy::cast_precision_loss, reason = "integers that lose precision are out of range")]
            fn visit_i64<E: Error>(self, number: i64) -> Result<Factor, E> {
                self.visit_f64(number as f64)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Factor, E> {
                number.try_into().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(FactorVisitor)
    }
}

impl Serialize for Factor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
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

    #[test]
    fn a_factor_is_finite_and_never_shortens_a_wait() {
        for good in [1.0, 1.5, 2.0, 1_000.0] {
            assert_eq!(Factor::try_from(good).map(Factor::get), Ok(good));
        }
        let wrong = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 0.0, -0.0, -2.0, 0.999, 1_000.1];
        for wrong in wrong {
            assert!(Factor::try_from(wrong).is_err(), "{wrong}");
        }
    }
}
