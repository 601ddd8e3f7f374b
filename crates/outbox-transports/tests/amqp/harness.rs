//! Harness for RabbitMQ.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use lapin::options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox::Publisher;
use outbox_testbed::{Plan, Server};
use outbox_transports::{Amqp, AmqpSettings, Guarantees};

use crate::common::{
    Destination, Harness, PASSWORD, PublisherOptions, Received, SOURCE, Sharing, USER, Wait,
};

/// A server, and an exchange with a queue that no other test uses.
pub struct RabbitHarness {
    server: ServerRef,
    /// Name of the exchange and of the queue.
    pub name: String,
    seen: Mutex<Vec<Received>>,
}

/// A shared server where possible, since RabbitMQ starts slowly.
enum ServerRef {
    Shared(&'static Server),
    Exclusive(Box<Server>),
}

fn plan() -> Plan {
    Plan::rabbitmq().user(USER, PASSWORD).config("max_message_size = 500000")
}

impl RabbitHarness {
    pub fn server(&self) -> &Server {
        match &self.server {
            ServerRef::Shared(server) => server,
            ServerRef::Exclusive(server) => server,
        }
    }

    fn exclusive(&mut self) -> &mut Server {
        match &mut self.server {
            ServerRef::Exclusive(server) => server,
            ServerRef::Shared(_) => panic!("others use this server"),
        }
    }

    pub fn settings(&self, options: &PublisherOptions) -> AmqpSettings {
        let exchange = match options.destination {
            Destination::Existing => self.name.as_str(),
            Destination::Missing => "nowhere-at-all",
        };
        let url = self.server().url_as(USER, options.password);
        let mut settings = AmqpSettings::new(&url, exchange, "{type}".parse().unwrap());
        settings.format = options.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = options.timeout;
        settings.ack_timeout = options.timeout;
        settings
    }

    /// Creates a publisher with changed settings.
    pub fn with(&self, change: impl FnOnce(&mut AmqpSettings)) -> Amqp {
        let mut settings = self.settings(&PublisherOptions::default());
        change(&mut settings);
        Amqp::new("rabbit", settings).unwrap()
    }

    pub async fn channel(&self) -> (Connection, Channel) {
        let connection =
            Connection::connect(&self.server().url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }

    pub async fn bind(&self, routing_key: &str) {
        let (_connection, channel) = self.channel().await;
        let (queue, exchange) = (self.name.as_str().into(), self.name.as_str().into());
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind(queue, exchange, routing_key.into(), options, none).await.unwrap();
    }

    /// Runs `rabbitmqctl`.
    pub fn control(&self, arguments: &[&str]) {
        let (folder, port) = (self.server().folder(), self.server().port());
        let output = std::process::Command::new("/usr/lib/rabbitmq/bin/rabbitmqctl")
            .args(arguments)
            .env("HOME", folder.join("home"))
            .env("RABBITMQ_NODENAME", format!("t{port}@localhost"))
            .env("ERL_EPMD_PORT", (port + 2).to_string())
            .output()
            .expect("rabbitmqctl comes with the server");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[async_trait]
impl Harness for RabbitHarness {
    const GUARANTEES: Guarantees = Amqp::GUARANTEES;
    const CE_PREFIX: &'static str = "cloudEvents:";

    async fn open(sharing: Sharing) -> Option<Self> {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        if !plan().is_here() {
            return None;
        }
        let server = tokio::task::block_in_place(|| match sharing {
            Sharing::Shared => ServerRef::Shared(SERVER.get_or_init(|| plan().start())),
            Sharing::Exclusive => ServerRef::Exclusive(Box::new(plan().start())),
        });
        let name = format!("orders-{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let harness = Self { server, name, seen: Mutex::default() };
        let (_connection, channel) = harness.channel().await;
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let (name, none) = (harness.name.as_str(), FieldTable::default());
        channel.exchange_declare(name.into(), ExchangeKind::Topic, durable, none.clone()).await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.into(), durable, none).await.unwrap();
        harness.bind("#").await;
        Some(harness)
    }

    fn publisher(&self, options: &PublisherOptions) -> Arc<dyn Publisher> {
        Arc::new(Amqp::new("rabbit", self.settings(options)).unwrap())
    }

    fn debug_output(&self) -> String {
        let settings = self.settings(&PublisherOptions::default());
        format!("{settings:?} {:?}", Amqp::new("rabbit", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (_connection, channel) = self.channel().await;
        let mut wait = Wait::until(count);
        let mut quiet_polls = 10;
        while quiet_polls > 0 {
            match channel
                .basic_get(self.name.as_str().into(), BasicGetOptions { no_ack: true })
                .await
                .unwrap()
            {
                Some(message) => self.seen.lock().unwrap().push(received(&message.delivery)),
                None => {
                    let seen = self.seen.lock().unwrap().len();
                    quiet_polls -= i32::from(wait.remaining(seen).is_zero());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        self.seen.lock().unwrap().clone()
    }

    fn missing_name(&self) -> Option<String> {
        Some("nowhere-at-all".to_owned())
    }

    async fn create_missing(&self) {
        let (_connection, channel) = self.channel().await;
        let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
        let missing = "nowhere-at-all";
        channel.exchange_declare(missing.into(), ExchangeKind::Fanout, options, none.clone()).await.unwrap();
        let queue = self.name.as_str().into();
        channel
            .queue_bind(queue, missing.into(), "".into(), QueueBindOptions::default(), none)
            .await
            .unwrap();
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server().port())
    }

    fn publisher_at(&self, address: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        let mut settings = self.settings(&PublisherOptions::default());
        let scheme = if tls { "amqps" } else { "amqp" };
        settings.url = format!("{scheme}://{USER}:{PASSWORD}@{address}").as_str().into();
        Some(Arc::new(Amqp::new("rabbit", settings).unwrap()))
    }

    fn oversized_payload(&self) -> usize {
        500_001
    }

    fn stop(&mut self) {
        self.exclusive().stop();
    }

    fn kill(&mut self) {
        self.exclusive().kill();
    }

    fn start(&mut self) {
        self.exclusive().start();
    }

    fn freeze(&mut self) -> bool {
        self.exclusive().freeze();
        true
    }

    fn thaw(&mut self) {
        self.exclusive().thaw();
    }
}

fn received(message: &lapin::message::Delivery) -> Received {
    let properties = &message.properties;
    let headers = properties.headers().as_ref().unwrap().inner().iter();
    Received {
        id: properties.message_id().as_ref().unwrap().to_string(),
        content_type: properties.content_type().as_ref().map(ToString::to_string),
        headers: headers
            .map(|(name, value)| match value {
                AMQPValue::LongString(text) => (name.to_string(), text.to_string()),
                other => panic!("{name} is no text: {other:?}"),
            })
            .collect(),
        body: message.data.clone(),
    }
}
