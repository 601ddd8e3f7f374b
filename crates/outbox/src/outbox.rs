//! The outbox: writes events, and starts the relay.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::Pool;
use tracing::Instrument as _;

use crate::EVENTS;
use crate::admin::Admin;
use crate::connect::Pooler;
use crate::error::Result;
use crate::escape::Escaped;
use crate::event::{Event, EventBuilder, EventId, EventType, IntoEvent, MAX_PAYLOAD};
use crate::fleet::guarded::GuardedStore;
use crate::hook::{Hooks, WriterHook};
use crate::log::LogAdmin;
use crate::queue::WorkQueue;
use crate::relay::hot::{HotPath, Reserved};
use crate::relay::tx_dispatch::ErasedOutbox;
use crate::relay::{Mode, OutboxSource, RelayBuilder};
use crate::sql::dialect::NewRow;
use crate::sql::line::Line;
use crate::sql::{Clock, Database, SqlStore, StoreOptions};
use crate::store::{SharedStore, Store};
use crate::tx::{BoundTx, Tx, WrittenBatch};
use crate::write::{PlaceInBatch, WriteOutcome, Written};

/// A transactional outbox in a database. Cheap to clone; clones are the same outbox.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Context, Handled, Message, Outbox};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome { email: String }
/// impl Message for Welcome { const TYPE: &'static str = "user.welcome"; }
///
/// async fn greet(welcome: Welcome, _: Context) -> Handled {
///     println!("hello {}", welcome.email);
///     Ok(())
/// }
///
/// let outbox = Outbox::sqlite(":memory:").await?;       // or Outbox::postgres(url), Outbox::mysql(url)
/// outbox.migrate().await?;
/// let relay = outbox.single_node().on(greet).start().await?;
/// outbox.send(Welcome { email: "ada@example.org".into() }).await?;
/// relay.stop().await?;                                   // drains
/// # Ok(()) }
/// ```
///
/// It is typed by its database: a SQLite outbox does not accept a PostgreSQL transaction.
///
/// ```compile_fail
/// # async fn wrong(outbox: outbox::Outbox<sqlx::Sqlite>, pool: sqlx::PgPool) -> outbox::Result<()> {
/// let tx = outbox.adopt(pool.begin().await?);
/// # Ok(()) }
/// ```
pub struct Outbox<DB: Database> {
    shared: Arc<Shared<DB>>,
}

struct Shared<DB: Database> {
    store: Arc<SqlStore<DB>>,
    /// In a fleet: the same store, within the fleet's limits.
    guarded: Option<Arc<GuardedStore>>,
    hooks: Hooks,
    door: HotPath,
    max_payload: usize,
    /// Whether events without a key get their aggregate as key.
    by_aggregate: Arc<AtomicBool>,
    /// Whether a notification of other processes about an append is scheduled.
    notifying: AtomicBool,
}

/// A scheduled notification of other processes.
struct ScheduledNotification<DB: Database>(Arc<Shared<DB>>);

impl<DB: Database> Drop for ScheduledNotification<DB> {
    fn drop(&mut self) {
        self.0.notifying.store(false, Ordering::Release);
    }
}

/// Delay of that notification, to cover further appends.
const NOTIFY_DELAY: Duration = Duration::from_millis(5);

impl<DB: Database> Clone for Outbox<DB> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<DB: Database> fmt::Debug for Outbox<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("store", &self.shared.store)
            .field("hot path", &self.shared.door)
            .finish()
    }
}

/// Sets up an [`Outbox`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::OutboxBuilder;
///
/// let outbox = OutboxBuilder::new().table("billing_events").max_payload(64 * 1024).sqlite(":memory:").await?;
/// # let _ = outbox;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
#[must_use = "an outbox is opened by its last call: sqlite, postgres, mysql or on_pool"]
pub struct OutboxBuilder {
    options: StoreOptions,
    hooks: Hooks,
    max_payload: Option<usize>,
    by_aggregate: bool,
}

