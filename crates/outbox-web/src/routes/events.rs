//! Events: lists, one of them, and what can be done to it.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{Filter, PageAsk, Shelf};
use outbox::{Admin, Event, EventId, NodeId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::age::Age;
use crate::auth::Caller;
use crate::cursor::Mark;
use crate::databases::Chosen;
use crate::deeds::{Deeds, Happened, nothing};
use crate::extract::{Params, Place, choose, page_size};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;
use crate::views::EventView;

/// How many rows are looked at for one page, at most.
const LOOK_AT: usize = 5_000;

/// How many failed attempts are shown.
const ATTEMPTS: usize = 100;

/// Which events, in which order, from where on.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listing {
    /// The name of the database, where there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Which shelf; `pending` if not set.
    #[param(inline)]
    status: Option<Wanted>,
    /// `oldest` or `newest` first; the oldest if not set.
    #[param(inline)]
    order: Option<Order>,
    /// Only this type.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    event_type: Option<String>,
    /// Only this type of aggregate.
    #[param(min_length = 1, max_length = 64, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    aggregate_type: Option<String>,
    /// Only this aggregate.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    aggregate_id: Option<String>,
    /// Only this tenant.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    tenant_id: Option<String>,
    /// Only this ordering key.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    ordering_key: Option<String>,
    /// Only this correlation id.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    correlation_id: Option<String>,
    /// Only those stored more recently than this, such as 2h; of done and dead events, those settled more recently.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,6}(ms|s|m|h|d)$")]
    within: Option<Age>,
    /// Only those stored longer ago than this; of done and dead events, those settled longer ago.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,6}(ms|s|m|h|d)$")]
    before: Option<Age>,
    /// Where the last page ended: its `next`.
    #[param(min_length = 1, max_length = 100)]
    cursor: Option<String>,
    /// How many events to show; 50 if not set.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Where events stand.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wanted {
    /// Still to be delivered: `new` or `retry`.
    #[default]
    Pending,
    /// To be delivered for the first time.
    New,
    /// Failed, and to be tried again.
    Retry,
    /// Delivered.
    Done,
    /// Given up.
    Dead,
}

/// What comes first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// The oldest.
    #[default]
    Oldest,
    /// The newest.
    Newest,
}

/// Some events, and where to go on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Events {
    /// Those that match. Where few do, a page may have few or none, and still go on.
    events: Vec<EventView>,
    /// What `cursor` is for the next page; null: the end was reached.
    next: Option<String>,
}

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

/// What was done to an event.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "done": "replayed"}))]
pub(crate) struct DoneTo {
    /// Which event.
    pub(crate) id: String,
    /// `replayed`, `skipped`, `cancelled` or `edited`.
    pub(crate) done: &'static str,
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

/// List events
///
/// Page by page, in the order of an index, without payloads. Nothing is counted and nothing sorted, so it takes as long with a
/// million events as with a hundred.
#[utoipa::path(get, path = "/outbox/events", tag = "events", params(Listing),
    responses((status = 200, description = "A page of events", body = Events),
              (status = 422, description = "The cursor is not one of this list")))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(listing): Params<Listing>,
) -> Answer<Json<Events>> {
    let database = choose(&web, listing.database.as_deref())?;
    let wanted = listing.status.unwrap_or_default();
    let newest_first = listing.order.unwrap_or_default() == Order::Newest;
    let shelf = match wanted {
        Wanted::Pending | Wanted::New | Wanted::Retry => Shelf::Pending,
        Wanted::Done => Shelf::Done,
        Wanted::Dead => Shelf::Dead,
    };
    let after = match &listing.cursor {
        Some(cursor) => Some(Mark::decode(cursor, shelf, newest_first)?),
        None => None,
    };
    let limit = page_size(listing.limit)?;
    let filter = listing.filter(shelf)?;
    let ask = PageAsk { shelf, filter, newest_first, after, limit, look_at: LOOK_AT.max(limit) };
    let page = database.store.page(&ask).await?;
    let is_wanted = |event: &EventView| match wanted {
        Wanted::New => event.status == "NEW",
        Wanted::Retry => event.status == "RETRY",
        _ => true,
    };
    let events = page.rows.into_iter().map(EventView::from).filter(is_wanted).collect();
    let next = page.next.map(|at| Mark { shelf, newest_first, at }.encode());
    Ok(Json(Events { events, next }))
}

