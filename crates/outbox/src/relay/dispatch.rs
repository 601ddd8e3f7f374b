//! Dispatching: workers take strands from the lanes, call handlers, and say what became of each event.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use tracing::Instrument as _;

use super::lanes::Strand;
use super::runs::TURN;
use super::settle::Spoken;
use super::{Engine, Job};
use crate::event::Event;
use crate::handler::{Cx, Failure, Handler, Interceptor, Outcome, Unrouted, no_handler};
use crate::retry::{Backoff, RetryPolicy, decide};
use crate::store::{Settlement, Verdict};

/// How often an event may be started after its holder vanished, before it is taken for what made them vanish.
const MAX_CRASHES: u32 = 3;

/// Which handler serves which events.
#[derive(Default)]
pub(crate) struct Routes {
    by_type: HashMap<String, Vec<(String, Route)>>,
    fallback: Option<Route>,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(crate) unrouted: Unrouted,
}

/// A handler, and how its failures are retried if not as all others.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) retry: Option<Arc<dyn RetryPolicy>>,
}

impl Routes {
    /// Adds a handler; false if there is one for the same aggregate type and event type.
    pub(crate) fn add(&mut self, aggregate_type: &str, event_type: &str, route: Route) -> bool {
        let routes = self.by_type.entry(event_type.to_owned()).or_default();
        if routes.iter().any(|(aggregate, _)| aggregate == aggregate_type) {
            return false;
        }
        routes.push((aggregate_type.to_owned(), route));
        true
    }

    /// Serves what no other handler does; false if there is one already.
    pub(crate) fn add_fallback(&mut self, route: Route) -> bool {
        let free = self.fallback.is_none();
        self.fallback.get_or_insert(route);
        free
    }

    /// The handler for the aggregate type, or the one registered without an aggregate type, or the fallback.
    fn find(&self, event: &Event) -> Option<&Route> {
        let routes = self.by_type.get(event.event_type().as_str()).map_or(&[][..], Vec::as_slice);
        let of = |aggregate: &str| routes.iter().find(|(a, _)| a == aggregate).map(|(_, route)| route);
        of(event.aggregate_type().as_str()).or_else(|| of(crate::event::GLOBAL)).or(self.fallback.as_ref())
    }
}

/// A worker: one of as many as handlers may run at once.
pub(crate) async fn work(engine: Arc<Engine>) {
    while let Some(strand) = engine.lanes.next().await {
        let _handler = match &engine.place {
            Some(place) => place.handler().await,
            None => None,
        };
        match strand {
            Strand::One(job) => {
                if job.cold {
                    engine.lanes.uncount_cold(1);
                }
                if let Some(settlement) = handle(&engine, &job).await {
                    engine.settler.say(Spoken::verdict(settlement, job.epoch)).await;
                }
            }
            Strand::Key(key) => follow(&engine, key).await,
        }
    }
}

/// Handles the events of a key one after another, up to the first that is not done.
async fn follow(engine: &Arc<Engine>, key: String) {
    for _ in 0..TURN {
        let Some(job) = engine.runs.next(&key) else { return };
        engine.lanes.uncount_cold(1);
        let epoch = job.epoch;
        let settlement = handle(engine, &job).await;
        if let Some(Settlement { verdict: Verdict::Done, .. }) = settlement {
            // With leases the database alone knows when the next of the key may be taken.
            let urgent = !engine.station.is_exclusive() && !engine.runs.has_more(&key);
            let settlements = settlement.into_iter().collect();
            let key = Some(key.clone());
            engine.settler.say(Spoken::Verdicts { settlements, epoch, key, halted: false, urgent }).await;
            continue;
        }
        // Everything behind it goes back: it has to wait.
        let rest = engine.runs.halt(&key);
        engine.lanes.uncount_cold(rest.len());
        let behind = rest.iter().map(|job| Settlement {
            id: job.delivery.event.id().clone(),
            claim: job.delivery.claim,
            verdict: Verdict::Released,
        });
        let settlements = settlement.into_iter().chain(behind).collect();
        let spoken = Spoken::Verdicts { settlements, epoch, key: Some(key), halted: true, urgent: true };
        engine.settler.say(spoken).await;
        return;
    }
    // The others get a turn.
    engine.lanes.push_cold(vec![Strand::Key(key)]);
}

/// Handles one event. `None`: it is not this node's to handle any more.
async fn handle(engine: &Arc<Engine>, job: &Job) -> Option<Settlement> {
    let delivery = &job.delivery;
    let event = &delivery.event;
    if !engine.station.covers(job.epoch) || !engine.held.start(event.id(), job.tag(), Instant::now()) {
        tracing::debug!(store = engine.name(), event = %event.id(), "not handled: the lease is over");
        engine.held.forget(event.id(), job.tag());
        return None;
    }
    let settlement = |verdict| Settlement { id: event.id().clone(), claim: delivery.claim, verdict };
    if let Some(expires_in) = delivery.expires_in {
        let waited = chrono::Duration::from_std(job.taken.elapsed()).unwrap_or(chrono::Duration::MAX);
        if expires_in <= waited {
            tracing::error!(store = engine.name(), event = %event.id(), event_type = %event.event_type(), "event is dead: expired");
            return Some(settlement(Verdict::Dead { counted: false, reason: "expired".to_owned() }));
        }
    }
    // One at a time: if the process dies, only this one is counted.
    let _alone = if delivery.suspect { Some(engine.suspects.lock().await) } else { None };
    if delivery.suspect {
        match count_start(engine, job).await {
            Start::Go => {}
            Start::Bury(reason) => return Some(settlement(Verdict::Dead { counted: false, reason })),
            Start::Leave => {
                engine.held.forget(event.id(), job.tag());
                return None;
            }
        }
    }

    let route = engine.routes.find(event);
    let result = call(engine, job, route).await;
    let policy = route.and_then(|route| route.retry.as_deref()).unwrap_or(&*engine.settings.retry);
    let verdict = decide_safely(engine.name(), result, delivery.attempts, policy);
    report(engine, job, &verdict);
    Some(settlement(verdict))
}

