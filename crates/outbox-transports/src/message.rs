//! The message for an event: headers and a body, plain or as a CloudEvent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use outbox::{Failure, Outgoing, Payload, Position, Tag};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Format of a message. In every format the message carries the event's id, for deduplication, and
/// the event's own headers, including `traceparent` and `tracestate`. Event headers whose names
/// start with `outbox-`, `ce-`, `ce_` or `cloudEvents:` are not sent: receivers rely on these being
/// set by the relay. The version of a message, which is its writer's, is sent in every format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// The body is the payload, byte for byte. The event's other fields are headers that start with
    /// `outbox-`.
    #[default]
    Plain,
    /// A [CloudEvent](https://cloudevents.io) in binary mode: the body is the payload, byte for
    /// byte, and the attributes are headers.
    Cloudevents,
    /// A CloudEvent in structured mode: one JSON object with attributes and payload.
    CloudeventsStructured,
}

/// Default of the CloudEvents attribute `source`.
#[cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]
pub(crate) fn source() -> crate::Text {
    "outbox".into()
}

/// An encoded message.
///
/// ```
/// use outbox_transports::Message;
///
/// let headers = vec![("outbox-id".to_owned(), "e-1".to_owned())];
/// let message = Message::new("application/json", headers, "{}");
/// assert_eq!(message.size(), "application/json".len() + "outbox-id".len() + "e-1".len() + "{}".len());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Content type of the body.
    pub content_type: String,
    /// Headers in order, without duplicate names. The content type is not included, since every
    /// protocol has its own field for it.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Message {
    /// A message of these parts. [`Encoder`] makes the message for an event.
    pub fn new(
        content_type: impl Into<String>,
        headers: Vec<(String, String)>,
        body: impl Into<Bytes>,
    ) -> Self {
        Self { content_type: content_type.into(), headers, body: body.into() }
    }

    /// Size in bytes: body, content type and headers.
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.body.len() + self.content_type.len() + headers
    }

    /// Fails permanently if the message is larger than `limit` bytes. `what` names the owner of the
    /// limit in the error, for example "the topic".
    pub fn fits(&self, limit: usize, what: &str) -> Result<(), Failure> {
        let size = self.size();
        if size <= limit {
            return Ok(());
        }
        Err(Failure::dead(format!("the message has {size} bytes, and {what} accepts {limit}")))
    }
}

/// Encodes events as messages.
///
/// ```
/// use outbox::{Event, Outgoing};
/// use outbox_transports::{Encoder, Format};
///
/// let event = Event::new("order.placed").json(&serde_json::json!({"total": 42})).build().unwrap();
/// let message = Encoder::new(Format::Plain, "shop").encode(&Outgoing::new(event.clone())).unwrap();
/// assert_eq!(message.body, r#"{"total":42}"#);
/// assert!(message.headers.contains(&("outbox-id".to_owned(), event.id().to_string())));
/// ```
#[derive(Clone, Debug)]
pub struct Encoder {
    format: Format,
    source: String,
    prefix: &'static str,
}

impl Encoder {
    /// Creates an encoder for this format. `source` is the CloudEvents attribute `source`, which
    /// identifies the origin of the events.
    pub fn new(format: Format, source: impl Into<String>) -> Self {
        Self { format, source: source.into(), prefix: "ce-" }
    }

    /// Sets the prefix of attribute names in binary mode. The protocol bindings differ: `ce-` for
    /// HTTP and NATS, `ce_` for Kafka, `cloudEvents:` for AMQP, none for MQTT.
    pub fn prefix(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self
    }

    /// Encodes an event.
    pub fn encode(&self, event: &Outgoing) -> Result<Message, Failure> {
        match self.format {
            Format::Plain => Ok(plain(event)),
            Format::Cloudevents => Ok(self.binary(event)),
            Format::CloudeventsStructured => self.structured(event),
        }
    }

