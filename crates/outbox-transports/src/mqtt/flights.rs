//! Messages on their way: which answer is to which message. The client does not say, so packet ids are matched here.

use std::collections::VecDeque;
use std::fmt;

use outbox::Failure;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::Error as Malformed;
use rumqttc::v5::mqttbytes::v5::{ConnectReturnCode, DisconnectReasonCode, Packet, PubAck, PubAckReason};
use rumqttc::v5::{ConnectionError, Event, StateError};
use tokio::sync::oneshot;

/// What the server said to a message.
#[derive(Debug)]
pub(super) enum Answer {
    /// It has it.
    Published,
    /// It does not take it.
    Refused(Refusal),
    /// It said nothing: the connection was lost.
    Lost(Loss),
}

/// Why the server does not take a message.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    text: String,
    /// Whether it never will.
    forever: bool,
    /// Whether the server says that this client may not publish to the topic.
    pub(super) is_denied: bool,
}

impl Refusal {
    fn for_now(text: impl Into<String>) -> Self {
        Self { text: text.into(), forever: false, is_denied: false }
    }

    fn forever(text: impl Into<String>) -> Self {
        Self { text: text.into(), forever: true, is_denied: false }
    }

    fn denied(text: impl Into<String>) -> Self {
        Self { is_denied: true, ..Self::for_now(text) }
    }

    /// The failure of a message to this topic.
    pub(super) fn at(&self, topic: &str) -> Failure {
        let text = format!("the server refused the message to `{topic}`: {}", self.text);
        if self.forever { Failure::dead(text) } else { Failure::retry(text) }
    }
}

/// Why a connection was lost.
#[derive(Clone, Debug)]
pub(super) enum Loss {
    /// The server is not there, or does not answer.
    Outage(String),
    /// The server ended it, perhaps over one of the messages on their way: then this is what it has against it.
    Over(Refusal),
}

impl Loss {
    pub(super) fn outage(reason: impl Into<String>) -> Self {
        Self::Outage(reason.into())
    }

    /// For people.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Outage(reason) => reason,
            Self::Over(refusal) => &refusal.text,
        }
    }

    /// The connection ended without a word. Mosquitto does so after it has refused a message; its answer to that is mostly lost
    /// with the connection.
    fn abrupt(error: impl fmt::Display) -> Self {
        Self::Over(Refusal::for_now(format!("it ended the connection ({error})")))
    }
}

/// Messages on their way.
#[derive(Default)]
pub(super) struct Flights {
    /// With the client, which gives them their packet ids in this order.
    queued: VecDeque<oneshot::Sender<Answer>>,
    /// Sent, in order, with their packet ids. Without a sender: answered, behind one that is not.
    sent: VecDeque<(u16, Option<oneshot::Sender<Answer>>)>,
    lost: Option<Loss>,
}

impl Flights {
    /// The client has got a message; this is whom to tell of it.
    pub(super) fn queue(&mut self, tell: oneshot::Sender<Answer>) {
        self.queued.push_back(tell);
    }

    /// Why there is no connection any more.
    pub(super) fn lost(&self) -> Option<&Loss> {
        self.lost.as_ref()
    }

    /// Tells all who wait that it is over.
    pub(super) fn lose(&mut self, loss: Loss) {
        let waiting = self.queued.drain(..).chain(self.sent.drain(..).filter_map(|(_, tell)| tell));
        for tell in waiting {
            let _ = tell.send(Answer::Lost(loss.clone()));
        }
        self.lost.get_or_insert(loss);
    }

    /// Something was sent, or came in. Gives how many places have become free: a place is free when all before it are answered
    /// too. So no packet id is used again while it is in use, whatever the order of the answers.
    pub(super) fn note(&mut self, event: &Event) -> usize {
        match event {
            Event::Outgoing(Outgoing::Publish(id)) => {
                if let Some(tell) = self.queued.pop_front() {
                    self.sent.push_back((*id, Some(tell)));
                }
                0
            }
            Event::Incoming(Packet::PubAck(answer)) => self.answered(answer),
            _ => 0,
        }
    }

