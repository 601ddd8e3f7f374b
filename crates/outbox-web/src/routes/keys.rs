//! Blocked keys: the first event of a key is dead, and others wait behind it.

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

/// How many dead events are looked at: each costs a look at its key, and a dashboard asks every few seconds.
const LOOK_AT: usize = 2_000;

/// How many events of a key are looked at to find the first dead one: pending ones may stand before it.
const LOOK_AT_IN_KEY: usize = 100_000;

/// How many keys to show.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listing {
    /// The name of the database, where there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// How many keys to show; 50 if not set.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Keys whose first dead event holds back others.
#[derive(Serialize, ToSchema)]
pub(crate) struct Keys {
    /// By the place of the dead event in the table.
    keys: Vec<KeyView>,
    /// Whether there may be more.
    more: bool,
}

/// A key whose first dead event holds back others.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyView {
    /// The key.
    key: String,
    /// The dead event.
    head: EventView,
    /// How many wait behind it.
    behind: Count,
}

/// Which key.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "tells the document of the path")]
pub(crate) struct Which {
    /// The ordering key.
    #[param(min_length = 1, max_length = 255, example = "order:o-17")]
    key: String,
}

/// Blocked keys
///
/// Relays that skip dead events go on without them; those that hold them wait until the head is replayed or skipped.
#[utoipa::path(get, path = "/outbox/keys", tag = "keys", params(Listing),
    responses((status = 200, description = "Those among the first two thousand dead events", body = Keys)))]
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
/// Its first dead event is new again; the others follow when it is done.
#[utoipa::path(post, path = "/outbox/keys/{key}/replay", tag = "keys", params(Place, Which),
    responses((status = 200, description = "It is new again", body = DoneTo), (status = 409, description = "It is not dead any more")))]
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
/// Its first dead event counts as settled without being delivered, and the others go on.
#[utoipa::path(post, path = "/outbox/keys/{key}/skip", tag = "keys", params(Place, Which),
    responses((status = 200, description = "It is done", body = DoneTo), (status = 409, description = "It is not dead any more")))]
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

/// The first dead event of a key.
async fn head(database: &Chosen, key: &str) -> Answer<Found> {
    let nothing = || {
        Problem::not_found(format!("the key `{}` has no dead event", text::shown(key)))
            .advice("GET /api/outbox/keys lists the keys that are blocked.")
    };
    // What no database holds, and PostgreSQL fails at.
    if key.contains('\0') {
        return Err(nothing());
    }
    let filter = Filter { ordering_key: Some(key.to_owned()), ..Filter::default() };
    // Of a key, in the order of the table: the first one is its head.
    let ask = PageAsk { shelf: Shelf::Dead, filter, limit: 1, look_at: LOOK_AT_IN_KEY, ..PageAsk::default() };
    let first = database.store.page(&ask).await?.rows.pop().ok_or_else(nothing)?;
    find_at(database, first.seq).await?.ok_or_else(nothing)
}
