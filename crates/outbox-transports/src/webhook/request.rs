//! The request that an event becomes.

use std::borrow::Cow;

use chrono::Utc;
use outbox::{Failure, Outgoing};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Request, Url};

use super::client::cause;
use super::settings::WebhookSettings;
use super::signature::{ID, Key, SIGNATURE, TIMESTAMP, sign};
use crate::{Encoder, Format, Secret};

/// What the CloudEvents binding for HTTP has encoded in attributes, with everything beyond ASCII.
const ATTRIBUTE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Writes requests.
pub(super) struct Writer {
    encoder: Encoder,
    format: Format,
    keys: Vec<Key>,
    headers: HeaderMap,
    max_bytes: usize,
}

impl Writer {
    pub(super) fn new(settings: &WebhookSettings) -> Result<Self, String> {
        if settings.secrets.len() > 2 {
            return Err("secrets: two are the most that can be active at once".to_owned());
        }
        let keys = settings.secrets.iter().map(|secret| Key::new(secret.expose()));
        let keys = keys.collect::<Result<Vec<_>, _>>().map_err(|error| format!("secrets: {error}"))?;
        Ok(Self {
            encoder: Encoder::new(settings.format, settings.source.as_str()),
            format: settings.format,
            keys,
            headers: headers(settings)?,
            max_bytes: settings.max_bytes,
        })
    }

    /// The request for an event.
    pub(super) fn request(&self, client: &Client, url: Url, event: &Outgoing) -> Result<Request, Failure> {
        let message = self.encoder.encode(event)?;
        message.fits(self.max_bytes, "the webhook")?;
        let mut headers = HeaderMap::with_capacity(message.headers.len() + self.headers.len() + 4);
        for (name, value) in &message.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let name =
                name.map_err(|_| Failure::dead("one of its headers has a name that HTTP cannot hold"))?;
            if !is_taken(&name) && !is_for_settings(&name) {
                let value = self.header_value(&name, value)?;
                headers.insert(name, value);
            }
        }
        headers.insert(CONTENT_TYPE, self.header_value(&CONTENT_TYPE, &message.content_type)?);
        headers.extend(self.headers.clone());
        let (id, timestamp) = (event.id().as_str(), Utc::now().timestamp().to_string());
        // A receiver would see another id than the one that was signed, and take none of what follows either.
        if id.trim_matches(' ') != id {
            return Err(Failure::dead("its id starts or ends with a space, which HTTP leaves out"));
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
        request
            .build()
            .map_err(|error| Failure::dead(format!("no request can be made of it: {}", cause(&error))))
    }

    fn header_value(&self, name: &HeaderName, value: &str) -> Result<HeaderValue, Failure> {
        let attribute = self.format == Format::Cloudevents && name.as_str().starts_with("ce-");
        let value: Cow<'_, str> =
            if attribute { utf8_percent_encode(value, ATTRIBUTE).into() } else { value.into() };
        HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            Failure::dead(format!(
                "its header {name:?} has a line break in it, or another character that HTTP cannot hold"
            ))
        })
    }
}

/// The headers of the settings.
fn headers(settings: &WebhookSettings) -> Result<HeaderMap, String> {
    let one = |(name, value): (&String, &Secret)| {
        let name_of = HeaderName::from_bytes(name.as_bytes());
        let name_of = name_of.map_err(|_| format!("headers: HTTP has no header called {name:?}"))?;
        if is_taken(&name_of) {
            return Err(format!("headers: {name} is not yours to set"));
        }
        let value = HeaderValue::from_bytes(value.expose().as_bytes());
        let mut value = value.map_err(|_| {
            format!("headers: the value of {name} has a line break in it, or another character that HTTP cannot hold")
        })?;
        value.set_sensitive(true);
        Ok((name_of, value))
    };
    settings.headers.iter().map(one).collect()
}

/// Whether HTTP or we have a use of our own for this header.
fn is_taken(name: &HeaderName) -> bool {
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

/// Whether receivers, or proxies before them, act upon it: only the settings may set it, and no event.
fn is_for_settings(name: &HeaderName) -> bool {
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
        let writer = Writer::new(&WebhookSettings::new("https://hooks.example.com/")).unwrap();
        let name = HeaderName::from_static("outbox-key");
        for value in ["a\r\nx-forged: 1", "a\nb", "a\rb", "a\0b"] {
            let failure = writer.header_value(&name, value).unwrap_err();
            assert_eq!(failure, Failure::dead(&failure));
            assert!(
                failure.to_string().starts_with("its header \"outbox-key\" has a line break"),
                "{failure}"
            );
        }
        assert_eq!(writer.header_value(&name, "grüße").unwrap().as_bytes(), "grüße".as_bytes());
    }
}
