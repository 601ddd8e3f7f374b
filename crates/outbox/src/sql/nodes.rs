//! Relays that run, on SQL.

use std::time::Duration;

use super::dialect::{Database, Value};
use super::store::SqlStore;
use crate::error::Result;
use crate::store::{Node, NodeId, NodeState};

/// A node that was last seen so long ago is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(86_400);

const FORGET: &str = "DELETE FROM {nodes} WHERE seen_at < {earlier $1}";
const RETIRE: &str = "DELETE FROM {nodes} WHERE node = $1";
const NODES: &str =
    "SELECT node, started_at, seen_at, {now}, state FROM {nodes} ORDER BY seen_at DESC, node LIMIT 1000";

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn announce_node(&self, node: &NodeId, state: &NodeState) -> Result<()> {
        let told = serde_json::to_string(state).unwrap_or_default();
        self.run(DB::ANNOUNCE, vec![Value::text(node.as_str()), Value::text(told)]).await?;
        self.run(FORGET, vec![Value::micros(FORGOTTEN)]).await?;
        Ok(())
    }

    pub(super) async fn retire_node(&self, node: &NodeId) -> Result<()> {
        self.run(RETIRE, vec![Value::text(node.as_str())]).await?;
        if DB::LISTS { self.forget_ended_lists().await } else { Ok(()) }
    }

    pub(super) async fn all_nodes(&self) -> Result<Vec<Node>> {
        let rows = self.fetch(NODES, Vec::new()).await?;
        let mut nodes = Vec::with_capacity(rows.len());
        for row in &rows {
            let (started_at, seen_at) =
                (DB::time(row, 1)?.unwrap_or_default(), DB::time(row, 2)?.unwrap_or_default());
            let now = DB::time(row, 3)?.unwrap_or(seen_at);
            let state = DB::text(row, 4)?.unwrap_or_default();
            nodes.push(Node {
                node: NodeId::from(DB::text(row, 0)?.unwrap_or_default()),
                started_at,
                seen: (now - seen_at).to_std().unwrap_or_default(),
                // Of another version, or written by hand: what it says is for people only.
                state: serde_json::from_str::<NodeState>(&state).unwrap_or_default(),
            });
        }
        Ok(nodes)
    }
}
