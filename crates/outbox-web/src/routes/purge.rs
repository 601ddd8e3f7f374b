//! Purge: deletes old rows.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{OriginalUri, State};
use axum::response::{IntoResponse as _, Response};
use outbox::store::{Filter, Purge, Purgeable, SharedStore, StatusGroup};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::dead::rate;
use super::jobs::accepted;
use crate::age::Age;
use crate::audit::AuditedChange;
use crate::auth::Caller;
use crate::extract::{DatabaseQuery, Input, Params};
use crate::filter::count;
use crate::jobs::{Job, JobView, NewJob, Pace};
use crate::problem::ApiResult;
use crate::state::Shared;
use crate::views::Count;

/// Request of a purge.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"what": "done", "older_than": "7d", "dry_run": true}))]
pub(crate) struct PurgeRequest {
    /// The rows to purge.
    what: PurgeTarget,
    /// Only rows that have been in this state for longer than this.
    older_than: Age,
    /// Only count the rows; joins, inbox entries and attempts are not counted.
    #[serde(default)]
    dry_run: bool,
    /// Maximum number of rows per second; unlimited by default.
    #[schema(minimum = 1, maximum = 100_000)]
    rate: Option<u32>,
}

/// Rows to purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PurgeTarget {
    /// Done events.
    Done,
    /// Dead events, except those that block later events of their key.
    Dead,
    /// Done and dead events: done events first.
    Finished,
    /// Closed joins, with their steps.
    Joins,
    /// Inbox entries of consumers: an event that is delivered again afterwards counts as new.
    Inbox,
    /// Failed attempts of events.
    Attempts,
}

/// Purge old rows
///
/// With `dry_run` the rows are only counted, up to ten thousand. Otherwise a job is started: see
/// `Location`. Never purged are pending events, steps of open joins, and dead events that block
/// later events of their key; the count includes the latter two.
#[utoipa::path(post, path = "/outbox/purge", tag = "purge", params(DatabaseQuery), request_body = PurgeRequest,
    responses((status = 200, description = "With `dry_run`: the number of rows; `more` with 0 if these rows are not counted", body = Count),
              (status = 202, description = "The job has started", body = JobView,
               headers(("location" = String, description = "The path of the job"))),
              (status = 422, description = "A value is not valid")))]
pub(crate) async fn purge(
    State(web): State<Shared>,
    caller: Caller,
    uri: OriginalUri,
    Params(query): Params<DatabaseQuery>,
    Input(request): Input<PurgeRequest>,
) -> ApiResult<Response> {
    let database = query.resolve(&web)?;
    let rate = rate(request.rate)?;
    let older_than = request.older_than.0;
    if request.dry_run {
        let total = total(&database.store, request.what, older_than).await?;
        return Ok(Json(total.unwrap_or(Count { count: 0, more: true })).into_response());
    }
    let permit = web.jobs.permit()?;
    let total = total(&database.store, request.what, older_than).await?;
    let details =
        serde_json::json!({"what": request.what, "older_than": format!("{older_than:?}"), "rate": rate});
    let change =
        AuditedChange::new(&database, &caller, "purge", format!("{:?}", request.what).to_lowercase());
    let pending = change.details(&details).begin().await?;
    let new = NewJob { kind: "purge", actor: caller.name.clone(), rate, total };
    let store = database.store.clone();
    let job =
        web.jobs.start(permit, new, pending, |job| purge_all(job, store, request.what, older_than, rate));
    Ok(accepted(&uri, &job))
}

/// Number of rows, if it can be counted with an index.
async fn total(store: &SharedStore, what: PurgeTarget, older_than: Duration) -> ApiResult<Option<Count>> {
    let filter = Filter { settled_before: Some(older_than), ..Filter::default() };
    Ok(match what {
        PurgeTarget::Done => Some(count(store, StatusGroup::Done, &filter).await?),
        PurgeTarget::Dead => Some(count(store, StatusGroup::Dead, &filter).await?),
        PurgeTarget::Finished => {
            let (done, dead) = (
                count(store, StatusGroup::Done, &filter).await?,
                count(store, StatusGroup::Dead, &filter).await?,
            );
            Some(Count { count: done.count + dead.count, more: done.more || dead.more })
        }
        PurgeTarget::Joins | PurgeTarget::Inbox | PurgeTarget::Attempts => None,
    })
}

async fn purge_all(
    job: Arc<Job>,
    store: SharedStore,
    what: PurgeTarget,
    older_than: Duration,
    rate: Option<u32>,
) -> ApiResult<()> {
    let mut pace = Pace::new(rate);
    let limit = pace.batch();
    let rows = |what| Purge { what, older_than, limit };
    loop {
        let purged = match what {
            PurgeTarget::Done => store.purge(rows(Purgeable::Done)).await?,
            PurgeTarget::Dead => store.purge(rows(Purgeable::Dead)).await?,
            PurgeTarget::Finished => store.purge(rows(Purgeable::Finished)).await?,
            PurgeTarget::Joins => store.purge_joins(older_than, limit).await?,
            PurgeTarget::Inbox => store.purge_inbox(older_than, limit).await?,
            PurgeTarget::Attempts => store.purge_attempts(older_than, limit).await?,
        };
        job.add(purged);
        if purged < limit as u64 || !pace.wait(purged, &job.stop).await {
            return Ok(());
        }
    }
}
