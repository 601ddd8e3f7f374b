//! The relay: takes due events, dispatches them to handlers and publishers, settles the outcomes.
//!
//! ```text
//!   write ── reserve ──► commit ──► hot queue ─┐
//!                                              ├─► workers ──► settler ──► store
//!   store ──► taker ─────────────► cold queue ─┘
//! ```
//!
//! | module | subject |
//! | --- | --- |
//! | `builder` | settings of a relay |
//! | `hot` | hand-over of committed events from writers in the same process |
//! | `take` | the taking task: reads or claims due events |
//! | `bytes` | memory limit of the events that were read |
//! | `queues`, `key_queues`, `in_flight` | the hot and the cold queue, the order within a key, the events this node holds |
//! | `ownership` | the right to act: leases on rows, or leadership of the table |
//! | `routes` | which handler or publisher gets which event |
//! | `dispatch`, `tx_dispatch` | workers call handlers, also in a transaction that settles the event |
//! | `limits`, `paused` | handlers that are called often enough already; event types that are paused |
//! | `forward` | workers send events to publishers, in batches |
//! | `report` | reports the outcome of a step to a join in another database |
//! | `settle` | the settling task: writes verdicts in batches |
//! | `stats` | counters of settled events |
//! | `maintenance` | renewal of leases and leadership, purge |
//! | `wakeup` | insert notifications |
//! | `presence` | announces this relay, and releases the leases of relays that vanished |
//! | `log_relay` | publishes the log: one task for all subscriptions |
//! | `supervise`, `monitor` | restart of tasks that panicked; health of the relay |
//! | `sync` | locks and counters that the schedule tests can interleave |

mod builder;
mod bytes;
mod dispatch;
mod forward;
pub(crate) mod hot;
mod in_flight;
mod key_queues;
mod limits;
mod log_relay;
mod maintenance;
mod monitor;
mod ownership;
mod paused;
mod presence;
mod queues;
mod report;
mod routes;
#[cfg(test)]
mod schedules;
mod settle;
mod stats;
pub(crate) mod supervise;
mod sync;
mod take;
pub(crate) mod tx_dispatch;
mod wakeup;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;

pub use builder::Mode;
pub(crate) use builder::OutboxSource;
pub(crate) use builder::RelaySettings;
pub use builder::{PurgeSettings, RelayBuilder, RelaySource, StoreOnly};
pub(crate) use routes::Routes;

use self::forward::Outages;
use self::hot::HotPath;
use self::in_flight::InFlight;
use self::key_queues::KeyQueues;
use self::limits::Limits;
use self::log_relay::{LogRelay, LogRelayHandle};
use self::maintenance::Renewer;
use self::monitor::Monitor;
use self::ownership::Ownership;
use self::paused::PausedTypes;
use self::queues::Queues;
use self::settle::{EventVerdict, SettleQueue, SettleRequest, Settler};
use self::stats::{Observation, RelayStats};
use self::supervise::Supervisor;
use self::take::{DueTimer, Taker};
use self::tx_dispatch::ErasedOutbox;
use crate::error::{Error, Result};
use crate::event::EventType;
use crate::fleet::share::FleetLimits;
use crate::handler::RelayScope;
use crate::metrics::Metrics;
use crate::poison::CrashGuard;
use crate::store::{Claim, Delivery, NodeId, RelayHealth, RelayTask, Settlement, SharedStore, Verdict};

/// One delivery, from the take or the hot hand-over until its verdict is sent to the settler.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) delivery: Delivery,
    /// Epoch in which the event was taken; 0 with leases.
    pub(crate) epoch: i64,
    /// When the take or the write began.
    pub(crate) taken: Instant,
    /// Whether the event is counted in the cold queue.
    pub(crate) cold: bool,
    /// Share of the [byte budget](bytes::ByteBudget), if the event was read from the table.
    pub(crate) memory: Option<Arc<bytes::ReservedBytes>>,
}

impl Job {
    /// The row change that this verdict makes.
    pub(crate) fn settlement(&self, verdict: Verdict) -> Settlement {
        Settlement { id: self.delivery.event.id().clone(), claim: self.delivery.claim, verdict }
    }

