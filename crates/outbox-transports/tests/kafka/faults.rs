//! Brokers that refuse, fail, or recover later.

use std::time::Duration;

use futures_util::FutureExt as _;
use outbox::{EventResult, Failure, Outgoing, Publisher as _};
use outbox_transports::Kafka;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::cluster::Cluster;
use crate::common::outages::{publish_until_accepted, wait_until_healthy, wait_until_unhealthy};
use crate::common::{MAX_STALL, fates, numbered};

/// The received numbers in order: all events of one key are in one partition.
async fn numbers(cluster: &Cluster, count: usize) -> Vec<usize> {
    let records = tokio::task::block_in_place(|| cluster.read("orders", count));
    records.iter().map(|message| std::str::from_utf8(&message.body).unwrap().parse().unwrap()).collect()
}

fn of_a_key(numbers: std::ops::Range<usize>) -> Vec<Outgoing> {
    numbers.map(|number| numbered(number, Some("k"))).collect()
}

/// Makes the next produce requests fail with these errors.
fn refuse(cluster: &Cluster, errors: &'static [RDKafkaRespErr]) {
    cluster.with(move |mock| mock.request_errors(RDKafkaApiKey::Produce, errors));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_blocks_its_key_and_names_the_cause() {
    let cluster = Cluster::start(1);
    let kafka = Kafka::new("kafka", cluster.settings()).unwrap();
    let dead = Failure::dead("the message is larger than the topic \"orders\" allows");
    for (error, failure) in [(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE], dead)] {
        refuse(&cluster, error);
        let batch = of_a_key(0..3);
        let error = kafka.publish_batch(&batch).await.unwrap_err();
        assert!(!error.is_unavailable(), "{error}");
        let expected = [
            Some(EventResult::Failed(failure)),
            Some(EventResult::NotAttempted),
            Some(EventResult::NotAttempted),
        ];
        assert_eq!(fates(&error, 3), expected);
    }
    assert_eq!(numbers(&cluster, 0).await, [0; 0], "no event has overtaken the refused one");
    kafka.publish_batch(&of_a_key(0..3)).await.unwrap();
    assert_eq!(numbers(&cluster, 3).await, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_created_later_is_used() {
    let cluster = Cluster::start(1);
    let set = |error| cluster.with(move |mock| mock.topic_error("later", error).unwrap());
    set(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    let (topic, timeout) = ("later".parse().unwrap(), Duration::from_secs(10));
    let mut settings = cluster.settings();
    settings.topic = topic;
    settings.timeout = timeout;
    let kafka = Kafka::new("kafka", settings).unwrap();
    let error = kafka.publish_batch(&of_a_key(0..2)).await.unwrap_err();
    let missing = "there is no topic \"later\": create it, or let the brokers create topics";
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(error.to_string(), missing);
    assert_eq!(fates(&error, 2), [Some(EventResult::NotAttempted), Some(EventResult::NotAttempted)]);
    wait_until_unhealthy(&kafka, |reason| reason == missing).await;
    set(RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    publish_until_accepted(&kafka, &of_a_key(0..2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_topic_is_an_outage_if_it_is_the_only_one() {
    let cluster = Cluster::start(1);
    let denied = "the brokers deny writing to the topic \"orders\"";
    for (topic, is_outage) in [("orders", true), ("{header:topic}", false)] {
        let mut settings = cluster.settings();
        settings.topic = topic.parse().unwrap();
        let kafka = Kafka::new("kafka", settings).unwrap();
        refuse(&cluster, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
        let event = outbox::Event::new("e").header("topic", "orders").json(&1).build().unwrap();
        let error = kafka.publish_batch(&[Outgoing::new(event)]).await.unwrap_err();
        assert_eq!((error.is_unavailable(), error.to_string().as_str()), (is_outage, denied));
        let failed = EventResult::Failed(Failure::retry(denied));
        assert_eq!(error.fate(0), Some(if is_outage { EventResult::NotAttempted } else { failed }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_errors_are_retried_in_order() {
    let cluster = Cluster::start(3);
    let kafka = Kafka::new("kafka", cluster.settings()).unwrap();
    kafka.publish_batch(&of_a_key(0..1)).await.unwrap();
    refuse(
        &cluster,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        ],
    );
    let mut left = of_a_key(1..6);
    while let Err(error) = kafka.publish_batch(&left).await {
        left.drain(..error.published());
    }
    let mut arrived = numbers(&cluster, 6).await;
    // A message that timed out may have been stored, and is sent again.
    arrived.dedup();
    assert_eq!(arrived, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_with_a_fatal_error_is_replaced() {
    let cluster = Cluster::start(1);
    cluster.with(|mock| {
        let denied = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED];
        mock.request_errors(RDKafkaApiKey::InitProducerId, &denied);
    });
    let kafka = Kafka::new("kafka", cluster.settings()).unwrap();
    let error = kafka.publish_batch(&of_a_key(0..2)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    kafka.publish_batch(&of_a_key(0..2)).await.unwrap();
    assert_eq!(numbers(&cluster, 2).await, [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_batch_is_not_sent_later() {
    let cluster = Cluster::start(1);
    let mut settings = cluster.settings();
    settings.timeout = Duration::from_secs(60);
    let kafka = Kafka::new("kafka", settings).unwrap();
    kafka.publish_batch(&of_a_key(0..1)).await.unwrap();
    cluster.down();
    let abandoned =
        tokio::time::timeout(Duration::from_millis(300), kafka.publish_batch(&of_a_key(1..2))).await;
    assert!(abandoned.is_err());
    cluster.up();
    // Another event is sent first, as after a change of the leader: the cancelled one must not
    // arrive after it.
    kafka.publish_batch(&of_a_key(2..3)).await.unwrap();
    assert_eq!(numbers(&cluster, 2).await, [0, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn timed_out_messages_are_not_sent_later() {
    let cluster = Cluster::start(1);
    let mut settings = cluster.settings();
    settings.timeout = Duration::from_secs(2);
    let kafka = Kafka::new("kafka", settings).unwrap();
    publish_until_accepted(&kafka, &of_a_key(0..1)).await;
    cluster.down();
    let error = kafka.publish_batch(&of_a_key(1..3)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(fates(&error, 2), [Some(EventResult::NotAttempted), Some(EventResult::NotAttempted)]);
    assert!(kafka.health().await.is_err());
    cluster.up();
    wait_until_healthy(&kafka).await;
    publish_until_accepted(&kafka, &of_a_key(3..4)).await;
    let mut arrived = numbers(&cluster, 2).await;
    // A broker may have stored a message that timed out at first, and stores it again.
    arrived.dedup();
    assert_eq!(arrived, [0, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_batches_fail_when_their_producer_is_discarded() {
    let cluster = Cluster::start(1);
    let mut settings = cluster.settings();
    settings.timeout = 2 * MAX_STALL;
    let kafka = Kafka::new("kafka", settings).unwrap();
    kafka.publish_batch(&[numbered(0, None)]).await.unwrap();
    cluster.down();
    let batch = [numbered(1, Some("a"))];
    let mut other = kafka.publish_batch(&batch);
    assert!(other.as_mut().now_or_never().is_none(), "the producer has the message");
    let batch = [numbered(2, Some("b"))];
    assert!(tokio::time::timeout(Duration::from_millis(300), kafka.publish_batch(&batch)).await.is_err());
    let error = tokio::time::timeout(MAX_STALL, other).await.expect("in time").unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(error.fate(0), Some(EventResult::NotAttempted));
}
