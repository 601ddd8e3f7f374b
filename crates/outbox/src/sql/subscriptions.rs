//! Subscriptions of the log in SQL: the position and the leader of each.
//!
//! A subscription is one row with everything that decides: leader, epoch, end of the lease. Several
//! rows are always locked in the order of their names, so that no two transactions deadlock.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::begin::begin_on;
use super::dialect::{Database, Value};
use super::statements as sql;
use super::store::SqlStore;
use crate::error::Result;
use crate::log::{
    ClusterView, Position, ProgressUpdate, SubscriptionId, SubscriptionState, SubscriptionStatus,
    SubscriptionStore,
};
use crate::store::{NodeId, short_error};

/// Columns of a subscription.
const PAIR: &str = "SELECT e.topic, e.publisher, e.status, e.last_position, {int e.error_count}, e.last_error, e.leader, \
    e.epoch, e.leader_until, e.updated_at, {now}";
const PAIRS: &str = " FROM {progress} e ORDER BY e.topic, e.publisher";

/// The subscriptions of a list that have no leader, locked. A leader whose lease ran out may still
/// act as one: the epoch fences it.
const FREE: &str = " FROM {paired $1} WHERE e.leader IS NULL OR e.leader_until IS NULL OR e.leader_until <= {now} \
    ORDER BY e.topic, e.publisher {lock listed}";
const TAKE: &str = "leader = $1, epoch = e.epoch + 1, leader_until = {later $2}";

/// A pause stays. The old position is compared with the one that the leader knows, not with the
/// row: MySQL does not define the order of assignments.
const MOVE: &str = "last_position = s.new_position, error_count = s.new_errors, last_error = s.new_error, \
    status = CASE WHEN e.status IN ('ACTIVE', 'FAILED') AND s.new_status <> 'PAUSED' THEN s.new_status ELSE e.status END, \
    updated_at = CASE WHEN s.old_position <> s.new_position THEN {now} ELSE e.updated_at END";
/// Also if the row has the new position already: then the answer to the same move was lost. Within
/// an epoch only the leader moves the position.
const MOVABLE: &str =
    "e.leader = $1 AND e.epoch = s.of_epoch AND e.last_position IN (s.old_position, s.new_position)";
const MOVED: &str = "SELECT e.topic, e.publisher FROM {paired $2} \
    WHERE e.leader = $1 AND e.epoch = s.of_epoch AND e.last_position = s.new_position";

const CLEAR_LEADER: &str = "leader = NULL, leader_until = NULL";

/// Not a subscription whose lease ran out: another node may be about to claim it.
const RENEW: &str = "UPDATE {progress} AS e SET leader_until = {later $2} WHERE ";
const LED: &str = "e.leader = $1 AND e.leader_until > {now}";

const RESET: &str = "UPDATE {progress} AS e SET last_position = $3, epoch = e.epoch + 1, leader = NULL, leader_until = NULL, \
    error_count = 0, last_error = NULL, status = CASE WHEN e.status = 'FAILED' THEN 'ACTIVE' ELSE e.status END, \
    updated_at = {now} WHERE e.topic = $1 AND e.publisher = $2";

/// Nodes that publish, and the end of the lease of each.
const NODES: &str = "SELECT l.name, l.holder, l.held_until, {now} FROM {leases} l \
    WHERE l.name LIKE 'log node %' AND l.held_until IS NOT NULL ORDER BY l.name";
const DELETE_EXPIRED_NODES: &str = "DELETE {from listed leases name texts $1} {where listed leases name texts $1} \
    AND held_until < {earlier $2}";
const FORGET: &str = "DELETE FROM {leases} WHERE name = $1";

/// The row of a node is deleted this many leases after the end of its last one.
const LONG_DEAD: u32 = 10;

/// Name of the lease that shows that a node is alive.
fn heartbeat(node: &NodeId) -> Value {
    Value::text(format!("log node {node}"))
}

