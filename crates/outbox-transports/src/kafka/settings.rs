//! What a Kafka publisher is set to, and what librdkafka is told of it.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use serde::{Deserialize, Deserializer};

use crate::{Format, Secret, Template, Text, Tls, message, time};

/// Which brokers, and how. `brokers` and `topic` must be there.
///
/// ```
/// let settings: outbox_transports::KafkaSettings = serde_json::from_value(serde_json::json!({
///     "brokers": "kafka-1:9092,kafka-2:9092",
///     "topic": "shop.{aggregate_type}",
///     "compression": "lz4",
///     "options": { "linger.ms": 5, "client.rack": "eu-1" },
/// }))?;
/// let kafka = outbox_transports::Kafka::new("kafka", settings)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaSettings {
    /// Some of the brokers, to find the others by: `kafka-1:9092,kafka-2:9092`.
    pub brokers: Text,
    /// The topic, which may have places in it.
    pub topic: Template,
    /// How an event becomes a message.
    #[serde(default)]
    pub format: Format,
    /// Of CloudEvents, who the events come from.
    #[serde(default = "message::source")]
    pub source: Text,
    /// How messages are compressed.
    #[serde(default)]
    pub compression: KafkaCompression,
    /// How long Kafka has to take an event, the brokers' being found included.
    #[serde(default = "timeout", deserialize_with = "time::read")]
    pub timeout: Duration,
    /// How large a message may be, in bytes, before compression; a larger event is dead. Not more than the topic takes.
    #[serde(default = "max_bytes")]
    pub max_bytes: usize,
    /// Who we are, if brokers ask.
    pub sasl: Option<KafkaSasl>,
    /// Goes by TLS if it is there, even empty. Needs the feature `kafka-tls`. A `ca_file` is trusted instead of those whom
    /// the system trusts: librdkafka cannot do both.
    pub tls: Option<Tls>,
    /// More settings, by librdkafka's own names. What would weaken a promise or TLS, load code or run a program is refused.
    #[serde(default, deserialize_with = "options")]
    pub options: BTreeMap<String, Secret>,
}

/// How messages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KafkaCompression {
    /// Not at all.
    #[default]
    None,
    /// Small.
    Gzip,
    /// Quick.
    Snappy,
    /// Quick.
    Lz4,
}

/// A user and a password.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaSasl {
    /// How they are shown to brokers.
    #[serde(default)]
    pub mechanism: KafkaMechanism,
    /// The user.
    pub user: Text,
    /// The password.
    pub password: Secret,
}

/// How a user and a password are shown to brokers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum KafkaMechanism {
    /// As they are.
    #[default]
    #[serde(rename = "PLAIN")]
    Plain,
    /// Without saying the password. Needs the feature `kafka-tls`, as that is where the cryptography is.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// The same, with longer sums.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl KafkaSettings {
    /// To this topic of these brokers, with everything else as it is when nothing is said.
    pub fn new(brokers: impl Into<Text>, topic: Template) -> Self {
        Self {
            brokers: brokers.into(),
            topic,
            format: Format::default(),
            source: message::source(),
            compression: KafkaCompression::default(),
            timeout: timeout(),
            max_bytes: max_bytes(),
            sasl: None,
            tls: None,
            options: BTreeMap::new(),
        }
    }

    /// What librdkafka is told.
    pub(super) fn config(&self) -> Result<ClientConfig, String> {
        if self.brokers.as_str().split(',').any(|broker| broker.trim().is_empty()) {
            return Err("brokers: a list like kafka-1:9092,kafka-2:9092".to_owned());
        }
        let millis = self.timeout.as_millis();
        if !(1..=900_000).contains(&millis) {
            return Err("timeout: it is more than nothing, and 15 minutes at most".to_owned());
        }
        if !(1_000..=900_000_000).contains(&self.max_bytes) {
            return Err("max_bytes: from 1000 to 900000000".to_owned());
        }
        let mut config = ClientConfig::new();
        // Ours to choose, and anybody's to change.
        config.set("client.id", "outbox").set("linger.ms", "1").set("reconnect.backoff.max.ms", "1000");
        // The same partition for a key as the clients of the JVM choose.
        config.set("partitioner", "murmur2_random");
        self.security(&mut config)?;
        for (name, value) in &self.options {
            check_option(name, value)?;
            config.set(name, value.expose());
        }
        config.set("bootstrap.servers", self.brokers.as_str());
        // What is confirmed is on all replicas in sync, once for each time that it was sent, and in order.
        config.set("enable.idempotence", "true").set("acks", "all");
        config.set("message.timeout.ms", millis.to_string());
        // Earlier than that: then it is known that the topic is missing, and not only that time is up.
        config.set("topic.metadata.propagation.max.ms", (millis / 2).to_string());
        config.set("request.timeout.ms", millis.to_string());
        // Checked before: this one is a backstop, and does not count the same bytes.
        config.set("message.max.bytes", (self.max_bytes + 64 * 1024).to_string());
        config.set(
            "compression.codec",
            match self.compression {
                KafkaCompression::None => "none",
                KafkaCompression::Gzip => "gzip",
                KafkaCompression::Snappy => "snappy",
                KafkaCompression::Lz4 => "lz4",
            },
        );
        config.set_log_level(RDKafkaLogLevel::Info);
        config.create_native_config().map_err(|error| match error {
            // Not what it was set to, which may be secret.
            KafkaError::ClientConfig(_, _, name, _) => {
                format!("options: librdkafka does not know {name:?}, or not this value of it")
            }
            _ => "librdkafka does not take these settings".to_owned(),
        })?;
        Ok(config)
    }

    fn security(&self, config: &mut ClientConfig) -> Result<(), String> {
        let scram = self.sasl.as_ref().is_some_and(|sasl| sasl.mechanism != KafkaMechanism::Plain);
        if !cfg!(feature = "kafka-tls") && (self.tls.is_some() || scram) {
            let what = if scram { "sasl: SCRAM" } else { "tls: it" };
            return Err(format!(
                "{what} needs a build with the feature `kafka-tls`, and this one is without"
            ));
        }
        let protocol = match (self.sasl.is_some(), self.tls.is_some()) {
            (false, false) => "plaintext",
            (false, true) => "ssl",
            (true, false) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(sasl) = &self.sasl {
            config.set("sasl.username", sasl.user.as_str()).set("sasl.password", sasl.password.expose());
            config.set(
                "sasl.mechanism",
                match sasl.mechanism {
                    KafkaMechanism::Plain => "PLAIN",
                    KafkaMechanism::ScramSha256 => "SCRAM-SHA-256",
                    KafkaMechanism::ScramSha512 => "SCRAM-SHA-512",
                },
            );
        }
        if let Some(tls) = &self.tls {
            // librdkafka reads the files itself, for every producer: this is to tell now.
            let pems = tls.read().map_err(|error| format!("tls: {error}"))?;
            for (is_there, name, file) in [
                (pems.ca.is_some(), "ssl.ca.location", &tls.ca_file),
                (pems.identity.is_some(), "ssl.certificate.location", &tls.cert_file),
                (pems.identity.is_some(), "ssl.key.location", &tls.key_file),
            ] {
                if let Some(file) = file.as_ref().filter(|_| is_there) {
                    config.set(name, file.as_str());
                }
            }
        }
        Ok(())
    }

    /// What must not be in a log line.
    pub(super) fn secrets(&self) -> Vec<String> {
        let of_options = self.options.iter().filter(|(name, _)| {
            ["password", "secret", "token", "jaas", "pem", "oauthbearer.config"]
                .iter()
                .any(|s| name.contains(s))
        });
        let own = self.sasl.iter().map(|sasl| &sasl.password);
        let all = own.chain(of_options.map(|(_, value)| value)).map(|secret| secret.expose().to_owned());
        all.filter(|secret| !secret.is_empty()).collect()
    }
}

