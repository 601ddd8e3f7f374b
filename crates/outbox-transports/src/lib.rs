//! Where events go: publishers and handlers, a module each.
//!
//! A transport is an [`outbox::Publisher`]: of a log's topic, or of the queue by `relay.forward(types, publisher)`. Those that
//! are an [`outbox::Handler`] as well are registered like one:
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

#[cfg(any(feature = "kafka", feature = "webhook"))]
mod duration;
#[cfg(feature = "kafka")]
mod kafka;
mod lines;
mod message;
mod promises;
#[cfg(any(feature = "kafka", feature = "webhook"))]
mod standing;
mod template;
mod text;
mod waves;
#[cfg(feature = "webhook")]
mod webhook;

#[cfg(feature = "kafka")]
pub use kafka::{Compression, Kafka, KafkaSasl, KafkaSettings, KafkaTls, Mechanism};
pub use lines::{Lines, Sink, open_to_append};
pub use message::{Encoder, Format, Message};
pub use promises::{Order, Promises, Repeats};
pub use template::Template;
pub use text::{Secret, Text};
pub use waves::Waves;
#[cfg(feature = "webhook")]
pub use webhook::{Unverified, Webhook, WebhookSettings, WebhookTls, verify_webhook};
