//! graphile_worker, the Rust port. Settings: docs/src/configuration/worker-options.md,
//! "Throughput-oriented worker", docs/src/guides/local-queue.md, and the sizes of its own
//! benches/perf_test.rs, in the crate's package.

use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::peer::{Handler, Payload, Peer, Settings, Stop};

#[derive(Clone)]
pub struct GraphileWorker {
    pool: PgPool,
    utils: WorkerUtils,
}

impl TaskHandler for Payload {
    const IDENTIFIER: &'static str = "bench";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(handler) = context.get_ext::<Handler>() {
            (handler.0)(self.order);
        }
        Ok::<(), String>(())
    }
}

impl GraphileWorker {
    fn options(&self) -> WorkerOptions {
        WorkerOptions::default().schema(Self::SCHEMA).pg_pool(self.pool.clone()).define_job::<Payload>()
    }
}

impl Peer for GraphileWorker {
    const NAME: &'static str = "graphile_worker";
    const VERSION: &'static str = "0.14.1";
    const SETTINGS: Settings = Settings {
        drain: "concurrency 16, local_queue 1000, complete_job_batch_delay 5 ms; jobs are deleted when done; filled by add_raw_jobs",
        latency: "concurrency 16, local_queue 1000, complete_job_batch_delay 5 ms, LISTEN/NOTIFY; added by add_job",
        write: "add_job through with_executor, in the caller's transaction",
    };
    const SCHEMA: &'static str = "peer_graphile_worker_rs";

    async fn open(database: &str, writers: u32) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(writers.max(20)).connect(database).await?;
        let utils = WorkerUtils::new(pool.clone(), Self::SCHEMA);
        utils.migrate().await?;
        Ok(Self { pool, utils })
    }

    async fn add_many(&self, count: usize) -> anyhow::Result<()> {
        let payload = serde_json::to_value(Payload::new(4711))?;
        let job = RawJobSpec { identifier: Payload::IDENTIFIER.into(), payload, spec: JobSpec::default() };
        self.utils.add_raw_jobs(&vec![job; count]).await?;
        Ok(())
    }

    async fn add(&self, order: u64) -> anyhow::Result<()> {
        self.utils.add_job(Payload::new(order), JobSpec::default()).await?;
        Ok(())
    }

    async fn write(&self) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO peer_graphile_worker_rs.business (total) VALUES ($1)")
            .bind(995_i64)
            .execute(&mut *tx)
            .await?;
        let mut utils = self.utils.clone().with_executor(&mut tx);
        utils.add_job(Payload::new(4711), JobSpec::default()).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn unsettled(&self) -> anyhow::Result<bool> {
        let any = "SELECT EXISTS (SELECT FROM peer_graphile_worker_rs._private_jobs)";
        Ok(sqlx::query_scalar(any).fetch_one(&self.pool).await?)
    }

    async fn work(&self, handler: Handler) -> anyhow::Result<Stop> {
        let worker = self
            .options()
            .concurrency(16)
            .complete_job_batch_delay(Duration::from_millis(5))
            .fail_job_batch_delay(Duration::from_millis(5))
            .local_queue(LocalQueueConfig::default().with_size(1_000))
            .add_extension(handler)
            .init()
            .await?;
        let worker = std::sync::Arc::new(worker);
        let running = tokio::spawn({
            let worker = worker.clone();
            async move { worker.run().await.map_err(|error| error.to_string()) }
        });
        Ok(Box::pin(async move {
            worker.request_shutdown();
            if let Ok(Err(error)) = running.await {
                eprintln!("{error}");
            }
        }))
    }
}