impl fmt::Debug for OutboxBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl OutboxBuilder {
    /// A builder with all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The table of the events, instead of `outbox_event`. The names of the other tables derive
    /// from it.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.options = self.options.table(table);
        self
    }

    /// The schema (PostgreSQL) or database (MySQL) of the tables, instead of the connection's own.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.options = self.options.schema(schema);
        self
    }

    /// Name of this outbox in log lines and metrics.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options = self.options.name(name);
        self
    }

    /// How many connections to open at most; 10 if not set. SQLite writes on one, whatever the
    /// setting.
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.options = self.options.max_connections(connections);
        self
    }

    /// Whether a pooler is in front of PostgreSQL; detected when connecting if not set. Not
    /// detected with [`on_pool`](OutboxBuilder::on_pool): set it there.
    pub fn pooler(mut self, pooler: Pooler) -> Self {
        self.options = self.options.pooler(pooler);
        self
    }

    /// A PostgreSQL URL of the server itself, bypassing a pooler: the relay waits for notifications
    /// on it. Without it a relay behind a pooler polls.
    pub fn direct_url(mut self, url: impl Into<String>) -> Self {
        self.options = self.options.direct_url(url);
        self
    }

    /// How large a payload may be; [`MAX_PAYLOAD`] if not set. A relay of this outbox dead-letters
    /// larger ones, which other programs have written, without reading them, and publishers of the
    /// log skip them. A relay in another process needs the same value: it has a limit of its own.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = Some(bytes);
        self.options = self.options.max_payload(bytes);
        self
    }

    /// Adds a hook around every write.
    pub fn hook(mut self, hook: impl WriterHook) -> Self {
        self.hooks.0.push(Arc::new(hook));
        self
    }

    /// Orders the events of one aggregate: an event without a key gets its aggregate's type and id
    /// as key.
    pub fn order_by_aggregate(mut self) -> Self {
        self.by_aggregate = true;
        self
    }

    /// Applies the settings of the outbox: name, table, schema, connections, direct URL, largest
    /// payload, and the order by aggregate of mode `ordered`. The URL is an argument of the last
    /// call: see [`Settings::database_url`](crate::settings::Settings::database_url).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::OutboxBuilder;
    /// use outbox::settings::Settings;
    ///
    /// let settings = Settings::from_toml("[database]\ntable = \"shop_event\"\n")?;
    /// let pool = sqlx::SqlitePool::connect("sqlite::memory:").await?;
    /// let outbox = OutboxBuilder::new().settings(&settings).on_pool(&pool)?;
    /// # let _ = outbox;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "settings")]
    pub fn settings(mut self, settings: &crate::settings::Settings) -> Self {
        self.options = settings.database().options(self.options);
        self.by_aggregate |= settings.mode().orders_by_aggregate();
        match settings.groups().dispatcher.max_payload {
            Some(limit) => self.max_payload(limit.get()),
            None => self,
        }
    }

    /// The clock that decides which events are due. For tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.options = self.options.clock(clock);
        self
    }

    /// Treats a server with MySQL's protocol as TiDB, whatever its version string. For tests.
    #[cfg(feature = "mysql")]
    #[doc(hidden)]
    pub fn assume_tidb(mut self) -> Self {
        self.options = self.options.assume_tidb();
        self
    }

    /// Takes a server that speaks PostgreSQL's protocol for CockroachDB or YugabyteDB, whatever its
    /// version says. For tests.
    #[cfg(feature = "postgres")]
    #[doc(hidden)]
    pub fn assume_distributed(mut self) -> Self {
        self.options = self.options.assume_distributed();
        self
    }

    /// Opens a SQLite file, created if it does not exist; `:memory:` for a database that ends with
    /// the outbox.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(self, file: &str) -> Result<Outbox<sqlx::Sqlite>> {
        let url = if file.starts_with("sqlite:") { file.to_owned() } else { format!("sqlite:{file}") };
        self.open(&url).await
    }

    /// Connects to PostgreSQL. A server on another machine is [verified](crate::connect) unless the
    /// URL says otherwise.
    #[cfg(feature = "postgres")]
    pub async fn postgres(self, url: &str) -> Result<Outbox<sqlx::Postgres>> {
        self.expect_scheme(url, &["postgres", "postgresql"])?;
        self.open(url).await
    }

    /// Connects to MySQL or MariaDB. A server on another machine is [verified](crate::connect)
    /// unless the URL says otherwise.
    #[cfg(feature = "mysql")]
    pub async fn mysql(self, url: &str) -> Result<Outbox<sqlx::MySql>> {
        self.expect_scheme(url, &["mysql", "mariadb"])?;
        self.open(url).await
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    fn expect_scheme(&self, url: &str, schemes: &[&str]) -> Result<()> {
        let scheme = url.split(':').next().unwrap_or_default();
        if schemes.contains(&scheme) {
            return Ok(());
        }
        let reason = format!("it starts with {scheme:?}, expected {}", schemes.join(": or "));
        Err(crate::Error::Url { url: crate::error::without_credentials(url), reason })
    }

    /// Uses the application's own pool for transactions; the relay opens a few connections of its
    /// own with the same options.
    ///
    /// sqlx's pool checks a connection before and after each transaction. A connection that outbox
    /// opens is checked only if it was idle, which saves two round trips.
    pub fn on_pool<DB: Database>(self, pool: &Pool<DB>) -> Result<Outbox<DB>> {
        let store = SqlStore::beside(pool, &self.options)?.shared();
        let by_aggregate = Arc::new(AtomicBool::new(self.by_aggregate));
        Ok(self.finish(store, None, by_aggregate))
    }

    async fn open<DB: Database>(self, url: &str) -> Result<Outbox<DB>> {
        let store = SqlStore::open(url, &self.options).await?.shared();
        let by_aggregate = Arc::new(AtomicBool::new(self.by_aggregate));
        Ok(self.finish(store, None, by_aggregate))
    }

    pub(crate) fn options(mut self, options: StoreOptions) -> Self {
        let limit = self.max_payload.unwrap_or(MAX_PAYLOAD);
        self.options = options.max_payload(limit);
        self
    }

    /// Opens the outbox of a fleet's database.
    pub(crate) fn on_line<DB: Database>(
        self,
        line: Arc<Line<DB>>,
        by_aggregate: Arc<AtomicBool>,
        guard: impl FnOnce(SharedStore) -> GuardedStore,
    ) -> Result<Outbox<DB>> {
        let store = SqlStore::on_line(line, &self.options)?.shared();
        let guarded = Arc::new(guard(store.clone()));
        Ok(self.finish(store, Some(guarded), by_aggregate))
    }

    fn finish<DB: Database>(
        self,
        store: Arc<SqlStore<DB>>,
        guarded: Option<Arc<GuardedStore>>,
        by_aggregate: Arc<AtomicBool>,
    ) -> Outbox<DB> {
        Outbox {
            shared: Arc::new(Shared {
                store,
                guarded,
                hooks: self.hooks,
                door: HotPath::default(),
                max_payload: self.max_payload.unwrap_or(MAX_PAYLOAD),
                by_aggregate,
                notifying: AtomicBool::new(false),
            }),
        }
    }
}

