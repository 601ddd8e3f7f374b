//! The SQL store: the steps of each operation. The SQL that only one database uses is in the file
//! of that database.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sqlx::Pool;

use super::StoreOptions;
use super::begin::{begin_by, begin_on};
use super::dialect::{
    BirthLease, Clock, Database, Dialect, NewRow, Options, Pools, Render, Value, migration_script, names_of,
};
use super::group_lease::Batches;
use super::line::Line;
use super::migrate::newest_version;
use super::names::{Names, Statement, render};
use super::sessions::Sessions;
use super::settle::batch_values;
use super::source::{Conn, Source, Work};
use super::statements::{self as sql, Purged};
use super::window::decode;
use crate::connect::Pooler;
use crate::error::{DecodeError, Error, Result};
use crate::event::{Event, EventId};
use crate::join::{Join, JoinId, Step};
use crate::store::{
    AppendNotifier, Backlog, Claim, Completion, Cursor, DeliveryFacts, EXCLUSIVE, Filter, Holder,
    InsertNotifier, JoinCommand, JoinFilter, JoinMember, JoinOutcome, Leadership, LogStore, Node, NodeId,
    NodeState, Purge, Purgeable, Replayed, Settled, Settlement, Stats, Status, Store, StoredEvent, Take,
    Taken, Verdict,
};

/// How often a statement is retried after a deadlock or a lock timeout.
const TRIES: u32 = 12;
/// The longest pause before such a retry.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The events of one outbox in a SQL database.
pub struct SqlStore<DB: Database> {
    pub(super) pools: Pools<DB>,
    sql: Sql<DB>,
    name: String,
    /// Group leases that this process holds.
    pub(super) batches: Batches,
    /// The latest `done_at` that the last full batch of a purge deleted; `None` to begin with the
    /// oldest.
    purged_until: Mutex<Option<DateTime<Utc>>>,
    /// Options to connect to the server itself, past a pooler.
    direct: Option<Options<DB>>,
    /// Whether the log has the message that notifications cannot be received.
    polls: AtomicBool,
}

/// Renders templates to statements: names, dialect and clock.
struct Sql<DB> {
    names: Names,
    clock: Clock,
    /// How many bytes of a payload, and of headers, are read.
    most: usize,
    /// Statements by their templates: most calls use the same few.
    made: RwLock<HashMap<Box<str>, Statement>>,
    sessions: Sessions,
    dialect: std::marker::PhantomData<fn() -> DB>,
}

impl<DB> Sql<DB> {
    /// Longer templates belong to batches of odd sizes, and are not cached.
    const LONGEST_KEPT: usize = 4_096;
    const MOST_KEPT: usize = 512;

    fn kept(&self, template: &str) -> Option<Statement> {
        self.made.read().expect("no thread panics while it holds this lock").get(template).cloned()
    }

    fn keep(&self, template: &str, statement: &Statement) {
        let frozen = matches!(self.clock, Clock::Frozen(_));
        let mut made = self.made.write().expect("no thread panics while it holds this lock");
        if !frozen && template.len() <= Self::LONGEST_KEPT && made.len() < Self::MOST_KEPT {
            made.insert(template.into(), statement.clone());
        }
    }
}

impl<DB: Dialect> Render for Sql<DB> {
    fn render(&self, template: &str) -> Statement {
        let named = !self.sessions.are_shared();
        if let Some(statement) = self.kept(template) {
            return Statement { named, ..statement };
        }
        let text = render(template, &self.names, &|slot: &str| match (&self.clock, slot) {
            (Clock::Frozen(clock), "now" | "stored") => DB::literal(clock.now()),
            (_, "most") => self.most.to_string(),
            _ => DB::fragment(slot),
        });
        let statement = DB::statement(text, &self.names);
        self.keep(template, &statement);
        Statement { named, ..statement }
    }

    fn names(&self) -> &Names {
        &self.names
    }
}

impl<DB: Database> fmt::Debug for SqlStore<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStore").field("name", &self.name).field("table", &self.sql.names.table).finish()
    }
}

impl<DB: Database> SqlStore<DB> {
    /// Connects to the database of this URL.
    pub async fn open(url: &str, options: &StoreOptions) -> Result<Self> {
        let names = Self::names(options)?;
        let direct = Self::direct(options)?;
        let pools = DB::connect(url, options).await?;
        if let Some(direct) = &direct {
            // A server that cannot be reached now may be reachable when the relay starts to listen.
            if let Ok(true) = DB::are_shared(direct).await {
                let reason = "direct_url points to a pooler: set it to the PostgreSQL server itself";
                return Err(Error::setting(reason));
            }
        }
        let name = options.name.clone().unwrap_or_else(|| crate::error::without_credentials(url));
        warn_if_unverified(&name, url);
        Ok(Self { direct, ..Self::new(pools, names, options, name) })
    }

