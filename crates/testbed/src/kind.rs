//! What one kind of server needs; starting, stopping and removing it is the same for all.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plan::Plan;
use crate::tls::Certificates;

pub(crate) trait Kind: Send + Sync {
    /// In the folder's name, and in what is said when it fails.
    fn name(&self) -> &'static str;

    /// Its program.
    fn server(&self) -> &'static str;

    /// Where its program comes from, as advice to the reader.
    fn how_to_get(&self) -> String;

    /// The variable that says that it must be here: few machines have those with a variable of their own.
    fn required_by(&self) -> &'static str {
        "OUTBOX_TEST_REQUIRE"
    }

    /// How its URL starts: in the clear, and over TLS.
    fn schemes(&self) -> (&'static str, &'static str);

    /// Who may come in when the plan names nobody.
    fn default_user(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// How its URL ends.
    fn path(&self) -> &'static str {
        ""
    }

    /// How many ports it needs, one after another.
    fn ports(&self) -> u16 {
        1
    }

    /// Writes what it reads at its start.
    fn configure(&self, site: &Site<'_>);

    /// The server in the foreground.
    fn command(&self, site: &Site<'_>) -> Command;

    /// Whether it takes connections.
    fn is_ready(&self, site: &Site<'_>) -> bool;

    /// Where a program of this server is. Panics with advice if it is missing.
    fn program(&self, name: &str) -> PathBuf {
        find(name).unwrap_or_else(|| panic!("{name} is not here: {}", self.how_to_get()))
    }
}

/// How to get a server that is in a Debian package.
pub(crate) fn debian(package: &str) -> String {
    format!("`apt-get install --no-install-recommends {package}` installs it, as does `cargo xtask test`")
}

/// Where a program is: on the PATH, or where Debian keeps those that an ordinary account's PATH leaves out.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()))
}

/// Where a server lives.
pub(crate) struct Site<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) folder: &'a Path,
    pub(crate) port: u16,
    pub(crate) certificates: Option<&'a Certificates>,
}

impl Site<'_> {
    /// A command in the server's folder, with nothing of our environment but the PATH.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder).env_clear();
        command.env("PATH", env::var_os("PATH").unwrap_or_default()).env("HOME", self.folder);
        command
    }

    /// Writes a file with these lines, and then those of the plan.
    pub(crate) fn write(&self, name: &str, lines: &[String]) {
        let mut text = lines.join("\n");
        for line in &self.plan.config {
            text.push('\n');
            text.push_str(line);
        }
        text.push('\n');
        std::fs::write(self.folder.join(name), text).expect("the folder can be written to");
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}
