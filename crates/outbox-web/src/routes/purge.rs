//! Purge: deletes old rows.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{OriginalUri, State};
use axum::response::{IntoResponse as _, Response};
use outbox::store::{Filter, Purge, Purgeable, SharedStore, Shelf};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::dead::rate;
use super::jobs::accepted;
use crate::age::Age;
use crate::auth::Caller;
use crate::deeds::Deeds;
use crate::extract::{Input, Params, Place};
use crate::filter::count;
use crate::jobs::{Job, JobView, NewJob, Pace};
use crate::problem::Answer;
use crate::state::Shared;
use crate::views::Count;

/// Request of a purge.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"what": "done", "older_than": "7d", "dry_run": true}))]
pub(crate) struct PurgeAsk {
    /// The rows to purge.
    what: What,
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
pub(crate) enum What {
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
#[utoipa::path(post, path = "/outbox/purge", tag = "purge", params(Place), request_body = PurgeAsk,
    responses((status = 200, description = "With `dry_run`: the number of rows; `more` with 0 if these rows are not counted", body = Count),
              (status = 202, description = "The job has started", body = JobView,
               headers(("location" = String, description = "The path of the job"))),
              (status = 422, description = "A value is not valid")))]
pub(crate) async fn purge(
    State(web): State<Shared>,
    caller: Caller,
    uri: OriginalUri,
    Params(place): Params<Place>,
    Input(ask): Input<PurgeAsk>,
) -> Answer<Response> {
    let database = place.choose(&web)?;
    let rate = rate(ask.rate)?;
    let older_than = ask.older_than.0;
    if ask.dry_run {
        let total = total(&database.store, ask.what, older_than).await?;
        return Ok(Json(total.unwrap_or(Count { count: 0, more: true })).into_response());
    }
    let permit = web.jobs.permit()?;
    let total = total(&database.store, ask.what, older_than).await?;
    let details =
        serde_json::json!({"what": ask.what, "older_than": format!("{older_than:?}"), "rate": rate});
    let noted = Deeds::new(&database, &caller, "purge", format!("{:?}", ask.what).to_lowercase());
    let noted = noted.details(&details).note().await?;
    let new = NewJob { kind: "purge", actor: caller.name.clone(), rate, total };
    let store = database.store.clone();
    let job = web.jobs.start(permit, new, noted, |job| purge_all(job, store, ask.what, older_than, rate));
    Ok(accepted(&uri, &job))
}

/// Number of rows, if it can be counted with an index.
async fn total(store: &SharedStore, what: What, older_than: Duration) -> Answer<Option<Count>> {
    let filter = Filter { settled_before: Some(older_than), ..Filter::default() };
    Ok(match what {
        What::Done => Some(count(store, Shelf::Done, &filter).await?),
        What::Dead => Some(count(store, Shelf::Dead, &filter).await?),
        What::Finished => {
            let (done, dead) =
                (count(store, Shelf::Done, &filter).await?, count(store, Shelf::Dead, &filter).await?);
            Some(Count { count: done.count + dead.count, more: done.more || dead.more })
        }
        What::Joins | What::Inbox | What::Attempts => None,
    })
}

async fn purge_all(
    job: Arc<Job>,
    store: SharedStore,
    what: What,
    older_than: Duration,
    rate: Option<u32>,
) -> Answer<()> {
    let mut pace = Pace::new(rate);
    let limit = pace.batch();
    let rows = |what| Purge { what, older_than, limit };
    loop {
        let purged = match what {
            What::Done => store.purge(rows(Purgeable::Done)).await?,
            What::Dead => store.purge(rows(Purgeable::Dead)).await?,
            What::Finished => store.purge(rows(Purgeable::Finished)).await?,
            What::Joins => store.purge_joins(older_than, limit).await?,
            What::Inbox => store.purge_inbox(older_than, limit).await?,
            What::Attempts => store.purge_attempts(older_than, limit).await?,
        };
        job.add(purged);
        if purged < limit as u64 || !pace.wait(purged, &job.stop).await {
            return Ok(());
        }
    }
}
