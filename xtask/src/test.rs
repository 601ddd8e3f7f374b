//! `cargo xtask test`: every test, against servers of its own.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::cargo::cargo;
use crate::cleanup::{Cleanup, Stop};
use crate::features;
use crate::options::Options;
use crate::servers::{self, Server};

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    let outcome = run(options)?;
    println!("{}", outcome.tally);
    Ok(if outcome.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    cargo_succeeded: bool,
    servers_lasted: bool,
}

impl Outcome {
    pub(crate) fn passed(&self) -> bool {
        self.cargo_succeeded && self.servers_lasted && self.tally.failed == 0 && self.tally.passed > 0
    }
}

/// Starts the servers, runs the tests, stops the servers.
pub(crate) fn run(options: &Options) -> Result<Outcome> {
    let mut servers = servers::start(options)?;
    let (tally, cargo_succeeded) = run_cargo_test(cargo_test(options, &servers)?)?;
    let servers_lasted = report_crashes(&mut servers)?;
    drop(servers);

    if tally.ignored > 0 {
        eprintln!("{} ignored", tally.ignored);
    }
    if !cargo_succeeded && tally.failed == 0 {
        eprintln!("error: cargo test failed, though no test says so: see its first error above");
    } else if tally.passed + tally.failed == 0 {
        eprintln!("error: no test ran");
    }
    Ok(Outcome { tally, cargo_succeeded, servers_lasted })
}

fn report_crashes(servers: &mut [Server]) -> Result<bool> {
    let mut all_last = true;
    for server in servers {
        if let Some(obituary) = server.obituary()? {
            eprintln!("error: {obituary}");
            all_last = false;
        }
    }
    Ok(all_last)
}

fn cargo_test(options: &Options, servers: &[Server]) -> Result<Command> {
    let mut command = cargo();
    let packages = features::packages_in(&options.cargo_test);
    command.args(["test", "--no-fail-fast", "--features", &features::of(&packages)?]);
    if packages.is_empty() {
        command.arg("--workspace");
    }
    command.args(&options.cargo_test);

    // Tests must never meet a server that was not started here.
    for recipe in servers::ALL {
        command.env_remove(recipe.variable());
    }
    for server in servers {
        command.env(server.variable, &server.url);
    }
    command.env_remove("OUTBOX_TEST_REQUIRE");
    if options.require_servers() {
        command.env("OUTBOX_TEST_REQUIRE", "1");
    }
    Ok(command)
}

/// Shows what the tests print and counts along; tells whether cargo was content.
fn run_cargo_test(mut command: Command) -> Result<(Tally, bool)> {
    let mut cleanup = Cleanup::new(None)?;
    let cargo = cleanup.spawn(command.stdout(Stdio::piped()), Stop::Terminate)?;
    let mut output = BufReader::new(cargo.stdout.take().context("cargo's output is not a pipe")?);
    let mut tally = Tally::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        io::stdout().write_all(&line)?;
        tally.count(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok((tally, cleanup.wait()?.success()))
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Tally {
    /// Adds up `test result: ok. 3 passed; 0 failed; 1 ignored; …`, of which each test program prints one.
    fn count(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        for count in counts.split(';') {
            let mut words = count.split_whitespace().rev();
            let label = words.next();
            let number: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            match label {
                Some("passed") => self.passed += number,
                Some("failed") => self.failed += number,
                Some("ignored") => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tally_adds_up_every_test_program() {
        let mut tally = Tally::default();
        for line in [
            "running 4 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s\n",
            "test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n",
            "test result: \u{1b}[32mok\u{1b}(B\u{1b}[m. 1 passed; 0 failed; 0 ignored; 0 measured\n",
            "we say test result: ok. 9 passed; 9 failed",
        ] {
            tally.count(line);
        }
        assert_eq!(tally, Tally { passed: 9, failed: 2, ignored: 1 });
        assert_eq!(tally.to_string(), "9 passed, 2 failed");
    }
}
