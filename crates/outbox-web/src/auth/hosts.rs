//! By which names this server is asked, and from which sites: against DNS rebinding and forged requests.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, Uri, header};

use crate::problem::{Answer, Kind, Problem};
use crate::text::shown;

/// The names that this server answers to, beside `localhost` and addresses in numbers: those cannot be pointed elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(pub(crate) Vec<String>);

impl Hosts {
    /// Refuses a request for a name that is not ours: a site may have pointed its own name to this machine.
    pub(crate) fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Answer<()> {
        let authority = authority(headers, uri).unwrap_or_default();
        let name = host(authority);
        if name.eq_ignore_ascii_case("localhost") || is_address(name) || self.is_ours(name) {
            return Ok(());
        }
        Err(Problem::new(Kind::BadHost, format!("`{}` is not a name of this server", shown(name)))
            .advice("Ask for it by localhost or its address, or add the name to `hosts`."))
    }

    /// Refuses a request that a browser sends for another site. Programs send neither header.
    pub(crate) fn check_origin(&self, headers: &HeaderMap, uri: &Uri) -> Answer<()> {
        let foreign = || {
            Problem::new(Kind::BadOrigin, "a page of another site may not change anything here")
                .advice("Use the dashboard of this server, or send the request without a browser.")
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
        // Behind a proxy the two may differ.
        if same || self.is_ours(host(of_origin)) { Ok(()) } else { Err(foreign()) }
    }

    fn is_ours(&self, name: &str) -> bool {
        self.0.iter().any(|ours| ours.eq_ignore_ascii_case(name))
    }
}

fn authority<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    let of_uri = || uri.authority().map(axum::http::uri::Authority::as_str);
    headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(of_uri)
}

/// Without the port; IPv6 addresses keep their brackets. Nothing, if something else stands there.
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
    fn only_names_of_this_server_are_answered() {
        let hosts = Hosts(vec!["outbox.example.com".to_owned()]);
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
    fn only_pages_of_this_server_may_change_things() {
        let hosts = Hosts(vec!["outbox.example.com".to_owned()]);
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
