//! Features of the crates: which are built by default, and whether each compiles alone.

use std::fs;

use anyhow::{Context, Result};

use crate::cargo;

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
    fn packages_are_found_among_arguments() {
        let arguments = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            packages_in(&arguments("-p a -pb --package c --package=d x -- -p e")),
            ["a", "b", "c", "d"]
        );
        assert!(packages_in(&arguments("take -- -p e")).is_empty());
    }
}
