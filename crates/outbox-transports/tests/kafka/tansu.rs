//! Tansu: a broker with persistent storage.

use async_trait::async_trait;
use outbox_testbed::{Plan, Server};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use crate::harness::{Broker, MISSING};
use crate::reader::{PARTITIONS, Reader};

pub struct Tansu(Server);

/// Creates a topic on the brokers of this configuration.
pub async fn create_topic(config: &ClientConfig, name: &str) {
    let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
    let topic = NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1));
    let created = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
    assert_eq!(created, [Ok(name.to_owned())]);
}

impl Tansu {
    async fn create_topic(&self, name: &str) {
        create_topic(Reader::of(&self.servers()).config(), name).await;
    }
}

#[async_trait]
impl Broker for Tansu {
    const LIMITED_RETENTION: bool = false;

    async fn open() -> Option<Self> {
        let plan = Plan::tansu();
        if !plan.is_here() {
            return None;
        }
        let tansu = Self(plan.start());
        tansu.create_topic("orders").await;
        Some(tansu)
    }

    fn servers(&self) -> String {
        format!("127.0.0.1:{}", self.0.port())
    }

    async fn create_missing(&self) {
        self.create_topic(MISSING).await;
    }

    fn stop(&mut self) {
        self.0.stop();
    }

    fn kill(&mut self) {
        self.0.kill();
    }

    fn restart(&mut self) {
        self.0.start();
    }

    fn freeze(&mut self) {
        self.0.freeze();
    }

    fn thaw(&mut self) {
        self.0.thaw();
    }
}
