//! Sends a group of messages and collects their confirms.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::{
    BasicPublishOptions, ExchangeDeclareOptions, ExchangeUnbindOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Confirmation, ErrorKind, ExchangeKind};
use outbox::{Failure, Unavailable};
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{AmqpConnection, describe};
use super::message::AmqpMessage;

/// How long to wait for outstanding confirms once the broker has reported that it is blocked.
const BLOCKED_GRACE: Duration = Duration::from_millis(250);

/// Timeout of closing a channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Destination of all messages of a publisher.
pub(super) struct Destination {
    pub(super) exchange: ShortString,
    pub(super) mandatory: bool,
    /// The routing key, if it is the same for every event.
    pub(super) routing_key: Option<ShortString>,
    /// Time without any confirm after which the broker counts as unavailable.
    pub(super) ack_timeout: Duration,
}

/// Results of a group of messages.
pub(super) struct Acks {
    /// Result of each message; `None` if it is unknown.
    pub(super) results: Vec<Option<Result<(), Failure>>>,
    /// Reason why sending ended early.
    pub(super) error: Option<SendError>,
}

/// Reason why sending a group ended early.
#[derive(Debug)]
pub(super) enum SendError {
    /// The connection was lost, or the broker accepts nothing at the moment.
    Outage(String),
    /// The broker accepts no message of this publisher: exchange, queue or permission is missing.
    Missing(String),
    /// The broker closed the channel because of one of the unconfirmed messages.
    Refused(AmqpRefusal),
}

/// Reason why the broker refused a message.
#[derive(Debug)]
pub(super) struct AmqpRefusal {
    text: String,
    /// Whether a retry is pointless.
    permanent: bool,
}

impl AmqpRefusal {
    /// The failure of this message.
    pub(super) fn to_failure(&self, message: &AmqpMessage) -> Failure {
        let text = format!("the broker refused the message of {} bytes: {}", message.body.len(), self.text);
        if self.permanent { Failure::dead(text) } else { Failure::retry(text) }
    }
}

/// Sends these messages at once and waits until each is confirmed.
pub(super) async fn send(
    connection: &AmqpConnection,
    destination: &Destination,
    messages: &[&AmqpMessage],
) -> Acks {
    let mut acks = Acks { results: messages.iter().map(|_| None).collect(), error: None };
    if let Some(reason) = connection.blocked() {
        acks.error = Some(blocked(&reason));
        return acks;
    }
    let channel = match connection.channel().await {
        Ok(channel) => channel,
        Err(error) => {
            acks.error = Some(classify(destination, &error));
            return acks;
        }
    };
    let mut in_flight: FuturesUnordered<_> = messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            let channel = &channel;
            async move { (index, publish(channel, destination, message).await) }
        })
        .collect();
    let mut alarm = connection.alarm.clone();
    let mut ack_timeout = destination.ack_timeout;
    let mut deadline = Instant::now() + ack_timeout;
    let mut errors = Vec::new();
    let mut returned = Vec::new();
    let timed_out = loop {
        tokio::select! {
            biased;
            confirmed = in_flight.next() => match confirmed {
                None => break false,
                Some((index, answer)) => {
                    deadline = Instant::now() + ack_timeout;
                    match answer {
                        Ok(Confirmation::Ack(message)) => {
                            returned.extend(message);
                            acks.results[index] = Some(Ok(()));
                        }
                        Ok(Confirmation::Nack(message)) => {
                            returned.extend(message);
                            let text = "the broker did not accept the message, a queue may be full (nack)";
                            acks.results[index] = Some(Err(Failure::retry(text)));
                        }
                        Ok(Confirmation::NotRequested) => {
                            acks.results[index] = Some(Err(Failure::retry("the channel is not in confirm mode")));
                        }
                        Err(error) => errors.push(error),
                    }
                }
            },
            Ok(_) = alarm.wait_for(Option::is_some), if ack_timeout > BLOCKED_GRACE => {
                ack_timeout = BLOCKED_GRACE;
                deadline = Instant::now() + ack_timeout;
            }
            () = sleep_until(deadline) => break true,
        }
    };
    drop(in_flight);
    let unroutable = mark_returned(&mut acks, destination, messages, &returned);
    let cause = errors.iter().find(|error| error.is_amqp_error()).or(errors.first());
    acks.error = match (cause, connection.blocked()) {
        (Some(error), _) => Some(classify(destination, error)),
        (None, Some(reason)) if timed_out => Some(blocked(&reason)),
        (None, _) if timed_out => {
            close(connection, &channel).await;
            Some(SendError::Outage(format!("the broker confirmed nothing for {:?}", destination.ack_timeout)))
        }
        (None, _) => {
            connection.release(channel);
            unroutable.map(SendError::Missing)
        }
    };
    acks
}

