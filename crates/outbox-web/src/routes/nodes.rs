//! Relays that run, and what they hold.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use chrono::{DateTime, Utc};
use outbox::store::{EXCLUSIVE, Node, NodeId, OnDead, PageAsk, SharedStore, TaskError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::publishers::{OutageView, outages_of};
use crate::auth::Caller;
use crate::deeds::{Deeds, Happened};
use crate::extract::{Input, Params, Place};
use crate::live::milliseconds;
use crate::problem::{Answer, Problem};
use crate::state::Shared;
use crate::text;

/// How many pending events are looked at to tell who holds them.
const LOOK_AT: usize = 1_000;

/// Relays, and what they hold.
#[derive(Serialize, ToSchema)]
pub(crate) struct Nodes {
    /// The one that was seen last first.
    nodes: Vec<NodeView>,
    /// Who holds the table, events, or publishers.
    leases: Vec<LeaseView>,
}

/// A relay that runs, or has run.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "node": "shop-1-4711-a1b2", "running": true, "released": false, "active": true, "mode": "ordered", "version": "0.1.0", "on_dead": "hold",
    "started_at": "2026-01-31T12:00:00Z", "seen_ms": 900, "delivered_per_second": 118.5,
    "counts": {"delivered": 100_000, "failed": 12, "dead": 1, "deferred": 0}, "outages": [],
    "last_take": "2026-01-31T12:00:00Z", "last_settlement": "2026-01-31T12:00:00Z", "errors": [],
    "published": {"orders": "2026-01-31T12:00:00Z"},
}))]
pub(crate) struct NodeView {
    /// Its name.
    node: String,
    /// Whether it has been seen lately. One that has not, and did not say that it stops, has vanished.
    running: bool,
    /// Whether it vanished and another relay has released its leases.
    released: bool,
    /// Whether it delivers; false for one that stands by.
    active: bool,
    /// `single_node`, `multi_node` or `ordered`.
    mode: String,
    /// The version of its library.
    version: String,
    /// What a dead event does to the later events of its key: `hold` or `skip`.
    on_dead: &'static str,
    /// When it was first seen.
    started_at: DateTime<Utc>,
    /// How long ago it was last seen.
    seen_ms: u64,
    /// Events delivered a second; null if nobody listens to `live`.
    delivered_per_second: Option<f64>,
    /// What it has settled since it started.
    counts: CountsView,
    /// What it cannot reach.
    outages: Vec<OutageView>,
    /// When the database last completed a take of this relay, as of when it was seen.
    last_take: Option<DateTime<Utc>>,
    /// When the database last completed a settlement of this relay.
    last_settlement: Option<DateTime<Utc>>,
    /// Errors that its tasks meet at the moment, one for each task.
    errors: Vec<TaskErrorView>,
    /// When each destination last took something from this relay.
    published: BTreeMap<String, DateTime<Utc>>,
}

/// An error that a task of a relay meets at the moment.
#[derive(Clone, Serialize, ToSchema)]
#[schema(example = json!({
    "node": "shop-1-4711-a1b2", "task": "take", "since": "2026-01-31T12:00:00Z", "failures": 17, "problem": true,
    "error": "database error 42703: column \"due\" does not exist",
}))]
pub(crate) struct TaskErrorView {
    /// The relay.
    node: String,
    /// Its task: `take`, `settle`, `renew`, `dispatch`, `log_relay`, `watch`, `log_watch`, `announce`,
    /// `takeover`, `purge`.
    task: &'static str,
    /// The first failure since the last success.
    since: DateTime<Utc>,
    /// The latest error.
    error: String,
    /// How many failures there were since the last success.
    failures: u64,
    /// Whether it keeps events from being delivered, and has lasted for some time.
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

/// What keeps relays that run from delivering.
pub(crate) fn failing(nodes: &[Node]) -> Vec<TaskErrorView> {
    let running = nodes.iter().filter(|node| node.is_running());
    running
        .flat_map(|node| node.state.health.problems().map(move |error| TaskErrorView::new(node, error)))
        .collect()
}

/// What a relay has settled since it started.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountsView {
    /// Events that are done.
    delivered: u64,
    /// Attempts that failed, and are followed by another.
    failed: u64,
    /// Events that are dead.
    dead: u64,
    /// Times that an event was put off without an attempt.
    deferred: u64,
}

/// Something that a relay holds for a time.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"holder": "shop-1-4711-a1b2", "what": "events", "events": 12, "until": "2026-01-31T12:00:30Z"}))]
pub(crate) struct LeaseView {
    /// Who.
    holder: String,
    /// `the whole table`, `events`, or a topic and a publisher.
    what: String,
    /// How many events, of the first thousand that are pending.
    events: Option<u64>,
    /// Until when, unless renewed.
    until: Option<DateTime<Utc>>,
}

