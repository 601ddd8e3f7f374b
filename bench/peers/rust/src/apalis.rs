//! apalis with apalis-postgres. Settings: the crate's examples/basic.rs (batch_size,
//! lock_tasks(false), with_pubsub, parallelize) and `Config::batch_size` on docs.rs ("larger
//! batches can improve throughput").

use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PgTask, PostgresStorage};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::peer::{Handler, Payload, Peer, Settings, Stop};

const QUEUE: &str = "bench";

#[derive(Clone)]
pub struct Apalis {
    pool: PgPool,
}

fn task(order: u64) -> anyhow::Result<PgTask> {
    Ok(TaskBuilder::new(serde_json::to_vec(&Payload::new(order))?).build())
}

async fn bench(payload: Payload, handler: Data<Handler>) -> Result<(), BoxDynError> {
    (handler.0.0)(payload.order);
    Ok(())
}

impl Peer for Apalis {
    const NAME: &'static str = "apalis";
    const VERSION: &'static str = "1.0.0";
    const SETTINGS: Settings = Settings {
        drain: "batch_size 2000, lock_tasks(false), with_pubsub, polls every 100 ms, parallelize; jobs are marked as Done; filled by push_tasks",
        latency: "batch_size 2000, lock_tasks(false), with_pubsub, polls every 100 ms, parallelize; added by push_tasks",
        write: "push_tasks on the caller's transaction",
    };
    const SCHEMA: &'static str = "apalis";

    async fn open(database: &str, writers: u32) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(writers.max(20)).connect(database).await?;
        PostgresStorage::setup(&pool).await?;
        Ok(Self { pool })
    }

    async fn add_many(&self, count: usize) -> anyhow::Result<()> {
        let tasks = (0..count).map(|_| task(4711)).collect::<Result<_, _>>()?;
        let mut connection = self.pool.acquire().await?;
        apalis_postgres::queries::push_tasks(&mut *connection, QUEUE, tasks).await?;
        Ok(())
    }

    async fn add(&self, order: u64) -> anyhow::Result<()> {
        let mut connection = self.pool.acquire().await?;
        apalis_postgres::queries::push_tasks(&mut *connection, QUEUE, vec![task(order)?]).await?;
        Ok(())
    }

    async fn write(&self) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO apalis.business (total) VALUES ($1)")
            .bind(995_i64)
            .execute(&mut *tx)
            .await?;
        apalis_postgres::queries::push_tasks(&mut *tx, QUEUE, vec![task(4711)?]).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn unsettled(&self) -> anyhow::Result<bool> {
        let any = "SELECT EXISTS (SELECT FROM apalis.jobs WHERE status <> 'Done')";
        Ok(sqlx::query_scalar(any).fetch_one(&self.pool).await?)
    }

    async fn work(&self, handler: Handler) -> anyhow::Result<Stop> {
        let config = Config::default().queue(QUEUE).batch_size(2_000).lock_tasks(false);
        let backend = PostgresStorage::<Payload>::new(&self.pool)
            .with_config(config)
            .with_pubsub()
            .poll_with_interval(Duration::from_millis(100));
        let worker =
            WorkerBuilder::new("bench").backend(backend).data(handler).parallelize(tokio::spawn).build(bench);
        // On a thread of its own: the future that parallelize makes is not one that tokio::spawn
        // takes.
        let runtime = tokio::runtime::Handle::current();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::task::spawn_blocking(move || {
            runtime.block_on(async {
                tokio::select! {
                    ended = worker.run() => ended.map_err(|error| error.to_string()),
                    _ = stopped => Ok(()),
                }
            })
        });
        Ok(Box::pin(async move {
            drop(stop);
            if let Ok(Err(error)) = running.await {
                eprintln!("{error}");
            }
        }))
    }
}
