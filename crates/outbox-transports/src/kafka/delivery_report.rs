//! Maps a delivery report to the result of the event.

use outbox::Failure;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Result of sending one event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeliveryOutcome {
    /// Kafka confirmed the event.
    Published,
    /// The event was refused, or its result is unknown.
    Failed(Failure),
    /// The topic is missing, or this user may not write to it. librdkafka caches this for minutes
    /// unless metadata is fetched again.
    NoTopic(String, String),
    /// The message timed out: the event's failure if other events were published meanwhile,
    /// otherwise an outage.
    TimedOut,
    /// The brokers or this producer are unavailable; it is not the event's failure.
    Unavailable(String),
}

/// Classifies librdkafka's error for a message to this topic.
pub(super) fn classify(error: &KafkaError, topic: &str) -> DeliveryOutcome {
    let Some(code) = error.rdkafka_error_code() else {
        return DeliveryOutcome::Failed(Failure::retry(format!("Kafka: {error}")));
    };
    let retry = |text: String| DeliveryOutcome::Failed(Failure::retry(text));
    if let Some(reason) = topic_error(code, topic) {
        return DeliveryOutcome::NoTopic(topic.to_owned(), reason);
    }
    match code {
        Code::MessageTimedOut | Code::TimedOutQueue => DeliveryOutcome::TimedOut,
        Code::InvalidTopic => {
            DeliveryOutcome::Failed(Failure::dead(format!("the brokers refuse {topic:?} as a topic name")))
        }
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            DeliveryOutcome::Failed(Failure::dead(format!(
                "the message is larger than the topic {topic:?} allows"
            )))
        }
        Code::InvalidRecord => retry(format!("the topic {topic:?} refused the message: {code}")),
        Code::PurgeQueue
        | Code::PurgeInflight
        | Code::QueueFull
        | Code::Fatal
        | Code::GaplessGuarantee
        | Code::BrokerDestroy
        | Code::AllBrokersDown
        | Code::BrokerTransportFailure
        | Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::SSL
        | Code::ClusterAuthorizationFailed
        | Code::UnknownProducerId
        | Code::OutOfOrderSequenceNumber
        | Code::InvalidProducerEpoch => DeliveryOutcome::Unavailable(format!("Kafka: {code}")),
        _ => retry(format!("the topic {topic:?}: {code}")),
    }
}

/// The reason why a topic cannot be written to, if this code means that the topic or a permission
/// is missing.
pub(super) fn topic_error(code: Code, topic: &str) -> Option<String> {
    match code {
        Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition => {
            Some(format!("there is no topic {topic:?}: create it, or let the brokers create topics"))
        }
        Code::TopicAuthorizationFailed => Some(format!("the brokers deny writing to the topic {topic:?}")),
        _ => None,
    }
}

/// Whether this is a valid topic name.
pub(super) fn is_valid_topic(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=249).contains(&name.len()) && name.bytes().all(plain) && !matches!(name, "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_are_checked() {
        for name in ["orders", "a.b_c-D9", &"x".repeat(249)] {
            assert!(is_valid_topic(name), "{name}");
        }
        for name in ["", ".", "..", "a b", "a/b", "ö", "a\n", &"x".repeat(250)] {
            assert!(!is_valid_topic(name), "{name}");
        }
    }

    #[test]
    fn errors_of_events_and_of_brokers_are_distinguished() {
        let classify = |code| classify(&KafkaError::MessageProduction(code), "orders");
        assert_eq!(
            classify(Code::UnknownTopicOrPartition),
            DeliveryOutcome::NoTopic(
                "orders".to_owned(),
                "there is no topic \"orders\": create it, or let the brokers create topics".to_owned()
            )
        );
        assert_eq!(
            classify(Code::MessageSizeTooLarge),
            DeliveryOutcome::Failed(Failure::dead("the message is larger than the topic \"orders\" allows"))
        );
        assert_eq!(classify(Code::MessageTimedOut), DeliveryOutcome::TimedOut);
        for code in [Code::PurgeQueue, Code::PurgeInflight, Code::Fatal, Code::SSL, Code::AllBrokersDown] {
            assert!(matches!(classify(code), DeliveryOutcome::Unavailable(_)), "{code}");
        }
    }
}
