//! The relay daemon: `outbox relay --publish stdout` as a process of its own, beside the library's drain of the same backlog;
//! how much memory a large backlog costs it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox::Outbox;
use sqlx::Postgres;

use crate::{Bed, drain, fill, per_second, print_ratio};

/// The table of the drain that it is compared with.
const TABLE: &str = "bench_drain";

/// A relay, and the lines that it prints.
pub(crate) struct Relay {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Relay {
    pub(crate) fn start(binary: &Path, database: &str, table: &str, mode: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(binary)
            .args(["relay", "--publish", "stdout", "--completion", "delete", "--batch", "500"])
            .args(["--table", table, "--mode", mode, "--database", database])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| {
                anyhow::anyhow!(
                    "{}: {e}; build it first: cargo build --release -p outbox-cli",
                    binary.display()
                )
            })?;
        let lines = BufReader::with_capacity(1 << 20, child.stdout.take().expect("it is piped"));
        Ok(Self { child, lines })
    }

    /// Reads so many lines; returns the last one.
    pub(crate) fn read(&mut self, lines: usize) -> anyhow::Result<String> {
        let mut line = String::new();
        for n in 0..lines {
            line.clear();
            anyhow::ensure!(
                self.lines.read_line(&mut line)? > 0,
                "the relay ended after {n} of {lines} lines"
            );
        }
        Ok(line)
    }

    /// The most memory that it has had, in MB.
    fn peak(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kilobytes.ok_or_else(|| anyhow::anyhow!("no VmHWM"))? / 1_024.0)
    }

    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the relay ended with {status}");
        Ok(())
    }
}

pub(crate) async fn run(bed: &Bed, binary: &Path, events: usize, backlog: usize) -> anyhow::Result<()> {
    for mode in ["single-node", "multi-node"] {
        let (mut ours, mut library, mut most) = (Vec::new(), Vec::new(), 0.0_f64);
        for _ in 0..bed.rounds {
            let outbox = bed.outbox(TABLE, 4).await?;
            fill(&outbox, events, 0).await?;
            bed.settle(TABLE).await?;
            let relay = if mode == "single-node" { outbox.single_node() } else { outbox.multi_node() };
            library.push(per_second(events, drain::drain(&outbox, relay, events).await?));
            fill(&outbox, events, 0).await?;
            bed.settle(TABLE).await?;
            let (time, peak) = drained(&outbox, binary, bed, mode, events).await?;
            ours.push(per_second(events, time));
            most = most.max(peak);
            outbox.close().await;
        }
        let what = format!("stdout relay, {mode}, beside the library's drain");
        print_ratio(&what, "ev/s", &ours, &library, ">= 0.6");
        println!("memory with a backlog of {events}, {mode}: at most {most:.1} MB, wanted < 100 MB");
    }
    let outbox = bed.outbox(TABLE, 4).await?;
    fill(&outbox, backlog, 0).await?;
    let (time, peak) = drained(&outbox, binary, bed, "multi-node", backlog).await?;
    println!(
        "memory with a backlog of {backlog}, multi-node: at most {peak:.1} MB, in {time:.1?}, wanted < 100 MB"
    );
    outbox.close().await;
    Ok(())
}

/// How long the relay takes until all lines are out and all rows are gone, and its most memory.
async fn drained(
    outbox: &Outbox<Postgres>,
    binary: &Path,
    bed: &Bed,
    mode: &str,
    events: usize,
) -> anyhow::Result<(Duration, f64)> {
    let began = Instant::now();
    let mut relay = Relay::start(binary, &bed.database, TABLE, mode)?;
    let read = tokio::task::spawn_blocking(move || relay.read(events).map(|_| relay));
    let relay = read.await??;
    while outbox.admin().backlog().await?.pending > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let time = began.elapsed();
    let peak = relay.peak()?;
    relay.stop()?;
    Ok((time, peak))
}
