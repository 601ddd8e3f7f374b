//! Hostile rows: anything that a program with a connection can insert into the table of events.
//!
//! The columns are read from the table, so that new columns are covered too. A row has boundary
//! values in one to three columns, including those that belong to the relay.

use rand::Rng;
use rand::rngs::SmallRng;

use crate::database::{Column, ColumnType, TestDatabase};

/// The type of these events, unless the type itself is hostile.
pub const EVENT_TYPE: &str = "poison";

/// A row, with its values as SQL expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostileRow {
    /// The event id.
    pub id: String,
    /// Column names and values.
    pub columns: Vec<(String, String)>,
    /// Description of the hostile values.
    pub text: String,
}

impl HostileRow {
    /// The INSERT statement.
    pub fn insert(&self, table: &str) -> String {
        let (names, values): (Vec<&str>, Vec<&str>) =
            self.columns.iter().map(|(name, value)| (name.as_str(), value.as_str())).unzip();
        format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), values.join(", "))
    }
}

/// Number of ordering keys of the workload; some hostile rows use one of them.
const KEYS: u32 = 12;

/// Columns that only describe an event. A row with a hostile value in one of these columns may use
/// an ordering key of the workload: it is due, and is delivered or dead-lettered, so it does not
/// block the key. A row that is not due yet, that seems to be leased by another relay, or whose
/// type no relay knows, correctly blocks its key.
const CONTENT: [&str; 11] = [
    "aggregate_type",
    "aggregate_id",
    "tenant_id",
    "correlation_id",
    "dedup_key",
    "headers",
    "payload",
    "payload_bytes",
    "content_type",
    "occurred_at",
    "expires_at",
];

/// Generates a hostile row for a table with these columns.
pub fn row<DB: TestDatabase>(rng: &mut SmallRng, columns: &[Column], number: u64) -> HostileRow {
    let mut id = format!("poison-{number}");
    let mut given: Vec<(String, String)> = vec![
        ("event_id".to_owned(), DB::quoted(&id)),
        ("event_type".to_owned(), DB::quoted(EVENT_TYPE)),
        ("payload".to_owned(), "'{}'".to_owned()),
    ];
    let mut text = Vec::new();
    for _ in 0..rng.random_range(1..=3) {
        let Column { name, kind } = &columns[rng.random_range(0..columns.len())];
        if text.iter().any(|change: &String| change.starts_with(&format!("{name} "))) {
            continue;
        }
        let value = if name == "event_id" {
            id = hostile_id(rng, number);
            DB::quoted(&id)
        } else if name == "seq" {
            // Greater values would exhaust the table's sequence, after which no insert succeeds.
            ["-1", "-9223372036854775808", "-2147483649"][rng.random_range(0..3)].to_owned()
        } else {
            value::<DB>(rng, *kind)
        };
        text.push(format!("{name} {}", shortened(&value)));
        given.retain(|(other, _)| other != name);
        // An event has either payload, not both.
        if name == "payload_bytes" && rng.random_bool(0.8) {
            given.retain(|(other, _)| other != "payload" && other != "content_type");
            given.push(("content_type".to_owned(), "'text/plain'".to_owned()));
        }
        given.push((name.clone(), value));
    }
    let only_content =
        text.iter().all(|change| CONTENT.iter().any(|name| change.starts_with(&format!("{name} "))));
    if only_content && rng.random_bool(0.5) {
        given.push(("ordering_key".to_owned(), format!("'key-{}'", rng.random_range(0..KEYS))));
    }
    HostileRow { id, columns: given, text: text.join("; ") }
}

/// Generates a row with a payload, headers or error of several megabytes.
pub fn oversized<DB: TestDatabase>(rng: &mut SmallRng, number: u64) -> HostileRow {
    let bytes = rng.random_range(3_000_000..7_000_000_u32);
    let id = format!("oversize-poison-{number}");
    let mut columns =
        vec![("event_id".to_owned(), DB::quoted(&id)), ("event_type".to_owned(), DB::quoted(EVENT_TYPE))];
    let long = DB::repeated(bytes);
    let (name, value) = match rng.random_range(0..3) {
        0 => ("headers", DB::joined(&["'{\"h\":\"'", &long, "'\"}'"])),
        1 => ("last_error", long.clone()),
        _ => ("payload", DB::joined(&["'\"'", &long, "'\"'"])),
    };
    if name != "payload" {
        columns.push(("payload".to_owned(), "'{}'".to_owned()));
    }
    columns.push((name.to_owned(), value));
    if name != "last_error" && rng.random_bool(0.5) {
        columns.push(("ordering_key".to_owned(), format!("'key-{}'", rng.random_range(0..KEYS))));
    }
    HostileRow { id, columns, text: format!("{name} of {bytes} bytes") }
}

