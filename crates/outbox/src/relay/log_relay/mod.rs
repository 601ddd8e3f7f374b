//! Publishing the log: one task for all subscriptions (pairs of topic and publisher) of a node.
//!
//! ```text
//!   advance ────► safe position ─┐
//!   read ───────► chunks ────────┼─► each subscription that this node leads ──► publisher
//!   heartbeat ──► who leads what ┘        └──► save: positions of all subscriptions in one statement
//! ```
//!
//! The log relay decides and never waits: every call of the database or of a publisher is a
//! request, a task of its own that sends back one response. A subscription that has nothing to do
//! costs no task and no connection.
//!
//! | file | subject |
//! | --- | --- |
//! | `pacing` | when a subscription polls and retries, and its batch size |
//! | `chunks` | cache of log events, shared by all subscriptions |
//! | `balance` | which subscriptions this node should lead |
//! | `subscription` | one subscription: its position, its batch in flight |
//! | `requests`, `responses` | the requests of the log relay, and its reactions to the responses |
//! | `log_handle` | the log of a store |

mod balance;
mod chunks;
mod log_handle;
mod pacing;
mod requests;
mod responses;
mod subscription;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::balance::Balancer;
use self::chunks::Chunks;
use self::log_handle::LogHandle;
use self::responses::Response;
use self::subscription::{Leader, LocalSubscription, Meters};
use super::Engine;
use super::monitor::Monitor;
use crate::error::{Error, Result};
use crate::event::EventId;
use crate::log::{Position, Subscription, SubscriptionId, Topic, Watermark};
use crate::metrics::SubscriptionMetrics;
use crate::store::{AppendNotifications, AppendNotifier, NodeId, RelayTask};

/// Pause before the safe position is queried again while it is behind the head, at first and at
/// most.
const ADVANCE_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// Pause before the next try to listen for notifications, after an error.
const RECONNECT_PAUSE: Duration = Duration::from_secs(2);
/// How long a relay polls after a notification: under load it polls, and writers need not notify.
const ACTIVE_PAUSE: Duration = Duration::from_millis(10);
/// The longest time between two tries to arm notifications, while a transaction that has appended
/// is open.
const LONGEST_ARM_PAUSE: Duration = Duration::from_millis(100);
/// How often a relay tries to get the watch lock while another relay holds it.
const LOCK_RETRY: Duration = Duration::from_secs(5);
/// After so many lease times without a change, a node that is notified of appends renews its leases
/// less often …
const IDLE_AFTER: u32 = 3;
/// … with leases so many times as long.
const IDLE_LEASE_FACTOR: u32 = 2;
/// How long after the lease of another node ends to check whether that node has renewed it.
const LEASE_END_MARGIN: Duration = Duration::from_millis(20);
/// Time for the database to answer, after the drain time.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Pause between two tries to create the log relay after a panic, and to reach the new one.
const RESTART_PAUSE: Duration = Duration::from_millis(250);

/// Access to the running log relay.
#[derive(Clone)]
pub(crate) struct LogRelayHandle {
    /// The sender to the log relay that runs now: after a panic there is another.
    responses: Arc<Mutex<mpsc::UnboundedSender<Response>>>,
    stop: CancellationToken,
}

impl LogRelayHandle {
    fn responses(&self) -> MutexGuard<'_, mpsc::UnboundedSender<Response>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every subscription that this node leads, and that is neither paused nor failing,
    /// has published everything.
    pub(crate) async fn wait_idle(&self) {
        loop {
            let (done, finished) = oneshot::channel();
            let sent = self.responses().send(Response::WaitIdle(done)).is_ok();
            if (sent && finished.await.is_ok()) || self.stop.is_cancelled() {
                return;
            }
            // The log relay panicked before it answered: ask the next one.
            tokio::time::sleep(RESTART_PAUSE).await;
        }
    }
}

/// Runs the log relay; after a panic another, which starts with the state in the table. It has a
/// name of its own, so it waits until the leases of the previous one have run out: no position
/// moves back, and no batch is published out of order.
pub(super) async fn run(
    engine: Arc<Engine>,
    bell: Arc<Notify>,
    handle: LogRelayHandle,
    first: Option<LogRelay>,
) {
    let mut log_relay = first;
    while log_relay.is_none() {
        if engine.stop.is_cancelled() {
            return;
        }
        match LogRelay::new(&engine, bell.clone()).await {
            Ok(made) => {
                *handle.responses() = made.responses.clone();
                engine.monitor.succeeded(RelayTask::LogRelay);
                log_relay = Some(made);
            }
            Err(error) => {
                tracing::error!(store = engine.name(), %error, retry_in = ?RESTART_PAUSE, "cannot publish the log yet");
                engine.monitor.failed(RelayTask::LogRelay, &error.to_string());
                tokio::time::sleep(RESTART_PAUSE).await;
            }
        }
    }
    if let Some(log_relay) = log_relay {
        log_relay.run().await;
    }
}

