//! The command line.

use anyhow::{Context, Result, bail};

use crate::bench;
use crate::servers::{self, Recipe};

pub(crate) const HELP: &str = "\
usage: cargo xtask <command> [options]

commands:
  test      start temporary servers, run every test, stop the servers
  servers   start the same servers, print their addresses, wait for Ctrl-C
  ci        format, words, type names, Rust version, lints, no features, docs, public API, licences,
            advisories, schemathesis, then the tests, and the core of them on MySQL
  schemathesis
            test the REST API against its OpenAPI document, with all checks
  kafka     build a Kafka-compatible broker once, then run the Kafka tests on it, with TLS
  torture   run processes on temporary databases, inject faults, and check the outcome of every event;
            --help shows its own options
  bench     build for release, measure on a temporary PostgreSQL, write bench/RESULTS.md
  api       compare the public API of the libraries with crates/*/api.txt, and check which other crates
            have types in it
  features  compile the libraries without features and with each feature alone
  style     check words, type names, the stated Rust version and the names of tests in
            docs/conformance.md, in seconds
  dist      build the command for release and pack it with its service file, completions and guide
  help      print this

options:
  --no-install         do not install anything; name missing packages instead
  --only <names>       start only these of: sqlite (needs no server), postgres, mariadb, mysql; without mariadb,
                       tests of MariaDB run on MySQL
  --mysql              also start MySQL 9, downloaded from Debian unstable into target/, not installed;
                       after the other tests those of MariaDB run again, with MySQL in MariaDB's place
  -- <arguments>       (test, kafka) passed on to `cargo test`
  --bless              (api) write the public API to crates/*/api.txt
  --release            (torture) built for release
  --minutes, --seed, --database, --faults, …
                       (torture) passed on to it

options of bench:
  --quick              a fifth of everything: about three minutes once it is built
  --only <names>       only these scenarios, and no RESULTS.md; --list prints all names
  --rounds <n>         how often each figure is taken
  --no-peers           without the other tools
  --database <url>     on this server instead of a temporary one
  --out <folder>       folder for RESULTS.md and its charts

examples:
  cargo xtask test                                  everything, as CI does
  cargo xtask test --only sqlite                    without any server
  cargo xtask test --only postgres -- -p outbox take -- --nocapture
  cargo xtask test --only mysql -- -p outbox --test queue mariadb
  cargo xtask servers --mysql                       then paste its `export` lines in another shell
  cargo xtask torture --minutes 5 --database all
  cargo xtask torture --minutes 1 --database postgres --faults kill-relay,mute --seed 42
  cargo xtask bench --quick                         what to run first
  cargo xtask bench --only cold,nodes --rounds 5
  cargo xtask ci";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Test,
    Servers,
    Ci,
    Schemathesis,
    Kafka,
    Torture,
    Bench,
    /// Compares the public API with its snapshots.
    Api,
    Features,
    /// Checks words, type names, the stated Rust version and docs/conformance.md.
    Style,
    Dist,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) install: bool,
    only: Option<Vec<String>>,
    mysql: bool,
    pub(crate) release: bool,
    /// Whether the snapshots of the public API are replaced.
    pub(crate) bless: bool,
    /// Options of the torture test or of the benchmarks.
    pub(crate) passed_on: Vec<String>,
    pub(crate) cargo_test: Vec<String>,
}

impl Options {
    pub(crate) fn servers(&self) -> Vec<&'static dyn Recipe> {
        let chosen = |recipe: &&dyn Recipe| {
            let asked_for = self.mysql && recipe.name() == "mysql";
            asked_for
                || match &self.only {
                    Some(names) => names.iter().any(|name| name == recipe.name()),
                    None => recipe.by_default(),
                }
        };
        servers::ALL.into_iter().filter(chosen).collect()
    }

    /// Whether CI runs the core of MariaDB's tests on MySQL: always, unless `--only` names servers
    /// or all tests run on MySQL anyway.
    pub(crate) fn core_on_mysql(&self) -> bool {
        self.only.is_none() && !self.mysql
    }

    /// The same options with MySQL as the only server.
    pub(crate) fn with_only_mysql(&self) -> Self {
        Self { only: Some(vec!["mysql".to_owned()]), ..self.clone() }
    }

    /// Whether a test that finds no server must fail rather than be skipped.
    pub(crate) fn require_servers(&self) -> bool {
        self.only.is_none()
    }
}

