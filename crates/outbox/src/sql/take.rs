//! Taking: reads due events, leaves out those blocked by an earlier event of their key, and leases
//! the rest, or only returns it to the leader of the whole table.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::begin::{begin_by, begin_on};
use super::dialect::{Database, Value};
use super::group_lease::{UNLIST, blocking_predicate};
use super::source::Source;
use super::statements::{self as sql, Lock};
use super::store::SqlStore;
use super::window::{Window, WindowRow, window_row};
use crate::error::{Error, Result};
use crate::join::Step;
use crate::store::{Cursor, Holder, KeyQueueId, NodeId, Origin, Store as _, Take, short_error};

impl<DB: Database> SqlStore<DB> {
    /// Leases due events: selects and locks the window, finds the events that block its keys,
    /// leases the rest.
    pub(super) async fn claim(&self, take: &Take, owner: &NodeId, lease: Duration) -> Result<Window> {
        if self.has_lists().await? {
            return self.claim_group(take, owner, lease).await;
        }
        let mut tx = begin_on(&self.pools.relay).await?;
        let in_turn = DB::take_turn(self.renderer(), &mut tx).await?;
        let lock = if in_turn { Lock::Waiting } else { Lock::Skipping };
        let mut window = self.look(&mut tx, take, lock).await?;
        self.block(&mut tx, &mut window, take, &[]).await?;
        self.lease_rows(&mut tx, window.rows.iter_mut(), owner, lease).await?;
        self.fence(&mut tx, &window, owner).await?;
        tx.commit().await?;
        Ok(window)
    }

    /// Fences whole keys from holders whose lease on an event of the window ran out. Such a holder
    /// may still run, with later events of the key in flight: if it settled those, the event that
    /// is taken now would be delivered after them.
    pub(super) async fn fence(
        &self,
        conn: &mut DB::Connection,
        window: &Window,
        owner: &NodeId,
    ) -> Result<()> {
        let taken_over = window.rows.iter().filter(|row| row.suspect.is_some());
        let keys: BTreeSet<&str> = taken_over.filter_map(|row| row.key.as_deref()).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let of_others = || vec![Value::texts(keys.iter().copied()), Value::text(owner.as_str())];
        let fenced = Value::Time(Some(sql::FENCED));
        DB::run(conn, self.render(sql::FENCE), [of_others(), vec![fenced]].concat()).await?;
        if self.lists() {
            DB::run(conn, self.render(UNLIST), of_others()).await?;
        }
        Ok(())
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

    /// Reads due events without a write: the taker holds the whole table.
    pub(super) async fn read(&self, take: &Take) -> Result<Window> {
        let Some(settings) = self.in_order() else {
            // Not from the pool of admin reads, which may be slow; on SQLite not behind the one
            // writer.
            let source = if DB::READS_APART { &self.pools.read } else { &self.pools.relay };
            return self.read_from(source, take).await;
        };
        // The connections of the relay have their planner settings from the start; those of a fleet
        // are shared by all users.
        if let Source::Pool(_) = self.pools.relay {
            return self.read_from(&self.pools.relay, take).await;
        }
        let mut tx = begin_by(&self.pools.relay, Some(settings.to_owned())).await?;
        let window = self.see(&mut tx, take).await?;
        tx.commit().await?;
        Ok(window)
    }

    async fn read_from(&self, source: &Source<DB>, take: &Take) -> Result<Window> {
        let mut conn = source.acquire().await?;
        let window = self.see(&mut conn, take).await?;
        conn.finish().await?;
        Ok(window)
    }

    /// Place of the last pending event that has been due for longer than this.
    pub(super) async fn find_last_due(&self, longer_than: Duration) -> Result<Option<Cursor>> {
        // As in `read`: a take must not wait for admin reads.
        let source = if DB::READS_APART { &self.pools.read } else { &self.pools.relay };
        let mut conn = source.acquire().await?;
        let rows = DB::fetch(&mut conn, self.render(sql::LAST_DUE), vec![Value::micros(longer_than)]).await?;
        conn.finish().await?;
        let Some(row) = rows.first() else { return Ok(None) };
        // Other programs write this column too: a time that cannot be read is no place.
        let place = DB::time(row, 0).ok().flatten().zip(DB::int(row, 1)?);
        Ok(place.map(|(at, seq)| Cursor { at, seq }))
    }

    async fn see(&self, conn: &mut DB::Connection, take: &Take) -> Result<Window> {
        let mut window = self.look(conn, take, Lock::None).await?;
        self.block(conn, &mut window, take, &[]).await?;
        Ok(window)
    }

    /// Selects the rows that may be taken, before the order per key is checked.
    pub(super) async fn look(&self, conn: &mut DB::Connection, take: &Take, lock: Lock) -> Result<Window> {
        let takes = match &take.from {
            Origin::Keys(keys) if !DB::LATERAL => {
                // A key that is named twice counts once: its rows must not be returned twice.
                let keys: BTreeSet<&Arc<str>> = keys.iter().collect();
                let limit = (take.limit / keys.len().max(1)).max(1);
                let one =
                    |key: &Arc<str>| Take { from: Origin::Keys(vec![key.clone()]), limit, ..take.clone() };
                keys.into_iter().map(one).collect()
            }
            _ => vec![take.clone()],
        };
        let mut window = Window::new(take.max_bytes);
        for take in takes {
            let oldest = match &take.by {
                Holder::Lease { .. } => self.batches.floor(),
                Holder::Exclusive { .. } => 0,
            };
            let lists = self.lists().then_some(oldest);
            let (text, values) = sql::window::<DB>(&take, &sql::columns(), lock, lists);
            let mut each = |row: &DB::Row| {
                window.add(DB::int(row, 1)?.unwrap_or_default(), window_row::<DB>(row));
                Ok(())
            };
            DB::fetch_each(conn, self.render(&text), values, &mut each).await?;
        }
        if take.by_aggregate {
            window.leave_out_unkeyed();
        }
        if window.is_cut() {
            // There are more rows, but they exceed the limit of bytes.
            window.scanned = window.scanned.max(take.limit);
        }
        Ok(window)
    }

    /// Dead-letters rows that no statement can take, by their numbers. Returns how many.
    ///
    /// A failure is not returned: other events of the window are claimed already, and an error
    /// would lose them until their leases run out. The next take reads the rows again.
    pub(super) async fn dead_letter(&self, by: &NodeId, unusable: &[(i64, String)]) -> usize {
        let (store, mut moved) = (self.name(), 0);
        for (seq, reason) in unusable {
            match self.retried(|| self.dead_letter_row(by, *seq, reason)).await {
                Ok(true) => {
                    tracing::error!(store, seq, reason, "dead-lettered an event that cannot be read");
                    moved += 1;
                }
                // Another relay has dead-lettered or changed the row.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(store, seq, reason, %error, "event that cannot be read was not dead-lettered");
                    // A database that does not answer will not answer for the next row either.
                    if !matches!(&error, Error::Database(e) if e.inner().as_database_error().is_some()) {
                        break;
                    }
                }
            }
        }
        moved
    }

