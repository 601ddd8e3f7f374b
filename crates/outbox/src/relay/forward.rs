//! Forwarding: workers send events to publishers, in batches.
//!
//! A worker that takes an event for a destination adds other queued events for the same
//! destination. The events of a key stay in their order, and behind one that was not published the
//! rest of its key is released. While a destination is unavailable its events are not taken from
//! the table at all, if their type determines the destination; one of them is, as a probe.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::dispatch::{Ready, RunningSuspects, after, before, decide_safely, guarded, log_verdict, ready};
use super::key_queues::{KeyQueueRef, TURN};
use super::queues::WorkUnit;
use super::routes::Routes;
use super::settle::{EventVerdict, SettleRequest};
use super::{Engine, Job};
use crate::destination::{Breaker, BreakerDecision, BreakerPhase, Destination, Probe};
use crate::event::{Event, EventId, EventType};
use crate::handler::{Context, Failure, Interceptor, Outcome};
use crate::log::{EventResult, Outgoing, PublishError};
use crate::poison::Admitted;
use crate::retry::Backoff;
use crate::store::{NodeOutage, Verdict};

/// Most events in one batch.
const MAX_BATCH: usize = 250;

/// Delay of an event that cannot be left in the table until its destination is available again: the
/// duration of the outage, within these limits.
const SNOOZE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Time between two such events of one destination: bounds the writes of an outage, however many
/// events wait.
const SNOOZE_SPACING: Duration = Duration::from_millis(10);

/// The longest delay of an event.
const LONGEST_SNOOZE: Duration = Duration::from_secs(300);

/// A probe that was taken and not sent counts as lost after this.
pub(super) const PROBE_LOST: Duration = Duration::from_secs(2);

/// Result of publishing one event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sent {
    Done,
    Failed(Failure),
    /// Not sent: it waits behind one that was not published.
    NotAttempted,
    /// Not sent, or not known to have arrived: the destination is unavailable.
    Unavailable,
}

impl Sent {
    /// The result as a handler would return it.
    pub(super) fn into_handled(self) -> Result<Outcome, Failure> {
        match self {
            Sent::Done => Ok(Outcome::Done),
            Sent::Failed(failure) => Err(failure),
            Sent::NotAttempted | Sent::Unavailable => Ok(Outcome::Snooze(SNOOZE.0)),
        }
    }
}

/// Publishes a work unit, and other queued events for the same destination.
pub(super) async fn forward(engine: &Arc<Engine>, unit: WorkUnit, to: &Destination) {
    let Some(batch) = PublishBatch::gather(engine, unit, to) else { return };
    let mut admitted = None;
    let verdicts = batch.publish(engine, to, &mut admitted).await;
    batch.settle(engine, verdicts).await;
}

/// Events for one destination, those of each key in order.
struct PublishBatch {
    jobs: Vec<Job>,
    /// The key queues that this worker has, and the range of jobs of each.
    key_queues: Vec<(KeyQueueRef, Range<usize>)>,
}

impl PublishBatch {
    fn gather(engine: &Engine, first: WorkUnit, to: &Destination) -> Option<Self> {
        let mut batch = Self { jobs: Vec::new(), key_queues: Vec::new() };
        batch.add(engine, first, to);
        if batch.jobs.first().is_some_and(|job| !job.delivery.must_run_alone()) {
            let wanted = |unit: &WorkUnit| match unit {
                WorkUnit::One(job) => engine.fits_batch(job, to),
                WorkUnit::Key(queue) => {
                    queue.id.destination.is_none_or(|breaker| breaker == to.breaker.id)
                        && engine.key_queues.peek(queue, |job| engine.fits_batch(job, to)).unwrap_or(false)
                }
                // It goes to a handler.
                WorkUnit::Admitted(..) => false,
            };
            while batch.jobs.len() < MAX_BATCH {
                let more = engine.queues.take_more(MAX_BATCH - batch.jobs.len(), wanted);
                if more.is_empty() {
                    break;
                }
                more.into_iter().for_each(|unit| batch.add(engine, unit, to));
            }
        }
        // A queue whose next event goes to another destination by now still needs a worker.
        (!batch.jobs.is_empty() || !batch.key_queues.is_empty()).then_some(batch)
    }

