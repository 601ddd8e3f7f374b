//! Publishers: their positions and their lag.

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{Node, NodeOutage, OpenAppend};
use outbox::{LogAdmin, Position, SubscriptionState};
use serde::Serialize;
use utoipa::ToSchema;

use crate::databases::Database;
use crate::extract::{DatabaseQuery, Params};
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;
use crate::text;

/// A publisher and its positions.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "name": "KafkaPublisher",
    "topics": [{"topic": "wallet-events", "publisher": "KafkaPublisher", "status": "ACTIVE", "position": 1200, "head": 1210,
                "behind": 10, "errors": 0, "last_error": null, "leader": "relay-1", "epoch": 3,
                "remaining_ms": 9000, "updated_at": "2026-01-31T12:00:00Z", "waits_for": null}],
    "outages": [],
}))]
pub(crate) struct PublisherView {
    /// The name of the publisher.
    name: String,
    /// The topics of the log that are published to it.
    topics: Vec<SubscriptionView>,
    /// Outages of the publisher, as seen by relays: its events wait meanwhile.
    outages: Vec<OutageView>,
}

/// State of a publisher in a topic.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubscriptionView {
    /// The topic.
    topic: String,
    /// The publisher.
    publisher: String,
    /// `ACTIVE`, `PAUSED` by an operator, or `FAILED`: fails repeatedly, and is still retried.
    status: &'static str,
    /// All events up to this position are published, or do not belong to the topic.
    position: i64,
    /// The greatest position of the log.
    head: i64,
    /// Number of positions between `position` and `head`. Not all of them are events of this topic.
    behind: u64,
    /// Number of consecutive errors.
    errors: u32,
    /// The latest error.
    last_error: Option<String>,
    /// The relay that publishes; if `remaining_ms` is 0, the relay that did last.
    leader: Option<String>,
    /// Incremented with every change of the leader.
    epoch: i64,
    /// Remaining time of the relay's lease, unless renewed.
    remaining_ms: u64,
    /// When the position last moved.
    updated_at: DateTime<Utc>,
    /// The open transaction that the publisher waits for; null if there is none. PostgreSQL only.
    waits_for: Option<OpenAppendView>,
}

/// A transaction that has appended to the log and is still open: events behind its position wait
/// for it.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"backend": 4711, "prepared": null, "since": "2026-01-31T12:00:00Z", "user": "shop",
                          "application": "checkout"}))]
pub(crate) struct OpenAppendView {
    /// The process id of the backend; null for a prepared transaction.
    backend: Option<i64>,
    /// The name of the prepared transaction.
    prepared: Option<String>,
    /// When the transaction started; null if the database role of this server may not see it.
    since: Option<DateTime<Utc>>,
    /// The database role of the transaction.
    user: Option<String>,
    /// The application name of the connection.
    application: Option<String>,
}

/// An outage of a publisher.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct OutageView {
    /// The name of the publisher.
    pub(crate) destination: String,
    /// When the outage started.
    pub(crate) since: DateTime<Utc>,
    /// The cause.
    pub(crate) reason: String,
    /// The relay that reported the outage; null for the relay of the server itself.
    pub(crate) node: Option<String>,
    /// The event types that wait for the publisher, if known.
    pub(crate) types: Vec<String>,
}

/// Lag of a publisher in a topic.
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
    /// All events up to this position are published, or do not belong to the topic.
    pub(crate) position: i64,
    /// The greatest position of the log.
    pub(crate) head: i64,
    /// Number of positions between `position` and `head`.
    pub(crate) behind: u64,
}

/// All publishers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Publishers {
    /// Publishers of the log, by topic and publisher.
    publishers: Vec<SubscriptionView>,
    /// Outages of publishers of log and queue, by name.
    outages: Vec<OutageView>,
    /// Events of the log that publishers skipped because they cannot be decoded: at most 100,
    /// greatest positions first.
    unreadable: Vec<UnreadableView>,
}

/// An event of the log that publishers skipped.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"position": 1203, "reason": "its headers are not an object of strings",
                          "noted_at": "2026-01-31T12:00:00Z"}))]
pub(crate) struct UnreadableView {
    /// The position of the event.
    position: i64,
    /// Why the event cannot be decoded.
    reason: String,
    /// When a publisher first reached the event.
    noted_at: DateTime<Utc>,
}

/// Maximum number of unreadable events listed.
const UNREADABLE: usize = 100;

/// Lag of all publishers.
#[derive(Serialize, ToSchema)]
pub(crate) struct Lags {
    /// The publishers, by topic and publisher.
    publishers: Vec<LagView>,
}

/// List publishers
///
/// Publishers of the log with their position in each topic, outages of publishers of log and queue,
/// and events of the log that could not be decoded.
#[utoipa::path(get, path = "/outbox/publishers", tag = "publishers", params(DatabaseQuery),
    responses((status = 200, description = "All publishers", body = Publishers)))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<Publishers>> {
    let database = query.resolve(&web)?;
    Ok(Json(Publishers {
        publishers: subscriptions(&database).await?,
        outages: outages(&web, &database).await?,
        unreadable: unreadable(&database).await?,
    }))
}

