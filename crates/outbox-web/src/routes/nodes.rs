//! Relays and their leases.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{EXCLUSIVE, Node, NodeId, OnDead, PageRequest, SharedStore, TaskError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::publishers::{OutageView, outages_of};
use crate::audit::{AuditedChange, Changed};
use crate::auth::Caller;
use crate::extract::{DatabaseQuery, Input, Params};
use crate::live::milliseconds;
use crate::problem::{ApiResult, Problem};
use crate::state::Shared;
use crate::text;

/// Number of pending events scanned for leases.
const SCAN_LIMIT: usize = 1_000;

/// Relays and leases.
#[derive(Serialize, ToSchema)]
pub(crate) struct Nodes {
    /// The relays, last seen first.
    nodes: Vec<NodeView>,
    /// Leases on the table, on events, and on publishers.
    leases: Vec<LeaseView>,
}

/// A running or former relay.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "node": "shop-1-4711-a1b2", "running": true, "released": false, "active": true, "mode": "ordered", "version": "0.1.0", "on_dead": "hold",
    "started_at": "2026-01-31T12:00:00Z", "seen_ms": 900, "delivered_per_second": 118.5,
    "counts": {"delivered": 100_000, "failed": 12, "dead": 1, "deferred": 0}, "outages": [],
    "last_take": "2026-01-31T12:00:00Z", "last_settlement": "2026-01-31T12:00:00Z", "errors": [],
    "published": {"orders": "2026-01-31T12:00:00Z"},
}))]
pub(crate) struct NodeView {
    /// The name of the node.
    node: String,
    /// Whether the relay was seen recently. A relay that was not, and did not announce that it
    /// stops, has vanished.
    running: bool,
    /// Whether the relay vanished and another relay has released its leases.
    released: bool,
    /// Whether the relay delivers; false for a relay on standby.
    active: bool,
    /// `single_node`, `multi_node` or `ordered`.
    mode: String,
    /// The version of the library.
    version: String,
    /// Effect of a dead event on later events of its key: `hold` or `skip`.
    on_dead: &'static str,
    /// When the relay was first seen.
    started_at: DateTime<Utc>,
    /// Time since the relay was last seen, in milliseconds.
    seen_ms: u64,
    /// Events delivered per second; null while no `live` stream is open.
    delivered_per_second: Option<f64>,
    /// Counters since the start of the relay.
    counts: CountsView,
    /// Destinations that the relay finds unavailable.
    outages: Vec<OutageView>,
    /// When the database last completed a take of this relay, as last announced.
    last_take: Option<DateTime<Utc>>,
    /// When the database last completed a settlement of this relay, as last announced.
    last_settlement: Option<DateTime<Utc>>,
    /// Current errors of the relay's tasks, one per task.
    errors: Vec<TaskErrorView>,
    /// When each destination last accepted an event of this relay.
    published: BTreeMap<String, DateTime<Utc>>,
}

/// A current error of a relay's task.
#[derive(Clone, Serialize, ToSchema)]
#[schema(example = json!({
    "node": "shop-1-4711-a1b2", "task": "take", "since": "2026-01-31T12:00:00Z", "failures": 17, "problem": true,
    "error": "database error 42703: column \"due\" does not exist",
}))]
pub(crate) struct TaskErrorView {
    /// The relay.
    node: String,
    /// The task: `take`, `settle`, `renew`, `dispatch`, `log_relay`, `watch`, `log_watch`,
    /// `announce`, `takeover`, `purge`.
    task: &'static str,
    /// The first failure since the last success.
    since: DateTime<Utc>,
    /// The latest error.
    error: String,
    /// Number of failures since the last success.
    failures: u64,
    /// Whether the error prevents deliveries and has lasted for some time.
    problem: bool,
}

impl TaskErrorView {
    fn new(node: &Node, error: &TaskError) -> Self {
        Self {
            node: node.node.to_string(),
            task: error.task.as_str(),
            since: error.since,
            error: error.error.clone(),
            failures: error.failures,
            problem: error.task.is_essential() && error.is_lasting(),
        }
    }
}

/// Errors that prevent running relays from delivering.
pub(crate) fn failing(nodes: &[Node]) -> Vec<TaskErrorView> {
    let running = nodes.iter().filter(|node| node.is_running());
    running
        .flat_map(|node| node.state.health.problems().map(move |error| TaskErrorView::new(node, error)))
        .collect()
}

/// Counters since the start of a relay.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountsView {
    /// Events delivered.
    delivered: u64,
    /// Failed attempts that are followed by a retry.
    failed: u64,
    /// Events dead-lettered.
    dead: u64,
    /// Times that an event was deferred without an attempt.
    deferred: u64,
}

/// A lease held by a relay.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"holder": "shop-1-4711-a1b2", "what": "events", "events": 12, "until": "2026-01-31T12:00:30Z"}))]
pub(crate) struct LeaseView {
    /// The node that holds the lease.
    holder: String,
    /// `the whole table`, `events`, or a topic and a publisher.
    what: String,
    /// Number of events, among the first thousand pending events.
    events: Option<u64>,
    /// When the lease expires, unless renewed.
    until: Option<DateTime<Utc>>,
}

/// List relays and leases
#[utoipa::path(get, path = "/outbox/nodes", tag = "nodes", params(DatabaseQuery),
    responses((status = 200, description = "Relays seen in the last day, and all leases", body = Nodes)))]
