//! Runtimes of the recipes' languages; tests run the recipes.

use std::process::{Command, Stdio};

use crate::program;

pub(crate) fn missing_packages() -> Vec<&'static str> {
    let mut missing = Vec::new();
    if !has_venv() {
        missing.push("python3-venv");
    }
    // Debian's npm depends on its node; other distributions' node includes npm.
    if program::find("npm").is_none() {
        missing.push("npm");
    } else if program::find("node").is_none() {
        missing.push("nodejs");
    }
    missing
}

/// Debian's python3 lacks the module that creates environments.
fn has_venv() -> bool {
    let mut python = Command::new("python3");
    python
        .args(["-c", "import ensurepip, venv"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
