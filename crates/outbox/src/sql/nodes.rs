//! Presence rows of relays, and releasing the leases of relays, on SQL.

use std::time::Duration;

use super::begin::begin_on;
use super::dialect::{Database, Value};
use super::source::Work;
use super::store::SqlStore;
use crate::error::Result;
use crate::store::{EXCLUSIVE, Node, NodeId, NodeState, Released, Store as _};

/// Presence rows of nodes that were last seen longer ago are deleted.
const FORGOTTEN: Duration = Duration::from_secs(86_400);

const FORGET: &str = "DELETE FROM {nodes} WHERE seen_at < {earlier $1}";
const RETIRE: &str = "DELETE FROM {nodes} WHERE node = $1";
const NODES: &str =
    "SELECT node, started_at, seen_at, {now}, state FROM {nodes} ORDER BY seen_at DESC, node LIMIT 1000";

/// Nodes that were not seen for a while and may hold leases. A quotation mark inside a text of the
/// state is escaped by a backslash, so the pattern matches the field and nothing else.
const QUIET: &str = "SELECT node, started_at, seen_at, {now}, state FROM {nodes} \
     WHERE seen_at < {earlier $1} AND state NOT LIKE '%\"released\":true%' ORDER BY seen_at LIMIT 100";
/// One node, which cannot announce itself until the transaction ends.
const LOCKED: &str = "SELECT node, started_at, seen_at, {now}, state FROM {nodes} WHERE node = $1 {lock}";
const MARK: &str = "UPDATE {nodes} SET state = $2 WHERE node = $1";

/// Minimum time before a relay counts as vanished.
const SHORTEST: Duration = Duration::from_millis(100);

/// Read without locks: there is no index by holder, and a locking read would lock every row that it
/// scans.
const LEASED: &str = "SELECT e.seq FROM {events} e WHERE {pending} AND e.locked_by = $1";
/// Releases leases by row. A verdict of the old holder names a holder and a claim that the row no
/// longer has. `locked_until` stays set, which marks the event as suspect. The table limits claims
/// to a billion: a row at the limit must not keep the others from being released.
const RELEASE: &str = "UPDATE {listed events seq ints $1} SET locked_by = NULL, locked_until = {now}, \
     claims = CASE WHEN claims < 1000000000 THEN claims + 1 ELSE claims END \
     {where listed events seq ints $1} AND locked_by = $2 AND {pending of events}";
/// Expires a named lease. The holder stays in the row: a lease that was not released marks the
/// holder's events as suspect.
const DEPOSE: &str =
    "UPDATE {leases} SET held_until = {now} WHERE name = $1 AND holder = $2 AND held_until > {now}";

