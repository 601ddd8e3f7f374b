//! The settings in the guide are valid.
#![cfg(any(
    feature = "amqp",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "redis",
    feature = "webhook"
))]

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// The TOML examples of the guide, with a placeholder for each environment variable.
fn examples() -> Vec<Table> {
    let guide = include_str!("../../../docs/guide/transports.md");
    let blocks = guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks
        .map(|block| without_variables(block).parse().unwrap_or_else(|error| panic!("{block}\n{error}")))
        .collect()
}

fn without_variables(text: &str) -> String {
    let mut parts = text.split("${");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, after) = part.split_once('}').expect("a closing brace");
        whole.push_str("something");
        whole.push_str(after);
    }
    whole
}

/// The settings of all examples for this kind of publisher.
fn settings<T: DeserializeOwned>(kind: &str) -> Vec<T> {
    let tables = examples();
    let publishers = tables.iter().filter_map(|table| table.get("publishers")).filter_map(Value::as_table);
    let of_kind = publishers.flat_map(Table::values).filter_map(|publisher| publisher.get(kind));
    of_kind
        .map(|written| T::deserialize(written.clone()).unwrap_or_else(|error| panic!("{kind}: {error}")))
        .collect()
}

/// Without the CA file, which does not exist.
#[cfg(feature = "amqp")]
#[test]
fn the_examples_for_rabbitmq_make_publishers() {
    let settings: Vec<outbox_transports::AmqpSettings> = settings("amqp");
    assert!(!settings.is_empty());
    for mut settings in settings {
        settings.tls.ca_file = None;
        outbox_transports::Amqp::new("orders", settings).unwrap();
    }
}

#[cfg(feature = "mqtt")]
#[test]
fn the_examples_for_mqtt_make_publishers() {
    let settings: Vec<outbox_transports::MqttSettings> = settings("mqtt");
    assert!(!settings.is_empty());
    for settings in settings {
        outbox_transports::Mqtt::new("orders", settings).unwrap();
    }
}

#[cfg(feature = "nats")]
#[test]
fn the_examples_for_nats_make_publishers() {
    let settings: Vec<outbox_transports::NatsSettings> = settings("nats");
    assert!(settings.len() >= 2);
    for settings in settings {
        outbox_transports::Nats::new("orders", settings).unwrap();
    }
    let unknown = "url = \"nats://host\"\nsubject = \"s\"\nretries = 3";
    let error = toml::from_str::<outbox_transports::NatsSettings>(unknown).unwrap_err();
    assert!(error.to_string().contains("retries"), "{error}");
    let unitless = "url = \"nats://host\"\nsubject = \"s\"\nack_timeout = \"5\"";
    let error = toml::from_str::<outbox_transports::NatsSettings>(unitless).unwrap_err();
    assert!(error.to_string().contains("5s"), "{error}");
}

#[cfg(feature = "redis")]
#[test]
fn the_examples_for_redis_make_publishers() {
    let settings: Vec<outbox_transports::RedisSettings> = settings("redis");
    assert!(!settings.is_empty());
    for settings in settings {
        outbox_transports::Redis::new("orders", settings).unwrap();
    }
}

#[cfg(feature = "kafka")]
#[test]
fn the_examples_for_kafka_make_publishers() {
    let settings: Vec<outbox_transports::KafkaSettings> = settings("kafka");
    assert!(!settings.is_empty());
    for settings in settings {
        outbox_transports::Kafka::new("orders", settings).unwrap();
    }
    let unknown = "brokers = \"host\"\ntopic = \"t\"\nretries = 3";
    let error = toml::from_str::<outbox_transports::KafkaSettings>(unknown).unwrap_err();
    assert!(error.to_string().contains("retries"), "{error}");
}

#[cfg(feature = "webhook")]
#[test]
fn the_examples_for_webhooks_make_publishers() {
    let settings: Vec<outbox_transports::WebhookSettings> = settings("webhook");
    assert!(!settings.is_empty());
    for mut settings in settings {
        // The placeholder of the variable is too short for a secret.
        settings.secrets = settings.secrets.iter().map(|_| "a secret of the shop's".into()).collect();
        outbox_transports::Webhook::new("orders", settings).unwrap();
    }
}
