//! Settings of the Kafka publisher, and the resulting librdkafka configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use serde::{Deserialize, Deserializer};

use crate::{Format, PublisherSettingsError, Secret, Template, Text, Tls, message, time};

/// Settings of [`Kafka`](crate::Kafka). `brokers` and `topic` are required.
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
#[non_exhaustive]
pub struct KafkaSettings {
    /// Bootstrap brokers: `kafka-1:9092,kafka-2:9092`.
    pub brokers: Text,
    /// The topic, which may contain placeholders.
    pub topic: Template,
    /// Format of the messages.
    #[serde(default)]
    pub format: Format,
    /// The CloudEvents attribute `source`.
    #[serde(default = "message::source")]
    pub source: Text,
    /// Compression of the messages.
    #[serde(default)]
    pub compression: KafkaCompression,
    /// Timeout of an event, including the discovery of brokers.
    #[serde(default = "timeout", deserialize_with = "time::read")]
    pub timeout: Duration,
    /// Maximum size of a message in bytes, before compression. A larger event is dead. Must not
    /// exceed the topic's limit.
    #[serde(default = "max_bytes")]
    pub max_bytes: usize,
    /// Credentials, if the brokers require them.
    pub sasl: Option<KafkaSasl>,
    /// Enables TLS if present, even if empty. Needs the feature `kafka-tls`. A `ca_file` replaces
    /// the system's certificate authorities: librdkafka cannot use both.
    pub tls: Option<Tls>,
    /// Additional settings by librdkafka's own names. Settings that would weaken a guarantee or
    /// TLS, load code or run a program are refused.
    #[serde(default, deserialize_with = "options")]
    pub options: BTreeMap<String, Secret>,
}

/// Compression of the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum KafkaCompression {
    /// No compression.
    #[default]
    None,
    /// Smallest messages.
    Gzip,
    /// Fast.
    Snappy,
    /// Fast.
    Lz4,
}

/// SASL credentials.
///
/// ```
/// use outbox_transports::{KafkaMechanism, KafkaSasl, KafkaSettings};
///
/// let mut settings = KafkaSettings::new("kafka:9092", "orders".parse()?);
/// settings.sasl = Some(KafkaSasl::new(KafkaMechanism::Plain, "ada", "hunter2"));
/// assert!(!format!("{settings:?}").contains("hunter2"));
/// # Ok::<(), outbox_transports::TemplateError>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct KafkaSasl {
    /// SASL mechanism.
    #[serde(default)]
    pub mechanism: KafkaMechanism,
    /// User name.
    pub user: Text,
    /// Password.
    pub password: Secret,
}

impl KafkaSasl {
    /// Credentials for this mechanism.
    pub fn new(mechanism: KafkaMechanism, user: impl Into<Text>, password: impl Into<Secret>) -> Self {
        Self { mechanism, user: user.into(), password: password.into() }
    }
}

