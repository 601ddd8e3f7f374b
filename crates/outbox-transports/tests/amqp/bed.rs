//! A RabbitMQ server, and eyes at its other end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use lapin::options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox::Publisher;
use outbox_testbed::{Plan, Server};
use outbox_transports::{Amqp, AmqpSettings, Promises};

use crate::conformance::{Bed, Destination, PASSWORD, Received, SOURCE, Share, USER, Wait, Wish};

/// A server, and an exchange with a queue that no other test has.
pub struct RabbitBed {
    server: Kept,
    /// The exchange, and the queue.
    pub name: String,
    seen: Mutex<Vec<Received>>,
}

/// It takes long to start.
enum Kept {
    Shared(&'static Server),
    Own(Box<Server>),
}

fn plan() -> Plan {
    Plan::rabbitmq().user(USER, PASSWORD).config("max_message_size = 500000")
}

impl RabbitBed {
    pub fn server(&self) -> &Server {
        match &self.server {
            Kept::Shared(server) => server,
            Kept::Own(server) => server,
        }
    }

    fn own(&mut self) -> &mut Server {
        match &mut self.server {
            Kept::Own(server) => server,
            Kept::Shared(_) => panic!("others use this server"),
        }
    }

    pub fn settings(&self, wish: &Wish) -> AmqpSettings {
        let exchange = match wish.destination {
            Destination::Usual => self.name.as_str(),
            Destination::Missing => "nowhere-at-all",
        };
        let url = self.server().url_as(USER, wish.password);
        let mut settings = AmqpSettings::new(&url, exchange, "{type}".parse().unwrap());
        settings.format = wish.format;
        settings.source = SOURCE.into();
        settings.connect_timeout = wish.timeout;
        settings.ack_timeout = wish.timeout;
        settings
    }

    /// With other settings than usual.
    pub fn with(&self, change: impl FnOnce(&mut AmqpSettings)) -> Amqp {
        let mut settings = self.settings(&Wish::default());
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

    /// A command to the server, as an administrator.
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
impl Bed for RabbitBed {
    const PROMISES: Promises = Amqp::PROMISES;
    const CE_PREFIX: &'static str = "cloudEvents:";

    async fn open(share: Share) -> Option<Self> {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        if !plan().is_here() {
            return None;
        }
        let server = tokio::task::block_in_place(|| match share {
            Share::Shared => Kept::Shared(SERVER.get_or_init(|| plan().start())),
            Share::Own => Kept::Own(Box::new(plan().start())),
        });
        let name = format!("orders-{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let bed = Self { server, name, seen: Mutex::default() };
        let (_connection, channel) = bed.channel().await;
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let (name, none) = (bed.name.as_str(), FieldTable::default());
        channel.exchange_declare(name.into(), ExchangeKind::Topic, durable, none.clone()).await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.into(), durable, none).await.unwrap();
        bed.bind("#").await;
        Some(bed)
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Amqp::new("rabbit", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let settings = self.settings(&Wish::default());
        format!("{settings:?} {:?}", Amqp::new("rabbit", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (_connection, channel) = self.channel().await;
        let mut wait = Wait::until(count);
        let mut moment = 10;
        while moment > 0 {
            match channel
                .basic_get(self.name.as_str().into(), BasicGetOptions { no_ack: true })
                .await
                .unwrap()
            {
                Some(message) => self.seen.lock().unwrap().push(received(&message.delivery)),
                None => {
                    let seen = self.seen.lock().unwrap().len();
                    moment -= i32::from(wait.left(seen).is_zero());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        self.seen.lock().unwrap().clone()
    }

    fn missing(&self) -> Option<String> {
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

    fn place(&self) -> String {
        format!("127.0.0.1:{}", self.server().port())
    }

    fn publisher_at(&self, place: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        let mut settings = self.settings(&Wish::default());
        let scheme = if tls { "amqps" } else { "amqp" };
        settings.url = format!("{scheme}://{USER}:{PASSWORD}@{place}").as_str().into();
        Some(Arc::new(Amqp::new("rabbit", settings).unwrap()))
    }

    fn too_big(&self) -> usize {
        500_001
    }

    fn stop(&mut self) {
        self.own().stop();
    }

    fn kill(&mut self) {
        self.own().kill();
    }

    fn start(&mut self) {
        self.own().start();
    }

    fn freeze(&mut self) -> bool {
        self.own().freeze();
        true
    }

    fn thaw(&mut self) {
        self.own().thaw();
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