    /// Uses the pool of the application for transactions; the relay gets a small pool of its own
    /// with the same connection options.
    pub fn beside(pool: &Pool<DB>, options: &StoreOptions) -> Result<Self> {
        let names = Self::names(options)?;
        let name = options.name.clone().unwrap_or_else(|| DB::NAME.to_lowercase());
        let direct = Self::direct(options)?;
        let sessions = match options.pooler {
            Pooler::Detect => Sessions::own(),
            pooler => Sessions::new(pooler),
        };
        let sessions = sessions.of(options.product());
        Ok(Self { direct, ..Self::new(DB::beside(pool, options, sessions), names, options, name) })
    }

    /// Options to connect to the server itself, if `options` has a direct URL.
    fn direct(options: &StoreOptions) -> Result<Option<Options<DB>>> {
        match &options.direct_url {
            Some(_) if !DB::NOTIFIES => Err(Error::setting(format!(
                "direct_url is for PostgreSQL: {} sends no notifications",
                DB::NAME
            ))),
            Some(url) => {
                let direct = DB::options(&url.0, Duration::ZERO)?;
                warn_if_unverified(&crate::error::without_credentials(&url.0), &url.0);
                Ok(Some(direct))
            }
            None => Ok(None),
        }
    }

    /// A database of a fleet.
    pub(crate) fn on_line(line: Arc<Line<DB>>, options: &StoreOptions) -> Result<Self> {
        let names = Self::names(options)?;
        let name = line.seat.name.clone();
        let sessions = line.sessions.clone();
        let source = Source::Line(line);
        let pools = Pools { write: source.clone(), relay: source.clone(), read: source, sessions };
        Ok(Self::new(pools, names, options, name))
    }

    fn new(pools: Pools<DB>, names: Names, options: &StoreOptions, name: String) -> Self {
        let sql = Sql {
            names: names.on(pools.sessions.product().clone()),
            clock: options.clock.clone(),
            most: options.max_payload,
            made: RwLock::default(),
            sessions: pools.sessions.clone(),
            dialect: std::marker::PhantomData,
        };
        Self {
            pools,
            sql,
            name,
            batches: Batches::default(),
            purged_until: Mutex::default(),
            direct: None,
            polls: AtomicBool::new(false),
        }
    }

    fn names(options: &StoreOptions) -> Result<Names> {
        if options.max_connections == 0 {
            return Err(Error::setting("max_connections is 0: a store needs at least one connection"));
        }
        names_of::<DB>(options)
    }

    /// The pool that the application's transactions come from.
    pub fn pool(&self) -> &Pool<DB> {
        self.pools.write.pool()
    }

