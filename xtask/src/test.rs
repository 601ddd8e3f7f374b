//! `cargo xtask test`: runs every test against temporary servers.

use std::fmt;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use crate::browser;
use crate::cargo::cargo;
use crate::cleanup::{Cleanup, Stop};
use crate::features;
use crate::metadata::{self, Package};
use crate::on_mysql::{self, Extent};
use crate::options::Options;
use crate::servers::{self, Server};

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    let outcome = run(options)?;
    println!("{}", outcome.totals);
    Ok(if outcome.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) struct Outcome {
    pub(crate) totals: TestCounts,
    cargo_succeeded: bool,
    servers_lasted: bool,
}

impl Outcome {
    pub(crate) fn passed(&self) -> bool {
        self.cargo_succeeded && self.servers_lasted && self.totals.failed == 0 && self.totals.passed > 0
    }
}

/// Starts the servers, runs the tests, stops the servers.
pub(crate) fn run(options: &Options) -> Result<Outcome> {
    run_with_servers(options, |servers| {
        if !options.cargo_test.is_empty() {
            return run_cargo_test(cargo_test(options, servers)?);
        }
        let ran = run_all(options, servers)?;
        match servers.iter().find(|server| server.is("mysql")) {
            // Without MariaDB all tests have run on MySQL already.
            Some(mysql) if servers.iter().any(|server| server.is("mariadb")) => {
                Ok(combined(ran, run_on_mysql(options, mysql, Extent::Whole)?))
            }
            _ => Ok(ran),
        }
    })
}

/// Starts MySQL alone, runs the core of MariaDB's tests on it, stops it.
pub(crate) fn run_core_on_mysql(options: &Options) -> Result<Outcome> {
    let options = options.with_only_mysql();
    run_with_servers(&options, |servers| run_on_mysql(&options, &servers[0], Extent::Core))
}

fn run_on_mysql(options: &Options, mysql: &Server, extent: Extent) -> Result<(TestCounts, bool)> {
    println!("\n== tests of MariaDB, on MySQL: OUTBOX_TEST_MARIADB={} ==", mysql.url);
    let mut command = cargo_test(options, std::slice::from_ref(mysql))?;
    command.args(on_mysql::selection(extent)?).env("OUTBOX_TEST_REQUIRE", "1");
    run_cargo_test(command)
}

fn run_with_servers(
    options: &Options,
    tests: impl FnOnce(&[Server]) -> Result<(TestCounts, bool)>,
) -> Result<Outcome> {
    let mut servers = servers::start(options)?;
    let (totals, cargo_succeeded) = tests(&servers)?;
    let servers_lasted = report_crashes(&mut servers)?;
    drop(servers);

    if totals.ignored > 0 {
        eprintln!("{} ignored", totals.ignored);
    }
    if !cargo_succeeded && totals.failed == 0 {
        eprintln!("error: cargo test failed without a failed test: see its first error above");
    } else if totals.passed + totals.failed == 0 {
        eprintln!("error: no test ran");
    }
    Ok(Outcome { totals, cargo_succeeded, servers_lasted })
}

