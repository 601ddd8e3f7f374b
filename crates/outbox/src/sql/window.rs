//! Converts the rows of a window to deliveries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::IgnoredAny;

use super::dialect::{Columns, Database};
use super::stamp::Stamp;
use super::statements as sql;
use crate::event::{Due, Event, EventId, EventType, Parts, Payload};
use crate::store::{Claim, Cursor, Delivery, KeyQueueId, Taken};

/// The rows that a take has read, before they become deliveries.
pub(super) struct Window {
    pub(super) rows: Vec<WindowRow>,
    /// Numbers of rows that cannot be leased or read, with the reasons. They are dead-lettered.
    pub(super) unusable: Vec<(i64, String)>,
    pub(super) blocked_keys: Vec<Arc<str>>,
    /// How many rows were left out because they have an aggregate and no key.
    unkeyed: usize,
    /// The types of the rows that were left out, and of the events that block them.
    pub(super) skipped_types: BTreeSet<String>,
    pub(super) cursor: Option<Cursor>,
    pub(super) scanned: usize,
    /// How many more bytes fit.
    room: usize,
    /// Whether rows were read that exceed the limit of bytes.
    cut: bool,
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
    pub(super) last_error: Option<String>,
    pub(super) columns: Result<Columns, String>,
}

impl WindowRow {
    pub(super) fn event_type(&self) -> Option<&str> {
        self.columns.as_ref().ok().map(|columns| columns.event_type.as_str())
    }

    /// The key queue of the event, if it has a key.
    pub(super) fn run(&self, destinations: &BTreeMap<String, u64>) -> Option<KeyQueueId> {
        let destination = self.event_type().and_then(|event_type| destinations.get(event_type).copied());
        Some(KeyQueueId { key: self.key.clone()?, destination })
    }

    fn bytes(&self) -> usize {
        self.columns.as_ref().map_or(0, Columns::bytes)
    }
}

/// Counters from this value on were not written by a relay: the row is dead-lettered. The tables
/// reject counters above 1,000,000,000, so an increment of a counter that was read is never
/// rejected.
const UNUSABLE: i64 = 999_000_000;

/// Reads a row, or returns the reason why it can be neither leased nor settled.
pub(super) fn window_row<DB: Database>(row: &DB::Row) -> Result<WindowRow, String> {
    let unreadable = |column: &'static str| move |_| format!("its {column} cannot be read");
    let counter = |index: usize, column: &'static str| match DB::int(row, index) {
        Ok(Some(count @ 0..UNUSABLE)) => Ok(count as i32),
        Ok(Some(count)) => Err(format!("its {column} is {count}")),
        Ok(None) | Err(_) => Err(format!("its {column} cannot be read")),
    };
    let id = DB::text(row, 0).map_err(unreadable("event_id"))?.ok_or("it has no event_id")?;
    let seq = DB::int(row, 1).map_err(unreadable("seq"))?.ok_or("it has no seq")?;
    let available_at = match DB::stamp(row, 2).map_err(unreadable("available_at"))? {
        // Due since the beginning of time: delivered like any due event.
        Some(early @ Stamp::Before) => early.clamped(),
        Some(stamp) => stamp.exact("available_at")?,
        None => return Err("it has no available_at".to_owned()),
    };
    let suspect = match DB::int(row, 5).map_err(unreadable("crashes"))? {
        Some(_) => Some(counter(5, "crashes")? as u32),
        None => None,
    };
    let now = DB::time(row, 6).map_err(unreadable("time"))?.unwrap_or(available_at);
    let (attempts, claim) = (counter(3, "attempts")? as u32, counter(4, "claims")?);
    let columns = DB::columns(row, sql::EVENT_FROM);
    let key = columns.as_ref().ok().and_then(|c| c.ordering_key.clone());
    let columns = columns.map_err(|e| e.to_string());
    let id = EventId::from(id);
    let last_error = DB::shown(row, sql::LAST_ERROR);
    Ok(WindowRow { id, seq, claim, attempts, suspect, now, available_at, key, last_error, columns })
}