/// Nodes that publish, by their heartbeats.
#[derive(Default)]
struct Nodes {
    living: Vec<NodeId>,
    /// Names of the leases of nodes that have been silent for long.
    dead: Vec<Option<String>>,
}

impl Nodes {
    /// Adds a node: the name of its lease, the holder, and the end of the lease with the current
    /// time.
    fn add(
        &mut self,
        ttl: Duration,
        name: Option<String>,
        holder: Option<String>,
        times: Option<(DateTime<Utc>, DateTime<Utc>)>,
    ) {
        let Some((until, now)) = times else { return };
        if until > now {
            self.living.extend(holder.map(NodeId::from));
        } else if (now - until).to_std().is_ok_and(|dead| dead > ttl.saturating_mul(LONG_DEAD)) {
            self.dead.push(name);
        }
    }
}

/// A subscription of a list, with its new values. The names are those of the slot `{pairs}`.
#[derive(Default, Serialize)]
struct ListedSubscription<'a> {
    of_topic: &'a str,
    of_publisher: &'a str,
    at_head: i64,
    of_epoch: i64,
    old_position: i64,
    new_position: i64,
    new_status: &'a str,
    new_errors: u32,
    new_error: Option<String>,
}

impl<'a> ListedSubscription<'a> {
    fn of(subscription: &'a SubscriptionId) -> Self {
        Self { of_topic: subscription.topic(), of_publisher: subscription.publisher(), ..Self::default() }
    }
}

/// A list as a value: each subscription once, in order.
fn list<'a>(rows: impl Iterator<Item = ListedSubscription<'a>>) -> Value {
    let rows: BTreeMap<(&str, &str), ListedSubscription<'a>> =
        rows.map(|row| ((row.of_topic, row.of_publisher), row)).collect();
    Value::Text(serde_json::to_string(&rows.into_values().collect::<Vec<_>>()).ok())
}

impl<DB: Database> SqlStore<DB> {
    fn subscription(row: &DB::Row) -> Result<SubscriptionState> {
        let text = |column| Ok::<_, sqlx::Error>(DB::text(row, column)?.unwrap_or_default());
        let (until, now) = (DB::time(row, 8)?, DB::time(row, 10)?);
        let remaining = until.zip(now).and_then(|(until, now)| (until - now).to_std().ok());
        Ok(SubscriptionState {
            id: SubscriptionId::new(text(0)?, text(1)?),
            status: SubscriptionStatus::from_stored(&text(2)?),
            position: Position::new(DB::int(row, 3)?.unwrap_or_default()),
            error_count: u32::try_from(DB::int(row, 4)?.unwrap_or_default()).unwrap_or_default(),
            last_error: DB::text(row, 5)?,
            leader: DB::text(row, 6)?.map(NodeId::from),
            epoch: DB::int(row, 7)?.unwrap_or_default(),
            remaining: remaining.unwrap_or_default(),
            updated_at: DB::time(row, 9)?.unwrap_or_default(),
        })
    }