    /// Begins a transaction that is going to write. May be cancelled at any time.
    pub(crate) async fn begin(&self) -> Result<Work<'static, DB>> {
        self.pools.write.begin_for_user().await
    }

    /// Begins the transaction of a handler. May be cancelled at any time.
    pub(crate) async fn begin_for_handler(&self) -> Result<Work<'static, DB>> {
        self.pools.write.begin_for_handler().await
    }

    /// Writes rows in the transaction of this connection. Returns the events that were stored.
    pub(crate) async fn write(
        &self,
        conn: &mut DB::Connection,
        rows: &[NewRow],
        birth: Option<&BirthLease>,
        dated: bool,
    ) -> Result<Vec<(Event, Option<DateTime<Utc>>)>> {
        let stored = DB::insert(&self.sql, conn, rows, birth, dated).await;
        let stored = stored.map_err(|e| match (self.explain(e), rows) {
            (Error::DuplicateId { .. }, [row]) => Error::DuplicateId { id: Some(row.event.id().clone()) },
            (other, _) => other,
        })?;
        let all = || rows.iter().map(|row| row.event.clone());
        Ok(match stored {
            None => all().map(|event| (event, None)).collect(),
            Some(stored) => {
                let times: HashMap<String, _> = stored.into_iter().collect();
                all()
                    .filter_map(|event| Some((times.get(event.id().as_str()).copied()?, event)))
                    .map(|(at, event)| (event, at))
                    .collect()
            }
        })
    }

    /// Returns the ids of the events with these deduplication keys, by key. Sees every committed
    /// row, whatever the isolation level of the transaction.
    pub(crate) async fn ids_by_dedup_key(
        &self,
        conn: &mut DB::Connection,
        keys: &BTreeSet<&str>,
    ) -> Result<HashMap<String, EventId>> {
        let mut ids = HashMap::with_capacity(keys.len());
        let keys: Vec<&str> = keys.iter().copied().collect();
        for keys in keys.chunks(sql::MOST_DEDUP_KEYS) {
            let (text, values) = sql::ids_by_dedup_key(keys, DB::CURRENT);
            let rows = DB::fetch(conn, self.sql.render(&text), values).await;
            for row in &rows.map_err(|e| self.explain(e.into()))? {
                if let (Some(key), Some(id)) = (DB::text(row, 0)?, DB::text(row, 1)?) {
                    ids.insert(key, EventId::from(id));
                }
            }
        }
        Ok(ids)
    }

    /// Returns which of these events still exist, as their own transaction sees them.
    pub(crate) async fn kept(&self, conn: &mut DB::Connection, ids: &[EventId]) -> Result<HashSet<String>> {
        let statement = self.sql.render("SELECT event_id FROM {events} WHERE event_id {in texts $1}");
        let rows = DB::fetch(conn, statement, vec![ids_value(ids)]).await?;
        Ok(rows.iter().filter_map(|row| DB::text(row, 0).ok().flatten()).collect())
    }

    /// The schema of the tables, if one is set, and the table of the events.
    pub(super) fn schema_and_table(&self) -> (Option<String>, String) {
        (self.sql.names.schema.clone(), self.sql.names.table.clone())
    }

    pub(super) fn renderer(&self) -> &dyn Render {
        &self.sql
    }

    /// Turns an error of the database into one that the caller can act on.
    pub(super) fn explain(&self, error: Error) -> Error {
        match error {
            Error::Database(e) if DB::is_missing_table(e.inner()) => {
                Error::NotMigrated { table: self.sql.names.table.clone() }
            }
            Error::Database(e) if DB::is_duplicate_id(e.inner()) => Error::DuplicateId { id: None },
            other => other,
        }
    }

    pub(super) fn render(&self, template: &str) -> Statement {
        self.sql.render(template)
    }

    async fn relay_connection(&self) -> Result<Conn<DB>> {
        Ok(self.pools.relay.acquire().await?)
    }

    pub(super) async fn run(&self, template: &str, values: Vec<Value>) -> Result<u64> {
        let mut tries = 0;
        loop {
            let mut conn = self.relay_connection().await?;
            let ran = DB::run(&mut conn, self.sql.render(template), values.clone()).await;
            match ran.map_err(|e| self.explain(e.into())) {
                Err(e) if tries < TRIES && is_collision(&e) => {
                    conn.give_up().await?;
                    step_aside(&mut tries).await;
                }
                Err(e) => return Err(e),
                Ok(touched) => {
                    conn.finish().await?;
                    return Ok(touched);
                }
            }
        }
    }

    /// Runs a statement that changes rows and returns some, like [`run`](Self::run).
    pub(super) async fn fetch_written(&self, template: &str, values: Vec<Value>) -> Result<Vec<DB::Row>> {
        self.retried(|| async {
            let mut conn = self.relay_connection().await?;
            match DB::fetch(&mut conn, self.sql.render(template), values.clone()).await {
                Ok(rows) => {
                    conn.finish().await?;
                    Ok(rows)
                }
                Err(error) => {
                    let error = self.explain(error.into());
                    if is_collision(&error) {
                        conn.give_up().await?;
                    }
                    Err(error)
                }
            }
        })
        .await
    }

    /// Retries an operation that collided with another transaction.
    pub(super) async fn retried<T, F: Future<Output = Result<T>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            match attempt().await.map_err(|e| self.explain(e)) {
                Err(e) if tries < TRIES && is_collision(&e) => step_aside(&mut tries).await,
                done => return done,
            }
        }
    }

    pub(super) async fn fetch(&self, template: &str, values: Vec<Value>) -> Result<Vec<DB::Row>> {
        let mut conn = self.pools.read.acquire().await?;
        let rows = DB::fetch(&mut conn, self.sql.render(template), values).await;
        let rows = rows.map_err(|e| self.explain(e.into()))?;
        conn.finish().await?;
        Ok(rows)
    }

    /// Whether the store uses group leases. Asks the server which product it is, if no connection
    /// has done so yet.
    pub(super) async fn has_lists(&self) -> Result<bool> {
        if DB::LISTS && self.sql.names.product.is_unknown() {
            // A connection of the relay asks when it is opened.
            self.relay_connection().await?.finish().await?;
        }
        Ok(self.lists())
    }

    /// Whether the store uses group leases, once a connection was opened.
    pub(super) fn lists(&self) -> bool {
        DB::LISTS && !self.sql.names.product.is_distributed()
    }

    /// Whether the server supports notifications. Some distributed databases do; the store does not
    /// rely on them.
    fn notifies(&self) -> bool {
        DB::NOTIFIES && !self.sql.names.product.is_distributed()
    }

    /// Settings that make a transaction read an index in its order, if the server has them.
    pub(super) fn in_order(&self) -> Option<&'static str> {
        DB::IN_ORDER.filter(|_| !self.sql.names.product.is_distributed())
    }

    /// Fetches rows by an index, however old the statistics of the planner are.
    pub(super) async fn fetch_in_order(&self, template: &str, values: Vec<Value>) -> Result<Vec<DB::Row>> {
        let Some(settings) = self.in_order() else { return self.fetch(template, values).await };
        let mut tx = begin_by(&self.pools.read, Some(settings.to_owned())).await?;
        let rows = DB::fetch(&mut tx, self.sql.render(template), values).await;
        let rows = rows.map_err(|e| self.explain(e.into()))?;
        tx.commit().await?;
        Ok(rows)
    }

    /// Claims or renews a named lease whose row exists, or returns its other holder.
    async fn lead_by_row(&self, name: &Value, holder: &NodeId, ttl: Duration) -> Result<Leadership> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let rows = DB::fetch(&mut tx, self.sql.render(sql::SEE_LEASE), vec![name.clone()]).await?;
        let row = rows.first().ok_or_else(|| Error::Store("the row of the lease is missing".into()))?;
        let now = DB::time(row, 3)?.unwrap_or_default();
        let (current, epoch) = (DB::text(row, 0)?, DB::int(row, 1)?.unwrap_or_default());
        let until = DB::time(row, 2)?;
        let answer = match (current, until) {
            (Some(current), _) if current == holder.as_str() => Leadership::Held { epoch, clean: true },
            (Some(current), Some(until)) if until > now => {
                let remaining = (until - now).to_std().unwrap_or_default();
                Leadership::HeldBy { holder: NodeId::from(current), remaining }
            }
            (vanished, _) => Leadership::Held { epoch: epoch + 1, clean: vanished.is_none() },
        };
        if let Leadership::Held { epoch, .. } = answer {
            let values =
                vec![name.clone(), Value::text(holder.as_str()), Value::Int(epoch), Value::micros(ttl)];
            DB::run(&mut tx, self.sql.render(sql::PUT_LEASE), values).await?;
        }
        tx.commit().await?;
        Ok(answer)
    }

    /// Deletes a pending event without a holder. A cancelled step counts as failed.
    async fn cancel_in_one(&self, id: &EventId) -> Result<bool> {
        let key = || vec![Value::text(id.as_str())];
        let mut tx = if self.has_lists().await? {
            self.begin_alone().await?
        } else {
            begin_on(&self.pools.relay).await?
        };
        let rows = DB::fetch(&mut tx, self.render(sql::CANCELLABLE), key()).await?;
        if let Some(row) = rows.first() {
            DB::run(&mut tx, self.render(sql::CANCEL), key()).await?;
            if DB::int(row, 0)? == Some(1) {
                self.count_steps(&mut tx, &HashMap::from([(id.as_str(), Step::Failed)])).await?;
            }
        }
        tx.commit().await?;
        Ok(!rows.is_empty())
    }

    async fn join_in_one(&self, act: &JoinCommand) -> Result<JoinOutcome> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let acted = self.join_on(&mut tx, act).await;
        match acted {
            Ok(_) => tx.commit().await?,
            // An error of a join is expected: the connection stays usable.
            Err(_) => tx.rollback().await?,
        }
        acted
    }

    async fn purge_joins_in_one(&self, older_than: Duration, limit: usize) -> Result<u64> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let purged = self.purge_closed(&mut tx, older_than, limit).await?;
        tx.commit().await?;
        Ok(purged)
    }

    /// Deletes one batch of old rows.
    async fn purge_batch(&self, purge: Purge) -> Result<u64> {
        let mut tx = begin_on(&self.pools.relay).await?;
        let mut purged = 0;
        if purge.what != Purgeable::Dead {
            purged += self.purge_done(&mut tx, purge).await?;
        }
        let rest: &[Purged] = match purge.what {
            Purgeable::Done => &[],
            Purgeable::Dead | Purgeable::Finished => &[Purged::Dead { heads: false }],
            Purgeable::Everything => &[Purged::Dead { heads: true }, Purged::Pending],
        };
        for what in rest {
            let left = Purge { limit: purge.limit - purged as usize, ..purge };
            purged += self.purge_selected(&mut tx, *what, left, None).await?.0;
        }
        // Also if nothing was deleted: a dropped transaction keeps its locks for a moment longer.
        tx.commit().await?;
        Ok(purged)
    }

    /// Deletes DONE rows, oldest first.
    ///
    /// Retained dead rows stay in the index of `done_at`, among its oldest entries. So that not
    /// every batch reads past all of them, a batch begins where the previous one ended. A batch
    /// that finds fewer rows than it may delete starts again from the beginning: the rows that it
    /// leaves are young, locked, or steps of an open join.
    async fn purge_done(&self, tx: &mut Work<'static, DB>, purge: Purge) -> Result<u64> {
        let position = || self.purged_until.lock().expect("no thread panics while it holds this lock");
        let from = *position();
        let (mut purged, mut last) =
            self.purge_selected(tx, Purged::Done { from: from.is_some() }, purge, from).await?;
        let left = |purged: u64| Purge { limit: purge.limit - purged as usize, ..purge };
        if from.is_some() && (purged as usize) < purge.limit {
            let (more, until) =
                self.purge_selected(tx, Purged::Done { from: false }, left(purged), None).await?;
            (purged, last) = (purged + more, until);
        }
        let is_full = purged as usize == purge.limit;
        *position() = last.filter(|_| is_full);
        if !is_full {
            purged += self.purge_selected(tx, Purged::DoneWithoutTime, left(purged), None).await?.0;
        }
        Ok(purged)
    }

    /// Deletes the rows that one query selects. Returns how many, and the latest `done_at` among
    /// them.
    async fn purge_selected(
        &self,
        tx: &mut Work<'static, DB>,
        what: Purged,
        purge: Purge,
        from: Option<DateTime<Utc>>,
    ) -> Result<(u64, Option<DateTime<Utc>>)> {
        let mut values = vec![Value::micros(purge.older_than)];
        values.extend(from.map(|from| Value::Time(Some(from))));
        let select = self.sql.render(&sql::purgeable::<DB>(what, purge.limit));
        let rows = DB::fetch(tx, select, values).await?;
        if rows.is_empty() {
            return Ok((0, None));
        }
        let (mut ids, mut purged) = (Vec::with_capacity(rows.len()), 0);
        for row in &rows {
            match DB::text(row, 0) {
                Ok(id) => ids.push(id),
                // Another program may have written an id that is not text.
                Err(_) => {
                    let number = vec![Value::Int(DB::int(row, 2)?.unwrap_or_default())];
                    purged += DB::run(tx, self.sql.render(sql::PURGE_ROW), number).await?;
                }
            }
        }
        // A time that cannot be read cannot be the start of the next batch.
        let last = rows.last().and_then(|row| DB::time(row, 1).ok().flatten());
        let delete = if what == Purged::DoneWithoutTime { sql::PURGE_WITHOUT_TIME } else { sql::PURGE };
        if !ids.is_empty() {
            purged += DB::run(tx, self.sql.render(delete), vec![Value::Texts(ids)]).await?;
        }
        Ok((purged, last))
    }

    pub(super) fn stored(&self, row: &DB::Row) -> Result<StoredEvent> {
        let id = EventId::from(DB::shown(row, 0).unwrap_or_default());
        let seq = DB::int(row, 1)?.unwrap_or_default();
        let available_at = DB::time(row, 2)?.unwrap_or_default();
        let columns = DB::columns(row, sql::EVENT_FROM).map_err(|e| e.to_string());
        let created_at = columns.as_ref().map_or(available_at, |c| c.created_at.clamped());
        let after = sql::AFTER_EVENT;
        let code = DB::int(row, after)?.unwrap_or_default();
        let status = Status::from_code(code as i16)
            .ok_or_else(|| Error::Store(format!("event {id} has the unknown status {code}").into()))?;
        let owner = DB::shown(row, after + 2).map(NodeId::from);
        Ok(StoredEvent {
            event: columns
                .and_then(|c| decode(&id, c, !DB::CHECKS_JSON))
                .map_err(|reason| DecodeError { id, reason }),
            seq,
            status,
            attempts: DB::int(row, 3)?.unwrap_or_default() as u32,
            created_at,
            available_at,
            done_at: DB::time(row, after + 1)?,
            last_error: DB::shown(row, sql::LAST_ERROR),
            done_by: DB::shown(row, after + 4).map(NodeId::from),
            lease: owner.zip(DB::time(row, after + 3)?),
        })
    }
}

