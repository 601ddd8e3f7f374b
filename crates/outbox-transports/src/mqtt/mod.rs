//! MQTT 5: events as messages with QoS 1, each confirmed by the server.

mod connection;
mod in_flight;
mod message;
#[cfg(test)]
mod proptests;
mod send;
mod server;
mod settings;

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Outgoing, PublishError, Publisher, Unavailable};
use tokio::sync::RwLock;

use self::connection::{MqttConnection, MqttConnector};
use self::in_flight::{ConnectionLoss, MqttRefusal, PublishOutcome};
use self::message::MqttMessage;
use self::send::send;
use self::server::Server;
pub use self::settings::MqttSettings;
use crate::reconnect::Reconnect;
use crate::{Duplicates, Encoder, Guarantees, KeyedBatches, Order, PublisherSettingsError};

/// Timeout of a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_millis(1500);

/// Minimum keep-alive that the client accepts.
const MIN_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Publishes to an MQTT 5 server. Connects on first use, and again after the connection was lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox::Topic;
/// use outbox_transports::{Mqtt, MqttSettings};
///
/// let settings = MqttSettings::new("mqtt://localhost", "orders/{type}".parse()?);
/// let pair = Topic::new("orders").required_tags(["order_id"]).to(Mqtt::new("mosquitto", settings)?);
/// assert_eq!(pair.id().publisher(), "mosquitto");
/// # Ok(()) }
/// ```
///
/// The event's id is a user property. An event is published when the server has acknowledged it,
/// even if its topic has no subscribers.
pub struct Mqtt {
    name: String,
    settings: MqttSettings,
    encoder: Encoder,
    connection: Reconnect<MqttConnector>,
    /// Read-locked while a batch is sent. Write-locked while the message that the server rejects is
    /// isolated.
    isolation: RwLock<()>,
}

impl Mqtt {
    /// Delivery guarantees of MQTT.
    pub const GUARANTEES: Guarantees = Guarantees {
        order: Order::PerKey,
        duplicates: Duplicates::Delivered,
        confirmed: "the server has accepted the message (QoS 1) for its subscribers",
    };

    /// Creates a publisher called `name`. Checks the settings; does not connect yet.
    pub fn new(name: impl Into<String>, settings: MqttSettings) -> Result<Self, PublisherSettingsError> {
        let server = Server::parse(&settings)?;
        if settings.tls.is_used() && !server.encrypted {
            return Err(PublisherSettingsError::Conflict {
                setting: "tls",
                other: "url",
                reason: "the url is mqtt://, which does not use TLS; write mqtts://",
            });
        }
        settings.tls.client_config()?;
        if let Some(topic) = settings.topic.fixed() {
            message::check_topic(topic).map_err(|error| {
                PublisherSettingsError::value("topic", error.to_string()).caused_by(error)
            })?;
        }
        if settings.keep_alive < MIN_KEEP_ALIVE {
            return Err(PublisherSettingsError::value("keep_alive", "use at least 5s"));
        }
        let client_id = match &settings.client_id {
            Some(id) if id.as_str().is_empty() => {
                return Err(PublisherSettingsError::value("client_id", "omit it for a generated one"));
            }
            Some(id) => id.as_str().to_owned(),
            None => new_client_id(),
        };
        let connector = MqttConnector {
            server,
            tls: settings.tls.clone(),
            client_id,
            timeout: settings.connect_timeout,
            keep_alive: settings.keep_alive,
            retain: settings.retain,
        };
        let encoder = Encoder::new(settings.format, settings.source.as_str()).prefix("");
        Ok(Self {
            name: name.into(),
            settings,
            encoder,
            connection: Reconnect::new(connector),
            isolation: RwLock::new(()),
        })
    }

    /// Sends one sub-batch.
    async fn send_sub_batch(
        &self,
        connection: &MqttConnection,
        messages: &[IndexedMqttMessage],
        batches: &mut KeyedBatches<'_>,
    ) -> Result<(), Unavailable> {
        let all: Vec<&IndexedMqttMessage> = messages.iter().collect();
        let suspects = {
            let _shared = self.isolation.read().await;
            self.attempt(connection, &all, batches).await?
        };
        if suspects.is_empty() {
            return Ok(());
        }
        // The server closed the connection, perhaps because of one of these messages, without
        // naming it. If the server is reachable, the group is halved and resent until the rejected
        // messages are isolated.
        let _exclusive = self.isolation.write().await;
        let mut groups = vec![without_reasons(suspects)];
        while let Some(group) = groups.pop() {
            let connection = self.connection.get().await?;
            let suspects = self.attempt(&connection, &group, batches).await?;
            if group.len() == 1 && suspects.len() == 1 {
                // Once more, on a connection that carried no other message.
                let connection = self.connection.get().await?;
                for (indexed, refusal) in self.attempt(&connection, &group, batches).await? {
                    self.record_refusal(indexed, &refusal, batches)?;
                }
            } else if !suspects.is_empty() {
                let mut first = without_reasons(suspects);
                let second = first.split_off(first.len().div_ceil(2));
                groups.extend([second, first]);
            }
        }
        Ok(())
    }

