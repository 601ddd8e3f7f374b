//! The history: every operation of each process as a line of JSON, in one file per process. A line
//! is written with one unbuffered system call, so it survives when the process is killed right
//! after.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::clock::now;
use crate::work::Spec;

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Time in microseconds, by the clock that all processes share.
    pub t: u64,
    /// Name of the process that recorded the operation.
    pub p: String,
    /// The operation.
    #[serde(flatten)]
    pub op: Op,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Kinds of operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Op {
    /// The run begins.
    Setup {
        /// Duration of leases, in milliseconds.
        lease: u64,
        /// Whether the database has a single writer: a process that is stopped may block all
        /// others.
        #[serde(default, skip_serializing_if = "is_false")]
        one_writer: bool,
    },
    /// A row that is not part of the workload is about to be inserted by plain SQL; no outcome is
    /// expected of it.
    Foreign {
        /// The arena whose table gets the row.
        arena: Arena,
        /// The row's event id.
        id: String,
        /// Description of the hostile values.
        text: String,
    },
    /// The webhook receiver accepted an event.
    Received {
        /// The event.
        id: String,
        /// The event's sequence number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
    },
    /// A writer is about to write these events in a transaction.
    Writing {
        /// The transaction.
        tx: String,
        /// Its events, in order.
        events: Vec<Spec>,
    },
    /// The transaction ended.
    Ended {
        /// The transaction.
        tx: String,
        /// The result that the writer saw.
        how: Commit,
        /// The error, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A handler starts.
    Started {
        /// Number of this run in its process.
        run: u64,
        /// The event.
        id: String,
        /// The event's sequence number, if the relay knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
        /// Number of the attempt, as the relay counts.
        attempt: u32,
    },
    /// A handler ends.
    Finished {
        /// The run.
        run: u64,
        /// The handler's outcome.
        how: HandlerOutcome,
    },
    /// A publisher of the log received these positions.
    Published {
        /// Name of the publisher.
        publisher: String,
        /// Epoch of the relay's leadership.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<i64>,
        /// The positions, in the order of publishing.
        positions: Vec<i64>,
    },
    /// A reader got a message from the broker.
    Arrived {
        /// The event.
        id: String,
        /// The event's sequence number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
        /// The message's position in the stream.
        place: u64,
    },
    /// The saved position of a publisher of the log, read from its table.
    Position {
        /// The publisher.
        publisher: String,
        /// The last position that is published.
        position: i64,
    },
    /// A process was started.
    Born {
        /// Name of the process.
        process: String,
        /// Process id.
        pid: u32,
    },
    /// A process ended.
    Gone {
        /// Name of the process.
        process: String,
        /// Exit code or signal.
        how: String,
        /// Whether the end was caused by a fault or by a requested stop.
        expected: bool,
    },
    /// A fault begins.
    Hit {
        /// Name of the fault.
        fault: String,
        /// The affected process; all processes if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
    },
    /// A fault ends.
    Over {
        /// Name of the fault.
        fault: String,
        /// The affected process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
    },
}

/// Result of a transaction as its writer saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Commit {
    /// The commit succeeded.
    Committed,
    /// The writer rolled it back.
    RolledBack,
    /// An error before or during the commit: nothing was written.
    Failed,
    /// The connection was lost during the commit: the result is unknown.
    Unknown,
}

/// Outcome of one run of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerOutcome {
    /// Done.
    Done,
    /// Failed; to be retried.
    Failed,
    /// Dead-lettered by the handler.
    Dead,
    /// The handler panicked.
    Panicked,
    /// The handler's future was dropped before it completed, as when a relay stops.
    Dropped,
}

/// Writes the history of one process.
#[derive(Debug)]
pub struct Writer {
    process: String,
    file: Mutex<File>,
}

impl Writer {
    /// Opens the history of this process in this folder.
    pub fn new(folder: &Path, process: &str) -> Result<Self> {
        let path = folder.join(format!("{process}.jsonl"));
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write the history {}", path.display()))?;
        Ok(Self { process: process.to_owned(), file: Mutex::new(file) })
    }

    /// The process whose history this is.
    pub fn process(&self) -> &str {
        &self.process
    }

    /// Records an operation that happens now.
    pub fn record(&self, op: Op) {
        self.record_at(now(), op);
    }

    /// Records an operation that happened at this time.
    ///
    /// # Panics
    /// If the file cannot be written: a history with holes proves nothing.
    pub fn record_at(&self, t: u64, op: Op) {
        let record = Record { t, p: self.process.clone(), op };
        let mut line = serde_json::to_vec(&record).expect("a record serializes to JSON");
        line.push(b'\n');
        let mut file = self.file.lock().expect("no thread panics while it holds the lock");
        file.write_all(&line).expect("the history can be written");
    }
}

/// A record and its location.
#[derive(Clone, Debug)]
pub struct Line {
    /// File name and line number.
    pub place: String,
    /// The record.
    pub record: Record,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let record = serde_json::to_string(&self.record).unwrap_or_default();
        write!(f, "{}: {record}", self.place)
    }
}

/// The history files of a folder.
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

/// Reads all histories of a folder, merged in order of time.
pub fn read(folder: &Path) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for path in files(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path)?;
        for (number, line) in text.lines().enumerate() {
            // A process that was killed may leave an incomplete last line.
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
