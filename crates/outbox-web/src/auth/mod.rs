//! Who is asking.
//!
//! | file | what it is |
//! | --- | --- |
//! | `token` | bearer tokens and roles |
//! | `sessions` | cookies of browsers, and their CSRF tokens |
//! | `throttle` | slows down those who guess |
//! | `hosts` | by which names this server is asked, and from which sites |
//! | `guard` | what every request goes through |

pub(crate) mod guard;
pub(crate) mod hosts;
pub(crate) mod sessions;
pub(crate) mod throttle;
pub(crate) mod token;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};

use self::hosts::port;
use self::sessions::{Session, Sessions, cookie_name, cookie_of};
use self::throttle::Throttle;
use self::token::{Role, Token, digest};
use crate::problem::{Answer, Kind, Problem};

/// Whoever asks.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The name of the token.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Set if it is a browser with a cookie.
    pub(crate) session: Option<Session>,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        // Whoever forgets the guard lets nobody in.
        parts.extensions.get::<Caller>().cloned().ok_or_else(nobody)
    }
}

/// Knows all tokens and sessions.
pub(crate) struct Porter {
    pub(crate) tokens: Vec<Token>,
    /// Whether cookies are for TLS only.
    pub(crate) tls: bool,
    pub(crate) sessions: Sessions,
    pub(crate) throttle: Throttle,
}

impl Porter {
    /// Whose request this is.
    pub(crate) fn recognise(&self, headers: &HeaderMap, uri: &Uri, peer: Option<IpAddr>) -> Answer<Caller> {
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            let said = value.to_str().unwrap_or_default();
            let (scheme, secret) = said.split_once(' ').unwrap_or((said, ""));
            if !scheme.eq_ignore_ascii_case("bearer") {
                return Err(Problem::new(Kind::Unauthorized, "the header Authorization is of another kind")
                    .advice("Send `Authorization: Bearer TOKEN`."));
            }
            let token = self.token(secret.trim(), peer)?;
            return Ok(Caller { name: token.name.clone(), role: token.role, session: None });
        }
        let session = self.cookies(headers, uri).find_map(|cookie| self.sessions.find(cookie));
        let session = session.ok_or_else(nobody)?;
        Ok(Caller { name: session.name.clone(), role: session.role, session: Some(session) })
    }

    /// What the cookies of sessions say.
    pub(crate) fn cookies<'r>(&self, headers: &'r HeaderMap, uri: &Uri) -> impl Iterator<Item = &'r str> {
        let name = cookie_name(self.tls, port(headers, uri));
        let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        all.filter_map(move |cookies| cookie_of(cookies, &name))
    }

    /// The token with this secret.
    pub(crate) fn token(&self, secret: &str, peer: Option<IpAddr>) -> Answer<&Token> {
        let digest = digest(secret);
        // All of them are looked at, so that the time does not tell which was nearest.
        let found =
            self.tokens.iter().fold(None, |found, token| if token.is(&digest) { Some(token) } else { found });
        // A right token is never refused: behind a proxy all callers have one address, and a caller with a wrong token must not
        // lock out the others. Secrets are too long to be guessed at any rate; waiting keeps log and processor quiet.
        if let Some(token) = found {
            return Ok(token);
        }
        let now = Instant::now();
        if let Some(wait) = self.throttle.wait(peer, now) {
            return Err(Problem::new(Kind::TooManyAttempts, "too many wrong tokens came from your address")
                .advice("Wait, and check the token.")
                .retry_after(wait));
        }
        self.throttle.count(peer, now);
        tracing::warn!(peer = peer.map(tracing::field::display), "request with a wrong token refused");
        Err(Problem::new(Kind::Unauthorized, "no token has this secret")
            .advice("Check the token; a new one is made in the settings of the server."))
    }
}

fn nobody() -> Problem {
    Problem::new(Kind::Unauthorized, "the request says nothing of who sends it, or its session is over")
        .advice("Send `Authorization: Bearer TOKEN`, or sign in at POST /api/outbox/session.")
}

/// The address of whoever asks, where the server tells it.
pub(crate) fn peer(extensions: &axum::http::Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip())
}
