//! The address of a NATS server may be any text, and a message may be of any event.

use async_nats::ServerAddr;
use proptest::prelude::*;

use super::credentials::{Credentials, servers};
use super::wire::{check_subject, prepare};
use crate::any_text::{SECRET, broken, encoded, event};
use crate::{Encoder, Format};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_stands_in_an_address_is_read_as_it_is_and_taken_out(name in "\\PC{1,8}", password in prop::option::of(any::<String>())) {
        let login = match &password {
            Some(password) => format!("{}:{}", encoded(&name), encoded(password)),
            None => encoded(&name),
        };
        let (servers, credentials) = servers(&format!("nats://{login}@one:4222").as_str().into()).unwrap();
        prop_assert_eq!(servers.iter().map(ServerAddr::as_url_str).collect::<Vec<_>>(), ["nats://one:4222"]);
        match (credentials, password.filter(|password| !password.is_empty())) {
            (Credentials::User { name: user, password }, Some(expected)) => {
                prop_assert_eq!((user, password.expose()), (name, expected.as_str()));
            }
            (Credentials::Token(token), None) => prop_assert_eq!(token.expose(), name),
            _ => prop_assert!(false, "a user has a password, and a token has none"),
        }
    }

    #[test]
    fn neither_an_address_nor_what_is_wrong_with_it_shows_a_password(url in prop_oneof![broken("nats"), broken("tls"), any::<String>()]) {
        let said = match servers(&url.as_str().into()) {
            Ok((servers, _)) => servers.iter().map(ServerAddr::as_url_str).collect::<Vec<_>>().join(","),
            Err(said) => said,
        };
        prop_assert!(!said.contains(SECRET), "{}: {}", url, said);
    }

    #[test]
    fn a_subject_is_one_word_of_whole_parts(subject in prop_oneof![any::<String>(), "[a.*> $]{0,6}", "[$](JS|SYS)[.a]{0,4}"]) {
        if check_subject(&subject).is_ok() {
            prop_assert_eq!(subject.split_whitespace().collect::<Vec<_>>(), [subject.as_str()]);
            prop_assert!(subject.split('.').all(|part| !part.is_empty() && !part.contains(['*', '>', '\0'])), "{}", subject);
            prop_assert!(!["$JS", "$SYS"].contains(&subject.split('.').next().unwrap()) || !subject.contains('.'));
        }
    }

    /// A line break in a header would be a header of its own, by which a server can be told what to do.
    #[test]
    fn headers_are_those_of_the_event_and_none_is_an_order(event in event(), is_plain: bool) {
        let format = if is_plain { Format::Plain } else { Format::Cloudevents };
        let message = Encoder::new(format, "shop").encode(&event).unwrap();
        let Ok(prepared) = prepare("s".to_owned(), &event, message, format) else { return Ok(()) };
        let (is, less) = (prepared.message.clone().outbound_message("s"), |size: usize| prepared.fits(size, "it").is_ok());
        let headers = is.headers.unwrap();
        let mut size = "NATS/1.0\r\n\r\n".len() + is.payload.len();
        for (name, values) in headers.iter() {
            let name: &str = name.as_ref();
            for value in values {
                size += name.len() + value.as_str().len() + ": \r\n".len();
                prop_assert!(!format!("{name}{}", value.as_str()).contains(['\r', '\n']), "{}", name);
            }
            let order = name.to_ascii_lowercase().starts_with("nats-");
            prop_assert!(!order || name == "Nats-Msg-Id", "{}", name);
        }
        prop_assert_eq!(headers.get("Nats-Msg-Id").unwrap().as_str(), event.id().as_str());
        prop_assert!(less(size) && !less(size - 1));
    }
}
