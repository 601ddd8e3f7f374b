//! The overview of a dashboard. Everything is counted by an index, up to a limit.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::dialect::{Database, Value};
use super::page::{ROW, Reading};
use super::store::SqlStore;
use crate::error::Result;
use crate::event::GLOBAL;
use crate::store::{
    BlockedKey, BlockedKeys, BoundedCount, Breakdown, EXCLUSIVE, EventRow, MAX_SCAN, NodeId, NodeRoutes,
    Overview, StatusGroup, Store as _, TypeCount, UnroutedEvents, UnroutedType, takers,
};

/// Limit of the count of events behind a dead event.
const MOST_BEHIND: u64 = 1_000;

/// How many keys one statement counts.
const KEYS_AT_ONCE: usize = 20;

/// Counts the first pending rows on one side of now: all, those that retry, and those that are
/// held.
fn pending(is_due: &str, limit: u64) -> String {
    format!(
        "(SELECT count(*) AS n, count(CASE WHEN w.status = 2 THEN 1 END) AS retries, \
         count(CASE WHEN w.held = 1 THEN 1 END) AS held FROM (\
         SELECT e.status, CASE WHEN {{held}} THEN 1 ELSE 0 END AS held FROM {{events}} e {{by events_due}} WHERE {{pending}} AND e.available_at {is_due} {{now}} \
         ORDER BY e.available_at, e.seq LIMIT {limit}) w)"
    )
}

impl<DB: Database> SqlStore<DB> {
    pub(super) async fn see_overview(&self, most: u64) -> Result<Overview> {
        let most = most.min(1_000_000);
        let limit = most + 1;
        let (due, delayed) = (pending("<=", limit), pending(">", limit));
        let dead = Reading::of::<DB>(StatusGroup::Dead).numbers(limit);
        let text = format!(
            "SELECT {{now}}, (SELECT x.holder FROM {{leases}} x WHERE x.name = 'exclusive' AND x.held_until > {{now}}), \
             (SELECT e.done_at FROM {{events}} e WHERE e.done_at IS NOT NULL ORDER BY e.done_at DESC LIMIT 1), \
             (SELECT min(e.available_at) FROM {{events}} e WHERE {{pending}} AND e.available_at <= {{now}}), \
             a.n, a.retries, a.held, b.n, b.retries, b.held, c.n \
             FROM {due} a CROSS JOIN {delayed} b CROSS JOIN (SELECT count(*) AS n FROM ({dead}) w) c"
        );
        let rows = self.fetch_in_order(&text, Vec::new()).await?;
        let mut overview = Overview::default();
        if let Some(row) = rows.first() {
            let number = |n: usize| Ok::<_, sqlx::Error>(DB::int(row, n)?.unwrap_or_default().unsigned_abs());
            let (due, delayed) = (number(4)?, number(7)?);
            let counted = due.min(most) + delayed.min(most);
            let among =
                |found: u64| BoundedCount { count: found.min(counted), more: due > most || delayed > most };
            overview.now = DB::time(row, 0)?.unwrap_or_default();
            overview.leader = DB::text(row, 1)?.map(NodeId::from);
            overview.last_settled = DB::time(row, 2)?;
            overview.oldest_due =
                DB::time(row, 3)?.map(|at| (overview.now - at).to_std().unwrap_or_default());
            overview.due = BoundedCount::upto(due, most);
            overview.delayed = BoundedCount::upto(delayed, most);
            overview.retrying = among(number(5)? + number(8)?);
            overview.held = among(number(6)? + number(9)?);
            overview.dead = BoundedCount::upto(number(10)?, most);
        }
        let (schema, table) = self.schema_and_table();
        let size = DB::size(self.renderer().names());
        let rows = self.fetch(size, vec![Value::Text(schema), Value::text(table)]).await?;
        if let Some(row) = rows.first() {
            overview.last_seq = DB::int(row, 0)?.unwrap_or_default();
            overview.rows = DB::int(row, 1)?.map(i64::unsigned_abs);
        }
        Ok(overview)
    }

