//! Kafka, by librdkafka: an idempotent producer whose every message is confirmed by all replicas in sync.

mod client;
mod settings;
mod verdict;

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
pub use self::settings::{KafkaCompression, KafkaMechanism, KafkaSasl, KafkaSettings};
use self::verdict::{Verdict, is_topic};
use crate::standing::Standing;
use crate::{Encoder, Message, Order, Promises, Repeats, Template, Waves};

/// When a batch is this old, no more of it is sent: the rest comes with the next one. Whoever has it published gives the whole of it
/// so much time, and would otherwise not learn what was published.
const LONGEST_BATCH: Duration = Duration::from_secs(10);
/// How much longer than a message may take we wait for what librdkafka says of it.
const GRACE: Duration = Duration::from_secs(5);
/// How long a look at whether brokers are there may take.
const LOOK: Duration = Duration::from_secs(2);
/// The pause before a topic that is missing is asked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// Publishes events to a topic of Kafka. An event is published when all replicas that are in sync have it.
///
/// ```
/// use outbox::Topic;
/// use outbox_transports::{Kafka, KafkaSettings};
///
/// let settings = KafkaSettings::new("kafka-1:9092,kafka-2:9092", "shop.{aggregate_type}".parse()?);
/// let pair = Topic::new("orders").to(Kafka::new("kafka", settings)?);
/// # Ok::<(), String>(())
/// ```
///
/// A message's key is the event's ordering key; without one its aggregate id, so that what happens to one thing is in one
/// partition; without that there is none, and the partition is any. Only for an ordering key the order is promised.
///
/// Of an ordering key one message at a time is with librdkafka, the next one only when that is confirmed: whatever becomes of a
/// message, a refusal, a timeout, a new leader, none can overtake it. (librdkafka's own `enable.gapless.guarantee` does not
/// cover timeouts, and ends the producer for all keys when one fails.) Messages of different keys go together.
///
/// A producer that ran into a timeout or a fatal error, or whose batch nobody waits for any more, is emptied and thrown away, and a new
/// one is made: nothing is sent behind the relay's back.
pub struct Kafka {
    name: String,
    client: Client,
    brokers: String,
    topic: Template,
    encoder: Encoder,
    timeout: Duration,
    max_bytes: usize,
    standing: Standing,
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

/// A message, ready to be sent.
struct Ready {
    topic: String,
    key: Option<String>,
    message: Message,
}

impl Kafka {
    /// What it promises.
    pub const PROMISES: Promises = Promises {
        order: Order::PerKey,
        repeats: Repeats::Seen,
        confirmed: "all replicas of the partition that are in sync have it",
    };

    /// Called `name`, with these settings. Checks them, and connects to nobody yet.
    pub fn new(name: impl Into<String>, settings: KafkaSettings) -> Result<Self, String> {
        if let Some(topic) = settings.topic.fixed().filter(|topic| !is_topic(topic)) {
            return Err(format!("topic: {}", no_topic(topic)));
        }
        Ok(Self {
            name: name.into(),
            client: Client::new(settings.config()?, settings.secrets()),
            brokers: settings.brokers.as_str().to_owned(),
            encoder: Encoder::new(settings.format, settings.source.as_str()).prefix("ce_"),
            topic: settings.topic,
            timeout: settings.timeout,
            max_bytes: settings.max_bytes,
            standing: Standing::default(),
        })
    }

    fn ready(&self, event: &Outgoing) -> Result<Ready, Failure> {
        let topic = self.topic.render(event)?;
        if !is_topic(&topic) {
            return Err(Failure::dead(no_topic(&topic)));
        }
        let message = self.encoder.encode(event)?;
        let key = event.ordering_key().or(event.aggregate_id()).map(str::to_owned);
        let room = self.max_bytes.saturating_sub(key.as_ref().map_or(0, String::len));
        if message.headers.iter().any(|(name, _)| name.contains('\0')) {
            return Err(Failure::dead("one of its headers has a name that Kafka cannot hold"));
        }
        message.fits(room, &format!("the topic {topic:?}"))?;
        Ok(Ready { topic, key, message })
    }

    /// Sends one event, and waits for what becomes of it.
    async fn send(&self, producer: &Producer, event: &Outgoing) -> Verdict {
        let Ready { topic, key, message } = match self.ready(event) {
            Ok(ready) => ready,
            Err(failure) => return Verdict::Failed(failure),
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
            Err((error, _)) => return verdict::read(&error, &topic),
        };
        match sent.await {
            Ok(Ok(_)) => Verdict::Published,
            Ok(Err((error, _))) => verdict::read(&error, &topic),
            Err(_) => Verdict::Unavailable("the producer was closed".to_owned()),
        }
    }

