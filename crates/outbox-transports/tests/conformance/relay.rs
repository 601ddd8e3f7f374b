//! What a relay does, as far as a publisher can tell: sends what is not known to have arrived again, in order, until it has.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox::{Fate, Outgoing, Publisher};
use tokio::sync::watch;

use super::{assert_no_secret, is_dead};

/// What became of the events so far.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub confirmed: HashSet<String>,
    /// How many batches were cut off by an outage.
    pub outages: usize,
}

/// How long no event may be confirmed. A limit on the whole would be one on the speed of the broker's disk: RabbitMQ
/// confirms a batch of a key's events one by one, each after up to 200 ms.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends events in batches until all are confirmed.
pub async fn deliver(
    publisher: Arc<dyn Publisher>,
    events: Vec<Outgoing>,
    progress: watch::Sender<Progress>,
) {
    let (mut last_confirmed, mut last_error) = (Instant::now(), String::from("none"));
    for batch in events.chunks(20) {
        let mut left = batch.to_vec();
        while !left.is_empty() {
            assert!(
                last_confirmed.elapsed() < PATIENCE,
                "nothing is confirmed after {} outages and {} events; last error: {last_error}",
                progress.borrow().outages,
                progress.borrow().confirmed.len()
            );
            let outcome = publisher.publish_batch(&left).await;
            let error = match outcome {
                Ok(()) => {
                    confirm(&progress, &left);
                    last_confirmed = Instant::now();
                    break;
                }
                Err(error) => error,
            };
            assert_no_secret(&format!("{error} {error:?}"));
            let (mut again, mut done) = (Vec::new(), Vec::new());
            for (index, event) in left.into_iter().enumerate() {
                match error.fate(index) {
                    Some(Fate::Published) => done.push(event),
                    Some(Fate::Failed(failure)) => {
                        assert!(!is_dead(&failure), "an outage kills no event: {failure}");
                        again.push(event);
                    }
                    Some(Fate::Untried) | None => again.push(event),
                }
            }
            if !done.is_empty() {
                confirm(&progress, &done);
                last_confirmed = Instant::now();
            }
            left = again;
            last_error = format!("{error:?}");
            if error.is_unavailable() {
                progress.send_modify(|progress| progress.outages += 1);
                while publisher.health().await.is_err() {
                    assert!(last_confirmed.elapsed() < PATIENCE, "it stays unhealthy; at last: {error}");
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
