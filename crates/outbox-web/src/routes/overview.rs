//! Overview of a database, and live samples.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use chrono::{DateTime, Utc};
use futures_util::stream::{self, Stream};
use outbox::store::{StatusGroup, TypeCount, UnroutedEvents, UnroutedType};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use utoipa::{IntoParams, ToSchema};

use super::nodes::{TaskErrorView, failing};
use crate::auth::{Caller, Credential};
use crate::extract::{DatabaseQuery, Params, find_database};
use crate::live::{COUNT_LIMIT, LiveStream, OverviewView, Point, Tick};
use crate::problem::ApiResult;
use crate::state::Shared;
use crate::views::Count;

/// Number of pending and dead events scanned for the counts by type.
const SCAN_LIMIT: usize = 2_000;

/// Query of the overview.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OverviewQuery {
    /// The name of the database, if there are several.
    #[param(max_length = 64, example = "main")]
    database: Option<String>,
    /// Whether to include the last 15 minutes, as far as a `live` stream was open.
    history: Option<bool>,
}

/// Overview of a database.
#[derive(Serialize, ToSchema)]
pub(crate) struct DatabaseOverview {
    /// The state of the table.
    #[serde(flatten)]
    overview: OverviewView,
    /// By event type, based on the first two thousand pending and dead events.
    types: Vec<TypeOverview>,
    /// Errors that prevent relays from delivering.
    failing: Vec<TaskErrorView>,
    /// Pending events that no running relay routes.
    unrouted: UnroutedView,
    /// The last 15 minutes, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<Point>>,
}

/// Pending events that no running relay routes: they stay pending until a relay with a route for
/// them is running.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "types": [{"event_type": "order.refunded", "aggregate_type": "order", "count": 3, "oldest": "2026-01-31T12:00:00Z"}],
    "more": false, "relays": ["shop-1-4711-a1b2"],
}))]
pub(crate) struct UnroutedView {
    /// By type, most frequent first; at most a hundred.
    types: Vec<UnroutedTypeView>,
    /// Whether there may be more: only the first two thousand pending events were scanned.
    more: bool,
    /// The running relays, none of which has a route for these events.
    relays: Vec<String>,
}

/// Pending events of one type that no running relay routes.
#[derive(Serialize, ToSchema)]
pub(crate) struct UnroutedTypeView {
    /// The event type.
    event_type: String,
    /// The aggregate type.
    aggregate_type: String,
    /// Number of pending events.
    count: u64,
    /// When the oldest of these events was stored.
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

/// Counts and rates of an event type.
#[derive(Serialize, ToSchema)]
pub(crate) struct TypeOverview {
    /// The event type.
    event_type: String,
    /// Number of pending events.
    pending: Count,
    /// When the oldest pending event was stored.
    oldest: Option<DateTime<Utc>>,
    /// Number of dead events.
    dead: Count,
    /// Events delivered per second; null while no `live` stream is open.
    delivered_per_second: Option<f64>,
    /// Failed attempts per second.
    failed_per_second: Option<f64>,
}

/// Get the overview
///
/// The time of this request does not depend on the size of the table: counts stop at ten thousand.
#[utoipa::path(get, path = "/outbox/overview", tag = "overview", params(OverviewQuery),
    responses((status = 200, description = "The overview", body = DatabaseOverview)))]
pub(crate) async fn overview(
    State(web): State<Shared>,
    Params(query): Params<OverviewQuery>,
) -> ApiResult<Json<DatabaseOverview>> {
    let database = find_database(&web, query.database.as_deref())?;
    let overview = database.store.overview(COUNT_LIMIT).await?;
    let pending = database.store.breakdown(StatusGroup::Pending, SCAN_LIMIT).await?;
    let dead = database.store.breakdown(StatusGroup::Dead, SCAN_LIMIT).await?;
    let latest = web.live.latest(&database.name);
    let history = query.history.unwrap_or(false).then(|| web.live.history(&database.name));
    let pending = (pending.types, pending.more);
    let types = merge_types(pending, (dead.types, dead.more), latest.as_deref());
    let failing = failing(&database.store.nodes().await?);
    let unrouted = database.store.unrouted(SCAN_LIMIT).await?.into();
    Ok(Json(DatabaseOverview { overview: overview.into(), types, failing, unrouted, history }))
}

