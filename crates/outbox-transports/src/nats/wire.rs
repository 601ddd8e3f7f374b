//! NATS messages.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::message::PublishMessage;
use outbox::{Failure, Outgoing};

use crate::{Format, Message, Template};

/// A message that is ready to be sent.
pub(super) struct PreparedMessage {
    pub(super) subject: String,
    pub(super) message: PublishMessage,
    size: usize,
}

impl PreparedMessage {
    /// Fails permanently if the message is larger than `limit` bytes, including headers.
    pub(super) fn fits(&self, limit: usize, what: &str) -> Result<(), Failure> {
        let size = self.size;
        if size <= limit {
            return Ok(());
        }
        Err(Failure::dead(format!(
            "the message has {size} bytes with its headers, and {what} accepts {limit}"
        )))
    }
}

/// Reason why a message cannot be published to a subject.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidSubject {
    #[error("cannot publish to the subject `{subject}`: {problem}")]
    Malformed { subject: String, problem: &'static str },
    #[error(
        "the subject `{0}` belongs to the server: only the setting `subject` may choose it, not an event"
    )]
    ChosenByEvent(String),
}

/// Checks that messages can be published to this subject.
pub(super) fn check_subject(subject: &str) -> Result<(), InvalidSubject> {
    let invalid = |problem| Err(InvalidSubject::Malformed { subject: subject.to_owned(), problem });
    if subject.split('.').any(str::is_empty) {
        return invalid("it has an empty part between dots");
    }
    if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return invalid("it contains white space");
    }
    if subject.contains(['*', '>']) {
        return invalid("`*` and `>` are for subscriptions only");
    }
    // An event must not be able to send a command to the server.
    if subject.starts_with("$JS.") || subject.starts_with("$SYS.") {
        return invalid("it belongs to the server");
    }
    Ok(())
}

/// Characters with a meaning in a subject.
pub(super) const SEPARATORS: [char; 3] = ['.', '*', '>'];

/// Checks that the settings, and not an event, chose a subject of the server: subjects that start
/// with `$` (key-value buckets, objects, MQTT) and `_INBOX`, which is for replies. `prefix` is the
/// part of the subject that comes from the settings.
pub(super) fn check_owner(subject: &str, prefix: &str) -> Result<(), InvalidSubject> {
    let is_special = |text: &str| text.starts_with('$') || text.starts_with("_INBOX.");
    if is_special(subject) && !is_special(prefix) {
        return Err(InvalidSubject::ChosenByEvent(subject.to_owned()));
    }
    Ok(())
}

/// The subject of all events, or a wildcard for all subjects that the template can render.
pub(super) fn pattern(subject: &Template) -> String {
    if let Some(fixed) = subject.fixed() {
        return fixed.to_owned();
    }
    // Whole parts before the first placeholder. The value of a placeholder may contain dots.
    let prefix = subject.prefix();
    match prefix.rsplit_once('.') {
        Some((parts, _)) => format!("{parts}.>"),
        None => ">".to_owned(),
    }
}

pub(super) fn prepare(
    subject: String,
    event: &Outgoing,
    message: Message,
    format: Format,
) -> Result<PreparedMessage, Failure> {
    let mut headers = HeaderMap::new();
    // The first line, and the empty line after the last header.
    let mut size = message.body.len() + "NATS/1.0\r\n\r\n".len();
    let mut add = |name: &str, value: &str| {
        let invalid = || Failure::dead(format!("NATS does not allow the header name `{name}`"));
        let parsed: HeaderName = name.parse().map_err(|_| invalid())?;
        headers.insert(parsed, value.parse::<HeaderValue>().map_err(|_| invalid())?);
        size += name.len() + value.len() + ": \r\n".len();
        Ok::<(), Failure>(())
    };
    add(NATS_MESSAGE_ID.as_ref(), event.id().as_str())?;
    add("Content-Type", &message.content_type)?;
    for (name, value) in &message.headers {
        if is_reserved(name) {
            continue;
        }
        match format {
            Format::Cloudevents if name.starts_with("ce-") => add(name, &percent_encoded(value))?,
            _ => add(name, value)?,
        }
    }
    let message = PublishMessage::build().payload(message.body).headers(headers);
    Ok(PreparedMessage { subject, message, size })
}

