//! Actions on a single event.

use axum::Json;
use axum::extract::{Path, State};
use outbox::NodeId;
use serde::Serialize;
use utoipa::ToSchema;

use super::event::{Found, Which, find};
use crate::auth::Caller;
use crate::deeds::{Deeds, Happened, nothing};
use crate::extract::{Params, Place};
use crate::problem::Answer;
use crate::state::Shared;
use crate::text;

/// Result of an action on an event.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "done": "replayed"}))]
pub(crate) struct DoneTo {
    /// The id of the event.
    pub(crate) id: String,
    /// The action: `replayed`, `skipped`, `cancelled` or `edited`.
    pub(crate) done: &'static str,
}

/// Replay a dead event
///
/// The event becomes NEW, and its attempts are reset.
#[utoipa::path(post, path = "/outbox/events/{id}/replay", tag = "events", params(Place, Which),
    responses((status = 200, description = "The event is NEW", body = DoneTo), (status = 409, description = "The event is not dead")))]
pub(crate) async fn replay(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let database = place.choose(&web)?;
    let found = find(&database, id).await?;
    let deed = Deeds::new(&database, &caller, "event.replay", found.name());
    change(deed, &found, "replayed", "dead", found.replay(&database)).await
}

/// Skip a dead event
///
/// The event becomes DONE without being delivered. Its error is kept, and the events behind it in
/// its ordering key are delivered.
#[utoipa::path(post, path = "/outbox/events/{id}/skip", tag = "events", params(Place, Which),
    responses((status = 200, description = "The event is DONE", body = DoneTo), (status = 409, description = "The event is not dead")))]
pub(crate) async fn skip(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let database = place.choose(&web)?;
    let found = find(&database, id).await?;
    let (id, by) = (found.id()?, hand_of(&caller));
    let deed = Deeds::new(&database, &caller, "event.skip", found.name());
    change(deed, &found, "skipped", "dead", database.store.skip(id, &by)).await
}

/// Cancel a pending event
///
/// The event is deleted and never delivered. Refused while a relay is handling it.
#[utoipa::path(post, path = "/outbox/events/{id}/cancel", tag = "events", params(Place, Which),
    responses((status = 200, description = "The event is deleted", body = DoneTo),
              (status = 409, description = "The event is not pending, or a relay is handling it")))]
pub(crate) async fn cancel(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let database = place.choose(&web)?;
    let found = find(&database, id).await?;
    let id = found.id()?;
    let state = "pending, or a relay is handling it";
    let deed = Deeds::new(&database, &caller, "event.cancel", found.name());
    change(deed, &found, "cancelled", state, database.store.cancel(id)).await
}

/// Changes an event if it is in the required state.
pub(crate) async fn change(
    deed: Deeds<'_>,
    found: &Found,
    done: &'static str,
    state: &'static str,
    work: impl Future<Output = outbox::Result<bool>>,
) -> Answer<Json<DoneTo>> {
    let id = found.name();
    let outcome = DoneTo { id: id.clone(), done };
    let work = async {
        match work.await? {
            true => Ok(Happened { count: 1, outcome }),
            false => Err(nothing(format!("event `{}` is not {state}", text::shown(&id)))
                .advice("GET /api/outbox/events/ID shows its status.")),
        }
    };
    deed.carry_out(work).await.map(Json)
}

/// Value of `done_by` for changes by a caller of the API.
pub(crate) fn hand_of(caller: &Caller) -> NodeId {
    NodeId::from(format!("api:{}", caller.name))
}