    async fn claim_pairs(
        &self,
        node: &NodeId,
        ttl: Duration,
        wanted: Value,
    ) -> Result<Vec<SubscriptionState>> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let rows = DB::fetch(&mut tx, self.render(&format!("{PAIR}{FREE}")), vec![wanted]).await?;
        let mut taken = rows.iter().map(Self::subscription).collect::<Result<Vec<_>>>()?;
        if !taken.is_empty() {
            let these = list(taken.iter().map(|subscription| ListedSubscription::of(&subscription.id)));
            let take = self.render(&DB::change_pairs("$3", TAKE, "1 = 1"));
            DB::run(&mut tx, take, vec![Value::text(node.as_str()), Value::micros(ttl), these]).await?;
        }
        tx.commit().await?;
        for subscription in &mut taken {
            (subscription.leader, subscription.epoch, subscription.remaining) =
                (Some(node.clone()), subscription.epoch + 1, ttl);
        }
        Ok(taken)
    }

    /// Renews the heartbeat of a node. The row nearly always exists.
    async fn beat(&self, node: &NodeId, ttl: Duration) -> Result<()> {
        let (name, us) = (heartbeat(node), Value::text(node.as_str()));
        if self.run(sql::KEEP_LEASE, vec![name.clone(), us.clone(), Value::micros(ttl)]).await? == 0 {
            self.run(DB::NEW_LEASE, vec![name.clone()]).await?;
            self.run(sql::PUT_LEASE, vec![name, us, Value::Int(0), Value::micros(ttl)]).await?;
        }
        Ok(())
    }

    /// Returns the nodes that are alive. Deletes the rows of nodes that have been silent for long.
    async fn living(&self, ttl: Duration) -> Result<Vec<NodeId>> {
        let mut nodes = Nodes::default();
        for row in self.fetch(NODES, Vec::new()).await? {
            let (until, now) = (DB::time(&row, 2)?, DB::time(&row, 3)?);
            nodes.add(ttl, DB::text(&row, 0)?, DB::text(&row, 1)?, until.zip(now));
        }
        self.delete_expired_nodes(ttl, nodes.dead).await?;
        Ok(nodes.living)
    }

    async fn delete_expired_nodes(&self, ttl: Duration, dead: Vec<Option<String>>) -> Result<()> {
        if !dead.is_empty() {
            // The statement checks the time again: the node may just have come back.
            let long = ttl.saturating_mul(LONG_DEAD);
            self.run(DELETE_EXPIRED_NODES, vec![Value::Texts(dead), Value::micros(long)]).await?;
        }
        Ok(())
    }

    async fn tend_at_once(&self, tend: &str, node: &NodeId, ttl: Duration) -> Result<ClusterView> {
        let values = vec![Value::text(node.as_str()), Value::micros(ttl), heartbeat(node)];
        let (mut subscriptions, mut nodes) = (Vec::new(), Nodes::default());
        for row in self.fetch_written(tend, values).await? {
            if DB::text(&row, 2)?.is_some() {
                subscriptions.push(Self::subscription(&row)?);
            } else {
                let (until, now) = (DB::time(&row, 8)?, DB::time(&row, 10)?);
                nodes.add(ttl, DB::text(&row, 0)?, DB::text(&row, 1)?, until.zip(now));
            }
        }
        subscriptions.sort_by(|a, b| a.id.cmp(&b.id));
        // The statement reads the own row as it was before: missing or out of date.
        nodes.living.retain(|other| other != node);
        nodes.living.push(node.clone());
        nodes.living.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        let own = format!("log node {node}");
        nodes.dead.retain(|name| name.as_deref() != Some(&*own));
        self.delete_expired_nodes(ttl, nodes.dead).await?;
        Ok(ClusterView { nodes: nodes.living, subscriptions })
    }
}

#[async_trait]
impl<DB: Database> SubscriptionStore for SqlStore<DB> {
    async fn register(&self, subscriptions: &[(SubscriptionId, bool)]) -> Result<()> {
        if subscriptions.is_empty() {
            return Ok(());
        }
        let rows = subscriptions.iter().map(|(subscription, head)| ListedSubscription {
            at_head: (*head).into(),
            ..ListedSubscription::of(subscription)
        });
        self.run(DB::REGISTER, vec![list(rows)]).await?;
        Ok(())
    }

    async fn tend(&self, node: &NodeId, ttl: Duration) -> Result<ClusterView> {
        if let Some(tend) = DB::TEND {
            return self.tend_at_once(tend, node, ttl).await;
        }
        self.beat(node, ttl).await?;
        let renew = format!("{RENEW}{}", DB::in_order(LED));
        self.run(&renew, vec![Value::text(node.as_str()), Value::micros(ttl)]).await?;
        Ok(ClusterView { nodes: self.living(ttl).await?, subscriptions: self.subscriptions().await? })
    }

    async fn subscriptions(&self) -> Result<Vec<SubscriptionState>> {
        self.fetch(&format!("{PAIR}{PAIRS}"), Vec::new()).await?.iter().map(Self::subscription).collect()
    }