    /// Dead-letters one row. If the event is a step of a join, the step fails, as with a verdict.
    async fn dead_letter_row(&self, by: &NodeId, seq: i64, reason: &str) -> Result<bool> {
        let reason = short_error(&format!("cannot be decoded: {reason}"));
        let values = vec![Value::Int(seq), Value::text(by.as_str()), Value::text(reason)];
        let mut tx = begin_on(&self.pools.relay).await?;
        let moved = DB::run(&mut tx, self.render(sql::DEAD_LETTER), values).await? > 0;
        if moved {
            let rows = DB::fetch(&mut tx, self.render(sql::DEAD_STEP), vec![Value::Int(seq)]).await?;
            // An id that is not text belongs to no step.
            if let Some(id) = rows.first().and_then(|row| DB::text(row, 0).ok().flatten()) {
                self.count_steps(&mut tx, &HashMap::from([(id.as_str(), Step::Failed)])).await?;
            }
        }
        tx.commit().await?;
        Ok(moved)
    }

    /// Removes from the window the events that an earlier event of the same key queue, outside of
    /// the window, holds back; of a probe, all but one event. `lists`: the ids of the group leases
    /// of the taker.
    pub(super) async fn block(
        &self,
        conn: &mut DB::Connection,
        window: &mut Window,
        take: &Take,
        lists: &[i64],
    ) -> Result<()> {
        self.block_runs(conn, window, take, lists).await?;
        if take.probe.is_some() {
            window.keep_first();
        }
        Ok(())
    }