    fn binary(&self, event: &Outgoing) -> Message {
        let attributes = attributes(event, &self.source);
        let mut headers: Vec<(String, String)> =
            attributes.into_iter().map(|(name, value)| (format!("{}{name}", self.prefix), value)).collect();
        let given = headers.len();
        add_event_headers(event, &mut headers);
        if self.prefix.is_empty() {
            // Without a prefix receivers recognize an attribute by its name alone.
            let own = headers.split_off(given);
            headers.extend(own.into_iter().filter(|(name, _)| !is_attribute(name)));
        }
        let (content_type, body) = payload(event);
        Message { content_type, headers, body }
    }

    fn structured(&self, event: &Outgoing) -> Result<Message, Failure> {
        let mut object = serde_json::Map::new();
        for (name, value) in attributes(event, &self.source) {
            object.insert(name.to_owned(), value.into());
        }
        // Headers become extension attributes if their names are valid attribute names.
        for (name, value) in event.headers() {
            let fits = name.len() <= 20 && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            if fits && !object.contains_key(name.as_str()) && !is_attribute(name) {
                object.insert(name.clone(), value.clone().into());
            }
        }
        let (content_type, body) = payload(event);
        object.insert("datacontenttype".to_owned(), content_type.into());
        let data = match event.raw_payload() {
            Payload::Json(text) => {
                StructuredData { data: Some(RawValue::from_string(text.clone())), data_base64: None }
            }
            Payload::Bytes { content_type, .. } => match std::str::from_utf8(&body) {
                // Receivers parse data of a JSON content type as JSON, and a JSON string in it as a
                // string.
                Ok(text) if is_json(content_type) => match serde_json::from_str::<Box<RawValue>>(text) {
                    Ok(json) => StructuredData { data: Some(Ok(json)), data_base64: None },
                    Err(_) => StructuredData { data: None, data_base64: Some(STANDARD.encode(&body)) },
                },
                Ok(text) => {
                    StructuredData { data: Some(serde_json::value::to_raw_value(text)), data_base64: None }
                }
                Err(_) => StructuredData { data: None, data_base64: Some(STANDARD.encode(&body)) },
            },
        };
        let whole = Structured {
            attributes: object,
            data: data.data.transpose().map_err(Failure::dead)?,
            data_base64: data.data_base64,
        };
        let body = serde_json::to_vec(&whole).map_err(Failure::dead)?.into();
        Ok(Message { content_type: STRUCTURED.to_owned(), headers: trace(event), body })
    }
}

/// Content type of a CloudEvent in structured mode.
const STRUCTURED: &str = "application/cloudevents+json; charset=UTF-8";

struct StructuredData {
    data: Option<Result<Box<RawValue>, serde_json::Error>>,
    data_base64: Option<String>,
}

#[derive(Serialize)]
struct Structured {
    #[serde(flatten)]
    attributes: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

/// Whether this is a JSON content type: `application/json`, or one such as
/// `application/vnd.shop+json`.
fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.ends_with("/json") || kind.ends_with("+json")
}

fn payload(event: &Outgoing) -> (String, Bytes) {
    match event.raw_payload() {
        Payload::Json(text) => (outbox::JSON.to_owned(), Bytes::copy_from_slice(text.as_bytes())),
        Payload::Bytes { content_type, data } => (content_type.clone(), Bytes::copy_from_slice(data)),
    }
}

fn plain(event: &Outgoing) -> Message {
    let mut headers = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        headers.extend(value.map(|value| (format!("outbox-{name}"), value)));
    };
    let own = |text: Option<&str>| text.map(str::to_owned);
    add("id", own(Some(event.id().as_str())));
    add("type", own(Some(event.event_type().as_str())));
    add("message-version", own(event.header(outbox::MESSAGE_VERSION)));
    add("aggregate-type", own(Some(event.aggregate_type().as_str())));
    add("aggregate-id", own(event.aggregate_id()));
    add("key", own(event.ordering_key()));
    add("tenant-id", own(event.tenant_id()));
    add("correlation-id", own(event.correlation_id()));
    add("occurred-at", Some(time(event.occurred_at())));
    add("attempt", Some(event.attempt().to_string()));
    add("seq", event.seq().map(|seq| seq.to_string()));
    add("position", event.position().map(|position| position.get().to_string()));
    add("epoch", event.epoch().map(|epoch| epoch.to_string()));
    let tags: Vec<&str> = event.tags().iter().map(Tag::as_str).collect();
    add("tags", (!tags.is_empty()).then(|| tags.join(",")));
    add_event_headers(event, &mut headers);
    let (content_type, body) = payload(event);
    Message { content_type, headers, body }
}

