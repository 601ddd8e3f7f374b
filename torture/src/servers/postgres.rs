//! PostgreSQL.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{account, is_root, run};

pub(super) fn prepare(home: &Path) -> Result<()> {
    let mut initdb = command(home, "initdb")?;
    initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]);
    // Small WAL segments, for a small disk.
    initdb.args(["--wal-segsize=4", "--pgdata"]).arg(home.join("data"));
    run(initdb)
}

pub(super) fn serve(home: &Path, port: u16) -> Result<Command> {
    let mut postgres = command(home, "postgres")?;
    postgres.arg("-D").arg(home.join("data"));
    for setting in [
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        format!("unix_socket_directories={}", home.display()),
        "max_connections=300".to_owned(),
        "max_wal_size=64MB".to_owned(),
        "min_wal_size=8MB".to_owned(),
        // Only processes crash here, not the machine, so the page cache survives.
        "fsync=off".to_owned(),
        // Otherwise backends of disconnected clients hold their locks until they try to respond.
        "client_connection_check_interval=1s".to_owned(),
    ] {
        postgres.arg("-c").arg(setting);
    }
    Ok(postgres)
}

/// Whether the server accepts connections: the last line of its pid file says so, as `pg_ctl
/// --wait` checks.
pub(super) fn answers(home: &Path) -> bool {
    let pid_file = std::fs::read_to_string(home.join("data/postmaster.pid")).unwrap_or_default();
    pid_file.lines().nth(7).is_some_and(|line| line.trim() == "ready")
}

/// A command that runs as `postgres` when this process is root: PostgreSQL refuses to run as root.
fn command(home: &Path, program: &str) -> Result<Command> {
    let mut command = Command::new(programs()?.join(program));
    command.current_dir(home).env("LC_ALL", "C");
    if is_root() {
        let (user, group) = (account("-u", "postgres")?, account("-g", "postgres")?);
        chown(home, Some(user), Some(group))?;
        // The server must reach its folder through the guard's folder, which only root can access.
        if let Some(parent) = home.parent() {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o711))?;
        }
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// Folder of the newest version's programs. Debian does not put the server's programs on the PATH.
fn programs() -> Result<PathBuf> {
    let of_debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = of_debian.map(|version| version.path().join("bin"));
    let newest = versions.filter(|bin| bin.join("initdb").is_file()).max_by_key(|bin| {
        bin.parent().and_then(|version| version.file_name()?.to_str()?.parse::<u32>().ok())
    });
    let on_path =
        || std::env::split_paths(&std::env::var_os("PATH")?).find(|bin| bin.join("initdb").is_file());
    newest.or_else(on_path).context("PostgreSQL is not installed: `cargo xtask torture` installs it")
}
