//! What a server is to be like.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Mutex;

use crate::kind::{self, Kind};
use crate::mosquitto::Mosquitto;
use crate::nats::Nats;
use crate::pgbouncer::Pgbouncer;
use crate::rabbitmq::Rabbitmq;
use crate::redis::Redis;
use crate::server::Server;
use crate::tansu::Tansu;

/// What a server is to be like, before it starts.
#[derive(Clone)]
pub struct Plan {
    pub(crate) kind: &'static dyn Kind,
    pub(crate) user: Option<(String, String)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) config: Vec<String>,
    /// Which server a pooler stands in front of, in the pooler's own language.
    pub(crate) upstream: Option<String>,
    /// Which port clients are told to connect to.
    pub(crate) advertised: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// The server shows a certificate.
    Server,
    /// The client does too.
    Mutual,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("kind", &self.kind.name()).finish_non_exhaustive()
    }
}

impl Plan {
    fn of(kind: &'static dyn Kind) -> Self {
        Self { kind, user: None, tls: None, config: Vec::new(), upstream: None, advertised: None }
    }

    /// NATS with JetStream, its storage in files.
    pub fn nats() -> Self {
        Self::of(&Nats)
    }

    /// Redis, with an append-only file.
    pub fn redis() -> Self {
        Self::of(&Redis)
    }

    /// Mosquitto, which speaks MQTT 3.1.1 and 5.
    pub fn mosquitto() -> Self {
        Self::of(&Mosquitto)
    }

    /// RabbitMQ. It takes several seconds to start: share one between tests.
    pub fn rabbitmq() -> Self {
        Self::of(&Rabbitmq)
    }

    /// Tansu, a broker that speaks Kafka's protocol. Its messages are in a file. It is optional: few machines have it.
    pub fn tansu() -> Self {
        Self::of(&Tansu)
    }

    /// Tells clients to connect to this port of 127.0.0.1: that of a proxy. For Tansu, whose protocol names the addresses of brokers.
    pub fn advertised(mut self, port: u16) -> Self {
        self.advertised = Some(port);
        self
    }

    /// PgBouncer in transaction mode, in front of the PostgreSQL server of this URL: `postgres://user@host:port/…`.
    pub fn pgbouncer(upstream: &str) -> Self {
        let authority = upstream.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
        let (user, address) = authority.and_then(|it| it.rsplit_once('@')).expect("a URL with a user");
        let (host, port) = address.rsplit_once(':').expect("a URL with a port");
        let upstream = format!("host={host} port={port} user={user}");
        Self { upstream: Some(upstream), ..Self::of(&Pgbouncer) }
    }

    /// Only this user may come in, with this password; both in plain letters and digits.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
        assert!(plain(name) && plain(password), "user and password: letters and digits");
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Over TLS only, with a certificate for `localhost` and 127.0.0.1 by an authority of its own: see [`Server::ca_file`].
    pub fn tls(mut self) -> Self {
        self.tls = Some(Tls::Server);
        self
    }

    /// Over TLS only, and clients must show a certificate too: see [`Server::client_certificate`].
    pub fn mutual_tls(mut self) -> Self {
        self.tls = Some(Tls::Mutual);
        self
    }

    /// A line of its configuration file, in its own language: `max_payload: 1000` for NATS.
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Whether it can be run here. If not, says so, for a test to pass by; with `OUTBOX_TEST_REQUIRE=1`, as `cargo xtask test` sets it,
    /// that is a failure.
    pub fn is_here(&self) -> bool {
        static SAID: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
        let (name, advice) = (self.kind.name(), self.kind.how_to_get());
        if kind::find(self.kind.server()).is_some() {
            return true;
        }
        let required = std::env::var(self.kind.required_by()).is_ok_and(|value| value == "1");
        assert!(!required, "{name} is required, and not here: {advice}");
        if SAID.lock().expect("nobody panics with it").insert(name) {
            // Not eprintln!: the test runner keeps that to itself when a test passes.
            let _ = writeln!(std::io::stderr(), "left out: tests on {name}, which is not here: {advice}");
        }
        false
    }

    /// Starts it; returns when it takes connections.
    pub fn start(self) -> Server {
        Server::of(&self)
    }
}
