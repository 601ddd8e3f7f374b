//! Property tests with arbitrary broker URLs and events.

use proptest::prelude::*;

use super::AmqpSettings;
use super::message::AmqpMessage;
use super::settings::parse;
use crate::proptests::{SECRET, all_texts, broken_url, event, percent_encode};
use crate::{Encoder, Format};

fn settings(url: &str) -> AmqpSettings {
    AmqpSettings::new(url, "", "{type}.{key}".parse().expect("a template"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn user_password_and_virtual_host_are_decoded(user in "\\PC{1,8}", password in "\\PC{1,8}", vhost in "[^.\\pC]{1,8}") {
        let url = format!("amqp://{}:{}@rabbit/{}", percent_encode(&user), percent_encode(&password), percent_encode(&vhost));
        let uri = parse(&settings(&url)).unwrap();
        let login = (uri.authority.userinfo.username, uri.authority.userinfo.password);
        prop_assert_eq!((login, uri.authority.host.as_str(), uri.vhost), ((user, password), "rabbit", vhost));
    }

    /// A host that cannot be parsed must not fall back to localhost.
    #[test]
    fn a_url_keeps_its_host_or_is_refused_without_its_password(url in prop_oneof![broken_url("amqp"), broken_url("amqps"), any::<String>()]) {
        match parse(&settings(&url)) {
            Ok(uri) => prop_assert!(uri.authority.host != "localhost" && !uri.authority.host.is_empty(), "{}", url),
            Err(error) => prop_assert!(!all_texts(&error).contains(SECRET), "{}: {:?}", url, error),
        }
    }

    #[test]
    fn an_event_is_encoded_with_its_id_and_key_or_is_dead(event in event()) {
        let Ok(message) = AmqpMessage::encode(&settings("amqp://h"), &Encoder::new(Format::Plain, "shop"), &event) else { return Ok(()) };
        prop_assert_eq!(message.routing_key.as_str(), format!("{}.{}", event.event_type(), event.ordering_key().unwrap()));
        prop_assert_eq!((message.id.as_str(), &message.body[..]), (event.id().as_str(), event.payload_bytes()));
        let headers: usize = message.properties.headers().as_ref().unwrap().inner().keys().map(|name| name.as_str().len()).sum();
        prop_assert!(message.properties_size > headers);
    }
}
