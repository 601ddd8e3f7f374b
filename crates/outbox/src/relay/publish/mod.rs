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

mod book;
mod chunks;
mod errands;
mod news;
mod rhythm;
mod share;
mod strand;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::book::Book;
use self::chunks::Chunks;
use self::news::News;
use self::share::Share;
use self::strand::{Lead, Meters, Strand};
use super::Engine;
use super::monitor::Monitor;
use crate::error::{Error, Result};
use crate::event::EventId;
use crate::log::{Frontier, Pair, PairId, Position, Topic};
use crate::metrics::PairMetrics;
use crate::store::{Calls, Listener, NodeId, RelayTask};

/// Pause before the safe position is queried again while it is behind the head, at first and at
/// most.
const UNDECIDED: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// Pause before the next try to listen for notifications, after an error.
const DEAF: Duration = Duration::from_secs(2);
/// How long a relay polls after a notification: under load it polls, and writers need not notify.
const LULL: Duration = Duration::from_millis(10);
/// The longest time between two tries to arm notifications, while a transaction that has appended
/// is open.
const NOT_YET: Duration = Duration::from_millis(100);
/// How often a relay tries to get the watch lock while another relay holds it.
const STANDBY: Duration = Duration::from_secs(5);
/// After so many lease times without a change, a node that is notified of appends renews its leases
/// less often …
const CALM: u32 = 3;
/// … with leases so many times as long.
const CALM_LEASE: u32 = 2;
/// How long after the lease of another node ends to check whether that node has renewed it.
const AFTER_THE_END: Duration = Duration::from_millis(20);
/// Time for the database to answer, after the drain time.
const GRACE: Duration = Duration::from_secs(2);

/// Pause between two tries to create the log relay after a panic, and to reach the new one.
const AGAIN: Duration = Duration::from_millis(250);

/// Access to the running log relay.
#[derive(Clone)]
pub(crate) struct Bench {
    /// The sender to the log relay that runs now: after a panic there is another.
    news: Arc<Mutex<mpsc::UnboundedSender<News>>>,
    stop: CancellationToken,
}

