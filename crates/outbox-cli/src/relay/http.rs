//! HTTP endpoints of a relay: probes and metrics (`/healthz`, `/readyz`, `/metrics`), the API, and
//! the dashboard.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use outbox_web::{Hosts, Role};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::connections::Limits;
use super::health::SharedHealth;
use super::serve;
use super::web::{Api, tls};
use crate::config::Http;

/// Buckets of histograms in seconds: from a millisecond to a minute.
const LATENCY_BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// Interval for aggregating measured values into buckets.
const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Default limit of connections.
const DEFAULT_CONNECTIONS: usize = 1_024;

/// Limit of connections of `probes-listen`: an orchestrator and a scraper need few.
const PROBE_CONNECTIONS: usize = 64;

/// One year, without `includeSubDomains`: subdomains may be other services.
const HSTS_VALUE: &str = "max-age=31536000";

/// The HTTP server. Stops when dropped.
#[derive(Default)]
pub(crate) struct Server {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Clone)]
struct ProbeState {
    health: SharedHealth,
    metrics: PrometheusHandle,
}

/// Settings of the HTTP server.
pub(crate) struct ServerSettings<'a> {
    /// Address for the dashboard, the API, probes and metrics.
    pub(crate) listen: Option<SocketAddr>,
    /// Address for probes and metrics only.
    pub(crate) probes_listen: Option<SocketAddr>,
    pub(crate) http: &'a Http,
    /// Name of the database, if there is only one.
    pub(crate) database: Option<&'a str>,
    /// Whether standard error is a terminal with text output, where a secret may be printed.
    pub(crate) interactive: bool,
}

impl Server {
    /// Listens, and installs the metrics recorder. Does neither if no address is set.
    pub(crate) async fn start(serve: &ServerSettings<'_>, health: SharedHealth) -> Result<Self> {
        let ServerSettings { listen, probes_listen, http, .. } = *serve;
        if listen.is_none() && probes_listen.is_none() {
            return Ok(Self::default());
        }
        let api = match listen {
            Some(listen) if http.serves_api(listen) => Some(Api::new(http, serve.database, &health)?),
            _ => None,
        };
        let tls = tls(http)?;
        let (main, probes) = (bind(listen)?, bind(probes_listen)?);
        let metrics = recorder()?;
        let state = ProbeState { health, metrics: metrics.clone() };
        let mut server = Self::default();
        if let Some((listener, address)) = main {
            let scheme = if tls.is_some() { "https" } else { "http" };
            tracing::info!("probes and metrics: {scheme}://{address}/healthz /readyz /metrics");
            if let Some(api) = &api {
                api.log_address(scheme, address, serve.interactive);
            }
            let host_check = if http.hosts.is_empty() { HostCheck::OnLoopback } else { HostCheck::Always };
            let router =
                router(state.clone(), api.as_ref(), address, Hosts::new(http.host_names()), host_check);
            let router = if tls.is_some() { router.layer(from_fn(strict_transport)) } else { router };
            let limits = Limits::of(connections(http));
            server.tasks.push(tokio::spawn(serve::serve(listener, tls, router, limits)));
        }
        if let Some((listener, address)) = probes {
            tracing::info!("probes and metrics only: http://{address}/healthz /readyz /metrics");
            let hosts = Hosts::new(http.host_names());
            let router = router(state, None, address, hosts, HostCheck::OnLoopback);
            server.tasks.push(tokio::spawn(serve::serve(
                listener,
                None,
                router,
                Limits::of(PROBE_CONNECTIONS),
            )));
        }
        server.tasks.push(tokio::spawn(async move {
            loop {
                tokio::time::sleep(METRICS_UPKEEP_INTERVAL).await;
                metrics.run_upkeep();
            }
        }));
        Ok(server)
    }
}

