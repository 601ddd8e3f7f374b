//! What a relay answers over HTTP: probes and metrics (`/healthz`, `/readyz`, `/metrics`), the API, and the dashboard.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use outbox_web::Role;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::health::SharedHealth;
use super::serve;
use super::web::{Api, tls};
use crate::config::Http;

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

/// What is served, and where.
pub(crate) struct Serve<'a> {
    pub(crate) listen: SocketAddr,
    pub(crate) http: &'a Http,
    /// Whether others may ask for probes and metrics, without a token.
    pub(crate) allow_remote: bool,
    /// What the one database is called.
    pub(crate) database: Option<&'a str>,
    /// Whether people read what is said, rather than machines.
    pub(crate) to_people: bool,
}

impl Server {
    /// Listens, and has metrics counted from now on.
    pub(crate) async fn start(serve: &Serve<'_>, health: SharedHealth) -> Result<Self> {
        let Serve { listen, http, .. } = *serve;
        let api = match http.serves_api(listen) {
            true => Some(Api::new(http, serve.database, &health)?),
            false => None,
        };
        let tls = tls(http)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        let metrics = recorder()?;
        let address = listener.local_addr().unwrap_or(listen);
        tracing::info!("probes and metrics: {scheme}://{address}/healthz /readyz /metrics");
        if let Some(api) = &api {
            api.tell(scheme, address, serve.to_people);
        }
        let is_open = listen.ip().is_loopback() || serve.allow_remote;
        let router = router(Asked { health, metrics: metrics.clone() }, api.as_ref(), is_open);
        let answers = tokio::spawn(serve::serve(listener, tls, router));
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

/// `/healthz` is open to all. So are the others on an address that only this machine can reach, or where that was asked for:
/// they tell no secrets, and who scrapes them has no token. Everything else needs one.
fn router(asked: Asked, api: Option<&Api>, is_open: bool) -> Router {
    let probes =
        Router::new().route("/readyz", get(readyz)).route("/metrics", get(metrics)).with_state(asked);
    let alive = Router::new().route("/healthz", get(async || "ok\n"));
    match api {
        Some(api) if is_open => alive.merge(probes).merge(api.web.router()),
        Some(api) => alive.merge(api.web.protect(Role::Read, probes)).merge(api.web.router()),
        None => alive.merge(probes),
    }
}

async fn readyz(State(asked): State<Asked>) -> Response {
    let readiness = asked.health.readiness().await;
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(asked): State<Asked>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], asked.metrics.render()).into_response()
}
