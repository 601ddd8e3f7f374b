//! Dispatch: workers take work units from the queues, call handlers, and send the verdicts to the
//! settler.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use futures_util::FutureExt;
use tracing::Instrument as _;

use super::forward::{self, Sent, forward};
use super::key_queues::{KeyQueueRef, NextEvent, NextStep, TURN};
use super::queues::WorkUnit;
use super::report;
use super::settle::{EventVerdict, SettleRequest};
use super::tx_dispatch::{ErasedOutbox, SettleOnCommit, TxDispatch, TxOutcome};
use super::{Engine, Job};
use crate::EVENTS;
use crate::destination::{Breaker, Destination, Router};
use crate::error::Error;
use crate::escape::Escaped;
use crate::event::{Event, EventType};
use crate::handler::{Context, Failure, Handler, Interceptor, Outcome, Unrouted, no_handler, split_detail};
use crate::join;
use crate::log::Outgoing;
use crate::poison::{self, Admission, Admitted};
use crate::retry::{Backoff, RetryPolicy, decide};
use crate::store::{Routed, Settlement, Verdict};

/// Which handler serves which events.
#[derive(Default)]
pub(crate) struct Routes {
    by_type: HashMap<String, Vec<(String, Route)>>,
    router: Option<Arc<dyn Router>>,
    fallback: Option<Route>,
    /// The handler that was added last.
    last: Option<LastAdded>,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(crate) unrouted: Unrouted,
    /// Event types that handlers and destinations were registered for.
    named: OnceLock<Arc<Routed>>,
}

/// Where to find the handler that was added last.
enum LastAdded {
    OfType { event_type: String, aggregate_type: String },
    Fallback,
}

/// A handler, with its own retry policy and time limit if it has them.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) call: Call,
    pub(crate) retry: Option<Arc<dyn RetryPolicy>>,
    pub(crate) timeout: Option<Duration>,
}

impl From<Call> for Route {
    fn from(call: Call) -> Self {
        Self { call, retry: None, timeout: None }
    }
}

/// How a handler is called.
#[derive(Clone)]
pub(crate) enum Call {
    /// With the event.
    Plain(Arc<dyn Handler>),
    /// With the event, and a transaction that also settles it.
    Tx(Arc<dyn TxDispatch>),
    /// Not called by itself: a publisher gets the event, in a batch with others.
    Publish(Destination),
}

impl From<Destination> for Route {
    fn from(destination: Destination) -> Self {
        Self { retry: destination.retry.clone(), ..Call::Publish(destination).into() }
    }
}

impl Routes {
    /// Adds a handler; false if there is one for the same aggregate type and event type.
    pub(crate) fn add(&mut self, aggregate_type: &str, event_type: &str, route: Route) -> bool {
        let routes = self.by_type.entry(event_type.to_owned()).or_default();
        if routes.iter().any(|(aggregate, _)| aggregate == aggregate_type) {
            return false;
        }
        routes.push((aggregate_type.to_owned(), route));
        let (event_type, aggregate_type) = (event_type.to_owned(), aggregate_type.to_owned());
        self.last = Some(LastAdded::OfType { event_type, aggregate_type });
        true
    }

    /// The handler that was added last; `None` if there is none, or if a publisher was added after
    /// it.
    pub(crate) fn last_handler(&mut self) -> Option<&mut Route> {
        let route = match self.last.as_ref()? {
            LastAdded::OfType { event_type, aggregate_type } => {
                let routes = self.by_type.get_mut(event_type)?;
                routes.iter_mut().find(|(aggregate, _)| aggregate == aggregate_type).map(|(_, route)| route)
            }
            LastAdded::Fallback => self.fallback.as_mut(),
        };
        route.filter(|route| !matches!(route.call, Call::Publish(_)))
    }

    /// Sets the handler of events that have no other; false if there is one already.
    pub(crate) fn add_fallback(&mut self, route: Route) -> bool {
        let free = self.fallback.is_none();
        self.fallback.get_or_insert(route);
        self.last = Some(LastAdded::Fallback);
        free
    }

