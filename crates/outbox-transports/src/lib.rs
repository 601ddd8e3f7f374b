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

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(test)]
mod any_text;
#[cfg(any(feature = "amqp", feature = "mqtt"))]
mod client_config;
#[cfg(any(feature = "nats", feature = "redis", feature = "webhook"))]
mod crypto;
#[cfg(feature = "kafka")]
mod kafka;
mod lines;
#[cfg(any(feature = "amqp", feature = "mqtt", feature = "nats", feature = "redis"))]
mod link;
mod message;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
mod promises;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "kafka", feature = "webhook"))]
mod standing;
mod template;
#[cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]
mod time;
#[cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]
mod tls;
mod waves;
#[cfg(feature = "webhook")]
mod webhook;

#[cfg(feature = "amqp")]
pub use amqp::{Amqp, AmqpSettings};
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaCompression, KafkaMechanism, KafkaSasl, KafkaSettings};
pub use lines::{Lines, Sink, open_to_append};
pub use message::{Encoder, Format, Message};
#[cfg(feature = "mqtt")]
pub use mqtt::{Mqtt, MqttSettings};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsSettings};
pub use outbox::text::{Secret, Text};
pub use promises::{Order, Promises, Repeats};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisSettings};
pub use template::Template;
#[cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]
pub use tls::Tls;
pub use waves::Waves;
#[cfg(feature = "webhook")]
pub use webhook::{Unverified, Webhook, WebhookSettings, verify_webhook};

/// The examples of the README and of the guide, compiled and run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/transports.md")]
    struct Transports;
}