    async fn claim(
        &self,
        node: &NodeId,
        ttl: Duration,
        subscriptions: &[SubscriptionId],
    ) -> Result<Vec<SubscriptionState>> {
        if subscriptions.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = list(subscriptions.iter().map(ListedSubscription::of));
        self.retried(|| self.claim_pairs(node, ttl, wanted.clone())).await
    }

    async fn save(&self, node: &NodeId, moves: &[ProgressUpdate]) -> Result<Vec<SubscriptionId>> {
        if moves.is_empty() {
            return Ok(Vec::new());
        }
        let rows = list(moves.iter().map(|m| ListedSubscription {
            of_epoch: m.epoch,
            old_position: m.from.get(),
            new_position: m.to.get(),
            new_status: m.status.as_str(),
            // The maximum of the column.
            new_errors: m.error_count.min(i32::MAX.unsigned_abs()),
            new_error: m.last_error.as_deref().map(short_error),
            ..ListedSubscription::of(&m.subscription)
        }));
        let values = vec![Value::text(node.as_str()), rows];
        let moved = self.run(&DB::change_pairs("$2", MOVE, MOVABLE), values.clone()).await?;
        if moved == moves.len() as u64 {
            return Ok(moves.iter().map(|m| m.subscription.clone()).collect());
        }
        // Some did not move. They are looked up, because not every database reports which.
        let rows = self.fetch(MOVED, values).await?;
        let names = |row| Ok::<_, sqlx::Error>(DB::text(row, 0)?.zip(DB::text(row, 1)?));
        let moved = rows.iter().map(names).collect::<Result<Vec<_>, _>>()?;
        Ok(moved
            .into_iter()
            .flatten()
            .map(|(topic, publisher)| SubscriptionId::new(topic, publisher))
            .collect())
    }

    async fn release(&self, node: &NodeId, subscriptions: &[(SubscriptionId, i64)]) -> Result<()> {
        if subscriptions.is_empty() {
            return Ok(());
        }
        let rows = list(subscriptions.iter().map(|(subscription, epoch)| ListedSubscription {
            of_epoch: *epoch,
            ..ListedSubscription::of(subscription)
        }));
        let release = DB::change_pairs("$2", CLEAR_LEADER, "e.leader = $1 AND e.epoch = s.of_epoch");
        self.run(&release, vec![Value::text(node.as_str()), rows]).await?;
        Ok(())
    }

    async fn leave(&self, node: &NodeId) -> Result<()> {
        let leave =
            format!("UPDATE {{progress}} AS e SET {CLEAR_LEADER} WHERE {}", DB::in_order("e.leader = $1"));
        self.run(&leave, vec![Value::text(node.as_str())]).await?;
        self.run(FORGET, vec![heartbeat(node)]).await?;
        Ok(())
    }

    async fn set_status(
        &self,
        publisher: &str,
        topic: Option<&str>,
        status: SubscriptionStatus,
    ) -> Result<u64> {
        let mut values = vec![Value::text(publisher), Value::text(status.as_str())];
        values.extend(topic.map(Value::text));
        let set = match status {
            SubscriptionStatus::Active => "status = $2, error_count = 0, last_error = NULL",
            SubscriptionStatus::Paused | SubscriptionStatus::Failed => "status = $2",
        };
        let which = match topic {
            Some(_) => "e.publisher = $1 AND e.topic = $3",
            None => "e.publisher = $1",
        };
        self.run(&format!("UPDATE {{progress}} AS e SET {set} WHERE {}", DB::in_order(which)), values).await
    }

    async fn reset(&self, subscription: &SubscriptionId, position: Position) -> Result<bool> {
        let values = vec![
            Value::text(subscription.topic()),
            Value::text(subscription.publisher()),
            Value::Int(position.get()),
        ];
        Ok(self.run(RESET, values).await? > 0)
    }
}
