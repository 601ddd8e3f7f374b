//! Reads the output of `cargo metadata`.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo::cargo;

#[derive(Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    /// `None` for a crate of this workspace.
    pub(crate) source: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) req: String,
    pub(crate) path: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    kind: Vec<String>,
}

impl Target {
    /// Whether the target is a file of `tests/`.
    pub(crate) fn is_test(&self) -> bool {
        self.kind.iter().any(|kind| kind == "test")
    }
}

/// Reads the metadata of all packages, with all features.
pub(crate) fn read() -> Result<Metadata> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--format-version", "1", "--all-features", "--locked"]);
    let output = metadata.stderr(Stdio::inherit()).output().context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", output.status);
    serde_json::from_slice(&output.stdout).context("cargo metadata")
}
