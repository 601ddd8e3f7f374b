//! Checks of the requested host and of the origin, against DNS rebinding and cross-site request
//! forgery.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};

use super::guard::finish;
use crate::problem::{ApiResult, Kind, Problem};
use crate::text::printable;

/// Names of this server, in addition to `localhost` and IP addresses, which DNS cannot redirect.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    pub(crate) names: Vec<String>,
    pub(crate) check: HostCheck,
}

/// Whether the requested host is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HostCheck {
    /// Only names of this server are accepted.
    #[default]
    Names,
    /// The application in front of this router checks names, or needs no check.
    Application,
}

impl Hosts {
    /// Allows these names, in addition to `localhost` and IP addresses.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { names: names.into_iter().map(Into::into).collect(), check: HostCheck::Names }
    }

    /// Adds the check of the requested host to routes outside a [`Web`](crate::Web): a request for
    /// another name gets 421, a request with two `Host` headers gets 400.
    pub fn protect<S: Clone + Send + Sync + 'static>(self, routes: Router<S>) -> Router<S> {
        routes.layer(from_fn_with_state(self, check))
    }

    /// Rejects a request for a name that is not one of this server: another site may have pointed
    /// its own name to this machine. The `Host` header and the authority of a request target in
    /// absolute form are both checked.
    pub(crate) fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> ApiResult<()> {
        if headers.get_all(header::HOST).iter().nth(1).is_some() {
            return Err(Problem::bad("the request has more than one Host header")
                .advice("Send one Host header: a proxy and this server could each check a different one."));
        }
        if self.check == HostCheck::Application {
            return Ok(());
        }
        let of_header = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
        let of_uri = uri.authority().map(Authority::as_str);
        if of_header.is_none() && of_uri.is_none() {
            return Err(self.refusal(""));
        }
        for name in [of_header, of_uri].into_iter().flatten().map(host) {
            if !(name.eq_ignore_ascii_case("localhost") || is_address(name) || self.is_ours(name)) {
                return Err(self.refusal(name));
            }
        }
        Ok(())
    }

    fn refusal(&self, name: &str) -> Problem {
        Problem::new(Kind::BadHost, format!("`{}` is not a host name of this server", printable(name)))
            .advice(
                "Use localhost or the IP address, or allow the name: with `hosts` in the settings of `outbox relay`, with \
                 `WebBuilder::host` in an application.",
            )
    }

    /// Rejects a request that a browser sends on behalf of another site. Clients other than
    /// browsers send neither header.
    pub(crate) fn check_origin(&self, headers: &HeaderMap, uri: &Uri) -> ApiResult<()> {
        let foreign = || {
            Problem::new(Kind::BadOrigin, "changes from pages of other sites are not allowed")
                .advice(
                    "Use the dashboard of this server, or send the request without a browser. Behind a proxy that changes the \
                     header Host, allow the public name: with `hosts` in the settings of `outbox relay`, with \
                     `WebBuilder::host` in an application.",
                )
        };
        if let Some(site) = headers.get("sec-fetch-site")
            && !matches!(site.as_bytes(), b"same-origin" | b"none")
        {
            return Err(foreign());
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        let of_origin = origin.split_once("://").map_or("", |(_, rest)| rest);
        let same = authority(headers, uri).is_some_and(|ours| ours.eq_ignore_ascii_case(of_origin));
        // Behind a proxy the origin and the requested host may differ.
        if same || self.is_ours(host(of_origin)) { Ok(()) } else { Err(foreign()) }
    }

    fn is_ours(&self, name: &str) -> bool {
        self.names.iter().any(|ours| ours.eq_ignore_ascii_case(name))
    }
}

async fn check(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    match hosts.check_host(request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(problem) => finish(problem.into_response()),
    }
}

fn authority<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    let of_uri = || uri.authority().map(Authority::as_str);
    headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(of_uri)
}

/// Port of the requested authority, if one is given.
pub(crate) fn port<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    let authority = authority(headers, uri)?;
    let port = authority.strip_prefix(host(authority))?.strip_prefix(':')?;
    Some(port).filter(|port| !port.is_empty())
}

