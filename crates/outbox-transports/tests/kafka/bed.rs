//! The common suite, on any broker.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox::Publisher;
use outbox_transports::{Kafka, KafkaSettings, Promises};

use crate::conformance::{Bed, Destination, Received, SOURCE, Share, Wait, Wish};
use crate::reader::{Found, Reader};

/// A topic that is not there until it is created.
pub const MISSING: &str = "nowhere";

/// What the suite runs on. A topic `orders` is there.
#[async_trait]
pub trait Broker: Send + Sync + Sized + 'static {
    /// Whether it keeps some megabytes of a topic only.
    const KEEPS_LITTLE: bool;

    /// `None` if it cannot be run here.
    async fn open() -> Option<Self>;
    /// Hosts and ports, separated by commas.
    fn servers(&self) -> String;
    /// Creates [`MISSING`].
    async fn create_missing(&self);
    fn stop(&mut self);
    fn kill(&mut self);
    fn start_again(&mut self);
    fn freeze(&mut self);
    fn thaw(&mut self);
}

pub struct KafkaBed<B> {
    broker: B,
    /// What has arrived, if that is watched.
    seen: Option<Arc<Mutex<Vec<Found>>>>,
}

impl<B: Broker> KafkaBed<B> {
    fn settings(&self, wish: &Wish) -> KafkaSettings {
        let topic = if wish.destination == Destination::Missing { MISSING } else { "orders" };
        let mut settings = KafkaSettings::new(self.broker.servers().as_str(), topic.parse().unwrap());
        settings.format = wish.format;
        settings.source = SOURCE.into();
        settings.timeout = wish.timeout;
        settings
    }
}

/// Waits until there is that much, and then a moment for more.
fn all_of(seen: &Mutex<Vec<Found>>, count: usize) -> Vec<Found> {
    let mut wait = Wait::until(count);
    while !wait.left(seen.lock().unwrap().len()).is_zero() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(200));
    seen.lock().unwrap().clone()
}

#[async_trait]
impl<B: Broker> Bed for KafkaBed<B> {
    const PROMISES: Promises = Kafka::PROMISES;
    const CE_PREFIX: &'static str = "ce_";
    const PASSWORDS: bool = false;
    /// librdkafka sends what it has again, until the timeout.
    const BREAKS_AT_ONCE: bool = false;

    async fn open(_: Share) -> Option<Self> {
        Some(Self { broker: B::open().await?, seen: None })
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Kafka::new("kafka", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let settings = self.settings(&Wish::default());
        format!("{settings:?} {:?}", Kafka::new("kafka", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (servers, seen) = (self.broker.servers(), self.seen.clone());
        let read = move || match seen {
            Some(seen) => all_of(&seen, count),
            None => Reader::of(&servers).read("orders", count),
        };
        let found = tokio::task::spawn_blocking(read).await.unwrap();
        let received = found.into_iter().map(|message| Received {
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
        if !B::KEEPS_LITTLE {
            return;
        }
        self.seen = Some(Reader::of(&self.broker.servers()).watch("orders"));
    }

    fn missing(&self) -> Option<String> {
        Some(MISSING.to_owned())
    }

    async fn create_missing(&self) {
        self.broker.create_missing().await;
    }

    fn place(&self) -> String {
        self.broker.servers().split(',').next().unwrap().to_owned()
    }

    fn publisher_at(&self, place: &str, tls: bool) -> Option<Arc<dyn Publisher>> {
        // Always ends by the timeout.
        let wish = Wish { timeout: Duration::from_secs(10), ..Wish::default() };
        let settings = KafkaSettings { brokers: place.into(), ..self.settings(&wish) };
        (!tls).then(|| Arc::new(Kafka::new("kafka", settings).unwrap()) as Arc<dyn Publisher>)
    }

    fn too_big(&self) -> usize {
        1_000_000
    }

    fn stop(&mut self) {
        self.broker.stop();
    }

    fn kill(&mut self) {
        self.broker.kill();
    }

    fn start(&mut self) {
        self.broker.start_again();
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
    crate::conformance::tests!(super::KafkaBed<crate::cluster::Cluster>);
}

mod on_tansu {
    // After a restart with batches under way the storage thread of Tansu 0.6.0 panics ("more or less than one row"), and the broker
    // answers every batch with an unknown error from then on.
    crate::conformance::tests!(without soak, super::KafkaBed<crate::tansu::Tansu>);
}