    fn add(&mut self, engine: &Engine, unit: WorkUnit, to: &Destination) {
        match unit {
            WorkUnit::One(job) => {
                if job.cold {
                    engine.queues.uncount_cold(1);
                }
                self.jobs.push(job);
            }
            WorkUnit::Key(key) => {
                let first = self.jobs.is_empty();
                let alone = first
                    && engine.key_queues.peek(&key, |job| job.delivery.must_run_alone()).unwrap_or(false);
                let most = if alone { 1 } else { TURN.min(MAX_BATCH.saturating_sub(self.jobs.len()).max(1)) };
                let jobs = engine.key_queues.next_while(&key, most, |job| {
                    engine.goes_to(&job.delivery.event, to) && (alone || !job.delivery.must_run_alone())
                });
                engine.queues.uncount_cold(jobs.len());
                let start = self.jobs.len();
                self.jobs.extend(jobs);
                self.key_queues.push((key, start..self.jobs.len()));
            }
            WorkUnit::Admitted(unit, _) => self.add(engine, *unit, to),
        }
    }

    /// Publishes the events that may be published. `None` for an event that this node no longer
    /// holds.
    async fn publish<'a>(
        &self,
        engine: &'a Arc<Engine>,
        to: &Destination,
        admitted: &mut Option<Admitted<'a>>,
    ) -> Vec<Option<Verdict>> {
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(self.jobs.len());
        let mut stopped: HashSet<&str> = HashSet::new();
        let mut sending: Vec<(usize, Outgoing)> = Vec::with_capacity(self.jobs.len());
        let mut entered: HashMap<usize, (Context, usize)> = HashMap::new();
        let mut running = RunningSuspects::new(engine);
        for (index, job) in self.jobs.iter().enumerate() {
            let key = job.delivery.event.ordering_key();
            verdicts.push(Some(job.released()));
            if key.is_some_and(|key| stopped.contains(key)) {
                continue;
            }
            let verdict = match ready(engine, job, admitted).await {
                Ready::Run => self.intercept(engine, to, index, &mut entered).map(Some),
                Ready::Verdict(verdict) => Some(Some(verdict)),
                Ready::NotHeld => Some(None),
            };
            match verdict {
                None => {
                    running.add(job);
                    sending.push((index, outgoing(job)));
                }
                Some(verdict) => {
                    verdicts[index] = verdict;
                    stopped.extend(key);
                }
            }
        }
        let events: Vec<Outgoing> = sending.iter().map(|(_, outgoing)| outgoing.clone()).collect();
        let jobs = sending.iter().map(|(index, _)| &self.jobs[*index]);
        let jobs: HashMap<&EventId, &Job> = jobs.map(|job| (job.delivery.event.id(), job)).collect();
        let is_held = |event: &Outgoing| jobs.get(event.id()).is_some_and(|job| engine.may_start(job));
        let sent = publish(engine, &to.breaker, &events, &is_held).await;
        running.finished();
        if sent.contains(&Sent::Done) {
            engine.monitor.published(to.name());
        }
        for ((index, _), sent) in sending.iter().zip(sent) {
            let job = &self.jobs[*index];
            if let Some((cx, entered)) = entered.remove(index) {
                after(engine, &cx, entered, &sent.clone().into_handled());
            }
            let verdict = match sent {
                Sent::NotAttempted => cleared(job, job.released()),
                Sent::Unavailable => cleared(job, engine.snooze(&job.delivery.event, &to.breaker)),
                sent => decide(engine, job, sent.into_handled(), to),
            };
            log_verdict(engine, job, &verdict, true);
            verdicts[*index] = Some(verdict);
        }
        verdicts
    }

    /// Calls the interceptors. Returns a verdict if one refuses.
    fn intercept(
        &self,
        engine: &Engine,
        to: &Destination,
        index: usize,
        entered: &mut HashMap<usize, (Context, usize)>,
    ) -> Option<Verdict> {
        let interceptors: &[Arc<dyn Interceptor>] = &engine.routes.interceptors;
        if interceptors.is_empty() {
            return None;
        }
        let job = &self.jobs[index];
        let cx = Context::new(&job.delivery, &engine.scope);
        let (count, refused) = before(interceptors, &cx);
        let Some(failure) = refused else {
            entered.insert(index, (cx, count));
            return None;
        };
        let result = Err(failure);
        after(engine, &cx, count, &result);
        let verdict = decide(engine, job, result, to);
        log_verdict(engine, job, &verdict, true);
        Some(verdict)
    }

    /// Sends the verdicts to the settler, and continues or halts the key queues.
    async fn settle(self, engine: &Arc<Engine>, verdicts: Vec<Option<Verdict>>) {
        let mut verdicts = verdicts;
        for (queue, range) in &self.key_queues {
            let jobs = range.clone().map(|n| (&self.jobs[n], verdicts[n].take())).collect();
            settle_key_queue(engine, queue, jobs, false).await;
        }
        let mut unkeyed: HashMap<i64, Vec<EventVerdict>> = HashMap::new();
        for (job, verdict) in self.jobs.iter().zip(verdicts) {
            let entries = verdict.map(|verdict| job.event_verdict(verdict));
            unkeyed.entry(job.epoch).or_default().extend(entries);
        }
        for (epoch, entries) in unkeyed.into_iter().filter(|(_, entries)| !entries.is_empty()) {
            engine.settler.send(SettleRequest::verdicts(entries, epoch)).await;
        }
    }
}

