//! A single event: metadata, failed attempts, and why it has not been delivered.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{DeliveryFacts, EventMetadata, Filter, StoredEvent};
use outbox::{Admin, EventId, Explanation};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::auth::Caller;
use crate::auth::token::Role;
use crate::databases::Database;
use crate::extract::{DatabaseQuery, Params};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;
use crate::text;
use crate::views::EventView;

/// Maximum number of failed attempts shown.
const MAX_ATTEMPTS_SHOWN: usize = 100;

/// A single event: metadata, failed attempts, and why it has not been delivered.
#[derive(Serialize, ToSchema)]
pub(crate) struct OneEvent {
    /// Metadata of the event.
    event: EventFacts,
    /// The latest failed attempts, oldest first.
    attempts: Vec<AttemptView>,
    /// Why the event has not been delivered, or how it was settled.
    explanation: ExplanationView,
}

/// Metadata of an event, with more fields than a list has. Payload and headers are served by
/// another route, which needs the role `operate`.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventFacts {
    /// The fields of a list.
    #[serde(flatten)]
    row: EventView,
    /// The deduplication key.
    dedup_key: Option<String>,
    /// When the event occurred, as set by its writer.
    occurred_at: Option<DateTime<Utc>>,
    /// When the event expires.
    expires_at: Option<DateTime<Utc>>,
    /// The content type of the payload.
    content_type: Option<String>,
    /// Size of the headers as JSON, in bytes.
    headers_bytes: u64,
    /// Why the event cannot be decoded.
    unreadable: Option<String>,
}

/// A failed attempt.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// When the attempt failed.
    at: DateTime<Utc>,
    /// Number of attempts so far, including this one if it was counted. A replay restarts the
    /// number.
    number: u32,
    /// The relay of the attempt.
    node: String,
    /// Whether the event was dead-lettered by this attempt.
    fatal: bool,
    /// The error.
    error: String,
    /// The start of the receiver's response, if there was one. It may contain data: only for roles
    /// that may read payloads.
    detail: Option<String>,
}

/// Why an event has not been delivered, or how it was settled.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "text": "Event 01JD2Q7M3T5V9XKQ8B4N6C0ZRA (order.placed) is dead …", "advice": "Fix the cause, then replay the event.",
    "reason": "dead", "reasons": [{"reason": "dead", "attempts": 5, "error": "the shop does not answer"}],
    "asked_at": "2026-01-31T12:02:00Z",
}))]
pub(crate) struct ExplanationView {
    /// The explanation in plain text, with advice.
    text: String,
    /// Advice, if there is any.
    advice: Option<String>,
    /// The name of the current reason.
    reason: String,
    /// Everything that blocks the event, in machine-readable form.
    #[schema(value_type = Vec<Object>)]
    reasons: Vec<serde_json::Value>,
    /// When the explanation was computed, by the clock of the database.
    asked_at: DateTime<Utc>,
}

/// Path of an event.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct EventPath {
    /// The id of the event, percent-encoded; or `seq:` and its sequence number. `seq:4711` is
    /// always the event with the sequence number 4711: an event whose id has this form is addressed
    /// by its own sequence number.
    #[param(min_length = 1, example = "01JD2Q7M3T5V9XKQ8B4N6C0ZRA")]
    id: String,
}

/// Get an event
///
/// Metadata, the failed attempts, and why the event has not been delivered. Without the payload.
#[utoipa::path(get, path = "/outbox/events/{id}", tag = "events", params(DatabaseQuery, EventPath),
    responses((status = 200, description = "The event", body = OneEvent)))]
pub(crate) async fn one(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<OneEvent>> {
    let database = query.resolve(&web)?;
    let found = find(&database, id).await?;
    let attempts = match found.id() {
        Ok(id) => database.store.attempts(id, MAX_ATTEMPTS_SHOWN).await?,
        // Attempts are stored by id.
        Err(_) => Vec::new(),
    };
    let explanation = explained(&database, &found).await?;
    let EventMetadata {
        row,
        dedup_key,
        content_type,
        occurred_at,
        expires_at,
        headers_bytes,
        unreadable,
        ..
    } = found.event;
    let event = EventFacts {
        dedup_key,
        occurred_at,
        expires_at,
        content_type: Some(content_type),
        headers_bytes,
        unreadable,
        row: row.into(),
    };
    let attempts = attempts.iter().map(|attempt| AttemptView::new(attempt, caller.role)).collect();
    Ok(Json(OneEvent { event, attempts, explanation }))
}

impl AttemptView {
    /// An attempt as visible to this role.
    fn new(attempt: &outbox::store::Attempt, role: Role) -> Self {
        let (error, detail) = outbox::split_detail(&attempt.error);
        Self {
            at: attempt.at,
            number: attempt.number,
            node: attempt.node.to_string(),
            fatal: attempt.fatal,
            error: error.to_owned(),
            detail: detail.filter(|_| role >= SEES_PAYLOADS).map(str::to_owned),
        }
    }
}

/// The lowest role that may read payloads.
const SEES_PAYLOADS: Role = Role::Operate;

/// Explain why an event has not been delivered
#[utoipa::path(get, path = "/outbox/events/{id}/explain", tag = "events", params(DatabaseQuery, EventPath),
    responses((status = 200, description = "The explanation, with advice", body = ExplanationView)))]
