//! RabbitMQ: events as persistent messages to an exchange, each confirmed by the broker.

#[cfg(test)]
mod any_text;
mod flight;
mod line;
mod parcel;
mod settings;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use lapin::types::ShortString;
use outbox::{Outgoing, PublishError, Publisher, Unavailable};

use self::flight::{Address, Refusal, Trouble, send, verify};
use self::line::{Dialer, Line};
use self::parcel::Parcel;
pub use self::settings::AmqpSettings;
use crate::link::Link;
use crate::{Encoder, Order, Promises, Repeats, Waves};

/// How long it may take to find out whether there is a broker.
const LOOK: Duration = Duration::from_millis(1500);

/// Publishes to RabbitMQ. Connects when it is first needed, and anew when the connection is lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use outbox::Topic;
/// use outbox_transports::{Amqp, AmqpSettings};
///
/// let settings = AmqpSettings::new("amqp://localhost", "events", "{type}".parse()?);
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
        let uri = settings::parse(&settings)?;
        let exchange = ShortString::try_new(settings.exchange.as_str())
            .map_err(|_| "exchange: a name has at most 255 bytes".to_owned())?;
        settings.tls.client_config().map_err(|mistake| format!("tls: {mistake}"))?;
        let dialer = Dialer {
            uri,
            tls: settings.tls.clone(),
            timeout: settings.connect_timeout,
            name: format!("outbox {name}"),
        };
        let routing_key = settings.routing_key.fixed().map(ShortString::try_new).transpose();
        let address = Address {
            exchange,
            mandatory: settings.mandatory,
            routing_key: routing_key.map_err(|_| "routing_key: it has at most 255 bytes".to_owned())?,
            patience: settings.ack_timeout,
        };
        let encoder = Encoder::new(settings.format, settings.source.as_str()).prefix("cloudEvents:");
        Ok(Self { name, settings, encoder, address, link: Link::new(dialer) })
    }

    /// Sends one wave. An error says why there is no going on.
    async fn deliver(&self, line: &Line, parcels: &[Numbered], waves: &mut Waves<'_>) -> Result<(), String> {
        let mut groups = vec![parcels.iter().collect::<Vec<_>>()];
        while let Some(group) = groups.pop() {
            let Some((refusal, mut suspects)) = self.attempt(line, &group, waves).await? else { continue };
            if let [(place, parcel)] = suspects.as_slice() {
                waves.failed(*place, refusal.of(parcel));
                continue;
            }
            // Which of them it was the broker does not say: so halves of them are sent until it is alone.
            let second = suspects.split_off(suspects.len().div_ceil(2));
            groups.extend([second, suspects]);
        }
        Ok(())
    }

    /// Sends these at once. If the broker refused one of them, gives why, and those that it may have been.
    async fn attempt<'a>(
        &self,
        line: &Line,
        group: &[&'a Numbered],
        waves: &mut Waves<'_>,
    ) -> Result<Option<(Refusal, Vec<&'a Numbered>)>, String> {
        let parcels: Vec<&Parcel> = group.iter().map(|(_, parcel)| parcel).collect();
        let landing = send(line, &self.address, &parcels).await;
        let mut suspects = Vec::new();
        for (numbered, answer) in group.iter().zip(landing.answers) {
            match answer {
                Some(Ok(())) => waves.published(numbered.0),
                Some(Err(failure)) => waves.failed(numbered.0, failure),
                None => suspects.push(*numbered),
            }
        }
        match landing.trouble {
            None => Ok(None),
            Some(Trouble::Refused(refusal)) => Ok(Some((refusal, suspects))),
            Some(Trouble::Outage(reason)) => Err(reason),
            Some(Trouble::Missing(reason)) => {
                line.doubt();
                Err(reason)
            }
        }
    }
}

/// A message, and its place in the batch.
type Numbered = (usize, Parcel);

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

    async fn health(&self) -> Result<(), Unavailable> {
        let line = self.link.within(LOOK).await.map_err(Unavailable::new)?;
        if let Some(reason) = line.blocked() {
            return Err(Unavailable::new(format!("the broker is blocked: {reason}")));
        }
        if line.is_verified() {
            return Ok(());
        }
        let verified = tokio::time::timeout(LOOK, verify(&line, &self.address)).await;
        let late = |_| Err(format!("the broker did not answer within {LOOK:?}"));
        verified.unwrap_or_else(late).map_err(Unavailable::new)?;
        line.is_well();
        Ok(())
    }
}

impl fmt::Debug for Amqp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Amqp").field("name", &self.name).field("settings", &self.settings).finish()
    }
}