/// Whether the safe position has to be queried again before anything is read up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recheck {
    NotNeeded,
    /// It has to.
    Needed,
    /// A request to do so is running.
    Running,
}

/// Runs the subscriptions of a node.
pub(crate) struct LogRelay {
    log: LogHandle,
    node: NodeId,
    ttl: Duration,
    watch: Duration,
    drain: Duration,
    subscriptions: Vec<LocalSubscription>,
    index: HashMap<SubscriptionId, usize>,
    balancer: Balancer,

    /// The watermark; `None` while a request to advance it is running.
    watermark: Option<Watermark>,
    safe: Position,
    /// Whether `safe` is still valid: if a subscription's position is not where this node left it,
    /// the log may have gone back.
    recheck: Recheck,
    /// The safe position that is stored in the table.
    stored_watermark: Position,
    /// The greatest position that any request has seen.
    head: Position,
    chunks: Chunks,
    wanted: Vec<Position>,
    read_at: Instant,
    reading: Vec<Position>,

    /// There may be new events.
    hinted: bool,
    advance_at: Instant,
    advance_pause: Duration,
    watch_at: Instant,
    /// Pause before the next poll of the head: short after a change, longer and longer without one.
    watch_pause: Duration,
    watching: bool,
    /// When to save next; while a save is running, when it began.
    save_at: Instant,
    quiet_save_at: Instant,
    saving: bool,
    heartbeat_at: Instant,
    heartbeat_running: bool,
    stopping: Option<Instant>,
    /// How many batches have been sent.
    batches: u64,
    warn_at: Instant,
    /// Requests that failed when they were last sent.
    failing_requests: BTreeMap<&'static str, String>,
    monitor: Arc<Monitor>,
    idle_waiters: Vec<oneshot::Sender<()>>,
    /// When this node lost a publisher that the table may still assign to it.
    lost_at: Option<Instant>,
    /// Whether writers notify of appends, so that this node need not poll for them.
    notified: Arc<AtomicBool>,
    /// When the last change was seen.
    changed_at: Instant,
    /// Whether this node's leases are those of an idle node: longer, and renewed less often.
    long_lease: bool,
    /// Nothing is published before the table was asked who leads, at this time or later: an idle
    /// node may not know of a pause yet.
    confirm_after: Option<Instant>,
    /// When the first lease of another node ends, unless that node renews it.
    others_expire_at: Option<Instant>,
    /// Subscriptions whose leader vanished, as long as no node has claimed them.
    orphaned: HashMap<SubscriptionId, NodeId>,

    bell: Arc<Notify>,
    stop: CancellationToken,
    responses: mpsc::UnboundedSender<Response>,
    received: mpsc::UnboundedReceiver<Response>,
}

