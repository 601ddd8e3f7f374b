//! Sending a wave of messages, and what became of each.

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
use outbox::Failure;
use tokio::time::{Instant, sleep_until, timeout};

use super::line::{Line, said};
use super::parcel::Parcel;

/// How long confirms are still waited for when the broker has said that it is blocked.
const GRACE: Duration = Duration::from_millis(250);

/// How long a channel may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Where messages go.
pub(super) struct Address {
    pub(super) exchange: ShortString,
    pub(super) mandatory: bool,
    /// The routing key, if it is the same for every event.
    pub(super) routing_key: Option<ShortString>,
    /// How long nothing may be confirmed.
    pub(super) patience: Duration,
}

/// What became of a wave.
pub(super) struct Landing {
    /// Of each message; `None` if nobody knows.
    pub(super) answers: Vec<Option<Result<(), Failure>>>,
    /// Why it ended early.
    pub(super) trouble: Option<Trouble>,
}

/// Why a wave ended early.
#[derive(Debug)]
pub(super) enum Trouble {
    /// There is no connection, or the broker takes nothing at the moment.
    Outage(String),
    /// The broker takes no message of this publisher: exchange, queue or permission is missing.
    Missing(String),
    /// The broker closed the channel over one of the messages that have no answer.
    Refused(Refusal),
}

/// Why the broker does not take a message.
#[derive(Debug)]
pub(super) struct Refusal {
    text: String,
    /// Whether it never will.
    forever: bool,
}

impl Refusal {
    /// The failure of this message.
    pub(super) fn of(&self, parcel: &Parcel) -> Failure {
        let text = format!("the broker refused the message of {} bytes: {}", parcel.body.len(), self.text);
        if self.forever { Failure::dead(text) } else { Failure::retry(text) }
    }
}

/// Sends these messages at once and waits until each is confirmed.
pub(super) async fn send(line: &Line, address: &Address, parcels: &[&Parcel]) -> Landing {
    let mut landing = Landing { answers: parcels.iter().map(|_| None).collect(), trouble: None };
    if let Some(reason) = line.blocked() {
        landing.trouble = Some(blocked(&reason));
        return landing;
    }
    let channel = match line.channel().await {
        Ok(channel) => channel,
        Err(error) => {
            landing.trouble = Some(trouble(address, &error));
            return landing;
        }
    };
    let mut flights: FuturesUnordered<_> = parcels
        .iter()
        .enumerate()
        .map(|(place, parcel)| {
            let channel = &channel;
            async move { (place, publish(channel, address, parcel).await) }
        })
        .collect();
    let mut alarm = line.alarm.clone();
    let mut patience = address.patience;
    let mut until = Instant::now() + patience;
    let mut errors = Vec::new();
    let mut returned = Vec::new();
    let out_of_patience = loop {
        tokio::select! {
            biased;
            flight = flights.next() => match flight {
                None => break false,
                Some((place, answer)) => {
                    until = Instant::now() + patience;
                    match answer {
                        Ok(Confirmation::Ack(message)) => {
                            returned.extend(message);
                            landing.answers[place] = Some(Ok(()));
                        }
                        Ok(Confirmation::Nack(message)) => {
                            returned.extend(message);
                            let text = "the broker could not take it, a queue may be full (nack)";
                            landing.answers[place] = Some(Err(Failure::retry(text)));
                        }
                        Ok(Confirmation::NotRequested) => {
                            landing.answers[place] = Some(Err(Failure::retry("the channel has no confirms")));
                        }
                        Err(error) => errors.push(error),
                    }
                }
            },
            Ok(_) = alarm.wait_for(Option::is_some), if patience > GRACE => {
                patience = GRACE;
                until = Instant::now() + patience;
            }
            () = sleep_until(until) => break true,
        }
    };
    drop(flights);
    let unroutable = hand_back(&mut landing, address, parcels, &returned);
    let cause = errors.iter().find(|error| error.is_amqp_error()).or(errors.first());
    landing.trouble = match (cause, line.blocked()) {
        (Some(error), _) => Some(trouble(address, error)),
        (None, Some(reason)) if out_of_patience => Some(blocked(&reason)),
        (None, _) if out_of_patience => {
            close(line, &channel).await;
            Some(Trouble::Outage(format!("the broker confirmed nothing for {:?}", address.patience)))
        }
        (None, _) => {
            line.keep(channel);
            unroutable.map(Trouble::Missing)
        }
    };
    landing
}

