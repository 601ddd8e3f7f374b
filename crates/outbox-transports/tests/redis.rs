//! Redis Streams, on its own server.
#![cfg(feature = "redis")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::outages::wait_until_unhealthy;
use common::{
    Destination, Harness, MAX_STALL, PASSWORD, PublisherOptions, Received, SOURCE, Sharing, USER, Wait,
    numbered,
};
use outbox::{Event, EventResult, Outgoing, Publisher};
use outbox_testbed::{Plan, Proxy, Server};
use outbox_transports::{Guarantees, Redis, RedisSettings};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

struct RedisHarness {
    server: Server,
}

impl RedisHarness {
    fn settings(&self, options: &PublisherOptions) -> RedisSettings {
        let stream = match options.destination {
            Destination::Existing => "orders",
            Destination::Missing => "nowhere",
        };
        let mut settings = RedisSettings::new(&self.server.bare_url(), stream.parse().unwrap());
        settings.user = Some(USER.into());
        settings.password = Some(options.password.into());
        settings.format = options.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = options.timeout;
        settings.timeout = options.timeout;
        settings.max_bytes = 300_000;
        settings.create = options.destination == Destination::Existing;
        settings.require_persistence = true;
        settings
    }
}

async fn connect(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(MAX_STALL))
        .set_response_timeout(Some(MAX_STALL));
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

type Entries = Vec<(String, Vec<Value>)>;

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    }
}

fn received(fields: &[Value]) -> Received {
    let mut message = Received::default();
    for field in fields.chunks(2) {
        let (name, value) = (String::from_utf8(bytes(&field[0])).unwrap(), bytes(&field[1]));
        if name == "payload" {
            message.body = value;
            continue;
        }
        let value = String::from_utf8(value).unwrap();
        if name == "content-type" {
            message.content_type = Some(value);
        } else {
            message.headers.push((name, value));
        }
    }
    let id = ["outbox-id", "ce-id"].iter().find_map(|name| message.header(name));
    // In structured mode the id is in the body.
    let in_body = || {
        serde_json::from_slice::<serde_json::Value>(&message.body).unwrap()["id"].as_str().unwrap().to_owned()
    };
    message.id = id.map_or_else(in_body, str::to_owned);
    message
}

#[async_trait]
impl Harness for RedisHarness {
    const GUARANTEES: Guarantees = Redis::GUARANTEES;

    async fn open(_: Sharing) -> Option<Self> {
        let plan = Plan::redis().user(USER, PASSWORD);
        plan.is_here().then(|| Self { server: plan.start() })
    }

    fn publisher(&self, options: &PublisherOptions) -> Arc<dyn Publisher> {
        Arc::new(Redis::new("redis", self.settings(options)).unwrap())
    }

