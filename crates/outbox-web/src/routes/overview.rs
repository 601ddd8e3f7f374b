//! How it is going: at a glance, and second by second.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use chrono::{DateTime, Utc};
use futures_util::stream::{self, Stream};
use outbox::store::{Shelf, TypeCount, UnroutedEvents, UnroutedType};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use utoipa::{IntoParams, ToSchema};

use super::nodes::{TaskErrorView, failing};
use crate::auth::Caller;
use crate::extract::{Params, Place, choose};
use crate::live::{Listening, MOST, OverviewView, Point, Tick};
use crate::problem::Answer;
use crate::state::Shared;
use crate::views::Count;

/// How many pending and dead events are looked at to tell their types.
const LOOK_AT: usize = 2_000;

/// What to tell.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Ask {
    /// The name of the database, where there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Whether to tell the last quarter of an hour as well, as far as somebody listened to `live`.
    history: Option<bool>,
}

/// How it is going.
#[derive(Serialize, ToSchema)]
pub(crate) struct Glance {
    /// What stands in the table.
    #[serde(flatten)]
    overview: OverviewView,
    /// By event type, as far as the first two thousand pending and dead events tell.
    types: Vec<TypeGlance>,
    /// Errors that keep relays from delivering.
    failing: Vec<TaskErrorView>,
    /// Pending events that no running relay routes.
    unrouted: UnroutedView,
    /// The last quarter of an hour, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Point>>,
}

/// Pending events that no running relay routes: they stay pending until a relay that routes them runs.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "types": [{"event_type": "order.refunded", "aggregate_type": "order", "count": 3, "oldest": "2026-01-31T12:00:00Z"}],
    "more": false, "relays": ["shop-1-4711-a1b2"],
}))]
pub(crate) struct UnroutedView {
    /// By type, the most frequent first; a hundred at most.
    types: Vec<UnroutedTypeView>,
    /// Whether there may be more: only the first two thousand pending events were looked at.
    more: bool,
    /// The running relays, none of which routes them.
    relays: Vec<String>,
}

/// Pending events of one type that no running relay routes.
#[derive(Serialize, ToSchema)]
pub(crate) struct UnroutedTypeView {
    /// The event type.
    event_type: String,
    /// The type of the aggregate.
    aggregate_type: String,
    /// How many wait.
    count: u64,
    /// When the oldest of them was stored.
    oldest: Option<DateTime<Utc>>,
}

impl From<UnroutedEvents> for UnroutedView {
    fn from(found: UnroutedEvents) -> Self {
        let view = |of: UnroutedType| UnroutedTypeView {
            event_type: of.event_type,
            aggregate_type: of.aggregate_type,
            count: of.count,
            oldest: of.oldest,
        };
        Self {
            types: found.types.into_iter().map(view).collect(),
            more: found.more,
            relays: found.relays.iter().map(ToString::to_string).collect(),
        }
    }
}

/// How it is going with a type.
#[derive(Serialize, ToSchema)]
pub(crate) struct TypeGlance {
    /// The type.
    event_type: String,
    /// How many wait to be delivered.
    pending: Count,
    /// When the oldest of them was stored.
    oldest: Option<DateTime<Utc>>,
    /// How many were given up.
    dead: Count,
    /// Delivered a second; null if nobody listens to `live`.
    delivered_per_second: Option<f64>,
    /// Failed attempts a second.
    failed_per_second: Option<f64>,
}

/// Overview
///
/// How it is going, in a time that does not depend on the size of the table: counts stop at ten thousand.
#[utoipa::path(get, path = "/outbox/overview", tag = "overview", params(Ask),
    responses((status = 200, description = "At a glance", body = Glance)))]
pub(crate) async fn overview(State(web): State<Shared>, Params(ask): Params<Ask>) -> Answer<Json<Glance>> {
    let database = choose(&web, ask.database.as_deref())?;
    let overview = database.store.overview(MOST).await?;
    let pending = database.store.breakdown(Shelf::Pending, LOOK_AT).await?;
    let dead = database.store.breakdown(Shelf::Dead, LOOK_AT).await?;
    let latest = web.live.latest(&database.name);
    let history = ask.history.unwrap_or(false).then(|| web.live.history(&database.name));
    let pending = (pending.types, pending.more);
    let types = glance(pending, (dead.types, dead.more), latest.as_deref());
    let failing = failing(&database.store.nodes().await?);
    let unrouted = database.store.unrouted(LOOK_AT).await?.into();
    Ok(Json(Glance { overview: overview.into(), types, failing, unrouted, history }))
}

/// Puts together what is known of each type, those that wait most first.
fn glance(
    pending: (Vec<TypeCount>, bool),
    dead: (Vec<TypeCount>, bool),
    latest: Option<&Tick>,
) -> Vec<TypeGlance> {
    let mut types: BTreeMap<String, TypeGlance> = BTreeMap::new();
    let rated = latest.map(|_| 0.0);
    let new = |event_type: &str| TypeGlance {
        event_type: event_type.to_owned(),
        pending: Count::default(),
        oldest: None,
        dead: Count::default(),
        delivered_per_second: rated,
        failed_per_second: rated,
    };
    for of in pending.0 {
        let glance = types.entry(of.event_type.clone()).or_insert_with(|| new(&of.event_type));
        glance.pending = Count { count: of.count, more: pending.1 };
        glance.oldest = of.oldest;
    }
    for of in dead.0 {
        let glance = types.entry(of.event_type.clone()).or_insert_with(|| new(&of.event_type));
        glance.dead = Count { count: of.count, more: dead.1 };
    }
    for rate in latest.iter().flat_map(|tick| &tick.types) {
        let glance = types.entry(rate.event_type.clone()).or_insert_with(|| new(&rate.event_type));
        glance.delivered_per_second = Some(rate.delivered);
        glance.failed_per_second = Some(rate.failed);
    }
    let mut types: Vec<TypeGlance> = types.into_values().collect();
    let weight =
        |of: &TypeGlance| (of.pending.count + of.dead.count, of.delivered_per_second.unwrap_or(0.0) as u64);
    types.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.event_type.cmp(&b.event_type)));
    types
}

/// Live
///
/// Server-sent events: first `history`, the last quarter of an hour as an array of points, then `tick` every second. A stream of a
/// session ends with it.
#[utoipa::path(get, path = "/outbox/live", tag = "overview", params(Place),
    responses((status = 200, description = "A stream without end", content_type = "text/event-stream", body = Tick)))]
pub(crate) async fn live(
    State(web): State<Shared>,
    caller: Caller,
    Params(place): Params<Place>,
) -> Answer<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let database = place.choose(&web)?;
    let Listening { history, ticks, place } =
        web.live.listen(&web.databases, &database.name, &caller.name)?;
    let points: Vec<Point> = history.iter().map(|tick| tick.point.clone()).collect();
    let first = stream::iter([Ok(told("history", &points))]);
    // The place is given back when nobody reads any more.
    let rest = stream::unfold((ticks, place), async |(mut ticks, place)| {
        loop {
            match ticks.recv().await {
                Ok(tick) => return Some((Ok(told("tick", &*tick)), (ticks, place))),
                // Whoever reads too slowly misses seconds.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    // A token lasts as long as the process.
    let over = async move {
        match caller.session {
            Some(session) => session.over().await,
            None => std::future::pending().await,
        }
    };
    let all = stream::StreamExt::take_until(stream::StreamExt::chain(first, rest), Box::pin(over));
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(Duration::from_secs(5))))
}

fn told(name: &str, what: &impl Serialize) -> Event {
    Event::default().event(name).data(serde_json::to_string(what).unwrap_or_default())
}
