//! A backlog, a real relay, and an outage in the middle.
//!
//! Small by default. `OUTBOX_TRANSPORT_EVENTS` says how many events, `OUTBOX_TRANSPORT_OUTAGE` for how many seconds the server is
//! away, and with `OUTBOX_TEST_POSTGRES` the backlog is in PostgreSQL instead of SQLite.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::store::SharedStore;
use outbox::{Admin, Event, Outgoing, PublishError, Publisher, RelayBuilder, Unavailable};
use outbox_transports::Order;
use tokio::sync::{RwLock, watch};

use super::{Bed, Share, Wish};

/// How many keys the events with one have.
const KEYS: usize = 100;

/// After the server is back, something arrives within this time. Generous, for a machine that is busy; what it took is printed.
const RESUMED: Duration = Duration::from_secs(120);

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Notes how much was published, and when. Keeps some of it back until the server was stopped, however fast the relay is.
struct Noted {
    inner: std::sync::Arc<dyn Publisher>,
    count: usize,
    begun: AtomicUsize,
    stopped: watch::Sender<bool>,
    /// Shared by the batches that are with the publisher.
    under_way: RwLock<()>,
    published: AtomicUsize,
    times: Mutex<Vec<Instant>>,
}

impl Noted {
    /// Before the server is stopped a third of the events goes through, and no more than two thirds.
    async fn may_begin(&self, events: usize) {
        let before = self.begun.fetch_add(events, Ordering::SeqCst);
        if before >= self.count / 3 && before + events > self.count * 2 / 3 {
            let stopped = self.stopped.subscribe().wait_for(|stopped| *stopped).await.map(|_| ());
            stopped.expect("it is stopped at some time");
        }
    }
}

#[async_trait]
impl Publisher for Noted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn publish_batch(&self, events: &[Outgoing]) -> Result<(), PublishError> {
        self.may_begin(events.len()).await;
        let _under_way = self.under_way.read().await;
        let result = self.inner.publish_batch(events).await;
        let published = result.as_ref().map_or_else(PublishError::published, |()| events.len());
        if published > 0 {
            self.published.fetch_add(published, Ordering::SeqCst);
            self.times.lock().unwrap().push(Instant::now());
        }
        result
    }

    async fn health(&self) -> Result<(), Unavailable> {
        self.inner.health().await
    }
}

/// Every event arrives, each byte of it, in order where that is promised; none is dead, no attempt is counted for the outage.
pub async fn a_backlog_gets_through_an_outage<B: Bed>() {
    let Some(mut bed) = B::open(Share::Own).await else { return };
    let count = setting("OUTBOX_TRANSPORT_EVENTS", 2_000);
    let outage = Duration::from_secs(setting("OUTBOX_TRANSPORT_OUTAGE", 2) as u64);
    let (store, _dir) = backlog::<B>(count).await;
    bed.watch();
    let published = std::sync::Arc::new(Noted {
        inner: bed.publisher(&Wish::default()),
        count,
        begun: AtomicUsize::new(0),
        stopped: watch::Sender::new(false),
        under_way: RwLock::default(),
        published: AtomicUsize::new(0),
        times: Mutex::default(),
    });
    let began = Instant::now();
    let relay = RelayBuilder::multi_node(store.clone()).forward_any(published.clone()).start().await.unwrap();
    until("a third has arrived", Duration::from_secs(120), || {
        published.published.load(Ordering::SeqCst) >= count / 3
    })
    .await;

    bed.stop();
    let stopped = Instant::now();
    published.stopped.send_replace(true);
    tokio::time::sleep(outage).await;
    if B::BREAKS_AT_ONCE {
        // After a broken connection a webhook looks for its receiver, which must still be away.
        drop(published.under_way.write().await);
    }
    bed.start();
    let back = Instant::now();
    let resumed = |at: &Instant| *at > back;
    until("it goes on", RESUMED, || published.times.lock().unwrap().iter().any(resumed)).await;
    let first = published.times.lock().unwrap().iter().find(|at| resumed(at)).copied().unwrap();
    let during = published.times.lock().unwrap().iter().filter(|at| **at > stopped && **at < back).count();

    let admin = Admin::new(store);
    let deadline = Instant::now() + Duration::from_secs(600);
    while admin.backlog().await.unwrap().pending > 0 {
        assert!(Instant::now() < deadline, "it does not come to an end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    relay.stop().await.unwrap();
    println!(
        "{}: {count} events in {:.1?}, away for {outage:?} ({during} batches confirmed meanwhile), resumed after {:.1?}",
        std::any::type_name::<B>(),
        began.elapsed(),
        first - back
    );
    let stats = admin.stats().await.unwrap();
    assert_eq!((stats.done, stats.dead), (count as u64, 0));
    assert_eq!(
        admin.list(&Default::default(), count).await.unwrap().iter().map(|event| event.attempts).max(),
        Some(0)
    );

    let received = bed.received(count).await;
    let mut seen = HashSet::new();
    let mut last: HashMap<String, usize> = HashMap::new();
    for message in &received {
        let text = message.text();
        let number: usize = text.split('"').nth(3).and_then(|n| n.parse().ok()).expect("a number");
        assert_eq!(text, payload(number), "to the byte");
        if !seen.insert(message.id.clone()) {
            continue;
        }
        if let Some(key) = message.header("outbox-key").filter(|_| B::PROMISES.order == Order::PerKey) {
            let before = last.insert(key.to_owned(), number);
            assert!(before < Some(number), "{key}: {number} after {before:?}");
        }
    }
    assert_eq!(seen.len(), count, "each has arrived");
    println!("{} arrived twice", received.len() - seen.len());
}

/// With two spaces, which anything that reads and writes JSON would take out.
fn payload(number: usize) -> String {
    format!(r#"{{"number":  "{number}","text":"ünïcode"}}"#)
}

async fn backlog<B: Bed>(count: usize) -> (SharedStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let name = std::any::type_name::<B>().rsplit("::").next().unwrap_or_default().to_lowercase();
    let name = name.trim_end_matches('>');
    let options = outbox::StoreOptions::default().table(format!("soak_{name}_{}", std::process::id()));
    let url = std::env::var("OUTBOX_TEST_POSTGRES")
        .unwrap_or_else(|_| format!("sqlite:{}", dir.path().join("o.db").display()));
    let store = outbox::open_store(&url, &options).await.unwrap();
    store.migrate().await.unwrap();
    let numbers: Vec<usize> = (0..count).collect();
    for some in numbers.chunks(1_000) {
        let events: Vec<Event> = some
            .iter()
            .map(|n| {
                let event = Event::new("order.placed").json_text(payload(*n));
                // Half of them with a key.
                let event = if n % 2 == 0 { event } else { event.ordering_key(format!("key-{}", n % KEYS)) };
                event.build().unwrap()
            })
            .collect();
        store.insert(&events).await.unwrap();
    }
    (store, dir)
}

async fn until(what: &str, limit: Duration, so: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !so() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
