//! The common suite.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox::Publisher;
use outbox_transports::{Kafka, KafkaSettings, Promises};
use rdkafka::types::RDKafkaRespErr;

use crate::cluster::{Cluster, Found};
use crate::conformance::{self, Bed, Destination, Received, SOURCE, Share, Wait, Wish};

struct KafkaBed {
    cluster: Arc<Cluster>,
    /// What has arrived, if that is watched.
    seen: Option<Arc<Mutex<Vec<Found>>>>,
}

impl KafkaBed {
    fn settings(&self, wish: &Wish) -> KafkaSettings {
        let mut settings = self.cluster.settings();
        if wish.destination == Destination::Missing {
            settings.topic = "nowhere".parse().unwrap();
        }
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
impl Bed for KafkaBed {
    const PROMISES: Promises = Kafka::PROMISES;
    const CE_PREFIX: &'static str = "ce_";
    /// The cluster in memory lets everybody in.
    const PASSWORDS: bool = false;
    /// librdkafka sends what it has again, until the timeout.
    const BREAKS_AT_ONCE: bool = false;

    async fn open(_: Share) -> Option<Self> {
        let cluster = Cluster::start(3);
        // It would create every topic that is asked for.
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        cluster.with(move |mock| mock.topic_error("nowhere", unknown).unwrap());
        Some(Self { cluster: Arc::new(cluster), seen: None })
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Kafka::new("kafka", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let settings = self.settings(&Wish::default());
        format!("{settings:?} {:?}", Kafka::new("kafka", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let (cluster, seen) = (self.cluster.clone(), self.seen.clone());
        let read = move || match seen {
            Some(seen) => all_of(&seen, count),
            None => cluster.read("orders", count),
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
        self.seen = Some(self.cluster.watch("orders"));
    }

    fn missing(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    async fn create_missing(&self) {
        let none = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
        self.cluster.with(move |mock| mock.topic_error("nowhere", none).unwrap());
    }

    fn place(&self) -> String {
        self.cluster.servers.split(',').next().unwrap().to_owned()
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
        self.cluster.down();
    }

    fn kill(&mut self) {
        self.cluster.down();
    }

    fn start(&mut self) {
        self.cluster.up();
    }

    fn freeze(&mut self) -> bool {
        self.cluster.slow(Duration::from_secs(600));
        true
    }

    fn thaw(&mut self) {
        self.cluster.slow(Duration::ZERO);
    }
}

conformance::tests!(KafkaBed);
