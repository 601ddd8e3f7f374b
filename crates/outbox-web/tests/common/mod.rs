//! A server on a real socket with its own database. Every response is checked against the OpenAPI
//! document.

#![allow(dead_code, missing_docs, reason = "each test binary uses a part of this module")]

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox::store::{Completion, Holder, OnDead, Origin, Settlement, SharedStore, Take, Taken, Verdict};
use outbox::{Event, EventBuilder, EventId, StoreOptions, open_store};
use outbox_web::{Role, Token, Web, WebBuilder};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

pub const READ: &str = "a-token-that-reads-only";
pub const OPERATE: &str = "a-token-that-operates";
pub const ADMIN: &str = "a-token-that-administers";

/// Longer than any operation of a test takes.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct TestServer {
    pub url: String,
    pub store: SharedStore,
    pub web: Web,
    client: reqwest::Client,
    server: tokio::task::JoinHandle<()>,
    folder: Option<tempfile::TempDir>,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub struct ApiResponse {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl ApiResponse {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {} {}", self.status, self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The name of the problem kind.
    pub fn problem(&self) -> String {
        self.json()["type"].as_str().unwrap().rsplit(':').next().unwrap().to_owned()
    }
}

/// Adds a token of each role.
pub fn with_tokens(builder: WebBuilder) -> WebBuilder {
    builder
        .token(Token::new("reader", Role::Read, READ))
        .token(Token::new("ops", Role::Operate, OPERATE))
        .token(Token::new("root", Role::Admin, ADMIN))
}

/// A store with its own table; `None` if the environment variable of the database is not set.
pub async fn store_at(variable: Option<&str>) -> Option<(SharedStore, Option<tempfile::TempDir>)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (url, folder) = match variable {
        None => {
            let folder = tempfile::tempdir().unwrap();
            (format!("sqlite:{}", folder.path().join("outbox.db").display()), Some(folder))
        }
        Some(variable) => match std::env::var(variable) {
            Ok(url) => (url, None),
            Err(_) => {
                let required =
                    variable != "OUTBOX_TEST_MYSQL" && std::env::var("OUTBOX_TEST_REQUIRE").is_ok();
                assert!(!required, "{variable} is not set");
                return None;
            }
        },
    };
    let table = format!("w{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let options = StoreOptions::default().table(&table).name("main").max_connections(3);
    let store = open_store(&url, &options).await.unwrap();
    store.migrate().await.unwrap();
    Some((store, folder))
}

impl TestServer {
    /// Starts a server on SQLite.
    pub async fn start() -> Self {
        Self::with(|builder| builder).await
    }

    pub async fn with(configure: impl FnOnce(WebBuilder) -> WebBuilder) -> Self {
        let (store, folder) = store_at(None).await.unwrap();
        Self::of(store, folder, configure).await
    }

    /// Starts a server on each available database.
    pub async fn on_all_databases() -> Vec<Self> {
        Self::on_all_databases_with(|builder| builder).await
    }

    pub async fn on_all_databases_with(configure: impl Fn(WebBuilder) -> WebBuilder) -> Vec<Self> {
        let mut servers = Vec::new();
        let variables = ["OUTBOX_TEST_POSTGRES", "OUTBOX_TEST_MARIADB", "OUTBOX_TEST_MYSQL"].map(Some);
        for variable in [None].into_iter().chain(variables) {
            if let Some((store, folder)) = store_at(variable).await {
                servers.push(Self::of(store, folder, &configure).await);
            }
        }
        servers
    }

    pub async fn of(
        store: SharedStore,
        folder: Option<tempfile::TempDir>,
        configure: impl FnOnce(WebBuilder) -> WebBuilder,
    ) -> Self {
        let builder = with_tokens(Web::builder().outbox("main", store.clone()));
        Self::serve(configure(builder).build().unwrap(), store, folder).await
    }

    pub async fn serve(web: Web, store: SharedStore, folder: Option<tempfile::TempDir>) -> Self {
        // Another test may have installed the provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = web.standalone().into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build().unwrap();
        Self { url, store, web, client, server, folder }
    }

    /// The folder of the SQLite database.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.as_ref().expect("the database is SQLite").path()
    }

    /// A pool on the SQLite database, for statements outside the API.
    pub async fn pool(&self) -> sqlx::SqlitePool {
        let file = self.folder().join("outbox.db");
        sqlx::SqlitePool::connect(&format!("sqlite:{}", file.display())).await.unwrap()
    }

    /// An unauthenticated request.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.client.request(Method::from_bytes(method.as_bytes()).unwrap(), format!("{}{path}", self.url))
    }

    /// Sends a request, and checks the properties common to all responses.
    pub async fn send(&self, request: RequestBuilder) -> ApiResponse {
        let request = request.build().unwrap();
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let response = self.client.execute(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let response = ApiResponse { status, headers, text: response.text().await.unwrap() };
        check(&method, &path, &response);
        response
    }

    pub async fn get(&self, path: &str) -> ApiResponse {
        self.send(self.request("GET", path).bearer_auth(ADMIN)).await
    }

    /// The body of a GET, which must have status 200.
    pub async fn read(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text);
        response.json()
    }

    pub async fn post(&self, path: &str, body: Value) -> ApiResponse {
        self.send(self.request("POST", path).bearer_auth(ADMIN).json(&body)).await
    }

    pub async fn write(&self, event: EventBuilder) -> EventId {
        let event: Event = event.build().unwrap();
        let id = event.id().clone();
        self.store.insert(&[event]).await.unwrap();
        id
    }

    /// Writes an event and dead-letters it.
    pub async fn dead(&self, event: EventBuilder, error: &str) -> EventId {
        let id = self.write(event).await;
        self.dead_letter(&id, error).await;
        id
    }

    /// Takes all due events, dead-letters this one, and releases the others.
    pub async fn dead_letter(&self, id: &EventId, error: &str) {
        let dead = Verdict::Dead { counted: true, reason: error.to_owned() };
        self.settle(id, dead).await;
    }

    pub async fn settle(&self, id: &EventId, verdict: Verdict) {
        let by = Holder::Lease { owner: "test-node".into(), lease: Duration::from_secs(30) };
        let taken = self.take(&by).await;
        let settlements: Vec<Settlement> = taken
            .deliveries
            .iter()
            .map(|delivery| Settlement {
                id: delivery.event.id().clone(),
                claim: delivery.claim,
                verdict: if delivery.event.id() == id { verdict.clone() } else { Verdict::Released },
            })
            .collect();
        assert!(settlements.iter().any(|settlement| settlement.id == *id), "{id} was not taken");
        self.store.settle(&by, Completion::Keep, &settlements).await.unwrap();
    }

    pub async fn take(&self, by: &Holder) -> Taken {
        let take = Take {
            by: by.clone(),
            from: Origin::Start,
            limit: 1_000,
            skip_recent: Duration::ZERO,
            on_dead: OnDead::Hold,
            skip_types: Vec::new(),
            only: None,
            probe: None,
            destinations: Default::default(),
            held_up_to: Default::default(),
            group_lease: false,
            max_bytes: usize::MAX,
            by_aggregate: false,
        };
        self.store.take(&take).await.unwrap()
    }

    pub async fn status_of(&self, id: &EventId) -> String {
        self.store.find(id).await.unwrap().unwrap().status.to_string()
    }

    /// Actions and outcomes of the audit entries, newest first.
    pub async fn audit(&self) -> Vec<(String, String)> {
        let entries = self.store.audits(None, 100).await.unwrap();
        entries.into_iter().map(|entry| (entry.action, entry.outcome.unwrap_or_default())).collect()
    }

    /// Waits until a job has ended.
    pub async fn wait_for_job(&self, id: &str) -> Value {
        let ended = async || {
            let job = self.read(&format!("/api/outbox/jobs/{id}")).await;
            if job["state"] == "running" { Err(job) } else { Ok(job) }
        };
        poll("the job has ended", ended).await
    }
}

