//! Log lines of librdkafka, without secrets.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::{Event, Outgoing, Publisher as _};
use outbox_transports::{Kafka, KafkaMechanism, KafkaSasl};

use crate::cluster::Cluster;

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn librdkafka_logs_through_tracing_without_secrets() {
    let buffer = LogBuffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // For all threads: librdkafka has its own.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let cluster = Cluster::start(1);
    let mut settings = cluster.settings();
    settings.sasl = Some(KafkaSasl::new(KafkaMechanism::Plain, "ada", "canary-password"));
    settings.timeout = Duration::from_secs(1);
    settings.options.insert("debug".to_owned(), "all".into());
    settings.options.insert("ssl.key.password".to_owned(), "canary-key".into());
    if cfg!(not(feature = "kafka-tls")) {
        settings.options.remove("ssl.key.password");
    }
    let shown = format!("{settings:?}");
    let kafka = Kafka::new("kafka", settings).unwrap();
    let event = Outgoing::new(Event::new("e").json(&"canary-payload").build().unwrap());
    // The mock cluster does not support SASL, so no connection succeeds.
    let error = kafka.publish_batch(&[event]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");

    let written = String::from_utf8_lossy(&buffer.0.lock().unwrap()).into_owned();
    assert!(written.contains("librdkafka: "), "{written}");
    for text in [written, shown, format!("{kafka:?} {error} {error:?}")] {
        assert!(!text.contains("canary"), "{text}");
    }
}
