//! Group leases: one row that leases many events.
//!
//! A lease on a row is a write of that row, which costs as much as settling it. A relay therefore
//! leases the events that it takes together under one group lease: one row that lists all of them.
//! Only events that were never leased before, whose claims are 0, are put under a group lease:
//!
//! - The claim lock lets one transaction take at a time, so no event is listed twice.
//! - Every change of a listed event raises its claims or ends the event. An expired group lease is
//!   deleted by the next take, which raises the claims of all remaining events. So an event is
//!   under at most one group lease in its life, and a late verdict finds other claims than it
//!   names.
//! - From then on the event is leased by its row, like an event that is retried or born leased.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::begin::begin_by;
use super::dialect::{Database, Value};
use super::source::Work;
use super::statements::Lock;
use super::store::SqlStore;
use super::window::{Window, WindowRow};
use crate::error::{Error, Result};
use crate::event::EventId;
use crate::store::{NodeId, Settlement, Store as _, Take};

/// Limits the time for which a process that hangs, or has vanished without closing its connection,
/// can keep the claim lock.
///
/// READ COMMITTED whatever the default of the server: reads after the lock was acquired must see a
/// snapshot newer than that.
const LIMITS: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 10000; \
    SET LOCAL idle_in_transaction_session_timeout = 10000; SET LOCAL jit = off; ";
/// The claim lock: one transaction takes at a time. A statement of its own before the one that
/// takes, which has to see everything that the previous transaction has written.
///
/// A lock on an empty table, not an advisory lock: a role needs a privilege on the table to acquire
/// it. Of the modes that conflict with themselves it is the weakest, so the table can be read and
/// dumped meanwhile. A row lock would need the same privilege, but writes to its row, so that a
/// take that finds nothing would wait for the disk.
const LOCK: &str = "; LOCK TABLE {claim_lock} IN SHARE UPDATE EXCLUSIVE MODE";
/// Finds the backends that have held the claim lock for more than 9 s, and for how many seconds:
/// NULL if this role may not see when the transaction of another role began.
const STALLED_TAKERS: &str = "SELECT {int l.pid}, {int extract(epoch FROM clock_timestamp() - a.xact_start)} \
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
    WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'ShareUpdateExclusiveLock' \
    AND l.relation = '{claim_lock}'::regclass AND a.datname = current_database() \
    AND COALESCE(a.xact_start < clock_timestamp() - interval '9 seconds', TRUE)";
/// Terminates a backend. A backend that waits for its client to read a response is not idle, so no
/// timeout ends it.
const TERMINATE: &str = "SELECT {flag pg_terminate_backend($1::bigint::int)}";
/// Deletes expired group leases, and raises the claims of their events. Sets `locked_until`, which
/// marks the events as suspect.
const REAP: &str = "; WITH late AS (DELETE FROM {batches} WHERE held_until <= {now} RETURNING seqs, due_from, due_to) \
    UPDATE {events} e SET claims = e.claims + 1, locked_until = {now} \
    WHERE {pending} AND e.claims = 0 AND e.locked_by IS NULL \
    AND e.available_at >= (SELECT min(due_from) FROM late) AND e.available_at <= (SELECT max(due_to) FROM late) \
    AND e.seq IN (SELECT unnest(seqs) FROM late)";

/// Deletes the group leases of one owner, as [`REAP`] does with expired ones.
const RELEASE: &str = "WITH gone AS (DELETE FROM {batches} WHERE owner = $1 RETURNING seqs, due_from, due_to) \
    UPDATE {events} e SET claims = e.claims + 1, locked_until = {now} \
    WHERE {pending} AND e.claims = 0 AND e.locked_by IS NULL \
    AND e.available_at >= (SELECT min(due_from) FROM gone) AND e.available_at <= (SELECT max(due_to) FROM gone) \
    AND e.seq IN (SELECT unnest(seqs) FROM gone)";

/// Locks the rows of a window that are leased by row, except rows that another transaction has
/// locked.
const LOCK_ROWS: &str = "SELECT e.event_id FROM unnest($1::text[], $2::bigint[]) s(id, claim) \
    JOIN {events} e ON {named} AND e.claims = s.claim \
    WHERE {pending by id} AND (e.locked_until IS NULL OR e.locked_until <= {now}) FOR UPDATE OF e SKIP LOCKED";