#[cfg(feature = "sqlite")]
impl Outbox<sqlx::Sqlite> {
    /// Opens a SQLite file, created if it does not exist; `:memory:` for a database that ends with
    /// the outbox.
    pub async fn sqlite(file: &str) -> Result<Self> {
        OutboxBuilder::new().sqlite(file).await
    }
}

#[cfg(feature = "postgres")]
impl Outbox<sqlx::Postgres> {
    /// Connects to PostgreSQL.
    pub async fn postgres(url: &str) -> Result<Self> {
        OutboxBuilder::new().postgres(url).await
    }
}

#[cfg(feature = "mysql")]
impl Outbox<sqlx::MySql> {
    /// Connects to MySQL or MariaDB.
    pub async fn mysql(url: &str) -> Result<Self> {
        OutboxBuilder::new().mysql(url).await
    }
}

impl<DB: Database> Outbox<DB> {
    /// The pool that [`begin`](Outbox::begin) takes connections from. For an outbox of a
    /// [`Fleet`](crate::Fleet) it is a small separate pool, not counted in the fleet's connections:
    /// prefer `begin` there.
    pub fn pool(&self) -> &Pool<DB> {
        self.shared.store.pool()
    }

    /// The store without the database type, for relays and tools.
    pub fn store(&self) -> SharedStore {
        match &self.shared.guarded {
            Some(guarded) => guarded.clone(),
            None => self.shared.store.clone(),
        }
    }

    /// Whether it uses the connections of a fleet.
    pub(crate) fn is_in_fleet(&self) -> bool {
        self.shared.guarded.is_some()
    }

    pub(crate) fn door(&self) -> HotPath {
        self.shared.door.clone()
    }

    pub(crate) fn sql_store(&self) -> &SqlStore<DB> {
        &self.shared.store
    }

    /// Creates or upgrades the tables. Safe to call at every start, from every node.
    pub async fn migrate(&self) -> Result<()> {
        self.store().migrate().await
    }

    /// The statements that [`migrate`](Outbox::migrate) runs, for applications with their own
    /// migrations.
    pub fn migration_sql(&self) -> Result<String> {
        self.shared.store.migration_sql()
    }

