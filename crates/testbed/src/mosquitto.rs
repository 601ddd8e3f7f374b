//! Mosquitto.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::kind::{Kind, Site, debian};
use crate::plan::Tls;

pub(crate) struct Mosquitto;

impl Kind for Mosquitto {
    fn name(&self) -> &'static str {
        "mosquitto"
    }

    fn server(&self) -> &'static str {
        "mosquitto"
    }

    fn how_to_get(&self) -> String {
        debian("mosquitto")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("mqtt", "mqtts")
    }

    fn configure(&self, site: &Site<'_>) {
        let mut lines = vec![
            format!("listener {} 127.0.0.1", site.port),
            format!("allow_anonymous {}", site.plan.user.is_none()),
            "persistence true".to_owned(),
            format!("persistence_location {}/", site.folder.display()),
            "max_queued_messages 0".to_owned(),
        ];
        // As root it would become the account `mosquitto`, which may not read our folder.
        lines.push(format!("user {}", std::env::var("USER").unwrap_or_else(|_| "root".to_owned())));
        if let Some((user, password)) = &site.plan.user {
            let file = site.path("passwords");
            let mut made = site.command(&self.program("mosquitto_passwd"));
            let made =
                made.args(["-c", "-b", &file, user, password]).output().expect("mosquitto_passwd runs");
            assert!(made.status.success(), "mosquitto_passwd: {}", String::from_utf8_lossy(&made.stderr));
            lines.push(format!("password_file {file}"));
        }
        if let Some(certificates) = site.certificates {
            let (certificate, key) = &certificates.server;
            lines.extend([
                format!("certfile {}", certificate.display()),
                format!("keyfile {}", key.display()),
                format!("cafile {}", certificates.ca.display()),
                format!("require_certificate {}", site.plan.tls == Some(Tls::Mutual)),
            ]);
        }
        site.write("mosquitto.conf", &lines);
    }

    fn command(&self, site: &Site<'_>) -> Command {
        let mut command = site.command(&self.program(self.server()));
        command.args(["-c", "mosquitto.conf"]);
        command
    }

    /// It answers a CONNECT, be it by a refusal. Over TLS it is enough that somebody listens.
    fn is_ready(&self, site: &Site<'_>) -> bool {
        let answer = || {
            let mut stream = TcpStream::connect(("127.0.0.1", site.port)).ok()?;
            if site.certificates.is_some() {
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
