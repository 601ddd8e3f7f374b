//! What a relay answers over HTTP: probes and metrics (`/healthz`, `/readyz`, `/metrics`), the API, and the dashboard.

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

use super::health::SharedHealth;
use super::places::Limits;
use super::serve;
use super::web::{Api, tls};
use crate::config::Http;

/// From a millisecond to a minute.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// How often what was measured is folded into its buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// How many connections there are at most, if the settings do not say.
const CONNECTIONS: usize = 1_024;

/// How many the listener of probes has: an orchestrator and a scraper need few.
const PROBES: usize = 64;

/// A year. Not for other names of the domain: they may be other services.
const STRICT: &str = "max-age=31536000";

/// Who answers. Ends when dropped.
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
struct Asked {
    health: SharedHealth,
    metrics: PrometheusHandle,
}

/// What is served, and where.
pub(crate) struct Serve<'a> {
    /// The dashboard, the API, probes and metrics.
    pub(crate) listen: Option<SocketAddr>,
    /// Probes and metrics alone.
    pub(crate) probes_listen: Option<SocketAddr>,
    pub(crate) http: &'a Http,
    /// What the one database is called.
    pub(crate) database: Option<&'a str>,
    /// Whether people read what is said, rather than machines.
    pub(crate) to_people: bool,
}

impl Server {
    /// Listens, and has metrics counted from now on. Does neither if there is nowhere to listen.
    pub(crate) async fn start(serve: &Serve<'_>, health: SharedHealth) -> Result<Self> {
        let Serve { listen, probes_listen, http, .. } = *serve;
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
        let asked = Asked { health, metrics: metrics.clone() };
        let mut server = Self::default();
        if let Some((listener, address)) = main {
            let scheme = if tls.is_some() { "https" } else { "http" };
            tracing::info!("probes and metrics: {scheme}://{address}/healthz /readyz /metrics");
            if let Some(api) = &api {
                api.tell(scheme, address, serve.to_people);
            }
            let names = if http.hosts.is_empty() { Names::OnLoopback } else { Names::Always };
            let router = router(asked.clone(), api.as_ref(), address, Hosts::new(http.host_names()), names);
            let router = if tls.is_some() { router.layer(from_fn(strict_transport)) } else { router };
            let limits = Limits::of(connections(http));
            server.tasks.push(tokio::spawn(serve::serve(listener, tls, router, limits)));
        }
        if let Some((listener, address)) = probes {
            tracing::info!("probes and metrics alone: http://{address}/healthz /readyz /metrics");
            let hosts = Hosts::new(http.host_names());
            let router = router(asked, None, address, hosts, Names::OnLoopback);
            server.tasks.push(tokio::spawn(serve::serve(listener, None, router, Limits::of(PROBES))));
        }
        server.tasks.push(tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
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

/// How many connections to keep: no more than half of the files that the process may open, so that databases and brokers find
/// theirs.
fn connections(http: &Http) -> usize {
    let files = std::fs::read_to_string("/proc/self/limits").ok().and_then(|limits| open_files(&limits));
    let most = files.map_or(usize::MAX, |files| (files / 2).max(1));
    match http.max_connections {
        Some(wanted) if wanted.get() > most => {
            tracing::warn!(
                "`max-connections` of `[http]` is {wanted}: more than half of the files that this process may open; {most} \
                 connections are kept open. Raise the limit (ulimit -n, LimitNOFILE=) or lower the setting."
            );
            most
        }
        Some(wanted) => wanted.get(),
        None => CONNECTIONS.min(most),
    }
}

/// The soft limit of open files, as Linux tells it.
fn open_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn recorder() -> Result<PrometheusHandle> {
    let milliseconds = SECONDS.map(|bound| bound * 1_000.0);
    PrometheusBuilder::new()
        .set_buckets(&SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_ms".to_owned()), &milliseconds))
        .and_then(PrometheusBuilder::install_recorder)
        .context("cannot count metrics")
}

/// `/healthz` is open to all. So are the others where there is no API, and on an address that only this machine can reach: they
/// tell no secrets, and who scrapes them has no token. Beside an API that other machines can reach they need a token like the rest.
///
/// All of them are asked by a name of this server: a site could have its own name point to this
/// machine, and read them through a browser here. Where other machines can reach probes without an
/// API, [`Names`] says whether names are checked.
fn router(asked: Asked, api: Option<&Api>, address: SocketAddr, hosts: Hosts, names: Names) -> Router {
    let alive = Router::new().route("/healthz", get(healthz)).with_state(asked.health.clone());
    let probes =
        Router::new().route("/readyz", get(readyz)).route("/metrics", get(metrics)).with_state(asked);
    let is_local = address.ip().is_loopback();
    match api {
        Some(api) if is_local => hosts.protect(alive.merge(probes)).merge(api.web.router()),
        Some(api) => hosts.protect(alive).merge(api.web.protect(Role::Read, probes)).merge(api.web.router()),
        None if is_local || names == Names::Always => hosts.protect(alive.merge(probes)),
        None => alive.merge(probes),
    }
}

/// Where the host names of requests to probes without an API are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// On a loopback address only: a site can reach that address through a browser of this machine,
    /// and in no other way. An address that other machines can reach answers each of them without a
    /// token or a cookie, with nothing that can be changed; there a check of names would mostly
    /// refuse scrapers, which ask by the name of a container.
    OnLoopback,
    /// On every address: `hosts` is set, and `listen` is what it describes.
    Always,
}

/// Fails once the relay has ended, which only a restart of the process mends. Errors that may pass are for `/readyz`.
async fn healthz(State(health): State<SharedHealth>) -> Response {
    match health.ended() {
        None => "ok\n".into_response(),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "the relay has ended\n").into_response(),
    }
}

/// Has browsers use TLS from now on. They do not heed it for addresses in numbers. Not for `localhost`, where other servers of this
/// machine are at other ports, without TLS.
async fn strict_transport(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_localhost = host.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"));
    let mut response = next.run(request).await;
    if !is_localhost {
        let headers = response.headers_mut();
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(STRICT));
    }
    response
}

async fn readyz(State(asked): State<Asked>) -> Response {
    let readiness = asked.health.readiness().await;
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(asked): State<Asked>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], asked.metrics.render()).into_response()
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
