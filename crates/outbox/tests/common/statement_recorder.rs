//! Reads every statement that this process sends from sqlx's log, and remembers the first one that
//! a database would refuse. For variants of databases that are not there to be tested on.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// The reason why a statement is refused, `None` if it is accepted. The statement is in upper case,
/// without comments.
pub type Refusal = fn(&str) -> Option<String>;

struct StatementRecorder {
    refusal: Refusal,
    refused: Mutex<Option<String>>,
    count: AtomicUsize,
}

static RECORDER: OnceLock<StatementRecorder> = OnceLock::new();

/// Records from now on. Only the first call of a process has an effect.
pub fn record(refusal: Refusal) {
    RECORDER.get_or_init(|| {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
        subscriber.with_writer(|| LogWriter).init();
        StatementRecorder { refusal, refused: Mutex::default(), count: AtomicUsize::new(0) }
    });
}

/// Fails if a statement was refused, or if none was recorded.
pub fn assert_accepted(by: &str) {
    let recorder = RECORDER.get().expect("record() was called");
    assert!(recorder.count.load(Ordering::Relaxed) > 0, "no statement was recorded");
    assert_eq!(*recorder.refused.lock().unwrap(), None, "{by} refuses this statement");
}

/// The reason and the statement, if the statement of a log line is refused.
pub fn refused(line: &str, refusal: Refusal) -> Option<String> {
    // A summary comes first, and the statement itself if it is longer than that.
    let (summary, rest) = line.split_once(" db.statement=").unwrap_or((line, ""));
    let is_whole = rest.is_empty() || rest.starts_with("\"\"");
    let statement = if is_whole { summary } else { rest };
    // A line feed is written as `\n`.
    let is_code = |line: &&str| !line.trim_start_matches(['"', ' ']).starts_with("--");
    let code: Vec<&str> = statement.split("\\n").filter(is_code).collect();
    refusal(&code.join(" ").to_uppercase()).map(|reason| format!("{reason}: {statement:.2000}"))
}

struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if let Some(recorder) = RECORDER.get().filter(|_| text.contains("sqlx::query")) {
            recorder.count.fetch_add(1, Ordering::Relaxed);
            if let Some(reason) = refused(&text, recorder.refusal) {
                recorder.refused.lock().unwrap().get_or_insert(reason);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
