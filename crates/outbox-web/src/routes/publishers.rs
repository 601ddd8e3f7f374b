//! Publishers: where they stand, and how far behind they are.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{Node, NodeOutage, OpenAppend};
use outbox::{LogAdmin, PairState, Position};
use serde::Serialize;
use utoipa::ToSchema;

use crate::databases::Chosen;
use crate::extract::{Params, Place};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;

/// A publisher and where it stands.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "name": "KafkaPublisher",
    "topics": [{"topic": "wallet-events", "publisher": "KafkaPublisher", "status": "ACTIVE", "position": 1200, "head": 1210,
                "behind": 10, "errors": 0, "last_error": null, "leader": "relay-1", "epoch": 3,
                "remaining_ms": 9000, "updated_at": "2026-01-31T12:00:00Z", "waits_for": null}],
    "outages": [],
}))]
pub(crate) struct PublisherView {
    /// Its name.
    name: String,
    /// The topics of the log that go to it.
    topics: Vec<PairView>,
    /// Whether it cannot be reached, as relays see it: then its events wait.
    outages: Vec<OutageView>,
}

/// A topic and a publisher: whether it publishes, and how far it is.
#[derive(Serialize, ToSchema)]
pub(crate) struct PairView {
    /// The topic.
    topic: String,
    /// The publisher.
    publisher: String,
    /// `ACTIVE`, `PAUSED` by a person, or `FAILED`: it fails again and again, and is still tried.
    status: &'static str,
    /// Everything up to here was published, or is not for it.
    position: i64,
    /// The greatest position of the log.
    head: i64,
    /// How many positions are between the two. Not all of them need be events of this topic.
    behind: u64,
    /// How many errors in a row.
    errors: u32,
    /// The last of them.
    last_error: Option<String>,
    /// The relay that publishes it; with no time remaining, the one that did last.
    leader: Option<String>,
    /// Rises with every change of leader.
    epoch: i64,
    /// How much longer that relay may, unless it says so again.
    remaining_ms: u64,
    /// When its position last moved.
    updated_at: DateTime<Utc>,
    /// The open transaction that it waits for; null if it waits for none. PostgreSQL only.
    waits_for: Option<OpenAppendView>,
}

/// A transaction that has appended to the log and is still open: events behind its position wait for it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"backend": 4711, "prepared": null, "since": "2026-01-31T12:00:00Z", "user": "shop",
                          "application": "checkout"}))]
pub(crate) struct OpenAppendView {
    /// The process id of its backend; null if it was prepared.
    backend: Option<i64>,
    /// The name under which it was prepared.
    prepared: Option<String>,
    /// When it began; null if the role of this server may not see that.
    since: Option<DateTime<Utc>>,
    /// The role that began it.
    user: Option<String>,
    /// The name of its application.
    application: Option<String>,
}

/// A publisher that cannot be reached.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct OutageView {
    /// Its name.
    pub(crate) destination: String,
    /// Since when.
    pub(crate) since: DateTime<Utc>,
    /// Why.
    pub(crate) reason: String,
    /// The relay that says so; null for the one of the server itself.
    pub(crate) node: Option<String>,
    /// The types of events that wait for it, if they are known.
    pub(crate) types: Vec<String>,
}

/// How far behind a publisher is in a topic.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"topic": "wallet-events", "publisher": "KafkaPublisher", "status": "ACTIVE", "position": 1200,
                          "head": 1210, "behind": 10}))]
pub(crate) struct LagView {
    /// The topic.
    pub(crate) topic: String,
    /// The publisher.
    pub(crate) publisher: String,
    /// `ACTIVE`, `PAUSED` or `FAILED`.
    pub(crate) status: &'static str,
    /// Everything up to here was published, or is not for it.
    pub(crate) position: i64,
    /// The greatest position of the log.
    pub(crate) head: i64,
    /// How many positions are between the two.
    pub(crate) behind: u64,
}

/// All publishers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Publishers {
    /// Those of the log, by topic and publisher.
    publishers: Vec<PairView>,
    /// Publishers of log and queue that cannot be reached, by name.
    outages: Vec<OutageView>,
    /// Events of the log that publishers passed over, because they cannot be read: at most 100, the greatest
    /// positions first.
    unreadable: Vec<UnreadableView>,
}

/// An event of the log that publishers passed over.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"position": 1203, "reason": "its headers are not an object of strings",
                          "noted_at": "2026-01-31T12:00:00Z"}))]
pub(crate) struct UnreadableView {
    /// Its position.
    position: i64,
    /// Why it cannot be read.
    reason: String,
    /// When a publisher first came to it.
    noted_at: DateTime<Utc>,
}

/// How many unreadable events are listed.
const UNREADABLE: usize = 100;

/// How far behind all publishers are.
#[derive(Serialize, ToSchema)]
pub(crate) struct Lags {
    /// By topic and publisher.
    publishers: Vec<LagView>,
}

/// List publishers
///
/// Those of the log, with where they stand in each topic; those of log and queue that cannot be reached; and the events of the
/// log that could not be read.
#[utoipa::path(get, path = "/outbox/publishers", tag = "publishers", params(Place),
    responses((status = 200, description = "All publishers", body = Publishers)))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(place): Params<Place>,
) -> Answer<Json<Publishers>> {
    let database = place.choose(&web)?;
    Ok(Json(Publishers {
        publishers: pairs(&database).await?,
        outages: outages(&web, &database).await?,
        unreadable: unreadable(&database).await?,
    }))
}

/// One publisher
#[utoipa::path(get, path = "/outbox/publishers/{name}", tag = "publishers", params(Place, Name),
    responses((status = 200, description = "Where it stands in each topic", body = PublisherView)))]