    fn answered(&mut self, ack: &PubAck) -> usize {
        let waiting = self.sent.iter_mut().find(|(id, tell)| *id == ack.pkid && tell.is_some());
        if let Some(tell) = waiting.and_then(|(_, tell)| tell.take()) {
            // Nobody may be waiting any longer.
            let _ = tell.send(answer(ack));
        }
        let free = self.sent.iter().take_while(|(_, tell)| tell.is_none()).count();
        self.sent.drain(..free);
        free
    }
}

fn answer(ack: &PubAck) -> Answer {
    let (text, again) = match ack.reason {
        // That nobody has subscribed is for subscribers to know.
        PubAckReason::Success | PubAckReason::NoMatchingSubscribers => return Answer::Published,
        PubAckReason::NotAuthorized => ("not authorized (0x87)", true),
        PubAckReason::QuotaExceeded => ("quota exceeded (0x97)", true),
        PubAckReason::UnspecifiedError => ("unspecified error (0x80)", true),
        PubAckReason::ImplementationSpecificError => ("implementation specific error (0x83)", true),
        PubAckReason::PacketIdentifierInUse => ("packet identifier in use (0x91)", true),
        PubAckReason::TopicNameInvalid => ("topic name invalid (0x90)", false),
        PubAckReason::PayloadFormatInvalid => ("payload format invalid (0x99)", false),
    };
    let more = ack.properties.as_ref().and_then(|properties| properties.reason_string.as_deref());
    let is_denied = ack.reason == PubAckReason::NotAuthorized;
    Answer::Refused(Refusal { text: with(text, more), forever: !again, is_denied })
}

fn with(text: &str, more: Option<&str>) -> String {
    more.filter(|more| !more.is_empty()).map_or(text.to_owned(), |more| format!("{text}: {more}"))
}

impl From<ConnectionError> for Loss {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ConnectionRefused(code) => Self::outage(refused(code)),
            ConnectionError::Timeout(_) => Self::outage("it did not answer in time"),
            ConnectionError::Io(error) => Self::abrupt(error),
            ConnectionError::Tls(error) => Self::outage(format!("TLS: {error}")),
            ConnectionError::MqttState(error) => error.into(),
            // Never what came instead, which may be anything.
            ConnectionError::NotConnAck(_) => Self::outage("it does not speak MQTT 5"),
            ConnectionError::RequestsDone => Self::outage("the connection has ended"),
        }
    }
}

impl From<StateError> for Loss {
    fn from(error: StateError) -> Self {
        match error {
            StateError::ServerDisconnect { reason_code, reason_string } => {
                disconnected(reason_code, reason_string.as_deref())
            }
            // The client knows only the codes that the protocol has for a PUBACK, and ends at any other. Mosquitto says by one
            // that a message is too large.
            StateError::Deserialization(Malformed::InvalidConnectReturnCode(0x95)) => {
                Self::Over(Refusal::forever("packet too large (0x95)"))
            }
            StateError::Deserialization(
                Malformed::InvalidConnectReturnCode(code) | Malformed::InvalidReason(code),
            ) => Self::Over(Refusal::for_now(format!("reason code {code:#04x}"))),
            StateError::OutgoingPacketTooLarge { pkt_size, max }
            | StateError::Deserialization(Malformed::OutgoingPacketTooLarge { pkt_size, max }) => Self::Over(
                Refusal::forever(format!("the packet has {pkt_size} bytes, and the server takes {max}")),
            ),
            StateError::Deserialization(Malformed::Io(error)) | StateError::Io(error) => Self::abrupt(error),
            StateError::ConnectionAborted => Self::abrupt("closed by the server"),
            StateError::AwaitPingResp => Self::outage("the server does not answer any more"),
            error => Self::outage(error.to_string()),
        }
    }
}

