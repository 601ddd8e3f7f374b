//! Audit entries.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::extract::{Params, find_database, page_size};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;

/// Query of the audit.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// The name of the database, if there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Only entries before this id: `next` of the previous page.
    #[param(minimum = 1)]
    before: Option<i64>,
    /// Number of entries per page; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// A page of audit entries.
#[derive(Serialize, ToSchema)]
pub(crate) struct Entries {
    /// The entries, newest first.
    entries: Vec<EntryView>,
    /// The value of `before` for the next page; null on the last page.
    next: Option<i64>,
}

/// An audit entry.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": 17, "at": "2026-01-31T12:00:00Z", "actor": "ops", "via": "api", "action": "event.replay",
    "target": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "details": null, "outcome": "done", "count": 1,
}))]
pub(crate) struct EntryView {
    /// The id of the entry.
    id: i64,
    /// When the action started.
    at: DateTime<Utc>,
    /// The name of the token, or of the application's user.
    actor: String,
    /// The interface: `api`, `cli`, …
    via: String,
    /// The action.
    action: String,
    /// The object of the action.
    target: Option<String>,
    /// Details of the action.
    details: Option<String>,
    /// The outcome; null if the action is still running, or its process has ended.
    outcome: Option<String>,
    /// Number of rows changed.
    count: Option<u64>,
}

/// List audit entries
///
/// Every change and every read of a payload has an entry, which is stored before the action.
#[utoipa::path(get, path = "/outbox/audit", tag = "audit", params(AuditQuery),
    responses((status = 200, description = "A page of audit entries", body = Entries)))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(query): Params<AuditQuery>,
) -> ApiResult<Json<Entries>> {
    let database = find_database(&web, query.database.as_deref())?;
    let limit = page_size(query.limit)?;
    if query.before.is_some_and(|before| before < 1) {
        return Err(Problem::bad("`before` must be at least 1"));
    }
    let mut entries = database.store.audits(query.before, limit + 1).await?;
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
