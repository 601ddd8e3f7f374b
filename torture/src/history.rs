//! The history: op each process saw and did, a line of JSON for each, in a file of its own.
//!
//! A line is written with one system call and without a buffer. It is there even if the process is killed right after.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::clock::now;
use crate::work::Spec;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When, in microseconds, by the clock that all processes share.
    pub t: u64,
    /// Who says so.
    pub p: String,
    /// What it is.
    #[serde(flatten)]
    pub op: Op,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Op {
    /// The world begins.
    Setup {
        /// How long leases last, in milliseconds.
        lease: u64,
        /// Whether the database has one writer at a time: a process that is stopped may keep all others from writing.
        #[serde(default, skip_serializing_if = "is_false")]
        one_writer: bool,
    },
    /// A row is about to be inserted by plain SQL that is not part of the work: nothing is expected of it.
    Foreign {
        /// Into the table of this arena.
        arena: Arena,
        /// Its id.
        id: String,
        /// What is hostile about it.
        text: String,
    },
    /// The receiver of webhooks has taken an event.
    Received {
        /// The event.
        id: String,
        /// The event's place in its table.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
    },
    /// A writer is about to write these in a transaction.
    Writing {
        /// The transaction.
        tx: String,
        /// Its events, in order.
        events: Vec<Spec>,
    },
    /// That transaction is over.
    Ended {
        /// The transaction.
        tx: String,
        /// What the writer was told.
        how: Commit,
        /// The error, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A handler starts.
    Started {
        /// The number of this run in its process.
        run: u64,
        /// The event.
        id: String,
        /// Its place in the table, where the relay knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
        /// Which attempt the relay says it is.
        attempt: u32,
    },
    /// A handler ends.
    Finished {
        /// The run.
        run: u64,
        /// With op it says.
        how: HandlerOutcome,
    },
    /// A publisher of the log got these positions.
    Published {
        /// Its name.
        publisher: String,
        /// Of whose leadership.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<i64>,
        /// In order.
        positions: Vec<i64>,
    },
    /// A reader got a message from the broker.
    Arrived {
        /// The event.
        id: String,
        /// The event's place in its table.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
        /// The message's place in the stream.
        place: u64,
    },
    /// Where a publisher of the log stands, as its table says.
    Position {
        /// The publisher.
        publisher: String,
        /// Up to here.
        position: i64,
    },
    /// A process was started.
    Born {
        /// Its name.
        process: String,
        /// Its number.
        pid: u32,
    },
    /// A process is no more.
    Gone {
        /// Its name.
        process: String,
        /// How it ended.
        how: String,
        /// Whether somebody did that to it, or it was told to.
        expected: bool,
    },
    /// A fault begins.
    Hit {
        /// Its name.
        fault: String,
        /// Whom it hits; everybody if it is not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
    },
    /// It is over.
    Over {
        /// Its name.
        fault: String,
        /// Whom it hit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
    },
}

/// What a writer was told of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Commit {
    /// It is committed.
    Committed,
    /// It was rolled back, as the writer wanted.
    RolledBack,
    /// An error before the commit, or the commit's own: nothing of it is there.
    Failed,
    /// Nobody knows: the connection was lost during the commit.
    Unknown,
}

/// What a handler says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerOutcome {
    /// Done.
    Done,
    /// Try again.
    Failed,
    /// Never.
    Dead,
    /// It panicked.
    Panicked,
    /// It was dropped before its end, as when a relay stops.
    Dropped,
}

/// Writes the history of one process.
#[derive(Debug)]
pub struct Writer {
    process: String,
    file: Mutex<File>,
}

impl Writer {
    /// The history of this process, in this folder.
    pub fn new(folder: &Path, process: &str) -> Result<Self> {
        let path = folder.join(format!("{process}.jsonl"));
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write the history {}", path.display()))?;
        Ok(Self { process: process.to_owned(), file: Mutex::new(file) })
    }

    /// Whose history it is.
    pub fn process(&self) -> &str {
        &self.process
    }

    /// Notes that this happens now.
    pub fn record(&self, op: Op) {
        self.record_at(now(), op);
    }

    /// Notes that this happened.
    ///
    /// # Panics
    /// If the file cannot be written: a history with holes proves nothing.
    pub fn record_at(&self, t: u64, op: Op) {
        let record = Record { t, p: self.process.clone(), op };
        let mut line = serde_json::to_vec(&record).expect("a record is JSON");
        line.push(b'\n');
        let mut file = self.file.lock().expect("nobody panics with it");
        file.write_all(&line).expect("the history can be written");
    }
}

/// A record, and where it is.
#[derive(Clone, Debug)]
pub struct Line {
    /// The file's name and the number of the line.
    pub place: String,
    /// What it says.
    pub record: Record,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let record = serde_json::to_string(&self.record).unwrap_or_default();
        write!(f, "{}: {record}", self.place)
    }
}

/// The histories of a folder.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// All histories of a folder as one, in the order of time.
pub fn read(folder: &Path) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for path in files(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path)?;
        for (number, line) in text.lines().enumerate() {
            // A process that was killed may have left half a line, as its last one.
            if let Ok(record) = serde_json::from_str(line) {
                lines.push(Line { place: format!("{name}:{}", number + 1), record });
            } else if number + 1 < text.lines().count() {
                anyhow::bail!("{name}:{} is no record: {line}", number + 1);
            }
        }
    }
    lines.sort_by_key(|line| line.record.t);
    Ok(lines)
}