/// Logs a warning if the URL of a store disables the verification of its server.
pub(crate) fn warn_if_unverified(store: &str, url: &str) {
    if let Some(reason) = crate::connect::unverified(url) {
        tracing::warn!(store, "connection to the database server is not verified: {reason}");
    }
}

/// Whether two transactions collided, so that a retry helps.
fn is_collision(error: &Error) -> bool {
    let Error::Database(e) = error else { return false };
    let Some(e) = e.inner().as_database_error() else { return false };
    let code = e.code().unwrap_or_default();
    matches!(&*code, "40001" | "40P01" | "5" | "6" | "517")
        || e.message().contains("try restarting transaction")
        // TiDB: a write conflict, or tables that changed.
        || e.message().contains("[try again later]")
}

/// Counts a collision and waits: not at all the first time, then for a random time up to a growing
/// limit. Transactions that collide and all retry at once would collide again.
async fn step_aside(tries: &mut u32) {
    let most = LONGEST_PAUSE.min(Duration::from_millis((1 << *tries) - 1));
    *tries += 1;
    tokio::time::sleep(most.mul_f64(rand::random())).await;
}

fn ids_value(ids: &[EventId]) -> Value {
    Value::texts(ids.iter().map(EventId::as_str))
}

#[async_trait]
impl<DB: Database> Store for SqlStore<DB> {
    fn name(&self) -> &str {
        &self.name
    }

