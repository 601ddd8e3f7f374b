//! sqlxmq. Settings: docs.rs/sqlxmq, `JobRunnerOptions::set_concurrency` ("larger batch sizes are
//! more efficient").

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use sqlx08::PgPool;
use sqlx08::migrate::Migrator;
use sqlx08::postgres::{PgConnectOptions, PgPoolOptions};
use sqlxmq::{CurrentJob, JobBuilder, JobRegistry, job};

use crate::peer::{Handler, Payload, Peer, Settings, Stop};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub struct Sqlxmq {
    pool: PgPool,
}

#[job(name = "bench")]
async fn bench(mut job: CurrentJob, handler: Handler) -> Result<(), BoxError> {
    let payload: Payload = job.json()?.ok_or("a job without a payload")?;
    (handler.0)(payload.order);
    job.complete().await?;
    Ok(())
}

impl Peer for Sqlxmq {
    const NAME: &'static str = "sqlxmq";
    const VERSION: &'static str = "0.6.0";
    const SETTINGS: Settings = Settings {
        drain: "concurrency 50 to 500, 20 connections; jobs are deleted when done; filled by spawn, 1000 to a transaction",
        latency: "concurrency 50 to 500, 20 connections, LISTEN/NOTIFY; added by spawn",
        write: "spawn on the caller's transaction",
    };
    const SCHEMA: &'static str = "peer_sqlxmq";

    async fn open(database: &str, writers: u32) -> anyhow::Result<Self> {
        let options = PgConnectOptions::from_str(database)?.options([("search_path", "peer_sqlxmq,public")]);
        let pool = PgPoolOptions::new().max_connections(writers.max(20)).connect_with(options).await?;
        // Its indexes call this extension's functions, which a vacuum looks for in public.
        sqlx08::query("CREATE EXTENSION IF NOT EXISTS \"uuid-ossp\" SCHEMA public").execute(&pool).await?;
        sqlx08::query("CREATE SCHEMA peer_sqlxmq").execute(&pool).await?;
        Migrator::new(Path::new(env!("SQLXMQ_MIGRATIONS"))).await?.run(&pool).await?;
        Ok(Self { pool })
    }

    async fn add_many(&self, count: usize) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        for _ in 0..count {
            JobBuilder::new("bench").set_json(&Payload::new(4711))?.spawn(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    async fn add(&self, order: u64) -> anyhow::Result<()> {
        JobBuilder::new("bench").set_json(&Payload::new(order))?.spawn(&self.pool).await?;
        Ok(())
    }

    async fn write(&self) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx08::query("INSERT INTO business (total) VALUES ($1)").bind(995_i64).execute(&mut *tx).await?;
        JobBuilder::new("bench").set_json(&Payload::new(4711))?.spawn(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn unsettled(&self) -> anyhow::Result<bool> {
        // There is one row that belongs to no job.
        let any = "SELECT EXISTS (SELECT FROM peer_sqlxmq.mq_msgs WHERE id <> '00000000-0000-0000-0000-000000000000')";
        Ok(sqlx08::query_scalar(any).fetch_one(&self.pool).await?)
    }

    async fn work(&self, handler: Handler) -> anyhow::Result<Stop> {
        let mut registry = JobRegistry::new(&[bench]);
        registry.set_context(handler);
        let mut runner = registry.runner(&self.pool).set_concurrency(50, 500).run().await?;
        Ok(Box::pin(async move {
            runner.stop().await;
            runner.wait_jobs_finish(Duration::from_secs(10)).await;
        }))
    }
}