/// Adds the event's own headers unless the name is reserved or already used.
fn add_event_headers(event: &Outgoing, headers: &mut Vec<(String, String)>) {
    // The version is sent in every format already, by the name that the format has for it.
    for (name, value) in event.headers().iter().filter(|(name, _)| *name != outbox::MESSAGE_VERSION) {
        if is_reserved(name) {
            log_reserved(name);
        } else if !headers.iter().any(|(used, _)| used.eq_ignore_ascii_case(name)) {
            headers.push((name.clone(), value.clone()));
        }
    }
}

/// Name prefixes of the relay's headers and of CloudEvents attributes, in any protocol.
const RESERVED: [&str; 5] = ["outbox-", "ce-", "ce_", "cloudevents:", "cloudevents_"];

/// Whether receivers would mistake an event header of this name for a relay header, such as the
/// epoch or the tenant.
fn is_reserved(name: &str) -> bool {
    let starts = |with: &str| name.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    RESERVED.iter().any(|with| starts(with))
}

/// Logs once per process that a header was omitted.
fn log_reserved(name: &str) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing::debug!(header = ?name, "event headers with a reserved name are not sent");
    });
}

/// The trace context of the event.
fn trace(event: &Outgoing) -> Vec<(String, String)> {
    let names = ["traceparent", "tracestate"];
    names
        .iter()
        .filter_map(|name| event.header(name).map(|value| ((*name).to_owned(), value.to_owned())))
        .collect()
}

/// Attributes that this crate or CloudEvents defines. No event header becomes one of them.
const ATTRIBUTES: [&str; 16] = [
    "specversion",
    "id",
    "source",
    "type",
    "messageversion",
    "time",
    "subject",
    "partitionkey",
    "aggregatetype",
    "tenantid",
    "correlationid",
    "sequence",
    "data",
    "data_base64",
    "datacontenttype",
    "dataschema",
];

fn is_attribute(name: &str) -> bool {
    ATTRIBUTES.iter().any(|attribute| name.eq_ignore_ascii_case(attribute))
}

