//! The common suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox::Publisher;
use outbox_transports::{Kafka, KafkaSettings, Promises};
use rdkafka::types::RDKafkaRespErr;

use crate::cluster::Cluster;
use crate::conformance::{self, Bed, Destination, Received, SOURCE, Share, Wish};

struct KafkaBed {
    cluster: Arc<Cluster>,
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

#[async_trait]
impl Bed for KafkaBed {
    const PROMISES: Promises = Kafka::PROMISES;
    const CE_PREFIX: &'static str = "ce_";
    /// The cluster in memory lets everybody in.
    const PASSWORDS: bool = false;

    async fn open(_: Share) -> Option<Self> {
        let cluster = Cluster::start(3);
        // It would create every topic that is asked for.
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        cluster.with(move |mock| mock.topic_error("nowhere", unknown).unwrap());
        Some(Self { cluster: Arc::new(cluster) })
    }

    fn publisher(&self, wish: &Wish) -> Arc<dyn Publisher> {
        Arc::new(Kafka::new("kafka", self.settings(wish)).unwrap())
    }

    fn shown(&self) -> String {
        let settings = self.settings(&Wish::default());
        format!("{settings:?} {:?}", Kafka::new("kafka", settings.clone()).unwrap())
    }

    async fn received(&self, count: usize) -> Vec<Received> {
        let cluster = self.cluster.clone();
        let found = tokio::task::spawn_blocking(move || cluster.read("orders", count)).await.unwrap();
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

    fn missing(&self) -> Option<String> {
        Some("nowhere".to_owned())
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
