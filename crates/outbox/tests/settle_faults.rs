//! Settlements against a database that is slow, fails, and loses its answers, while relays stop and
//! start: every verdict is written once, or its event is delivered again.
//!
//! `OUTBOX_SETTLING_SEEDS` sets the number of random runs, `OUTBOX_SETTLING_FROM` the first seed.

#[path = "common/failing_store.rs"]
mod failing_store;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use failing_store::FailingStore;
use outbox::store::{Filter, Status};
use outbox::{Backoff, Context, Event, Failure, Outbox, Outcome, RelayBuilder};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

const MS: Duration = Duration::from_millis(1);
const EVENTS: u64 = 40;

fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |n| n.parse().expect("a number"))
}

/// Record of the calls of handlers and their results.
#[derive(Default)]
struct CallRecord {
    running: HashSet<u64>,
    done: HashMap<u64, usize>,
    failed: HashMap<u64, u32>,
    /// Events of each key, in the order in which they were first handled.
    first: HashMap<String, Vec<u64>>,
}

impl CallRecord {
    fn begins(&mut self, n: u64, key: Option<&str>) {
        assert!(self.running.insert(n), "{n} is handled twice at a time");
        if let Some(key) = key {
            let first = self.first.entry(key.to_owned()).or_default();
            if !first.contains(&n) {
                first.push(n);
            }
        }
    }

    fn ends(&mut self, n: u64, result: &Result<Outcome, Failure>) {
        self.running.remove(&n);
        match result {
            Ok(Outcome::Done) => *self.done.entry(n).or_default() += 1,
            Ok(_) => {}
            Err(_) => *self.failed.entry(n).or_default() += 1,
        }
    }
}

/// A handler that takes a while, and fails or snoozes now and then.
async fn handle(cx: Context, record: Arc<Mutex<CallRecord>>) -> Result<Outcome, Failure> {
    let n: u64 = cx.payload().expect("the payload is a number");
    record.lock().unwrap().begins(n, cx.ordering_key());
    let draw = rand::random_range(0..10);
    if draw < 4 {
        tokio::time::sleep(draw * MS).await;
    }
    let result = match draw {
        0 => Err(Failure::retry("not today")),
        1 => Ok(Outcome::Snooze(MS)),
        _ => Ok(Outcome::Done),
    };
    record.lock().unwrap().ends(n, &result);
    result
}

async fn run_seed(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let outbox = Outbox::sqlite(":memory:").await.unwrap();
    outbox.migrate().await.unwrap();
    let store = FailingStore::random_faults(outbox.store(), seed);
    let record = Arc::new(Mutex::new(CallRecord::default()));
    let exclusive = rng.random::<bool>();
    let mut written = 0;
    for round in 0.. {
        assert!(round < 200, "seed {seed}: the events are not settled");
        let builder = if exclusive {
            RelayBuilder::single_node(store.clone())
        } else {
            RelayBuilder::multi_node(store.clone())
        };
        let seen = record.clone();
        let relay = builder
            .on_any(move |cx| handle(cx, seen.clone()))
            .retry(Backoff::default().base(MS).max_attempts(1_000))
            .workers(3)
            .cold_capacity(4)
            .batch(3)
            .poll_interval(2 * MS)
            .start()
            .await
            .unwrap();
        let more = EVENTS.min(written + rng.random_range(0..20));
        for n in written..more {
            let event = Event::new("e").json(&n);
            let event = if n % 3 == 0 { event } else { event.ordering_key(format!("key {}", n % 3)) };
            outbox.send(event).await.unwrap();
        }
        written = more;
        // Stop the relay at a random moment.
        tokio::time::sleep(rng.random_range(0..25) * MS).await;
        // The relay may fail to release everything: leases expire, and another leader takes over.
        let _ = relay.stop().await;
        assert!(record.lock().unwrap().running.is_empty(), "seed {seed}: a handler outlived its relay");
        let pending = Filter { pending: true, ..Filter::default() };
        if written == EVENTS && outbox.store().count(&pending).await.unwrap() == 0 {
            break;
        }
    }
    let all = outbox.store().list(&Filter::default(), 1_000).await.unwrap();
    let record = record.lock().unwrap();
    for stored in all {
        let event = stored.event.unwrap();
        let n: u64 = event.payload().unwrap();
        assert_eq!(stored.status, Status::Done, "seed {seed}: {n}");
        assert_eq!(record.done.get(&n), Some(&1), "seed {seed}: {n} is done once");
        let failed = record.failed.get(&n).copied().unwrap_or(0);
        assert_eq!(stored.attempts, failed, "seed {seed}: each failure of {n} is one attempt");
    }
    for (key, first) in &record.first {
        assert!(first.is_sorted(), "seed {seed}: {key} is out of order: {first:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verdict_is_written_once_although_the_database_fails_and_loses_answers() {
    let from = setting("OUTBOX_SETTLING_FROM", 0);
    for seed in from..from + setting("OUTBOX_SETTLING_SEEDS", 6) {
        run_seed(seed).await;
    }
}
