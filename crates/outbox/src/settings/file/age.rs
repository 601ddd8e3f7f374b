//! Durations, such as `90s`, `5m` and `7d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age(pub Duration);

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
        // Far below the overflow of four-digit years, which is the range of databases.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
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
    fn a_duration_is_shown_as_it_is_written() {
        for text in ["1500ms", "90s", "5m", "2h", "7d"] {
            assert_eq!(text.parse::<Age>().unwrap().to_string(), text);
        }
    }
}
