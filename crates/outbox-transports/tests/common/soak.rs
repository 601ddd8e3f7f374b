//! A backlog, a real relay, and an outage in the middle.
//!
//! Small by default. `OUTBOX_TRANSPORT_EVENTS` sets the number of events and
//! `OUTBOX_TRANSPORT_OUTAGE` the length of the outage in seconds. With `OUTBOX_TEST_POSTGRES` the
//! backlog is in PostgreSQL instead of SQLite.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::store::SharedStore;
use outbox::{Admin, Event, Outgoing, PublishError, Publisher, RelayBuilder, Unavailable};
use outbox_transports::Order;
use tokio::sync::{RwLock, watch};

use super::{Harness, PublisherOptions, Sharing, poll};

/// Number of distinct ordering keys.
const KEYS: usize = 100;

/// Maximum time from the server's restart to the first published batch. Generous for a busy
/// machine; the actual time is printed.
const MAX_RESUME_TIME: Duration = Duration::from_secs(120);

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Records how many events were published, and when. Holds back some events until the server was
/// stopped, however fast the relay is.
struct RecordingPublisher {
    inner: std::sync::Arc<dyn Publisher>,
    count: usize,
    started: AtomicUsize,
    stopped: watch::Sender<bool>,
    /// Read-locked by batches in flight.
    in_flight: RwLock<()>,
    /// Number of published events, updated after `times`.
    published: watch::Sender<usize>,
    times: Mutex<Vec<Instant>>,
}

impl RecordingPublisher {
    /// Lets at least a third and at most two thirds of the events through before the server is
    /// stopped.
    async fn wait_for_turn(&self, events: usize) {
        let before = self.started.fetch_add(events, Ordering::SeqCst);
        if before >= self.count / 3 && before + events > self.count * 2 / 3 {
            let stopped = self.stopped.subscribe().wait_for(|stopped| *stopped).await.map(|_| ());
            stopped.expect("the server is stopped");
        }
    }

    /// Waits until the number of published events satisfies the condition, which is checked after
    /// every batch.
    async fn wait_until(&self, what: &str, limit: Duration, condition: impl Fn(usize) -> bool) {
        let mut published = self.published.subscribe();
        let reached = tokio::time::timeout(limit, published.wait_for(|sum| condition(*sum))).await;
        assert!(reached.is_ok(), "not within {limit:?}: {what}");
    }
}

#[async_trait]
impl Publisher for RecordingPublisher {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.wait_for_turn(events.len()).await;
        let _in_flight = self.in_flight.read().await;
        let result = self.inner.publish_batch(events).await;
        let published = result.as_ref().map_or_else(PublishError::published, |()| events.len());
        if published > 0 {
            self.times.lock().unwrap().push(Instant::now());
            self.published.send_modify(|count| *count += published);
        }
        result
    }

    async fn health(&self) -> Result<(), Unavailable> {
        self.inner.health().await
    }
}

/// Every event arrives unchanged, in order where the transport guarantees it. No event is dead, and
/// no attempt is counted for the outage.
pub async fn a_backlog_survives_an_outage<B: Harness>() {
    let Some(mut harness) = B::open(Sharing::Exclusive).await else { return };
    let count = setting("OUTBOX_TRANSPORT_EVENTS", 2_000);
    let outage = Duration::from_secs(setting("OUTBOX_TRANSPORT_OUTAGE", 2) as u64);
    let (store, _dir) = backlog::<B>(count).await;
    harness.watch();
    let published = std::sync::Arc::new(RecordingPublisher {
        inner: harness.publisher(&PublisherOptions::default()),
        count,
        started: AtomicUsize::new(0),
        stopped: watch::Sender::new(false),
        in_flight: RwLock::default(),
        published: watch::Sender::new(0),
        times: Mutex::default(),
    });
    let began = Instant::now();
    let relay = RelayBuilder::multi_node(store.clone()).forward_any(published.clone()).start().await.unwrap();
    published.wait_until("a third is published", Duration::from_secs(120), |sum| sum >= count / 3).await;

    harness.stop();
    let stopped = Instant::now();
    published.stopped.send_replace(true);
    tokio::time::sleep(outage).await;
    if B::FAILS_FAST {
        // After a broken connection a webhook probes its receiver, which must still be down.
        drop(published.in_flight.write().await);
    }
    harness.start();
    let restarted = Instant::now();
    let resumed = |at: &Instant| *at > restarted;
    let has_resumed = |_| published.times.lock().unwrap().iter().any(resumed);
    published.wait_until("publishing resumes", MAX_RESUME_TIME, has_resumed).await;
    let first = published.times.lock().unwrap().iter().find(|at| resumed(at)).copied().unwrap();
    let during_outage =
        published.times.lock().unwrap().iter().filter(|at| **at > stopped && **at < restarted).count();

    let admin = Admin::new(store);
    let is_drained = async || match admin.backlog().await.unwrap().pending {
        0 => Ok(()),
        pending => Err(pending),
    };
    poll("the backlog is drained", Duration::from_secs(600), is_drained).await;
    relay.stop().await.unwrap();
    println!(
        "{}: {count} events in {:.1?}, away for {outage:?} ({during_outage} batches confirmed meanwhile), resumed after {:.1?}",
        std::any::type_name::<B>(),
        began.elapsed(),
        first - restarted
    );
    let stats = admin.stats().await.unwrap();
    assert_eq!((stats.done, stats.dead), (count as u64, 0));
    assert_eq!(
        admin.list(&Default::default(), count).await.unwrap().iter().map(|event| event.attempts).max(),
        Some(0)
    );

    let received = harness.received(count).await;
    let mut seen = HashSet::new();
    let mut last: HashMap<String, usize> = HashMap::new();
    for message in &received {
        let text = message.text();
        let number: usize = text.split('"').nth(3).and_then(|n| n.parse().ok()).expect("a number");
        assert_eq!(text, payload(number), "unchanged");
        if !seen.insert(message.id.clone()) {
            continue;
        }
        if let Some(key) = message.header("outbox-key").filter(|_| B::GUARANTEES.order == Order::PerKey) {
            let before = last.insert(key.to_owned(), number);
            assert!(before < Some(number), "{key}: {number} after {before:?}");
        }
    }
    assert_eq!(seen.len(), count, "every event arrived");
    println!("{} arrived twice", received.len() - seen.len());
}

/// Has two spaces, which any JSON parser and serializer would remove.
fn payload(number: usize) -> String {
    format!(r#"{{"number":  "{number}","text":"ünïcode"}}"#)
}

async fn backlog<B: Harness>(count: usize) -> (SharedStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let name = std::any::type_name::<B>().rsplit("::").next().unwrap_or_default().to_lowercase();
    let name = name.trim_end_matches('>');
    let options = outbox::StoreOptions::default().table(format!("soak_{name}_{}", std::process::id()));
    let url = std::env::var("OUTBOX_TEST_POSTGRES")
        .unwrap_or_else(|_| format!("sqlite:{}", dir.path().join("o.db").display()));
    let store = outbox::open_store(&url, &options).await.unwrap();
    store.migrate().await.unwrap();
    let numbers: Vec<usize> = (0..count).collect();
    for chunk in numbers.chunks(1_000) {
        let events: Vec<Event> = chunk
            .iter()
            .map(|n| {
                let event = Event::new("order.placed").json_text(payload(*n));
                // Half of the events have a key.
                let event = if n % 2 == 0 { event } else { event.ordering_key(format!("key-{}", n % KEYS)) };
                event.build().unwrap()
            })
            .collect();
        store.insert(&events).await.unwrap();
    }
    (store, dir)
}
