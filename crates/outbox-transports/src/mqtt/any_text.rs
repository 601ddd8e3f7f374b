//! The address of an MQTT server may be any text, and a message may be of any event.

use bytes::BytesMut;
use proptest::prelude::*;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};

use super::MqttSettings;
use super::parcel::Parcel;
use super::server::Server;
use crate::any_text::{SECRET, broken, encoded, event};
use crate::{Encoder, Format};

fn settings(url: &str) -> MqttSettings {
    MqttSettings::new(url, "shop/{type}/{key}".parse().expect("a template"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn user_and_password_are_read_as_they_are(user in "\\PC{1,8}", password in any::<String>()) {
        let url = format!("mqtt://{}:{}@broker", encoded(&user), encoded(&password));
        let server = Server::parse(&settings(&url)).unwrap();
        prop_assert_eq!((server.host.as_str(), server.login), ("broker", Some((user, password))));
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said_without_its_password(url in prop_oneof![broken("mqtt"), broken("mqtts"), any::<String>()]) {
        let said = match Server::parse(&settings(&url)) {
            Ok(server) => format!("{server:?}"),
            Err(said) => said,
        };
        prop_assert!(!said.contains(SECRET), "{}: {}", url, said);
    }

    #[test]
    fn what_is_packed_is_a_packet_that_a_server_reads_as_it_was(event in event()) {
        let Ok(parcel) = Parcel::pack(&settings("mqtt://h"), &Encoder::new(Format::Plain, "shop"), &event) else { return Ok(()) };
        let mut packet = Publish::new(&parcel.topic, QoS::AtLeastOnce, parcel.body.clone(), Some(parcel.properties.clone()));
        packet.pkid = 1;
        let mut wire = BytesMut::new();
        packet.write(&mut wire).unwrap();
        // As large as was said: neither more, which would end the connection, nor less.
        prop_assert!(parcel.fits(wire.len()).is_ok() && parcel.fits(wire.len() - 1).is_err());
        let Ok(Packet::Publish(read)) = Packet::read(&mut wire, None) else { panic!("it is a message") };
        let topic = format!("shop/{}/{}", event.event_type(), event.ordering_key().unwrap());
        prop_assert_eq!(&read.topic[..], topic.as_bytes());
        prop_assert!(!read.topic.iter().any(|byte| b"+#\0".contains(byte)));
        prop_assert_eq!(&read.payload[..], event.payload_bytes());
        prop_assert_eq!(read.properties.unwrap().user_properties, parcel.properties.user_properties);
    }
}
