//! Where events go: handlers that publish them, a module each.
//!
//! A transport is an [`outbox::Handler`], so it is registered like one:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
//! use outbox_transports::Lines;
//!
//! let outbox = outbox::Outbox::sqlite(":memory:").await?;
//! outbox.migrate().await?;
//! let relay = outbox.single_node().handler(outbox::GLOBAL, "order.placed", Lines::stdout()).start().await?;
//! outbox.send(outbox::Event::new("order.placed").json(&42)).await?;
//! relay.stop().await?;
//! # Ok(()) }
//! ```

mod lines;

pub use lines::{Lines, Sink};
