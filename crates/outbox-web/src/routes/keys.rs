//! Blocked keys: the first event of a key is dead, and the events behind it wait.

use axum::Json;
use axum::extract::{Path, State};
use outbox::store::{Filter, PageRequest, StatusGroup};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::event::{Found, find_at};
use super::event_actions::{ActionResult, actor_node, change_event};
use crate::audit::AuditedChange;
use crate::auth::Caller;
use crate::databases::Database;
use crate::extract::{DatabaseQuery, Params, find_database, page_size};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;
use crate::text;
use crate::views::{Count, EventView};

/// Number of dead events scanned: each needs a query of its key, and a dashboard requests this list
/// every few seconds.
const SCAN_LIMIT: usize = 2_000;

/// Number of events of a key scanned for the first dead event: pending events may precede it.
const KEY_SCAN_LIMIT: usize = 100_000;

/// Query of the list of blocked keys.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyQuery {
    /// The name of the database, if there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Number of keys; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Blocked keys.
#[derive(Serialize, ToSchema)]
pub(crate) struct Keys {
    /// The keys, by sequence number of the dead event.
    keys: Vec<KeyView>,
    /// Whether there may be more blocked keys.
    more: bool,
}

/// A blocked key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyView {
    /// The ordering key.
    key: String,
    /// The first dead event of the key.
    head: EventView,
    /// Number of events that wait behind the dead event.
    waiting: Count,
}

/// Path of an ordering key.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct KeyPath {
    /// The ordering key.
    #[param(min_length = 1, max_length = 255, example = "order:o-17")]
    key: String,
}

/// List blocked keys
///
/// Relays with `on_dead = skip` deliver the events behind a dead event; relays with `on_dead =
/// hold` wait until the head is replayed or skipped.
#[utoipa::path(get, path = "/outbox/keys", tag = "keys", params(KeyQuery),
    responses((status = 200, description = "Blocked keys among the first two thousand dead events", body = Keys)))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(query): Params<KeyQuery>,
) -> ApiResult<Json<Keys>> {
    let database = find_database(&web, query.database.as_deref())?;
    let found = database.store.blocked_keys(SCAN_LIMIT, page_size(query.limit)?).await?;
    let view = |key: outbox::store::BlockedKey| KeyView {
        key: key.key,
        head: key.head.into(),
        waiting: key.waiting.into(),
    };
    Ok(Json(Keys { keys: found.keys.into_iter().map(view).collect(), more: found.more }))
}

/// Replay the head of a key
///
/// The first dead event of the key becomes NEW; the events behind it follow when it is done.
#[utoipa::path(post, path = "/outbox/keys/{key}/replay", tag = "keys", params(DatabaseQuery, KeyPath),
    responses((status = 200, description = "The event is NEW", body = ActionResult), (status = 409, description = "The event is no longer dead")))]
pub(crate) async fn replay(
    State(web): State<Shared>,
    caller: Caller,
    Path(key): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ActionResult>> {
    let database = query.resolve(&web)?;
    let found = head(&database, &key).await?;
    let change = AuditedChange::new(&database, &caller, "key.replay", found.name());
    change_event(change, &found, "replayed", "dead", found.replay(&database)).await
}

/// Skip the head of a key
///
/// The first dead event of the key becomes DONE without being delivered, and the events behind it
/// follow.
#[utoipa::path(post, path = "/outbox/keys/{key}/skip", tag = "keys", params(DatabaseQuery, KeyPath),
    responses((status = 200, description = "The event is DONE", body = ActionResult), (status = 409, description = "The event is no longer dead")))]
pub(crate) async fn skip(
    State(web): State<Shared>,
    caller: Caller,
    Path(key): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<ActionResult>> {
    let database = query.resolve(&web)?;
    let found = head(&database, &key).await?;
    let (id, by) = (found.id()?, actor_node(&caller));
    let change = AuditedChange::new(&database, &caller, "key.skip", found.name());
    change_event(change, &found, "skipped", "dead", database.store.skip(id, &by)).await
}

/// Finds the first dead event of a key.
async fn head(database: &Database, key: &str) -> ApiResult<Found> {
    let no_dead_event = || {
        Problem::not_found(format!("key `{}` has no dead event", text::printable(key)))
            .advice("GET /api/outbox/keys lists blocked keys.")
    };
    // No database stores this text, and PostgreSQL rejects it as a parameter.
    if key.contains('\0') {
        return Err(no_dead_event());
    }
    let filter = Filter { ordering_key: Some(key.to_owned()), ..Filter::default() };
    // The page is in the order of sequence numbers: the first row is the head of the key.
    let request = PageRequest {
        status_group: StatusGroup::Dead,
        filter,
        limit: 1,
        scan_limit: KEY_SCAN_LIMIT,
        ..PageRequest::default()
    };
    let first = database.store.page(&request).await?.rows.pop().ok_or_else(no_dead_event)?;
    find_at(database, first.seq).await?.ok_or_else(no_dead_event)
}
