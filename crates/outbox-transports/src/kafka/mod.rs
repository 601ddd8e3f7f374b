//! Kafka, with librdkafka: an idempotent producer whose messages are confirmed by all in-sync
//! replicas.

mod client;
mod delivery_report;
mod settings;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use outbox::{Failure, Outgoing, PublishError, Publisher, Unavailable};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;

use self::client::{Client, Producer};
use self::delivery_report::{DeliveryOutcome, is_valid_topic};
pub use self::settings::{KafkaCompression, KafkaMechanism, KafkaSasl, KafkaSettings};
use crate::availability::Availability;
use crate::probe::ProbeError;
use crate::{
    Duplicates, Encoder, Guarantees, KeyedBatches, Message, Order, PublisherSettingsError, Template,
};

/// Maximum time of a batch. No further events are sent after it; the remaining events come with the
/// next batch. The relay's timeout for a batch is as long, and after it the relay would not learn
/// which events were published.
const MAX_BATCH_TIME: Duration = Duration::from_secs(10);
/// How long to wait for a delivery report after the message timeout.
const REPORT_GRACE: Duration = Duration::from_secs(5);
/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between checks of a missing topic.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Publishes events to Kafka topics. An event is published when all in-sync replicas have it.
///
/// ```
/// use outbox::Topic;
/// use outbox_transports::{Kafka, KafkaSettings};
///
/// let settings = KafkaSettings::new("kafka-1:9092,kafka-2:9092", "shop.{aggregate_type}".parse()?);
/// let pair = Topic::new("orders").to(Kafka::new("kafka", settings)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A message's key is the event's ordering key, or else its aggregate id, so that the events of one
/// aggregate are in one partition. Without either, the message has no key and goes to any
/// partition. Order is only guaranteed for an ordering key.
///
/// librdkafka gets one message of an ordering key at a time, and the next one only after the first
/// is confirmed. So no message can overtake an earlier one of its key, whatever happens to it: a
/// refusal, a timeout, a new leader. (librdkafka's own `enable.gapless.guarantee` does not cover
/// timeouts, and ends the producer for all keys when one fails.) Messages of different keys are
/// sent together.
///
/// A producer is purged and replaced after a timeout or a fatal error, or when the caller stops
/// waiting for its batch: no message is sent without the relay's knowledge.
pub struct Kafka {
    name: String,
    client: Client,
    brokers: String,
    topic: Template,
    encoder: Encoder,
    timeout: Duration,
    max_bytes: usize,
    availability: Availability,
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka")
            .field("name", &self.name)
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// An encoded message.
struct KafkaMessage {
    topic: String,
    key: Option<String>,
    message: Message,
}

impl Kafka {
    /// Delivery guarantees of Kafka.
    pub const GUARANTEES: Guarantees = Guarantees {
        order: Order::PerKey,
        duplicates: Duplicates::Delivered,
        confirmed: "all in-sync replicas of the partition have the message",
    };

    /// Creates a publisher called `name`. Checks the settings; does not connect yet.
    pub fn new(name: impl Into<String>, settings: KafkaSettings) -> Result<Self, PublisherSettingsError> {
        if let Some(topic) = settings.topic.fixed().filter(|topic| !is_valid_topic(topic)) {
            return Err(PublisherSettingsError::value("topic", invalid_topic(topic)));
        }
        Ok(Self {
            name: name.into(),
            client: Client::new(settings.config()?, settings.secrets()),
            brokers: settings.brokers.as_str().to_owned(),
            encoder: Encoder::new(settings.format, settings.source.as_str()).prefix("ce_"),
            topic: settings.topic,
            timeout: settings.timeout,
            max_bytes: settings.max_bytes,
            availability: Availability::default(),
        })
    }

    fn prepare(&self, event: &Outgoing) -> Result<KafkaMessage, Failure> {
        let topic = self.topic.render(event)?;
        if !is_valid_topic(&topic) {
            return Err(Failure::dead(invalid_topic(&topic)));
        }
        let message = self.encoder.encode(event)?;
        let key = event.ordering_key().or(event.aggregate_id()).map(str::to_owned);
        let limit = self.max_bytes.saturating_sub(key.as_ref().map_or(0, String::len));
        if message.headers.iter().any(|(name, _)| name.contains('\0')) {
            return Err(Failure::dead("a header name contains NUL, which Kafka does not allow"));
        }
        message.fits(limit, &format!("the topic {topic:?}"))?;
        Ok(KafkaMessage { topic, key, message })
    }