/// Condition on an event `o` that blocks its key: this node does not hold it. All events of a key
/// up to its frontier are held by this node if all of them are under group leases and none of these
/// leases was lost; then no event up to the frontier need be looked at.
const BLOCKING: &str = "o.seq > CASE WHEN k.key NOT IN (SELECT unnest({apart}::text[])) AND (SELECT count(*) = cardinality({mine}::bigint[]) \
        FROM {batches} m WHERE m.batch_id {in ints {mine}} AND m.held_until > {now}) THEN k.frontier ELSE 0 END \
    AND NOT (o.seq <= k.frontier AND o.status IN (0, 2) AND CASE \
        WHEN o.claims = 0 THEN o.seq IN (SELECT unnest(m.seqs) FROM {batches} m WHERE m.batch_id {in ints {mine}} AND m.held_until > {now}) \
        ELSE COALESCE(o.locked_by = {owner} AND o.locked_until > {now}, FALSE) END)";

/// Inserts a group lease, and deletes group leases whose events are all settled.
const LIST: &str = "WITH gone AS (DELETE FROM {batches} WHERE batch_id {in ints $1}), \
    b AS (INSERT INTO {batches} (owner, held_until, due_from, due_to, seqs) \
        VALUES ($2, {later $3}, {time $4}, {time $5}, $6::bigint[]) RETURNING batch_id) \
    SELECT b.batch_id, (SELECT min(batch_id) FROM {batches}) FROM b";

/// Deletes group leases of other owners that list events of these keys. Row leases of the same
/// owner and expiry replace them: no other node handles the events sooner, and verdicts of the old
/// holder come too late. Raises the claims by two, unlike a claim by row after [`REAP`]: this tells
/// the old holder whether another node may have handled an event of the key meanwhile.
pub(super) const UNLIST: &str = "WITH gone AS (DELETE FROM {batches} b WHERE b.owner <> $2 AND EXISTS (SELECT 1 FROM {events} o \
        WHERE o.ordering_key {in texts $1} AND o.status IN (0, 2) AND o.claims = 0 AND o.seq = ANY (b.seqs)) \
        RETURNING b.owner, b.held_until, b.seqs) \
    UPDATE {events} e SET claims = e.claims + 2, locked_by = g.owner, locked_until = g.held_until \
    FROM gone g CROSS JOIN LATERAL unnest(g.seqs) u(seq) WHERE e.seq = u.seq AND {pending} AND e.claims = 0";

const FORGET: &str = "DELETE FROM {batches} WHERE batch_id {in ints $1}";

const EXTEND: &str =
    "UPDATE {batches} SET held_until = {later $1} WHERE batch_id {in ints $2} RETURNING batch_id";

/// Group leases that this process holds.
#[derive(Default)]
pub(super) struct Batches {
    inner: Mutex<HeldGroups>,
}

#[derive(Default)]
struct HeldGroups {
    /// Number of the oldest group lease of any owner. Older numbers need not be searched.
    floor: i64,
    batches: HashMap<i64, GroupLease>,
    /// Group lease of each event.
    of: HashMap<EventId, i64>,
    /// Group leases whose events are all settled.
    ended: Vec<i64>,
    lost: Vec<Lost>,
}

/// A group lease of which some events were no longer held by this process when they were settled. A
/// key queue that holds later events of a key may have lost an earlier one with the group lease,
/// and must not continue as if that event were settled.
struct Lost {
    number: i64,
    /// The newest group lease at the next take. When all group leases up to it are settled, no key
    /// queue holds such later events any more: no event taken since then was taken past a lost one.
    newest: Option<i64>,
}

struct GroupLease {
    owner: NodeId,
    /// Number of events that are not settled.
    left: usize,
    /// Expiry by this process's clock.
    until: Instant,
}

