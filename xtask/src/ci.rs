//! `cargo xtask ci`: the checks that a change must pass. A failed step does not stop the others, so
//! that one run shows all failures.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cargo::{self, cargo};
use crate::options::Options;
use crate::test::TestCounts;
use crate::{
    advisories, api, conformance_page, features, licences, msrv, schemathesis, servers, test, type_names,
    words,
};

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run("format", || cargo::run(cargo().args(["fmt", "--all", "--check"])));
    steps.run_style();
    steps.run("lints", || {
        let mut clippy = cargo();
        clippy.args(["clippy", "--workspace", "--all-targets", "--features", &features::of(&[])?]);
        cargo::run(clippy.args(["--", "-D", "warnings"]))
    });
    steps.run("no features", features::check_without);
    steps.run("docs", || {
        let mut doc = cargo();
        doc.args(["doc", "--workspace", "--no-deps", "--features", &features::of(&[])?]);
        cargo::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
    steps.run("public API", api::check);
    steps.run("licences", licences::check);
    steps.run("advisories", advisories::check);
    steps.run("schemathesis", || schemathesis::run(options));
    let mut totals = TestCounts::default();
    let mut count = |outcome: test::Outcome| {
        totals.add(&outcome.totals);
        ensure!(outcome.passed(), "the tests did not pass");
        Ok(())
    };
    steps.run("tests", || count(test::run(options)?));
    if options.core_on_mysql() {
        // MySQL comes from Debian unstable, whose packages change all day. A failed download says
        // nothing about the change under test.
        match servers::fetch(&options.with_only_mysql()) {
            Ok(()) => steps.run("tests on MySQL", || count(test::run_core_on_mysql(options)?)),
            Err(error) => steps.leave_out("tests on MySQL", &error),
        }
    }

    println!("\n{}", steps.summary());
    // Readers of the output look for the count in its last line.
    println!("{totals}");
    Ok(steps.exit_code())
}

/// `cargo xtask style`: the checks that compile nothing.
pub(crate) fn style() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.run_style();
    println!("\n{}", steps.summary());
    Ok(steps.exit_code())
}

#[derive(Default)]
struct Steps {
    failed: Vec<&'static str>,
    left_out: Vec<&'static str>,
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

    fn run_style(&mut self) {
        self.run("words", words::check);
        self.run("type names", type_names::check);
        self.run("Rust version", msrv::check);
        self.run("conformance page", conformance_page::check);
    }

    fn exit_code(&self) -> ExitCode {
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn leave_out(&mut self, name: &'static str, reason: &anyhow::Error) {
        println!("\n== {name} LEFT OUT ==");
        eprintln!("warning: {reason:#}");
        self.left_out.push(name);
    }

    fn summary(&self) -> String {
        let mut summary = match self.failed.is_empty() {
            true if self.left_out.is_empty() => "all steps passed".to_owned(),
            true => "all other steps passed".to_owned(),
            false => format!("failed steps: {}", self.failed.join(", ")),
        };
        if !self.left_out.is_empty() {
            summary = format!("left out: {}; {summary}", self.left_out.join(", "));
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader of the last lines must see which steps did not run.
    #[test]
    fn steps_that_were_left_out_are_in_the_summary() {
        let mut steps = Steps::default();
        steps.run("lints", || Ok(()));
        assert_eq!(steps.summary(), "all steps passed");
        steps.leave_out("tests on MySQL", &anyhow::anyhow!("no mirror"));
        assert_eq!(steps.summary(), "left out: tests on MySQL; all other steps passed");
        steps.run("tests", || anyhow::bail!("one failed"));
        assert_eq!(steps.summary(), "left out: tests on MySQL; failed steps: tests");
    }
}