/// Releases the events of a queue that go to another destination by now: events that are queued
/// there already must not come after them.
pub(super) async fn release_key_queue(engine: &Arc<Engine>, queue: &KeyQueueRef) {
    settle_key_queue(engine, queue, Vec::new(), true).await;
}

/// Settles the events of a queue, up to the first that is not done; the later ones, or all if
/// `halted`, are released.
async fn settle_key_queue(
    engine: &Arc<Engine>,
    queue: &KeyQueueRef,
    jobs: Vec<(&Job, Option<Verdict>)>,
    halted: bool,
) {
    let halted = halted
        || engine.key_queues.is_refused(queue)
        || jobs.iter().any(|(_, verdict)| *verdict != Some(Verdict::Done));
    let mut entries: HashMap<i64, Vec<EventVerdict>> = HashMap::new();
    for (job, verdict) in jobs {
        let verdict = verdict.map(|verdict| job.event_verdict(verdict));
        entries.entry(job.epoch).or_default().extend(verdict);
    }
    let rest = if halted { engine.key_queues.halt(queue) } else { Vec::new() };
    engine.queues.uncount_cold(rest.len());
    for job in &rest {
        entries.entry(job.epoch).or_default().push(job.event_verdict(job.released()));
    }
    let mut entries: Vec<(i64, Vec<EventVerdict>)> = entries.into_iter().collect();
    entries.sort_unstable_by_key(|(epoch, _)| *epoch);
    let last = entries.len().saturating_sub(1);
    for (n, (epoch, entries)) in entries.into_iter().enumerate() {
        let key = Some(queue.clone());
        engine
            .settler
            .send(SettleRequest::Verdicts {
                entries,
                epoch,
                key,
                halted: halted && n == last,
                urgent: halted,
            })
            .await;
    }
    if !halted && engine.key_queues.end_turn(queue) {
        engine.queues.push_cold(vec![WorkUnit::Key(queue.clone())]);
    }
}

/// The verdict on an event that was started and is released. It clears a suspect: the process is
/// still alive. Its start was counted, and an outage would have it dead-lettered at its fourth
/// probe.
fn cleared(job: &Job, verdict: Verdict) -> Verdict {
    if job.delivery.suspect.is_some() && verdict.is_release() {
        return Verdict::Again { after: Duration::ZERO, counted: false, error: None };
    }
    verdict
}

