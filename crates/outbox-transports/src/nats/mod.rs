//! NATS JetStream.

mod connection;
mod credentials;
#[cfg(test)]
mod proptests;
mod wire;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use outbox::{Failure, Outgoing, PublishError, Publisher, Unavailable};
use serde::Deserialize;

use self::connection::{NatsConnector, SendOutcome};
use self::wire::PreparedMessage;
use crate::reconnect::Reconnect;
use crate::{
    Duplicates, Encoder, Format, Guarantees, KeyedBatches, Order, PublisherSettingsError, Secret, Template,
    Text, Tls, message, time,
};

/// Publishes to NATS JetStream. Streams persist the messages that they confirm.
///
/// ```
/// use outbox_transports::{Nats, NatsSettings};
///
/// let settings = NatsSettings::new("nats://localhost:4222", "orders.{type}".parse()?);
/// let publisher = Nats::new("orders", settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The event's id is the message's `Nats-Msg-Id`: a stream drops duplicates within its duplicate
/// window, two minutes by default. The publisher connects on first use, and again after the
/// connection was lost.
pub struct Nats {
    name: String,
    settings: NatsSettings,
    encoder: Encoder,
    connection: Reconnect<NatsConnector>,
}

/// Settings of [`Nats`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsSettings {
    /// `nats://host:4222` or `tls://host:4222`; several addresses, separated by commas, are the
    /// servers of one cluster. May contain user and password, or a token.
    pub url: Secret,
    /// Subject of a message. A stream must accept it.
    pub subject: Template,
    /// Format of the messages.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// User name, with `password`.
    #[serde(default)]
    pub user: Option<Text>,
    /// The user's password.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Authentication token.
    #[serde(default)]
    pub token: Option<Secret>,
    /// A `.creds` file with a JWT and the seed of its key.
    #[serde(default)]
    pub credentials_file: Option<Text>,
    /// TLS files. If `ca_file` is set, it is the only trusted authority.
    #[serde(default)]
    pub tls: Tls,
    /// Timeout of connecting to one server.
    #[serde(default = "connect_timeout", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// Timeout of a stream's confirmation.
    #[serde(default = "ack_timeout", deserialize_with = "time::read")]
    pub ack_timeout: Duration,
    /// Maximum size of a message in bytes, including headers. The server's `max_payload` applies
    /// too.
    #[serde(default)]
    pub max_bytes: Option<usize>,
}

fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}

fn ack_timeout() -> Duration {
    Duration::from_secs(10)
}

impl NatsSettings {
    /// Settings for this URL and subject, with defaults for everything else.
    /// Assign other values to the fields; more fields may be added.
    pub fn new(url: &str, subject: Template) -> Self {
        Self {
            url: url.into(),
            subject,
            format: Format::default(),
            source: message::source(),
            user: None,
            password: None,
            token: None,
            credentials_file: None,
            tls: Tls::default(),
            connect_timeout: connect_timeout(),
            ack_timeout: ack_timeout(),
            max_bytes: None,
        }
    }
}

/// Maximum number of unconfirmed messages of a batch.
const MAX_IN_FLIGHT: usize = 1_000;

/// Timeout of a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_millis(1_500);

impl Nats {
    /// Delivery guarantees of NATS JetStream.
    pub const GUARANTEES: Guarantees = Guarantees {
        order: Order::PerKey,
        duplicates: Duplicates::Dropped,
        confirmed: "the stream has stored the message on a majority of its replicas",
    };

    /// Creates a publisher called `name`. Checks the settings; does not connect yet.
    pub fn new(name: impl Into<String>, settings: NatsSettings) -> Result<Self, PublisherSettingsError> {
        let name = name.into();
        if let Some(subject) = settings.subject.fixed() {
            wire::check_subject(subject).map_err(|error| {
                PublisherSettingsError::value("subject", error.to_string()).caused_by(error)
            })?;
        }
        let connection = Reconnect::new(NatsConnector::new(&name, &settings)?);
        let encoder = Encoder::new(settings.format, settings.source.as_str());
        Ok(Self { name, settings, encoder, connection })
    }

    fn prepare(&self, event: &Outgoing) -> Result<PreparedMessage, Failure> {
        let subject = self.settings.subject.render_parts(event, &wire::SEPARATORS)?;
        wire::check_subject(&subject).map_err(Failure::dead)?;
        wire::check_owner(&subject, self.settings.subject.prefix()).map_err(Failure::dead)?;
        let prepared = wire::prepare(subject, event, self.encoder.encode(event)?, self.settings.format)?;
        match self.settings.max_bytes {
            Some(limit) => prepared.fits(limit, "this publisher").map(|()| prepared),
            None => Ok(prepared),
        }
    }
}

#[async_trait]
impl Publisher for Nats {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let mut batches = KeyedBatches::new(events);
        let connection = match self.connection.get().await {
            Ok(connection) => connection,
            Err(reason) => return batches.abort(reason),
        };
        while let Some(sub_batch) = batches.next() {
            let send = |index: usize| {
                let connection = &connection;
                async move {
                    let outcome = match self.prepare(&events[index]) {
                        Ok(prepared) => connection.send(prepared).await,
                        Err(failure) => SendOutcome::Refused(failure),
                    };
                    (index, outcome)
                }
            };
            let mut in_flight = stream::iter(sub_batch).map(send).buffer_unordered(MAX_IN_FLIGHT);
            let (mut lost, mut outage) = (None, None);
            while let Some((index, outcome)) = in_flight.next().await {
                match outcome {
                    SendOutcome::Stored => batches.published(index),
                    SendOutcome::Refused(failure) => batches.failed(index, failure),
                    SendOutcome::Unavailable(reason) => outage = Some(reason),
                    SendOutcome::Lost(reason) => {
                        lost = Some(reason);
                        break;
                    }
                }
            }
            if let (None, Some(reason)) = (&lost, outage) {
                return batches.abort(reason);
            }
            let Some(reason) = lost else { continue };
            // Sends nothing more, and collects the confirmations that have already arrived.
            connection.abandon();
            while let Some(Some((index, outcome))) = in_flight.next().now_or_never() {
                if let SendOutcome::Stored = outcome {
                    batches.published(index);
                }
            }
            return batches.abort(reason);
        }
        batches.finish()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        let connection = self.connection.get_within(HEALTH_TIMEOUT).await?;
        let verified = tokio::time::timeout(HEALTH_TIMEOUT, connection.verify()).await;
        let timed_out =
            |_| Err(Unavailable::new(format_args!("NATS did not answer within {HEALTH_TIMEOUT:?}")));
        verified.unwrap_or_else(timed_out)
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
