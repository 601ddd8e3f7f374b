//! The relay of a fleet: one relay per database, started, supervised and stopped together.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::member::{Member, Service};
use super::selection::Selection;
use super::share::{FleetLimits, SharedLimits};
use super::{DatabaseState, DatabaseStatus, Fleet, FleetInner, FleetJoins, WholeFleet};
use crate::error::{Error, Result};
use crate::join::JoinDatabases;
use crate::relay::supervise::message;
use crate::relay::{Handle, OutboxSource, Relay, RelayBuilder, RelaySettings, Routes};
use crate::store::{NodeId, RelayTask};

/// First and longest pause before a database that could not be served is tried again.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Interval at which the supervisor checks that all databases are served, without other events.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl RelayBuilder<Fleet> {
    /// Number of handlers that run concurrently for one database; 4 if not set.
    /// [`workers`](RelayBuilder::workers) limits them over all databases.
    pub fn workers_per_database(mut self, workers: usize) -> Self {
        self.source.workers_each = workers;
        self
    }

    /// Which database is polled next; [`RoundRobin`](super::RoundRobin) if not set, which polls
    /// half as many databases concurrently as there are connections.
    /// [`DrainFirst`](super::DrainFirst) and, by default, a selection of your own poll [one at a
    /// time](Selection::max_concurrent), so that they choose each poll.
    pub fn selection(mut self, selection: impl Selection) -> Self {
        self.source.selection = Box::new(selection);
        self
    }

    /// Checks the settings, then starts to serve every database. Does not wait for them: a database
    /// that is down is retried until it is available.
    pub async fn start(self) -> Result<FleetRelay> {
        let Self { source: WholeFleet { fleet, workers_each, selection }, mut settings, routes, .. } =
            self.checked()?;
        if workers_each == 0 {
            return Err(Error::setting("workers_per_database must be greater than 0"));
        }
        if let Some(misfit) = fleet.0.members().iter().find_map(|member| routes.misfit(Some(&member.outbox)))
        {
            return Err(misfit);
        }
        if fleet.0.served.swap(true, Ordering::AcqRel) {
            return Err(Error::Lifecycle("a relay of this fleet is already running: stop it first"));
        }
        let handlers = settings.workers;
        settings.workers = workers_each.min(handlers);
        // Half of the connections for polling, so that settlements and writers have the other half.
        let most = (fleet.0.common.budget.limit() / 2).max(1);
        let turns = selection.max_concurrent(most).clamp(1, most);
        let node = settings.node.clone();
        let plan = Arc::new(Plan {
            settings,
            routes: Arc::new(routes),
            share: Arc::new(SharedLimits::new(handlers, turns, selection)),
            homes: Arc::new(FleetJoins(Arc::downgrade(&fleet.0))),
        });
        let stop = CancellationToken::new();
        let (over, ended) = watch::channel(None);
        let supervisor = tokio::spawn(run(fleet.0.clone(), plan, stop.clone(), over));
        tracing::info!(%node, databases = fleet.0.members().len(), "fleet relay started");
        Ok(FleetRelay { fleet, node, stop, supervisor: Some(supervisor), ended })
    }
}

/// Settings that each database's relay is created from.
struct Plan {
    settings: RelaySettings,
    routes: Arc<Routes>,
    share: Arc<SharedLimits>,
    homes: Arc<dyn JoinDatabases>,
}

/// The running relay of a [`Fleet`]. Dropping it stops it in the background;
/// [`stop`](FleetRelay::stop) waits for that.
#[must_use = "a relay that is dropped stops"]
pub struct FleetRelay {
    fleet: Fleet,
    node: NodeId,
    stop: CancellationToken,
    supervisor: Option<JoinHandle<Result<()>>>,
    /// Set when the supervisor has ended: with the panic message, if it panicked.
    ended: watch::Receiver<Option<Result<(), String>>>,
}

impl fmt::Debug for FleetRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetRelay").field("fleet", &self.fleet).field("node", &self.node).finish()
    }
}

impl FleetRelay {
    /// The name under which this relay holds events, in every database.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// All databases, with their states.
    pub fn databases(&self) -> Vec<DatabaseStatus> {
        self.fleet.databases()
    }

    /// Polls every database now instead of at the next interval.
    pub fn wake(&self) {
        self.handles().iter().for_each(Handle::wake);
    }

    /// Runs one poll cycle on every reachable database. Returns how many events were taken.
    pub async fn poll_once(&self) -> Result<usize> {
        let handles = self.handles();
        let polls = join_all(handles.iter().map(Handle::poll_once)).await;
        polls.into_iter().filter(|poll| !is_unavailable(poll)).sum()
    }

    /// Waits until no event is due or being handled, in any reachable database.
    pub async fn idle(&self) -> Result<()> {
        let is_coming = |database: &DatabaseStatus| {
            matches!(database.state, DatabaseState::Unserved | DatabaseState::Starting)
        };
        while self.databases().iter().any(is_coming) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let handles = self.handles();
        let idle = join_all(handles.iter().filter(|handle| handle.is_active()).map(Handle::idle)).await;
        idle.into_iter().filter(|idle| !is_unavailable(idle)).collect()
    }

    fn handles(&self) -> Vec<Handle> {
        self.fleet.0.members().iter().filter_map(|member| member.handle()).collect()
    }

    /// Waits until the relay of the whole fleet has ended by itself, and returns the cause. Never
    /// returns while it runs.
    ///
    /// A task that fails permanently on one database ends the relay of that database alone: it is
    /// restarted after a pause, the database is [failing](DatabaseState::Failing) meanwhile, and
    /// the others continue.
    pub async fn stopped(&self) -> Result<()> {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.map(|ended| ended.clone()) {
            Ok(Some(Err(cause))) => Err(Error::TaskFailed { task: RelayTask::Fleet, cause }),
            _ => Ok(()),
        }
    }