pub(crate) async fn list(
    State(web): State<Shared>,
    Params(query): Params<DatabaseQuery>,
) -> ApiResult<Json<Nodes>> {
    let database = query.resolve(&web)?;
    let nodes = database.store.nodes().await?;
    let leases = leases(&database.store).await?;
    let latest = web.live.latest(&database.name);
    let rate = |node: &Node| latest.as_ref()?.by_node.get(node.node.as_str()).copied();
    let nodes = nodes.iter().map(|node| view(node, rate(node))).collect();
    Ok(Json(Nodes { nodes, leases }))
}

/// Request to release leases.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"running": false}))]
pub(crate) struct ReleaseRequest {
    /// Release the leases even if the relay is running.
    #[serde(default)]
    running: bool,
}

/// The released leases.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"events": 12, "leadership": false}))]
pub(crate) struct ReleasedView {
    /// Number of events that the relay had claimed.
    events: u64,
    /// Whether the relay was the leader of the table.
    leadership: bool,
}

/// Path of a relay.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only for the OpenAPI document")]
pub(crate) struct NodePath {
    /// The name of the node.
    #[param(min_length = 1, max_length = 128, example = "shop-1-4711-a1b2")]
    node: String,
}

/// Release the leases of a relay
///
/// Releases its leases on events, and the leadership of the table. Other relays deliver these
/// events at once. A relay that is still running can no longer settle them, but continues to handle
/// the events in its memory until its next renewal: they may be delivered twice, and out of the
/// order of their keys. Therefore rejected for a running relay unless `running` is true.
#[utoipa::path(post, path = "/outbox/nodes/{node}/release", tag = "nodes", params(DatabaseQuery, NodePath), request_body = ReleaseRequest,
    responses((status = 200, description = "Released", body = ReleasedView),
              (status = 404, description = "No relay of this name was seen, and there is no lease of it"),
              (status = 409, description = "The relay is running, and `running` is not true")))]
pub(crate) async fn release(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(query): Params<DatabaseQuery>,
    Input(request): Input<ReleaseRequest>,
) -> ApiResult<Json<ReleasedView>> {
    let database = query.resolve(&web)?;
    let unknown = || {
        Problem::not_found(format!("relay `{}` not found", text::printable(&name)))
            .advice("GET /api/outbox/nodes lists relays and leases.")
    };
    // Text that cannot be a name is not the name of any relay.
    text::check("node", &name, 128).map_err(|_| unknown())?;
    let node = NodeId::from(name.as_str());
    let nodes = database.store.nodes().await?;
    let known = nodes.iter().find(|seen| seen.node == node);
    let running = known.is_some_and(Node::is_running);
    if running && !request.running {
        return Err(Problem::conflict("the relay is running: it was seen a moment ago").advice(
            "Stop the relay, or send `{\"running\": true}`: its events may then be delivered twice, and out of order.",
        ));
    }
    let change = AuditedChange::new(&database, &caller, "node.release", name.as_str());
    let released = change
        .details(&serde_json::json!({"running": running}))
        .carry_out(async {
            let released = database.store.release_node(&node).await?;
            if released.is_nothing() && known.is_none() {
                return Err(unknown());
            }
            Ok(Changed { count: released.events + u64::from(released.leadership), outcome: released })
        })
        .await?;
    Ok(Json(ReleasedView { events: released.events, leadership: released.leadership }))
}

fn view(node: &Node, delivered_per_second: Option<f64>) -> NodeView {
    let (state, counts) = (&node.state, &node.state.counts);
    NodeView {
        node: node.node.to_string(),
        running: node.is_running(),
        released: state.released,
        active: state.active,
        mode: state.mode.clone(),
        version: state.version.clone(),
        on_dead: match state.on_dead {
            OnDead::Hold => "hold",
            OnDead::Skip => "skip",
        },
        started_at: node.started_at,
        seen_ms: milliseconds(node.seen),
        delivered_per_second,
        counts: CountsView {
            delivered: counts.delivered,
            failed: counts.failed,
            dead: counts.dead,
            deferred: counts.deferred,
        },
        outages: outages_of(std::slice::from_ref(node)),
        last_take: state.health.last_take,
        last_settlement: state.health.last_settlement,
        errors: state.health.errors.iter().map(|error| TaskErrorView::new(node, error)).collect(),
        published: state.health.published.clone(),
    }
}

async fn leases(store: &SharedStore) -> ApiResult<Vec<LeaseView>> {
    let mut leases = Vec::new();
    if let Some(leader) = store.leader(EXCLUSIVE).await? {
        let what = "the whole table".to_owned();
        leases.push(LeaseView { holder: leader.to_string(), what, events: None, until: None });
    }
    let request = PageRequest { limit: SCAN_LIMIT, scan_limit: SCAN_LIMIT, ..PageRequest::default() };
    let mut held: BTreeMap<String, (u64, DateTime<Utc>)> = BTreeMap::new();
    for (holder, until) in store.page(&request).await?.rows.into_iter().filter_map(|row| row.lease) {
        let held = held.entry(holder.to_string()).or_insert((0, until));
        *held = (held.0 + 1, held.1.max(until));
    }
    leases.extend(held.into_iter().map(|(holder, (events, until))| LeaseView {
        holder,
        what: "events".to_owned(),
        events: Some(events),
        until: Some(until),
    }));
    if let Some(log) = store.log() {
        let now = Utc::now();
        for subscription in
            log.subscriptions().await?.into_iter().filter(|subscription| !subscription.is_free())
        {
            let until =
                chrono::Duration::from_std(subscription.remaining).ok().map(|remaining| now + remaining);
            let holder = subscription.leader.map(|leader| leader.to_string()).unwrap_or_default();
            leases.push(LeaseView { holder, what: subscription.id.to_string(), events: None, until });
        }
    }
    Ok(leases)
}
