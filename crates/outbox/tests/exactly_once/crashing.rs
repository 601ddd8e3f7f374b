//! A process that is killed in the middle of its work and started anew, until the work is done.
//!
//! It is this test binary, told by its environment which role to play.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Backend, TestDb};

/// The test that plays a role when it is told to.
const PLAYER: &str = "a_process_of_its_own_when_told_to_be_one";

/// What a process is told to be.
#[derive(Debug)]
pub struct Role {
    pub name: String,
    /// As sqlx calls it.
    pub database: String,
    pub url: String,
    pub table: String,
    progress: File,
    /// At so many pieces of work it waits to be killed.
    limit: u64,
}

impl Role {
    /// The role of this process; `None` if it is the test itself.
    pub fn told() -> Option<Self> {
        let told = |what: &str| std::env::var(format!("OUTBOX_ROLE_{what}"));
        Some(Self {
            name: told("NAME").ok()?,
            database: told("DATABASE").unwrap(),
            url: told("URL").unwrap(),
            table: told("TABLE").unwrap(),
            progress: OpenOptions::new().append(true).open(told("PROGRESS").unwrap()).unwrap(),
            limit: told("LIMIT").unwrap().parse().unwrap(),
        })
    }

    /// Tells the test that a piece of work is done. When it is killed depends on that.
    pub fn progress(&mut self) {
        self.progress.write_all(b".").unwrap();
        while self.progress.metadata().unwrap().len() >= self.limit {
            std::thread::park();
        }
    }
}

/// How it went.
#[derive(Debug)]
pub struct Survived {
    /// How often it was killed while it worked.
    pub kills: usize,
    pub time: Duration,
}

/// Has a process play a role until it ends by itself, and kills it this often on the way, at random moments. `work` is
/// how many pieces there are at least.
pub async fn survive<DB: Backend>(db: &TestDb<DB>, role: &str, kills: usize, work: usize) -> Survived {
    let progress = tempfile::NamedTempFile::new().unwrap();
    let start = |limit: u64| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", PLAYER, "--nocapture"])
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
    let pieces = || progress.as_file().metadata().unwrap().len();
    // Never so much at a time that the work is done before the last kill.
    let most = (work * 9 / 10 / kills.max(1)).max(1) as u64;
    let began = Instant::now();
    let mut killed = 0;
    for _ in 0..kills {
        let before = pieces();
        let mut child = start(before + most);
        let goal = before + rand::random_range(1..=most);
        while pieces() < goal && child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..3_000))).await;
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() || status.signal() == Some(9), "it failed by itself: {status}");
        killed += usize::from(status.signal() == Some(9));
    }
    let status = start(u64::MAX).wait().unwrap();
    assert!(status.success(), "left alone, it comes to an end: {status}");
    Survived { kills: killed, time: began.elapsed() }
}
