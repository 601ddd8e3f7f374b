//! The files that git tracks.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// A tracked file: its path from the root of the workspace, and its text.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Reads all tracked files with one of these extensions.
pub(crate) fn read(extensions: &[impl AsRef<str>]) -> Result<Vec<Source>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "-z"]).current_dir(cargo::root());
    let output = list.output().context("cannot run `git ls-files`")?;
    ensure!(output.status.success(), "`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr));
    let paths = String::from_utf8(output.stdout).context("a path is not UTF-8")?;
    let mut sources = Vec::new();
    for path in paths.split('\0').filter(|path| has_extension(path, extensions)) {
        let file = cargo::root().join(path);
        // A file that is deleted and still in the index.
        if !file.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
        sources.push(Source { path: path.to_owned(), text });
    }
    Ok(sources)
}

fn has_extension(path: &str, extensions: &[impl AsRef<str>]) -> bool {
    path.rsplit_once('.').is_some_and(|(_, end)| extensions.iter().any(|wanted| wanted.as_ref() == end))
}
