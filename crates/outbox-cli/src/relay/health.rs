//! Health of the relay, for probes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use outbox::fleet::DatabaseState;
use outbox::store::{RelayHealth, SharedStore};
use outbox::{Destination, Fleet};
use outbox_web::{DatabaseInfo, Databases};
use serde::Serialize;

use super::publishers::Publishers;
use super::source::RunningRelay;

/// How long the result of a database check is reused, so that several probes cause one query.
const CHECK_VALIDITY: Duration = Duration::from_secs(1);

/// Time limit for a database check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// State that probes report.
#[derive(Default)]
pub(crate) struct Health {
    stage: Mutex<Stage>,
    publishers: Mutex<Publishers>,
    active: AtomicBool,
    /// Health of the relay of one database.
    relay: Mutex<RelayHealth>,
    /// Why the relay ended, if it did.
    ended: Mutex<Option<String>>,
    /// Time and result of the last database check.
    last_check: tokio::sync::Mutex<Option<(Instant, Result<(), String>)>>,
}

#[derive(Clone, Default)]
enum Stage {
    #[default]
    Starting,
    One(SharedStore),
    Fleet(Fleet),
    Stopping,
}

/// Response of `/readyz`.
#[derive(Serialize)]
pub(crate) struct Readiness {
    pub(crate) ready: bool,
    relay: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
    /// Times of the last successful take and settlement; only with one database.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    last: Option<LastActivity>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    databases: Vec<DatabaseHealth>,
    /// Destinations that are unavailable: their events wait, others are delivered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outages: Vec<OutageReport>,
}

#[derive(Serialize)]
struct DatabaseHealth {
    name: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    last: Option<LastActivity>,
}

#[derive(Serialize)]
struct LastActivity {
    last_take: Option<DateTime<Utc>>,
    last_settlement: Option<DateTime<Utc>>,
}

impl From<&RelayHealth> for LastActivity {
    fn from(health: &RelayHealth) -> Self {
        Self { last_take: health.last_take, last_settlement: health.last_settlement }
    }
}

#[derive(Serialize)]
struct OutageReport {
    destination: String,
    since: String,
    reason: String,
}

