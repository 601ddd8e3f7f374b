//! The HTTP request for an event.

use std::borrow::Cow;

use chrono::Utc;
use outbox::{Failure, Outgoing};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Request, Url};

use super::client::cause;
use super::settings::WebhookSettings;
use super::signature::{ID, Key, SIGNATURE, TIMESTAMP, sign};
use crate::{Encoder, Format, PublisherSettingsError, Secret};

/// Characters that the CloudEvents HTTP binding percent-encodes in attributes, besides everything
/// outside of ASCII.
const ATTRIBUTE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Builds requests.
pub(super) struct RequestWriter {
    encoder: Encoder,
    format: Format,
    keys: Vec<Key>,
    headers: HeaderMap,
    max_bytes: usize,
}

impl RequestWriter {
    pub(super) fn new(settings: &WebhookSettings) -> Result<Self, PublisherSettingsError> {
        if settings.secrets.len() > 2 {
            let reason = "at most two can be active at once";
            return Err(PublisherSettingsError::value("secrets", reason));
        }
        let keys = settings.secrets.iter().map(|secret| Key::new(secret.expose()));
        let keys = keys
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| PublisherSettingsError::value("secrets", error.to_string()).caused_by(error))?;
        Ok(Self {
            encoder: Encoder::new(settings.format, settings.source.as_str()),
            format: settings.format,
            keys,
            headers: headers(settings)?,
            max_bytes: settings.max_bytes,
        })
    }

    /// Builds the request for an event.
    pub(super) fn request(&self, client: &Client, url: Url, event: &Outgoing) -> Result<Request, Failure> {
        let message = self.encoder.encode(event)?;
        message.fits(self.max_bytes, "the webhook")?;
        let mut headers = HeaderMap::with_capacity(message.headers.len() + self.headers.len() + 4);
        for (name, value) in &message.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let name = name.map_err(|_| Failure::dead("a header name is not valid in HTTP"))?;
            if !is_protocol_header(&name) && !is_settings_only(&name) {
                let value = self.header_value(&name, value)?;
                headers.insert(name, value);
            }
        }
        headers.insert(CONTENT_TYPE, self.header_value(&CONTENT_TYPE, &message.content_type)?);
        headers.extend(self.headers.clone());
        let (id, timestamp) = (event.id().as_str(), Utc::now().timestamp().to_string());
        // The receiver would get an id that differs from the signed one, refuse the event every
        // time, and the later events of its key would wait.
        if id.trim_matches(' ') != id {
            return Err(Failure::dead("the event's id starts or ends with a space, which HTTP strips"));
        }
        let signature = sign(&self.keys, id, &timestamp, &message.body);
        for (name, value) in [(ID, id), (TIMESTAMP, timestamp.as_str()), (SIGNATURE, signature.as_str())] {
            if !value.is_empty() {
                let name = HeaderName::from_static(name);
                let value = self.header_value(&name, value)?;
                headers.insert(name, value);
            }
        }
        let request = client.post(url).headers(headers).body(message.body);
        request.build().map_err(|error| Failure::dead(format!("cannot build the request: {}", cause(&error))))
    }

    fn header_value(&self, name: &HeaderName, value: &str) -> Result<HeaderValue, Failure> {
        let attribute = self.format == Format::Cloudevents && name.as_str().starts_with("ce-");
        let value: Cow<'_, str> =
            if attribute { utf8_percent_encode(value, ATTRIBUTE).into() } else { value.into() };
        HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            Failure::dead(format!(
                "header {name:?} contains a line break or another character that is not valid in HTTP"
            ))
        })
    }
}

/// Parses the headers of the settings.
fn headers(settings: &WebhookSettings) -> Result<HeaderMap, PublisherSettingsError> {
    let invalid = |reason: String| PublisherSettingsError::value("headers", reason);
    let parse = |(name, value): (&String, &Secret)| {
        let parsed = HeaderName::from_bytes(name.as_bytes());
        let parsed = parsed
            .map_err(|error| invalid(format!("{name:?} is not a valid HTTP header name")).caused_by(error))?;
        if is_protocol_header(&parsed) {
            return Err(invalid(format!("{name} cannot be set")));
        }
        let value = HeaderValue::from_bytes(value.expose().as_bytes());
        let mut value = value.map_err(|error| {
            let found = "a line break or another character that is not valid in HTTP";
            invalid(format!("the value of {name} contains {found}")).caused_by(error)
        })?;
        value.set_sensitive(true);
        Ok((parsed, value))
    };
    settings.headers.iter().map(parse).collect()
}

/// Whether HTTP or this crate sets this header.
fn is_protocol_header(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "host"
            | "content-length"
            | "content-type"
            | "transfer-encoding"
            | "connection"
            | "keep-alive"
            | "te"
            | "trailer"
            | "upgrade"
            | "expect"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | ID
            | TIMESTAMP
            | SIGNATURE
    )
}

/// Whether receivers, or proxies in front of them, act on this header: only the settings may set
/// it, not an event.
fn is_settings_only(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-forwarded-")
        || matches!(
            name,
            "authorization"
                | "cookie"
                | "user-agent"
                | "content-encoding"
                | "forwarded"
                | "via"
                | "x-real-ip"
                | "x-http-method"
                | "x-http-method-override"
                | "x-method-override"
                | "x-original-url"
                | "x-rewrite-url"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_a_line_break_is_refused() {
        let writer = RequestWriter::new(&WebhookSettings::new("https://hooks.example.com/")).unwrap();
        let name = HeaderName::from_static("outbox-key");
        for value in ["a\r\nx-forged: 1", "a\nb", "a\rb", "a\0b"] {
            let failure = writer.header_value(&name, value).unwrap_err();
            assert_eq!(failure, Failure::dead(&failure));
            assert!(
                failure.to_string().starts_with("header \"outbox-key\" contains a line break"),
                "{failure}"
            );
        }
        assert_eq!(writer.header_value(&name, "grüße").unwrap().as_bytes(), "grüße".as_bytes());
    }
}
