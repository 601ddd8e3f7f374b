//! PgBouncer in transaction mode, between the processes and PostgreSQL.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Signal;
use tokio::net::TcpStream;

use super::{account, free_port, is_root};
use crate::guard::{Guard, Process};

/// Paths at which distributions install PgBouncer, possibly outside the PATH.
const PROGRAMS: [&str; 2] = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];

/// A pooler that can be killed and started again.
#[derive(Debug)]
pub struct Pooler {
    /// Port of the pooler.
    pub port: u16,
    home: PathBuf,
    guard: Guard,
    process: Option<Process>,
}

impl Pooler {
    /// Whether PgBouncer is installed.
    pub fn is_installed() -> bool {
        program().is_some()
    }

    /// Starts a pooler in front of the PostgreSQL server on this port.
    pub async fn start(guard: &Guard, server: u16) -> Result<Self> {
        let home = guard.folder().join("pgbouncer");
        std::fs::create_dir(&home)?;
        let port = free_port()?;
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             pool_mode = transaction\nauth_type = trust\nauth_file = {users}\n\
             max_client_conn = 500\ndefault_pool_size = 30\nquery_wait_timeout = 20\nserver_login_retry = 1\n\
             ignore_startup_parameters = extra_float_digits,options\nlogfile =\npidfile =\n",
            users = home.join("users").display(),
        );
        std::fs::write(home.join("users"), "\"postgres\" \"\"\n")?;
        std::fs::write(home.join("pgbouncer.ini"), config)?;
        if is_root() {
            std::os::unix::fs::chown(&home, Some(account("-u", "postgres")?), None)?;
        }
        let mut pooler = Self { port, home, guard: guard.clone(), process: None };
        pooler.up().await?;
        Ok(pooler)
    }

    /// Kills the pooler.
    pub async fn down(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.end(Signal::KILL, Duration::from_secs(5)).await;
        }
    }

    /// Starts the pooler and waits until it accepts connections.
    pub async fn up(&mut self) -> Result<()> {
        let Some(program) = program() else {
            bail!("PgBouncer is not installed: `cargo xtask torture` installs it")
        };
        let mut command = Command::new(program);
        command.current_dir(&self.home);
        if is_root() {
            // PgBouncer refuses to run as root.
            command.args(["-u", "postgres"]);
        }
        command.arg(self.home.join("pgbouncer.ini"));
        self.process = Some(self.guard.spawn(command, &self.home.join("log"))?);
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
                bail!("PgBouncer does not start: {log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

fn program() -> Option<&'static str> {
    PROGRAMS.into_iter().find(|program| std::path::Path::new(program).is_file())
}
