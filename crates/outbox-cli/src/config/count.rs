//! Numbers of things.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// How many: at least one, at most a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(u32);

impl Count {
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn get_u32(self) -> u32 {
        self.0
    }
}

impl TryFrom<i64> for Count {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match u32::try_from(number) {
            Ok(count) if (1..=1_000_000).contains(&count) => Ok(Self(count)),
            _ => Err(format!("{number} is not a whole number from 1 to 1,000,000")),
        }
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: i64 =
            text.parse().map_err(|_| format!("{text} is not a whole number from 1 to 1,000,000"))?;
        number.try_into()
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 1 to 1,000,000")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Count, E> {
                number.try_into().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Written)
    }
}
