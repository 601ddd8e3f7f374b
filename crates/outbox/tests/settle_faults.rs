//! Verdicts on their way to a database that comes late, fails, and loses its answers, while relays stop and start: every
//! verdict is written once, or its event comes again.
//!
//! `OUTBOX_SETTLING_SEEDS` says how many such stories are told, `OUTBOX_SETTLING_FROM` with which number they begin.

#[path = "common/failing_store.rs"]
mod failing_store;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use failing_store::Failing;
use outbox::store::{Filter, Status};
use outbox::{Backoff, Cx, Event, Failure, Outbox, Outcome, RelayBuilder};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

const MS: Duration = Duration::from_millis(1);
const EVENTS: u64 = 40;

fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |n| n.parse().expect("a number"))
}

/// What handlers saw and said.
#[derive(Default)]
struct Story {
    running: HashSet<u64>,
    done: HashMap<u64, usize>,
    failed: HashMap<u64, u32>,
    /// The events of each key, in the order in which they were first handled.
    first: HashMap<String, Vec<u64>>,
}

impl Story {
    fn begins(&mut self, n: u64, key: Option<&str>) {
        assert!(self.running.insert(n), "{n} is handled twice at a time");
        if let Some(key) = key {
            let first = self.first.entry(key.to_owned()).or_default();
            if !first.contains(&n) {
                first.push(n);
            }
        }
    }

    fn ends(&mut self, n: u64, said: &Result<Outcome, Failure>) {
        self.running.remove(&n);
        match said {
            Ok(Outcome::Done) => *self.done.entry(n).or_default() += 1,
            Ok(_) => {}
            Err(_) => *self.failed.entry(n).or_default() += 1,
        }
    }
}

/// A handler that takes a while, and fails or puts off now and then.
async fn handle(cx: Cx, story: Arc<Mutex<Story>>) -> Result<Outcome, Failure> {
    let n: u64 = cx.payload().expect("it is a number");
    story.lock().unwrap().begins(n, cx.ordering_key());
    let fate = rand::random_range(0..10);
    if fate < 4 {
        tokio::time::sleep(fate * MS).await;
    }
    let said = match fate {
        0 => Err(Failure::retry("not today")),
        1 => Ok(Outcome::RetryAfter(MS)),
        _ => Ok(Outcome::Done),
    };
    story.lock().unwrap().ends(n, &said);
    said
}

async fn tell(seed: u64) {
    let mut chance = SmallRng::seed_from_u64(seed);
    let outbox = Outbox::sqlite(":memory:").await.unwrap();
    outbox.migrate().await.unwrap();
    let store = Failing::unruly(outbox.store(), seed);
    let story = Arc::new(Mutex::new(Story::default()));
    let exclusive = chance.random::<bool>();
    let mut written = 0;
    for round in 0.. {
        assert!(round < 200, "seed {seed}: it does not come to an end");
        let builder = if exclusive {
            RelayBuilder::single_node(store.clone())
        } else {
            RelayBuilder::multi_node(store.clone())
        };
        let seen = story.clone();
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
        let more = EVENTS.min(written + chance.random_range(0..20));
        for n in written..more {
            let event = Event::new("e").json(&n);
            let event = if n % 3 == 0 { event } else { event.ordering_key(format!("key {}", n % 3)) };
            outbox.send(event).await.unwrap();
        }
        written = more;
        // In the middle of whatever it is doing.
        tokio::time::sleep(chance.random_range(0..25) * MS).await;
        // That it could not give everything back at once is no harm: leases run out, and leaders are followed.
        let _ = relay.stop().await;
        assert!(story.lock().unwrap().running.is_empty(), "seed {seed}: a handler outlived its relay");
        let pending = Filter { pending: true, ..Filter::default() };
        if written == EVENTS && outbox.store().count(&pending).await.unwrap() == 0 {
            break;
        }
    }
    let all = outbox.store().list(&Filter::default(), 1_000).await.unwrap();
    let story = story.lock().unwrap();
    for stored in all {
        let event = stored.event.unwrap();
        let n: u64 = event.payload().unwrap();
        assert_eq!(stored.status, Status::Done, "seed {seed}: {n}");
        assert_eq!(story.done.get(&n), Some(&1), "seed {seed}: {n} is done once");
        let failed = story.failed.get(&n).copied().unwrap_or(0);
        assert_eq!(stored.attempts, failed, "seed {seed}: each failure of {n} is one attempt");
    }
    for (key, first) in &story.first {
        assert!(first.is_sorted(), "seed {seed}: {key} is out of order: {first:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verdict_is_written_once_whatever_the_database_does_to_its_answers() {
    let from = setting("OUTBOX_SETTLING_FROM", 0);
    for seed in from..from + setting("OUTBOX_SETTLING_SEEDS", 6) {
        tell(seed).await;
    }
}
