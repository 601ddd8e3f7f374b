//! REST API and dashboard of an outbox, as an [axum](https://docs.rs/axum) router: mounted into an
//! application, or served by `outbox relay --listen`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let outbox = outbox::Outbox::sqlite(":memory:").await?;
//! # outbox.migrate().await?;
//! # let secret = "a-secret-of-some-length";
//! use outbox_web::{Role, Token, Web};
//!
//! let web = Web::builder()
//!     .outbox("main", outbox.store())
//!     .token(Token::new("ops", Role::Operate, secret))
//!     .build()?;
//!
//! let app: axum::Router = axum::Router::new().nest_service("/ops", web.router());
//! # let _ = app;
//! # Ok(()) }
//! ```
//!
//! # Request flow
//!
//! ```text
//! request ──► guard: host, origin, caller, CSRF, size, JSON ──► role ──► route ──► store
//!                                                                                   │
//!                                             audit: entry stored before the change ┘
//! ```
//!
//! # Map of the code
//!
//! | module | contents |
//! | --- | --- |
//! | `builder` | [`Web`] and its builder |
//! | `auth` | authentication: tokens, sessions, actors of the application, the guard |
//! | `routes` | one file per resource; the role that each route needs |
//! | `audit` | changes: the audit entry is stored before the change is made |
//! | `jobs` | long-running replays and purges |
//! | `live` | samples of each database, once a second |
//! | `problem` | errors as problem details (RFC 9457) |
//! | `openapi` | the OpenAPI document, generated from the code |
//! | `assets` | the dashboard's files |
//! | `databases` | the list of databases |
//! | `extract`, `filter`, `cursor`, `age`, `text`, `views` | parsing requests and building responses |
//!
//! # Guarantees
//!
//! - Without a caller only the dashboard's own files are served; they contain no data.
//! - GET changes nothing. Every change, and every read of a payload, has an audit entry before it
//!   happens.
//! - No payload, token or password is in a log line, an error or a metric.
//! - The time of a request does not grow with the table: pages are read in index order, and counts
//!   are bounded.

mod age;
mod assets;
mod audit;
mod auth;
mod builder;
mod cursor;
mod databases;
mod extract;
mod filter;
mod jobs;
mod live;
mod openapi;
mod problem;
#[cfg(test)]
mod proptests;
mod routes;
mod state;
mod text;
mod views;

pub use auth::actor::Actor;
pub use auth::hosts::Hosts;
pub use auth::token::{Role, Token};
pub use builder::{BuildError, Web, WebBuilder};
pub use databases::{DatabaseInfo, Databases};

/// The examples of the README and of the guide, compiled and run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/api.md")]
    struct Api;
    #[doc = include_str!("../../../docs/guide/axum.md")]
    struct Axum;
}
