//! Publishers: a name, a transport, and the transport's settings.

use std::path::Path;

use outbox_transports::Text;
use serde::Deserialize;

/// The transports that a settings file may name, and whether this binary has them.
pub(crate) const TRANSPORTS: [(&str, bool); 8] = [
    ("amqp", false),
    ("file", true),
    ("kafka", false),
    ("mqtt", false),
    ("nats", false),
    ("redis", false),
    ("stdout", true),
    ("webhook", false),
];

/// A transport with its settings.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    File(File),
    Stdout(Stdout),
}

/// Lines of JSON, appended to a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) path: Text,
}

/// Lines of JSON on standard output.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Stdout {}

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
    pub(crate) fn stdout() -> Self {
        Transport::Stdout(Stdout {})
    }

    pub(crate) fn file(path: &Path) -> Self {
        Transport::File(File { path: path.to_string_lossy().as_ref().into() })
    }

    /// What it is called.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Transport::File(_) => "file",
            Transport::Stdout(_) => "stdout",
        }
    }

    /// Reads the settings of one that this binary has.
    pub(crate) fn read(
        kind: &str,
        settings: toml::de::ValueDeserializer<'_>,
    ) -> Result<Self, toml::de::Error> {
        match kind {
            "file" => File::deserialize(settings).map(Transport::File),
            "stdout" => Stdout::deserialize(settings).map(Transport::Stdout),
            other => Err(serde::de::Error::custom(format!("this binary was built without `{other}`"))),
        }
    }
}
