//! Blocked keys: the first event of a key is dead, and the events behind it wait.

use axum::Json;
use axum::extract::{Path, State};
use outbox::store::{Filter, PageAsk, Shelf};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::acts::{DoneTo, change, hand_of};
use super::event::{Found, find_at};
use crate::auth::Caller;
use crate::databases::Chosen;
use crate::deeds::Deeds;
use crate::extract::{Params, Place, choose, page_size};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;
use crate::views::{Count, EventView};

/// Number of dead events scanned: each needs a query of its key, and a dashboard requests this list
/// every few seconds.
const LOOK_AT: usize = 2_000;

/// Number of events of a key scanned for the first dead event: pending events may precede it.
const LOOK_AT_IN_KEY: usize = 100_000;

/// Query of the list of blocked keys.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listing {
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
    behind: Count,
}

/// Path of an ordering key.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct Which {
    /// The ordering key.
    #[param(min_length = 1, max_length = 255, example = "order:o-17")]
    key: String,
}

/// List blocked keys
///
/// Relays with `on_dead = skip` deliver the events behind a dead event; relays with `on_dead =
/// hold` wait until the head is replayed or skipped.
#[utoipa::path(get, path = "/outbox/keys", tag = "keys", params(Listing),
    responses((status = 200, description = "Blocked keys among the first two thousand dead events", body = Keys)))]
pub(crate) async fn list(State(web): State<Shared>, Params(listing): Params<Listing>) -> Answer<Json<Keys>> {
    let database = choose(&web, listing.database.as_deref())?;
    let found = database.store.blocked_keys(LOOK_AT, page_size(listing.limit)?).await?;
    let view = |key: outbox::store::BlockedKey| KeyView {
        key: key.key,
        head: key.head.into(),
        behind: key.behind.into(),
    };
    Ok(Json(Keys { keys: found.keys.into_iter().map(view).collect(), more: found.more }))
}

/// Replay the head of a key
///
/// The first dead event of the key becomes NEW; the events behind it follow when it is done.
#[utoipa::path(post, path = "/outbox/keys/{key}/replay", tag = "keys", params(Place, Which),
    responses((status = 200, description = "The event is NEW", body = DoneTo), (status = 409, description = "The event is no longer dead")))]
pub(crate) async fn replay(
    State(web): State<Shared>,
    caller: Caller,
    Path(key): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let database = place.choose(&web)?;
    let found = head(&database, &key).await?;
    let deed = Deeds::new(&database, &caller, "key.replay", found.name());
    change(deed, &found, "replayed", "dead", found.replay(&database)).await
}

/// Skip the head of a key
///
/// The first dead event of the key becomes DONE without being delivered, and the events behind it
/// follow.
#[utoipa::path(post, path = "/outbox/keys/{key}/skip", tag = "keys", params(Place, Which),
    responses((status = 200, description = "The event is DONE", body = DoneTo), (status = 409, description = "The event is no longer dead")))]
pub(crate) async fn skip(
    State(web): State<Shared>,
    caller: Caller,
    Path(key): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<DoneTo>> {
    let database = place.choose(&web)?;
    let found = head(&database, &key).await?;
    let (id, by) = (found.id()?, hand_of(&caller));
    let deed = Deeds::new(&database, &caller, "key.skip", found.name());
    change(deed, &found, "skipped", "dead", database.store.skip(id, &by)).await
}

/// Finds the first dead event of a key.
async fn head(database: &Chosen, key: &str) -> Answer<Found> {
    let nothing = || {
        Problem::not_found(format!("key `{}` has no dead event", text::shown(key)))
            .advice("GET /api/outbox/keys lists blocked keys.")
    };
    // No database stores this text, and PostgreSQL rejects it as a parameter.
    if key.contains('\0') {
        return Err(nothing());
    }
    let filter = Filter { ordering_key: Some(key.to_owned()), ..Filter::default() };
    // The page is in the order of sequence numbers: the first row is the head of the key.
    let ask = PageAsk { shelf: Shelf::Dead, filter, limit: 1, look_at: LOOK_AT_IN_KEY, ..PageAsk::default() };
    let first = database.store.page(&ask).await?.rows.pop().ok_or_else(nothing)?;
    find_at(database, first.seq).await?.ok_or_else(nothing)
}