/// Merges counts and rates by type, types with the most events first.
fn merge_types(
    pending: (Vec<TypeCount>, bool),
    dead: (Vec<TypeCount>, bool),
    latest: Option<&Tick>,
) -> Vec<TypeOverview> {
    let mut types: BTreeMap<String, TypeOverview> = BTreeMap::new();
    let rated = latest.map(|_| 0.0);
    let new = |event_type: &str| TypeOverview {
        event_type: event_type.to_owned(),
        pending: Count::default(),
        oldest: None,
        dead: Count::default(),
        delivered_per_second: rated,
        failed_per_second: rated,
    };
    for of in pending.0 {
        let of_type = types.entry(of.event_type.clone()).or_insert_with(|| new(&of.event_type));
        of_type.pending = Count { count: of.count, more: pending.1 };
        of_type.oldest = of.oldest;
    }
    for of in dead.0 {
        let of_type = types.entry(of.event_type.clone()).or_insert_with(|| new(&of.event_type));
        of_type.dead = Count { count: of.count, more: dead.1 };
    }
    for rate in latest.iter().flat_map(|tick| &tick.types) {
        let of_type = types.entry(rate.event_type.clone()).or_insert_with(|| new(&rate.event_type));
        of_type.delivered_per_second = Some(rate.delivered);
        of_type.failed_per_second = Some(rate.failed);
    }
    let mut types: Vec<TypeOverview> = types.into_values().collect();
    let weight =
        |of: &TypeOverview| (of.pending.count + of.dead.count, of.delivered_per_second.unwrap_or(0.0) as u64);
    types.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.event_type.cmp(&b.event_type)));
    types
}

/// Open a live stream
///
/// Server-sent events: first `history`, the last 15 minutes as an array of points, then `tick`
/// every second. The stream of a session ends with the session. The stream of a user of the
/// application ends after five minutes, with the event `renew`: the next request shows whether the
/// user still has access.
#[utoipa::path(get, path = "/outbox/live", tag = "overview", params(DatabaseQuery),
    responses((status = 200, description = "A stream of samples", content_type = "text/event-stream", body = Tick)))]
pub(crate) async fn live(
    State(web): State<Shared>,
    caller: Caller,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let database = query.resolve(&web)?;
    let LiveStream { history, ticks, permit } =
        web.live.open_stream(&web.databases, &database.name, &caller.name)?;
    let points: Vec<Point> = history.iter().map(|tick| tick.point.clone()).collect();
    let first = stream::iter([Ok(sse_event("history", &points))]);
    // The permit is released when the response stream is dropped.
    let rest = stream::unfold((ticks, permit), async |(mut ticks, permit)| {
        loop {
            match ticks.recv().await {
                Ok(tick) => return Some((Ok(sse_event("tick", &*tick)), (ticks, permit))),
                // A client that reads too slowly misses samples.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let all = while_accepted(stream::StreamExt::chain(first, rest), caller.credential);
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(Duration::from_secs(5))))
}

/// Time after which a stream of the application's user ends: only a new request shows whether the
/// application still accepts the user.
const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// Ends a stream when its caller is no longer known to be accepted.
fn while_accepted(
    events: impl Stream<Item = Result<Event, Infallible>>,
    credential: Credential,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let is_renewed = matches!(credential, Credential::Application(_));
    let end = async move {
        match credential {
            // Tokens are valid as long as the process runs.
            Credential::Token => std::future::pending().await,
            Credential::Session(session) => session.closed().await,
            Credential::Application(_) => tokio::time::sleep(RENEWAL).await,
        }
    };
    let renew = is_renewed.then(|| Ok(Event::default().event("renew").data("{}")));
    let events = stream::StreamExt::take_until(events, Box::pin(end));
    stream::StreamExt::chain(events, stream::iter(renew))
}

fn sse_event(name: &str, what: &impl Serialize) -> Event {
    Event::default().event(name).data(serde_json::to_string(what).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_the_applications_user_is_renewed_after_five_minutes() {
        let pending = || stream::pending::<Result<Event, Infallible>>();
        let began = tokio::time::Instant::now();
        let events = while_accepted(pending(), Credential::Application(None));
        let count = tokio::time::timeout(RENEWAL * 2, stream::StreamExt::count(events)).await;
        assert_eq!(count, Ok(1), "the event `renew`");
        assert_eq!(began.elapsed(), RENEWAL);
        let mut of_token = Box::pin(while_accepted(pending(), Credential::Token));
        assert!(tokio::time::timeout(RENEWAL * 100, stream::StreamExt::next(&mut of_token)).await.is_err());
    }
}
