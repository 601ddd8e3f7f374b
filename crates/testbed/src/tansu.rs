//! Tansu, a broker with Kafka's protocol that stores messages in an SQLite file.

use std::net::TcpStream;
use std::process::Command;

use crate::kind::{Instance, ServerKind};

pub(crate) struct Tansu;

impl ServerKind for Tansu {
    fn name(&self) -> &'static str {
        "tansu"
    }

    fn server(&self) -> &'static str {
        "tansu"
    }

    /// There is no Debian package: building the crate takes 15 minutes.
    fn install_hint(&self) -> String {
        "`cargo xtask kafka` builds it once".to_owned()
    }

    fn required_by_var(&self) -> &'static str {
        "OUTBOX_TEST_TANSU"
    }

    /// No TLS: the command line refuses a certificate together with a key.
    fn schemes(&self) -> (&'static str, &'static str) {
        ("tcp", "tcp")
    }

    fn configure(&self, _: &Instance<'_>) {}

    fn command(&self, instance: &Instance<'_>) -> Command {
        let mut command = instance.command(&self.program(self.server()));
        let url = |port: u16| format!("tcp://127.0.0.1:{port}");
        let advertised = instance.plan.advertised.unwrap_or(instance.port);
        command.args(["broker", "--listener-url", &url(instance.port)]);
        command.args(["--advertised-listener-url", &url(advertised)]);
        // Accepts only a path relative to the working directory.
        command.args(["--storage-engine", "sqlite://tansu.db"]);
        command
    }

    fn is_ready(&self, instance: &Instance<'_>) -> bool {
        TcpStream::connect(("127.0.0.1", instance.port)).is_ok()
    }
}
