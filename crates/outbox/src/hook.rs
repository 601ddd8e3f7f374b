//! Hooks around writing: inspect, change, suppress or refuse events.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{BoxError, Error, Result};
use crate::event::Event;

/// The reason why a hook refuses a write: any error, by `?`, or a text, by `into()`.
pub type HookError = BoxError;

/// Called around every write of an [`Outbox`](crate::Outbox).
///
/// `before_write` → insert → `after_write` → commit or rollback → `after_commit` or
/// `after_rollback`. Each is called once for a batch. Only `before_write` can stop a write; a panic
/// in the others is logged. When it is unknown whether a commit happened, because its answer was
/// lost, neither of the last two is called.
///
/// ```
/// use outbox::{Event, HookError, WriterHook};
///
/// /// Suppresses internal events, and refuses orders without a number.
/// struct Rules;
///
/// impl WriterHook for Rules {
///     fn before_write(&self, mut events: Vec<Event>) -> Result<Vec<Event>, HookError> {
///         events.retain(|event| !event.event_type().as_str().starts_with("internal."));
///         for event in events.iter().filter(|event| event.event_type() == "order.placed") {
///             if event.payload::<u64>()? == 0 {
///                 return Err("an order needs a number".into());
///             }
///         }
///         Ok(events)
///     }
/// }
/// ```
pub trait WriterHook: Send + Sync + 'static {
    /// Called before the insert: return the events to write instead, none to suppress the write, or
    /// an error to refuse it. The writer gets the error as the source of [`Error::Hook`].
    fn before_write(&self, events: Vec<Event>) -> Result<Vec<Event>, HookError> {
        Ok(events)
    }

    /// Called after the insert, while the transaction is still open.
    fn after_write(&self, events: &[Event]) {
        let _ = events;
    }

    /// Called after the commit.
    fn after_commit(&self, events: &[Event]) {
        let _ = events;
    }

    /// Called after the rollback.
    fn after_rollback(&self, events: &[Event]) {
        let _ = events;
    }
}

/// All hooks of an outbox, in the order of registration.
#[derive(Clone, Default)]
pub(crate) struct Hooks(pub(crate) Vec<Arc<dyn WriterHook>>);

impl Hooks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn before_write(&self, mut events: Vec<Event>) -> Result<Vec<Event>> {
        for hook in &self.0 {
            events = catch_unwind(AssertUnwindSafe(|| hook.before_write(events)))
                .unwrap_or_else(|_| Err("it panicked".into()))
                .map_err(Error::Hook)?;
        }
        Ok(events)
    }

    pub(crate) fn after_write(&self, events: &[Event]) {
        self.notify("after_write", |hook| hook.after_write(events));
    }

    pub(crate) fn after_commit(&self, events: &[Event]) {
        self.notify("after_commit", |hook| hook.after_commit(events));
    }

    pub(crate) fn after_rollback(&self, events: &[Event]) {
        self.notify("after_rollback", |hook| hook.after_rollback(events));
    }

    fn notify(&self, when: &str, call: impl Fn(&dyn WriterHook)) {
        for hook in &self.0 {
            guarded(when, || call(&**hook));
        }
    }
}

/// Runs a callback that must not affect its caller; a panic is logged.
pub(crate) fn guarded(what: &str, callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        tracing::error!("a {what} callback panicked; nothing else is affected");
    }
}