    /// Sets the router of events that have no handler; false if there is one already.
    pub(crate) fn add_router(&mut self, router: Arc<dyn Router>) -> bool {
        let free = self.router.is_none();
        self.router.get_or_insert(router);
        self.last = None;
        free
    }

    /// The destination of an event, if a publisher gets it.
    pub(crate) fn destination(&self, event: &Event) -> Option<Destination> {
        match self.find(event)?.call {
            Call::Publish(destination) => Some(destination),
            Call::Plain(_) | Call::Tx(_) => None,
        }
    }

    /// How a worker of this event's key treats it.
    fn next_step(&self, event: &Event) -> NextStep {
        match self.find(event) {
            Some(Route { call: Call::Publish(_), .. }) => NextStep::Publish,
            // Its own transaction settles it: the events before it must be settled by then, or a
            // crash would redeliver those after it.
            Some(Route { call: Call::Tx(_), .. }) => NextStep::HandleWhenSettled,
            Some(Route { call: Call::Plain(_), .. }) | None => NextStep::Handle,
        }
    }

    /// Whether all events of a type, whatever their other fields, go through this breaker.
    pub(crate) fn sends_all(&self, event_type: &EventType, breaker: &Arc<Breaker>) -> bool {
        self.destination_of_type(event_type)
            .is_some_and(|destination| Arc::ptr_eq(&destination.breaker, breaker))
    }

    /// Whether events may go to more than one destination.
    pub(crate) fn may_split(&self) -> bool {
        let routes = self.by_type.values().flatten().map(|(_, route)| route).chain(&self.fallback);
        let mut breakers = routes.filter_map(|route| match &route.call {
            Call::Publish(destination) => Some(destination.breaker.id),
            Call::Plain(_) | Call::Tx(_) => None,
        });
        let first = breakers.next();
        self.router.is_some() || breakers.any(|breaker| Some(breaker) != first)
    }

    /// The types that handlers and destinations were registered for.
    pub(crate) fn types(&self) -> impl Iterator<Item = &str> {
        self.by_type.keys().map(String::as_str)
    }

    /// The events that this relay takes; `None`: all.
    pub(crate) fn routed(&self) -> Option<Arc<Routed>> {
        if self.unrouted != Unrouted::Leave || self.fallback.is_some() {
            return None;
        }
        let named = self.named.get_or_init(|| Arc::new(self.named()));
        let Some(router) = &self.router else { return Some(named.clone()) };
        // A router that panics restricts nothing.
        let asked = std::panic::catch_unwind(AssertUnwindSafe(|| router.routed())).ok().flatten()?;
        let mut all = Routed::clone(named);
        all.types.extend(writable(&asked.types));
        all.patterns.extend(writable(&asked.patterns));
        let pairs =
            asked.pairs.iter().filter(|(aggregate, of_type)| is_writable(aggregate) && is_writable(of_type));
        all.pairs.extend(pairs.cloned());
        (all.patterns.len() <= MOST_PATTERNS).then(|| Arc::new(all))
    }

    fn named(&self) -> Routed {
        // The relay itself handles reports, whatever its routes are.
        let mut routed = Routed::default().and_type(join::REPORT);
        for (event_type, routes) in self.by_type.iter().filter(|(event_type, _)| is_writable(event_type)) {
            if routes.iter().any(|(aggregate, _)| aggregate == crate::event::GLOBAL) {
                routed.types.insert(event_type.clone());
                continue;
            }
            let aggregates = routes.iter().map(|(aggregate, _)| aggregate);
            routed.pairs.extend(writable(aggregates).map(|aggregate| (aggregate, event_type.clone())));
        }
        routed
    }

    /// Whether this relay leaves an event to other relays.
    pub(crate) fn leaves(&self, event: &Event) -> bool {
        self.unrouted == Unrouted::Leave && !is_report(event) && self.find(event).is_none()
    }

