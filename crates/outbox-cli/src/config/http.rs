//! Settings of the HTTP server: addresses, TLS, and tokens for the API and the dashboard.

use std::net::SocketAddr;

use outbox_transports::{Secret, Text};
use outbox_web::{BuildError, Role, Token};
use serde::Deserialize;
use toml::Spanned;

use outbox::settings::file::Count;

/// The `[http]` group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Http {
    pub(crate) listen: Option<Spanned<SocketAddr>>,
    pub(crate) probes_listen: Option<Spanned<SocketAddr>>,
    pub(crate) max_connections: Option<Count>,
    pub(crate) secure_cookies: Option<bool>,
    pub(crate) allow_remote: Option<bool>,
    pub(crate) tls_cert: Option<Text>,
    pub(crate) tls_key: Option<Text>,
    pub(crate) hosts: Vec<Text>,
    pub(crate) tokens: Vec<Spanned<TokenSetting>>,
}

/// One entry of `tokens`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct TokenSetting {
    name: Text,
    role: Role,
    token: Option<Secret>,
    digest: Option<Text>,
}

impl TokenSetting {
    /// The token. An error does not contain the secret.
    pub(crate) fn token(&self) -> Result<Token, String> {
        let name = self.name.as_str();
        match (&self.token, &self.digest) {
            (Some(secret), None) => Ok(Token::new(name, self.role, secret.expose())),
            (None, Some(digest)) => Token::of_digest(name, self.role, digest.as_str())
                .map_err(|error: BuildError| error.to_string()),
            _ => Err(format!("the token `{name}` needs one of `token` and `digest`")),
        }
    }
}

impl Http {
    /// Whether this server uses TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls_cert.is_some() && self.tls_key.is_some()
    }

    /// Whether browsers connect only by TLS, of this process or of a proxy in front of it.
    pub(crate) fn is_behind_tls(&self) -> bool {
        self.has_tls() || self.secure_cookies == Some(true)
    }

    /// Host names of this server.
    pub(crate) fn host_names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(Text::as_str)
    }

    /// Whether the API may be served at this address: only on a loopback address, or with TLS and
    /// tokens.
    pub(crate) fn serves_api(&self, listen: SocketAddr) -> bool {
        listen.ip().is_loopback() || (self.has_tls() && !self.tokens.is_empty())
    }

    /// Reason to refuse this address, if there is one.
    pub(crate) fn refusal(&self, listen: SocketAddr, allow_remote: bool) -> Option<String> {
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Some("`tls-cert` and `tls-key` belong together: set both or neither".to_owned());
        }
        if self.serves_api(listen) || allow_remote {
            return None;
        }
        Some(format!(
            "{listen} can be reached from other machines: set `tls-cert`, `tls-key` and at least one of `tokens` under \
             `[http]`, or listen on 127.0.0.1, or set `allow-remote = true` (--allow-remote) to serve only probes and \
             metrics, without a token"
        ))
    }
}

/// Reason to refuse this address for `probes-listen`, where probes and metrics need no token, if
/// there is one.
pub(crate) fn probes_refusal(listen: SocketAddr, allow_remote: bool) -> Option<String> {
    if listen.ip().is_loopback() || allow_remote {
        return None;
    }
    Some(format!(
        "{listen} can be reached from other machines: set `allow-remote = true` (--allow-remote) to serve probes and metrics \
         there without a token, or use an address of 127.0.0.1"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(text: &str) -> Http {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn an_address_that_others_can_reach_needs_tls_and_a_token() {
        let (local, remote) = ("127.0.0.1:80".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
        let token = "tokens = [{ name = \"ops\", role = \"read\", token = \"a-secret-of-some-length\" }]\n";
        let tls = "tls-cert = \"c\"\ntls-key = \"k\"\n";
        for (text, refused, api) in [
            ("", true, false),
            (token, true, false),
            (tls, true, false),
            (&format!("{tls}{token}"), false, true),
            (&format!("tls-cert = \"c\"\n{token}"), true, false),
        ] {
            let http = http(text);
            assert_eq!(
                (http.refusal(remote, false).is_some(), http.serves_api(remote)),
                (refused, api),
                "{text}"
            );
        }
        assert!(http("").refusal(local, false).is_none() && http("").serves_api(local));
        assert!(http("").refusal(remote, true).is_none() && !http("").serves_api(remote), "only probes");
        assert!(http("tls-key = \"k\"").refusal(local, true).is_some());
        assert!(probes_refusal(local, false).is_none() && probes_refusal(remote, true).is_none());
        assert!(probes_refusal(remote, false).is_some());
    }

    #[test]
    fn cookies_are_for_tls_where_this_process_or_a_proxy_has_it() {
        for (text, behind_tls) in [
            ("", false),
            ("secure-cookies = false", false),
            ("secure-cookies = true", true),
            ("tls-cert = \"c\"\ntls-key = \"k\"", true),
            ("tls-cert = \"c\"\ntls-key = \"k\"\nsecure-cookies = false", true),
        ] {
            assert_eq!(http(text).is_behind_tls(), behind_tls, "{text}");
        }
    }

    #[test]
    fn a_token_is_a_secret_or_a_digest() {
        let token = |text: &str| {
            http(&format!("tokens = [{{ name = \"ops\", role = \"admin\"{text} }}]")).tokens[0]
                .get_ref()
                .token()
        };
        assert_eq!(token(", token = \"a-secret-of-some-length\"").unwrap().role(), Role::Admin);
        assert!(token(&format!(", digest = \"sha256:{}\"", "0".repeat(64))).is_ok());
        for wrong in ["", ", digest = \"hunter2\"", ", token = \"hunter2\", digest = \"sha256:0\""] {
            let error = token(wrong).unwrap_err();
            assert!(error.contains("ops") && !error.contains("hunter2"), "{error}");
        }
    }
}