    async fn insert(&self, events: &[Event]) -> Result<Vec<EventId>> {
        let rows: Vec<NewRow> =
            events.iter().map(|event| NewRow { event: event.clone(), leased: false }).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        // In a fleet the permit for this operation covers one connection, not two.
        let mut tx = match &self.pools.write {
            Source::Pool(_) => self.begin().await?,
            source => begin_on(source).await?,
        };
        let stored = self.write(&mut tx, &rows, None, false).await?;
        tx.commit().await?;
        Ok(stored.iter().map(|(event, _)| event.id().clone()).collect())
    }

    async fn take(&self, take: &Take) -> Result<Taken> {
        let window = match &take.by {
            Holder::Lease { owner, lease } => self.retried(|| self.claim(take, owner, *lease)).await?,
            Holder::Exclusive { .. } => self.retried(|| self.read(take)).await?,
        };
        let dead_lettered = self.dead_letter(take.by.owner(), &window.unusable).await;
        Ok(Taken { dead_lettered, ..window.into_taken(!DB::CHECKS_JSON) })
    }

    async fn settle(
        &self,
        by: &Holder,
        completion: Completion,
        settlements: &[Settlement],
    ) -> Result<Settled> {
        let allowed = self.allowed(by, settlements);
        if allowed.is_empty() {
            return Ok(Settled::default());
        }
        let settled = self.settle_batch(by, completion, &allowed).await?;
        if let Holder::Lease { .. } = by {
            let listed = allowed.iter().filter(|s| s.claim == 0).map(|s| &s.id);
            self.batches.release(listed, settled.moved == allowed.len() as u64);
        }
        Ok(settled)
    }

