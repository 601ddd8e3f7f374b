//! Disposable message brokers for tests: each on a free port of 127.0.0.1, with its data in a
//! temporary directory.
//!
//! ```no_run
//! use outbox_testbed::{Plan, Server};
//!
//! let mut nats = Server::nats();
//! println!("{}", nats.url()); // nats://127.0.0.1:21234
//! nats.kill();
//! nats.start(); // the same port, the same data
//!
//! let guarded = Plan::redis().user("ada", "secret").tls().config("maxmemory 10mb").start();
//! println!("{} by {}", guarded.url(), guarded.ca_file().display());
//! ```
//!
//! Errors are panics with advice, since this crate is for tests only. Dropping a [`Server`] ends
//! its process, also after a panic. If the test process is killed, a guard shell ends the server.

mod kind;
mod mosquitto;
mod nats;
mod pgbouncer;
mod plan;
mod port;
mod process;
mod proxy;
mod rabbitmq;
mod redis;
mod server;
mod tansu;
mod tls;

pub use plan::Plan;
pub use proxy::Proxy;
pub use server::Server;
pub use tls::Certificates;
