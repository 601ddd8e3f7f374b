//! State shared by all handlers.

use std::ops::Deref;
use std::sync::Arc;

use outbox::Destination;
use tokio::sync::Semaphore;

use crate::auth::Authenticator;
use crate::auth::hosts::Hosts;
use crate::databases::DatabaseSources;
use crate::jobs::Jobs;
use crate::live::Live;

/// Lists the destinations of the relay in this process.
pub(crate) type Destinations = Arc<dyn Fn() -> Vec<Destination> + Send + Sync>;

/// Shared state. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) authenticator: Authenticator,
    pub(crate) hosts: Hosts,
    pub(crate) databases: DatabaseSources,
    pub(crate) destinations: Option<Destinations>,
    pub(crate) jobs: Jobs,
    pub(crate) live: Live,
    /// Permits for reading a payload.
    pub(crate) payloads: Semaphore,
}

impl Deref for Shared {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
