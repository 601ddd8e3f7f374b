//! Dispatch: workers take work units from the queues, call handlers, and send the verdicts to the
//! settler.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tracing::Instrument as _;

use super::forward::{self, Sent, forward};
use super::key_queues::{KeyQueueRef, NextEvent, NextStep, TURN};
use super::limits::{self, Admitting, CallPermit};
use super::queues::WorkUnit;
use super::report;
use super::routes::{Call, Target, is_report, unrouted_delay};
use super::settle::{EventVerdict, SettleRequest};
use super::tx_dispatch::{SettleOnCommit, TxOutcome};
use super::{Engine, Job};
use crate::EVENTS;
use crate::escape::Escaped;
use crate::handler::{
    Context, ErasedHandler, Failure, Interceptor, Outcome, Unrouted, no_handler, split_detail,
};
use crate::log::Outgoing;
use crate::poison::{self, Admission, Admitted};
use crate::retry::{Backoff, RetryPolicy, decide};
use crate::store::{Settlement, Verdict};
use crate::trace;

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
        if engine.is_paused(&unit) {
            release_unit(&engine, unit).await;
            continue;
        }
        if let Some(destination) = engine.destination(&unit) {
            forward(&engine, unit, &destination).await;
            continue;
        }
        match limits::admit(&engine, unit).await {
            Admitting::Now(WorkUnit::Key(key), permit) => handle_key(&engine, key, permit).await,
            Admitting::Now(WorkUnit::One(job), _permit) => handle_one(&engine, job).await,
            // `admit` returns the unit itself.
            Admitting::Now(WorkUnit::Admitted(..), _) | Admitting::Later => {}
        }
    }
}

/// Releases the events of a work unit: they are left in the table for now.
pub(super) async fn release_unit(engine: &Arc<Engine>, unit: WorkUnit) {
    match unit {
        WorkUnit::One(job) => {
            if job.cold {
                engine.queues.uncount_cold(1);
            }
            engine.release(&job);
        }
        WorkUnit::Key(queue) => forward::release_key_queue(engine, &queue).await,
        WorkUnit::Admitted(unit, _) => Box::pin(release_unit(engine, *unit)).await,
    }
}

/// Handles an event without a key.
async fn handle_one(engine: &Arc<Engine>, job: Job) {
    if job.cold {
        engine.queues.uncount_cold(1);
    }
    let mut admitted = None;
    if let Some(entry) = handle(engine, &job, &mut admitted).await {
        engine.settler.send(SettleRequest::verdicts(vec![entry], job.epoch)).await;
    }
}

/// Handles the events of a key one after another, up to the first that is not done.
async fn handle_key(engine: &Arc<Engine>, key: KeyQueueRef, permit: Option<CallPermit>) {
    let (mut key, mut permit) = (key, permit);
    for n in 0..TURN {
        if n > 0 {
            // The next event may have another handler.
            let unit = match permit.take() {
                Some(permit) => WorkUnit::Admitted(Box::new(WorkUnit::Key(key)), permit),
                None => WorkUnit::Key(key),
            };
            let Admitting::Now(WorkUnit::Key(again), call) = limits::admit(engine, unit).await else {
                return;
            };
            (key, permit) = (again, call);
        }
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
    drop(permit);
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
async fn call(engine: &Engine, job: &Job, route: Option<&Target>) -> TxOutcome {
    let cx = Context::new(&job.delivery, &engine.scope);
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

async fn run(engine: &Engine, job: &Job, route: &Target, cx: Context) -> TxOutcome {
    let limit = route.timeout.unwrap_or(engine.settings.handler_timeout);
    // Log lines of a handler belong to its event's span.
    let span = tracing::info_span!(
        "outbox.handle", store = engine.name(), event = %Escaped(cx.id()), event_type = %Escaped(cx.event_type()), attempt = cx.attempt()
    );
    crate::trace::continue_trace(&span, cx.headers());
    match &route.call {
        Call::Plain(handler) => {
            // Created inside of the guarded future: a handler may panic before its first await.
            let handled = async move { call_handler(engine, handler, cx).await }.instrument(span);
            TxOutcome::Returned(guarded(HANDLER, limit, handled).await)
        }
        // The route has changed since this worker took the event.
        Call::Publish(destination) => {
            let one = [forward::outgoing(job)];
            let is_held = |_: &Outgoing| engine.may_start(job);
            let sent = forward::publish(engine, &destination.breaker, &one, &is_held).await.pop();
            TxOutcome::Returned(sent.unwrap_or(Sent::NotAttempted).into_handled())
        }
        Call::Tx(handler, dispatch) => {
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
            let call = |cx| call_handler(engine, handler, cx);
            dispatch.run(engine.outbox.as_ref(), cx, &settling, &call).instrument(span).await
        }
    }
}

/// Calls a handler, with the middleware around it. Events that it writes get the correlation id of
/// its event.
fn call_handler<'a>(
    engine: &'a Engine,
    handler: &'a Arc<dyn ErasedHandler>,
    cx: Context,
) -> BoxFuture<'a, Result<Outcome, Failure>> {
    match cx.correlation_id().map(str::to_owned) {
        None => engine.routes.call(handler, cx),
        Some(id) => Box::pin(trace::correlated(id, async move { engine.routes.call(handler, cx).await })),
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

pub(super) fn panicked(name: &str, panic: &(dyn std::any::Any + Send)) -> Failure {
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