    /// The verdict as the settler needs it, with the data for the counters.
    pub(crate) fn event_verdict(&self, verdict: Verdict) -> EventVerdict {
        let observation = (!verdict.is_release()).then(|| Observation::of(self));
        EventVerdict {
            settlement: self.settlement(verdict),
            written: false,
            observation,
            _memory: self.memory.clone(),
        }
    }

    /// Verdict that releases the event unhandled.
    pub(crate) fn released(&self) -> Verdict {
        self.delivery.released()
    }

    /// Fence of this job's claim.
    pub(crate) fn fence(&self) -> in_flight::Fence {
        fence(self.epoch, self.delivery.claim)
    }
}

/// The epoch where there is one, the claim elsewhere.
fn fence(epoch: i64, claim: Claim) -> in_flight::Fence {
    if epoch > 0 { epoch } else { claim.into() }
}

/// State that all tasks of a relay share.
pub(crate) struct Engine {
    pub(crate) store: SharedStore,
    /// The part of a handler's context that is the same for all events.
    pub(crate) scope: Arc<RelayScope>,
    pub(crate) settings: RelaySettings,
    pub(crate) routes: Arc<Routes>,
    /// Source of the transactions of handlers.
    pub(crate) outbox: Option<ErasedOutbox>,
    /// Limits of the fleet that the database belongs to, if any.
    pub(crate) fleet: Option<FleetLimits>,
    pub(crate) metrics: Metrics,
    pub(crate) queues: Queues,
    pub(crate) in_flight: InFlight,
    pub(crate) key_queues: KeyQueues,
    pub(crate) ownership: Ownership,
    /// Wakes the taker: events may be due.
    pub(crate) wake: Notify,
    /// The next pass starts at the beginning of the table.
    pub(crate) rescan: AtomicBool,
    /// Cost of the last full pass, in microseconds.
    pub(crate) full_pass_micros: AtomicU64,
    /// Whether another relay may have vanished, by the answer to the last announcement.
    pub(crate) may_take_over: AtomicBool,
    /// Whether writers notify of appends to the log, so that the log relay need not poll.
    pub(crate) log_notified: Arc<AtomicBool>,
    /// Times at which events become due.
    pub(crate) due_timer: DueTimer,
    /// Wakes the renewer: leases have to be renewed before any event held by them is started.
    pub(crate) renew: Notify,
    /// Notified after every settlement and every pass, for `idle`.
    pub(crate) progress: Notify,
    /// Destinations that are unavailable.
    pub(crate) outages: Outages,
    /// Calls of handlers that have a limit.
    pub(crate) limits: Limits,
    /// Event types that are paused.
    pub(crate) paused: PausedTypes,
    /// Queue of the settling task.
    pub(crate) settler: SettleQueue,
    /// Counters of settled events.
    pub(crate) stats: RelayStats,
    /// Admits events that may have crashed their process before.
    pub(crate) crash_guard: CrashGuard,
    /// Health of this relay.
    pub(crate) monitor: Arc<Monitor>,
    /// Runs the tasks, and knows whether one failed for good.
    pub(crate) supervisor: Arc<Supervisor>,
    /// Cancelled when the relay stops taking.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the relay stops settling: events still held are released.
    pub(crate) over: CancellationToken,
}

impl Engine {
    pub(crate) fn name(&self) -> &str {
        self.store.name()
    }

    pub(crate) fn node(&self) -> &NodeId {
        &self.settings.node
    }

    /// Whether this node may handle the event now. If so, the event counts as running.
    pub(crate) fn may_start(&self, job: &Job) -> bool {
        self.ownership.is_current(job.epoch)
            && self.in_flight.start(job.delivery.event.id(), job.fence(), Instant::now())
    }

    /// Drops an event that this node no longer holds, as far as this node knows.
    pub(crate) fn release(self: &Arc<Self>, job: &Job) {
        self.in_flight.forget(job.delivery.event.id(), job.fence());
        if !self.ownership.is_exclusive() {
            // If no other node holds the event either, it need not wait until the group lease that
            // it was taken with runs out.
            self.settle_later(SettleRequest::verdicts(vec![job.event_verdict(job.released())], job.epoch));
        }
    }

