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

/// Sends events in batches until all are confirmed.
pub async fn deliver(
    publisher: Arc<dyn Publisher>,
    events: Vec<Outgoing>,
    progress: watch::Sender<Progress>,
) {
    let deadline = Instant::now() + Duration::from_secs(120 + events.len() as u64 / 100);
    for batch in events.chunks(20) {
        let mut left = batch.to_vec();
        while !left.is_empty() {
            assert!(Instant::now() < deadline, "it does not go on: {:?}", progress.borrow().outages);
            let outcome = publisher.publish_batch(&left).await;
            let error = match outcome {
                Ok(()) => {
                    confirm(&progress, &left);
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
            confirm(&progress, &done);
            left = again;
            if error.is_unavailable() {
                progress.send_modify(|progress| progress.outages += 1);
                while publisher.health().await.is_err() {
                    assert!(Instant::now() < deadline, "it stays unhealthy; at last: {error}");
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
