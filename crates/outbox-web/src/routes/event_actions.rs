//! Actions on a single event.

use axum::Json;
use axum::extract::{Path, State};
use outbox::NodeId;
use serde::Serialize;
use utoipa::ToSchema;

use super::event::{EventPath, Found, find};
use crate::audit::{AuditedChange, Changed, wrong_state};
use crate::auth::Caller;
use crate::extract::{DatabaseQuery, Params};
use crate::problem::ApiResult;
use crate::state::Shared;
use crate::text;

/// Result of an action on an event.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"id": "01JD2Q7M3T5V9XKQ8B4N6C0ZRA", "done": "replayed"}))]
pub(crate) struct ActionResult {
    /// The id of the event.
    pub(crate) id: String,
    /// The action: `replayed`, `skipped`, `cancelled` or `edited`.
    pub(crate) done: &'static str,
}

/// Replay a dead event
///
/// The event becomes NEW, and its attempts are reset.
#[utoipa::path(post, path = "/outbox/events/{id}/replay", tag = "events", params(DatabaseQuery, EventPath),
    responses((status = 200, description = "The event is NEW", body = ActionResult), (status = 409, description = "The event is not dead")))]
pub(crate) async fn replay(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ActionResult>> {
    let database = query.resolve(&web)?;
    let found = find(&database, id).await?;
    let change = AuditedChange::new(&database, &caller, "event.replay", found.name());
    change_event(change, &found, "replayed", "dead", found.replay(&database)).await
}

/// Skip a dead event
///
/// The event becomes DONE without being delivered. Its error is kept, and the events behind it in
/// its ordering key are delivered.
#[utoipa::path(post, path = "/outbox/events/{id}/skip", tag = "events", params(DatabaseQuery, EventPath),
    responses((status = 200, description = "The event is DONE", body = ActionResult), (status = 409, description = "The event is not dead")))]
pub(crate) async fn skip(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ActionResult>> {
    let database = query.resolve(&web)?;
    let found = find(&database, id).await?;
    let (id, by) = (found.id()?, actor_node(&caller));
    let change = AuditedChange::new(&database, &caller, "event.skip", found.name());
    change_event(change, &found, "skipped", "dead", database.store.skip(id, &by)).await
}

/// Cancel a pending event
///
/// The event is deleted and never delivered. Rejected while a relay is handling it.
#[utoipa::path(post, path = "/outbox/events/{id}/cancel", tag = "events", params(DatabaseQuery, EventPath),
    responses((status = 200, description = "The event is deleted", body = ActionResult),
              (status = 409, description = "The event is not pending, or a relay is handling it")))]
pub(crate) async fn cancel(
    State(web): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ActionResult>> {
    let database = query.resolve(&web)?;
    let found = find(&database, id).await?;
    let id = found.id()?;
    let state = "pending, or a relay is handling it";
    let change = AuditedChange::new(&database, &caller, "event.cancel", found.name());
    change_event(change, &found, "cancelled", state, database.store.cancel(id)).await
}

/// Changes an event if it is in the required state.
pub(crate) async fn change_event(
    change: AuditedChange<'_>,
    found: &Found,
    done: &'static str,
    state: &'static str,
    work: impl Future<Output = outbox::Result<bool>>,
) -> ApiResult<Json<ActionResult>> {
    let id = found.name();
    let outcome = ActionResult { id: id.clone(), done };
    let work = async {
        match work.await? {
            true => Ok(Changed { count: 1, outcome }),
            false => Err(wrong_state(format!("event `{}` is not {state}", text::printable(&id)))
                .advice("GET /api/outbox/events/ID shows its status.")),
        }
    };
    change.carry_out(work).await.map(Json)
}

/// Value of `done_by` for changes by a caller of the API.
pub(crate) fn actor_node(caller: &Caller) -> NodeId {
    NodeId::from(format!("api:{}", caller.name))
}
