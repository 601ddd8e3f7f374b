//! `cargo xtask torture`: installs the servers of the torture test, builds it, and runs it.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::cargo::{self, cargo};
use crate::cleanup::{Cleanup, Stop};
use crate::options::Options;
use crate::servers;

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    servers::install_for_torture(options)?;
    let mut build = cargo();
    // Only the features of the command that the test uses: the other brokers' clients take minutes
    // to build.
    build.args(["build", "--package", "torture", "--package", "outbox-cli", "--no-default-features"]);
    build.args(["--features", "outbox-cli/nats,outbox-cli/webhook"]);
    if options.release {
        build.arg("--release");
    }
    cargo::run(&mut build)?;
    let mut torture = Command::new(cargo::target().join(profile(options)).join("torture"));
    torture.arg("run").arg("--folder").arg(cargo::target().join("torture")).args(&options.passed_on);
    let mut cleanup = Cleanup::new(None)?;
    cleanup.spawn(&mut torture, Stop::Terminate)?;
    let code = cleanup.wait()?.code().context("the torture test was killed")?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn profile(options: &Options) -> &'static Path {
    Path::new(if options.release { "release" } else { "debug" })
}
