//! Messages in flight. Matches acknowledgements to messages by packet id, since the client does
//! not.

use std::collections::VecDeque;
use std::fmt;

use outbox::Failure;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::Error as Malformed;
use rumqttc::v5::mqttbytes::v5::{ConnectReturnCode, DisconnectReasonCode, Packet, PubAck, PubAckReason};
use rumqttc::v5::{ConnectionError, Event, StateError};
use tokio::sync::oneshot;

/// Result of publishing one message.
#[derive(Debug)]
pub(super) enum PublishOutcome {
    /// The server acknowledged the message.
    Published,
    /// The server refused the message.
    Refused(MqttRefusal),
    /// The connection was lost before an acknowledgement.
    Lost(ConnectionLoss),
}

/// Reason why the server refused a message.
#[derive(Clone, Debug)]
pub(super) struct MqttRefusal {
    text: String,
    /// Whether a retry is pointless.
    permanent: bool,
    /// Whether this client has no permission to publish to the topic.
    pub(super) is_denied: bool,
}

impl MqttRefusal {
    fn temporary(text: impl Into<String>) -> Self {
        Self { text: text.into(), permanent: false, is_denied: false }
    }

    fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), permanent: true, is_denied: false }
    }

    fn denied(text: impl Into<String>) -> Self {
        Self { is_denied: true, ..Self::temporary(text) }
    }

    /// The failure of a message to this topic.
    pub(super) fn to_failure(&self, topic: &str) -> Failure {
        let text = format!("the server refused the message to `{topic}`: {}", self.text);
        if self.permanent { Failure::dead(text) } else { Failure::retry(text) }
    }
}

/// Reason why a connection was lost.
#[derive(Clone, Debug)]
pub(super) enum ConnectionLoss {
    /// The server is unreachable or does not answer.
    Outage(String),
    /// The server closed the connection, perhaps because of one of the messages in flight. Holds
    /// the refusal for that case.
    Rejected(MqttRefusal),
}

impl ConnectionLoss {
    pub(super) fn outage(reason: impl Into<String>) -> Self {
        Self::Outage(reason.into())
    }

    /// The reason as text.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Outage(reason) => reason,
            Self::Rejected(refusal) => &refusal.text,
        }
    }

    /// The connection was closed without a DISCONNECT. Mosquitto does this after it has refused a
    /// message; its PUBACK is mostly lost with the connection.
    fn closed(error: impl fmt::Display) -> Self {
        Self::Rejected(MqttRefusal::temporary(format!("the server closed the connection ({error})")))
    }
}

/// Messages in flight.
#[derive(Default)]
pub(super) struct InFlight {
    /// Messages queued in the client, which assigns packet ids in this order.
    queued: VecDeque<oneshot::Sender<PublishOutcome>>,
    /// Sent messages with their packet ids, in order. `None`: already acknowledged, but an earlier
    /// message is not.
    sent: VecDeque<(u16, Option<oneshot::Sender<PublishOutcome>>)>,
    loss: Option<ConnectionLoss>,
}

impl InFlight {
    /// Adds a message that the client has queued. `reply` gets its outcome.
    pub(super) fn queue(&mut self, reply: oneshot::Sender<PublishOutcome>) {
        self.queued.push_back(reply);
    }

    /// Why the connection was lost, if it was.
    pub(super) fn loss(&self) -> Option<&ConnectionLoss> {
        self.loss.as_ref()
    }

    /// Fails all messages in flight, and records why the connection was lost.
    pub(super) fn fail_all(&mut self, loss: ConnectionLoss) {
        let waiting = self.queued.drain(..).chain(self.sent.drain(..).filter_map(|(_, reply)| reply));
        for reply in waiting {
            let _ = reply.send(PublishOutcome::Lost(loss.clone()));
        }
        self.loss.get_or_insert(loss);
    }

    /// Handles a sent or received packet. Returns the number of freed slots: a slot is free once
    /// all earlier messages are acknowledged too. So no packet id is reused while it is in use,
    /// whatever the order of the acknowledgements.
    pub(super) fn handle(&mut self, event: &Event) -> usize {
        match event {
            Event::Outgoing(Outgoing::Publish(id)) => {
                if let Some(reply) = self.queued.pop_front() {
                    self.sent.push_back((*id, Some(reply)));
                }
                0
            }
            Event::Incoming(Packet::PubAck(ack)) => self.handle_ack(ack),
            _ => 0,
        }
    }

