//! The AMQP message for an event: routing key, properties and body.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outbox::{Failure, Outgoing};

use super::AmqpSettings;
use crate::{Encoder, Message};

/// Delivery mode: durable queues keep the message on disk.
const PERSISTENT: u8 = 2;

/// An encoded message. Cheap to clone except for its headers.
#[derive(Debug)]
pub(super) struct AmqpMessage {
    /// The event's id, which identifies a returned message.
    pub(super) id: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
    /// Upper bound of the size of the properties, in bytes.
    pub(super) properties_size: usize,
}

impl AmqpMessage {
    /// Encodes an event. Fails permanently if RabbitMQ could never accept the message.
    pub(super) fn encode(
        settings: &AmqpSettings,
        encoder: &Encoder,
        event: &Outgoing,
    ) -> Result<Self, Failure> {
        // On the default exchange the routing key is the name of a queue and has no parts.
        let separators: &[char] = if settings.exchange.as_str().is_empty() { &[] } else { &['.', '*', '#'] };
        let routing_key = short_string("routing key", settings.routing_key.render_parts(event, separators)?)?;
        let message = encoder.encode(event)?;
        if let Some(limit) = settings.max_bytes {
            message.fits(limit, "this publisher")?;
        }
        let Message { content_type, headers, body } = message;
        let id = short_string("id", event.id().as_str())?;
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id.clone())
            .with_timestamp(u64::try_from(event.occurred_at().timestamp()).unwrap_or_default())
            .with_content_type(short_string("content type", content_type)?);
        // The headers contain both values too, at any length.
        if let Ok(kind) = ShortString::try_new(event.event_type().as_str()) {
            properties = properties.with_type(kind);
        }
        if let Some(Ok(correlation_id)) = event.correlation_id().map(ShortString::try_new) {
            properties = properties.with_correlation_id(correlation_id);
        }
        let mut properties_size = 5 * (usize::from(u8::MAX) + 1);
        let mut table = FieldTable::default();
        for (name, value) in headers {
            // Each has a length prefix, and the value a type byte.
            properties_size += name.len() + value.len() + 6;
            table.insert(short_string("header name", name)?, AMQPValue::LongString(LongString::from(value)));
        }
        Ok(Self { id, routing_key, properties: properties.with_headers(table), body, properties_size })
    }

    /// Fails permanently if the properties do not fit into one frame: a larger frame would end the
    /// connection.
    pub(super) fn fits(&self, max_frame_payload: usize) -> Result<(), Failure> {
        if self.properties_size <= max_frame_payload {
            return Ok(());
        }
        Err(Failure::dead(format!(
            "the headers have up to {} bytes, and the broker accepts {max_frame_payload}",
            self.properties_size
        )))
    }
}

fn short_string(name: &str, text: impl Into<String>) -> Result<ShortString, Failure> {
    let text = text.into();
    let length = text.len();
    ShortString::try_new(text)
        .map_err(|_| Failure::dead(format!("the {name} has {length} bytes, and AMQP allows 255")))
}

#[cfg(test)]
mod tests {
    use outbox::Event;

    use super::*;
    use crate::Format;

    fn encode_event(event: outbox::EventBuilder) -> Result<AmqpMessage, Failure> {
        let mut settings = AmqpSettings::new("amqp://localhost", "", "{type}".parse().unwrap());
        settings.max_bytes = Some(2000);
        AmqpMessage::encode(
            &settings,
            &Encoder::new(Format::Plain, "shop"),
            &Outgoing::new(event.build().unwrap()),
        )
    }

    #[test]
    fn a_message_has_all_properties_that_receivers_expect() {
        let message = encode_event(
            Event::new("order.placed").id("e-1").correlation("order-7").header("a", "b").json(&1),
        )
        .unwrap();
        let properties = &message.properties;
        assert_eq!(message.routing_key.as_str(), "order.placed");
        assert_eq!(properties.delivery_mode(), &Some(2));
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "e-1");
        assert_eq!(properties.kind().as_ref().unwrap().as_str(), "order.placed");
        assert_eq!(properties.correlation_id().as_ref().unwrap().as_str(), "order-7");
        assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
        assert!(properties.timestamp().is_some());
        let headers = properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers.get("a"), Some(&AMQPValue::LongString("b".into())));
        assert_eq!(headers.get("outbox-id"), Some(&AMQPValue::LongString("e-1".into())));
    }

    #[test]
    fn only_the_type_may_add_parts_to_a_routing_key() {
        let encode = |exchange: &str, tenant: &str| {
            let template = "{type}.{tenant_id}".parse().unwrap();
            let settings = AmqpSettings::new("amqp://localhost", exchange, template);
            let event = Event::new("order.placed").tenant(tenant).json(&1).build().unwrap();
            AmqpMessage::encode(&settings, &Encoder::new(Format::Plain, "shop"), &Outgoing::new(event))
                .map(|message| message.routing_key.to_string())
        };
        assert_eq!(encode("events", "acme").unwrap(), "order.placed.acme");
        assert_eq!(encode("", "a.b").unwrap(), "order.placed.a.b");
        for tenant in ["a.b", "#", "*"] {
            let failure = encode("events", tenant).unwrap_err();
            assert_eq!(failure, Failure::dead(&failure), "{tenant}");
        }
    }

    #[test]
    fn limits_of_amqp_are_reported() {
        let error = encode_event(Event::new("é".repeat(200)).json(&1)).unwrap_err().to_string();
        assert_eq!(error, "the routing key has 400 bytes, and AMQP allows 255");
        let error =
            encode_event(Event::new("e").header("é".repeat(200), "v").json(&1)).unwrap_err().to_string();
        assert_eq!(error, "the header name has 400 bytes, and AMQP allows 255");
        let error = encode_event(Event::new("e").json(&"x".repeat(2000))).unwrap_err().to_string();
        assert!(error.ends_with("and this publisher accepts 2000"), "{error}");
        let message = encode_event(Event::new("e").header("h", "v".repeat(1000)).json(&1)).unwrap();
        assert!(message.fits(4096).is_ok());
        assert!(message.fits(1024).unwrap_err().to_string().starts_with("the headers have up to"));
    }
}
