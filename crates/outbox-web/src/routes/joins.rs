//! Joins: many steps, and what follows when all are settled.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{JoinAct, JoinFilter};
use outbox::{Admin, EventId, Join, JoinId, JoinStatus, Step};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::Caller;
use crate::cursor::{decode_id, encode_id};
use crate::databases::Chosen;
use crate::deeds::{Deeds, Happened};
use crate::extract::{Params, Place, choose, page_size};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;

/// Which joins.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listing {
    /// The name of the database, where there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Only those that stand so.
    #[param(inline)]
    status: Option<Standing>,
    /// Only those of this group.
    #[param(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1F\\x7F-\\x9F]+$")]
    group: Option<String>,
    /// Where the last page ended: its `next`.
    #[param(min_length = 1, max_length = 100)]
    after: Option<String>,
    /// How many to show; 50 if not set.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Where a join stands.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// Not all steps are settled, or nobody has said what follows.
    Pending,
    /// All steps are done, and what follows was written.
    Completed,
    /// Some failed, and what follows a failure was written.
    Failed,
    /// Given up: nothing follows.
    Cancelled,
}

impl From<Standing> for JoinStatus {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Pending => JoinStatus::Pending,
            Standing::Completed => JoinStatus::Completed,
            Standing::Failed => JoinStatus::Failed,
            Standing::Cancelled => JoinStatus::Cancelled,
        }
    }
}

/// From where on, and how many.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StepListing {
    /// The name of the database, where there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Where the last page ended: its `next`.
    #[param(min_length = 1, max_length = 100)]
    after: Option<String>,
    /// How many to show; 50 if not set.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Some joins, and where to go on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Joins {
    /// Oldest first.
    joins: Vec<JoinView>,
    /// What `after` is for the next page; null: the end was reached.
    next: Option<String>,
}

/// A join as it stands.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "status": "PENDING", "grouping_key": "import-7", "expected": 10, "attached": 10,
    "completed": 7, "failed": 1, "awaited": true, "metadata": null, "created_at": "2026-01-31T12:00:00Z",
    "updated_at": "2026-01-31T12:01:00Z",
}))]
pub(crate) struct JoinView {
    /// Its id.
    id: String,
    /// `PENDING`, `COMPLETED`, `FAILED` or `CANCELLED`.
    status: String,
    /// What it belongs to.
    grouping_key: Option<String>,
    /// How many steps it waits for.
    expected: u32,
    /// How many it knows.
    attached: u32,
    /// How many are done.
    completed: u32,
    /// How many are dead.
    failed: u32,
    /// Whether somebody has said what follows.
    awaited: bool,
    /// What its maker wrote down with it; only where one join is shown.
    metadata: Option<String>,
    /// When it was started.
    created_at: DateTime<Utc>,
    /// When it last changed.
    updated_at: DateTime<Utc>,
}

/// Some steps of a join, and where to go on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Steps {
    /// By id.
    steps: Vec<StepView>,
    /// What `after` is for the next page; null: the end was reached.
    next: Option<String>,
}

/// A step of a join.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"event_id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "status": "completed"}))]
pub(crate) struct StepView {
    /// Which event.
    event_id: String,
    /// `completed`, `failed`, or null: not settled.
    status: Option<&'static str>,
}

/// Which join.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "tells the document of the path")]
pub(crate) struct Which {
    /// The id of the join.
    #[param(min_length = 1, max_length = 36, example = "01JD2Q7M3T5V9XKQ8B4N6C0ZRA")]
    id: String,
}

/// List joins
#[utoipa::path(get, path = "/outbox/joins", tag = "joins", params(Listing),
    responses((status = 200, description = "A page of joins", body = Joins),
              (status = 422, description = "The cursor is not one of this list")))]
pub(crate) async fn list(State(web): State<Shared>, Params(listing): Params<Listing>) -> Answer<Json<Joins>> {
    let database = choose(&web, listing.database.as_deref())?;
    let limit = page_size(listing.limit)?;
    if let Some(group) = &listing.group {
        text::check("group", group, 255)?;
    }
    let filter = JoinFilter {
        status: listing.status.map(JoinStatus::from),
        grouping_key: listing.group,
        after: listing.after.as_deref().map(decode_id).transpose()?.map(JoinId::from),
        ..JoinFilter::default()
    };
    let mut joins = database.store.joins(&filter, limit + 1).await?;
    let next = next(&mut joins, limit, |join| join.id.as_str());
    let joins = joins.into_iter().map(|join| JoinView { metadata: None, ..JoinView::from(join) }).collect();
    Ok(Json(Joins { joins, next }))
}

/// One join
#[utoipa::path(get, path = "/outbox/joins/{id}", tag = "joins", params(Place, Which),
    responses((status = 200, description = "The join", body = JoinView)))]
pub(crate) async fn one(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<JoinView>> {
    let database = place.choose(&web)?;
    find(&database, &id).await.map(JoinView::from).map(Json)
}

/// The steps of a join
#[utoipa::path(get, path = "/outbox/joins/{id}/steps", tag = "joins", params(StepListing, Which),
    responses((status = 200, description = "A page of steps", body = Steps),
              (status = 422, description = "The cursor is not one of this list")))]
pub(crate) async fn steps(
    State(web): State<Shared>,
    Path(id): Path<String>,
    Params(listing): Params<StepListing>,
) -> Answer<Json<Steps>> {
    let database = choose(&web, listing.database.as_deref())?;
    let limit = page_size(listing.limit)?;
    let after = listing.after.as_deref().map(decode_id).transpose()?.map(EventId::from);
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
/// Nothing follows it any more. Its steps are delivered all the same.
#[utoipa::path(post, path = "/outbox/joins/{id}/cancel", tag = "joins", params(Place, Which),
    responses((status = 200, description = "Cancelled", body = JoinView), (status = 409, description = "It is closed")))]
pub(crate) async fn cancel(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<JoinView>> {
    let database = place.choose(&web)?;
    let join = find(&database, &id).await?;
    let work = async {
        if join.status != JoinStatus::Pending {
            return Err(Problem::conflict(format!("the join `{}` is {}", join.id, join.status)));
        }
        let acted = database.store.join(&JoinAct::Cancel { join: join.id.clone() }).await?;
        let outcome = acted.join.ok_or_else(|| unknown(join.id.as_str()))?;
        Ok(Happened { count: 1, outcome })
    };
    let deed = Deeds::new(&database, &caller, "join.cancel", join.id.to_string());
    deed.carry_out(work).await.map(JoinView::from).map(Json)
}

async fn find(database: &Chosen, id: &str) -> Answer<Join> {
    text::check("id", id, 36).map_err(|_| unknown(id))?;
    let found = Admin::new(database.store.clone()).join(&JoinId::from(id)).await?;
    found.ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> Problem {
    Problem::not_found(format!("there is no join `{}`", text::shown(id)))
        .advice("It may have been purged, or be in another database.")
}

/// Cuts a page that has one row too many, and says where it ends.
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
