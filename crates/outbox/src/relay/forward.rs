//! Forwarding: workers hand events to publishers, many at a time.
//!
//! A worker that comes upon an event for a destination takes along what else is queued for it. The events of a key stay in
//! their order, and behind one that was not published the rest of its key goes back. While a destination is not available its
//! events are not taken from the table at all, where that can be told by their type.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::dispatch::{Ready, Routes, Watch, after, before, decide_safely, guarded, ready, report};
use super::lanes::Strand;
use super::runs::TURN;
use super::settle::{Spoken, Told};
use super::{Engine, Job};
use crate::destination::{Destination, Gate};
use crate::event::{Event, EventType};
use crate::handler::{Cx, Failure, Interceptor, Outcome};
use crate::log::{Fate, Outgoing, PublishError};
use crate::store::{NodeOutage, Verdict};
use crate::suspect::Admitted;

/// At most this many events at a time.
const MOST: usize = 250;

/// How long an event waits that cannot be left in the table until its destination is available again.
const PUT_OFF: Duration = Duration::from_secs(2);

/// What became of an event that was to be published.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sent {
    Done,
    Failed(Failure),
    /// Not sent: it waits behind one that was not published.
    Untried,
    /// Not sent, or not known to have arrived: there is no destination at the moment.
    Unavailable,
}

impl Sent {
    /// The same as a handler would say it.
    pub(super) fn into_handled(self) -> Result<Outcome, Failure> {
        match self {
            Sent::Done => Ok(Outcome::Done),
            Sent::Failed(failure) => Err(failure),
            Sent::Untried | Sent::Unavailable => Ok(Outcome::RetryAfter(PUT_OFF)),
        }
    }
}

/// Publishes a strand, and what else is queued for the same destination.
pub(super) async fn forward(engine: &Arc<Engine>, strand: Strand, to: &Destination) {
    let Some(batch) = Batch::gather(engine, strand, to) else { return };
    let mut admitted = None;
    let verdicts = batch.publish(engine, to, &mut admitted).await;
    batch.settle(engine, verdicts).await;
}

/// Events for one destination, those of each key in order.
struct Batch {
    jobs: Vec<Job>,
    /// The keys that this worker is at now.
    keys: Vec<Arc<str>>,
}

impl Batch {
    fn gather(engine: &Engine, first: Strand, to: &Destination) -> Option<Self> {
        let mut batch = Self { jobs: Vec::new(), keys: Vec::new() };
        batch.add(engine, first, to);
        if batch.jobs.first().is_some_and(|job| !job.delivery.goes_alone()) {
            let wanted = |strand: &Strand| match strand {
                Strand::One(job) => engine.is_for(job, to),
                Strand::Key(key) => engine.runs.peek(key, |job| engine.is_for(job, to)).unwrap_or(false),
            };
            while batch.jobs.len() < MOST {
                let more = engine.lanes.take_more(MOST - batch.jobs.len(), wanted);
                if more.is_empty() {
                    break;
                }
                more.into_iter().for_each(|strand| batch.add(engine, strand, to));
            }
        }
        (!batch.jobs.is_empty()).then_some(batch)
    }

    fn add(&mut self, engine: &Engine, strand: Strand, to: &Destination) {
        match strand {
            Strand::One(job) => {
                if job.cold {
                    engine.lanes.uncount_cold(1);
                }
                self.jobs.push(job);
            }
            Strand::Key(key) => {
                let first = self.jobs.is_empty();
                let alone = first && engine.runs.peek(&key, |job| job.delivery.goes_alone()).unwrap_or(false);
                let most = if alone { 1 } else { TURN.min(MOST.saturating_sub(self.jobs.len()).max(1)) };
                let jobs = engine.runs.next_while(&key, most, |job| {
                    engine.leads_to(&job.delivery.event, to) && (alone || !job.delivery.goes_alone())
                });
                engine.lanes.uncount_cold(jobs.len());
                self.jobs.extend(jobs);
                self.keys.push(key);
            }
        }
    }

