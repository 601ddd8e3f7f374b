//! Encoding and decoding of the log's rows.

use std::collections::BTreeSet;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use std::fmt::Write as _;

use crate::event::Event;
use crate::log::Tag;
use crate::sql::dialect::Value;
use crate::sql::statements::row_values;

/// Number of values of an event.
pub(super) const VALUES: usize = 13;

/// Columns of [`values`].
#[cfg(any(feature = "mysql", feature = "sqlite"))]
const COLUMNS: [&str; VALUES] = [
    "event_id",
    "event_type",
    "tags",
    "aggregate_type",
    "aggregate_id",
    "tenant_id",
    "ordering_key",
    "correlation_id",
    "headers",
    "payload",
    "payload_bytes",
    "content_type",
    "occurred_at",
];

/// Tags of an event without duplicates.
pub(super) fn tags(event: &Event) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    event.tags().iter().map(Tag::as_str).filter(|tag| seen.insert(*tag)).collect()
}

/// Values of an event; `list` encodes its tags.
pub(super) fn values(event: &Event, list: impl FnOnce(&[&str]) -> String) -> [Value; VALUES] {
    let [id, event_type, aggregate_type, aggregate_id, tenant, key, correlation, _, rest @ ..] =
        row_values(event);
    let [headers, payload, bytes, content_type, occurred_at, ..] = rest;
    let tags = Value::text(list(&tags(event)));
    [
        id,
        event_type,
        tags,
        aggregate_type,
        aggregate_id,
        tenant,
        key,
        correlation,
        headers,
        payload,
        bytes,
        content_type,
        occurred_at,
    ]
}

/// A list of tags as JSON.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn json(tags: &[&str]) -> String {
    serde_json::to_string(tags).unwrap_or_else(|_| "[]".to_owned())
}

/// `INSERT … VALUES` for these events, from position `first` on if the database does not assign
/// positions itself. Names only the columns for which an event has a value.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn insert(events: &[Event], first: Option<i64>) -> (String, Vec<Value>) {
    let all: Vec<[Value; VALUES]> = events.iter().map(|event| values(event, json)).collect();
    let given = |value: &Value| !matches!(value, Value::Text(None) | Value::Bytes(None));
    let used: Vec<bool> = (0..VALUES).map(|n| all.iter().any(|row| given(&row[n]))).collect();

    let mut text = "INSERT INTO {log} (".to_owned();
    if first.is_some() {
        text.push_str("position, ");
    }
    for (column, _) in COLUMNS.iter().zip(&used).filter(|(_, used)| **used) {
        let _ = write!(text, "{column}, ");
    }
    text.push_str("created_at) VALUES ");
    let mut values = Vec::with_capacity(all.len() * (VALUES + 1));
    for (row, position) in all.into_iter().zip(first.unwrap_or_default()..) {
        text.push_str(if values.is_empty() { "(" } else { ", (" });
        let position = first.map(|_| Value::Int(position));
        let row = row.into_iter().zip(&used).filter(|(_, used)| **used).map(|(value, _)| value);
        for value in position.into_iter().chain(row) {
            values.push(value);
            let _ = write!(text, "${}, ", values.len());
        }
        text.push_str("{now})");
    }
    (text, values)
}

/// Implements [`LogDialect::stored`](super::LogDialect::stored), the same text for three sets of
/// types. `$tags` decodes a row's third column. Column types are not checked: the schema sets them,
/// and there may be millions of rows.
macro_rules! stored {
    ($tags:path, check_json: $check_json:expr) => {
        fn stored(row: &Self::Row) -> Result<$crate::log::StoredLogEvent, sqlx::Error> {
            use sqlx::Row as _;

            use $crate::event::{AggregateType, Due, Event, EventId, EventType, GLOBAL, Parts};
            use $crate::log::{LogEvent, Position};
            use $crate::sql::stamp::Stamp;
            use $crate::sql::window::{headers, payload};

            let position = Position::new(row.try_get_unchecked(0)?);
            let event = || -> Result<Event, String> {
                let told = |e: sqlx::Error| e.to_string();
                let bytes = row.try_get_unchecked(11).map_err(told)?;
                let content_type = row.try_get_unchecked(12).map_err(told)?;
                Ok(Event::from_parts(Parts {
                    id: EventId::from(row.try_get_unchecked::<&str, _>(1).map_err(told)?),
                    event_type: EventType::from(row.try_get_unchecked::<String, _>(3).map_err(told)?),
                    aggregate_type: match row.try_get_unchecked::<&str, _>(4).map_err(told)? {
                        GLOBAL => AggregateType::GLOBAL,
                        named => AggregateType::from(named),
                    },
                    aggregate_id: row.try_get_unchecked(5).map_err(told)?,
                    tenant_id: row.try_get_unchecked(6).map_err(told)?,
                    ordering_key: row.try_get_unchecked::<Option<&str>, _>(7).map_err(told)?.map(Into::into),
                    correlation_id: row.try_get_unchecked(8).map_err(told)?,
                    dedup_key: None,
                    headers: headers(row.try_get_unchecked(9).map_err(told)?)?,
                    payload: payload(
                        row.try_get_unchecked(10).map_err(told)?,
                        bytes,
                        content_type,
                        $check_json,
                    )?,
                    occurred_at: row.try_get_unchecked::<Stamp, _>(13).map_err(told)?.exact("occurred_at")?,
                    due: Due::Now,
                    expires_at: None,
                    tags: $tags(row)?,
                }))
            };
            let created_at = row.try_get_unchecked::<Stamp, _>(14)?.clamped();
            let event = event().map(|event| LogEvent { position, event, created_at });
            Ok(event.map_err(|reason| (position, reason)))
        }
    };
}
pub(super) use stored;

/// Decodes tags from a JSON array.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(super) fn tags_from_json(text: &str) -> Result<Vec<Tag>, String> {
    if text == "[]" {
        return Ok(Vec::new());
    }
    let tags: Vec<String> =
        serde_json::from_str(text).map_err(|_| "its tags are not a JSON array of texts".to_owned())?;
    Ok(tags.into_iter().map(Tag::from_stored).collect())
}
