//! RabbitMQ: events as persistent messages to an exchange, each confirmed by the broker.

mod connection;
mod message;
#[cfg(test)]
mod proptests;
mod send;
mod settings;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use lapin::types::ShortString;
use outbox::{Outgoing, PublishError, Publisher, Unavailable};

use self::connection::{AmqpConnection, AmqpConnector};
use self::message::AmqpMessage;
use self::send::{AmqpRefusal, Destination, SendError, send, verify};
pub use self::settings::AmqpSettings;
use crate::reconnect::Reconnect;
use crate::{Duplicates, Encoder, Guarantees, KeyedBatches, Order, PublisherSettingsError};

/// Timeout of a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_millis(1500);

/// Publishes to RabbitMQ. Connects on first use, and again after the connection was lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox::Topic;
/// use outbox_transports::{Amqp, AmqpSettings};
///
/// let settings = AmqpSettings::new("amqp://localhost", "events", "{type}".parse()?);
/// let pair = Topic::new("orders").required_tags(["order_id"]).to(Amqp::new("rabbit", settings)?);
/// assert_eq!(pair.id().publisher(), "rabbit");
/// # Ok(()) }
/// ```
///
/// A message's `message_id` is the event's id. An event is published when the broker has confirmed
/// it: all queues that the message was routed to have it, on disk if they are durable.
pub struct Amqp {
    name: String,
    settings: AmqpSettings,
    encoder: Encoder,
    destination: Destination,
    connection: Reconnect<AmqpConnector>,
}

impl Amqp {
    /// Delivery guarantees of RabbitMQ.
    pub const GUARANTEES: Guarantees = Guarantees {
        order: Order::PerKey,
        duplicates: Duplicates::Delivered,
        confirmed: "every queue that the message was routed to has it, on disk if the queue is durable",
    };

    /// Creates a publisher called `name`. Checks the settings; does not connect yet.
    pub fn new(name: impl Into<String>, settings: AmqpSettings) -> Result<Self, PublisherSettingsError> {
        let name = name.into();
        let uri = settings::parse(&settings)?;
        let too_long =
            |setting, noun| PublisherSettingsError::value(setting, format!("a {noun} has at most 255 bytes"));
        let exchange =
            ShortString::try_new(settings.exchange.as_str()).map_err(|_| too_long("exchange", "name"))?;
        settings.tls.client_config()?;
        let connector = AmqpConnector {
            uri,
            tls: settings.tls.clone(),
            timeout: settings.connect_timeout,
            name: format!("outbox {name}"),
        };
        let routing_key = settings.routing_key.fixed().map(ShortString::try_new).transpose();
        let destination = Destination {
            exchange,
            mandatory: settings.mandatory,
            routing_key: routing_key.map_err(|_| too_long("routing_key", "routing key"))?,
            ack_timeout: settings.ack_timeout,
        };
        let encoder = Encoder::new(settings.format, settings.source.as_str()).prefix("cloudEvents:");
        Ok(Self { name, settings, encoder, destination, connection: Reconnect::new(connector) })
    }

    /// Sends one sub-batch.
    async fn send_sub_batch(
        &self,
        connection: &AmqpConnection,
        messages: &[IndexedAmqpMessage],
        batches: &mut KeyedBatches<'_>,
    ) -> Result<(), Unavailable> {
        let mut groups = vec![messages.iter().collect::<Vec<_>>()];
        while let Some(group) = groups.pop() {
            let Some((refusal, mut suspects)) = self.attempt(connection, &group, batches).await? else {
                continue;
            };
            if let [(index, message)] = suspects.as_slice() {
                batches.failed(*index, refusal.to_failure(message));
                continue;
            }
            // The broker does not name the refused message: the group is halved and resent until
            // the message is isolated.
            let second = suspects.split_off(suspects.len().div_ceil(2));
            groups.extend([second, suspects]);
        }
        Ok(())
    }

    /// Sends a group at once. If the broker refused one of its messages, returns the refusal and
    /// the messages that it may apply to.
    async fn attempt<'a>(
        &self,
        connection: &AmqpConnection,
        group: &[&'a IndexedAmqpMessage],
        batches: &mut KeyedBatches<'_>,
    ) -> Result<Option<(AmqpRefusal, Vec<&'a IndexedAmqpMessage>)>, Unavailable> {
        let messages: Vec<&AmqpMessage> = group.iter().map(|(_, message)| message).collect();
        let acks = send(connection, &self.destination, &messages).await;
        let mut suspects = Vec::new();
        for (indexed, result) in group.iter().zip(acks.results) {
            match result {
                Some(Ok(())) => batches.published(indexed.0),
                Some(Err(failure)) => batches.failed(indexed.0, failure),
                None => suspects.push(*indexed),
            }
        }
        match acks.error {
            None => Ok(None),
            Some(SendError::Refused(refusal)) => Ok(Some((refusal, suspects))),
            Some(SendError::Outage(reason)) => Err(Unavailable::new(reason)),
            Some(SendError::Missing(reason)) => {
                connection.mark_unverified();
                Err(Unavailable::new(reason))
            }
        }
    }
}

/// A message and its index in the batch.
type IndexedAmqpMessage = (usize, AmqpMessage);

#[async_trait]
impl Publisher for Amqp {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        if events.is_empty() {
            return Ok(());
        }
        let connection = self.connection.get().await.map_err(PublishError::unavailable)?;
        let mut batches = KeyedBatches::new(events);
        while let Some(sub_batch) = batches.next() {
            let mut messages = Vec::with_capacity(sub_batch.len());
            for index in sub_batch {
                let message = AmqpMessage::encode(&self.settings, &self.encoder, &events[index]);
                match message
                    .and_then(|message| message.fits(connection.max_frame_payload()).map(|()| message))
                {
                    Ok(message) => messages.push((index, message)),
                    Err(failure) => batches.failed(index, failure),
                }
            }
            if let Err(reason) = self.send_sub_batch(&connection, &messages, &mut batches).await {
                return batches.abort(reason);
            }
        }
        batches.finish()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        let connection = self.connection.get_within(HEALTH_TIMEOUT).await?;
        if let Some(reason) = connection.blocked() {
            return Err(Unavailable::new(format!("the broker is blocked: {reason}")));
        }
        if connection.is_verified() {
            return Ok(());
        }
        let verified = tokio::time::timeout(HEALTH_TIMEOUT, verify(&connection, &self.destination)).await;
        let timed_out =
            |_| Err(Unavailable::new(format_args!("the broker did not answer within {HEALTH_TIMEOUT:?}")));
        verified.unwrap_or_else(timed_out)?;
        connection.mark_verified();
        Ok(())
    }
}

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Amqp").field("name", &self.name).field("settings", &self.settings).finish()
    }
}
