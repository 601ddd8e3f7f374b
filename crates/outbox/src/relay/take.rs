//! Taking: one task reads or claims due events, and fills the cold queue.
//!
//! A pass reads windows forward from the cursor, where the last pass ended. Windows before the
//! cursor are not read again on every pass: while another transaction stays open for long, the
//! database cannot clean up settled rows, and each read from the start would scan all of them.
//! Rows before the cursor (late commits, rows that other nodes released) are found by a full pass,
//! which may use a small share of the time: nearly always it is cheap and runs at every poll.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::forward::PROBE_LOST;
use super::in_flight::Fence;
use super::key_queues::Pushed;
use super::queues::WorkUnit;
use super::settle::{EventVerdict, SettleRequest};
use super::{Engine, Job};
use crate::destination::Breaker;
use crate::error::Result;
use crate::escape::Escaped;
use crate::event::EventId;
use crate::fleet::share::PollTurn;
use crate::store::{Cursor, Holder, KeyQueueId, Origin, RelayTask, Routed, Settlement, Take, Taken, Verdict};

/// After a full pass that took some time, the next one comes no sooner than this many times that
/// time …
const FULL_PASS_SHARE: u32 = 20;

/// … but not later than this, or twice that time: events of a crashed node must not wait for
/// minutes because the database was slow once.
const LONGEST_FULL_PASS_PAUSE: Duration = Duration::from_secs(30);

/// Time from the start of a full pass with this cost to the start of the next one.
fn full_pass_pause(cost: Duration) -> Duration {
    (cost * FULL_PASS_SHARE).min(LONGEST_FULL_PASS_PAUSE.max(cost * 2))
}

/// How long an event has to be due before the cursor moves past it unread: transactions that commit
/// their events later than this are found by full passes. Also the shortest time between two such
/// moves.
const LATE_COMMIT: Duration = Duration::from_secs(1);

/// The first pause after a pass that took events. Doubles with every empty pass, up to the poll
/// interval.
const SHORTEST_PAUSE: Duration = Duration::from_millis(25);

/// While nothing is due, so many checks of one statement replace passes, which are transactions of
/// several statements.
const MAX_CHECKS: u32 = 10;

/// Time limit of such a check, which may have to wait for other reads; a pass follows instead.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// How many keys are resumed in one read.
const KEYS_AT_ONCE: usize = 128;

/// Limits of event types and destinations that are tracked for separate key queues. Events of other
/// types are delivered in the order of their whole key.
const MOST_TYPES: usize = 1_000;
const MOST_DESTINATIONS: usize = 64;

/// How many rows are scanned for a probe that no earlier event of its key holds back: rows of one
/// window, and windows.
const PROBE_WINDOW: usize = 64;
const PROBE_WINDOWS: usize = 32;

/// State of the taking task between passes.
pub(crate) struct Taker {
    engine: Arc<Engine>,
    /// Where the last pass ended; `None`: the next pass is a full pass.
    cursor: Option<Cursor>,
    /// The epoch that the cursor belongs to.
    epoch: i64,
    /// How many rows to scan next. Grows while windows come back full.
    window: usize,
    /// When the last full pass began, and what it cost.
    full: Option<(Instant, Duration)>,
    /// Whether that pass has not reached the end of the table yet.
    in_full: bool,
    /// The events that this relay takes; `None`: all.
    only: Option<Arc<Routed>>,
    /// When the cursor was last moved past events that this relay does not take.
    skipped_unrouted_at: Option<Instant>,
    /// Types that the last pass skipped: their destination is unavailable, their handler is called
    /// as often as its limit allows, or they are paused.
    unavailable_types: BTreeSet<String>,
    /// The last event that was taken as a probe, by destination. The next probe is another event.
    probed: HashMap<u64, Cursor>,
    /// Whether events may go to more than one destination.
    may_split: bool,
    /// Event types seen so far.
    types: BTreeSet<String>,
    /// Destination of each type, if there is more than one destination.
    destinations: BTreeMap<String, u64>,
}

