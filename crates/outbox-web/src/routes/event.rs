//! One event: facts, failed attempts, and why it is where it is.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{Circumstances, EventMetadata, Filter, StoredEvent};
use outbox::{Admin, EventId, Explanation};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use crate::auth::Caller;
use crate::auth::token::Role;
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
    /// How large its headers are, as JSON.
    headers_bytes: u64,
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
    /// The start of what the receiver answered, if it answered. It may hold data: only for roles that see
    /// payloads.
    detail: Option<String>,
}

/// Why an event has not been delivered yet, or what became of it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "text": "Event 01JD2Q7M3T5V9XKQ8B4N6C0ZRA (order.placed) is dead …", "advice": "When the cause is fixed, replay it.",
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
    /// The id of the event, percent-encoded; or `seq:` and its place in the table. `seq:4711` is
    /// always the event with the place 4711: an event whose id has this form is named by its own
    /// place.
    #[param(min_length = 1, example = "01JD2Q7M3T5V9XKQ8B4N6C0ZRA")]
    id: String,
}

/// One event
///
/// Facts, the failed attempts, and why it has not been delivered yet. No payload.
#[utoipa::path(get, path = "/outbox/events/{id}", tag = "events", params(Place, Which),
    responses((status = 200, description = "The event", body = OneEvent)))]
pub(crate) async fn one(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<OneEvent>> {
    let database = place.choose(&web)?;
    let found = find(&database, id).await?;
    let attempts = match found.id() {
        Ok(id) => database.store.attempts(id, ATTEMPTS).await?,
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
    /// An attempt as this role may see it.
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

/// The least role that sees payloads.
const SEES_PAYLOADS: Role = Role::Operate;

/// Why has it not been delivered yet?
#[utoipa::path(get, path = "/outbox/events/{id}/explain", tag = "events", params(Place, Which),
    responses((status = 200, description = "Why, and what to do", body = ExplanationView)))]
pub(crate) async fn explain(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<ExplanationView>> {
    let database = place.choose(&web)?;
    let found = find(&database, id).await?;
    let explanation = explained(&database, &found).await?;
    if explanation.reason == "unknown" {
        return Err(unknown(&found.event.row.id).advice(explanation.advice.unwrap_or_default()));
    }
    Ok(Json(explanation))
}

async fn explained(database: &Chosen, found: &Found) -> Answer<ExplanationView> {
    if let Ok(id) = found.id() {
        return Ok(Admin::new(database.store.clone()).explain(id).await?.into());
    }
    // By id the event, the events ahead of it and the command that replays it would be another's.
    let around = database.store.circumstances(&found.event.row.id).await?;
    let event = found.read(database).await?;
    let own = Circumstances { event, pending_ahead: None, dead_ahead: None, due_before: 0, ..around };
    let mut view = ExplanationView::from(Explanation::of(&EventId::from(found.name()), &own));
    let (advised, advice) = (view.advice.take().unwrap_or_default(), found.in_sql());
    let told = view.text.strip_suffix(&advised).unwrap_or(&view.text).trim_end();
    view.text = format!("{told}\n{advice}");
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

/// An event that a path names, without its payload.
pub(crate) struct Found {
    pub(crate) event: EventMetadata,
    /// Whether its id finds the same row. An id of a row in SQLite may be no UTF-8: the text that
    /// is shown in its place finds no row, or the row of another event.
    has_id: bool,
}

impl Found {
    /// The id to act by.
    pub(crate) fn id(&self) -> Answer<&EventId> {
        if self.has_id {
            return Ok(&self.event.row.id);
        }
        let seq = self.event.row.seq;
        let detail = format!("the id of the event at place {seq} cannot be read, and this needs an id");
        Err(Problem::conflict(detail).advice(self.in_sql()))
    }

    /// How to change an event whose id cannot be read.
    fn in_sql(&self) -> String {
        format!(
            "Change the row, or give it another `event_id`, in SQL: … WHERE seq = {}.",
            self.event.row.seq
        )
    }

    /// What the audit and the answer call it.
    pub(crate) fn name(&self) -> String {
        let row = &self.event.row;
        if self.has_id { row.id.to_string() } else { format!("seq:{}", row.seq) }
    }

    /// Matches this row alone.
    pub(crate) fn place(&self) -> Filter {
        let seq = self.event.row.seq;
        Filter { after_seq: Some(seq.saturating_sub(1)), upto_seq: Some(seq), ..Filter::default() }
    }

    /// Reads the whole event.
    pub(crate) async fn read(&self, database: &Chosen) -> Answer<Option<StoredEvent>> {
        Ok(database.store.list(&self.place(), 1).await?.pop())
    }

    /// Makes the event new again. Returns whether it was dead.
    pub(crate) async fn replay(&self, database: &Chosen) -> outbox::Result<bool> {
        Ok(database.store.replay(&self.place(), 1).await?.moved > 0)
    }
}

/// The event that a path names. An id may have any characters, percent-encoded. `seq:4711` is the
/// event with this place in the table, even if another event has that text for an id: writers
/// choose ids, and must not choose which row an operator changes. An event with such an id is named
/// by its own place.
pub(crate) async fn find(database: &Chosen, named: String) -> Answer<Found> {
    if let Some(seq) = named.strip_prefix("seq:").and_then(|seq| seq.parse().ok()) {
        let found = find_at(database, seq).await?;
        return found.ok_or_else(|| unknown(&EventId::from(named)));
    }
    let id = EventId::from(named);
    let found = database.store.metadata(&id).await?;
    found.map(|event| Found { event, has_id: true }).ok_or_else(|| unknown(&id))
}

/// The event with this place in the table.
pub(crate) async fn find_at(database: &Chosen, seq: i64) -> Answer<Option<Found>> {
    let Some(event) = database.store.metadata_at(seq).await? else { return Ok(None) };
    let has_id = match event.unreadable {
        None => true,
        Some(_) => database.store.metadata(&event.row.id).await?.is_some_and(|same| same.row.seq == seq),
    };
    Ok(Some(Found { event, has_id }))
}

pub(crate) fn unknown(id: &EventId) -> Problem {
    Problem::not_found(format!("there is no event `{}`", text::shown(id.as_str())))
        .advice("It may have been purged or cancelled, or be in another database.")
}
