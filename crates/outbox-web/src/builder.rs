//! Builder of the router.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse as _;
use axum::routing::get;
use outbox::store::SharedStore;
use outbox::{Destination, Fleet};
use tokio::sync::Semaphore;

use crate::auth::Authenticator;
use crate::auth::guard::{allow_anonymous, guard, guard_routes, require};
use crate::auth::hosts::Hosts;
use crate::auth::sessions::Sessions;
use crate::auth::throttle::Throttle;
use crate::auth::token::{MIN_SECRET_LEN, Role, Token};
use crate::databases::{DatabaseSources, Databases, SingleDatabase};
use crate::jobs::Jobs;
use crate::live::Live;
use crate::problem::Problem;
use crate::state::{Destinations, Inner, Shared};
use crate::{assets, routes};

/// Default number of wrong tokens per minute and address.
const DEFAULT_WRONG_TOKENS: u32 = 10;

/// REST API and dashboard of outboxes, to be mounted into an axum application. Cheap to clone;
/// clones share their state.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
/// # outbox.migrate().await?;
/// # let secret = "a-secret-of-some-length";
/// use outbox_web::{Role, Token, Web};
///
/// let web = Web::builder()
///     .outbox("main", outbox.store())
///     .token(Token::new("ops", Role::Operate, secret))
///     .build()?;
///
/// let app: axum::Router = axum::Router::new()
///     .route("/hello", axum::routing::get(async || "hello"))
///     .merge(web.router());             // /api/outbox/…, /api/docs, and the dashboard at /
/// # let _ = app;
/// # Ok(()) }
/// ```
///
/// To serve it below a path: `Router::new().nest("/outbox", web.router())`. Without the dashboard:
/// [`Web::api`].
///
/// Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, so that wrong tokens are
/// counted by the client's address.
#[derive(Clone)]
pub struct Web {
    shared: Shared,
}

/// Builds a [`Web`].
#[derive(Default)]
#[must_use = "nothing is built until `build` is called"]
pub struct WebBuilder {
    databases: DatabaseSources,
    tokens: Vec<Token>,
    hosts: Vec<String>,
    tls: bool,
    attempts: Option<u32>,
    destinations: Option<Destinations>,
}

/// Invalid configuration of a [`WebBuilder`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No token was given: every request would be rejected.
    #[error(
        "no token: every request would be rejected. Add one with `token(Token::new(name, role, secret))`"
    )]
    NoToken,
    /// No database was given.
    #[error("no database: add one with `outbox(name, store)`, `fleet(fleet)` or `databases(…)`")]
    NoDatabase,
    /// The name of a token is empty, too long, or has control characters. The name appears in audit
    /// entries.
    #[error("token {name:?}: the name must have 1 to 64 characters, and no control characters")]
    InvalidName {
        /// The name of the token.
        name: String,
    },
    /// Two tokens have the same name.
    #[error("two tokens have the name {name:?}: names must be unique, since audit entries refer to them")]
    DuplicateName {
        /// The name of both tokens.
        name: String,
    },
    /// The secret of a token is too short.
    #[error(
        "token {name:?}: the secret must have at least {MIN_SECRET_LEN} characters; generate one with `openssl rand -base64 32`", MIN_SECRET_LEN = MIN_SECRET_LEN
    )]
    ShortSecret {
        /// The name of the token.
        name: String,
    },
    /// The digest of a token has the wrong format.
    #[error(
        "token {name:?}: the digest must be `sha256:` and 64 hexadecimal digits; compute it with `printf %s \"$TOKEN\" | sha256sum`"
    )]
    InvalidDigest {
        /// The name of the token.
        name: String,
    },
}

impl WebBuilder {
    /// Adds a database with this name.
    pub fn outbox(self, name: impl Into<String>, store: SharedStore) -> Self {
        self.databases(SingleDatabase { name: name.into(), store })
    }

    /// Adds all databases of a fleet, as they are added and removed.
    pub fn fleet(self, fleet: Fleet) -> Self {
        self.databases(fleet)
    }

    /// Adds databases from another source.
    pub fn databases(mut self, databases: impl Databases) -> Self {
        self.databases.0.push(Arc::new(databases));
        self
    }