fn decide(engine: &Engine, job: &Job, result: Result<Outcome, Failure>, to: &Destination) -> Verdict {
    let settings = &engine.settings;
    let of_relay = settings.publish_retry.as_deref().or(settings.retry.as_deref());
    let policy = to.retry.as_deref().or(of_relay);
    decide_safely(engine.name(), result, job.delivery.attempts, policy, &Backoff::publishing())
}

pub(super) fn outgoing(job: &Job) -> Outgoing {
    let delivery = &job.delivery;
    Outgoing {
        attempt: delivery.attempts + 1,
        seq: delivery.seq,
        created_at: delivery.created_at,
        ..Outgoing::new(delivery.event.clone())
    }
}

/// Whether this node still holds an event: checked right before the event is sent, because a batch
/// may have waited for a suspect, or be sent one by one.
pub(super) type IsHeld<'a> = dyn Fn(&Outgoing) -> bool + Send + Sync + 'a;

/// Publishes a batch, and returns the result of each event. If the destination may be available
/// again after an outage, one event is sent first.
pub(super) async fn publish(
    engine: &Engine,
    breaker: &Arc<Breaker>,
    events: &[Outgoing],
    is_held: &IsHeld<'_>,
) -> Vec<Sent> {
    if events.is_empty() {
        return Vec::new();
    }
    if events.len() > 1
        && breaker.any_must_send_alone()
        && events.iter().any(|event| breaker.must_send_alone(event.id()))
    {
        return Box::pin(publish_suspects_last(engine, breaker, events, is_held)).await;
    }
    let probe = match breaker.admit() {
        BreakerDecision::Allowed => return send_held(engine, breaker, events, None, is_held).await,
        BreakerDecision::Refused => return vec![Sent::Unavailable; events.len()],
        BreakerDecision::Probe(probe) => probe,
    };
    let chosen = choose(events);
    let first = send_held(engine, breaker, &events[chosen..=chosen], Some(probe), is_held).await.pop();
    let first = first.unwrap_or(Sent::Unavailable);
    let rest: Vec<Outgoing> =
        events.iter().enumerate().filter(|(n, _)| *n != chosen).map(|(_, event)| event.clone()).collect();
    let mut sent = match first {
        Sent::Done => Box::pin(publish(engine, breaker, &rest, is_held)).await,
        _ => vec![Sent::Unavailable; rest.len()],
    };
    sent.insert(chosen, first);
    sent
}

/// The event of a batch that is the probe: a random one among the first events of their keys, so
/// that it is not always the same.
fn choose(events: &[Outgoing]) -> usize {
    let mut keys = HashSet::new();
    let is_first = |event: &Outgoing, keys: &mut HashSet<String>| {
        event.ordering_key().is_none_or(|key| keys.insert(key.to_owned()))
    };
    let firsts: Vec<usize> = (0..events.len()).filter(|n| is_first(&events[*n], &mut keys)).collect();
    firsts[rand::random_range(0..firsts.len())]
}

/// A publisher's answer to a batch.
enum Answer {
    Published,
    /// The publisher is not healthy: nothing was sent.
    Unhealthy(String),
    /// The destination is unavailable.
    Unavailable(PublishError, String),
    Failed(PublishError),
}

async fn call_publisher(breaker: &Breaker, events: &[Outgoing]) -> Answer {
    let publisher = &breaker.publisher;
    if let Err(unavailable) = publisher.health().await {
        return Answer::Unhealthy(unavailable.to_string());
    }
    match publisher.publish_batch(events).await {
        Ok(()) => Answer::Published,
        Err(error) if error.is_unavailable() => {
            let reason = error.to_string();
            Answer::Unavailable(error, reason)
        }
        // A failure that the publisher assigns to an event is that event's failure, whatever the
        // state of the destination.
        Err(error) if error.fate(0).is_some() => Answer::Failed(error),
        // The batch failed, and the destination is unavailable: that may be the cause.
        Err(error) => match publisher.health().await {
            Ok(()) => Answer::Failed(error),
            Err(unavailable) => Answer::Unavailable(error, unavailable.to_string()),
        },
    }
}

