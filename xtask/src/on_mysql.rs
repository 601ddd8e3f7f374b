//! Runs the tests of MariaDB a second time, on MySQL.
//!
//! A test on MariaDB has `mariadb` in its name and finds the server by `OUTBOX_TEST_MARIADB`. Here
//! that variable holds MySQL's address, so the names in the output say MariaDB and the server is
//! MySQL.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::metadata::{self, Target};

/// How many of the tests run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Extent {
    /// Every test file.
    Whole,
    /// The files of [`CORE`], as in CI.
    Core,
}

/// Test files that CI runs on MySQL: every statement of the store, and the parts in which the two
/// servers differ most.
const CORE: [&str; 10] = [
    "conformance",
    "delivery",
    "fencing",
    "joins",
    "log",
    "order",
    "permissions",
    "plain_sql",
    "queue",
    "storage",
];

/// Test files that do not run here: the first three have their own tests on MySQL, which run with
/// the others, and the last two start their own MariaDB.
const LEFT_OUT: [&str; 5] = ["conformance", "fencing", "model", "crash", "read_only"];

/// More threads than cores, since tests mostly wait for the server.
const THREADS: &str = "--test-threads=6";

/// The arguments of `cargo test`.
pub(crate) fn selection(extent: Extent) -> Result<Vec<String>> {
    let packages = metadata::read()?.packages.into_iter().filter(|package| package.source.is_none());
    let targets = packages.flat_map(|package| package.targets).filter(Target::is_test);
    // Two packages may have test files of the same name; cargo runs both.
    let names: BTreeSet<String> =
        targets.map(|target| target.name).filter(|name| is_chosen(extent, name)).collect();
    let mut arguments: Vec<String> = names.into_iter().flat_map(|name| ["--test".to_owned(), name]).collect();
    arguments.extend(["--", "mariadb", THREADS].map(str::to_owned));
    Ok(arguments)
}

fn is_chosen(extent: Extent, test: &str) -> bool {
    match extent {
        Extent::Whole => !LEFT_OUT.contains(&test),
        Extent::Core => CORE.contains(&test),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(extent: Extent) -> Vec<String> {
        let mut arguments = selection(extent).unwrap();
        assert_eq!(arguments.split_off(arguments.len() - 3), ["--", "mariadb", THREADS]);
        arguments.into_iter().filter(|argument| argument != "--test").collect()
    }

    /// A renamed file would silently not run.
    #[test]
    fn every_file_that_is_named_here_exists() {
        assert_eq!(files(Extent::Core), CORE);
        let whole = files(Extent::Whole);
        assert!(["queue", "publishing", "daemon"].iter().all(|name| whole.iter().any(|file| file == name)));
        let all = metadata::read().unwrap().packages.into_iter().filter(|package| package.source.is_none());
        let tests = all.flat_map(|package| package.targets).filter(Target::is_test);
        let names: BTreeSet<String> = tests.map(|target| target.name).collect();
        assert_eq!(whole.len() + LEFT_OUT.len(), names.len());
    }
}
