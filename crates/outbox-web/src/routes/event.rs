//! One event: facts, failed attempts, and why it is where it is.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::{Admin, Event, EventId};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::databases::Chosen;
use crate::extract::{Params, Place};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;
use crate::views::EventView;

/// How many failed attempts are shown.
const ATTEMPTS: usize = 100;

/// One event: facts, failed attempts, and why it is where it is.
#[derive(Serialize, ToSchema)]
pub(crate) struct OneEvent {
    /// What is known of it.
    event: EventFacts,
    /// The last failed attempts, oldest first.
    attempts: Vec<AttemptView>,
    /// Why it has not been delivered yet, or what became of it.
    explanation: ExplanationView,
}

/// An event, with more than a list shows. Payload and headers are told elsewhere, to those who may see them.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventFacts {
    /// What a list shows.
    #[serde(flatten)]
    row: EventView,
    /// Its deduplication key.
    dedup_key: Option<String>,
    /// When it happened, as its writer says.
    occurred_at: Option<DateTime<Utc>>,
    /// When it expires.
    expires_at: Option<DateTime<Utc>>,
    /// What its payload is.
    content_type: Option<String>,
    /// Why it cannot be read, if it cannot.
    unreadable: Option<String>,
}

/// An attempt that failed.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// When.
    at: DateTime<Utc>,
    /// How many attempts there had been, this one among them if it counted. Begins anew with a replay.
    number: u32,
    /// Which relay's it was.
    node: String,
    /// Whether the event died of it.
    fatal: bool,
    /// Why.
    error: String,
}

/// Why an event has not been delivered yet, or what became of it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "text": "Event 01JD2Q7M3T5V9XKQ8B4N6C0ZRA (order.placed) is dead …", "advice": "When the cause is mended, replay it.",
    "reason": "dead", "reasons": [{"reason": "dead", "attempts": 5, "error": "the shop does not answer"}],
    "asked_at": "2026-01-31T12:02:00Z",
}))]
pub(crate) struct ExplanationView {
    /// In a few plain sentences, with what to do.
    text: String,
    /// What to do, if there is anything.
    advice: Option<String>,
    /// The name of the reason that counts now.
    reason: String,
    /// Everything that stands in its way, for programs.
    #[schema(value_type = Vec<Object>)]
    reasons: Vec<serde_json::Value>,
    /// When, by the clock of the database.
    asked_at: DateTime<Utc>,
}

/// Which event.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "tells the document of the path")]
pub(crate) struct Which {
    /// The id of the event.
    #[param(min_length = 1, max_length = 36, example = "01JD2Q7M3T5V9XKQ8B4N6C0ZRA")]
    id: String,
}

/// One event
///
/// Facts, the failed attempts, and why it has not been delivered yet. No payload.
#[utoipa::path(get, path = "/outbox/events/{id}", tag = "events", params(Place, Which),
    responses((status = 200, description = "The event", body = OneEvent)))]
pub(crate) async fn one(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<OneEvent>> {
    let (database, id) = (place.choose(&web)?, event_id(id)?);
    let stored = database.store.find(&id).await?.ok_or_else(|| unknown(&id))?;
    let attempts = database.store.attempts(&id, ATTEMPTS).await?;
    let explanation = explained(&database, &id).await?;
    let event = stored.event.as_ref().ok();
    let text = |of: fn(&Event) -> Option<&str>| event.and_then(of).map(str::to_owned);
    let (locked_by, locked_until) = stored.lease.map(|(node, until)| (node.to_string(), until)).unzip();
    let row = EventView {
        id: id.to_string(),
        seq: stored.seq,
        event_type: event.map_or_else(String::new, |event| event.event_type().to_string()),
        aggregate_type: event.map_or_else(String::new, |event| event.aggregate_type().to_string()),
        aggregate_id: text(Event::aggregate_id),
        tenant_id: text(Event::tenant_id),
        ordering_key: text(Event::ordering_key),
        correlation_id: text(Event::correlation_id),
        status: stored.status.to_string(),
        attempts: stored.attempts,
        created_at: stored.created_at,
        available_at: stored.available_at,
        done_at: stored.done_at,
        done_by: stored.done_by.map(|node| node.to_string()),
        last_error: stored.last_error,
        locked_by,
        locked_until,
        payload_bytes: event.map_or(0, |event| event.payload_bytes().len() as u64),
    };
    let event = EventFacts {
        row,
        dedup_key: text(Event::dedup_key),
        occurred_at: event.map(Event::occurred_at),
        expires_at: event.and_then(Event::expires_at),
        content_type: event.map(|event| event.content_type().to_owned()),
        unreadable: stored.event.as_ref().err().map(|error| error.reason.clone()),
    };
    let attempts = attempts.into_iter().map(AttemptView::from).collect();
    Ok(Json(OneEvent { event, attempts, explanation }))
}

impl From<outbox::store::Attempt> for AttemptView {
    fn from(attempt: outbox::store::Attempt) -> Self {
        Self {
            at: attempt.at,
            number: attempt.number,
            node: attempt.node.to_string(),
            fatal: attempt.fatal,
            error: attempt.error,
        }
    }
}

/// Why has it not been delivered yet?
#[utoipa::path(get, path = "/outbox/events/{id}/explain", tag = "events", params(Place, Which),
    responses((status = 200, description = "Why, and what to do", body = ExplanationView)))]
pub(crate) async fn explain(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<ExplanationView>> {
    let (database, id) = (place.choose(&web)?, event_id(id)?);
    let explanation = explained(&database, &id).await?;
    if explanation.reason == "unknown" {
        return Err(unknown(&id).advice(explanation.advice.unwrap_or_default()));
    }
    Ok(Json(explanation))
}

async fn explained(database: &Chosen, id: &EventId) -> Answer<ExplanationView> {
    let explanation = Admin::new(database.store.clone()).explain(id).await?;
    let reasons: Vec<serde_json::Value> =
        explanation.reasons.iter().filter_map(|reason| serde_json::to_value(reason).ok()).collect();
    let first = reasons.first().and_then(|reason| reason.get("reason")?.as_str());
    Ok(ExplanationView {
        text: explanation.to_string(),
        advice: explanation.advice(),
        reason: first.unwrap_or("unknown").to_owned(),
        reasons,
        asked_at: explanation.asked_at,
    })
}

/// What cannot be the id of an event is the id of none.
pub(crate) fn event_id(id: String) -> Answer<EventId> {
    match text::check("id", &id, 36) {
        Ok(()) => Ok(EventId::from(id)),
        Err(_) => Err(unknown_text(&id)),
    }
}

pub(crate) fn unknown(id: &EventId) -> Problem {
    unknown_text(id.as_str())
}

fn unknown_text(id: &str) -> Problem {
    Problem::not_found(format!("there is no event `{}`", text::shown(id)))
        .advice("It may have been purged or cancelled, or be in another database.")
}
