//! Configuration of a server before it starts.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Mutex;

use crate::kind::{self, ServerKind};
use crate::mosquitto::Mosquitto;
use crate::nats::Nats;
use crate::pgbouncer::Pgbouncer;
use crate::rabbitmq::Rabbitmq;
use crate::redis::Redis;
use crate::server::Server;
use crate::tansu::Tansu;

/// Configuration of a server before it starts.
#[derive(Clone)]
pub struct Plan {
    pub(crate) kind: &'static dyn ServerKind,
    pub(crate) user: Option<(String, String)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) config: Vec<String>,
    /// The server behind a pooler, in the pooler's configuration syntax.
    pub(crate) upstream: Option<String>,
    /// The port that the server advertises to clients.
    pub(crate) advertised: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// The server has a certificate.
    Server,
    /// Clients need a certificate too.
    Mutual,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("kind", &self.kind.name()).finish_non_exhaustive()
    }
}

impl Plan {
    fn of(kind: &'static dyn ServerKind) -> Self {
        Self { kind, user: None, tls: None, config: Vec::new(), upstream: None, advertised: None }
    }

    /// NATS with JetStream and file storage.
    pub fn nats() -> Self {
        Self::of(&Nats)
    }

    /// Redis with an append-only file.
    pub fn redis() -> Self {
        Self::of(&Redis)
    }

    /// Mosquitto, which supports MQTT 3.1.1 and 5.
    pub fn mosquitto() -> Self {
        Self::of(&Mosquitto)
    }

    /// RabbitMQ. Starts in several seconds: share one between tests.
    pub fn rabbitmq() -> Self {
        Self::of(&Rabbitmq)
    }

    /// Tansu, a broker with Kafka's protocol and file storage. Optional: few machines have it.
    pub fn tansu() -> Self {
        Self::of(&Tansu)
    }

    /// Advertises this port of 127.0.0.1 to clients, for example the port of a proxy. For Tansu,
    /// since brokers announce their addresses in Kafka's protocol.
    pub fn advertised(mut self, port: u16) -> Self {
        self.advertised = Some(port);
        self
    }

    /// PgBouncer in transaction mode, in front of the PostgreSQL server of this URL:
    /// `postgres://user@host:port/…`.
    pub fn pgbouncer(upstream: &str) -> Self {
        let authority = upstream.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
        let (user, address) = authority.and_then(|it| it.rsplit_once('@')).expect("a URL with a user");
        let (host, port) = address.rsplit_once(':').expect("a URL with a port");
        let upstream = format!("host={host} port={port} user={user}");
        Self { upstream: Some(upstream), ..Self::of(&Pgbouncer) }
    }

    /// Accepts only this user and password, both of letters and digits.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
        assert!(plain(name) && plain(password), "user and password: letters and digits");
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Accepts only TLS, with a certificate for `localhost` and 127.0.0.1 of its own authority: see
    /// [`Server::ca_file`].
    pub fn tls(mut self) -> Self {
        self.tls = Some(Tls::Server);
        self
    }

    /// Accepts only TLS with a client certificate: see [`Server::client_certificate`].
    pub fn mutual_tls(mut self) -> Self {
        self.tls = Some(Tls::Mutual);
        self
    }

    /// Adds a line to the configuration file, in the server's syntax: `max_payload: 1000` for NATS.
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Whether the server is installed. If not, prints a notice, so that the test can be skipped.
    /// Panics with `OUTBOX_TEST_REQUIRE=1`, as set by `cargo xtask test`.
    pub fn is_here(&self) -> bool {
        static REPORTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
        let (name, advice) = (self.kind.name(), self.kind.install_hint());
        if kind::find(self.kind.server()).is_some() {
            return true;
        }
        let required = std::env::var(self.kind.required_by_var()).is_ok_and(|value| value == "1");
        assert!(!required, "{name} is required but not installed: {advice}");
        if REPORTED.lock().expect("no panic while the lock is held").insert(name) {
            // Not eprintln!: the test runner captures its output when a test passes.
            let _ = writeln!(std::io::stderr(), "skipped: tests on {name}, which is not installed: {advice}");
        }
        false
    }

    /// Starts the server. Returns once it accepts connections.
    pub fn start(self) -> Server {
        Server::of(&self)
    }
}
