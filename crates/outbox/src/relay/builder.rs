//! Settings of a relay. Required settings are arguments, optional ones methods.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use super::bytes::{ByteBudget, QUEUE_BYTES};
use super::hot::HotPath;
use super::routes::{Routes, Target};
use super::tx_dispatch::ErasedOutbox;
use crate::admin::ATTEMPTS_KEPT;
use crate::destination::{Destination, Router};
use crate::error::{Error, Result};
use crate::event::{AggregateType, EventType, GLOBAL};
use crate::handler::{self, Handler, Interceptor, Middleware, Route, Unrouted};
use crate::log::{PacingSettings, Subscription};
#[cfg(feature = "settings")]
use crate::retry::Backoff;
use crate::retry::RetryPolicy;
use crate::sql::Database;
use crate::sql::begin::Finished;
use crate::store::{Completion, Node, NodeId, OnDead, Purge, Purgeable, SharedStore};

/// The mode of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// One node holds the whole outbox: see [`Outbox::single_node`](crate::Outbox::single_node).
    SingleNode,
    /// Several nodes share the work: see [`Outbox::multi_node`](crate::Outbox::multi_node).
    MultiNode,
    /// As `MultiNode`, with events ordered by their aggregate: see
    /// [`Outbox::ordered`](crate::Outbox::ordered).
    Ordered,
    /// Delivers nothing: see [`Outbox::writer_only`](crate::Outbox::writer_only).
    WriterOnly,
    /// Publishes the log alone: see [`Outbox::log_only`](crate::Outbox::log_only).
    LogOnly,
}

impl Mode {
    /// Whether one node holds the whole table, instead of leasing rows.
    pub(crate) fn is_exclusive(self) -> bool {
        matches!(self, Mode::SingleNode)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::SingleNode => "single_node",
            Mode::MultiNode => "multi_node",
            Mode::Ordered => "ordered",
            Mode::WriterOnly => "writer_only",
            Mode::LogOnly => "log_only",
        }
    }

    /// Whether events without a key are ordered by their aggregate.
    pub(crate) fn orders_by_aggregate(self) -> bool {
        matches!(self, Mode::Ordered)
    }

    pub(crate) fn delivers(self) -> bool {
        !matches!(self, Mode::WriterOnly | Mode::LogOnly)
    }
}

/// All settings, with the defaults of each mode.
#[derive(Clone, Debug)]
pub(crate) struct RelaySettings {
    pub(crate) mode: Mode,
    pub(crate) node: NodeId,
    pub(crate) workers: usize,
    pub(crate) hot: bool,
    pub(crate) hot_capacity: usize,
    pub(crate) cold_capacity: usize,
    pub(crate) bytes: Arc<ByteBudget>,
    pub(crate) batch: usize,
    pub(crate) poll_interval: Duration,
    pub(crate) skip_recent: Duration,
    pub(crate) lease: Duration,
    pub(crate) presence: Duration,
    pub(crate) drain: Duration,
    pub(crate) handler_timeout: Duration,
    pub(crate) linger: Duration,
    pub(crate) completion: Completion,
    pub(crate) on_dead: OnDead,
    /// Retry policy; `None`: the default of handlers, or of publishing.
    pub(crate) retry: Option<Arc<dyn RetryPolicy>>,
    /// Retry policy of publishers; `None`: as handlers.
    pub(crate) publish_retry: Option<Arc<dyn RetryPolicy>>,
    pub(crate) purge: Option<PurgeSettings>,
    pub(crate) metrics_prefix: String,
    pub(crate) subscriptions: Vec<Subscription>,
    /// Pace of subscriptions that do not set their own.
    pub(crate) subscription_defaults: PacingSettings,
    pub(crate) subscription_lease: Duration,
    pub(crate) log_watch: Duration,
}