/// SASL mechanism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub enum KafkaMechanism {
    /// Sends the password to the brokers.
    #[default]
    #[serde(rename = "PLAIN")]
    Plain,
    /// Does not send the password. Needs the feature `kafka-tls`, which contains the cryptography.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Like SCRAM-SHA-256, with a longer hash.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl KafkaSettings {
    /// Settings for these brokers and this topic, with defaults for everything else.
    /// Assign other values to the fields; more fields may be added.
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

    /// Builds the librdkafka configuration.
    pub(super) fn config(&self) -> Result<ClientConfig, PublisherSettingsError> {
        if self.brokers.as_str().split(',').any(|broker| broker.trim().is_empty()) {
            let reason = "write a list such as kafka-1:9092,kafka-2:9092";
            return Err(PublisherSettingsError::value("brokers", reason));
        }
        let millis = self.timeout.as_millis();
        if !(1..=900_000).contains(&millis) {
            let reason = "must be greater than zero and at most 15 minutes";
            return Err(PublisherSettingsError::value("timeout", reason));
        }
        if !(1_000..=900_000_000).contains(&self.max_bytes) {
            return Err(PublisherSettingsError::value("max_bytes", "must be from 1000 to 900000000"));
        }
        let mut config = ClientConfig::new();
        // Defaults that `options` may override.
        config.set("client.id", "outbox").set("linger.ms", "1").set("reconnect.backoff.max.ms", "1000");
        // Chooses the same partition for a key as the JVM clients.
        config.set("partitioner", "murmur2_random");
        self.security(&mut config)?;
        for (name, value) in &self.options {
            check_option(name, value)?;
            config.set(name, value.expose());
        }
        config.set("bootstrap.servers", self.brokers.as_str());
        // A confirmed message is on all in-sync replicas, in order, and once for each time it was
        // sent.
        config.set("enable.idempotence", "true").set("acks", "all");
        config.set("message.timeout.ms", millis.to_string());
        // Shorter than the message timeout, so that a missing topic is reported as such and not as
        // a timeout.
        config.set("topic.metadata.propagation.max.ms", (millis / 2).to_string());
        config.set("request.timeout.ms", millis.to_string());
        // A backstop: the size is checked before, and librdkafka counts other bytes.
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
        config.create_native_config().map_err(|error| {
            // The error is not kept as the source: it contains the value, which may be secret.
            let reason = match error {
                KafkaError::ClientConfig(_, _, name, _) => {
                    format!("librdkafka does not support {name:?}, or not this value")
                }
                _ => "librdkafka refuses these settings".to_owned(),
            };
            PublisherSettingsError::value("options", reason)
        })?;
        Ok(config)
    }

    fn security(&self, config: &mut ClientConfig) -> Result<(), PublisherSettingsError> {
        let scram = self.sasl.as_ref().is_some_and(|sasl| sasl.mechanism != KafkaMechanism::Plain);
        if !cfg!(feature = "kafka-tls") && (self.tls.is_some() || scram) {
            let (setting, capability) = if scram { ("sasl", "SCRAM") } else { ("tls", "TLS") };
            return Err(PublisherSettingsError::Feature { setting, capability, feature: "kafka-tls" });
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
            // librdkafka reads the files itself, for every producer. Reading them here reports
            // errors early.
            let pems = tls.read()?;
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

    /// Values that must not appear in a log line.
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

/// Options that have a setting of their own.
const HAS_OWN_SETTING: [(&str, &str); 21] = [
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

/// Options that could weaken TLS, load code or run a program.
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

/// Options that the delivery guarantees depend on.
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

fn check_option(name: &str, value: &Secret) -> Result<(), PublisherSettingsError> {
    let refused = |reason| Err(PublisherSettingsError::value("options", reason));
    if let Some((_, instead)) = HAS_OWN_SETTING.iter().find(|(option, _)| *option == name) {
        return refused(format!("use {instead} instead of {name:?}"));
    }
    // A `test.` option could replace the brokers by a mock cluster, which accepts every event and
    // keeps none.
    if FIXED.contains(&name) || name.starts_with("test.") {
        return refused(format!("{name:?} cannot be changed: the delivery guarantees depend on it"));
    }
    if UNSAFE.contains(&name) {
        return refused(format!(
            "{name:?} is not allowed: it could weaken TLS, load code or run a program; remove it"
        ));
    }
    if name == "partitioner" && value.expose() == "random" {
        return refused("a random \"partitioner\" keeps no order".to_owned());
    }
    Ok(())
}

/// Deserializes strings, numbers and booleans.
fn options<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Secret>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Scalar {
        Bool(bool),
        Number(i64),
        Text(Secret),
    }
    let parsed = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
    let text = |scalar| match scalar {
        Scalar::Bool(value) => value.to_string().as_str().into(),
        Scalar::Number(value) => value.to_string().as_str().into(),
        Scalar::Text(value) => value,
    };
    Ok(parsed.into_iter().map(|(name, scalar)| (name, text(scalar))).collect())
}

fn timeout() -> Duration {
    Duration::from_secs(10)
}

fn max_bytes() -> usize {
    1_000_000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Kafka;
    use crate::proptests::{SECRET, all_texts};

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_error_shows_the_value_of_an_option(
            name in prop_oneof![
                prop::sample::select(vec!["linger.ms", "acks", "debug", "partitioner", "sasl.password", "sasl.oauthbearer.config", "ssl.keystore.password"]).prop_map(str::to_owned),
                "[a-z.]{0,9}",
            ],
            around in "[ -~]{0,3}",
        ) {
            let mut settings = KafkaSettings::new("kafka:9092", "orders".parse().unwrap());
            settings.options.insert(name, format!("{around}{SECRET}{around}").as_str().into());
            let shown = format!("{settings:?}");
            prop_assert!(!shown.contains(SECRET), "{}", shown);
            if let Err(error) = Kafka::new("kafka", settings) {
                prop_assert_eq!(error.setting(), "options");
                prop_assert!(!all_texts(&error).contains(SECRET), "{:?}", error);
            }
        }
    }
}
