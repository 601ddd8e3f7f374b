//! Lengths of time and moments as people write them: `90s`, `5m`, `7d`, `2026-11-16T08:00:00Z`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age(pub(crate) Duration);

const HOW: &str = "write a whole number and its unit, as in 500ms, 90s, 5m, 2h, 7d or 4w";

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| HOW)?;
        let milliseconds: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return Err(HOW.to_owned()),
        };
        let time = number.checked_mul(milliseconds).map(Duration::from_millis);
        // Databases count times in years of four digits: a century is enough for everyone.
        match time.filter(|time| *time <= Duration::from_secs(100 * 366 * 86_400)) {
            Some(time) => Ok(Age(time)),
            None => Err("at most 100 years".to_owned()),
        }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_millis();
        for (each, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
            if milliseconds >= each && milliseconds.is_multiple_of(each) {
                return write!(f, "{}{unit}", milliseconds / each);
            }
        }
        write!(f, "{milliseconds}ms")
    }
}

/// A time: as RFC 3339 writes it, or how long ago.
pub(crate) fn moment(text: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return Some(at.with_timezone(&Utc));
    }
    let Age(ago) = text.parse().ok()?;
    now.checked_sub_signed(chrono::Duration::from_std(ago).ok()?)
}

/// How many a second at most: `100`, `100/s` or `6000/m`.
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
    fn lengths_of_time_have_a_unit() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("2h", 7_200), ("7d", 604_800), ("1w", 604_800)] {
            assert_eq!(text.parse(), Ok(Age(Duration::from_secs(seconds))), "{text}");
        }
        assert_eq!("1500ms".parse(), Ok(Age(Duration::from_millis(1_500))));
        for wrong in ["", "5", "m", "5 m", "-5m", "1.5h", "5y", "99999999999999999999s", "5000w", "9999999d"]
        {
            assert_eq!(wrong.parse::<Age>().is_ok(), wrong == "5000w", "{wrong}");
        }
    }

    #[test]
    fn a_length_of_time_is_shown_as_it_is_written() {
        for text in ["1500ms", "90s", "5m", "2h", "7d"] {
            assert_eq!(text.parse::<Age>().unwrap().to_string(), text);
        }
    }

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
