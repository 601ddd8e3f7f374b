//! Mistakes in settings, each with its location.

use std::ops::Range;

/// A mistake in the settings, or a warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    location: Location,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Location {
    /// The file as a whole.
    File,
    /// A line and a column of the file, both from 1.
    At { line: usize, column: usize },
    /// An environment variable.
    Variable(String),
}

impl Mistake {
    /// A mistake of the file as a whole.
    pub fn of_file(reason: impl Into<String>) -> Self {
        Self { location: Location::File, reason: reason.into() }
    }

    /// A mistake of an environment variable.
    pub fn of_variable(name: &str, reason: impl Into<String>) -> Self {
        Self { location: Location::Variable(name.to_owned()), reason: reason.into() }
    }

    /// The line of these bytes of the text, from 1.
    pub fn line(text: &str, span: &Range<usize>) -> usize {
        let before = &text.as_bytes()[..span.start.min(text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    /// A mistake at these bytes of the text.
    pub fn at(text: &str, span: &Range<usize>, reason: impl Into<String>) -> Self {
        let before = &text.as_bytes()[..span.start.min(text.len())];
        let line = Self::line(text, span);
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        Self { location: Location::At { line, column }, reason: reason.into() }
    }

    /// The text to show: `outbox.toml:12:8: reason`.
    pub fn in_file(&self, file: &str) -> String {
        let reason = &self.reason;
        match &self.location {
            Location::File => format!("{file}: {reason}"),
            Location::At { line, column } => format!("{file}:{line}:{column}: {reason}"),
            Location::Variable(name) => format!("{name}: {reason}"),
        }
    }
}

/// Rewords an error of serde for the readers of `outbox check`.
pub fn reword(message: &str) -> String {
    if let Some(name) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.strip_suffix("`, there are no fields"))
    {
        return no_such("setting", name, &[]);
    }
    if let Some((name, known)) = unknown(message, "unknown field `", ", expected ") {
        // A route, recognised by its known settings.
        if matches!(name, "tag" | "tags") && known.contains(&"aggregate-id") {
            return "the queue keeps no tags: use `header`, or `[[topics]]` for the log".to_owned();
        }
        // Transports spell the names of their settings differently from this file, which accepts
        // both.
        let known: Vec<String> = known.iter().map(|name| name.replace('_', "-")).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        return no_such("setting", &name.replace('_', "-"), &known);
    }
    if let Some((name, known)) = unknown(message, "unknown variant `", ", expected ") {
        return no_such("value", name, &known);
    }
    if let Some(unquoted) = unquoted(message) {
        return unquoted;
    }
    match message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(name) => format!("`{name}` is missing"),
        None => message.trim_end().to_owned(),
    }
}

/// Leaves out a text that was found in place of a value of another type: the text may be a secret,
/// as in `database = "postgres://…"` or in a one-element list without brackets. A text in place of
/// a number or a time is shown.
fn unquoted(message: &str) -> Option<String> {
    let (kind, rest) = message.split_once(": string \"")?;
    let (_, expected) = rest.rsplit_once("\", expected ")?;
    let plain = ["a whole number", "a number", "a time", "a boolean", "a pattern"]
        .iter()
        .any(|plain| expected.starts_with(plain));
    (!plain).then(|| format!("{kind}: a text, expected {expected}"))
}

/// The name that serde did not know, and the known names, without alternative spellings, which have
/// an underscore.
fn unknown<'a>(message: &'a str, before: &str, between: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let (name, expected) = message.strip_prefix(before)?.split_once('`')?;
    let known = expected.strip_prefix(between)?.split('`').skip(1).step_by(2);
    Some((name, known.filter(|known| !known.contains('_')).collect()))
}

/// Message for an unknown name, with the name that was most likely meant or with all known names.
pub fn no_such(what: &str, name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(meant) => format!("there is no {what} `{name}`: did you mean `{meant}`?"),
        None if known.is_empty() => format!("there is no {what} `{name}`"),
        None => format!("there is no {what} `{name}`: use {}", list(known)),
    }
}

/// `a`, `b` or `c`.
pub fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// The name that was most likely meant.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let (distance, meant) =
        known.iter().map(|known| (strsim::damerau_levenshtein(name, known), *known)).min()?;
    (distance <= (name.chars().count() / 3).max(1)).then_some(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_and_in_characters() {
        let text = "a = 1\n\"größe\" = 2\n";
        let at = |what: &str| {
            let start = text.find(what).unwrap();
            Mistake::at(text, &(start..start + 1), "no").in_file("f.toml")
        };
        assert_eq!(at("a"), "f.toml:1:1: no");
        assert_eq!(at("2"), "f.toml:2:11: no");
        assert_eq!(Mistake::at(text, &(99..100), "no").in_file("f.toml"), "f.toml:3:1: no");
        assert_eq!(Mistake::at("", &(0..0), "no").in_file("f.toml"), "f.toml:1:1: no");
    }

    #[test]
    fn errors_of_serde_are_reworded() {
        for (message, reworded) in [
            (
                "unknown field `intervall`, expected one of `interval`, `batch-size`",
                "there is no setting `intervall`: did you mean `interval`?",
            ),
            ("unknown field `x`, expected `url` or `query`", "there is no setting `x`: use `url` or `query`"),
            ("unknown field `x`, expected `url`", "there is no setting `x`: use `url`"),
            (
                "unknown variant `multi`, expected `keep` or `delete`",
                "there is no value `multi`: use `keep` or `delete`",
            ),
            ("unknown field `x`, there are no fields", "there is no setting `x`"),
            ("missing field `url`", "`url` is missing"),
            ("99ms is too short", "99ms is too short"),
        ] {
            assert_eq!(reword(message), reworded);
        }
    }
}
