//! Ends what xtask started, also when xtask is interrupted or killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::program;

/// Reads the signal and the process group it is for, a line for each change of mind. Its input ends when the
/// [`Cleanup`] is dropped or when xtask dies, even by SIGKILL, which nothing inside xtask could notice.
const AT_THE_END: &str = r#"
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

/// How to end a process. Whatever still runs ten seconds later is killed.
#[derive(Clone, Copy)]
pub(crate) enum Stop {
    Kill,
    Quit,
    Terminate,
    /// It ends by itself soon.
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
            .args(["-c", AT_THE_END, "xtask-cleanup"])
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
    pub(crate) fn spawn(&mut self, command: &mut Command, stop: Stop) -> Result<&mut Child> {
        let process = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run `{}`", program::words(command)))?;
        self.tell(&format!("{} {}", stop.signal(), process.id()))?;
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
        let status = self.process.as_mut().context("nothing was spawned")?.try_wait()?;
        if status.is_some() {
            self.forget()?;
        }
        Ok(status)
    }

    /// The number of a process that ended may soon be another's.
    fn forget(&mut self) -> Result<()> {
        self.process = None;
        self.tell("")
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.shell.stdin.as_mut().context("cleanup already began")?;
        writeln!(input, "{line}").context("the shell that cleans up has gone")
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        while let Ok(None) = self.shell.try_wait() {
            // Until it is asked for its status, an ended process still counts as running outside Linux.
            if let Some(process) = &mut self.process {
                let _ = process.try_wait();
            }
            sleep(Duration::from_millis(10));
        }
        // Already over, unless somebody killed the shell.
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Some(folder) = self.folder.as_ref().filter(|folder| folder.exists()) {
            eprintln!("warning: could not remove {}", folder.display());
        }
    }
}