    /// Publishes what may be published. `None` for an event that is not this node's to handle any more.
    async fn publish<'a>(
        &self,
        engine: &'a Arc<Engine>,
        to: &Destination,
        admitted: &mut Option<Admitted<'a>>,
    ) -> Vec<Option<Verdict>> {
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(self.jobs.len());
        let mut stopped: HashSet<&str> = HashSet::new();
        let mut sending: Vec<(usize, Outgoing)> = Vec::with_capacity(self.jobs.len());
        let mut entered: HashMap<usize, (Cx, usize)> = HashMap::new();
        let mut watch = Watch::new(engine);
        for (index, job) in self.jobs.iter().enumerate() {
            let key = job.delivery.event.ordering_key();
            verdicts.push(Some(Verdict::Released));
            if key.is_some_and(|key| stopped.contains(key)) {
                continue;
            }
            let verdict = match ready(engine, job, admitted).await {
                Ready::Go => self.intercept(engine, to, index, &mut entered).map(Some),
                Ready::Verdict(verdict) => Some(Some(verdict)),
                Ready::Gone => Some(None),
            };
            match verdict {
                None => {
                    watch.add(job);
                    sending.push((index, outgoing(job)));
                }
                Some(verdict) => {
                    verdicts[index] = verdict;
                    stopped.extend(key);
                }
            }
        }
        let events: Vec<Outgoing> = sending.iter().map(|(_, outgoing)| outgoing.clone()).collect();
        let sent = publish(engine, &to.gate, &events).await;
        watch.over();
        for ((index, _), sent) in sending.iter().zip(sent) {
            let job = &self.jobs[*index];
            if let Some((cx, entered)) = entered.remove(index) {
                after(engine, &cx, entered, &sent.clone().into_handled());
            }
            let verdict = match sent {
                Sent::Untried => Verdict::Released,
                Sent::Unavailable => engine.put_off(&job.delivery.event, &to.gate),
                sent => decide(engine, job, sent.into_handled(), to),
            };
            report(engine, job, &verdict, true);
            verdicts[*index] = Some(verdict);
        }
        verdicts
    }

    /// Asks the interceptors. A verdict if one refuses.
    fn intercept(
        &self,
        engine: &Engine,
        to: &Destination,
        index: usize,
        entered: &mut HashMap<usize, (Cx, usize)>,
    ) -> Option<Verdict> {
        let interceptors: &[Arc<dyn Interceptor>] = &engine.routes.interceptors;
        if interceptors.is_empty() {
            return None;
        }
        let job = &self.jobs[index];
        let cx = Cx::new(&job.delivery, engine.node(), &engine.store_name);
        let (count, refused) = before(interceptors, &cx);
        let Some(failure) = refused else {
            entered.insert(index, (cx, count));
            return None;
        };
        let result = Err(failure);
        after(engine, &cx, count, &result);
        let verdict = decide(engine, job, result, to);
        report(engine, job, &verdict, true);
        Some(verdict)
    }

    /// Says what became of the events, and what is next for their keys.
    async fn settle(self, engine: &Arc<Engine>, verdicts: Vec<Option<Verdict>>) {
        let mut free: HashMap<i64, Vec<Told>> = HashMap::new();
        let mut by_key: HashMap<&str, Vec<(&Job, Option<Verdict>)>> = HashMap::new();
        for (job, verdict) in self.jobs.iter().zip(verdicts) {
            match job.delivery.event.ordering_key() {
                Some(key) => by_key.entry(key).or_default().push((job, verdict)),
                None => {
                    let told = verdict.map(|verdict| job.told(verdict));
                    free.entry(job.epoch).or_default().extend(told);
                }
            }
        }
        for (epoch, told) in free {
            engine.settler.say(Spoken::verdicts(told, epoch)).await;
        }
        for key in &self.keys {
            let jobs = by_key.remove(&**key).unwrap_or_default();
            settle_key(engine, key, jobs).await;
        }
    }
}

/// The events of a key, up to the first that is not done; behind that one everything goes back.
async fn settle_key(engine: &Arc<Engine>, key: &Arc<str>, jobs: Vec<(&Job, Option<Verdict>)>) {
    let halted = jobs.iter().any(|(_, verdict)| *verdict != Some(Verdict::Done));
    let mut told: HashMap<i64, Vec<Told>> = HashMap::new();
    for (job, verdict) in jobs {
        let verdict = verdict.map(|verdict| job.told(verdict));
        told.entry(job.epoch).or_default().extend(verdict);
    }
    let rest = if halted { engine.runs.halt(key) } else { Vec::new() };
    engine.lanes.uncount_cold(rest.len());
    for job in &rest {
        told.entry(job.epoch).or_default().push(job.told(Verdict::Released));
    }
    let mut told: Vec<(i64, Vec<Told>)> = told.into_iter().collect();
    told.sort_unstable_by_key(|(epoch, _)| *epoch);
    let last = told.len().saturating_sub(1);
    for (n, (epoch, told)) in told.into_iter().enumerate() {
        let key = Some(key.clone());
        engine
            .settler
            .say(Spoken::Verdicts { told, epoch, key, halted: halted && n == last, urgent: halted })
            .await;
    }
    if !halted && engine.runs.goes_on(key) {
        engine.lanes.push_cold(vec![Strand::Key(key.clone())]);
    }
}

