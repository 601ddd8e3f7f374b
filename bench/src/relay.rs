//! The relay daemon: `outbox relay --publish stdout` as a process of its own, beside the library's drain of the same backlog;
//! how much memory a large backlog costs it; how soon an INSERT of another client arrives.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox::Outbox;
use sqlx::{AssertSqlSafe, Postgres};

use crate::{Bed, drain, fill, median, per_second, print_ratio};

/// The table of the drain that it is compared with.
const TABLE: &str = "bench_drain";

/// A relay, and the lines that it prints.
struct Relay {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Relay {
    fn start(binary: &Path, bed: &Bed, mode: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(binary)
            .args([
                "relay",
                "--publish",
                "stdout",
                "--completion",
                "delete",
                "--batch",
                "500",
                "--table",
                TABLE,
            ])
            .args(["--mode", mode, "--database", &bed.database])
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
    fn read(&mut self, lines: usize) -> anyhow::Result<String> {
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

    fn stop(mut self) -> anyhow::Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the relay ended with {status}");
        Ok(())
    }
}

pub(crate) async fn run(bed: &Bed, binary: &Path, events: usize, backlog: usize) -> anyhow::Result<()> {
    for mode in ["single-node", "multi-node"] {
        let (mut ours, mut library) = (Vec::new(), Vec::new());
        for _ in 0..bed.rounds {
            let outbox = bed.outbox(TABLE, 4).await?;
            fill(&outbox, events, 0).await?;
            bed.settle(TABLE).await?;
            let relay = if mode == "single-node" { outbox.single_node() } else { outbox.multi_node() };
            library.push(per_second(events, drain::drain(&outbox, relay, events).await?));
            fill(&outbox, events, 0).await?;
            bed.settle(TABLE).await?;
            ours.push(per_second(events, drained(&outbox, binary, bed, mode, events).await?.0));
            outbox.close().await;
        }
        let what = format!("stdout relay, {mode}, beside the library's drain");
        print_ratio(&what, "ev/s", &ours, &library, ">= 0.6");
    }
    let outbox = bed.outbox(TABLE, 4).await?;
    fill(&outbox, backlog, 0).await?;
    let (time, peak) = drained(&outbox, binary, bed, "multi-node", backlog).await?;
    println!("memory with a backlog of {backlog}: at most {peak:.1} MB, in {time:.1?}, wanted < 100 MB");
    latency(bed, &outbox, binary).await
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
    let mut relay = Relay::start(binary, bed, mode)?;
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

/// From the commit of a plain INSERT to the line, at ten events a second.
async fn latency(bed: &Bed, outbox: &Outbox<Postgres>, binary: &Path) -> anyhow::Result<()> {
    const INSERTS: usize = 200;
    let pool = bed.pool(1).await?;
    let mut relay = Relay::start(binary, bed, "multi-node")?;
    let (told, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let reading = tokio::task::spawn_blocking(move || {
        for _ in 0..=INSERTS {
            relay.read(1)?;
            let _ = told.send(Instant::now());
        }
        anyhow::Ok(relay)
    });
    let mut figures = Vec::new();
    for n in 0..=INSERTS {
        let insert = format!("INSERT INTO {TABLE} (event_type, payload) VALUES ('e', '{n}')");
        sqlx::query(AssertSqlSafe(insert)).execute(&pool).await?;
        let committed = Instant::now();
        let arrived = seen.recv().await.ok_or_else(|| anyhow::anyhow!("the relay ended"))?;
        // The first one waits for the relay to start.
        if n > 0 {
            figures.push(arrived.saturating_duration_since(committed).as_secs_f64() * 1_000.0);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    reading.await??.stop()?;
    figures.sort_by(f64::total_cmp);
    let at = |share: f64| figures[((figures.len() - 1) as f64 * share) as usize];
    println!(
        "INSERT of another client to the line: p50 {:.1} ms, p90 {:.1}, p99 {:.1}, wanted p50 <= 20",
        median(figures.clone()),
        at(0.9),
        at(0.99)
    );
    anyhow::ensure!(outbox.admin().backlog().await?.pending == 0, "events are left");
    Ok(())
}
