//! PostgreSQL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Recipe;
use super::home::Home;
use crate::cleanup::Stop;
use crate::program;

pub(crate) struct Postgres;

impl Recipe for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn variable(&self) -> &'static str {
        "OUTBOX_TEST_POSTGRES"
    }

    fn missing_packages(&self) -> Vec<&'static str> {
        if programs().is_some() { Vec::new() } else { vec!["postgresql"] }
    }

    /// PostgreSQL refuses to run as root.
    fn account_for_root(&self) -> Option<&'static str> {
        Some("postgres")
    }

    /// Immediate shutdown: no final checkpoint, but shared memory is released, which SIGKILL would
    /// leak.
    fn stop(&self) -> Stop {
        Stop::Quit
    }

    fn prepare(&self, home: &mut Home) -> Result<()> {
        let mut initdb = home.command(&tool("initdb")?);
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]);
        initdb.arg("--pgdata").arg(data(home));
        home.run(initdb)
    }

    fn serve(&self, home: &Home, port: u16) -> Result<Command> {
        let mut postgres = home.command(&tool("postgres")?);
        postgres.arg("-D").arg(data(home));
        let settings = [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".to_owned(),
            format!("unix_socket_directories={}", home.folder.display()),
            "wal_level=logical".to_owned(),
            "max_connections=300".to_owned(),
            "max_prepared_transactions=50".to_owned(),
        ];
        for setting in settings {
            postgres.arg("-c").arg(setting);
        }
        Ok(postgres)
    }

    /// The last line of the pid file says `ready`, as `pg_ctl --wait` checks.
    fn ready(&self, home: &Home) -> Option<String> {
        let pid_file = fs::read_to_string(data(home).join("postmaster.pid")).ok()?;
        let is_ready = pid_file.lines().nth(7)?.trim() == "ready";
        is_ready.then(version)
    }

    fn url(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }
}

fn data(home: &Home) -> PathBuf {
    home.path("data")
}

fn tool(name: &str) -> Result<PathBuf> {
    Ok(programs().context("PostgreSQL's initdb is not installed")?.join(name))
}

/// Folder of the newest version's programs. Debian does not put the server's programs on the PATH.
fn programs() -> Option<PathBuf> {
    let of_debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    of_debian
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").is_file())
        .max_by_key(|bin| major_version(bin))
        .or_else(|| Some(program::find("initdb")?.parent()?.to_owned()))
}

fn major_version(bin: &Path) -> Option<u32> {
    bin.parent()?.file_name()?.to_str()?.parse().ok()
}

/// Parses the output `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn version() -> String {
    let printed =
        tool("postgres").and_then(|postgres| Ok(Command::new(postgres).arg("--version").output()?.stdout));
    let printed = String::from_utf8(printed.unwrap_or_default()).unwrap_or_default();
    printed.split_whitespace().nth(2).unwrap_or("of unknown version").to_owned()
}