pub(crate) async fn one(
    State(web): State<Shared>,
    Path(name): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<PublisherView>> {
    let database = place.choose(&web)?;
    let mut topics = pairs(&database).await?;
    topics.retain(|pair| pair.publisher == name);
    let mut outages = outages(&web, &database).await?;
    outages.retain(|outage| outage.destination == name);
    let is_destination = web.destinations.iter().flat_map(|all| all()).any(|one| one.name() == name);
    if topics.is_empty() && outages.is_empty() && !is_destination {
        return Err(unknown(&name));
    }
    Ok(Json(PublisherView { name, topics, outages }))
}

/// How far behind publishers are
#[utoipa::path(get, path = "/outbox/publishers/lag", tag = "publishers", params(Place),
    responses((status = 200, description = "All pairs of topic and publisher", body = Lags)))]
pub(crate) async fn lag(State(web): State<Shared>, Params(place): Params<Place>) -> Answer<Json<Lags>> {
    Ok(Json(Lags { publishers: lags(&place.choose(&web)?).await? }))
}

pub(crate) fn unknown(name: &str) -> Problem {
    Problem::not_found(format!("there is no publisher `{}`", text::shown(name)))
        .advice("GET /api/outbox/publishers lists them; one appears when it is first started.")
}

/// How far behind everything is.
pub(crate) async fn lags(database: &Chosen) -> Answer<Vec<LagView>> {
    let lag = LogAdmin::new(database.store.clone()).lag().await?;
    let view = |lag: outbox::PairLag| LagView {
        topic: lag.id.topic().to_owned(),
        publisher: lag.id.publisher().to_owned(),
        status: lag.status.as_str(),
        position: lag.position.get(),
        head: lag.head.get(),
        behind: lag.behind,
    };
    Ok(lag.into_iter().map(view).collect())
}

/// Where everything stands.
async fn pairs(database: &Chosen) -> Answer<Vec<PairView>> {
    let Some(log) = database.store.log() else { return Ok(Vec::new()) };
    let (pairs, head) = (log.pairs().await?, log.head().await?);
    let waiting =
        if pairs.iter().any(|pair| pair.position < head) { log.waiting().await? } else { Vec::new() };
    let waits_for = |pair: &PairState| waiting.iter().find(|(id, _)| *id == pair.id).map(|(_, open)| open);
    Ok(pairs.iter().map(|pair| view(pair, head, waits_for(pair))).collect())
}

/// The events of the log that publishers passed over.
async fn unreadable(database: &Chosen) -> Answer<Vec<UnreadableView>> {
    let Some(log) = database.store.log() else { return Ok(Vec::new()) };
    let view = |outbox::store::Unreadable { position, reason, noted_at }| UnreadableView {
        position: position.get(),
        reason,
        noted_at,
    };
    Ok(log.unreadable(UNREADABLE).await?.into_iter().map(view).collect())
}

/// What cannot be reached, as relays say, and as the relay of this process knows before it says so.
async fn outages(web: &Shared, database: &Chosen) -> Answer<Vec<OutageView>> {
    let mut outages = outages_of(&database.store.nodes().await?);
    for destination in web.destinations.iter().flat_map(|destinations| destinations()) {
        if let Some(outage) = destination.outage()
            && !outages.iter().any(|known| known.destination == destination.name())
        {
            outages.push(OutageView {
                destination: destination.name().to_owned(),
                since: outage.since,
                reason: outage.reason,
                node: None,
                types: Vec::new(),
            });
        }
    }
    outages.sort_by(|a, b| (&a.destination, a.since).cmp(&(&b.destination, b.since)));
    Ok(outages)
}

/// What the relays that run say cannot be reached.
pub(crate) fn outages_of(nodes: &[Node]) -> Vec<OutageView> {
    let running = nodes.iter().filter(|node| node.is_running());
    let of_node = |node: &Node| {
        let name = node.node.to_string();
        let view = move |outage: &NodeOutage| OutageView {
            destination: outage.destination.clone(),
            since: outage.since,
            reason: outage.reason.clone(),
            node: Some(name.clone()),
            types: outage.types.clone(),
        };
        node.state.outages.iter().map(view).collect::<Vec<_>>()
    };
    running.flat_map(of_node).collect()
}

fn view(pair: &PairState, head: Position, waits_for: Option<&OpenAppend>) -> PairView {
    PairView {
        topic: pair.id.topic().to_owned(),
        publisher: pair.id.publisher().to_owned(),
        status: pair.status.as_str(),
        position: pair.position.get(),
        head: head.get(),
        behind: u64::try_from(head.get() - pair.position.get()).unwrap_or(0),
        errors: pair.error_count,
        last_error: pair.last_error.clone(),
        leader: pair.leader.as_ref().map(ToString::to_string),
        epoch: pair.epoch,
        remaining_ms: u64::try_from(pair.remaining.as_millis()).unwrap_or(u64::MAX),
        updated_at: pair.updated_at,
        waits_for: waits_for.map(|open| OpenAppendView {
            backend: open.backend,
            prepared: open.prepared.clone(),
            since: open.since,
            user: open.user.clone(),
            application: open.application.clone(),
        }),
    }
}

/// Which publisher.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "tells the document of the path")]
pub(crate) struct Name {
    /// The name of the publisher.
    #[param(min_length = 1, max_length = 100, example = "KafkaPublisher")]
    name: String,
}

/// Which topic.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "tells the document of the path")]
pub(crate) struct TopicName {
    /// The name of the topic.
    #[param(min_length = 1, max_length = 100, example = "wallet-events")]
    topic: String,
}