    /// Drops everything in memory: another node holds the table.
    pub(crate) fn reset(&self) {
        self.limits.clear();
        self.queues.clear();
        self.key_queues.clear();
        self.in_flight.clear();
    }
}

/// A running relay. Dropping it stops it in the background; [`stop`](Relay::stop) waits for that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Context, Event, Outbox};
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// outbox.migrate().await?;
/// let relay = outbox.single_node().on_type("greeting", async |cx: Context| println!("{}", cx.id())).start().await?;
/// outbox.send(Event::new("greeting").json(&"hello")).await?;
/// relay.stop().await?;
/// # Ok(()) }
/// ```
#[must_use = "a relay that is dropped stops"]
pub struct Relay {
    handle: Handle,
    door: HotPath,
    /// Cancelled to stop the relay.
    quit: CancellationToken,
    /// Runs until the relay is stopped or a task has failed for good; then shuts down.
    main_task: Option<JoinHandle<Result<()>>>,
    /// True once the relay has shut down.
    ended: watch::Receiver<bool>,
}

/// Access to a running relay.
#[derive(Clone)]
pub(crate) struct Handle {
    engine: Arc<Engine>,
    taker: Option<Arc<tokio::sync::Mutex<Taker>>>,
    log_relay_handle: Option<LogRelayHandle>,
}

#[derive(Default)]
struct Tasks {
    purge: Option<JoinHandle<()>>,
    log_relay: Option<JoinHandle<()>>,
    append_listener: Option<JoinHandle<()>>,
    wakeup: Option<JoinHandle<()>>,
    announce: Option<JoinHandle<()>>,
    takeover: Option<JoinHandle<()>>,
    renewer: Option<JoinHandle<()>>,
    taker: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    settler: Option<JoinHandle<()>>,
}

impl Tasks {
    fn abort_handles(&self) -> Vec<AbortHandle> {
        let Self {
            purge,
            log_relay,
            append_listener,
            wakeup,
            announce,
            takeover,
            renewer,
            taker,
            workers,
            settler,
        } = self;
        let single = [purge, log_relay, append_listener, wakeup, announce, takeover, renewer, taker, settler];
        single.into_iter().flatten().chain(workers).map(JoinHandle::abort_handle).collect()
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let engine = &self.handle.engine;
        f.debug_struct("Relay").field("store", &engine.name()).field("node", engine.node()).finish()
    }
}

