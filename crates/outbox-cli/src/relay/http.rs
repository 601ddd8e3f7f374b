//! Probes and metrics over HTTP: `/healthz`, `/readyz`, `/metrics`. They tell no secrets and change nothing, so nobody is
//! asked who they are.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::health::SharedHealth;

/// From a millisecond to a minute.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// How often what was measured is folded into its buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// Who answers. Ends when dropped.
pub(crate) struct Server {
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Clone)]
struct Asked {
    health: SharedHealth,
    metrics: PrometheusHandle,
}

impl Server {
    /// Listens, and has metrics counted from now on.
    pub(crate) async fn start(listen: SocketAddr, health: SharedHealth) -> Result<Self> {
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        let metrics = recorder()?;
        let address = listener.local_addr().unwrap_or(listen);
        tracing::info!("probes and metrics: http://{address}/healthz /readyz /metrics");
        let router = router(Asked { health, metrics: metrics.clone() });
        let answers = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "probes and metrics are not answered any more");
            }
        });
        let upkeep = tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                metrics.run_upkeep();
            }
        });
        Ok(Self { tasks: [answers, upkeep] })
    }
}

fn recorder() -> Result<PrometheusHandle> {
    let milliseconds = SECONDS.map(|bound| bound * 1_000.0);
    PrometheusBuilder::new()
        .set_buckets(&SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_ms".to_owned()), &milliseconds))
        .and_then(PrometheusBuilder::install_recorder)
        .context("cannot count metrics")
}

fn router(asked: Asked) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(asked)
}

async fn readyz(State(asked): State<Asked>) -> Response {
    let readiness = asked.health.readiness().await;
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(asked): State<Asked>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], asked.metrics.render()).into_response()
}
