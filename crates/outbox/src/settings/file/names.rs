//! Alternative names of settings: those of the outbox starter for Spring Boot and of Crablet, where
//! they differ.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use super::reader::plain;

/// An alternative name of a setting.
#[derive(Debug)]
pub struct OtherName {
    /// The table that contains it; empty for the top level of the file.
    pub group: &'static str,
    pub name: &'static str,
    /// The table and the name of the setting itself.
    pub of_group: &'static str,
    pub setting: &'static str,
    unit: Unit,
}

/// Unit of the value.
#[derive(Clone, Copy, Debug)]
enum Unit {
    AsOurs,
    Milliseconds,
    Seconds,
}

const fn other(
    group: &'static str,
    name: &'static str,
    of_group: &'static str,
    setting: &'static str,
    unit: Unit,
) -> OtherName {
    OtherName { group, name, of_group, setting, unit }
}

/// All alternative names.
pub const OTHER_NAMES: &[OtherName] = &[
    other("dispatcher", "worker-count", "dispatcher", "workers", Unit::AsOurs),
    other("dispatcher", "cold-queue-capacity", "dispatcher", "queue-capacity", Unit::AsOurs),
    other("dispatcher", "drain-timeout-ms", "dispatcher", "drain-timeout", Unit::Milliseconds),
    other("poller", "interval-ms", "poller", "interval", Unit::Milliseconds),
    other("retry", "base-delay-ms", "retry", "base-delay", Unit::Milliseconds),
    other("retry", "max-delay-ms", "retry", "max-delay", Unit::Milliseconds),
    other("purge", "interval-seconds", "purge", "interval", Unit::Seconds),
    other("backoff", "max-seconds", "backoff", "max", Unit::Seconds),
    other("", "batch-size", "log", "batch-size", Unit::AsOurs),
    other("", "polling-interval-ms", "log", "interval", Unit::Milliseconds),
    other("topics", "polling-interval-ms", "topics", "interval", Unit::Milliseconds),
];

impl OtherName {
    /// The alternative names of a group's settings.
    pub fn all_of(group: &str) -> impl Iterator<Item = &'static OtherName> {
        OTHER_NAMES.iter().filter(move |other| other.of_group == group)
    }

    pub fn is_at_the_top(&self) -> bool {
        self.group.is_empty()
    }

    /// The value in the form of the setting itself.
    pub fn convert<'i>(
        &self,
        value: Spanned<DeValue<'i>>,
    ) -> Result<Spanned<DeValue<'i>>, (Range<usize>, String)> {
        let (unit, units) = match self.unit {
            Unit::AsOurs => return Ok(value),
            Unit::Milliseconds => ("ms", "milliseconds"),
            Unit::Seconds => ("s", "seconds"),
        };
        let span = value.span();
        match plain(&value) {
            Some(toml::Value::Integer(count @ 0..)) => {
                Ok(Spanned::new(span, DeValue::String(Cow::Owned(format!("{count}{unit}")))))
            }
            _ => Err((span, format!("write a whole number of {units}"))),
        }
    }
}