    pub(super) async fn break_down(&self, status_group: StatusGroup, scan_limit: usize) -> Result<Breakdown> {
        let scan_limit = scan_limit.min(MAX_SCAN);
        let reading = Reading::of::<DB>(status_group);
        let own = reading.own;
        let columns = format!("e.event_type, e.created_at, CASE WHEN {own} THEN 1 ELSE 0 END AS hit");
        // One row more, to know whether there are more.
        let window = reading.window(&columns, "", "", scan_limit + 1);
        let text = format!(
            "SELECT v.event_type, count(CASE WHEN v.n <= {scan_limit} AND v.hit = 1 THEN 1 END), \
             min(CASE WHEN v.n <= {scan_limit} AND v.hit = 1 THEN v.created_at END), count(*) FROM (\
             SELECT w.event_type, w.created_at, w.hit, row_number() OVER (ORDER BY w.place, w.seq) AS n FROM ({window}) w) v \
             GROUP BY v.event_type ORDER BY 2 DESC, 1"
        );
        let mut breakdown = Breakdown::default();
        for row in self.fetch_in_order(&text, Vec::new()).await? {
            let count = DB::int(&row, 1)?.unwrap_or_default().unsigned_abs();
            breakdown.scanned += DB::int(&row, 3)?.unwrap_or_default().unsigned_abs();
            if count > 0 {
                let event_type = DB::shown(&row, 0).unwrap_or_default();
                breakdown.types.push(TypeCount { event_type, count, oldest: DB::time(&row, 2)? });
            }
        }
        let scanned = BoundedCount::upto(breakdown.scanned, scan_limit as u64);
        (breakdown.scanned, breakdown.more) = (scanned.count, scanned.more);
        Ok(breakdown)
    }

    pub(super) async fn find_unrouted(&self, scan_limit: usize) -> Result<UnroutedEvents> {
        let (nodes, leader) = (self.nodes().await?, self.leader(EXCLUSIVE).await?);
        let takers = takers(&nodes, leader.as_ref());
        if takers.iter().any(|node| !matches!(node.state.routes, NodeRoutes::Only(_))) || takers.is_empty() {
            return Ok(UnroutedEvents::default());
        }
        let scan_limit = scan_limit.min(MAX_SCAN);
        let columns = "e.event_type, e.aggregate_type, e.created_at";
        // One row more, to know whether there are more.
        let window = Reading::of::<DB>(StatusGroup::Pending).window(columns, "", "", scan_limit + 1);
        let text = format!(
            "SELECT v.event_type, v.aggregate_type, count(CASE WHEN v.n <= {scan_limit} THEN 1 END), \
             min(v.created_at), count(*) FROM (\
             SELECT w.event_type, w.aggregate_type, w.created_at, row_number() OVER (ORDER BY w.place, w.seq) AS n \
             FROM ({window}) w) v GROUP BY v.event_type, v.aggregate_type ORDER BY 3 DESC, 1, 2"
        );
        let mut unrouted = UnroutedEvents::default();
        let mut scanned = 0;
        for row in self.fetch_in_order(&text, Vec::new()).await? {
            let count = DB::int(&row, 2)?.unwrap_or_default().unsigned_abs();
            scanned += DB::int(&row, 4)?.unwrap_or_default().unsigned_abs();
            let event_type = DB::shown(&row, 0).unwrap_or_default();
            let aggregate_type = DB::shown(&row, 1).unwrap_or_else(|| GLOBAL.to_owned());
            if count > 0 && !takers.iter().any(|node| node.state.routes.takes(&event_type, &aggregate_type)) {
                let oldest = DB::time(&row, 3)?;
                unrouted.types.push(UnroutedType { event_type, aggregate_type, count, oldest });
            }
        }
        unrouted.more = scanned > scan_limit as u64 || unrouted.types.len() > UnroutedEvents::MOST;
        unrouted.types.truncate(UnroutedEvents::MOST);
        unrouted.relays = takers.iter().map(|node| node.node.clone()).collect();
        Ok(unrouted)
    }

