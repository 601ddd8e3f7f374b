//! Putting it together.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse as _;
use axum::routing::get;
use outbox::store::SharedStore;
use outbox::{Destination, Fleet};
use tokio::sync::Semaphore;

use crate::auth::Porter;
use crate::auth::guard::{guard, guard_others, require, welcome};
use crate::auth::hosts::Hosts;
use crate::auth::sessions::Sessions;
use crate::auth::throttle::Throttle;
use crate::auth::token::{Role, SHORTEST, Token};
use crate::databases::{All, Databases, Fixed};
use crate::jobs::Jobs;
use crate::live::Live;
use crate::problem::Problem;
use crate::state::{Destinations, Inner, Shared};
use crate::{assets, routes};

/// How many wrong tokens an address may send in a minute, if nobody says otherwise.
const ATTEMPTS: u32 = 10;

/// The REST API and the dashboard of outboxes, to be mounted into an axum application. Cheap to clone; clones are the same.
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
/// Elsewhere than at the root: `Router::new().nest("/outbox", web.router())`. Without the dashboard: [`Web::api`].
///
/// Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, so that those who guess tokens are told apart from others
/// by their addresses.
#[derive(Clone)]
pub struct Web {
    shared: Shared,
}

/// Sets up a [`Web`].
#[derive(Default)]
#[must_use = "nothing is built until `build` is called"]
pub struct WebBuilder {
    databases: All,
    tokens: Vec<Token>,
    hosts: Vec<String>,
    tls: bool,
    attempts: Option<u32>,
    destinations: Option<Destinations>,
}

/// What is wrong with what was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Nobody could ever ask.
    #[error("no token: nobody could ask anything. Add one with `token(Token::new(name, role, secret))`")]
    NoToken,
    /// There is nothing to look at.
    #[error("no database: add one with `outbox(name, store)`, `fleet(fleet)` or `databases(…)`")]
    NoDatabase,
    /// The audit says names.
    #[error("the token {name:?}: its name must have 1 to 64 characters, and no control characters")]
    Name {
        /// The name as given.
        name: String,
    },
    /// Two tokens have one name.
    #[error("two tokens have the name {name:?}: the audit tells them apart by it")]
    Twice {
        /// The name of both.
        name: String,
    },
    /// The secret could be guessed.
    #[error(
        "the token {name:?}: its secret must have at least {SHORTEST} characters; `openssl rand -base64 32` makes a good one", SHORTEST = SHORTEST
    )]
    Short {
        /// Whose it is.
        name: String,
    },
    /// It is no digest.
    #[error(
        "the token {name:?}: a digest is `sha256:` and 64 hexadecimal digits; `printf %s \"$TOKEN\" | sha256sum` makes one"
    )]
    Digest {
        /// Whose it is.
        name: String,
    },
}

impl WebBuilder {
    /// A database, by a name of its own.
    pub fn outbox(self, name: impl Into<String>, store: SharedStore) -> Self {
        self.databases(Fixed { name: name.into(), store })
    }

    /// All databases of a fleet, as they come and go.
    pub fn fleet(self, fleet: Fleet) -> Self {
        self.databases(fleet)
    }

    /// Databases that come and go in another way.
    pub fn databases(mut self, databases: impl Databases) -> Self {
        self.databases.0.push(Arc::new(databases));
        self
    }

    /// Somebody who may ask.
    pub fn token(mut self, token: Token) -> Self {
        self.tokens.push(token);
        self
    }

    /// Several who may.
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.tokens.extend(tokens);
        self
    }

    /// A name that this server is asked by, beside `localhost` and addresses in numbers. Requests for other names are refused:
    /// a site could have its own name point to this machine, and a browser here ask for it.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// It is served by TLS, by this process or a proxy before it: cookies are then for TLS only (`Secure`, and a name that
    /// begins with `__Host-`).
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// How many wrong tokens an address may send in a minute before it has to wait; 10 if not set, at least 1.
    pub fn wrong_tokens_per_minute(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts.max(1));
        self
    }

    /// Where the relay of this process sends events: what cannot be reached shows at once, instead of when the relay says so.
    pub fn destinations(
        mut self,
        destinations: impl Fn() -> Vec<Destination> + Send + Sync + 'static,
    ) -> Self {
        self.destinations = Some(Arc::new(destinations));
        self
    }

    /// Checks everything.
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
                return Err(BuildError::Name { name });
            }
            if self.tokens[..n].iter().any(|other| other.name == name) {
                return Err(BuildError::Twice { name });
            }
            if token.is_short {
                return Err(BuildError::Short { name });
            }
        }
        let porter = Porter {
            tokens: self.tokens,
            tls: self.tls,
            sessions: Sessions::default(),
            throttle: Throttle::new(self.attempts.unwrap_or(ATTEMPTS)),
        };
        Ok(Web {
            shared: Shared(Arc::new(Inner {
                porter,
                hosts: Hosts(self.hosts),
                databases: self.databases,
                destinations: self.destinations,
                jobs: Jobs::default(),
                live: Live::default(),
                payloads: Semaphore::new(routes::payload::AT_ONCE),
            })),
        })
    }
}

impl Web {
    /// Sets one up.
    pub fn builder() -> WebBuilder {
        WebBuilder::default()
    }

    /// The API (`/api/outbox/…`, `/api/openapi.json`, `/api/docs`), and the dashboard for every other path.
    pub fn router(&self) -> Router {
        let files =
            Router::new().fallback(assets::serve).layer(from_fn_with_state(self.shared.clone(), welcome));
        self.api().merge(files)
    }

    /// The API alone.
    pub fn api(&self) -> Router {
        let (routes, _) = routes::all();
        let nothing = async || Problem::not_found("there is nothing at this path").into_response();
        let api = routes
            .fallback(nothing)
            .layer(from_fn_with_state(self.shared.clone(), guard))
            .with_state(self.shared.clone());
        let docs = Router::new()
            .route("/api/docs", get(assets::docs))
            .route("/api/docs.js", get(assets::docs))
            .route("/api/docs.css", get(assets::docs))
            .layer(from_fn_with_state(self.shared.clone(), welcome));
        Router::new().nest("/api", api).merge(docs)
    }

    /// Puts the same guard before other routes: a token or a session with at least this role.
    pub fn protect(&self, role: Role, routes: Router) -> Router {
        routes
            .layer(from_fn_with_state(role, require))
            .layer(from_fn_with_state(self.shared.clone(), guard_others))
    }

    /// The OpenAPI document, as `/api/openapi.json` tells it.
    pub fn openapi() -> String {
        crate::openapi::document().to_pretty_json().unwrap_or_default()
    }
}

impl std::fmt::Debug for Web {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Web").field("tokens", &self.shared.porter.tokens).finish_non_exhaustive()
    }
}
