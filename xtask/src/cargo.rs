//! Cargo, called from inside `cargo run`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::cleanup::{Cleanup, Stop};
use crate::program;

/// The root folder of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

pub(crate) fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// A cargo command with the environment of a shell. `cargo run` sets variables about xtask's own
/// package; build scripts that watch those variables would run again at each change between the
/// two.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).stdin(Stdio::null());
    let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
    for (name, _) in env::vars_os() {
        if of_package.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs a command to its end; the command is terminated when xtask ends.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let mut cleanup = Cleanup::new(None)?;
    cleanup.spawn(command, Stop::Terminate)?;
    let status = cleanup.wait()?;
    ensure!(status.success(), "`{}` failed: {status}", program::words(command));
    Ok(())
}
