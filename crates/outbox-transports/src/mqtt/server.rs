//! Address and login of the server.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::MqttSettings;
use crate::PublisherSettingsError;

/// Address and login of the server.
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) encrypted: bool,
    pub(super) login: Option<(String, String)>,
}

const URL_FORMAT: &str = "write mqtt://HOST:PORT, or mqtts:// for TLS";

impl Server {
    /// Parses the settings. Errors omit the URL, which may contain a password.
    pub(super) fn parse(settings: &MqttSettings) -> Result<Self, PublisherSettingsError> {
        let url = Url::parse(settings.url.expose()).map_err(|error| {
            PublisherSettingsError::url(format!("{error}; {URL_FORMAT}")).caused_by(error)
        })?;
        let encrypted = match url.scheme() {
            "mqtt" => false,
            "mqtts" => true,
            _ => return Err(PublisherSettingsError::url(URL_FORMAT)),
        };
        let host = match url.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            // The client appends a colon and the port.
            Some(Host::Ipv6(address)) if !encrypted => format!("[{address}]"),
            Some(Host::Ipv6(_)) => {
                let reason = "for TLS the server needs a name, not an IPv6 address";
                return Err(PublisherSettingsError::url(reason));
            }
            None => return Err(PublisherSettingsError::url(URL_FORMAT)),
        };
        if !matches!(url.path(), "" | "/") || url.query().is_some() {
            let reason = format!("nothing is allowed after the port; {URL_FORMAT}");
            return Err(PublisherSettingsError::url(reason));
        }
        let default = if encrypted { 8883 } else { 1883 };
        let login = Self::login(settings, &url)?;
        Ok(Self { host, port: url.port().unwrap_or(default), encrypted, login })
    }

    fn login(settings: &MqttSettings, url: &Url) -> Result<Option<(String, String)>, PublisherSettingsError> {
        let decode = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8().map(Cow::into_owned);
            decoded.map_err(|error| {
                PublisherSettingsError::url("user and password are not UTF-8").caused_by(error)
            })
        };
        if url.username().is_empty() && url.password().is_some() {
            return Err(PublisherSettingsError::url("the password needs a user as well"));
        }
        let in_url = (!url.username().is_empty())
            .then(|| {
                let password = decode(url.password().unwrap_or_default())?;
                Ok::<_, PublisherSettingsError>((decode(url.username())?, password))
            })
            .transpose()?;
        let password = settings.password.as_ref().map_or("", |password| password.expose());
        match (in_url, &settings.user) {
            (Some(_), Some(_)) => Err(PublisherSettingsError::Conflict {
                setting: "user",
                other: "url",
                reason: "the url contains a user as well; keep one of them",
            }),
            (login, None) if settings.password.is_none() => Ok(login),
            (_, None) => Err(PublisherSettingsError::Conflict {
                setting: "password",
                other: "user",
                reason: "needs a user as well",
            }),
            (None, Some(user)) => Ok(Some((user.as_str().to_owned(), password.to_owned()))),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::proptests::all_texts;

    fn parsed(extra: &Value) -> Result<Server, PublisherSettingsError> {
        let mut settings = json!({ "topic": "t" });
        settings.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Server::parse(&serde_json::from_value(settings).unwrap())
    }

    #[test]
    fn a_url_is_parsed_with_its_defaults() {
        for (url, host, port, encrypted, login) in [
            ("mqtt://broker", "broker", 1883, false, None),
            ("mqtts://broker/", "broker", 8883, true, None),
            ("mqtt://a%40b:p%2Fw@10.0.0.1:99", "10.0.0.1", 99, false, Some(("a@b".into(), "p/w".into()))),
            ("mqtt://[::1]", "[::1]", 1883, false, None),
        ] {
            let server = parsed(&json!({ "url": url })).unwrap();
            assert_eq!((server.host.as_str(), server.port, server.encrypted), (host, port, encrypted));
            assert_eq!(server.login, login, "{url}");
        }
        let server = parsed(&json!({ "url": "mqtt://h", "user": "u", "password": "p" })).unwrap();
        assert_eq!(server.login, Some(("u".to_owned(), "p".to_owned())));
    }

    #[test]
    fn errors_in_the_settings_omit_the_password() {
        for (settings, start) in [
            (json!({ "url": "http://u:hunter2@h" }), "url: write mqtt://"),
            (json!({ "url": "u:hunter2@h" }), "url: "),
            (json!({ "url": "mqtt://u:hunter2@h/topic" }), "url: nothing is allowed after the port"),
            (json!({ "url": "mqtt://u:hunter2@h", "user": "u" }), "user: the url contains a user"),
            (json!({ "url": "mqtt://h", "password": "hunter2" }), "password: needs a user"),
            (json!({ "url": "mqtt://:hunter2@h" }), "url: the password needs a user"),
        ] {
            let error = parsed(&settings).unwrap_err();
            assert!(error.to_string().starts_with(start), "{error}");
            assert!(!all_texts(&error).contains("hunter2"), "{error:?}");
        }
    }
}
