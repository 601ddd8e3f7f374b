//! Many databases, one relay: a database for each tenant, region or service.
//!
//! | module | contents |
//! | --- | --- |
//! | `builder`, `database` | settings of a fleet: its databases, or their discovery |
//! | `member` | one database while it belongs to the fleet |
//! | `guarded` | its store, with a share of the connections and time limits |
//! | `share`, `selection` | limits shared by the databases' relays: handlers, and turns to poll |
//! | `relay` | starts, supervises and stops the relays of the databases |
//!
//! Connections are counted in `sql/budget.rs` and `sql/line.rs`.

mod builder;
mod database;
pub(crate) mod guarded;
mod guarded_admin;
mod guarded_log;
mod member;
mod relay;
mod selection;
pub(crate) mod share;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use metrics::Gauge;
use tokio::sync::watch;

pub use self::builder::FleetBuilder;
pub use self::database::{Discovery, FleetDatabase, RoutingKey};
pub use self::member::DatabaseState;
use self::member::Member;
pub use self::relay::FleetRelay;
pub use self::selection::{DrainFirst, Polled, RoundRobin, Selection};
use crate::error::{Error, Result};
use crate::join::JoinDatabases;
use crate::outbox::{Outbox, OutboxBuilder};
use crate::relay::{Mode, RelayBuilder, RelaySource};
use crate::sql::budget::Budget;
use crate::sql::{Clock, Database};
use crate::store::{RelayHealth, SharedStore};

/// Time limit of a discovery.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Default number of handlers that run concurrently over all databases.
const DEFAULT_WORKERS: usize = 64;

/// Many databases, each with an outbox, served by one relay. Cheap to clone; clones are the same
/// fleet.
///
/// The databases may be of different kinds. They share one connection budget: never more than
/// [`max_connections`](FleetBuilder::max_connections) are open, however many databases there are.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let url = |name: &str| format!("sqlite:{}/{name}.db", folder.path().display());
/// # let (acme_url, globex_url) = (url("acme"), url("globex"));
/// use outbox::{Context, Event, Fleet, Outbox};
///
/// let fleet = Fleet::builder()
///     .database("acme", acme_url)                       // sqlite:…, postgres://…, mysql://…
///     .database("globex", globex_url)
///     .max_connections(20)                              // over all databases together
///     .migrate(true)
///     .open()
///     .await?;
///
/// let relay = fleet.multi_node().on_type("greeting", async |cx: Context| println!("{}", cx.id())).start().await?;
///
/// let outbox: Outbox<sqlx::Sqlite> = fleet.outbox("acme")?;
/// outbox.send(Event::new("greeting").json(&"hello")).await?;
/// relay.idle().await?;
/// relay.stop().await?;
/// fleet.close().await;
/// # Ok(()) }
/// ```
///
/// A database that is down, slow or not migrated does not disturb the others: it is retried with
/// growing pauses, with a small part of the connections.
#[derive(Clone)]
pub struct Fleet(Arc<FleetInner>);

/// Settings and connection budget of all databases of a fleet.
pub(crate) struct Common {
    pub(crate) budget: Arc<Budget>,
    pub(crate) patience: Duration,
    pub(crate) migrate: bool,
    pub(crate) clock: Clock,
    pub(crate) outbox: OutboxBuilder,
    /// Whether events without a key get their aggregate as key.
    pub(crate) by_aggregate: Arc<AtomicBool>,
}

struct FleetInner {
    common: Common,
    discovery: Option<Box<dyn Discovery>>,
    absences: u32,
    registry: RwLock<Registry>,
    /// Notified when databases are added or removed.
    changed: watch::Sender<()>,
    /// Held during a discovery, so that only one runs at a time.
    refreshing: tokio::sync::Mutex<()>,
    /// Whether a relay runs.
    served: AtomicBool,
    databases_gauge: Gauge,
}

#[derive(Default)]
struct Registry {
    members: BTreeMap<String, Arc<Member>>,
    /// Removed members that have not finished their in-flight events.
    retiring: Vec<Arc<Member>>,
    /// Number of successive discoveries in which a database was missing.
    absent: HashMap<String, u32>,
}

