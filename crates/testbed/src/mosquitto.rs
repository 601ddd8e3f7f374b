//! Mosquitto.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::kind::{Instance, ServerKind, debian};
use crate::plan::Tls;

pub(crate) struct Mosquitto;

impl ServerKind for Mosquitto {
    fn name(&self) -> &'static str {
        "mosquitto"
    }

    fn server(&self) -> &'static str {
        "mosquitto"
    }

    fn install_hint(&self) -> String {
        debian("mosquitto")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("mqtt", "mqtts")
    }

    fn configure(&self, instance: &Instance<'_>) {
        let mut lines = vec![
            format!("listener {} 127.0.0.1", instance.port),
            format!("allow_anonymous {}", instance.plan.user.is_none()),
            "persistence true".to_owned(),
            format!("persistence_location {}/", instance.folder.display()),
            "max_queued_messages 0".to_owned(),
        ];
        // As root Mosquitto would switch to the user `mosquitto`, which may not read the temporary
        // directory.
        lines.push(format!("user {}", std::env::var("USER").unwrap_or_else(|_| "root".to_owned())));
        if let Some((user, password)) = &instance.plan.user {
            let file = instance.path("passwords");
            let mut made = instance.command(&self.program("mosquitto_passwd"));
            let made =
                made.args(["-c", "-b", &file, user, password]).output().expect("mosquitto_passwd runs");
            assert!(made.status.success(), "mosquitto_passwd: {}", String::from_utf8_lossy(&made.stderr));
            lines.push(format!("password_file {file}"));
        }
        if let Some(certificates) = instance.certificates {
            let (certificate, key) = &certificates.server;
            lines.extend([
                format!("certfile {}", certificate.display()),
                format!("keyfile {}", key.display()),
                format!("cafile {}", certificates.ca.display()),
                format!("require_certificate {}", instance.plan.tls == Some(Tls::Mutual)),
            ]);
        }
        instance.write("mosquitto.conf", &lines);
    }

    fn command(&self, instance: &Instance<'_>) -> Command {
        let mut command = instance.command(&self.program(self.server()));
        command.args(["-c", "mosquitto.conf"]);
        command
    }

    /// Ready when the server replies to CONNECT, even with a refusal. With TLS an open port is
    /// enough.
    fn is_ready(&self, instance: &Instance<'_>) -> bool {
        let answer = || {
            let mut stream = TcpStream::connect(("127.0.0.1", instance.port)).ok()?;
            if instance.certificates.is_some() {
                return Some(CONNACK);
            }
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            stream.write_all(CONNECT).ok()?;
            let mut answer = [0];
            stream.read_exact(&mut answer).ok()?;
            Some(answer[0])
        };
        answer() == Some(CONNACK)
    }
}

const CONNACK: u8 = 0x20;

/// MQTT 3.1.1, a clean session, no keep-alive, the client id `t`.
const CONNECT: &[u8] = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01t";
