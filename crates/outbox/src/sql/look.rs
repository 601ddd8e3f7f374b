//! Reads everything that decides when one event is delivered.

use chrono::{DateTime, Utc};

use super::dialect::{Database, Value};
use super::page::ROW;
use super::stamp::Stamp;
use super::statements as sql;
use super::store::SqlStore;
use super::window::headers;
use crate::error::{DecodeError, Result};
use crate::event::{AggregateType, Due, Event, EventId, EventType, JSON, Parts, Payload};
use crate::explain::{DeliveryFacts, MAX_COUNTED};
use crate::store::{EventMetadata, Filter, MAX_ERROR, NodeId, Status, Store, StoredEvent};

/// Maximum size of headers that are read to check whether they can be decoded, in bytes.
const HEADERS_READ: usize = 64 * 1024;

/// Number of columns of [`ROW`].
const AFTER_ROW: usize = 18;

/// Query for the [`EventMetadata`] of the first matching events, by sequence number. The payload is
/// not read.
fn metadata(filter: &Filter, limit: usize) -> (String, Vec<Value>) {
    let (condition, values) = sql::condition(filter);
    let text = format!(
        "SELECT {ROW}, substr(e.last_error, 1, {MAX_ERROR}), e.dedup_key, e.content_type, e.occurred_at, e.expires_at, \
         {{bytes e.headers}}, CASE WHEN {{bytes e.headers}} <= {HEADERS_READ} THEN {{json e.headers}} END, \
         CASE WHEN {{size}} > {{most}} THEN {{size}} END, \
         CASE WHEN {{bytes e.headers}} > {{most}} THEN {{bytes e.headers}} END \
         FROM {{events}} e WHERE {condition} ORDER BY e.seq LIMIT {limit}"
    );
    (text, values)
}

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn read_metadata(&self, id: &EventId) -> Result<Option<EventMetadata>> {
        // A PostgreSQL text cannot contain NUL; a query for one fails.
        if DB::NAME == "PostgreSQL" && id.as_str().contains('\0') {
            return Ok(None);
        }
        let filter = Filter { id: Some(id.clone()), ..Filter::default() };
        self.first_metadata(&filter).await
    }

    pub(super) async fn read_metadata_at(&self, seq: i64) -> Result<Option<EventMetadata>> {
        let filter =
            Filter { after_seq: Some(seq.saturating_sub(1)), upto_seq: Some(seq), ..Filter::default() };
        self.first_metadata(&filter).await
    }

    async fn first_metadata(&self, filter: &Filter) -> Result<Option<EventMetadata>> {
        let (text, values) = metadata(filter, 1);
        self.fetch(&text, values).await?.first().map(|row| self.metadata_row(row)).transpose()
    }

    fn metadata_row(&self, row: &DB::Row) -> Result<EventMetadata> {
        let mut problems = Vec::new();
        // The id, and the required and optional text columns of an event.
        for column in [0, 2, 3, 4, 5, 6, 7, AFTER_ROW + 1, AFTER_ROW + 2] {
            problems.extend(DB::text(row, column).err().map(|error| error.to_string()));
        }
        for (column, what) in [(AFTER_ROW + 7, "payload has"), (AFTER_ROW + 8, "headers have")] {
            let too_large = |bytes: i64| format!("its {what} {bytes} bytes, more than the limit");
            problems.extend(DB::int(row, column)?.map(too_large));
        }
        problems.extend(headers(DB::text(row, AFTER_ROW + 6).unwrap_or_default().as_deref()).err());
        let mut time = |column: usize, exact: fn(Stamp) -> Result<Option<DateTime<Utc>>, String>| {
            let stamp = DB::stamp(row, column).map_err(|error| error.to_string());
            let time = stamp.and_then(|stamp| stamp.map_or(Ok(None), exact));
            time.map_err(|problem| problems.push(problem)).ok().flatten()
        };
        let occurred_at = time(AFTER_ROW + 3, |stamp| stamp.exact("occurred_at").map(Some));
        let expires_at = time(AFTER_ROW + 4, |stamp| stamp.end("expires_at"));
        let mut event = self.event_row(row, 0)?;
        event.last_error = DB::text(row, AFTER_ROW).unwrap_or_default();
        Ok(EventMetadata {
            row: event,
            dedup_key: DB::text(row, AFTER_ROW + 1).unwrap_or_default(),
            content_type: DB::text(row, AFTER_ROW + 2).unwrap_or_default().unwrap_or_else(|| JSON.to_owned()),
            occurred_at,
            expires_at,
            headers_bytes: DB::int(row, AFTER_ROW + 5)?.unwrap_or_default().unsigned_abs(),
            unreadable: problems.into_iter().next(),
        })
    }

    /// The first matching event, as [`DeliveryFacts`] contains it.
    async fn first_without_payload(&self, filter: &Filter) -> Result<Option<StoredEvent>> {
        Ok(self.first_metadata(filter).await?.map(without_payload))
    }

    pub(super) async fn look_around(&self, id: &EventId) -> Result<DeliveryFacts> {
        let event = self.read_metadata(id).await?.map(without_payload);
        // Reads the time after the event: an event that was due when it was read is due by this
        // time.
        let rows = self.fetch(sql::SURROUNDINGS, Vec::new()).await?;
        let mut delivery_facts = DeliveryFacts::default();
        if let Some(row) = rows.first() {
            delivery_facts.now = DB::time(row, 0)?.unwrap_or_default();
            delivery_facts.leader = DB::text(row, 1)?.map(NodeId::from);
            delivery_facts.last_settled = DB::time(row, 2)?;
            delivery_facts.any_leased = DB::int(row, 3)? == Some(1);
        }
        delivery_facts.nodes = self.nodes().await?;
        let pending = event.as_ref().filter(|event| event.status.is_pending());
        if let Some(event) = pending {
            delivery_facts.due_before = self.due_before(event).await?;
            if let Some(key) = event.event.as_ref().ok().and_then(|event| event.ordering_key()) {
                let ahead = Filter {
                    ordering_key: Some(key.to_owned()),
                    upto_seq: Some(event.seq - 1),
                    ..Filter::default()
                };
                // One search per status: only then does the index of every database return the
                // first row without a sort.
                let pending = Filter { pending: true, ..ahead.clone() };
                delivery_facts.pending_ahead = self.first_without_payload(&pending).await?;
                let dead = Filter { status: Some(Status::Dead), ..ahead };
                delivery_facts.dead_ahead = self.first_without_payload(&dead).await?;
            }
        }
        delivery_facts.event = event;
        Ok(delivery_facts)
    }

    async fn due_before(&self, event: &StoredEvent) -> Result<u64> {
        let place = vec![Value::Time(Some(event.available_at)), Value::Int(event.seq)];
        let rows = self.fetch(&sql::due_before(MAX_COUNTED), place).await?;
        Ok(rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().unwrap_or_default().unsigned_abs())
    }
}

/// An event with `null` as payload and no headers: neither affects its delivery.
fn without_payload(metadata: EventMetadata) -> StoredEvent {
    let EventMetadata { row, dedup_key, occurred_at, expires_at, unreadable, .. } = metadata;
    let event = match unreadable {
        Some(reason) => Err(DecodeError { id: row.id, reason }),
        None => Ok(Event::from_parts(Parts {
            id: row.id,
            event_type: EventType::from(row.event_type),
            aggregate_type: AggregateType::from(row.aggregate_type),
            aggregate_id: row.aggregate_id,
            tenant_id: row.tenant_id,
            ordering_key: row.ordering_key.map(Into::into),
            correlation_id: row.correlation_id,
            dedup_key,
            headers: Default::default(),
            payload: Payload::Json("null".to_owned()),
            occurred_at: occurred_at.unwrap_or(row.created_at),
            due: Due::Now,
            expires_at,
            tags: Vec::new(),
        })),
    };
    StoredEvent {
        event,
        seq: row.seq,
        status: row.status,
        attempts: row.attempts,
        created_at: row.created_at,
        available_at: row.available_at,
        done_at: row.done_at,
        last_error: row.last_error,
        done_by: row.done_by,
        lease: row.lease,
    }
}
