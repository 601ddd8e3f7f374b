//! Publishers: a name, a transport, and the transport's settings.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use outbox_transports::Text;
use serde::Deserialize;
use toml::de::ValueDeserializer;

/// The transports that a settings file may name, and whether this binary has them.
pub(crate) const TRANSPORTS: [(&str, bool); 8] = [
    ("amqp", false),
    ("file", true),
    ("kafka", false),
    ("mqtt", false),
    ("nats", cfg!(feature = "nats")),
    ("redis", cfg!(feature = "redis")),
    ("stdout", true),
    ("webhook", false),
];

/// A transport with its settings.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    File(File),
    Stdout,
    Broker(Broker),
}

/// Makes a publisher of a name, by settings that it has.
#[derive(Clone)]
pub(crate) struct Broker(Arc<Make>);

type Make = dyn Fn(&str) -> Result<Box<dyn outbox::Publisher>, String> + Send + Sync;

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Broker")
    }
}

impl Broker {
    #[cfg_attr(
        not(any(feature = "nats", feature = "redis")),
        expect(dead_code, reason = "no broker is built in")
    )]
    fn new<P: outbox::Publisher>(make: impl Fn(&str) -> Result<P, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |name| Ok(Box::new(make(name)?))))
    }

    /// Checks the settings; connects later.
    pub(crate) fn open(&self, name: &str) -> Result<Box<dyn outbox::Publisher>, String> {
        (self.0)(name)
    }
}

/// Lines of JSON, appended to a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) path: Text,
}

/// Lines of JSON on standard output.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stdout {}

/// A publisher, as it stands in the file.
#[derive(Clone, Debug)]
pub(crate) struct Publisher {
    pub(crate) transport: Transport,
    /// What the transport is called.
    pub(crate) kind: &'static str,
    /// As it was written, to tell whether it has changed.
    pub(crate) written: toml::Value,
}

impl Transport {
    pub(crate) fn file(path: &Path) -> Self {
        Transport::File(File { path: path.to_string_lossy().as_ref().into() })
    }

    /// Reads the settings of one that this binary has.
    pub(crate) fn read(kind: &str, settings: ValueDeserializer<'_>) -> Result<Self, toml::de::Error> {
        match kind {
            "file" => File::deserialize(settings).map(Transport::File),
            "stdout" => Stdout::deserialize(settings).map(|_| Transport::Stdout),
            #[cfg(feature = "nats")]
            "nats" => {
                use outbox_transports::{Nats, NatsSettings};
                let settings = NatsSettings::deserialize(settings)?;
                Ok(Transport::Broker(Broker::new(move |name| Nats::new(name, settings.clone()))))
            }
            #[cfg(feature = "redis")]
            "redis" => {
                use outbox_transports::{Redis, RedisSettings};
                let settings = RedisSettings::deserialize(settings)?;
                Ok(Transport::Broker(Broker::new(move |name| Redis::new(name, settings.clone()))))
            }
            other => Err(serde::de::Error::custom(format!("this binary was built without `{other}`"))),
        }
    }
}
