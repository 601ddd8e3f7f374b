//! Property tests with arbitrary server URLs and events.

use bytes::BytesMut;
use proptest::prelude::*;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};

use super::MqttSettings;
use super::message::MqttMessage;
use super::server::Server;
use crate::proptests::{SECRET, all_texts, broken_url, event, percent_encode};
use crate::{Encoder, Format};

fn settings(url: &str) -> MqttSettings {
    MqttSettings::new(url, "shop/{type}/{key}".parse().expect("a template"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn user_and_password_are_decoded(user in "\\PC{1,8}", password in any::<String>()) {
        let url = format!("mqtt://{}:{}@broker", percent_encode(&user), percent_encode(&password));
        let server = Server::parse(&settings(&url)).unwrap();
        prop_assert_eq!((server.host.as_str(), server.login), ("broker", Some((user, password))));
    }

    #[test]
    fn an_invalid_url_is_reported_without_its_password(url in prop_oneof![broken_url("mqtt"), broken_url("mqtts"), any::<String>()]) {
        let text = match Server::parse(&settings(&url)) {
            Ok(server) => format!("{server:?}"),
            Err(error) => all_texts(&error),
        };
        prop_assert!(!text.contains(SECRET), "{}: {}", url, text);
    }

    #[test]
    fn an_encoded_message_is_a_packet_that_a_server_reads_unchanged(event in event()) {
        let Ok(message) = MqttMessage::encode(&settings("mqtt://h"), &Encoder::new(Format::Plain, "shop"), &event) else { return Ok(()) };
        let mut packet = Publish::new(&message.topic, QoS::AtLeastOnce, message.body.clone(), Some(message.properties.clone()));
        packet.pkid = 1;
        let mut wire = BytesMut::new();
        packet.write(&mut wire).unwrap();
        // The computed size is exact: a larger packet would end the connection.
        prop_assert!(message.fits(wire.len()).is_ok() && message.fits(wire.len() - 1).is_err());
        let Ok(Packet::Publish(read)) = Packet::read(&mut wire, None) else { panic!("a PUBLISH packet") };
        let topic = format!("shop/{}/{}", event.event_type(), event.ordering_key().unwrap());
        prop_assert_eq!(&read.topic[..], topic.as_bytes());
        prop_assert!(!read.topic.iter().any(|byte| b"+#\0".contains(byte)));
        prop_assert_eq!(&read.payload[..], event.payload_bytes());
        prop_assert_eq!(read.properties.unwrap().user_properties, message.properties.user_properties);
    }
}
