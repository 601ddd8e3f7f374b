//! `cargo xtask bench`: builds the benchmarks for release and runs them on a temporary PostgreSQL.

use anyhow::Result;
use std::process::{Command, ExitCode};

use crate::cargo::{self, cargo};
use crate::options::Options;
use crate::servers;

/// Options that are passed on to the benchmarks, and whether a value follows.
const PASSED_ON: [(&str, bool); 8] = [
    ("--quick", false),
    ("--no-peers", false),
    ("--list", false),
    ("--only", true),
    ("--rounds", true),
    ("--out", true),
    ("--relay", true),
    ("--database", true),
];

/// Whether the benchmarks have this option, and if so whether a value follows.
pub(crate) fn takes_value(option: &str) -> Option<bool> {
    PASSED_ON.iter().find(|(name, _)| *name == option).map(|(_, value)| *value)
}

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    cargo::run(cargo().args(["build", "--release", "-p", "bench", "-p", "outbox-cli"]))?;
    let folder = cargo::target().join("release");
    let asked = |option: &str| options.passed_on.iter().any(|argument| argument == option);
    let mut bench = Command::new(folder.join("bench"));
    bench.current_dir(cargo::root());
    if !asked("--relay") {
        bench.arg("--relay").arg(folder.join("outbox"));
    }
    // PostgreSQL has its default settings, so that the figures include the cost of durable commits.
    let _server = if asked("--database") || asked("--list") {
        None
    } else {
        let server = servers::start_for_bench(options.install)?;
        bench.arg("--database").arg(&server.url);
        Some(server)
    };
    cargo::run(bench.args(&options.passed_on))?;
    Ok(ExitCode::SUCCESS)
}
