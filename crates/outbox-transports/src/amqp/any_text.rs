//! The address of a broker may be any text, and a message may be of any event.

use proptest::prelude::*;

use super::AmqpSettings;
use super::parcel::Parcel;
use super::settings::parse;
use crate::any_text::{SECRET, broken, encoded, event};
use crate::{Encoder, Format};

fn settings(url: &str) -> AmqpSettings {
    AmqpSettings::new(url, "", "{type}.{key}".parse().expect("a template"))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn user_password_and_virtual_host_are_read_as_they_are(user in "\\PC{1,8}", password in "\\PC{1,8}", vhost in "[^.\\pC]{1,8}") {
        let url = format!("amqp://{}:{}@rabbit/{}", encoded(&user), encoded(&password), encoded(&vhost));
        let uri = parse(&settings(&url)).unwrap();
        let login = (uri.authority.userinfo.username, uri.authority.userinfo.password);
        prop_assert_eq!((login, uri.authority.host.as_str(), uri.vhost), ((user, password), "rabbit", vhost));
    }

    /// A host that was not read must not become this machine.
    #[test]
    fn an_address_is_of_the_host_that_stands_in_it_or_refused_without_its_password(url in prop_oneof![broken("amqp"), broken("amqps"), any::<String>()]) {
        match parse(&settings(&url)) {
            Ok(uri) => prop_assert!(uri.authority.host != "localhost" && !uri.authority.host.is_empty(), "{}", url),
            Err(said) => prop_assert!(!said.contains(SECRET), "{}: {}", url, said),
        }
    }

    #[test]
    fn an_event_is_packed_with_its_id_and_key_or_is_dead(event in event()) {
        let Ok(parcel) = Parcel::pack(&settings("amqp://h"), &Encoder::new(Format::Plain, "shop"), &event) else { return Ok(()) };
        prop_assert_eq!(parcel.routing_key.as_str(), format!("{}.{}", event.event_type(), event.ordering_key().unwrap()));
        prop_assert_eq!((parcel.id.as_str(), &parcel.body[..]), (event.id().as_str(), event.payload_bytes()));
        let headers: usize = parcel.properties.headers().as_ref().unwrap().inner().keys().map(|name| name.as_str().len()).sum();
        prop_assert!(parcel.weight > headers);
    }
}
