//! Cleans up however the torture test ends: a small shell outlives it, kills its processes and
//! removes its files.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Reads process groups and mounts, a line for each change. Its input closes when the torture test
/// ends, even by SIGKILL.
const CLEANUP_SCRIPT: &str = r#"
trap '' HUP INT TERM
groups= mounts=
while read -r what name; do
  case $what in
    +) groups="$groups $name" ;;
    -) rest=; for group in $groups; do [ "$group" = "$name" ] || rest="$rest $group"; done; groups=$rest ;;
    mount) mounts="$mounts $name" ;;
  esac
done
for group in $groups; do kill -s QUIT -- "-$group"; kill -s CONT -- "-$group"; done
[ -z "$groups" ] || sleep 1
for group in $groups; do kill -s KILL -- "-$group"; done
sleep 0.1
for mount in $mounts; do umount "$mount" || umount -l "$mount"; done
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

/// A temporary folder, and the processes that are killed when the torture test ends.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    shell: Mutex<Child>,
}

impl Guard {
    /// Creates a guard with a new folder below /tmp, which every account can access.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("outbox-torture-").tempdir_in("/tmp")?.keep();
        let shell = Command::new("/bin/sh")
            .args(["-c", CLEANUP_SCRIPT, "outbox-torture"])
            .arg(&folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot run /bin/sh")?;
        Ok(Self(Arc::new(Inner { folder, shell: Mutex::new(shell) })))
    }

    /// The folder that is removed at the end.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    fn notify_shell(&self, what: &str, name: &str) {
        let mut shell = self.0.shell.lock().expect("no thread panics while it holds the lock");
        if let Some(input) = &mut shell.stdin {
            let _ = writeln!(input, "{what} {name}");
        }
    }

    /// Registers a mount point that is unmounted at the end.
    pub fn mounted(&self, folder: &Path) {
        self.notify_shell("mount", &folder.display().to_string());
    }

    /// Starts a process in its own process group; its output goes to this file.
    pub fn spawn(&self, mut command: Command, log: &Path) -> Result<Process> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
        self.notify_shell("+", &child.id().to_string());
        Ok(Process { child, guard: self.clone(), status: None })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().expect("no thread panics while it holds the lock");
        drop(shell.stdin.take());
        let _ = shell.wait();
    }
}

/// A process that is killed when the torture test ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    guard: Guard,
    status: Option<ExitStatus>,
}

impl Process {
    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
            if self.status.is_some() {
                // The process id may be reused.
                self.guard.notify_shell("-", &self.child.id().to_string());
            }
        }
        self.status
    }

    /// Sends a signal to the process, not to its group.
    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Sends the signal and waits for the process to end; after the timeout kills its group by
    /// SIGKILL.
    pub async fn end(&mut self, signal: Signal, timeout: Duration) -> Option<ExitStatus> {
        self.signal(signal);
        let deadline = Instant::now() + timeout;
        while self.ended().is_none() {
            if Instant::now() > deadline {
                let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.status
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
            let _ = self.ended();
        }
    }
}

/// Describes an exit status.
pub fn in_words(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}
