//! Dead events: what there is, and bringing many of them back.

use axum::Json;
use axum::extract::{OriginalUri, State};
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, Utc};
use outbox::store::{Filter, SharedStore, Shelf, Status};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::jobs::accepted;
use crate::auth::Caller;
use crate::deeds::Deeds;
use crate::extract::{Input, Params, Place};
use crate::filter::{DeadFilter, count};
use crate::jobs::{Job, JobView, NewJob, Pace};
use crate::problem::{Answer, Kind, Problem};
use crate::state::Shared;
use crate::views::Count;

/// How many dead events are looked at to tell their types.
const LOOK_AT: usize = 10_000;

/// Of the first dead events: how many of each type.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"types": [{"event_type": "order.placed", "count": 12, "oldest": "2026-01-31T12:00:00Z"}],
                          "looked_at": 12, "more": false}))]
pub(crate) struct Types {
    /// The most frequent first.
    types: Vec<TypeView>,
    /// How many events were looked at.
    looked_at: u64,
    /// Whether there are more.
    more: bool,
}

/// How many events there are of a type.
#[derive(Serialize, ToSchema)]
pub(crate) struct TypeView {
    /// The type.
    event_type: String,
    /// How many.
    count: u64,
    /// When the oldest of them was stored.
    oldest: Option<DateTime<Utc>>,
}

/// Which dead events to replay, and how.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"filter": {"event_type": "order.placed"}, "dry_run": true}))]
pub(crate) struct Replay {
    /// Which ones. Without any, `confirm_all` is needed.
    #[serde(default)]
    filter: DeadFilter,
    /// Only count them.
    #[serde(default)]
    dry_run: bool,
    /// How many a second, at most; as fast as it goes if not set.
    #[schema(minimum = 1, maximum = 100_000)]
    rate: Option<u32>,
    /// Yes, every dead event there is.
    #[serde(default)]
    confirm_all: bool,
}

/// Dead events by type
#[utoipa::path(get, path = "/outbox/dead/types", tag = "dead", params(Place),
    responses((status = 200, description = "Of the first ten thousand", body = Types)))]
pub(crate) async fn types(State(web): State<Shared>, Params(place): Params<Place>) -> Answer<Json<Types>> {
    let found = place.choose(&web)?.store.breakdown(Shelf::Dead, LOOK_AT).await?;
    let view = |of: outbox::store::TypeCount| TypeView {
        event_type: of.event_type,
        count: of.count,
        oldest: of.oldest,
    };
    let types = found.types.into_iter().map(view).collect();
    Ok(Json(Types { types, looked_at: found.looked_at, more: found.more }))
}

/// Replay dead events
///
/// With `dry_run` they are only counted, up to ten thousand. Otherwise a job starts: see `Location`. Events are replayed oldest
/// first; one that dies again meanwhile is not replayed twice.
#[utoipa::path(post, path = "/outbox/dead/replay", tag = "dead", params(Place), request_body = Replay,
    responses((status = 200, description = "With `dry_run`: how many there are", body = Count),
              (status = 202, description = "The job has started", body = JobView,
               headers(("location" = String, description = "Where to see how far it is"))),
              (status = 422, description = "It would be every dead event, and `confirm_all` is not set")))]
pub(crate) async fn replay(
    State(web): State<Shared>,
    caller: Caller,
    uri: OriginalUri,
    Params(place): Params<Place>,
    Input(replay): Input<Replay>,
) -> Answer<Response> {
    let database = place.choose(&web)?;
    let filter = Filter { status: Some(Status::Dead), ..replay.filter.filter()? };
    let rate = rate(replay.rate)?;
    if replay.dry_run {
        return Ok(Json(count(&database.store, Shelf::Dead, &filter).await?).into_response());
    }
    if replay.filter.is_empty() && !replay.confirm_all {
        return Err(Problem::new(Kind::NotConfirmed, "without a filter every dead event would be replayed")
            .advice(
                "Set a filter, or `\"confirm_all\": true`; `\"dry_run\": true` tells how many there are.",
            ));
    }
    let permit = web.jobs.permit()?;
    let total = count(&database.store, Shelf::Dead, &filter).await?;
    let details = serde_json::json!({"filter": replay.filter.told(), "rate": rate});
    let noted = Deeds::new(&database, &caller, "dead.replay", "dead events").details(&details).note().await?;
    let new = NewJob { kind: "dead.replay", actor: caller.name.clone(), rate, total: Some(total) };
    let store = database.store.clone();
    let job = web.jobs.start(permit, new, noted, |job| replay_all(job, store, filter, rate));
    Ok(accepted(&uri, &job))
}

/// Batch by batch, by place in the table.
async fn replay_all(
    job: std::sync::Arc<Job>,
    store: SharedStore,
    mut filter: Filter,
    rate: Option<u32>,
) -> Answer<()> {
    let mut pace = Pace::new(rate);
    loop {
        let replayed = store.replay(&filter, pace.batch()).await?;
        job.add(replayed.moved);
        // What dies again stays behind.
        let Some(last) = replayed.last else { return Ok(()) };
        filter.after_seq = Some(last);
        if !pace.wait(replayed.moved, &job.stop).await {
            return Ok(());
        }
    }
}

pub(crate) fn rate(rate: Option<u32>) -> Answer<Option<u32>> {
    match rate {
        Some(0) => Err(Problem::invalid("`rate` must be at least 1")),
        Some(rate) if rate > 100_000 => Err(Problem::invalid("`rate` must be at most 100000")),
        rate => Ok(rate),
    }
}