fn report_crashes(servers: &mut [Server]) -> Result<bool> {
    let mut all_last = true;
    for server in servers {
        if let Some(exit_report) = server.exit_report()? {
            eprintln!("error: {exit_report}");
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

    // Tests must never use a server that was not started here.
    for recipe in servers::ALL {
        command.env_remove(recipe.variable());
    }
    command.envs(servers::addresses(servers));
    command.env_remove("OUTBOX_TEST_REQUIRE");
    if options.require_servers() {
        command.env("OUTBOX_TEST_REQUIRE", "1");
    }
    Ok(command)
}

/// Runs all tests. The tests of the transports mostly wait for brokers, and those in the browser
/// for the page, so both run beside the others; their output is printed at the end.
fn run_all(options: &Options, servers: &[Server]) -> Result<(TestCounts, bool)> {
    let ours = metadata::read()?.packages.into_iter().filter(|package| package.source.is_none());
    let (waiting, busy): (Vec<Package>, Vec<Package>) = ours.partition(|package| package.name == TRANSPORTS);
    let command = |selection: &[String]| -> Result<Command> {
        let mut test = cargo_test(options, servers)?;
        test.args(selection);
        Ok(test)
    };
    let (transports, others) = (tests_of(&waiting), tests_of(&busy));
    let shared = transports.iter().find(|name| *name != "--test" && others.contains(name));
    ensure!(shared.is_none(), "two packages have a test file named {shared:?}: it would run twice");
    // Everything is built first, so that the concurrent commands need not build.
    let (_, built) = run_cargo_test(command(&["--no-run".to_owned()])?)?;
    if !built {
        return Ok((TestCounts::default(), false));
    }
    let mut beside = vec![command(&transports)?];
    if options.require_servers() || browser::missing_packages().is_empty() {
        browser::prepare()?;
        beside.push(browser::tests());
    }
    let beside = std::thread::spawn(move || run_captured(beside));
    let units = ["--lib".to_owned(), "--bins".to_owned()];
    let mut ran = run_cargo_test(command(&[&units[..], &others].concat())?)?;
    ran = combined(ran, run_cargo_test(command(&["--doc".to_owned()])?)?);
    let (printed, ran_beside) = beside.join().expect("run_captured does not panic")?;
    io::stdout().write_all(&printed)?;
    Ok(combined(ran, ran_beside))
}

const TRANSPORTS: &str = "outbox-transports";

/// The arguments with which `cargo test` runs the files in `tests/` of these packages.
fn tests_of(packages: &[Package]) -> Vec<String> {
    let tests = packages.iter().flat_map(|package| &package.targets).filter(|target| target.is_test());
    tests.flat_map(|target| ["--test".to_owned(), target.name.clone()]).collect()
}

fn combined(
    (mut totals, succeeded): (TestCounts, bool),
    (other, too): (TestCounts, bool),
) -> (TestCounts, bool) {
    totals.add(&other);
    (totals, succeeded && too)
}

/// Prints the output of the tests and counts the results; also returns whether cargo succeeded.
fn run_cargo_test(mut command: Command) -> Result<(TestCounts, bool)> {
    let (output, input) = io::pipe()?;
    command.stdout(input);
    run_into(command, output, &mut io::stdout())
}

/// Runs several commands without printing; returns their output, including cargo's progress.
fn run_captured(commands: impl IntoIterator<Item = Command>) -> Result<(Vec<u8>, (TestCounts, bool))> {
    let (mut printed, mut all) = (Vec::new(), (TestCounts::default(), true));
    for mut command in commands {
        let (output, input) = io::pipe()?;
        command.stdout(input.try_clone()?).stderr(input);
        all = combined(all, run_into(command, output, &mut printed)?);
    }
    Ok((printed, all))
}

fn run_into(mut command: Command, output: PipeReader, to: &mut impl Write) -> Result<(TestCounts, bool)> {
    let mut cleanup = Cleanup::new(None)?;
    cleanup.spawn(&mut command, Stop::Terminate)?;
    // The command holds the write end of the pipe, which must be closed for the pipe to end.
    drop(command);
    let mut output = BufReader::new(output);
    let mut totals = TestCounts::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        totals.count(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok((totals, cleanup.wait()?.success()))
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct TestCounts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl TestCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds the counts of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`, which
    /// each test program prints, or `# pass 3`, which Node prints.
    fn count(&mut self, line: &str) {
        if let Some((label, number)) = node_summary(line) {
            match label {
                "pass" => self.passed += number,
                "fail" => self.failed += number,
                "skipped" => self.ignored += number,
                _ => {}
            }
            return;
        }
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

/// The label and the count of a line of Node's summary.
fn node_summary(line: &str) -> Option<(&str, u64)> {
    let (label, number) = line.strip_prefix("# ").or(line.strip_prefix("ℹ "))?.trim_end().split_once(' ')?;
    Some((label, number.parse().ok()?))
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_add_up_every_test_program() {
        let mut totals = TestCounts::default();
        for line in [
            "running 4 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s\n",
            "test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n",
            "test result: \u{1b}[32mok\u{1b}(B\u{1b}[m. 1 passed; 0 failed; 0 ignored; 0 measured\n",
            "we say test result: ok. 9 passed; 9 failed",
            "# Subtest: pass 9",
            "# pass 30\n",
            "ℹ fail 1\n",
        ] {
            totals.count(line);
        }
        assert_eq!(totals, TestCounts { passed: 39, failed: 3, ignored: 1 });
        assert_eq!(totals.to_string(), "39 passed, 3 failed");
    }
}
