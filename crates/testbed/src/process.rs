//! A child process that ends with the test process, however that ends.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Guard script: reads the process group to kill, one line per change. Its standard input is closed
/// when the test process ends, even by SIGKILL.
const CLEANUP_SCRIPT: &str = r#"
trap '' HUP INT TERM
group=
while read -r line; do group=$line; done
[ -z "$group" ] || kill -s KILL -- "-$group"
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

/// A temporary directory and the process that uses it. Dropping it ends the process and removes the
/// directory.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) folder: PathBuf,
    guard: Child,
    child: Option<Child>,
}

impl Process {
    pub(crate) fn new(name: &str) -> Self {
        let prefix = format!("outbox-testbed-{name}-");
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir().expect("a temporary folder").keep();
        let guard = Command::new("/bin/sh")
            .args(["-c", CLEANUP_SCRIPT, "outbox-testbed"])
            .arg(&folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("/bin/sh can be run");
        Self { folder, guard, child: None }
    }

    /// Spawns the process in its own group, so that its children end with it.
    pub(crate) fn spawn(&mut self, mut command: Command) {
        let log = File::options().create(true).append(true).open(self.log()).expect("a log file");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        let child = command.process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run {:?}: {error}", command.get_program()));
        self.send_group(&child.id().to_string());
        self.child = Some(child);
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(Some(_)) | Err(_)))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // The process may have exited.
            let _ = kill_process_group(Pid::from_child(child), signal);
        }
    }

    /// Stops all threads of the process. Waits, since the signal reaches one thread after another.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.is_frozen() {
            assert!(Instant::now() < deadline, "the process does not stop");
            sleep(Duration::from_millis(1));
        }
    }

    fn is_frozen(&self) -> bool {
        let Some(child) = &self.child else { return true };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
        // The state follows the command name, which is in parentheses.
        let mut states =
            tasks.map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        states.all(|stat| stat.rsplit_once(") ").is_none_or(|(_, after)| after.starts_with('T')))
    }

    /// Sends this signal, and SIGKILL if the process does not exit in time.
    pub(crate) fn terminate(&mut self, signal: Signal) {
        self.signal(signal);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.has_exited() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        // Also for processes of the group that the child left behind.
        self.signal(Signal::KILL);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        self.send_group("");
    }

    /// Sends the process group to the guard. An empty line clears it, since the pid of an exited
    /// process may be reused.
    fn send_group(&mut self, line: &str) {
        if let Some(input) = &mut self.guard.stdin {
            let _ = writeln!(input, "{line}");
        }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate(Signal::KILL);
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// The end of a log, for a panic message.
pub(crate) fn tail(log: &Path) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n    ")
}