    fn handle_ack(&mut self, ack: &PubAck) -> usize {
        let waiting = self.sent.iter_mut().find(|(id, reply)| *id == ack.pkid && reply.is_some());
        if let Some(reply) = waiting.and_then(|(_, reply)| reply.take()) {
            // The caller may have stopped waiting.
            let _ = reply.send(outcome_of(ack));
        }
        let freed = self.sent.iter().take_while(|(_, reply)| reply.is_none()).count();
        self.sent.drain(..freed);
        freed
    }
}

fn outcome_of(ack: &PubAck) -> PublishOutcome {
    let (text, is_retryable) = match ack.reason {
        // A topic without subscribers is not the publisher's concern.
        PubAckReason::Success | PubAckReason::NoMatchingSubscribers => return PublishOutcome::Published,
        PubAckReason::NotAuthorized => ("not authorized (0x87)", true),
        PubAckReason::QuotaExceeded => ("quota exceeded (0x97)", true),
        PubAckReason::UnspecifiedError => ("unspecified error (0x80)", true),
        PubAckReason::ImplementationSpecificError => ("implementation specific error (0x83)", true),
        PubAckReason::PacketIdentifierInUse => ("packet identifier in use (0x91)", true),
        PubAckReason::TopicNameInvalid => ("topic name invalid (0x90)", false),
        PubAckReason::PayloadFormatInvalid => ("payload format invalid (0x99)", false),
    };
    let detail = ack.properties.as_ref().and_then(|properties| properties.reason_string.as_deref());
    let is_denied = ack.reason == PubAckReason::NotAuthorized;
    PublishOutcome::Refused(MqttRefusal {
        text: with_detail(text, detail),
        permanent: !is_retryable,
        is_denied,
    })
}

fn with_detail(text: &str, detail: Option<&str>) -> String {
    detail.filter(|detail| !detail.is_empty()).map_or(text.to_owned(), |detail| format!("{text}: {detail}"))
}

impl From<ConnectionError> for ConnectionLoss {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ConnectionRefused(code) => Self::outage(describe_refusal(code)),
            ConnectionError::Timeout(_) => Self::outage("the server did not answer in time"),
            ConnectionError::Io(error) => Self::closed(error),
            ConnectionError::Tls(error) => Self::outage(format!("TLS: {error}")),
            ConnectionError::MqttState(error) => error.into(),
            // Omits the packet that was received instead, which may contain anything.
            ConnectionError::NotConnAck(_) => Self::outage("the server does not support MQTT 5"),
            ConnectionError::RequestsDone => Self::outage("the connection has ended"),
        }
    }
}

impl From<StateError> for ConnectionLoss {
    fn from(error: StateError) -> Self {
        match error {
            StateError::ServerDisconnect { reason_code, reason_string } => {
                disconnected(reason_code, reason_string.as_deref())
            }
            // The client knows only the PUBACK codes of the protocol, and closes the connection at
            // any other. Mosquitto uses such a code for a message that is too large.
            StateError::Deserialization(Malformed::InvalidConnectReturnCode(0x95)) => {
                Self::Rejected(MqttRefusal::permanent("packet too large (0x95)"))
            }
            StateError::Deserialization(
                Malformed::InvalidConnectReturnCode(code) | Malformed::InvalidReason(code),
            ) => Self::Rejected(MqttRefusal::temporary(format!("reason code {code:#04x}"))),
            StateError::OutgoingPacketTooLarge { pkt_size, max }
            | StateError::Deserialization(Malformed::OutgoingPacketTooLarge { pkt_size, max }) => {
                Self::Rejected(MqttRefusal::permanent(format!(
                    "the packet has {pkt_size} bytes, and the server accepts {max}"
                )))
            }
            StateError::Deserialization(Malformed::Io(error)) | StateError::Io(error) => Self::closed(error),
            StateError::ConnectionAborted => Self::closed("closed by the server"),
            StateError::AwaitPingResp => Self::outage("the server does not answer anymore"),
            error => Self::outage(error.to_string()),
        }
    }
}

