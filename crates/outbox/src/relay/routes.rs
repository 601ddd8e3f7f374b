//! Routes: which handler or publisher gets which event.

use std::collections::{BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::dispatch::panicked;
use super::key_queues::NextStep;
use super::limits::{CallLimit, LimitId, Limits};
use super::tx_dispatch::{ErasedOutbox, TxDispatch};
use crate::destination::{Breaker, Destination, Router};
use crate::error::{Error, Result};
use crate::event::{Event, EventType, GLOBAL};
use crate::handler::{
    Context, ErasedHandler, Failure, Interceptor, Middleware, Needs, Next, Outcome, Route, RouteKey, States,
    Unrouted,
};
use crate::join;
use crate::retry::RetryPolicy;
use crate::store::Routed;

/// Which handler serves which events.
#[derive(Default)]
pub(crate) struct Routes {
    by_type: HashMap<String, Vec<(String, Target)>>,
    router: Option<Arc<dyn Router>>,
    fallback: Option<Target>,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    /// Around every handler, the outermost first.
    middleware: Arc<[Arc<dyn Middleware>]>,
    /// The requirements of the handlers.
    needs: Vec<Needs>,
    pub(crate) states: States,
    limits: Vec<CallLimit>,
    pub(crate) unrouted: Unrouted,
    /// Event types that handlers and destinations were registered for.
    named: OnceLock<Arc<Routed>>,
}

/// A handler or a destination, with its own options if it has them.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) call: Call,
    pub(crate) retry: Option<Arc<dyn RetryPolicy>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) limit: Option<LimitId>,
}

impl From<Call> for Target {
    fn from(call: Call) -> Self {
        Self { call, retry: None, timeout: None, limit: None }
    }
}

/// How a handler is called.
#[derive(Clone)]
pub(crate) enum Call {
    /// With the event.
    Plain(Arc<dyn ErasedHandler>),
    /// With the event, and a transaction that also settles it.
    Tx(Arc<dyn ErasedHandler>, Arc<dyn TxDispatch>),
    /// Not called by itself: a publisher gets the event, in a batch with others.
    Publish(Destination),
}

impl From<Destination> for Target {
    fn from(destination: Destination) -> Self {
        Self { retry: destination.retry.clone(), ..Call::Publish(destination).into() }
    }
}

impl Routes {
    /// Adds a handler with its options.
    pub(crate) fn add_route<D>(&mut self, route: Route<D>) -> Result<()> {
        let Route { keys, handler, needs, retry, timeout, max_concurrent, .. } = route;
        let positive = |name: &str, ok: bool| match ok {
            true => Ok(()),
            false => Err(Error::setting(format!("{name} of a route must be greater than 0"))),
        };
        positive("timeout", timeout.is_none_or(|limit| !limit.is_zero()))?;
        positive("max_concurrent", max_concurrent != Some(0))?;
        let call = match needs.iter().find_map(|need| need.transaction.clone()) {
            Some(dispatch) => Call::Tx(handler, dispatch),
            None => Call::Plain(handler),
        };
        let limit = max_concurrent.map(|calls| {
            self.limits.push(CallLimit { calls, types: BTreeSet::new() });
            LimitId(self.limits.len() - 1)
        });
        self.needs.extend(needs);
        for key in keys {
            let target = Target { call: call.clone(), retry: retry.clone(), timeout, limit };
            let (aggregate_type, event_type) = match &key {
                RouteKey::Type { aggregate_type, event_type } => {
                    (aggregate_type.as_str(), event_type.as_str())
                }
                RouteKey::Any => ("*", "*"),
            };
            let is_free = match key {
                RouteKey::Type { .. } => self.add(aggregate_type, event_type, target),
                RouteKey::Any => self.add_fallback(target),
            };
            if !is_free {
                let (aggregate_type, event_type) = (aggregate_type.to_owned(), event_type.to_owned());
                return Err(Error::DuplicateHandler { aggregate_type, event_type });
            }
        }
        Ok(())
    }

    /// Adds code around every handler, within the code that was added before.
    pub(crate) fn add_middleware(&mut self, middleware: Arc<dyn Middleware>) {
        self.middleware = self.middleware.iter().cloned().chain([middleware]).collect();
    }

    /// Error if a handler takes a state that the relay does not have.
    pub(crate) fn check_states(&self) -> Result<()> {
        self.needs.iter().try_for_each(|need| need.check(&self.states))
    }

