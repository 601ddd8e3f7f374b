//! Output of commands: tables, JSON, colours, numbers and times.

mod event_view;

use std::io::IsTerminal;

use anyhow::Result;
use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{Attribute, Cell, CellAlignment, Color, presets};
use outbox::escape::{Escaped, escape_json, is_unsafe};
use serde::Serialize;

pub(crate) use self::event_view::{EventView, LogEventView};
use crate::print_raw;

/// Flags for the format of the output.
#[derive(clap::Args, Clone, Copy, Default)]
pub(crate) struct Output {
    /// Print JSON, one object per line, with fields named as the columns of the tables
    #[arg(long)]
    pub(crate) json: bool,

    /// Show times as UTC timestamps instead of ages
    #[arg(long, conflicts_with = "json")]
    utc: bool,
}

impl Output {
    /// Formats a time for a table.
    pub(crate) fn time(self, at: DateTime<Utc>) -> String {
        if self.utc { exact(at) } else { relative(at, Utc::now()) }
    }

    /// Formats an optional time for a table.
    pub(crate) fn time_or_dash(self, at: Option<DateTime<Utc>>) -> String {
        at.map_or_else(dash, |at| self.time(at))
    }
}

/// Formats a time as a timestamp and as an age.
pub(crate) fn exact_and_relative(at: DateTime<Utc>) -> String {
    format!("{}  ({})", exact(at), relative(at, Utc::now()))
}

pub(crate) fn exact(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

fn relative(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let past = now - at;
    if past >= chrono::Duration::zero() {
        format!("{} ago", span(past))
    } else {
        format!("in {}", span(-past))
    }
}

/// Formats a duration in the largest unit that is precise enough.
pub(crate) fn span(time: chrono::Duration) -> String {
    let seconds = time.num_seconds();
    match seconds {
        ..1 => format!("{} ms", time.num_milliseconds()),
        1..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", (seconds + 30) / 60),
        7_200..172_800 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}

/// Like [`span`], for a duration of the standard library.
pub(crate) fn span_of(time: std::time::Duration) -> String {
    chrono::Duration::from_std(time).map_or_else(|_| "very long".to_owned(), span)
}

/// Formats a number with thousands separators.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 event`, `2 events`.
pub(crate) fn counted(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", number(n), if n == 1 { "" } else { "s" })
}

pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// First line of a text, truncated to this many characters, with unsafe characters escaped.
pub(crate) fn short(text: &str, most: usize) -> String {
    let line = Escaped(text.lines().next().unwrap_or_default()).to_string();
    if line.chars().count() <= most && text.lines().nth(1).is_none() {
        return line;
    }
    line.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Prints one JSON object on a line.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    // JSON encoding leaves C1 and bidirectional controls unchanged, and terminals interpret them.
    print_raw(escape_json(&serde_json::to_string(value)?));
    Ok(())
}

/// Whether to use colours and cursor movement on standard output.
pub(crate) fn styled() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A table with aligned columns and without borders.
pub(crate) struct Table {
    table: comfy_table::Table,
    right: Vec<usize>,
}

impl Table {
    /// Creates a table with these headers. A header that starts with `#` makes its column
    /// right-aligned.
    pub(crate) fn new<'a>(headers: impl IntoIterator<Item = &'a str>) -> Self {
        let mut new = Self::bare();
        let headers: Vec<&str> = headers.into_iter().collect();
        new.right = (0..headers.len()).filter(|i| headers[*i].starts_with('#')).collect();
        let cell = |header: &str| Cell::new(header.trim_start_matches('#')).add_attribute(Attribute::Bold);
        new.table.set_header(headers.into_iter().map(cell).collect::<Vec<_>>());
        new
    }

    /// Creates a table without headers.
    pub(crate) fn bare() -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        if styled() {
            table.enforce_styling()
        } else {
            table.force_no_tty()
        };
        Self { table, right: Vec::new() }
    }

    /// Adds a row. Escapes unsafe characters, because cells may contain text from rows of the
    /// database.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let safe = |cell: Cell| {
            let text = cell.content();
            if text.contains(is_unsafe) { Cell::new(Escaped(text)) } else { cell }
        };
        self.table.add_row(cells.into_iter().map(safe).collect::<Vec<_>>());
    }

    /// Adds a row with a name and its value, if there is a value.
    pub(crate) fn field(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.row([Cell::new(name), Cell::new(short(&value.to_string(), 400))]);
        }
    }

    /// Renders the table, without trailing blanks.
    pub(crate) fn lines(&mut self) -> String {
        for (i, column) in self.table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if self.right.contains(&i) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let lines: Vec<String> = self.table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n")
    }

    pub(crate) fn print(mut self) {
        print_raw(self.lines());
    }
}

/// A cell with a status in its colour.
pub(crate) fn status(text: &str) -> Cell {
    let cell = Cell::new(text);
    match text {
        "DONE" | "ACTIVE" | "COMPLETED" | "ok" => cell.fg(Color::Green),
        "DEAD" | "FAILED" | "unreachable" | "vanished" | "failing" => cell.fg(Color::Red),
        "RETRY" | "PAUSED" | "CANCELLED" | "not migrated" => cell.fg(Color::Yellow),
        _ => cell,
    }
}

#[cfg(test)]
mod tests {
    use chrono::Duration;

    use super::*;

    #[test]
    fn numbers_have_thousands_separators() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(number(n), text);
        }
        assert_eq!((counted(1, "event"), counted(2, "event")), ("1 event".into(), "2 events".into()));
    }

    #[test]
    fn times_are_relative_to_now() {
        let now = Utc::now();
        for (seconds, text) in [
            (0, "0 ms ago"),
            (-5, "in 5 s"),
            (59, "59 s ago"),
            (240, "4 min ago"),
            (10_800, "3 h ago"),
            (864_000, "10 days ago"),
        ] {
            assert_eq!(relative(now - Duration::seconds(seconds), now), text);
        }
    }

    #[test]
    fn long_texts_are_cut_and_cannot_move_the_cursor() {
        assert_eq!(short("short", 10), "short");
        assert_eq!(short("rather long", 10), "rather lo…");
        assert_eq!(short("two\nlines", 10), "two…");
        assert_eq!(short("\u{1b}[31mred", 20), "\\u{1b}[31mred");
        let mut table = Table::new(["TYPE"]);
        table.row(["two\nlines\u{9b}2J\u{202e}x".into()]);
        assert_eq!(table.lines(), "TYPE\ntwo\\nlines\\u{9b}2J\\u{202e}x");
    }
}
