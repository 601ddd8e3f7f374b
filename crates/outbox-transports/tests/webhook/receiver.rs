//! A webhook receiver: a real HTTP server with configurable responses.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use outbox_transports::{Webhook, WebhookSettings};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Address of the sender: another port is another connection.
    pub peer: SocketAddr,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id").unwrap_or_default()
    }
}

/// A response and its delay.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub header: Option<(&'static str, String)>,
    pub body: Bytes,
    pub after: Duration,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, header: None, body: Bytes::new(), after: Duration::ZERO }
    }

    pub fn with(status: u16, name: &'static str, value: &str) -> Self {
        Self { header: Some((name, value.to_owned())), ..Self::status(status) }
    }

    pub fn after(wait: Duration) -> Self {
        Self { after: wait, ..Self::status(200) }
    }
}

type Responder = dyn Fn(usize, &ReceivedRequest) -> Reply + Send + Sync;

pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    server: tokio::task::JoinHandle<()>,
}

struct Shared {
    responder: Box<Responder>,
    requests: Mutex<Vec<ReceivedRequest>>,
    /// Number of received requests.
    received: watch::Sender<usize>,
    /// Current and maximum number of concurrent requests.
    concurrency: Mutex<(usize, usize)>,
}

impl Receiver {
    /// Starts a receiver. `responder` gets the number of the request, starting at 1, and the
    /// request.
    pub async fn start(responder: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.unwrap(), responder)
    }

    pub fn listen(
        listener: TcpListener,
        responder: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            responder: Box::new(responder),
            requests: Mutex::default(),
            received: watch::Sender::new(0),
            concurrency: Mutex::default(),
        });
        let app = Router::new().fallback(respond).with_state(shared.clone());
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, shared, server }
    }

    pub async fn with_status(status: u16) -> Self {
        Self::start(move |_, _| Reply::status(status)).await
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Waits until the receiver has got this number of requests.
    pub async fn wait_for_requests(&self, count: usize) {
        self.shared.received.subscribe().wait_for(|received| *received >= count).await.unwrap();
    }

    pub fn max_concurrency(&self) -> usize {
        self.shared.concurrency.lock().unwrap().1
    }

    /// Settings for a webhook to this receiver.
    pub fn settings(&self) -> WebhookSettings {
        let mut settings = WebhookSettings::new(format!("http://{}/in", self.address).as_str());
        settings.allow = vec!["127.0.0.1".into()];
        settings
    }

    pub fn webhook(&self) -> Webhook {
        Webhook::new("hooks", self.settings()).unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn respond(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request = ReceivedRequest { peer, path: uri.to_string(), headers, body };
    let count = {
        let mut all = shared.requests.lock().unwrap();
        all.push(request.clone());
        shared.received.send_replace(all.len());
        all.len()
    };
    {
        let mut concurrency = shared.concurrency.lock().unwrap();
        concurrency.0 += 1;
        concurrency.1 = concurrency.1.max(concurrency.0);
    }
    let reply = (shared.responder)(count, &request);
    tokio::time::sleep(reply.after).await;
    shared.concurrency.lock().unwrap().0 -= 1;
    let mut response = Response::builder().status(StatusCode::from_u16(reply.status).unwrap());
    if let Some((name, value)) = reply.header {
        response = response.header(name, value);
    }
    response.body(Body::from(reply.body)).unwrap()
}
