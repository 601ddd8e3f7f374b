//! Throw-away servers: each on a free port of 127.0.0.1, with its data in a folder that goes away with it.
//!
//! A new kind of server is a file with a [`Recipe`] and its line in [`ALL`].

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

/// What one kind of server needs; installing, starting, stopping and removing it is the same for all.
pub(crate) trait Recipe: Sync {
    /// In `--only`, in what xtask prints, and in the folder's name.
    fn name(&self) -> &'static str;

    /// The environment variable in which tests find its address.
    fn variable(&self) -> &'static str;

    fn by_default(&self) -> bool {
        true
    }

    /// Debian packages that it cannot run without and that are not here.
    fn missing_packages(&self) -> Vec<&'static str>;

    /// Brings what no package of this system holds.
    fn fetch(&self, _may_download: bool) -> Result<()> {
        Ok(())
    }

    /// The account to run as where root may not.
    fn account_for_root(&self) -> Option<&'static str> {
        None
    }

    /// What ends it at once without leaving anything behind.
    fn stop(&self) -> Stop {
        Stop::Kill
    }

    /// Makes its empty data folder.
    fn prepare(&self, home: &mut Home) -> Result<()>;

    /// The server in the foreground.
    fn serve(&self, home: &Home, port: u16) -> Result<Command>;

    /// Its version, as soon as it takes connections.
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

    /// What to tell when it did not last.
    pub(crate) fn obituary(&mut self) -> Result<Option<String>> {
        let Some(status) = self.home.cleanup.ended()? else { return Ok(None) };
        Ok(Some(format!("{} ended on its own ({status})\n{}", self.name, self.home.log_tail())))
    }
}

/// Starts the servers that the options name, side by side, and installs first what they need.
pub(crate) fn start(options: &Options) -> Result<Vec<Server>> {
    fetch(options)?;
    thread::scope(|scope| {
        let start = |recipe| scope.spawn(move || start_one(recipe));
        let starting: Vec<_> = options.servers().into_iter().map(start).collect();
        starting.into_iter().map(|thread| thread.join().expect("start_one does not panic")).collect()
    })
}

/// Installs and downloads what these servers need.
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

/// Installs what the torture test starts by itself: databases, a pooler, a broker, and a library that shifts clocks.
pub(crate) fn install_for_torture(options: &Options) -> Result<()> {
    let recipes: [&dyn Recipe; 2] = [&postgres::Postgres, &mariadb::Mariadb];
    let mut missing: Vec<&str> = recipes.iter().flat_map(|recipe| recipe.missing_packages()).collect();
    missing.extend(brokers::missing_for_torture());
    apt::install(&missing, options.install)
}

/// Starts PostgreSQL for the benchmarks, and installs the brokers that they start themselves.
pub(crate) fn start_for_bench(may_install: bool) -> Result<Server> {
    let recipe: &dyn Recipe = &postgres::Postgres;
    let mut missing = recipe.missing_packages();
    // Without a broker a scenario is shorter; without the server there is none.
    if may_install {
        missing.extend(brokers::missing_packages());
    }
    apt::install(&missing, may_install)?;
    start_one(recipe)
}

/// The variables in which tests find the servers. MySQL without MariaDB stands in MariaDB's place,
/// and has no variable of its own: a test that uses all servers would meet it twice.
pub(crate) fn addresses(servers: &[Server]) -> impl Iterator<Item = (&'static str, &str)> {
    let stands_in = !servers.iter().any(|server| server.is("mariadb"));
    servers.iter().map(move |server| {
        let variable = if stands_in && server.is("mysql") { MARIADB } else { server.variable };
        (variable, server.url.as_str())
    })
}

const MARIADB: &str = "OUTBOX_TEST_MARIADB";

/// Starts the servers for `cargo test` by hand and keeps them until told to stop.
pub(crate) fn serve(options: &Options) -> Result<()> {
    let servers = start(options)?;
    for (variable, url) in addresses(&servers) {
        println!("export {variable}={url}");
    }
    wait_for_the_end()
}

/// A pipe that closes is the end; otherwise only a signal is, and then [`crate::cleanup`] does the rest.
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

/// Another process may take the port between our look and the server's start: then try the next.
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

/// `None` when the server ended instead.
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
