//! The daemon with a Kafka-compatible broker that crashes. `cargo xtask kafka` builds the broker.
#![cfg(feature = "kafka")]

mod daemons;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use daemons::{TestDir, polling};
use outbox::{Event, Outbox};
use outbox_testbed::{Plan, Server};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const PARTITIONS: i32 = 4;
const KEYS: u64 = 7;
const EVENTS: u64 = 400;

/// Client configuration of the test for the broker.
fn client(tansu: &Server) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", format!("127.0.0.1:{}", tansu.port()));
    config
}

async fn create_topic(tansu: &Server) {
    let admin: AdminClient<DefaultClientContext> = client(tansu).create().unwrap();
    let topic = NewTopic::new("orders", PARTITIONS, TopicReplication::Fixed(1));
    let created = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
    assert_eq!(created, [Ok("orders".to_owned())]);
}

/// Reads messages until there are `count` different numbers. Returns the numbers of each key in
/// order.
fn numbers(tansu: &Server, count: usize) -> BTreeMap<String, Vec<u64>> {
    let consumer: BaseConsumer = client(tansu).set("group.id", "test").create().unwrap();
    let mut partitions = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        partitions.add_partition_offset("orders", partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&partitions).unwrap();
    let (mut found, mut different) = (BTreeMap::<String, Vec<u64>>::new(), BTreeSet::new());
    let end = std::time::Instant::now() + Duration::from_secs(240);
    while different.len() < count {
        assert!(std::time::Instant::now() < end, "{} of {count} arrived", different.len());
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) else { continue };
        let number = serde_json::from_slice(message.payload().unwrap()).unwrap();
        let key = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
        different.insert(number);
        found.entry(key).or_default().push(number);
    }
    found
}

/// Waits until this many events are delivered.
async fn done(outbox: &Outbox<sqlx::Sqlite>, count: u64) {
    let done = async || match outbox.admin().stats().await.unwrap().done {
        done if done >= count => Ok(()),
        done => Err(done),
    };
    // The broker is restarted meanwhile.
    polling::within(Duration::from_secs(240), "enough events are delivered", done, String::new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_gets_to_a_broker_that_crashes_in_order_per_key() {
    let plan = Plan::tansu();
    if !plan.is_here() {
        return;
    }
    let mut tansu = plan.start();
    create_topic(&tansu).await;
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let config = dir.config(&format!(
        "[database]\nurl = \"sqlite:{{}}/shop.db\"\n[poller]\ninterval = \"100ms\"\nbatch-size = 20\n\
         [publishers.orders.kafka]\nbrokers = \"127.0.0.1:{}\"\ntopic = \"orders\"\n[[routes]]\nto = \"orders\"\n",
        tansu.port()
    ));
    let relay = dir.relay("relay", &config, &[]);
    let write = async |numbers: std::ops::Range<u64>| {
        let event = |n: u64| Event::new("n").ordering_key(format!("k{}", n % KEYS)).json(&n);
        outbox.send_all(numbers.map(event)).await.unwrap();
    };
    write(0..EVENTS / 2).await;
    done(&outbox, 1).await;
    tansu.kill();
    write(EVENTS / 2..EVENTS).await;
    relay.wait_for_log("destination unavailable: its events wait").await;
    tansu.start();
    let found = tokio::task::block_in_place(|| numbers(&tansu, EVENTS as usize));
    for (key, numbers) in found {
        let mut seen = BTreeSet::new();
        let first: Vec<u64> = numbers.into_iter().filter(|number| seen.insert(*number)).collect();
        assert!(first.is_sorted(), "{key} is out of order: {first:?}");
    }
    done(&outbox, EVENTS).await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(outbox.admin().stats().await.unwrap().dead, 0, "{log}");
}
