//! What a delivery report means for the event that was sent.

use outbox::Failure;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Kafka has it.
    Published,
    /// It was refused, or nobody knows.
    Failed(Failure),
    /// Its topic is not there, or not for us. librdkafka remembers that for minutes, unless it is made to look again.
    NoTopic(String, String),
    /// Time is up: the event's failure if others went through meanwhile, else an outage.
    Late,
    /// It is not the event: the brokers, or this producer.
    Unavailable(String),
}

/// Reads what librdkafka says of a message to this topic.
pub(super) fn read(error: &KafkaError, topic: &str) -> Verdict {
    let Some(code) = error.rdkafka_error_code() else {
        return Verdict::Failed(Failure::retry(format!("Kafka: {error}")));
    };
    let retry = |text: String| Verdict::Failed(Failure::retry(text));
    if let Some(reason) = of_topic(code, topic) {
        return Verdict::NoTopic(topic.to_owned(), reason);
    }
    match code {
        Code::MessageTimedOut | Code::TimedOutQueue => Verdict::Late,
        Code::InvalidTopic => {
            Verdict::Failed(Failure::dead(format!("the brokers say that {topic:?} is no name of a topic")))
        }
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Verdict::Failed(Failure::dead(format!("the message is larger than the topic {topic:?} takes")))
        }
        Code::InvalidRecord => retry(format!("the topic {topic:?} does not take such a message: {code}")),
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
        | Code::InvalidProducerEpoch => Verdict::Unavailable(format!("Kafka: {code}")),
        _ => retry(format!("the topic {topic:?}: {code}")),
    }
}

/// Why nothing can be written to a topic, if this code means that the topic or a permission is missing.
pub(super) fn of_topic(code: Code, topic: &str) -> Option<String> {
    match code {
        Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition => {
            Some(format!("there is no topic {topic:?}: create it, or let the brokers create topics"))
        }
        Code::TopicAuthorizationFailed => {
            Some(format!("the brokers do not let us write to the topic {topic:?}"))
        }
        _ => None,
    }
}

/// Whether Kafka takes a topic of this name.
pub(super) fn is_topic(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=249).contains(&name.len()) && name.bytes().all(plain) && !matches!(name, "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_topics_are_checked() {
        for name in ["orders", "a.b_c-D9", &"x".repeat(249)] {
            assert!(is_topic(name), "{name}");
        }
        for name in ["", ".", "..", "a b", "a/b", "ö", "a\n", &"x".repeat(250)] {
            assert!(!is_topic(name), "{name}");
        }
    }

    #[test]
    fn errors_of_events_and_of_brokers_are_told_apart() {
        let read = |code| read(&KafkaError::MessageProduction(code), "orders");
        assert_eq!(
            read(Code::UnknownTopicOrPartition),
            Verdict::NoTopic(
                "orders".to_owned(),
                "there is no topic \"orders\": create it, or let the brokers create topics".to_owned()
            )
        );
        assert_eq!(
            read(Code::MessageSizeTooLarge),
            Verdict::Failed(Failure::dead("the message is larger than the topic \"orders\" takes"))
        );
        assert_eq!(read(Code::MessageTimedOut), Verdict::Late);
        for code in [Code::PurgeQueue, Code::PurgeInflight, Code::Fatal, Code::SSL, Code::AllBrokersDown] {
            assert!(matches!(read(code), Verdict::Unavailable(_)), "{code}");
        }
    }
}