impl LogRelay {
    /// Creates the rows of the subscriptions, and claims this node's part of them. Returns the
    /// errors of the first contact.
    pub(crate) async fn new(engine: &Engine, bell: Arc<Notify>) -> Result<Self> {
        let (settings, stop) = (&engine.settings, engine.stop.clone());
        let definitions: Vec<Subscription> = settings
            .subscriptions
            .iter()
            .map(|subscription| subscription.clone().or(&settings.subscription_defaults))
            .collect();
        check(&definitions)?;
        let log = LogHandle::new(engine.store.clone())?;
        // A node that was given a name and restarted must not pass for its previous process, which
        // may still run.
        let life = EventId::generate();
        let node = NodeId::from(format!("{}:{}", settings.node, &life.as_str()[16..]));
        let metrics = SubscriptionMetrics::new(&settings.metrics_prefix, log.name());
        let subscription = |definition: Subscription| LocalSubscription {
            meters: Meters::new(&metrics, definition.id()),
            definition,
            leader: None,
        };
        let subscriptions: Vec<LocalSubscription> = definitions.into_iter().map(subscription).collect();
        let index = subscriptions
            .iter()
            .enumerate()
            .map(|(n, subscription)| (subscription.id().clone(), n))
            .collect();
        let (responses, received) = mpsc::unbounded_channel();
        let now = Instant::now();
        let mut log_relay = Self {
            node,
            ttl: settings.subscription_lease,
            watch: settings.log_watch,
            drain: settings.drain,
            subscriptions,
            index,
            balancer: Balancer::default(),
            watermark: Some(Watermark::default()),
            safe: Position::START,
            recheck: Recheck::NotNeeded,
            stored_watermark: Position::START,
            head: Position::START,
            chunks: Chunks::default(),
            wanted: Vec::new(),
            read_at: now,
            reading: Vec::new(),
            hinted: true,
            advance_at: now,
            advance_pause: ADVANCE_PAUSE.0,
            watch_at: now + settings.log_watch,
            watch_pause: settings.log_watch,
            watching: false,
            save_at: now,
            quiet_save_at: now,
            saving: false,
            heartbeat_at: now,
            heartbeat_running: false,
            stopping: None,
            batches: 0,
            warn_at: now,
            failing_requests: BTreeMap::new(),
            monitor: engine.monitor.clone(),
            idle_waiters: Vec::new(),
            lost_at: None,
            notified: engine.log_notified.clone(),
            changed_at: now,
            long_lease: false,
            confirm_after: None,
            others_expire_at: None,
            orphaned: HashMap::new(),
            bell,
            stop,
            responses,
            received,
            log,
        };
        log_relay.begin().await?;
        Ok(log_relay)
    }

    async fn begin(&mut self) -> Result<()> {
        let log = self.log.clone();
        let rows: Vec<(SubscriptionId, bool)> = self
            .subscriptions
            .iter()
            .map(|subscription| (subscription.id().clone(), subscription.definition.from_now))
            .collect();
        log.register(&rows).await?;
        // The safe position of other nodes: not every gap of the log has to be waited for again.
        let (stored_watermark, head) = (log.stored_watermark().await?, log.head().await?);
        self.stored_watermark = if stored_watermark <= head { stored_watermark } else { Position::START };
        (self.safe, self.watermark) = (self.stored_watermark, Some(Watermark::from(self.stored_watermark)));
        let asked = Instant::now();
        let view = log.tend(&self.node, self.ttl).await?;
        let claims = self.reconcile(asked, self.ttl, &view);
        if !claims.is_empty() {
            let asked = Instant::now();
            let claimed = log.claim(&self.node, self.ttl, &claims).await?;
            self.claimed(asked, &claimed);
        }
        self.heartbeat_at = Instant::now() + self.ttl / 4;
        if view.nodes.len() > 1 {
            // They rebalance as soon as they know of this node.
            tokio::spawn(async move { log.notify_nodes().await });
        }
        Ok(())
    }

    pub(crate) fn handle(&self) -> LogRelayHandle {
        LogRelayHandle { responses: Arc::new(Mutex::new(self.responses.clone())), stop: self.stop.clone() }
    }

    /// Works until the relay stops, then hands over all subscriptions.
    pub(crate) async fn run(mut self) {
        let (bell, stop) = (self.bell.clone(), self.stop.clone());
        loop {
            let next = self.step(Instant::now());
            if self.is_over(Instant::now()) {
                break;
            }
            tokio::select! {
                response = self.received.recv() => {
                    if let Some(response) = response {
                        self.on_response(response);
                    }
                    while let Ok(response) = self.received.try_recv() {
                        self.on_response(response);
                    }
                }
                () = bell.notified() => self.hint(),
                () = tokio::time::sleep_until(next.into()) => {}
                () = stop.cancelled(), if self.stopping.is_none() => {
                    self.stopping = Some(Instant::now() + self.drain);
                }
            }
        }
        self.hand_over().await;
    }

    /// Does everything that can be done now. Returns when to call it again if nothing happens
    /// before.
    fn step(&mut self, now: Instant) -> Instant {
        if self.stopping.is_none() {
            self.poll_log(now);
            for index in 0..self.subscriptions.len() {
                self.send_next(index, now);
            }
            self.read(now);
        }
        self.abandon(now);
        self.save(now);
        self.heartbeat(now);
        self.release_surplus();
        self.notify_idle(now);
        self.next_step_at(now)
    }

