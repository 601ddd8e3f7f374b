//! What an MQTT server needs to be told.

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
    /// `mqtt://HOST:PORT`, or `mqtts://` for TLS. `mqtt://USER:PASSWORD@HOST` works too; then special characters are
    /// percent-encoded (`%40` for `@`).
    pub url: Secret,
    /// Who we are.
    pub user: Option<Text>,
    /// How we show it.
    pub password: Option<Secret>,
    /// The topic, with places for what an event has.
    pub topic: Template,
    /// Whether the server keeps the last message of each topic, for those who subscribe later.
    #[serde(default)]
    pub retain: bool,
    /// What the server knows us by. No two connections may have the same: the server ends the older one. One that is different in
    /// every process unless it is set.
    pub client_id: Option<Text>,
    /// What the message looks like.
    #[serde(default)]
    pub format: Format,
    /// The `source` of CloudEvents.
    #[serde(default = "message::source")]
    pub source: Text,
    /// How long connecting may take.
    #[serde(default = "five_seconds", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// How long nothing may be confirmed before the server counts as unavailable.
    #[serde(default = "ten_seconds", deserialize_with = "time::read")]
    pub ack_timeout: Duration,
    /// How often to ask the server whether it is still there: at least `5s`.
    #[serde(default = "ten_seconds", deserialize_with = "time::read")]
    pub keep_alive: Duration,
    /// A limit of your own on the size of messages, headers included, below the server's.
    #[serde(default)]
    pub max_bytes: Option<usize>,
    /// Files for TLS.
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
    /// Everything else as it is when a settings file does not say it.
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