    async fn block_runs(
        &self,
        conn: &mut DB::Connection,
        window: &mut Window,
        take: &Take,
        lists: &[i64],
    ) -> Result<()> {
        let mut last: HashMap<KeyQueueId, i64> = HashMap::new();
        for (run, seq) in window.rows.iter().filter_map(|row| Some((row.run(&take.destinations)?, row.seq))) {
            last.entry(run).and_modify(|last| *last = seq.max(*last)).or_insert(seq);
        }
        if last.is_empty() {
            return Ok(());
        }
        // Destinations as small numbers, which the statement contains.
        let numbers: BTreeSet<u64> = take.destinations.values().copied().collect();
        let number = |run: &KeyQueueId| -> Option<i64> {
            let destination = run.destination?;
            (1..).zip(&numbers).find(|(_, one)| **one == destination).map(|(n, _)| n)
        };
        // A node that holds all events of a key up to some number holds all of them for each
        // destination up to there.
        let frontier = |run: &KeyQueueId| {
            let whole =
                run.destination.and_then(|_| take.held_up_to.get(&KeyQueueId::of_key(run.key.clone())));
            take.held_up_to.get(run).into_iter().chain(whole).map(|reach| reach.seq).max().unwrap_or_default()
        };
        let seqs = Value::ints(window.rows.iter().filter(|row| row.key.is_some()).map(|row| row.seq));
        let mut values = if DB::ARRAYS {
            let keys = Value::texts(last.keys().map(|run| &*run.key));
            let held_up_to = Value::ints(last.keys().map(frontier));
            let destinations = Value::Ints(last.keys().map(number).collect());
            vec![keys, held_up_to, Value::ints(last.into_values()), destinations, seqs]
        } else {
            let row =
                |(run, last): (&KeyQueueId, &i64)| (run.key.to_string(), frontier(run), *last, number(run));
            let rows: Vec<_> = last.iter().map(row).collect();
            vec![Value::Text(serde_json::to_string(&rows).ok()), seqs]
        };
        let mut past = match &take.by {
            Holder::Exclusive { .. } => "o.seq > {frontier}".to_owned(),
            Holder::Lease { owner, .. } if self.lists() => {
                blocking_predicate(take, owner, lists, &mut values)
            }
            Holder::Lease { owner, .. } => {
                values.push(Value::text(owner.as_str()));
                let us = values.len();
                // Decided by the database: an event whose lease ran out, and which another node has
                // now, blocks the key.
                format!(
                    "NOT COALESCE(o.seq <= {{frontier}} AND o.locked_by = ${us} AND o.locked_until > {{now}}, FALSE)"
                )
            }
        };
        if !numbers.is_empty() {
            past.push_str(&same_destination(take, &numbers, &mut values));
        }
        let stops_of = DB::stops(take.on_dead).replace("{past}", &past);
        let mut stops: HashMap<(String, Option<i64>), i64> = HashMap::new();
        for row in DB::fetch(conn, self.render(&stops_of), values).await? {
            if let (Some(key), Some(stop)) = (DB::text(&row, 0)?, DB::int(&row, 2)?) {
                stops.insert((key, DB::int(&row, 1)?), stop);
                // Other programs write this column too: a type that is not text is left out.
                window.skipped_types.extend(DB::text(&row, 3).ok().flatten());
            }
        }
        if stops.is_empty() {
            return Ok(());
        }
        // An event of the window that is left out blocks others itself. An event that blocks one
        // destination of a key also blocks the events of the key without a destination, so only
        // those are checked.
        let mut cut: HashMap<Arc<str>, i64> = HashMap::new();
        let stop = |run: &KeyQueueId| stops.get(&(run.key.to_string(), number(run))).copied();
        for row in &window.rows {
            if let Some(run) = row.run(&take.destinations).filter(|run| run.destination.is_none())
                && stop(&run).is_some_and(|stop| row.seq > stop)
            {
                cut.entry(run.key).and_modify(|cut| *cut = row.seq.min(*cut)).or_insert(row.seq);
            }
        }
        window.leave_out(|row| {
            row.run(&take.destinations).is_some_and(|run| {
                stop(&run).is_some_and(|stop| row.seq > stop)
                    || cut.get(&run.key).is_some_and(|cut| row.seq > *cut)
            })
        });
        Ok(())
    }
}

/// Condition that an event `o` does not go to another destination than the key queue.
fn same_destination(take: &Take, numbers: &BTreeSet<u64>, values: &mut Vec<Value>) -> String {
    values.push(Value::texts(take.destinations.keys().map(String::as_str)));
    let mut text = format!(" AND CASE WHEN NOT (o.event_type {{in texts ${}}}) THEN TRUE", values.len());
    for (n, number) in numbers.iter().enumerate() {
        let types = take.destinations.iter().filter(|(_, one)| *one == number);
        values.push(Value::texts(types.map(|(event_type, _)| event_type.as_str())));
        let _ = write!(
            text,
            " WHEN {{destination}} = {} THEN o.event_type {{in texts ${}}}",
            n + 1,
            values.len()
        );
    }
    text + " ELSE TRUE END"
}
