//! Brokers that refuse, fail, or come back later.

use std::time::Duration;

use futures_util::FutureExt as _;
use outbox::{Failure, Fate, Outgoing, Publisher as _};
use outbox_transports::{Kafka, KafkaSettings};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::cluster::Cluster;
use crate::conformance::outages::{publish_until_taken, wait_until_healthy, wait_until_unhealthy};
use crate::conformance::{LONGEST_STALL, fates, numbered};

/// The numbers that arrived, in order: with one key all are in one partition.
async fn numbers(cluster: &Cluster, count: usize) -> Vec<usize> {
    let found = tokio::task::block_in_place(|| cluster.read("orders", count));
    found.iter().map(|message| std::str::from_utf8(&message.body).unwrap().parse().unwrap()).collect()
}

fn of_a_key(numbers: std::ops::Range<usize>) -> Vec<Outgoing> {
    numbers.map(|number| numbered(number, Some("k"))).collect()
}

/// The next requests to produce fail like this.
fn refuse(cluster: &Cluster, errors: &'static [RDKafkaRespErr]) {
    cluster.with(move |mock| mock.request_errors(RDKafkaApiKey::Produce, errors));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_holds_back_its_key_and_says_what_to_do() {
    let cluster = Cluster::start(1);
    let kafka = Kafka::new("kafka", cluster.settings()).unwrap();
    let dead = Failure::dead("the message is larger than the topic \"orders\" takes");
    for (error, failure) in [(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE], dead)] {
        refuse(&cluster, error);
        let batch = of_a_key(0..3);
        let error = kafka.publish_batch(&batch).await.unwrap_err();
        assert!(!error.is_unavailable(), "{error}");
        let expected = [Some(Fate::Failed(failure)), Some(Fate::Untried), Some(Fate::Untried)];
        assert_eq!(fates(&error, 3), expected);
    }
    assert_eq!(numbers(&cluster, 0).await, [0; 0], "nothing has overtaken the one that was refused");
    kafka.publish_batch(&of_a_key(0..3)).await.unwrap();
    assert_eq!(numbers(&cluster, 3).await, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_made_later_is_used() {
    let cluster = Cluster::start(1);
    let set = |error| cluster.with(move |mock| mock.topic_error("later", error).unwrap());
    set(RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    let (topic, timeout) = ("later".parse().unwrap(), Duration::from_secs(10));
    let settings = KafkaSettings { topic, timeout, ..cluster.settings() };
    let kafka = Kafka::new("kafka", settings).unwrap();
    let error = kafka.publish_batch(&of_a_key(0..2)).await.unwrap_err();
    let missing = "there is no topic \"later\": create it, or let the brokers create topics";
    assert!(error.is_unavailable(), "no event is to blame: {error}");
    assert_eq!(error.to_string(), missing);
    assert_eq!(fates(&error, 2), [Some(Fate::Untried), Some(Fate::Untried)]);
    wait_until_unhealthy(&kafka, |reason| reason == missing).await;
    set(RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    publish_until_taken(&kafka, &of_a_key(0..2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_topic_is_an_outage_if_it_is_the_only_one() {
    let cluster = Cluster::start(1);
    let denied = "the brokers do not let us write to the topic \"orders\"";
    for (topic, is_outage) in [("orders", true), ("{header:topic}", false)] {
        let settings = KafkaSettings { topic: topic.parse().unwrap(), ..cluster.settings() };
        let kafka = Kafka::new("kafka", settings).unwrap();
        refuse(&cluster, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED]);
        let event = outbox::Event::new("e").header("topic", "orders").json(&1).build().unwrap();
        let error = kafka.publish_batch(&[Outgoing::new(event)]).await.unwrap_err();
        assert_eq!((error.is_unavailable(), error.to_string().as_str()), (is_outage, denied));
        let failed = Fate::Failed(Failure::retry(denied));
        assert_eq!(error.fate(0), Some(if is_outage { Fate::Untried } else { failed }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_retried_and_stays_in_order() {
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
    // One that timed out was taken perhaps, and comes again.
    arrived.dedup();
    assert_eq!(arrived, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_has_ended_is_replaced() {
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
async fn a_batch_that_nobody_waits_for_is_not_sent_later() {
    let cluster = Cluster::start(1);
    let settings = KafkaSettings { timeout: Duration::from_secs(60), ..cluster.settings() };
    let kafka = Kafka::new("kafka", settings).unwrap();
    kafka.publish_batch(&of_a_key(0..1)).await.unwrap();
    cluster.down();
    let given_up =
        tokio::time::timeout(Duration::from_millis(300), kafka.publish_batch(&of_a_key(1..2))).await;
    assert!(given_up.is_err());
    cluster.up();
    // Another goes first, as after a change of leaders: the first one must not come behind it.
    kafka.publish_batch(&of_a_key(2..3)).await.unwrap();
    assert_eq!(numbers(&cluster, 2).await, [0, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_timed_out_is_not_sent_later() {
    let cluster = Cluster::start(1);
    let settings = KafkaSettings { timeout: Duration::from_secs(2), ..cluster.settings() };
    let kafka = Kafka::new("kafka", settings).unwrap();
    publish_until_taken(&kafka, &of_a_key(0..1)).await;
    cluster.down();
    let error = kafka.publish_batch(&of_a_key(1..3)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(fates(&error, 2), [Some(Fate::Untried), Some(Fate::Untried)]);
    assert!(kafka.health().await.is_err());
    cluster.up();
    wait_until_healthy(&kafka).await;
    publish_until_taken(&kafka, &of_a_key(3..4)).await;
    let mut arrived = numbers(&cluster, 2).await;
    // A broker may have taken what timed out at first, and takes it again.
    arrived.dedup();
    assert_eq!(arrived, [0, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_others_are_told_when_a_producer_is_thrown_away() {
    let cluster = Cluster::start(1);
    let settings = KafkaSettings { timeout: 2 * LONGEST_STALL, ..cluster.settings() };
    let kafka = Kafka::new("kafka", settings).unwrap();
    kafka.publish_batch(&[numbered(0, None)]).await.unwrap();
    cluster.down();
    let batch = [numbered(1, Some("a"))];
    let mut other = kafka.publish_batch(&batch);
    assert!(other.as_mut().now_or_never().is_none(), "it is with the producer");
    let batch = [numbered(2, Some("b"))];
    assert!(tokio::time::timeout(Duration::from_millis(300), kafka.publish_batch(&batch)).await.is_err());
    let error = tokio::time::timeout(LONGEST_STALL, other).await.expect("in time").unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(error.fate(0), Some(Fate::Untried));
}