    async fn extend(
        &self,
        owner: &NodeId,
        lease: Duration,
        held: &[(EventId, Claim)],
    ) -> Result<Vec<EventId>> {
        let (listed, held): (Vec<_>, Vec<_>) =
            held.iter().cloned().partition(|(_, claim)| DB::LISTS && *claim == 0);
        let listed: Vec<&EventId> = listed.iter().map(|(id, _)| id).collect();
        let mut kept = self.extend_listed(owner, &listed, lease).await?;
        if held.is_empty() {
            return Ok(kept);
        }
        let settlements: Vec<Settlement> = held
            .iter()
            .map(|(id, claim)| Settlement { id: id.clone(), claim: *claim, verdict: Verdict::Released })
            .collect();
        let mut values = vec![Value::text(owner.as_str()), Value::micros(lease)];
        values.extend(batch_values::<DB>(&settlements.iter().collect::<Vec<_>>(), false));
        let extended = self.run(DB::extend(), values).await?;
        let ids: Vec<EventId> = held.iter().map(|(id, _)| id.clone()).collect();
        if extended == held.len() as u64 {
            kept.extend(ids);
            return Ok(kept);
        }
        let rows = self.fetch(sql::HELD, vec![Value::text(owner.as_str()), ids_value(&ids)]).await?;
        let mut still = HashSet::new();
        for row in &rows {
            still.extend(DB::text(row, 0)?.zip(DB::int(row, 1)?));
        }
        // Compares the claim as well: the same owner may hold the event again.
        let is_held =
            |(id, claim): &&(EventId, Claim)| still.contains(&(id.as_str().to_owned(), i64::from(*claim)));
        kept.extend(held.iter().filter(is_held).map(|(id, _)| id.clone()));
        Ok(kept)
    }

    async fn order_by_aggregate(&self) -> Result<u64> {
        self.key_by_aggregate().await
    }

    async fn reap(&self) -> Result<u64> {
        if self.has_lists().await? {
            let leased_by_row = format!("; {}", sql::REAP);
            return self.retried(|| self.reap_listed(&leased_by_row)).await;
        }
        self.run(sql::REAP, Vec::new()).await
    }

    async fn count_start(&self, by: &Holder, id: &EventId, claim: Claim) -> Result<Option<u32>> {
        let mut template = sql::COUNT_START.to_owned();
        let mut values = vec![Value::text(id.as_str()), Value::Int(claim.into())];
        match by {
            Holder::Lease { owner, .. } if DB::LISTS && claim == 0 => {
                if self.batches.of(owner, [id]).is_empty() {
                    return Ok(None);
                }
                template.push_str(sql::COUNTED_BY_LIST);
            }
            Holder::Lease { owner, .. } => {
                template.push_str(sql::COUNTED_BY_LEASE);
                values.push(Value::text(owner.as_str()));
            }
            Holder::Exclusive { owner, epoch } => {
                template.push_str(sql::COUNTED_BY_EPOCH);
                if DB::LISTS && claim == 0 {
                    template.push_str(sql::COUNTED_UNLISTED);
                }
                values.extend([Value::text(owner.as_str()), Value::Int(*epoch)]);
            }
        }
        if self.run(&template, values).await? == 0 {
            return Ok(None);
        }
        let rows = self.fetch(sql::CRASHES, vec![Value::text(id.as_str())]).await?;
        Ok(rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().map(|n| n as u32))
    }

