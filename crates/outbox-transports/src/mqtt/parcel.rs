//! An event as an MQTT message: its topic, its properties, its body.

use bytes::Bytes;
use outbox::{Failure, Outgoing};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Publish, PublishProperties};

use super::MqttSettings;
use crate::{Encoder, Message};

/// A message, ready to be sent.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) topic: String,
    pub(super) properties: PublishProperties,
    pub(super) body: Bytes,
    /// How large the packet is.
    size: usize,
}

impl Parcel {
    /// The parcel for an event; fails for good if no server could ever take it.
    pub(super) fn pack(
        settings: &MqttSettings,
        encoder: &Encoder,
        event: &Outgoing,
    ) -> Result<Self, Failure> {
        let topic = settings.topic.render_parts(event, &['/', '+', '#'])?;
        check_topic(&topic).map_err(Failure::dead)?;
        if topic.starts_with('$') && !settings.topic.prefix().starts_with('$') {
            return Err(Failure::dead(format!(
                "its topic `{topic}` is the server's own: no event may choose it, only the setting `topic`"
            )));
        }
        let message = encoder.encode(event)?;
        if let Some(limit) = settings.max_bytes {
            message.fits(limit, "this publisher")?;
        }
        let Message { content_type, headers, body } = message;
        for (name, value) in &headers {
            for text in [name, value] {
                check_text(text)
                    .map_err(|mistake| Failure::dead(format!("its header `{name}` {mistake}")))?;
            }
        }
        let properties = PublishProperties {
            content_type: Some(content_type),
            correlation_data: event.correlation_id().map(|story| Bytes::copy_from_slice(story.as_bytes())),
            user_properties: headers,
            ..PublishProperties::default()
        };
        let mut packet = Publish::new(&topic, QoS::AtLeastOnce, body.clone(), Some(properties.clone()));
        packet.pkid = 1;
        Ok(Self { topic, properties, body, size: packet.size() })
    }

    /// What the server would not take, it is not sent: it would end the connection.
    pub(super) fn fits(&self, largest: usize) -> Result<(), Failure> {
        if self.size <= largest {
            return Ok(());
        }
        Err(Failure::dead(format!("the packet has {} bytes, and the server takes {largest}", self.size)))
    }
}

/// Whether something can be published to this topic.
pub(super) fn check_topic(topic: &str) -> Result<(), String> {
    if topic.is_empty() {
        return Err("its topic is empty".to_owned());
    }
    if topic.contains(['+', '#']) {
        return Err(format!("its topic `{topic}` has a `+` or a `#`, which are for subscriptions only"));
    }
    check_text(topic).map_err(|mistake| format!("its topic {mistake}"))
}

/// Whether this can be a text in a packet.
fn check_text(text: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err("has a NUL character in it, which MQTT does not take".to_owned());
    }
    if text.len() > usize::from(u16::MAX) {
        return Err(format!("has {} bytes, and MQTT takes {}", text.len(), u16::MAX));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outbox::{Event, EventBuilder};

    use super::*;
    use crate::Format;

    fn packed(event: EventBuilder) -> Result<Parcel, Failure> {
        let settings = MqttSettings::new("mqtt://localhost", "shop/{type}".parse().unwrap());
        Parcel::pack(&settings, &Encoder::new(Format::Plain, "shop"), &Outgoing::new(event.build().unwrap()))
    }

    #[test]
    fn a_parcel_has_everything_that_receivers_look_for() {
        let event = Event::new("placed").id("e-1").correlation("story").header("a", "b").json(&1);
        let parcel = packed(event).unwrap();
        assert_eq!((parcel.topic.as_str(), &*parcel.body), ("shop/placed", &b"1"[..]));
        let properties = &parcel.properties;
        assert_eq!(properties.content_type.as_deref(), Some("application/json"));
        assert_eq!(properties.correlation_data.as_deref(), Some(&b"story"[..]));
        for pair in [("a", "b"), ("outbox-id", "e-1"), ("outbox-type", "placed")] {
            let pair = (pair.0.to_owned(), pair.1.to_owned());
            assert!(properties.user_properties.contains(&pair), "{pair:?}");
        }
    }

    #[test]
    fn what_mqtt_cannot_take_is_said() {
        let said = |event| packed(event).unwrap_err().to_string();
        assert_eq!(
            said(Event::new("a+b").json(&1)),
            "its topic `shop/a+b` has a `+` or a `#`, which are for subscriptions only"
        );
        assert_eq!(
            said(Event::new("e").header("h", "v".repeat(70_000)).json(&1)),
            "its header `h` has 70000 bytes, and MQTT takes 65535"
        );
        let settings = MqttSettings::new("mqtt://localhost", "{type}/{tenant_id}".parse().unwrap());
        let encoder = Encoder::new(Format::Plain, "shop");
        let of = |kind: &str, tenant: &str| {
            let event = Event::new(kind).tenant(tenant).json(&1).build().unwrap();
            Parcel::pack(&settings, &encoder, &Outgoing::new(event)).map(|parcel| parcel.topic)
        };
        assert_eq!(of("a/b", "acme").unwrap(), "a/b/acme");
        for (kind, tenant) in [("a", "x/y"), ("a", "#"), ("$SYS/x", "acme")] {
            let failure = of(kind, tenant).unwrap_err();
            assert!(failure == Failure::dead(&failure), "{kind} {tenant}: {failure}");
        }
        assert_eq!(check_topic("").unwrap_err(), "its topic is empty");
        assert!(check_topic("a\0").unwrap_err().contains("NUL"));

        let parcel = packed(Event::new("e").json(&1)).unwrap();
        assert!(parcel.fits(parcel.size).is_ok());
        let said = parcel.fits(parcel.size - 1).unwrap_err().to_string();
        assert_eq!(
            said,
            format!("the packet has {} bytes, and the server takes {}", parcel.size, parcel.size - 1)
        );
    }
}
