//! Property tests with arbitrary URLs, requests and responses.
//!
//! `PROPTEST_CASES` sets the number of cases of each test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox::{Event, Failure, Outgoing};
use percent_encoding::percent_decode_str;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use reqwest::header::{HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Client, StatusCode, Url};

use super::Webhook;
use super::address::AddressPolicy;
use super::client::client;
use super::request::RequestWriter;
use super::response::{self, RequestOutcome};
use super::settings::WebhookSettings;
use super::signature::{ID, Key, SIGNATURE, TIMESTAMP, Unverified, sign, verify_at};
use super::target::Target;
use crate::proptests::{SECRET, all_texts, broken_pem, event};
use crate::{Text, Tls};

/// Stands for a token in a URL, and for a secret.
const CANARY: &str = "s3cr3t-canary-of-some-length";

static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    client(&WebhookSettings::new("http://localhost"), Arc::new(AddressPolicy::default())).expect("a client")
});

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).expect("a valid time")
}

/// An address in one of the networks that are not public.
fn non_public() -> impl Strategy<Value = Ipv4Addr> {
    let networks = [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 168, 0, 0], 16),
        ([224, 0, 0, 0], 4),
        ([240, 0, 0, 0], 4),
    ];
    (select(networks.to_vec()), any::<u32>())
        .prop_map(|((start, bits), rest)| Ipv4Addr::from_bits(u32::from_be_bytes(start) | (rest >> bits)))
}

/// All notations of an IPv4 address as the host of a URL.
fn notations(address: Ipv4Addr) -> Vec<String> {
    let ([a, b, c, d], number) = (address.octets(), address.to_bits());
    let (tail, half) = (number & 0xff_ffff, number & 0xffff);
    vec![
        address.to_string(),
        format!("{address}."),
        format!("{number}"),
        format!("{number:#x}"),
        format!("0X{number:X}."),
        format!("0{number:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a}.{tail}"),
        format!("{a:#x}.{b}.{half}"),
        address.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect(),
        address.to_string().chars().map(full_width).collect(),
        address.to_string().replace('.', "\u{3002}"),
        format!("[{}]", address.to_ipv6_mapped()),
        format!("[::ffff:{number:x}]")
            .replace(&format!("{number:x}"), &format!("{:x}:{half:x}", number >> 16)),
        format!("[{}]", Ipv6Addr::from_bits(u128::from(number))),
        format!("[64:ff9b::{address}]"),
        format!("[2002:{:x}:{half:x}::1]", number >> 16),
    ]
}

/// The full-width form of a digit. URL parsers normalize it before they read the host.
fn full_width(digit: char) -> char {
    digit.to_digit(10).and_then(|n| char::from_u32(0xff10 + n)).unwrap_or(digit)
}

/// Valid and malformed URLs.
fn url() -> impl Strategy<Value = String> {
    let piece = select(vec![
        "https://",
        "https:",
        "http://",
        "//",
        "/",
        "\\",
        "hooks.example.com",
        "evil.example",
        "{tenant_id}",
        "{type}",
        "{{",
        "}}",
        "@",
        ":",
        ":8443",
        "?",
        "#",
        "\t",
        "\n",
        " ",
        ".",
        "..",
        "%2e",
        "%",
        "[::1]",
        "127.1",
        "&t=",
        "é",
        "://",
        CANARY,
        "{",
        "/{s3cr3t-canary-of-some-length}",
        // A placeholder without its closing brace.
        "/{?t=s3cr3t-canary-of-some-length&x={type}",
    ]);
    (select(vec!["https://hooks.example.com", "https://", ""]), prop::collection::vec(piece, 0..7))
        .prop_map(|(start, pieces)| start.to_owned() + &pieces.concat())
}

/// A valid secret.
fn secret() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{16,30}", Just("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()),]
}