/// Sends those events of a batch that this node holds, of each key up to the first that it does
/// not.
async fn send_held(
    engine: &Engine,
    breaker: &Arc<Breaker>,
    events: &[Outgoing],
    probe: Option<Probe>,
    is_held: &IsHeld<'_>,
) -> Vec<Sent> {
    let held = sendable(events, is_held);
    if held.iter().all(|held| *held) {
        return send(engine, breaker, events, probe, is_held).await;
    }
    let rest: Vec<Outgoing> =
        events.iter().zip(&held).filter(|(_, held)| **held).map(|(event, _)| event.clone()).collect();
    let mut sent = if rest.is_empty() {
        Vec::new().into_iter()
    } else {
        send(engine, breaker, &rest, probe, is_held).await.into_iter()
    };
    held.iter()
        .map(|held| if *held { sent.next().unwrap_or(Sent::NotAttempted) } else { Sent::NotAttempted })
        .collect()
}

/// Which of the events are sent: those that are held, of each key up to the first that is not.
fn sendable(events: &[Outgoing], is_held: &IsHeld<'_>) -> Vec<bool> {
    let mut lost: HashSet<&str> = HashSet::new();
    let mut held = Vec::with_capacity(events.len());
    for event in events {
        let key = event.ordering_key();
        let goes = key.is_none_or(|key| !lost.contains(key)) && is_held(event);
        if !goes {
            lost.extend(key);
        }
        held.push(goes);
    }
    held
}

/// Sends a batch, which is one event if it is a probe.
async fn send(
    engine: &Engine,
    breaker: &Arc<Breaker>,
    events: &[Outgoing],
    probe: Option<Probe>,
    is_held: &IsHeld<'_>,
) -> Vec<Sent> {
    let all = |sent: Sent| vec![sent; events.len()];
    let unavailable = |probe: Option<Probe>, reason: &str| match probe {
        Some(probe) => probe.failed(reason),
        None => breaker.trip(reason),
    };
    let (began, limit) = (Instant::now(), engine.settings.handler_timeout);
    let answer = async { Ok(call_publisher(breaker, events).await) };
    let error = match guarded("the publisher", limit, answer).await {
        Ok(Answer::Published) => {
            breaker.record_success();
            breaker.forget(events.iter().map(|event| event.id()));
            if let Some(probe) = probe {
                probe.succeeded();
            }
            return all(Sent::Done);
        }
        Ok(Answer::Unhealthy(reason)) => {
            unavailable(probe, &reason);
            return all(Sent::Unavailable);
        }
        Ok(Answer::Unavailable(error, reason)) => {
            if error.published() > 0 {
                breaker.record_success();
            }
            unavailable(probe, &reason);
            let sent = |(index, event): (usize, &Outgoing)| match error.fate(index).map(sent_result) {
                Some(sent @ (Sent::Done | Sent::Failed(_))) => sent,
                _ if breaker.record_unavailable(event.id(), events.len() == 1) => Sent::Failed(
                    Failure::retry(format!("{reason} (the destination took other events meanwhile)")),
                ),
                _ => Sent::Unavailable,
            };
            return events.iter().enumerate().map(sent).collect();
        }
        Ok(Answer::Failed(error)) => error,
        // The batch timed out: so would each event.
        Err(failure) if began.elapsed() >= limit => {
            if let Some(probe) = probe {
                probe.failed(&failure.message);
            }
            return all(Sent::Failed(failure));
        }
        // The publisher panicked.
        Err(failure) => failure.into(),
    };
    if error.published() > 0 {
        breaker.record_success();
    }
    match probe {
        Some(probe) if error.published() > 0 => probe.succeeded(),
        Some(probe) => probe.refused(),
        None => {}
    }
    match (error.fate(0), events) {
        (Some(_), _) => {
            (0..events.len()).map(|index| error.fate(index).map_or(Sent::NotAttempted, sent_result)).collect()
        }
        (None, [_]) => all(Sent::Failed(error.failure)),
        // The failure is not assigned to an event: sending one by one finds the event.
        (None, _) => Box::pin(publish_each(engine, breaker, events, is_held)).await,
    }
}