impl RelaySettings {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            node: NodeId::generate(),
            workers: 4,
            hot: mode != Mode::Ordered,
            hot_capacity: 1_000,
            cold_capacity: 1_000,
            bytes: ByteBudget::new(QUEUE_BYTES),
            batch: 50,
            poll_interval: Duration::from_secs(5),
            skip_recent: Duration::ZERO,
            lease: Duration::from_secs(30),
            presence: Node::PRESENCE,
            drain: Duration::from_secs(5),
            handler_timeout: Duration::from_secs(300),
            linger: Duration::from_millis(20),
            completion: Completion::Keep,
            on_dead: OnDead::Hold,
            retry: None,
            publish_retry: None,
            purge: mode.delivers().then(PurgeSettings::default),
            metrics_prefix: "outbox".to_owned(),
            subscriptions: Vec::new(),
            subscription_defaults: PacingSettings::default(),
            subscription_lease: Duration::from_secs(3),
            log_watch: Duration::from_millis(250),
        }
    }

    fn check(&self) -> Result<()> {
        let positive = |name: &str, ok: bool| {
            if ok { Ok(()) } else { Err(Error::setting(format!("{name} must be greater than 0"))) }
        };
        positive("workers", self.workers > 0)?;
        positive("hot_capacity", self.hot_capacity > 0)?;
        positive("cold_capacity", self.cold_capacity > 0)?;
        positive("batch", self.batch > 0)?;
        positive("poll_interval", !self.poll_interval.is_zero())?;
        positive("handler_timeout", !self.handler_timeout.is_zero())?;
        let at_most = |name: &str, ok: bool, limit: &str| {
            if ok { Ok(()) } else { Err(Error::setting(format!("{name} must be at most {limit}"))) }
        };
        // Far above any useful value, and far below overflow.
        at_most("workers", self.workers <= 1_000_000, "1,000,000")?;
        at_most("hot_capacity", self.hot_capacity <= 1_000_000, "1,000,000")?;
        at_most("cold_capacity", self.cold_capacity <= 1_000_000, "1,000,000")?;
        at_most("batch", self.batch <= 1_000_000, "1,000,000")?;
        let year = Duration::from_secs(365 * 86_400);
        at_most("lease", self.lease <= year, "a year")?;
        at_most("drain", self.drain <= year, "a year")?;
        at_most("settle_linger", self.linger <= year, "a year")?;
        let shortest = Duration::from_millis(100);
        at_most("subscription_lease", self.subscription_lease <= year, "a year")?;
        if self.subscription_lease < shortest {
            return Err(Error::setting(format!(
                "subscription_lease is {:?}: use at least 100 ms",
                self.subscription_lease
            )));
        }
        positive("log_watch", !self.log_watch.is_zero())?;
        at_most("log_watch", self.log_watch <= year, "a year")?;
        if self.lease < shortest {
            return Err(Error::setting(format!("lease is {:?}: use at least 100 ms", self.lease)));
        }
        at_most("presence", self.presence <= year, "a year")?;
        if self.presence < shortest {
            return Err(Error::setting(format!("presence is {:?}: use at least 100 ms", self.presence)));
        }
        if self.node.as_str().is_empty() || self.node.as_str().chars().count() > 100 {
            return Err(Error::setting("node must have 1 to 100 characters"));
        }
        if let Some(purge) = &self.purge {
            positive("purge batch", purge.what.limit > 0)?;
            positive("purge interval", !purge.every.is_zero())?;
            if purge.what.what == Purgeable::Everything && self.mode != Mode::WriterOnly {
                let mode = self.mode.name();
                let mistake = format!(
                    "delete_undelivered is for writer_only: {mode} would delete events before it delivers them"
                );
                return Err(Error::setting(mistake));
            }
        }
        Ok(())
    }
}

/// Retention times and interval of purging. Every batch is a short transaction of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PurgeSettings {
    pub(crate) every: Duration,
    pub(crate) what: Purge,
    /// Retention of dead events; `None`: they stay.
    pub(crate) dead: Option<Duration>,
    pub(crate) inbox: Duration,
    pub(crate) attempts: Duration,
    /// Retention of the log; `None`: its events stay.
    pub(crate) log: Option<Duration>,
    /// Retention of audit entries; `None`: they stay.
    pub(crate) audit: Option<Duration>,
}

impl Default for PurgeSettings {
    /// DONE rows seven days after they became DONE, inbox entries and failed attempts after thirty,
    /// 500 at a time, every hour. Dead events are kept until an operator decides, events of the log
    /// and audit entries for ever.
    fn default() -> Self {
        let what = Purge { what: Purgeable::Done, older_than: Duration::from_secs(7 * 86_400), limit: 500 };
        Self {
            every: Duration::from_secs(3_600),
            what,
            dead: None,
            inbox: Duration::from_secs(30 * 86_400),
            attempts: ATTEMPTS_KEPT,
            log: None,
            audit: None,
        }
    }
}

