//! Contents of messages, and refused settings.

use std::time::Duration;

use outbox::{Event, EventBuilder, EventResult, Failure, Outgoing, Publisher as _};
use outbox_transports::{
    Kafka, KafkaCompression, KafkaMechanism, KafkaSasl, KafkaSettings, PublisherSettingsError, Tls,
};

use crate::cluster::Cluster;
use crate::common::{fates, numbered};

fn outgoing(event: EventBuilder) -> Outgoing {
    Outgoing::new(event.json(&1).build().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_the_ordering_key_or_the_aggregate_id_or_none() {
    let cluster = Cluster::start(1);
    let kafka = Kafka::new("kafka", cluster.settings()).unwrap();
    let batch = [
        outgoing(Event::new("e").aggregate("Order", "21").ordering_key("foobar")),
        outgoing(Event::new("e").aggregate("Order", "21")),
        outgoing(Event::new("e").aggregate("Order", "a-little-bit-longer-string")),
        outgoing(Event::new("e")),
    ];
    kafka.publish_batch(&batch).await.unwrap();
    let records = tokio::task::block_in_place(|| cluster.read("orders", 4));
    // The partitions that the JVM client chooses among four.
    for (event, key, partition) in [
        (&batch[0], Some("foobar"), Some(2)),
        (&batch[1], Some("21"), Some(0)),
        (&batch[2], Some("a-little-bit-longer-string"), Some(3)),
        (&batch[3], None, None),
    ] {
        let message = records.iter().find(|m| m.header("outbox-id") == Some(event.id().as_str())).unwrap();
        assert_eq!(message.key.as_deref(), key);
        assert!(partition.is_none_or(|partition| partition == message.partition), "{message:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_is_supported() {
    let cluster = Cluster::start(1);
    for compression in
        [KafkaCompression::None, KafkaCompression::Gzip, KafkaCompression::Snappy, KafkaCompression::Lz4]
    {
        let mut settings = cluster.settings();
        settings.compression = compression;
        let event = Event::new("e").json(&"x".repeat(1_000)).build().unwrap();
        let kafka = Kafka::new("kafka", settings).unwrap();
        kafka.publish_batch(&[Outgoing::new(event)]).await.unwrap();
    }
    let records = tokio::task::block_in_place(|| cluster.read("orders", 4));
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|message| message.body.len() == 1_002));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_with_an_invalid_topic_is_dead_and_the_others_arrive() {
    let cluster = Cluster::start(1);
    let mut settings = cluster.settings();
    settings.topic = "{header:topic}".parse().unwrap();
    let kafka = Kafka::new("kafka", settings).unwrap();
    let to = |topic: &str| outgoing(Event::new("e").header("topic", topic));
    let batch = [to("a b"), to(".."), outgoing(Event::new("e")), to("orders")];
    let error = kafka.publish_batch(&batch).await.unwrap_err();
    let no_topic = |name: &str| {
        let rule = "use letters, digits, `.`, `_` and `-`, at most 249";
        Some(EventResult::Failed(Failure::dead(format!("{name:?} is not a valid topic name: {rule}"))))
    };
    let missing = Failure::dead("the destination needs {header:topic}, which the event does not have");
    assert_eq!(
        fates(&error, 4),
        [no_topic("a b"), no_topic(".."), Some(EventResult::Failed(missing)), Some(EventResult::Published)]
    );
}

#[tokio::test]
async fn the_constructor_only_checks_settings() {
    let mut settings = KafkaSettings::new("127.0.0.1:1", "orders".parse().unwrap());
    settings.timeout = Duration::from_secs(5);
    let kafka = Kafka::new("kafka", settings).unwrap();
    assert!(kafka.health().await.is_err());
    let error = kafka.publish_batch(&[numbered(1, None)]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.to_string().starts_with("no broker accepted an event in 5 s; last error: "), "{error}");
}

#[test]
fn invalid_settings_are_named() {
    type Change = fn(&mut KafkaSettings);
    let option = |name: &'static str, value: &'static str, expected: &'static str| (name, value, expected);
    for (name, value, expected) in [
        option("acks", "1", "options: \"acks\" cannot be changed"),
        option("enable.idempotence", "false", "options: \"enable.idempotence\" cannot be changed"),
        option("test.mock.num.brokers", "3", "options: \"test.mock.num.brokers\" cannot be changed"),
        option("delivery.report.only.error", "true", "options: \"delivery.report.only.error\" cannot"),
        option(
            "security.protocol",
            "plaintext",
            "options: use tls and sasl instead of \"security.protocol\"",
        ),
        option("ssl.ca.location", "/tmp/ca.pem", "options: use tls instead of \"ssl.ca.location\""),
        option(
            "enable.ssl.certificate.verification",
            "false",
            "options: \"enable.ssl.certificate.verification\" is not allowed: it could weaken TLS",
        ),
        option(
            "ssl.endpoint.identification.algorithm",
            "none",
            "options: \"ssl.endpoint.identification.algorithm\" is not allowed",
        ),
        option("plugin.library.paths", "/tmp/x.so", "options: \"plugin.library.paths\" is not allowed"),
        option("sasl.kerberos.kinit.cmd", "id", "options: \"sasl.kerberos.kinit.cmd\" is not allowed"),
        option("partitioner", "random", "options: a random \"partitioner\" keeps no order"),
        option("bootstrap.servers", "x", "options: use brokers instead of \"bootstrap.servers\""),
        option("no.such.option", "hunter2", "options: librdkafka does not support \"no.such.option\""),
        option(
            "linger.ms",
            "hunter2",
            "options: librdkafka does not support \"linger.ms\", or not this value",
        ),
    ] {
        let mut settings = KafkaSettings::new("kafka:9092", "orders".parse().unwrap());
        settings.options.insert(name.to_owned(), value.into());
        let error = Kafka::new("kafka", settings).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{name}: {error}");
        assert_eq!(error.setting(), "options");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let scram = KafkaSasl::new(KafkaMechanism::ScramSha256, "ada", "hunter2");
    for (change, expected) in [
        ((|s| s.brokers = "a:1,,b:1".into()) as Change, "brokers: "),
        (|s| s.topic = "a b".parse().unwrap(), "topic: \"a b\" is not a valid topic name"),
        (|s| s.timeout = Duration::ZERO, "timeout: "),
        (|s| s.max_bytes = 1, "max_bytes: "),
    ] {
        let mut settings = KafkaSettings::new("kafka:9092", "orders".parse().unwrap());
        change(&mut settings);
        let error = Kafka::new("kafka", settings).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    if cfg!(not(feature = "kafka-tls")) {
        let mut tls = KafkaSettings::new("kafka:9092", "orders".parse().unwrap());
        let mut sasl = tls.clone();
        tls.tls = Some(Tls::default());
        sasl.sasl = Some(scram);
        for (settings, subject) in [(tls, "tls: TLS"), (sasl, "sasl: SCRAM")] {
            let error = Kafka::new("kafka", settings).unwrap_err();
            assert!(matches!(error, PublisherSettingsError::Feature { feature: "kafka-tls", .. }));
            let expected = format!("{subject} needs a build with the feature `kafka-tls`");
            assert_eq!(error.to_string(), expected);
        }
    }
}
