//! A handler with the events it is for, and its options.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::extract::Needs;
use super::function::{ErasedHandler, Function, Handler};
use crate::event::{AggregateType, EventType};
use crate::retry::RetryPolicy;

/// A handler with the events it is for, and its options, for
/// [`RelayBuilder::route`](crate::RelayBuilder::route). Created by [`on`], [`on_type`],
/// [`on_aggregate`] and [`on_any`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use std::time::Duration;
/// use outbox::{Backoff, Message, Outbox, on};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Resize { image: String }
/// impl Message for Resize { const TYPE: &'static str = "image.resize"; }
///
/// async fn resize(resize: Resize) { println!("resizing {}", resize.image) }
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let relay = outbox
///     .single_node()
///     .route(on(resize).retry(Backoff::never()).timeout(Duration::from_secs(20)).max_concurrent(2))
///     .start()
///     .await?;
/// # relay.stop().await?;
/// # Ok(()) }
/// ```
#[must_use = "a route takes effect when it is given to a relay"]
pub struct Route<D> {
    pub(crate) keys: Vec<RouteKey>,
    pub(crate) handler: Arc<dyn ErasedHandler>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) retry: Option<Arc<dyn RetryPolicy>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_concurrent: Option<usize>,
    relay: PhantomData<fn() -> D>,
}

/// The events that a route is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteKey {
    /// Events of a type and an aggregate type, which may be [`GLOBAL`](crate::GLOBAL).
    Type { aggregate_type: AggregateType, event_type: EventType },
    /// Events that have no other handler.
    Any,
}

impl RouteKey {
    fn of_type(event_type: EventType) -> Self {
        Self::Type { aggregate_type: AggregateType::GLOBAL, event_type }
    }
}

impl<D> fmt::Debug for Route<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("keys", &self.keys)
            .field("retry", &self.retry)
            .field("timeout", &self.timeout)
            .field("max_concurrent", &self.max_concurrent)
            .finish_non_exhaustive()
    }
}

/// A handler of a [`Message`](crate::Message), which is one of its arguments. Handles its events
/// whatever aggregate they belong to, if the message names no aggregate type.
///
/// A handler without a message needs the event type, from [`on_type`]:
///
/// ```compile_fail,E0080
/// async fn greet(cx: outbox::Context) {}
/// let route = outbox::on::<outbox::StoreOnly, _, _>(greet);
/// ```
pub fn on<D: 'static, Args: 'static, H: Handler<D, Args>>(handler: H) -> Route<D> {
    const {
        assert!(
            H::MESSAGES == 1,
            "`on` wants a handler with one `outbox::Message` among its arguments, which names the event type; use `on_type(\"…\", handler)` for a handler without a message"
        );
    }
    let aggregate_type = AggregateType::from_static(H::aggregate_type());
    let key = |event_type: &&'static str| RouteKey::Type {
        aggregate_type: aggregate_type.clone(),
        event_type: EventType::from_static(event_type),
    };
    Route::new(H::types().iter().map(key).collect(), handler)
}

/// A handler of an event type, whatever aggregate the events belong to. A message among its
/// arguments is read from the payload, whatever type the message names itself.
pub fn on_type<D: 'static, Args: 'static>(
    event_type: impl Into<EventType>,
    handler: impl Handler<D, Args>,
) -> Route<D> {
    Route::new(vec![RouteKey::of_type(event_type.into())], handler)
}

/// A handler of an event type of an aggregate type. Takes precedence over a handler for the event
/// type alone.
pub fn on_aggregate<D: 'static, Args: 'static>(
    aggregate_type: impl Into<AggregateType>,
    event_type: impl Into<EventType>,
    handler: impl Handler<D, Args>,
) -> Route<D> {
    let key = RouteKey::Type { aggregate_type: aggregate_type.into(), event_type: event_type.into() };
    Route::new(vec![key], handler)
}

/// A handler of every event that has no other handler.
pub fn on_any<D: 'static, Args: 'static>(handler: impl Handler<D, Args>) -> Route<D> {
    Route::new(vec![RouteKey::Any], handler)
}

impl<D: 'static> Route<D> {
    fn new<Args: 'static, H: Handler<D, Args>>(keys: Vec<RouteKey>, handler: H) -> Self {
        Self {
            keys,
            handler: Arc::new(Function::new(handler)),
            needs: H::needs(),
            retry: None,
            timeout: None,
            max_concurrent: None,
            relay: PhantomData,
        }
    }
}

impl<D> Route<D> {
    /// Retry policy of this handler, instead of the relay's.
    pub fn retry(mut self, retry: impl RetryPolicy) -> Self {
        self.retry = Some(Arc::new(retry));
        self
    }

    /// How long this handler may take, instead of
    /// [`handler_timeout`](crate::RelayBuilder::handler_timeout).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How many calls of this handler run at once in this relay. Further events of it wait, and
    /// leave the [workers](crate::RelayBuilder::workers) to other handlers. In a fleet the limit is
    /// that of each database.
    pub fn max_concurrent(mut self, calls: usize) -> Self {
        self.max_concurrent = Some(calls);
        self
    }
}
