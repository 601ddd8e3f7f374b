//! Benchmarks on PostgreSQL. Each figure is compared with hand-written SQL, or with another tool,
//! that does the same work on the same server in the same run.
//!
//! A [`scenario`] produces [`figures`]; the [`report`] renders them as tables, markdown and
//! [`chart`]s.
//!
//! ```text
//! cargo xtask bench --quick
//! cargo run --release -p bench -- --only cold,nodes --database postgres://localhost/bench
//! ```

#![forbid(unsafe_code)]

mod by_hand;
mod chart;
mod daemon;
mod environment;
mod facts;
mod figures;
mod load;
mod peers;
mod report;
mod scenario;
#[cfg(test)]
mod smoke;
mod text;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use environment::{Environment, Scale};
use peers::Peers;

/// Benchmarks of outbox on PostgreSQL, compared with hand-written SQL or another tool in the same
/// run.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
    cargo xtask bench --quick                     on a server of its own; what to run first\n  \
    cargo run --release -p bench -- --only cold,nodes --rounds 5 --database postgres://localhost/bench\n  \
    cargo run --release -p bench -- --only insert-to-line --database mysql://root@127.0.0.1/test")]
struct Args {
    /// The server to measure on. Tables named `bench_…` are created and dropped.
    #[arg(long, env = "OUTBOX_TEST_POSTGRES", default_value = "postgres://postgres@127.0.0.1/postgres")]
    database: String,

    /// A fifth of everything, and two rounds.
    #[arg(long)]
    quick: bool,

    /// Only these scenarios; nothing is written unless --out is given.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,

    /// Number of rounds; the median counts. 3 by default, 2 for a quick run.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// Without the other tools.
    #[arg(long)]
    no_peers: bool,

    /// The folder for RESULTS.md and its charts.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// The command `outbox` to measure as a process.
    #[arg(long, value_name = "FILE", default_value = "target/release/outbox")]
    relay: PathBuf,

    /// Lists all scenarios.
    #[arg(long)]
    list: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.list {
        scenario::ALL.iter().for_each(|scenario| println!("{:<16} {}", scenario.name(), scenario.title()));
        return Ok(());
    }
    let scenarios = scenario::named(&args.only)?;
    let mut env = Environment {
        database: args.database,
        rounds: args.rounds.unwrap_or(if args.quick { 2 } else { 3 }).max(1),
        scale: if args.quick { Scale::Quick } else { Scale::Full },
        relay: args.relay,
        peers: None,
    };
    if !args.no_peers && scenarios.iter().any(|scenario| scenario.has_peers()) {
        env.peers = Some(Peers::prepare(&peers_of(args.quick), args.quick).await);
    }
    let began = Instant::now();
    let facts = facts::read(&env).await?;
    facts.iter().for_each(|(what, is)| println!("{what:<13} {is}"));
    let (mut sheets, mut failed) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        eprintln!("… {}", scenario.name());
        let started = Instant::now();
        let sheet = scenario::run(scenario, &env).await;
        if sheet.failed {
            failed.push(sheet.name);
        }
        println!("{}", report::terminal(&sheet).trim_end());
        eprintln!("… {} took {:.0} s", scenario.name(), started.elapsed().as_secs_f64());
        sheets.push(sheet);
    }
    println!("{}", report::bounds(&sheets));
    let out = args.out.or_else(|| args.only.is_empty().then(|| PathBuf::from(env!("CARGO_MANIFEST_DIR"))));
    if let Some(out) = out {
        report::write(&out, &facts, &sheets)?;
        println!("written to {}", out.join("RESULTS.md").display());
    }
    println!("took {:.0} s", began.elapsed().as_secs_f64());
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The other tools of a run: all, or for a quick run those that install in seconds or are installed
/// already.
fn peers_of(quick: bool) -> Vec<String> {
    let quick_to_install = ["graphile-worker", "pg-boss", "procrastinate"];
    let target = std::env::current_exe().ok().and_then(|bench| Some(bench.parent()?.parent()?.to_owned()));
    let there = target.is_some_and(|target| target.join("peers/rust/release/peers").is_file());
    let wanted = |name: &&str| !quick || there || quick_to_install.contains(name);
    peers::NAMES.into_iter().filter(wanted).map(str::to_owned).collect()
}
