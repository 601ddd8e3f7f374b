//! Who changed what.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::extract::{Params, choose, page_size};
use crate::problem::{Answer, Problem};
use crate::state::Shared;

/// From where on, and how many.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listing {
    /// The name of the database, where there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Only what was written down before this place: `next` of the last page.
    #[param(minimum = 1)]
    before: Option<i64>,
    /// How many to show; 50 if not set.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Some entries, and where to go on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Entries {
    /// The newest first.
    entries: Vec<EntryView>,
    /// What `before` is for the next page; null: the end was reached.
    next: Option<i64>,
}

/// What somebody did.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": 17, "at": "2026-01-31T12:00:00Z", "actor": "ops", "via": "api", "action": "event.replay",
    "target": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "details": null, "outcome": "done", "count": 1,
}))]
pub(crate) struct EntryView {
    /// Its place in the book.
    id: i64,
    /// When it began.
    at: DateTime<Utc>,
    /// Who: the name of the token.
    actor: String,
    /// Which way: `api`, `cli`, …
    via: String,
    /// What was done.
    action: String,
    /// To what.
    target: Option<String>,
    /// What else there is to say.
    details: Option<String>,
    /// What came of it; null if nobody said: it runs, or its process ended.
    outcome: Option<String>,
    /// How many things were changed.
    count: Option<u64>,
}

/// Audit
///
/// Every change, and every look at a payload: written down before it is done.
#[utoipa::path(get, path = "/outbox/audit", tag = "audit", params(Listing),
    responses((status = 200, description = "A page of the book", body = Entries)))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(listing): Params<Listing>,
) -> Answer<Json<Entries>> {
    let database = choose(&web, listing.database.as_deref())?;
    let limit = page_size(listing.limit)?;
    if listing.before.is_some_and(|before| before < 1) {
        return Err(Problem::bad("`before` must be at least 1"));
    }
    let mut entries = database.store.audits(listing.before, limit + 1).await?;
    let more = entries.len() > limit;
    entries.truncate(limit);
    let next = entries.last().filter(|_| more).map(|last| last.id);
    let view = |audit: outbox::store::Audit| EntryView {
        id: audit.id,
        at: audit.at,
        actor: audit.actor,
        via: audit.via,
        action: audit.action,
        target: audit.target,
        details: audit.details,
        outcome: audit.outcome,
        count: audit.count,
    };
    Ok(Json(Entries { entries: entries.into_iter().map(view).collect(), next }))
}
