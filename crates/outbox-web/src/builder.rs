//! Builder of the router.

use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get};
use outbox::store::SharedStore;
use outbox::{Destination, Fleet};
use tokio::sync::Semaphore;

use crate::auth::Authenticator;
use crate::auth::actor::{Actor, Identify};
use crate::auth::csrf::CsrfKey;
use crate::auth::guard::{allow_anonymous, guard, guard_routes, require};
use crate::auth::hosts::{HostCheck, Hosts};
use crate::auth::sessions::Sessions;
use crate::auth::throttle::Throttle;
use crate::auth::token::{MIN_SECRET_LEN, Role, Token};
use crate::databases::{DatabaseSources, Databases, SingleDatabase};
use crate::jobs::Jobs;
use crate::live::Live;
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
///     .nest_service("/ops", web.router());          // the dashboard at /ops and /ops/
/// # let _ = app;
/// # Ok(()) }
/// ```
///
/// [`router`](Self::router) tells the ways to mount it apart, [`api`](Self::api) has no dashboard,
/// and [`standalone`](Self::standalone) is for a server that serves nothing else. With
/// [`WebBuilder::actor`] the application's own sign-in replaces the token.
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
    identify: Option<Identify>,
    csrf_secret: Option<String>,
    hosts: Hosts,
    tls: bool,
    attempts: Option<u32>,
    destinations: Option<Destinations>,
}

