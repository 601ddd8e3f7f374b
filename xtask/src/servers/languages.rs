//! Languages other than Rust, in which recipes are written. Tests run those recipes.

use std::process::{Command, Stdio};

use crate::program;

pub(crate) fn missing_packages() -> Vec<&'static str> {
    let mut missing = Vec::new();
    if !has_venv() {
        missing.push("python3-venv");
    }
    // Debian's npm comes with its node; another distributor's node comes with npm.
    if program::find("npm").is_none() {
        missing.push("npm");
    } else if program::find("node").is_none() {
        missing.push("nodejs");
    }
    missing
}

/// Debian has Python without what makes environments.
fn has_venv() -> bool {
    let mut python = Command::new("python3");
    python
        .args(["-c", "import ensurepip, venv"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
