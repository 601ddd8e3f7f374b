//! The common suite, against an HTTP server in a runtime of its own: it can be ended with all of its connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, Uri};
use outbox::Publisher;
use outbox_transports::{Promises, Webhook, WebhookSettings};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::conformance::{self, Bed, Destination, Received, SOURCE, Share, Wait, Wish};

type Inbox = Arc<Mutex<Vec<Received>>>;

struct WebhookBed {
    address: SocketAddr,
    inbox: Inbox,
    server: Option<(Runtime, JoinHandle<()>)>,
}

fn serve(address: SocketAddr, inbox: Inbox) -> (SocketAddr, (Runtime, JoinHandle<()>)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (bound, at) = std::sync::mpsc::channel();
    let listening = runtime.spawn(async move {
        let listener = loop {
            // The last one may take a moment to be gone.
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        bound.send(listener.local_addr().unwrap()).unwrap();
        let take = move |uri: Uri, headers: HeaderMap, body: Bytes| async move {
            if uri.path() != "/in" {
                return StatusCode::NOT_FOUND;
            }
            let text = |name: &str| {
                headers.get(name).map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
            };
            let all = headers.keys().map(|name| (name.to_string(), text(name.as_str()).unwrap()));
            inbox.lock().unwrap().push(Received {
                id: text("webhook-id").unwrap(),
                content_type: text("content-type"),
                headers: all.collect(),
                body: body.to_vec(),
            });
            StatusCode::OK
        };
        axum::serve(listener, Router::new().fallback(take)).await.unwrap();
    });
    let address = at.recv_timeout(Duration::from_secs(10)).expect("the port is free again");
    (address, (runtime, listening))
}

impl WebhookBed {
    fn settings(&self, wish: &Wish) -> WebhookSettings {
        let path = match wish.destination {
            Destination::Usual => "in",
            Destination::Missing => "nowhere",
        };
        let mut settings = WebhookSettings::new(format!("http://{}/{path}", self.address).as_str());
        settings.allow = vec!["127.0.0.1".into()];
        settings.format = wish.format;
        settings.source = SOURCE.into();
        (settings.connect_timeout, settings.timeout) = (wish.timeout, wish.timeout);
        settings
    }
}

impl Drop for WebhookBed {
    fn drop(&mut self) {
        self.kill();
    }
}

#[async_trait]
impl Bed for WebhookBed {
    const PROMISES: Promises = Webhook::PROMISES;
    /// Only an answer tells that one is wrong: a test of its own.
    const PASSWORDS: bool = false;

    async fn open(_: Share) -> Option<Self> {
        let inbox = Inbox::default();
        let (address, server) = serve(([127, 0, 0, 1], 0).into(), inbox.clone());
        Some(Self { address, inbox, server: Some(server) })
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Webhook::new("hooks", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let settings = self.settings(&Wish::default());
        format!("{settings:?} {:?}", Webhook::new("hooks", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let mut wait = Wait::until(count);
        while !wait.left(self.inbox.lock().unwrap().len()).is_zero() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.inbox.lock().unwrap().clone()
    }

    fn missing(&self) -> Option<String> {
        Some(format!("http://{} answers 404 Not Found", self.address))
    }

    /// A 404 is an answer like others.
    const MISSING_IS_AN_OUTAGE: bool = false;

    fn place(&self) -> String {
        self.address.to_string()
    }

    fn publisher_at(&self, place: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        let mut settings = self.settings(&Wish::default());
        settings.url = format!("{}://{place}/in", if tls { "https" } else { "http" }).as_str().into();
        settings.allow = vec!["127.0.0.1".into(), "nosuchhost.invalid".into()];
        Some(Arc::new(Webhook::new("hooks", settings).unwrap()))
    }

    fn too_big(&self) -> usize {
        1024 * 1024
    }

    fn stop(&mut self) {
        self.kill();
    }

    fn kill(&mut self) {
        if let Some((server, listening)) = self.server.take() {
            // As when a process ends: nobody is let in while the others are thrown out.
            listening.abort();
            while !listening.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.shutdown_background();
        }
    }

    fn start(&mut self) {
        self.server = Some(serve(self.address, self.inbox.clone()).1);
    }

    /// An answer that does not come in time is the event's failure, not an outage: a test of its own.
    fn freeze(&mut self) -> bool {
        false
    }

    fn thaw(&mut self) {}
}

conformance::tests!(WebhookBed);
