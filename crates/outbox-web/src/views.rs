//! What is shown in more than one place.

use chrono::{DateTime, Utc};
use outbox::store::{Counted, EventRow};
use serde::Serialize;
use utoipa::ToSchema;

/// A count that stops somewhere.
#[derive(Clone, Copy, Default, Serialize, ToSchema)]
#[schema(example = json!({"count": 10_000, "more": true}))]
pub(crate) struct Count {
    /// How many were counted.
    pub(crate) count: u64,
    /// Whether there are more: counting stopped there.
    pub(crate) more: bool,
}

impl From<Counted> for Count {
    fn from(counted: Counted) -> Self {
        Self { count: counted.count, more: counted.more }
    }
}

/// An event without its payload.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "seq": 4711, "event_type": "order.placed", "aggregate_type": "order",
    "aggregate_id": "o-17", "tenant_id": "acme", "ordering_key": "order:o-17", "correlation_id": null, "status": "DEAD",
    "attempts": 5, "created_at": "2026-01-31T12:00:00Z", "available_at": "2026-01-31T12:01:00Z",
    "done_at": "2026-01-31T12:01:01Z", "done_by": "relay-1", "last_error": "the shop does not answer", "locked_by": null,
    "locked_until": null, "payload_bytes": 512,
}))]
pub(crate) struct EventView {
    /// Its id.
    pub(crate) id: String,
    /// Its place in the table.
    pub(crate) seq: i64,
    /// Its type.
    pub(crate) event_type: String,
    /// The type of its aggregate.
    pub(crate) aggregate_type: String,
    /// Its aggregate.
    pub(crate) aggregate_id: Option<String>,
    /// Its tenant.
    pub(crate) tenant_id: Option<String>,
    /// Its ordering key: events of a key are delivered one after another.
    pub(crate) ordering_key: Option<String>,
    /// What it belongs to.
    pub(crate) correlation_id: Option<String>,
    /// `NEW`, `RETRY`, `DONE` or `DEAD`.
    pub(crate) status: String,
    /// How many times a handler has failed.
    pub(crate) attempts: u32,
    /// When the database stored it.
    pub(crate) created_at: DateTime<Utc>,
    /// When it may next be delivered.
    pub(crate) available_at: DateTime<Utc>,
    /// When it became DONE or DEAD.
    pub(crate) done_at: Option<DateTime<Utc>>,
    /// Who made it DONE or DEAD.
    pub(crate) done_by: Option<String>,
    /// Why it last failed: the first 500 characters.
    pub(crate) last_error: Option<String>,
    /// Who holds it.
    pub(crate) locked_by: Option<String>,
    /// Until when, unless renewed.
    pub(crate) locked_until: Option<DateTime<Utc>>,
    /// How large its payload is.
    pub(crate) payload_bytes: u64,
}

impl From<EventRow> for EventView {
    fn from(row: EventRow) -> Self {
        let (locked_by, locked_until) = row.lease.map(|(node, until)| (node.to_string(), until)).unzip();
        Self {
            id: row.id.to_string(),
            seq: row.seq,
            event_type: row.event_type,
            aggregate_type: row.aggregate_type,
            aggregate_id: row.aggregate_id,
            tenant_id: row.tenant_id,
            ordering_key: row.ordering_key,
            correlation_id: row.correlation_id,
            status: row.status.to_string(),
            attempts: row.attempts,
            created_at: row.created_at,
            available_at: row.available_at,
            done_at: row.done_at,
            done_by: row.done_by.map(|node| node.to_string()),
            last_error: row.last_error.as_deref().map(without_detail),
            locked_by,
            locked_until,
            payload_bytes: row.payload_bytes,
        }
    }
}

/// The reason of a stored error. Its detail may hold data: only an attempt of a single event shows it, for
/// those who may see payloads.
pub(crate) fn without_detail(error: &str) -> String {
    outbox::split_detail(error).0.to_owned()
}