impl Relay {
    /// Builds the engine, acquires leadership where the mode needs it, and starts every task. No
    /// task runs before every step that can fail is done.
    pub(crate) async fn start(
        source: OutboxSource,
        settings: RelaySettings,
        routes: Arc<Routes>,
        fleet: Option<FleetLimits>,
    ) -> Result<Self> {
        let OutboxSource { store, door, outbox } = source;
        if let Some(error) = routes.misfit(outbox.as_ref()) {
            return Err(error);
        }
        store.check_schema().await?;
        let claim = if settings.mode.delivers() {
            Some(door.claim().ok_or(Error::Lifecycle("a relay of this outbox runs already: stop it first"))?)
        } else {
            None
        };
        if settings.mode.orders_by_aggregate() {
            store.order_by_aggregate().await?;
        }
        let (settler, requests) = SettleQueue::new(settings.hot_capacity + settings.cold_capacity);
        let metrics = Metrics::new(&settings.metrics_prefix, store.name());
        let monitor = Arc::new(Monitor::new(metrics.clone(), settings.poll_interval));
        let supervisor = Arc::new(Supervisor::new(store.name(), monitor.clone()));
        let stop = CancellationToken::new();
        let engine = Arc::new(Engine {
            metrics,
            monitor,
            supervisor: supervisor.clone(),
            queues: Queues::new(settings.hot_capacity, settings.cold_capacity),
            in_flight: InFlight::default(),
            key_queues: KeyQueues::default(),
            ownership: Ownership::new(&settings),
            wake: Notify::new(),
            rescan: AtomicBool::new(false),
            full_pass_micros: AtomicU64::new(0),
            may_take_over: AtomicBool::new(true),
            log_notified: Arc::default(),
            due_timer: DueTimer::default(),
            renew: Notify::new(),
            outages: Outages::default(),
            limits: routes.limits(),
            paused: PausedTypes::default(),
            progress: Notify::new(),
            crash_guard: CrashGuard::default(),
            over: CancellationToken::new(),
            scope: Arc::new(RelayScope {
                node: settings.node.clone(),
                store: store.name().into(),
                states: routes.states.clone(),
                stop: stop.clone(),
            }),
            stop,
            store,
            outbox,
            settings,
            routes,
            fleet,
            settler,
            stats: RelayStats::default(),
        });
        let mut tasks = Tasks::default();
        let mut taker = None;
        let log_relay = if engine.settings.subscriptions.is_empty() {
            None
        } else {
            Some(LogRelay::new(&engine, door.bell.clone()).await?)
        };
        if engine.settings.mode.delivers() {
            engine.release_predecessor().await?;
            engine.announce_once().await?;
            let renewer = match Renewer::new(engine.clone()).await {
                Ok(renewer) => shared(renewer),
                Err(error) => {
                    // Other relays would take this one for a relay that vanished. If the row cannot
                    // be removed, it soon expires.
                    engine.retire().await;
                    return Err(error);
                }
            };
            let settler = shared(Settler::new(engine.clone(), requests));
            tasks.settler = Some(supervisor.spawn(RelayTask::Settle, move || {
                let settler = settler.clone();
                async move { settler.lock().await.run().await }
            }));
            let worker = |_| supervisor.spawn_once(RelayTask::Dispatch, dispatch::run_worker(engine.clone()));
            tasks.workers = (0..engine.settings.workers).map(worker).collect();
            let shared_taker = shared(Taker::new(engine.clone()));
            taker = Some(shared_taker.clone());
            let taking = engine.clone();
            tasks.taker = Some(
                supervisor.spawn(RelayTask::Take, move || take::run(taking.clone(), shared_taker.clone())),
            );
            tasks.renewer = Some(supervisor.spawn(RelayTask::Renew, move || {
                let renewer = renewer.clone();
                async move { renewer.lock().await.run().await }
            }));
            let watching = engine.clone();
            tasks.wakeup = Some(supervisor.spawn(RelayTask::Watch, move || wakeup::listen(watching.clone())));
            let announcing = engine.clone();
            tasks.announce =
                Some(supervisor.spawn(RelayTask::Announce, move || presence::announce(announcing.clone())));
            if !engine.ownership.is_exclusive() {
                let releasing = engine.clone();
                tasks.takeover = Some(
                    supervisor.spawn(RelayTask::Takeover, move || presence::take_over(releasing.clone())),
                );
            }
            if let Some(claim) = claim {
                // Also without a hot path: then a write only wakes the taker.
                claim.open(engine.clone());
            }
        }
        if log_relay.is_some() {
            let (listening, bell) = (engine.clone(), door.bell.clone());
            tasks.append_listener = Some(
                supervisor
                    .spawn(RelayTask::LogWatch, move || log_relay::listen(listening.clone(), bell.clone())),
            );
        }
        let log_relay_handle = log_relay.as_ref().map(LogRelay::handle);
        if let (Some(log_relay), Some(log_relay_handle)) = (log_relay, log_relay_handle.clone()) {
            let (publishing, bell, mut first) = (engine.clone(), door.bell.clone(), Some(log_relay));
            tasks.log_relay = Some(supervisor.spawn(RelayTask::LogRelay, move || {
                log_relay::run(publishing.clone(), bell.clone(), log_relay_handle.clone(), first.take())
            }));
        }
        if engine.settings.purge.is_some() {
            let purging = engine.clone();
            tasks.purge =
                Some(supervisor.spawn(RelayTask::Purge, move || maintenance::purge(purging.clone())));
        }
        tracing::info!(store = engine.name(), node = %engine.node(), mode = ?engine.settings.mode, "relay started");
        let (quit, (over, ended)) = (CancellationToken::new(), watch::channel(false));
        let main_task =
            tokio::spawn(run_until_stopped(engine.clone(), door.clone(), tasks, quit.clone(), over));
        Ok(Self {
            handle: Handle { engine, taker, log_relay_handle },
            door,
            quit,
            main_task: Some(main_task),
            ended,
        })
    }

