//! Harness for any Kafka broker.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox::Publisher;
use outbox_transports::{Guarantees, Kafka, KafkaSettings};

use crate::common::{Destination, Harness, PublisherOptions, Received, SOURCE, Sharing, Wait};
use crate::reader::{Reader, Record};

/// A topic that does not exist until it is created.
pub const MISSING: &str = "nowhere";

/// A broker with a topic `orders`.
#[async_trait]
pub trait Broker: Send + Sync + Sized + 'static {
    /// Whether it retains only a few megabytes of a topic.
    const LIMITED_RETENTION: bool;

    /// Starts the broker; `None` if it is not installed.
    async fn open() -> Option<Self>;
    /// Hosts and ports, separated by commas.
    fn servers(&self) -> String;
    /// Creates [`MISSING`].
    async fn create_missing(&self);
    fn stop(&mut self);
    fn kill(&mut self);
    fn restart(&mut self);
    fn freeze(&mut self);
    fn thaw(&mut self);
}

pub struct KafkaHarness<B> {
    broker: B,
    /// Received records, if they are read in the background.
    seen: Option<Arc<Mutex<Vec<Record>>>>,
}

impl<B: Broker> KafkaHarness<B> {
    fn settings(&self, options: &PublisherOptions) -> KafkaSettings {
        let topic = if options.destination == Destination::Missing { MISSING } else { "orders" };
        let mut settings = KafkaSettings::new(self.broker.servers().as_str(), topic.parse().unwrap());
        settings.format = options.format;
        settings.source = SOURCE.into();
        settings.timeout = options.timeout;
        settings
    }
}

/// Waits until there are `count` records, and then briefly for more.
fn wait_for_records(seen: &Mutex<Vec<Record>>, count: usize) -> Vec<Record> {
    let mut wait = Wait::until(count);
    while !wait.remaining(seen.lock().unwrap().len()).is_zero() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(200));
    seen.lock().unwrap().clone()
}

#[async_trait]
impl<B: Broker> Harness for KafkaHarness<B> {
    const GUARANTEES: Guarantees = Kafka::GUARANTEES;
    const CE_PREFIX: &'static str = "ce_";
    const CHECKS_PASSWORDS: bool = false;
    /// librdkafka resends its messages until the timeout.
    const FAILS_FAST: bool = false;

    async fn open(_: Sharing) -> Option<Self> {
        Some(Self { broker: B::open().await?, seen: None })
    }

    fn publisher(&self, options: &PublisherOptions) -> Arc<dyn Publisher> {
        Arc::new(Kafka::new("kafka", self.settings(options)).unwrap())
    }

    fn debug_output(&self) -> String {
        let settings = self.settings(&PublisherOptions::default());
        format!("{settings:?} {:?}", Kafka::new("kafka", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (servers, seen) = (self.broker.servers(), self.seen.clone());
        let read = move || match seen {
            Some(seen) => wait_for_records(&seen, count),
            None => Reader::of(&servers).read("orders", count),
        };
        let records = tokio::task::spawn_blocking(read).await.unwrap();
        let received = records.into_iter().map(|message| Received {
            id: message.header("outbox-id").or(message.header("ce_id")).map_or_else(
                || {
                    let object: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
                    object["id"].as_str().unwrap().to_owned()
                },
                str::to_owned,
            ),
            content_type: message.header("content-type").map(str::to_owned),
            headers: message.headers,
            body: message.body,
        });
        received.collect()
    }

    fn watch(&mut self) {
        if !B::LIMITED_RETENTION {
            return;
        }
        self.seen = Some(Reader::of(&self.broker.servers()).watch("orders"));
    }

    fn missing_name(&self) -> Option<String> {
        Some(MISSING.to_owned())
    }

    async fn create_missing(&self) {
        self.broker.create_missing().await;
    }

    fn address(&self) -> String {
        self.broker.servers().split(',').next().unwrap().to_owned()
    }

    fn publisher_at(&self, address: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        // Always ends in the timeout.
        let options = PublisherOptions { timeout: Duration::from_secs(10), ..PublisherOptions::default() };
        let mut settings = self.settings(&options);
        settings.brokers = address.into();
        (!tls).then(|| Arc::new(Kafka::new("kafka", settings).unwrap()) as Arc<dyn Publisher>)
    }

    fn oversized_payload(&self) -> usize {
        1_000_000
    }

    fn stop(&mut self) {
        self.broker.stop();
    }

    fn kill(&mut self) {
        self.broker.kill();
    }

    fn start(&mut self) {
        self.broker.restart();
    }

    fn freeze(&mut self) -> bool {
        self.broker.freeze();
        true
    }

    fn thaw(&mut self) {
        self.broker.thaw();
    }
}

mod in_memory {
    crate::common::conformance_tests!(super::KafkaHarness<crate::cluster::Cluster>);
}

mod on_tansu {
    // After a restart with batches in flight the storage thread of Tansu 0.6.0 panics ("more or
    // less than one row"), and the broker answers every batch with an unknown error from then on.
    crate::common::conformance_tests!(without soak, super::KafkaHarness<crate::tansu::Tansu>);
}
