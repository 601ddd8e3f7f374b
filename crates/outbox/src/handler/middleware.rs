//! Code around every handler.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "tower")]
use std::task::{self, Poll};

#[cfg(feature = "tower")]
use super::IntoFailure;
use super::{Context, ErasedHandler, Failure, HandlerFuture, IntoOutcome, Outcome};

/// Async code around the handlers of a relay, such as `async |cx: Context, next: Next| { … }`.
/// Added with [`around`](crate::RelayBuilder::around).
///
/// It runs within the time limit of the handler, and a panic counts as the handler's. It may change
/// the result, or return one without calling the handler. Publishers, which get batches of events,
/// are not handlers: an [`Interceptor`] sees their events as well.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
/// use outbox::{Context, Event, Next, Outbox};
///
/// tokio::task_local! { static TENANT: Option<String>; }
///
/// let outbox = Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// let relay = outbox
///     .single_node()
///     .around(async |cx: Context, next: Next| {
///         let tenant = cx.tenant_id().map(str::to_owned);
///         TENANT.scope(tenant, next.run(cx)).await
///     })
///     .on_type("greeting", async |_: Context| {
///         assert_eq!(TENANT.get().as_deref(), Some("acme"));
///     })
///     .start()
///     .await?;
/// let id = outbox.send(Event::new("greeting").tenant("acme").json(&"hello")).await?.id;
/// relay.idle().await?;
/// # assert_eq!(outbox.admin().find(&id).await?.unwrap().status, outbox::Status::Done);
/// relay.stop().await?;
/// # Ok(()) }
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Handles an event, by calling [`next.run(cx)`](Next::run) or in another way.
    fn handle(&self, cx: Context, next: Next) -> HandlerFuture<'static>;
}

impl<F, Fut> Middleware for F
where
    F: Fn(Context, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoOutcome> + Send + 'static,
{
    fn handle(&self, cx: Context, next: Next) -> HandlerFuture<'static> {
        let handling = self(cx, next);
        Box::pin(async move { handling.await.into_outcome() })
    }
}

/// The rest of the chain: further middleware, and the handler.
#[must_use = "the handler is called by `run`"]
pub struct Next {
    middleware: Arc<[Arc<dyn Middleware>]>,
    /// How many of them were called.
    called: usize,
    handler: Arc<dyn ErasedHandler>,
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("left", &(self.middleware.len() - self.called)).finish_non_exhaustive()
    }
}

impl Next {
    pub(crate) fn new(middleware: Arc<[Arc<dyn Middleware>]>, handler: Arc<dyn ErasedHandler>) -> Self {
        Self { middleware, called: 0, handler }
    }

    /// Calls the rest of the chain.
    pub fn run(mut self, cx: Context) -> HandlerFuture<'static> {
        match self.middleware.get(self.called).cloned() {
            Some(next) => {
                self.called += 1;
                next.handle(cx, self)
            }
            None => Box::pin(async move { self.handler.call(cx).await }),
        }
    }
}

/// The service that the layers of tower wrap: it calls the rest of the chain. A request is an event
/// with the rest of the chain.
#[cfg(feature = "tower")]
#[derive(Clone, Copy, Debug, Default)]
pub struct NextService(());

#[cfg(feature = "tower")]
impl tower_service::Service<(Context, Next)> for NextService {
    type Response = Outcome;
    type Error = Failure;
    type Future = HandlerFuture<'static>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (cx, next): (Context, Next)) -> Self::Future {
        next.run(cx)
    }
}

/// A service of tower as middleware.
#[cfg(feature = "tower")]
pub(crate) struct ServiceMiddleware<S>(pub(crate) S);

#[cfg(feature = "tower")]
impl<S> Middleware for ServiceMiddleware<S>
where
    S: tower_service::Service<(Context, Next), Response = Outcome> + Clone + Send + Sync + 'static,
    S::Error: IntoFailure + Send,
    S::Future: Send,
{
    fn handle(&self, cx: Context, next: Next) -> HandlerFuture<'static> {
        let mut service = self.0.clone();
        Box::pin(async move {
            let ready = std::future::poll_fn(|task| service.poll_ready(task));
            ready.await.map_err(S::Error::into_failure)?;
            service.call((cx, next)).await.map_err(S::Error::into_failure)
        })
    }
}

/// Sees every event before and after its handler or publisher, without waiting: for audit, logging,
/// measuring. Use [`Middleware`] for async code around handlers.
///
/// `before` runs in the order of registration; an error there counts as the handler's. `after` runs
/// in reverse order.
pub trait Interceptor: Send + Sync + 'static {
    /// Called before the handler. After an error the handler is not called.
    fn before(&self, cx: &Context) -> Result<(), Failure> {
        let _ = cx;
        Ok(())
    }

    /// Called after the handler, whatever its result. A panic here is logged and changes nothing.
    fn after(&self, cx: &Context, result: &Result<Outcome, Failure>) {
        let _ = (cx, result);
    }
}
