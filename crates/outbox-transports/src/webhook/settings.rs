//! Settings of a webhook.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::{Format, Secret, Text, Tls, message, time};

/// Settings of [`Webhook`](crate::Webhook). Only `url` is required.
///
/// ```
/// let settings: outbox_transports::WebhookSettings = serde_json::from_value(serde_json::json!({
///     "url": "https://hooks.example.com/{tenant_id}/orders",
///     "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
///     "timeout": "3s",
/// }))?;
/// let webhook = outbox_transports::Webhook::new("hooks", settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WebhookSettings {
    /// The URL. After the host it may contain placeholders, as in a [`Template`](crate::Template);
    /// their values are percent-encoded. Never shown, since many URLs contain a token.
    pub url: Secret,
    /// Format of the requests.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// Signing secrets: none, one, or two during a rotation. `whsec_` followed by Base64, or any
    /// other text.
    #[serde(default)]
    pub secrets: Vec<Secret>,
    /// Headers of every request, for example `authorization`. They override the event's own
    /// headers.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Hosts (`hooks.internal`), addresses and networks (`10.1.0.0/16`) that are allowed although
    /// they are not public. Only these, as written in the URL, may be reached without TLS.
    #[serde(default)]
    pub allow: Vec<Text>,
    /// Timeout of connecting, including DNS and TLS.
    #[serde(default = "connect_timeout", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// Timeout of a response.
    #[serde(default = "timeout", deserialize_with = "time::read")]
    pub timeout: Duration,
    /// Maximum number of concurrent requests of a batch. There is never more than one per ordering
    /// key.
    #[serde(default = "concurrency")]
    pub concurrency: usize,
    /// Maximum size of a request in bytes. A larger event is dead.
    #[serde(default = "max_bytes")]
    pub max_bytes: usize,
    /// Trusted certificate authority in place of the system's, and client certificate. The files
    /// are read when the webhook is created.
    #[serde(default)]
    pub tls: Tls,
}

impl WebhookSettings {
    /// Settings for this URL, with defaults for everything else.
    /// Assign other values to the fields; more fields may be added.
    pub fn new(url: impl Into<Secret>) -> Self {
        Self {
            url: url.into(),
            format: Format::default(),
            source: message::source(),
            secrets: Vec::new(),
            headers: BTreeMap::new(),
            allow: Vec::new(),
            connect_timeout: connect_timeout(),
            timeout: timeout(),
            concurrency: concurrency(),
            max_bytes: max_bytes(),
            tls: Tls::default(),
        }
    }
}

fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}

fn timeout() -> Duration {
    Duration::from_secs(10)
}

fn concurrency() -> usize {
    16
}

fn max_bytes() -> usize {
    1024 * 1024
}
