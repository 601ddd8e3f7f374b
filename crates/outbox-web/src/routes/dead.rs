//! Dead events: counts by type, and bulk replay.

use axum::Json;
use axum::extract::{OriginalUri, State};
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, Utc};
use outbox::store::{Filter, SharedStore, Status, StatusGroup};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::jobs::accepted;
use crate::audit::AuditedChange;
use crate::auth::Caller;
use crate::extract::{DatabaseQuery, Input, Params};
use crate::filter::{DeadFilter, count};
use crate::jobs::{Job, JobView, NewJob, Pace};
use crate::problem::{ApiResult, Kind, Problem};
use crate::state::Shared;
use crate::views::Count;

/// Number of dead events scanned for the counts by type.
const SCAN_LIMIT: usize = 10_000;

/// Counts of dead events by type.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"types": [{"event_type": "order.placed", "count": 12, "oldest": "2026-01-31T12:00:00Z"}],
                          "scanned": 12, "more": false}))]
pub(crate) struct DeadTypes {
    /// The types, most frequent first.
    types: Vec<DeadType>,
    /// Number of events scanned.
    scanned: u64,
    /// Whether there are more dead events.
    more: bool,
}

/// Number of dead events of a type.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadType {
    /// The event type.
    event_type: String,
    /// The number of dead events.
    count: u64,
    /// When the oldest of these events was stored.
    oldest: Option<DateTime<Utc>>,
}

/// Request of a bulk replay.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"filter": {"event_type": "order.placed"}, "dry_run": true}))]
pub(crate) struct ReplayRequest {
    /// The events to replay. An empty filter needs `confirm_all`.
    #[serde(default)]
    filter: DeadFilter,
    /// Only count the events.
    #[serde(default)]
    dry_run: bool,
    /// Maximum number of events per second; unlimited by default.
    #[schema(minimum = 1, maximum = 100_000)]
    rate: Option<u32>,
    /// Confirms a replay of every dead event.
    #[serde(default)]
    confirm_all: bool,
}

/// Dead events by type
#[utoipa::path(get, path = "/outbox/dead/types", tag = "dead", params(DatabaseQuery),
    responses((status = 200, description = "Counts over the first ten thousand dead events", body = DeadTypes)))]
pub(crate) async fn types(
    State(web): State<Shared>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<DeadTypes>> {
    let found = query.resolve(&web)?.store.breakdown(StatusGroup::Dead, SCAN_LIMIT).await?;
    let view = |of: outbox::store::TypeCount| DeadType {
        event_type: of.event_type,
        count: of.count,
        oldest: of.oldest,
    };
    let types = found.types.into_iter().map(view).collect();
    Ok(Json(DeadTypes { types, scanned: found.scanned, more: found.more }))
}

/// Replay dead events
///
/// With `dry_run` the events are only counted, up to ten thousand. Otherwise a job is started: see
/// `Location`. Events are replayed oldest first; an event that is dead-lettered again during the
/// job is not replayed twice.
#[utoipa::path(post, path = "/outbox/dead/replay", tag = "dead", params(DatabaseQuery), request_body = ReplayRequest,
    responses((status = 200, description = "With `dry_run`: the number of events", body = Count),
              (status = 202, description = "The job has started", body = JobView,
               headers(("location" = String, description = "The path of the job"))),
              (status = 422, description = "The filter is empty, and `confirm_all` is not set")))]
pub(crate) async fn replay(
    State(web): State<Shared>,
    caller: Caller,
    uri: OriginalUri,
    Params(query): Params<DatabaseQuery>,
    Input(replay): Input<ReplayRequest>,
) -> ApiResult<Response> {
    let database = query.resolve(&web)?;
    let filter = Filter { status: Some(Status::Dead), ..replay.filter.filter()? };
    let rate = rate(replay.rate)?;
    if replay.dry_run {
        return Ok(Json(count(&database.store, StatusGroup::Dead, &filter).await?).into_response());
    }
    if replay.filter.is_empty() && !replay.confirm_all {
        return Err(Problem::new(Kind::NotConfirmed, "an empty filter would replay every dead event")
            .advice("Set a filter, or `\"confirm_all\": true`; `\"dry_run\": true` counts them."));
    }
    let permit = web.jobs.permit()?;
    let total = count(&database.store, StatusGroup::Dead, &filter).await?;
    let details = serde_json::json!({"filter": replay.filter.audit_details(), "rate": rate});
    let pending = AuditedChange::new(&database, &caller, "dead.replay", "dead events")
        .details(&details)
        .begin()
        .await?;
    let new = NewJob { kind: "dead.replay", actor: caller.name.clone(), rate, total: Some(total) };
    let store = database.store.clone();
    let job = web.jobs.start(permit, new, pending, |job| replay_all(job, store, filter, rate));
    Ok(accepted(&uri, &job))
}

/// Replays in batches, in the order of sequence numbers.
async fn replay_all(
    job: std::sync::Arc<Job>,
    store: SharedStore,
    mut filter: Filter,
    rate: Option<u32>,
) -> ApiResult<()> {
    let mut pace = Pace::new(rate);
    loop {
        let replayed = store.replay(&filter, pace.batch()).await?;
        job.add(replayed.moved);
        // An event that is dead-lettered again has a number that the job has passed.
        let Some(last) = replayed.last else { return Ok(()) };
        filter.after_seq = Some(last);
        if !pace.wait(replayed.moved, &job.stop).await {
            return Ok(());
        }
    }
}

pub(crate) fn rate(rate: Option<u32>) -> ApiResult<Option<u32>> {
    match rate {
        Some(0) => Err(Problem::invalid("`rate` must be at least 1")),
        Some(rate) if rate > 100_000 => Err(Problem::invalid("`rate` must be at most 100000")),
        rate => Ok(rate),
    }
}
