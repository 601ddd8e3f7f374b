//! Times and rates as command-line arguments: `90s`, `2026-11-16T08:00:00Z`, `100/s`.

use std::str::FromStr;

use chrono::{DateTime, Utc};
pub(crate) use outbox::settings::file::Age;

/// Parses a point in time: an RFC 3339 timestamp, or an age such as `2h`.
pub(crate) fn moment(text: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return Some(at.with_timezone(&Utc));
    }
    let Age(ago) = text.parse().ok()?;
    now.checked_sub_signed(chrono::Duration::from_std(ago).ok()?)
}

/// A maximum rate per second: `100`, `100/s` or `6000/m`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(pub(crate) f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit {
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            _ => return Err("write it as in 100/s, 6000/m or 1000/h".to_owned()),
        };
        match number.parse::<u32>() {
            Ok(number) if number > 0 => Ok(Rate(f64::from(number) / seconds)),
            _ => Err("write a whole number greater than 0, as in 100/s, 6000/m or 1000/h".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_how_long_ago() {
        let now = Utc::now();
        assert_eq!(moment("1h", now), Some(now - chrono::Duration::hours(1)));
        let at = moment("2026-11-16T08:00:00+01:00", now).unwrap();
        assert_eq!(at.to_rfc3339(), "2026-11-16T07:00:00+00:00");
        assert_eq!(moment("yesterday", now), None);
    }

    #[test]
    fn a_rate_is_so_many_in_a_unit() {
        assert_eq!("100".parse(), Ok(Rate(100.0)));
        assert_eq!("100/s".parse(), Ok(Rate(100.0)));
        assert_eq!("60/m".parse(), Ok(Rate(1.0)));
        for wrong in ["", "0", "0/s", "x/s", "5/d", "-1/s"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
