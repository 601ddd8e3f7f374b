//! Licences and sources of dependencies, checked by the rules of `deny.toml`. `cargo deny` checks
//! the same rules but takes minutes to build. Advisories are checked in `advisories.rs`.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::metadata::{Dependency, Package};
use crate::{cargo, metadata};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct LicenceRules {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

pub(crate) fn check() -> Result<()> {
    let rules = std::fs::read_to_string(cargo::root().join("deny.toml")).context("cannot read deny.toml")?;
    let rules: LicenceRules = toml::from_str(&rules).context("deny.toml")?;
    let packages = metadata::read()?.packages;
    let violations: Vec<String> =
        packages.iter().flat_map(|package| violations(package, &rules.licenses.allow)).collect();
    if !violations.is_empty() {
        bail!("not what deny.toml allows:\n  {}", violations.join("\n  "));
    }
    println!("{} packages, all with a licence that deny.toml allows", packages.len());
    Ok(())
}

/// Describes each rule that a package violates.
fn violations(package: &Package, allowed: &[String]) -> Vec<String> {
    let Package { name, version, .. } = package;
    let mut violations = Vec::new();
    match package.source.as_deref() {
        Some(CRATES_IO) => {}
        Some(elsewhere) => violations.push(format!("{name} {version} is from {elsewhere}")),
        // A dependency must name a version.
        None => {
            let any = |dependency: &&Dependency| dependency.req == "*" && dependency.path.is_none();
            let any = package.dependencies.iter().filter(any);
            violations
                .extend(any.map(|dependency| format!("{name} takes any version of {}", dependency.name)));
        }
    }
    let licence = package.license.as_deref().unwrap_or_default();
    match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(expression) if expression.evaluate(|term| is_allowed(term, allowed)) => {}
        _ => violations.push(format!("{name} {version} has the licence {licence:?}")),
    }
    violations
}

fn is_allowed(term: &LicenseReq, allowed: &[String]) -> bool {
    allowed.iter().any(|allowed| term.to_string() == *allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(licence: &str) -> Package {
        Package {
            name: "p".to_owned(),
            version: "1.0.0".to_owned(),
            license: Some(licence.to_owned()),
            source: Some(CRATES_IO.to_owned()),
            dependencies: Vec::new(),
            targets: Vec::new(),
        }
    }

    #[test]
    fn one_licence_of_several_is_enough_and_all_of_those_that_go_together_are_needed() {
        let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned()];
        for fine in ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            assert!(violations(&package(fine), &allowed).is_empty(), "{fine}");
        }
        for refused in ["", "GPL-3.0", "MIT AND Zlib", "MIT WITH LLVM-exception", "no licence at all"] {
            assert_eq!(violations(&package(refused), &allowed).len(), 1, "{refused}");
        }
    }

    #[test]
    fn packages_from_other_sources_are_reported() {
        let from_git = Package { source: Some("git+https://example.org/p".to_owned()), ..package("MIT") };
        assert_eq!(violations(&from_git, &["MIT".to_owned()]), ["p 1.0.0 is from git+https://example.org/p"]);
        let any = Dependency { name: "d".to_owned(), req: "*".to_owned(), path: None };
        let ours = Package { source: None, dependencies: vec![any], ..package("MIT") };
        assert_eq!(violations(&ours, &["MIT".to_owned()]), ["p takes any version of d"]);
    }
}