/// Some servers say what they have against a message by ending the connection.
fn disconnected(code: DisconnectReasonCode, more: Option<&str>) -> Loss {
    use DisconnectReasonCode as Code;
    let text = with(&format!("it ended the connection, {code:?} ({:#04x})", code as u8), more);
    match code {
        Code::MalformedPacket
        | Code::ProtocolError
        | Code::TopicNameInvalid
        | Code::PacketTooLarge
        | Code::PayloadFormatInvalid => Loss::Over(Refusal::forever(text)),
        Code::NotAuthorized => Loss::Over(Refusal::denied(text)),
        Code::ImplementationSpecificError | Code::QuotaExceeded => Loss::Over(Refusal::for_now(text)),
        _ => Loss::outage(text),
    }
}

fn refused(code: ConnectReturnCode) -> String {
    use ConnectReturnCode as Code;
    let advice = match code {
        Code::BadUserNamePassword | Code::NotAuthorized => "check user and password",
        Code::UnsupportedProtocolVersion | Code::RefusedProtocolVersion => "it does not speak MQTT 5",
        Code::ClientIdentifierNotValid | Code::BadClientId => "check client_id",
        _ => return format!("it refused the connection, {code:?}"),
    };
    format!("it refused the connection, {code:?}: {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: u16) -> Event {
        Event::Outgoing(Outgoing::Publish(id))
    }

    fn acked(id: u16, reason: PubAckReason) -> Event {
        let ack = PubAck { reason, ..PubAck::new(id, None) };
        Event::Incoming(Packet::PubAck(ack))
    }

    #[tokio::test]
    async fn answers_find_their_messages_and_places_become_free_in_order() {
        let mut flights = Flights::default();
        let mut answers = Vec::new();
        for _ in 0..4 {
            let (tell, answer) = oneshot::channel();
            flights.queue(tell);
            answers.push(answer);
        }
        for id in 1..=3 {
            assert_eq!(flights.note(&sent(id)), 0);
        }
        assert_eq!(flights.note(&acked(2, PubAckReason::NotAuthorized)), 0, "the first has no answer yet");
        assert_eq!(flights.note(&acked(1, PubAckReason::NoMatchingSubscribers)), 2);
        assert_eq!(flights.note(&acked(9, PubAckReason::Success)), 0, "nobody's");
        // The same packet id, again.
        flights.note(&sent(1));
        flights.lose(Loss::outage("gone"));

        let mut answers = answers.into_iter();
        let mut next = async || answers.next().unwrap().await.unwrap();
        assert!(matches!(next().await, Answer::Published));
        assert!(matches!(next().await, Answer::Refused(why) if why.text == "not authorized (0x87)"));
        for _ in 3..=4 {
            assert!(matches!(next().await, Answer::Lost(Loss::Outage(reason)) if reason == "gone"));
        }
        assert!(flights.lost().is_some());
    }

    #[test]
    fn a_connection_that_may_have_ended_over_a_message_says_so() {
        for (error, blamed) in [
            (StateError::Deserialization(Malformed::InvalidConnectReturnCode(0x95)), true),
            (StateError::Deserialization(Malformed::InvalidConnectReturnCode(0x8b)), true),
            (StateError::ConnectionAborted, true),
            (StateError::AwaitPingResp, false),
        ] {
            let loss = Loss::from(error);
            assert_eq!(matches!(loss, Loss::Over(_)), blamed, "{}", loss.reason());
        }
        let shutting_down = disconnected(DisconnectReasonCode::ServerShuttingDown, None);
        assert!(matches!(shutting_down, Loss::Outage(_)));
        let malformed = disconnected(DisconnectReasonCode::MalformedPacket, Some("no"));
        assert_eq!(malformed.reason(), "it ended the connection, MalformedPacket (0x81): no");
        assert!(matches!(malformed, Loss::Over(Refusal { forever: true, .. })));
    }
}