/// What has a setting of its own.
const ELSEWHERE: [(&str, &str); 21] = [
    ("bootstrap.servers", "brokers"),
    ("metadata.broker.list", "brokers"),
    ("message.timeout.ms", "timeout"),
    ("delivery.timeout.ms", "timeout"),
    ("message.max.bytes", "max_bytes"),
    ("compression.codec", "compression"),
    ("compression.type", "compression"),
    ("topic.metadata.propagation.max.ms", "timeout"),
    ("security.protocol", "tls and sasl"),
    ("sasl.mechanism", "sasl"),
    ("sasl.mechanisms", "sasl"),
    ("sasl.username", "sasl"),
    ("sasl.password", "sasl"),
    ("ssl.ca.location", "tls"),
    ("ssl.ca.pem", "tls"),
    ("ssl.certificate.location", "tls"),
    ("ssl.certificate.pem", "tls"),
    ("ssl.key.location", "tls"),
    ("ssl.key.pem", "tls"),
    ("ssl.keystore.location", "tls"),
    ("ssl.ca.certificate.stores", "tls"),
];

/// What would weaken TLS, load code, or run a program.
const UNSAFE: [&str; 11] = [
    "enable.ssl.certificate.verification",
    "ssl.endpoint.identification.algorithm",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
    "ssl.providers",
    "ssl.engine.location",
    "ssl.engine.id",
    "plugin.library.paths",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "sasl.kerberos.kinit.cmd",
];

/// What a promise rests on.
const FIXED: [&str; 12] = [
    "acks",
    "request.required.acks",
    "request.timeout.ms",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "transactional.id",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "retries",
    "message.send.max.retries",
    "queuing.strategy",
    "delivery.report.only.error",
];

fn check_option(name: &str, value: &Secret) -> Result<(), String> {
    if let Some((_, instead)) = ELSEWHERE.iter().find(|(option, _)| *option == name) {
        return Err(format!("options: use {instead} instead of {name:?}"));
    }
    // One of a cluster in memory would take every event, and keep none.
    if FIXED.contains(&name) || name.starts_with("test.") {
        return Err(format!("options: {name:?} cannot be changed: what is promised rests on it"));
    }
    if UNSAFE.contains(&name) {
        return Err(format!(
            "options: {name:?} is not allowed: it can weaken TLS, load code, or run a program; leave it out"
        ));
    }
    if name == "partitioner" && value.expose() == "random" {
        return Err("options: a random \"partitioner\" keeps no order".to_owned());
    }
    Ok(())
}

/// Texts, numbers, and yes or no.
fn options<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Secret>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Scalar {
        Bool(bool),
        Number(i64),
        Text(Secret),
    }
    let written = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
    let text = |scalar| match scalar {
        Scalar::Bool(value) => value.to_string().as_str().into(),
        Scalar::Number(value) => value.to_string().as_str().into(),
        Scalar::Text(value) => value,
    };
    Ok(written.into_iter().map(|(name, scalar)| (name, text(scalar))).collect())
}

fn timeout() -> Duration {
    Duration::from_secs(10)
}

fn max_bytes() -> usize {
    1_000_000
}
