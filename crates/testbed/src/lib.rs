//! Throw-away message brokers for tests: each on a free port of 127.0.0.1, with its data in a folder that goes away with it.
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
//! What goes wrong is a panic that says what to do: these are for tests. A server ends with its [`Server`], also after a panic, and
//! when the process is killed a small shell ends it.

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
