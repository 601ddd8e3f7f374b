//! The relays that were seen, as they are shown.

use chrono::{DateTime, Utc};
use comfy_table::Cell;
use outbox::store::{Node, NodeOutage};
use serde::Serialize;

use crate::show::{Output, Table, dash, short, span_of, status};

/// A relay for programs.
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
        }
    }
}

impl RelayView {
    fn state(&self) -> Cell {
        match (self.running, self.active) {
            (true, true) => status("ACTIVE"),
            (true, false) => Cell::new("stands by"),
            // It would have said so, had it been stopped.
            (false, _) => status("vanished"),
        }
    }
}

/// What runs, or a sentence if nothing does.
pub(super) fn lines(relays: &[RelayView], output: Output) -> String {
    if relays.is_empty() {
        return "Relays   none says that it runs".to_owned();
    }
    let mut table = Table::new(["RELAY", "STATE", "MODE", "STARTED", "SEEN", "DESTINATIONS NOT AVAILABLE"]);
    for relay in relays {
        let away: Vec<String> = relay
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
            Cell::new(if away.is_empty() { dash() } else { away.join("; ") }),
        ]);
    }
    table.lines()
}