    fn debug_output(&self) -> String {
        let mut settings = self.settings(&PublisherOptions::default());
        settings.url = self.server.url().as_str().into();
        format!("{settings:?} {:?}", Redis::new("redis", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let mut connection = connect(&self.server).await;
        let mut wait = Wait::until(count);
        loop {
            let length: usize = redis::cmd("XLEN").arg("orders").query_async(&mut connection).await.unwrap();
            if wait.is_over(length).await {
                break;
            }
        }
        // Page by page: reading everything at once would exceed the client's timeout.
        let (mut all, mut from) = (Vec::new(), "-".to_owned());
        loop {
            let mut range = redis::cmd("XRANGE");
            range.arg("orders").arg(&from).arg("+").arg("COUNT").arg(1_000);
            let entries: Entries = range.query_async(&mut connection).await.unwrap();
            let Some((last, _)) = entries.last() else { return all };
            from = format!("({last}");
            all.extend(entries.iter().map(|(_, fields)| received(fields)));
        }
    }

    fn missing_name(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    async fn create_missing(&self) {
        let mut connection = connect(&self.server).await;
        let mut add = redis::cmd("XADD");
        let _: String =
            add.arg("nowhere").arg("*").arg("f").arg("v").query_async(&mut connection).await.unwrap();
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server.port())
    }

    fn publisher_at(&self, address: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        // The server waits for the rest of the handshake: TLS always ends in a timeout.
        let timeout = if tls { Duration::from_secs(5) } else { PublisherOptions::default().timeout };
        let mut settings = self.settings(&PublisherOptions { timeout, ..PublisherOptions::default() });
        settings.url = format!("{}://{address}", if tls { "rediss" } else { "redis" }).as_str().into();
        Some(Arc::new(Redis::new("redis", settings).unwrap()))
    }

    fn oversized_payload(&self) -> usize {
        300_000
    }

    fn stop(&mut self) {
        self.server.stop();
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start(&mut self) {
        self.server.start();
    }

    fn freeze(&mut self) -> bool {
        self.server.freeze();
        true
    }

    fn thaw(&mut self) {
        self.server.thaw();
    }
}

common::conformance_tests!(RedisHarness);

fn publisher_of(server: &Server, change: impl FnOnce(&mut RedisSettings)) -> Redis {
    let mut settings = RedisSettings::new(&server.url(), "orders".parse().unwrap());
    change(&mut settings);
    Redis::new("redis", settings).unwrap()
}

async fn length(server: &Server) -> usize {
    redis::cmd("XLEN").arg("orders").query_async(&mut connect(server).await).await.unwrap()
}

#[tokio::test]
async fn tls_verifies_the_server_and_sends_a_client_certificate() {
    let plan = Plan::redis().user(USER, PASSWORD).mutual_tls();
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let (certificate, key) = server.client_certificate();
    let file = |path: &std::path::Path| Some(path.to_str().unwrap().into());
    let trusted = publisher_of(&server, |settings| {
        settings.tls.ca_file = file(&server.ca_file());
        settings.tls.cert_file = file(&certificate);
        settings.tls.key_file = file(&key);
    });
    trusted.publish_batch(&[numbered(1, None)]).await.unwrap();

    let no_certificate = publisher_of(&server, |settings| settings.tls.ca_file = file(&server.ca_file()));
    assert!(no_certificate.publish_batch(&[numbered(2, None)]).await.unwrap_err().is_unavailable());
    let unknown_authority = publisher_of(&server, |settings| {
        settings.tls.cert_file = file(&certificate);
        settings.tls.key_file = file(&key);
    });
    let error = unknown_authority.publish_batch(&[numbered(3, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("ertificate"), "{error}");
    let no_file = publisher_of(&server, |settings| settings.tls.ca_file = Some("/no/such/file".into()));
    let error = no_file.publish_batch(&[numbered(4, None)]).await.unwrap_err();
    assert!(error.to_string().contains("ca_file `/no/such/file`"), "{error}");
}

#[tokio::test]
async fn a_stream_is_trimmed_if_configured() {
    let plan = Plan::redis();
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let events: Vec<Outgoing> = (0..2_000).map(|n| numbered(n, None)).collect();
    publisher_of(&server, |settings| settings.max_len = Some(500)).publish_batch(&events).await.unwrap();
    let length = length(&server).await;
    assert!((500..1_000).contains(&length), "{length}");
}

#[tokio::test]
async fn a_server_without_persistence_is_refused_if_configured() {
    let plan = Plan::redis().config("appendonly no");
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let requires_persistence = publisher_of(&server, |settings| settings.require_persistence = true);
    assert!(requires_persistence.health().await.is_err());
    let error = requires_persistence.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("appendonly"), "{error}");
    publisher_of(&server, |_| {}).publish_batch(&[numbered(1, None)]).await.unwrap();
}

#[tokio::test]
async fn a_server_without_memory_is_unavailable_and_no_event_fails() {
    let plan = Plan::redis().config("maxmemory 1kb").config("maxmemory-policy noeviction");
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let publisher = publisher_of(&server, |_| {});
    assert!(publisher.health().await.is_err());
    let error = publisher.publish_batch(&[numbered(1, Some("k")), numbered(2, Some("k"))]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("OOM"), "{error}");
    assert_eq!(
        (error.fate(0), error.fate(1)),
        (Some(EventResult::NotAttempted), Some(EventResult::NotAttempted))
    );
}

#[tokio::test]
async fn a_replica_is_unavailable() {
    let plan = Plan::redis();
    if !plan.is_here() {
        return;
    }
    let primary = plan.start();
    let replica = Plan::redis().config(&format!("replicaof 127.0.0.1 {}", primary.port())).start();
    let publisher = publisher_of(&replica, |_| {});
    assert!(publisher.health().await.is_err());
    let error = publisher.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("read only replica"), "{error}");
}

#[tokio::test]
async fn a_user_without_permission_is_unavailable_until_it_is_granted() {
    let plan = Plan::redis();
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let mut connection = connect(&server).await;
    let mut allow = async |rules: &[&str]| {
        let _: () = redis::cmd("ACL")
            .arg("SETUSER")
            .arg("ada")
            .arg(rules)
            .query_async(&mut connection)
            .await
            .unwrap();
    };
    allow(&["on", ">correcthorse42", "+@all", "~elsewhere"]).await;
    let publisher = publisher_of(&server, |settings| {
        settings.user = Some("ada".into());
        settings.password = Some("correcthorse42".into());
    });
    let is_expected = |reason: &str| reason.contains("NoPerm") && reason.contains("`orders`");
    wait_until_unhealthy(&publisher, is_expected).await;
    let error = publisher.publish_batch(&[numbered(0, None), numbered(1, Some("k"))]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("NoPerm"), "{error}");
    allow(&["~orders"]).await;
    common::outages::wait_until_healthy(&publisher).await;
    assert_eq!(length(&server).await, 0, "a health check adds no entry");
    publisher.publish_batch(&[numbered(0, None)]).await.unwrap();

    // With several streams it is the event's failure.
    let publisher = publisher_of(&server, |settings| {
        settings.stream = "{type}".parse().unwrap();
        settings.user = Some("ada".into());
        settings.password = Some("correcthorse42".into());
    });
    let error = publisher.publish_batch(&[numbered(0, None)]).await.unwrap_err();
    assert!(!error.is_unavailable() && error.to_string().contains("NoPerm"), "{error}");
}

#[tokio::test]
async fn a_key_that_is_not_a_stream_fails_only_its_events() {
    let plan = Plan::redis();
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let mut connection = connect(&server).await;
    let () = redis::cmd("SET").arg("taken").arg(1).query_async(&mut connection).await.unwrap();
    let publisher = publisher_of(&server, |settings| settings.stream = "{type}".parse().unwrap());
    let event = |kind: &str| Outgoing::new(Event::new(kind).json(&1).build().unwrap());
    let error = publisher.publish_batch(&[event("taken"), event("orders")]).await.unwrap_err();
    assert!(!error.is_unavailable() && error.to_string().contains("`taken` is not a stream"), "{error}");
    assert_eq!(error.fate(1), Some(EventResult::Published));
    assert_eq!(length(&server).await, 1);
}

#[tokio::test]
async fn a_health_check_detects_a_silently_broken_connection() {
    let plan = Plan::redis();
    if !plan.is_here() {
        return;
    }
    let server = plan.start();
    let proxy = Proxy::to(server.port());
    let settings =
        RedisSettings::new(&format!("redis://127.0.0.1:{}", proxy.port()), "orders".parse().unwrap());
    let publisher = Redis::new("redis", settings).unwrap();
    publisher.publish_batch(&[numbered(1, None)]).await.unwrap();
    // Nothing passes anymore, and neither side notices.
    proxy.allow_bytes(0);
    assert!(publisher.health().await.is_err());
    proxy.cut();
    common::outages::wait_until_healthy(&publisher).await;
    publisher.publish_batch(&[numbered(2, None)]).await.unwrap();
    assert_eq!(length(&server).await, 2);
}
