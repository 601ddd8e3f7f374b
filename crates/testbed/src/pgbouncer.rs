//! PgBouncer in transaction mode, in front of a PostgreSQL server.

use std::net::TcpStream;
use std::process::Command;

use crate::kind::{Instance, ServerKind, debian};

pub(crate) struct Pgbouncer;

impl ServerKind for Pgbouncer {
    fn name(&self) -> &'static str {
        "pgbouncer"
    }

    fn server(&self) -> &'static str {
        "pgbouncer"
    }

    fn install_hint(&self) -> String {
        debian("pgbouncer")
    }

    fn schemes(&self) -> (&'static str, &'static str) {
        ("postgres", "postgres")
    }

    fn path(&self) -> &'static str {
        "/postgres"
    }

    /// Every client becomes the user of the upstream. `ignore_startup_parameters` is not set, so
    /// PgBouncer refuses all startup parameters that it refuses by default.
    fn configure(&self, instance: &Instance<'_>) {
        let upstream = instance.plan.upstream.as_deref().expect("set by `Plan::pgbouncer`");
        let mut lines = vec![
            "[databases]".to_owned(),
            format!("* = {upstream}"),
            "[pgbouncer]".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {}", instance.port),
            "unix_socket_dir =".to_owned(),
            "auth_type = any".to_owned(),
            "pool_mode = transaction".to_owned(),
            "default_pool_size = 5".to_owned(),
            "max_client_conn = 500".to_owned(),
        ];
        if let Some(certificates) = instance.certificates {
            let (certificate, key) = &certificates.server;
            lines.extend([
                "client_tls_sslmode = require".to_owned(),
                format!("client_tls_cert_file = {}", certificate.display()),
                format!("client_tls_key_file = {}", key.display()),
            ]);
        }
        instance.write("pgbouncer.ini", &lines);
    }

    fn command(&self, instance: &Instance<'_>) -> Command {
        let mut command = instance.command(&self.program(self.server()));
        if rustix::process::geteuid().is_root() {
            // PgBouncer refuses to run as root.
            command.args(["--user", "postgres"]);
        }
        command.arg("pgbouncer.ini");
        command
    }

    fn is_ready(&self, instance: &Instance<'_>) -> bool {
        TcpStream::connect(("127.0.0.1", instance.port)).is_ok()
    }
}
