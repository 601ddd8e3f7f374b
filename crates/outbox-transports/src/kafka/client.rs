//! The producer: made when it is needed, and thrown away when nobody knows what it still does.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{FutureProducer, Producer as _, PurgeConfig};
use tokio::sync::oneshot;

use super::verdict;

/// The last thing that went wrong with the brokers.
type Trouble = Arc<Mutex<Option<String>>>;

/// A producer of librdkafka's.
pub(super) struct Producer {
    /// Until it is dropped.
    inner: Option<FutureProducer<Watch>>,
    trouble: Trouble,
}

impl Producer {
    pub(super) fn get(&self) -> &FutureProducer<Watch> {
        self.inner.as_ref().expect("it is there until it is dropped")
    }

    /// What went wrong with the brokers, since an event went through.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().expect("nothing panics under this lock").clone()
    }

    pub(super) fn is_well(&self) {
        *self.trouble.lock().expect("nothing panics under this lock") = None;
    }

    /// Whether it will never send again.
    pub(super) fn has_ended(&self) -> bool {
        self.get().client().fatal_error().is_some()
    }

    /// Asks a broker for a topic, or for none in particular. Blocks for as long as `patience`. The error
    /// says what is wrong; `None` if no broker answers.
    pub(super) fn ask(&self, topic: Option<&str>, patience: Duration) -> Result<(), Option<String>> {
        let metadata = self.get().client().fetch_metadata(topic, patience).map_err(|_| None)?;
        let Some(topic) = topic else { return Ok(()) };
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        match found.and_then(MetadataTopic::error).map(RDKafkaErrorCode::from) {
            None => Ok(()),
            Some(code) => verdict::of_topic(code, topic).map_or(Ok(()), |reason| Err(Some(reason))),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // It waits for librdkafka's threads, and we may be a task.
        let inner = self.inner.take();
        in_a_thread(move || drop(inner));
    }
}

fn in_a_thread(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("kafka-close".to_owned()).spawn(work) {
        tracing::error!(%error, "no thread to close a producer of Kafka in");
    }
}

/// Holds the producer.
pub(super) struct Client {
    config: ClientConfig,
    secrets: Arc<[String]>,
    slot: Mutex<Slot>,
}

enum Slot {
    Empty,
    Open(Arc<Producer>),
    /// Until this is told, the last one may still send.
    Closing(Shared<oneshot::Receiver<()>>),
}

impl Client {
    pub(super) fn new(config: ClientConfig, secrets: Vec<String>) -> Self {
        Self { config, secrets: secrets.into(), slot: Mutex::new(Slot::Empty) }
    }

    /// The producer. Makes one if there is none, which connects to nobody yet.
    pub(super) async fn producer(&self) -> Result<Arc<Producer>, String> {
        let closing = match &*self.lock() {
            Slot::Open(producer) => return Ok(producer.clone()),
            Slot::Closing(closed) => Some(closed.clone()),
            Slot::Empty => None,
        };
        if let Some(closed) = closing {
            // An error is as good: then it is gone.
            let _ = closed.await;
        }
        let (config, secrets) = (self.config.clone(), self.secrets.clone());
        // Reads files of certificates, and starts threads.
        let made = tokio::task::spawn_blocking(move || {
            let trouble = Trouble::default();
            let watch = Watch { secrets, trouble: trouble.clone() };
            let inner = Some(config.create_with_context(watch)?);
            Ok::<_, KafkaError>(Producer { inner, trouble })
        });
        let made = made.await.map_err(|error| error.to_string())?;
        let made = Arc::new(made.map_err(|error| scrub(&self.secrets, &error.to_string()))?);
        let mut slot = self.lock();
        if let Slot::Open(other) = &*slot {
            // Somebody was quicker.
            return Ok(other.clone());
        }
        *slot = Slot::Open(made.clone());
        Ok(made)
    }

    /// Throws a producer away: nothing that it has is sent any more, and the next one is only made after that. Those who wait for
    /// messages of theirs are told.
    pub(super) fn discard(&self, producer: &Arc<Producer>) {
        let mut slot = self.lock();
        if matches!(&*slot, Slot::Open(open) if Arc::ptr_eq(open, producer)) {
            *slot = Slot::Closing(close(producer.clone()).shared());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().expect("nothing panics under this lock")
    }
}

/// Empties a producer, in a thread of its own. Tells when nothing is sent any more.
fn close(producer: Arc<Producer>) -> oneshot::Receiver<()> {
    let (done, closed) = oneshot::channel();
    in_a_thread(move || {
        producer.get().purge(PurgeConfig::default().queue().inflight());
        // Who does not wait does not need to know.
        let _ = done.send(());
    });
    closed
}

/// Hears what librdkafka has to say.
pub(super) struct Watch {
    secrets: Arc<[String]>,
    trouble: Trouble,
}

impl ClientContext for Watch {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let message = scrub(&self.secrets, message);
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(facility, "librdkafka: {message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(facility, "librdkafka: {message}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(facility, "librdkafka: {message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = scrub(&self.secrets, reason);
        tracing::warn!(code = ?error.rdkafka_error_code(), "Kafka: {reason}");
        // What a broker says tells more than that all are away.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.trouble.lock().expect("nothing panics under this lock") = Some(reason);
        }
    }

    fn stats_raw(&self, _: &[u8]) {}
}

fn scrub(secrets: &[String], text: &str) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}