impl Window {
    /// Removes all rows but one: the first that has no earlier event of its key in the window. Rows
    /// are in the order of their due times, so a delayed event stands behind later ones of its key.
    pub(super) fn keep_first(&mut self) {
        let mut heads: HashMap<Arc<str>, i64> = HashMap::new();
        for (key, seq) in self.rows.iter().filter_map(|row| Some((row.key.clone()?, row.seq))) {
            heads.entry(key).and_modify(|head| *head = seq.min(*head)).or_insert(seq);
        }
        let is_head = |row: &WindowRow| row.key.as_ref().is_none_or(|key| heads.get(key) == Some(&row.seq));
        let first = self.rows.iter().position(is_head).unwrap_or_default();
        self.rows.truncate(first + 1);
        self.rows.drain(..first);
        if let Some(row) = self.rows.first() {
            self.cursor = Some(Cursor { at: row.available_at, seq: row.seq });
        }
    }

    /// An empty window for this many bytes. The first row always fits.
    pub(super) fn new(room: usize) -> Self {
        let (rows, unusable, blocked_keys) = (Vec::new(), Vec::new(), Vec::new());
        let skipped_types = BTreeSet::new();
        Self {
            rows,
            unusable,
            blocked_keys,
            unkeyed: 0,
            skipped_types,
            cursor: None,
            scanned: 0,
            room,
            cut: false,
        }
    }

    /// Adds a row. A row that does not fit is dropped, and so is every row after it: they are read
    /// again.
    pub(super) fn add(&mut self, seq: i64, row: Result<WindowRow, String>) {
        let bytes = row.as_ref().map_or(0, WindowRow::bytes);
        if self.cut || (bytes > self.room && !self.rows.is_empty()) {
            self.cut = true;
            self.blocked_keys.extend(row.ok().and_then(|row| row.key));
            return;
        }
        self.scanned += 1;
        self.room = self.room.saturating_sub(bytes);
        match row {
            Ok(row) => {
                self.cursor = self.cursor.max(Some(Cursor { at: row.available_at, seq }));
                self.rows.push(row);
            }
            Err(reason) => self.unusable.push((seq, reason)),
        }
    }

    /// Whether rows were read that exceed the limit of bytes.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Leaves out rows that have an aggregate and no key. If there are any, also leaves out rows
    /// with a key: they may come after such a row.
    pub(super) fn leave_out_unkeyed(&mut self) {
        let is_unkeyed = |row: &WindowRow| {
            let aggregate_id = row.columns.as_ref().ok().and_then(|columns| columns.aggregate_id.as_ref());
            row.key.is_none() && aggregate_id.is_some()
        };
        self.unkeyed = self.rows.iter().filter(|row| is_unkeyed(row)).count();
        if self.unkeyed > 0 {
            self.leave_out(|row| row.key.is_some() || is_unkeyed(row));
        }
    }

    /// Leaves out rows that cannot be taken now. Their keys have to be read again.
    pub(super) fn leave_out(&mut self, which: impl Fn(&WindowRow) -> bool) {
        let (blocked_keys, types) = (&mut self.blocked_keys, &mut self.skipped_types);
        self.rows.retain(|row| {
            let out = which(row);
            if out {
                blocked_keys.extend(row.key.clone());
                let new = row.event_type().filter(|event_type| !types.contains(*event_type));
                types.extend(new.map(str::to_owned));
            }
            !out
        });
    }

    pub(super) fn into_taken(mut self, check_json: bool) -> Taken {
        // In the order of the table within a key; a retry may have put an early event behind a
        // later one.
        if self.rows.iter().any(|row| row.key.is_some()) {
            self.rows.sort_by_key(|row| row.seq);
        }
        let mut taken = Taken {
            cursor: self.cursor,
            scanned: self.scanned,
            blocked_keys: self.blocked_keys,
            unkeyed: self.unkeyed,
            skipped_types: self.skipped_types,
            ..Taken::default()
        };
        taken.blocked_keys.sort_unstable();
        taken.blocked_keys.dedup();
        for row in self.rows {
            let now = row.now;
            let created_at = row.columns.as_ref().ok().map(|c| c.created_at.clamped());
            match row.columns.and_then(|c| decode(&row.id, c, check_json)) {
                Ok(event) => taken.deliveries.push(Delivery {
                    expires_in: event.expires_at().map(|end| end - now),
                    waited: (now - row.available_at).to_std().unwrap_or_default(),
                    event,
                    seq: Some(row.seq),
                    attempts: row.attempts,
                    claim: row.claim,
                    suspect: row.suspect,
                    created_at,
                    last_error: row.last_error,
                }),
                Err(reason) => taken.undecodable.push((row.id, row.claim, reason)),
            }
        }
        taken
    }
}