    /// Adds a token.
    pub fn token(mut self, token: Token) -> Self {
        self.tokens.push(token);
        self
    }

    /// Adds several tokens.
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.tokens.extend(tokens);
        self
    }

    /// Adds a host name of this server, in addition to `localhost` and IP addresses. Requests for
    /// other names are rejected: another site could point its own name to this machine and have a
    /// browser here send requests to it (DNS rebinding).
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// Set if the server is reached over TLS, terminated by this process or by a proxy in front of
    /// it: session cookies are then restricted to TLS (`Secure`, and a name with the prefix
    /// `__Host-`).
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// Number of wrong tokens per minute after which an address is throttled; 10 by default, at
    /// least 1.
    pub fn wrong_tokens_per_minute(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts.max(1));
        self
    }

    /// Destinations of the relay in this process: their outages are shown at once, without waiting
    /// for the relay's next announcement.
    pub fn destinations(
        mut self,
        destinations: impl Fn() -> Vec<Destination> + Send + Sync + 'static,
    ) -> Self {
        self.destinations = Some(Arc::new(destinations));
        self
    }

    /// Validates the configuration.
    pub fn build(self) -> Result<Web, BuildError> {
        if self.tokens.is_empty() {
            return Err(BuildError::NoToken);
        }
        if self.databases.0.is_empty() {
            return Err(BuildError::NoDatabase);
        }
        for (n, token) in self.tokens.iter().enumerate() {
            let name = token.name.clone();
            if crate::text::check("name", &name, 64).is_err() {
                return Err(BuildError::InvalidName { name });
            }
            if self.tokens[..n].iter().any(|other| other.name == name) {
                return Err(BuildError::DuplicateName { name });
            }
            if token.is_short {
                return Err(BuildError::ShortSecret { name });
            }
        }
        let authenticator = Authenticator {
            tokens: self.tokens,
            tls: self.tls,
            sessions: Sessions::default(),
            throttle: Throttle::new(self.attempts.unwrap_or(DEFAULT_WRONG_TOKENS)),
        };
        Ok(Web {
            shared: Shared(Arc::new(Inner {
                authenticator,
                hosts: Hosts(self.hosts),
                databases: self.databases,
                destinations: self.destinations,
                jobs: Jobs::default(),
                live: Live::default(),
                payloads: Semaphore::new(routes::payload::MAX_CONCURRENT_READS),
            })),
        })
    }
}

impl Web {
    /// Creates a builder.
    pub fn builder() -> WebBuilder {
        WebBuilder::default()
    }

    /// Router of the API (`/api/outbox/…`, `/api/openapi.json`, `/api/docs`), and the dashboard for
    /// every other path.
    pub fn router(&self) -> Router {
        let files = Router::new()
            .fallback(assets::serve)
            .layer(from_fn_with_state(self.shared.clone(), allow_anonymous));
        self.api().merge(files)
    }

    /// Router of the API alone.
    pub fn api(&self) -> Router {
        let (routes, _) = routes::all();
        let not_found = async || Problem::not_found("path not found").into_response();
        let api = routes
            .fallback(not_found)
            .layer(from_fn_with_state(self.shared.clone(), guard))
            .with_state(self.shared.clone());
        let docs = Router::new()
            .route("/api/docs", get(assets::docs))
            .route("/api/docs.js", get(assets::docs))
            .route("/api/docs.css", get(assets::docs))
            .layer(from_fn_with_state(self.shared.clone(), allow_anonymous));
        Router::new().nest("/api", api).merge(docs)
    }

    /// Adds the same authentication to other routes: a token or a session with at least this role.
    pub fn protect(&self, role: Role, routes: Router) -> Router {
        routes
            .layer(from_fn_with_state(role, require))
            .layer(from_fn_with_state(self.shared.clone(), guard_routes))
    }

    /// The OpenAPI document, as served at `/api/openapi.json`.
    pub fn openapi() -> String {
        crate::openapi::document().to_pretty_json().unwrap_or_default()
    }
}

impl std::fmt::Debug for Web {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Web").field("tokens", &self.shared.authenticator.tokens).finish_non_exhaustive()
    }
}
