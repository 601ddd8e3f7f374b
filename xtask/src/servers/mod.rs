//! Temporary servers: each listens on a free port of 127.0.0.1 and keeps its data in a folder that
//! is removed with it.
//!
//! A new kind of server is a file with a [`Recipe`] and an entry in [`ALL`].

mod apt;
mod brokers;
mod home;
mod languages;
mod mariadb;
mod mysql;
mod postgres;

use std::fs::File;
use std::io::{self, IsTerminal};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::browser;
use crate::cleanup::Stop;
use crate::options::Options;
use home::Home;

pub(crate) const ALL: [&dyn Recipe; 3] = [&postgres::Postgres, &mariadb::Mariadb, &mysql::Mysql];

/// How to install and run one kind of server. Starting, stopping and removing are the same for all.
pub(crate) trait Recipe: Sync {
    /// Name in `--only`, in xtask's output and in the folder's name.
    fn name(&self) -> &'static str;

    /// The environment variable in which tests find the server's URL.
    fn variable(&self) -> &'static str;

    fn by_default(&self) -> bool {
        true
    }

    /// Required Debian packages that are not installed.
    fn missing_packages(&self) -> Vec<&'static str>;

    /// Downloads programs that are not available as packages of this system.
    fn fetch(&self, _may_download: bool) -> Result<()> {
        Ok(())
    }

    /// The account to run as if the server refuses to run as root.
    fn account_for_root(&self) -> Option<&'static str> {
        None
    }

    /// The signal that ends the server at once without leaking resources.
    fn stop(&self) -> Stop {
        Stop::Kill
    }

    /// Creates the empty data folder.
    fn prepare(&self, home: &mut Home) -> Result<()>;

    /// The command that runs the server in the foreground.
    fn serve(&self, home: &Home, port: u16) -> Result<Command>;

    /// The server's version, once it accepts connections.
    fn ready(&self, home: &Home) -> Option<String>;

    fn url(&self, port: u16) -> String;
}

/// A running server. Dropping it stops it and removes its folder.
pub(crate) struct Server {
    pub(crate) variable: &'static str,
    pub(crate) url: String,
    name: &'static str,
    home: Home,
}

impl Server {
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// Describes how the server ended, if it has ended unexpectedly.
    pub(crate) fn exit_report(&mut self) -> Result<Option<String>> {
        let Some(status) = self.home.cleanup.ended()? else { return Ok(None) };
        Ok(Some(format!("{} ended on its own ({status})\n{}", self.name, self.home.log_tail())))
    }
}

/// Installs and starts the servers that the options name, concurrently.
pub(crate) fn start(options: &Options) -> Result<Vec<Server>> {
    fetch(options)?;
    thread::scope(|scope| {
        let start = |recipe| scope.spawn(move || start_one(recipe));
        let starting: Vec<_> = options.servers().into_iter().map(start).collect();
        starting.into_iter().map(|thread| thread.join().expect("start_one does not panic")).collect()
    })
}

/// Installs and downloads the programs of these servers.
pub(crate) fn fetch(options: &Options) -> Result<()> {
    let recipes = options.servers();
    let mut missing: Vec<&str> = recipes.iter().flat_map(|recipe| recipe.missing_packages()).collect();
    if options.require_servers() {
        missing.extend(brokers::missing_packages());
        missing.extend(languages::missing_packages());
        missing.extend(browser::missing_packages());
    }
    apt::install(&missing, options.install)?;
    recipes.iter().try_for_each(|recipe| recipe.fetch(options.install))
}

/// Installs the servers of the torture test: databases, a pooler, a broker, and libfaketime.
pub(crate) fn install_for_torture(options: &Options) -> Result<()> {
    let recipes: [&dyn Recipe; 2] = [&postgres::Postgres, &mariadb::Mariadb];
    let mut missing: Vec<&str> = recipes.iter().flat_map(|recipe| recipe.missing_packages()).collect();
    missing.extend(brokers::missing_for_torture());
    apt::install(&missing, options.install)
}

/// Starts PostgreSQL for the benchmarks, and installs the brokers that the benchmarks start.
pub(crate) fn start_for_bench(may_install: bool) -> Result<Server> {
    let recipe: &dyn Recipe = &postgres::Postgres;
    let mut missing = recipe.missing_packages();
    // The benchmarks skip a broker that is missing; they cannot run without PostgreSQL.
    if may_install {
        missing.extend(brokers::missing_packages());
    }
    apt::install(&missing, may_install)?;
    start_one(recipe)
}

/// The variables in which tests find the servers. MySQL without MariaDB uses MariaDB's variable
/// only: a test that runs on all servers would use it twice otherwise.
pub(crate) fn addresses(servers: &[Server]) -> impl Iterator<Item = (&'static str, &str)> {
    let stands_in = !servers.iter().any(|server| server.is("mariadb"));
    servers.iter().map(move |server| {
        let variable = if stands_in && server.is("mysql") { MARIADB } else { server.variable };
        (variable, server.url.as_str())
    })
}

const MARIADB: &str = "OUTBOX_TEST_MARIADB";

/// Starts the servers for a manual `cargo test` and keeps them running until xtask is stopped.
pub(crate) fn serve(options: &Options) -> Result<()> {
    let servers = start(options)?;
    for (variable, url) in addresses(&servers) {
        println!("export {variable}={url}");
    }
    wait_for_the_end()
}

/// Waits until the input pipe closes, or forever: a signal ends xtask, and [`crate::cleanup`] stops
/// the servers.
fn wait_for_the_end() -> Result<()> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        eprintln!("Ctrl-C stops the servers");
    }
    let input = File::from(stdin.as_fd().try_clone_to_owned()?);
    let kind = input.metadata()?.file_type();
    if kind.is_fifo() || kind.is_socket() {
        io::copy(&mut stdin.lock(), &mut io::sink())?;
        return Ok(());
    }
    loop {
        thread::park();
    }
}

fn start_one(recipe: &'static dyn Recipe) -> Result<Server> {
    let began = Instant::now();
    let name = recipe.name();
    let mut home = Home::of_server(recipe)?;
    let started = recipe.prepare(&mut home).and_then(|()| serve_on_free_port(recipe, &mut home));
    let (port, version) =
        started.map_err(|error| anyhow!("{name} did not start: {error:#}\n{}", home.log_tail()))?;
    eprintln!("{name} {version} on port {port} ({:.1} s)", began.elapsed().as_secs_f32());
    Ok(Server { variable: recipe.variable(), url: recipe.url(port), name, home })
}

/// Tries up to three ports, since another process may take a free port before the server binds it.
fn serve_on_free_port(recipe: &dyn Recipe, home: &mut Home) -> Result<(u16, String)> {
    for _ in 0..3 {
        let port = free_port()?;
        let command = recipe.serve(home, port)?;
        home.spawn(command, recipe.stop())?;
        if let Some(version) = wait_until_ready(recipe, home)? {
            return Ok((port, version));
        }
    }
    bail!("it ended right after its start, three times")
}

/// Waits until the server accepts connections; `None` if it ended instead.
fn wait_until_ready(recipe: &dyn Recipe, home: &mut Home) -> Result<Option<String>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if home.cleanup.ended()?.is_some() {
            return Ok(None);
        }
        if let Some(version) = recipe.ready(home) {
            return Ok(Some(version));
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("it took no connection within a minute")
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}
