//! Property tests with arbitrary server URLs and events.

use async_nats::ServerAddr;
use proptest::prelude::*;

use super::credentials::{Credentials, servers};
use super::wire::{check_subject, prepare};
use crate::proptests::{SECRET, all_texts, broken_url, event, percent_encode};
use crate::{Encoder, Format};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn credentials_in_a_url_are_decoded_and_removed(name in "\\PC{1,8}", password in prop::option::of(any::<String>())) {
        let login = match &password {
            Some(password) => format!("{}:{}", percent_encode(&name), percent_encode(password)),
            None => percent_encode(&name),
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
    fn neither_an_address_nor_an_error_shows_a_password(url in prop_oneof![broken_url("nats"), broken_url("tls"), any::<String>()]) {
        let text = match servers(&url.as_str().into()) {
            Ok((servers, _)) => servers.iter().map(ServerAddr::as_url_str).collect::<Vec<_>>().join(","),
            Err(error) => all_texts(&error),
        };
        prop_assert!(!text.contains(SECRET), "{}: {}", url, text);
    }

    #[test]
    fn a_subject_is_one_word_of_whole_parts(subject in prop_oneof![any::<String>(), "[a.*> $]{0,6}", "[$](JS|SYS)[.a]{0,4}"]) {
        if check_subject(&subject).is_ok() {
            prop_assert_eq!(subject.split_whitespace().collect::<Vec<_>>(), [subject.as_str()]);
            prop_assert!(subject.split('.').all(|part| !part.is_empty() && !part.contains(['*', '>', '\0'])), "{}", subject);
            prop_assert!(!["$JS", "$SYS"].contains(&subject.split('.').next().unwrap()) || !subject.contains('.'));
        }
    }

    /// A line break in a value would start a new header, and headers can be commands to the server.
    #[test]
    fn headers_are_those_of_the_event_and_none_is_a_command(event in event(), is_plain: bool) {
        let format = if is_plain { Format::Plain } else { Format::Cloudevents };
        let message = Encoder::new(format, "shop").encode(&event).unwrap();
        let Ok(prepared) = prepare("s".to_owned(), &event, message, format) else { return Ok(()) };
        let (outbound, fits) = (prepared.message.clone().outbound_message("s"), |size: usize| prepared.fits(size, "it").is_ok());
        let headers = outbound.headers.unwrap();
        let mut size = "NATS/1.0\r\n\r\n".len() + outbound.payload.len();
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
        prop_assert!(fits(size) && !fits(size - 1));
    }
}
