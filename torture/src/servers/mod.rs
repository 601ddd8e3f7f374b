//! Databases that the torture test starts, crashes and restarts.
//!
//! Only installed programs are used; `cargo xtask torture` installs them.

mod disk;
mod mariadb;
mod pgbouncer;
mod postgres;

use std::fmt;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use crate::guard::{Guard, Process};
pub use disk::Disk;
pub use pgbouncer::Pooler;

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatabaseKind {
    /// A file.
    Sqlite,
    /// A server.
    Postgres,
    /// A server.
    Mariadb,
}

impl DatabaseKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Postgres, Self::Mariadb, Self::Sqlite];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
        }
    }
}

impl fmt::Display for DatabaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DatabaseKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == text);
        kind.ok_or_else(|| format!("there is no database `{text}`: postgres, mariadb, sqlite, all"))
    }
}

/// A database under test.
#[derive(Debug)]
pub struct Server {
    /// Kind of database.
    pub kind: DatabaseKind,
    /// Its disk, if the disk can be filled.
    pub disk: Option<Disk>,
    home: PathBuf,
    /// Port of the server; unused for SQLite.
    pub port: u16,
    /// Prefix of table names.
    pub prefix: String,
    external: Option<String>,
    process: Option<Process>,
    guard: Guard,
}

impl Server {
    /// Starts a new database, on its own small disk if the disk is to be filled.
    pub async fn start(kind: DatabaseKind, guard: &Guard, small_disk: bool) -> Result<Self> {
        let home = guard.folder().join(kind.name());
        std::fs::create_dir(&home)?;
        let disk = small_disk.then(|| Disk::mount(&home, guard)).transpose()?;
        let mut server = Self {
            kind,
            disk,
            home,
            port: free_port()?,
            prefix: "t_".to_owned(),
            external: None,
            process: None,
            guard: guard.clone(),
        };
        match kind {
            DatabaseKind::Sqlite => {}
            DatabaseKind::Postgres => postgres::prepare(&server.home)?,
            DatabaseKind::Mariadb => mariadb::prepare(&server.home)?,
        }
        server.up().await?;
        Ok(server)
    }

    /// Uses a server that is already running and cannot be restarted; its tables get a unique
    /// prefix.
    pub fn external(kind: DatabaseKind, url: &str, guard: &Guard) -> Result<Self> {
        let address = url.rsplit('@').next().unwrap_or(url);
        let port = address.split(['/', '?']).next().and_then(|host| host.rsplit(':').next());
        let port = port.and_then(|port| port.parse().ok()).context("the URL has no port")?;
        Ok(Self {
            kind,
            disk: None,
            home: guard.folder().to_owned(),
            port,
            prefix: format!("t{}_{}_", std::process::id(), crate::clock::now() % 1_000_000),
            external: Some(url.to_owned()),
            process: None,
            guard: guard.clone(),
        })
    }

    /// Whether the torture test started the server and may restart it.
    pub fn is_managed(&self) -> bool {
        self.external.is_none()
    }

    /// URL of the database, through this port.
    pub fn url(&self, port: u16) -> String {
        match (&self.external, self.kind) {
            (Some(url), _) => url.replace(&format!(":{}", self.port), &format!(":{port}")),
            (None, DatabaseKind::Sqlite) => format!("sqlite:{}", self.home.join("outbox.db").display()),
            (None, DatabaseKind::Postgres) => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            (None, DatabaseKind::Mariadb) => format!("mysql://root@127.0.0.1:{port}/test"),
        }
    }

    /// URL of the database, without a proxy.
    pub fn direct(&self) -> String {
        self.url(self.port)
    }

    /// Crashes the server, as a power failure would.
    pub async fn down(&mut self) {
        if let Some(mut process) = self.process.take() {
            // PostgreSQL's immediate shutdown is a crash that releases its shared memory.
            let signal = if self.kind == DatabaseKind::Postgres { Signal::QUIT } else { Signal::KILL };
            process.end(signal, Duration::from_secs(20)).await;
        }
    }

    /// Starts the server if it is not running.
    pub async fn up(&mut self) -> Result<()> {
        if self.kind == DatabaseKind::Sqlite || !self.is_managed() || self.runs() {
            return Ok(());
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.answers() {
            if !self.runs() {
                self.process = Some(self.guard.spawn(self.command()?, &self.home.join("log"))?);
            }
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
                let tail = log.lines().rev().take(20).collect::<Vec<_>>().join("\n");
                bail!("{} does not start; the end of its log, last line first:\n{tail}", self.kind);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Whether the server's process is running.
    pub fn runs(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.ended().is_none())
    }

    fn command(&self) -> Result<Command> {
        match self.kind {
            DatabaseKind::Sqlite => bail!("SQLite has no server"),
            DatabaseKind::Postgres => postgres::serve(&self.home, self.port),
            DatabaseKind::Mariadb => mariadb::serve(&self.home, self.port),
        }
    }

    fn answers(&self) -> bool {
        match self.kind {
            DatabaseKind::Sqlite => true,
            DatabaseKind::Postgres => postgres::answers(&self.home),
            DatabaseKind::Mariadb => mariadb::answers(&self.home),
        }
    }
}

/// Finds a free port below the ephemeral range: an outgoing connection could take an ephemeral port
/// while the server restarts.
fn free_port() -> Result<u16> {
    for _ in 0..1_000 {
        let port = rand::random_range(15_000..20_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 from 15000 to 20000")
}

/// User or group id of an account.
fn account(option: &str, name: &str) -> Result<u32> {
    let output = Command::new("id").args([option, name]).output().context("cannot run `id`")?;
    let number = String::from_utf8_lossy(&output.stdout);
    number.trim().parse().with_context(|| format!("account {name} not found"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn run(mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{:?} failed: {}", command.get_program(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
