//! Taking: what is due is read, what is blocked by an earlier event of its key is left out, the rest is leased or held.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::batch::in_the_way;
use super::begin::begin_on;
use super::dialect::{Database, Value};
use super::source::Source;
use super::statements as sql;
use super::store::SqlStore;
use super::window::{Window, WindowRow};
use crate::error::Result;
use crate::event::EventId;
use crate::store::{Claim, Cursor, Holder, NodeId, Origin, Store as _, Take};

impl<DB: Database> SqlStore<DB> {
    /// Leases what is due: selects and locks the window, finds what blocks its keys, marks the rest as ours.
    pub(super) async fn claim(&self, take: &Take, owner: &NodeId, lease: Duration) -> Result<Window> {
        if DB::LISTS {
            return self.claim_listed(take, owner, lease).await;
        }
        let mut tx = begin_on(&self.pools.relay).await?;
        let mut window = self.look(&mut tx, take, true).await?;
        self.block(&mut tx, &mut window, take, &[]).await?;
        self.lease_rows(&mut tx, window.rows.iter_mut(), owner, lease).await?;
        tx.commit().await?;
        Ok(window)
    }

    /// Leases rows that are locked.
    pub(super) async fn lease_rows<'a>(
        &self,
        conn: &mut DB::Connection,
        rows: impl Iterator<Item = &'a mut WindowRow>,
        owner: &NodeId,
        lease: Duration,
    ) -> Result<()> {
        let mut ids = Vec::new();
        for row in rows {
            row.claim += 1;
            ids.push(Some(row.id.as_str().to_owned()));
        }
        if !ids.is_empty() {
            let values = vec![Value::text(owner.as_str()), Value::micros(lease), Value::Texts(ids)];
            DB::run(conn, self.render(sql::CLAIM), values).await?;
        }
        Ok(())
    }

    /// Reads what is due without writing anything: the taker holds the whole table.
    pub(super) async fn read(&self, take: &Take) -> Result<Window> {
        let Some(settings) = DB::IN_ORDER else { return self.read_from(&self.pools.read, take).await };
        // The relay's own connections are told once how to plan; those of a fleet serve everybody.
        if let Source::Pool(_) = self.pools.relay {
            return self.read_from(&self.pools.relay, take).await;
        }
        let mut tx = begin_on(&self.pools.relay).await?;
        DB::script(&mut tx, settings.to_owned()).await?;
        let window = self.see(&mut tx, take).await?;
        tx.commit().await?;
        Ok(window)
    }

    async fn read_from(&self, source: &Source<DB>, take: &Take) -> Result<Window> {
        let mut conn = source.acquire().await?;
        let window = self.see(&mut conn, take).await?;
        conn.went_well();
        Ok(window)
    }

    async fn see(&self, conn: &mut DB::Connection, take: &Take) -> Result<Window> {
        let mut window = self.look(conn, take, false).await?;
        self.block(conn, &mut window, take, &[]).await?;
        Ok(window)
    }

    /// Selects what may be taken, before order per key is looked at.
    pub(super) async fn look(&self, conn: &mut DB::Connection, take: &Take, lock: bool) -> Result<Window> {
        let takes = match &take.from {
            Origin::Keys(keys) if !DB::LATERAL => {
                // A key that is named twice is one key: its rows must not come twice.
                let keys: BTreeSet<&Arc<str>> = keys.iter().collect();
                let limit = (take.limit / keys.len().max(1)).max(1);
                let one =
                    |key: &Arc<str>| Take { from: Origin::Keys(vec![key.clone()]), limit, ..take.clone() };
                keys.into_iter().map(one).collect()
            }
            _ => vec![take.clone()],
        };
        let mut rows = Vec::new();
        for take in takes {
            let oldest = match &take.by {
                Holder::Lease { .. } => self.batches.floor(),
                Holder::Exclusive { .. } => 0,
            };
            let lists = DB::LISTS.then_some(oldest);
            let (text, values) = sql::window(&take, &sql::columns(), lock, lists);
            rows.extend(DB::fetch(conn, self.render(&text), values).await?);
        }
        self.window(&rows)
    }

    fn window(&self, rows: &[DB::Row]) -> Result<Window> {
        let mut window = Window { scanned: rows.len(), ..Window::default() };
        for row in rows {
            let seq = DB::int(row, 1)?.unwrap_or_default();
            let Some(at) = DB::time(row, 2)? else { continue };
            window.cursor = window.cursor.max(Some(Cursor { at, seq }));
            let id = match DB::text(row, 0) {
                Ok(Some(id)) => EventId::from(id),
                unreadable => {
                    tracing::error!(
                        store = self.name(),
                        seq,
                        ?unreadable,
                        "an event's id cannot be read: row left alone"
                    );
                    continue;
                }
            };
            let columns = DB::columns(row, sql::EVENT_FROM);
            window.rows.push(WindowRow {
                seq,
                claim: DB::int(row, 4)?.unwrap_or_default() as Claim,
                attempts: DB::int(row, 3)?.unwrap_or_default() as u32,
                suspect: DB::int(row, 5)?.map(|starts| starts as u32),
                now: DB::time(row, 6)?.unwrap_or(at),
                available_at: at,
                key: columns.as_ref().ok().and_then(|c| c.ordering_key.clone()),
                columns: columns.map_err(|e| e.to_string()),
                id,
            });
        }
        Ok(window)
    }

    /// Takes out of the window what an earlier event of the same key, outside of it, holds back. `lists` are those that the taker has.
    pub(super) async fn block(
        &self,
        conn: &mut DB::Connection,
        window: &mut Window,
        take: &Take,
        lists: &[i64],
    ) -> Result<()> {
        let mut last: HashMap<&str, i64> = HashMap::new();
        for (key, seq) in window.rows.iter().filter_map(|row| Some((row.key.as_deref()?, row.seq))) {
            last.entry(key).and_modify(|last| *last = seq.max(*last)).or_insert(seq);
        }
        if last.is_empty() {
            return Ok(());
        }
        let frontier = |key: &str| take.frontiers.get(key).map_or(0, |frontier| frontier.seq);
        let seqs = Value::ints(window.rows.iter().filter(|row| row.key.is_some()).map(|row| row.seq));
        let mut values = if DB::ARRAYS {
            let keys = Value::texts(last.keys().copied());
            let frontiers = Value::ints(last.keys().map(|key| frontier(key)));
            vec![keys, frontiers, Value::ints(last.into_values()), seqs]
        } else {
            let rows: Vec<_> = last.into_iter().map(|(key, last)| (key, frontier(key), last)).collect();
            vec![Value::Text(serde_json::to_string(&rows).ok()), seqs]
        };
        let past = match &take.by {
            Holder::Exclusive { .. } => "o.seq > {frontier}".to_owned(),
            Holder::Lease { owner, .. } if DB::LISTS => in_the_way(take, owner, lists, &mut values),
            Holder::Lease { owner, .. } => {
                values.push(Value::text(owner.as_str()));
                let us = values.len();
                // As the database has it: a lease that ran out, and is another's now, is in the way.
                format!(
                    "NOT COALESCE(o.seq <= {{frontier}} AND o.locked_by = ${us} AND o.locked_until > {{now}}, FALSE)"
                )
            }
        };
        let stops_of = DB::stops(take.on_dead).replace("{past}", &past);
        let mut stops: HashMap<String, i64> = HashMap::new();
        for row in DB::fetch(conn, self.render(&stops_of), values).await? {
            if let (Some(key), Some(stop)) = (DB::text(&row, 0)?, DB::int(&row, 1)?) {
                stops.insert(key, stop);
            }
        }
        window.leave_out(|row| {
            row.key.as_ref().is_some_and(|key| stops.get(&**key).is_some_and(|stop| row.seq > *stop))
        });
        Ok(())
    }
}