/// Host of an authority, without the port; IPv6 addresses keep their brackets. Empty if the rest is
/// not a port.
fn host(authority: &str) -> &str {
    let end = match authority.starts_with('[') {
        true => authority.find(']').map_or(0, |at| at + 1),
        false => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(end);
    let is_port = |port: &str| {
        let digits = port.bytes().all(|digit| digit.is_ascii_digit());
        digits && (port.is_empty() || port.parse::<u16>().is_ok())
    };
    if rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port) { host } else { "" }
}

fn is_address(name: &str) -> bool {
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(inside) => inside.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_names_of_this_server_are_accepted() {
        let hosts = Hosts::new(["outbox.example.com"]);
        let uri = Uri::from_static("/");
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.0.0.7",
            "Outbox.example.com:443",
        ] {
            assert!(hosts.check_host(&with(&[("host", good)]), &uri).is_ok(), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "xoutbox.example.com",
            "[::1].evil.example",
            "[localhost]",
            "[outbox.example.com]evil.example",
            "127.0.0.1:x@evil.example",
        ] {
            assert!(hosts.check_host(&with(&[("host", bad)]), &uri).is_err(), "{bad}");
        }
        assert!(hosts.check_host(&HeaderMap::new(), &uri).is_err());
    }

    #[test]
    fn an_application_that_checks_names_itself_is_not_asked_for_them() {
        let hosts = Hosts { names: vec!["shop.example".to_owned()], check: HostCheck::Application };
        let uri = Uri::from_static("/");
        for name in ["shop.example", "another.example", ""] {
            assert!(hosts.check_host(&with(&[("host", name)]), &uri).is_ok(), "{name}");
        }
        let mut twice = with(&[("host", "shop.example")]);
        twice.append("host", "evil.example".parse().unwrap());
        assert!(hosts.check_host(&twice, &uri).is_err());
        // Any host does not mean any origin.
        let origin =
            |origin| hosts.check_origin(&with(&[("host", "a.example"), ("origin", origin)]), &uri).is_ok();
        assert!(
            origin("https://a.example") && origin("https://shop.example") && !origin("https://evil.example")
        );
    }

    /// A proxy and this server could each check a different one of the two.
    #[test]
    fn two_hosts_and_a_foreign_request_target_are_rejected() {
        let hosts = Hosts::default();
        let uri = Uri::from_static("/");
        let mut twice = with(&[("host", "localhost")]);
        twice.append("host", "localhost".parse().unwrap());
        assert!(hosts.check_host(&twice, &uri).is_err());
        twice.append("host", "evil.example".parse().unwrap());
        assert!(hosts.check_host(&twice, &uri).is_err());
        let localhost = with(&[("host", "localhost")]);
        for (target, is_ours) in [
            ("http://localhost/metrics", true),
            ("http://127.0.0.1:80/", true),
            ("http://evil.example/", false),
            ("http://localhost@evil.example/", false),
        ] {
            let uri: Uri = target.parse().unwrap();
            assert_eq!(hosts.check_host(&localhost, &uri).is_ok(), is_ours, "{target}");
            assert_eq!(hosts.check_host(&HeaderMap::new(), &uri).is_ok(), is_ours, "{target} alone");
            assert!(hosts.check_host(&with(&[("host", "evil.example")]), &uri).is_err(), "{target}");
        }
    }

    #[test]
    fn the_port_follows_the_host() {
        for (host, found) in [
            ("localhost:8080", Some("8080")),
            ("[::1]:99", Some("99")),
            ("localhost", None),
            ("localhost:", None),
            ("[::1]", None),
            ("localhost:x", None),
        ] {
            assert_eq!(port(&with(&[("host", host)]), &Uri::from_static("/")), found, "{host}");
        }
    }

    #[test]
    fn only_pages_of_this_server_may_change_things() {
        let hosts = Hosts::new(["outbox.example.com"]);
        let uri = Uri::from_static("/");
        let check = |more: &[(&'static str, &str)]| {
            let mut headers = with(more);
            headers.insert("host", "localhost:8080".parse().unwrap());
            hosts.check_origin(&headers, &uri).is_ok()
        };
        assert!(check(&[]));
        assert!(check(&[("origin", "http://localhost:8080")]));
        assert!(check(&[("origin", "https://outbox.example.com")]), "a proxy's name");
        assert!(check(&[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")]));
        for origin in ["http://localhost:9090", "http://evil.example", "null", "http://localhost", ""] {
            assert!(!check(&[("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(!check(&[("sec-fetch-site", site)]), "{site}");
        }
    }
}
