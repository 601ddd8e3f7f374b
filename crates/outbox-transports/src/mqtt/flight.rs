//! Sending a wave of messages, and what became of each.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::flights::{Answer, Loss};
use super::line::Line;
use super::parcel::Parcel;

/// Sends these messages, as many at once as the server allows, and waits for an answer to each; ends the connection if there
/// is none for so long.
pub(super) async fn send(line: &Line, parcels: &[&Parcel], retain: bool, patience: Duration) -> Vec<Answer> {
    let mut answers: Vec<Answer> = Vec::with_capacity(parcels.len());
    answers.resize_with(parcels.len(), || Answer::Lost(Loss::outage("")));
    let mut flights: FuturesUnordered<_> = parcels
        .iter()
        .enumerate()
        .map(|(place, parcel)| async move { (place, line.publish(parcel, retain).await) })
        .collect();
    let mut until = Instant::now() + patience;
    loop {
        tokio::select! {
            biased;
            flight = flights.next() => match flight {
                None => return answers,
                Some((place, answer)) => {
                    until = Instant::now() + patience;
                    answers[place] = answer;
                }
            },
            // Now all that are still on their way are lost.
            () = sleep_until(until) => line.cut(&format!("the server confirmed nothing for {patience:?}")),
        }
    }
}
