//! Benchmarks on PostgreSQL. Each figure stands beside hand-written SQL that does the same work on the same server in
//! the same run; only the ratios mean anything.
//!
//! ```text
//! cargo run --release -p bench -- drain --database postgres://localhost/bench
//! ```

mod claim;
mod drain;
mod hot;
mod latency;
mod log;
mod order;
mod peers;
mod relay;

use std::time::Duration;

use clap::{Parser, Subcommand};
use outbox::{Event, Outbox, OutboxBuilder};
use sqlx::{AssertSqlSafe, PgPool, Postgres};

/// Benchmarks of outbox on PostgreSQL, each beside hand-written SQL in the same run.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
    cargo run --release -p bench -- all --database postgres://postgres@127.0.0.1/postgres\n  \
    cargo run --release -p bench -- drain --events 100000 --rounds 5")]
struct Args {
    #[command(subcommand)]
    what: What,

    /// The server to measure on. Tables named `bench_…` are made and dropped.
    #[arg(
        long,
        env = "OUTBOX_TEST_POSTGRES",
        global = true,
        default_value = "postgres://postgres@127.0.0.1/postgres"
    )]
    database: String,

    /// How often each figure is taken; the median counts.
    #[arg(long, global = true, default_value_t = 5)]
    rounds: usize,
}

#[derive(Subcommand)]
enum What {
    /// Cold drain: a backlog, an empty handler.
    Drain {
        /// How large the backlog is.
        #[arg(long, default_value_t = 100_000)]
        events: usize,
    },
    /// What the hot path adds to a business transaction.
    Hot {
        /// How many transactions a round has.
        #[arg(long, default_value_t = 20_000)]
        transactions: usize,
        /// How many tasks write at once.
        #[arg(long, value_delimiter = ',', default_value = "8,32")]
        writers: Vec<usize>,
    },
    /// What a claim costs beside finished rows, and beside an open transaction.
    Claim {
        /// How many finished rows there are.
        #[arg(long, default_value_t = 1_000_000)]
        finished: usize,
    },
    /// Ordered drain, beside our own unordered one.
    Order {
        /// How large the backlog is.
        #[arg(long, default_value_t = 50_000)]
        events: usize,
        /// How many keys the events belong to.
        #[arg(long, value_delimiter = ',', default_value = "10,1000")]
        keys: Vec<usize>,
    },
    /// The log: a publisher's backlog, and conditional appends.
    Log {
        /// How large the backlog is.
        #[arg(long, default_value_t = 1_000_000)]
        events: usize,
        /// How many appends a round has.
        #[arg(long, default_value_t = 20_000)]
        appends: usize,
        /// How many tasks append at once.
        #[arg(long, default_value_t = 16)]
        clients: usize,
    },
    /// How soon an INSERT of another process is a line of the relay daemon. Takes a URL of any database.
    Latency {
        /// The command to measure.
        #[arg(long, default_value = "target/release/outbox")]
        outbox: std::path::PathBuf,
    },
    /// The relay daemon as a process of its own: throughput, memory.
    Relay {
        /// The command to measure.
        #[arg(long, default_value = "target/release/outbox")]
        outbox: std::path::PathBuf,
        /// How large the backlog of a round is.
        #[arg(long, default_value_t = 200_000)]
        events: usize,
        /// How large the backlog is with which memory is measured.
        #[arg(long, default_value_t = 1_000_000)]
        backlog: usize,
    },
    /// All of them but those of the relay daemon.
    All,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let bed = Bed { database: args.database, rounds: args.rounds.max(1) };
    match args.what {
        What::Drain { events } => drain::run(&bed, events).await,
        What::Hot { transactions, writers } => hot::run(&bed, transactions, &writers).await,
        What::Claim { finished } => claim::run(&bed, finished).await,
        What::Order { events, keys } => order::run(&bed, events, &keys).await,
        What::Log { events, appends, clients } => log::run(&bed, events, appends, clients).await,
        What::Latency { outbox } => latency::run(&bed.database, &outbox).await,
        What::Relay { outbox, events, backlog } => relay::run(&bed, &outbox, events, backlog).await,
        What::All => {
            drain::run(&bed, 100_000).await?;
            hot::run(&bed, 20_000, &[8, 32]).await?;
            order::run(&bed, 50_000, &[10, 1_000]).await?;
            log::run(&bed, 1_000_000, 20_000, 16).await?;
            claim::run(&bed, 1_000_000).await
        }
    }
}

/// Where a benchmark lies: the server, and how often to measure.
struct Bed {
    database: String,
    rounds: usize,
}

impl Bed {
    /// A fresh outbox in a table of this name, with at most this many connections.
    async fn outbox(&self, table: &str, connections: u32) -> anyhow::Result<Outbox<Postgres>> {
        let pool = self.pool(1).await?;
        let left = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND starts_with(tablename, $1)";
        for name in sqlx::query_scalar::<_, String>(left).bind(table).fetch_all(&pool).await? {
            sqlx::query(AssertSqlSafe(format!("DROP TABLE IF EXISTS {name} CASCADE"))).execute(&pool).await?;
        }
        let outbox =
            OutboxBuilder::new().table(table).max_connections(connections).postgres(&self.database).await?;
        outbox.migrate().await?;
        Ok(outbox)
    }

    async fn pool(&self, connections: u32) -> anyhow::Result<PgPool> {
        Ok(sqlx::postgres::PgPoolOptions::new().max_connections(connections).connect(&self.database).await?)
    }

    /// Lets the server write out what it has, so that one figure does not pay for another.
    async fn settle(&self, table: &str) -> anyhow::Result<()> {
        let pool = self.pool(1).await?;
        sqlx::query(AssertSqlSafe(format!("VACUUM ANALYZE {table}"))).execute(&pool).await?;
        sqlx::query("CHECKPOINT").execute(&pool).await?;
        Ok(())
    }
}

/// A payload of 256 bytes.
fn payload() -> serde_json::Value {
    serde_json::json!({ "order": 4711, "text": "x".repeat(230) })
}

/// Fills an outbox with events, keyed if `keys` is not 0.
async fn fill(outbox: &Outbox<Postgres>, events: usize, keys: usize) -> anyhow::Result<()> {
    let payload = payload();
    for start in (0..events).step_by(1_000) {
        let batch = (start..events.min(start + 1_000)).map(|i| {
            let event = Event::new("bench").json(&payload);
            if keys == 0 { event } else { event.ordering_key(format!("key-{}", i % keys)) }
        });
        outbox.send_all(batch).await?;
    }
    Ok(())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Prints one line: what, ours, theirs, the ratio of the medians, and its spread over the rounds.
fn print_ratio(what: &str, unit: &str, ours: &[f64], theirs: &[f64], wanted: &str) {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    let (low, high) = ratios.iter().fold((f64::MAX, f64::MIN), |(l, h), r| (l.min(*r), h.max(*r)));
    println!(
        "{what:<44} {:>10.1} {unit:<7} beside {:>10.1}   ratio {:.2} ({low:.2} to {high:.2}), wanted {wanted}",
        median(ours.to_vec()),
        median(theirs.to_vec()),
        median(ratios)
    );
}

fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