impl Listing {
    fn filter(&self, shelf: Shelf) -> Answer<Filter> {
        let checked = |name: &str, text: &Option<String>, longest: usize| match text {
            Some(text) => text::check(name, text, longest).map(|()| Some(text.clone())),
            None => Ok(None),
        };
        let (within, before) = (self.within.map(|age| age.0), self.before.map(|age| age.0));
        let settled = shelf != Shelf::Pending;
        Ok(Filter {
            event_type: checked("event_type", &self.event_type, 255)?,
            aggregate_type: checked("aggregate_type", &self.aggregate_type, 64)?,
            aggregate_id: checked("aggregate_id", &self.aggregate_id, 255)?,
            tenant_id: checked("tenant_id", &self.tenant_id, 255)?,
            ordering_key: checked("ordering_key", &self.ordering_key, 255)?,
            correlation_id: checked("correlation_id", &self.correlation_id, 255)?,
            newer_than: within.filter(|_| !settled),
            older_than: before.filter(|_| !settled),
            settled_within: within.filter(|_| settled),
            settled_before: before.filter(|_| settled),
            ..Filter::default()
        })
    }
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

/// Replay a dead event
///
/// It is new again, with no attempts behind it.
#[utoipa::path(post, path = "/outbox/events/{id}/replay", tag = "events", params(Place, Which),
    responses((status = 200, description = "It is new again", body = DoneTo), (status = 409, description = "It is not dead")))]
pub(crate) async fn replay(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let (database, id) = (place.choose(&web)?, event_id(id)?);
    let admin = Admin::new(database.store.clone());
    change(&database, &caller, "event.replay", &id, "replayed", "dead", admin.replay(&id)).await
}

/// Skip a dead event
///
/// It counts as settled without being delivered: it is DONE by your hand, its error stays, and its key goes on.
#[utoipa::path(post, path = "/outbox/events/{id}/skip", tag = "events", params(Place, Which),
    responses((status = 200, description = "It is done", body = DoneTo), (status = 409, description = "It is not dead")))]
pub(crate) async fn skip(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let (database, id) = (place.choose(&web)?, event_id(id)?);
    let by = hand_of(&caller);
    change(&database, &caller, "event.skip", &id, "skipped", "dead", database.store.skip(&id, &by)).await
}

/// Cancel a pending event
///
/// It is removed, and never delivered. Not while somebody handles it.
#[utoipa::path(post, path = "/outbox/events/{id}/cancel", tag = "events", params(Place, Which),
    responses((status = 200, description = "It is gone", body = DoneTo),
              (status = 409, description = "It is not pending, or is being handled")))]
pub(crate) async fn cancel(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let (database, id) = (place.choose(&web)?, event_id(id)?);
    let state = "pending, or is being handled right now";
    change(&database, &caller, "event.cancel", &id, "cancelled", state, database.store.cancel(&id)).await
}

/// Changes one event, if it is in the state for that.
pub(crate) async fn change(
    database: &Chosen,
    caller: &Caller,
    action: &'static str,
    id: &EventId,
    done: &'static str,
    state: &'static str,
    work: impl Future<Output = outbox::Result<bool>>,
) -> Answer<Json<DoneTo>> {
    if database.store.find(id).await?.is_none() {
        return Err(unknown(id));
    }
    let outcome = DoneTo { id: id.to_string(), done };
    let work = async {
        match work.await? {
            true => Ok(Happened { count: 1, outcome }),
            false => Err(nothing(format!("the event `{id}` is not {state}"))
                .advice(format!("GET /api/outbox/events/{id} tells where it stands."))),
        }
    };
    Deeds::new(database, caller, action, id.to_string()).carry_out(work).await.map(Json)
}

/// As the table says who did it.
pub(crate) fn hand_of(caller: &Caller) -> NodeId {
    NodeId::from(format!("api:{}", caller.name))
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
