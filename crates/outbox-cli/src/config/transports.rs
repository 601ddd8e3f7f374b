//! Publishers: a name, a transport, and the transport's settings.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use outbox::settings::file::Time;
use outbox_transports::{PublisherSettingsError, Text};
use serde::Deserialize;
use toml::de::ValueDeserializer;

/// Transports that a settings file may name, and whether this binary was built with them.
pub(crate) const TRANSPORTS: [(&str, bool); 10] = [
    ("amqp", cfg!(feature = "amqp")),
    ("file", true),
    ("kafka", cfg!(feature = "kafka")),
    ("log", true),
    ("mqtt", cfg!(feature = "mqtt")),
    ("nats", cfg!(feature = "nats")),
    ("redis", cfg!(feature = "redis")),
    ("statistics", true),
    ("stdout", true),
    ("webhook", cfg!(feature = "webhook")),
];

/// A transport with its settings.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    File(File),
    Log,
    Statistics(Statistics),
    Stdout,
    #[cfg_attr(
        not(any(
            feature = "amqp",
            feature = "kafka",
            feature = "mqtt",
            feature = "nats",
            feature = "redis",
            feature = "webhook"
        )),
        expect(dead_code, reason = "a binary without brokers")
    )]
    Broker(Broker),
}

/// Constructor of a broker's publisher, with its settings.
#[derive(Clone)]
pub(crate) struct Broker(Arc<CreatePublisher>);

type CreatePublisher =
    dyn Fn(&str) -> Result<Box<dyn outbox::Publisher>, PublisherSettingsError> + Send + Sync;

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Broker")
    }
}

impl Broker {
    /// Creates the publisher under this name. Checks the settings; does not connect yet.
    pub(crate) fn open(&self, name: &str) -> Result<Box<dyn outbox::Publisher>, PublisherSettingsError> {
        (self.0)(name)
    }
}

/// Settings of `file`: lines of JSON, appended to a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) path: Text,
}

/// Settings of `stdout` and `log`: none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoSettings {}

/// Settings of `statistics`: counts of events in the relay's log.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Statistics {
    pub(crate) every: Option<Time<1_000>>,
}

/// One publisher of the file.
#[derive(Clone, Debug)]
pub(crate) struct Publisher {
    pub(crate) transport: Transport,
    /// Name of the transport.
    pub(crate) kind: &'static str,
    /// Settings as written, to detect changes.
    pub(crate) written: toml::Value,
}

/// Reads the settings of a broker, and returns a constructor of its publisher.
#[allow(unused_macros, reason = "a binary without brokers")]
macro_rules! broker {
    ($settings:expr, $of:ident, $publisher:ident) => {{
        let settings = outbox_transports::$of::deserialize($settings)?;
        Ok(Transport::Broker(Broker(Arc::new(move |name| {
            Ok(Box::new(outbox_transports::$publisher::new(name, settings.clone())?))
        }))))
    }};
}

impl Transport {
    pub(crate) fn file(path: &Path) -> Self {
        Transport::File(File { path: path.to_string_lossy().as_ref().into() })
    }

    /// Reads the settings of a transport that this binary was built with.
    pub(crate) fn read(kind: &str, settings: ValueDeserializer<'_>) -> Result<Self, toml::de::Error> {
        match kind {
            "file" => File::deserialize(settings).map(Transport::File),
            "log" => NoSettings::deserialize(settings).map(|_| Transport::Log),
            "statistics" => Statistics::deserialize(settings).map(Transport::Statistics),
            "stdout" => NoSettings::deserialize(settings).map(|_| Transport::Stdout),
            #[cfg(feature = "amqp")]
            "amqp" => broker!(settings, AmqpSettings, Amqp),
            #[cfg(feature = "kafka")]
            "kafka" => broker!(settings, KafkaSettings, Kafka),
            #[cfg(feature = "mqtt")]
            "mqtt" => broker!(settings, MqttSettings, Mqtt),
            #[cfg(feature = "nats")]
            "nats" => broker!(settings, NatsSettings, Nats),
            #[cfg(feature = "redis")]
            "redis" => broker!(settings, RedisSettings, Redis),
            #[cfg(feature = "webhook")]
            "webhook" => broker!(settings, WebhookSettings, Webhook),
            other => Err(serde::de::Error::custom(format!("this binary was built without `{other}`"))),
        }
    }
}