    /// Sends a group at once. If the server closed the connection, returns the unacknowledged
    /// messages and the refusal that may apply to them.
    async fn attempt<'a>(
        &self,
        connection: &MqttConnection,
        group: &[&'a IndexedMqttMessage],
        batches: &mut KeyedBatches<'_>,
    ) -> Result<Vec<(&'a IndexedMqttMessage, MqttRefusal)>, Unavailable> {
        let messages: Vec<&MqttMessage> = group.iter().map(|(_, message)| message).collect();
        let outcomes = send(connection, &messages, self.settings.retain, self.settings.ack_timeout).await;
        let mut suspects = Vec::new();
        let mut outage = None;
        for (indexed, outcome) in group.iter().zip(outcomes) {
            let (index, _) = indexed;
            match outcome {
                PublishOutcome::Published => batches.published(*index),
                PublishOutcome::Refused(refusal) => {
                    if let Err(reason) = self.record_refusal(indexed, &refusal, batches) {
                        outage.get_or_insert(reason);
                    }
                }
                PublishOutcome::Lost(ConnectionLoss::Rejected(refusal)) => suspects.push((*indexed, refusal)),
                PublishOutcome::Lost(ConnectionLoss::Outage(reason)) => {
                    outage.get_or_insert_with(|| {
                        Unavailable::new(format_args!("the connection to the MQTT server was lost: {reason}"))
                    });
                }
            }
        }
        outage.map_or(Ok(suspects), Err)
    }

    /// Records the event's failure. Returns an error if this client may not publish to the topic
    /// and all events go to this topic.
    fn record_refusal(
        &self,
        (index, message): &IndexedMqttMessage,
        refusal: &MqttRefusal,
        batches: &mut KeyedBatches<'_>,
    ) -> Result<(), Unavailable> {
        let failure = refusal.to_failure(&message.topic);
        if refusal.is_denied && self.settings.topic.fixed().is_some() {
            return Err(Unavailable::new(failure));
        }
        batches.failed(*index, failure);
        Ok(())
    }
}

/// A message and its index in the batch.
type IndexedMqttMessage = (usize, MqttMessage);

fn without_reasons(suspects: Vec<(&IndexedMqttMessage, MqttRefusal)>) -> Vec<&IndexedMqttMessage> {
    suspects.into_iter().map(|(suspect, _)| suspect).collect()
}

#[async_trait]
impl Publisher for Mqtt {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let mut batches = KeyedBatches::new(events);
        while let Some(sub_batch) = batches.next() {
            let connection = match self.connection.get().await {
                Ok(connection) => connection,
                Err(reason) => return batches.abort(reason),
            };
            let mut messages = Vec::with_capacity(sub_batch.len());
            for index in sub_batch {
                let message = MqttMessage::encode(&self.settings, &self.encoder, &events[index]);
                match message.and_then(|message| message.fits(connection.max_packet_size).map(|()| message)) {
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
        self.connection.get_within(HEALTH_TIMEOUT).await.map(drop)
    }
}

impl fmt::Debug for Mqtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mqtt").field("name", &self.name).field("settings", &self.settings).finish()
    }
}

/// Generates a client id of letters and digits with at most 23 characters, which every server
/// accepts.
fn new_client_id() -> String {
    format!("outbox{:016x}", RandomState::new().hash_one(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(more: &serde_json::Value) -> MqttSettings {
        let mut settings = serde_json::json!({ "url": "mqtt://u:hunter2@localhost", "topic": "t/{type}" });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(settings).unwrap()
    }

    #[test]
    fn invalid_values_are_named() {
        for (more, expected) in [
            (serde_json::json!({ "topic": "a/#" }), "topic: the topic `a/#` contains"),
            (serde_json::json!({ "topic": "" }), "topic: the topic is empty"),
            (serde_json::json!({ "client_id": "" }), "client_id: omit it"),
            (serde_json::json!({ "keep_alive": "4s" }), "keep_alive: use at least 5s"),
            (serde_json::json!({ "tls": { "ca_file": "/dev/null" } }), "tls: the url is mqtt://"),
            (
                serde_json::json!({ "url": "mqtts://h", "tls": { "ca_file": "/dev/null" } }),
                "tls: ca_file: contains no certificate",
            ),
        ] {
            let error = Mqtt::new("m", settings(&more)).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }

    #[test]
    fn debug_output_has_no_secrets() {
        let mqtt = Mqtt::new("m", settings(&serde_json::json!({}))).unwrap();
        assert!(!format!("{mqtt:?}").contains("hunter2"));
    }

    #[test]
    fn every_client_id_is_unique() {
        let (one, two) = (new_client_id(), new_client_id());
        assert!(one != two && one.len() <= 23 && one.bytes().all(|b| b.is_ascii_alphanumeric()), "{one}");
    }
}
