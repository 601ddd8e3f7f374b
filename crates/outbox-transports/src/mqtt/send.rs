//! Sends a group of messages and collects their outcomes.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::connection::MqttConnection;
use super::in_flight::{ConnectionLoss, PublishOutcome};
use super::message::MqttMessage;

/// Sends these messages, as many at once as the server allows, and waits for all acknowledgements.
/// Closes the connection if none arrives for `ack_timeout`.
pub(super) async fn send(
    connection: &MqttConnection,
    messages: &[&MqttMessage],
    retain: bool,
    ack_timeout: Duration,
) -> Vec<PublishOutcome> {
    let mut outcomes: Vec<PublishOutcome> = Vec::with_capacity(messages.len());
    outcomes.resize_with(messages.len(), || PublishOutcome::Lost(ConnectionLoss::outage("")));
    let mut in_flight: FuturesUnordered<_> = messages
        .iter()
        .enumerate()
        .map(|(index, message)| async move { (index, connection.publish(message, retain).await) })
        .collect();
    let mut deadline = Instant::now() + ack_timeout;
    loop {
        tokio::select! {
            biased;
            acked = in_flight.next() => match acked {
                None => return outcomes,
                Some((index, outcome)) => {
                    deadline = Instant::now() + ack_timeout;
                    outcomes[index] = outcome;
                }
            },
            // Fails all messages that are still in flight.
            () = sleep_until(deadline) => connection.close(&format!("the server confirmed nothing for {ack_timeout:?}")),
        }
    }
}