fn sent_result(fate: EventResult) -> Sent {
    match fate {
        EventResult::Published => Sent::Done,
        EventResult::Failed(failure) => Sent::Failed(failure),
        EventResult::NotAttempted => Sent::NotAttempted,
    }
}

/// Publishes first the events that need not be sent alone; then one by one those for which the
/// destination was unavailable while it accepted others, and the later events of their keys.
async fn publish_suspects_last(
    engine: &Engine,
    breaker: &Arc<Breaker>,
    events: &[Outgoing],
    is_held: &IsHeld<'_>,
) -> Vec<Sent> {
    let mut keys: HashSet<&str> = HashSet::new();
    let (mut good, mut suspect) = (Vec::new(), Vec::new());
    for (index, event) in events.iter().enumerate() {
        let key = event.ordering_key();
        if breaker.must_send_alone(event.id()) || key.is_some_and(|key| keys.contains(key)) {
            keys.extend(key);
            suspect.push(index);
        } else {
            good.push(index);
        }
    }
    let of = |indexes: &[usize]| indexes.iter().map(|n| events[*n].clone()).collect::<Vec<_>>();
    let mut sent = vec![Sent::NotAttempted; events.len()];
    let mut stopped: HashSet<&str> = HashSet::new();
    for (index, one) in good.iter().zip(publish(engine, breaker, &of(&good), is_held).await) {
        if one != Sent::Done {
            stopped.extend(events[*index].ordering_key());
        }
        sent[*index] = one;
    }
    let suspect: Vec<usize> = suspect
        .into_iter()
        .filter(|n| events[*n].ordering_key().is_none_or(|key| !stopped.contains(key)))
        .collect();
    for (index, one) in suspect.iter().zip(publish_each(engine, breaker, &of(&suspect), is_held).await) {
        sent[*index] = one;
    }
    sent
}

/// Publishes one by one, of each key up to the first that fails.
async fn publish_each(
    engine: &Engine,
    breaker: &Arc<Breaker>,
    events: &[Outgoing],
    is_held: &IsHeld<'_>,
) -> Vec<Sent> {
    let mut stopped = HashSet::new();
    let mut sent = Vec::with_capacity(events.len());
    for event in events {
        let key = event.ordering_key();
        if key.is_some_and(|key| stopped.contains(key)) {
            sent.push(Sent::NotAttempted);
            continue;
        }
        let one = publish(engine, breaker, std::slice::from_ref(event), is_held).await.pop();
        let one = one.unwrap_or(Sent::NotAttempted);
        if one != Sent::Done {
            stopped.extend(key);
        }
        sent.push(one);
    }
    sent
}

/// Destinations that are unavailable, and the event types that are left in the table because of
/// that.
#[derive(Default)]
pub(crate) struct Outages {
    waits: Mutex<Vec<DestinationWait>>,
    changed: Notify,
}

/// Events that wait for one destination.
struct DestinationWait {
    breaker: Arc<Breaker>,
    /// Types with all their events waiting: left in the table.
    whole: BTreeSet<EventType>,
    /// Types with some of their events waiting: redelivered later.
    part: BTreeSet<EventType>,
    /// The half-open phase in which an event was taken as a probe, and when.
    probed: Option<(u64, Instant)>,
    /// When the next delayed event may be redelivered.
    next: Instant,
}