impl Batches {
    fn inner(&self) -> MutexGuard<'_, HeldGroups> {
        self.inner.lock().expect("no code panics while it holds this lock")
    }

    pub(super) fn floor(&self) -> i64 {
        self.inner().floor
    }

    /// Returns the group leases with unsettled events, and those without, which are to be deleted.
    /// The first may include group leases that have expired or are lost: the state in memory may
    /// then differ from the database.
    fn before_taking(&self) -> (Vec<i64>, Vec<i64>) {
        let mut inner = self.inner();
        let HeldGroups { batches, lost, ended, .. } = &mut *inner;
        let newest = batches.keys().copied().max().unwrap_or_default();
        lost.retain_mut(|lost| {
            let newest = *lost.newest.get_or_insert(newest);
            batches.keys().any(|number| *number <= newest)
        });
        let lost = lost.iter().map(|lost| lost.number);
        (batches.keys().copied().chain(lost).collect(), std::mem::take(ended))
    }

    fn took(&self, number: i64, owner: NodeId, ids: Vec<EventId>, until: Instant) {
        let mut inner = self.inner();
        inner.batches.insert(number, GroupLease { owner, left: ids.len(), until });
        inner.of.extend(ids.into_iter().map(|id| (id, number)));
    }

    fn starts_at(&self, floor: i64) {
        self.inner().floor = floor;
    }

    /// Records that these events are settled. Unless `all`, some of them were held by another node.
    pub(super) fn release<'a>(&self, ids: impl IntoIterator<Item = &'a EventId>, all: bool) {
        let mut inner = self.inner();
        for id in ids {
            let Some(number) = inner.of.remove(id) else { continue };
            let Some(batch) = inner.batches.get_mut(&number) else { continue };
            batch.left -= 1;
            if batch.left == 0 {
                inner.batches.remove(&number);
                inner.ended.push(number);
                if !all {
                    inner.lost.push(Lost { number, newest: None });
                }
            }
        }
    }

    /// Group leases of this owner that contain these events.
    pub(super) fn of<'a>(&self, owner: &NodeId, ids: impl IntoIterator<Item = &'a EventId>) -> BTreeSet<i64> {
        let inner = self.inner();
        let is_ours = |number: &i64| inner.batches.get(number).is_some_and(|batch| batch.owner == *owner);
        ids.into_iter().filter_map(|id| inner.of.get(id).copied()).filter(is_ours).collect()
    }

    /// Filters the verdicts that this owner may write: an event under a group lease only if the
    /// owner holds that group lease. The rows do not name the holder.
    pub(super) fn allowed<'a>(&self, owner: &NodeId, settlements: &'a [Settlement]) -> Cow<'a, [Settlement]> {
        if settlements.iter().all(|s| s.claim != 0) {
            return Cow::Borrowed(settlements);
        }
        let inner = self.inner();
        let batch_of = |id: &EventId| inner.batches.get(inner.of.get(id)?);
        let is_allowed =
            |s: &&Settlement| s.claim != 0 || batch_of(&s.id).is_some_and(|batch| batch.owner == *owner);
        if settlements.iter().all(|s| is_allowed(&s)) {
            return Cow::Borrowed(settlements);
        }
        Cow::Owned(settlements.iter().filter(is_allowed).cloned().collect())
    }

    /// Records that these group leases were renewed for this long. Returns which of the events are
    /// under one of them.
    ///
    /// Forgets group leases that expired a whole lease ago: no renewal of their events was
    /// requested since.
    fn extended<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a EventId>,
        kept: &BTreeSet<i64>,
        asked: Instant,
        lease: Duration,
    ) -> Vec<EventId> {
        let mut inner = self.inner();
        for number in kept {
            if let Some(batch) = inner.batches.get_mut(number) {
                batch.until = asked + lease;
            }
        }
        let HeldGroups { batches, of, .. } = &mut *inner;
        let known = batches.len();
        batches.retain(|_, batch| asked < batch.until + lease);
        if batches.len() < known {
            of.retain(|_, number| batches.contains_key(number));
        }
        let is_kept = |id: &&EventId| of.get(*id).is_some_and(|number| kept.contains(number));
        ids.into_iter().filter(is_kept).cloned().collect()
    }
}

