//! SQL of the log that all databases share.

use std::fmt::Write as _;

use super::Range;
use crate::log::{Item, Position};
use crate::sql::dialect::{Dialect, Value};

/// Columns to read, in the order that [`rows::row`](super::rows) expects.
const COLUMNS: &str = "l.position, l.event_id, l.tags, l.event_type, l.aggregate_type, l.aggregate_id, l.tenant_id, \
     l.ordering_key, l.correlation_id, {bounded json l.headers}, {bounded json l.payload}, {bounded bytes l.payload_bytes}, l.content_type, l.occurred_at, \
     l.created_at";

pub(super) const STORED_FROM: &str = "SELECT l.position, l.created_at FROM {log} l \
     WHERE l.position >= $1 AND l.position <= $2 ORDER BY l.position LIMIT 1";

pub(super) const SEE_UNREADABLE: &str = "SELECT 1 FROM {log_unreadable} WHERE position = $1";
pub(super) const NOTE_UNREADABLE: &str =
    "INSERT INTO {log_unreadable} (position, reason, noted_at) VALUES ($1, $2, {now})";
pub(super) const DECIDED: &str = "SELECT epoch FROM {leases} WHERE name = $1";
pub(super) const NOTE_DECIDED: &str = "UPDATE {leases} SET epoch = $2 WHERE name = $1";

/// Old events at the start of the log that every subscription has passed. Checks only the first
/// `limit` events: times rise with positions, and a log without old events would otherwise be read
/// to its end. Never includes the last event.
pub(super) fn purgeable(limit: usize) -> String {
    format!(
        "SELECT f.position FROM (SELECT l.position, l.created_at FROM {{log}} l \
             WHERE l.position <= (SELECT COALESCE(min(e.last_position), 9223372036854775807) FROM {{progress}} e) \
             AND l.position < (SELECT max(m.position) FROM {{log}} m) ORDER BY l.position LIMIT {limit}) f \
         WHERE f.created_at < {{earlier $1}} ORDER BY f.position"
    )
}

pub(super) const PURGE: &str =
    "DELETE {from listed log position ints $1} {where listed log position ints $1}";

/// Position that a query of one number returned; the start if it returned none.
pub(super) fn position<DB: Dialect>(rows: &[DB::Row]) -> Result<Position, sqlx::Error> {
    let number = rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten();
    Ok(Position::new(number.unwrap_or_default()))
}

/// Query for events that match one of these alternatives, by position. `current` is added to each
/// part.
pub(super) fn read(items: &[Item], range: Range, current: &str) -> (String, Vec<Value>) {
    let limit = range.limit;
    let mut values = Vec::new();
    // An alternative without conditions matches all events, whatever the other alternatives are.
    let items = match items.iter().find(|item| item.types.is_empty() && item.tags.is_empty()) {
        Some(all) => vec![all.clone()],
        None => items.iter().flat_map(one_type_each).collect(),
    };
    if let [item] = &items[..] {
        let from = from(item, range.after, range.upto, &mut values);
        let text = format!("SELECT {COLUMNS} {from} ORDER BY {} LIMIT {limit} {current}", driver(item));
        return (text, values);
    }
    let mut parts = String::new();
    for (n, item) in items.iter().enumerate() {
        let union = if n == 0 { "" } else { " UNION " };
        let (by, from) = (driver(item), from(item, range.after, range.upto, &mut values));
        let _ = write!(
            parts,
            "{union}SELECT p{n}.position FROM \
             (SELECT l.position {from} ORDER BY {by} LIMIT {limit} {current}) p{n}"
        );
    }
    let text = format!(
        "SELECT {COLUMNS} FROM (SELECT u.position FROM ({parts}) u ORDER BY u.position LIMIT {limit}) p \
         {{then}} {{log}} l ON l.position = p.position ORDER BY l.position {current}"
    );
    (text, values)
}

/// Query for whether an event after this position matches an alternative.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn find(item: &Item, after: Position, current: &str) -> (String, Vec<Value>) {
    let mut values = Vec::new();
    let from = from(item, after, None, &mut values);
    (format!("SELECT 1 {from} LIMIT 1 {current}"), values)
}

/// Splits an alternative without tags into one per type: only then does the index return the rows
/// by position.
fn one_type_each(item: &Item) -> Vec<Item> {
    if !item.tags.is_empty() {
        return vec![item.clone()];
    }
    item.types.iter().map(|one| Item { types: vec![one.clone()], tags: Vec::new() }).collect()
}

/// Column by which the index returns the rows of an alternative in order.
fn driver(item: &Item) -> &'static str {
    if item.tags.is_empty() { "l.position" } else { "t.position" }
}

/// FROM clause of the events `l` that match an alternative: by the index of its first tag, the
/// other tags looked up.
fn from(item: &Item, after: Position, upto: Option<Position>, values: &mut Vec<Value>) -> String {
    let mut add = |value: Value| {
        values.push(value);
        values.len()
    };
    let mut text = String::new();
    if let Some((first, rest)) = item.tags.split_first() {
        let tag = add(Value::text(first.as_str()));
        text.push_str("FROM {log_tags} t ");
        for (n, other) in rest.iter().enumerate() {
            let other = add(Value::text(other.as_str()));
            let _ = write!(
                text,
                "{{then}} {{log_tags}} t{n} ON t{n}.tag = ${other} AND t{n}.position = t.position "
            );
        }
        let _ = write!(text, "{{then}} {{log}} l ON l.position = t.position WHERE t.tag = ${tag}");
    } else {
        text.push_str("FROM {log} l WHERE 1 = 1");
    }
    let by = driver(item);
    let _ = write!(text, " AND {by} > ${}", add(Value::Int(after.get())));
    if let Some(upto) = upto {
        let _ = write!(text, " AND {by} <= ${}", add(Value::Int(upto.get())));
    }
    for (n, event_type) in item.types.iter().enumerate() {
        let list = if n == 0 { " AND l.event_type IN (" } else { ", " };
        let _ = write!(text, "{list}${}", add(Value::text(event_type.as_str())));
    }
    if !item.types.is_empty() {
        text.push(')');
    }
    text
}