    /// Gives up batches that are with a publisher when another node may lead the subscription, or
    /// when the drain time is over.
    fn abandon(&mut self, now: Instant) {
        let over = self.stopping.is_some_and(|deadline| now >= deadline);
        for leader in self.subscriptions.iter_mut().filter_map(|subscription| subscription.leader.as_mut()) {
            if over || now >= leader.until {
                leader.abandon();
            }
        }
    }

    fn next_step_at(&self, now: Instant) -> Instant {
        let mut next = now + Duration::from_secs(1);
        let mut at = |when: Instant| next = next.min(when.max(now + Duration::from_micros(200)));
        if !self.heartbeat_running {
            at(self.heartbeat_at);
        }
        if let Some(deadline) = self.stopping {
            at(if now < deadline { deadline } else { deadline + SHUTDOWN_GRACE });
        } else {
            if self.watermark.is_some() {
                at(self.next_advance());
            }
            if self.has_to_watch() {
                at(self.watch_at);
            }
            if !self.wanted.is_empty() && self.read_at > now {
                at(self.read_at);
            }
        }
        for leader in self.subscriptions.iter().filter_map(|subscription| subscription.leader.as_ref()) {
            if leader.in_flight.is_some() {
                at(leader.until);
            } else if leader.pacing.try_at > now {
                at(leader.pacing.try_at);
            }
            if !self.saving && leader.needs_saving() {
                let soon = leader.has_unsaved_result() || self.stopping.is_some();
                at(if soon { self.save_at } else { self.quiet_save_at });
            }
        }
        next
    }

    /// When to query the safe position.
    fn next_advance(&self) -> Instant {
        if self.hinted {
            return self.advance_at;
        }
        let mut at = self.earliest_poll();
        if self.safe < self.head {
            at = at.min(self.advance_at + self.advance_pause);
        }
        at.max(self.advance_at)
    }

    fn leaders(&self) -> impl Iterator<Item = &Leader> {
        self.subscriptions.iter().filter_map(|subscription| subscription.leader.as_ref())
    }

    fn earliest_poll(&self) -> Instant {
        let polls = self.leaders().filter(|leader| !leader.paused).map(|leader| leader.pacing.poll_at);
        polls.min().unwrap_or_else(|| Instant::now() + Duration::from_secs(1))
    }

    /// Whether this node has to poll for appends: writers do not notify of them.
    fn has_to_watch(&self) -> bool {
        !self.watching && !self.notified.load(Ordering::Acquire) && self.leaders().next().is_some()
    }

    /// Whether nothing has changed for a while, and this node is notified of the next change.
    fn is_idle(&self, now: Instant) -> bool {
        let at_rest = |leader: &Leader| {
            let well = leader.pacing.errors == 0 && leader.pacing.last_error.is_none() && !leader.releasing;
            well && leader.in_flight.is_none() && !leader.needs_saving() && leader.cursor >= self.safe
        };
        self.notified.load(Ordering::Acquire)
            && self.stopping.is_none()
            && !self.hinted
            && self.confirm_after.is_none()
            && self.safe >= self.head
            && now >= self.changed_at + self.ttl * IDLE_AFTER
            && self.leaders().all(at_rest)
    }

    /// Records that there may be new events.
    fn hint(&mut self) {
        let now = Instant::now();
        self.hinted = true;
        self.changed_at = now;
        if self.long_lease && self.confirm_after.is_none() {
            (self.confirm_after, self.heartbeat_at) = (Some(now), now);
        }
        for leader in self.subscriptions.iter_mut().filter_map(|subscription| subscription.leader.as_mut()) {
            leader.pacing.hinted(now);
        }
    }

    /// Whether all requests and batches that were running when the relay stopped have ended, or had
    /// their time.
    fn is_over(&self, now: Instant) -> bool {
        let Some(deadline) = self.stopping else { return false };
        let resting = |leader: &Leader| leader.in_flight.is_none() && !leader.needs_saving();
        let asks_nothing = !self.saving && !self.heartbeat_running && self.watermark.is_some();
        (asks_nothing && self.leaders().all(resting)) || now >= deadline + SHUTDOWN_GRACE
    }

