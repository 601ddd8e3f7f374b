//! The project's own commands. `main` reads the command line; each command has its own file.
//!
//! - `test` runs every test against temporary servers
//! - `on_mysql` selects the tests of MariaDB that run on MySQL as well
//! - `ci` runs the checks that a change must pass, the tests last
//! - `schemathesis` tests the API against its OpenAPI document
//! - `kafka` runs the Kafka tests on a broker that takes long to build
//! - `torture` builds and runs the torture test
//! - `bench` builds and runs the benchmarks
//! - `api` checks the public API of the libraries against its snapshots
//! - `features` selects the features that are built, and checks each alone
//! - `dist` makes the release archive
//! - `conformance_page` checks that the tests which `docs/conformance.md` names exist
//! - `msrv` checks that documents state the minimum supported Rust version
//! - `words` checks the language of all files
//! - `type_names` checks that a type name is defined once in a crate
//! - `servers` installs, starts and stops temporary servers
//! - `cleanup` ends started processes, even when xtask itself is killed

#![forbid(unsafe_code)]

mod advisories;
mod api;
mod bench;
mod browser;
mod cargo;
mod ci;
mod cleanup;
mod conformance_page;
mod dist;
mod features;
mod kafka;
mod licences;
mod metadata;
mod msrv;
mod on_mysql;
mod options;
mod program;
mod schemathesis;
mod servers;
mod sources;
mod test;
mod torture;
mod type_names;
mod words;

use std::process::ExitCode;

use anyhow::Result;
use options::{Command, Options};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match options::parse(&arguments) {
        Ok((command, options)) => run(command, &options).unwrap_or_else(|error| {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }),
        Err(error) => {
            eprintln!("error: {error:#}\n\n{}", options::HELP);
            ExitCode::from(2)
        }
    }
}

fn run(command: Command, options: &Options) -> Result<ExitCode> {
    match command {
        Command::Help => println!("{}", options::HELP),
        Command::Servers => servers::serve(options)?,
        Command::Test => return test::command(options),
        Command::Ci => return ci::command(options),
        Command::Schemathesis => return schemathesis::command(options),
        Command::Kafka => return kafka::command(options),
        Command::Torture => return torture::command(options),
        Command::Bench => return bench::command(options),
        Command::Api => return api::command(options),
        Command::Features => return features::command(),
        Command::Style => return ci::style(),
        Command::Dist => dist::command()?,
    }
    Ok(ExitCode::SUCCESS)
}
