//! Programs of this system.

use std::env;
use std::path::PathBuf;

/// Where a program is: on the PATH, or where Debian keeps those that an ordinary account's PATH leaves out.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
