//! JSON and table forms of the relays of an outbox.

use chrono::{DateTime, Utc};
use comfy_table::Cell;
use outbox::escape::Escaped;
use outbox::store::{Node, NodeOutage, NodeRoutes, RelayHealth};
use serde::Serialize;

use crate::output::{Output, Table, dash, short, span_of, status};

/// JSON form of a relay.
#[derive(Serialize)]
pub(super) struct RelayView {
    node: String,
    mode: String,
    version: String,
    running: bool,
    active: bool,
    started_at: DateTime<Utc>,
    seen_ms: u64,
    outages: Vec<NodeOutage>,
    routes: NodeRoutes,
    health: RelayHealth,
}

impl From<Node> for RelayView {
    fn from(node: Node) -> Self {
        Self {
            running: node.is_running(),
            node: node.node.to_string(),
            mode: node.state.mode,
            version: node.state.version,
            active: node.state.active,
            started_at: node.started_at,
            seen_ms: u64::try_from(node.seen.as_millis()).unwrap_or(u64::MAX),
            outages: node.state.outages,
            routes: node.state.routes,
            health: node.state.health,
        }
    }
}

impl RelayView {
    /// One sentence for each error that prevents delivery.
    fn problems(&self) -> impl Iterator<Item = String> {
        let node = short(&self.node, 100);
        self.health.problems().map(move |problem| format!("Relay {node} {}.", Escaped(problem)))
    }

    fn state(&self) -> Cell {
        match (self.running, self.active) {
            (true, _) if self.health.problems().next().is_some() => status("failing"),
            (true, true) => status("ACTIVE"),
            (true, false) => Cell::new("standby"),
            // A relay that stops signs off.
            (false, _) => status("vanished"),
        }
    }
}

/// Table of relays and their problems, or a sentence if there are no relays.
pub(super) fn lines(relays: &[RelayView], output: Output) -> String {
    if relays.is_empty() {
        return "Relays   none".to_owned();
    }
    let mut table =
        Table::new(["RELAY", "STATE", "MODE", "STARTED", "SEEN", "LAST TAKE", "DESTINATIONS NOT AVAILABLE"]);
    for relay in relays {
        let unavailable: Vec<String> = relay
            .outages
            .iter()
            .map(|outage| format!("{}: {}", outage.destination, short(&outage.reason, 60)))
            .collect();
        table.row([
            Cell::new(short(&relay.node, 48)),
            relay.state(),
            Cell::new(short(&relay.mode, 20)),
            Cell::new(output.time(relay.started_at)),
            Cell::new(format!("{} ago", span_of(std::time::Duration::from_millis(relay.seen_ms)))),
            Cell::new(relay.health.last_take.map_or_else(dash, |at| output.time(at))),
            Cell::new(if unavailable.is_empty() { dash() } else { unavailable.join("; ") }),
        ]);
    }
    let problems = relays.iter().filter(|relay| relay.running).flat_map(RelayView::problems);
    problems.fold(table.lines(), |lines, problem| format!("{lines}\n\n{problem}"))
}
