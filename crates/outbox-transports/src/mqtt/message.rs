//! The MQTT message for an event: topic, properties and body.

use bytes::Bytes;
use outbox::{Failure, Outgoing};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Publish, PublishProperties};

use super::MqttSettings;
use crate::{Encoder, Message};

/// An encoded message.
#[derive(Debug)]
pub(super) struct MqttMessage {
    pub(super) topic: String,
    pub(super) properties: PublishProperties,
    pub(super) body: Bytes,
    /// Size of the packet in bytes.
    size: usize,
}

impl MqttMessage {
    /// Encodes an event. Fails permanently if no server could accept the message.
    pub(super) fn encode(
        settings: &MqttSettings,
        encoder: &Encoder,
        event: &Outgoing,
    ) -> Result<Self, Failure> {
        let topic = settings.topic.render_parts(event, &['/', '+', '#'])?;
        check_topic(&topic).map_err(Failure::dead)?;
        if topic.starts_with('$') && !settings.topic.prefix().starts_with('$') {
            return Err(Failure::dead(format!(
                "topic `{topic}` belongs to the server: only the setting `topic` may choose it, not an event"
            )));
        }
        let message = encoder.encode(event)?;
        if let Some(limit) = settings.max_bytes {
            message.fits(limit, "this publisher")?;
        }
        let Message { content_type, headers, body } = message;
        for (name, value) in &headers {
            for text in [name, value] {
                check_text(text).map_err(|error| Failure::dead(format_args!("header `{name}` {error}")))?;
            }
        }
        let properties = PublishProperties {
            content_type: Some(content_type),
            correlation_data: event.correlation_id().map(|id| Bytes::copy_from_slice(id.as_bytes())),
            user_properties: headers,
            ..PublishProperties::default()
        };
        let mut packet = Publish::new(&topic, QoS::AtLeastOnce, body.clone(), Some(properties.clone()));
        packet.pkid = 1;
        Ok(Self { topic, properties, body, size: packet.size() })
    }

    /// Fails permanently if the packet is too large for the server, which would close the
    /// connection.
    pub(super) fn fits(&self, max_packet_size: usize) -> Result<(), Failure> {
        if self.size <= max_packet_size {
            return Ok(());
        }
        Err(Failure::dead(format!(
            "the packet has {} bytes, and the server accepts {max_packet_size}",
            self.size
        )))
    }
}

/// Reason why messages cannot be published to a topic.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidTopic {
    #[error("the topic is empty")]
    Empty,
    #[error("the topic `{0}` contains `+` or `#`, which are for subscriptions only")]
    Wildcard(String),
    #[error("the topic {0}")]
    Text(#[from] InvalidText),
}

/// Reason why a text is not valid in a packet; the verb phrase of a sentence.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidText {
    #[error("contains a NUL character, which MQTT does not allow")]
    Nul,
    #[error("has {0} bytes, and MQTT allows {max}", max = u16::MAX)]
    TooLong(usize),
}

/// Checks that messages can be published to this topic.
pub(super) fn check_topic(topic: &str) -> Result<(), InvalidTopic> {
    if topic.is_empty() {
        return Err(InvalidTopic::Empty);
    }
    if topic.contains(['+', '#']) {
        return Err(InvalidTopic::Wildcard(topic.to_owned()));
    }
    Ok(check_text(topic)?)
}

/// Checks that this text is valid in a packet.
fn check_text(text: &str) -> Result<(), InvalidText> {
    if text.contains('\0') {
        return Err(InvalidText::Nul);
    }
    if text.len() > usize::from(u16::MAX) {
        return Err(InvalidText::TooLong(text.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outbox::{Event, EventBuilder};

    use super::*;
    use crate::Format;

    fn encode_event(event: EventBuilder) -> Result<MqttMessage, Failure> {
        let settings = MqttSettings::new("mqtt://localhost", "shop/{type}".parse().unwrap());
        MqttMessage::encode(
            &settings,
            &Encoder::new(Format::Plain, "shop"),
            &Outgoing::new(event.build().unwrap()),
        )
    }

    #[test]
    fn a_message_has_all_properties_that_receivers_expect() {
        let event = Event::new("placed").id("e-1").correlation("order-7").header("a", "b").json(&1);
        let message = encode_event(event).unwrap();
        assert_eq!((message.topic.as_str(), &*message.body), ("shop/placed", &b"1"[..]));
        let properties = &message.properties;
        assert_eq!(properties.content_type.as_deref(), Some("application/json"));
        assert_eq!(properties.correlation_data.as_deref(), Some(&b"order-7"[..]));
        for pair in [("a", "b"), ("outbox-id", "e-1"), ("outbox-type", "placed")] {
            let pair = (pair.0.to_owned(), pair.1.to_owned());
            assert!(properties.user_properties.contains(&pair), "{pair:?}");
        }
    }

    #[test]
    fn limits_of_mqtt_are_reported() {
        let error = |event| encode_event(event).unwrap_err().to_string();
        assert_eq!(
            error(Event::new("a+b").json(&1)),
            "the topic `shop/a+b` contains `+` or `#`, which are for subscriptions only"
        );
        assert_eq!(
            error(Event::new("e").header("h", "v".repeat(70_000)).json(&1)),
            "header `h` has 70000 bytes, and MQTT allows 65535"
        );
        let settings = MqttSettings::new("mqtt://localhost", "{type}/{tenant_id}".parse().unwrap());
        let encoder = Encoder::new(Format::Plain, "shop");
        let of = |kind: &str, tenant: &str| {
            let event = Event::new(kind).tenant(tenant).json(&1).build().unwrap();
            MqttMessage::encode(&settings, &encoder, &Outgoing::new(event)).map(|message| message.topic)
        };
        assert_eq!(of("a/b", "acme").unwrap(), "a/b/acme");
        for (kind, tenant) in [("a", "x/y"), ("a", "#"), ("$SYS/x", "acme")] {
            let failure = of(kind, tenant).unwrap_err();
            assert!(failure == Failure::dead(&failure), "{kind} {tenant}: {failure}");
        }
        assert_eq!(check_topic("").unwrap_err(), InvalidTopic::Empty);
        assert_eq!(check_topic("a\0").unwrap_err(), InvalidText::Nul.into());

        let message = encode_event(Event::new("e").json(&1)).unwrap();
        assert!(message.fits(message.size).is_ok());
        let error = message.fits(message.size - 1).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("the packet has {} bytes, and the server accepts {}", message.size, message.size - 1)
        );
    }
}
