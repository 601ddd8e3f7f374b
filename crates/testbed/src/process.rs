//! A process that ends with us, however we end.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Learns the process group to end, a line for each change. Its input ends when we do, even by SIGKILL, which nothing inside of us
/// could notice.
const AT_THE_END: &str = r#"
trap '' HUP INT TERM
group=
while read -r line; do group=$line; done
[ -z "$group" ] || kill -s KILL -- "-$group"
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

/// A folder, and the process that works in it. Dropping it ends the one and removes the other.
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
            .args(["-c", AT_THE_END, "outbox-testbed"])
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

    /// In a group of its own, so that its children end with it.
    pub(crate) fn spawn(&mut self, mut command: Command) {
        let log = File::options().create(true).append(true).open(self.log()).expect("a log file");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        let child = command.process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot run {:?}: {error}", command.get_program()));
        self.tell(&child.id().to_string());
        self.child = Some(child);
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(Some(_)) | Err(_)))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // It may have ended by itself.
            let _ = kill_process_group(Pid::from_child(child), signal);
        }
    }

    /// Stops all that it does. The signal arrives at one thread after the other.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.is_frozen() {
            assert!(Instant::now() < deadline, "it does not stop");
            sleep(Duration::from_millis(1));
        }
    }

    fn is_frozen(&self) -> bool {
        let Some(child) = &self.child else { return true };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
        // The state is what follows the name, which is in parentheses.
        let mut states =
            tasks.map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        states.all(|stat| stat.rsplit_once(") ").is_none_or(|(_, after)| after.starts_with('T')))
    }

    /// Ends it by this signal, or after a while by a stronger one.
    pub(crate) fn end(&mut self, signal: Signal) {
        self.signal(signal);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.has_ended() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        // Also for those of its group that it left behind.
        self.signal(Signal::KILL);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        self.tell("");
    }

    /// The number of a process that ended may soon be another's.
    fn tell(&mut self, line: &str) {
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
        self.end(Signal::KILL);
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// The end of a log, for the text of a panic.
pub(crate) fn tail(log: &Path) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n    ")
}
