//! Durations in the notation `30s`, `5m`, `2h`, `7d`.

use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use utoipa::openapi::schema::{ObjectBuilder, Schema};
use utoipa::openapi::{RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

/// Pattern of a valid duration, for the OpenAPI document.
const PATTERN: &str = "^[0-9]{1,6}(ms|s|m|h|d)$";

/// A duration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Age(pub(crate) Duration);

impl Age {
    fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if !(1..=6).contains(&digits) {
            return None;
        }
        let number: u64 = number.parse().ok()?;
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        Some(Self(Duration::from_millis(number * milliseconds)))
    }
}

impl fmt::Debug for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom("invalid duration, expected a duration such as 30s, 5m, 2h or 7d")
        })
    }
}

impl PartialSchema for Age {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(PATTERN));
        text.description(Some("A duration, such as 30s, 5m, 2h or 7d.")).examples(["2h"]).into()
    }
}

impl ToSchema for Age {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_their_unit() {
        for (text, seconds) in
            [("0s", 0), ("30s", 30), ("5m", 300), ("2h", 7_200), ("7d", 604_800), ("1500ms", 1)]
        {
            assert_eq!(Age::parse(text).unwrap().0.as_secs(), seconds, "{text}");
        }
        for wrong in ["", "5", "s", "1.5h", "-1h", "1 h", "1w", "1234567s", "५m"] {
            assert!(Age::parse(wrong).is_none(), "{wrong}");
        }
    }
}
