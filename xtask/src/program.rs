//! Programs of this system.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a program is: on the PATH, or where Debian keeps those that an ordinary account's PATH leaves out.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// A command as one would type it.
pub(crate) fn words(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = [name].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
