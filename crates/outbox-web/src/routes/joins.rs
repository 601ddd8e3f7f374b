//! Joins: steps, and the follow-up that is written when all steps are settled.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{JoinCommand, JoinFilter};
use outbox::{Admin, EventId, Join, JoinId, JoinStatus, Step};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::audit::{AuditedChange, Changed};
use crate::auth::Caller;
use crate::cursor::{decode_id, encode_id};
use crate::databases::Database;
use crate::extract::{DatabaseQuery, Params, find_database, page_size};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;
use crate::text;

/// Query of the list of joins.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct JoinQuery {
    /// The name of the database, if there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Only joins with this status.
    #[param(inline)]
    status: Option<JoinStatusFilter>,
    /// Only joins with this grouping key.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    group: Option<String>,
    /// The cursor: `next` of the previous page.
    #[param(min_length = 1, max_length = 100)]
    after: Option<String>,
    /// Number of joins per page; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Status of a join.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JoinStatusFilter {
    /// Not all steps are settled, or the follow-up has not been set.
    Pending,
    /// All steps are done, and the follow-up was written.
    Completed,
    /// Some steps failed, and the follow-up for a failure was written.
    Failed,
    /// Cancelled: no follow-up is written.
    Cancelled,
}

impl From<JoinStatusFilter> for JoinStatus {
    fn from(status: JoinStatusFilter) -> Self {
        match status {
            JoinStatusFilter::Pending => JoinStatus::Pending,
            JoinStatusFilter::Completed => JoinStatus::Completed,
            JoinStatusFilter::Failed => JoinStatus::Failed,
            JoinStatusFilter::Cancelled => JoinStatus::Cancelled,
        }
    }
}

/// Query of the list of steps.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StepQuery {
    /// The name of the database, if there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// The cursor: `next` of the previous page.
    #[param(min_length = 1, max_length = 100)]
    after: Option<String>,
    /// Number of steps per page; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// A page of joins.
#[derive(Serialize, ToSchema)]
pub(crate) struct Joins {
    /// The joins, oldest first.
    joins: Vec<JoinView>,
    /// The value of `after` for the next page; null on the last page.
    next: Option<String>,
}

/// A join.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "status": "PENDING", "grouping_key": "import-7", "expected": 10, "attached": 10,
    "completed": 7, "failed": 1, "awaited": true, "metadata": null, "created_at": "2026-01-31T12:00:00Z",
    "updated_at": "2026-01-31T12:01:00Z",
}))]
pub(crate) struct JoinView {
    /// The id of the join.
    id: String,
    /// `PENDING`, `COMPLETED`, `FAILED` or `CANCELLED`.
    status: String,
    /// The grouping key.
    grouping_key: Option<String>,
    /// Number of steps that the join waits for.
    expected: u32,
    /// Number of steps attached.
    attached: u32,
    /// Number of steps completed.
    completed: u32,
    /// Number of steps failed.
    failed: u32,
    /// Whether the follow-up has been set.
    awaited: bool,
    /// Metadata set by the application; null in lists.
    metadata: Option<String>,
    /// When the join was started.
    created_at: DateTime<Utc>,
    /// When the join last changed.
    updated_at: DateTime<Utc>,
}

/// A page of steps.
#[derive(Serialize, ToSchema)]
pub(crate) struct Steps {
    /// The steps, by event id.
    steps: Vec<StepView>,
    /// The value of `after` for the next page; null on the last page.
    next: Option<String>,
}

/// A step of a join.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"event_id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "status": "completed"}))]
pub(crate) struct StepView {
    /// The id of the event.
    event_id: String,
    /// `completed`, `failed`, or null if the step is not settled.
    status: Option<&'static str>,
}

/// Path of a join.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct JoinPath {
    /// The id of the join.
    #[param(min_length = 1, max_length = 36, example = "01JD2Q7M3T5V9XKQ8B4N6C0ZRA")]
    id: String,
}