/// Looks up a header as a receiver does. HTTP strips white space around a value.
fn header<'a>(headers: &'a HeaderMap) -> impl Fn(&'static str) -> Option<&'a str> {
    |name| std::str::from_utf8(headers.get(name)?.as_bytes().trim_ascii()).ok()
}

/// The id would be signed with the space and received without it. The receiver would refuse every
/// attempt, and the key would be blocked.
#[test]
fn an_event_whose_id_http_would_change_is_dead() {
    let writer = RequestWriter::new(&WebhookSettings::new("http://localhost")).unwrap();
    for (id, is_sent) in [("e-1", true), ("e 1", true), (" e-1", false), ("e-1 ", false)] {
        let event = Outgoing::new(Event::new("e").id(id).json(&1).build().unwrap());
        let request = writer.request(&CLIENT, Url::parse("http://localhost/in").unwrap(), &event);
        assert_eq!(request.is_ok(), is_sent, "{id:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_non_public_address_is_refused_in_every_notation(
        address in non_public(), around in select(vec![("", ""), ("user:pw@", ""), ("", ":8443")]),
    ) {
        prop_assert!(!AddressPolicy::default().allows_address(IpAddr::V4(address)));
        for host in notations(address) {
            let url = format!("https://{}{host}{}/in", around.0, around.1);
            prop_assert!(Target::new(&url, &AddressPolicy::default()).is_err(), "{}", url);
        }
    }

    #[test]
    fn only_public_ipv6_addresses_are_allowed(bits: u128, start in select(vec![0_u16, 0x64, 0xfc00, 0xfe80, 0xfec0, 0xff02, 0x2002, 0x100])) {
        let address = Ipv6Addr::from_bits((bits >> 16) | (u128::from(start) << 112));
        prop_assert!(Target::new(&format!("https://[{address}]/"), &AddressPolicy::default()).is_err(), "{}", address);
    }

    #[test]
    fn public_addresses_and_only_the_listed_network_are_allowed(
        first in select(vec![1_u8, 8, 20, 34, 52, 77, 93, 151, 185, 212]), rest: [u8; 3], inside in non_public(), bits in 8..=32_u8, other in non_public(),
    ) {
        let public = Ipv4Addr::new(first, rest[0], rest[1], rest[2]);
        prop_assert!(Target::new(&format!("https://{public}/"), &AddressPolicy::default()).is_ok(), "{}", public);
        let policy = AddressPolicy::new(&[format!("{inside}/{bits}").as_str().into()]).unwrap();
        let mask = u32::MAX << (32 - u32::from(bits));
        prop_assert!(policy.allows_address(inside.into()));
        prop_assert_eq!(policy.allows_address(other.into()), (other.to_bits() ^ inside.to_bits()) & mask == 0);
    }

    #[test]
    fn no_entry_of_the_list_allows_everything(text in prop_oneof![any::<String>(), "[0-9a-f:./ ]{0,20}"]) {
        prop_assume!(!["/0", "/1", "/2", "/3", "/4", "/5", "/6", "/7", "/+", "/-"].iter().any(|bits| text.contains(bits)));
        if let Ok(policy) = AddressPolicy::new(&[text.as_str().into()]) {
            let open = ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1"].map(|one| policy.allows_address(one.parse().unwrap()));
            prop_assert!(open.iter().filter(|open| **open).count() <= 1, "{}", text);
        }
    }

    /// Neither malformed settings nor an event can change the host of a webhook.
    #[test]
    fn a_webhook_goes_to_the_checked_host_for_every_event(url in url(), event in event()) {
        let target = match Target::new(&url, &AddressPolicy::default()) {
            Ok(target) => target,
            Err(error) => {
                // The error may name the host, but not the text of a placeholder.
                let texts = all_texts(&error);
                let names_host = texts.contains("hosts in `allow`");
                prop_assert!(names_host || !texts.contains(CANARY), "{}", texts);
                return Ok(());
            }
        };
        prop_assert!(!target.origin.contains(CANARY) || target.host.contains(CANARY));
        if let Ok(sent_to) = target.url_for(&event) {
            prop_assert_eq!((sent_to.scheme(), sent_to.host_str()), ("https", Some(target.host.as_str())));
            prop_assert_eq!(sent_to.port_or_known_default(), Some(target.port));
        }
    }

    #[test]
    fn a_value_stays_within_its_placeholder_of_a_url(
        path in select(vec!["/in/{tenant_id}/x", "/in/.{tenant_id}/x", "/in/%2e{tenant_id}/x", "/in/{tenant_id}%2E/x", "/in\\{tenant_id}/x"]),
        tenant in prop_oneof![select(vec![".", "..", "%2e", "a/..", "?", "\\"]).prop_map(str::to_owned), "\\PC{1,12}"],
        name in "\\PC{1,12}",
    ) {
        let event = Event::new(name).tenant(tenant).json(&1).build().unwrap();
        let target = Target::new(&format!("https://hooks.example.com{path}?type={{type}}&last=1"), &AddressPolicy::default()).unwrap();
        let Ok(url) = target.url_for(&event) else { return Ok(()) };
        let segments: Vec<&str> = url.path_segments().unwrap().collect();
        prop_assert_eq!(segments.len(), 3, "{}", url);
        prop_assert_eq!((segments[0], segments[2]), ("in", "x"), "{}", url);
        let value = percent_decode_str(segments[1]).decode_utf8().unwrap();
        prop_assert_eq!(value.trim_matches('.'), event.tenant_id().unwrap().trim_matches('.'));
        let query: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let expected = [("type", event.event_type().as_str()), ("last", "1")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        prop_assert_eq!(query, expected);
    }

    #[test]
    fn no_error_of_the_settings_shows_a_secret_or_the_content_of_a_file(
        certificate in broken_pem(), key in broken_pem(), name in prop_oneof![Just("authorization".to_owned()), "[a-z:]{0,3}"],
        start in select(vec!["", "whsec_", "whsec_%"]), end in select(vec!["", "\r\n", "\0"]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            Text::from(path.to_str().unwrap())
        };
        let settings = || {
            let mut settings = WebhookSettings::new(format!("http://localhost/{SECRET}").as_str());
            settings.allow = vec!["localhost".into()];
            settings
        };
        let (mut signed, mut with_header, mut encrypted) = (settings(), settings(), settings());
        signed.secrets = vec![format!("{start}{SECRET}").as_str().into()];
        with_header.headers.insert(name, format!("{SECRET}{end}").as_str().into());
        encrypted.tls = Tls::default().with_client_certificate(file("c.pem", &certificate), file("k.pem", &key));
        for settings in [signed, with_header, encrypted] {
            if let Err(error) = Webhook::new("hooks", settings) {
                prop_assert!(!all_texts(&error).contains(SECRET), "{:?}", error);
            }
        }
    }

    #[test]
    fn a_signature_is_valid_until_one_byte_is_changed(
        first in secret(), second in secret(), id in "[ -~]{1,36}", body in prop::collection::vec(any::<u8>(), 1..64),
        what in 0..4_usize, at: Index, change in 1..=255_u8,
    ) {
        let keys = [Key::new(&first).unwrap(), Key::new(&second).unwrap()];
        let timestamp = now().timestamp().to_string();
        let signed = sign(&keys[..1], &id, &timestamp, &body);
        let both = sign(&keys, &id, &timestamp, &body);
        let verified = |secret: &str, [id, timestamp, signature]: [&str; 3], body: &[u8]| {
            let header = |name| match name {
                ID => Some(id),
                TIMESTAMP => Some(timestamp),
                SIGNATURE => Some(signature),
                _ => None,
            };
            verify_at(now(), &[secret], header, body)
        };
        let sent = [id.as_str(), &timestamp, &signed];
        prop_assert_eq!(verified(&first, sent, &body), Ok(()));
        for secret in [&first, &second] {
            prop_assert_eq!(verified(secret, [&id, &timestamp, &both], &body), Ok(()));
        }
        if first != second {
            prop_assert_eq!(verified(&second, sent, &body), Err(Unverified::Signature));
        }
        let (mut id, mut signature, mut body) = (id.clone().into_bytes(), signed.clone().into_bytes(), body.clone());
        let mut timestamp = now().timestamp();
        let part = [&mut id, &mut signature, &mut body].into_iter().nth(what);
        match part {
            Some(part) => {
                let at = at.index(part.len());
                part[at] ^= change;
            }
            // Within the tolerance, so that the age is not the reason for the refusal.
            None => timestamp += i64::from(change),
        }
        // Bytes that are not UTF-8 cannot be a header.
        if let (Ok(id), Ok(signature)) = (String::from_utf8(id), String::from_utf8(signature)) {
            let refused = verified(&first, [&id, &timestamp.to_string(), &signature], &body);
            prop_assert_eq!(refused, Err(Unverified::Signature), "{} {} {}", id, timestamp, signature);
        }
    }

    #[test]
    fn no_forged_webhook_verifies_or_shows_a_secret(
        id in prop::option::of(any::<String>()), timestamp in prop_oneof![any::<i64>().prop_map(|n| n.to_string()), Just("1700000000".to_owned()), any::<String>()],
        signature in prop_oneof![any::<String>(), "(v1,[A-Za-z0-9+/]{43}= ?){0,3}"], body in any::<Vec<u8>>(),
        secret in prop_oneof![Just(CANARY.to_owned()), Just(format!("whsec_{CANARY}")), Just(CANARY[..15].to_owned())],
    ) {
        let header = |name| match name {
            ID => id.as_deref(),
            TIMESTAMP => Some(timestamp.as_str()),
            _ => Some(signature.as_str()),
        };
        let error = verify_at(now(), &[&secret], header, &body).unwrap_err();
        prop_assert!(!all_texts(&error).contains(&CANARY[..15]), "{:?}", error);
    }

    #[test]
    fn the_receiver_can_verify_every_request(event in event(), secret in secret(), format in select(vec!["plain", "cloudevents", "cloudevents-structured"])) {
        let mut settings = WebhookSettings::new("http://localhost");
        settings.secrets = vec![secret.as_str().into()];
        settings.format = serde_json::from_value(format.into()).unwrap();
        let url = Url::parse("http://localhost/in").unwrap();
        // An event that is not valid in HTTP is dead.
        let Ok(request) = RequestWriter::new(&settings).unwrap().request(&CLIENT, url, &event) else { return Ok(()) };
        let (headers, body) = (request.headers(), request.body().unwrap().as_bytes().unwrap());
        prop_assert_eq!(verify_at(Utc::now(), &[&secret], header(headers), body), Ok(()));
        prop_assert_eq!(header(headers)(ID), Some(event.id().as_str()));
        for name in ["host", "authorization", "cookie", "transfer-encoding"] {
            prop_assert!(!headers.contains_key(name), "{}", name);
        }
    }

    #[test]
    fn no_response_delays_an_event_forever_or_shows_its_redirect_target(
        status in 100..1000_u16,
        wait in prop_oneof![any::<u64>().prop_map(|n| n.to_string()), "[ -~]{0,30}", Just("Wed, 21 Oct 9999 07:28:00 GMT".to_owned())],
        to in select(vec!["https://u:CANARY@h/CANARY?CANARY#CANARY", "/CANARY", "?CANARY", "CANARY", "javascript:CANARY", "https://[CANARY", "\\\\h\\CANARY"]),
        raw in prop::option::of(any::<Vec<u8>>()),
    ) {
        let to = raw.unwrap_or_else(|| to.replace("CANARY", CANARY).into_bytes());
        let mut headers = HeaderMap::new();
        headers.extend(HeaderValue::from_bytes(wait.as_bytes()).ok().map(|wait| (RETRY_AFTER, wait)));
        headers.extend(HeaderValue::from_bytes(&to).ok().map(|to| (LOCATION, to)));
        let url = Url::parse(&format!("https://hooks.example.com/in?token={CANARY}")).unwrap();
        let outcome = response::classify(StatusCode::from_u16(status).unwrap(), &headers, &url, "https://hooks.example.com", now());
        prop_assert!(!format!("{outcome:?}").contains(CANARY), "{:?}", outcome);
        if let RequestOutcome::Failed(failure) | RequestOutcome::Refused(failure) = &outcome {
            let text = failure.to_string();
            let wait = text.split_once("asks to wait ").and_then(|(_, wait)| wait.strip_suffix(" s"));
            let wait = wait.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
            if let Some(wait) = wait {
                prop_assert!(wait.as_secs() <= 3_600);
                prop_assert_eq!(failure, &Failure::retry_after(wait, failure));
            }
        }
        prop_assert_eq!(outcome == RequestOutcome::Published, (200..300).contains(&status));
    }
}
