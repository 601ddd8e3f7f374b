//! `cargo xtask test`: every test, against servers of its own.

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
    run_with_servers(options, |servers| {
        if !options.cargo_test.is_empty() {
            return run_cargo_test(cargo_test(options, servers)?);
        }
        let ran = run_lanes(options, servers)?;
        match servers.iter().find(|server| server.is("mysql")) {
            // Without MariaDB all tests have met MySQL in its place already.
            Some(mysql) if servers.iter().any(|server| server.is("mariadb")) => {
                Ok(together(ran, run_on_mysql(options, mysql, Extent::Whole)?))
            }
            _ => Ok(ran),
        }
    })
}

/// Starts MySQL alone, runs the core of the tests of MariaDB on it, stops it.
pub(crate) fn run_core_on_mysql(options: &Options) -> Result<Outcome> {
    let options = options.with_only_mysql();
    run_with_servers(&options, |servers| run_on_mysql(&options, &servers[0], Extent::Core))
}

fn run_on_mysql(options: &Options, mysql: &Server, extent: Extent) -> Result<(Tally, bool)> {
    println!("\n== tests of MariaDB, on MySQL: OUTBOX_TEST_MARIADB={} ==", mysql.url);
    let mut command = cargo_test(options, std::slice::from_ref(mysql))?;
    command.args(on_mysql::selection(extent)?).env("OUTBOX_TEST_REQUIRE", "1");
    run_cargo_test(command)
}

fn run_with_servers(
    options: &Options,
    tests: impl FnOnce(&[Server]) -> Result<(Tally, bool)>,
) -> Result<Outcome> {
    let mut servers = servers::start(options)?;
    let (tally, cargo_succeeded) = tests(&servers)?;
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
    command.envs(servers::addresses(servers));
    command.env_remove("OUTBOX_TEST_REQUIRE");
    if options.require_servers() {
        command.env("OUTBOX_TEST_REQUIRE", "1");
    }
    Ok(command)
}

/// Runs every test there is. Those of the transports mostly wait for brokers to start and to be gone, and those in the browser for what
/// is shown, so they run beside the others; what they print comes at the end.
fn run_lanes(options: &Options, servers: &[Server]) -> Result<(Tally, bool)> {
    let ours = metadata::read()?.packages.into_iter().filter(|package| package.source.is_none());
    let (waiting, busy): (Vec<Package>, Vec<Package>) = ours.partition(|package| package.name == TRANSPORTS);
    let lane = |selection: &[String]| -> Result<Command> {
        let mut command = cargo_test(options, servers)?;
        command.args(selection);
        Ok(command)
    };
    let (aside, others) = (tests_of(&waiting), tests_of(&busy));
    let shared = aside.iter().find(|name| *name != "--test" && others.contains(name));
    ensure!(shared.is_none(), "two packages have tests called {shared:?}: both lanes would run them");
    // All at once, so that neither lane has anything to build.
    let (_, built) = run_cargo_test(lane(&["--no-run".to_owned()])?)?;
    if !built {
        return Ok((Tally::default(), false));
    }
    let mut beside = vec![lane(&aside)?];
    if options.require_servers() || browser::missing_packages().is_empty() {
        browser::prepare()?;
        beside.push(browser::tests());
    }
    let beside = std::thread::spawn(move || run_aside(beside));
    let units = ["--lib".to_owned(), "--bins".to_owned()];
    let mut ran = run_cargo_test(lane(&[&units[..], &others].concat())?)?;
    ran = together(ran, run_cargo_test(lane(&["--doc".to_owned()])?)?);
    let (printed, ran_aside) = beside.join().expect("it does not panic")?;
    io::stdout().write_all(&printed)?;
    Ok(together(ran, ran_aside))
}

const TRANSPORTS: &str = "outbox-transports";

/// How `cargo test` is told to run the files in `tests/` of these packages.
fn tests_of(packages: &[Package]) -> Vec<String> {
    let tests = packages.iter().flat_map(|package| &package.targets).filter(|target| target.is_test());
    tests.flat_map(|target| ["--test".to_owned(), target.name.clone()]).collect()
}

fn together((mut tally, succeeded): (Tally, bool), (other, too): (Tally, bool)) -> (Tally, bool) {
    tally.add(&other);
    (tally, succeeded && too)
}

/// Shows what the tests print and counts along; tells whether cargo was content.
fn run_cargo_test(mut command: Command) -> Result<(Tally, bool)> {
    let (output, input) = io::pipe()?;
    command.stdout(input);
    run_into(command, output, &mut io::stdout())
}

/// The same for several commands, but shows nothing: returns what was printed, with what cargo says of its progress.
fn run_aside(commands: impl IntoIterator<Item = Command>) -> Result<(Vec<u8>, (Tally, bool))> {
    let (mut printed, mut all) = (Vec::new(), (Tally::default(), true));
    for mut command in commands {
        let (output, input) = io::pipe()?;
        command.stdout(input.try_clone()?).stderr(input);
        all = together(all, run_into(command, output, &mut printed)?);
    }
    Ok((printed, all))
}

fn run_into(mut command: Command, output: PipeReader, to: &mut impl Write) -> Result<(Tally, bool)> {
    let mut cleanup = Cleanup::new(None)?;
    cleanup.spawn(&mut command, Stop::Terminate)?;
    // It holds the other end of the pipe, which ends when nobody does.
    drop(command);
    let mut output = BufReader::new(output);
    let mut tally = Tally::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
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
    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Adds up `test result: ok. 3 passed; 0 failed; 1 ignored; …`, of which each test program prints one, and `# pass 3` and the like,
    /// of which Node prints a line each.
    fn count(&mut self, line: &str) {
        if let Some((label, number)) = of_node(line) {
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

/// What a line of Node's summary counts, and how many there are.
fn of_node(line: &str) -> Option<(&str, u64)> {
    let (label, number) = line.strip_prefix("# ").or(line.strip_prefix("ℹ "))?.trim_end().split_once(' ')?;
    Some((label, number.parse().ok()?))
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
            "# Subtest: pass 9",
            "# pass 30\n",
            "ℹ fail 1\n",
        ] {
            tally.count(line);
        }
        assert_eq!(tally, Tally { passed: 39, failed: 3, ignored: 1 });
        assert_eq!(tally.to_string(), "39 passed, 3 failed");
    }
}