/// Whether this header is a command to the server, for example to delete the contents of a stream.
/// Event headers of these names are not sent.
fn is_reserved(name: &str) -> bool {
    let is_content_type = name.eq_ignore_ascii_case("content-type");
    is_content_type || name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"))
}

/// Percent-encodes as CloudEvents requires for attributes in headers: everything except printable
/// ASCII, and space, `"` and `%`.
fn percent_encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => encoded.push_str(&format!("%{byte:02X}")),
            0x21..=0x7e => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use outbox::Event;

    use super::*;
    use crate::Encoder;

    #[test]
    fn a_subject_has_plain_parts_between_dots() {
        for good in ["orders", "orders.placed", "a.b-c_d.1", "заказы.new", "$KV.bucket.key", "$JSON"] {
            assert_eq!(check_subject(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ".a",
            "a.",
            "a..b",
            "a b",
            "a\tb",
            "a.*",
            "a.>",
            "x*",
            "$JS.API.STREAM.PURGE.orders",
            "$SYS.REQ",
        ] {
            let error = check_subject(bad).unwrap_err();
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
    }

    #[test]
    fn no_event_chooses_a_subject_of_the_server() {
        for (subject, prefix) in [("orders.$KV", "orders."), ("$KV.bucket.key", "$KV.bucket."), ("a", "")] {
            assert_eq!(check_owner(subject, prefix), Ok(()), "{subject}");
        }
        for subject in ["$KV.bucket.key", "$O.x", "$MQTT.sub", "_INBOX.abc"] {
            let error = check_owner(subject, "").unwrap_err();
            assert!(error.to_string().contains(&format!("`{subject}`")), "{error}");
        }
    }

    #[test]
    fn a_pattern_covers_all_subjects_that_a_template_renders() {
        for (template, expected) in [
            ("orders.new", "orders.new"),
            ("orders.{type}", "orders.>"),
            ("shop.{tenant_id}.{type}", "shop.>"),
            ("a.b-{tenant_id}.c", "a.>"),
            ("{type}", ">"),
        ] {
            assert_eq!(pattern(&template.parse().unwrap()), expected, "{template}");
        }
    }

    #[test]
    fn an_event_sends_no_command_to_the_server() {
        let event = Event::new("e")
            .header("Nats-Rollup", "all")
            .header("nats-msg-id", "another")
            .header("content-type", "text/html")
            .header("Region", "eu")
            .json(&1);
        let event = Outgoing::new(event.build().unwrap());
        let message = Encoder::new(Format::Plain, "").encode(&event).unwrap();
        let prepared = prepare("s".to_owned(), &event, message, Format::Plain).unwrap();
        let headers = prepared.message.outbound_message("s").headers.unwrap();
        assert_eq!(headers.get("Nats-Msg-Id").unwrap().as_str(), event.id().as_str());
        assert_eq!(headers.get("Content-Type").unwrap().as_str(), "application/json");
        assert_eq!(headers.get("Region").unwrap().as_str(), "eu");
        for name in ["Nats-Rollup", "nats-msg-id", "content-type"] {
            assert!(headers.get(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_named() {
        let event = Outgoing::new(Event::new("e").header("größe", "1").json(&1).build().unwrap());
        let message = Encoder::new(Format::Plain, "").encode(&event).unwrap();
        let failure = prepare("s".to_owned(), &event, message, Format::Plain).err().unwrap();
        assert_eq!(failure, Failure::dead("NATS does not allow the header name `größe`"));
    }

    #[test]
    fn attributes_of_a_cloud_event_are_percent_encoded() {
        assert_eq!(percent_encoded("a-Z/9~"), "a-Z/9~");
        assert_eq!(percent_encoded("50% \"ü\""), "50%25%20%22%C3%BC%22");
    }
}
