//! What a webhook is set to.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::{Format, Secret, Text, Tls, message, time};

/// Where webhooks go, and how. `url` is all that must be there.
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
pub struct WebhookSettings {
    /// Where to. Beyond the host it may have places, as a [`Template`](crate::Template) has them; what fills one is
    /// percent-encoded. Never shown: many a URL holds a token.
    pub url: Secret,
    /// How an event becomes a request.
    #[serde(default)]
    pub format: Format,
    /// Of CloudEvents, who the events come from.
    #[serde(default = "message::source")]
    pub source: Text,
    /// What requests are signed with: none, one, or while one is changed two. `whsec_` and Base64, or any other text.
    #[serde(default)]
    pub secrets: Vec<Secret>,
    /// Headers of every request, `authorization` for instance. They win over an event's own.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Hosts (`hooks.internal`), addresses and networks (`10.1.0.0/16`) that are fine although they are not on the public
    /// internet. Only to these, as the URL names them, may a webhook go without TLS.
    #[serde(default)]
    pub allow: Vec<Text>,
    /// How long a connection may take, finding the address and TLS included.
    #[serde(default = "connect_timeout", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// How long an answer may take.
    #[serde(default = "timeout", deserialize_with = "time::read")]
    pub timeout: Duration,
    /// How many requests are under way at once, of a batch. Of an ordering key it is never more than one.
    #[serde(default = "concurrency")]
    pub concurrency: usize,
    /// How large a request may be, in bytes; a larger event is dead.
    #[serde(default = "max_bytes")]
    pub max_bytes: usize,
    /// Whom to trust instead of those whom the system trusts, and who we are. The files are read when the webhook is made.
    #[serde(default)]
    pub tls: Tls,
}

impl WebhookSettings {
    /// To this URL, with everything else as it is when nothing is said.
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
