//! The code of the processes. The binary starts itself once for each process.

pub mod handlers;
mod publisher;
pub mod reader;
pub mod relay;
pub mod writer;

use std::path::PathBuf;
use std::time::Duration;

use outbox::{Outbox, OutboxBuilder};

use crate::arena::Arena;
use crate::database::TestDatabase;

/// Name of a file in the folder of histories: once it exists, writers stop writing.
pub const WRITING_STOPPED: &str = "quiet";

/// Command-line options of a process.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessOptions {
    /// Process name, unique in the run.
    #[arg(long)]
    pub process: String,
    /// The arena of the process.
    #[arg(long)]
    pub arena: Arena,
    /// URL of the database, through the process's own proxy.
    #[arg(long)]
    pub database: String,
    /// Prefix of table names.
    #[arg(long)]
    pub prefix: String,
    /// The folder of histories.
    #[arg(long)]
    pub folder: PathBuf,
    /// Seed of the process's random numbers.
    #[arg(long)]
    pub seed: u64,
    /// Newest generation of event types that the process handles or writes.
    #[arg(long, default_value_t = 1)]
    pub generation: u32,
    /// Transactions per second.
    #[arg(long, default_value_t = 20)]
    pub rate: u32,
    /// Duration of leases, in milliseconds.
    #[arg(long)]
    pub lease: u32,
    /// Whether some handlers take longer than a lease.
    #[arg(long)]
    pub slow: bool,
    /// Whether some handlers panic.
    #[arg(long)]
    pub panics: bool,
    /// Whether some handlers abort their process.
    #[arg(long)]
    pub aborts: bool,
    /// Whether some events go to a webhook.
    #[arg(long)]
    pub hooks: bool,
    /// URL of the broker.
    #[arg(long, default_value = "")]
    pub broker: String,
}

impl ProcessOptions {
    /// The table of events.
    pub fn table(&self) -> String {
        self.arena.table(&self.prefix)
    }

    /// Opens the outbox; retries while the database is unreachable.
    pub async fn open<DB: TestDatabase>(&self) -> Outbox<DB> {
        loop {
            let builder = OutboxBuilder::new().table(self.table()).max_connections(6);
            match DB::open(builder, &self.database).await {
                Ok(outbox) => return outbox,
                Err(error) => {
                    tracing::warn!(%error, "cannot open the database; retrying");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}
