//! The producer: created on demand, and discarded when the state of its messages is unknown.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use outbox::Unavailable;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{FutureProducer, Producer as _, PurgeConfig};
use tokio::sync::oneshot;

use super::delivery_report;
use crate::probe::ProbeError;

/// The last error that librdkafka reported.
type LastError = Arc<Mutex<Option<String>>>;

/// A librdkafka producer.
pub(super) struct Producer {
    /// The producer; `None` only during drop.
    inner: Option<FutureProducer<ProducerContext>>,
    last_error: LastError,
}

impl Producer {
    pub(super) fn get(&self) -> &FutureProducer<ProducerContext> {
        self.inner.as_ref().expect("set until drop")
    }

    /// The last error of the brokers since an event was published.
    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.lock().expect("no panic while the lock is held").clone()
    }

    pub(super) fn clear_error(&self) {
        *self.last_error.lock().expect("no panic while the lock is held") = None;
    }

    /// Whether the producer has a fatal error and will never send again.
    pub(super) fn has_fatal_error(&self) -> bool {
        self.get().client().fatal_error().is_some()
    }

    /// Fetches the metadata of a topic, or of none in particular. Blocks for up to `timeout`.
    pub(super) fn fetch_topic(&self, topic: Option<&str>, timeout: Duration) -> Result<(), ProbeError> {
        let metadata = self.get().client().fetch_metadata(topic, timeout).map_err(|_| ProbeError::NoReply)?;
        let Some(topic) = topic else { return Ok(()) };
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        match found.and_then(MetadataTopic::error).map(RDKafkaErrorCode::from) {
            None => Ok(()),
            Some(code) => match delivery_report::topic_error(code, topic) {
                None => Ok(()),
                Some(reason) => Err(ProbeError::Rejected(reason)),
            },
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Dropping waits for librdkafka's threads and must not block an async task.
        let inner = self.inner.take();
        spawn_thread(move || drop(inner));
    }
}

fn spawn_thread(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("kafka-close".to_owned()).spawn(work) {
        tracing::error!(%error, "cannot start a thread to close the Kafka producer");
    }
}

/// Holds the current producer.
pub(super) struct Client {
    config: ClientConfig,
    secrets: Arc<[String]>,
    slot: Mutex<Slot>,
}

enum Slot {
    Empty,
    Open(Arc<Producer>),
    /// The previous producer may still send until this resolves.
    Closing(Shared<oneshot::Receiver<()>>),
}

impl Client {
    pub(super) fn new(config: ClientConfig, secrets: Vec<String>) -> Self {
        Self { config, secrets: secrets.into(), slot: Mutex::new(Slot::Empty) }
    }

    /// Returns the producer. Creates one if there is none; it does not connect yet.
    pub(super) async fn producer(&self) -> Result<Arc<Producer>, Unavailable> {
        let closing = match &*self.lock() {
            Slot::Open(producer) => return Ok(producer.clone()),
            Slot::Closing(closed) => Some(closed.clone()),
            Slot::Empty => None,
        };
        if let Some(closed) = closing {
            // An error means that the producer is gone too.
            let _ = closed.await;
        }
        let (config, secrets) = (self.config.clone(), self.secrets.clone());
        // Reads certificate files and starts threads.
        let created = tokio::task::spawn_blocking(move || {
            let last_error = LastError::default();
            let context = ProducerContext { secrets, last_error: last_error.clone() };
            let inner = Some(config.create_with_context(context)?);
            Ok::<_, KafkaError>(Producer { inner, last_error })
        });
        let created = created.await.map_err(Unavailable::new)?;
        let created = created.map_err(|error| Unavailable::new(scrub(&self.secrets, &error.to_string())));
        let created = Arc::new(created?);
        let mut slot = self.lock();
        if let Slot::Open(other) = &*slot {
            // Another caller has created a producer in the meantime.
            return Ok(other.clone());
        }
        *slot = Slot::Open(created.clone());
        Ok(created)
    }

    /// Discards a producer: it sends none of its queued messages once this returns, and the next
    /// producer is created only after the requests on the wire are cancelled. Callers that wait for
    /// its messages get an error.
    pub(super) fn discard(&self, producer: &Arc<Producer>) {
        let mut slot = self.lock();
        if matches!(&*slot, Slot::Open(open) if Arc::ptr_eq(open, producer)) {
            *slot = Slot::Closing(close(producer.clone()).shared());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().expect("no panic while the lock is held")
    }
}

/// Purges a producer. The receiver resolves once librdkafka's threads send nothing any more.
fn close(producer: Arc<Producer>) -> oneshot::Receiver<()> {
    let all = PurgeConfig::default().queue().inflight();
    // Empties the queues of the partitions at once. The thread below may start late, and a broker
    // that comes back in the meantime would receive the queued messages.
    producer.get().purge(all.non_blocking());
    let (done, closed) = oneshot::channel();
    spawn_thread(move || {
        // Waits for the threads of the brokers, which can take long while they resolve a name.
        producer.get().purge(all);
        // The receiver may be dropped.
        let _ = done.send(());
    });
    closed
}

/// Receives librdkafka's logs and errors.
pub(super) struct ProducerContext {
    secrets: Arc<[String]>,
    last_error: LastError,
}

impl ClientContext for ProducerContext {
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
        // An error of a broker is more specific than that all brokers are down.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.last_error.lock().expect("no panic while the lock is held") = Some(reason);
        }
    }

    fn stats_raw(&self, _: &[u8]) {}
}

fn scrub(secrets: &[String], text: &str) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}
