//! The event that is being handled, and the facts of this attempt.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::TxSlot;
use crate::event::Event;
use crate::store::{Delivery, NodeId};

/// The event being handled, and the facts of this attempt. Dereferences to the [`Event`] itself.
#[derive(Clone)]
pub struct Context {
    event: Event,
    attempt: u32,
    seq: Option<i64>,
    created_at: Option<DateTime<Utc>>,
    last_error: Option<Arc<str>>,
    pub(super) relay: Arc<RelayScope>,
    /// The transaction that settles the event, if the handler has one.
    pub(super) tx: Option<Arc<TxSlot>>,
}

/// The part of a context that is the same for all events of a relay.
#[derive(Clone)]
pub(crate) struct RelayScope {
    pub(crate) node: NodeId,
    /// Name of the store.
    pub(crate) store: Arc<str>,
    pub(crate) states: States,
    /// Cancelled when the relay stops.
    pub(crate) stop: CancellationToken,
}

/// Values that handlers take as [`State`](super::State), one of each type.
#[derive(Clone, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    /// Adds a value; false if there is one of this type.
    pub(crate) fn add<T: Send + Sync + 'static>(&mut self, value: T) -> bool {
        self.0.insert(TypeId::of::<T>(), Arc::new(value)).is_none()
    }

    pub(crate) fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    pub(crate) fn has(&self, of: TypeId) -> bool {
        self.0.contains_key(&of)
    }
}

impl Context {
    pub(crate) fn new(delivery: &Delivery, relay: &Arc<RelayScope>) -> Self {
        Self {
            event: delivery.event.clone(),
            attempt: delivery.attempts + 1,
            seq: delivery.seq,
            created_at: delivery.created_at,
            last_error: delivery.last_error.as_deref().map(Into::into),
            relay: relay.clone(),
            tx: None,
        }
    }

    /// Adds the transaction that settles the event.
    pub(crate) fn with_tx(mut self, tx: Arc<TxSlot>) -> Self {
        self.tx = Some(tx);
        self
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The event's position in its table; known whenever order matters. A receiver that ignores
    /// positions up to the last one it has seen of a key ignores every redelivery.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// The error of the last attempt, with its [detail](crate::split_detail) if it had one. `None`
    /// for an event that has not failed.
    ///
    /// ```
    /// use outbox::{Context, Handled, split_detail};
    ///
    /// async fn resize(cx: Context) -> Handled {
    ///     if let Some((reason, _)) = cx.last_error().map(split_detail) {
    ///         println!("attempt {}, after: {reason}", cx.attempt());
    ///     }
    ///     Ok(())
    /// }
    /// # let _ = resize;
    /// ```
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// When the database stored it, by the database's clock: known on every path, from every store
    /// of this crate.
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.created_at
    }

    /// The node that handles it.
    pub fn node(&self) -> &NodeId {
        &self.relay.node
    }

    /// A value given to the relay with [`state`](crate::RelayBuilder::state): for code that has no
    /// arguments of its own, such as [middleware](super::Middleware). A handler takes it as
    /// [`State`](super::State).
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.relay.states.get()
    }

    /// Waits until the relay stops. A handler that takes long can then end early, with
    /// [`Outcome::Snooze`](super::Outcome::Snooze): after [`drain`](crate::RelayBuilder::drain) it
    /// is dropped at its next await.
    ///
    /// ```
    /// use std::time::Duration;
    /// use outbox::{Context, Outcome};
    ///
    /// # async fn import(_: &Context) {}
    /// async fn long(cx: Context) -> Outcome {
    ///     tokio::select! {
    ///         () = import(&cx) => Outcome::Done,
    ///         () = cx.stopping() => Outcome::Snooze(Duration::ZERO),
    ///     }
    /// }
    /// # let _ = outbox::on_type::<outbox::StoreOnly, _>("e", long);
    /// ```
    pub async fn stopping(&self) {
        self.relay.stop.cancelled().await;
    }

    /// Whether the relay stops.
    pub fn is_stopping(&self) -> bool {
        self.relay.stop.is_cancelled()
    }

    /// Name of the store of the event: in a [`Fleet`](crate::Fleet) the name of the database, to
    /// find its outbox by.
    pub fn store(&self) -> &str {
        &self.relay.store
    }
}

impl Deref for Context {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// Contexts for tests of handlers: see [`testing::context`](crate::testing::context).
#[cfg(feature = "testing")]
impl Context {
    pub(crate) fn of_event(event: Event) -> Self {
        let relay = RelayScope {
            node: NodeId::from("test"),
            store: "test".into(),
            states: States::default(),
            stop: CancellationToken::new(),
        };
        Self {
            event,
            attempt: 1,
            seq: None,
            created_at: None,
            last_error: None,
            relay: Arc::new(relay),
            tx: None,
        }
    }

    /// Sets the number of the attempt.
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Sets the error of the last attempt.
    pub fn with_last_error(mut self, error: impl Into<Arc<str>>) -> Self {
        self.last_error = Some(error.into());
        self
    }

    /// Adds a [state](Context::state).
    pub fn with_state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        Arc::make_mut(&mut self.relay).states.add(state);
        self
    }

    /// Makes the relay [stop](Context::stopping), as the handler sees it.
    pub fn with_stopping_relay(self) -> Self {
        self.relay.stop.cancel();
        self
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("event", &self.event)
            .field("attempt", &self.attempt)
            .field("seq", &self.seq)
            .field("created_at", &self.created_at)
            .field("store", &self.relay.store)
            .field("node", &self.relay.node)
            .finish_non_exhaustive()
    }
}
