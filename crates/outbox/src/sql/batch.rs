//! Leases of many events at once.
//!
//! A lease on a row is a write of that row, which costs as much as settling it. So a relay leases what it takes together, by one
//! row that lists all of it. Only events that nobody has held before are leased like that, whose claims are 0:
//!
//! - One at a time takes, by a lock of the table's own, so that nobody takes what another has just listed.
//! - Whatever becomes of a listed event raises its claims or ends it. A lease that ran out is taken away by whoever takes next,
//!   which raises the claims of all that is left of it. So an event is in no more than one list in its life, and a
//!   verdict that comes too late finds other claims than it names.
//! - From then on the event is leased by its row, as one is that is retried, or born leased.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::begin::begin_on;
use super::dialect::{Database, Value};
use super::source::Work;
use super::statements as sql;
use super::store::SqlStore;
use super::window::Window;
use crate::error::{Error, Result};
use crate::event::EventId;
use crate::store::{NodeId, OnDead, Reach, Settlement, Store as _, Take};

/// Nobody may keep the lock because its process hangs, or is gone without having said so.
///
/// READ COMMITTED, whatever others are by default: what is read after the lock was had has to be newer than that.
const LIMITS: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 10000; \
    SET LOCAL idle_in_transaction_session_timeout = 10000; SET LOCAL jit = off; ";
/// One at a time takes. A statement of its own before the one that takes: that has to see what whoever had the lock before has
/// written.
const LOCK: &str = "; SELECT pg_advisory_xact_lock(hashtextextended('{events}', 8))";
/// Ends the session of whoever has had the lock for so long. One that waits for its client to read what it sends is not idle, and
/// no limit ends it.
const END_WHO_HANGS: &str = "SELECT {flag pg_terminate_backend(l.pid)} FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database() \
    AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended('{events}', 8) \
    AND a.xact_start < clock_timestamp() - interval '9 seconds'";
/// Takes away leases that ran out. The time stays on the rows, and says that they are suspect.
const REAP: &str = "; WITH late AS (DELETE FROM {batches} WHERE held_until <= {now} RETURNING seqs, due_from, due_to) \
    UPDATE {events} e SET claims = e.claims + 1, locked_until = {now} \
    WHERE {pending} AND e.claims = 0 AND e.locked_by IS NULL \
    AND e.available_at >= (SELECT min(due_from) FROM late) AND e.available_at <= (SELECT max(due_to) FROM late) \
    AND e.seq IN (SELECT unnest(seqs) FROM late)";

/// Leases in one statement. `w` is the window; `l` those of it that are leased by their rows, locked; `v` both; `stops` the first
/// event of each key that is neither in it nor held by this node already; `u` and `b` are the leases. Rows of the window that
/// come back without claims were blocked by an earlier event of their key.
const CLAIM: &str = "WITH gone AS (DELETE FROM {batches} WHERE batch_id {in ints {ended}}), \
    w AS MATERIALIZED ({window}), \
    l AS MATERIALIZED (SELECT t.event_id FROM w JOIN {events} t ON t.event_id = w.event_id AND t.claims = w.claims \
        WHERE {alone} AND t.status IN (0, 2) AND (t.locked_until IS NULL OR t.locked_until <= {now}) \
        FOR UPDATE OF t SKIP LOCKED), \
    v AS MATERIALIZED (SELECT w.seq, w.ordering_key FROM w WHERE NOT {alone} OR w.event_id IN (SELECT event_id FROM l)), \
    f AS (SELECT unnest({keys}::text[]) AS key, unnest({frontiers}::bigint[]) AS frontier, \
        unnest({listed}::bigint[]) AS listed), \
    c AS MATERIALIZED (SELECT count(*) = cardinality({mine}::bigint[]) AS whole FROM {batches} m \
        WHERE m.batch_id {in ints {mine}} AND m.held_until > {now}), \
    mine AS (SELECT unnest(m.seqs) AS seq FROM {batches} m WHERE m.batch_id {in ints {mine}} AND m.held_until > {now}), \
    stops AS MATERIALIZED (SELECT k.ordering_key, (\
        SELECT o.seq FROM {events} o WHERE o.ordering_key = k.ordering_key AND {blocking} \
        AND o.seq > k.past AND o.seq < k.last AND o.seq NOT IN (SELECT seq FROM v) \
        AND NOT (o.seq <= k.frontier AND o.status IN (0, 2) AND CASE WHEN o.claims = 0 THEN o.seq IN (SELECT seq FROM mine) \
            ELSE COALESCE(o.locked_by = {owner} AND o.locked_until > {now}, FALSE) END) \
        ORDER BY o.seq LIMIT 1) AS stop \
        FROM (SELECT v.ordering_key, max(v.seq) AS last, COALESCE(max(f.frontier), 0) AS frontier, \
            CASE WHEN max(f.listed) = 1 AND (SELECT whole FROM c) THEN max(f.frontier) ELSE 0 END AS past FROM v \
            LEFT JOIN f ON f.key = v.ordering_key WHERE v.ordering_key IS NOT NULL GROUP BY v.ordering_key) k), \
    u AS (UPDATE {events} t SET locked_by = {owner}, locked_until = {until}, claims = t.claims + 1 \
        FROM w LEFT JOIN stops s ON s.ordering_key = w.ordering_key \
        WHERE t.event_id = w.event_id AND t.event_id IN (SELECT event_id FROM l) AND (s.stop IS NULL OR w.seq < s.stop) \
        RETURNING t.event_id, t.claims), \
    b AS (INSERT INTO {batches} (owner, held_until, due_from, due_to, seqs) \
        SELECT {owner}, {until}, min(w.available_at), max(w.available_at), array_agg(w.seq) \
        FROM w LEFT JOIN stops s ON s.ordering_key = w.ordering_key \
        WHERE NOT {alone} AND (s.stop IS NULL OR w.seq < s.stop) HAVING count(*) > 0 RETURNING batch_id) \
    SELECT e.event_id, e.seq, e.available_at, {int e.attempts}, \
        {int CASE WHEN {alone e} THEN u.claims WHEN s.stop IS NULL OR e.seq < s.stop THEN 0 END}, {int e.suspect}, {columns}, \
        e.ordering_key, (SELECT batch_id FROM b), (SELECT min(batch_id) FROM {batches}) \
    FROM w AS e LEFT JOIN u ON u.event_id = e.event_id LEFT JOIN stops s ON s.ordering_key = e.ordering_key";