/// Polls until the function returns a value, where there is no signal to await. Fails with its last
/// error after [`TIMEOUT`].
pub async fn poll<T, E: std::fmt::Debug>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        let error = match attempt().await {
            Ok(value) => return value,
            Err(error) => error,
        };
        assert!(Instant::now() < end, "not within {TIMEOUT:?}: {what}: {error:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| serde_json::from_str(&Web::openapi()).unwrap())
}

/// The operations of the OpenAPI document: method, path, description.
pub fn operations() -> Vec<(String, String, &'static Value)> {
    let paths = document()["paths"].as_object().unwrap();
    let methods = |(path, item): (&String, &'static Value)| {
        let path = path.clone();
        item.as_object()
            .unwrap()
            .iter()
            .map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
    };
    paths.iter().flat_map(methods).collect()
}

fn matches_template(template: &str, path: &str) -> bool {
    let (a, b): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a == b || a.starts_with('{'))
}

/// Checks the properties common to all responses.
fn check(method: &Method, path: &str, response: &ApiResponse) {
    let (status, text) = (response.status, &response.text);
    assert_eq!(response.header("x-content-type-options"), "nosniff", "{method} {path}");
    assert!(response.header("content-security-policy").contains("frame-ancestors 'none'"), "{method} {path}");
    assert!(!response.headers.contains_key("access-control-allow-origin"), "{method} {path}");
    if status.is_client_error() || status.is_server_error() {
        assert_eq!(
            response.header("content-type"),
            "application/problem+json",
            "{method} {path}: {status} {text}"
        );
        let problem = response.json();
        assert_eq!(problem["status"], status.as_u16(), "{text}");
        assert!(problem["type"].as_str().unwrap().starts_with("urn:outbox:problem:"), "{text}");
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{text}");
    }
    if path.starts_with("/api/") {
        let operation = operations()
            .into_iter()
            .filter(|(of, template, _)| of == method.as_str() && matches_template(template, path));
        // A template without parameters takes precedence.
        let operation = operation.min_by_key(|(_, template, _)| template.matches('{').count());
        if let Some((_, template, operation)) = operation {
            let documented = &operation["responses"][status.as_str()];
            assert!(documented.is_object(), "{method} {template} does not document {status}: {text}");
        }
        if !path.starts_with("/api/docs") {
            assert_eq!(response.header("cache-control"), "no-store", "{method} {path}");
        }
    }
}
