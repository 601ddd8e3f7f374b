//! NATS with JetStream.

use std::io::Read as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::kind::{Kind, Site, debian};
use crate::plan::Tls;

pub(crate) struct Nats;

impl Kind for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn server(&self) -> &'static str {
        "nats-server"
    }

    fn how_to_get(&self) -> String {
        debian("nats-server")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("nats", "tls")
    }

    fn configure(&self, site: &Site<'_>) {
        let mut lines = vec![
            format!("listen: 127.0.0.1:{}", site.port),
            format!("jetstream {{ store_dir: {:?} }}", site.path("jetstream")),
        ];
        if let Some((user, password)) = &site.plan.user {
            lines.push(format!("authorization {{ user: {user:?}, password: {password:?} }}"));
        }
        if let Some(certificates) = site.certificates {
            let (certificate, key) = &certificates.server;
            let verify = site.plan.tls == Some(Tls::Mutual);
            let ca = &certificates.ca;
            lines.push(format!(
                "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {ca:?}, verify: {verify} }}"
            ));
        }
        site.write("nats.conf", &lines);
    }

    fn command(&self, site: &Site<'_>) -> Command {
        let mut command = site.command(&self.program(self.server()));
        command.args(["-c", "nats.conf"]);
        command
    }

    /// It greets first, in the clear.
    fn is_ready(&self, site: &Site<'_>) -> bool {
        let greeting = || {
            let mut stream = TcpStream::connect(("127.0.0.1", site.port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            let mut greeting = [0; 5];
            stream.read_exact(&mut greeting).ok()?;
            Some(greeting)
        };
        greeting() == Some(*b"INFO ")
    }
}
