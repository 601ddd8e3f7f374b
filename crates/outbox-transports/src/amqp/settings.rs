//! Settings of the RabbitMQ publisher.

use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use serde::Deserialize;
use url::{Host, Url};

use crate::{Format, PublisherSettingsError, Secret, Template, Text, Tls, message, time};

/// Settings of [`Amqp`](crate::Amqp).
///
/// ```
/// use outbox_transports::AmqpSettings;
///
/// let settings: AmqpSettings = serde_json::from_str(r#"{
///     "url": "amqps://shop:p%40ss@rabbit.example:5671/shop",
///     "exchange": "events",
///     "routing_key": "{aggregate_type}.{type}",
///     "ack_timeout": "20s"
/// }"#)?;
/// assert_eq!(settings.exchange.as_str(), "events");
/// assert!(!format!("{settings:?}").contains("p%40ss"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AmqpSettings {
    /// `amqp://USER:PASSWORD@HOST:PORT/VHOST`, or `amqps://` for TLS. Special characters are
    /// percent-encoded (`%40` for `@`). The default virtual host is `/`.
    pub url: Secret,
    /// The exchange, which must exist. Default: the default exchange, for which the routing key is
    /// the name of a queue.
    #[serde(default)]
    pub exchange: Text,
    /// The routing key, with placeholders for fields of the event.
    pub routing_key: Template,
    /// Whether a message that no queue is bound for fails and is retried. Otherwise the broker
    /// drops it.
    #[serde(default = "yes")]
    pub mandatory: bool,
    /// Format of the messages.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// Timeout of connecting and of opening a channel.
    #[serde(default = "five_seconds", deserialize_with = "time::read")]
    pub connect_timeout: Duration,
    /// Time without any confirm after which the broker counts as unavailable.
    #[serde(default = "ten_seconds", deserialize_with = "time::read")]
    pub ack_timeout: Duration,
    /// Heartbeat interval, in whole seconds.
    #[serde(default = "ten_seconds", deserialize_with = "time::read")]
    pub heartbeat: Duration,
    /// Maximum size of a message in bytes, including headers. The broker's `max_message_size`
    /// applies too.
    #[serde(default)]
    pub max_bytes: Option<usize>,
    /// TLS files.
    #[serde(default)]
    pub tls: Tls,
}

fn yes() -> bool {
    true
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

impl AmqpSettings {
    /// Settings for this URL, exchange and routing key, with defaults for everything else.
    /// Assign other values to the fields; more fields may be added.
    pub fn new(url: &str, exchange: &str, routing_key: Template) -> Self {
        Self {
            url: url.into(),
            exchange: exchange.into(),
            routing_key,
            mandatory: yes(),
            format: Format::default(),
            source: message::source(),
            connect_timeout: five_seconds(),
            ack_timeout: ten_seconds(),
            heartbeat: ten_seconds(),
            max_bytes: None,
            tls: Tls::default(),
        }
    }
}

/// Parses the URL. Errors omit the URL, which contains a password.
pub(super) fn parse(settings: &AmqpSettings) -> Result<AMQPUri, PublisherSettingsError> {
    const URL_FORMAT: &str = "write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS";
    let text = settings.url.expose();
    let url = Url::parse(text)
        .map_err(|error| PublisherSettingsError::url(format!("{error}; {URL_FORMAT}")).caused_by(error))?;
    if !matches!(url.scheme(), "amqp" | "amqps") || !url.has_host() {
        return Err(PublisherSettingsError::url(URL_FORMAT));
    }
    // The parser's error is dropped, since it could repeat a part of the URL.
    let mut uri: AMQPUri = text.parse().map_err(|_| PublisherSettingsError::url(URL_FORMAT))?;
    // The parser reads an IPv6 address in brackets as a missing host, which would mean localhost.
    if let Some(Host::Ipv6(address)) = url.host() {
        uri.authority.host = address.to_string();
    }
    // A trailing slash is more often a habit than a virtual host with an empty name.
    if uri.vhost.is_empty() {
        "/".clone_into(&mut uri.vhost);
    }
    if uri.scheme == AMQPScheme::AMQP && settings.tls.is_used() {
        return Err(PublisherSettingsError::Conflict {
            setting: "tls",
            other: "url",
            reason: "the url is amqp://, which does not use TLS; write amqps://",
        });
    }
    if uri.query.heartbeat.is_none() {
        let seconds = u16::try_from(settings.heartbeat.as_secs().max(1));
        let too_long = |_| PublisherSettingsError::value("heartbeat", "use at most 18h");
        uri.query.heartbeat = Some(seconds.map_err(too_long)?);
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::Amqp;
    use crate::proptests::all_texts;

    fn settings(url: &str) -> AmqpSettings {
        AmqpSettings::new(url, "", "{type}".parse().unwrap())
    }

    #[test]
    fn a_url_is_parsed_with_its_defaults() {
        let uri = parse(&settings("amqp://a%40b:p%2Fw@rabbit/")).unwrap();
        assert_eq!(
            (uri.authority.userinfo.username.as_str(), uri.authority.userinfo.password.as_str()),
            ("a@b", "p/w")
        );
        assert_eq!(
            (uri.authority.host.as_str(), uri.authority.port, uri.vhost.as_str()),
            ("rabbit", 5672, "/")
        );
        assert_eq!(uri.query.heartbeat, Some(10));
        let uri = parse(&settings("amqps://[::1]/shop?heartbeat=3")).unwrap();
        assert_eq!(
            (uri.authority.host.as_str(), uri.authority.port, uri.vhost.as_str()),
            ("::1", 5671, "shop")
        );
        assert_eq!(uri.query.heartbeat, Some(3));
    }

    #[test]
    fn errors_in_the_settings_omit_the_password() {
        for url in
            ["amqp:user:hunter2", "http://user:hunter2@h", "user:hunter2@h", "amqp://u:hunter2@h:99999"]
        {
            let error = Amqp::new("rabbit", settings(url)).unwrap_err();
            assert!(matches!(error, PublisherSettingsError::Url { .. }), "{error:?}");
            assert!(error.to_string().contains("write amqp://USER"), "{error}");
            assert!(!all_texts(&error).contains("hunter2"), "{error:?}");
        }
        let error = Amqp::new("rabbit", settings("amqp://u:hunter2@h:99999")).unwrap_err();
        let source = error.source().and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&url::ParseError::InvalidPort));
        let mut plain = settings("amqp://localhost");
        plain.tls.ca_file = Some("/dev/null".into());
        let error = Amqp::new("rabbit", plain).unwrap_err();
        assert!(error.to_string().contains("write amqps://"), "{error}");
        let conflict = matches!(error, PublisherSettingsError::Conflict { other: "url", .. });
        assert!(conflict && error.setting() == "tls", "{error:?}");
        let mut long = settings("amqp://localhost");
        long.exchange = "x".repeat(256).as_str().into();
        let error = Amqp::new("rabbit", long).unwrap_err();
        assert_eq!(error.to_string(), "exchange: a name has at most 255 bytes");
    }

    #[test]
    fn debug_output_has_no_secrets() {
        let amqp = Amqp::new("rabbit", settings("amqp://user:hunter2@h")).unwrap();
        assert!(!format!("{amqp:?}").contains("hunter2"));
    }
}
