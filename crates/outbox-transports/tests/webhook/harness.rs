//! Conformance suite against an HTTP server in its own runtime, which can be ended with all of its
//! connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, Uri};
use outbox::Publisher;
use outbox_transports::{Guarantees, Webhook, WebhookSettings};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::common::{self, Destination, Harness, PublisherOptions, Received, SOURCE, Sharing, Wait};

type Inbox = Arc<watch::Sender<Vec<Received>>>;

struct WebhookHarness {
    address: SocketAddr,
    inbox: Inbox,
    server: Option<(Runtime, JoinHandle<()>)>,
}

fn serve(address: SocketAddr, inbox: Inbox) -> (SocketAddr, (Runtime, JoinHandle<()>)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (bound, at) = std::sync::mpsc::channel();
    let listening = runtime.spawn(async move {
        let listener = loop {
            // The previous server may hold the port for a moment.
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        bound.send(listener.local_addr().unwrap()).unwrap();
        let handler = move |uri: Uri, headers: HeaderMap, body: Bytes| async move {
            if uri.path() != "/in" {
                return StatusCode::NOT_FOUND;
            }
            let text = |name: &str| {
                headers.get(name).map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
            };
            let all = headers.keys().map(|name| (name.to_string(), text(name.as_str()).unwrap()));
            let request = Received {
                id: text("webhook-id").unwrap(),
                content_type: text("content-type"),
                headers: all.collect(),
                body: body.to_vec(),
            };
            inbox.send_modify(|inbox| inbox.push(request));
            StatusCode::OK
        };
        axum::serve(listener, Router::new().fallback(handler)).await.unwrap();
    });
    let address = at.recv_timeout(Duration::from_secs(10)).expect("the port is free again");
    (address, (runtime, listening))
}

impl WebhookHarness {
    fn settings(&self, options: &PublisherOptions) -> WebhookSettings {
        let path = match options.destination {
            Destination::Existing => "in",
            Destination::Missing => "nowhere",
        };
        let mut settings = WebhookSettings::new(format!("http://{}/{path}", self.address).as_str());
        settings.allow = vec!["127.0.0.1".into()];
        settings.format = options.format;
        settings.source = SOURCE.into();
        (settings.connect_timeout, settings.timeout) = (options.timeout, options.timeout);
        settings
    }
}

impl Drop for WebhookHarness {
    fn drop(&mut self) {
        self.kill();
    }
}

#[async_trait]
impl Harness for WebhookHarness {
    const GUARANTEES: Guarantees = Webhook::GUARANTEES;
    /// A wrong password only shows in a response, which another test covers.
    const CHECKS_PASSWORDS: bool = false;

    async fn open(_: Sharing) -> Option<Self> {
        let inbox = Inbox::default();
        let (address, server) = serve(([127, 0, 0, 1], 0).into(), inbox.clone());
        Some(Self { address, inbox, server: Some(server) })
    }

    fn publisher(&self, options: &PublisherOptions) -> Arc<dyn Publisher> {
        Arc::new(Webhook::new("hooks", self.settings(options)).unwrap())
    }

    fn debug_output(&self) -> String {
        let settings = self.settings(&PublisherOptions::default());
        format!("{settings:?} {:?}", Webhook::new("hooks", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (mut wait, mut inbox) = (Wait::until(count), self.inbox.subscribe());
        loop {
            let remaining = wait.remaining(inbox.borrow_and_update().len());
            if remaining.is_zero() {
                break;
            }
            // A timeout ends the wait: then `remaining` is zero.
            let _ = tokio::time::timeout(remaining, inbox.changed()).await;
        }
        inbox.borrow().clone()
    }

    fn missing_name(&self) -> Option<String> {
        Some(format!("http://{} answers 404 Not Found", self.address))
    }

    /// A 404 is the event's failure.
    const MISSING_IS_AN_OUTAGE: bool = false;

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn publisher_at(&self, address: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        let mut settings = self.settings(&PublisherOptions::default());
        settings.url = format!("{}://{address}/in", if tls { "https" } else { "http" }).as_str().into();
        settings.allow = vec!["127.0.0.1".into(), "nosuchhost.invalid".into()];
        Some(Arc::new(Webhook::new("hooks", settings).unwrap()))
    }

    fn oversized_payload(&self) -> usize {
        1024 * 1024
    }

    fn stop(&mut self) {
        self.kill();
    }

    fn kill(&mut self) {
        if let Some((server, listening)) = self.server.take() {
            // As when a process ends: no new connection is accepted while the existing ones are
            // closed.
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

    /// A response timeout is the event's failure, not an outage; another test covers it.
    fn freeze(&mut self) -> bool {
        false
    }

    fn thaw(&mut self) {}
}

common::conformance_tests!(WebhookHarness);
