//! Brokers that are reached by TLS, where this build has it.
#![cfg(feature = "kafka-tls")]

use std::time::Duration;

use outbox::Publisher as _;
use outbox_testbed::Plan;
use outbox_transports::{Kafka, KafkaSettings, Tls};

use crate::conformance::numbered;
use crate::reader::Reader;
use crate::tansu::create_topic;

/// A certificate by an authority that the system does not know is an outage, and nothing is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_cannot_be_verified_is_refused_until_its_authority_is_named() {
    let plan = Plan::tansu();
    if !plan.is_here() {
        return;
    }
    let tansu = plan.tls().start();
    let servers = format!("127.0.0.1:{}", tansu.port());
    let reader = Reader::of(&servers).trusting(&tansu.ca_file());
    create_topic(reader.config(), "orders").await;
    let kafka = |tls: Option<Tls>, timeout: u64| {
        let settings = KafkaSettings::new(servers.as_str(), "orders".parse().unwrap());
        let settings = KafkaSettings { tls, timeout: Duration::from_secs(timeout), ..settings };
        Kafka::new("kafka", settings).unwrap()
    };
    let event = [numbered(1, None)];
    let unverified = kafka(Some(Tls::default()), 3).publish_batch(&event).await.unwrap_err();
    assert!(unverified.is_unavailable(), "{unverified}");
    assert!(unverified.to_string().contains("certificate verify failed"), "{unverified}");
    let in_the_clear = kafka(None, 3).publish_batch(&event).await.unwrap_err();
    assert!(in_the_clear.is_unavailable(), "{in_the_clear}");
    let ca_file = Some(tansu.ca_file().to_str().unwrap().into());
    kafka(Some(Tls { ca_file, ..Tls::default() }), 60).publish_batch(&event).await.unwrap();
    let found = tokio::task::block_in_place(|| reader.read("orders", 1));
    assert_eq!(found.len(), 1, "what was refused was not sent");
}
