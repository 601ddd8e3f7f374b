//! An event as RabbitMQ gets it: where it goes, its properties, its body.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outbox::{Failure, Outgoing};

use super::AmqpSettings;
use crate::{Encoder, Message};

/// Kept on disk by queues that do so.
const PERSISTENT: u8 = 2;

/// A message, ready to be sent. Cheap to clone but for its headers.
#[derive(Debug)]
pub(super) struct Parcel {
    /// The event's id, by which a returned message is known.
    pub(super) id: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
    /// How much the properties weigh, at most.
    pub(super) weight: usize,
}

impl Parcel {
    /// The parcel for an event; fails for good if RabbitMQ could never take it.
    pub(super) fn pack(
        settings: &AmqpSettings,
        encoder: &Encoder,
        event: &Outgoing,
    ) -> Result<Self, Failure> {
        // For the default exchange it is the name of a queue, and has no parts.
        let separators: &[char] = if settings.exchange.as_str().is_empty() { &[] } else { &['.', '*', '#'] };
        let routing_key = short("routing key", settings.routing_key.render_parts(event, separators)?)?;
        let message = encoder.encode(event)?;
        if let Some(limit) = settings.max_bytes {
            message.fits(limit, "this publisher")?;
        }
        let Message { content_type, headers, body } = message;
        let id = short("id", event.id().as_str())?;
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id.clone())
            .with_timestamp(u64::try_from(event.occurred_at().timestamp()).unwrap_or_default())
            .with_content_type(short("content type", content_type)?);
        // Both are in the headers too, whatever their length.
        if let Ok(kind) = ShortString::try_new(event.event_type().as_str()) {
            properties = properties.with_type(kind);
        }
        if let Some(Ok(story)) = event.correlation_id().map(ShortString::try_new) {
            properties = properties.with_correlation_id(story);
        }
        let mut weight = 5 * (usize::from(u8::MAX) + 1);
        let mut table = FieldTable::default();
        for (name, value) in headers {
            // A length before each, and a letter for the kind of value.
            weight += name.len() + value.len() + 6;
            table.insert(short("header name", name)?, AMQPValue::LongString(LongString::from(value)));
        }
        Ok(Self { id, routing_key, properties: properties.with_headers(table), body, weight })
    }

    /// Properties go in one frame; one that is too large would end the connection, for all.
    pub(super) fn fits(&self, frame: usize) -> Result<(), Failure> {
        if self.weight <= frame {
            return Ok(());
        }
        Err(Failure::dead(format!(
            "its headers have up to {} bytes, and the broker takes {frame}",
            self.weight
        )))
    }
}

fn short(what: &str, text: impl Into<String>) -> Result<ShortString, Failure> {
    let text = text.into();
    let length = text.len();
    ShortString::try_new(text)
        .map_err(|_| Failure::dead(format!("its {what} has {length} bytes, and AMQP takes 255")))
}

#[cfg(test)]
mod tests {
    use outbox::Event;

    use super::*;
    use crate::Format;

    fn packed(event: outbox::EventBuilder) -> Result<Parcel, Failure> {
        let mut settings = AmqpSettings::new("amqp://localhost", "", "{type}".parse().unwrap());
        settings.max_bytes = Some(2000);
        Parcel::pack(&settings, &Encoder::new(Format::Plain, "shop"), &Outgoing::new(event.build().unwrap()))
    }

    #[test]
    fn a_parcel_has_everything_that_receivers_look_for() {
        let parcel =
            packed(Event::new("order.placed").id("e-1").correlation("story").header("a", "b").json(&1))
                .unwrap();
        let properties = &parcel.properties;
        assert_eq!(parcel.routing_key.as_str(), "order.placed");
        assert_eq!(properties.delivery_mode(), &Some(2));
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "e-1");
        assert_eq!(properties.kind().as_ref().unwrap().as_str(), "order.placed");
        assert_eq!(properties.correlation_id().as_ref().unwrap().as_str(), "story");
        assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
        assert!(properties.timestamp().is_some());
        let headers = properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers.get("a"), Some(&AMQPValue::LongString("b".into())));
        assert_eq!(headers.get("outbox-id"), Some(&AMQPValue::LongString("e-1".into())));
    }

    #[test]
    fn a_value_has_no_parts_of_a_routing_key_but_the_type() {
        let pack = |exchange: &str, tenant: &str| {
            let template = "{type}.{tenant_id}".parse().unwrap();
            let settings = AmqpSettings::new("amqp://localhost", exchange, template);
            let event = Event::new("order.placed").tenant(tenant).json(&1).build().unwrap();
            Parcel::pack(&settings, &Encoder::new(Format::Plain, "shop"), &Outgoing::new(event))
                .map(|parcel| parcel.routing_key.to_string())
        };
        assert_eq!(pack("events", "acme").unwrap(), "order.placed.acme");
        assert_eq!(pack("", "a.b").unwrap(), "order.placed.a.b");
        for tenant in ["a.b", "#", "*"] {
            let failure = pack("events", tenant).unwrap_err();
            assert_eq!(failure, Failure::dead(&failure), "{tenant}");
        }
    }

    #[test]
    fn what_amqp_cannot_take_is_said() {
        let said = packed(Event::new("é".repeat(200)).json(&1)).unwrap_err().to_string();
        assert_eq!(said, "its routing key has 400 bytes, and AMQP takes 255");
        let said = packed(Event::new("e").header("é".repeat(200), "v").json(&1)).unwrap_err().to_string();
        assert_eq!(said, "its header name has 400 bytes, and AMQP takes 255");
        let said = packed(Event::new("e").json(&"x".repeat(2000))).unwrap_err().to_string();
        assert!(said.ends_with("and this publisher takes 2000"), "{said}");
        let parcel = packed(Event::new("e").header("h", "v".repeat(1000)).json(&1)).unwrap();
        assert!(parcel.fits(4096).is_ok());
        assert!(parcel.fits(1024).unwrap_err().to_string().starts_with("its headers have up to"));
    }
}
