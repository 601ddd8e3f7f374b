//! librdkafka's cluster in memory: the real protocol on real sockets, and errors on request.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use outbox_transports::KafkaSettings;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::RDKafkaRespErr;

use crate::bed::{Broker, MISSING};
use crate::reader::{Found, PARTITIONS, Reader};

type Mock = MockCluster<'static, DefaultProducerContext>;
type Errand = Box<dyn FnOnce(&Mock) + Send>;

/// The cluster lives in a thread of its own, which it cannot leave.
pub struct Cluster {
    errands: Sender<Errand>,
    pub servers: String,
    brokers: i32,
}

impl Cluster {
    pub fn start(brokers: i32) -> Self {
        let (errands, todo) = channel::<Errand>();
        std::thread::spawn(move || {
            let mock = MockCluster::new(brokers).unwrap();
            todo.into_iter().for_each(|errand| errand(&mock));
        });
        let mut cluster = Self { errands, servers: String::new(), brokers };
        cluster.servers = cluster.with(Mock::bootstrap_servers);
        cluster.with(move |mock| mock.create_topic("orders", PARTITIONS, brokers).unwrap());
        cluster
    }

    /// Has something done with it.
    pub fn with<R: Send + 'static>(&self, errand: impl FnOnce(&Mock) -> R + Send + 'static) -> R {
        let (done, result) = channel();
        self.errands.send(Box::new(move |mock| done.send(errand(mock)).unwrap())).unwrap();
        result.recv().unwrap()
    }

    pub fn settings(&self) -> KafkaSettings {
        let mut settings = KafkaSettings::new(self.servers.as_str(), "orders".parse().unwrap());
        settings.timeout = Duration::from_secs(30);
        settings
    }

    fn each(&self, change: impl Fn(&Mock, i32) + Send + 'static) {
        let brokers = 1..=self.brokers;
        self.with(move |mock| brokers.for_each(|broker| change(mock, broker)));
    }

    pub fn down(&self) {
        self.each(|mock, broker| mock.broker_down(broker).unwrap());
    }

    pub fn up(&self) {
        self.each(|mock, broker| mock.broker_up(broker).unwrap());
    }

    pub fn slow(&self, by: Duration) {
        self.each(move |mock, broker| mock.broker_round_trip_time(broker, by).unwrap());
    }

    pub fn read(&self, topic: &str, count: usize) -> Vec<Found> {
        Reader::of(&self.servers).read(topic, count)
    }
}

#[async_trait]
impl Broker for Cluster {
    const KEEPS_LITTLE: bool = true;

    async fn open() -> Option<Self> {
        let cluster = Self::start(3);
        // It would create every topic that is asked for.
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        cluster.with(move |mock| mock.topic_error(MISSING, unknown).unwrap());
        Some(cluster)
    }

    fn servers(&self) -> String {
        self.servers.clone()
    }

    async fn create_missing(&self) {
        let none = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
        self.with(move |mock| mock.topic_error(MISSING, none).unwrap());
    }

    fn stop(&mut self) {
        self.down();
    }

    fn kill(&mut self) {
        self.down();
    }

    fn start_again(&mut self) {
        self.up();
    }

    fn freeze(&mut self) {
        self.slow(Duration::from_secs(600));
    }

    fn thaw(&mut self) {
        self.slow(Duration::ZERO);
    }
}
