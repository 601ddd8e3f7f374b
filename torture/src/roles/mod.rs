//! What the processes do. The binary runs itself anew for each.

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

/// A file of this name in the folder of histories: nobody writes any more.
pub const WRITING_STOPPED: &str = "quiet";

/// What a process is options.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessOptions {
    /// Its name, which nobody else had before.
    #[arg(long)]
    pub process: String,
    /// Where it belongs.
    #[arg(long)]
    pub arena: Arena,
    /// The database, by a way of its own.
    #[arg(long)]
    pub database: String,
    /// What goes before the names of tables.
    #[arg(long)]
    pub prefix: String,
    /// The folder of histories.
    #[arg(long)]
    pub folder: PathBuf,
    /// What its dice begin with.
    #[arg(long)]
    pub seed: u64,
    /// Up to which generation it knows the types of events, or writes them.
    #[arg(long, default_value_t = 1)]
    pub generation: u32,
    /// Transactions a second.
    #[arg(long, default_value_t = 20)]
    pub rate: u32,
    /// How long leases last, in milliseconds.
    #[arg(long)]
    pub lease: u32,
    /// Whether handlers take longer than a lease now and then.
    #[arg(long)]
    pub slow: bool,
    /// Whether handlers panic now and then.
    #[arg(long)]
    pub panics: bool,
    /// Whether handlers end their process now and then.
    #[arg(long)]
    pub aborts: bool,
    /// Whether some events go to a webhook.
    #[arg(long)]
    pub hooks: bool,
    /// The broker.
    #[arg(long, default_value = "")]
    pub broker: String,
}

impl ProcessOptions {
    /// The table of events.
    pub fn table(&self) -> String {
        self.arena.table(&self.prefix)
    }

    /// Opens the outbox. The database may be away just now: then tries until it is back.
    pub async fn open<DB: TestDatabase>(&self) -> Outbox<DB> {
        loop {
            let builder = OutboxBuilder::new().table(self.table()).max_connections(6);
            match DB::open(builder, &self.database).await {
                Ok(outbox) => return outbox,
                Err(error) => {
                    tracing::warn!(%error, "cannot open the database yet");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}
