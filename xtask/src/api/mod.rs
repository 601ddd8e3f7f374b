//! `cargo xtask api`: checks the public API of the published libraries. An intended change of the
//! API is then visible in the review, and an accidental one fails.
//!
//! - `items` lists the items of the API from the JSON of rustdoc
//! - `snapshot` compares them with `crates/<crate>/api.txt`
//! - `foreign` checks which other crates have types in the API

mod foreign;
mod items;
mod snapshot;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, cargo};
use crate::features;
use crate::options::Options;
use foreign::AllowList;

/// Libraries on crates.io. `outbox-cli` is published too, but is a program.
const PUBLISHED: [&str; 3] = ["outbox", "outbox-transports", "outbox-web"];

pub(crate) fn command(options: &Options) -> Result<ExitCode> {
    document()?;
    if options.bless {
        for package in PUBLISHED {
            println!("wrote {}", snapshot::write(package, &items::read(package)?)?);
        }
    }
    compare()?;
    Ok(ExitCode::SUCCESS)
}

/// The step of `cargo xtask ci`.
pub(crate) fn check() -> Result<()> {
    document()?;
    compare()
}

/// Writes the JSON of the libraries, with all features that CI builds. The packages and features
/// are those of the step "docs", so that cargo finds all dependencies compiled.
fn document() -> Result<()> {
    let mut doc = cargo();
    doc.args(["doc", "--workspace", "--lib", "--no-deps", "--quiet", "--features", &features::of(&[])?]);
    doc.env("RUSTDOC", cargo::root().join("xtask/rustdoc-unstable.sh"));
    cargo::run(doc.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json"))
}

fn compare() -> Result<()> {
    let allowed = AllowList::read()?;
    let mut errors = Vec::new();
    for package in PUBLISHED {
        let items = items::read(package).with_context(|| format!("public API of {package}"))?;
        errors.extend(snapshot::error(package, &items)?);
        let found = foreign::uses(&items);
        errors.extend(foreign::errors(package, &allowed, &found));
        println!("{package}: {} items, of which with types of", items.len());
        for (name, places) in &found {
            let reason = allowed.reason(package, name).unwrap_or("NOT ALLOWED");
            println!("  {name}: {} ({reason})", places.len());
        }
    }
    if !errors.is_empty() {
        bail!("public API:\n{}", errors.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new library must not be left out.
    #[test]
    fn every_published_library_is_checked() {
        let mut libraries = Vec::new();
        for folder in std::fs::read_dir(cargo::root().join("crates")).unwrap() {
            let folder = folder.unwrap().path();
            let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            // The API of a crate of macros is that of the crate that exports them.
            let is_library = folder.join("src/lib.rs").exists() && !manifest.contains("proc-macro = true");
            if is_library && !manifest.contains("publish = false") {
                libraries.push(folder.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
        libraries.sort();
        assert_eq!(libraries, PUBLISHED);
    }
}
