//! RabbitMQ: events as persistent messages to an exchange, each confirmed by the broker.

mod flight;
mod line;
mod parcel;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use lapin::types::ShortString;
use lapin::uri::{AMQPScheme, AMQPUri};
use outbox::{Outgoing, PublishError, Publisher};
use serde::Deserialize;
use url::{Host, Url};

use self::flight::{Address, Trouble, send};
use self::line::{Dialer, Line};
use self::parcel::Parcel;
use crate::link::Link;
use crate::{Encoder, Format, Order, Promises, Repeats, Secret, Template, Text, Tls, Waves};

/// How long it may take to find out whether there is a broker.
const LOOK: Duration = Duration::from_millis(1500);

/// Settings of [`Amqp`].
///
/// ```
/// use outbox_transports::AmqpSettings;
///
/// let settings: AmqpSettings = serde_json::from_str(r#"{
///     "url": "amqps://shop:p%40ss@rabbit.example:5671/shop",
///     "exchange": "events",
///     "routing_key": "{aggregate_type}.{type}",
///     "confirm_timeout": "20s"
/// }"#)?;
/// assert_eq!(settings.exchange.as_str(), "events");
/// assert!(!format!("{settings:?}").contains("p%40ss"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmqpSettings {
    /// `amqp://USER:PASSWORD@HOST:PORT/VHOST`, or `amqps://` for TLS. Special characters are percent-encoded (`%40` for `@`);
    /// without a virtual host it is `/`.
    pub url: Secret,
    /// The exchange, which must exist. Without one it is the default exchange: the routing key is the name of a queue.
    #[serde(default)]
    pub exchange: Text,
    /// The routing key, with places for what an event has.
    pub routing_key: Template,
    /// Whether a message that no queue is bound for is a failure, to be tried again. Else it is gone.
    #[serde(default = "yes")]
    pub mandatory: bool,
    /// What the message looks like.
    #[serde(default)]
    pub format: Format,
    /// The `source` of CloudEvents.
    #[serde(default = "source")]
    pub source: Text,
    /// How long connecting may take, and opening a channel.
    #[serde(default = "five_seconds", deserialize_with = "crate::time::read")]
    pub connect_timeout: Duration,
    /// How long nothing may be confirmed before the broker counts as unavailable.
    #[serde(default = "ten_seconds", deserialize_with = "crate::time::read")]
    pub confirm_timeout: Duration,
    /// How often both sides say that they are there, in whole seconds.
    #[serde(default = "ten_seconds", deserialize_with = "crate::time::read")]
    pub heartbeat: Duration,
    /// How large a message may be, headers included. RabbitMQ 4 takes 16 MiB unless told otherwise.
    #[serde(default = "sixteen_mebibytes")]
    pub max_bytes: usize,
    /// Files for TLS.
    #[serde(default)]
    pub tls: Tls,
}

fn yes() -> bool {
    true
}

