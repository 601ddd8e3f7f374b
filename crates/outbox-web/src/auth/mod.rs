//! Authentication.
//!
//! | file | contents |
//! | --- | --- |
//! | `token` | bearer tokens and roles |
//! | `sessions` | session cookies of browsers, and their CSRF tokens |
//! | `throttle` | limits attempts to guess tokens |
//! | `hosts` | checks of the requested host and of the origin |
//! | `guard` | middleware for every request |

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
use crate::problem::{ApiResult, Kind, Problem};

/// The authenticated sender of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The name of the token.
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Set if the caller authenticated with a session cookie.
    pub(crate) session: Option<Session>,
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        // Without the guard in front of a route, every request is rejected.
        parts.extensions.get::<Caller>().cloned().ok_or_else(unauthenticated)
    }
}

/// Authenticates requests by token or session.
pub(crate) struct Authenticator {
    pub(crate) tokens: Vec<Token>,
    /// Whether cookies are restricted to TLS.
    pub(crate) tls: bool,
    pub(crate) sessions: Sessions,
    pub(crate) throttle: Throttle,
}

impl Authenticator {
    /// Authenticates a request.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        uri: &Uri,
        peer: Option<IpAddr>,
    ) -> ApiResult<Caller> {
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            let credentials = value.to_str().unwrap_or_default();
            let (scheme, secret) = credentials.split_once(' ').unwrap_or((credentials, ""));
            if !scheme.eq_ignore_ascii_case("bearer") {
                return Err(Problem::new(
                    Kind::Unauthorized,
                    "the header Authorization has a scheme other than Bearer",
                )
                .advice("Send `Authorization: Bearer TOKEN`."));
            }
            let token = self.token(secret.trim(), peer)?;
            return Ok(Caller { name: token.name.clone(), role: token.role, session: None });
        }
        let session = self.cookies(headers, uri).find_map(|cookie| self.sessions.find(cookie));
        let session = session.ok_or_else(unauthenticated)?;
        Ok(Caller { name: session.name.clone(), role: session.role, session: Some(session) })
    }

    /// Values of the session cookies of a request.
    pub(crate) fn cookies<'r>(&self, headers: &'r HeaderMap, uri: &Uri) -> impl Iterator<Item = &'r str> {
        let name = cookie_name(self.tls, port(headers, uri));
        let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        all.filter_map(move |cookies| cookie_of(cookies, &name))
    }

    /// Finds the token with this secret.
    pub(crate) fn token(&self, secret: &str, peer: Option<IpAddr>) -> ApiResult<&Token> {
        let digest = digest(secret);
        // Every token is compared, so that the time does not reveal which one was closest.
        let found =
            self.tokens.iter().fold(None, |found, token| if token.is(&digest) { Some(token) } else { found });
        // A valid token is never throttled: behind a proxy all callers have one address, and a
        // caller with a wrong token must not lock out the others. Secrets are too long to be
        // guessed anyway; the throttle limits log lines and CPU time.
        if let Some(token) = found {
            return Ok(token);
        }
        let now = Instant::now();
        if let Some(wait) = self.throttle.wait(peer, now) {
            return Err(Problem::new(Kind::TooManyAttempts, "too many wrong tokens from this address")
                .advice("Check the token, and retry later.")
                .retry_after(wait));
        }
        self.throttle.count(peer, now);
        tracing::warn!(peer = peer.map(tracing::field::display), "authentication failed: wrong token");
        Err(Problem::new(Kind::Unauthorized, "invalid token")
            .advice("Check the token; tokens are defined in the settings of the server."))
    }
}

fn unauthenticated() -> Problem {
    Problem::new(Kind::Unauthorized, "the request has no token, and no valid session")
        .advice("Send `Authorization: Bearer TOKEN`, or sign in at POST /api/outbox/session.")
}

/// IP address of the client, if the server provides connect info.
pub(crate) fn peer(extensions: &axum::http::Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip())
}
