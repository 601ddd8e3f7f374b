//! NATS JetStream.

#[cfg(test)]
mod any_text;
mod credentials;
mod line;
mod wire;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use outbox::{Failure, Outgoing, PublishError, Publisher, Unavailable};
use serde::Deserialize;

use self::line::{Dialer, Sent};
use self::wire::Prepared;
use crate::link::Link;
use crate::{Encoder, Format, Order, Promises, Repeats, Secret, Template, Text, Tls, Waves, message, time};

/// Publishes to NATS JetStream: to streams, which keep what they confirm.
///
/// ```
/// use outbox_transports::{Nats, NatsSettings};
///
/// let settings = NatsSettings::new("nats://localhost:4222", "orders.{type}".parse()?);
/// let publisher = Nats::new("orders", settings)?;
/// # Ok::<(), String>(())
/// ```
///
/// The event's id is the message's `Nats-Msg-Id`: a stream drops repeats within its duplicate window, two minutes unless it was
/// created with another. It connects when it is first used, and anew after the connection was lost.
pub struct Nats {
    name: String,
    settings: NatsSettings,
    encoder: Encoder,
    link: Link<Dialer>,
}

/// How to publish to NATS.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsSettings {
    /// `nats://host:4222`, or `tls://host:4222`; several, separated by commas, are the servers of one cluster. User and password, or
    /// a token, may be in it.
    pub url: Secret,
    /// The subject of a message. A stream must take it.
    pub subject: Template,
    /// What messages look like.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// Who to come in as, with `password`.
    #[serde(default)]
    pub user: Option<Text>,
    /// The user's password.
    #[serde(default)]
    pub password: Option<Secret>,
    /// A token to come in by.
    #[serde(default)]
    pub token: Option<Secret>,
    /// A `.creds` file with a JWT and the seed of its key.
    #[serde(default)]
    pub credentials_file: Option<Text>,
    /// How servers are trusted. If a `ca_file` is named, it is the only authority.
    #[serde(default)]
    pub tls: Tls,
    /// How long connecting to a server may take.
    #[serde(default = "connect_timeout", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// How long a stream may take to confirm a message.
    #[serde(default = "ack_timeout", deserialize_with = "time::read")]
    pub ack_timeout: Duration,
    /// A limit of your own on the size of messages, headers included, below the server's `max_payload`.
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
    /// Everything else as it is when a settings file does not say it.
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

/// So many messages wait for their confirmation at once, of a batch.
const UNDER_WAY: usize = 1_000;

/// A look at the connection takes no longer.
const QUICK: Duration = Duration::from_millis(1_500);

impl Nats {
    /// What NATS JetStream promises.
    pub const PROMISES: Promises = Promises {
        order: Order::PerKey,
        repeats: Repeats::Dropped,
        confirmed: "the stream has stored it, on a majority of its replicas",
    };

    /// Checks the settings; connects later.
    pub fn new(name: impl Into<String>, settings: NatsSettings) -> Result<Self, String> {
        let name = name.into();
        if let Some(subject) = settings.subject.fixed() {
            wire::check_subject(subject)?;
        }
        let link = Link::new(Dialer::new(&name, &settings)?);
        let encoder = Encoder::new(settings.format, settings.source.as_str());
        Ok(Self { name, settings, encoder, link })
    }

    fn prepare(&self, event: &Outgoing) -> Result<Prepared, Failure> {
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
        let mut waves = Waves::new(events);
        let line = match self.link.get().await {
            Ok(line) => line,
            Err(reason) => return waves.cut_off(reason),
        };
        while let Some(wave) = waves.next() {
            let sending = |index: usize| {
                let line = &line;
                async move {
                    let sent = match self.prepare(&events[index]) {
                        Ok(prepared) => line.send(prepared).await,
                        Err(failure) => Sent::Refused(failure),
                    };
                    (index, sent)
                }
            };
            let mut under_way = stream::iter(wave).map(sending).buffer_unordered(UNDER_WAY);
            let (mut lost, mut away) = (None, None);
            while let Some((index, sent)) = under_way.next().await {
                match sent {
                    Sent::Stored => waves.published(index),
                    Sent::Refused(failure) => waves.failed(index, failure),
                    Sent::Unavailable(reason) => away = Some(reason),
                    Sent::Lost(reason) => {
                        lost = Some(reason);
                        break;
                    }
                }
            }
            if let (None, Some(reason)) = (&lost, away) {
                return waves.cut_off(reason);
            }
            let Some(reason) = lost else { continue };
            // Nothing more is sent; what is known by now counts.
            line.give_up();
            while let Some(Some((index, sent))) = under_way.next().now_or_never() {
                if let Sent::Stored = sent {
                    waves.published(index);
                }
            }
            return waves.cut_off(reason);
        }
        waves.end()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        let line = self.link.within(QUICK).await.map_err(Unavailable::new)?;
        let verified = tokio::time::timeout(QUICK, line.verify()).await;
        let late = |_| Err(format!("NATS did not answer within {QUICK:?}"));
        verified.unwrap_or_else(late).map_err(Unavailable::new)
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
