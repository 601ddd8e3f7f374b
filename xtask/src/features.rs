//! Features of the crates: which are built by default, and whether each compiles alone.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, cargo};

/// `kafka-tls` builds OpenSSL from its sources, which takes minutes.
const LEFT_OUT: &str = "kafka-tls";

/// The value of `--features`: the features of these packages, or of all crates if the list is
/// empty.
pub(crate) fn of(packages: &[&str]) -> Result<String> {
    let mut features = Vec::new();
    let mut crates: Vec<_> = fs::read_dir(cargo::root().join("crates"))?.collect::<Result<_, _>>()?;
    crates.sort_by_key(fs::DirEntry::path);
    for folder in crates {
        let path = folder.path().join("Cargo.toml");
        let manifest =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = value_of(&manifest, "name").with_context(|| format!("{} has no name", path.display()))?;
        if packages.is_empty() || packages.contains(&name) {
            features.extend(named_in(&manifest).map(|feature| format!("{name}/{feature}")));
        }
    }
    Ok(features.join(","))
}

/// Libraries whose features users choose.
const LIBRARIES: [&str; 2] = ["outbox", "outbox-transports"];

/// `cargo xtask features`: each library must compile without features and with each feature alone.
/// `kafka-tls` is left out here too; `cargo xtask kafka` builds it.
pub(crate) fn command() -> Result<ExitCode> {
    let mut failed = Vec::new();
    for package in LIBRARIES {
        for feature in alone(package)? {
            println!("\n== {package}: {} ==", feature.as_deref().unwrap_or("no feature"));
            if let Err(error) = check(package, feature.as_deref()) {
                eprintln!("error: {error:#}");
                failed.push(format!("{package} ({})", feature.as_deref().unwrap_or("none")));
            }
        }
    }
    ensure!(failed.is_empty(), "these do not compile without warnings: {}", failed.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// No feature, then each feature of a library.
fn alone(package: &str) -> Result<Vec<Option<String>>> {
    let features = of(&[package])?;
    let names = features.split(',').filter_map(|feature| feature.split_once('/'));
    let names = names.map(|(_, name)| name.to_owned()).filter(|name| name != "default");
    Ok(std::iter::once(None).chain(names.map(Some)).collect())
}

/// The part of [`command`] that CI runs: the library without features, which no other step builds.
/// All of it takes more than three minutes on two cores, this half a minute.
pub(crate) fn check_without() -> Result<()> {
    check(LIBRARIES[0], None)
}

/// Compiles a library with one feature or none; a warning is an error.
fn check(package: &str, feature: Option<&str>) -> Result<()> {
    let mut rustc = cargo();
    // As `cargo check`, which cannot deny warnings of one package without building all others
    // again.
    rustc.args(["rustc", "--profile", "check", "--package", package, "--lib", "--no-default-features"]);
    if let Some(feature) = feature {
        rustc.args(["--features", feature]);
    }
    cargo::run(rustc.args(["--", "-D", "warnings"]))
}

/// The packages that arguments of cargo name.
pub(crate) fn packages_in(arguments: &[String]) -> Vec<&str> {
    let mut packages = Vec::new();
    let mut arguments = arguments.iter().map(String::as_str).take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        if argument == "-p" || argument == "--package" {
            packages.extend(arguments.next());
        } else if let Some(name) = argument.strip_prefix("--package=").or(argument.strip_prefix("-p")) {
            packages.push(name);
        }
    }
    packages
}

fn value_of<'a>(manifest: &'a str, key: &str) -> Option<&'a str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))?;
    Some(line.trim().trim_matches('"'))
}

fn named_in(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    let lines = section.take_while(|line| !line.starts_with('['));
    let names = lines.filter(|line| line.starts_with(|first: char| first.is_ascii_alphabetic()));
    names
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim())
        .filter(|name| *name != LEFT_OUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_features_but_the_slow_one_are_built() {
        let all = of(&[]).unwrap();
        for feature in
            ["outbox/postgres", "outbox-transports/nats", "outbox-transports/kafka", "outbox-cli/redis"]
        {
            assert!(all.split(',').any(|built| built == feature), "{feature} is not in {all}");
        }
        assert!(!all.contains("kafka-tls"), "{all}");
        assert!(of(&["outbox"]).unwrap().split(',').all(|feature| feature.starts_with("outbox/")));
    }

    #[test]
    fn each_feature_is_checked_alone_and_none_is_checked_first() {
        let checked = alone("outbox").unwrap();
        assert_eq!(checked[0], None);
        for feature in ["sqlite", "postgres", "mysql", "testing"] {
            assert!(checked.contains(&Some(feature.to_owned())), "{feature} is not in {checked:?}");
        }
        assert!(!checked.contains(&Some("default".to_owned())));
        assert!(alone("outbox-transports").unwrap().contains(&Some("nats".to_owned())));
    }

    #[test]
    fn packages_are_found_among_arguments() {
        let arguments = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            packages_in(&arguments("-p a -pb --package c --package=d x -- -p e")),
            ["a", "b", "c", "d"]
        );
        assert!(packages_in(&arguments("take -- -p e")).is_empty());
    }
}
