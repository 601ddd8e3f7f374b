//! Tansu, a broker that speaks Kafka's protocol, with its messages in a file of SQLite.

use std::net::TcpStream;
use std::process::Command;

use crate::kind::{Kind, Site};

pub(crate) struct Tansu;

impl Kind for Tansu {
    fn name(&self) -> &'static str {
        "tansu"
    }

    fn server(&self) -> &'static str {
        "tansu"
    }

    /// No Debian package: building the crate takes a quarter of an hour.
    fn how_to_get(&self) -> String {
        "`cargo xtask kafka` builds it once".to_owned()
    }

    fn required_by(&self) -> &'static str {
        "OUTBOX_TEST_TANSU"
    }

    /// Its command line refuses a certificate together with a key, so it has no TLS.
    fn schemes(&self) -> (&'static str, &'static str) {
        ("tcp", "tcp")
    }

    fn configure(&self, _: &Site<'_>) {}

    fn command(&self, site: &Site<'_>) -> Command {
        let mut command = site.command(&self.program(self.server()));
        let url = |port: u16| format!("tcp://127.0.0.1:{port}");
        let advertised = site.plan.advertised.unwrap_or(site.port);
        command.args(["broker", "--listener-url", &url(site.port)]);
        command.args(["--advertised-listener-url", &url(advertised)]);
        // It takes a path relative to its folder only.
        command.args(["--storage-engine", "sqlite://tansu.db"]);
        command
    }

    fn is_ready(&self, site: &Site<'_>) -> bool {
        TcpStream::connect(("127.0.0.1", site.port)).is_ok()
    }
}
