//! A process that is killed in the middle of its work and restarted, until the work is done.
//!
//! The process is this test binary, with its role in the environment.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Backend, TestDb};

/// Test that plays a role when one is set.
const CHILD_TEST: &str = "child_process_when_a_role_is_set";

/// Role of a child process.
#[derive(Debug)]
pub struct Role {
    pub name: String,
    /// sqlx's name of the database.
    pub database: String,
    pub url: String,
    pub table: String,
    progress: File,
    /// The process waits to be killed after so many units of work.
    limit: u64,
}

impl Role {
    /// Role of this process; `None` if it is the test itself.
    pub fn from_env() -> Option<Self> {
        let variable = |name: &str| std::env::var(format!("OUTBOX_ROLE_{name}"));
        Some(Self {
            name: variable("NAME").ok()?,
            database: variable("DATABASE").unwrap(),
            url: variable("URL").unwrap(),
            table: variable("TABLE").unwrap(),
            progress: OpenOptions::new().append(true).open(variable("PROGRESS").unwrap()).unwrap(),
            limit: variable("LIMIT").unwrap().parse().unwrap(),
        })
    }

    /// Reports to the test that a unit of work is done; the test decides by this when to kill the
    /// process.
    pub fn progress(&mut self) {
        self.progress.write_all(b".").unwrap();
        while self.progress.metadata().unwrap().len() >= self.limit {
            std::thread::park();
        }
    }
}

/// Result of [`survive`].
#[derive(Debug)]
pub struct Survived {
    /// Number of kills while the process worked.
    pub kills: usize,
    pub time: Duration,
}

/// Runs a process in a role until it ends by itself, and kills it this often before that, at random
/// moments. `work` is the minimum number of units of work.
pub async fn survive<DB: Backend>(db: &TestDb<DB>, role: &str, kills: usize, work: usize) -> Survived {
    let progress = tempfile::NamedTempFile::new().unwrap();
    let start = |limit: u64| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD_TEST, "--nocapture"])
            .env("OUTBOX_ROLE_NAME", role)
            .env("OUTBOX_ROLE_DATABASE", DB::NAME)
            .env("OUTBOX_ROLE_URL", db.url())
            .env("OUTBOX_ROLE_TABLE", &db.table)
            .env("OUTBOX_ROLE_PROGRESS", progress.path())
            .env("OUTBOX_ROLE_LIMIT", limit.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let units = || progress.as_file().metadata().unwrap().len();
    // Few enough units per run that the work is not done before the last kill.
    let most = (work * 9 / 10 / kills.max(1)).max(1) as u64;
    let began = Instant::now();
    let mut killed = 0;
    for _ in 0..kills {
        let before = units();
        let mut child = start(before + most);
        let goal = before + rand::random_range(1..=most);
        while units() < goal && child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..3_000))).await;
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() || status.signal() == Some(9), "the process failed by itself: {status}");
        killed += usize::from(status.signal() == Some(9));
    }
    let status = start(u64::MAX).wait().unwrap();
    assert!(status.success(), "without kills, the process succeeds: {status}");
    Survived { kills: killed, time: began.elapsed() }
}