    /// Sends a wave, and waits for the whole of it.
    async fn wave(&self, producer: &Arc<Producer>, events: &[Outgoing], wave: &[usize]) -> Vec<Verdict> {
        let mut underway = Underway { client: &self.client, producer, over: false };
        // All are handed over before the first is waited for: that is a batch for librdkafka.
        let sending = join_all(wave.iter().map(|index| self.send(producer, &events[*index])));
        match tokio::time::timeout(self.timeout + GRACE, sending).await {
            Ok(verdicts) => {
                let late = |verdict: &Verdict| matches!(verdict, Verdict::Late);
                underway.over = !verdicts.iter().any(late) && !producer.has_ended();
                verdicts
            }
            Err(_) => wave.iter().map(|_| Verdict::Late).collect(),
        }
    }

    /// Others went through meanwhile: it is this one's partition.
    fn late(&self) -> Failure {
        let seconds = self.timeout.as_secs_f32();
        Failure::retry(format!("Kafka has not confirmed it in {seconds} s; it may have taken it"))
    }

    /// Why nothing goes through.
    fn outage(&self, producer: &Producer) -> String {
        let seconds = self.timeout.as_secs_f32();
        match producer.trouble() {
            Some(trouble) => {
                format!("no broker has taken an event in {seconds} s; the last trouble: {trouble}")
            }
            None => format!("no broker has taken an event in {seconds} s"),
        }
    }
}

/// Asks a broker for a topic, or for none in particular, until there is a good answer or [`LOOK`] is over:
/// a topic that brokers create by themselves is missing at first.
async fn ask(producer: &Arc<Producer>, topic: Option<String>) -> Result<(), String> {
    let asked = producer.clone();
    let look = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + LOOK;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match asked.ask(topic.as_deref(), left.max(AGAIN)) {
                Err(Some(_)) if left > AGAIN => std::thread::sleep(AGAIN),
                answer => return answer,
            }
        }
    });
    let silent = || producer.trouble().unwrap_or_else(|| "no broker answers".to_owned());
    look.await.unwrap_or(Err(None)).map_err(|reason| reason.unwrap_or_else(silent))
}

fn no_topic(topic: &str) -> String {
    format!("{topic:?} is no name of a topic: letters, digits, `.`, `_` and `-`, 249 at most")
}

/// Messages that librdkafka has. Unless all of them are known to be over, its producer is thrown away, or it would send
/// them at a time of its own.
struct Underway<'a> {
    client: &'a Client,
    producer: &'a Arc<Producer>,
    over: bool,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if !self.over {
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
        let mut waves = Waves::new(events);
        while let Some(wave) = waves.next() {
            if start.elapsed() > LONGEST_BATCH {
                return waves.cut_off("Kafka is slow: the rest of the batch waits");
            }
            let verdicts = self.wave(&producer, events, &wave).await;
            let some_went = verdicts.contains(&Verdict::Published);
            let late = verdicts.contains(&Verdict::Late);
            let (mut away, mut look_at) = (None, BTreeSet::new());
            for (index, verdict) in wave.into_iter().zip(verdicts) {
                match verdict {
                    Verdict::Published => waves.published(index),
                    Verdict::Failed(failure) => waves.failed(index, failure),
                    Verdict::NoTopic(topic, reason) => {
                        look_at.insert(topic);
                        // Of several topics one may be missing; the only one is an outage.
                        match self.topic.fixed() {
                            Some(_) => away = Some(reason),
                            None => waves.failed(index, Failure::retry(reason)),
                        }
                    }
                    Verdict::Late if some_went => waves.failed(index, self.late()),
                    Verdict::Late => away = Some(self.outage(&producer)),
                    Verdict::Unavailable(reason) => away = Some(reason),
                }
            }
            if some_went {
                self.standing.took_one();
                producer.is_well();
            }
            if let Some(reason) = away {
                self.standing.was_away(&reason);
                return waves.cut_off(reason);
            }
            for topic in look_at {
                // For librdkafka to look again: what it finds shows when the next event is sent.
                let _ = ask(&producer, Some(topic)).await;
            }
            if late {
                // The producer is gone, and the time is as well.
                return waves.end();
            }
        }
        waves.end()
    }

    async fn health(&self) -> Result<(), Unavailable> {
        if let Some(reason) = self.standing.paused() {
            return Err(Unavailable::new(reason));
        }
        if self.standing.is_fresh() {
            return Ok(());
        }
        let asked = match self.client.producer().await {
            Ok(producer) => ask(&producer, self.topic.fixed().map(str::to_owned)).await,
            Err(reason) => Err(reason),
        };
        asked.map_err(|reason| {
            self.standing.is_missing(&self.name, &reason);
            Unavailable::new(reason)
        })
    }
}
