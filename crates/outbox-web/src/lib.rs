//! The REST API and the dashboard of an outbox, as an [axum](https://docs.rs/axum) router: to be mounted into an application, or
//! served by `outbox relay --listen`.
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
//! let app: axum::Router = axum::Router::new().merge(web.router());
//! # let _ = app;
//! # Ok(()) }
//! ```
//!
//! # The flow
//!
//! ```text
//! request ──► guard: host, origin, token or session, CSRF, size, JSON ──► role ──► route ──► store
//!                                                                                   │
//!                                             deeds: written down before it is done ┘
//! ```
//!
//! # The map of the code
//!
//! | module | what it is |
//! | --- | --- |
//! | `builder` | [`Web`]: putting it together |
//! | `auth` | who is asking: tokens, sessions, the guard |
//! | `routes` | a file for each resource; which role each needs |
//! | `deeds` | changes: written down before they are made |
//! | `jobs` | work that takes long |
//! | `live` | what goes on, every second |
//! | `problem` | what went wrong, as RFC 9457 has it |
//! | `openapi` | the document, from the code |
//! | `assets` | the dashboard's files |
//! | `databases` | which databases there are |
//! | `extract`, `filter`, `cursor`, `age`, `text`, `views` | reading what is asked, and showing what is found |
//!
//! # What is promised
//!
//! - Nothing is told without a token or a session but the dashboard's own files, which hold no data.
//! - GET changes nothing. Every change, and every look at a payload, is in the audit before it happens.
//! - No payload, token or password is in a log line, an error or a metric.
//! - No question takes longer because the table is larger: pages are read in the order of an index, and counts stop.

mod age;
#[cfg(test)]
mod any_text;
mod assets;
mod auth;
mod builder;
mod cursor;
mod databases;
mod deeds;
mod extract;
mod filter;
mod jobs;
mod live;
mod openapi;
mod problem;
mod routes;
mod state;
mod text;
mod views;

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
