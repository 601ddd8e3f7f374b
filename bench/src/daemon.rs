//! The command `outbox relay --publish stdout` as a separate process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::Context as _;

use crate::environment::BATCH;

/// A running relay and the lines that it prints. Dropping it kills the process.
pub(crate) struct Daemon {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Daemon {
    pub(crate) fn start(binary: &Path, database: &str, table: &str, mode: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(binary)
            .args(["relay", "--publish", "stdout", "--completion", "delete", "--batch", &BATCH.to_string()])
            .args(["--table", table, "--mode", mode, "--database", database])
            .env("OUTBOX_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("{}: build it first: cargo build --release -p outbox-cli", binary.display())
            })?;
        let lines = BufReader::with_capacity(1 << 20, child.stdout.take().expect("stdout is piped"));
        Ok(Self { child, lines })
    }

    /// Reads this many lines.
    pub(crate) fn read(&mut self, lines: usize) -> anyhow::Result<()> {
        let mut line = Vec::new();
        for n in 0..lines {
            line.clear();
            let read = self.lines.read_until(b'\n', &mut line)?;
            anyhow::ensure!(read > 0, "the relay ended after {n} of {lines} lines");
        }
        Ok(())
    }

    /// Peak memory of the process, in MB.
    pub(crate) fn peak(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kilobytes.context("no VmHWM")? / 1_024.0)
    }

    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the relay ended with {status}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both calls fail harmlessly if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
