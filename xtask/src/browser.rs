//! Tests of the dashboard in a real browser: Debian's Chromium, driven by the tests in
//! `crates/outbox-web/tests/browser` against the command and the example `mounted` that `cargo
//! test` has built.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cargo;
use crate::program;

pub(crate) fn missing_packages() -> Vec<&'static str> {
    if program::find("chromium").is_some() { Vec::new() } else { vec!["chromium"] }
}

fn folder() -> PathBuf {
    cargo::root().join("crates/outbox-web/tests/browser")
}

/// Installs the client that drives the browser, from npm.
pub(crate) fn prepare() -> Result<()> {
    let mut npm = Command::new("npm");
    cargo::run(npm.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(folder()))
}

/// The command that starts the tests' server and runs the tests.
pub(crate) fn tests() -> Command {
    let mut node = Command::new("node");
    node.arg("stage.js").current_dir(folder());
    node.env("OUTBOX_BIN", cargo::target().join("debug/outbox"));
    node.env("OUTBOX_MOUNTED", cargo::target().join("debug/examples/mounted"));
    node
}