impl<DB: Database> SqlStore<DB> {
    /// Takes due events: never leased events under a group lease if that is requested, the others
    /// by row.
    pub(super) async fn claim_group(&self, take: &Take, owner: &NodeId, lease: Duration) -> Result<Window> {
        match self.claim_alone(take, owner, lease).await {
            Err(Error::Database(error)) if DB::is_lock_timeout(error.inner()) => {
                self.end_stalled_takers().await?;
                self.claim_alone(take, owner, lease).await
            }
            claimed => claimed,
        }
    }

    /// Terminates the backends that hold the claim lock and make no progress, as far as this role
    /// may.
    async fn end_stalled_takers(&self) -> Result<()> {
        for row in self.fetch(STALLED_TAKERS, Vec::new()).await? {
            let (Some(pid), seconds) = (DB::int(&row, 0)?, DB::int(&row, 1)?) else { continue };
            let store = self.name();
            let Some(seconds) = seconds else {
                tracing::warn!(store, "claim lock held by pid {pid} of another role; backend not terminated");
                continue;
            };
            let held = format!("claim lock held for {seconds} s by pid {pid}");
            match self.fetch(TERMINATE, vec![Value::Int(pid)]).await {
                Ok(_) => tracing::warn!(store, "{held}; backend terminated"),
                Err(error) => tracing::warn!(store, %error, "{held}; backend not terminated"),
            }
        }
        Ok(())
    }

    /// Takes under the claim lock.
    async fn claim_alone(&self, take: &Take, owner: &NodeId, lease: Duration) -> Result<Window> {
        let asked = Instant::now();
        let mut tx = self.begin_alone().await?;
        let (mine, ended) = self.batches.before_taking();
        let lock = if take.group_lease { Lock::None } else { Lock::Skipping };
        let mut window = self.look(&mut tx, take, lock).await?;
        let by_row = |row: &WindowRow| row.claim > 0 || !take.group_lease;
        if take.group_lease {
            self.lock_rows(&mut tx, &mut window, by_row).await?;
        }
        self.block(&mut tx, &mut window, take, &mine).await?;
        self.lease_rows(&mut tx, window.rows.iter_mut().filter(|row| by_row(row)), owner, lease).await?;
        let listed = self.list(&mut tx, window.rows.iter().filter(|row| row.claim == 0), ended, owner, lease);
        let listed = listed.await?;
        self.fence(&mut tx, &window, owner).await?;
        tx.commit().await?;
        if let Some((batch, floor)) = listed {
            let ids = window.rows.iter().filter(|row| row.claim == 0).map(|row| row.id.clone());
            self.batches.took(batch, owner.clone(), ids.collect(), asked + lease);
            self.batches.starts_at(floor);
        }
        Ok(window)
    }

    /// Locks the rows that are to be leased by row. Rows that another transaction has locked are
    /// left out and block their keys.
    async fn lock_rows(
        &self,
        conn: &mut DB::Connection,
        window: &mut Window,
        by_row: impl Fn(&WindowRow) -> bool,
    ) -> Result<()> {
        let rows: Vec<&WindowRow> = window.rows.iter().filter(|row| by_row(row)).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let ids = Value::texts(rows.iter().map(|row| row.id.as_str()));
        let claims = Value::ints(rows.iter().map(|row| i64::from(row.claim)));
        let mut locked = HashSet::new();
        for row in DB::fetch(conn, self.render(LOCK_ROWS), vec![ids, claims]).await? {
            locked.extend(DB::text(&row, 0)?);
        }
        window.leave_out(|row| by_row(row) && !locked.contains(row.id.as_str()));
        Ok(())
    }

