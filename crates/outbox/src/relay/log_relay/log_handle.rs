//! The log of a store that is known to have one.

use std::ops::Deref;

use crate::error::{Error, Result};
use crate::log::LogStore;
use crate::store::SharedStore;

/// Dereferences to the log.
#[derive(Clone)]
pub(super) struct LogHandle(SharedStore);

impl LogHandle {
    pub(super) fn new(store: SharedStore) -> Result<Self> {
        if store.log().is_none() {
            return Err(Error::setting(format!("the store {:?} has no log to publish", store.name())));
        }
        Ok(Self(store))
    }

    pub(super) fn name(&self) -> &str {
        self.0.name()
    }

    /// Has the other nodes reconcile their subscriptions, where the database has notifications.
    /// Elsewhere they poll often.
    pub(super) async fn notify_nodes(&self) {
        if let Err(error) = self.0.ring().await {
            tracing::debug!(store = self.name(), %error, "could not notify other nodes: they poll");
        }
    }
}

impl Deref for LogHandle {
    type Target = dyn LogStore;

    fn deref(&self) -> &(dyn LogStore + 'static) {
        self.0.log().expect("the constructor has checked that the store has a log")
    }
}
