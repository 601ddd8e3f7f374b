//! How the relay is doing, for probes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outbox::fleet::DatabaseState;
use outbox::store::SharedStore;
use outbox::{Destination, Fleet};
use outbox_web::{DatabaseInfo, Databases};
use serde::Serialize;

use super::outlets::Outlets;
use super::source::Serving;

/// How long an answer of the database is good for: probes of many kinds cost it one question.
const FRESH: Duration = Duration::from_secs(1);

/// How long the database may take to answer a probe.
const PATIENCE: Duration = Duration::from_secs(3);

/// What probes ask.
#[derive(Default)]
pub(crate) struct Health {
    stage: Mutex<Stage>,
    outlets: Mutex<Outlets>,
    active: AtomicBool,
    /// What the database said last, and when.
    said: tokio::sync::Mutex<Option<(Instant, Result<(), String>)>>,
}

#[derive(Clone, Default)]
enum Stage {
    #[default]
    Starting,
    One(SharedStore),
    Fleet(Fleet),
    Stopping,
}

/// The answer to `/readyz`.
#[derive(Serialize)]
pub(crate) struct Readiness {
    pub(crate) ready: bool,
    relay: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    databases: Vec<DatabaseHealth>,
    /// Those that cannot be reached at the moment: their events wait, the rest goes on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outages: Vec<OutageReport>,
}

#[derive(Serialize)]
struct DatabaseHealth {
    name: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct OutageReport {
    destination: String,
    since: String,
    reason: String,
}

impl Health {
    fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        mutex.lock().expect("no one panics while holding this lock")
    }

    pub(crate) fn serves(&self, serving: &Serving) {
        self.set_active(serving.is_active());
        *Self::lock(&self.stage) = match serving {
            Serving::One { store, .. } => Stage::One(store.clone()),
            Serving::Fleet { fleet, .. } => Stage::Fleet(fleet.clone()),
        };
    }

    pub(crate) fn stops(&self) {
        *Self::lock(&self.stage) = Stage::Stopping;
    }

    pub(crate) fn set_outlets(&self, outlets: &Outlets) {
        *Self::lock(&self.outlets) = outlets.clone();
    }

    /// Returns what it was.
    pub(crate) fn set_active(&self, active: bool) -> bool {
        self.active.swap(active, Ordering::Relaxed)
    }

    /// Where events go.
    pub(crate) fn destinations(&self) -> Vec<Destination> {
        Self::lock(&self.outlets).destinations().cloned().collect()
    }

    /// The databases that are served; one alone is called so.
    pub(crate) fn databases(&self, name: &str) -> Vec<DatabaseInfo> {
        let one = |state: &str| vec![DatabaseInfo::new(name, state)];
        match Self::lock(&self.stage).clone() {
            Stage::Starting => one("starting"),
            Stage::Stopping => one("stopping"),
            Stage::One(_) if self.active.load(Ordering::Relaxed) => one("active"),
            Stage::One(_) => one("standing by"),
            Stage::Fleet(fleet) => fleet.list(),
        }
    }

    /// The store of one of them.
    pub(crate) fn store(&self, of_one: &str, name: &str) -> Option<SharedStore> {
        match Self::lock(&self.stage).clone() {
            Stage::One(store) => (name == of_one).then_some(store),
            Stage::Fleet(fleet) => Databases::store(&fleet, name),
            Stage::Starting | Stage::Stopping => None,
        }
    }

    pub(crate) async fn readiness(&self) -> Readiness {
        let stage = Self::lock(&self.stage).clone();
        let (relay, reasons, databases) = match stage {
            Stage::Starting => {
                ("starting", vec!["the database has not been reached yet".to_owned()], Vec::new())
            }
            Stage::Stopping => ("stopping", vec!["the relay stops".to_owned()], Vec::new()),
            Stage::One(store) => {
                let active = self.active.load(Ordering::Relaxed);
                let reasons = self.ask(&store).await.err().into_iter().collect();
                (if active { "active" } else { "standing by" }, reasons, Vec::new())
            }
            Stage::Fleet(fleet) => {
                let databases: Vec<_> = fleet.databases().into_iter().map(DatabaseHealth::from).collect();
                let served = |d: &DatabaseHealth| matches!(d.state.as_str(), "active" | "standing by");
                let reasons = if databases.is_empty() || databases.iter().any(served) {
                    Vec::new()
                } else {
                    vec!["no database can be served".to_owned()]
                };
                let is = |state: &str| databases.iter().any(|database| database.state == state);
                let stands_by = is("standing by") && !is("active");
                (if stands_by { "standing by" } else { "active" }, reasons, databases)
            }
        };
        let outages = Self::lock(&self.outlets)
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
        Readiness { ready: reasons.is_empty(), relay, reasons, databases, outages }
    }

    /// Whether the database answers.
    async fn ask(&self, store: &SharedStore) -> Result<(), String> {
        let mut said = self.said.lock().await;
        if let Some((when, answer)) = &*said
            && when.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = match tokio::time::timeout(PATIENCE, store.check_schema()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the database: {error}")),
            Err(_) => Err(format!("the database does not answer within {} s", PATIENCE.as_secs())),
        };
        *said = Some((Instant::now(), answer.clone()));
        answer
    }
}

impl From<outbox::fleet::DatabaseStatus> for DatabaseHealth {
    fn from(database: outbox::fleet::DatabaseStatus) -> Self {
        let reason = match &database.state {
            DatabaseState::Failing { reason } => Some(reason.clone()),
            _ => None,
        };
        Self { state: database.state.to_string(), name: database.name, reason }
    }
}

/// Shared by the daemon and who answers probes.
pub(crate) type SharedHealth = Arc<Health>;
