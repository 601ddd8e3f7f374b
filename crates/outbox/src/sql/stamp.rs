//! Times as rows store them.
//!
//! Writers in any language store times, and databases accept values that no calendar has:
//! `infinity` on PostgreSQL, `2026-00-10` on MariaDB, `2026-02-30` on SQLite. A [`Stamp`] decodes
//! all of them without an error, so that one such value makes one row unusable, and does not fail
//! the statement that reads it.

use chrono::{DateTime, Utc};

/// A time that was read from a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// A time between the years 1 and 9999.
    At(DateTime<Utc>),
    /// Earlier than all of these, such as `-infinity`.
    Before,
    /// Later than all of these, such as `infinity`.
    After,
    /// Not a time.
    Invalid,
}

/// 0001-01-01T00:00:00Z, in microseconds since 1970.
const FIRST: i64 = -62_135_596_800_000_000;
/// 9999-12-31T23:59:59.999999Z.
const LAST: i64 = 253_402_300_799_999_999;

impl Stamp {
    /// From microseconds since 1970.
    pub(crate) fn from_micros(micros: i64) -> Self {
        match micros {
            ..FIRST => Self::Before,
            FIRST..=LAST => DateTime::from_timestamp_micros(micros).map_or(Self::Invalid, Self::At),
            _ => Self::After,
        }
    }

    /// From a time that the driver has decoded.
    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    pub(crate) fn from_decoded(time: Option<DateTime<Utc>>) -> Self {
        time.map_or(Self::Invalid, |time| Self::from_micros(time.timestamp_micros()))
    }

    /// The nearest time that can be shown and compared. For columns that decide nothing, and for
    /// lists.
    pub(crate) fn clamped(self) -> DateTime<Utc> {
        let micros = match self {
            Self::At(time) => return time,
            Self::Before | Self::Invalid => FIRST,
            Self::After => LAST,
        };
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    /// Returns the time, or the reason why there is none.
    pub(crate) fn exact(self, column: &str) -> Result<DateTime<Utc>, String> {
        match self {
            Self::At(time) => Ok(time),
            Self::Before | Self::After => Err(format!("its {column} is not between the years 1 and 9999")),
            Self::Invalid => Err(format!("its {column} is not a valid time")),
        }
    }

    /// The time after which an event is no longer delivered; `infinity` means never.
    pub(crate) fn end(self, column: &str) -> Result<Option<DateTime<Utc>>, String> {
        match self {
            Self::After => Ok(None),
            other => other.exact(column).map(Some),
        }
    }
}

/// Decodes a [`Stamp`] where the driver itself rejects invalid times.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
macro_rules! decode_by_driver {
    ($database:ty) => {
        impl sqlx::Type<$database> for Stamp {
            fn type_info() -> <$database as sqlx::Database>::TypeInfo {
                <DateTime<Utc> as sqlx::Type<$database>>::type_info()
            }

            fn compatible(info: &<$database as sqlx::Database>::TypeInfo) -> bool {
                <DateTime<Utc> as sqlx::Type<$database>>::compatible(info)
            }
        }

        impl<'r> sqlx::Decode<'r, $database> for Stamp {
            fn decode(
                value: <$database as sqlx::Database>::ValueRef<'r>,
            ) -> Result<Self, sqlx::error::BoxDynError> {
                let time = <DateTime<Utc> as sqlx::Decode<'r, $database>>::decode(value);
                Ok(Self::from_decoded(time.ok()))
            }
        }
    };
}

#[cfg(feature = "mysql")]
decode_by_driver!(sqlx::MySql);
#[cfg(feature = "sqlite")]
decode_by_driver!(sqlx::Sqlite);

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::postgres::{PgTypeInfo, PgValueFormat, PgValueRef};
    use sqlx::{Decode, Postgres, Type};

    use super::{DateTime, Stamp, Utc};

    /// 2000-01-01, the epoch of PostgreSQL, in microseconds since 1970.
    const EPOCH: i64 = 946_684_800_000_000;

    impl Type<Postgres> for Stamp {
        fn type_info() -> PgTypeInfo {
            <DateTime<Utc> as Type<Postgres>>::type_info()
        }

        fn compatible(info: &PgTypeInfo) -> bool {
            <DateTime<Utc> as Type<Postgres>>::compatible(info)
        }
    }

    /// Decodes the number: the decoder of the driver panics outside the range of chrono.
    impl<'r> Decode<'r, Postgres> for Stamp {
        fn decode(value: PgValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
            match value.format() {
                PgValueFormat::Binary => {
                    let micros = <i64 as Decode<'r, Postgres>>::decode(value)?;
                    Ok(Self::from_micros(micros.saturating_add(EPOCH)))
                }
                PgValueFormat::Text => match value.as_str()? {
                    "infinity" => Ok(Self::After),
                    "-infinity" => Ok(Self::Before),
                    _ => Ok(<DateTime<Utc> as Decode<'r, Postgres>>::decode(value)
                        .map_or(Self::Invalid, |time| Self::from_micros(time.timestamp_micros()))),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_the_calendar_are_told_apart() {
        let at = |micros| Stamp::from_micros(micros);
        assert_eq!(at(i64::MIN), Stamp::Before);
        assert_eq!(at(FIRST - 1), Stamp::Before);
        assert_eq!(at(FIRST).clamped().to_rfc3339(), "0001-01-01T00:00:00+00:00");
        assert_eq!(at(LAST).clamped().to_rfc3339(), "9999-12-31T23:59:59.999999+00:00");
        assert_eq!(at(LAST + 1), Stamp::After);
        assert_eq!(at(i64::MAX), Stamp::After);
        assert_eq!(at(i64::MAX).clamped(), at(LAST).clamped());
        assert_eq!(Stamp::Invalid.clamped(), at(FIRST).clamped());
    }

    #[test]
    fn an_event_that_expires_at_infinity_does_not_expire() {
        assert_eq!(Stamp::After.end("expires_at"), Ok(None));
        assert!(Stamp::Before.end("expires_at").unwrap_err().contains("years 1 and 9999"));
        assert!(Stamp::Invalid.end("expires_at").unwrap_err().contains("not a valid time"));
        assert!(Stamp::After.exact("occurred_at").is_err());
    }
}