/// List joins
#[utoipa::path(get, path = "/outbox/joins", tag = "joins", params(JoinQuery),
    responses((status = 200, description = "A page of joins", body = Joins),
              (status = 422, description = "The cursor belongs to another list")))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(query): Params<JoinQuery>,
) -> ApiResult<Json<Joins>> {
    let database = find_database(&web, query.database.as_deref())?;
    let limit = page_size(query.limit)?;
    if let Some(group) = &query.group {
        text::check("group", group, 255)?;
    }
    let filter = JoinFilter {
        status: query.status.map(JoinStatus::from),
        grouping_key: query.group,
        after: query.after.as_deref().map(decode_id).transpose()?.map(JoinId::from),
        ..JoinFilter::default()
    };
    let mut joins = database.store.joins(&filter, limit + 1).await?;
    let next = next(&mut joins, limit, |join| join.id.as_str());
    let joins = joins.into_iter().map(|join| JoinView { metadata: None, ..JoinView::from(join) }).collect();
    Ok(Json(Joins { joins, next }))
}

/// Get a join
#[utoipa::path(get, path = "/outbox/joins/{id}", tag = "joins", params(DatabaseQuery, JoinPath),
    responses((status = 200, description = "The join", body = JoinView)))]
pub(crate) async fn one(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<JoinView>> {
    let database = query.resolve(&web)?;
    find(&database, &id).await.map(JoinView::from).map(Json)
}

/// List the steps of a join
#[utoipa::path(get, path = "/outbox/joins/{id}/steps", tag = "joins", params(StepQuery, JoinPath),
    responses((status = 200, description = "A page of steps", body = Steps),
              (status = 422, description = "The cursor belongs to another list")))]
pub(crate) async fn steps(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(query): Params<StepQuery>,
) -> ApiResult<Json<Steps>> {
    let database = find_database(&web, query.database.as_deref())?;
    let limit = page_size(query.limit)?;
    let after = query.after.as_deref().map(decode_id).transpose()?.map(EventId::from);
    let join = find(&database, &id).await?;
    let mut steps = database.store.steps(&join.id, after.as_ref(), limit + 1).await?;
    let next = next(&mut steps, limit, |(id, _)| id.as_str());
    let view = |(id, step): (EventId, Option<Step>)| StepView {
        event_id: id.to_string(),
        status: step.map(|step| match step {
            Step::Completed => "completed",
            Step::Failed => "failed",
        }),
    };
    Ok(Json(Steps { steps: steps.into_iter().map(view).collect(), next }))
}

/// Cancel a join
///
/// No follow-up will be written. The steps are still delivered.
#[utoipa::path(post, path = "/outbox/joins/{id}/cancel", tag = "joins", params(DatabaseQuery, JoinPath),
    responses((status = 200, description = "Cancelled", body = JoinView), (status = 409, description = "The join is already closed")))]
pub(crate) async fn cancel(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<JoinView>> {
    let database = query.resolve(&web)?;
    let join = find(&database, &id).await?;
    let work = async {
        if join.status != JoinStatus::Pending {
            return Err(Problem::conflict(format!("join `{}` is {}", join.id, join.status)));
        }
        let acted = database.store.join(&JoinCommand::Cancel { join: join.id.clone() }).await?;
        let outcome = acted.join.ok_or_else(|| unknown(join.id.as_str()))?;
        Ok(Changed { count: 1, outcome })
    };
    let change = AuditedChange::new(&database, &caller, "join.cancel", join.id.to_string());
    change.carry_out(work).await.map(JoinView::from).map(Json)
}

async fn find(database: &Database, id: &str) -> ApiResult<Join> {
    text::check("id", id, 36).map_err(|_| unknown(id))?;
    let found = Admin::new(database.store.clone()).join(&JoinId::from(id)).await?;
    found.ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> Problem {
    Problem::not_found(format!("join `{}` not found", text::printable(id)))
        .advice("It may have been purged, or be in another database.")
}

/// Truncates a page that has one row more than the limit. Returns the cursor of the next page.
fn next<T>(rows: &mut Vec<T>, limit: usize, id: impl Fn(&T) -> &str) -> Option<String> {
    if rows.len() <= limit {
        return None;
    }
    rows.truncate(limit);
    rows.last().map(|last| encode_id(id(last)))
}

impl From<Join> for JoinView {
    fn from(join: Join) -> Self {
        Self {
            id: join.id.to_string(),
            status: join.status.to_string(),
            grouping_key: join.grouping_key,
            expected: join.expected,
            attached: join.attached,
            completed: join.completed,
            failed: join.failed,
            awaited: join.awaited,
            metadata: join.metadata,
            created_at: join.created_at,
            updated_at: join.updated_at,
        }
    }
}
