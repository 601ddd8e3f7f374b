//! Redis, which writes every change to disk before it answers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use crate::kind::{Kind, Site, debian};
use crate::plan::Tls;

pub(crate) struct Redis;

impl Kind for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn server(&self) -> &'static str {
        "redis-server"
    }

    fn how_to_get(&self) -> String {
        debian("redis-server")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("redis", "rediss")
    }

    fn configure(&self, site: &Site<'_>) {
        let mut lines: Vec<String> = vec![
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", site.folder.display()),
            format!("unixsocket {}", site.path("socket")),
            "appendonly yes".to_owned(),
            "appendfsync always".to_owned(),
            "save \"\"".to_owned(),
        ];
        match site.certificates {
            None => lines.push(format!("port {}", site.port)),
            Some(certificates) => {
                let (certificate, key) = &certificates.server;
                let clients = if site.plan.tls == Some(Tls::Mutual) { "yes" } else { "no" };
                lines.extend([
                    "port 0".to_owned(),
                    format!("tls-port {}", site.port),
                    format!("tls-cert-file {}", certificate.display()),
                    format!("tls-key-file {}", key.display()),
                    format!("tls-ca-cert-file {}", certificates.ca.display()),
                    format!("tls-auth-clients {clients}"),
                ]);
            }
        }
        if let Some((user, password)) = &site.plan.user {
            lines.push("user default off".to_owned());
            lines.push(format!("user {user} on >{password} ~* &* +@all"));
        }
        site.write("redis.conf", &lines);
    }

    fn command(&self, site: &Site<'_>) -> Command {
        let mut command = site.command(&self.program(self.server()));
        command.arg("redis.conf");
        command
    }

    /// By the socket in its own folder, which needs no TLS. While it reads its data back it says `-LOADING`.
    fn is_ready(&self, site: &Site<'_>) -> bool {
        let answer = || {
            TcpStream::connect(("127.0.0.1", site.port)).ok()?;
            let mut stream = UnixStream::connect(site.folder.join("socket")).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            stream.write_all(b"PING\r\n").ok()?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).ok()?;
            Some(answer)
        };
        matches!(answer().as_ref(), Some(b"+PONG" | b"-NOAU"))
    }
}