    /// The destination of all events of a type, whatever their other fields, if it is the same for
    /// all.
    pub(crate) fn destination_of_type(&self, event_type: &EventType) -> Option<Destination> {
        if *event_type == join::REPORT {
            return None;
        }
        let routes = self.by_type.get(event_type.as_str()).map_or(&[][..], Vec::as_slice);
        let mut calls: Vec<Call> = routes.iter().map(|(_, route)| route.call.clone()).collect();
        if !routes.iter().any(|(aggregate, _)| aggregate == crate::event::GLOBAL) {
            calls.push(match &self.router {
                Some(router) => {
                    let asked = std::panic::catch_unwind(AssertUnwindSafe(|| router.of_type(event_type)));
                    Call::Publish(asked.ok().flatten()?)
                }
                None => self.fallback.as_ref()?.call.clone(),
            });
        }
        let mut destinations = calls.into_iter().map(|call| match call {
            Call::Publish(destination) => Some(destination),
            Call::Plain(_) | Call::Tx(_) => None,
        });
        let first = destinations.next()??;
        destinations.all(|other| other.is_some_and(|other| other.is_same(&first))).then_some(first)
    }

    /// Error if some handler cannot work with this outbox.
    pub(crate) fn misfit(&self, outbox: Option<&ErasedOutbox>) -> Option<Error> {
        let routes = self.by_type.values().flatten().map(|(_, route)| route).chain(&self.fallback);
        routes
            .filter_map(|route| match &route.call {
                Call::Tx(handler) => handler.check_compatible(outbox),
                Call::Plain(_) | Call::Publish(_) => None,
            })
            .next()
    }

    /// The route of an event: the handler for the aggregate type, or the one registered without an
    /// aggregate type, or the destination that the router returns, or the fallback.
    fn find(&self, event: &Event) -> Option<Route> {
        if is_report(event) {
            return None;
        }
        let routes = self.by_type.get(event.event_type().as_str()).map_or(&[][..], Vec::as_slice);
        let of = |aggregate: &str| routes.iter().find(|(a, _)| a == aggregate).map(|(_, route)| route);
        let routed = || {
            let router = self.router.as_ref()?;
            match std::panic::catch_unwind(AssertUnwindSafe(|| router.route(event))) {
                Ok(destination) => destination.map(Route::from),
                // Not "no destination": that would dead-letter the event.
                Err(panic) => {
                    Some(Call::Plain(Arc::new(FailingHandler(panicked("the router", &*panic)))).into())
                }
            }
        };
        let named = of(event.aggregate_type().as_str()).or_else(|| of(crate::event::GLOBAL)).cloned();
        named.or_else(routed).or_else(|| self.fallback.clone())
    }
}

/// With more patterns than this the database does not filter by the router's types: the relay takes
/// everything.
const MOST_PATTERNS: usize = 100;

/// Whether an event may have this name. PostgreSQL has no text with a NUL in it, and fails when a
/// query contains one.
fn is_writable(name: &str) -> bool {
    !name.contains('\0')
}

fn writable<'a>(names: impl IntoIterator<Item = &'a String>) -> impl Iterator<Item = String> {
    names.into_iter().filter(|name| is_writable(name)).cloned()
}

/// Delay of an event that was taken and has no route after all: the age of the event, within
/// limits. So a relay that routes it gets it soon, and many such events cost few writes.
fn unrouted_delay(age: Duration) -> Duration {
    age.clamp(Duration::from_secs(5), Duration::from_secs(600))
}

/// Stands in for a handler that could not be determined, because the router panicked.
struct FailingHandler(Failure);

#[async_trait]
impl Handler for FailingHandler {
    async fn handle(&self, _: Context) -> Result<Outcome, Failure> {
        Err(self.0.clone())
    }
}

/// Whether the relay itself handles the event.
fn is_report(event: &Event) -> bool {
    *event.event_type() == join::REPORT
}

