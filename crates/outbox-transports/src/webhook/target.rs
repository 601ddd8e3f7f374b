//! The URL of a webhook: a host that is checked once, and a path that may differ from event to event.

use outbox::{Event, Failure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;

use super::address::{Gate, refused};
use crate::Template;

/// Where a webhook goes.
pub(super) struct Target {
    template: Template,
    /// For people: scheme, host and port. Neither a password nor a path, which may hold a token.
    pub(super) origin: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether the URL depends on the event.
    pub(super) has_many: bool,
}

impl Target {
    /// Checks the URL as far as it is the same for every event.
    pub(super) fn new(written: &str, gate: &Gate) -> Result<Self, String> {
        let template: Template = written.parse().map_err(|error| format!("url: {error}"))?;
        // An event must not choose the host: everything before the path is text.
        let authority = written.find("://").map_or(0, |at| at + 3);
        let path = written[authority..].find(['/', '?', '#']).map_or(written.len(), |at| authority + at);
        let base = &written[..path];
        if base.contains(['{', '}']) {
            return Err("url: only what follows the host can have places".to_owned());
        }
        // What the parser says could repeat a part of the URL.
        let url =
            Url::parse(base).map_err(|_| "url: it is no URL, such as https://hooks.example.com/orders")?;
        let host = url.host_str().ok_or("url: it has no host")?.to_owned();
        let known = gate.knows(&host);
        match url.scheme() {
            "https" => {}
            "http" if known => {}
            "http" => {
                return Err(format!(
                    "url: it is https that webhooks go by; over http only to hosts in `allow`, and {host} is not there"
                ));
            }
            _ => return Err("url: it starts with https://".to_owned()),
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if !known && bare.parse().is_ok_and(|address| !gate.admits(address)) {
            return Err(format!("url: {}", refused(&host)));
        }
        let port = url.port_or_known_default().unwrap_or(443);
        let has_many = template.fixed().is_none();
        Ok(Self { template, origin: url.origin().ascii_serialization(), host, port, has_many })
    }

    /// Where this event goes.
    pub(super) fn of(&self, event: &Event) -> Result<Url, Failure> {
        let text = self.template.render_as(event, escape)?;
        let path = text.split(['?', '#']).next().unwrap_or_default();
        // As a URL is read: `\` and `%2e` are other ways to write the two.
        let plain = path.replace('\\', "/").replace("%2e", ".").replace("%2E", ".");
        if plain.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(Failure::dead("its webhook's path would have a `.` or `..` in it"));
        }
        Url::parse(&text).map_err(|_| Failure::dead("its webhook's URL is none"))
    }
}

/// Nothing that an event has means anything to a URL.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn escape(value: &str) -> String {
    utf8_percent_encode(value, VALUE).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;

    fn target(url: &str, allow: &[&str]) -> Result<Target, String> {
        let allow: Vec<Text> = allow.iter().map(|entry| Text::from(*entry)).collect();
        Target::new(url, &Gate::new(&allow).unwrap())
    }

    #[test]
    fn what_fills_a_place_stays_in_its_place() {
        let target = target("https://user:pw@Example.com:8443/in/{tenant_id}/x?type={type}", &[]).unwrap();
        assert_eq!(
            (target.origin.as_str(), target.host.as_str(), target.port),
            ("https://example.com:8443", "example.com", 8443)
        );
        let event = |tenant: &str| Event::new("a&b=c#d").tenant(tenant).json(&1).build().unwrap();
        let url = target.of(&event("a/../b?ü @")).unwrap();
        assert_eq!(
            url.as_str(),
            "https://user:pw@example.com:8443/in/a%2F..%2Fb%3F%C3%BC%20%40/x?type=a%26b%3Dc%23d"
        );
        for tenant in [".", ".."] {
            let failure = target.of(&event(tenant)).unwrap_err();
            assert_eq!(failure, Failure::dead("its webhook's path would have a `.` or `..` in it"));
        }
        for url in ["https://example.com/%2E{tenant_id}/x", "https://example.com/in\\{tenant_id}\\x"] {
            assert!(super::Target::new(url, &Gate::default()).unwrap().of(&event(".")).is_err(), "{url}");
        }
        let failure = target.of(&Event::new("e").json(&1).build().unwrap()).unwrap_err();
        assert_eq!(failure, Failure::dead("where it goes needs {tenant_id}, and it has none"));
    }

    #[test]
    fn what_is_not_https_to_a_public_host_must_be_allowed() {
        for (url, allow) in [
            ("https://example.com/x", &[][..]),
            ("https://example.com", &[]),
            ("https://10.0.0.1/x", &["10.0.0.0/8"]),
            ("http://10.0.0.1/x", &["10.0.0.0/8"]),
            ("http://hooks.internal:8080/x", &["hooks.internal"]),
            ("http://[::1]:8080/{id}", &["::1"]),
            // Whether it may be connected to is seen when it is resolved.
            ("https://hooks.internal/x", &[]),
        ] {
            target(url, allow).map(drop).unwrap_or_else(|error| panic!("{url}: {error}"));
        }
        for (url, said) in [
            ("http://example.com/x", "over http only to hosts in `allow`, and example.com is not there"),
            ("https://127.0.0.1/x", "127.0.0.1 is not on the public internet"),
            // Other ways to write an address.
            ("https://2130706433/", "127.0.0.1 is not on the public internet"),
            ("https://0x7f.1/", "127.0.0.1 is not on the public internet"),
            ("https://0177.0.0.01/", "127.0.0.1 is not on the public internet"),
            ("https://%31%32%37.0.0.1/", "127.0.0.1 is not on the public internet"),
            ("https://[::ffff:169.254.169.254]/", "is not on the public internet"),
            ("https://169.254.169.254/latest", "169.254.169.254 is not on the public internet"),
            ("https://[64:ff9b::a00:1]/", "is not on the public internet"),
            ("https://{tenant_id}.example.com/", "only what follows the host can have places"),
            ("{header:url}", "only what follows the host can have places"),
            ("ftp://example.com/", "it starts with https://"),
            ("hooks?token=hunter2", "it is no URL"),
            ("https://example.com/{tenant}", "unknown placeholder at character 21"),
            ("https://example.com/{hunter2}", "unknown placeholder at character 21"),
        ] {
            let error = target(url, &[]).map(drop).unwrap_err();
            assert!(error.starts_with("url: ") && error.contains(said), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
