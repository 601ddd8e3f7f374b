//! Checks that all documents state the minimum supported Rust version of `Cargo.toml`.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cargo;

/// Files that state the version, and the text before it.
const STATEMENTS: [(&str, &str); 3] =
    [("README.md", "Rust "), ("CONTRIBUTING.md", "Rust "), (".github/workflows/ci.yml", "MSRV: \"")];

#[derive(Deserialize)]
struct Manifest {
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Workspace {
    package: WorkspacePackage,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct WorkspacePackage {
    rust_version: String,
}

pub(crate) fn check() -> Result<()> {
    let read = |file: &str| {
        std::fs::read_to_string(cargo::root().join(file)).with_context(|| format!("cannot read {file}"))
    };
    let manifest: Manifest = toml::from_str(&read("Cargo.toml")?).context("Cargo.toml")?;
    let version = manifest.workspace.package.rust_version;
    let mut errors = Vec::new();
    for (file, before) in STATEMENTS {
        errors.extend(error(file, &read(file)?, before, &version));
    }
    if !errors.is_empty() {
        bail!("minimum supported Rust version:\n  {}", errors.join("\n  "));
    }
    println!("Rust {version} in Cargo.toml, README.md, CONTRIBUTING.md and the workflow");
    Ok(())
}

fn error(file: &str, text: &str, before: &str, version: &str) -> Option<String> {
    let stated = versions(text, before);
    if stated.is_empty() {
        return Some(format!("{file} does not state it; write `{before}{version}`"));
    }
    let wrong = stated.iter().find(|stated| **stated != version)?;
    Some(format!("{file} states {wrong}, and Cargo.toml has {version}"))
}

/// Versions such as `1.94` that follow a text.
fn versions<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let after = text.match_indices(before).map(|(at, found)| &text[at + found.len()..]);
    let version = |rest: &'a str| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.')
    };
    after.map(version).filter(|version| version.contains('.')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_after_their_text() {
        assert_eq!(versions("Rust 1.94 or newer. Rust is fine. Rust 2.", "Rust "), ["1.94"]);
        assert_eq!(versions("  MSRV: \"1.94.1\"\n", "MSRV: \""), ["1.94.1"]);
    }

    #[test]
    fn a_document_without_the_version_or_with_another_one_is_reported() {
        assert_eq!(error("a", "Rust 1.94, Rust 1.94.", "Rust ", "1.94"), None);
        let wrong = error("a", "Rust 1.94, Rust 1.90", "Rust ", "1.94").unwrap();
        assert_eq!(wrong, "a states 1.90, and Cargo.toml has 1.94");
        let missing = error("a", "no version", "Rust ", "1.94").unwrap();
        assert_eq!(missing, "a does not state it; write `Rust 1.94`");
    }

    #[test]
    fn the_project_states_its_version() {
        check().unwrap();
    }
}