    /// Sends one event and waits for its delivery report.
    async fn send(&self, producer: &Producer, event: &Outgoing) -> DeliveryOutcome {
        let KafkaMessage { topic, key, message } = match self.prepare(event) {
            Ok(message) => message,
            Err(failure) => return DeliveryOutcome::Failed(failure),
        };
        let content_type = ("content-type".to_owned(), message.content_type);
        let all = message.headers.iter().chain([&content_type]);
        let headers = all
            .fold(OwnedHeaders::new_with_capacity(message.headers.len() + 1), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value) })
            });
        let mut record = FutureRecord::to(&topic).payload(&message.body[..]).headers(headers);
        record.key = key.as_deref();
        let sent = match producer.get().send_result(record) {
            Ok(sent) => sent,
            Err((error, _)) => return delivery_report::classify(&error, &topic),
        };
        match sent.await {
            Ok(Ok(_)) => DeliveryOutcome::Published,
            Ok(Err((error, _))) => delivery_report::classify(&error, &topic),
            Err(_) => DeliveryOutcome::Unavailable("the producer was closed".to_owned()),
        }
    }

    /// Sends a sub-batch and waits for all of its delivery reports.
    async fn send_sub_batch(
        &self,
        producer: &Arc<Producer>,
        events: &[Outgoing],
        sub_batch: &[usize],
    ) -> Vec<DeliveryOutcome> {
        let mut guard = InFlightGuard { client: &self.client, producer, completed: false };
        // All messages are queued before the first is awaited, so that librdkafka batches them.
        let sending = join_all(sub_batch.iter().map(|index| self.send(producer, &events[*index])));
        match tokio::time::timeout(self.timeout + REPORT_GRACE, sending).await {
            Ok(outcomes) => {
                let timed_out = |outcome: &DeliveryOutcome| matches!(outcome, DeliveryOutcome::TimedOut);
                guard.completed = !outcomes.iter().any(timed_out) && !producer.has_fatal_error();
                outcomes
            }
            Err(_) => sub_batch.iter().map(|_| DeliveryOutcome::TimedOut).collect(),
        }
    }

    /// The failure of a message that timed out while others were published: its partition is the
    /// cause.
    fn timed_out(&self) -> Failure {
        let seconds = self.timeout.as_secs_f32();
        Failure::retry(format!("Kafka did not confirm the event in {seconds} s; it may have accepted it"))
    }

    /// The reason why nothing is published.
    fn outage(&self, producer: &Producer) -> String {
        let seconds = self.timeout.as_secs_f32();
        match producer.last_error() {
            Some(last_error) => {
                format!("no broker accepted an event in {seconds} s; last error: {last_error}")
            }
            None => format!("no broker accepted an event in {seconds} s"),
        }
    }
}

/// Fetches the metadata of a topic, or of none in particular, until it succeeds or
/// [`PROBE_TIMEOUT`] is over: a topic that brokers create automatically is missing at first.
async fn probe_topic(producer: &Arc<Producer>, topic: Option<String>) -> Result<(), Unavailable> {
    let asked = producer.clone();
    let probe = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + PROBE_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match asked.fetch_topic(topic.as_deref(), left.max(RECHECK_INTERVAL)) {
                Err(ProbeError::Rejected(_)) if left > RECHECK_INTERVAL => {
                    std::thread::sleep(RECHECK_INTERVAL);
                }
                answer => return answer,
            }
        }
    });
    let no_reply = || producer.last_error().unwrap_or_else(|| "no broker answers".to_owned());
    probe.await.unwrap_or(Err(ProbeError::NoReply)).map_err(|error| {
        Unavailable::new(match error {
            ProbeError::NoReply => no_reply(),
            ProbeError::Rejected(reason) => reason,
        })
    })
}

fn invalid_topic(topic: &str) -> String {
    format!("{topic:?} is not a valid topic name: use letters, digits, `.`, `_` and `-`, at most 249")
}

/// Messages that librdkafka has. Unless all of them are known to be completed, the producer is
/// discarded on drop: otherwise it could send them later.
struct InFlightGuard<'a> {
    client: &'a Client,
    producer: &'a Arc<Producer>,
    completed: bool,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        if !self.completed {
            self.client.discard(self.producer);
        }
    }
}

#[async_trait]
impl Publisher for Kafka {
    fn name(&self) -> &str {
        &self.name
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        let start = Instant::now();
        let producer = self.client.producer().await.map_err(PublishError::unavailable)?;
        let mut batches = KeyedBatches::new(events);
        while let Some(sub_batch) = batches.next() {
            if start.elapsed() > MAX_BATCH_TIME {
                return batches.abort("Kafka is slow: the rest of the batch is sent later");
            }
            let outcomes = self.send_sub_batch(&producer, events, &sub_batch).await;
            let any_published = outcomes.contains(&DeliveryOutcome::Published);
            let timed_out = outcomes.contains(&DeliveryOutcome::TimedOut);
            let (mut outage, mut missing_topics) = (None, BTreeSet::new());
            for (index, outcome) in sub_batch.into_iter().zip(outcomes) {
                match outcome {
                    DeliveryOutcome::Published => batches.published(index),
                    DeliveryOutcome::Failed(failure) => batches.failed(index, failure),
                    DeliveryOutcome::NoTopic(topic, reason) => {
                        missing_topics.insert(topic);
                        // One of several topics may be missing. If it is the only topic, it is an
                        // outage.
                        match self.topic.fixed() {
                            Some(_) => outage = Some(reason),
                            None => batches.failed(index, Failure::retry(reason)),
                        }
                    }
                    DeliveryOutcome::TimedOut if any_published => batches.failed(index, self.timed_out()),
                    DeliveryOutcome::TimedOut => outage = Some(self.outage(&producer)),
                    DeliveryOutcome::Unavailable(reason) => outage = Some(reason),
                }
            }
            if any_published {
                self.availability.record_success();
                producer.clear_error();
            }
            if let Some(reason) = outage {
                self.availability.record_outage(&reason);
                return batches.abort(reason);
            }
            for topic in missing_topics {
                // Makes librdkafka refresh its metadata. The result shows when the next event is
                // sent.
                let _ = probe_topic(&producer, Some(topic)).await;
            }
            if timed_out {
                // The producer is discarded, and the time of the batch is used up.
                return batches.finish();
            }
        }
        batches.finish()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        if let Some(reason) = self.availability.paused() {
            return Err(Unavailable::new(reason));
        }
        if self.availability.is_recently_up() {
            return Ok(());
        }
        let asked = match self.client.producer().await {
            Ok(producer) => probe_topic(&producer, self.topic.fixed().map(str::to_owned)).await,
            Err(unavailable) => Err(unavailable),
        };
        asked.inspect_err(|unavailable| {
            self.availability.warn_unavailable(&self.name, unavailable.reason());
        })
    }
}