    async fn hand_over(mut self) {
        // In a task of its own, which is not cancelled: a database that hangs must not keep the
        // process from ending.
        let (log, node, safe) = (self.log.clone(), self.node.clone(), self.safe);
        let leaving = tokio::spawn(async move {
            log.leave(&node).await?;
            log.notify_nodes().await;
            log.store_watermark(safe).await
        });
        let left = match tokio::time::timeout(SHUTDOWN_GRACE, leaving).await {
            Ok(Ok(left)) => left,
            Ok(Err(ended)) => Err(Error::Store(ended.into())),
            Err(_) => Err(Error::Store("no answer in time".into())),
        };
        if let Err(error) = left {
            let what =
                "could not hand over publishers: other nodes take them when this node's lease runs out";
            self.warn_throttled(&error, what);
        }
        self.subscriptions.iter_mut().for_each(LocalSubscription::stop_leading);
    }
}

/// Listens for appends of other processes, where the database has notifications.
pub(crate) async fn listen(engine: Arc<Engine>, bell: Arc<Notify>) {
    let (store, monitor, stop) = (engine.store.clone(), &engine.monitor, engine.stop.clone());
    let append_listener = AppendListener { bell, notified: engine.log_notified.clone() };
    let listening = async {
        loop {
            let error = match store.listen().await {
                Ok(Some(mut listener)) => {
                    monitor.succeeded(RelayTask::LogWatch);
                    let Err(error) = append_listener.run(&mut *listener).await;
                    tracing::debug!(store = store.name(), %error, "lost the connection for notifications of appends: polling");
                    error
                }
                Ok(None) => return monitor.idle(RelayTask::LogWatch),
                Err(error) => {
                    tracing::debug!(store = store.name(), %error, "cannot be notified of appends elsewhere: polling");
                    error
                }
            };
            append_listener.set_notified(false);
            monitor.failed(RelayTask::LogWatch, &error.to_string());
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    };
    // The dropped future listens, holds locks that end with its connection, and nothing else.
    tokio::select! {
        () = listening => {}
        () = stop.cancelled() => {}
    }
}

/// Notifies the log relay of appends by other processes, and records whether it will be notified of
/// the next one.
struct AppendListener {
    bell: Arc<Notify>,
    notified: Arc<AtomicBool>,
}

impl AppendListener {
    async fn run(&self, listener: &mut dyn AppendNotifier) -> Result<std::convert::Infallible> {
        let mut pause = ACTIVE_PAUSE;
        loop {
            match listener.ask_for_calls().await? {
                AppendNotifications::Unsupported => {
                    listener.heard().await?;
                    self.bell.notify_one();
                }
                AppendNotifications::Armed => {
                    pause = ACTIVE_PAUSE;
                    // Appends committed before this moment are not notified of: the log relay polls
                    // once more.
                    self.set_notified(true);
                    listener.heard().await?;
                    self.set_notified(false);
                    listener.end_calls().await?;
                    tokio::time::sleep(ACTIVE_PAUSE).await;
                }
                AppendNotifications::ByAnother => {
                    if !self.notified.load(Ordering::Acquire) {
                        self.set_notified(true);
                    }
                    if let Ok(heard) = tokio::time::timeout(LOCK_RETRY, listener.heard()).await {
                        heard?;
                        self.bell.notify_one();
                    }
                }
                AppendNotifications::NotYet => {
                    if let Ok(heard) = tokio::time::timeout(pause, listener.heard()).await {
                        heard?;
                        self.bell.notify_one();
                    }
                    pause = (pause * 3 / 2).min(LONGEST_ARM_PAUSE);
                }
            }
        }
    }

    fn set_notified(&self, notified: bool) {
        self.notified.store(notified, Ordering::Release);
        self.bell.notify_one();
    }
}

impl Drop for AppendListener {
    /// Also after a panic: no notification arrives any more, so the log relay has to poll.
    fn drop(&mut self) {
        self.set_notified(false);
    }
}

/// Checks that subscriptions are distinct, and their settings valid.
fn check(subscriptions: &[Subscription]) -> Result<()> {
    let mut seen = HashSet::new();
    let mut topics: HashMap<&str, &Topic> = HashMap::new();
    for subscription in subscriptions {
        subscription.check()?;
        if !seen.insert(&subscription.id) {
            return Err(Error::DuplicatePublisher {
                topic: subscription.id.topic().to_owned(),
                publisher: subscription.id.publisher().to_owned(),
            });
        }
        let topic = topics.entry(subscription.id.topic()).or_insert(&subscription.topic);
        if **topic != subscription.topic {
            let name = subscription.id.topic();
            return Err(Error::setting(format!(
                "two topics named {name:?} have different rules: give each its own name"
            )));
        }
    }
    Ok(())
}