/// Decodes an event from its columns, or returns the reason why that fails.
pub(super) fn decode(id: &EventId, c: Columns, check_json: bool) -> Result<Event, String> {
    let occurred_at = c.occurred_at.exact("occurred_at")?;
    let due = match c.due_at.map(Stamp::clamped) {
        None => Due::Now,
        // The clock of the writer was ahead of the database's clock, by more than the delay.
        Some(at) if at > c.created_at.clamped() && at <= occurred_at => Due::Later(at),
        Some(at) => Due::At(at),
    };
    Ok(Event::from_parts(Parts {
        id: id.clone(),
        event_type: EventType::from(c.event_type),
        aggregate_type: c.aggregate_type,
        aggregate_id: c.aggregate_id,
        tenant_id: c.tenant_id,
        ordering_key: c.ordering_key,
        correlation_id: c.correlation_id,
        dedup_key: c.dedup_key,
        headers: headers(c.headers.as_deref())?,
        payload: payload(c.payload, c.payload_bytes, c.content_type, check_json)?,
        occurred_at,
        due,
        expires_at: c.expires_at.map_or(Ok(None), |stamp| stamp.end("expires_at"))?,
        tags: Vec::new(),
    }))
}

pub(super) fn headers(text: Option<&str>) -> Result<BTreeMap<String, String>, String> {
    // Writers in other languages store an empty text for an event without headers.
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(BTreeMap::new()) };
    if let Some(bytes) = too_large(text) {
        return Err(format!("its headers have {bytes} bytes, more than the limit"));
    }
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
    if let Some(bytes) = json.as_deref().and_then(too_large) {
        return Err(format!("its payload has {bytes} bytes, more than the limit"));
    }
    match (json, bytes, content_type) {
        (None, None, Some(_)) => Err("its payload has more bytes than the limit".to_owned()),
        (Some(json), None, _) if check_json && serde_json::from_str::<IgnoredAny>(&json).is_err() => {
            Err("its payload is not JSON".to_owned())
        }
        (Some(json), None, _) => Ok(Payload::Json(json)),
        (None, Some(data), Some(content_type)) => Ok(Payload::Bytes { content_type, data }),
        _ => Err("it has not exactly one of payload and payload_bytes with content_type".to_owned()),
    }
}

/// The size in bytes of a text that was too large to be read. The statement replaces such a text by
/// a mark that no JSON begins with: see `{bounded}`. Another program may write a text that begins
/// like the mark, so only a number is accepted, and repeated in errors.
fn too_large(text: &str) -> Option<&str> {
    const LONGEST: usize = 19;
    let bytes = text.strip_prefix('!')?;
    let is_number = (1..=LONGEST).contains(&bytes.len()) && bytes.bytes().all(|b| b.is_ascii_digit());
    is_number.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_begins_like_the_mark_is_not_repeated() {
        let long = format!("!{}", "7".repeat(1_000));
        for text in ["!", "!secret", "!12 secret", "!-1", "!+1", "!１", long.as_str()] {
            let errors = [
                headers(Some(text)).map(drop).unwrap_err(),
                payload(Some(text.to_owned()), None, None, true).map(drop).unwrap_err(),
            ];
            assert!(errors[0].starts_with("its headers are not a JSON object of strings"), "{}", errors[0]);
            assert_eq!(errors[1], "its payload is not JSON");
        }
        let told = headers(Some("!2000000")).unwrap_err();
        assert_eq!(told, "its headers have 2000000 bytes, more than the limit");
        let told = payload(Some("!2000000".to_owned()), None, None, false).map(drop).unwrap_err();
        assert_eq!(told, "its payload has 2000000 bytes, more than the limit");
    }
}
