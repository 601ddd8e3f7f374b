//! Publishers: where they stand, how far behind they are; pausing, resuming and resetting them.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{Node, NodeOutage};
use outbox::{LogAdmin, PairState, Position};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::databases::Chosen;
use crate::deeds::{Deeds, Happened};
use crate::extract::{Input, Params, Place};
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;

/// A publisher and where it stands.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "name": "KafkaPublisher",
    "topics": [{"topic": "wallet-events", "publisher": "KafkaPublisher", "status": "ACTIVE", "position": 1200, "head": 1210,
                "behind": 10, "errors": 0, "last_error": null, "leader": "relay-1", "epoch": 3,
                "remaining_ms": 9000, "updated_at": "2026-01-31T12:00:00Z"}],
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
}

/// How far behind all publishers are.
#[derive(Serialize, ToSchema)]
pub(crate) struct Lags {
    /// By topic and publisher.
    publishers: Vec<LagView>,
}

/// Where a publisher goes on in a topic: `position`, `time`, or `to`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "start"}))]
pub(crate) struct Reset {
    /// What comes after this position is published.
    #[schema(minimum = 0)]
    position: Option<i64>,
    /// What was stored since this time is published.
    time: Option<DateTime<Utc>>,
    /// `start`: everything is published again; `end`: only what comes from now on.
    to: Option<Edge>,
}

/// An end of the log.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Edge {
    /// Its first event.
    Start,
    /// After its last event.
    End,
}

/// How many pairs of topic and publisher were changed.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"changed": 2}))]
pub(crate) struct Changed {
    /// How many.
    changed: u64,
}

/// Where a publisher goes on.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"position": 0}))]
pub(crate) struct ResetTo {
    /// What comes after this position is published.
    position: i64,
}

/// List publishers
///
/// Those of the log, with where they stand in each topic; and those of log and queue that cannot be reached.
#[utoipa::path(get, path = "/outbox/publishers", tag = "publishers", params(Place),
    responses((status = 200, description = "All publishers", body = Publishers)))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(place): Params<Place>,
) -> Answer<Json<Publishers>> {
    let database = place.choose(&web)?;
    Ok(Json(Publishers { publishers: pairs(&database).await?, outages: outages(&web, &database).await? }))
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

/// Pause a publisher
///
/// In all topics. What it is being given right now is the last.
#[utoipa::path(post, path = "/outbox/publishers/{name}/pause", tag = "publishers", params(Place, Name),
    responses((status = 200, description = "Paused", body = Changed)))]
pub(crate) async fn pause(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    switch(&database, &caller, "publisher.pause", &name, None, async { admin.pause(&name).await }).await
}

/// Resume a publisher
///
/// In all topics, from where it stands, with no errors behind it.
#[utoipa::path(post, path = "/outbox/publishers/{name}/resume", tag = "publishers", params(Place, Name),
    responses((status = 200, description = "It goes on", body = Changed)))]
pub(crate) async fn resume(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    switch(&database, &caller, "publisher.resume", &name, None, async { admin.resume(&name).await }).await
}

/// Pause a publisher in one topic
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/pause", tag = "publishers",
    params(Place, Name, TopicName), responses((status = 200, description = "Paused", body = Changed)))]
pub(crate) async fn pause_in(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    let pause = async { admin.pause_in(&topic, &name).await.map(|()| 1) };
    switch(&database, &caller, "publisher.pause", &name, Some(&topic), pause).await
}

/// Resume a publisher in one topic
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/resume", tag = "publishers",
    params(Place, Name, TopicName), responses((status = 200, description = "It goes on", body = Changed)))]
pub(crate) async fn resume_in(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(place): Params<Place>,
) -> Answer<Json<Changed>> {
    let database = place.choose(&web)?;
    let admin = LogAdmin::new(database.store.clone());
    let resume = async { admin.resume_in(&topic, &name).await.map(|()| 1) };
    switch(&database, &caller, "publisher.resume", &name, Some(&topic), resume).await
}

/// Set a publisher to another place in a topic
///
/// Back: events are published again. Forwards: events are left out. A pause stays.
#[utoipa::path(post, path = "/outbox/publishers/{name}/topics/{topic}/reset", tag = "publishers",
    params(Place, Name, TopicName), request_body = Reset,
    responses((status = 200, description = "It goes on from there", body = ResetTo),
              (status = 422, description = "The position is beyond the end, or not exactly one place was named")))]
pub(crate) async fn reset(
    State(web): State<Shared>,
    caller: Caller,
    Path((name, topic)): Path<(String, String)>,
    Params(place): Params<Place>,
    Input(reset): Input<Reset>,
) -> Answer<Json<ResetTo>> {
    let database = place.choose(&web)?;
    check(&name, Some(&topic))?;
    let to = reset.place()?;
    let admin = LogAdmin::new(database.store.clone());
    let deed = Deeds::new(&database, &caller, "publisher.reset", target(&name, Some(&topic)))
        .details(&serde_json::json!({"to": to.told()}));
    let position = deed
        .carry_out(async {
            let position = match to {
                To::Position(position) => position,
                To::Time(time) => {
                    let position = admin.reset_to_time(&topic, &name, time).await?;
                    return Ok(Happened { count: 1, outcome: position });
                }
                To::End => admin.lag().await?.first().map_or(Position::START, |lag| lag.head),
            };
            admin.reset(&topic, &name, position).await?;
            Ok(Happened { count: 1, outcome: position })
        })
        .await?;
    Ok(Json(ResetTo { position: position.get() }))
}

enum To {
    Position(Position),
    Time(DateTime<Utc>),
    End,
}

impl To {
    fn told(&self) -> String {
        match self {
            To::Position(position) => position.to_string(),
            To::Time(time) => time.to_rfc3339(),
            To::End => "end".to_owned(),
        }
    }
}

impl Reset {
    fn place(&self) -> Answer<To> {
        match (self.position, self.time, self.to) {
            (Some(position), None, None) if position >= 0 => Ok(To::Position(Position::new(position))),
            (None, Some(time), None) => Ok(To::Time(time)),
            (None, None, Some(Edge::Start)) => Ok(To::Position(Position::START)),
            (None, None, Some(Edge::End)) => Ok(To::End),
            (Some(_), None, None) => Err(Problem::invalid("`position` must not be negative")),
            _ => Err(Problem::invalid("name one of `position`, `time` and `to`")),
        }
    }
}

async fn switch(
    database: &Chosen,
    caller: &Caller,
    action: &'static str,
    name: &str,
    topic: Option<&str>,
    work: impl Future<Output = outbox::Result<u64>>,
) -> Answer<Json<Changed>> {
    check(name, topic)?;
    let deed = Deeds::new(database, caller, action, target(name, topic));
    let work = async { work.await.map(|count| Happened { count, outcome: () }).map_err(Problem::from) };
    let count = deed.counted(work).await?;
    Ok(Json(Changed { changed: count }))
}

fn target(name: &str, topic: Option<&str>) -> String {
    topic.map_or_else(|| name.to_owned(), |topic| format!("{topic}/{name}"))
}

fn check(name: &str, topic: Option<&str>) -> Answer<()> {
    // What cannot be the name of one is the name of none.
    let is_name = |name: &str| text::check("name", name, 100).is_ok();
    if is_name(name) && topic.is_none_or(is_name) { Ok(()) } else { Err(unknown(name)) }
}

fn unknown(name: &str) -> Problem {
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
    Ok(pairs.iter().map(|pair| view(pair, head)).collect())
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

fn view(pair: &PairState, head: Position) -> PairView {
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