async fn publish(
    channel: &Channel,
    destination: &Destination,
    message: &AmqpMessage,
) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: destination.mandatory, immediate: false };
    let (exchange, routing_key) = (destination.exchange.clone(), message.routing_key.clone());
    channel
        .basic_publish(exchange, routing_key, options, &message.body, message.properties.clone())
        .await?
        .await
}

/// Fails messages that the broker returned because no queue is bound for them. lapin attaches a
/// returned message to the next confirm, and one confirm of the broker may cover many messages, so
/// returned messages are identified by their ids.
///
/// Returns the reason if no message of this publisher can be routed: all messages go to one queue,
/// which does not exist. The bindings of an exchange may depend on headers, so there it is the
/// event's failure.
fn mark_returned(
    acks: &mut Acks,
    destination: &Destination,
    messages: &[&AmqpMessage],
    returned: &[BasicReturnMessage],
) -> Option<String> {
    let is_one_queue = destination.exchange.as_str().is_empty() && destination.routing_key.is_some();
    let mut unroutable = None;
    for bounced in returned {
        let text = format!(
            "no queue is bound to the exchange `{}` for the routing key `{}` ({})",
            bounced.exchange, bounced.routing_key, bounced.reply_text
        );
        for (index, message) in messages.iter().enumerate() {
            if bounced.properties.message_id().as_ref() == Some(&message.id) {
                acks.results[index] = (!is_one_queue).then(|| Err(Failure::retry(&text)));
            }
        }
        if is_one_queue {
            unroutable =
                Some(format!("there is no queue `{}` ({})", bounced.routing_key, bounced.reply_text));
        }
    }
    unroutable
}

/// Closes the channel. After its reply the broker has processed everything that was sent before, so
/// no message can arrive late, behind messages that are sent next.
async fn close(connection: &AmqpConnection, channel: &Channel) {
    if !matches!(timeout(CLOSE_TIMEOUT, channel.close(200, "OK".into())).await, Ok(Ok(()))) {
        connection.shut_down();
    }
}

fn blocked(reason: &str) -> SendError {
    SendError::Outage(format!("the broker is blocked: {reason}"))
}

fn classify(destination: &Destination, error: &lapin::Error) -> SendError {
    let text = describe(error);
    let ErrorKind::ProtocolError(cause) = error.kind() else {
        return SendError::Outage(format!("the connection to the broker was lost: {text}"));
    };
    match cause.kind() {
        // The exchange is the same for all events.
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => SendError::Missing(text),
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
            if text.contains("access to exchange") || destination.routing_key.is_some() =>
        {
            SendError::Missing(text)
        }
        // Permission for this routing key may be granted later.
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
            SendError::Refused(AmqpRefusal { text, permanent: false })
        }
        AMQPErrorKind::Soft(_) => SendError::Refused(AmqpRefusal { text, permanent: true }),
        AMQPErrorKind::Hard(_) => SendError::Outage(format!("the broker closed the connection: {text}")),
    }
}

/// Checks that the exchange, or the single queue of all messages, exists and is writable. Changes
/// nothing.
pub(super) async fn verify(
    connection: &AmqpConnection,
    destination: &Destination,
) -> Result<(), Unavailable> {
    let checked = if destination.exchange.as_str().is_empty() {
        let Some(queue) = destination.routing_key.clone() else { return Ok(()) };
        let channel = connection.channel().await.map_err(|error| Unavailable::new(describe(&error)))?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue, options, FieldTable::default()).await.map(drop);
        declared.map(|()| channel)
    } else {
        check_exchange(connection, &destination.exchange).await
    };
    match checked {
        Ok(channel) => {
            connection.release(channel);
            Ok(())
        }
        // A queue that this user may not inspect, or that is in exclusive use, exists. Publishing
        // shows the error.
        Err(error) => match classify(destination, &error) {
            SendError::Missing(text) if !text.contains(PROBE_SOURCE) => Err(Unavailable::new(text)),
            SendError::Outage(reason) => Err(Unavailable::new(reason)),
            SendError::Missing(_) | SendError::Refused(_) => Ok(()),
        },
    }
}

/// An exchange of every broker, as the source of a binding that does not exist.
const PROBE_SOURCE: &str = "amq.fanout";

async fn check_exchange(connection: &AmqpConnection, exchange: &ShortString) -> lapin::Result<Channel> {
    let channel = connection.channel().await?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange.clone(), ExchangeKind::Topic, options, FieldTable::default()).await?;
    // Removing a binding that does not exist changes nothing, and needs write permission on the
    // exchange, as publishing does.
    let key = ShortString::from("outbox.permission-check");
    channel
        .exchange_unbind(
            exchange.clone(),
            PROBE_SOURCE.into(),
            key,
            ExchangeUnbindOptions::default(),
            FieldTable::default(),
        )
        .await?;
    Ok(channel)
}
