//! Response types used by several routes.

use chrono::{DateTime, Utc};
use outbox::store::{BoundedCount, EventRow};
use serde::Serialize;
use utoipa::ToSchema;

/// A bounded count.
#[derive(Clone, Copy, Default, Serialize, ToSchema)]
#[schema(example = json!({"count": 10_000, "more": true}))]
pub(crate) struct Count {
    /// Number of rows counted.
    pub(crate) count: u64,
    /// Whether there are more: counting stopped at a limit.
    pub(crate) more: bool,
}

impl From<BoundedCount> for Count {
    fn from(counted: BoundedCount) -> Self {
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
    /// The event id.
    pub(crate) id: String,
    /// The sequence number: position in the table.
    pub(crate) seq: i64,
    /// The event type.
    pub(crate) event_type: String,
    /// The aggregate type.
    pub(crate) aggregate_type: String,
    /// The aggregate id.
    pub(crate) aggregate_id: Option<String>,
    /// The tenant id.
    pub(crate) tenant_id: Option<String>,
    /// The ordering key: events with the same key are delivered one after another.
    pub(crate) ordering_key: Option<String>,
    /// The correlation id.
    pub(crate) correlation_id: Option<String>,
    /// `NEW`, `RETRY`, `DONE` or `DEAD`.
    pub(crate) status: String,
    /// Number of failed attempts.
    pub(crate) attempts: u32,
    /// When the event was stored, by the clock of the database.
    pub(crate) created_at: DateTime<Utc>,
    /// When the event is next due.
    pub(crate) available_at: DateTime<Utc>,
    /// When the event became DONE or DEAD.
    pub(crate) done_at: Option<DateTime<Utc>>,
    /// The node that made the event DONE or DEAD.
    pub(crate) done_by: Option<String>,
    /// The last error: the first 500 characters.
    pub(crate) last_error: Option<String>,
    /// The node that has claimed the event.
    pub(crate) locked_by: Option<String>,
    /// When the lease expires, unless renewed.
    pub(crate) locked_until: Option<DateTime<Utc>>,
    /// Size of the payload in bytes.
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

/// The reason of a stored error, without its detail. The detail may contain data: it is shown only
/// with an attempt of a single event, to roles that may read payloads.
pub(crate) fn without_detail(error: &str) -> String {
    outbox::split_detail(error).0.to_owned()
}
