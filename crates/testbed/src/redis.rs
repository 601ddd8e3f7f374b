//! Redis, which syncs every change to disk before it replies.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use crate::kind::{Instance, ServerKind, debian};
use crate::plan::Tls;

pub(crate) struct Redis;

impl ServerKind for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn server(&self) -> &'static str {
        "redis-server"
    }

    fn install_hint(&self) -> String {
        debian("redis-server")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("redis", "rediss")
    }

    fn configure(&self, instance: &Instance<'_>) {
        let mut lines: Vec<String> = vec![
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", instance.folder.display()),
            format!("unixsocket {}", instance.path("socket")),
            "appendonly yes".to_owned(),
            "appendfsync always".to_owned(),
            "save \"\"".to_owned(),
        ];
        match instance.certificates {
            None => lines.push(format!("port {}", instance.port)),
            Some(certificates) => {
                let (certificate, key) = &certificates.server;
                let clients = if instance.plan.tls == Some(Tls::Mutual) { "yes" } else { "no" };
                lines.extend([
                    "port 0".to_owned(),
                    format!("tls-port {}", instance.port),
                    format!("tls-cert-file {}", certificate.display()),
                    format!("tls-key-file {}", key.display()),
                    format!("tls-ca-cert-file {}", certificates.ca.display()),
                    format!("tls-auth-clients {clients}"),
                ]);
            }
        }
        if let Some((user, password)) = &instance.plan.user {
            lines.push("user default off".to_owned());
            lines.push(format!("user {user} on >{password} ~* &* +@all"));
        }
        instance.write("redis.conf", &lines);
    }

    fn command(&self, instance: &Instance<'_>) -> Command {
        let mut command = instance.command(&self.program(self.server()));
        command.arg("redis.conf");
        command
    }

    /// Checks the Unix socket, which needs no TLS. While Redis loads its data the reply is
    /// `-LOADING`.
    fn is_ready(&self, instance: &Instance<'_>) -> bool {
        let answer = || {
            TcpStream::connect(("127.0.0.1", instance.port)).ok()?;
            let mut stream = UnixStream::connect(instance.folder.join("socket")).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            stream.write_all(b"PING\r\n").ok()?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).ok()?;
            Some(answer)
        };
        matches!(answer().as_ref(), Some(b"+PONG" | b"-NOAU"))
    }
}