/// A worker: one of as many as handlers may run at once.
pub(crate) async fn run_worker(engine: Arc<Engine>) {
    while let Some(unit) = engine.queues.next().await {
        let _handler = match &engine.fleet {
            Some(fleet) => fleet.handler().await,
            None => None,
        };
        if let WorkUnit::Key(queue) = &unit
            && engine.is_rerouted(queue)
        {
            forward::release_key_queue(&engine, queue).await;
            continue;
        }
        if let Some(destination) = engine.destination(&unit) {
            forward(&engine, unit, &destination).await;
            continue;
        }
        match unit {
            WorkUnit::One(job) => {
                if job.cold {
                    engine.queues.uncount_cold(1);
                }
                let mut admitted = None;
                let entry = handle(&engine, &job, &mut admitted).await;
                if let Some(entry) = entry {
                    engine.settler.send(SettleRequest::verdicts(vec![entry], job.epoch)).await;
                }
            }
            WorkUnit::Key(key) => handle_key(&engine, key).await,
        }
    }
}

/// Handles the events of a key one after another, up to the first that is not done.
async fn handle_key(engine: &Arc<Engine>, key: KeyQueueRef) {
    for _ in 0..TURN {
        let job = match engine.key_queues.next(&key, |job| engine.routes.next_step(&job.delivery.event)) {
            NextEvent::Job(job) => job,
            NextEvent::Refused => return forward::release_key_queue(engine, &key).await,
            NextEvent::Blocked(NextStep::Publish) => break,
            NextEvent::Blocked(_) => {
                engine.settler.flush().await;
                continue;
            }
            NextEvent::Empty => return,
        };
        engine.queues.uncount_cold(1);
        let epoch = job.epoch;
        let mut admitted = None;
        let entry = handle(engine, &job, &mut admitted).await;
        if let Some(EventVerdict { settlement: Settlement { verdict: Verdict::Done, .. }, .. }) = entry {
            let (key, entries) = (Some(key.clone()), entry.into_iter().collect());
            engine
                .settler
                .send(SettleRequest::Verdicts { entries, epoch, key, halted: false, urgent: false })
                .await;
            continue;
        }
        // All later events of the key are released: they have to wait.
        let rest = engine.key_queues.halt(&key);
        engine.queues.uncount_cold(rest.len());
        let later = rest.iter().map(|job| job.event_verdict(job.released()));
        let entries = entry.into_iter().chain(later).collect();
        let request = SettleRequest::Verdicts { entries, epoch, key: Some(key), halted: true, urgent: true };
        engine.settler.send(request).await;
        return;
    }
    // Other work units get a turn, or the next event is for a publisher.
    engine.queues.push_cold(vec![WorkUnit::Key(key)]);
}

/// Whether an event may be handled now.
pub(super) enum Ready {
    /// The handler may run.
    Run,
    /// The event gets this verdict without a run.
    Verdict(Verdict),
    /// This node no longer holds the event.
    NotHeld,
}

/// Checks whether an event may be handled, right before it is. A suspect is admitted first, unless
/// another suspect of the same batch was: the permit has to be kept until the verdict is sent.
pub(super) async fn ready<'a>(
    engine: &'a Arc<Engine>,
    job: &Job,
    admitted: &mut Option<Admitted<'a>>,
) -> Ready {
    let delivery = &job.delivery;
    let event = &delivery.event;
    if !engine.may_start(job) {
        tracing::debug!(store = engine.name(), event = %Escaped(event.id()), "event not handled: its lease has run out");
        engine.release(job);
        return Ready::NotHeld;
    }
    if let Some(expires_in) = delivery.expires_in {
        let waited = chrono::Duration::from_std(job.taken.elapsed()).unwrap_or(chrono::Duration::MAX);
        if expires_in <= waited {
            tracing::error!(store = engine.name(), event = %Escaped(event.id()), event_type = %Escaped(event.event_type()), "event is dead: expired");
            return Ready::Verdict(Verdict::Dead { counted: false, reason: "expired".to_owned() });
        }
    }
    if delivery.suspect.is_none() {
        return Ready::Run;
    }
    if admitted.is_none() {
        *admitted = Some(engine.crash_guard.admit(delivery.must_run_alone()).await);
    }
    if delivery.must_run_alone() {
        // The verdicts on earlier events are written: if the process dies, only this event is
        // counted.
        engine.settler.flush().await;
    }
    // That may have taken longer than the lease lasts.
    if !engine.may_start(job) {
        engine.release(job);
        return Ready::NotHeld;
    }
    match count_start(engine, job).await {
        Admission::Run => Ready::Run,
        Admission::DeadLetter(reason) => Ready::Verdict(Verdict::Dead { counted: false, reason }),
        // Released, if this node still holds it: it should not wait for its lease to run out.
        Admission::Skip => {
            engine.release(job);
            Ready::NotHeld
        }
    }
}

