//! Errors in the settings of a publisher.

use std::error::Error;
use std::io;

/// Error of an underlying library.
type Cause = Box<dyn Error + Send + Sync>;

/// Reason why a publisher cannot be created from its settings.
///
/// The text names the setting and says what to write. It is complete: it repeats the text of
/// [`source`](Error::source), so print either the text or the chain. Neither the text, nor the
/// `Debug` output, nor an error in the chain contains a URL, a password, a token or the content of
/// a file.
///
/// ```
/// # #[cfg(feature = "nats")] {
/// use outbox_transports::{Nats, NatsSettings, PublisherSettingsError};
///
/// let settings = NatsSettings::new("http://ada:hunter2@localhost", "orders".parse().unwrap());
/// let error = Nats::new("orders", settings).unwrap_err();
/// assert!(matches!(error, PublisherSettingsError::Url { .. }));
/// assert_eq!(error.setting(), "url");
/// assert_eq!(error.to_string(), "url: not a NATS address: write nats://host:4222");
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublisherSettingsError {
    /// The URL is malformed, or the publisher must not or cannot use it.
    #[error("url: {reason}")]
    #[non_exhaustive]
    Url {
        /// Problem and remedy, without the URL.
        reason: String,
        /// Error of the parser, if it cannot repeat a part of the URL.
        source: Option<Cause>,
    },

    /// Another setting has a value that the publisher does not accept.
    #[error("{setting}: {reason}")]
    #[non_exhaustive]
    Value {
        /// Name of the setting.
        setting: &'static str,
        /// Problem and remedy, without secrets.
        reason: String,
        /// Underlying error, if it cannot repeat a secret.
        source: Option<Cause>,
    },

    /// A setting contradicts another setting, or needs one that is missing.
    #[error("{setting}: {reason}")]
    #[non_exhaustive]
    Conflict {
        /// Name of the setting.
        setting: &'static str,
        /// Name of the other setting.
        other: &'static str,
        /// Problem and remedy.
        reason: &'static str,
    },

    /// The TLS files are missing or invalid.
    #[error("tls: {0}")]
    Tls(#[from] TlsFileError),

    /// This build does not support a setting.
    #[error("{setting}: {capability} needs a build with the feature `{feature}`")]
    #[non_exhaustive]
    Feature {
        /// Name of the setting.
        setting: &'static str,
        /// Capability that the setting asks for.
        capability: &'static str,
        /// Cargo feature that adds the capability.
        feature: &'static str,
    },
}

impl PublisherSettingsError {
    /// Name of the setting.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Url { .. } => "url",
            Self::Tls(_) => "tls",
            Self::Value { setting, .. } | Self::Conflict { setting, .. } | Self::Feature { setting, .. } => {
                setting
            }
        }
    }

    #[cfg(any(feature = "amqp", feature = "mqtt", feature = "nats", feature = "redis", feature = "webhook"))]
    pub(crate) fn url(reason: impl Into<String>) -> Self {
        Self::Url { reason: reason.into(), source: None }
    }

    #[cfg(any(
        feature = "amqp",
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "redis",
        feature = "webhook"
    ))]
    pub(crate) fn value(setting: &'static str, reason: impl Into<String>) -> Self {
        Self::Value { setting, reason: reason.into(), source: None }
    }

    /// Adds the underlying error, which must not repeat a secret. Adds nothing to a variant without
    /// a source.
    #[cfg(any(feature = "amqp", feature = "mqtt", feature = "nats", feature = "webhook"))]
    pub(crate) fn caused_by(mut self, cause: impl Into<Cause>) -> Self {
        if let Self::Url { source, .. } | Self::Value { source, .. } = &mut self {
            *source = Some(cause.into());
        }
        self
    }
}

/// Reason why the files of [`Tls`](crate::Tls) cannot be used. Contains no content of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error("{setting} `{path}`: {source}")]
    #[non_exhaustive]
    Read {
        /// `ca_file`, `cert_file` or `key_file`.
        setting: &'static str,
        /// The path as configured.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },

    /// A certificate without its key, or a key without its certificate.
    #[error("{setting} needs {missing} as well")]
    #[non_exhaustive]
    Incomplete {
        /// The setting that is there.
        setting: &'static str,
        /// The setting that is missing.
        missing: &'static str,
    },

    /// A file has no certificate or no private key in PEM format.
    #[error("{setting}: contains no {expected}")]
    #[non_exhaustive]
    Empty {
        /// `ca_file`, `cert_file` or `key_file`.
        setting: &'static str,
        /// The missing content.
        expected: &'static str,
    },

    /// The TLS library does not accept a certificate or a key.
    #[error("{setting}: {reason}")]
    #[non_exhaustive]
    Refused {
        /// `ca_file`, or both settings of the client certificate.
        setting: &'static str,
        /// Reason that the library gives.
        reason: String,
        /// Error of the TLS library, if it cannot repeat the content of a file.
        source: Option<Cause>,
    },
}
