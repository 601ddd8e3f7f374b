//! `cargo xtask ci`: what a change must pass. Every step runs, so that one run shows all there is to mend.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cargo::{self, cargo};
use crate::options::Options;
use crate::{advisories, features, licences, schemathesis, test};

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
    steps.run("licences", licences::check);
    steps.run("advisories", advisories::check);
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