/// Suspects that are being handled. If that is cut short, because the relay stops waiting for them,
/// they are cleared: the process that handled them is still alive.
pub(super) struct RunningSuspects<'a> {
    engine: &'a Arc<Engine>,
    suspects: Vec<(Settlement, i64)>,
}

impl<'a> RunningSuspects<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>) -> Self {
        Self { engine, suspects: Vec::new() }
    }

    /// Adds an event that is about to be handled, if it is a suspect.
    pub(super) fn add(&mut self, job: &Job) {
        if job.delivery.suspect.is_some() {
            let cleared = Verdict::Again { after: Duration::ZERO, counted: false, error: None };
            self.suspects.push((job.settlement(cleared), job.epoch));
        }
    }

    /// Ends the guard: all of them were handled to the end.
    pub(super) fn finished(mut self) {
        self.suspects.clear();
    }
}

impl Drop for RunningSuspects<'_> {
    fn drop(&mut self) {
        for (settlement, epoch) in self.suspects.drain(..) {
            self.engine
                .settle_later(SettleRequest::verdicts(vec![EventVerdict::to_write(settlement)], epoch));
        }
    }
}

/// Handles one event. `None`: this node no longer holds it.
async fn handle<'a>(
    engine: &'a Arc<Engine>,
    job: &Job,
    admitted: &mut Option<Admitted<'a>>,
) -> Option<EventVerdict> {
    match ready(engine, job, admitted).await {
        Ready::Run => {
            let mut running = RunningSuspects::new(engine);
            running.add(job);
            let entry = handle_now(engine, job).await;
            running.finished();
            entry
        }
        Ready::Verdict(verdict) => Some(job.event_verdict(verdict)),
        Ready::NotHeld => None,
    }
}

async fn handle_now(engine: &Arc<Engine>, job: &Job) -> Option<EventVerdict> {
    let delivery = &job.delivery;
    let event = &delivery.event;
    let route = engine.routes.find(event);
    if route.is_none() && engine.routes.unrouted == Unrouted::Leave && !is_report(event) {
        let age = delivery.created_at.and_then(|at| (Utc::now() - at).to_std().ok()).unwrap_or_default();
        let error = Some(no_handler(event.event_type(), event.aggregate_type().as_str()));
        let verdict = Verdict::Again { after: unrouted_delay(age), counted: false, error };
        log_verdict(engine, job, &verdict, false);
        return Some(job.event_verdict(verdict));
    }
    let (result, settled) = match call(engine, job, route.as_ref()).await {
        TxOutcome::Returned(result) => (result, false),
        TxOutcome::Settled { wrote } => {
            if wrote {
                engine.wake.notify_one();
            }
            (Ok(Outcome::Done), true)
        }
        TxOutcome::Stale => {
            engine.metrics.stale.increment(1);
            tracing::warn!(store = engine.name(), event = %Escaped(event.id()), "handler's transaction rolled back: another node holds the event");
            engine.release(job);
            return None;
        }
    };
    let own = route.as_ref().and_then(|route| route.retry.as_deref());
    let policy = own.or(engine.settings.retry.as_deref());
    let verdict = decide_safely(engine.name(), result, delivery.attempts, policy, &Backoff::default());
    log_verdict(engine, job, &verdict, route.is_some() || is_report(event));
    Some(EventVerdict { written: settled, ..job.event_verdict(verdict) })
}