fn source() -> Text {
    "outbox".into()
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

fn sixteen_mebibytes() -> usize {
    16 << 20
}

/// Publishes to RabbitMQ. Connects when it is first needed, and anew when the connection is lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox::Topic;
/// use outbox_transports::{Amqp, AmqpSettings};
///
/// let settings: AmqpSettings = serde_json::from_str(r#"{
///     "url": "amqp://localhost", "exchange": "events", "routing_key": "{type}"
/// }"#)?;
/// let pair = Topic::new("orders").required_tags(["order_id"]).to(Amqp::new("rabbit", settings)?);
/// assert_eq!(pair.id().publisher(), "rabbit");
/// # Ok(()) }
/// ```
///
/// A message's `message_id` is the event's id. An event is published when the broker has confirmed it: all queues that it
/// was routed to have it, on disk if they are durable.
pub struct Amqp {
    name: String,
    settings: AmqpSettings,
    encoder: Encoder,
    address: Address,
    link: Link<Dialer>,
}

impl Amqp {
    /// What RabbitMQ promises.
    pub const PROMISES: Promises = Promises {
        order: Order::PerKey,
        repeats: Repeats::Seen,
        confirmed: "every queue that the message was routed to has it, on disk if the queue is durable",
    };

    /// A publisher of this name. Says what is wrong with the settings; does not connect yet.
    pub fn new(name: impl Into<String>, settings: AmqpSettings) -> Result<Self, String> {
        let name = name.into();
        let uri = parse(&settings)?;
        let exchange = ShortString::try_new(settings.exchange.as_str())
            .map_err(|_| "exchange: a name has at most 255 bytes".to_owned())?;
        line::read(&settings.tls).map_err(|mistake| format!("tls: {mistake}"))?;
        let dialer = Dialer {
            uri,
            tls: settings.tls.clone(),
            timeout: settings.connect_timeout,
            name: format!("outbox {name}"),
        };
        let address = Address { exchange, mandatory: settings.mandatory, patience: settings.confirm_timeout };
        let encoder = Encoder::new(settings.format, settings.source.as_str()).prefix("cloudEvents:");
        Ok(Self { name, settings, encoder, address, link: Link::new(dialer) })
    }

    /// Sends one wave. An error says why there is no going on.
    async fn deliver(
        &self,
        line: &Line,
        parcels: &[(usize, Parcel)],
        waves: &mut Waves<'_>,
    ) -> Result<(), String> {
        let mut suspects = Vec::new();
        let failure = match self.attempt(line, parcels.iter(), waves, &mut suspects).await? {
            None => return Ok(()),
            Some(failure) => failure,
        };
        // Which of them it was the broker does not say: alone, each answers for itself.
        if let [(place, _)] = suspects.as_slice() {
            waves.failed(*place, failure);
            return Ok(());
        }
        for suspect in suspects {
            if let Some(failure) = self.attempt(line, [suspect].into_iter(), waves, &mut Vec::new()).await? {
                waves.failed(suspect.0, failure);
            }
        }
        Ok(())
    }

    /// Sends these at once. Gives those without an answer if one of them was refused, and how.
    async fn attempt<'a>(
        &self,
        line: &Line,
        parcels: impl Iterator<Item = &'a (usize, Parcel)>,
        waves: &mut Waves<'_>,
        suspects: &mut Vec<&'a (usize, Parcel)>,
    ) -> Result<Option<outbox::Failure>, String> {
        let numbered: Vec<&(usize, Parcel)> = parcels.collect();
        let parcels: Vec<&Parcel> = numbered.iter().map(|(_, parcel)| parcel).collect();
        let landing = send(line, &self.address, &parcels).await;
        for (numbered, answer) in numbered.into_iter().zip(landing.answers) {
            match answer {
                Some(Ok(())) => waves.published(numbered.0),
                Some(Err(failure)) => waves.failed(numbered.0, failure),
                None => suspects.push(numbered),
            }
        }
        match landing.trouble {
            None => Ok(None),
            Some(Trouble::Refused(failure)) => Ok(Some(failure)),
            Some(Trouble::Outage(reason)) => Err(reason),
            Some(Trouble::Exchange(failure)) => {
                for (place, _) in suspects.drain(..) {
                    waves.failed(*place, failure.clone());
                }
                Ok(None)
            }
        }
    }
}

#[async_trait]
impl Publisher for Amqp {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        if events.is_empty() {
            return Ok(());
        }
        let line = self.link.get().await.map_err(PublishError::unavailable)?;
        let mut waves = Waves::new(events);
        while let Some(wave) = waves.next() {
            let mut parcels = Vec::with_capacity(wave.len());
            for place in wave {
                let parcel = Parcel::pack(&self.settings, &self.encoder, &events[place]);
                match parcel.and_then(|parcel| parcel.fits(line.frame()).map(|()| parcel)) {
                    Ok(parcel) => parcels.push((place, parcel)),
                    Err(failure) => waves.failed(place, failure),
                }
            }
            if let Err(reason) = self.deliver(&line, &parcels, &mut waves).await {
                return waves.cut_off(reason);
            }
        }
        waves.end()
    }

    async fn is_healthy(&self) -> bool {
        self.link.within(LOOK).await.is_some_and(|line| line.blocked().is_none())
    }
}

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Amqp").field("name", &self.name).field("settings", &self.settings).finish()
    }
}

