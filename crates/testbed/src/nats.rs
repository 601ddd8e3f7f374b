//! NATS with JetStream.

use std::io::Read as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::kind::{Instance, ServerKind, debian};
use crate::plan::Tls;

pub(crate) struct Nats;

impl ServerKind for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn server(&self) -> &'static str {
        "nats-server"
    }

    fn install_hint(&self) -> String {
        debian("nats-server")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("nats", "tls")
    }

    fn configure(&self, instance: &Instance<'_>) {
        let mut lines = vec![
            format!("listen: 127.0.0.1:{}", instance.port),
            format!("jetstream {{ store_dir: {:?} }}", instance.path("jetstream")),
        ];
        if let Some((user, password)) = &instance.plan.user {
            lines.push(format!("authorization {{ user: {user:?}, password: {password:?} }}"));
        }
        if let Some(certificates) = instance.certificates {
            let (certificate, key) = &certificates.server;
            let verify = instance.plan.tls == Some(Tls::Mutual);
            let ca = &certificates.ca;
            lines.push(format!(
                "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {ca:?}, verify: {verify} }}"
            ));
        }
        instance.write("nats.conf", &lines);
    }

    fn command(&self, instance: &Instance<'_>) -> Command {
        let mut command = instance.command(&self.program(self.server()));
        command.args(["-c", "nats.conf"]);
        command
    }

    /// Ready when the server sends its greeting, which is never encrypted.
    fn is_ready(&self, instance: &Instance<'_>) -> bool {
        let greeting = || {
            let mut stream = TcpStream::connect(("127.0.0.1", instance.port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            let mut greeting = [0; 5];
            stream.read_exact(&mut greeting).ok()?;
            Some(greeting)
        };
        greeting() == Some(*b"INFO ")
    }
}