    /// Stops all databases at the same time: first taking, then handling, which has the drain time
    /// to finish queued events. Unfinished events are released, and delivered later. The fleet
    /// stays open for writing.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        match self.supervisor.take() {
            Some(supervisor) => supervisor.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }
}

impl Drop for FleetRelay {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn is_unavailable<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(Error::is_transient)
}

/// Runs the supervisor; if it panics, the relay of the fleet has ended, which is reported to
/// `stopped`.
async fn run(
    fleet: Arc<FleetInner>,
    plan: Arc<Plan>,
    stop: CancellationToken,
    ended: watch::Sender<Option<Result<(), String>>>,
) -> Result<()> {
    let supervised = AssertUnwindSafe(supervise(fleet.clone(), plan, stop.clone())).catch_unwind().await;
    let (result, outcome) = match supervised {
        Ok(result) => (result, Ok(())),
        Err(panic) => {
            let cause = format!("it panicked: {}", message(&*panic));
            tracing::error!(cause, "fleet relay ended");
            // The relays of the databases stop with it.
            stop.cancel();
            fleet.served.store(false, Ordering::Release);
            (Err(Error::TaskFailed { task: RelayTask::Fleet, cause: cause.clone() }), Err(cause))
        }
    };
    ended.send_replace(Some(outcome));
    result
}

/// Serves every database for as long as it is part of the fleet.
async fn supervise(fleet: Arc<FleetInner>, plan: Arc<Plan>, stop: CancellationToken) -> Result<()> {
    let mut changed = fleet.changed.subscribe();
    let mut tasks: Vec<(Arc<Member>, JoinHandle<Result<()>>)> = Vec::new();
    while !stop.is_cancelled() {
        for n in (0..tasks.len()).rev().filter(|n| tasks[*n].1.is_finished()).collect::<Vec<_>>() {
            let (member, task) = tasks.swap_remove(n);
            if let Err(ended) = task.await
                && let Ok(panic) = ended.try_into_panic()
            {
                let cause = message(&*panic);
                tracing::error!(store = member.name(), cause, "serving the database panicked: restarting");
            }
        }
        for member in fleet.members() {
            if !tasks.iter().any(|(served, _)| Arc::ptr_eq(served, &member)) {
                let task = tokio::spawn(serve(member.clone(), plan.clone(), stop.clone()));
                tasks.push((member, task));
            }
        }
        tokio::select! {
            _ = changed.changed() => {}
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            () = stop.cancelled() => {}
        }
    }
    let mut result = Ok(());
    for (member, task) in tasks {
        let stopped = task.await.unwrap_or(Ok(()));
        if let Err(error) = &stopped {
            tracing::error!(store = member.name(), %error, "could not release all events: their leases have to expire");
        }
        result = result.and(stopped);
    }
    fleet.served.store(false, Ordering::Release);
    result
}

/// Serves one database until the relay stops, or the database leaves the fleet.
async fn serve(member: Arc<Member>, plan: Arc<Plan>, stop: CancellationToken) -> Result<()> {
    let _serving = member.serving.lock().await;
    let over = async || {
        tokio::select! {
            () = stop.cancelled() => {}
            () = member.retired.cancelled() => {}
        }
    };
    if let Some(before) = &member.replaces {
        tokio::select! {
            () = before.cancelled() => {}
            () = over() => return Ok(()),
        }
    }
    member.set_service(Service::Starting(None));
    let mut pause = RETRY_PAUSE.0;
    let result = loop {
        let started = tokio::select! {
            biased;
            () = over() => None,
            relay = start(&member, &plan) => Some(relay),
        };
        let Some(relay) = started else { break Ok(()) };
        member.set_service(Service::Running(relay.handle()));
        let began = Instant::now();
        tokio::select! {
            biased;
            () = over() => break relay.stop().await,
            _ = relay.stopped() => {}
        }
        // The pause starts again for a relay that ran for long before it failed.
        pause = if began.elapsed() > RETRY_PAUSE.1 { RETRY_PAUSE.0 } else { (pause * 2).min(RETRY_PAUSE.1) };
        if let Err(error) = relay.stop().await {
            tracing::error!(store = member.name(), %error, restart_in = ?pause, "relay of the database ended");
            member.set_service(Service::Starting(Some(error.to_string())));
        }
        tokio::select! {
            () = over() => break Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    };
    member.set_service(Service::Unserved);
    result
}

/// Starts the relay of one database, with as many attempts as necessary.
async fn start(member: &Arc<Member>, plan: &Plan) -> Relay {
    let mut pause = RETRY_PAUSE.0;
    loop {
        let error = match start_once(member, plan).await {
            Ok(relay) => return relay,
            Err(error) => error,
        };
        let spread = pause.mul_f64(rand::random_range(0.75..=1.25));
        tracing::error!(store = member.name(), %error, retry_in = ?spread, "could not start the relay of the database: retrying");
        member.set_service(Service::Starting(Some(error.to_string())));
        tokio::time::sleep(spread).await;
        pause = (pause * 2).min(RETRY_PAUSE.1);
    }
}

async fn start_once(member: &Arc<Member>, plan: &Plan) -> Result<Relay> {
    let place =
        FleetLimits { share: plan.share.clone(), seat: member.seat.clone(), homes: plan.homes.clone() };
    let source = OutboxSource {
        store: member.store.clone(),
        door: member.door.clone(),
        outbox: Some(member.outbox.clone()),
    };
    Relay::start(source, plan.settings.clone(), plan.routes.clone(), Some(place)).await
}