/// A retry policy is the user's code as well: one that panics must not end the worker.
fn decide_safely(
    store: &str,
    result: Result<Outcome, Failure>,
    attempts: u32,
    policy: &dyn RetryPolicy,
) -> Verdict {
    let random = rand::random();
    let decided = |policy| {
        std::panic::catch_unwind(AssertUnwindSafe(|| decide(result.clone(), attempts, policy, random)))
    };
    decided(policy).unwrap_or_else(|panic| {
        let Failure { message, .. } = panicked("the retry policy", &*panic);
        tracing::error!(store, error = message, "retrying by the default policy instead");
        decide(result, attempts, &Backoff::default(), random)
    })
}

enum Start {
    Go,
    Bury(String),
    Leave,
}

/// Notes in the database that an event starts which may have killed its process before.
async fn count_start(engine: &Engine, job: &Job) -> Start {
    let Some(by) = engine.station.holder() else { return Start::Leave };
    match engine.store.count_start(&by, job.delivery.event.id(), job.delivery.claim).await {
        Ok(Some(starts)) if starts > MAX_CRASHES => {
            let event = job.delivery.event.id();
            tracing::error!(store = engine.name(), %event, starts, "event is dead: its handler never came back");
            Start::Bury(format!("its handler was started {MAX_CRASHES} times and never came back"))
        }
        Ok(Some(_)) => Start::Go,
        Ok(None) => Start::Leave,
        Err(error) => {
            // Safer not to run it uncounted; it comes again.
            tracing::warn!(store = engine.name(), event = %job.delivery.event.id(), %error, "could not count a start");
            Start::Leave
        }
    }
}

/// Runs interceptors and the handler. A panic and a timeout are failures like any other.
async fn call(engine: &Engine, job: &Job, route: Option<&Route>) -> Result<Outcome, Failure> {
    let cx = Cx::new(&job.delivery, engine.node());
    let interceptors = &engine.routes.interceptors;
    let mut entered = 0;
    let mut result = Ok(Outcome::Done);
    for interceptor in interceptors {
        let before = std::panic::catch_unwind(AssertUnwindSafe(|| interceptor.before(&cx)));
        if let Err(failure) = before.unwrap_or_else(|panic| Err(panicked("an interceptor", &*panic))) {
            result = Err(failure);
            break;
        }
        entered += 1;
    }
    if result.is_ok() {
        result = match route {
            Some(route) => run(engine, route, cx.clone()).await,
            None => {
                let reason = no_handler(cx.event_type(), cx.aggregate_type().as_str());
                Err(match engine.routes.unrouted {
                    Unrouted::Dead => Failure::dead(reason),
                    Unrouted::Retry => Failure::retry(reason),
                })
            }
        };
    }
    for interceptor in interceptors[..entered].iter().rev() {
        let after = std::panic::catch_unwind(AssertUnwindSafe(|| interceptor.after(&cx, &result)));
        if let Err(panic) = after {
            let Failure { message, .. } = panicked("an interceptor", &*panic);
            tracing::error!(store = engine.name(), event = %cx.id(), error = message, "after-interceptor failed");
        }
    }
    result
}

async fn run(engine: &Engine, route: &Route, cx: Cx) -> Result<Outcome, Failure> {
    let limit = engine.settings.handler_timeout;
    // What a handler logs belongs to its event.
    let span = tracing::info_span!(
        "outbox.handle", store = engine.name(), event = %cx.id(), event_type = %cx.event_type(), attempt = cx.attempt()
    );
    // Made inside of the guarded future: a handler may panic before its first await.
    let handled = async move { route.handler.handle(cx).await }.instrument(span);
    let handled = AssertUnwindSafe(handled).catch_unwind();
    match tokio::time::timeout(limit, handled).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(panicked("the handler", &*panic)),
        Err(_) => Err(Failure::retry(format!("the handler did not finish within {limit:?}"))),
    }
}

fn panicked(who: &str, panic: &(dyn std::any::Any + Send)) -> Failure {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)");
    Failure::retry(format!("{who} panicked: {message}"))
}

/// Log lines name the event, never its payload.
fn report(engine: &Engine, job: &Job, verdict: &Verdict) {
    let event = &job.delivery.event;
    let (store, id, event_type) = (engine.name(), event.id(), event.event_type());
    let attempt = job.delivery.attempts + 1;
    match verdict {
        Verdict::Dead { reason, .. } => {
            tracing::error!(store, event = %id, %event_type, attempt, reason, "event is dead");
        }
        Verdict::Again { after, counted: true, error } => {
            tracing::warn!(store, event = %id, %event_type, attempt, retry_in = ?after, error, "handler failed");
        }
        _ => tracing::debug!(store, event = %id, %event_type, attempt, "handled"),
    }
}