impl Outages {
    fn waits(&self) -> MutexGuard<'_, Vec<DestinationWait>> {
        self.waits.lock().expect("no code panics while it holds this lock")
    }

    /// Types that are not to be taken now, by breaker: all their events go to a destination whose
    /// breaker is open, by the current routes.
    pub(crate) fn types(&self, routes: &Routes) -> Vec<(Arc<Breaker>, Vec<String>)> {
        let open: Vec<(Arc<Breaker>, BTreeSet<EventType>)> = {
            let waits = self.waits();
            let open = waits.iter().filter(|wait| wait.breaker.is_tripped());
            open.map(|wait| (wait.breaker.clone(), wait.whole.clone())).collect()
        };
        // The router may route them differently by now. It is called while no lock is held.
        let still = |breaker: Arc<Breaker>, whole: BTreeSet<EventType>| {
            let types = whole.iter().filter(|event_type| routes.sends_all(event_type, &breaker));
            let types: Vec<String> = types.map(ToString::to_string).collect();
            (!types.is_empty()).then_some((breaker, types))
        };
        open.into_iter().filter_map(|(breaker, whole)| still(breaker, whole)).collect()
    }

    /// Whether an event should be taken now to probe this destination. True once in each half-open
    /// phase, unless the probe was lost.
    pub(crate) fn begin_probe(&self, breaker: &Arc<Breaker>) -> bool {
        let Some(phase) = breaker.wants_probe() else { return false };
        let mut waits = self.waits();
        let Some(wait) = waits.iter_mut().find(|wait| Arc::ptr_eq(&wait.breaker, breaker)) else {
            return false;
        };
        let is_new = wait.probed.is_none_or(|(of, at)| of != phase || at.elapsed() >= PROBE_LOST);
        if is_new {
            wait.probed = Some((phase, Instant::now()));
        }
        is_new
    }

    /// Whether events of this type are left in the table.
    pub(crate) fn leaves_in_table(&self, event_type: &EventType) -> bool {
        self.waits().iter().any(|wait| wait.whole.contains(event_type) && wait.breaker.is_tripped())
    }

    /// How long to delay an event that waits for this destination.
    fn delay(&self, breaker: &Arc<Breaker>) -> Duration {
        let lasted = breaker.outage().and_then(|outage| (chrono::Utc::now() - outage.since).to_std().ok());
        let grown = lasted.unwrap_or_default().clamp(SNOOZE.0, SNOOZE.1);
        let now = Instant::now();
        let mut waits = self.waits();
        let Some(wait) = waits.iter_mut().find(|wait| Arc::ptr_eq(&wait.breaker, breaker)) else {
            return grown;
        };
        wait.next = wait.next.max(now + grown) + SNOOZE_SPACING;
        (wait.next - now).min(LONGEST_SNOOZE)
    }

    /// The destinations that are unavailable.
    pub(crate) fn list(&self) -> Vec<NodeOutage> {
        let waits = self.waits();
        let outage = |wait: &DestinationWait| {
            let types = wait.whole.iter().chain(&wait.part).map(ToString::to_string).collect();
            Some(NodeOutage::new(wait.breaker.publisher.name(), wait.breaker.outage()?, types))
        };
        waits.iter().filter_map(outage).collect()
    }

    /// Waits until the outages have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Records that a type waits for this destination. Returns whether it is the first one.
    fn add(&self, breaker: &Arc<Breaker>, event_type: &EventType, whole: bool) -> bool {
        let mut waits = self.waits();
        let known = waits.iter().position(|wait| Arc::ptr_eq(&wait.breaker, breaker));
        let at = known.unwrap_or_else(|| {
            let (whole, part) = (BTreeSet::new(), BTreeSet::new());
            waits.push(DestinationWait {
                breaker: breaker.clone(),
                whole,
                part,
                probed: None,
                next: Instant::now(),
            });
            waits.len() - 1
        });
        let types = if whole { &mut waits[at].whole } else { &mut waits[at].part };
        if !types.contains(event_type) {
            types.insert(event_type.clone());
            self.changed.notify_one();
        }
        known.is_none()
    }

    fn remove(&self, breaker: &Arc<Breaker>) {
        self.waits().retain(|wait| !Arc::ptr_eq(&wait.breaker, breaker));
        self.changed.notify_one();
    }
}

impl Engine {
    /// Destination of the next event of a work unit, if a publisher gets it.
    pub(super) fn destination(&self, unit: &WorkUnit) -> Option<Destination> {
        match unit {
            WorkUnit::One(job) => self.routes.destination(&job.delivery.event),
            WorkUnit::Key(queue) => self.destination_of_queue(queue),
            WorkUnit::Admitted(unit, _) => self.destination(unit),
        }
    }

