//! PgBouncer in transaction mode, in front of a PostgreSQL server.

use std::net::TcpStream;
use std::process::Command;

use crate::kind::{Kind, Site, debian};

pub(crate) struct Pgbouncer;

impl Kind for Pgbouncer {
    fn name(&self) -> &'static str {
        "pgbouncer"
    }

    fn server(&self) -> &'static str {
        "pgbouncer"
    }

    fn how_to_get(&self) -> String {
        debian("pgbouncer")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("postgres", "postgres")
    }

    fn path(&self) -> &'static str {
        "/postgres"
    }

    /// Every client is the user that the upstream names. There is no setting for what clients may ask
    /// for when they start, so all that PgBouncer refuses by default is refused.
    fn configure(&self, site: &Site<'_>) {
        let upstream = site.plan.upstream.as_deref().expect("`Plan::pgbouncer` names it");
        let mut lines = vec![
            "[databases]".to_owned(),
            format!("* = {upstream}"),
            "[pgbouncer]".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {}", site.port),
            "unix_socket_dir =".to_owned(),
            "auth_type = any".to_owned(),
            "pool_mode = transaction".to_owned(),
            "default_pool_size = 5".to_owned(),
            "max_client_conn = 500".to_owned(),
        ];
        if let Some(certificates) = site.certificates {
            let (certificate, key) = &certificates.server;
            lines.extend([
                "client_tls_sslmode = require".to_owned(),
                format!("client_tls_cert_file = {}", certificate.display()),
                format!("client_tls_key_file = {}", key.display()),
            ]);
        }
        site.write("pgbouncer.ini", &lines);
    }

    fn command(&self, site: &Site<'_>) -> Command {
        let mut command = site.command(&self.program(self.server()));
        if rustix::process::geteuid().is_root() {
            // It does not run as root.
            command.args(["--user", "postgres"]);
        }
        command.arg("pgbouncer.ini");
        command
    }

    fn is_ready(&self, site: &Site<'_>) -> bool {
        TcpStream::connect(("127.0.0.1", site.port)).is_ok()
    }
}