impl PurgeSettings {
    /// How long DONE rows are kept.
    pub fn retention(mut self, keep: Duration) -> Self {
        self.what.older_than = keep;
        self
    }

    /// How long the [inbox](crate::Tx::once) remembers an event: longer than a redelivery can
    /// take.
    pub fn inbox_retention(mut self, keep: Duration) -> Self {
        self.inbox = keep;
        self
    }

    /// How long failed [attempts](crate::Admin::attempts) are kept, also those of events that are
    /// done or deleted; 30 days if not set.
    pub fn attempts_retention(mut self, keep: Duration) -> Self {
        self.attempts = keep;
        self
    }

    /// How long events of the [log](crate::Log) are kept; for ever if not set. An event that a
    /// publisher has not passed yet is not deleted, however old it is, nor is the last event of the
    /// log.
    ///
    /// Decisions are made from the log: deleted events are missing in [projections and
    /// conditions](crate::Log::project), and for publishers that are added or reset later.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use std::time::Duration;
    /// use outbox::{TracingPublisher, Outbox, PurgeSettings, Topic};
    ///
    /// # let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let year = Duration::from_secs(365 * 86_400);
    /// let relay = outbox
    ///     .single_node()
    ///     .publish(Topic::new("everything").to(TracingPublisher::new()))
    ///     .purge(PurgeSettings::default().log_retention(year).audit_retention(5 * year))
    ///     .start()
    ///     .await?;
    /// # relay.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn log_retention(mut self, keep: Duration) -> Self {
        self.log = Some(keep);
        self
    }

    /// How long audit entries are kept; for ever if not set. The relay's role needs the privilege
    /// to DELETE them, which the printed grants of a relay leave out.
    pub fn audit_retention(mut self, keep: Duration) -> Self {
        self.audit = Some(keep);
        self
    }

    /// How many rows are deleted in one transaction.
    pub fn batch(mut self, rows: usize) -> Self {
        self.what.limit = rows;
        self
    }

    /// How often to purge. The first purge comes within a minute of the start, at a random time.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval;
        self
    }

    /// How long dead events are kept; for ever if not set. A dead event that holds back its key,
    /// because a later event with its ordering key is pending, is not deleted even then.
    pub fn dead_retention(mut self, keep: Duration) -> Self {
        self.dead = Some(keep);
        self
    }

    /// Keeps dead events until an operator decides, however old: the default.
    pub fn keep_dead(mut self) -> Self {
        self.dead = None;
        self
    }

    /// Deletes every row by the time it was created, **also events that were never delivered**:
    /// only for tables that CDC reads, where no relay marks a row DONE. Only with
    /// [`writer_only`](crate::Outbox::writer_only); a relay that delivers does not start with this
    /// setting.
    ///
    /// Not for a relay in another process: when that relay is down for longer than the retention,
    /// its events are gone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Outbox, PurgeSettings};
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let by_age = PurgeSettings::default().delete_undelivered();
    /// assert!(outbox.multi_node().purge(by_age.clone()).start().await.is_err());
    /// let upkeep = outbox.writer_only().purge(by_age).start().await?;
    /// # upkeep.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn delete_undelivered(mut self) -> Self {
        self.what.what = Purgeable::Everything;
        self
    }
}

/// Sets up a [`Relay`]. Created by [`Outbox::single_node`](crate::Outbox::single_node) and its
/// siblings.
///
/// `D` is the kind of relay: the database of its outbox, [`Fleet`](crate::Fleet), or [`StoreOnly`].
#[must_use = "a relay does nothing until `start()`"]
pub struct RelayBuilder<D: RelaySource> {
    /// Where the events come from.
    pub(crate) source: D::Source,
    pub(crate) settings: RelaySettings,
    pub(crate) routes: Routes,
    /// The first error: reported by `start`, so that calls can be chained.
    mistake: Option<Error>,
}

/// Kinds of relays: the databases for the relay of an outbox, [`Fleet`](crate::Fleet), and
/// [`StoreOnly`].
pub trait RelaySource: Sized + 'static {
    /// Where the events come from.
    #[doc(hidden)]
    type Source: fmt::Debug + Send;
}

impl<DB: Database> RelaySource for DB {
    type Source = OutboxSource;
}

/// The kind of a relay that is built on a store alone: its handlers have no transactions.
#[derive(Clone, Copy, Debug)]
pub enum StoreOnly {}