/// Maximum number of rows that one statement releases.
const AT_ONCE: usize = 1_000;

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn announce_node(&self, node: &NodeId, state: &NodeState) -> Result<bool> {
        let told = serde_json::to_string(state).unwrap_or_default();
        if let Some(announce) = DB::announce_and_forget(self.renderer().names()) {
            let values = vec![
                Value::text(node.as_str()),
                Value::text(told),
                Value::micros(FORGOTTEN),
                Value::micros(SHORTEST),
            ];
            let rows = self.fetch_written(announce, values).await?;
            return Ok(rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten() != Some(0));
        }
        self.run(DB::ANNOUNCE, vec![Value::text(node.as_str()), Value::text(told)]).await?;
        self.run(FORGET, vec![Value::micros(FORGOTTEN)]).await?;
        Ok(true)
    }

    pub(super) async fn retire_node(&self, node: &NodeId) -> Result<()> {
        self.run(RETIRE, vec![Value::text(node.as_str())]).await?;
        if self.lists() { self.forget_ended_lists().await } else { Ok(()) }
    }

    pub(super) async fn all_nodes(&self) -> Result<Vec<Node>> {
        self.fetch(NODES, Vec::new()).await?.iter().map(Self::node).collect()
    }

    fn node(row: &DB::Row) -> Result<Node> {
        let (started_at, seen_at) =
            (DB::time(row, 1)?.unwrap_or_default(), DB::time(row, 2)?.unwrap_or_default());
        let now = DB::time(row, 3)?.unwrap_or(seen_at);
        let state = DB::shown(row, 4).unwrap_or_default();
        Ok(Node {
            node: NodeId::from(DB::shown(row, 0).unwrap_or_default()),
            started_at,
            seen: (now - seen_at).to_std().unwrap_or_default(),
            // A state of another version or written by hand decodes to the default, which has no
            // effect on decisions.
            state: serde_json::from_str::<NodeState>(&state).unwrap_or_default(),
        })
    }

    pub(super) async fn release_all_vanished(&self) -> Result<Vec<(NodeId, u64)>> {
        let quiet = self.fetch(QUIET, vec![Value::micros(SHORTEST)]).await?;
        let mut released = Vec::new();
        for row in &quiet {
            let node = Self::node(row)?;
            if node.is_to_be_released()
                && let Some(events) = self.retried(|| self.release_if_vanished(&node.node)).await?
            {
                released.push((node.node, events));
            }
        }
        Ok(released)
    }

    /// Releases the events of a node if it has vanished, in one transaction during which the node
    /// cannot announce itself. `None`: it has not vanished, or was released before.
    async fn release_if_vanished(&self, node: &NodeId) -> Result<Option<u64>> {
        let leased = self.leased(node).await?;
        let mut tx = self.begin_to_release().await?;
        let rows = DB::fetch(&mut tx, self.render(LOCKED), vec![Value::text(node.as_str())]).await?;
        let found = rows.first().map(Self::node).transpose()?.filter(Node::is_to_be_released);
        let Some(found) = found else {
            tx.commit().await?;
            return Ok(None);
        };
        let events = self.release_leases(&mut tx, node, &leased).await?;
        let state = serde_json::to_string(&NodeState { released: true, ..found.state }).unwrap_or_default();
        DB::run(&mut tx, self.render(MARK), vec![Value::text(node.as_str()), Value::text(state)]).await?;
        tx.commit().await?;
        Ok(Some(events))
    }

    pub(super) async fn release_all_of(&self, node: &NodeId) -> Result<Released> {
        let events = self.retried(|| self.release_at_once(node)).await?;
        // A leader's name ends with an id of its run: a process restarted under the same name is
        // another leader.
        let leader = self.leader(EXCLUSIVE).await?.filter(|leader| {
            let rest = leader.as_str().strip_prefix(node.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        });
        let leadership = match leader {
            Some(leader) => {
                let values = vec![Value::text(EXCLUSIVE), Value::text(leader.as_str())];
                self.run(DEPOSE, values).await? > 0
            }
            None => false,
        };
        Ok(Released { events, leadership })
    }

    async fn release_at_once(&self, node: &NodeId) -> Result<u64> {
        let leased = self.leased(node).await?;
        let mut tx = self.begin_to_release().await?;
        let events = self.release_leases(&mut tx, node, &leased).await?;
        tx.commit().await?;
        Ok(events)
    }

    async fn begin_to_release(&self) -> Result<Work<'static, DB>> {
        if self.has_lists().await? {
            return self.begin_by("").await;
        }
        Ok(begin_on(&self.pools.relay).await?)
    }

    /// Sequence numbers of the events that a node leases by row.
    async fn leased(&self, node: &NodeId) -> Result<Vec<i64>> {
        let rows = self.fetch(LEASED, vec![Value::text(node.as_str())]).await?;
        let seqs = rows.iter().map(|row| DB::int(row, 0)).collect::<Result<Vec<_>, _>>()?;
        Ok(seqs.into_iter().flatten().collect())
    }

    /// Releases the events of a node: those under group leases, and those of `leased` that it still
    /// leases by row. In one transaction, or an event of a key would be free while an earlier one
    /// is not; even then the earlier one blocks it.
    async fn release_leases(&self, conn: &mut DB::Connection, node: &NodeId, leased: &[i64]) -> Result<u64> {
        let mut events = 0;
        if self.lists() {
            events += self.release_lists(conn, node).await?;
        }
        for some in leased.chunks(AT_ONCE) {
            let values = vec![Value::ints(some.iter().copied()), Value::text(node.as_str())];
            events += DB::run(conn, self.render(RELEASE), values).await?;
        }
        Ok(events)
    }
}