impl Bench {
    fn news(&self) -> MutexGuard<'_, mpsc::UnboundedSender<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every subscription that this node leads, and that is neither paused nor failing,
    /// has published everything.
    pub(crate) async fn quiet(&self) {
        loop {
            let (told, hear) = oneshot::channel();
            let sent = self.news().send(News::Quiet(told)).is_ok();
            if (sent && hear.await.is_ok()) || self.stop.is_cancelled() {
                return;
            }
            // The log relay panicked before it answered: ask the next one.
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Runs the log relay; after a panic another, which starts with the state in the table. It has a
/// name of its own, so it waits until the leases of the previous one have run out: no position
/// moves back, and no batch is published out of order.
pub(super) async fn run(engine: Arc<Engine>, bell: Arc<Notify>, bench: Bench, first: Option<Desk>) {
    let mut desk = first;
    while desk.is_none() {
        if engine.stop.is_cancelled() {
            return;
        }
        match Desk::new(&engine, bell.clone()).await {
            Ok(made) => {
                *bench.news() = made.news.clone();
                engine.monitor.succeeded(RelayTask::LogRelay);
                desk = Some(made);
            }
            Err(error) => {
                tracing::error!(store = engine.name(), %error, retry_in = ?AGAIN, "cannot publish the log yet");
                engine.monitor.failed(RelayTask::LogRelay, &error.to_string());
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    if let Some(desk) = desk {
        desk.run().await;
    }
}

/// Whether the safe position has to be queried again before anything is read up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    /// It has to.
    Raised,
    /// A request to do so is running.
    Asked,
}

/// Runs the subscriptions of a node.
pub(crate) struct Desk {
    log: Book,
    node: NodeId,
    ttl: Duration,
    watch: Duration,
    drain: Duration,
    strands: Vec<Strand>,
    index: HashMap<PairId, usize>,
    share: Share,

    /// `None` while a request to advance it is running.
    frontier: Option<Frontier>,
    safe: Position,
    /// Whether `safe` is still valid: if a subscription's position is not where this node left it,
    /// the log may have gone back.
    doubt: Doubt,
    /// The safe position that is stored in the table.
    noted: Position,
    /// The greatest position that any request has seen.
    head: Position,
    chunks: Chunks,
    wanted: Vec<Position>,
    read_at: Instant,
    reading: Vec<Position>,

    /// There may be new events.
    hinted: bool,
    advance_at: Instant,
    undecided: Duration,
    watch_at: Instant,
    /// Pause before the next poll of the head: short after a change, longer and longer without one.
    watch_pause: Duration,
    watching: bool,
    /// When to save next; while a save is running, when it began.
    save_at: Instant,
    quiet_save_at: Instant,
    saving: bool,
    tend_at: Instant,
    tending: bool,
    stopping: Option<Instant>,
    /// How many batches have been sent.
    batches: u64,
    complain_at: Instant,
    /// Requests that failed when they were last sent.
    troubles: BTreeMap<&'static str, String>,
    monitor: Arc<Monitor>,
    waiting: Vec<oneshot::Sender<()>>,
    /// When this node lost a publisher that the table may still assign to it.
    lost_at: Option<Instant>,
    /// Whether writers notify of appends, so that this node need not poll for them.
    calls: Arc<AtomicBool>,
    /// When the last change was seen.
    news_at: Instant,
    /// Whether this node's leases are those of an idle node: longer, and renewed less often.
    long_lease: bool,
    /// Nothing is published before the table was asked who leads, at this time or later: an idle
    /// node may not know of a pause yet.
    ask_first: Option<Instant>,
    /// When the first lease of another node ends, unless that node renews it.
    others_end: Option<Instant>,
    /// Subscriptions whose leader vanished, as long as no node has claimed them.
    orphaned: HashMap<PairId, NodeId>,

    bell: Arc<Notify>,
    stop: CancellationToken,
    news: mpsc::UnboundedSender<News>,
    heard: mpsc::UnboundedReceiver<News>,
}

impl Desk {
    /// Creates the rows of the subscriptions, and claims this node's part of them. Returns the
    /// errors of the first contact.
    pub(crate) async fn new(engine: &Engine, bell: Arc<Notify>) -> Result<Self> {
        let (settings, stop) = (&engine.settings, engine.stop.clone());
        let pairs: Vec<Pair> =
            settings.pairs.iter().map(|pair| pair.clone().or(&settings.pair_defaults)).collect();
        check(&pairs)?;
        let log = Book::new(engine.store.clone())?;
        // A node that was given a name and restarted must not pass for its previous process, which
        // may still run.
        let life = EventId::generate();
        let node = NodeId::from(format!("{}:{}", settings.node, &life.as_str()[16..]));
        let metrics = PairMetrics::new(&settings.metrics_prefix, log.name());
        let strand = |pair: Pair| Strand { meters: Meters::new(&metrics, pair.id()), pair, lead: None };
        let strands: Vec<Strand> = pairs.into_iter().map(strand).collect();
        let index = strands.iter().enumerate().map(|(n, strand)| (strand.id().clone(), n)).collect();
        let (news, heard) = mpsc::unbounded_channel();
        let now = Instant::now();
        let mut desk = Self {
            node,
            ttl: settings.pair_lease,
            watch: settings.log_watch,
            drain: settings.drain,
            strands,
            index,
            share: Share::default(),
            frontier: Some(Frontier::default()),
            safe: Position::START,
            doubt: Doubt::None,
            noted: Position::START,
            head: Position::START,
            chunks: Chunks::default(),
            wanted: Vec::new(),
            read_at: now,
            reading: Vec::new(),
            hinted: true,
            advance_at: now,
            undecided: UNDECIDED.0,
            watch_at: now + settings.log_watch,
            watch_pause: settings.log_watch,
            watching: false,
            save_at: now,
            quiet_save_at: now,
            saving: false,
            tend_at: now,
            tending: false,
            stopping: None,
            batches: 0,
            complain_at: now,
            troubles: BTreeMap::new(),
            monitor: engine.monitor.clone(),
            waiting: Vec::new(),
            lost_at: None,
            calls: engine.log_calls.clone(),
            news_at: now,
            long_lease: false,
            ask_first: None,
            others_end: None,
            orphaned: HashMap::new(),
            bell,
            stop,
            news,
            heard,
            log,
        };
        desk.begin().await?;
        Ok(desk)
    }

    async fn begin(&mut self) -> Result<()> {
        let log = self.log.clone();
        let rows: Vec<(PairId, bool)> =
            self.strands.iter().map(|strand| (strand.id().clone(), strand.pair.from_now)).collect();
        log.register(&rows).await?;
        // The safe position of other nodes: not every gap of the log has to be waited for again.
        let (noted, head) = (log.decided().await?, log.head().await?);
        self.noted = if noted <= head { noted } else { Position::START };
        (self.safe, self.frontier) = (self.noted, Some(Frontier::from(self.noted)));
        let asked = Instant::now();
        let roll = log.tend(&self.node, self.ttl).await?;
        let claims = self.meet(asked, self.ttl, &roll);
        if !claims.is_empty() {
            let asked = Instant::now();
            let claimed = log.claim(&self.node, self.ttl, &claims).await?;
            self.claimed(asked, &claimed);
        }
        self.tend_at = Instant::now() + self.ttl / 4;
        if roll.nodes.len() > 1 {
            // They rebalance as soon as they know of this node.
            tokio::spawn(async move { log.ring().await });
        }
        Ok(())
    }

    pub(crate) fn bench(&self) -> Bench {
        Bench { news: Arc::new(Mutex::new(self.news.clone())), stop: self.stop.clone() }
    }

    /// Works until the relay stops, then hands over all subscriptions.
    pub(crate) async fn run(mut self) {
        let (bell, stop) = (self.bell.clone(), self.stop.clone());
        loop {
            let next = self.turn(Instant::now());
            if self.is_over(Instant::now()) {
                break;
            }
            tokio::select! {
                news = self.heard.recv() => {
                    if let Some(news) = news {
                        self.hear(news);
                    }
                    while let Ok(news) = self.heard.try_recv() {
                        self.hear(news);
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
    fn turn(&mut self, now: Instant) -> Instant {
        if self.stopping.is_none() {
            self.look(now);
            for pair in 0..self.strands.len() {
                self.feed(pair, now);
            }
            self.read(now);
        }
        self.abandon(now);
        self.save(now);
        self.tend(now);
        self.give_up();
        self.say_if_quiet(now);
        self.next(now)
    }

    /// Gives up batches that are with a publisher when another node may lead the subscription, or
    /// when the drain time is over.
    fn abandon(&mut self, now: Instant) {
        let over = self.stopping.is_some_and(|deadline| now >= deadline);
        for lead in self.strands.iter_mut().filter_map(|strand| strand.lead.as_mut()) {
            if over || now >= lead.until {
                lead.abandon();
            }
        }
    }

    fn next(&self, now: Instant) -> Instant {
        let mut next = now + Duration::from_secs(1);
        let mut at = |when: Instant| next = next.min(when.max(now + Duration::from_micros(200)));
        if !self.tending {
            at(self.tend_at);
        }
        if let Some(deadline) = self.stopping {
            at(if now < deadline { deadline } else { deadline + GRACE });
        } else {
            if self.frontier.is_some() {
                at(self.next_advance());
            }
            if self.has_to_watch() {
                at(self.watch_at);
            }
            if !self.wanted.is_empty() && self.read_at > now {
                at(self.read_at);
            }
        }
        for lead in self.strands.iter().filter_map(|strand| strand.lead.as_ref()) {
            if lead.in_flight.is_some() {
                at(lead.until);
            } else if lead.rhythm.try_at > now {
                at(lead.rhythm.try_at);
            }
            if !self.saving && lead.is_behind() {
                let soon = lead.has_news() || self.stopping.is_some();
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
        let mut at = self.earliest_look();
        if self.safe < self.head {
            at = at.min(self.advance_at + self.undecided);
        }
        at.max(self.advance_at)
    }

    fn leads(&self) -> impl Iterator<Item = &Lead> {
        self.strands.iter().filter_map(|strand| strand.lead.as_ref())
    }

    fn earliest_look(&self) -> Instant {
        let looks = self.leads().filter(|lead| !lead.paused).map(|lead| lead.rhythm.look_at);
        looks.min().unwrap_or_else(|| Instant::now() + Duration::from_secs(1))
    }

    /// Whether this node has to poll for appends: writers do not notify of them.
    fn has_to_watch(&self) -> bool {
        !self.watching && !self.calls.load(Ordering::Acquire) && self.leads().next().is_some()
    }

    /// Whether nothing has changed for a while, and this node is notified of the next change.
    fn is_calm(&self, now: Instant) -> bool {
        let at_rest = |lead: &Lead| {
            let well = lead.rhythm.errors == 0 && lead.rhythm.last_error.is_none() && !lead.giving_up;
            well && lead.in_flight.is_none() && !lead.is_behind() && lead.cursor >= self.safe
        };
        self.calls.load(Ordering::Acquire)
            && self.stopping.is_none()
            && !self.hinted
            && self.ask_first.is_none()
            && self.safe >= self.head
            && now >= self.news_at + self.ttl * CALM
            && self.leads().all(at_rest)
    }

    /// Records that there may be new events.
    fn hint(&mut self) {
        let now = Instant::now();
        self.hinted = true;
        self.news_at = now;
        if self.long_lease && self.ask_first.is_none() {
            (self.ask_first, self.tend_at) = (Some(now), now);
        }
        for lead in self.strands.iter_mut().filter_map(|strand| strand.lead.as_mut()) {
            lead.rhythm.hinted(now);
        }
    }

    /// Whether all requests and batches that were running when the relay stopped have ended, or had
    /// their time.
    fn is_over(&self, now: Instant) -> bool {
        let Some(deadline) = self.stopping else { return false };
        let resting = |lead: &Lead| lead.in_flight.is_none() && !lead.is_behind();
        let asks_nothing = !self.saving && !self.tending && self.frontier.is_some();
        (asks_nothing && self.leads().all(resting)) || now >= deadline + GRACE
    }

    async fn hand_over(mut self) {
        // In a task of its own, which is not cancelled: a database that hangs must not keep the
        // process from ending.
        let (log, node, safe) = (self.log.clone(), self.node.clone(), self.safe);
        let leaving = tokio::spawn(async move {
            log.leave(&node).await?;
            log.ring().await;
            log.note_decided(safe).await
        });
        let left = match tokio::time::timeout(GRACE, leaving).await {
            Ok(Ok(left)) => left,
            Ok(Err(ended)) => Err(Error::Store(ended.to_string())),
            Err(_) => Err(Error::Store("no answer in time".to_owned())),
        };
        if let Err(error) = left {
            let what = "could not hand over publishers: other nodes take them when this node's lease runs out";
            self.complain(&error, what);
        }
        self.strands.iter_mut().for_each(Strand::lose);
    }
}

/// Listens for appends of other processes, where the database has notifications.
pub(crate) async fn listen(engine: Arc<Engine>, bell: Arc<Notify>) {
    let (store, monitor, stop) = (engine.store.clone(), &engine.monitor, engine.stop.clone());
    let ears = Ears { bell, calls: engine.log_calls.clone() };
    let hear = async {
        loop {
            let error = match store.listen().await {
                Ok(Some(mut listener)) => {
                    monitor.succeeded(RelayTask::LogWatch);
                    let Err(error) = ears.hear(&mut *listener).await;
                    tracing::debug!(store = store.name(), %error, "lost the connection for notifications of appends: polling");
                    error
                }
                Ok(None) => return monitor.rests(RelayTask::LogWatch),
                Err(error) => {
                    tracing::debug!(store = store.name(), %error, "cannot be notified of appends elsewhere: polling");
                    error
                }
            };
            ears.have_calls(false);
            monitor.failed(RelayTask::LogWatch, &error.to_string());
            tokio::time::sleep(DEAF).await;
        }
    };
    // The dropped future listens, holds locks that end with its connection, and nothing else.
    tokio::select! {
        () = hear => {}
        () = stop.cancelled() => {}
    }
}

/// Notifies the log relay of appends by other processes, and records whether it will be notified of
/// the next one.
struct Ears {
    bell: Arc<Notify>,
    calls: Arc<AtomicBool>,
}

impl Ears {
    async fn hear(&self, listener: &mut dyn Listener) -> Result<std::convert::Infallible> {
        let mut pause = LULL;
        loop {
            match listener.ask_for_calls().await? {
                Calls::Unsupported => {
                    listener.heard().await?;
                    self.bell.notify_one();
                }
                Calls::Armed => {
                    pause = LULL;
                    // Appends committed before this moment are not notified of: the log relay polls
                    // once more.
                    self.have_calls(true);
                    listener.heard().await?;
                    self.have_calls(false);
                    listener.end_calls().await?;
                    tokio::time::sleep(LULL).await;
                }
                Calls::ByAnother => {
                    if !self.calls.load(Ordering::Acquire) {
                        self.have_calls(true);
                    }
                    if let Ok(heard) = tokio::time::timeout(STANDBY, listener.heard()).await {
                        heard?;
                        self.bell.notify_one();
                    }
                }
                Calls::NotYet => {
                    if let Ok(heard) = tokio::time::timeout(pause, listener.heard()).await {
                        heard?;
                        self.bell.notify_one();
                    }
                    pause = (pause * 3 / 2).min(NOT_YET);
                }
            }
        }
    }

    fn have_calls(&self, calls: bool) {
        self.calls.store(calls, Ordering::Release);
        self.bell.notify_one();
    }
}

impl Drop for Ears {
    /// Also after a panic: no notification arrives any more, so the log relay has to poll.
    fn drop(&mut self) {
        self.have_calls(false);
    }
}

/// Checks that subscriptions are distinct, and their settings valid.
fn check(pairs: &[Pair]) -> Result<()> {
    let mut seen = HashSet::new();
    let mut topics: HashMap<&str, &Topic> = HashMap::new();
    for pair in pairs {
        pair.check()?;
        if !seen.insert(&pair.id) {
            return Err(Error::DuplicatePublisher {
                topic: pair.id.topic().to_owned(),
                publisher: pair.id.publisher().to_owned(),
            });
        }
        let topic = topics.entry(pair.id.topic()).or_insert(&pair.topic);
        if **topic != pair.topic {
            let name = pair.id.topic();
            return Err(Error::Setting(format!(
                "two topics named {name:?} have different rules: give each its own name"
            )));
        }
    }
    Ok(())
}
