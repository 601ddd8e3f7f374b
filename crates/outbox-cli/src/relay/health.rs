//! How the relay is doing, for probes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use outbox::fleet::DatabaseState;
use outbox::store::{RelayHealth, SharedStore};
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
    /// What the relay of one database says of itself.
    relay: Mutex<RelayHealth>,
    /// Why the relay has ended, if it has.
    ended: Mutex<Option<String>>,
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
    /// When the database last completed a take and a settlement, where there is one database.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    last: Option<Last>,
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
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    last: Option<Last>,
}

#[derive(Serialize)]
struct Last {
    last_take: Option<DateTime<Utc>>,
    last_settlement: Option<DateTime<Utc>>,
}

impl From<&RelayHealth> for Last {
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
        mutex.lock().expect("no one panics while holding this lock")
    }

    pub(crate) fn serves(&self, serving: &Serving) {
        self.look(serving);
        *Self::lock(&self.stage) = match serving {
            Serving::One { store, .. } => Stage::One(store.clone()),
            Serving::Fleet { fleet, .. } => Stage::Fleet(fleet.clone()),
        };
    }

    pub(crate) fn stops(&self) {
        *Self::lock(&self.stage) = Stage::Stopping;
    }

    pub(crate) fn set_outlets(&self, outlets: &Outlets) {
        let before = std::mem::replace(&mut *Self::lock(&self.outlets), outlets.clone());
        // Some may be gone now.
        before.log_counts();
    }

    /// Logs what publishers have counted, at the end.
    pub(crate) fn log_counts(&self) {
        Self::lock(&self.outlets).log_counts();
    }

    /// Notes how the relay is doing.
    pub(crate) fn look(&self, serving: &Serving) {
        self.active.store(serving.is_active(), Ordering::Relaxed);
        Self::lock(&self.outlets).log_counts_if_due();
        let health = serving.health().unwrap_or_default();
        if let Some(why) = &health.ended {
            self.ends(why);
        }
        *Self::lock(&self.relay) = health;
    }

    /// The relay has ended by itself.
    pub(crate) fn ends(&self, why: &str) {
        Self::lock(&self.ended).get_or_insert_with(|| why.to_owned());
    }

    /// Why the relay has ended, if it has: the one thing that `/healthz` fails for.
    pub(crate) fn ended(&self) -> Option<String> {
        Self::lock(&self.ended).clone()
    }

    /// What the relay of one database fails at.
    fn problems(&self) -> Vec<String> {
        let health = Self::lock(&self.relay);
        let failing = health.problems().map(|problem| format!("the relay {problem}"));
        Self::lock(&self.ended).clone().into_iter().chain(failing).collect()
    }

    /// Where events go.
    pub(crate) fn destinations(&self) -> Vec<Destination> {
        Self::lock(&self.outlets).destinations().cloned().collect()
    }

    /// The databases that are served; one alone is called so.
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
        let mut last = None;
        let (relay, reasons, databases) = match stage {
            Stage::Starting => {
                ("starting", vec!["the database has not been reached yet".to_owned()], Vec::new())
            }
            Stage::Stopping => ("stopping", vec!["the relay stops".to_owned()], Vec::new()),
            Stage::One(store) => {
                let active = self.active.load(Ordering::Relaxed);
                last = Some(Last::from(&*Self::lock(&self.relay)));
                let reasons = self.problems().into_iter().chain(self.ask(&store).await.err()).collect();
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
        Readiness { ready: reasons.is_empty(), relay, reasons, last, databases, outages }
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
        let last = database.health.as_ref().map(Last::from);
        Self { state: database.state.to_string(), name: database.name, reason, last }
    }
}

/// Shared by the daemon and who answers probes.
pub(crate) type SharedHealth = Arc<Health>;
