//! Event types that this relay does not deliver for now, by the application's request.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use super::Engine;
use super::queues::WorkUnit;

/// The paused event types.
#[derive(Default)]
pub(crate) struct PausedTypes {
    /// Whether there are any, so that the usual case costs no lock.
    any: AtomicBool,
    types: RwLock<BTreeSet<String>>,
}

impl PausedTypes {
    /// Pauses or resumes a type. Returns whether that changed anything.
    pub(super) fn set(&self, event_type: &str, paused: bool) -> bool {
        let mut types = self.types.write().expect("no code panics while it holds this lock");
        let changed = if paused { types.insert(event_type.to_owned()) } else { types.remove(event_type) };
        self.any.store(!types.is_empty(), Ordering::Release);
        changed
    }

    pub(super) fn contains(&self, event_type: &str) -> bool {
        self.any.load(Ordering::Acquire)
            && self.types.read().expect("no code panics while it holds this lock").contains(event_type)
    }

    pub(super) fn types(&self) -> BTreeSet<String> {
        self.types.read().expect("no code panics while it holds this lock").clone()
    }
}

impl Engine {
    /// Whether the type of the next event of a work unit is paused.
    pub(super) fn is_paused(self: &Arc<Self>, unit: &WorkUnit) -> bool {
        if !self.paused.any.load(Ordering::Acquire) {
            return false;
        }
        match unit {
            WorkUnit::One(job) => self.paused.contains(job.delivery.event.event_type().as_str()),
            WorkUnit::Key(queue) => self
                .key_queues
                .peek(queue, |job| self.paused.contains(job.delivery.event.event_type().as_str()))
                .unwrap_or(false),
            WorkUnit::Admitted(unit, _) => self.is_paused(unit),
        }
    }
}