/// Applies the retry policy, which is the user's code as well: one that panics must not end the
/// worker. `default` applies if there is no policy, or if it panics.
pub(super) fn decide_safely(
    store: &str,
    result: Result<Outcome, Failure>,
    attempts: u32,
    policy: Option<&dyn RetryPolicy>,
    default: &Backoff,
) -> Verdict {
    let random = rand::random();
    let Some(policy) = policy else { return decide(result, attempts, default, random) };
    let decided =
        std::panic::catch_unwind(AssertUnwindSafe(|| decide(result.clone(), attempts, policy, random)));
    decided.unwrap_or_else(|panic| {
        let Failure { message, .. } = panicked("the retry policy", &*panic);
        tracing::error!(store, error = message, "retrying by the default policy instead");
        decide(result, attempts, default, random)
    })
}

/// Records in the database that a suspect is started.
async fn count_start(engine: &Engine, job: &Job) -> Admission {
    let Some(by) = engine.ownership.holder() else { return Admission::Skip };
    let id = job.delivery.event.id();
    // This node may have claimed the event again since.
    let claim = engine.in_flight.claim(id, job.fence()).unwrap_or(job.delivery.claim);
    poison::start(&*engine.store, &by, id, claim).await
}

/// Runs interceptors and the handler.
async fn call(engine: &Engine, job: &Job, route: Option<&Route>) -> TxOutcome {
    let cx = Context::new(&job.delivery, engine.node(), &engine.store_name);
    let (entered, refused) = before(&engine.routes.interceptors, &cx);
    let outcome = match (refused, route) {
        (Some(failure), _) => TxOutcome::Returned(Err(failure)),
        (None, Some(route)) => run(engine, job, route, cx.clone()).await,
        (None, None) if is_report(&cx) => TxOutcome::Returned(report::deliver(engine, &cx).await),
        (None, None) => {
            let reason = no_handler(cx.event_type(), cx.aggregate_type().as_str());
            TxOutcome::Returned(Err(match engine.routes.unrouted {
                Unrouted::Dead => Failure::dead(reason),
                // `handle_now` has already snoozed the events that are left to others.
                Unrouted::Retry | Unrouted::Leave => Failure::retry(reason),
            }))
        }
    };
    let result = match &outcome {
        TxOutcome::Returned(result) => result,
        TxOutcome::Settled { .. } => &Ok(Outcome::Done),
        TxOutcome::Stale => &Err(Failure::retry("another node holds the event by now")),
    };
    after(engine, &cx, entered, result);
    outcome
}

/// Calls the interceptors before an event. Returns how many were called, and the failure of one
/// that refused the event.
pub(super) fn before(interceptors: &[Arc<dyn Interceptor>], cx: &Context) -> (usize, Option<Failure>) {
    for (entered, interceptor) in interceptors.iter().enumerate() {
        let before = std::panic::catch_unwind(AssertUnwindSafe(|| interceptor.before(cx)));
        if let Err(failure) = before.unwrap_or_else(|panic| Err(panicked("an interceptor", &*panic))) {
            return (entered, Some(failure));
        }
    }
    (interceptors.len(), None)
}

/// Calls those interceptors that were called before the event, with its result.
pub(super) fn after(engine: &Engine, cx: &Context, entered: usize, result: &Result<Outcome, Failure>) {
    for interceptor in engine.routes.interceptors[..entered].iter().rev() {
        let after = std::panic::catch_unwind(AssertUnwindSafe(|| interceptor.after(cx, result)));
        if let Err(panic) = after {
            let Failure { message, .. } = panicked("an interceptor", &*panic);
            tracing::error!(store = engine.name(), event = %Escaped(cx.id()), error = message, "after-interceptor failed");
        }
    }
}

