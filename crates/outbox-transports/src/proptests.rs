//! Property tests: no settings text makes parsing panic, and every event arrives unchanged.
//!
//! `PROPTEST_CASES` sets the number of cases of each test.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt as _;
use outbox::{Event, Outgoing, Payload, Publisher as _};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Encoder, Format, Lines, Message, Sink, Template, Text};

/// An event that the builder accepts, with values that are hard to transport in every field.
pub(crate) fn event() -> impl Strategy<Value = Outgoing> {
    let text = || prop_oneof![Just("e-1".to_owned()), "\\PC{1,12}", "[ -~]{1,12}", " ?[.%/\\\\]{1,3} ?"];
    let name = prop_oneof![
        prop::sample::select(vec![
            "Region",
            "region",
            "specversion",
            "id",
            "data",
            "datacontenttype",
            "data_base64",
            "outbox-id",
            "ce-id",
            "Ce-Type",
            "content-type",
            "payload",
            "host",
            "authorization",
            "nats-rollup",
            "Nats-Msg-Id",
            "webhook-id",
            "traceparent",
            "a:b",
        ])
        .prop_map(str::to_owned),
        "\\PC{1,8}",
    ];
    let body = prop_oneof![
        json().prop_map(Payload::Json),
        (content_type(), prop_oneof![any::<Vec<u8>>(), json().prop_map(String::into_bytes)])
            .prop_map(|(content_type, data)| Payload::Bytes { content_type, data }),
    ];
    (
        (text(), text(), prop::option::of((text(), text())), prop::option::of(text())),
        (prop::option::of(text()), prop::option::of(text())),
        prop::collection::btree_map(name, "\\PC{0,10}", 0..4),
        body,
    )
        .prop_filter_map(
            "refused by the builder",
            |((id, name, aggregate, tenant), (key, correlation_id), headers, body)| {
                let mut event = Event::new(name).id(id).headers(&headers);
                if let Some((kind, id)) = aggregate {
                    event = event.aggregate(kind, id);
                }
                if let Some(tenant) = tenant {
                    event = event.tenant(tenant);
                }
                if let Some(key) = key {
                    event = event.ordering_key(key);
                }
                if let Some(correlation_id) = correlation_id {
                    event = event.correlation(correlation_id);
                }
                let event = match body {
                    Payload::Json(text) => event.json_text(text),
                    Payload::Bytes { content_type, data } => event.bytes(content_type, data),
                };
                event.build().ok().map(Outgoing::new)
            },
        )
}

/// Stands for a password. No part of an address that may be shown looks like it.
#[cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]
pub(crate) const SECRET: &str = "s3cr3t-canary";

/// Files that should be in PEM format, each with [`SECRET`] in it, and none of them valid.
#[cfg(any(feature = "amqp", feature = "mqtt", feature = "webhook"))]
pub(crate) fn broken_pem() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "-----BEGIN CERTIFICATE-----",
        "-----END CERTIFICATE-----",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "-----BEGIN SECRET-----",
        "-----BEGIN SECRET",
        "SECRET",
        "AAAA",
        "",
    ]);
    prop::collection::vec(piece, 1..7)
        .prop_map(|lines| (lines.join("\n") + "\nSECRET").replace("SECRET", SECRET))
}

/// Everything that an application may log of an error: its text and `Debug` output, and those of
/// all errors in its chain.
#[cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]
pub(crate) fn all_texts(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(|error| format!("{error}\n{error:?}\n{error:#?}\n")).collect()
}