/// The URL. What is wrong with it is said without it: there is a password in it.
fn parse(settings: &AmqpSettings) -> Result<AMQPUri, String> {
    const HOW: &str = "write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS";
    let text = settings.url.expose();
    let url = Url::parse(text).map_err(|error| format!("url: {error}; {HOW}"))?;
    if !matches!(url.scheme(), "amqp" | "amqps") || !url.has_host() {
        return Err(format!("url: {HOW}"));
    }
    let mut uri: AMQPUri = text.parse().map_err(|_| format!("url: {HOW}"))?;
    // The parser takes an address in brackets for no host at all, which would be this machine.
    if let Some(Host::Ipv6(address)) = url.host() {
        uri.authority.host = address.to_string();
    }
    // A slash at the end is more often a habit than a virtual host without a name.
    if uri.vhost.is_empty() {
        "/".clone_into(&mut uri.vhost);
    }
    if uri.scheme == AMQPScheme::AMQP && settings.tls.is_used() {
        return Err("tls: the url is amqp://, which has none; write amqps://".to_owned());
    }
    if uri.query.heartbeat.is_none() {
        let seconds = u16::try_from(settings.heartbeat.as_secs().max(1));
        uri.query.heartbeat = Some(seconds.map_err(|_| "heartbeat: use at most 18h".to_owned())?);
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> AmqpSettings {
        serde_json::from_value(serde_json::json!({ "url": url, "routing_key": "{type}" })).unwrap()
    }

    #[test]
    fn a_url_is_read_as_people_mean_it() {
        let uri = parse(&settings("amqp://a%40b:p%2Fw@rabbit/")).unwrap();
        assert_eq!(
            (uri.authority.userinfo.username.as_str(), uri.authority.userinfo.password.as_str()),
            ("a@b", "p/w")
        );
        assert_eq!(
            (uri.authority.host.as_str(), uri.authority.port, uri.vhost.as_str()),
            ("rabbit", 5672, "/")
        );
        assert_eq!(uri.query.heartbeat, Some(10));
        let uri = parse(&settings("amqps://[::1]/shop?heartbeat=3")).unwrap();
        assert_eq!(
            (uri.authority.host.as_str(), uri.authority.port, uri.vhost.as_str()),
            ("::1", 5671, "shop")
        );
        assert_eq!(uri.query.heartbeat, Some(3));
    }

    #[test]
    fn mistakes_are_named_without_the_password() {
        for url in
            ["amqp:user:hunter2", "http://user:hunter2@h", "user:hunter2@h", "amqp://u:hunter2@h:99999"]
        {
            let said = Amqp::new("rabbit", settings(url)).unwrap_err();
            assert!(said.contains("write amqp://USER") && !said.contains("hunter2"), "{said}");
        }
        let mut plain = settings("amqp://localhost");
        plain.tls.ca_file = Some("/dev/null".into());
        assert!(Amqp::new("rabbit", plain).unwrap_err().contains("write amqps://"));
        let mut long = settings("amqp://localhost");
        long.exchange = "x".repeat(256).as_str().into();
        assert_eq!(Amqp::new("rabbit", long).unwrap_err(), "exchange: a name has at most 255 bytes");
    }

    #[test]
    fn nothing_secret_is_shown() {
        let amqp = Amqp::new("rabbit", settings("amqp://user:hunter2@h")).unwrap();
        assert!(!format!("{amqp:?}").contains("hunter2"));
    }
}
