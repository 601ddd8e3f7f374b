//! What a message looks like on the way to NATS.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::message::PublishMessage;
use outbox::{Failure, Outgoing};

use crate::{Format, Message, Template};

/// A message, ready to go.
pub(super) struct Prepared {
    pub(super) subject: String,
    pub(super) message: PublishMessage,
    size: usize,
}

impl Prepared {
    /// Fails for good if it is bigger than `limit` bytes, headers included.
    pub(super) fn fits(&self, limit: usize, what: &str) -> Result<(), Failure> {
        let size = self.size;
        if size <= limit {
            return Ok(());
        }
        Err(Failure::dead(format!("the message has {size} bytes with its headers, and {what} takes {limit}")))
    }
}

/// Whether messages can be sent to this subject.
pub(super) fn check_subject(subject: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("`{subject}` is no subject to publish to: {why}"));
    if subject.split('.').any(str::is_empty) {
        return wrong("it has an empty part between dots");
    }
    if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return wrong("it has white space in it");
    }
    if subject.contains(['*', '>']) {
        return wrong("`*` and `>` are for those who subscribe");
    }
    // What an event says must not become an order to the server.
    if subject.starts_with("$JS.") || subject.starts_with("$SYS.") {
        return wrong("it is the server's own");
    }
    Ok(())
}

/// What has a meaning in a subject.
pub(super) const SEPARATORS: [char; 3] = ['.', '*', '>'];

/// Whether the settings chose whose subject it is: those that start with `$` are the server's (key-value
/// buckets, objects, MQTT), and `_INBOX` is for answers. `prefix` is the settings' part of the subject.
pub(super) fn check_owner(subject: &str, prefix: &str) -> Result<(), String> {
    let is_special = |text: &str| text.starts_with('$') || text.starts_with("_INBOX.");
    if is_special(subject) && !is_special(prefix) {
        return Err(format!(
            "`{subject}` is a subject of the server's own: no event may choose it, only the setting `subject`"
        ));
    }
    Ok(())
}

/// The subject that every event goes to, or a wildcard for all subjects that the template can render.
pub(super) fn pattern(subject: &Template) -> String {
    if let Some(fixed) = subject.fixed() {
        return fixed.to_owned();
    }
    // Whole parts before the first placeholder. What fills one may have dots in it.
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
) -> Result<Prepared, Failure> {
    let mut headers = HeaderMap::new();
    // The first line, and the empty one after the last.
    let mut size = message.body.len() + "NATS/1.0\r\n\r\n".len();
    let mut add = |name: &str, value: &str| {
        let unfit = || Failure::dead(format!("NATS takes no header of the name `{name}`"));
        let parsed: HeaderName = name.parse().map_err(|_| unfit())?;
        headers.insert(parsed, value.parse::<HeaderValue>().map_err(|_| unfit())?);
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
    Ok(Prepared { subject, message, size })
}

/// Headers by which a server is told what to do: to forget what a stream holds, for instance. An event's own are not let through.
fn is_reserved(name: &str) -> bool {
    let ours = name.eq_ignore_ascii_case("content-type");
    ours || name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"))
}

/// As CloudEvents asks of attributes in headers: printable ASCII as it is, but for space, `"` and `%`.
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
    fn a_subject_is_dots_and_plain_parts() {
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
            let said = check_subject(bad).unwrap_err();
            assert!(said.contains(&format!("`{bad}`")), "{said}");
        }
    }

    #[test]
    fn no_event_chooses_a_subject_of_the_server() {
        for (subject, prefix) in [("orders.$KV", "orders."), ("$KV.bucket.key", "$KV.bucket."), ("a", "")] {
            assert_eq!(check_owner(subject, prefix), Ok(()), "{subject}");
        }
        for subject in ["$KV.bucket.key", "$O.x", "$MQTT.sub", "_INBOX.abc"] {
            let said = check_owner(subject, "").unwrap_err();
            assert!(said.contains(&format!("`{subject}`")), "{said}");
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
    fn an_event_gives_no_orders_to_the_server() {
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
        assert_eq!(failure, Failure::dead("NATS takes no header of the name `größe`"));
    }

    #[test]
    fn attributes_of_a_cloud_event_are_percent_encoded() {
        assert_eq!(percent_encoded("a-Z/9~"), "a-Z/9~");
        assert_eq!(percent_encoded("50% \"ü\""), "50%25%20%22%C3%BC%22");
    }
}
