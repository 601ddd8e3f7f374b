//! Whether the server sessions behind a store's connections are its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::connect::Pooler;

const UNKNOWN: u8 = 0;
const OWN: u8 = 1;
const SHARED: u8 = 2;

/// Whether the server sessions behind a store's connections are its own, or shared with other clients
/// by a pooler in transaction mode. Clones are the same.
///
/// A shared session belongs to a connection for one transaction. So behind a pooler:
///
/// - A statement runs inside a transaction. sqlx sends it in two rounds, to prepare and to run it,
///   and only in a transaction both reach the same session.
/// - It has no name there: a named statement stays in the session, where another connection's
///   statement may have the same name.
/// - Settings are `SET LOCAL`, and there is no `LISTEN` and no lock that outlives its transaction.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Sessions(Arc<AtomicU8>);

impl Sessions {
    pub(crate) fn new(pooler: Pooler) -> Self {
        Self(Arc::new(AtomicU8::new(match pooler {
            Pooler::Detect => UNKNOWN,
            Pooler::None => OWN,
            Pooler::Transaction => SHARED,
        })))
    }

    pub(crate) fn own() -> Self {
        Self::new(Pooler::None)
    }

    pub(crate) fn are_shared(&self) -> bool {
        self.0.load(Ordering::Acquire) == SHARED
    }

    /// Whether no connection has found it out yet.
    #[cfg(feature = "postgres")]
    pub(crate) fn are_unknown(&self) -> bool {
        self.0.load(Ordering::Acquire) == UNKNOWN
    }

    /// A connection has found it out.
    #[cfg(feature = "postgres")]
    pub(crate) fn learn(&self, shared: bool) {
        self.0.store(if shared { SHARED } else { OWN }, Ordering::Release);
    }
}