fn decide(engine: &Engine, job: &Job, result: Result<Outcome, Failure>, to: &Destination) -> Verdict {
    let policy = to.retry.as_deref().unwrap_or(&*engine.settings.retry);
    decide_safely(engine.name(), result, job.delivery.attempts, policy)
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

/// Has a batch published, and says what became of each event.
pub(super) async fn publish(engine: &Engine, gate: &Arc<Gate>, events: &[Outgoing]) -> Vec<Sent> {
    let all = |sent: Sent| vec![sent; events.len()];
    if events.is_empty() {
        return Vec::new();
    }
    if gate.is_shut() {
        return all(Sent::Unavailable);
    }
    let publisher = &gate.publisher;
    let published = async {
        if !publisher.is_healthy().await {
            return Ok(Err((None, "it says that it is not healthy".to_owned())));
        }
        match publisher.publish_batch(events).await {
            Ok(()) => Ok(Ok(None)),
            Err(error) if error.is_unavailable() || !publisher.is_healthy().await => {
                let reason = error.to_string();
                Ok(Err((Some(error), reason)))
            }
            Err(error) => Ok(Ok(Some(error))),
        }
    };
    let (began, limit) = (Instant::now(), engine.settings.handler_timeout);
    let error = match guarded("the publisher", limit, published).await {
        Ok(Ok(None)) => {
            gate.works();
            return all(Sent::Done);
        }
        Ok(Ok(Some(error))) => error,
        Ok(Err((error, reason))) => {
            gate.shut(&reason);
            let fate = |index| error.as_ref().and_then(|error| error.fate(index));
            // It failed, and then it was gone: that is why.
            let to_blame = error.as_ref().is_some_and(PublishError::is_unavailable);
            let sent = |index| match fate(index).map(cut_off) {
                Some(Sent::Failed(_)) if !to_blame => Sent::Unavailable,
                sent => sent.unwrap_or(Sent::Unavailable),
            };
            return (0..events.len()).map(sent).collect();
        }
        // It took too long: so it would for each.
        Err(failure) if began.elapsed() >= limit => return all(Sent::Failed(failure)),
        // It panicked.
        Err(failure) => failure.into(),
    };
    if error.published() > 0 {
        gate.works();
    }
    match (error.fate(0), events) {
        (Some(_), _) => {
            (0..events.len()).map(|index| error.fate(index).map_or(Sent::Untried, known)).collect()
        }
        (None, [_]) => all(Sent::Failed(error.failure)),
        // Nobody knows which it was.
        (None, _) => Box::pin(publish_each(engine, gate, events)).await,
    }
}

fn known(fate: Fate) -> Sent {
    match fate {
        Fate::Published => Sent::Done,
        Fate::Failed(failure) => Sent::Failed(failure),
        Fate::Untried => Sent::Untried,
    }
}

fn cut_off(fate: Fate) -> Sent {
    match known(fate) {
        Sent::Untried => Sent::Unavailable,
        sent => sent,
    }
}

/// One by one, of each key up to the first that fails.
async fn publish_each(engine: &Engine, gate: &Arc<Gate>, events: &[Outgoing]) -> Vec<Sent> {
    let mut stopped = HashSet::new();
    let mut sent = Vec::with_capacity(events.len());
    for event in events {
        let key = event.ordering_key();
        if key.is_some_and(|key| stopped.contains(key)) {
            sent.push(Sent::Untried);
            continue;
        }
        let one = publish(engine, gate, std::slice::from_ref(event)).await.pop().unwrap_or(Sent::Untried);
        if one != Sent::Done {
            stopped.extend(key);
        }
        sent.push(one);
    }
    sent
}

/// Destinations that are not available, and the types of events that are left in the table because of that.
#[derive(Default)]
pub(crate) struct Waiting {
    gates: Mutex<Vec<Wait>>,
    changed: Notify,
}

/// What waits for one destination.
struct Wait {
    gate: Arc<Gate>,
    /// All events of these types do, and are left in the table.
    whole: BTreeSet<EventType>,
    /// Some events of these do, and come again.
    part: BTreeSet<EventType>,
}

impl Waiting {
    fn gates(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.gates.lock().expect("no one panics while holding this lock")
    }

    /// Types that are not to be taken now: all their events go to a gate that is shut, by what the routes say at this moment.
    pub(crate) fn types(&self, routes: &Routes) -> Vec<String> {
        let shut: Vec<(Arc<Gate>, BTreeSet<EventType>)> = {
            let gates = self.gates();
            let shut = gates.iter().filter(|wait| wait.gate.is_shut());
            shut.map(|wait| (wait.gate.clone(), wait.whole.clone())).collect()
        };
        // A router may have changed its mind since they were put off. It is asked while nothing is locked.
        let mut types = BTreeSet::new();
        for (gate, whole) in &shut {
            types.extend(whole.iter().filter(|event_type| routes.sends_all(event_type, gate)));
        }
        types.into_iter().map(ToString::to_string).collect()
    }

    /// The destinations that are not available.
    pub(crate) fn outages(&self) -> Vec<NodeOutage> {
        let gates = self.gates();
        let told = |wait: &Wait| {
            let types = wait.whole.iter().chain(&wait.part).map(ToString::to_string).collect();
            Some(NodeOutage::new(wait.gate.publisher.name(), wait.gate.outage()?, types))
        };
        gates.iter().filter_map(told).collect()
    }

    /// Waits until something has changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Notes that a type waits for this gate. Says whether nothing did before.
    fn add(&self, gate: &Arc<Gate>, event_type: &EventType, whole: bool) -> bool {
        let mut gates = self.gates();
        let known = gates.iter().position(|wait| Arc::ptr_eq(&wait.gate, gate));
        let at = known.unwrap_or_else(|| {
            gates.push(Wait { gate: gate.clone(), whole: BTreeSet::new(), part: BTreeSet::new() });
            gates.len() - 1
        });
        let types = if whole { &mut gates[at].whole } else { &mut gates[at].part };
        if !types.contains(event_type) {
            types.insert(event_type.clone());
            self.changed.notify_one();
        }
        known.is_none()
    }

    fn remove(&self, gate: &Arc<Gate>) {
        self.gates().retain(|wait| !Arc::ptr_eq(&wait.gate, gate));
        self.changed.notify_one();
    }
}

impl Engine {
    /// Where the next event of a strand goes, if it goes to a publisher.
    pub(super) fn destination(&self, strand: &Strand) -> Option<Destination> {
        match strand {
            Strand::One(job) => self.routes.destination(&job.delivery.event),
            Strand::Key(key) => self.destination_of_key(key),
        }
    }

    pub(super) fn destination_of_key(&self, key: &str) -> Option<Destination> {
        self.runs.peek(key, |job| self.routes.destination(&job.delivery.event)).flatten()
    }

    fn leads_to(&self, event: &Event, to: &Destination) -> bool {
        self.routes.destination(event).is_some_and(|destination| destination.is_same(to))
    }

    /// Whether it can go to this destination together with others.
    fn is_for(&self, job: &Job, to: &Destination) -> bool {
        !job.delivery.goes_alone() && self.leads_to(&job.delivery.event, to)
    }

    /// What becomes of an event whose destination is not available: it stays in the table, untouched, if its type tells that it
    /// waits; else it comes again.
    fn put_off(self: &Arc<Self>, event: &Event, gate: &Arc<Gate>) -> Verdict {
        let whole = self.routes.sends_all(event.event_type(), gate);
        if self.waiting.add(gate, event.event_type(), whole) {
            let (engine, gate) = (self.clone(), gate.clone());
            let unavailable = self.metrics.unavailable(gate.publisher.name());
            unavailable.set(1.0);
            tokio::spawn(async move {
                tokio::select! {
                    () = gate.opened() => {}
                    () = engine.stop.cancelled() => {}
                }
                engine.waiting.remove(&gate);
                unavailable.set(0.0);
                engine.wake.notify_one();
            });
        }
        if !whole {
            let reason = gate.outage().map(|outage| outage.reason).unwrap_or_default();
            let error = Some(format!("{} is not available: {reason}", gate.publisher.name()));
            return Verdict::Again { after: PUT_OFF, counted: false, error };
        }
        Verdict::Released
    }
}