    /// The name under which this relay holds events.
    pub fn node(&self) -> &NodeId {
        self.handle.engine.node()
    }

    /// Whether it delivers: false while another `single_node` relay holds the outbox and this one
    /// stands by.
    pub fn is_active(&self) -> bool {
        self.handle.is_active()
    }

    /// Looks for due events now instead of at the next poll.
    pub fn wake(&self) {
        self.handle.wake();
    }

    /// Runs one poll cycle: takes due events until there are no more or the queues are full.
    /// Returns how many.
    pub async fn poll_once(&self) -> Result<usize> {
        self.handle.poll_once().await
    }

    /// Waits until no event is due or being handled, and every publisher that this node leads has
    /// published the whole log. Publishers that are paused or fail do not count, nor do events that
    /// are scheduled for later or held back by an earlier event of their key.
    pub async fn idle(&self) -> Result<()> {
        self.handle.idle().await
    }

    /// Health of this relay: its last successes, and its current errors.
    pub fn health(&self) -> RelayHealth {
        self.handle.health()
    }

    /// Waits until the relay has ended by itself: a background task panicked five times within a
    /// minute, or panicked where no restart is safe. Returns the [cause](Error::TaskFailed); by
    /// then the relay has released its events, or they wait for their lease to run out. Does not
    /// return while the relay runs.
    ///
    /// ```no_run
    /// # async fn run(relay: outbox::Relay) -> outbox::Result<()> {
    /// tokio::select! {
    ///     ended = relay.stopped() => return ended,          // end the process, to be restarted
    ///     _ = tokio::signal::ctrl_c() => {}
    /// }
    /// relay.stop().await
    /// # }
    /// ```
    pub async fn stopped(&self) -> Result<()> {
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
        self.handle.check()
    }

    /// Runs until the shutdown future is ready, then [stops](Relay::stop); or until the relay has
    /// [ended](Relay::stopped) by itself, which is an error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// # let signal = async {};
    /// let relay = outbox.multi_node().start().await?;
    /// relay.until(signal).await?;                          // such as `tokio::signal::ctrl_c()`
    /// # Ok(()) }
    /// ```
    pub async fn until(self, shutdown: impl Future) -> Result<()> {
        tokio::select! {
            _ = shutdown => {}
            ended = self.stopped() => return ended,
        }
        self.stop().await
    }