fn bind(listen: Option<SocketAddr>) -> Result<Option<(TcpListener, SocketAddr)>> {
    let Some(listen) = listen else { return Ok(None) };
    let listener = serve::listen(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr().unwrap_or(listen);
    Ok(Some((listener, address)))
}

/// Limit of connections: at most half of the process's limit of open files, so that databases and
/// brokers can be connected.
fn connections(http: &Http) -> usize {
    let files = std::fs::read_to_string("/proc/self/limits").ok().and_then(|limits| open_files(&limits));
    let most = files.map_or(usize::MAX, |files| (files / 2).max(1));
    match http.max_connections {
        Some(wanted) if wanted.get() > most => {
            tracing::warn!(
                "`max-connections` of `[http]` is {wanted}, more than half of the open file limit of this process: {most} is \
                 used. Raise the limit (ulimit -n, LimitNOFILE=) or lower the setting."
            );
            most
        }
        Some(wanted) => wanted.get(),
        None => DEFAULT_CONNECTIONS.min(most),
    }
}

/// Soft limit of open files, from `/proc/self/limits`.
fn open_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn recorder() -> Result<PrometheusHandle> {
    let milliseconds = LATENCY_BUCKETS.map(|bound| bound * 1_000.0);
    PrometheusBuilder::new()
        .set_buckets(&LATENCY_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_ms".to_owned()), &milliseconds))
        .and_then(PrometheusBuilder::install_recorder)
        .context("cannot install the metrics recorder")
}

/// `/healthz` needs no token. `/readyz` and `/metrics` need none without an API, and on a loopback
/// address: they contain no secrets, and scrapers have no token. Next to an API that other machines
/// can reach, they need a token.
///
/// The host name of a request must be one of this server: a site could let its own name point to
/// this machine, and read the endpoints through a browser on it. For probes without an API, on an
/// address that other machines can reach, [`HostCheck`] decides whether names are checked.
fn router(
    state: ProbeState,
    api: Option<&Api>,
    address: SocketAddr,
    hosts: Hosts,
    host_check: HostCheck,
) -> Router {
    let liveness = Router::new().route("/healthz", get(healthz)).with_state(state.health.clone());
    let probes =
        Router::new().route("/readyz", get(readyz)).route("/metrics", get(metrics)).with_state(state);
    let is_local = address.ip().is_loopback();
    match api {
        Some(api) if is_local => hosts.protect(liveness.merge(probes)).merge(api.web.standalone()),
        Some(api) => {
            hosts.protect(liveness).merge(api.web.protect(Role::Read, probes)).merge(api.web.standalone())
        }
        None if is_local || host_check == HostCheck::Always => hosts.protect(liveness.merge(probes)),
        None => liveness.merge(probes),
    }
}

/// When to check the host names of requests to probes without an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostCheck {
    /// On a loopback address only: a site can reach that address only through a browser on this
    /// machine. An address that other machines can reach serves each of them without a token or a
    /// cookie, and nothing can be changed through it; a check there would mostly refuse scrapers,
    /// which use the name of a container.
    OnLoopback,
    /// On every address: `hosts` is set, and applies to `listen`.
    Always,
}

/// Fails once the relay has ended, which requires a restart of the process. Transient errors are
/// reported by `/readyz`.
async fn healthz(State(health): State<SharedHealth>) -> Response {
    match health.ended() {
        None => "ok\n".into_response(),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "the relay has ended\n").into_response(),
    }
}

/// Adds `Strict-Transport-Security`. Browsers ignore it for IP addresses. Not set for `localhost`,
/// where other servers of this machine use other ports without TLS.
async fn strict_transport(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_localhost = host.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"));
    let mut response = next.run(request).await;
    if !is_localhost {
        let headers = response.headers_mut();
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(HSTS_VALUE));
    }
    response
}

async fn readyz(State(state): State<ProbeState>) -> Response {
    let readiness = state.health.readiness().await;
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(state): State<ProbeState>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], state.metrics.render()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             95849                95849                processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(open_files(limits), Some(1_024));
        assert_eq!(
            open_files("Max open files            unlimited            unlimited            files"),
            None
        );
        assert_eq!(open_files(""), None);
    }
}