/// A database of a fleet and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatabaseStatus {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: DatabaseState,
    /// Health of its relay; `None` while none runs in this process.
    pub health: Option<RelayHealth>,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let databases = self.0.registry().members.len();
        f.debug_struct("Fleet").field("databases", &databases).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Sets up a fleet.
    pub fn builder() -> FleetBuilder {
        FleetBuilder::default()
    }

    /// The outbox of a database; clones of the same one for each call. The key is the database's
    /// name, as text or as a UUID.
    ///
    /// An error if there is no such database, or if it is of another kind.
    pub fn outbox<DB: Database>(&self, key: impl Into<RoutingKey>) -> Result<Outbox<DB>> {
        let RoutingKey(key) = key.into();
        let member = self.0.registry().members.get(&key).cloned();
        member.ok_or(Error::UnknownRoute { key })?.outbox()
    }

    /// The store of a database of any kind, for inspection and repair. An error if there is no such
    /// database.
    pub fn store(&self, key: impl Into<RoutingKey>) -> Result<SharedStore> {
        let RoutingKey(key) = key.into();
        let member = self.0.registry().members.get(&key).map(|member| member.store.clone());
        member.ok_or(Error::UnknownRoute { key })
    }

    /// All databases by name, with their states.
    pub fn databases(&self) -> Vec<DatabaseStatus> {
        let registry = self.0.registry();
        let members = registry.members.values().chain(&registry.retiring);
        let status = |member: &Arc<Member>| DatabaseStatus {
            name: member.name().to_owned(),
            state: member.state(),
            health: member.health(),
        };
        members.map(status).collect()
    }

    /// Number of open connections over all databases.
    pub fn connections(&self) -> usize {
        self.0.common.budget.open()
    }

    /// Runs the discovery now, instead of at the next interval. Does nothing without a discovery.
    ///
    /// After an error the databases stay unchanged.
    pub async fn refresh(&self) -> Result<()> {
        let Some(discovery) = &self.0.discovery else { return Ok(()) };
        let _guard = self.0.refreshing.lock().await;
        // `discover` itself may panic, before it returns a future.
        let discover = AssertUnwindSafe(async { discovery.discover().await }).catch_unwind();
        let found = match tokio::time::timeout(DISCOVERY_TIMEOUT, discover).await {
            Ok(Ok(found)) => found.map_err(Error::Discovery),
            Ok(Err(_)) => Err(Error::Discovery("it panicked".into())),
            Err(_) => Err(Error::Discovery(format!("no answer within {DISCOVERY_TIMEOUT:?}").into())),
        };
        let applied = found.and_then(|found| self.0.apply(found));
        if let Err(error) = &applied {
            tracing::error!(%error, "discovery failed: the databases stay as they were");
        }
        applied
    }

    /// A relay for one node, for each database: see [`Outbox::single_node`].
    pub fn single_node(&self) -> RelayBuilder<Fleet> {
        self.relay(Mode::SingleNode)
    }

    /// A relay for several nodes that share the work: see [`Outbox::multi_node`].
    pub fn multi_node(&self) -> RelayBuilder<Fleet> {
        self.relay(Mode::MultiNode)
    }

    /// A relay for events whose order matters: see [`Outbox::ordered`].
    pub fn ordered(&self) -> RelayBuilder<Fleet> {
        self.0.common.by_aggregate.store(true, Ordering::Relaxed);
        self.relay(Mode::Ordered)
    }

    fn relay(&self, mode: Mode) -> RelayBuilder<Fleet> {
        let source = WholeFleet { fleet: self.clone(), workers_each: 4, selection: Box::new(RoundRobin) };
        RelayBuilder::of(source, mode).workers(DEFAULT_WORKERS)
    }

    /// Closes all connections and removes all databases. Stop the relay first.
    pub async fn close(&self) {
        let members = std::mem::take(&mut self.0.registry_mut().members);
        self.0.registry_changed();
        join_all(members.values().map(|member| member.retire())).await;
    }
}

impl RelaySource for Fleet {
    type Source = WholeFleet;
}

/// A fleet, as the source of a relay.
#[derive(Debug)]
#[doc(hidden)]
pub struct WholeFleet {
    fleet: Fleet,
    workers_each: usize,
    selection: Box<dyn Selection>,
}

/// The databases of a fleet, for joins whose steps are in other databases.
struct FleetJoins(Weak<FleetInner>);

