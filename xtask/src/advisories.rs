//! Known vulnerabilities of dependencies. Not every machine reaches the host of the advisory
//! database, so `xtask/advisories.toml` lists the known advisories, and Cargo.lock is checked
//! against that list. Reasons to accept an advisory are in `[advisories]` of `deny.toml`, which
//! `cargo deny` reads too. Where `cargo deny` and its database are installed, the whole database is
//! checked.

use std::cmp::Ordering;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cargo::{self, cargo};

#[derive(Deserialize)]
struct Known {
    advisory: Vec<Advisory>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    id: String,
    package: String,
    /// The first version that is not affected.
    patched: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
}

#[derive(Deserialize)]
struct AdvisoryRules {
    advisories: Accepted,
}

#[derive(Deserialize)]
struct Accepted {
    ignore: Vec<Ignored>,
}

#[derive(Deserialize)]
struct Ignored {
    id: String,
    reason: String,
}

pub(crate) fn check() -> Result<()> {
    let known: Known = read("xtask/advisories.toml")?;
    let lock: Lock = read("Cargo.lock")?;
    let rules: AdvisoryRules = read("deny.toml")?;
    let found = violations(&known.advisory, &lock.package, &rules.advisories.ignore);
    if !found.is_empty() {
        bail!("advisories:\n  {}", found.join("\n  "));
    }
    let (known, accepted) = (known.advisory.len(), rules.advisories.ignore.len());
    println!("{known} known advisories, {accepted} of them accepted for a reason in deny.toml");
    if has_database() {
        return cargo::run(cargo().args(["deny", "check", "--disable-fetch", "advisories"]));
    }
    println!("`cargo deny` or its database is not installed: newer advisories are not checked");
    Ok(())
}

fn read<T: DeserializeOwned>(file: &str) -> Result<T> {
    let text =
        std::fs::read_to_string(cargo::root().join(file)).with_context(|| format!("cannot read {file}"))?;
    toml::from_str(&text).with_context(|| file.to_owned())
}

/// Packages with an advisory that is not accepted, and accepted advisories that concern no package.
fn violations(known: &[Advisory], locked: &[Locked], accepted: &[Ignored]) -> Vec<String> {
    let mut violations = Vec::new();
    for advisory in known {
        let accepted = accepted.iter().find(|accepted| accepted.id == advisory.id);
        if accepted.is_some_and(|accepted| !accepted.reason.trim().is_empty()) {
            continue;
        }
        for package in locked.iter().filter(|package| advisory.affects(package)) {
            let (name, version, id) = (&package.name, &package.version, &advisory.id);
            let patched = match &advisory.patched {
                Some(patched) => format!("update it to {patched} or later"),
                None => "replace it".to_owned(),
            };
            violations.push(format!("{name} {version}: {id}; {patched}, or give a reason in deny.toml"));
        }
    }
    for accepted in accepted {
        let of = known.iter().find(|advisory| advisory.id == accepted.id);
        match of {
            None => {
                violations
                    .push(format!("deny.toml accepts {}, which xtask/advisories.toml lacks", accepted.id));
            }
            Some(advisory) if !locked.iter().any(|package| advisory.affects(package)) => {
                violations
                    .push(format!("deny.toml accepts {}, which concerns no package any more", accepted.id));
            }
            Some(_) => {}
        }
    }
    violations
}

impl Advisory {
    fn affects(&self, package: &Locked) -> bool {
        let is_older = |patched: &String| compare(&package.version, patched) == Ordering::Less;
        self.package == package.name && self.patched.as_ref().is_none_or(is_older)
    }
}

/// Compares the numbers of two versions. A pre-release counts as its release.
fn compare(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        let core = version.split(['-', '+']).next().unwrap_or_default();
        core.split('.').map(|number| number.parse().unwrap_or(0)).collect()
    };
    numbers(one).cmp(&numbers(other))
}

/// Whether `cargo deny` is installed and has fetched the advisory database.
fn has_database() -> bool {
    let mut deny = Command::new("cargo");
    let asked = deny.args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let fetched = home.is_some_and(|home| home.join("advisory-dbs").is_dir());
    fetched && asked.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advisory(patched: Option<&str>) -> Advisory {
        Advisory { id: "R-1".to_owned(), package: "p".to_owned(), patched: patched.map(str::to_owned) }
    }

    fn locked(version: &str) -> Locked {
        Locked { name: "p".to_owned(), version: version.to_owned() }
    }

    fn accepted(id: &str, reason: &str) -> Ignored {
        Ignored { id: id.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn an_affected_version_needs_a_reason() {
        let known = [advisory(Some("0.103.10"))];
        let affected = [locked("0.102.8"), locked("0.103.16")];
        let expected = "p 0.102.8: R-1; update it to 0.103.10 or later, or give a reason in deny.toml";
        assert_eq!(violations(&known, &affected, &[]), [expected]);
        assert_eq!(violations(&known, &affected, &[accepted("R-1", " ")]), [expected], "without a reason");
        assert!(violations(&known, &affected, &[accepted("R-1", "not used")]).is_empty());
        assert!(violations(&known, &[locked("0.103.10")], &[]).is_empty());
        assert_eq!(
            violations(&[advisory(None)], &[locked("9.9.9")], &[]).len(),
            1,
            "every version is affected"
        );
    }

    #[test]
    fn a_reason_for_nothing_is_named() {
        let known = [advisory(Some("2.0.0"))];
        let stale = violations(&known, &[locked("2.0.0")], &[accepted("R-1", "not used")]);
        assert_eq!(stale, ["deny.toml accepts R-1, which concerns no package any more"]);
        let unknown = violations(&known, &[], &[accepted("R-2", "not used")]);
        assert_eq!(unknown, ["deny.toml accepts R-2, which xtask/advisories.toml lacks"]);
    }

    #[test]
    fn the_project_has_no_advisory_without_a_reason() {
        check().unwrap();
    }
}
