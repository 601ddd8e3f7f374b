//! Programs that are installed on this system.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Finds a program: on the PATH, or in the folder that Debian leaves out of an ordinary account's
/// PATH.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// A command line, for messages.
pub(crate) fn words(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = [name].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
