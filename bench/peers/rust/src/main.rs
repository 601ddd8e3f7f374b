//! Job queues in Rust on PostgreSQL, measured as the benchmark measures the outbox.
//!
//! ```text
//! peers awa drain --database postgres://localhost/scratch --events 20000
//! ```

mod apalis;
mod awa;
mod figure;
mod graphile_worker;
mod peer;
mod sqlxmq;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use figure::Figure;

#[derive(Parser)]
struct Args {
    /// Which peer to measure.
    peer: Which,

    #[command(subcommand)]
    figure: Figure,
}

#[derive(Clone, Copy, ValueEnum)]
enum Which {
    #[value(name = "graphile_worker")]
    GraphileWorker,
    Apalis,
    Sqlxmq,
    Awa,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let measured = match args.peer {
        Which::GraphileWorker => args.figure.measure::<graphile_worker::GraphileWorker>().await,
        Which::Apalis => args.figure.measure::<apalis::Apalis>().await,
        Which::Sqlxmq => args.figure.measure::<sqlxmq::Sqlxmq>().await,
        Which::Awa => args.figure.measure::<awa::Awa>().await,
    };
    match measured {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        // One line, which is the reason that the benchmark gives.
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