pub(crate) async fn explain(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ExplanationView>> {
    let database = query.resolve(&web)?;
    let found = find(&database, id).await?;
    let explanation = explained(&database, &found).await?;
    if explanation.reason == "unknown" {
        return Err(unknown(&found.event.row.id).advice(explanation.advice.unwrap_or_default()));
    }
    Ok(Json(explanation))
}

async fn explained(database: &Database, found: &Found) -> ApiResult<ExplanationView> {
    if let Ok(id) = found.id() {
        return Ok(Admin::new(database.store.clone()).explain(id).await?.into());
    }
    // Looked up by id, the event, the events ahead of it and the replay command could belong to
    // another event.
    let around = database.store.delivery_facts(&found.event.row.id).await?;
    let event = found.read(database).await?;
    let own = DeliveryFacts { event, pending_ahead: None, dead_ahead: None, due_before: 0, ..around };
    let mut view = ExplanationView::from(Explanation::of(&EventId::from(found.name()), &own));
    let (general_advice, advice) = (view.advice.take().unwrap_or_default(), found.sql_advice());
    let explanation = view.text.strip_suffix(&general_advice).unwrap_or(&view.text).trim_end();
    view.text = format!("{explanation}\n{advice}");
    view.advice = Some(advice);
    Ok(view)
}

impl From<Explanation> for ExplanationView {
    fn from(explanation: Explanation) -> Self {
        let reasons: Vec<serde_json::Value> =
            explanation.reasons.iter().filter_map(|reason| serde_json::to_value(reason).ok()).collect();
        let first = reasons.first().and_then(|reason| reason.get("reason")?.as_str());
        Self {
            text: explanation.to_string(),
            advice: explanation.advice(),
            reason: first.unwrap_or("unknown").to_owned(),
            reasons,
            asked_at: explanation.asked_at,
        }
    }
}

/// An event addressed by a path, without its payload.
pub(crate) struct Found {
    pub(crate) event: EventMetadata,
    /// Whether the id finds the same row. The id of a row in SQLite may not be UTF-8: the
    /// replacement text that is shown finds no row, or the row of another event.
    has_id: bool,
}

impl Found {
    /// The id, for operations that need one.
    pub(crate) fn id(&self) -> ApiResult<&EventId> {
        if self.has_id {
            return Ok(&self.event.row.id);
        }
        let seq = self.event.row.seq;
        let detail =
            format!("the id of the event with seq {seq} cannot be decoded, and this operation needs an id");
        Err(Problem::conflict(detail).advice(self.sql_advice()))
    }

    /// Advice for an event whose id cannot be decoded.
    fn sql_advice(&self) -> String {
        format!("Change the row, or set another `event_id`, in SQL: … WHERE seq = {}.", self.event.row.seq)
    }

    /// Name of the event in audit entries and responses.
    pub(crate) fn name(&self) -> String {
        let row = &self.event.row;
        if self.has_id { row.id.to_string() } else { format!("seq:{}", row.seq) }
    }

    /// Filter that matches this row only.
    pub(crate) fn row_filter(&self) -> Filter {
        let seq = self.event.row.seq;
        Filter { after_seq: Some(seq.saturating_sub(1)), upto_seq: Some(seq), ..Filter::default() }
    }

    /// Reads the complete event.
    pub(crate) async fn read(&self, database: &Database) -> ApiResult<Option<StoredEvent>> {
        Ok(database.store.list(&self.row_filter(), 1).await?.pop())
    }

    /// Replays the event. Returns whether it was dead.
    pub(crate) async fn replay(&self, database: &Database) -> outbox::Result<bool> {
        Ok(database.store.replay(&self.row_filter(), 1).await?.moved > 0)
    }
}

/// Finds the event addressed by a path. An id may contain any characters, percent-encoded.
/// `seq:4711` is the event with this sequence number, even if another event has that text as its
/// id: writers choose ids, and must not choose which row an operator changes. An event with such an
/// id is addressed by its own sequence number.
pub(crate) async fn find(database: &Database, name: String) -> ApiResult<Found> {
    if let Some(seq) = name.strip_prefix("seq:").and_then(|seq| seq.parse().ok()) {
        let found = find_at(database, seq).await?;
        return found.ok_or_else(|| unknown(&EventId::from(name)));
    }
    let id = EventId::from(name);
    let found = database.store.metadata(&id).await?;
    found.map(|event| Found { event, has_id: true }).ok_or_else(|| unknown(&id))
}

/// Finds the event with this sequence number.
pub(crate) async fn find_at(database: &Database, seq: i64) -> ApiResult<Option<Found>> {
    let Some(event) = database.store.metadata_at(seq).await? else { return Ok(None) };
    let has_id = match event.unreadable {
        None => true,
        Some(_) => database.store.metadata(&event.row.id).await?.is_some_and(|same| same.row.seq == seq),
    };
    Ok(Some(Found { event, has_id }))
}

pub(crate) fn unknown(id: &EventId) -> Problem {
    Problem::not_found(format!("event `{}` not found", text::printable(id.as_str())))
        .advice("It may have been purged or cancelled, or be in another database.")
}