    /// Delivers no events of this type until [`resume`](Relay::resume). Events that wait are left
    /// in the table, for other relays too; handlers that run are not interrupted. Later events of
    /// their keys wait behind them. Only for this relay, and until it stops. Returns false if the
    /// type was paused already.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Context, Event, Outbox, Status};
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox.single_node().on_type("mail.wanted", async |_: Context| ()).start().await?;
    /// relay.pause("mail.wanted");
    /// let id = outbox.send(Event::new("mail.wanted").json(&1)).await?.id;
    /// relay.idle().await?;
    /// assert_eq!(outbox.admin().find(&id).await?.unwrap().status, Status::New);
    /// relay.resume("mail.wanted");
    /// relay.idle().await?;
    /// assert_eq!(outbox.admin().find(&id).await?.unwrap().status, Status::Done);
    /// relay.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn pause(&self, event_type: impl Into<EventType>) -> bool {
        self.handle.engine.paused.set(event_type.into().as_str(), true)
    }

    /// Delivers events of a [paused](Relay::pause) type again. Returns false if it was not paused.
    pub fn resume(&self, event_type: impl Into<EventType>) -> bool {
        let changed = self.handle.engine.paused.set(event_type.into().as_str(), false);
        self.handle.engine.wake.notify_one();
        changed
    }

    /// The event types that are paused.
    pub fn paused(&self) -> Vec<EventType> {
        self.handle.engine.paused.types().into_iter().map(EventType::from).collect()
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops the relay: first purging, then taking, then handling, which gets the drain time to
    /// finish the queued events. Unfinished events are released, and delivered later. Returns an
    /// error if the relay has [ended](Relay::stopped) before.
    pub async fn stop(mut self) -> Result<()> {
        self.quit.cancel();
        match self.main_task.take() {
            // Cancelled: the runtime ends.
            Some(main_task) => main_task.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }
}

impl Handle {
    pub(crate) fn is_active(&self) -> bool {
        self.engine.ownership.holder().is_some()
    }

    pub(crate) fn wake(&self) {
        self.engine.wake.notify_one();
    }

    pub(crate) fn health(&self) -> RelayHealth {
        self.engine.monitor.health()
    }

    /// An error if a task failed for good.
    fn check(&self) -> Result<()> {
        self.engine.supervisor.failure().map_or(Ok(()), |failed| Err(failed.into()))
    }

    pub(crate) async fn poll_once(&self) -> Result<usize> {
        self.check()?;
        match &self.taker {
            Some(taker) => taker.lock().await.full_pass().await,
            None => Ok(0),
        }
    }

    pub(crate) async fn idle(&self) -> Result<()> {
        self.queue_idle().await?;
        if let Some(log_relay_handle) = &self.log_relay_handle {
            tokio::select! {
                () = log_relay_handle.wait_idle() => {}
                () = self.engine.supervisor.failed() => {}
            }
        }
        self.check()
    }

    async fn queue_idle(&self) -> Result<()> {
        let Some(taker) = &self.taker else { return Ok(()) };
        loop {
            self.check()?;
            let progress = self.engine.progress.notified();
            let quiet = || self.engine.in_flight.len() == 0 && !self.engine.key_queues.has_resumable();
            // The lock excludes other passes: events that another pass takes meanwhile would be
            // seen neither here nor in the table.
            let mut taker = taker.lock().await;
            // Before the pass: a settlement during the read may make events takeable that the read
            // has skipped.
            let was_quiet = quiet();
            let took = if self.is_active() { taker.full_pass().await? } else { 1 };
            drop(taker);
            if was_quiet && took == 0 && quiet() {
                return Ok(());
            }
            // The notification is only a hint: check again after a short time.
            let _ = tokio::time::timeout(Duration::from_millis(20), progress).await;
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let engine = &self.handle.engine;
        self.door.close(engine);
        engine.stop.cancel();
        self.quit.cancel();
    }
}

/// Wraps state that a task keeps over restarts. A panic does not poison the lock.
fn shared<T>(state: T) -> Arc<tokio::sync::Mutex<T>> {
    Arc::new(tokio::sync::Mutex::new(state))
}

/// Waits until the relay has to stop or a task has failed for good, and shuts it down.
async fn run_until_stopped(
    engine: Arc<Engine>,
    door: HotPath,
    tasks: Tasks,
    quit: CancellationToken,
    ended: watch::Sender<bool>,
) -> Result<()> {
    tokio::select! {
        () = quit.cancelled() => {}
        () = engine.supervisor.failed() => {}
    }
    let handles = tasks.abort_handles();
    // A lock may be poisoned, and a store that made a task panic may panic again.
    let stopped = AssertUnwindSafe(shut_down(engine.clone(), door, tasks)).catch_unwind().await;
    if stopped.is_err() {
        handles.iter().for_each(AbortHandle::abort);
    }
    engine.over.cancel();
    let result = match (engine.supervisor.failure(), stopped) {
        (Some(failed), _) => Err(failed.into()),
        (None, Ok(stopped)) => stopped,
        (None, Err(panic)) => {
            let text = format!(
                "the relay panicked while it released its events, which wait until their leases run out: {}",
                supervise::message(&*panic)
            );
            Err(Error::Store(text.into()))
        }
    };
    ended.send_replace(true);
    result
}

/// Time for cancelled handlers to end.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

async fn shut_down(engine: Arc<Engine>, door: HotPath, tasks: Tasks) -> Result<()> {
    door.close(&engine);
    engine.stop.cancel();
    for task in [tasks.purge, tasks.taker].into_iter().flatten() {
        let _ = task.await;
    }
    engine.queues.close(engine.settings.workers);
    let deadline = tokio::time::Instant::now() + engine.settings.drain;
    let mut unfinished = Vec::new();
    for mut worker in tasks.workers {
        if tokio::time::timeout_at(deadline, &mut worker).await.is_err() {
            worker.abort();
            unfinished.push(worker);
        }
    }
    let mut all_ended = true;
    let grace = tokio::time::Instant::now() + CANCEL_GRACE;
    for worker in unfinished {
        all_ended &= tokio::time::timeout_at(grace, worker).await.is_ok();
    }
    // The settler ends after it has written every request sent before this one. A settler that
    // failed for good no longer receives.
    if let Some(mut settler) = tasks.settler {
        tokio::select! {
            biased;
            _ = &mut settler => {}
            () = engine.settler.send(SettleRequest::Last) => {
                let _ = settler.await;
            }
        }
    }
    engine.over.cancel();
    let announced = tasks.announce.is_some();
    let rest =
        [tasks.renewer, tasks.log_relay, tasks.append_listener, tasks.wakeup, tasks.takeover, tasks.announce];
    for task in rest.into_iter().flatten() {
        let _ = task.await;
    }
    let (result, leases_left) = match engine.supervisor.failure().map(|failed| failed.task) {
        // For some events the outcome is known but not written: their leases run out, as after a
        // crash.
        Some(RelayTask::Settle) => (Ok(()), true),
        // The event that a worker was handling may have caused the panic: the event is redelivered
        // as a suspect, when its lease has run out.
        Some(RelayTask::Dispatch) => (release_all(&engine, false).await, true),
        _ => (release_all(&engine, all_ended).await, false),
    };
    if announced && result.is_ok() && !leases_left {
        engine.retire().await;
    }
    tracing::info!(store = engine.name(), node = %engine.node(), "relay stopped");
    result
}

/// Releases the events that this node still holds, so that other nodes need not wait until the
/// leases run out. Events whose handler could not be cancelled stay held.
async fn release_all(engine: &Engine, with_running: bool) -> Result<()> {
    let Some(by) = engine.ownership.holder() else { return Ok(()) };
    let rest = engine.in_flight.remaining(with_running);
    match &by {
        crate::store::Holder::Lease { .. } if !rest.is_empty() => {
            let count = engine.store.settle(&by, engine.settings.completion, &rest).await?.moved;
            tracing::info!(store = engine.name(), count, "released unfinished events");
        }
        crate::store::Holder::Exclusive { owner, epoch } if with_running => {
            // Some events that an earlier leader held when it vanished may not have been read yet.
            let clean = !engine.ownership.expects_suspects();
            engine.store.resign(crate::store::EXCLUSIVE, owner, *epoch, clean).await?;
        }
        _ => {}
    }
    engine.ownership.release();
    engine.reset();
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::event::Event;

    /// A job of this type, to fill queues with.
    pub(crate) fn job(event_type: &str) -> Job {
        let event = Event::new(event_type).json(&()).build().unwrap();
        let delivery = Delivery {
            event,
            seq: None,
            attempts: 0,
            claim: 0,
            expires_in: None,
            waited: Duration::ZERO,
            suspect: None,
            created_at: None,
            last_error: None,
        };
        Job { delivery, epoch: 0, taken: Instant::now(), cold: true, memory: None }
    }

    /// The event stays in memory until then: counters need its type.
    #[test]
    fn the_bytes_of_an_event_are_counted_until_its_verdict_is_written() {
        let budget = bytes::ByteBudget::new(100);
        let job = Job { memory: Some(Arc::new(budget.reserve(60))), ..job("e") };
        let verdict = job.event_verdict(Verdict::Done);
        drop(job);
        assert_eq!(budget.available(), Some(40));
        drop(verdict);
        assert_eq!(budget.available(), Some(100));
    }
}
