//! Authentication.
//!
//! | file | contents |
//! | --- | --- |
//! | `token` | bearer tokens and roles |
//! | `actor` | callers that the application identifies itself |
//! | `sessions` | session cookies of browsers, and their CSRF tokens |
//! | `csrf` | CSRF tokens of callers that the application identifies |
//! | `throttle` | limits attempts to guess tokens |
//! | `hosts` | checks of the requested host and of the origin |
//! | `guard` | middleware for every request |

pub(crate) mod actor;
pub(crate) mod csrf;
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
use subtle::ConstantTimeEq as _;

use self::actor::Identify;
use self::csrf::{CsrfKey, Nonce};
use self::hosts::port;
use self::sessions::{Session, Sessions, cookie_name, cookie_of};
use self::throttle::Throttle;
use self::token::{Role, Token, digest};
use crate::problem::{ApiResult, Kind, Problem};

/// The authenticated sender of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The name of the token, or of the application's actor.
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) credential: Credential,
}

/// How a caller has authenticated.
#[derive(Clone)]
pub(crate) enum Credential {
    /// By a token in the request, which no browser sends by itself.
    Token,
    /// By the cookie of a session.
    Session(Session),
    /// By the application, which may use a cookie of its own. The nonce is missing until the
    /// browser has asked for it.
    Application(Option<Nonce>),
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        // Without the guard in front of a route, every request is rejected.
        parts.extensions.get::<Caller>().cloned().ok_or_else(unauthenticated)
    }
}

/// Authenticates requests: by token, by session, or by the application.
pub(crate) struct Authenticator {
    pub(crate) tokens: Vec<Token>,
    pub(crate) identify: Option<Identify>,
    /// Whether cookies are restricted to TLS.
    pub(crate) tls: bool,
    pub(crate) sessions: Sessions,
    pub(crate) csrf: CsrfKey,
    pub(crate) throttle: Throttle,
}

impl Authenticator {
    /// Authenticates a request. A token or a session comes first: the client has chosen it.
    pub(crate) fn authenticate(&self, parts: &Parts) -> ApiResult<Caller> {
        if self.tokens.is_empty() {
            // The header Authorization, if there is one, is the application's own.
            return self.actor(parts)?.ok_or_else(no_access);
        }
        let wrong = match self.bearer(&parts.headers) {
            Some(Ok(token)) => return Ok(Caller::of_token(token)),
            Some(Err(wrong)) => wrong,
            None => {
                let mut cookies = self.cookies(&parts.headers, &parts.uri, sessions::COOKIE);
                if let Some(session) = cookies.find_map(|cookie| self.sessions.find(cookie)) {
                    return Ok(Caller {
                        name: session.name.clone(),
                        role: session.role,
                        credential: Credential::Session(session),
                    });
                }
                return self.actor(parts)?.ok_or_else(unauthenticated);
            }
        };
        // The header may be the application's own, so it is asked before the token counts as wrong.
        match (self.actor(parts)?, wrong) {
            (Some(caller), _) => Ok(caller),
            (None, WrongHeader::Token) => Err(self.wrong_token(peer(&parts.extensions))),
            (None, WrongHeader::Scheme) => Err(Problem::new(
                Kind::Unauthorized,
                "the header Authorization has a scheme other than Bearer",
            )
            .advice("Send `Authorization: Bearer TOKEN`.")),
        }
    }

