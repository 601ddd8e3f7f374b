//! A cluster, and eyes at its topics.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_transports::KafkaSettings;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::conformance::Wait;

pub const PARTITIONS: i32 = 4;

type Mock = MockCluster<'static, DefaultProducerContext>;
type Errand = Box<dyn FnOnce(&Mock) + Send>;

/// The cluster lives in a thread of its own, which it cannot leave.
pub struct Cluster {
    errands: Sender<Errand>,
    pub servers: String,
    brokers: i32,
}

/// A message of a topic.
#[derive(Clone, Debug)]
pub struct Found {
    pub partition: i32,
    pub key: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Found {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|header| (header.key.to_owned(), text(header.value.unwrap()))).collect()
        });
        Self {
            partition: message.partition(),
            key: message.key().map(text),
            headers,
            body: message.payload().unwrap_or_default().to_vec(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
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

    /// What is in a topic. Waits until there is that much, or until no message comes any more, and
    /// then a moment for more.
    pub fn read(&self, topic: &str, count: usize) -> Vec<Found> {
        let consumer = self.consumer(topic);
        let (mut found, mut wait) = (Vec::new(), Wait::until(count));
        loop {
            let enough = wait.left(found.len()).is_zero();
            let patience = Duration::from_millis(if enough { 200 } else { 1_000 });
            match consumer.poll(patience) {
                Some(Ok(message)) => found.push(Found::of(&message)),
                None if enough => return found,
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Reads a topic from now on, until nobody wants to know any more. The cluster keeps no more than some megabytes of it.
    pub fn watch(&self, topic: &str) -> Arc<Mutex<Vec<Found>>> {
        let consumer = self.consumer(topic);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let wanted = Arc::downgrade(&seen);
        std::thread::spawn(move || {
            while let Some(seen) = wanted.upgrade() {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    seen.lock().unwrap().push(Found::of(&message));
                }
            }
        });
        seen
    }

    /// From the beginning of all partitions.
    fn consumer(&self, topic: &str) -> BaseConsumer {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.servers.as_str())
            .set("group.id", "eyes")
            .set("fetch.wait.max.ms", "20")
            .create()
            .unwrap();
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            partitions.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&partitions).unwrap();
        consumer
    }
}