    /// The statements that upgrade the tables from this version to the one of this build: for the
    /// next file among an application's own migrations. See
    /// [`migration_sql_from`](crate::migration_sql_from).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::Outbox;
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// let script = outbox.migration_sql_from(8)?;
    /// assert!(script.contains("-- version 9") && !script.contains("-- version 8"));
    /// # Ok(()) }
    /// ```
    pub fn migration_sql_from(&self, version: i64) -> Result<String> {
        self.shared.store.migration_sql_from(version)
    }

    /// Begins a transaction for business writes and events. May be cancelled at any time.
    pub async fn begin(&self) -> Result<Tx<'static, DB>> {
        if let Some(guarded) = &self.shared.guarded {
            guarded.prepare().await?;
        }
        let tx = self.shared.store.begin().await?;
        Ok(Tx::new(tx, self.clone()))
    }

    /// Begins a transaction for a handler, which ends with its event's settlement.
    pub(crate) async fn begin_for_handler(&self) -> Result<Tx<'static, DB>> {
        if let Some(guarded) = &self.shared.guarded {
            guarded.prepare().await?;
        }
        let tx = self.shared.store.begin_for_handler().await?;
        Ok(Tx::new(tx, self.clone()))
    }

    /// Continues a transaction that the caller has begun.
    ///
    /// It may be a savepoint, sqlx's nested transaction. Its commit decides nothing yet, so no hook
    /// or callback is called for it, and the events wait until the poller sees the outer commit.
    pub fn adopt<'c>(&self, tx: sqlx::Transaction<'c, DB>) -> Tx<'c, DB> {
        Tx::new(tx, self.clone())
    }

    /// Borrows a transaction of sqlx, which stays the caller's: the handle has all methods of
    /// [`Tx`], but the caller commits. See [`BoundTx`].
    ///
    /// The outbox does not see the commit, so the events do not take the hot path. The [`Receipt`]
    /// wakes the relay.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # use outbox::{Event, Outbox};
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// # let pool = outbox.pool();
    /// let mut tx = pool.begin().await?;                       // sqlx's own
    /// let mut bound = outbox.bind(&mut tx);
    /// bound.write(Event::new("order.placed").json(&42)).await?;
    /// let receipt = bound.finish();
    /// tx.commit().await?;
    /// receipt.committed();
    /// # Ok(()) }
    /// ```
    ///
    /// [`Receipt`]: crate::Receipt
    pub fn bind<'t>(&self, tx: &'t mut sqlx::Transaction<'_, DB>) -> BoundTx<'t, DB> {
        BoundTx::new(&mut **tx, self.clone())
    }

    /// Starts an event with this outbox's limits, for [`send`](Outbox::send), [`Tx::write`] and the
    /// other write methods.
    pub fn event(&self, event_type: impl Into<EventType>) -> EventBuilder {
        Event::new(event_type).max_payload(self.shared.max_payload)
    }

    /// Writes an event in a transaction of its own. Returns its id, and whether it is new, a
    /// duplicate, or suppressed by a hook: see [`Tx::write`].
    pub async fn send(&self, event: impl IntoEvent) -> Result<Written> {
        let event = self.build_one(event)?;
        self.send_event(event).await
    }

    /// Writes many events in a transaction of their own. Returns an entry for each event that the
    /// hooks let through: see [`Tx::write_all`].
    pub async fn send_all<E: IntoEvent>(&self, events: impl IntoIterator<Item = E>) -> Result<Vec<Written>> {
        let events = self.build(events)?;
        self.send_events(events).await
    }

    pub(crate) async fn send_event(&self, event: Event) -> Result<Written> {
        let (events, place) = self.prepare_one(event)?;
        Ok(place.among(self.send_prepared(events).await?))
    }

    pub(crate) async fn send_events(&self, events: Vec<Event>) -> Result<Vec<Written>> {
        let events = self.prepare(events)?;
        self.send_prepared(events).await
    }

    async fn send_prepared(&self, events: Vec<Event>) -> Result<Vec<Written>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.begin().await?;
        let written = tx.write_prepared(events).await?;
        tx.commit().await?;
        Ok(written)
    }

    pub(crate) fn hooks(&self) -> &Hooks {
        &self.shared.hooks
    }

    /// How large a payload may be.
    pub(crate) fn max_payload(&self) -> usize {
        self.shared.max_payload
    }

    /// Wakes the relay of this process, if one runs.
    pub(crate) fn wake(&self) {
        if let Some(engine) = self.shared.door.engine() {
            engine.wake.notify_one();
        }
    }

    /// Notifies other processes of an append, where the database has notifications: after the
    /// commit and on another connection, since it would delay the commits of all writers, and once
    /// for all appends within a short time.
    pub(crate) fn ring_elsewhere(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !DB::NOTIFIES
            || self.shared.guarded.is_some()
            || self.shared.notifying.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = self.shared.clone();
        // Reset also if the runtime ends meanwhile.
        let notifying = ScheduledNotification(shared.clone());
        runtime.spawn(async move {
            tokio::time::sleep(NOTIFY_DELAY).await;
            drop(notifying);
            if let Err(error) = shared.store.ring().await {
                tracing::debug!(store = shared.store.name(), %error, "could not notify other processes of an append: they poll for it");
            }
        });
    }

    /// Builds events within this outbox's limits.
    pub(crate) fn build<E: IntoEvent>(&self, events: impl IntoIterator<Item = E>) -> Result<Vec<Event>> {
        events.into_iter().map(|event| self.build_one(event)).collect()
    }

    /// Builds an event within this outbox's limits.
    pub(crate) fn build_one(&self, event: impl IntoEvent) -> Result<Event> {
        Ok(event.into_event(self.shared.max_payload)?.without_tags())
    }

    /// Calls the hooks before a write. Returns the events to write.
    pub(crate) fn prepare(&self, events: Vec<Event>) -> Result<Vec<Event>> {
        if events.is_empty() {
            return Ok(events);
        }
        let mut events = self.shared.hooks.before_write(events)?;
        // After the hooks: events that they returned instead are ordered as well.
        if self.shared.by_aggregate.load(Ordering::Relaxed) {
            events = events.into_iter().map(Event::ordered_by_aggregate).collect();
        }
        Ok(events)
    }

    /// Calls the hooks before a write of one event.
    pub(crate) fn prepare_one(&self, event: Event) -> Result<(Vec<Event>, PlaceInBatch)> {
        let id = event.id().clone();
        let events = self.prepare(vec![event])?;
        let index = events.iter().position(|event| *event.id() == id).unwrap_or(0);
        Ok((events, PlaceInBatch { id, index }))
    }

    /// Inserts events, with a lease of this node where they have a slot in its hot queue. `hot`:
    /// the caller sees the commit, so they may have one.
    pub(crate) async fn insert(
        &self,
        conn: &mut DB::Connection,
        events: Vec<Event>,
        hot: bool,
    ) -> Result<WrittenBatch> {
        let Shared { store, hooks, door, .. } = &*self.shared;
        let engine = door.engine();
        let mut batch = WrittenBatch {
            events: Vec::new(),
            reserved: Vec::new(),
            hinted: Vec::new(),
            dropped: 0,
            delayed: 0,
            engine,
            written: Vec::new(),
        };
        let mut rows = Vec::with_capacity(events.len());
        for event in events {
            let reserved = match &batch.engine {
                Some(engine) if hot => engine.reserve(&event),
                _ => Reserved::Poller,
            };
            let mut leased = false;
            match reserved {
                Reserved::Slot(reservation) => {
                    batch.reserved.push(reservation);
                    leased = true;
                }
                Reserved::Full => {
                    batch.dropped += 1;
                    batch.hinted.push(event.clone());
                }
                Reserved::Poller => {
                    batch.delayed += u64::from(event.is_delayed());
                    batch.hinted.push(event.clone());
                }
            }
            rows.push(NewRow { event, leased });
        }
        let birth =
            batch.engine.as_ref().filter(|_| !batch.reserved.is_empty()).and_then(|e| e.birth_lease());
        if birth.is_none() {
            rows.iter_mut().for_each(|row| row.leased = false);
        }
        let span = tracing::debug_span!("outbox.write", store = store.name(), events = rows.len());
        let dated = !batch.reserved.is_empty();
        let stored = store.write(conn, &rows, birth.as_ref(), dated).instrument(span).await?;
        let times: HashMap<&EventId, _> = stored.iter().map(|(event, at)| (event.id(), *at)).collect();
        for reservation in &mut batch.reserved {
            if let Some(Some(at)) = times.get(reservation.event().id()) {
                reservation.stored_at(*at);
            }
        }
        if stored.len() < rows.len() {
            // Events that exist by their deduplication key need no slot.
            batch.reserved.retain(|reservation| times.contains_key(reservation.event().id()));
            batch.hinted.retain(|event| times.contains_key(event.id()));
        }
        batch.written = self.results(conn, &rows, &times).await?;
        drop(times);
        batch.events = stored.into_iter().map(|(event, _)| event).collect();
        for event in &batch.events {
            let (id, event_type, correlation_id) = (event.id(), event.event_type(), event.correlation_id());
            tracing::info!(target: EVENTS, store = store.name(), event = %Escaped(id), event_type = %Escaped(event_type), correlation_id, "event written");
        }
        hooks.after_write(&batch.events);
        Ok(batch)
    }

    /// The result for each row; `stored` has those that the database stored. Reads the ids of the
    /// others, which exist by their deduplication keys.
    async fn results(
        &self,
        conn: &mut DB::Connection,
        rows: &[NewRow],
        stored: &HashMap<&EventId, Option<DateTime<Utc>>>,
    ) -> Result<Vec<Written>> {
        let is_stored = |event: &Event| stored.contains_key(event.id());
        let keys: BTreeSet<&str> = rows
            .iter()
            .filter(|row| !is_stored(&row.event))
            .filter_map(|row| row.event.dedup_key())
            .collect();
        let existing = self.shared.store.ids_by_dedup_key(conn, &keys).await?;
        let result = |NewRow { event, .. }: &NewRow| {
            if is_stored(event) {
                return Written::new(event.id().clone(), WriteOutcome::Stored);
            }
            let id = event.dedup_key().and_then(|key| existing.get(key)).unwrap_or(event.id());
            Written::new(id.clone(), WriteOutcome::Duplicate)
        };
        Ok(rows.iter().map(result).collect())
    }

    /// Inspects and repairs the outbox: dead events, cancelling, purging, statistics.
    pub fn admin(&self) -> Admin {
        Admin::new(self.store())
    }

    /// Inspects and controls the publishers of the log: pausing, resuming, resetting, their lag.
    pub fn log_admin(&self) -> LogAdmin {
        LogAdmin::new(self.store())
    }

    fn in_mode(&self, mode: Mode) -> RelayBuilder<DB> {
        if mode.orders_by_aggregate() {
            self.shared.by_aggregate.store(true, Ordering::Relaxed);
        }
        let outbox = Some(Arc::new(self.clone()) as ErasedOutbox);
        RelayBuilder::of(OutboxSource { store: self.store(), door: self.door(), outbox }, mode)
    }

    /// A relay in the mode of the settings, with all their relay settings. See
    /// [`settings`](crate::settings).
    #[cfg(feature = "settings")]
    pub fn relay(&self, settings: &crate::settings::Settings) -> RelayBuilder<DB> {
        settings.groups().apply(self.in_mode(settings.mode()))
    }

    /// The events as a work queue, for applications that take work themselves instead of running a
    /// relay.
    pub fn queue(&self) -> WorkQueue {
        WorkQueue::new(self.store()).waking(self.door())
    }

    /// A relay for one node. Holds the whole outbox by one lease, so that events need not be leased
    /// one by one: the fastest mode. A second one stands by until the first is gone.
    pub fn single_node(&self) -> RelayBuilder<DB> {
        self.in_mode(Mode::SingleNode)
    }

    /// A relay for several nodes that share the work. Every event is leased to the node that
    /// handles it.
    pub fn multi_node(&self) -> RelayBuilder<DB> {
        self.in_mode(Mode::MultiNode)
    }

    /// A relay for events whose order matters: events of one key, or else of one aggregate, are
    /// delivered one after another, with any number of workers and nodes, and through retries.
    ///
    /// Events with an [`ordering_key`](EventBuilder::ordering_key) are kept in order in every mode.
    /// This one orders events without a key by their aggregate, whatever program writes them: the
    /// relay configures the table to give such events their aggregate as key.
    pub fn ordered(&self) -> RelayBuilder<DB> {
        self.in_mode(Mode::Ordered)
    }

    /// No delivery from here: CDC or another process does it. Purges DONE events, if
    /// [`purge`](RelayBuilder::purge) is set, and by age alone only with
    /// [`delete_undelivered`](crate::PurgeSettings::delete_undelivered), which is for CDC.
    pub fn writer_only(&self) -> RelayBuilder<DB> {
        self.in_mode(Mode::WriterOnly)
    }

    /// A relay that publishes the log and leaves the queue to others: see
    /// [`publish`](RelayBuilder::publish). Every other relay publishes as well, if it has
    /// publishers.
    pub fn log_only(&self) -> RelayBuilder<DB> {
        self.in_mode(Mode::LogOnly)
    }

    /// Closes the connections. Later calls return an error.
    pub async fn close(&self) {
        self.shared.store.close().await;
    }
}