fn shortened(value: &str) -> String {
    value.chars().take(40).collect()
}

fn hostile_id(rng: &mut SmallRng, number: u64) -> String {
    let id = format!("poison-{number}");
    match rng.random_range(0..7) {
        0 => format!("{id:-<36}"),
        1 => format!("{id} "),
        2 => format!("{id}'"),
        3 => format!("{id}\n"),
        4 => format!("{id}\u{1}"),
        5 => format!("\u{202e}{id}"),
        _ => format!("{id}\u{1f480}"),
    }
}

/// A boundary value of a type.
fn value<DB: TestDatabase>(rng: &mut SmallRng, kind: ColumnType) -> String {
    let pick = |rng: &mut SmallRng, values: &[&str]| values[rng.random_range(0..values.len())].to_owned();
    match kind {
        ColumnType::Text => match rng.random_range(0..18) {
            0 => "NULL".to_owned(),
            1 => DB::quoted(&"x".repeat(rng.random_range(60..70))),
            2 => DB::quoted(&"x".repeat(rng.random_range(125..132))),
            3 => DB::quoted(&"\u{1f480}".repeat(rng.random_range(250..258))),
            4 => DB::quoted(&"x".repeat(20_000)),
            5 => DB::quoted(&format!("{}1{}", "[".repeat(3_000), "]".repeat(3_000))),
            other => {
                let texts = [
                    "",
                    " ",
                    "\n",
                    "\u{1}",
                    "\u{202e}x",
                    "{\"a\":",
                    "null",
                    "[]",
                    "{\"a\":{}}",
                    "\"\\ud800\"",
                    "1e999",
                    "'; --",
                ];
                DB::quoted(texts[other % texts.len()])
            }
        },
        ColumnType::Int => pick(
            rng,
            &[
                "NULL",
                "0",
                "1",
                "2",
                "3",
                "4",
                "-1",
                "127",
                "32767",
                "-32768",
                "2147483647",
                "-2147483648",
                "9223372036854775807",
                "-9223372036854775808",
            ],
        ),
        ColumnType::Time => pick(rng, DB::TIMES),
        ColumnType::Bytes => pick(rng, DB::BYTES),
        ColumnType::Bool => pick(rng, &["NULL", "TRUE", "FALSE"]),
        ColumnType::Other => "NULL".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use sqlx::{Postgres, Sqlite};

    use super::*;

    fn columns() -> Vec<Column> {
        let column = |name: &str, kind| Column { name: name.to_owned(), kind };
        vec![
            column("seq", ColumnType::Int),
            column("event_id", ColumnType::Text),
            column("payload", ColumnType::Text),
            column("claims", ColumnType::Int),
            column("available_at", ColumnType::Time),
            column("payload_bytes", ColumnType::Bytes),
        ]
    }

    #[test]
    fn every_column_is_hostile_in_some_row_and_the_same_dice_give_the_same_rows() {
        let rows = |seed| {
            let mut rng = SmallRng::seed_from_u64(seed);
            (0..200).map(|n| row::<Sqlite>(&mut rng, &columns(), n)).collect::<Vec<_>>()
        };
        assert_eq!(rows(1), rows(1));
        assert_ne!(rows(1), rows(2));
        let hostile: BTreeSet<String> = rows(1)
            .iter()
            .flat_map(|row| {
                row.text
                    .split("; ")
                    .map(|change| change.split(' ').next().unwrap().to_owned())
                    .collect::<Vec<_>>()
            })
            .collect();
        for Column { name, .. } in columns() {
            assert!(hostile.contains(&name), "{name}: {hostile:?}");
        }
    }

    /// A row that is not due, or seems to be leased, correctly blocks its key.
    #[test]
    fn only_rows_that_are_due_have_the_keys_of_good_events() {
        let mut rng = SmallRng::seed_from_u64(3);
        for n in 0..500 {
            let row = row::<Postgres>(&mut rng, &columns(), n);
            let keyed =
                row.columns.iter().any(|(name, value)| name == "ordering_key" && value.contains("key-"));
            assert!(!keyed || !(row.text.contains("claims") || row.text.contains("available_at")), "{row:?}");
        }
    }
}
