//! Relays that run, and what they hold.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use outbox::store::{EXCLUSIVE, Node, OnDead, PageAsk, SharedStore};
use serde::Serialize;
use utoipa::ToSchema;

use super::publishers::{OutageView, outages_of};
use crate::extract::{Params, Place};
use crate::live::milliseconds;
use crate::problem::Answer;
use crate::state::Shared;

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
    "node": "shop-1-4711-a1b2", "running": true, "active": true, "mode": "ordered", "version": "0.1.0", "on_dead": "hold",
    "started_at": "2026-01-31T12:00:00Z", "seen_ms": 900, "delivered_per_second": 118.5,
    "counts": {"delivered": 100_000, "failed": 12, "dead": 1, "deferred": 0}, "outages": [],
}))]
pub(crate) struct NodeView {
    /// Its name.
    node: String,
    /// Whether it has been seen lately.
    running: bool,
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

fn view(node: &Node, delivered_per_second: Option<f64>) -> NodeView {
    let (state, counts) = (&node.state, &node.state.counts);
    NodeView {
        node: node.node.to_string(),
        running: node.is_running(),
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