    pub(super) async fn find_blocked_keys(&self, scan_limit: usize, limit: usize) -> Result<BlockedKeys> {
        let scan_limit = scan_limit.min(MAX_SCAN);
        let window =
            Reading::of::<DB>(StatusGroup::Dead).window("e.ordering_key AS k", "", "", scan_limit + 1);
        let rows = self
            .fetch_in_order(&format!("SELECT w.event_id, w.seq, w.k FROM ({window}) w"), Vec::new())
            .await?;
        let mut more = rows.len() > scan_limit;
        let mut firsts: HashMap<String, (i64, String)> = HashMap::new();
        for row in rows.iter().take(scan_limit) {
            let (Some(key), Some(seq), Some(id)) = (DB::shown(row, 2), DB::int(row, 1)?, DB::shown(row, 0))
            else {
                continue;
            };
            match firsts.get(&key) {
                Some((first, _)) if *first <= seq => {}
                _ => _ = firsts.insert(key, (seq, id)),
            }
        }
        let mut heads: Vec<(String, i64, String)> =
            firsts.into_iter().map(|(key, (seq, id))| (key, seq, id)).collect();
        heads.sort_unstable_by_key(|(_, seq, _)| *seq);
        let mut blocked: Vec<(String, String, BoundedCount)> = Vec::new();
        for some in heads.chunks(KEYS_AT_ONCE) {
            if blocked.len() > limit {
                break;
            }
            let waiting = self.count_waiting(some).await?;
            let found = some.iter().zip(waiting).filter(|(_, waiting)| waiting.count > 0 || waiting.more);
            blocked.extend(found.map(|((key, _, id), waiting)| (key.clone(), id.clone(), waiting)));
        }
        more |= blocked.len() > limit;
        blocked.truncate(limit);
        let mut rows = self.rows_by_id(blocked.iter().map(|(_, id, _)| id.as_str())).await?;
        let keys = blocked.into_iter().filter_map(|(key, id, waiting)| {
            // The event may have been replayed since.
            Some(BlockedKey { key, head: rows.remove(&id)?, waiting })
        });
        Ok(BlockedKeys { keys: keys.collect(), more })
    }

    /// Counts the pending events behind a place in their key. One search per key, with a limit,
    /// because a key may have many events.
    async fn count_waiting(&self, heads: &[(String, i64, String)]) -> Result<Vec<BoundedCount>> {
        let (mut text, mut values) = (String::new(), Vec::new());
        for (n, (key, seq, _)) in heads.iter().enumerate() {
            values.extend([Value::text(key), Value::Int(*seq)]);
            let (key, seq) = (values.len() - 1, values.len());
            let _ = write!(
                text,
                "{}SELECT {{int {n}}}, count(CASE WHEN w.status IN (0, 2) THEN 1 END), count(*) FROM (\
                 SELECT e.status FROM {{events}} e {{by events_key}} WHERE e.ordering_key = ${key} AND {{unsettled pending}} \
                 AND e.seq > ${seq} ORDER BY e.seq LIMIT {}) w",
                if n == 0 { "" } else { " UNION ALL " },
                MOST_BEHIND + 1
            );
        }
        let mut counts = vec![BoundedCount::default(); heads.len()];
        for row in self.fetch_in_order(&text, values).await? {
            let number =
                |n: usize| Ok::<_, sqlx::Error>(DB::int(&row, n)?.unwrap_or_default().unsigned_abs());
            if let Some(counted) = counts.get_mut(number(0)? as usize) {
                let more = number(2)? > MOST_BEHIND;
                *counted = BoundedCount { count: number(1)?.min(MOST_BEHIND), more };
            }
        }
        Ok(counts)
    }

    /// Reads dead events by their ids.
    async fn rows_by_id<'a>(&self, ids: impl Iterator<Item = &'a str>) -> Result<HashMap<String, EventRow>> {
        let text =
            format!("SELECT {ROW} FROM {{events}} e WHERE e.event_id {{in texts $1}} AND e.status = 3");
        let mut found = HashMap::new();
        for row in self.fetch(&text, vec![Value::texts(ids)]).await? {
            let row = self.event_row(&row, 0)?;
            found.insert(row.id.to_string(), row);
        }
        Ok(found)
    }
}