const FORGET: &str = "DELETE FROM {batches} WHERE batch_id {in ints $1}";

const EXTEND: &str =
    "UPDATE {batches} SET held_until = {later $1} WHERE batch_id {in ints $2} RETURNING batch_id";

/// What this process holds by lists.
#[derive(Default)]
pub(super) struct Batches {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The oldest list that there is, whose ever it is. What lies before it need not be searched.
    floor: i64,
    batches: HashMap<i64, Batch>,
    /// Which list an event is in.
    of: HashMap<EventId, i64>,
    /// Lists of which nothing is left.
    ended: Vec<i64>,
    lost: Vec<Lost>,
}

/// A list of which something was somebody else's by the time it was settled. Whoever has later events of a key in hand may have
/// lost an earlier one with it, and must not go on as if that were settled.
struct Lost {
    number: i64,
    /// The newest list when something was taken next. When all up to it are settled, nobody has such later events any more:
    /// of those that were taken since, none was taken past what was lost.
    newest: Option<i64>,
}

struct Batch {
    owner: NodeId,
    /// How many of its events are not settled.
    left: usize,
    /// When the lease runs out here.
    until: Instant,
}

impl Batches {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no one panics while holding this lock")
    }

    pub(super) fn floor(&self) -> i64 {
        self.inner().floor
    }

    /// The lists of which something is left, and those of which nothing is: they are forgotten. Among the first may be some that
    /// ran out, or are lost: not everything is as this process thinks then.
    fn before_taking(&self) -> (Vec<i64>, Vec<i64>) {
        let mut inner = self.inner();
        let Inner { batches, lost, ended, .. } = &mut *inner;
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
        inner.batches.insert(number, Batch { owner, left: ids.len(), until });
        inner.of.extend(ids.into_iter().map(|id| (id, number)));
    }

    fn starts_at(&self, floor: i64) {
        self.inner().floor = floor;
    }

    /// These events are settled; unless `all`, some of them are somebody else's.
    pub(super) fn let_go<'a>(&self, ids: impl IntoIterator<Item = &'a EventId>, all: bool) {
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

    /// The lists of this owner that these events are in.
    pub(super) fn of<'a>(&self, owner: &NodeId, ids: impl IntoIterator<Item = &'a EventId>) -> BTreeSet<i64> {
        let inner = self.inner();
        let is_ours = |number: &i64| inner.batches.get(number).is_some_and(|batch| batch.owner == *owner);
        ids.into_iter().filter_map(|id| inner.of.get(id).copied()).filter(is_ours).collect()
    }

    /// The verdicts that this owner may tell: of what is in a list only the one who has that list. The rows do not say who that is.
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

    /// These lists were renewed, so they last for this long from then on. Returns which of the events are in one of them.
    ///
    /// Forgets those that ran out so long ago: nobody has asked for anything in them since.
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
        let Inner { batches, of, .. } = &mut *inner;
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
    /// Takes what is due: together what nobody has held before if that is wanted, the rest by their rows.
    pub(super) async fn claim_listed(&self, take: &Take, owner: &NodeId, lease: Duration) -> Result<Window> {
        match self.claim_alone(take, owner, lease).await {
            Err(error) if is_lock_timeout(&error) => {
                let ended = self.fetch(END_WHO_HANGS, Vec::new()).await?.len();
                tracing::warn!(store = self.name(), ended, "somebody began to take events and did not end");
                self.claim_alone(take, owner, lease).await
            }
            claimed => claimed,
        }
    }

    /// Takes while nobody else does.
    async fn claim_alone(&self, take: &Take, owner: &NodeId, lease: Duration) -> Result<Window> {
        let asked = Instant::now();
        let mut tx = self.begin_alone().await?;
        let (mine, ended) = self.batches.before_taking();
        let (window, mut values) = sql::window(take, &sql::claim_window(), false, Some(self.batches.floor()));
        let (keys, reaches): (Vec<_>, Vec<_>) = take.frontiers.iter().unzip();
        let mut place = |value: Value| {
            values.push(value);
            format!("${}", values.len())
        };
        let us = place(Value::text(owner.as_str()));
        let until = format!("{{later {}}}", place(Value::micros(lease)));
        let ended = place(Value::ints(ended));
        let mine = place(Value::ints(mine));
        let keys = place(Value::texts(keys.into_iter().map(|key: &Arc<str>| &**key)));
        let frontiers = place(Value::ints(reaches.iter().map(|reach: &&Reach| reach.seq)));
        let listed = place(Value::ints(reaches.iter().map(|reach| reach.together.into())));
        let (alone, alone_e) =
            if take.together { ("(w.claims > 0)", "e.claims > 0") } else { ("TRUE", "TRUE") };
        let blocking = match take.on_dead {
            OnDead::Hold => "o.status <> 1",
            OnDead::Skip => "o.status IN (0, 2)",
        };
        let text = CLAIM
            .replace("{window}", &window)
            .replace("{columns}", &sql::claimed_columns())
            .replace("{owner}", &us)
            .replace("{until}", &until)
            .replace("{ended}", &ended)
            .replace("{mine}", &mine)
            .replace("{keys}", &keys)
            .replace("{frontiers}", &frontiers)
            .replace("{listed}", &listed)
            .replace("{alone e}", alone_e)
            .replace("{alone}", alone)
            .replace("{blocking}", blocking);
        let rows = DB::fetch(&mut tx, self.render(&text), values).await?;
        tx.commit().await?;
        let mut window = self.window(&rows)?;
        // Here, not there: the rows are wide, and nearly in order already.
        window.rows.sort_by_key(|row| (row.available_at, row.seq));
        if let Some(row) = rows.first() {
            let number = |column| DB::int(row, sql::AFTER_EVENT + column);
            if let Some(batch) = number(1)? {
                let listed = window.rows.iter().filter(|row| row.claim == 0).map(|row| row.id.clone());
                self.batches.took(batch, owner.clone(), listed.collect(), asked + lease);
            }
            self.batches.starts_at(number(2)?.or(number(1)?).unwrap_or_default());
        }
        Ok(window)
    }

    /// Takes away leases of lists that ran out.
    pub(super) async fn reap_listed(&self) -> Result<()> {
        Ok(self.begin_by(REAP).await?.commit().await?)
    }

    /// Forgets lists of which nothing is left, as the next take would: there is none.
    pub(super) async fn forget_ended_lists(&self) -> Result<()> {
        let ended = std::mem::take(&mut self.batches.inner().ended);
        if !ended.is_empty() {
            self.run(FORGET, vec![Value::ints(ended)]).await?;
        }
        Ok(())
    }

    /// An event was settled on a connection of somebody else's.
    pub(crate) fn let_go(&self, id: &EventId) {
        self.batches.let_go([id], true);
    }

    /// Begins a transaction during which nobody takes anything, and renews nothing that ran out before.
    pub(super) async fn begin_alone(&self) -> Result<Work<'static, DB>> {
        self.begin_by(&format!("{LOCK}{REAP}")).await
    }

    async fn begin_by(&self, script: &str) -> Result<Work<'static, DB>> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let in_order = DB::IN_ORDER.unwrap_or_default();
        DB::script(&mut tx, self.render(&format!("{LIMITS}{in_order}{script}")).text.to_string()).await?;
        Ok(tx)
    }

    /// Renews the lists that these events are in. Returns those that are still held.
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
        conn.went_well();
        Ok(self.batches.extended(ids.iter().copied(), &kept, asked, lease))
    }
}

/// Whether it was a lock that could not be had in time.
fn is_lock_timeout(error: &Error) -> bool {
    let Error::Database(error) = error else { return false };
    error.inner().as_database_error().is_some_and(|e| e.code().as_deref() == Some("55P03"))
}