/// Relays and leases
#[utoipa::path(get, path = "/outbox/nodes", tag = "nodes", params(Place),
    responses((status = 200, description = "Those that were seen in the last day", body = Nodes)))]
pub(crate) async fn list(State(web): State<Shared>, Params(place): Params<Place>) -> Answer<Json<Nodes>> {
    let database = place.choose(&web)?;
    let nodes = database.store.nodes().await?;
    let leases = leases(&database.store).await?;
    let latest = web.live.latest(&database.name);
    let rate = |node: &Node| latest.as_ref()?.by_node.get(node.node.as_str()).copied();
    let nodes = nodes.iter().map(|node| view(node, rate(node))).collect();
    Ok(Json(Nodes { nodes, leases }))
}

/// What to release.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"running": false}))]
pub(crate) struct ReleaseAsk {
    /// Release it even though it runs.
    #[serde(default)]
    running: bool,
}

/// What was released.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"events": 12, "leadership": false}))]
pub(crate) struct ReleasedView {
    /// How many events it held.
    events: u64,
    /// Whether it led the whole table.
    leadership: bool,
}

/// Which relay.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only described")]
pub(crate) struct Which {
    /// Its name.
    #[param(min_length = 1, max_length = 128, example = "shop-1-4711-a1b2")]
    node: String,
}

/// Release what a relay holds
///
/// Its leases on events, and the leadership of the table. Other relays deliver those events at once. A relay that still runs can
/// settle none of them any more, but goes on handling the events in its memory until its next renewal: they may be delivered
/// twice, and out of the order of their keys. So it is refused unless `running` is true.
#[utoipa::path(post, path = "/outbox/nodes/{node}/release", tag = "nodes", params(Place, Which), request_body = ReleaseAsk,
    responses((status = 200, description = "Released", body = ReleasedView),
              (status = 404, description = "No relay of this name was seen, and it holds nothing"),
              (status = 409, description = "It runs, and `running` is not true")))]
pub(crate) async fn release(
    State(web): State<Shared>,
    caller: Caller,
    Path(name): Path<String>,
    Params(place): Params<Place>,
    Input(ask): Input<ReleaseAsk>,
) -> Answer<Json<ReleasedView>> {
    let database = place.choose(&web)?;
    let unknown = || {
        Problem::not_found(format!("relay {} not found", text::shown(&name)))
            .advice("GET /api/outbox/nodes lists relays and holders.")
    };
    // A text that cannot be a name is the name of no relay.
    text::check("node", &name, 128).map_err(|_| unknown())?;
    let node = NodeId::from(name.as_str());
    let nodes = database.store.nodes().await?;
    let known = nodes.iter().find(|seen| seen.node == node);
    let running = known.is_some_and(Node::is_running);
    if running && !ask.running {
        return Err(Problem::conflict("the relay runs: it was seen a moment ago").advice(
            "Stop it, or say `{\"running\": true}`: its events may be delivered twice, and out of order.",
        ));
    }
    let deed = Deeds::new(&database, &caller, "node.release", name.as_str());
    let released = deed
        .details(&serde_json::json!({"running": running}))
        .carry_out(async {
            let released = database.store.release_node(&node).await?;
            if released.is_nothing() && known.is_none() {
                return Err(unknown());
            }
            Ok(Happened { count: released.events + u64::from(released.leadership), outcome: released })
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

async fn leases(store: &SharedStore) -> Answer<Vec<LeaseView>> {
    let mut leases = Vec::new();
    if let Some(leader) = store.leader(EXCLUSIVE).await? {
        let what = "the whole table".to_owned();
        leases.push(LeaseView { holder: leader.to_string(), what, events: None, until: None });
    }
    let ask = PageAsk { limit: LOOK_AT, look_at: LOOK_AT, ..PageAsk::default() };
    let mut held: BTreeMap<String, (u64, DateTime<Utc>)> = BTreeMap::new();
    for (holder, until) in store.page(&ask).await?.rows.into_iter().filter_map(|row| row.lease) {
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
        for pair in log.pairs().await?.into_iter().filter(|pair| !pair.is_free()) {
            let until = chrono::Duration::from_std(pair.remaining).ok().map(|remaining| now + remaining);
            let holder = pair.leader.map(|leader| leader.to_string()).unwrap_or_default();
            leases.push(LeaseView { holder, what: pair.id.to_string(), events: None, until });
        }
    }
    Ok(leases)
}
