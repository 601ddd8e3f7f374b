//! Purging: rows that nobody needs any more.

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

/// What to purge.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"what": "done", "older_than": "7d", "dry_run": true}))]
pub(crate) struct PurgeAsk {
    /// Which rows.
    what: What,
    /// Only those that have been so for longer than this.
    older_than: Age,
    /// Only count them; joins, inbox entries and attempts are not counted.
    #[serde(default)]
    dry_run: bool,
    /// How many a second, at most; as fast as it goes if not set.
    #[schema(minimum = 1, maximum = 100_000)]
    rate: Option<u32>,
}

/// Which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// Events that are done.
    Done,
    /// Events that are dead, apart from those that hold back later events of their key.
    Dead,
    /// Both: first those that are done.
    Finished,
    /// Joins that are closed, with their steps.
    Joins,
    /// What consumers have done: what is delivered again after that is new to them.
    Inbox,
    /// Failed attempts of events.
    Attempts,
}

/// Purge old rows
///
/// With `dry_run` they are only counted, up to ten thousand. Otherwise a job starts: see `Location`. Pending events are never
/// purged, and neither are steps of joins that are open, nor dead events that hold back later events of their key: those
/// are counted all the same.
#[utoipa::path(post, path = "/outbox/purge", tag = "purge", params(Place), request_body = PurgeAsk,
    responses((status = 200, description = "With `dry_run`: how many there are; `more` with 0 if they are not counted", body = Count),
              (status = 202, description = "The job has started", body = JobView,
               headers(("location" = String, description = "Where to see how far it is"))),
              (status = 422, description = "A value cannot be")))]
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

/// How many there are, if that can be told without looking at everything.
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
