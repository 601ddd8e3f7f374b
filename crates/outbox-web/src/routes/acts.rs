//! What can be done to one event.

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

/// What was done to an event.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "done": "replayed"}))]
pub(crate) struct DoneTo {
    /// Which event.
    pub(crate) id: String,
    /// `replayed`, `skipped`, `cancelled` or `edited`.
    pub(crate) done: &'static str,
}

/// Replay a dead event
///
/// It is new again, with no attempts behind it.
#[utoipa::path(post, path = "/outbox/events/{id}/replay", tag = "events", params(Place, Which),
    responses((status = 200, description = "It is new again", body = DoneTo), (status = 409, description = "It is not dead")))]
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
/// It counts as settled without being delivered: it is DONE by your hand, its error stays, and its key goes on.
#[utoipa::path(post, path = "/outbox/events/{id}/skip", tag = "events", params(Place, Which),
    responses((status = 200, description = "It is done", body = DoneTo), (status = 409, description = "It is not dead")))]
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
/// It is removed, and never delivered. Not while somebody handles it.
#[utoipa::path(post, path = "/outbox/events/{id}/cancel", tag = "events", params(Place, Which),
    responses((status = 200, description = "It is gone", body = DoneTo),
              (status = 409, description = "It is not pending, or is being handled")))]
pub(crate) async fn cancel(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let database = place.choose(&web)?;
    let found = find(&database, id).await?;
    let id = found.id()?;
    let state = "pending, or is being handled right now";
    let deed = Deeds::new(&database, &caller, "event.cancel", found.name());
    change(deed, &found, "cancelled", state, database.store.cancel(id)).await
}

/// Changes one event that was found, if it is in the state for that.
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
            false => Err(nothing(format!("the event `{}` is not {state}", text::shown(&id)))
                .advice("GET /api/outbox/events/ID tells where it stands.")),
        }
    };
    deed.carry_out(work).await.map(Json)
}

/// As the table says who did it.
pub(crate) fn hand_of(caller: &Caller) -> NodeId {
    NodeId::from(format!("api:{}", caller.name))
}
