//! librdkafka's mock cluster: the real protocol on real sockets, and errors on request.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use outbox_transports::KafkaSettings;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::RDKafkaRespErr;

use crate::harness::{Broker, MISSING};
use crate::reader::{PARTITIONS, Reader, Record};

type Mock = MockCluster<'static, DefaultProducerContext>;
type Task = Box<dyn FnOnce(&Mock) + Send>;

/// The mock cluster, which cannot leave its thread.
pub struct Cluster {
    tasks: Sender<Task>,
    pub servers: String,
    brokers: i32,
}

impl Cluster {
    pub fn start(brokers: i32) -> Self {
        let (tasks, queue) = channel::<Task>();
        std::thread::spawn(move || {
            let mock = MockCluster::new(brokers).unwrap();
            queue.into_iter().for_each(|task| task(&mock));
        });
        let mut cluster = Self { tasks, servers: String::new(), brokers };
        cluster.servers = cluster.with(Mock::bootstrap_servers);
        cluster.with(move |mock| mock.create_topic("orders", PARTITIONS, brokers).unwrap());
        cluster
    }

    /// Runs a task on the cluster's thread.
    pub fn with<R: Send + 'static>(&self, task: impl FnOnce(&Mock) -> R + Send + 'static) -> R {
        let (done, result) = channel();
        self.tasks.send(Box::new(move |mock| done.send(task(mock)).unwrap())).unwrap();
        result.recv().unwrap()
    }

    pub fn settings(&self) -> KafkaSettings {
        let mut settings = KafkaSettings::new(self.servers.as_str(), "orders".parse().unwrap());
        settings.timeout = Duration::from_secs(30);
        settings
    }

    fn for_each_broker(&self, change: impl Fn(&Mock, i32) + Send + 'static) {
        let brokers = 1..=self.brokers;
        self.with(move |mock| brokers.for_each(|broker| change(mock, broker)));
    }

    pub fn down(&self) {
        self.for_each_broker(|mock, broker| mock.broker_down(broker).unwrap());
    }

    pub fn up(&self) {
        self.for_each_broker(|mock, broker| mock.broker_up(broker).unwrap());
    }

    pub fn set_round_trip_time(&self, delay: Duration) {
        self.for_each_broker(move |mock, broker| mock.broker_round_trip_time(broker, delay).unwrap());
    }

    pub fn read(&self, topic: &str, count: usize) -> Vec<Record> {
        Reader::of(&self.servers).read(topic, count)
    }
}

#[async_trait]
impl Broker for Cluster {
    const LIMITED_RETENTION: bool = true;

    async fn open() -> Option<Self> {
        let cluster = Self::start(3);
        // The mock would create every requested topic.
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

    fn restart(&mut self) {
        self.up();
    }

    fn freeze(&mut self) {
        self.set_round_trip_time(Duration::from_secs(600));
    }

    fn thaw(&mut self) {
        self.set_round_trip_time(Duration::ZERO);
    }
}