/// Percent-encodes every byte of a text for use in a URL.
#[cfg(any(feature = "amqp", feature = "mqtt", feature = "nats", feature = "redis"))]
pub(crate) fn percent_encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Server URLs with a password, most of them malformed.
#[cfg(any(feature = "amqp", feature = "mqtt", feature = "nats", feature = "redis"))]
pub(crate) fn broken_url(scheme: &'static str) -> impl Strategy<Value = String> {
    let scheme = prop_oneof![3 => Just(scheme), 1 => Just("http"), 1 => Just(""), 1 => Just("SECRET")];
    let between = prop::sample::select(vec!["://", "://", ":", ":/", "", ":///"]);
    let user = prop::sample::select(vec![
        "ada:", ":", "", "ada:p@", "ada:p/", "ada:p?", "ada:p#", "ada:%zz", "[", "ada:%ff",
    ]);
    let host = prop::sample::select(vec![
        "db", "db:port", "db:99999", "[::1", "[::1]:1", "", "a b", "%", "db/x/y", "db?a=b", "db,", "db://",
    ]);
    (scheme, between, user, host).prop_map(|(scheme, between, user, host)| {
        format!("{scheme}{between}{user}{SECRET}@{host}").replace("SECRET", SECRET)
    })
}

fn json() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>().prop_map(|text| serde_json::to_string(&text).expect("a text is JSON")),
        any::<f64>().prop_filter("JSON has no such number", |n| n.is_finite()).prop_map(|n| n.to_string()),
        Just("{\"b\":1,\r\n \"a\":[2, null],\"a\":1e400}".to_owned()),
        Just("12345678901234567890123".to_owned()),
        Just(" \n\"\\u2028\" ".to_owned()),
    ]
}

fn content_type() -> impl Strategy<Value = String> {
    let known = [
        "text/plain",
        "application/json",
        "application/json; charset=utf-8",
        "application/vnd.acme+json",
        "image/png",
        "Text/JSON",
    ];
    prop_oneof![prop::sample::select(known.to_vec()).prop_map(str::to_owned), "[!-~]{1,9}"]
}

/// A placeholder of a template, and the event field that fills it.
type Placeholder = (&'static str, fn(&Event) -> Option<&str>);

const PLACEHOLDERS: [Placeholder; 8] = [
    ("{type}", |event| Some(event.event_type().as_str())),
    ("{aggregate_type}", |event| Some(event.aggregate_type().as_str())),
    ("{aggregate_id}", Event::aggregate_id),
    ("{key}", Event::ordering_key),
    ("{tenant_id}", Event::tenant_id),
    ("{correlation_id}", Event::correlation_id),
    ("{id}", |event| Some(event.id().as_str())),
    ("{header:Region}", |event| event.header("Region")),
];

/// Whether CloudEvents treats data of this content type as JSON rather than as text.
fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.ends_with("/json") || kind.ends_with("+json")
}

/// A CloudEvent as a receiver parses it, by the rules of the JSON format.
#[derive(Deserialize)]
struct Received<'a> {
    id: String,
    r#type: String,
    datacontenttype: String,
    subject: Option<String>,
    partitionkey: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    data_base64: Option<String>,
}

impl Received<'_> {
    fn payload(&self) -> Vec<u8> {
        match (self.data, &self.data_base64) {
            (Some(data), None) if is_json(&self.datacontenttype) => data.get().as_bytes().to_vec(),
            (Some(data), None) => serde_json::from_str::<String>(data.get()).expect("a text").into_bytes(),
            (None, Some(data)) => STANDARD.decode(data).expect("Base64"),
            _ => panic!("either data or data_base64"),
        }
    }
}

/// Removes white space around JSON, which has no meaning.
fn trimmed(bytes: &[u8], content_type: &str) -> Vec<u8> {
    if is_json(content_type) { bytes.trim_ascii().to_vec() } else { bytes.to_vec() }
}

#[derive(Clone, Default)]
struct BufferSink(Arc<Mutex<Vec<u8>>>);

#[async_trait]
impl Sink for BufferSink {
    async fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        self.0.lock().expect("no panic while the lock is held").extend(lines);
        Ok(())
    }
}