/// The CloudEvents attributes of an event. `source` comes from the settings, since an event has
/// none.
fn attributes(event: &Outgoing, source: &str) -> Vec<(&'static str, String)> {
    let mut attributes = vec![
        ("specversion", "1.0".to_owned()),
        ("id", event.id().to_string()),
        ("source", source.to_owned()),
        ("type", event.event_type().to_string()),
        ("time", time(event.occurred_at())),
    ];
    let mut add = |name, value: Option<String>| attributes.extend(value.map(|value| (name, value)));
    let own = |text: Option<&str>| text.map(str::to_owned);
    add("messageversion", own(event.header(outbox::MESSAGE_VERSION)));
    add("subject", own(event.aggregate_id()));
    add("partitionkey", own(event.ordering_key()));
    add("aggregatetype", own(Some(event.aggregate_type().as_str())));
    add("tenantid", own(event.tenant_id()));
    add("correlationid", own(event.correlation_id()));
    add("sequence", event.position().map(Position::get).or(event.seq()).map(|sequence| sequence.to_string()));
    attributes
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

#[cfg(test)]
mod tests {
    use outbox::Event;
    use serde_json::{Value, json};

    use super::*;

    fn event() -> Outgoing {
        let event = Event::new("order.placed")
            .aggregate("Order", "o-1")
            .ordering_key("k")
            .tenant("acme")
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
            .header("Region", "eu")
            .header("outbox-id", "not this one")
            .json_text(r#"{"b":1,  "a":2}"#);
        Outgoing::new(event.build().unwrap())
    }

    fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
        message.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_plain_message_has_all_fields_in_headers_and_the_payload_unchanged() {
        let event = event();
        let message = Encoder::new(Format::Plain, "shop").encode(&event).unwrap();
        assert_eq!(
            (&*message.body, message.content_type.as_str()),
            (&br#"{"b":1,  "a":2}"#[..], "application/json")
        );
        for (name, value) in [
            ("outbox-id", event.id().as_str()),
            ("outbox-type", "order.placed"),
            ("outbox-aggregate-id", "o-1"),
            ("outbox-key", "k"),
            ("outbox-tenant-id", "acme"),
            ("outbox-attempt", "1"),
            ("Region", "eu"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ] {
            assert_eq!(header(&message, name), Some(value), "{name}");
        }
        assert_eq!(header(&message, "outbox-position"), None);
        let ids = message.headers.iter().filter(|(name, _)| name == "outbox-id").count();
        assert_eq!(ids, 1, "an event header cannot replace a relay header");
    }

    #[test]
    fn no_event_header_passes_for_a_relay_header() {
        let event = Event::new("e")
            .header("outbox-epoch", "9")
            .header("Outbox-Position", "9")
            .header("outbox-tenant-id", "forged")
            .header("ce-tenantid", "forged")
            .header("ce_subject", "forged")
            .header("cloudEvents:subject", "forged")
            .header("tenantid", "forged")
            .header("sequence", "9")
            .header("outboxed", "fine")
            .json(&1);
        let event = Outgoing::new(event.build().unwrap());
        for (format, prefix) in [
            (Format::Plain, "ce-"),
            (Format::Cloudevents, "ce-"),
            (Format::Cloudevents, "ce_"),
            (Format::Cloudevents, "cloudEvents:"),
            (Format::Cloudevents, ""),
            (Format::CloudeventsStructured, "ce-"),
        ] {
            let message = Encoder::new(format, "shop").prefix(prefix).encode(&event).unwrap();
            let names: Vec<String> = message.headers.iter().map(|(name, _)| name.to_lowercase()).collect();
            for name in ["outbox-epoch", "outbox-position", "outbox-tenant-id"] {
                assert!(!names.contains(&name.to_owned()), "{format:?}: {name}");
            }
            for name in ["tenantid", "subject", "sequence"] {
                let name = format!("{prefix}{name}").to_lowercase();
                assert!(format == Format::Plain || !names.contains(&name), "{format:?}: {name}");
            }
            if format == Format::CloudeventsStructured {
                let object: Value = serde_json::from_slice(&message.body).unwrap();
                assert!(object.get("tenantid").is_none() && object.get("sequence").is_none(), "{object}");
                assert_eq!(object["outboxed"], "fine");
            } else {
                assert!(names.contains(&"outboxed".to_owned()), "{format:?}");
            }
        }
    }

    #[test]
    fn the_version_of_a_message_is_sent_in_every_format() {
        let versioned = Event::new("e").header(outbox::MESSAGE_VERSION, "2").json(&1).build().unwrap();
        let plain = Event::new("e").header("messageversion", "forged").json(&1).build().unwrap();
        for (format, prefix, name) in [
            (Format::Plain, "ce-", "outbox-message-version"),
            (Format::Cloudevents, "ce-", "ce-messageversion"),
            (Format::Cloudevents, "", "messageversion"),
            (Format::CloudeventsStructured, "ce-", "messageversion"),
        ] {
            let encode = |event: &Event| {
                let event = Outgoing::new(event.clone());
                Encoder::new(format, "shop").prefix(prefix).encode(&event).unwrap()
            };
            let version = |message: &Message| match format {
                Format::CloudeventsStructured => {
                    let object: Value = serde_json::from_slice(&message.body).unwrap();
                    object.get(name).map(|version| version.as_str().unwrap().to_owned())
                }
                _ => header(message, name).map(str::to_owned),
            };
            assert_eq!(version(&encode(&versioned)).as_deref(), Some("2"), "{format:?}");
            assert_eq!(version(&encode(&plain)), None, "{format:?}");
        }
    }

    /// A receiver that reads both formats would take the header for the id of a CloudEvent.
    #[test]
    fn an_empty_header_with_a_reserved_name_is_left_out_in_every_format() {
        let event = Event::new("e-1").id("e-1").header("ce-id", "").json(&1).build().unwrap();
        let event = Outgoing::new(event);
        for (format, ids) in
            [(Format::Plain, &[][..]), (Format::Cloudevents, &["e-1"]), (Format::CloudeventsStructured, &[])]
        {
            let message = Encoder::new(format, "/shop").encode(&event).unwrap();
            let same = message.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("ce-id"));
            assert_eq!(same.map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ids, "{format:?}");
        }
    }

    #[test]
    fn a_binary_cloud_event_has_its_attributes_in_headers() {
        let event = event().at(Position::new(7));
        let message = Encoder::new(Format::Cloudevents, "/shop").prefix("ce_").encode(&event).unwrap();
        assert_eq!(&*message.body, br#"{"b":1,  "a":2}"#);
        for (name, value) in [
            ("ce_specversion", "1.0"),
            ("ce_id", event.id().as_str()),
            ("ce_source", "/shop"),
            ("ce_type", "order.placed"),
            ("ce_subject", "o-1"),
            ("ce_partitionkey", "k"),
            ("ce_sequence", "7"),
            ("Region", "eu"),
        ] {
            assert_eq!(header(&message, name), Some(value), "{name}");
        }
        assert!(header(&message, "traceparent").is_some());
    }

    #[test]
    fn a_structured_cloud_event_is_one_object() {
        let message = Encoder::new(Format::CloudeventsStructured, "/shop").encode(&event()).unwrap();
        let object: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(message.content_type, STRUCTURED);
        assert_eq!((&object["source"], &object["data"]), (&json!("/shop"), &json!({"b": 1, "a": 2})));
        assert_eq!(object["datacontenttype"], "application/json");
        assert!(object["traceparent"].is_string() && object.get("Region").is_none());
        assert!(
            std::str::from_utf8(&message.body).unwrap().contains(r#""data":{"b":1,  "a":2}"#),
            "unchanged"
        );

        let bytes = Event::new("scan").bytes("image/png", vec![0xff, 0]).build().unwrap();
        let message =
            Encoder::new(Format::CloudeventsStructured, "/shop").encode(&Outgoing::new(bytes)).unwrap();
        let object: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(
            (&object["data_base64"], &object["datacontenttype"]),
            (&json!("/wA="), &json!("image/png"))
        );
    }

    #[test]
    fn bytes_that_are_json_are_json_in_a_structured_cloud_event() {
        let object = |kind: &str, data: &str| -> Value {
            let event = Event::new("scan").bytes(kind, data).build().unwrap();
            let encoder = Encoder::new(Format::CloudeventsStructured, "/shop");
            serde_json::from_slice(&encoder.encode(&Outgoing::new(event)).unwrap().body).unwrap()
        };
        assert_eq!(object("application/vnd.shop+json; v=1", r#"{"a":1}"#)["data"], json!({"a": 1}));
        assert_eq!(object("application/json", "no JSON")["data_base64"], json!("bm8gSlNPTg=="));
        assert_eq!(object("text/plain", "7")["data"], json!("7"));
    }

    #[test]
    fn the_error_for_an_oversized_message_has_both_sizes() {
        let message = Encoder::new(Format::Plain, "").encode(&event()).unwrap();
        let size = message.size();
        assert!(message.fits(size, "it").is_ok());
        let error = message.fits(size - 1, "the topic").unwrap_err().to_string();
        assert_eq!(error, format!("the message has {size} bytes, and the topic accepts {}", size - 1));
    }
}