    pub(super) fn destination_of_queue(&self, queue: &KeyQueueRef) -> Option<Destination> {
        self.key_queues.peek(queue, |job| self.routes.destination(&job.delivery.event)).flatten()
    }

    /// Whether the next event of a queue with a fixed destination no longer goes there.
    pub(super) fn is_rerouted(&self, queue: &KeyQueueRef) -> bool {
        let breaker = |job: &Job| self.routes.destination(&job.delivery.event).map(|to| to.breaker.id);
        let destination = queue.id.destination;
        destination.is_some()
            && self.key_queues.peek(queue, breaker).is_some_and(|breaker| breaker != destination)
    }

    fn goes_to(&self, event: &Event, to: &Destination) -> bool {
        self.routes.destination(event).is_some_and(|destination| destination.is_same(to))
    }

    /// Whether the event can be sent to this destination in a batch with others.
    fn fits_batch(&self, job: &Job, to: &Destination) -> bool {
        !job.delivery.must_run_alone() && self.goes_to(&job.delivery.event, to)
    }

    /// Verdict on an event whose destination is unavailable: it stays in the table, untouched, if
    /// its type determines the destination; otherwise it is redelivered, after ever longer delays.
    fn snooze(self: &Arc<Self>, event: &Event, breaker: &Arc<Breaker>) -> Verdict {
        let whole = self.routes.sends_all(event.event_type(), breaker);
        if self.outages.add(breaker, event.event_type(), whole) {
            tokio::spawn(self.clone().follow_outage(breaker.clone()));
        }
        if whole {
            return Verdict::Released;
        }
        let error = Some(format!("{} is unavailable: {}", breaker.publisher.name(), breaker.reason()));
        Verdict::Again { after: self.outages.delay(breaker), counted: false, error }
    }

    /// Wakes the taker when a destination may be probed, and when it is available again.
    async fn follow_outage(self: Arc<Self>, breaker: Arc<Breaker>) {
        let unavailable = self.metrics.unavailable(breaker.publisher.name());
        unavailable.set(1.0);
        let (mut phases, mut reason) = (breaker.phases(), breaker.reason());
        while *phases.borrow_and_update() != BreakerPhase::Closed {
            if breaker.wants_probe().is_some() {
                self.wake.notify_one();
            }
            let now = breaker.reason();
            if now != reason {
                reason = now;
                self.outages.changed.notify_one();
            }
            tokio::select! {
                // The breaker owns the sender: it cannot be dropped.
                _ = phases.changed() => {}
                () = self.stop.cancelled() => break,
            }
        }
        // Before the next outage can set it.
        unavailable.set(0.0);
        self.outages.remove(&breaker);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::TracingPublisher;

    #[test]
    fn nothing_of_a_key_is_sent_behind_an_event_that_is_not_held() {
        let event = |n: u8, key: &str| {
            let event = Event::new("e").id(format!("e{n}")).json(&n);
            let event = if key.is_empty() { event } else { event.ordering_key(key) };
            Outgoing::new(event.build().unwrap())
        };
        let batch = [event(0, "a"), event(1, "b"), event(2, "a"), event(3, ""), event(4, "b")];
        let held = sendable(&batch, &|event| event.id().as_str() != "e0");
        assert_eq!(held, [false, true, false, true, true]);
    }

    /// However many there are, and however long it takes.
    #[tokio::test]
    async fn events_that_cannot_be_left_in_the_table_come_back_one_after_another() {
        let breaker = Destination::new(TracingPublisher::new()).breaker;
        let outages = Outages::default();
        breaker.trip("gone");
        outages.add(&breaker, &EventType::from("e"), false);
        let delays: Vec<Duration> = (0..1_001).map(|_| outages.delay(&breaker)).collect();
        assert!(delays[0] >= SNOOZE.0 && delays[0] < 2 * SNOOZE.0);
        assert!(delays[1_000] >= delays[0] + 900 * SNOOZE_SPACING, "{:?}", delays[1_000]);
        for _ in 0..100_000 {
            let _ = outages.delay(&breaker);
        }
        assert_eq!(outages.delay(&breaker), LONGEST_SNOOZE);
    }
}
