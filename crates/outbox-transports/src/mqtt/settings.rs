//! Settings of the MQTT publisher.

use std::time::Duration;

use serde::Deserialize;

use crate::{Format, Secret, Template, Text, Tls, message, time};

/// Settings of [`Mqtt`](crate::Mqtt).
///
/// ```
/// use outbox_transports::MqttSettings;
///
/// let settings: MqttSettings = serde_json::from_str(r#"{
///     "url": "mqtts://broker.example:8883",
///     "user": "shop",
///     "password": "hunter2",
///     "topic": "shop/{aggregate_type}/{type}"
/// }"#)?;
/// assert!(!settings.retain);
/// assert!(!format!("{settings:?}").contains("hunter2"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MqttSettings {
    /// `mqtt://HOST:PORT`, or `mqtts://` for TLS. `mqtt://USER:PASSWORD@HOST` works too; special
    /// characters are then percent-encoded (`%40` for `@`).
    pub url: Secret,
    /// User name.
    pub user: Option<Text>,
    /// Password.
    pub password: Option<Secret>,
    /// The topic, with placeholders for fields of the event.
    pub topic: Template,
    /// Whether the server retains the last message of each topic for later subscribers.
    #[serde(default)]
    pub retain: bool,
    /// Client id. Two connections must not share one: the server closes the older connection.
    /// Default: generated for every publisher.
    pub client_id: Option<Text>,
    /// Format of the messages.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// Timeout of connecting.
    #[serde(default = "five_seconds", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// Time without any acknowledgement after which the server counts as unavailable.
    #[serde(default = "ten_seconds", deserialize_with = "time::read")]
    pub ack_timeout: Duration,
    /// Keep-alive interval, at least `5s`.
    #[serde(default = "ten_seconds", deserialize_with = "time::read")]
    pub keep_alive: Duration,
    /// Maximum size of a message in bytes, including headers. The server's own limit applies too.
    #[serde(default)]
    pub max_bytes: Option<usize>,
    /// TLS files.
    #[serde(default)]
    pub tls: Tls,
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl MqttSettings {
    /// Settings for this URL and topic, with defaults for everything else.
    /// Assign other values to the fields; more fields may be added.
    pub fn new(url: &str, topic: Template) -> Self {
        Self {
            url: url.into(),
            user: None,
            password: None,
            topic,
            retain: false,
            client_id: None,
            format: Format::default(),
            source: message::source(),
            connect_timeout: five_seconds(),
            ack_timeout: ten_seconds(),
            keep_alive: ten_seconds(),
            max_bytes: None,
            tls: Tls::default(),
        }
    }
}
