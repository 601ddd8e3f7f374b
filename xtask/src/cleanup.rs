//! Ends what xtask started, also when xtask is interrupted or killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

/// Reads the process group to end, a line for each change of mind. Its input ends when the [`Cleanup`] is
/// dropped or when xtask dies, even by SIGKILL, which no handler or destructor inside xtask would notice.
const AT_THE_END: &str = r#"
trap '' HUP INT TERM
signal=$1 folder=$2 group=
while read -r line; do group=$line; done
if [ -n "$group" ]; then
    kill -s "$signal" -- "-$group"
    tries=100
    while [ $tries -gt 0 ] && kill -s 0 -- "-$group"; do sleep 0.1; tries=$((tries - 1)); done
    kill -s KILL -- "-$group"
fi
[ -z "$folder" ] || rm -rf -- "$folder"
"#;

/// Ends the process it spawned and then removes the folder, at the latest when xtask ends.
pub(crate) struct Cleanup {
    shell: Child,
    process: Option<Child>,
    folder: Option<PathBuf>,
}

impl Cleanup {
    /// `signal` is sent first; what still runs after ten seconds is killed.
    pub(crate) fn new(signal: &str, folder: Option<&Path>) -> Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", AT_THE_END, "xtask-cleanup", signal])
            .arg(folder.unwrap_or(Path::new("")))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C must not reach it
            .spawn()
            .context("cannot run /bin/sh")?;
        Ok(Self { shell, process: None, folder: folder.map(Path::to_owned) })
    }

    /// Starts a process in a group of its own, so that its children end with it.
    pub(crate) fn spawn(&mut self, command: &mut Command) -> Result<&mut Child> {
        let process = command.process_group(0).spawn().with_context(|| format!("cannot run {command:?}"))?;
        self.tell(&process.id().to_string())?;
        Ok(self.process.insert(process))
    }

    /// Waits for the spawned process to end by itself.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.process.as_mut().context("nothing was spawned")?.wait()?;
        self.forget()?;
        Ok(status)
    }

    /// How the spawned process ended, if it did.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let process = self.process.as_mut().context("nothing was spawned")?;
        Ok(process.try_wait()?)
    }

    /// Its number may soon belong to another process.
    pub(crate) fn forget(&mut self) -> Result<()> {
        self.process = None;
        self.tell("")
    }

    fn tell(&mut self, group: &str) -> Result<()> {
        let input = self.shell.stdin.as_mut().context("cleanup already began")?;
        writeln!(input, "{group}").context("the shell that cleans up has gone")
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        while let Ok(None) = self.shell.try_wait() {
            // The shell sees a process that ended as a running one until we have asked for its status.
            if let Some(process) = &mut self.process {
                let _ = process.try_wait();
            }
            sleep(Duration::from_millis(10));
        }
        if let Some(folder) = self.folder.as_ref().filter(|folder| folder.exists()) {
            eprintln!("warning: could not remove {}", folder.display());
        }
    }
}
