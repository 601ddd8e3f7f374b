//! awa, on its queue storage. Settings: its own tests/benchmark_test.rs in the crate's package, and
//! `QueueConfig` on docs.rs.

use std::sync::Arc;
use std::time::Duration;

use awa::{
    AwaError, Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage,
    QueueStorageConfig,
};
use serde::{Deserialize, Serialize};
use sqlx08::PgPool;
use sqlx08::postgres::PgPoolOptions;

use crate::peer::{Handler, Payload, Peer, Settings, Stop};

const QUEUE: &str = "bench";

#[derive(Clone)]
pub struct Awa {
    pool: PgPool,
}

#[derive(Serialize, Deserialize, JobArgs)]
struct Bench {
    #[serde(flatten)]
    payload: Payload,
}

impl Bench {
    fn new(order: u64) -> Self {
        Self { payload: Payload::new(order) }
    }
}

fn to_queue() -> InsertOpts {
    InsertOpts { queue: QUEUE.into(), ..InsertOpts::default() }
}

fn storage() -> Result<QueueStorage, AwaError> {
    QueueStorage::new(QueueStorageConfig::default())
}

impl Peer for Awa {
    const NAME: &'static str = "awa";
    const VERSION: &'static str = "0.6.9";
    const SETTINGS: Settings = Settings {
        drain: "queue storage, max_workers 512, claims of 512, no deadline, polls every 50 ms; jobs are completed into a log; filled by enqueue_params_copy",
        latency: "queue storage, max_workers 512, no deadline, polls every 50 ms, LISTEN/NOTIFY; added by insert_with",
        write: "insert_with on the caller's transaction",
    };
    const SCHEMA: &'static str = "awa";

    async fn open(database: &str, writers: u32) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(writers.max(20)).connect(database).await?;
        awa::migrations::run(&pool).await?;
        let peer = Self { pool };
        // The first worker of a fresh database turns its queue storage on; jobs that are there
        // before stay in the slower tables of older versions.
        peer.work(Handler(Arc::new(|_| {}))).await?.await;
        Ok(peer)
    }

    async fn add_many(&self, count: usize) -> anyhow::Result<()> {
        let jobs: Vec<InsertParams> = (0..count)
            .map(|_| awa::model::insert::params_with(&Bench::new(4711), to_queue()))
            .collect::<Result<_, _>>()?;
        storage()?.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }

    async fn add(&self, order: u64) -> anyhow::Result<()> {
        awa::insert_with(&self.pool, &Bench::new(order), to_queue()).await?;
        Ok(())
    }

    async fn write(&self) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx08::query("INSERT INTO awa.business (total) VALUES ($1)").bind(995_i64).execute(&mut *tx).await?;
        awa::insert_with(&mut *tx, &Bench::new(4711), to_queue()).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn unsettled(&self) -> anyhow::Result<bool> {
        let counts = storage()?.queue_counts(&self.pool, QUEUE).await?;
        Ok(counts.available + counts.running > 0)
    }

    async fn work(&self, handler: Handler) -> anyhow::Result<Stop> {
        let config = QueueConfig {
            max_workers: 512,
            poll_interval: Duration::from_millis(50),
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        };
        let client = Client::builder(self.pool.clone())
            .queue(QUEUE, config)
            .register::<Bench, _, _>(move |job, _context| {
                (handler.0)(job.payload.order);
                async { Ok(JobResult::Completed) }
            })
            .build()?;
        client.start().await?;
        Ok(Box::pin(async move { client.shutdown(Duration::from_secs(5)).await }))
    }
}