    /// The token in the header Authorization; `None` without this header.
    fn bearer(&self, headers: &HeaderMap) -> Option<Result<&Token, WrongHeader>> {
        let credentials = headers.get(header::AUTHORIZATION)?.to_str().unwrap_or_default();
        let (scheme, secret) = credentials.split_once(' ').unwrap_or((credentials, ""));
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Some(Err(WrongHeader::Scheme));
        }
        Some(self.find_token(secret.trim()).ok_or(WrongHeader::Token))
    }

    /// The caller that the application sees in a request.
    fn actor(&self, parts: &Parts) -> ApiResult<Option<Caller>> {
        let Some(actor) = self.identify.as_ref().and_then(|identify| identify(parts)) else {
            return Ok(None);
        };
        let actor = actor.check(&self.tokens)?;
        let nonce = self.cookies(&parts.headers, &parts.uri, csrf::COOKIE).find_map(Nonce::parse);
        Ok(Some(Caller {
            name: actor.name().to_owned(),
            role: actor.role(),
            credential: Credential::Application(nonce),
        }))
    }

    /// Whether only the application identifies callers: there is no token to sign in with.
    pub(crate) fn is_of_application(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The value of the header `X-CSRF-Token` that changes of this caller need; `None` for tokens,
    /// and for a browser without the cookie.
    pub(crate) fn csrf_token(&self, caller: &Caller) -> Option<String> {
        match &caller.credential {
            Credential::Token => None,
            Credential::Session(session) => Some(session.csrf.clone()),
            Credential::Application(nonce) => {
                nonce.as_ref().map(|nonce| self.csrf.token(nonce, &caller.name))
            }
        }
    }

    /// Whether a change of this caller is not forged by another site. Compares in constant time.
    pub(crate) fn has_csrf(&self, caller: &Caller, sent: &str) -> bool {
        match &caller.credential {
            Credential::Token => true,
            Credential::Session(_) | Credential::Application(_) => self
                .csrf_token(caller)
                .is_some_and(|expected| expected.as_bytes().ct_eq(sent.as_bytes()).into()),
        }
    }

    /// Values of the cookies of a request with this base name.
    pub(crate) fn cookies<'r>(
        &self,
        headers: &'r HeaderMap,
        uri: &Uri,
        base: &str,
    ) -> impl Iterator<Item = &'r str> {
        let name = cookie_name(base, self.tls, port(headers, uri));
        let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        all.filter_map(move |cookies| cookie_of(cookies, &name))
    }

    /// Finds the token with this secret, to sign in with.
    pub(crate) fn token(&self, secret: &str, peer: Option<IpAddr>) -> ApiResult<&Token> {
        if self.is_of_application() {
            return Err(no_access());
        }
        self.find_token(secret).ok_or_else(|| self.wrong_token(peer))
    }

    fn find_token(&self, secret: &str) -> Option<&Token> {
        let digest = digest(secret);
        // Every token is compared, so that the time does not reveal which one was closest.
        self.tokens.iter().fold(None, |found, token| if token.is(&digest) { Some(token) } else { found })
    }

    /// Counts a wrong token. A valid token is never throttled: behind a proxy all callers have one
    /// address, and a caller with a wrong token must not lock out the others. Secrets are too long
    /// to be guessed anyway; the throttle limits log lines and CPU time.
    fn wrong_token(&self, peer: Option<IpAddr>) -> Problem {
        let now = Instant::now();
        if let Some(wait) = self.throttle.wait(peer, now) {
            return Problem::new(Kind::TooManyAttempts, "too many wrong tokens from this address")
                .advice("Check the token, and retry later.")
                .retry_after(wait);
        }
        self.throttle.count(peer, now);
        tracing::warn!(peer = peer.map(tracing::field::display), "authentication failed: wrong token");
        Problem::new(Kind::Unauthorized, "invalid token")
            .advice("Check the token; tokens are defined in the settings of the server.")
    }
}

/// A header Authorization without a token of this server.
enum WrongHeader {
    /// A bearer token of another server, or of the application.
    Token,
    /// Another scheme than Bearer.
    Scheme,
}

impl Caller {
    fn of_token(token: &Token) -> Self {
        Self { name: token.name.clone(), role: token.role, credential: Credential::Token }
    }
}

fn unauthenticated() -> Problem {
    Problem::new(Kind::Unauthorized, "the request has no token, and no valid session")
        .advice("Send `Authorization: Bearer TOKEN`, or sign in at POST /api/outbox/session.")
}

fn no_access() -> Problem {
    Problem::new(Kind::NoAccess, "the application has not signed you in, or gives you no access here")
        .advice("Sign in to the application, then load this page again.")
}

/// IP address of the client, if the server provides connect info.
pub(crate) fn peer(extensions: &axum::http::Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip())
}
