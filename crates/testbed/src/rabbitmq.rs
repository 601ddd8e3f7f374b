//! RabbitMQ.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::kind::{Instance, ServerKind, debian};
use crate::plan::Tls;

pub(crate) struct Rabbitmq;

/// The wrapper on the PATH would switch to the user `rabbitmq`.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Erlang starts its port mapper daemon (epmd) in its own session, where it would outlive the test.
/// So epmd is started first, in our process group.
const WITH_EPMD: &str = r#""$1" -address 127.0.0.1 & exec "$2""#;

impl ServerKind for Rabbitmq {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn server(&self) -> &'static str {
        "rabbitmq-server"
    }

    fn install_hint(&self) -> String {
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

    /// The ports of the server, of the Erlang distribution and of epmd.
    fn ports(&self) -> u16 {
        3
    }

    fn configure(&self, instance: &Instance<'_>) {
        fs::create_dir(instance.folder.join("home")).expect("the folder can be written to");
        fs::write(instance.folder.join("plugins"), "[].").expect("the folder can be written to");
        let mut lines = vec!["loopback_users = none".to_owned(), "log.file.level = warning".to_owned()];
        if let Some((user, password)) = &instance.plan.user {
            lines.extend([format!("default_user = {user}"), format!("default_pass = {password}")]);
        }
        match instance.certificates {
            None => lines.push(format!("listeners.tcp.default = 127.0.0.1:{}", instance.port)),
            Some(certificates) => {
                let (certificate, key) = &certificates.server;
                let mutual = instance.plan.tls == Some(Tls::Mutual);
                lines.extend([
                    "listeners.tcp = none".to_owned(),
                    format!("listeners.ssl.default = 127.0.0.1:{}", instance.port),
                    format!("ssl_options.certfile = {}", certificate.display()),
                    format!("ssl_options.keyfile = {}", key.display()),
                    format!("ssl_options.cacertfile = {}", certificates.ca.display()),
                    format!("ssl_options.verify = {}", if mutual { "verify_peer" } else { "verify_none" }),
                    format!("ssl_options.fail_if_no_peer_cert = {mutual}"),
                ]);
            }
        }
        instance.write("rabbitmq.conf", &lines);
    }

    fn command(&self, instance: &Instance<'_>) -> Command {
        let server = Some(PathBuf::from(SERVER)).filter(|server| server.is_file());
        let server = server.unwrap_or_else(|| self.program(self.server()));
        let mut command = instance.command(Path::new("/bin/sh"));
        command.args(["-c", WITH_EPMD, "rabbitmq"]).arg(self.program("epmd")).arg(server);
        command.envs([
            ("HOME", instance.path("home")),
            // Makes the script exec the server instead of waiting for it, so that signals reach the
            // server.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
            ("RABBITMQ_NODENAME", format!("t{}@localhost", instance.port)),
            ("RABBITMQ_DIST_PORT", (instance.port + 1).to_string()),
            ("ERL_EPMD_PORT", (instance.port + 2).to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_MNESIA_BASE", instance.path("mnesia")),
            ("RABBITMQ_LOG_BASE", instance.path("logs")),
            ("RABBITMQ_CONFIG_FILE", instance.path("rabbitmq")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", instance.path("plugins")),
            ("RABBITMQ_PID_FILE", instance.path("pid")),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".to_owned()),
        ]);
        command
    }

    /// Ready when the server replies to the protocol header. With TLS an open port is enough.
    fn is_ready(&self, instance: &Instance<'_>) -> bool {
        let answer = || {
            let mut stream = TcpStream::connect(("127.0.0.1", instance.port)).ok()?;
            if instance.certificates.is_some() {
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
