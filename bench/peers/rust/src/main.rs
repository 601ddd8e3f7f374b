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

use clap::{Parser, ValueEnum};

use figure::Figure;
use peer::Peer;

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
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.peer {
        Which::GraphileWorker => measure::<graphile_worker::GraphileWorker>(&args.figure).await,
        Which::Apalis => measure::<apalis::Apalis>(&args.figure).await,
        Which::Sqlxmq => measure::<sqlxmq::Sqlxmq>(&args.figure).await,
        Which::Awa => measure::<awa::Awa>(&args.figure).await,
    }
}

async fn measure<P: Peer>(figure: &Figure) -> anyhow::Result<()> {
    println!("{}", figure.measure::<P>().await?);
    Ok(())
}