fn header_values<'a>(message: &'a Message, name: &str) -> Vec<&'a str> {
    let same = message.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
    same.map(|(_, value)| value.as_str()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_parsing_a_template_or_a_setting_panic(text in prop_oneof![any::<String>(), "[a-z{}$:é-]{0,16}"]) {
        let _ = text.parse::<Template>();
        let _ = Text::resolve(&text);
        prop_assert_eq!(Text::resolve(&text.replace('$', "$$")), Ok(Text::from(text.as_str())));
    }

    #[test]
    fn a_template_renders_its_text_and_the_fields_of_the_event(
        parts in prop::collection::vec((prop_oneof![any::<String>(), "[{}a]{0,4}"], prop::sample::select(PLACEHOLDERS.to_vec())), 0..5),
        event in event(),
    ) {
        let escaped = |text: &str| text.replace('{', "{{").replace('}', "}}");
        let written: String = parts.iter().map(|(text, placeholder)| escaped(text) + placeholder.0).collect();
        let expected: Option<String> = parts.iter().map(|(text, placeholder)| Some(text.clone() + (placeholder.1)(&event)?)).collect();
        let template: Template = written.parse().unwrap();
        prop_assert_eq!(template.render(&event).ok(), expected);
    }

    /// Of headers whose names differ only in case, which HTTP treats as equal, the first one is
    /// kept.
    #[test]
    fn a_message_has_the_payload_unchanged_and_every_header_once(event in event(), is_plain: bool) {
        let (format, id) = if is_plain { (Format::Plain, "outbox-id") } else { (Format::Cloudevents, "ce-id") };
        let message = Encoder::new(format, "/shop").encode(&event).unwrap();
        prop_assert_eq!(&*message.body, event.payload_bytes());
        prop_assert_eq!(&message.content_type, event.content_type());
        prop_assert_eq!(header_values(&message, id), [event.id().as_str()]);
        for name in event.headers().keys() {
            // Only the encoder sets names that receivers would take for relay headers.
            let lower = name.to_ascii_lowercase();
            let is_reserved = ["outbox-", "ce-", "ce_", "cloudevents"].iter().any(|start| lower.starts_with(start));
            prop_assert!(header_values(&message, name).len() == 1 || is_reserved, "{}", name);
        }
    }

    #[test]
    fn a_structured_cloud_event_is_read_back_unchanged(event in event()) {
        let message = Encoder::new(Format::CloudeventsStructured, "/shop").encode(&event).unwrap();
        // Fails on duplicate field names.
        let read: Received<'_> = serde_json::from_slice(&message.body).unwrap();
        prop_assert_eq!((read.id.as_str(), read.r#type.as_str()), (event.id().as_str(), event.event_type().as_str()));
        prop_assert_eq!(read.datacontenttype.as_str(), event.content_type());
        prop_assert_eq!((read.subject.as_deref(), read.partitionkey.as_deref()), (event.aggregate_id(), event.ordering_key()));
        let content_type = event.content_type();
        prop_assert_eq!(trimmed(&read.payload(), content_type), trimmed(event.payload_bytes(), content_type));
    }

    #[test]
    fn every_event_is_one_line_that_is_read_back_unchanged(events in prop::collection::vec(event(), 1..4)) {
        let sink = BufferSink::default();
        Lines::to(sink.clone()).publish_batch(&events).now_or_never().unwrap().unwrap();
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        prop_assert!(text.ends_with('\n') && !text.contains('\r'));
        let lines: Vec<&str> = text.split_terminator('\n').collect();
        prop_assert_eq!(lines.len(), events.len());
        for (line, event) in lines.iter().zip(&events) {
            let line: BTreeMap<&str, &RawValue> = serde_json::from_str(line).unwrap();
            let text = |name: &str| line.get(name).map(|value| serde_json::from_str::<String>(value.get()).unwrap());
            prop_assert_eq!(text("id"), Some(event.id().to_string()));
            prop_assert_eq!(text("key"), event.ordering_key().map(str::to_owned));
            let payload = match (event.raw_payload(), text("payload_base64")) {
                (Payload::Json(_), None) => line["payload"].get().as_bytes().to_vec(),
                (_, Some(encoded)) => STANDARD.decode(encoded).unwrap(),
                (_, None) => text("payload").unwrap().into_bytes(),
            };
            match event.raw_payload() {
                Payload::Json(json) => prop_assert_eq!(payload, json.trim().replace(['\r', '\n'], " ").into_bytes()),
                Payload::Bytes { data, .. } => prop_assert_eq!(&payload, data),
            }
        }
    }
}
