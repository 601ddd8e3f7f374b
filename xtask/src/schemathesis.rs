//! `cargo xtask schemathesis`: tests the API against its OpenAPI document, with generated requests.
//!
//! The server is the example `mounted` of outbox-web, on a SQLite database with some events.
//! Schemathesis is installed into its own environment at a fixed version: another version would
//! generate other requests, and a failure would not come with the change that caused it.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::cargo::{self, cargo};
use crate::cleanup::{Cleanup, Stop};
use crate::features;
use crate::options::Options;

const VERSION: &str = "4.32.5";

/// Number of requests of each kind; `OUTBOX_SCHEMATHESIS_EXAMPLES` overrides it.
const EXAMPLES: &str = "10";

/// A fixed seed, so that a failure comes with the change that caused it; `OUTBOX_SCHEMATHESIS_SEED`
/// overrides it.
const SEED: &str = "1";

const TOKEN: &str = "a-token-for-schemathesis";

/// Time limit for the start of the server.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    run(options)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let schemathesis = installed(options)?;
    // All packages and features, as the tests are built: another selection would build everything
    // again.
    let features = features::of(&[])?;
    cargo::run(cargo().args(["build", "--workspace", "--features", &features, "--example", "mounted"]))?;
    let (_server, address) = serve()?;
    let or = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let (examples, seed) =
        (or("OUTBOX_SCHEMATHESIS_EXAMPLES", EXAMPLES), or("OUTBOX_SCHEMATHESIS_SEED", SEED));
    let mut run = Command::new(schemathesis);
    run.arg("--config-file").arg(cargo::root().join("crates/outbox-web/schemathesis.toml"));
    run.args([
        "run",
        &format!("http://{address}/ops/api/openapi.json"),
        // The paths of the document do not have the prefix below which the example mounts the API.
        "--url",
        &format!("http://{address}/ops"),
        "--checks",
        "all",
        "--continue-on-failure",
    ]);
    run.args([
        "--header",
        &format!("Authorization: Bearer {TOKEN}"),
        "--max-examples",
        &examples,
        "--seed",
        &seed,
    ]);
    // An endless stream, which has its own tests.
    run.args(["--exclude-path", "/api/outbox/live", "--warnings", "off", "--generation-database", "none"]);
    cargo::run(run.current_dir(cargo::target()))
}

/// Installs schemathesis into `target/tools`, unless it is there.
fn installed(options: &Options) -> Result<PathBuf> {
    let home = cargo::target().join("tools").join(format!("schemathesis-{VERSION}"));
    let program = home.join("bin/schemathesis");
    if !program.is_file() {
        ensure!(
            options.install,
            "schemathesis is missing: `python3 -m venv {home} && {home}/bin/pip install schemathesis=={VERSION}`",
            home = home.display()
        );
        cargo::run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        let mut install = Command::new(home.join("bin/python3"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        cargo::run(install.arg(format!("schemathesis=={VERSION}")))?;
    }
    Ok(program)
}

/// Starts the server and waits until it accepts connections.
fn serve() -> Result<(Cleanup, String)> {
    // The port is free now; the server binds it next.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let mut server = Command::new(cargo::target().join("debug/examples/mounted"));
    server.args([&address, TOKEN]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut cleanup = Cleanup::new(None)?;
    cleanup.spawn(&mut server, Stop::Terminate)?;
    let end = Instant::now() + START_TIMEOUT;
    while TcpStream::connect(&address).is_err() {
        let ended = cleanup.ended()?;
        ensure!(ended.is_none(), "the server ended before it answered");
        ensure!(Instant::now() < end, "the server does not answer at {address}");
        sleep(Duration::from_millis(50));
    }
    Ok((cleanup, address))
}