/// Get a publisher
#[utoipa::path(get, path = "/outbox/publishers/{name}", tag = "publishers", params(DatabaseQuery, PublisherPath),
    responses((status = 200, description = "The publisher, with its position in each topic", body = PublisherView)))]
pub(crate) async fn one(
    State(web): State<Shared>,
    Path(name): Path<String>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<PublisherView>> {
    let database = query.resolve(&web)?;
    let mut topics = subscriptions(&database).await?;
    topics.retain(|subscription| subscription.publisher == name);
    let mut outages = outages(&web, &database).await?;
    outages.retain(|outage| outage.destination == name);
    let is_destination = web.destinations.iter().flat_map(|all| all()).any(|one| one.name() == name);
    if topics.is_empty() && outages.is_empty() && !is_destination {
        return Err(unknown(&name));
    }
    Ok(Json(PublisherView { name, topics, outages }))
}

/// Get the lag of all publishers
#[utoipa::path(get, path = "/outbox/publishers/lag", tag = "publishers", params(DatabaseQuery),
    responses((status = 200, description = "The lag of each publisher in each topic", body = Lags)))]
pub(crate) async fn lag(
    State(web): State<Shared>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<Lags>> {
    Ok(Json(Lags { publishers: lags(&query.resolve(&web)?).await? }))
}

pub(crate) fn unknown(name: &str) -> Problem {
    Problem::not_found(format!("publisher `{}` not found", text::printable(name))).advice(
        "GET /api/outbox/publishers lists publishers; a publisher is listed once it has been started.",
    )
}

/// Lag of all publishers.
pub(crate) async fn lags(database: &Database) -> ApiResult<Vec<LagView>> {
    let lag = LogAdmin::new(database.store.clone()).lag().await?;
    let view = |lag: outbox::Lag| LagView {
        topic: lag.id.topic().to_owned(),
        publisher: lag.id.publisher().to_owned(),
        status: lag.status.as_str(),
        position: lag.position.get(),
        head: lag.head.get(),
        behind: lag.behind,
    };
    Ok(lag.into_iter().map(view).collect())
}

/// State of all publishers in all topics.
async fn subscriptions(database: &Database) -> ApiResult<Vec<SubscriptionView>> {
    let Some(log) = database.store.log() else { return Ok(Vec::new()) };
    let (subscriptions, head) = (log.subscriptions().await?, log.head().await?);
    let waiting = if subscriptions.iter().any(|subscription| subscription.position < head) {
        log.waiting().await?
    } else {
        Vec::new()
    };
    let waits_for = |subscription: &SubscriptionState| {
        waiting.iter().find(|(id, _)| *id == subscription.id).map(|(_, open)| open)
    };
    Ok(subscriptions.iter().map(|subscription| view(subscription, head, waits_for(subscription))).collect())
}

/// Events of the log that publishers skipped.
async fn unreadable(database: &Database) -> ApiResult<Vec<UnreadableView>> {
    let Some(log) = database.store.log() else { return Ok(Vec::new()) };
    let view = |outbox::store::Unreadable { position, reason, noted_at }| UnreadableView {
        position: position.get(),
        reason,
        noted_at,
    };
    Ok(log.unreadable(UNREADABLE).await?.into_iter().map(view).collect())
}

/// Outages announced by relays, and outages known to the relay of this process before it announces
/// them.
async fn outages(web: &Shared, database: &Database) -> ApiResult<Vec<OutageView>> {
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

/// Outages announced by running relays.
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

fn view(
    subscription: &SubscriptionState,
    head: Position,
    waits_for: Option<&OpenAppend>,
) -> SubscriptionView {
    SubscriptionView {
        topic: subscription.id.topic().to_owned(),
        publisher: subscription.id.publisher().to_owned(),
        status: subscription.status.as_str(),
        position: subscription.position.get(),
        head: head.get(),
        behind: u64::try_from(head.get() - subscription.position.get()).unwrap_or(0),
        errors: subscription.error_count,
        last_error: subscription.last_error.clone(),
        leader: subscription.leader.as_ref().map(ToString::to_string),
        epoch: subscription.epoch,
        remaining_ms: u64::try_from(subscription.remaining.as_millis()).unwrap_or(u64::MAX),
        updated_at: subscription.updated_at,
        waits_for: waits_for.map(|open| OpenAppendView {
            backend: open.backend,
            prepared: open.prepared.clone(),
            since: open.since,
            user: open.user.clone(),
            application: open.application.clone(),
        }),
    }
}

/// Path of a publisher.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct PublisherPath {
    /// The name of the publisher.
    #[param(min_length = 1, max_length = 100, example = "KafkaPublisher")]
    name: String,
}

/// Path of a topic.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct TopicPath {
    /// The name of the topic.
    #[param(min_length = 1, max_length = 100, example = "wallet-events")]
    topic: String,
}