/// Why a pass ended.
#[derive(Debug, PartialEq, Eq)]
enum PassEnd {
    /// Nothing more is due.
    Empty,
    /// The cold queue is full, or the byte budget is used up.
    Full,
    /// This node may not take now: another one leads, or its presence has lapsed.
    NotHeld,
}

/// Result of queueing a window that was read.
struct Enqueued {
    /// How many events were queued or dead-lettered.
    count: usize,
    /// Whether all events of the window were queued.
    all: bool,
    /// Whether events of keys wait for the verdict on an event that cannot be decoded, which an
    /// earlier read found.
    waits: bool,
}

/// Result of reading one window.
struct WindowRead {
    /// How many events were queued or dead-lettered.
    taken: usize,
    /// How many rows were scanned.
    scanned: usize,
    /// The cursor after them.
    cursor: Option<Cursor>,
    /// Whether everything that was read could be queued.
    whole: bool,
}

/// Times at which events will be due.
#[derive(Default)]
pub(crate) struct DueTimer {
    times: Mutex<BTreeSet<Instant>>,
    set: tokio::sync::Notify,
}

impl DueTimer {
    /// More than this many times are not remembered: the poll interval covers the rest.
    const MOST: usize = 1_000;

    /// Adds a time at which an event will be due.
    pub(crate) fn at(&self, time: Instant) {
        let mut times = self.times.lock().expect("no code panics while it holds this lock");
        let first = times.first().is_none_or(|first| time < *first);
        times.insert(time);
        if times.len() > Self::MOST {
            times.pop_last();
        }
        drop(times);
        if first {
            self.set.notify_one();
        }
    }

    /// Waits for the next time, and removes it and all earlier ones.
    async fn next(&self) {
        loop {
            let first = self.times.lock().expect("no code panics while it holds this lock").first().copied();
            match first {
                None => self.set.notified().await,
                Some(time) if time <= Instant::now() => break,
                Some(time) => {
                    tokio::select! {
                        () = self.set.notified() => {}
                        () = tokio::time::sleep_until(time.into()) => break,
                    }
                }
            }
        }
        // The database's clock is finer than this one: a little later, so as not to be early.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now = Instant::now();
        self.times.lock().expect("no code panics while it holds this lock").retain(|time| *time > now);
    }
}

/// The taking task.
pub(crate) async fn run(engine: Arc<Engine>, taker: Arc<tokio::sync::Mutex<Taker>>) {
    // After a panic it is unknown how far the last pass came.
    taker.lock().await.cursor = None;
    let longest = engine.settings.poll_interval;
    let mut pause = SHORTEST_PAUSE.min(longest);
    let mut failures = 0u32;
    // Checks since the last pass, which found nothing; `None`: a pass comes next.
    let mut checks: Option<u32> = None;
    while !engine.stop.is_cancelled() {
        checks = checks.filter(|checks| *checks < MAX_CHECKS);
        if let Some(checks) = &mut checks
            && nothing_is_due(&engine).await
        {
            *checks += 1;
        } else {
            checks = None;
        }
        let mut may_take = false;
        let passed = match checks {
            Some(_) => Ok((0, PassEnd::Empty)),
            None => taker.lock().await.pass().await,
        };
        engine.progress.notify_waiters();
        match passed {
            Ok((taken, end)) => {
                failures = 0;
                may_take = end != PassEnd::NotHeld;
                pause = if taken > 0 { SHORTEST_PAUSE.min(longest) } else { (pause * 2).min(longest) };
                if checks.is_none() && taken == 0 && end == PassEnd::Empty && pause == longest {
                    checks = Some(0);
                }
                if end == PassEnd::Full {
                    tokio::select! {
                        () = engine.wait_for_capacity() => {}
                        () = engine.stop.cancelled() => {}
                    }
                    continue;
                }
            }
            Err(error) => {
                failures += 1;
                pause = Duration::from_millis(100).saturating_mul(1 << failures.min(6)).min(longest);
                tracing::error!(store = engine.name(), %error, retry_in = ?pause, "could not take events");
            }
        }
        // Only a read shows what is left of resumable keys.
        if may_take && engine.key_queues.has_resumable() {
            continue;
        }
        // Jitter: the databases of a fleet are not polled at the same moment.
        let sleep = if engine.fleet.is_some() { pause.mul_f64(rand::random_range(0.9..=1.1)) } else { pause };
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = engine.wake.notified() => checks = None,
            () = engine.due_timer.next() => checks = None,
            () = engine.stop.cancelled() => {}
        }
    }
}

