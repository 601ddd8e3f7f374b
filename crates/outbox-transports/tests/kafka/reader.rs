//! Reads topics, whichever broker has them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::conformance::Wait;

/// How many partitions every topic of these tests has.
pub const PARTITIONS: i32 = 4;

/// Reads topics from their beginning.
pub struct Reader(ClientConfig);

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

impl Reader {
    /// Reads from these brokers.
    pub fn of(servers: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("group.id", "eyes").set("fetch.wait.max.ms", "20");
        Self(config)
    }

    /// By TLS, with this authority.
    #[cfg(feature = "kafka-tls")]
    pub fn trusting(mut self, ca_file: &std::path::Path) -> Self {
        self.0.set("security.protocol", "ssl").set("ssl.ca.location", ca_file.to_str().unwrap());
        self
    }

    /// How to reach the brokers.
    pub fn config(&self) -> &ClientConfig {
        &self.0
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

    /// Reads a topic from now on, for as long as the result is used.
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
        let consumer: BaseConsumer = self.0.create().unwrap();
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            partitions.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&partitions).unwrap();
        consumer
    }
}