impl FleetJoins {
    fn member(&self, name: &str) -> Option<Arc<Member>> {
        self.0.upgrade()?.registry().members.get(name).cloned()
    }
}

impl JoinDatabases for FleetJoins {
    fn home(&self, name: &str) -> Option<SharedStore> {
        Some(self.member(name)?.store.clone())
    }

    fn wake(&self, name: &str) {
        if let Some(handle) = self.member(name).and_then(|member| member.handle()) {
            handle.wake();
        }
    }
}

/// Runs the discovery periodically until the fleet is dropped.
async fn refresh_periodically(fleet: Weak<FleetInner>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(inner) = fleet.upgrade() else { return };
        // `refresh` has logged its error; the next interval tries again.
        let _ = Fleet(inner).refresh().await;
    }
}

impl FleetInner {
    fn registry(&self) -> std::sync::RwLockReadGuard<'_, Registry> {
        self.registry.read().expect("no panic while the registry is locked")
    }

    fn registry_mut(&self) -> std::sync::RwLockWriteGuard<'_, Registry> {
        self.registry.write().expect("no panic while the registry is locked")
    }

    fn registry_changed(&self) {
        self.databases_gauge.set(self.registry().members.len() as f64);
        self.changed.send_replace(());
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.registry().members.values().cloned().collect()
    }

    /// Adds a database, or replaces the one of the same name.
    fn add(self: &Arc<Self>, database: FleetDatabase) -> Result<()> {
        let name = database.name.clone();
        let mut registry = self.registry_mut();
        let before = registry.members.get(&name);
        let before = before.or_else(|| registry.retiring.iter().rev().find(|old| old.name() == name));
        let member = Member::new(database, &self.common, before.map(|old| old.gone.clone()))?;
        let old = registry.members.insert(name, member);
        drop(registry);
        if let Some(old) = old {
            self.retire(old);
        }
        Ok(())
    }

    /// Removes a database; its in-flight events finish in the background.
    fn retire(self: &Arc<Self>, member: Arc<Member>) {
        // First of all: from here on its state is `Removing`.
        member.retired.cancel();
        self.registry_mut().retiring.push(member.clone());
        let fleet = self.clone();
        tokio::spawn(async move {
            member.retire().await;
            fleet.registry_mut().retiring.retain(|other| !Arc::ptr_eq(other, &member));
            tracing::info!(store = member.name(), "database removed from the fleet");
        });
    }

    /// Adds and removes databases according to a discovery.
    fn apply(self: &Arc<Self>, found: Vec<FleetDatabase>) -> Result<()> {
        let mut names = HashSet::new();
        if let Some(twice) = found.iter().find(|database| !names.insert(database.name.clone())) {
            return Err(Error::DuplicateDatabase { name: twice.name.clone() });
        }
        let known: BTreeMap<String, Arc<Member>> = self.registry().members.clone();
        if found.is_empty() && !known.is_empty() {
            let text = format!("it returned no database, but {} are known", known.len());
            return Err(Error::Discovery(text.into()));
        }
        for database in found {
            let name = database.name.clone();
            let change = match known.get(&name) {
                Some(member) if member.database == database => continue,
                Some(_) => "database replaced in the fleet: its settings have changed",
                None => "database added to the fleet",
            };
            match self.add(database) {
                Ok(()) => tracing::info!(store = name, "{change}"),
                // One invalid database must not keep the others from being added.
                Err(error) => tracing::error!(store = name, %error, "could not add the database"),
            }
        }
        for name in known.keys() {
            if self.is_gone(name, names.contains(name)) {
                tracing::warn!(store = name, absences = self.absences, "the database is gone: removing it");
                let member = self.registry_mut().members.remove(name);
                member.into_iter().for_each(|member| self.retire(member));
            }
        }
        self.registry_changed();
        Ok(())
    }

    /// Counts the successive discoveries in which a database was missing. True: enough to remove
    /// it.
    fn is_gone(&self, name: &str, found: bool) -> bool {
        let absent = &mut self.registry_mut().absent;
        if found {
            absent.remove(name);
            return false;
        }
        let times = absent.entry(name.to_owned()).or_default();
        *times += 1;
        let gone = *times >= self.absences;
        if gone {
            absent.remove(name);
        }
        gone
    }
}
