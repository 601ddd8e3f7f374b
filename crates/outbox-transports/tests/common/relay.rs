//! A minimal relay: resends unconfirmed events in order until all are confirmed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox::{EventResult, Outgoing, Publisher};
use tokio::sync::watch;

use super::{assert_no_secret, is_dead};

/// Progress of the relay.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub confirmed: HashSet<String>,
    /// Number of batches that an outage interrupted.
    pub outages: usize,
}

/// Longest time without a confirmed event. A limit on the total time would depend on the speed of
/// the broker's disk: RabbitMQ confirms the events of a key one by one, each after up to 200 ms.
const MAX_IDLE: Duration = Duration::from_secs(120);

/// Sends events in batches until all are confirmed.
pub async fn deliver(
    publisher: Arc<dyn Publisher>,
    events: Vec<Outgoing>,
    progress: watch::Sender<Progress>,
) {
    let (mut last_confirmed, mut last_error) = (Instant::now(), String::from("none"));
    for batch in events.chunks(20) {
        let mut remaining = batch.to_vec();
        while !remaining.is_empty() {
            assert!(
                last_confirmed.elapsed() < MAX_IDLE,
                "no event confirmed after {} outages and {} events; last error: {last_error}",
                progress.borrow().outages,
                progress.borrow().confirmed.len()
            );
            let outcome = publisher.publish_batch(&remaining).await;
            let error = match outcome {
                Ok(()) => {
                    confirm(&progress, &remaining);
                    last_confirmed = Instant::now();
                    break;
                }
                Err(error) => error,
            };
            assert_no_secret(&format!("{error} {error:?}"));
            let (mut retry, mut done) = (Vec::new(), Vec::new());
            for (index, event) in remaining.into_iter().enumerate() {
                match error.fate(index) {
                    Some(EventResult::Published) => done.push(event),
                    Some(EventResult::Failed(failure)) => {
                        assert!(!is_dead(&failure), "an outage kills no event: {failure}");
                        retry.push(event);
                    }
                    Some(EventResult::NotAttempted) | None => retry.push(event),
                }
            }
            if !done.is_empty() {
                confirm(&progress, &done);
                last_confirmed = Instant::now();
            }
            remaining = retry;
            last_error = format!("{error:?}");
            if error.is_unavailable() {
                progress.send_modify(|progress| progress.outages += 1);
                while publisher.health().await.is_err() {
                    assert!(
                        last_confirmed.elapsed() < MAX_IDLE,
                        "the publisher stays unhealthy; at last: {error}"
                    );
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            } else {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn confirm(progress: &watch::Sender<Progress>, events: &[Outgoing]) {
    progress.send_modify(|progress| {
        progress.confirmed.extend(events.iter().map(|event| event.id().to_string()));
    });
}
