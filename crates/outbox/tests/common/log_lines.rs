//! Captures log lines for assertions.

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;

/// Captures every log line.
#[derive(Clone, Default)]
pub struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    /// Captures log lines from now on, in the whole process.
    pub fn capture(level: LevelFilter) -> Self {
        let lines = Self::default();
        let writer = lines.clone();
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .init();
        lines
    }

    /// All captured lines.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