    /// Inserts a group lease. Returns its number, and the number of the oldest group lease.
    async fn list<'a>(
        &self,
        conn: &mut DB::Connection,
        rows: impl Iterator<Item = &'a WindowRow>,
        ended: Vec<i64>,
        owner: &NodeId,
        lease: Duration,
    ) -> Result<Option<(i64, i64)>> {
        let (dues, seqs): (Vec<_>, Vec<_>) = rows.map(|row| (row.available_at, row.seq)).unzip();
        let (Some(first), Some(last)) = (dues.iter().min(), dues.iter().max()) else {
            if !ended.is_empty() {
                DB::run(conn, self.render(FORGET), vec![Value::ints(ended)]).await?;
            }
            return Ok(None);
        };
        let (first, last) = (Value::Time(Some(*first)), Value::Time(Some(*last)));
        let (owner, lease) = (Value::text(owner.as_str()), Value::micros(lease));
        let values = vec![Value::ints(ended), owner, lease, first, last, Value::ints(seqs)];
        let rows = DB::fetch(conn, self.render(LIST), values).await?;
        let number = |column| rows.first().map_or(Ok(None), |row| DB::int(row, column));
        Ok(number(0)?.zip(number(1)?.or(number(0)?)))
    }

    /// Deletes expired group leases, and runs `then` in the same transaction. Returns how many rows
    /// were written. One round trip: statements that are sent together are a transaction.
    pub(super) async fn reap_listed(&self, then: &str) -> Result<u64> {
        let mut conn = self.pools.relay.acquire().await?;
        let written = DB::script(&mut conn, self.limited(&format!("{REAP}{then}"))).await?;
        conn.finish().await?;
        Ok(written)
    }

    /// Deletes the group leases of one owner. Returns how many events they leased.
    pub(super) async fn release_lists(&self, conn: &mut DB::Connection, owner: &NodeId) -> Result<u64> {
        Ok(DB::run(conn, self.render(RELEASE), vec![Value::text(owner.as_str())]).await?)
    }

    /// Deletes group leases whose events are all settled, as the next take would: there is no next
    /// take.
    pub(super) async fn forget_ended_lists(&self) -> Result<()> {
        let ended = std::mem::take(&mut self.batches.inner().ended);
        if !ended.is_empty() {
            self.run(FORGET, vec![Value::ints(ended)]).await?;
        }
        Ok(())
    }

    /// Records that an event was settled on a connection of the caller.
    pub(crate) fn release(&self, id: &EventId) {
        self.batches.release([id], true);
    }

    /// Begins a transaction that holds the claim lock and deletes expired group leases, so that
    /// none is renewed.
    pub(super) async fn begin_alone(&self) -> Result<Work<'static, DB>> {
        self.begin_by(&format!("{LOCK}{REAP}")).await
    }

    /// Begins a transaction with statements that cost no extra round trip.
    pub(super) async fn begin_by(&self, script: &str) -> Result<Work<'static, DB>> {
        Ok(begin_by(&self.pools.relay, Some(self.limited(script))).await?)
    }

    /// Renders the script of a transaction, preceded by the limits.
    fn limited(&self, script: &str) -> String {
        let in_order = DB::IN_ORDER.unwrap_or_default();
        self.render(&format!("{LIMITS}{in_order}{script}")).text.to_string()
    }

    /// Renews the group leases of these events. Returns the events that are still held.
    pub(super) async fn extend_listed(
        &self,
        owner: &NodeId,
        ids: &[&EventId],
        lease: Duration,
    ) -> Result<Vec<EventId>> {
        let numbers = self.batches.of(owner, ids.iter().copied());
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let asked = Instant::now();
        let values = vec![Value::micros(lease), Value::ints(numbers)];
        let mut kept = BTreeSet::new();
        let mut conn = self.pools.relay.acquire().await?;
        for row in DB::fetch(&mut conn, self.render(EXTEND), values).await? {
            kept.extend(DB::int(&row, 0)?);
        }
        conn.finish().await?;
        Ok(self.batches.extended(ids.iter().copied(), &kept, asked, lease))
    }
}

/// Condition on events that block a key queue, for an owner with these group leases.
pub(super) fn blocking_predicate(
    take: &Take,
    owner: &NodeId,
    mine: &[i64],
    values: &mut Vec<Value>,
) -> String {
    let apart = take.held_up_to.iter().filter(|(_, reach)| !reach.group_lease).map(|(run, _)| &*run.key);
    let mut text = BLOCKING.to_owned();
    for (slot, value) in [
        ("{apart}", Value::texts(apart)),
        ("{mine}", Value::ints(mine.iter().copied())),
        ("{owner}", Value::text(owner.as_str())),
    ] {
        values.push(value);
        text = text.replace(slot, &format!("${}", values.len()));
    }
    text
}
