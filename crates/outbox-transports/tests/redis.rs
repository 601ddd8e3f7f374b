//! Redis Streams, by a server of its own.
#![cfg(feature = "redis")]

mod conformance;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use conformance::{Bed, Destination, PASSWORD, Received, SOURCE, Share, USER, Wish};
use outbox::Publisher;
use outbox_testbed::{Plan, Server};
use outbox_transports::{Promises, Redis, RedisSettings};
use redis::Value;
use redis::aio::MultiplexedConnection;

struct RedisBed {
    server: Server,
}

impl RedisBed {
    fn settings(&self, wish: &Wish) -> RedisSettings {
        let stream = match wish.destination {
            Destination::Usual => "orders",
            Destination::Missing => "nowhere",
        };
        let mut settings = RedisSettings::new(&self.server.bare_url(), stream.parse().unwrap());
        settings.user = Some(USER.into());
        settings.password = Some(wish.password.into());
        settings.format = wish.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = wish.timeout;
        settings.timeout = wish.timeout;
        settings.max_bytes = 300_000;
        settings.create = wish.destination == Destination::Usual;
        settings.require_persistence = true;
        settings
    }

    async fn connection(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.server.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
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
    // In structured mode it is in the body.
    let in_body = || {
        serde_json::from_slice::<serde_json::Value>(&message.body).unwrap()["id"].as_str().unwrap().to_owned()
    };
    message.id = id.map_or_else(in_body, str::to_owned);
    message
}

#[async_trait]
impl Bed for RedisBed {
    const PROMISES: Promises = Redis::PROMISES;

    async fn open(_: Share) -> Option<Self> {
        let plan = Plan::redis().user(USER, PASSWORD);
        plan.is_here().then(|| Self { server: plan.start() })
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Redis::new("redis", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let mut settings = self.settings(&Wish::default());
        settings.url = self.server.url().as_str().into();
        format!("{settings:?} {:?}", Redis::new("redis", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let mut connection = self.connection().await;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let mut range = redis::cmd("XRANGE");
            let entries: Entries =
                range.arg("orders").arg("-").arg("+").query_async(&mut connection).await.unwrap();
            if entries.len() >= count || Instant::now() > deadline {
                return entries.iter().map(|(_, fields)| received(fields)).collect();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn missing(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    fn too_big(&self) -> usize {
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

conformance::tests!(RedisBed);
