//! The three figures.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::peer::{Handler, Peer};

const WARM_UP: u64 = 100;

#[derive(Subcommand)]
pub enum Figure {
    /// How long it takes to empty a backlog with a handler that does nothing.
    Drain {
        #[arg(long)]
        database: String,
        #[arg(long)]
        events: usize,
    },
    /// How soon after its commit a job is handled.
    Latency {
        #[arg(long)]
        database: String,
        #[arg(long)]
        rate: f64,
        #[arg(long)]
        seconds: f64,
    },
    /// How long business transactions take that each add a job.
    Write {
        #[arg(long)]
        database: String,
        #[arg(long)]
        writers: u32,
        #[arg(long)]
        transactions: u64,
    },
}

impl Figure {
    /// Measures, from a schema that is made to one that is dropped, and gives the line to print.
    pub async fn measure<P: Peer>(&self) -> anyhow::Result<Value> {
        let (Self::Drain { database, .. } | Self::Latency { database, .. } | Self::Write { database, .. }) =
            self;
        let mut admin = PgConnection::connect(database).await?;
        drop_schema::<P>(&mut admin).await?;
        let measured = self.measure_in::<P>(database, &mut admin).await;
        drop_schema::<P>(&mut admin).await?;
        measured
    }

    async fn measure_in<P: Peer>(&self, database: &str, admin: &mut PgConnection) -> anyhow::Result<Value> {
        let (figure, settings, measured) = match *self {
            Self::Drain { events, .. } => {
                let peer = P::open(database, 1).await?;
                ("drain", P::SETTINGS.drain, drain(&peer, admin, events).await?)
            }
            Self::Latency { rate, seconds, .. } => {
                let peer = P::open(database, 8).await?;
                ("latency", P::SETTINGS.latency, latency(&peer, rate, seconds).await?)
            }
            Self::Write { writers, transactions, .. } => {
                let peer = P::open(database, writers).await?;
                ("write", P::SETTINGS.write, write(&peer, admin, writers, transactions).await?)
            }
        };
        let mut line =
            json!({ "peer": P::NAME, "version": P::VERSION, "language": "Rust", "figure": figure });
        for (key, value) in measured.as_object().into_iter().flatten() {
            line[key] = value.clone();
        }
        line["settings"] = settings.into();
        Ok(line)
    }
}

async fn drop_schema<P: Peer>(admin: &mut PgConnection) -> anyhow::Result<()> {
    run(admin, "SET client_min_messages = warning").await?;
    run(admin, &format!("DROP SCHEMA IF EXISTS {} CASCADE", P::SCHEMA)).await
}

/// Lets the server write out what it has, so that the figure does not pay for the filling.
async fn settle<P: Peer>(admin: &mut PgConnection) -> anyhow::Result<()> {
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = $1";
    for table in sqlx::query_scalar::<_, String>(tables).bind(P::SCHEMA).fetch_all(&mut *admin).await? {
        run(admin, &format!("VACUUM ANALYZE {}.\"{table}\"", P::SCHEMA)).await?;
    }
    run(admin, "CHECKPOINT").await
}

async fn run(admin: &mut PgConnection, statement: &str) -> anyhow::Result<()> {
    sqlx::query(AssertSqlSafe(statement)).execute(admin).await?;
    Ok(())
}

async fn drain<P: Peer>(peer: &P, admin: &mut PgConnection, events: usize) -> anyhow::Result<Value> {
    for start in (0..events).step_by(1_000) {
        peer.add_many(1_000.min(events - start)).await?;
    }
    settle::<P>(admin).await?;

    let left = Arc::new((AtomicI64::new(i64::try_from(events)?), Notify::new()));
    let counter = left.clone();
    let handler = Handler(Arc::new(move |_| {
        if counter.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            counter.1.notify_one();
        }
    }));
    let began = Instant::now();
    let stop = peer.work(handler).await?;
    left.1.notified().await;
    while peer.unsettled().await? {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    stop.await;
    let twice = -left.0.load(Ordering::Relaxed);
    anyhow::ensure!(twice == 0, "{twice} jobs were handled twice");
    Ok(json!({ "events": events, "seconds": seconds }))
}

async fn latency<P: Peer>(peer: &P, rate: f64, seconds: f64) -> anyhow::Result<Value> {
    let count = (rate * seconds).round() as u64;
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = Handler(Arc::new(move |order| {
        // The receiver is closed once the figure is taken.
        let _ = started.send((order, Instant::now()));
    }));
    let stop = peer.work(handler).await?;
    let began = tokio::time::Instant::now() + Duration::from_secs(1);
    let mut adding = JoinSet::new();
    for order in 0..WARM_UP + count {
        tokio::time::sleep_until(began + Duration::from_secs_f64(order as f64 / rate)).await;
        let peer = peer.clone();
        adding.spawn(async move {
            peer.add(order).await?;
            anyhow::Ok((order, Instant::now()))
        });
    }
    let mut committed = HashMap::new();
    while let Some(added) = adding.join_next().await {
        committed.extend([added??]);
    }
    let mut times = HashMap::new();
    while times.len() < committed.len() {
        let (order, start) = starts.recv().await.expect("the worker runs");
        times.entry(order).or_insert(start.saturating_duration_since(committed[&order]));
    }
    stop.await;
    let mut times: Vec<Duration> = (WARM_UP..WARM_UP + count).map(|order| times[&order]).collect();
    times.sort();
    let at = |share: f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len() - 1);
        (times[index].as_secs_f64() * 1e6).round() / 1e3
    };
    Ok(json!({
        "rate": rate, "count": count, "p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "max_ms": at(1.0),
    }))
}

async fn write<P: Peer>(
    peer: &P,
    admin: &mut PgConnection,
    writers: u32,
    transactions: u64,
) -> anyhow::Result<Value> {
    run(admin, &format!("CREATE TABLE {}.business (id bigserial PRIMARY KEY, total bigint)", P::SCHEMA))
        .await?;
    // Opens the connections and prepares the statements.
    run_writers(peer, writers, u64::from(writers) * 4).await?;
    settle::<P>(admin).await?;

    let began = Instant::now();
    run_writers(peer, writers, transactions).await?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(json!({ "writers": writers, "transactions": transactions, "seconds": seconds }))
}

async fn run_writers<P: Peer>(peer: &P, writers: u32, transactions: u64) -> anyhow::Result<()> {
    let left = Arc::new(AtomicI64::new(i64::try_from(transactions)?));
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let (peer, left) = (peer.clone(), left.clone());
        tasks.spawn(async move {
            while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                peer.write().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
