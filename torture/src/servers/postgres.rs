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
    // Small files of WAL, for a small disk.
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
        // Processes end here, not machines: what is written is there.
        "fsync=off".to_owned(),
        // Backends of clients that are gone would hold their locks until they try to answer.
        "client_connection_check_interval=1s".to_owned(),
    ] {
        postgres.arg("-c").arg(setting);
    }
    Ok(postgres)
}

/// The last line of its pid file tells, as it tells `pg_ctl --wait`.
pub(super) fn answers(home: &Path) -> bool {
    let pid_file = std::fs::read_to_string(home.join("data/postmaster.pid")).unwrap_or_default();
    pid_file.lines().nth(7).is_some_and(|line| line.trim() == "ready")
}

/// PostgreSQL refuses to run as root.
fn command(home: &Path, program: &str) -> Result<Command> {
    let mut command = Command::new(programs()?.join(program));
    command.current_dir(home).env("LC_ALL", "C");
    if is_root() {
        let (user, group) = (account("-u", "postgres")?, account("-g", "postgres")?);
        chown(home, Some(user), Some(group))?;
        // The way to it is the guard's folder, which is ours alone.
        if let Some(parent) = home.parent() {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o711))?;
        }
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// The newest version's folder. Debian keeps the server's programs off the PATH; others do not.
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