/// Classifies a DISCONNECT. Some servers refuse a message by closing the connection.
fn disconnected(code: DisconnectReasonCode, detail: Option<&str>) -> ConnectionLoss {
    use DisconnectReasonCode as Code;
    let text =
        with_detail(&format!("the server closed the connection, {code:?} ({:#04x})", code as u8), detail);
    match code {
        Code::MalformedPacket
        | Code::ProtocolError
        | Code::TopicNameInvalid
        | Code::PacketTooLarge
        | Code::PayloadFormatInvalid => ConnectionLoss::Rejected(MqttRefusal::permanent(text)),
        Code::NotAuthorized => ConnectionLoss::Rejected(MqttRefusal::denied(text)),
        Code::ImplementationSpecificError | Code::QuotaExceeded => {
            ConnectionLoss::Rejected(MqttRefusal::temporary(text))
        }
        _ => ConnectionLoss::outage(text),
    }
}

fn describe_refusal(code: ConnectReturnCode) -> String {
    use ConnectReturnCode as Code;
    let advice = match code {
        Code::BadUserNamePassword | Code::NotAuthorized => "check user and password",
        Code::UnsupportedProtocolVersion | Code::RefusedProtocolVersion => {
            "the server does not support MQTT 5"
        }
        Code::ClientIdentifierNotValid | Code::BadClientId => "check client_id",
        _ => return format!("the server refused the connection, {code:?}"),
    };
    format!("the server refused the connection, {code:?}: {advice}")
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
    async fn acks_are_matched_to_their_messages_and_slots_are_freed_in_order() {
        let mut in_flight = InFlight::default();
        let mut outcomes = Vec::new();
        for _ in 0..4 {
            let (reply, outcome) = oneshot::channel();
            in_flight.queue(reply);
            outcomes.push(outcome);
        }
        for id in 1..=3 {
            assert_eq!(in_flight.handle(&sent(id)), 0);
        }
        assert_eq!(
            in_flight.handle(&acked(2, PubAckReason::NotAuthorized)),
            0,
            "the first has no answer yet"
        );
        assert_eq!(in_flight.handle(&acked(1, PubAckReason::NoMatchingSubscribers)), 2);
        assert_eq!(in_flight.handle(&acked(9, PubAckReason::Success)), 0, "unknown packet id");
        // The packet id is reused.
        in_flight.handle(&sent(1));
        in_flight.fail_all(ConnectionLoss::outage("server down"));

        let mut outcomes = outcomes.into_iter();
        let mut next = async || outcomes.next().unwrap().await.unwrap();
        assert!(matches!(next().await, PublishOutcome::Published));
        assert!(matches!(next().await, PublishOutcome::Refused(why) if why.text == "not authorized (0x87)"));
        for _ in 3..=4 {
            assert!(
                matches!(next().await, PublishOutcome::Lost(ConnectionLoss::Outage(reason)) if reason == "server down")
            );
        }
        assert!(in_flight.loss().is_some());
    }

    #[test]
    fn a_loss_that_a_message_may_have_caused_is_a_rejection() {
        for (error, blamed) in [
            (StateError::Deserialization(Malformed::InvalidConnectReturnCode(0x95)), true),
            (StateError::Deserialization(Malformed::InvalidConnectReturnCode(0x8b)), true),
            (StateError::ConnectionAborted, true),
            (StateError::AwaitPingResp, false),
        ] {
            let loss = ConnectionLoss::from(error);
            assert_eq!(matches!(loss, ConnectionLoss::Rejected(_)), blamed, "{}", loss.reason());
        }
        let shutting_down = disconnected(DisconnectReasonCode::ServerShuttingDown, None);
        assert!(matches!(shutting_down, ConnectionLoss::Outage(_)));
        let malformed = disconnected(DisconnectReasonCode::MalformedPacket, Some("no"));
        assert_eq!(malformed.reason(), "the server closed the connection, MalformedPacket (0x81): no");
        assert!(matches!(malformed, ConnectionLoss::Rejected(MqttRefusal { permanent: true, .. })));
    }
}
