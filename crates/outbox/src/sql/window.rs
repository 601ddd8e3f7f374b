//! From rows to deliveries.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::IgnoredAny;

use super::dialect::Columns;
use crate::event::{AggregateType, Due, Event, EventId, EventType, Parts, Payload};
use crate::store::{Claim, Cursor, Delivery, Taken};

/// What was read, before it becomes deliveries.
#[derive(Default)]
pub(super) struct Window {
    pub(super) rows: Vec<WindowRow>,
    pub(super) behind: Vec<Arc<str>>,
    pub(super) cursor: Option<Cursor>,
    pub(super) scanned: usize,
}

pub(super) struct WindowRow {
    pub(super) id: EventId,
    pub(super) seq: i64,
    pub(super) claim: Claim,
    pub(super) attempts: u32,
    pub(super) suspect: Option<u32>,
    pub(super) now: DateTime<Utc>,
    pub(super) available_at: DateTime<Utc>,
    pub(super) key: Option<Arc<str>>,
    pub(super) columns: Result<Columns, String>,
}

impl Window {
    /// Leaves out rows that are not to be had now; their keys have to be looked at again.
    pub(super) fn leave_out(&mut self, which: impl Fn(&WindowRow) -> bool) {
        let behind = &mut self.behind;
        self.rows.retain(|row| {
            let out = which(row);
            if out {
                behind.extend(row.key.clone());
            }
            !out
        });
    }

    pub(super) fn into_taken(mut self, check_json: bool) -> Taken {
        // In the order of the table within a key; a retry may have put an early event behind a later one.
        if self.rows.iter().any(|row| row.key.is_some()) {
            self.rows.sort_by_key(|row| row.seq);
        }
        let mut taken =
            Taken { cursor: self.cursor, scanned: self.scanned, behind: self.behind, ..Taken::default() };
        taken.behind.sort_unstable();
        taken.behind.dedup();
        for row in self.rows {
            let now = row.now;
            let created_at = row.columns.as_ref().ok().map(|c| c.created_at);
            match row.columns.and_then(|c| decode(&row.id, c, row.available_at, check_json)) {
                Ok(event) => taken.deliveries.push(Delivery {
                    expires_in: event.expires_at().map(|end| end - now),
                    waited: (now - row.available_at).to_std().unwrap_or_default(),
                    event,
                    seq: Some(row.seq),
                    attempts: row.attempts,
                    claim: row.claim,
                    suspect: row.suspect,
                    created_at,
                }),
                Err(reason) => taken.undecodable.push((row.id, row.claim, reason)),
            }
        }
        taken
    }
}

/// Makes an event of its columns, or says why not.
pub(super) fn decode(
    id: &EventId,
    c: Columns,
    available_at: DateTime<Utc>,
    check_json: bool,
) -> Result<Event, String> {
    Ok(Event::from_parts(Parts {
        id: id.clone(),
        event_type: EventType::from(c.event_type),
        aggregate_type: AggregateType::from(c.aggregate_type),
        aggregate_id: c.aggregate_id,
        tenant_id: c.tenant_id,
        ordering_key: c.ordering_key,
        correlation_id: c.correlation_id,
        dedup_key: c.dedup_key,
        headers: headers(c.headers.as_deref())?,
        payload: payload(c.payload, c.payload_bytes, c.content_type, check_json)?,
        occurred_at: c.occurred_at,
        due: Due::At(available_at),
        expires_at: c.expires_at,
        tags: Vec::new(),
    }))
}

pub(super) fn headers(text: Option<&str>) -> Result<BTreeMap<String, String>, String> {
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    let headers = serde_json::from_str::<Option<BTreeMap<String, String>>>(text).map_err(|e| {
        format!("its headers are not a JSON object of strings (line {}, column {})", e.line(), e.column())
    })?;
    Ok(headers.unwrap_or_default())
}

pub(super) fn payload(
    json: Option<String>,
    bytes: Option<Vec<u8>>,
    content_type: Option<String>,
    check_json: bool,
) -> Result<Payload, String> {
    match (json, bytes, content_type) {
        (Some(json), None, _) if check_json && serde_json::from_str::<IgnoredAny>(&json).is_err() => {
            Err("its payload is not JSON".to_owned())
        }
        (Some(json), None, _) => Ok(Payload::Json(json)),
        (None, Some(data), Some(content_type)) => Ok(Payload::Bytes { content_type, data }),
        _ => Err("it has not exactly one of payload and payload_bytes with content_type".to_owned()),
    }
}
