//! The URL of a webhook: a host that is checked once, and a path that may depend on the event.

use outbox::{Event, Failure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;

use super::address::{AddressPolicy, not_public};
use crate::{PublisherSettingsError, Template, TemplateError};

/// Destination of a webhook.
pub(super) struct Target {
    template: Template,
    /// Scheme, host and port, for messages. Contains neither a password nor the path, which may
    /// contain a token.
    pub(super) origin: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether the URL depends on the event.
    pub(super) varies_by_event: bool,
}

impl Target {
    /// Checks the part of the URL that is the same for every event.
    pub(super) fn new(text: &str, policy: &AddressPolicy) -> Result<Self, PublisherSettingsError> {
        let invalid = |reason: &str| PublisherSettingsError::url(reason);
        let template: Template = text.parse().map_err(|error: TemplateError| {
            PublisherSettingsError::url(error.to_string()).caused_by(error)
        })?;
        // An event must not choose the host: placeholders are only allowed after it.
        let authority = text.find("://").map_or(0, |at| at + 3);
        let path = text[authority..].find(['/', '?', '#']).map_or(text.len(), |at| authority + at);
        let base = &text[..path];
        if base.contains(['{', '}']) {
            return Err(invalid("placeholders are only allowed after the host"));
        }
        let url = Url::parse(base).map_err(|error| {
            invalid("not a valid URL, such as https://hooks.example.com/orders").caused_by(error)
        })?;
        let host = url.host_str().ok_or_else(|| invalid("the host is missing"))?.to_owned();
        let allowed = policy.allows_host(&host);
        match url.scheme() {
            "https" => {}
            "http" if allowed => {}
            "http" => {
                return Err(PublisherSettingsError::url(format!(
                    "webhooks need https; http is only allowed to hosts in `allow`, and {host} is not listed there"
                )));
            }
            _ => return Err(invalid("must start with https://")),
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if !allowed && bare.parse().is_ok_and(|address| !policy.allows_address(address)) {
            return Err(PublisherSettingsError::url(not_public(&host)));
        }
        let port = url.port_or_known_default().unwrap_or(443);
        let varies_by_event = template.fixed().is_none();
        Ok(Self { template, origin: url.origin().ascii_serialization(), host, port, varies_by_event })
    }

    /// Renders the URL for an event.
    pub(super) fn url_for(&self, event: &Event) -> Result<Url, Failure> {
        let text = self.template.render_as(event, escape)?;
        let path = text.split(['?', '#']).next().unwrap_or_default();
        // URL parsers read `\` as `/` and `%2e` as `.`.
        let plain = path.replace('\\', "/").replace("%2e", ".").replace("%2E", ".");
        if plain.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(Failure::dead("the webhook's path would contain `.` or `..`"));
        }
        Url::parse(&text).map_err(|_| Failure::dead("the webhook's URL is not valid"))
    }
}

/// Escapes every character that has a meaning in a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn escape(value: &str) -> String {
    utf8_percent_encode(value, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::Text;
    use crate::proptests::all_texts;

    fn target(url: &str, allow: &[&str]) -> Result<Target, PublisherSettingsError> {
        let allow: Vec<Text> = allow.iter().map(|entry| Text::from(*entry)).collect();
        Target::new(url, &AddressPolicy::new(&allow).unwrap())
    }

    #[test]
    fn a_value_stays_within_its_placeholder() {
        let target = target("https://user:pw@Example.com:8443/in/{tenant_id}/x?type={type}", &[]).unwrap();
        assert_eq!(
            (target.origin.as_str(), target.host.as_str(), target.port),
            ("https://example.com:8443", "example.com", 8443)
        );
        let event = |tenant: &str| Event::new("a&b=c#d").tenant(tenant).json(&1).build().unwrap();
        let url = target.url_for(&event("a/../b?ü @")).unwrap();
        assert_eq!(
            url.as_str(),
            "https://user:pw@example.com:8443/in/a%2F..%2Fb%3F%C3%BC%20%40/x?type=a%26b%3Dc%23d"
        );
        for tenant in [".", ".."] {
            let failure = target.url_for(&event(tenant)).unwrap_err();
            assert_eq!(failure, Failure::dead("the webhook's path would contain `.` or `..`"));
        }
        for url in ["https://example.com/%2E{tenant_id}/x", "https://example.com/in\\{tenant_id}\\x"] {
            assert!(
                super::Target::new(url, &AddressPolicy::default()).unwrap().url_for(&event(".")).is_err(),
                "{url}"
            );
        }
        let failure = target.url_for(&Event::new("e").json(&1).build().unwrap()).unwrap_err();
        assert_eq!(
            failure,
            Failure::dead("the destination needs {tenant_id}, which the event does not have")
        );
    }

    #[test]
    fn an_error_of_the_parsers_is_the_source() {
        let error = target("https://example.com/{tenant}", &[]).map(drop).unwrap_err();
        let source = error.source().and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&TemplateError::Unknown { at: 21 }));
        let error = target("https://example.com:99999/", &[]).map(drop).unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "invalid port number");
    }

    #[test]
    fn everything_but_https_to_a_public_host_must_be_allowed() {
        for (url, allow) in [
            ("https://example.com/x", &[][..]),
            ("https://example.com", &[]),
            ("https://10.0.0.1/x", &["10.0.0.0/8"]),
            ("http://10.0.0.1/x", &["10.0.0.0/8"]),
            ("http://hooks.internal:8080/x", &["hooks.internal"]),
            ("http://[::1]:8080/{id}", &["::1"]),
            // The address is checked when the name is resolved.
            ("https://hooks.internal/x", &[]),
        ] {
            target(url, allow).map(drop).unwrap_or_else(|error| panic!("{url}: {error}"));
        }
        for (url, expected) in [
            (
                "http://example.com/x",
                "http is only allowed to hosts in `allow`, and example.com is not listed there",
            ),
            ("https://127.0.0.1/x", "127.0.0.1 is not on the public internet"),
            // Other notations of an address.
            ("https://2130706433/", "127.0.0.1 is not on the public internet"),
            ("https://0x7f.1/", "127.0.0.1 is not on the public internet"),
            ("https://0177.0.0.01/", "127.0.0.1 is not on the public internet"),
            ("https://%31%32%37.0.0.1/", "127.0.0.1 is not on the public internet"),
            ("https://[::ffff:169.254.169.254]/", "is not on the public internet"),
            ("https://169.254.169.254/latest", "169.254.169.254 is not on the public internet"),
            ("https://[64:ff9b::a00:1]/", "is not on the public internet"),
            ("https://{tenant_id}.example.com/", "placeholders are only allowed after the host"),
            ("{header:url}", "placeholders are only allowed after the host"),
            ("ftp://example.com/", "must start with https://"),
            ("hooks?token=hunter2", "not a valid URL"),
            ("https://example.com/{tenant}", "unknown placeholder at character 21"),
            ("https://example.com/{hunter2}", "unknown placeholder at character 21"),
        ] {
            let error = target(url, &[]).map(drop).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("url: ") && text.contains(expected), "{url}: {text}");
            assert!(!all_texts(&error).contains("hunter2"), "{error:?}");
        }
    }
}