impl Health {
    fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        mutex.lock().expect("no code panics while holding this lock")
    }

    pub(crate) fn set_running(&self, running: &RunningRelay) {
        self.update(running);
        *Self::lock(&self.stage) = match running {
            RunningRelay::One { store, .. } => Stage::One(store.clone()),
            RunningRelay::Fleet { fleet, .. } => Stage::Fleet(fleet.clone()),
        };
    }

    pub(crate) fn set_stopping(&self) {
        *Self::lock(&self.stage) = Stage::Stopping;
    }

    pub(crate) fn set_publishers(&self, publishers: &Publishers) {
        let before = std::mem::replace(&mut *Self::lock(&self.publishers), publishers.clone());
        // Some publishers may have been removed: logs their last counts.
        before.log_counts();
    }

    /// Logs the counts of publishers, at the end.
    pub(crate) fn log_counts(&self) {
        Self::lock(&self.publishers).log_counts();
    }

    /// Updates the state from the running relay.
    pub(crate) fn update(&self, running: &RunningRelay) {
        self.active.store(running.is_active(), Ordering::Relaxed);
        Self::lock(&self.publishers).log_counts_if_due();
        let health = running.health().unwrap_or_default();
        if let Some(why) = &health.ended {
            self.set_ended(why);
        }
        *Self::lock(&self.relay) = health;
    }

    /// Records that the relay ended by itself.
    pub(crate) fn set_ended(&self, why: &str) {
        Self::lock(&self.ended).get_or_insert_with(|| why.to_owned());
    }

    /// Why the relay ended, if it did. Only this makes `/healthz` fail.
    pub(crate) fn ended(&self) -> Option<String> {
        Self::lock(&self.ended).clone()
    }

    /// Problems of the relay of one database.
    fn problems(&self) -> Vec<String> {
        let health = Self::lock(&self.relay);
        let failing = health.problems().map(|problem| format!("the relay {problem}"));
        Self::lock(&self.ended).clone().into_iter().chain(failing).collect()
    }

    /// All destinations.
    pub(crate) fn destinations(&self) -> Vec<Destination> {
        Self::lock(&self.publishers).destinations().cloned().collect()
    }

    /// Databases of the relay. `name` is used for the database if there is only one.
    pub(crate) fn databases(&self, name: &str) -> Vec<DatabaseInfo> {
        let one = |state: &str| vec![DatabaseInfo::new(name, state)];
        let problem = self.problems().into_iter().next();
        match Self::lock(&self.stage).clone() {
            Stage::Starting => one("starting"),
            Stage::Stopping => one("stopping"),
            Stage::One(_) if problem.is_some() => {
                vec![DatabaseInfo::new(name, "failing").reason(problem.unwrap_or_default())]
            }
            Stage::One(_) if self.active.load(Ordering::Relaxed) => one("active"),
            Stage::One(_) => one("standby"),
            Stage::Fleet(fleet) => fleet.list(),
        }
    }

    /// Store of the database with this name.
    pub(crate) fn store(&self, single_name: &str, name: &str) -> Option<SharedStore> {
        match Self::lock(&self.stage).clone() {
            Stage::One(store) => (name == single_name).then_some(store),
            Stage::Fleet(fleet) => Databases::store(&fleet, name),
            Stage::Starting | Stage::Stopping => None,
        }
    }

    pub(crate) async fn readiness(&self) -> Readiness {
        let stage = Self::lock(&self.stage).clone();
        let mut last = None;
        let (relay, reasons, databases) = match stage {
            Stage::Starting => {
                ("starting", vec!["the database has not been reached yet".to_owned()], Vec::new())
            }
            Stage::Stopping => ("stopping", vec!["the relay is stopping".to_owned()], Vec::new()),
            Stage::One(store) => {
                let active = self.active.load(Ordering::Relaxed);
                last = Some(LastActivity::from(&*Self::lock(&self.relay)));
                let reasons =
                    self.problems().into_iter().chain(self.check_database(&store).await.err()).collect();
                (if active { "active" } else { "standby" }, reasons, Vec::new())
            }
            Stage::Fleet(fleet) => {
                let databases: Vec<_> = fleet.databases().into_iter().map(DatabaseHealth::from).collect();
                let served = |d: &DatabaseHealth| matches!(d.state.as_str(), "active" | "standby");
                let reasons = if databases.is_empty() || databases.iter().any(served) {
                    Vec::new()
                } else {
                    vec!["no database can be served".to_owned()]
                };
                let is = |state: &str| databases.iter().any(|database| database.state == state);
                let stands_by = is("standby") && !is("active");
                (if stands_by { "standby" } else { "active" }, reasons, databases)
            }
        };
        let outages = Self::lock(&self.publishers)
            .destinations()
            .filter_map(|destination| {
                let outage = destination.outage()?;
                Some(OutageReport {
                    destination: destination.name().to_owned(),
                    since: outage.since.to_rfc3339(),
                    reason: outage.reason,
                })
            })
            .collect();
        Readiness { ready: reasons.is_empty(), relay, reasons, last, databases, outages }
    }

    /// Checks whether the database answers.
    async fn check_database(&self, store: &SharedStore) -> Result<(), String> {
        let mut last_check = self.last_check.lock().await;
        if let Some((when, result)) = &*last_check
            && when.elapsed() < CHECK_VALIDITY
        {
            return result.clone();
        }
        let result = match tokio::time::timeout(PROBE_TIMEOUT, store.check_schema()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the database: {error}")),
            Err(_) => Err(format!("the database does not answer within {} s", PROBE_TIMEOUT.as_secs())),
        };
        *last_check = Some((Instant::now(), result.clone()));
        result
    }
}

impl From<outbox::fleet::DatabaseStatus> for DatabaseHealth {
    fn from(database: outbox::fleet::DatabaseStatus) -> Self {
        let reason = match &database.state {
            DatabaseState::Failing { reason } => Some(reason.clone()),
            _ => None,
        };
        let last = database.health.as_ref().map(LastActivity::from);
        Self { state: database.state.to_string(), name: database.name, reason, last }
    }
}

/// Shared by the daemon and the HTTP server.
pub(crate) type SharedHealth = Arc<Health>;
