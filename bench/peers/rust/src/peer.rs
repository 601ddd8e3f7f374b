//! The trait of a peer, and the payload of all peers.

use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Called by the peer's handler with the order of the payload.
#[derive(Clone)]
pub struct Handler(pub Arc<dyn Fn(u64) + Send + Sync>);

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handler")
    }
}

/// Awaited to stop the worker.
pub type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// 256 bytes as PostgreSQL prints them, as in our own figures; `order` tells one from another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Payload {
    pub order: u64,
    pub text: String,
}

impl Payload {
    pub fn new(order: u64) -> Self {
        Self { order, text: "x".repeat(230) }
    }
}

/// How the peer was set up, for each figure.
pub struct Settings {
    pub drain: &'static str,
    pub latency: &'static str,
    pub write: &'static str,
}

/// A job queue with an empty schema of its own.
pub trait Peer: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    const VERSION: &'static str;
    const SETTINGS: Settings;
    /// The schema that it lives in: dropped before and after.
    const SCHEMA: &'static str;

    /// Makes the schema. `writers` transactions will be open at once.
    fn open(database: &str, writers: u32) -> impl Future<Output = anyhow::Result<Self>>;

    /// Adds jobs by the peer's fastest documented way.
    fn add_many(&self, count: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Adds one job in a transaction of its own.
    fn add(&self, order: u64) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Writes a row into the table `business` of its schema and adds a job, in one transaction.
    fn write(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Whether any job is neither gone nor marked as done in the database.
    fn unsettled(&self) -> impl Future<Output = anyhow::Result<bool>> + Send;

    /// Starts the worker.
    fn work(&self, handler: Handler) -> impl Future<Output = anyhow::Result<Stop>> + Send;
}
