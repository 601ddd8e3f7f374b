//! The server sessions behind a store's connections: own or shared, and the product of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::product::Product;
use crate::connect::Pooler;

const UNKNOWN: u8 = 0;
const OWN: u8 = 1;
const SHARED: u8 = 2;

/// Whether the server sessions behind a store's connections are its own, or shared with other
/// clients by a pooler in transaction mode. Clones share the state.
///
/// A shared session belongs to a connection for one transaction. So behind a pooler:
///
/// - A statement runs inside a transaction. sqlx sends it in two round trips, to prepare and to run
///   it, and only in a transaction both reach the same session.
/// - A statement has no name: a named statement stays in the session, where a statement of another
///   connection may have the same name.
/// - Settings are `SET LOCAL`, and there is no `LISTEN` and no lock that outlives its transaction.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Sessions {
    shared: Arc<AtomicU8>,
    product: Product,
}

impl Sessions {
    pub(crate) fn new(pooler: Pooler) -> Self {
        let shared = match pooler {
            Pooler::Detect => UNKNOWN,
            Pooler::None => OWN,
            Pooler::Transaction => SHARED,
        };
        Self { shared: Arc::new(AtomicU8::new(shared)), product: Product::default() }
    }

    pub(crate) fn own() -> Self {
        Self::new(Pooler::None)
    }

    /// Shares the product of the server with the other parts of the store.
    pub(crate) fn of(self, product: Product) -> Self {
        Self { product, ..self }
    }

    pub(crate) fn product(&self) -> &Product {
        &self.product
    }

    pub(crate) fn are_shared(&self) -> bool {
        self.shared.load(Ordering::Acquire) == SHARED
    }

    /// Whether no connection has detected it yet.
    #[cfg(feature = "postgres")]
    pub(crate) fn are_unknown(&self) -> bool {
        self.shared.load(Ordering::Acquire) == UNKNOWN
    }

    /// The statement that begins a transaction with settings, if the sessions are shared and the
    /// server has the settings.
    pub(crate) fn begin(&self, with_settings: Option<&'static str>) -> Option<&'static str> {
        with_settings.filter(|_| self.are_shared() && !self.product.is_distributed())
    }

    /// Stores the result of the detection.
    #[cfg(feature = "postgres")]
    pub(crate) fn learn(&self, shared: bool) {
        self.shared.store(if shared { SHARED } else { OWN }, Ordering::Release);
    }
}