    async fn lead(&self, name: &str, holder: &NodeId, ttl: Duration) -> Result<Leadership> {
        if name == EXCLUSIVE && self.has_lists().await? {
            // The leader of the table leases no events, and so never removes expired group leases
            // itself.
            self.retried(|| self.reap_listed("")).await?;
        }
        let (name, us) = (Value::text(name), Value::text(holder.as_str()));
        if self.run(sql::KEEP_LEASE, vec![name.clone(), us.clone(), Value::micros(ttl)]).await? > 0 {
            let rows = self.fetch(sql::EPOCH, vec![name.clone(), us]).await?;
            if let Some(epoch) = rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten() {
                return Ok(Leadership::Held { epoch, clean: true });
            }
        }
        self.run(DB::NEW_LEASE, vec![name.clone()]).await?;
        self.retried(|| self.lead_by_row(&name, holder, ttl)).await
    }

    async fn resign(&self, name: &str, holder: &NodeId, epoch: i64, clean: bool) -> Result<()> {
        let resign = if clean { sql::RESIGN } else { sql::END_LEASE };
        let values = vec![Value::text(name), Value::text(holder.as_str()), Value::Int(epoch)];
        self.run(resign, values).await?;
        Ok(())
    }

    async fn leader(&self, name: &str) -> Result<Option<NodeId>> {
        let rows = self.fetch(sql::LEADER, vec![Value::text(name)]).await?;
        Ok(rows.first().map(|row| DB::text(row, 0)).transpose()?.flatten().map(NodeId::from))
    }

    async fn purge(&self, purge: Purge) -> Result<u64> {
        self.retried(|| self.purge_batch(purge)).await
    }

    async fn purge_inbox(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.run(&DB::purge_inbox(limit), vec![Value::micros(older_than)]).await
    }

    async fn list(&self, filter: &Filter, limit: usize) -> Result<Vec<StoredEvent>> {
        let (text, values) = sql::list(filter, limit);
        self.fetch(&text, values).await?.iter().map(|row| self.stored(row)).collect()
    }

    async fn count(&self, filter: &Filter) -> Result<u64> {
        let (text, values) = sql::count(filter);
        let rows = self.fetch(&text, values).await?;
        Ok(rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten().unwrap_or_default() as u64)
    }

    async fn find(&self, id: &EventId) -> Result<Option<StoredEvent>> {
        let filter = Filter { id: Some(id.clone()), ..Filter::default() };
        Ok(self.list(&filter, 1).await?.pop())
    }

    async fn delivery_facts(&self, id: &EventId) -> Result<DeliveryFacts> {
        self.look_around(id).await
    }

    async fn types(&self, filter: &Filter, limit: usize) -> Result<Vec<(String, u64)>> {
        let (text, values) = sql::types(filter, limit);
        let mut types = Vec::new();
        for row in self.fetch(&text, values).await? {
            types.extend(DB::shown(&row, 0).zip(DB::int(&row, 1)?.map(i64::unsigned_abs)));
        }
        Ok(types)
    }

