//! Relay processes with databases and files in a temporary folder.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use outbox::Outbox;
use polling::TIMEOUT;
use sqlx::Sqlite;

#[path = "../polling/mod.rs"]
pub mod polling;

/// Temporary folder of one test.
pub struct TestDir {
    folder: tempfile::TempDir,
}

impl TestDir {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a settings file. `{}` in the text stands for the folder.
    pub fn config(&self, text: &str) -> PathBuf {
        let file = self.path("outbox.toml");
        std::fs::write(&file, text.replace("{}", &self.folder.path().display().to_string())).unwrap();
        file
    }

    pub fn url(&self, name: &str) -> String {
        format!("sqlite:{}", self.path(name).display())
    }

    /// Creates an outbox with its tables.
    pub async fn outbox(&self, name: &str) -> Outbox<Sqlite> {
        let outbox = Outbox::sqlite(&self.url(name)).await.unwrap();
        outbox.migrate().await.unwrap();
        outbox
    }

    /// Types of the events in a file of JSON lines.
    pub fn types(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(file)).unwrap_or_default();
        let event_type = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).ok()?["type"].as_str().map(Into::into)
        };
        text.lines().filter_map(event_type).collect()
    }

    /// Starts a relay with this settings file.
    pub fn relay(&self, name: &str, config: &Path, arguments: &[&str]) -> Daemon {
        self.started(name, Command::new(env!("CARGO_BIN_EXE_outbox")), config, arguments)
    }

    /// Starts a relay in a process with this limit of open files.
    pub fn relay_with_files(&self, name: &str, config: &Path, arguments: &[&str], files: usize) -> Daemon {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -Sn {files} && exec \"$0\" \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_outbox")]);
        self.started(name, command, config, arguments)
    }

    fn started(&self, name: &str, mut command: Command, config: &Path, arguments: &[&str]) -> Daemon {
        let log = self.path(&format!("{name}.log"));
        command.arg("relay").arg("--config").arg(config).args(arguments);
        command.env_remove("DATABASE_URL").env_remove("OUTBOX_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        Daemon { child: command.spawn().unwrap(), log }
    }

    /// Starts a relay with a terminal as its standard error, by `script`.
    pub fn relay_at_a_terminal(&self, name: &str, config: &Path, arguments: &[&str]) -> Daemon {
        let log = self.path(&format!("{name}.log"));
        let relay = format!(
            "stty cols 500; NO_COLOR=1 exec '{}' relay --config '{}' {}",
            env!("CARGO_BIN_EXE_outbox"),
            config.display(),
            arguments.join(" ")
        );
        std::fs::File::create(&log).unwrap();
        let mut command = Command::new("script");
        command.args(["-qefc", &relay]).arg(&log);
        command.env_remove("DATABASE_URL").env_remove("OUTBOX_LOG");
        // Kept open: `script` forwards its input to the relay.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Daemon { child: command.spawn().expect("util-linux has `script`"), log }
    }
}

/// A relay process.
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log contains this text.
    pub async fn wait_for_log(&self, what: &str) {
        wait_until(&format!("{what:?} in the log"), || self.log().contains(what), || self.log()).await;
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Stops the process by SIGTERM.
    pub async fn stop(mut self) -> (ExitStatus, String) {
        self.signal("TERM");
        (self.wait_for_exit().await, self.log())
    }

    /// Waits until the process exits.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        let Self { child, log } = self;
        let exited = async || child.try_wait().unwrap().ok_or("");
        let details = || std::fs::read_to_string(&*log).unwrap_or_default();
        polling::within(TIMEOUT, "the process exits", exited, details).await
    }

    /// Sends a GET request, and returns the status and the body.
    pub fn get(&self, path: &str) -> (u16, String) {
        let log = self.log();
        let address =
            log.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("the relay listens");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Waits until `/readyz` answers 200. Returns its body.
    pub async fn wait_until_ready(&self) -> String {
        let ready = async || match self.get("/readyz") {
            (200, body) => Ok(body),
            (_, body) => Err(body),
        };
        polling::within(TIMEOUT, "the relay is ready", ready, || self.log()).await
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // With a terminal the relay is a child of `script`, and Ctrl-C ends both.
        if let Some(mut terminal) = self.child.stdin.take() {
            let _ = terminal.write_all(b"\x03");
            let end = Instant::now() + TIMEOUT;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the condition holds.
pub async fn wait_until(what: &str, condition: impl Fn() -> bool, details: impl Fn() -> String) {
    polling::until(what, async || condition(), details).await;
}

/// Repeats a request while the status is 503, which `/readyz` returns while a relay starts, and
/// while its database takes more than 3 s to answer.
pub fn retry_while_starting(request: impl Fn() -> u16) -> u16 {
    let end = Instant::now() + TIMEOUT;
    loop {
        let status = request();
        if status != 503 || Instant::now() > end {
            return status;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A Redis server that can be started later.
#[cfg(feature = "redis")]
pub struct Redis {
    pub port: u16,
    folder: PathBuf,
    /// Bound and not listening: refuses connections, and keeps the port from other processes until
    /// the server listens.
    _held: tokio::net::TcpSocket,
    server: Option<Child>,
}

#[cfg(feature = "redis")]
impl Redis {
    /// Reserves a port. Fails if no `redis-server` is installed.
    pub fn new(dir: &TestDir) -> std::io::Result<Self> {
        Command::new("redis-server").arg("--version").stdout(Stdio::null()).status()?;
        let held = tokio::net::TcpSocket::new_v4()?;
        // The server binds the same port with the same option.
        held.set_reuseaddr(true)?;
        held.bind(([127, 0, 0, 1], 0).into())?;
        let port = held.local_addr()?.port();
        Ok(Self { port, folder: dir.folder.path().to_owned(), _held: held, server: None })
    }

    pub fn start(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
        self.server = Some(command.arg(&self.folder).stdout(Stdio::null()).spawn().unwrap());
    }

    /// First line of the response to a command; empty if there is no response.
    pub fn query(&self, what: &str) -> String {
        let query = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            write!(stream, "{what}\r\nQUIT\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer.lines().next().unwrap_or_default().to_owned())
        };
        query().unwrap_or_default()
    }
}

#[cfg(feature = "redis")]
impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
