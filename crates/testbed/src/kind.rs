//! The parts of a test server that depend on its kind. Starting, stopping and cleanup are the same
//! for all kinds.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plan::Plan;
use crate::tls::Certificates;

pub(crate) trait ServerKind: Send + Sync {
    /// Name in the temporary directory and in panic messages.
    fn name(&self) -> &'static str;

    /// Name of the server's program.
    fn server(&self) -> &'static str;

    /// How to install the program, for panic messages.
    fn install_hint(&self) -> String;

    /// Environment variable that makes the server required. Kinds that few machines have use their
    /// own variable.
    fn required_by_var(&self) -> &'static str {
        "OUTBOX_TEST_REQUIRE"
    }

    /// URL schemes without and with TLS.
    fn schemes(&self) -> (&'static str, &'static str);

    /// User that is accepted if the plan sets none.
    fn default_user(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Path of the URL.
    fn path(&self) -> &'static str {
        ""
    }

    /// Number of consecutive ports that the server needs.
    fn ports(&self) -> u16 {
        1
    }

    /// Writes the configuration files.
    fn configure(&self, instance: &Instance<'_>);

    /// The command that runs the server in the foreground.
    fn command(&self, instance: &Instance<'_>) -> Command;

    /// Whether the server accepts connections.
    fn is_ready(&self, instance: &Instance<'_>) -> bool;

    /// Path of a program of this server. Panics with the install hint if it is missing.
    fn program(&self, name: &str) -> PathBuf {
        find(name).unwrap_or_else(|| panic!("{name} is not installed: {}", self.install_hint()))
    }
}

/// Install hint for a Debian package.
pub(crate) fn debian(package: &str) -> String {
    format!("`apt-get install --no-install-recommends {package}` installs it, as does `cargo xtask test`")
}

/// Finds a program on the PATH, or in the directory that an unprivileged user's PATH omits on
/// Debian.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.find_map(|folder| Some(folder.join(name)).filter(|program| program.is_file()))
}

/// Configuration of one server instance.
pub(crate) struct Instance<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) folder: &'a Path,
    pub(crate) port: u16,
    pub(crate) certificates: Option<&'a Certificates>,
}

impl Instance<'_> {
    /// A command in the server's directory, with an environment of PATH and HOME only.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder).env_clear();
        command.env("PATH", env::var_os("PATH").unwrap_or_default()).env("HOME", self.folder);
        command
    }

    /// Writes a file with these lines followed by the configuration lines of the plan.
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