async fn run(engine: &Engine, job: &Job, route: &Route, cx: Context) -> TxOutcome {
    let limit = route.timeout.unwrap_or(engine.settings.handler_timeout);
    // Log lines of a handler belong to its event's span.
    let span = tracing::info_span!(
        "outbox.handle", store = engine.name(), event = %Escaped(cx.id()), event_type = %Escaped(cx.event_type()), attempt = cx.attempt()
    );
    crate::trace::continue_trace(&span, cx.headers());
    match &route.call {
        Call::Plain(handler) => {
            // Created inside of the guarded future: a handler may panic before its first await.
            let handled = async move { handler.handle(cx).await }.instrument(span);
            TxOutcome::Returned(guarded(HANDLER, limit, handled).await)
        }
        // The route has changed since this worker took the event.
        Call::Publish(destination) => {
            let one = [forward::outgoing(job)];
            let is_held = |_: &Outgoing| engine.may_start(job);
            let sent = forward::publish(engine, &destination.breaker, &one, &is_held).await.pop();
            TxOutcome::Returned(sent.unwrap_or(Sent::NotAttempted).into_handled())
        }
        Call::Tx(handler) => {
            let settling = SettleOnCommit {
                store: engine.name(),
                settlement: job.settlement(Verdict::Done),
                in_flight: &engine.in_flight,
                fence: job.fence(),
                completion: engine.settings.completion,
                limit,
                // Does not ask this node's clock: SQLite's one writer, which this handler is, keeps
                // leadership from being renewed, and no other node can have taken over meanwhile.
                by: engine.ownership.holder_in(job.epoch),
                // Twice the limit of one operation: there are several.
                commit_timeout: engine.fleet.as_ref().map(|fleet| fleet.seat.patience * 2),
            };
            handler.run(engine.outbox.as_ref(), cx, &settling).instrument(span).await
        }
    }
}

/// Name of a handler in error messages.
pub(super) const HANDLER: &str = "the handler";

/// Runs user code. A panic and a timeout are failures like any other.
pub(super) async fn guarded<T>(
    name: &str,
    limit: Duration,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, AssertUnwindSafe(future).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(panicked(name, &*panic)),
        Err(_) => Err(Failure::retry(format!("{name} did not finish within {limit:?}"))),
    }
}

fn panicked(name: &str, panic: &(dyn std::any::Any + Send)) -> Failure {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)");
    Failure::retry(format!("{name} panicked: {message}"))
}

/// Logs a verdict. Log lines name the event, never its payload.
pub(super) fn log_verdict(engine: &Engine, job: &Job, verdict: &Verdict, has_handler: bool) {
    let event = &job.delivery.event;
    let (store, id, event_type) = (engine.name(), event.id(), event.event_type());
    let attempt = job.delivery.attempts + 1;
    // A detail may contain data: it is stored, and not logged.
    let plain = |error: &Option<String>| error.as_deref().map(|error| split_detail(error).0.to_owned());
    match verdict {
        Verdict::Dead { reason, .. } => {
            let reason = split_detail(reason).0;
            tracing::error!(store, event = %Escaped(id), event_type = %Escaped(event_type), attempt, reason, "event is dead");
        }
        Verdict::Again { after, counted: true, error } if has_handler => {
            let error = plain(error);
            tracing::error!(store, event = %Escaped(id), event_type = %Escaped(event_type), attempt, retry_in = ?after, error, "handler failed");
        }
        Verdict::Again { after, counted: true, error } => {
            let error = plain(error);
            tracing::warn!(store, event = %Escaped(id), event_type = %Escaped(event_type), attempt, retry_in = ?after, error, "no handler yet");
        }
        Verdict::Done => {
            tracing::info!(target: EVENTS, store, event = %Escaped(id), event_type = %Escaped(event_type), attempt, "handled");
        }
        Verdict::Again { .. } | Verdict::Released | Verdict::ReleasedSuspect => {
            tracing::debug!(target: EVENTS, store, event = %Escaped(id), event_type = %Escaped(event_type), attempt, "put off");
        }
    }
}