/// Invalid configuration of a [`WebBuilder`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Neither a token nor a function for actors was given: every request would be rejected.
    #[error(
        "no token: every request would be rejected. Add one with `token(Token::new(name, role, secret))`, or let the \
         application identify callers with `actor(…)`"
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
    /// The secret of [`WebBuilder::csrf_secret`] is too short.
    #[error(
        "`csrf_secret` must have at least {MIN_SECRET_LEN} characters; generate one with `openssl rand -base64 32`", MIN_SECRET_LEN = MIN_SECRET_LEN
    )]
    ShortCsrfSecret,
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

    /// Lets the application say who sends a request, and with which role, in place of tokens or
    /// beside them. `None` rejects a request that has neither a token nor a session of one.
    ///
    /// The function sees the request after the middleware of the application, so it can read what
    /// that has found out. Without tokens the dashboard shows no form to sign in, and a page that
    /// says "no access" for `None`; a header `Authorization` is then left to the application. The
    /// audit shows the name of the actor.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// use axum::extract::Request;
    /// use axum::middleware::{Next, from_fn};
    /// use axum::response::Response;
    /// use outbox_web::{Actor, Role, Web};
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     email: String,
    ///     may_operate: bool,
    /// }
    ///
    /// /// The sign-in of the application: reads a cookie, asks its database, …
    /// async fn sign_in(mut request: Request, next: Next) -> Response {
    ///     request.extensions_mut().insert(User { email: "ada@example.com".into(), may_operate: true });
    ///     next.run(request).await
    /// }
    ///
    /// let web = Web::builder()
    ///     .outbox("shop", outbox.store())
    ///     .actor(|parts| {
    ///         let user = parts.extensions.get::<User>()?;
    ///         user.may_operate.then(|| Actor::new(&user.email, Role::Operate))
    ///     })
    ///     .build()?;
    /// let app: axum::Router =
    ///     axum::Router::new().nest_service("/ops", web.router()).layer(from_fn(sign_in));
    /// # use tower::ServiceExt as _;
    /// # let ask = axum::http::Request::get("/ops/api/outbox/whoami").header("host", "localhost");
    /// # let answer = app.oneshot(ask.body(axum::body::Body::empty())?).await?;
    /// # assert_eq!(answer.status(), 200);
    /// # Ok(()) }
    /// ```
    ///
    /// A change of an actor needs the same proofs as one of a session, whatever the application
    /// identifies the actor by: no foreign `Origin` or `Sec-Fetch-Site`, JSON, and `X-CSRF-Token`
    /// with a cookie of its own. The dashboard sends them; programs get both from
    /// `GET api/outbox/whoami`. Several instances of an application behind one address need the
    /// same [`csrf_secret`](Self::csrf_secret).
    pub fn actor(mut self, identify: impl Fn(&Parts) -> Option<Actor> + Send + Sync + 'static) -> Self {
        self.identify = Some(Arc::new(identify));
        self
    }

    /// Secret from which the CSRF tokens of [actors](Self::actor) are derived; random by default,
    /// so that an open dashboard fetches a new token after a restart. Instances of an application
    /// behind a load balancer need the same one, of at least 16 characters: otherwise an instance
    /// refuses the token of another.
    pub fn csrf_secret(mut self, secret: impl Into<String>) -> Self {
        self.csrf_secret = Some(secret.into());
        self
    }

    /// Adds a host name of this server, in addition to `localhost` and IP addresses: the public
    /// name of the application, without a port. Requests for other names are rejected with 421:
    /// another site could point its own name to this machine and have a browser here send requests
    /// to it (DNS rebinding). Behind a proxy that changes the header `Host`, the public name is
    /// also the one that changes may come from (`Origin`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = outbox::Outbox::sqlite(":memory:").await?;
    /// # outbox.migrate().await?;
    /// # use outbox_web::{Role, Token, Web};
    /// # use tower::ServiceExt as _;
    /// # let token = Token::new("ops", Role::Operate, "a-secret-of-some-length");
    /// let web = Web::builder()
    ///     .outbox("shop", outbox.store())
    ///     .token(token)
    ///     .host("shop.example.com")
    ///     .build()?;
    /// # for (name, status) in [("shop.example.com", 200), ("another.example", 421)] {
    /// #     let ask = axum::http::Request::get("/").header("host", name).body(axum::body::Body::empty())?;
    /// #     assert_eq!(web.router().oneshot(ask).await?.status(), status);
    /// # }
    /// # Ok(()) }
    /// ```
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.names.push(name.into());
        self
    }

    /// Accepts requests for any host name: for an application that checks names itself, or that no
    /// browser of another site can reach. Without a check, another site that points its own name to
    /// this server ([`host`](Self::host)) acts with whatever a browser sends to any name: an
    /// address that the application trusts, a client certificate. Cookies of the application are
    /// not sent to such a name. `Origin` is still compared with the requested host.
    pub fn any_host(mut self) -> Self {
        self.hosts.check = HostCheck::Application;
        self
    }

    /// Set if the server is reached over TLS, terminated by this process or by a proxy in front of
    /// it: cookies are then restricted to TLS (`Secure`, and a name with the prefix `__Host-`).
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
        if self.tokens.is_empty() && self.identify.is_none() {
            return Err(BuildError::NoToken);
        }
        if self.csrf_secret.as_ref().is_some_and(|secret| secret.chars().count() < MIN_SECRET_LEN) {
            return Err(BuildError::ShortCsrfSecret);
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
            identify: self.identify,
            tls: self.tls,
            sessions: Sessions::default(),
            csrf: self.csrf_secret.as_deref().map_or_else(CsrfKey::generate, CsrfKey::of_secret),
            throttle: Throttle::new(self.attempts.unwrap_or(DEFAULT_WRONG_TOKENS)),
        };
        Ok(Web {
            shared: Shared(Arc::new(Inner {
                authenticator,
                hosts: self.hosts,
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

    /// Router of the dashboard and of the API (`/api/outbox/…`, `/api/openapi.json`, `/api/docs`),
    /// to be mounted below a path of an application. It has a route for each of its files and no
    /// fallback: other paths stay with the application.
    ///
    /// | form | the dashboard is at |
    /// | --- | --- |
    /// | `app.nest_service("/ops", web.router())` | `/ops` and `/ops/` |
    /// | `app.nest("/ops", web.router())` | `/ops`; axum passes no `/ops/` to a nested router |
    /// | `app.nest("/ops/", web.router())` | `/ops/`; axum passes no `/ops` to it |
    /// | `app.merge(web.router())` | `/`; axum panics if the application has `/`, `/app.js` or `/api/docs` itself |
    ///
    /// A page refers to its files relative to its own address, so a proxy may remove a prefix. A
    /// middleware that removes the slash at the end of a path (`NormalizePath`) must not do so
    /// here: the page would be at another address than it was asked for.
    pub fn router(&self) -> Router {
        let files = assets::routes()
            .route_layer(from_fn_with_state(self.shared.clone(), allow_anonymous))
            .with_state(self.shared.clone());
        self.api().merge(files)
    }

    /// Router of a server that serves nothing else: [`router`](Self::router), and a fallback that
    /// answers every other path, with the dashboard for a page that a browser asks for.
    pub fn standalone(&self) -> Router {
        // Below `/api` an unknown path needs a caller as well.
        let api = ["/api", "/api/", "/api/{*path}"]
            .into_iter()
            .fold(Router::new(), |api, path| api.route(path, any(routes::not_found)))
            .route_layer(from_fn_with_state(self.shared.clone(), guard_routes));
        let pages = Router::new()
            .fallback(assets::any_page)
            .layer(from_fn_with_state(self.shared.clone(), allow_anonymous))
            .with_state(self.shared.clone());
        self.router().merge(api).merge(pages)
    }

    /// Router of the API alone: `/api/outbox/…`, `/api/openapi.json` and `/api/docs`, without a
    /// fallback. To be mounted like [`router`](Self::router).
    pub fn api(&self) -> Router {
        let (routes, _) = routes::all();
        let api = ["/outbox", "/outbox/", "/outbox/{*path}"]
            .into_iter()
            .fold(routes, |api, path| api.route(path, any(routes::not_found)))
            .route_layer(from_fn_with_state(self.shared.clone(), guard))
            .with_state(self.shared.clone());
        let docs = ["/api/docs", "/api/docs.js", "/api/docs.css"]
            .into_iter()
            .fold(Router::new(), |docs, path| docs.route(path, get(assets::docs)))
            .route_layer(from_fn_with_state(self.shared.clone(), allow_anonymous));
        Router::new().nest("/api", api).merge(docs)
    }

    /// Adds the same authentication to other routes: a caller with at least this role.
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
