//! MariaDB.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{is_root, run};

pub(super) fn prepare(home: &Path) -> Result<()> {
    let mut install = Command::new("mariadb-install-db");
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    install.arg("--innodb-log-file-size=16M");
    install.arg(format!("--datadir={}", home.join("data").display())).env("TMPDIR", home).current_dir(home);
    if is_root() {
        install.arg("--user=root");
    }
    run(install)?;
    std::fs::write(home.join("init.sql"), "CREATE DATABASE IF NOT EXISTS test;\n")?;
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "as its neighbour")]
pub(super) fn serve(home: &Path, port: u16) -> Result<Command> {
    let mut mariadbd = Command::new("mariadbd");
    let at = |name: &str| home.join(name).display().to_string();
    mariadbd.arg("--no-defaults").current_dir(home).env("TMPDIR", home);
    mariadbd.args([
        format!("--datadir={}", at("data")),
        format!("--socket={}", at("socket")),
        format!("--pid-file={}", at("pid")),
        format!("--init-file={}", at("init.sql")),
        format!("--port={port}"),
    ]);
    mariadbd.args(["--bind-address=127.0.0.1", "--max-connections=300", "--innodb-log-file-size=16M"]);
    // Only processes crash here, not the machine, so the page cache survives.
    mariadbd.args(["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"]);
    if is_root() {
        mariadbd.arg("--user=root");
    }
    Ok(mariadbd)
}

pub(super) fn answers(home: &Path) -> bool {
    UnixStream::connect(home.join("socket")).is_ok()
}
