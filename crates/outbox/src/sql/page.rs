//! Pages of events, read by the indexes that the relay needs anyway: reading adds no cost to
//! writes.
//!
//! A page scans a limited number of rows of its status group in the order of an index, and keeps
//! those that match. All of that is one statement, and so one snapshot: the next page continues
//! exactly where this one stopped.

use super::dialect::{Database, Dialect, Value};
use super::statements as sql;
use super::store::SqlStore;
use crate::error::{Error, Result};
use crate::event::{EventId, GLOBAL};
use crate::store::{Cursor, EventRow, Filter, MAX_SCAN, NodeId, Page, PageRequest, Status, StatusGroup};

/// Columns of a row, in the order that [`SqlStore::event_row`] expects.
pub(super) const ROW: &str = "e.event_id, e.seq, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, \
     e.ordering_key, e.correlation_id, {int e.status}, {int e.attempts}, e.created_at, e.available_at, e.done_at, e.done_by, \
     substr(e.last_error, 1, 500), {holder}, {until}, {size}";

/// How a status group is read.
pub(super) struct Reading {
    /// Condition of the rows in the index.
    rows: String,
    /// Condition of the rows that belong to the status group.
    pub(super) own: &'static str,
    /// Index hint.
    by: &'static str,
    /// The time that orders the index. `None`: the index is in the order of the table.
    time: Option<&'static str>,
}

impl Reading {
    /// Reads a whole status group.
    pub(super) fn of<DB: Dialect>(status_group: StatusGroup) -> Self {
        let (rows, own, by, time) = match status_group {
            StatusGroup::Pending => ("{pending}", "{pending}", "{by events_due}", Some("available_at")),
            StatusGroup::Done => {
                ("e.done_at IS NOT NULL", "e.status = 1", "{by events_done}", Some("done_at"))
            }
            StatusGroup::Dead => {
                ("{dead}", "{dead}", "{by events_due}", DB::DEAD_BY_TIME.then_some("available_at"))
            }
        };
        Self { rows: rows.to_owned(), own, by, time }
    }

    /// Reads the part of a status group in which an index finds all rows of a filter.
    fn for_filter<DB: Dialect>(status_group: StatusGroup, filter: &Filter, values: &mut Vec<Value>) -> Self {
        let whole = Self::of::<DB>(status_group);
        let unsettled = match status_group {
            StatusGroup::Pending => Some("{unsettled pending}"),
            StatusGroup::Dead => Some("{unsettled dead}"),
            StatusGroup::Done => None,
        };
        if let Some(id) = &filter.id {
            values.push(Value::text(id.as_str()));
            let rows = format!("e.event_id = ${}", values.len());
            return Self { rows, by: "{by events_id}", time: None, ..whole };
        }
        if let (Some(key), Some(unsettled)) = (&filter.ordering_key, unsettled) {
            values.push(Value::text(key));
            let rows = format!("e.ordering_key = ${} AND {unsettled}", values.len());
            return Self { rows, by: "{by events_key}", time: None, ..whole };
        }
        whole
    }

    /// Numbers of the first rows, from the index alone.
    pub(super) fn numbers(&self, limit: u64) -> String {
        let Self { rows, by, .. } = self;
        let order = self.time.map_or("e.seq".to_owned(), |time| format!("e.{time}, e.seq"));
        format!("SELECT e.seq FROM {{events}} e {by} WHERE {rows} ORDER BY {order} LIMIT {limit}")
    }

    /// The first rows, with these columns besides their ids and places.
    pub(super) fn window(&self, columns: &str, after: &str, down: &str, limit: usize) -> String {
        let Self { rows, by, .. } = self;
        let (place, order) = match self.time {
            Some(time) => (format!("e.{time}"), format!("e.{time}{down}, e.seq{down}")),
            None => ("e.seq".to_owned(), format!("e.seq{down}")),
        };
        format!(
            "SELECT e.event_id, e.seq, {place} AS place, {columns} FROM {{events}} e {by} \
             WHERE {rows}{after} ORDER BY {order} LIMIT {limit}"
        )
    }

    /// Condition that a row comes after this place.
    fn after(&self, cursor: Option<Cursor>, newest_first: bool, values: &mut Vec<Value>) -> String {
        let Some(cursor) = cursor else { return String::new() };
        let beyond = if newest_first { '<' } else { '>' };
        let Some(time) = self.time else {
            values.push(Value::Int(cursor.seq));
            return format!(" AND e.seq {beyond} ${}", values.len());
        };
        values.extend([Value::Time(Some(cursor.at)), Value::Int(cursor.seq)]);
        let (at, seq) = (values.len() - 1, values.len());
        let place = format!("{{place {time} ${at} ${seq}}}");
        format!(" AND e.{time} {beyond}= {place} AND (e.{time} {beyond} {place} OR e.seq {beyond} ${seq})")
    }
}