    async fn replay(&self, filter: &Filter, limit: usize) -> Result<Replayed> {
        let dead = Filter { status: Some(Status::Dead), ..filter.clone() };
        let (text, values) = sql::numbers(&dead, limit);
        let rows = self.fetch(&text, values).await?;
        let seqs = rows.iter().map(|row| DB::int(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let Some(last) = seqs.last().copied().flatten() else { return Ok(Replayed::default()) };
        let moved = self.run(sql::REPLAY, vec![Value::Ints(seqs)]).await?;
        Ok(Replayed { moved, last: Some(last) })
    }

    async fn cancel(&self, id: &EventId) -> Result<bool> {
        self.retried(|| self.cancel_in_one(id)).await
    }

    async fn join(&self, act: &JoinCommand) -> Result<JoinOutcome> {
        self.retried(|| self.join_in_one(act)).await
    }

    async fn joins(&self, filter: &JoinFilter, limit: usize) -> Result<Vec<Join>> {
        self.list_joins(filter, limit).await
    }

    async fn steps(
        &self,
        join: &JoinId,
        after: Option<&EventId>,
        limit: usize,
    ) -> Result<Vec<(EventId, Option<Step>)>> {
        self.list_steps(join, after, limit).await
    }

    async fn member(&self, join: &JoinId, step: &EventId) -> Result<Option<JoinMember>> {
        self.find_member(join, step).await
    }

    async fn purge_joins(&self, older_than: Duration, limit: usize) -> Result<u64> {
        self.retried(|| self.purge_joins_in_one(older_than, limit)).await
    }

    async fn stats(&self) -> Result<Stats> {
        let mut stats = Stats { oldest_due: self.oldest_due().await?, ..Stats::default() };
        for row in self.fetch(sql::STATS, Vec::new()).await? {
            let count = DB::int(&row, 1)?.unwrap_or_default() as u64;
            match DB::int(&row, 0)?.and_then(|code| Status::from_code(code as i16)) {
                Some(Status::New) => stats.new = count,
                Some(Status::Done) => stats.done = count,
                Some(Status::Retry) => stats.retry = count,
                Some(Status::Dead) => stats.dead = count,
                None => {}
            }
        }
        Ok(stats)
    }

    async fn backlog(&self) -> Result<Backlog> {
        let rows = self.fetch(sql::BACKLOG, Vec::new()).await?;
        let number = |column| -> Result<u64> {
            Ok(rows.first().map(|row| DB::int(row, column)).transpose()?.flatten().unwrap_or_default() as u64)
        };
        Ok(Backlog { pending: number(0)?, free: number(1)?, oldest_due: self.oldest_due().await? })
    }

    async fn last_due(&self, longer_than: Duration) -> Result<Option<Cursor>> {
        self.find_last_due(longer_than).await
    }

    async fn oldest_due(&self) -> Result<Option<Duration>> {
        let rows = self.fetch(sql::OLDEST_DUE, Vec::new()).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (at, now) = (DB::time(row, 0)?, DB::time(row, 1)?);
        Ok(at.zip(now).map(|(at, now)| (now - at).to_std().unwrap_or_default()))
    }

    fn log(&self) -> Option<&(dyn LogStore + 'static)> {
        Some(self)
    }

    async fn migrate(&self) -> Result<()> {
        self.migrate_patiently().await
    }

    async fn announce(&self, node: &NodeId, state: &NodeState) -> Result<bool> {
        self.announce_node(node, state).await
    }

    async fn retire(&self, node: &NodeId) -> Result<()> {
        self.retire_node(node).await
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        self.all_nodes().await
    }

    async fn release_vanished(&self) -> Result<Vec<(NodeId, u64)>> {
        self.release_all_vanished().await
    }

    async fn watch(&self) -> Result<Option<Box<dyn InsertNotifier>>> {
        let Some(options) = self.notifier().filter(|_| self.notifies()) else { return Ok(None) };
        match &self.pools.read {
            Source::Pool(_) => DB::watch(options, &self.sql.names).await,
            Source::Line(line) => line.watch(options, &self.sql.names).await,
        }
    }

    async fn listen(&self) -> Result<Option<Box<dyn AppendNotifier>>> {
        match self.notifier() {
            // In a fleet the log is polled.
            Some(options) if self.notifies() && matches!(self.pools.read, Source::Pool(_)) => {
                DB::listen(options, &self.sql.names, &self.channel()).await
            }
            _ => Ok(None),
        }
    }

    async fn ring(&self) -> Result<()> {
        if self.notifies() && matches!(self.pools.read, Source::Pool(_)) {
            self.run("SELECT pg_notify($1, '')", vec![Value::text(self.channel())]).await?;
        }
        Ok(())
    }

    async fn check_schema(&self) -> Result<()> {
        let needed = newest_version::<DB>();
        let rows = self.fetch(sql::SEE_VERSION, Vec::new()).await?;
        match rows.first().map(|row| DB::int(row, 0)).transpose()?.flatten() {
            None => Err(Error::NotMigrated { table: self.sql.names.table.clone() }),
            Some(found) if found > needed => Err(Error::SchemaTooNew { found, known: needed }),
            Some(found) if found < needed => Err(Error::SchemaTooOld { found, needed }),
            Some(_) => Ok(()),
        }
    }
}

impl<DB: Database> SqlStore<DB> {
    /// Options to connect to a session that can receive notifications; `None` if there is none.
    fn notifier(&self) -> Option<Options<DB>> {
        if let Some(direct) = &self.direct {
            return Some(direct.clone());
        }
        match &self.pools.read {
            _ if self.pools.sessions.are_shared() => {
                if !self.polls.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        store = self.name,
                        "behind a pooler in transaction mode: notifications cannot be received, so the relay \
                         polls; set a direct URL to the server to be woken by writers"
                    );
                }
                None
            }
            Source::Pool(pool) => Some((*pool.pool().connect_options()).clone()),
            Source::Line(line) => Some(line.options().clone()),
        }
    }

    /// Channel of the notifications that something was appended. Channels belong to the database:
    /// an unneeded notification does no harm.
    fn channel(&self) -> String {
        format!("{}_log", self.sql.names.table)
    }

    /// The statements that create the tables, as text.
    pub fn migration_sql(&self) -> Result<String> {
        self.migration_sql_from(0)
    }

    /// The statements that upgrade the tables from this version, as text: see
    /// [`migration_sql_from`](crate::migration_sql_from).
    pub fn migration_sql_from(&self, version: i64) -> Result<String> {
        let names = &self.sql.names;
        let options =
            StoreOptions { schema: names.schema.clone(), ..StoreOptions::default().table(&names.table) };
        migration_script::<DB>(&options, version)
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        for pool in [&self.pools.relay, &self.pools.read, &self.pools.write] {
            pool.close().await;
        }
    }

    /// Wraps the store in an `Arc`.
    pub fn shared(self) -> Arc<Self> {
        Arc::new(self)
    }
}
