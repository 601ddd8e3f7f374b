//! Reads topics of any broker.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::common::Wait;

/// Number of partitions of every topic in these tests.
pub const PARTITIONS: i32 = 4;

/// Reads topics from the beginning.
pub struct Reader(ClientConfig);

/// A record of a topic.
#[derive(Clone, Debug)]
pub struct Record {
    pub partition: i32,
    pub key: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Record {
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
    /// Creates a reader for these brokers.
    pub fn of(servers: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("group.id", "reader").set("fetch.wait.max.ms", "20");
        Self(config)
    }

    /// Connects by TLS with this authority.
    #[cfg(feature = "kafka-tls")]
    pub fn trusting(mut self, ca_file: &std::path::Path) -> Self {
        self.0.set("security.protocol", "ssl").set("ssl.ca.location", ca_file.to_str().unwrap());
        self
    }

    /// The client configuration of the brokers.
    pub fn config(&self) -> &ClientConfig {
        &self.0
    }

    /// Returns the records of a topic. Waits until there are `count` records or no more arrive, and
    /// then briefly for more.
    pub fn read(&self, topic: &str, count: usize) -> Vec<Record> {
        let consumer = self.consumer(topic);
        let (mut records, mut wait) = (Vec::new(), Wait::until(count));
        loop {
            let enough = wait.remaining(records.len()).is_zero();
            let poll_timeout = Duration::from_millis(if enough { 200 } else { 1_000 });
            match consumer.poll(poll_timeout) {
                Some(Ok(message)) => records.push(Record::of(&message)),
                None if enough => return records,
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Reads a topic in the background until the result is dropped.
    pub fn watch(&self, topic: &str) -> Arc<Mutex<Vec<Record>>> {
        let consumer = self.consumer(topic);
        let records = Arc::new(Mutex::new(Vec::new()));
        let weak = Arc::downgrade(&records);
        std::thread::spawn(move || {
            while let Some(records) = weak.upgrade() {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    records.lock().unwrap().push(Record::of(&message));
                }
            }
        });
        records
    }

    /// Creates a consumer at the beginning of all partitions.
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