/// A filter without the fields that a page ignores.
fn counting(filter: &Filter) -> Filter {
    Filter { status: None, pending: false, after_seq: None, upto_seq: None, ..filter.clone() }
}

/// Whether the filter matches every event.
fn is_open(filter: &Filter) -> bool {
    counting(filter) == Filter::default()
}

/// Selects the rows of a page and the last row that was scanned: its number in the scan, whether it
/// matches, the row.
///
/// Narrow rows are scanned first: payloads, which may be large, are only read for returned rows.
pub(super) fn statement<DB: Dialect>(
    ask: &PageRequest,
    limit: usize,
    scan_limit: usize,
) -> (String, Vec<Value>) {
    let filter = counting(&ask.filter);
    let (condition, mut values) = sql::condition(&filter);
    let reading = Reading::for_filter::<DB>(ask.status_group, &filter, &mut values);
    let after = reading.after(ask.after, ask.newest_first, &mut values);
    let down = if ask.newest_first { " DESC" } else { "" };
    let hit = format!("CASE WHEN {} AND {condition} THEN 1 ELSE 0 END AS hit", reading.own);
    let window = reading.window(&hit, &after, down, scan_limit);
    let text = format!(
        "SELECT {{int p.n}}, {{int p.hit}}, {ROW} FROM (SELECT v.event_id, v.hit, v.n FROM (\
         SELECT w.event_id, w.hit, row_number() OVER (ORDER BY w.place{down}, w.seq{down}) AS n FROM ({window}) w) v \
         WHERE v.hit = 1 OR v.n = {scan_limit} ORDER BY v.n LIMIT {}) p \
         {{then}} {{events}} e ON e.event_id = p.event_id ORDER BY p.n",
        limit + 1
    );
    (text, values)
}

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn read_page(&self, ask: &PageRequest) -> Result<Page> {
        if ask.limit == 0 || ask.scan_limit == 0 {
            return Err(Error::setting(
                "a page must scan and return at least one row: limit and scan_limit must be greater than 0",
            ));
        }
        if ask.filter.id.is_some() && ask.after.is_some() {
            // At most one event has this id, and the previous page had it.
            return Ok(Page::default());
        }
        let limit = ask.limit.min(PageRequest::MOST);
        let mut scan_limit = ask.scan_limit.min(MAX_SCAN);
        if ask.status_group != StatusGroup::Done && is_open(&ask.filter) {
            // All rows match. Not so in the index of done events, which has dead events as well.
            scan_limit = scan_limit.min(limit + 1);
        }
        let (text, values) = statement::<DB>(ask, limit, scan_limit);
        let place = |row: &EventRow| Cursor {
            at: row.done_at.filter(|_| ask.status_group == StatusGroup::Done).unwrap_or(row.available_at),
            seq: row.seq,
        };
        let mut page = Page::default();
        for row in self.fetch_in_order(&text, values).await? {
            let (n, hit) = (DB::int(&row, 0)?, DB::int(&row, 1)? == Some(1));
            if hit && page.rows.len() == limit {
                page.next = page.rows.last().map(place);
                break;
            }
            let event = self.event_row(&row, 2)?;
            if n == i64::try_from(scan_limit).ok() {
                page.next = Some(place(&event));
            }
            if hit {
                page.rows.push(event);
            }
        }
        Ok(page)
    }

    /// Reads the columns of [`ROW`], starting at index `from`.
    pub(super) fn event_row(&self, row: &DB::Row, from: usize) -> Result<EventRow> {
        let text = |n: usize| DB::shown(row, from + n);
        let time = |n: usize| DB::time(row, from + n);
        let int = |n: usize| DB::int(row, from + n);
        let id = EventId::from(text(0).unwrap_or_default());
        let code = int(8)?.unwrap_or_default();
        let status = Status::from_code(code as i16)
            .ok_or_else(|| Error::Store(format!("event {id} has the unknown status {code}").into()))?;
        let available_at = time(11)?.unwrap_or_default();
        Ok(EventRow {
            id,
            seq: int(1)?.unwrap_or_default(),
            event_type: text(2).unwrap_or_default(),
            aggregate_type: text(3).unwrap_or_else(|| GLOBAL.to_owned()),
            aggregate_id: text(4),
            tenant_id: text(5),
            ordering_key: text(6),
            correlation_id: text(7),
            status,
            attempts: int(9)?.unwrap_or_default() as u32,
            created_at: time(10)?.unwrap_or(available_at),
            available_at,
            done_at: time(12)?,
            done_by: text(13).map(NodeId::from),
            last_error: text(14),
            lease: text(15).map(NodeId::from).zip(time(16)?),
            payload_bytes: int(17)?.unwrap_or_default().unsigned_abs(),
        })
    }
}