    /// The limits of concurrent calls. A limit knows the event types of which it limits every
    /// event.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = self.limits.clone();
        for (event_type, routes) in &self.by_type {
            if let [(aggregate, Target { limit: Some(limit), .. })] = &**routes
                && aggregate == GLOBAL
            {
                limits[limit.0].types.insert(event_type.clone());
            }
        }
        Limits::new(limits)
    }

    /// The limit of concurrent calls that applies to an event.
    pub(super) fn limit(&self, event: &Event) -> Option<LimitId> {
        if self.limits.is_empty() {
            return None;
        }
        self.find(event)?.limit
    }

    /// Calls a handler, with the middleware around it.
    pub(super) fn call<'a>(
        &self,
        handler: &'a Arc<dyn ErasedHandler>,
        cx: Context,
    ) -> BoxFuture<'a, Result<Outcome, Failure>> {
        if self.middleware.is_empty() {
            return handler.call(cx);
        }
        Next::new(self.middleware.clone(), handler.clone()).run(cx)
    }

    /// Adds a handler; false if there is one for the same aggregate type and event type.
    pub(crate) fn add(&mut self, aggregate_type: &str, event_type: &str, route: Target) -> bool {
        let routes = self.by_type.entry(event_type.to_owned()).or_default();
        if routes.iter().any(|(aggregate, _)| aggregate == aggregate_type) {
            return false;
        }
        routes.push((aggregate_type.to_owned(), route));
        true
    }

    /// Sets the handler of events that have no other; false if there is one already.
    pub(crate) fn add_fallback(&mut self, route: Target) -> bool {
        let free = self.fallback.is_none();
        self.fallback.get_or_insert(route);
        free
    }

    /// Sets the router of events that have no handler; false if there is one already.
    pub(crate) fn add_router(&mut self, router: Arc<dyn Router>) -> bool {
        let free = self.router.is_none();
        self.router.get_or_insert(router);
        free
    }

    /// The destination of an event, if a publisher gets it.
    pub(crate) fn destination(&self, event: &Event) -> Option<Destination> {
        match self.find(event)?.call {
            Call::Publish(destination) => Some(destination),
            Call::Plain(_) | Call::Tx(..) => None,
        }
    }

    /// How a worker of this event's key treats it.
    pub(super) fn next_step(&self, event: &Event) -> NextStep {
        match self.find(event) {
            Some(Target { call: Call::Publish(_), .. }) => NextStep::Publish,
            // Its own transaction settles it: the events before it must be settled by then, or a
            // crash would redeliver those after it.
            Some(Target { call: Call::Tx(..), .. }) => NextStep::HandleWhenSettled,
            Some(Target { call: Call::Plain(_), .. }) | None => NextStep::Handle,
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
            Call::Plain(_) | Call::Tx(..) => None,
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
            if routes.iter().any(|(aggregate, _)| aggregate == GLOBAL) {
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
        if !routes.iter().any(|(aggregate, _)| aggregate == GLOBAL) {
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
            Call::Plain(_) | Call::Tx(..) => None,
        });
        let first = destinations.next()??;
        destinations.all(|other| other.is_some_and(|other| other.is_same(&first))).then_some(first)
    }

    /// Error if some handler cannot work with this outbox.
    pub(crate) fn misfit(&self, outbox: Option<&ErasedOutbox>) -> Option<Error> {
        let routes = self.by_type.values().flatten().map(|(_, route)| route).chain(&self.fallback);
        routes
            .filter_map(|route| match &route.call {
                Call::Tx(_, dispatch) => dispatch.check_compatible(outbox),
                Call::Plain(_) | Call::Publish(_) => None,
            })
            .next()
    }

    /// The route of an event: the handler for the aggregate type, or the one registered without an
    /// aggregate type, or the destination that the router returns, or the fallback.
    pub(super) fn find(&self, event: &Event) -> Option<Target> {
        if is_report(event) {
            return None;
        }
        let routes = self.by_type.get(event.event_type().as_str()).map_or(&[][..], Vec::as_slice);
        let of = |aggregate: &str| routes.iter().find(|(a, _)| a == aggregate).map(|(_, route)| route);
        let routed = || {
            let router = self.router.as_ref()?;
            match std::panic::catch_unwind(AssertUnwindSafe(|| router.route(event))) {
                Ok(destination) => destination.map(Target::from),
                // Not "no destination": that would dead-letter the event.
                Err(panic) => {
                    Some(Call::Plain(Arc::new(FailingHandler(panicked("the router", &*panic)))).into())
                }
            }
        };
        let named = of(event.aggregate_type().as_str()).or_else(|| of(GLOBAL)).cloned();
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
pub(super) fn unrouted_delay(age: Duration) -> Duration {
    age.clamp(Duration::from_secs(5), Duration::from_secs(600))
}

/// Stands in for a handler that could not be determined, because the router panicked.
struct FailingHandler(Failure);

impl ErasedHandler for FailingHandler {
    fn call(&self, _: Context) -> BoxFuture<'_, Result<Outcome, Failure>> {
        Box::pin(async { Err(self.0.clone()) })
    }
}

/// Whether the relay itself handles the event.
pub(super) fn is_report(event: &Event) -> bool {
    *event.event_type() == join::REPORT
}
