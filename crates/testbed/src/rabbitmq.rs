//! RabbitMQ.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::kind::{Kind, Site, debian};
use crate::plan::Tls;

pub(crate) struct Rabbitmq;

/// The wrapper on the PATH would become the account `rabbitmq`.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Erlang starts its daemon of names in a session of its own, where it would outlive everything: so it is there already, in our
/// group.
const WITH_EPMD: &str = r#""$1" -address 127.0.0.1 & exec "$2""#;

impl Kind for Rabbitmq {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn server(&self) -> &'static str {
        "rabbitmq-server"
    }

    fn how_to_get(&self) -> String {
        debian("rabbitmq-server")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("amqp", "amqps")
    }

    fn default_user(&self) -> Option<(&'static str, &'static str)> {
        Some(("guest", "guest"))
    }

    fn path(&self) -> &'static str {
        "/%2f"
    }

    /// Its own, that of other nodes, and that of the daemon of names.
    fn ports(&self) -> u16 {
        3
    }

    fn configure(&self, site: &Site<'_>) {
        fs::create_dir(site.folder.join("home")).expect("the folder can be written to");
        fs::write(site.folder.join("plugins"), "[].").expect("the folder can be written to");
        let mut lines = vec!["loopback_users = none".to_owned(), "log.file.level = warning".to_owned()];
        if let Some((user, password)) = &site.plan.user {
            lines.extend([format!("default_user = {user}"), format!("default_pass = {password}")]);
        }
        match site.certificates {
            None => lines.push(format!("listeners.tcp.default = 127.0.0.1:{}", site.port)),
            Some(certificates) => {
                let (certificate, key) = &certificates.server;
                let mutual = site.plan.tls == Some(Tls::Mutual);
                lines.extend([
                    "listeners.tcp = none".to_owned(),
                    format!("listeners.ssl.default = 127.0.0.1:{}", site.port),
                    format!("ssl_options.certfile = {}", certificate.display()),
                    format!("ssl_options.keyfile = {}", key.display()),
                    format!("ssl_options.cacertfile = {}", certificates.ca.display()),
                    format!("ssl_options.verify = {}", if mutual { "verify_peer" } else { "verify_none" }),
                    format!("ssl_options.fail_if_no_peer_cert = {mutual}"),
                ]);
            }
        }
        site.write("rabbitmq.conf", &lines);
    }

    fn command(&self, site: &Site<'_>) -> Command {
        let server = Some(PathBuf::from(SERVER)).filter(|server| server.is_file());
        let server = server.unwrap_or_else(|| self.program(self.server()));
        let mut command = site.command(Path::new("/bin/sh"));
        command.args(["-c", WITH_EPMD, "rabbitmq"]).arg(self.program("epmd")).arg(server);
        command.envs([
            ("HOME", site.path("home")),
            // Then its script becomes the server, instead of waiting for it: signals come to whom they are meant for.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
            ("RABBITMQ_NODENAME", format!("t{}@localhost", site.port)),
            ("RABBITMQ_DIST_PORT", (site.port + 1).to_string()),
            ("ERL_EPMD_PORT", (site.port + 2).to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_MNESIA_BASE", site.path("mnesia")),
            ("RABBITMQ_LOG_BASE", site.path("logs")),
            ("RABBITMQ_CONFIG_FILE", site.path("rabbitmq")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", site.path("plugins")),
            ("RABBITMQ_PID_FILE", site.path("pid")),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".to_owned()),
        ]);
        command
    }

    /// It answers a client's first bytes. Over TLS it is enough that somebody listens.
    fn is_ready(&self, site: &Site<'_>) -> bool {
        let answer = || {
            let mut stream = TcpStream::connect(("127.0.0.1", site.port)).ok()?;
            if site.certificates.is_some() {
                return Some(METHOD_FRAME);
            }
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            stream.write_all(b"AMQP\x00\x00\x09\x01").ok()?;
            let mut answer = [0];
            stream.read_exact(&mut answer).ok()?;
            Some(answer[0])
        };
        answer() == Some(METHOD_FRAME)
    }
}

const METHOD_FRAME: u8 = 1;