impl RelaySource for StoreOnly {
    type Source = OutboxSource;
}

/// One outbox, as the source of a relay.
#[derive(Debug)]
#[doc(hidden)]
pub struct OutboxSource {
    pub(crate) store: SharedStore,
    pub(crate) door: HotPath,
    /// The outbox itself, if there is one: handlers may need its transactions.
    pub(crate) outbox: Option<ErasedOutbox>,
}

impl<D: RelaySource> fmt::Debug for RelayBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayBuilder")
            .field("source", &self.source)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl RelayBuilder<StoreOnly> {
    fn new(store: SharedStore, mode: Mode) -> Self {
        Self::of(OutboxSource { store, door: HotPath::default(), outbox: None }, mode)
    }

    /// A relay on a store alone, as [`Outbox::single_node`](crate::Outbox::single_node).
    pub fn single_node(store: SharedStore) -> Self {
        Self::new(store, Mode::SingleNode)
    }

    /// A relay on a store alone, as [`Outbox::multi_node`](crate::Outbox::multi_node).
    pub fn multi_node(store: SharedStore) -> Self {
        Self::new(store, Mode::MultiNode)
    }

    /// A relay on a store alone, as [`Outbox::ordered`](crate::Outbox::ordered).
    pub fn ordered(store: SharedStore) -> Self {
        Self::new(store, Mode::Ordered)
    }

    /// A relay on a store alone, as [`Outbox::log_only`](crate::Outbox::log_only).
    pub fn log_only(store: SharedStore) -> Self {
        Self::new(store, Mode::LogOnly)
    }

    /// A relay on a store alone, as [`Outbox::writer_only`](crate::Outbox::writer_only).
    pub fn writer_only(store: SharedStore) -> Self {
        Self::new(store, Mode::WriterOnly)
    }
}

impl<D: RelaySource<Source = OutboxSource>> RelayBuilder<D> {
    /// Checks the settings and the tables, then starts. After an error nothing runs. May be
    /// cancelled at any time: the start is then finished, and the relay stopped, in the background.
    pub async fn start(self) -> Result<Relay> {
        let Self { source, settings, routes, .. } = self.checked()?;
        Finished::new(Relay::start(source, settings, Arc::new(routes), None)).await
    }
}

impl<D: RelaySource> RelayBuilder<D> {
    pub(crate) fn of(source: D::Source, mode: Mode) -> Self {
        Self { source, settings: RelaySettings::new(mode), routes: Routes::default(), mistake: None }
    }

    /// Returns the first configuration error, if there is one.
    pub(crate) fn checked(mut self) -> Result<Self> {
        if let Some(mistake) = self.mistake.take() {
            return Err(mistake);
        }
        self.settings.check()?;
        self.routes.check_states()?;
        Ok(self)
    }

