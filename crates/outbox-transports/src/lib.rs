//! Transports: publishers to message brokers and webhooks, one module each.
//!
//! A transport is an [`outbox::Publisher`]. It publishes a topic of the log, or queue events with
//! `relay.forward(types, publisher)`:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> outbox::Result<()> {
//! use outbox_transports::Lines;
//!
//! let outbox = outbox::Outbox::sqlite(":memory:").await?;
//! outbox.migrate().await?;
//! let relay = outbox.single_node().forward(["order.placed"], Lines::stdout()).start().await?;
//! outbox.send(outbox::Event::new("order.placed").json(&42)).await?;
//! relay.stop().await?;
//! # Ok(()) }
//! ```

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(any(feature = "kafka", feature = "webhook"))]
mod availability;
#[cfg(any(feature = "amqp", feature = "mqtt"))]
mod client_config;
#[cfg(any(feature = "nats", feature = "redis", feature = "webhook"))]
mod crypto;
mod guarantees;
mod json_lines;
#[cfg(feature = "kafka")]
mod kafka;
mod keyed_batches;
mod message;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "kafka", feature = "redis"))]
mod probe;
#[cfg(test)]
mod proptests;
#[cfg(any(feature = "amqp", feature = "mqtt", feature = "nats", feature = "redis"))]
mod reconnect;
#[cfg(feature = "redis")]
mod redis;
mod settings_error;
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
#[cfg(feature = "webhook")]
mod webhook;

#[cfg(feature = "amqp")]
pub use amqp::{Amqp, AmqpSettings};
pub use guarantees::{Duplicates, Guarantees, Order};
pub use json_lines::{Lines, Sink, open_to_append};
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaCompression, KafkaMechanism, KafkaSasl, KafkaSettings};
pub use keyed_batches::KeyedBatches;
pub use message::{Encoder, Format, Message};
#[cfg(feature = "mqtt")]
pub use mqtt::{Mqtt, MqttSettings};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsSettings};
pub use outbox::text::{Secret, Text};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisSettings};
pub use settings_error::{PublisherSettingsError, TlsFileError};
pub use template::{Template, TemplateError};
#[cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]
pub use tls::Tls;
#[cfg(feature = "webhook")]
pub use webhook::{SigningSecretError, Unverified, Webhook, WebhookSettings, verify_webhook};

/// The examples of the README and of the guide, compiled and run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/transports.md")]
    struct Transports;
}
