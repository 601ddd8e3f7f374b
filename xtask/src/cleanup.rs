//! Ends the processes that xtask started, even when xtask is interrupted or killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::program;

/// Reads a signal and the process group it is for; a later line replaces an earlier one. Its input
/// closes when the [`Cleanup`] is dropped or when xtask dies, even by SIGKILL, which xtask itself
/// could not handle.
const CLEANUP_SCRIPT: &str = r#"
trap '' HUP INT TERM
folder=$1 group=
runs() { kill -s 0 -- "-$group" && ! grep -q '^State:.Z' "/proc/$group/status"; }
while read -r new_signal new_group; do signal=$new_signal group=$new_group; done
if [ -n "$group" ]; then
    kill -s "$signal" -- "-$group"
    tries=100
    while [ $tries -gt 0 ] && runs; do sleep 0.1; tries=$((tries - 1)); done
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

/// How to end a process. A process that still runs ten seconds later is killed.
#[derive(Clone, Copy)]
pub(crate) enum Stop {
    Kill,
    Quit,
    Terminate,
    /// The process ends by itself soon.
    Wait,
}

impl Stop {
    fn signal(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Quit => "QUIT",
            Self::Terminate => "TERM",
            Self::Wait => "0",
        }
    }
}

impl Cleanup {
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", CLEANUP_SCRIPT, "xtask-cleanup"])
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

    /// Starts a process in its own process group, so that its children end with it.
    pub(crate) fn spawn(&mut self, command: &mut Command, stop: Stop) -> Result<&mut Child> {
        let process = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run `{}`", program::words(command)))?;
        self.notify_shell(&format!("{} {}", stop.signal(), process.id()))?;
        Ok(self.process.insert(process))
    }

    /// Waits for the spawned process to end by itself.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.process.as_mut().context("nothing was spawned")?.wait()?;
        self.forget_process()?;
        Ok(status)
    }

    /// Exit status of the spawned process, if it has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.process.as_mut().context("nothing was spawned")?.try_wait()?;
        if status.is_some() {
            self.forget_process()?;
        }
        Ok(status)
    }

    /// Stops tracking a process that ended, since its process id may be reused.
    fn forget_process(&mut self) -> Result<()> {
        self.process = None;
        self.notify_shell("")
    }

    fn notify_shell(&mut self, line: &str) -> Result<()> {
        let input = self.shell.stdin.as_mut().context("cleanup already began")?;
        writeln!(input, "{line}").context("the cleanup shell has ended")
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        while let Ok(None) = self.shell.try_wait() {
            // Outside Linux an ended process counts as running until its status is read.
            if let Some(process) = &mut self.process {
                let _ = process.try_wait();
            }
            sleep(Duration::from_millis(10));
        }
        // The process has ended already, unless the shell was killed.
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Some(folder) = self.folder.as_ref().filter(|folder| folder.exists()) {
            eprintln!("warning: could not remove {}", folder.display());
        }
    }
}
