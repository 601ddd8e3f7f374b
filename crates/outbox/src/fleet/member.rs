//! One database of a fleet while it belongs to the fleet.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::Common;
use super::database::FleetDatabase;
use super::guarded::GuardedStore;
use crate::connect::Pooler;
use crate::error::{Error, Result, without_credentials};
use crate::outbox::Outbox;
use crate::relay::Handle;
use crate::relay::hot::HotPath;
use crate::relay::tx_dispatch::ErasedOutbox;
use crate::sql::budget::{Budget, Seat};
use crate::sql::line::Line;
use crate::sql::{Database, warn_if_unverified};
use crate::store::{RelayHealth, SharedStore};

/// A database, its outbox, and the state of its relay.
pub(crate) struct Member {
    pub(crate) database: FleetDatabase,
    /// "PostgreSQL", "MySQL" or "SQLite".
    pub(crate) kind: &'static str,
    pub(crate) outbox: ErasedOutbox,
    pub(crate) store: SharedStore,
    pub(crate) door: HotPath,
    pub(crate) seat: Arc<Seat>,
    close: Box<dyn Fn() -> Closing + Send + Sync>,
    /// Held by the relay while it serves this database.
    pub(crate) serving: tokio::sync::Mutex<()>,
    pub(crate) service: Mutex<Service>,
    /// Cancelled when the database is removed from the fleet.
    pub(crate) retired: CancellationToken,
    /// Cancelled when its relay has stopped and its connections are closed.
    pub(crate) gone: CancellationToken,
    /// The `gone` token of the member that this one replaces, awaited before it is served.
    pub(crate) replaces: Option<CancellationToken>,
}

type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// State of the database's relay.
#[derive(Default)]
pub(crate) enum Service {
    /// No relay runs.
    #[default]
    Unserved,
    /// The relay is starting; the error of the last attempt.
    Starting(Option<String>),
    /// The relay runs.
    Running(Handle),
}

/// State of a database of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatabaseState {
    /// Open for writing; no relay delivers from it.
    Unserved,
    /// The relay has not reached it yet.
    Starting,
    /// The relay delivers from it.
    Active,
    /// Another `single_node` relay leads it.
    StandingBy,
    /// It does not answer or cannot be used, or its relay fails to take or settle events; it is
    /// retried.
    Failing {
        /// The cause. Contains no credentials.
        reason: String,
    },
    /// Removed; its in-flight events are being finished.
    Removing,
}

impl fmt::Display for DatabaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unserved => "unserved",
            Self::Starting => "starting",
            Self::Active => "active",
            Self::StandingBy => "standby",
            Self::Failing { .. } => "failing",
            Self::Removing => "removing",
        })
    }
}

impl Member {
    /// Does not connect yet. Returns an error for invalid settings.
    pub(crate) fn new(
        database: FleetDatabase,
        common: &Common,
        replaces: Option<CancellationToken>,
    ) -> Result<Arc<Self>> {
        database.check()?;
        match database.url.split(':').next().unwrap_or_default() {
            #[cfg(feature = "sqlite")]
            "sqlite" => Self::on::<sqlx::Sqlite>(database, common, replaces),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Self::on::<sqlx::Postgres>(database, common, replaces),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => Self::on::<sqlx::MySql>(database, common, replaces),
            _ => Err(Error::Url {
                url: without_credentials(&database.url),
                reason: "it must start with sqlite:, postgres:// or mysql://, and this build must have the cargo feature for it"
                    .to_owned(),
            }),
        }
    }

    fn on<DB: Database>(
        database: FleetDatabase,
        common: &Common,
        replaces: Option<CancellationToken>,
    ) -> Result<Arc<Self>> {
        let budget: Arc<Budget> = common.budget.clone();
        let options = DB::options(&database.url, common.patience)?;
        let sessions = DB::sessions(&database.url, Pooler::Detect)?.of(database.options().product());
        warn_if_unverified(&database.name, &database.url);
        let seat = Arc::new(Seat::new(&database.name, budget, common.patience, DB::AT_ONCE));
        let line: Arc<Line<DB>> = Line::new(seat.clone(), options, sessions);
        let settings = common.outbox.clone().options(database.options().clock(common.clock.clone()));
        let guard = |store| GuardedStore::new(store, seat.clone(), common.migrate);
        let outbox = settings.on_line(line.clone(), common.by_aggregate.clone(), guard)?;
        Ok(Arc::new(Self {
            kind: DB::NAME,
            store: outbox.store(),
            door: outbox.door(),
            outbox: Arc::new(outbox),
            close: Box::new(move || {
                let line = line.clone();
                Box::pin(async move { line.close().await })
            }),
            database,
            seat,
            serving: tokio::sync::Mutex::default(),
            service: Mutex::default(),
            retired: CancellationToken::new(),
            gone: CancellationToken::new(),
            replaces,
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.database.name
    }

    /// The outbox, if the database is of this kind.
    pub(crate) fn outbox<DB: Database>(&self) -> Result<Outbox<DB>> {
        self.outbox.downcast_ref::<Outbox<DB>>().cloned().ok_or_else(|| Error::WrongKind {
            key: self.name().to_owned(),
            found: self.kind,
            wanted: DB::NAME,
        })
    }

    /// Waits until its relay has stopped, then closes its connections.
    pub(crate) async fn retire(&self) {
        self.retired.cancel();
        let _served = self.serving.lock().await;
        (self.close)().await;
        self.gone.cancel();
    }

    pub(crate) fn set_service(&self, service: Service) {
        *self.service.lock().expect("no panic while this lock is held") = service;
    }

    pub(crate) fn handle(&self) -> Option<Handle> {
        match &*self.service.lock().expect("no panic while this lock is held") {
            Service::Running(handle) => Some(handle.clone()),
            _ => None,
        }
    }

    /// Health of the relay, while it runs.
    pub(crate) fn health(&self) -> Option<RelayHealth> {
        self.handle().map(|handle| handle.health())
    }

    pub(crate) fn state(&self) -> DatabaseState {
        if self.retired.is_cancelled() {
            return DatabaseState::Removing;
        }
        let trouble = self.seat.trouble().map(|reason| DatabaseState::Failing { reason });
        match &*self.service.lock().expect("no panic while this lock is held") {
            Service::Unserved => trouble.unwrap_or(DatabaseState::Unserved),
            Service::Starting(Some(reason)) => DatabaseState::Failing { reason: reason.clone() },
            Service::Starting(None) => trouble.unwrap_or(DatabaseState::Starting),
            Service::Running(handle) => trouble.unwrap_or_else(|| match handle.health().problems().next() {
                Some(problem) => DatabaseState::Failing { reason: format!("the relay {problem}") },
                None if handle.is_active() => DatabaseState::Active,
                None => DatabaseState::StandingBy,
            }),
        }
    }
}
