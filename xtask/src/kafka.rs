//! `cargo xtask kafka`: runs the Kafka tests on a broker of their own, with and without TLS.
//!
//! The broker is Tansu, a crate. Building it takes a quarter of an hour on two cores, and OpenSSL
//! for TLS some minutes more, so the Kafka tests are a separate command, and the build is kept
//! below target/.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, cargo};
use crate::options::Options;

const VERSION: &str = "0.6.0";

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    fetch(options.install)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([folder().join("bin")].into_iter().chain(env::split_paths(&path)))
        .context("the path of the target folder cannot be on PATH")?;
    for (package, test) in [("outbox-transports", "kafka"), ("outbox-cli", "kafka_daemon")] {
        let mut test_one = cargo();
        test_one.args(["test", "--package", package, "--features", "kafka-tls", "--test", test]);
        // The tests require Tansu, which is installed at this point.
        cargo::run(test_one.args(&options.cargo_test).env("PATH", &path).env("OUTBOX_TEST_TANSU", "1"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn folder() -> PathBuf {
    cargo::target().join("servers").join(format!("tansu-{VERSION}"))
}

/// Builds Tansu unless it is installed already.
fn fetch(may_download: bool) -> Result<()> {
    let folder = folder();
    if folder.join("bin/tansu").exists() {
        return Ok(());
    }
    ensure!(may_download, "Tansu is not in {}; run once without --no-install", folder.display());
    eprintln!("building Tansu into {}: a quarter of an hour on two cores, once", folder.display());
    let began = Instant::now();
    let mut install = cargo();
    install.args(["install", "tansu", "--version", VERSION, "--locked", "--no-default-features"]);
    install.args(["--features", "dynostore,libsql", "--root"]).arg(&folder);
    // The build folder is not needed after the installation.
    let objects = folder.join("build");
    cargo::run(install.env("CARGO_TARGET_DIR", &objects))?;
    std::fs::remove_dir_all(&objects).with_context(|| format!("cannot remove {}", objects.display()))?;
    eprintln!("built Tansu ({:.0} s)", began.elapsed().as_secs_f32());
    Ok(())
}
