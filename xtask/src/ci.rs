//! `cargo xtask ci`: what a change must pass. Every step runs, so that one run shows all there is to mend.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cargo::{self, cargo};
use crate::options::Options;
use crate::{features, program, schemathesis, test};

const CARGO_DENY: &str = "0.20.2";

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("format", || cargo::run(cargo().args(["fmt", "--all", "--check"])));
    steps.run("lints", || {
        let mut clippy = cargo();
        clippy.args(["clippy", "--workspace", "--all-targets", "--features", &features::of(&[])?]);
        cargo::run(clippy.args(["--", "-D", "warnings"]))
    });
    steps.run("docs", || {
        let mut doc = cargo();
        doc.args(["doc", "--workspace", "--no-deps", "--features", &features::of(&[])?]);
        cargo::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
    steps.run("licences", || check_licences(options));
    steps.run("schemathesis", || schemathesis::run(options));
    let mut tally = None;
    steps.run("tests", || {
        let outcome = test::run(options)?;
        let passed = outcome.passed();
        tally = Some(outcome.tally);
        ensure!(passed, "the tests did not pass");
        Ok(())
    });

    println!("\n{}", steps.summary());
    // Whoever reads the output looks for the count in its last line.
    if let Some(tally) = tally {
        println!("{tally}");
    }
    Ok(if steps.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Default)]
struct Steps {
    failed: Vec<&'static str>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        println!("\n== {name} ==");
        let began = Instant::now();
        let result = step();
        let seconds = began.elapsed().as_secs_f32();
        if let Err(error) = result {
            eprintln!("error: {error:#}");
            println!("== {name} FAILED ({seconds:.1} s) ==");
            self.failed.push(name);
        } else {
            println!("== {name} ok ({seconds:.1} s) ==");
        }
    }

    fn summary(&self) -> String {
        if self.failed.is_empty() {
            return "all steps passed".to_owned();
        }
        format!("failed steps: {}", self.failed.join(", "))
    }
}

/// Not `advisories`: their database lies on a host that CI cannot reach. Run `cargo deny check advisories` by
/// hand.
fn check_licences(options: &Options) -> Result<()> {
    let mut deny = Command::new(cargo_deny(options)?);
    deny.args(["deny", "check", "licenses", "bans", "sources"]).current_dir(cargo::root());
    cargo::run(&mut deny)
}

fn cargo_deny(options: &Options) -> Result<PathBuf> {
    if let Some(on_path) = program::find("cargo-deny") {
        return Ok(on_path);
    }
    let tools = cargo::target().join("tools");
    let built = tools.join("bin/cargo-deny");
    if !built.is_file() {
        ensure!(
            options.install,
            "cargo-deny is missing: `cargo install cargo-deny --version {CARGO_DENY} --locked`"
        );
        build_cargo_deny(&tools)?;
    }
    Ok(built)
}

/// Unoptimised: it runs for seconds, and its release profile takes minutes more to build.
fn build_cargo_deny(tools: &Path) -> Result<()> {
    let mut install = cargo();
    install
        .args(["install", "cargo-deny", "--version", CARGO_DENY, "--locked", "--debug", "--root"])
        .arg(tools);
    cargo::run(install.env("CARGO_PROFILE_DEV_DEBUG", "false"))
}
