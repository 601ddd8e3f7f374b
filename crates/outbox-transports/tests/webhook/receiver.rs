//! A receiver of webhooks: a real HTTP server that answers as it is told.

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

/// A request that came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Who sent it: another port is another connection.
    pub peer: SocketAddr,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id").unwrap_or_default()
    }
}

/// What is answered, and when.
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

type Answers = dyn Fn(usize, &Seen) -> Reply + Send + Sync;

pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    server: tokio::task::JoinHandle<()>,
}

struct Shared {
    answers: Box<Answers>,
    seen: Mutex<Vec<Seen>>,
    /// How many are being answered, and how many there were at most.
    at_once: Mutex<(usize, usize)>,
}

impl Receiver {
    /// Answers with what `answers` says, of the how manieth request and what came.
    pub async fn start(answers: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.unwrap(), answers)
    }

    pub fn listen(
        listener: TcpListener,
        answers: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answers: Box::new(answers),
            seen: Mutex::default(),
            at_once: Mutex::default(),
        });
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, shared, server }
    }

    pub async fn answering(status: u16) -> Self {
        Self::start(move |_, _| Reply::status(status)).await
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub fn most_at_once(&self) -> usize {
        self.shared.at_once.lock().unwrap().1
    }

    /// Settings to come here, by this address.
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

async fn answer(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let seen = Seen { peer, path: uri.to_string(), headers, body };
    let count = {
        let mut all = shared.seen.lock().unwrap();
        all.push(seen.clone());
        all.len()
    };
    {
        let mut at_once = shared.at_once.lock().unwrap();
        at_once.0 += 1;
        at_once.1 = at_once.1.max(at_once.0);
    }
    let reply = (shared.answers)(count, &seen);
    tokio::time::sleep(reply.after).await;
    shared.at_once.lock().unwrap().0 -= 1;
    let mut response = Response::builder().status(StatusCode::from_u16(reply.status).unwrap());
    if let Some((name, value)) = reply.header {
        response = response.header(name, value);
    }
    response.body(Body::from(reply.body)).unwrap()
}