pub(crate) fn parse(arguments: &[String]) -> Result<(Command, Options)> {
    let (command, rest) = arguments.split_first().context("no command given")?;
    let command = match command.as_str() {
        "help" | "-h" | "--help" => Command::Help,
        "test" => Command::Test,
        "servers" => Command::Servers,
        "ci" => Command::Ci,
        "schemathesis" => Command::Schemathesis,
        "kafka" => Command::Kafka,
        "torture" => Command::Torture,
        "bench" => Command::Bench,
        "api" => Command::Api,
        "features" => Command::Features,
        "style" => Command::Style,
        "dist" => Command::Dist,
        unknown => bail!("unknown command `{unknown}`"),
    };

    let mut options = Options {
        install: true,
        only: None,
        mysql: false,
        release: false,
        bless: false,
        passed_on: Vec::new(),
        cargo_test: Vec::new(),
    };
    let mut rest = rest.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--no-install" => options.install = false,
            "--release" if command == Command::Torture => options.release = true,
            _ if command == Command::Torture => options.passed_on.push(argument.clone()),
            own if command == Command::Bench && bench::takes_value(own).is_some() => {
                options.passed_on.push(own.to_owned());
                if bench::takes_value(own) == Some(true) {
                    options
                        .passed_on
                        .push(rest.next().with_context(|| format!("{own} needs a value"))?.clone());
                }
            }
            "--bless" if command == Command::Api => options.bless = true,
            "--mysql" => options.mysql = true,
            "--only" => {
                let names = rest.next().context("--only needs names after it")?;
                options.only = Some(server_names(names)?);
            }
            "--" if matches!(command, Command::Test | Command::Kafka) => {
                options.cargo_test.extend(rest.by_ref().cloned());
            }
            "-h" | "--help" => return Ok((Command::Help, options)),
            unknown => bail!("unknown option `{unknown}`"),
        }
    }
    Ok((command, options))
}

fn server_names(list: &str) -> Result<Vec<String>> {
    let known = |name: &str| name == "sqlite" || servers::ALL.iter().any(|recipe| recipe.name() == name);
    list.split(',')
        .map(|name| {
            if !known(name) {
                bail!("unknown server `{name}` after --only");
            }
            Ok(name.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(Command, Options)> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    fn started_by(line: &str) -> Vec<&'static str> {
        let (_, options) = read(line).unwrap();
        options.servers().iter().map(|recipe| recipe.name()).collect()
    }

    #[test]
    fn mysql_starts_only_when_asked_for() {
        assert_eq!(started_by("test"), ["postgres", "mariadb"]);
        assert_eq!(started_by("test --mysql"), ["postgres", "mariadb", "mysql"]);
        assert_eq!(started_by("test --only mysql"), ["mysql"]);
    }

    #[test]
    fn ci_runs_the_core_on_mysql_once() {
        let on_mysql = |line| read(line).unwrap().1.core_on_mysql();
        assert!(on_mysql("ci") && !on_mysql("ci --mysql") && !on_mysql("ci --only postgres"));
        let options = read("ci --no-install").unwrap().1.with_only_mysql();
        assert!(!options.install);
        assert_eq!(options.servers().iter().map(|recipe| recipe.name()).collect::<Vec<_>>(), ["mysql"]);
    }

    #[test]
    fn sqlite_alone_starts_no_server() {
        assert!(started_by("test --only sqlite").is_empty());
    }

    #[test]
    fn only_a_full_run_requires_its_servers() {
        assert!(read("test").unwrap().1.require_servers());
        assert!(!read("test --only postgres").unwrap().1.require_servers());
    }

    #[test]
    fn arguments_after_two_dashes_go_to_cargo_test() {
        let (_, options) = read("test --no-install -- -p outbox -- --nocapture").unwrap();
        assert!(!options.install);
        assert_eq!(options.cargo_test, ["-p", "outbox", "--", "--nocapture"]);
    }

    #[test]
    fn the_torture_test_reads_its_own_options() {
        let (command, options) = read("torture --minutes 5 --no-install --release --faults cut").unwrap();
        assert_eq!(command, Command::Torture);
        assert!(options.release && !options.install);
        assert_eq!(options.passed_on, ["--minutes", "5", "--faults", "cut"]);
        assert!(read("test --release").is_err());
    }

    #[test]
    fn options_of_the_benchmarks_are_passed_on() {
        let (command, options) = read("bench --quick --no-install --only cold,hot --rounds 5").unwrap();
        assert_eq!(command, Command::Bench);
        assert!(!options.install);
        assert_eq!(options.passed_on, ["--quick", "--only", "cold,hot", "--rounds", "5"]);
        for line in ["bench --rounds", "bench --fast", "test --quick", "bench -- --quick"] {
            assert!(read(line).is_err(), "`{line}` was taken");
        }
    }

    #[test]
    fn only_the_command_api_replaces_snapshots() {
        let (command, options) = read("api --bless").unwrap();
        assert_eq!(command, Command::Api);
        assert!(options.bless && !read("api").unwrap().1.bless);
        assert!(read("ci --bless").is_err());
    }

    #[test]
    fn unknown_words_are_refused() {
        for line in ["", "tset", "test --fast", "test --only oracle", "test --only", "ci -- -p outbox"] {
            assert!(read(line).is_err(), "`{line}` was taken");
        }
    }
}