/// Whether no event is due, takeable or not. Not checked where a take is one statement anyway.
async fn nothing_is_due(engine: &Engine) -> bool {
    if engine.ownership.is_exclusive()
        || engine.fleet.is_some()
        || engine.in_flight.present_for(Instant::now()).is_none()
    {
        return false;
    }
    let due = tokio::time::timeout(CHECK_TIMEOUT, engine.store.oldest_due()).await;
    if !matches!(due, Ok(Ok(None))) {
        return false;
    }
    engine.monitor.succeeded(RelayTask::Take);
    true
}

impl Engine {
    /// Waits until the cold queue is half empty, and the byte budget allows a read.
    async fn wait_for_capacity(&self) {
        self.queues.wait_for_free().await;
        self.settings.bytes.wait_for_available().await;
    }
}

impl Taker {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let may_split = engine.routes.may_split();
        let types = engine.routes.types().take(MOST_TYPES).map(str::to_owned).collect();
        Self {
            window: engine.settings.batch,
            engine,
            cursor: None,
            epoch: 0,
            full: None,
            in_full: false,
            only: None,
            skipped_unrouted_at: None,
            unavailable_types: BTreeSet::new(),
            probed: HashMap::new(),
            may_split,
            types,
            destinations: BTreeMap::new(),
        }
    }

    /// A pass over all due events. Returns how many events were taken.
    pub(crate) async fn full_pass(&mut self) -> Result<usize> {
        self.cursor = None;
        Ok(self.pass().await?.0)
    }

    /// Takes due events until there are no more, or the queue is full.
    async fn pass(&mut self) -> Result<(usize, PassEnd)> {
        let mut total = 0;
        let Some(epoch) = self.engine.ownership.epoch() else {
            self.engine.monitor.idle(RelayTask::Take);
            return Ok((0, PassEnd::NotHeld));
        };
        if self.epoch != epoch {
            (self.epoch, self.cursor) = (epoch, None);
        }
        if self.full.is_none_or(|(began, cost)| began.elapsed() >= full_pass_pause(cost)) {
            self.cursor = None;
        }
        if self.engine.rescan.swap(false, Ordering::AcqRel) {
            self.cursor = None;
        }
        self.refresh_routes();
        self.refresh_destinations();
        let mut turn = None;
        loop {
            if self.engine.stop.is_cancelled() {
                return Ok((total, PassEnd::Empty));
            }
            // A destination may have become unavailable since the last read: no more events are
            // taken for it.
            let unavailable = self.refresh_unavailable();
            total += self.probe(&unavailable).await?;
            let capacity = self.engine.queues.cold_free();
            if capacity == 0 || self.engine.settings.bytes.available().is_none() {
                return Ok((total, PassEnd::Full));
            }
            if let Some(fleet) = &self.engine.fleet {
                tokio::select! {
                    next = fleet.turn(turn.take()) => turn = next,
                    () = self.engine.stop.cancelled() => return Ok((total, PassEnd::Empty)),
                }
            }
            if self.cursor.is_some() {
                let resumable = self.engine.key_queues.take_resumable(KEYS_AT_ONCE.min(capacity));
                if !resumable.is_empty() {
                    let Some(taken) = self.resume_keys(resumable, capacity).await? else {
                        return Ok((total, PassEnd::NotHeld));
                    };
                    PollTurn::gave(&mut turn, taken);
                    total += taken;
                    continue;
                }
            }
            let full = self.cursor.is_none();
            if full {
                // A full pass sees every key, so no key needs to be remembered as skipped.
                self.engine.key_queues.forget_skipped();
            }
            let began = Instant::now();
            let limit = self.limit(capacity, full);
            let from = self.cursor.map_or(Origin::Start, Origin::After);
            let Some(WindowRead { taken, scanned, cursor, whole }) =
                self.read(from, limit, capacity, None).await?
            else {
                return Ok((total, PassEnd::NotHeld));
            };
            PollTurn::gave(&mut turn, taken);
            total += taken;
            if full {
                self.full = Some((began, Duration::ZERO));
                self.in_full = true;
            }
            // Cost of a full pass beyond taking events that had to be taken anyway: its first read,
            // and all rows that it scans in vain until it reaches the end.
            if let Some((_, cost)) = self.full.as_mut().filter(|_| self.in_full) {
                let vain = if full { 1.0 } else { 1.0 - taken as f64 / scanned.max(1) as f64 };
                *cost += began.elapsed().mul_f64(vain.clamp(0.0, 1.0));
            }
            self.in_full &= scanned >= limit;
            if let Some((_, cost)) = self.full.filter(|_| !self.in_full) {
                self.engine.full_pass_micros.store(cost.as_micros() as u64, Ordering::Relaxed);
            }
            self.cursor = cursor.or(self.cursor);
            if scanned < limit {
                self.window = self.engine.settings.batch;
                if self.refresh_destinations() {
                    // Events that were held back may be takeable.
                    continue;
                }
                if whole {
                    self.skip_unrouted(began).await;
                }
                return Ok((total, PassEnd::Empty));
            }
            self.window = (self.window * 2).min(self.engine.settings.cold_capacity.div_ceil(2));
        }
    }

    /// How many rows to scan: the window, or a power of two, so that there are few different
    /// statements.
    fn limit(&self, capacity: usize, full: bool) -> usize {
        let window = if self.window <= capacity { self.window } else { 1 << capacity.ilog2() };
        if full && self.engine.ownership.is_exclusive() {
            // The events that this node holds are still pending in the table, and are read again.
            (window + self.engine.in_flight.len()).next_power_of_two()
        } else {
            window
        }
    }

    /// Resumes keys with skipped rows. `None` if this node may not take now: the keys stay
    /// resumable.
    async fn resume_keys(&mut self, keys: Vec<Arc<str>>, capacity: usize) -> Result<Option<usize>> {
        // Before the read: the events of a key may be settled before this returns, and make the key
        // resumable again.
        self.engine.key_queues.mark_skipped(keys.clone());
        let limit = 1 << capacity.ilog2();
        let read = self.read(Origin::Keys(keys.clone()), limit, capacity, None).await?;
        if read.is_none() {
            self.engine.key_queues.mark_resumable(keys);
        }
        Ok(read.map(|read| read.taken))
    }

    /// Updates the types whose destination is unavailable. If they have changed, a full pass comes
    /// next.
    fn refresh_unavailable(&mut self) -> Vec<(Arc<Breaker>, Vec<String>)> {
        let engine = &self.engine;
        let mut unavailable = engine.outages.types(&engine.routes);
        for (_, types) in &mut unavailable {
            types.retain(|event_type| !engine.paused.contains(event_type));
        }
        let mut unavailable_types: BTreeSet<String> =
            unavailable.iter().flat_map(|(_, types)| types).cloned().collect();
        unavailable_types.extend(engine.limits.full_types());
        unavailable_types.extend(engine.paused.types());
        if unavailable_types != self.unavailable_types {
            // The skipped rows lie before the cursor.
            (self.unavailable_types, self.cursor) = (unavailable_types, None);
        }
        unavailable
    }

    /// Updates the set of events that this relay takes. If it has changed, a full pass comes next.
    fn refresh_routes(&mut self) {
        let only = self.engine.routes.routed();
        if only != self.only {
            (self.only, self.cursor) = (only, None);
        }
    }

    /// Moves the cursor past events that this relay does not take, after a pass whose last read
    /// began then and found all events that it does take. Otherwise every pass would scan them
    /// again, and as long as this relay takes none, every pass would be a full one.
    async fn skip_unrouted(&mut self, began: Instant) {
        if self.only.is_none() || self.skipped_unrouted_at.is_some_and(|at| at.elapsed() < LATE_COMMIT) {
            return;
        }
        self.skipped_unrouted_at = Some(Instant::now());
        let settings = &self.engine.settings;
        // Excludes rows that became due, or old enough, after that read.
        let longer_than = LATE_COMMIT + settings.skip_recent + began.elapsed();
        match self.engine.store.last_due(longer_than).await {
            Ok(cursor) => self.cursor = self.cursor.max(cursor),
            // The next pass only scans a few rows more.
            Err(error) => {
                tracing::debug!(store = self.engine.name(), %error, "could not find the last due event");
            }
        }
    }

    /// Updates the destination of each event type. True if one has changed: then a full pass comes
    /// next.
    fn refresh_destinations(&mut self) -> bool {
        if !self.may_split {
            return false;
        }
        let routes = &self.engine.routes;
        let breaker = |event_type: &str| Some(routes.destination_of_type(&event_type.into())?.breaker.id);
        let known = self.types.iter().filter_map(|name| Some((name.clone(), breaker(name)?)));
        let mut destinations: BTreeMap<String, u64> = known.collect();
        let breakers: BTreeSet<u64> = destinations.values().copied().collect();
        if breakers.len() < 2 {
            destinations.clear();
        } else if let Some(first) = breakers.iter().nth(MOST_DESTINATIONS) {
            destinations.retain(|_, breaker| *breaker < *first);
        }
        if destinations == self.destinations {
            return false;
        }
        let moved = |(name, breaker): (&String, &u64)| destinations.get(name) != Some(breaker);
        if self.destinations.iter().any(moved) {
            // The queued events were assigned to key queues by the old destinations.
            self.engine.key_queues.invalidate();
        }
        (self.destinations, self.cursor) = (destinations, None);
        true
    }

    /// Takes one event for each destination that may be available again.
    async fn probe(&mut self, unavailable: &[(Arc<Breaker>, Vec<String>)]) -> Result<usize> {
        let mut total = 0;
        for (breaker, types) in unavailable {
            if self.engine.queues.cold_free() == 0 || !self.engine.outages.begin_probe(breaker) {
                continue;
            }
            total += usize::from(self.probe_one(breaker.id, types).await?);
            // A probe that is taken may still be released before it is sent.
            self.engine.due_timer.at(Instant::now() + PROBE_LOST);
        }
        Ok(total)
    }

    /// Takes one event of these types, after the last one that was taken as a probe. False if there
    /// is none.
    async fn probe_one(&mut self, breaker: u64, types: &[String]) -> Result<bool> {
        let mut from = self.probed.get(&breaker).map_or(Origin::Start, |cursor| Origin::After(*cursor));
        for _ in 0..PROBE_WINDOWS {
            let is_start = from == Origin::Start;
            let read = self.read(from, PROBE_WINDOW, 1, Some(types.to_vec())).await?;
            let Some(WindowRead { taken, scanned, cursor, .. }) = read else { return Ok(false) };
            self.probed.extend(cursor.map(|cursor| (breaker, cursor)));
            if taken > 0 {
                return Ok(true);
            }
            from = match cursor.filter(|_| scanned == PROBE_WINDOW) {
                Some(cursor) => Origin::After(cursor),
                None if is_start => return Ok(false),
                None => Origin::Start,
            };
        }
        Ok(false)
    }

    /// Reads one window and queues the events that were taken.
    async fn read(
        &mut self,
        from: Origin,
        limit: usize,
        capacity: usize,
        probe: Option<Vec<String>>,
    ) -> Result<Option<WindowRead>> {
        let engine = self.engine.clone();
        let asked = Instant::now();
        let Some(by) = engine.ownership.holder() else { return Ok(None) };
        if matches!(by, Holder::Lease { .. }) && engine.in_flight.present_for(asked).is_none() {
            // Other nodes may release every lease that this node takes now.
            let why = "this relay could not announce itself in time, and takes no events until it has";
            engine.monitor.failed(RelayTask::Take, why);
            return Ok(None);
        }
        engine.in_flight.begin_read();
        let take = Take {
            held_up_to: engine.key_queues.begin_read(),
            group_lease: true,
            by,
            from,
            limit,
            skip_recent: engine.settings.skip_recent,
            on_dead: engine.settings.on_dead,
            skip_types: if probe.is_some() {
                Vec::new()
            } else {
                self.unavailable_types.iter().cloned().collect()
            },
            only: self.only.clone(),
            probe,
            destinations: self.destinations.clone(),
            max_bytes: engine.settings.bytes.available().unwrap_or_default(),
            by_aggregate: engine.settings.mode.orders_by_aggregate(),
        };
        engine.monitor.began(RelayTask::Take);
        let taken = match engine.store.take(&take).await {
            Ok(taken) => taken,
            Err(error) => {
                engine.monitor.failed(RelayTask::Take, &error.to_string());
                return Err(error);
            }
        };
        engine.monitor.succeeded(RelayTask::Take);
        if self.may_split {
            let seen = taken.deliveries.iter().map(|d| d.event.event_type().as_str());
            for event_type in seen.chain(taken.skipped_types.iter().map(String::as_str)) {
                if self.types.len() < MOST_TYPES && !self.types.contains(event_type) {
                    self.types.insert(event_type.to_owned());
                }
            }
        }
        if let Origin::Keys(asked) = &take.from {
            let keys = taken.deliveries.iter().filter_map(|d| d.event.ordering_key());
            let found: HashSet<&str> = keys.chain(taken.blocked_keys.iter().map(|key| &**key)).collect();
            engine.key_queues.clear_skipped(asked.iter().filter(|key| !found.contains(&***key)));
        }
        let is_full = take.from == Origin::Start && take.probe.is_none();
        if let Some(oldest) = taken.deliveries.iter().map(|d| d.waited).max().filter(|_| is_full) {
            engine.metrics.oldest_lag_ms.set(oldest.as_secs_f64() * 1_000.0);
        }
        let (mut scanned, mut cursor, unkeyed) = (taken.scanned, taken.cursor, taken.unkeyed);
        // A panic halfway would leave events held, and renewed, that are in no queue.
        let enqueued =
            engine.supervisor.all_or_nothing(RelayTask::Take, || self.enqueue(taken, &take, asked, capacity));
        let Some(Enqueued { count, all, waits }) = enqueued else { return Ok(None) };
        if !all {
            // Not every event could be queued: the next read starts at the beginning.
            cursor = None;
        }
        if unkeyed > 0 {
            // Written by a transaction from before this mode was switched on. The window is read
            // again: at once, or with the next pass if another relay has set the keys of the
            // events.
            cursor = None;
            if engine.store.order_by_aggregate().await? > 0 {
                scanned = limit;
            }
        }
        if waits {
            // Not before the verdict is written, which wakes the taker.
            scanned = 0;
        }
        let (hot, cold) = engine.queues.depths();
        engine.metrics.hot_depth.set(hot as f64);
        engine.metrics.cold_depth.set(cold as f64);
        Ok(Some(WindowRead { taken: count, scanned, cursor, whole: all && !waits && unkeyed == 0 }))
    }

    /// Queues the events that were taken.
    fn enqueue(&self, taken: Taken, take: &Take, asked: Instant, capacity: usize) -> Enqueued {
        let engine = &self.engine;
        let lease = match &take.by {
            Holder::Lease { lease, .. } => Some(*lease),
            Holder::Exclusive { .. } => None,
        };
        let epoch = match &take.by {
            Holder::Lease { .. } => 0,
            Holder::Exclusive { epoch, .. } => *epoch,
        };
        engine.key_queues.mark_skipped(taken.blocked_keys);
        if taken.dead_lettered > 0 {
            // Later events of their keys may be takeable now.
            engine.request_rescan();
        }
        let mut settlements = Vec::new();
        let undecodable = !taken.undecodable.is_empty();
        let mut dead_lettered = 0;
        for (id, claim, reason) in taken.undecodable {
            if self.admit(&id, super::fence(epoch, claim), asked, lease, false) {
                tracing::error!(store = engine.name(), event = %Escaped(&id), reason, "an event cannot be decoded");
                let verdict =
                    Verdict::Dead { counted: false, reason: format!("cannot be decoded: {reason}") };
                settlements.push(Settlement { id, claim, verdict });
                dead_lettered += 1;
            }
        }
        let mut units = Vec::new();
        let mut keyed = Vec::new();
        let mut count = 0;
        let mut all = true;
        for mut delivery in taken.deliveries {
            if count >= capacity {
                all = false;
                break;
            }
            if undecodable && delivery.event.ordering_key().is_some() {
                // The event may come after one that cannot be decoded, whose key is unknown: it is
                // read again when that one is dead.
                all = false;
                let (id, claim) = (delivery.event.id().clone(), delivery.claim);
                let suspect = delivery.suspect.is_some();
                if lease.is_some() && self.admit(&id, super::fence(epoch, claim), asked, lease, suspect) {
                    let verdict = delivery.released();
                    settlements.push(Settlement { id, claim, verdict });
                }
                continue;
            }
            let (fence, suspect) = (super::fence(epoch, delivery.claim), delivery.suspect.is_some());
            if !self.admit(delivery.event.id(), fence, asked, lease, suspect) {
                continue;
            }
            // Only events that this node does not hold already: a leader reads those again and
            // again.
            if lease.is_none() && !suspect && engine.ownership.next_is_suspect() {
                delivery.suspect = Some(0);
            }
            let memory = Some(Arc::new(engine.settings.bytes.reserve(delivery.event.bytes())));
            let job = Job { delivery, epoch, taken: asked, cold: true, memory };
            count += 1;
            match job.delivery.event.key().cloned() {
                Some(key) => {
                    let destination =
                        take.destinations.get(job.delivery.event.event_type().as_str()).copied();
                    keyed.push((KeyQueueId { key, destination }, job));
                }
                None => units.push(WorkUnit::One(job)),
            }
        }
        if !settlements.is_empty() {
            engine.settle_later(SettleRequest::Verdicts {
                entries: settlements.into_iter().map(EventVerdict::to_write).collect(),
                epoch,
                key: None,
                halted: false,
                urgent: true,
            });
        }
        engine.queues.count_cold(count);
        if !keyed.is_empty() {
            let Pushed { scheduled, refused } = engine.key_queues.push(keyed);
            units.extend(scheduled.into_iter().map(WorkUnit::Key));
            engine.queues.uncount_cold(refused.len());
            count -= refused.len();
            if lease.is_none() {
                refused.iter().for_each(|job| engine.in_flight.forget(job.delivery.event.id(), job.fence()));
            } else if !refused.is_empty() {
                let entries = refused.iter().map(|job| job.event_verdict(job.released())).collect();
                engine.settle_later(SettleRequest::Verdicts {
                    entries,
                    epoch,
                    key: None,
                    halted: false,
                    urgent: true,
                });
            }
        }
        engine.metrics.cold_enqueued.increment(count as u64);
        engine.queues.push_cold(units);
        // An event that cannot be decoded was taken as well: `idle` waits until it is
        // dead-lettered.
        let waits = undecodable && dead_lettered == 0;
        Enqueued { count: count + dead_lettered, all, waits }
    }

    /// Records that this node holds the event. False if it is queued already, or has just been
    /// settled.
    fn admit(
        &self,
        id: &EventId,
        fence: Fence,
        asked: Instant,
        lease: Option<Duration>,
        suspect: bool,
    ) -> bool {
        match lease {
            Some(lease) => self.engine.in_flight.admit_claimed(id, fence, asked, lease, suspect),
            None => self.engine.in_flight.admit(id, fence, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_passes_take_a_small_share_of_the_time_and_come_soon_enough_nevertheless() {
        let seconds = Duration::from_secs;
        assert_eq!(full_pass_pause(Duration::from_millis(10)), Duration::from_millis(200));
        assert_eq!(full_pass_pause(seconds(1)), seconds(20));
        assert_eq!(full_pass_pause(seconds(5)), seconds(30));
        assert_eq!(full_pass_pause(seconds(20)), seconds(40), "never more than half of the time");
    }
}