    /// Adds a handler of a [`Message`](crate::Message), which is one of its arguments:
    /// `async fn bill(order: OrderPlaced, cx: Context) -> Handled`. See [`Handler`] for all
    /// arguments, and [`route`](Self::route) for options.
    ///
    /// A message that names no aggregate type is handled whatever aggregate its events belong to.
    /// A second handler for the same event type and aggregate type is an error of `start`.
    pub fn on<Args: 'static, H: Handler<D, Args>>(self, handler: H) -> Self {
        self.route(handler::on(handler))
    }

    /// Adds a handler of an event type, whatever aggregate the events belong to.
    pub fn on_type<Args: 'static>(
        self,
        event_type: impl Into<EventType>,
        handler: impl Handler<D, Args>,
    ) -> Self {
        self.route(handler::on_type(event_type, handler))
    }

    /// Adds a handler of an event type of an aggregate type. Takes precedence over a handler for
    /// the event type alone.
    pub fn on_aggregate<Args: 'static>(
        self,
        aggregate_type: impl Into<AggregateType>,
        event_type: impl Into<EventType>,
        handler: impl Handler<D, Args>,
    ) -> Self {
        self.route(handler::on_aggregate(aggregate_type, event_type, handler))
    }

    /// Adds a handler of every event that has no other handler.
    pub fn on_any<Args: 'static>(self, handler: impl Handler<D, Args>) -> Self {
        self.route(handler::on_any(handler))
    }

    /// Adds a handler with options of its own: retry policy, time limit, concurrent calls. See
    /// [`Route`].
    pub fn route(mut self, route: Route<D>) -> Self {
        if let Err(mistake) = self.routes.add_route(route) {
            self.mistake.get_or_insert(mistake);
        }
        self
    }

    /// Gives a value to handlers, which take it as [`State`](crate::State). One of each type.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, state: T) -> Self {
        if !self.routes.states.add(state) {
            let of = std::any::type_name::<T>();
            let mistake = format!("state of the type `{of}` was given twice: a relay has one of each type");
            self.mistake.get_or_insert(Error::setting(mistake));
        }
        self
    }

    /// Adds async code around every handler: see [`Middleware`]. The first one added is the
    /// outermost.
    pub fn around(mut self, middleware: impl Middleware) -> Self {
        self.routes.add_middleware(Arc::new(middleware));
        self
    }

    /// Adds a layer of tower around every handler, as [`around`](Self::around) does. A request of
    /// its service is `(Context, Next)`, the response an [`Outcome`](crate::Outcome).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Context, Outbox};
    /// use tower::limit::GlobalConcurrencyLimitLayer;
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox
    ///     .single_node()
    ///     .layer(GlobalConcurrencyLimitLayer::new(2))
    ///     .on_type("image.resize", async |_: Context| { /* … */ })
    ///     .start()
    ///     .await?;
    /// # relay.stop().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tower")]
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: tower_layer::Layer<crate::handler::NextService>,
        L::Service: tower_service::Service<(crate::Context, crate::Next), Response = crate::Outcome>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as tower_service::Service<(crate::Context, crate::Next)>>::Error:
            crate::IntoFailure + Send,
        <L::Service as tower_service::Service<(crate::Context, crate::Next)>>::Future: Send,
    {
        let service = layer.layer(crate::handler::NextService::default());
        self.around(crate::handler::ServiceMiddleware(service))
    }

    fn fallback(mut self, target: Target) -> Self {
        if !self.routes.add_fallback(target) {
            let any = "*".to_owned();
            self.mistake
                .get_or_insert(Error::DuplicateHandler { aggregate_type: any.clone(), event_type: any });
        }
        self
    }

    /// Sends events of these types to a [`Publisher`](crate::Publisher), whatever aggregate they
    /// belong to, in batches.
    ///
    /// While the destination is [unavailable](crate::PublishError::unavailable) its events wait,
    /// and no attempt is counted. Other errors are retried as a handler's are, each event by
    /// itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use outbox::{Event, TracingPublisher, Outbox};
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox.single_node().forward(["order.placed", "order.paid"], TracingPublisher::new()).start().await?;
    /// outbox.send(Event::new("order.placed").json(&42)).await?;
    /// relay.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn forward<T: Into<EventType>>(
        self,
        types: impl IntoIterator<Item = T>,
        to: impl Into<Destination>,
    ) -> Self {
        let destination = to.into();
        types
            .into_iter()
            .fold(self, |builder, event_type| builder.destination(&event_type.into(), destination.clone()))
    }

    /// Sends every event that has no handler to a [`Publisher`](crate::Publisher), as
    /// [`forward`](RelayBuilder::forward) does.
    pub fn forward_any(self, to: impl Into<Destination>) -> Self {
        let destination = to.into();
        self.fallback(destination.into())
    }

    /// Uses a [`Router`] to choose the destination of events that have no handler, as
    /// [`forward`](RelayBuilder::forward) does. Events without a destination go to
    /// [`on_any`](RelayBuilder::on_any) or [`forward_any`](RelayBuilder::forward_any), if there is
    /// one.
    pub fn forward_by(mut self, router: impl Router) -> Self {
        if !self.routes.add_router(Arc::new(router)) {
            self.mistake
                .get_or_insert(Error::setting("the relay has a router already: call forward_by once"));
        }
        self
    }

    fn destination(mut self, event_type: &EventType, destination: Destination) -> Self {
        if !self.routes.add(GLOBAL, event_type.as_str(), destination.into()) {
            self.mistake.get_or_insert(Error::DuplicateHandler {
                aggregate_type: GLOBAL.to_owned(),
                event_type: event_type.as_str().to_owned(),
            });
        }
        self
    }

    /// Adds an interceptor around every handler and publisher.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.routes.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Treatment of events that have no handler and no destination; [left pending](Unrouted::Leave)
    /// if not set.
    pub fn unrouted(mut self, unrouted: Unrouted) -> Self {
        self.routes.unrouted = unrouted;
        self
    }

    /// Retry policy of handlers, and of publishers that have no [policy of their
    /// own](Destination::retry). If not set, [`Backoff::default`](crate::Backoff::default) for
    /// handlers, and [`Backoff::publishing`](crate::Backoff::publishing) for publishers.
    pub fn retry(mut self, retry: impl RetryPolicy) -> Self {
        self.settings.retry = Some(Arc::new(retry));
        self.settings.publish_retry = None;
        self
    }

    /// Separate retry policies for handlers and for publishers.
    #[cfg(feature = "settings")]
    pub(crate) fn retry_by_kind(mut self, of_handlers: Backoff, of_publishers: Backoff) -> Self {
        self.settings.retry = Some(Arc::new(of_handlers));
        self.settings.publish_retry = Some(Arc::new(of_publishers));
        self
    }

    /// How many handlers run at once; 4 if not set. In a fleet, over all databases together; 64 if
    /// not set.
    ///
    /// With [publishers](Self::forward) it bounds batches, not events: a worker sends up to 250
    /// events at once to the publisher, which sends all of them concurrently, or as many as its own
    /// setting allows, such as `concurrency` of a webhook (16). With 4 workers that is up to 1,000
    /// events, or 64 requests.
    pub fn workers(mut self, workers: usize) -> Self {
        self.settings.workers = workers;
        self
    }

    /// How many events wait for a worker after their commit; 1,000 if not set.
    pub fn hot_capacity(mut self, events: usize) -> Self {
        self.settings.hot_capacity = events;
        self
    }

    /// How many events that were read wait for a worker; 1,000 if not set.
    pub fn cold_capacity(mut self, events: usize) -> Self {
        self.settings.cold_capacity = events;
        self
    }

    /// How many bytes the events may use that were read and are not settled yet; 64 MiB if not set.
    /// The relay reads no further until a quarter of the budget is free. One event is always read,
    /// however large. The relays of a fleet share the budget.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// let relay = outbox.multi_node().queue_bytes(16 << 20).start().await?;
    /// # relay.stop().await
    /// # }
    /// ```
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.settings.bytes = ByteBudget::new(bytes);
        self
    }

    /// Leaves all events to the poller, which is still woken by every write.
    pub fn no_hot_path(mut self) -> Self {
        self.settings.hot = false;
        self
    }

    /// How many events a poll takes at first; 50 if not set. Grows while there are more.
    pub fn batch(mut self, events: usize) -> Self {
        self.settings.batch = events;
        self
    }

    /// The longest time between two polls; 5 s if not set. After a poll that found events the next
    /// one comes sooner.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval;
        self
    }

    /// Skips events that were created more recently than this.
    pub fn skip_recent(mut self, age: Duration) -> Self {
        self.settings.skip_recent = age;
        self
    }

    /// How long an event is leased; 30 s if not set. Renewed at a third of that while its handler
    /// runs. A crash delays the events that the node holds by the lease, if no other relay releases
    /// them sooner; see [`presence`](Self::presence). `single_node` holds no leases on events.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long this relay counts as present after it has announced itself; 20 s if not set. It
    /// announces itself four times in that time. When the time is over, other relays release its
    /// leases, and this relay handles no event that it holds until it has announced itself again
    /// and renewed them.
    pub fn presence(mut self, presence: Duration) -> Self {
        self.settings.presence = presence;
        self
    }

    /// The name of this node, instead of a generated one. No other running node may have it: a
    /// relay that starts under the name of a relay that crashed releases the leases of that relay
    /// at once.
    pub fn node(mut self, node: impl Into<NodeId>) -> Self {
        self.settings.node = node.into();
        self
    }

    /// How long `stop` waits for queued events; 5 s if not set.
    pub fn drain(mut self, time: Duration) -> Self {
        self.settings.drain = time;
        self
    }

    /// How long a handler may take; 5 min if not set. A longer run is a failure, and the handler is
    /// dropped.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.settings.handler_timeout = limit;
        self
    }

    /// How long a verdict waits to be written in a batch with others; 20 ms if not set.
    pub fn settle_linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// Whether done events are kept or deleted; kept until purged if not set.
    pub fn completion(mut self, completion: Completion) -> Self {
        self.settings.completion = completion;
        self
    }

    /// Effect of a dead event on the later events of its key; they wait if not set.
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.settings.on_dead = on_dead;
        self
    }

    /// Retention times and interval of purging. No mode deletes undelivered events unless
    /// [`delete_undelivered`](PurgeSettings::delete_undelivered) is set.
    pub fn purge(mut self, purge: PurgeSettings) -> Self {
        self.settings.purge = Some(purge);
        self
    }

    /// Purges nothing: another node, or an operator, does.
    pub fn no_purge(mut self) -> Self {
        self.settings.purge = None;
        self
    }

    /// Publishes the events of the [log](crate::Log) that a topic selects to a publisher, which has
    /// a position of its own: `relay.publish(topic.to(publisher))`. Any number of pairs of topic
    /// and publisher; nodes that run the same pairs share them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
    /// use std::time::Duration;
    /// use outbox::{Event, LatchPublisher, TracingPublisher, Outbox, Topic};
    ///
    /// let outbox = Outbox::sqlite(":memory:").await?;
    /// outbox.migrate().await?;
    /// let wallets = Topic::new("wallets").required_tags(["wallet_id"]);
    /// let latch = LatchPublisher::expecting(1);
    /// let relay = outbox.log_only()
    ///     .publish(wallets.to(TracingPublisher::new()))
    ///     .publish(wallets.to(latch.clone()).batch(500).every(Duration::from_secs(5)))
    ///     .start().await?;
    ///
    /// outbox.log().append([Event::new("WalletOpened").tag("wallet_id", "w1").json(&())]).await?;
    /// let published = latch.wait(Duration::from_secs(5)).await.unwrap();
    /// assert_eq!(published[0].tag("wallet_id"), Some("w1"));
    /// relay.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn publish(mut self, subscription: Subscription) -> Self {
        self.settings.subscriptions.push(subscription);
        self
    }

    /// Pace of subscriptions that do not set their own.
    #[cfg(feature = "settings")]
    pub(crate) fn subscription_defaults(mut self, defaults: PacingSettings) -> Self {
        self.settings.subscription_defaults = defaults;
        self
    }

    /// How long a node leads a pair without renewing its lease; 3 s if not set. A crash delays
    /// publishing by this time; by twice as long on PostgreSQL after a time without new events,
    /// when leases are renewed less often.
    pub fn subscription_lease(mut self, lease: Duration) -> Self {
        self.settings.subscription_lease = lease;
        self
    }

    /// How often to query the newest position, in one small query for all pairs; every 250 ms if
    /// not set. An append in the same process is seen at once, an append of another process by this
    /// query, except on PostgreSQL: there writers notify the relay, and the query is not needed
    /// while they do.
    pub fn log_watch(mut self, interval: Duration) -> Self {
        self.settings.log_watch = interval;
        self
    }

    /// Prefix of the metric names; `outbox` if not set.
    pub fn metrics_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.metrics_prefix = prefix.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_as_documented() {
        let settings = RelaySettings::new(Mode::MultiNode);
        assert_eq!((settings.workers, settings.batch), (4, 50));
        assert_eq!((settings.hot_capacity, settings.cold_capacity), (1_000, 1_000));
        assert_eq!(settings.poll_interval, Duration::from_secs(5));
        assert_eq!(settings.skip_recent, Duration::ZERO);
        assert_eq!((settings.lease, settings.presence), (Duration::from_secs(30), Duration::from_secs(20)));
        assert_eq!(settings.drain, Duration::from_secs(5));
        assert_eq!((settings.completion, settings.on_dead), (Completion::Keep, OnDead::Hold));

        let purge = settings.purge.unwrap();
        assert_eq!(purge.every, Duration::from_secs(60 * 60));
        assert_eq!((purge.what.what, purge.what.limit), (Purgeable::Done, 500));
        assert_eq!(purge.dead, None);
        assert_eq!(purge.what.older_than, Duration::from_secs(7 * 24 * 60 * 60));
        assert_eq!(purge.inbox, Duration::from_secs(30 * 24 * 60 * 60));
    }

    #[test]
    fn ordered_has_no_hot_path_and_writer_only_purges_nothing_unasked() {
        assert!(!RelaySettings::new(Mode::Ordered).hot);
        assert!(RelaySettings::new(Mode::SingleNode).hot);
        assert_eq!(RelaySettings::new(Mode::WriterOnly).purge, None);
    }
}