async fn publish(channel: &Channel, address: &Address, parcel: &Parcel) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: address.mandatory, immediate: false };
    let (exchange, routing_key) = (address.exchange.clone(), parcel.routing_key.clone());
    channel
        .basic_publish(exchange, routing_key, options, &parcel.body, parcel.properties.clone())
        .await?
        .await
}

/// Messages that no queue was bound for come back. lapin hands each to whichever confirm comes next, and one confirm of the
/// broker may be for many messages: so it is their ids that tell which they are.
///
/// Returns the reason if no message of this publisher can be routed: the one queue that all of them go to
/// does not exist. Bindings of an exchange may depend on headers, so there it is the event's failure.
fn hand_back(
    landing: &mut Landing,
    address: &Address,
    parcels: &[&Parcel],
    returned: &[BasicReturnMessage],
) -> Option<String> {
    let is_one_queue = address.exchange.as_str().is_empty() && address.routing_key.is_some();
    let mut unroutable = None;
    for message in returned {
        let text = format!(
            "no queue is bound to the exchange `{}` for the routing key `{}` ({})",
            message.exchange, message.routing_key, message.reply_text
        );
        for (place, parcel) in parcels.iter().enumerate() {
            if message.properties.message_id().as_ref() == Some(&parcel.id) {
                landing.answers[place] = (!is_one_queue).then(|| Err(Failure::retry(&text)));
            }
        }
        if is_one_queue {
            unroutable =
                Some(format!("there is no queue `{}` ({})", message.routing_key, message.reply_text));
        }
    }
    unroutable
}

/// Once the broker has answered it has seen all that was sent before: nothing comes late, behind what is sent next.
async fn close(line: &Line, channel: &Channel) {
    if !matches!(timeout(GOODBYE, channel.close(200, "OK".into())).await, Ok(Ok(()))) {
        line.cut();
    }
}

fn blocked(reason: &str) -> Trouble {
    Trouble::Outage(format!("the broker is blocked: {reason}"))
}

fn trouble(address: &Address, error: &lapin::Error) -> Trouble {
    let text = said(error);
    let ErrorKind::ProtocolError(cause) = error.kind() else {
        return Trouble::Outage(format!("the connection to the broker was lost: {text}"));
    };
    match cause.kind() {
        // The exchange is the same for all events.
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Trouble::Missing(text),
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
            if text.contains("access to exchange") || address.routing_key.is_some() =>
        {
            Trouble::Missing(text)
        }
        // A permission for this routing key may be given later.
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
            Trouble::Refused(Refusal { text, forever: false })
        }
        AMQPErrorKind::Soft(_) => Trouble::Refused(Refusal { text, forever: true }),
        AMQPErrorKind::Hard(_) => Trouble::Outage(format!("the broker closed the connection: {text}")),
    }
}

/// Checks that the exchange, or the one queue that all messages go to, exists and may be written to.
/// Changes nothing.
pub(super) async fn verify(line: &Line, address: &Address) -> Result<(), String> {
    let checked = if address.exchange.as_str().is_empty() {
        let Some(queue) = address.routing_key.clone() else { return Ok(()) };
        let channel = line.channel().await.map_err(|error| said(&error))?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue, options, FieldTable::default()).await.map(drop);
        declared.map(|()| channel)
    } else {
        check_exchange(line, &address.exchange).await
    };
    match checked {
        Ok(channel) => {
            line.keep(channel);
            Ok(())
        }
        // What may not be looked at, or is in exclusive use, is there; publishing will tell.
        Err(error) => match trouble(address, &error) {
            Trouble::Missing(text) if !text.contains(UNBOUND) => Err(text),
            Trouble::Outage(reason) => Err(reason),
            Trouble::Missing(_) | Trouble::Refused(_) => Ok(()),
        },
    }
}

/// An exchange that every broker has, to take a binding from that is not there.
const UNBOUND: &str = "amq.fanout";

async fn check_exchange(line: &Line, exchange: &ShortString) -> lapin::Result<Channel> {
    let channel = line.channel().await?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange.clone(), ExchangeKind::Topic, options, FieldTable::default()).await?;
    // Removing a binding that does not exist changes nothing, and needs the permission to write to the
    // exchange, as publishing does.
    let key = ShortString::from("outbox.permission-check");
    channel
        .exchange_unbind(
            exchange.clone(),
            UNBOUND.into(),
            key,
            ExchangeUnbindOptions::default(),
            FieldTable::default(),
        )
        .await?;
    Ok(channel)
}
