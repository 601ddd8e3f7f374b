//! Concurrency: no two nodes get the same event, and no caller sees a deadlock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;

use super::{Harness, SECOND, event, holder, leasing, settlement};
use crate::event::{Event, EventId};
use crate::sql::Clock;
use crate::store::{Completion, Filter, Purge, Purgeable, SharedStore, Take, Verdict};

async fn nodes(harness: &impl Harness, count: usize) -> Vec<SharedStore> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(harness.connect(Clock::Database).await);
    }
    nodes[0].migrate().await.unwrap();
    nodes
}

async fn write(store: &SharedStore, events: impl IntoIterator<Item = crate::event::EventBuilder>) {
    let events: Vec<Event> = events.into_iter().map(|e| e.build().unwrap()).collect();
    store.insert(&events).await.unwrap();
}

/// Four nodes empty a table of two thousand events.
pub async fn concurrent_takers_never_get_the_same_event(harness: &impl Harness) {
    let nodes = nodes(harness, 4).await;
    write(&nodes[0], (0..2_000).map(|_| event("n"))).await;
    let mut takers = JoinSet::new();
    for (n, store) in nodes.into_iter().enumerate() {
        takers.spawn(async move {
            let owner = format!("node-{n}");
            let mut mine = Vec::new();
            // Another taker's locks can hide the remaining rows for a moment: three empty takes
            // count as the end.
            let mut empty = 0;
            while empty < 3 {
                let taken = store.take(&Take { limit: 50, ..leasing(&owner) }).await.unwrap().deliveries;
                empty = if taken.is_empty() { empty + 1 } else { 0 };
                let done: Vec<_> = taken.iter().map(|d| settlement(d, Verdict::Done)).collect();
                let settled = store.settle(&holder(&owner), Completion::Keep, &done).await.unwrap().moved;
                assert_eq!(settled, done.len() as u64, "no other node settled it");
                mine.extend(taken.into_iter().map(|d| d.event.id().clone()));
            }
            mine
        });
    }
    let taken: Vec<EventId> = takers.join_all().await.into_iter().flatten().collect();
    assert_eq!(taken.len(), 2_000);
    assert_eq!(taken.into_iter().collect::<HashSet<_>>().len(), 2_000);
}

/// Four nodes, ten keys: each key's events are settled in their order, whichever node takes them.
pub async fn concurrent_takers_keep_the_order_of_keys(harness: &impl Harness) {
    let nodes = nodes(harness, 4).await;
    let numbered = |n: u32| Event::new("n").json(&n).ordering_key(format!("key-{}", n % 10));
    write(&nodes[0], (0..600).map(numbered)).await;
    let log: Arc<std::sync::Mutex<HashMap<String, Vec<u32>>>> = Arc::default();
    let store = nodes[0].clone();
    let mut takers = JoinSet::new();
    for (n, store) in nodes.into_iter().enumerate() {
        let log = log.clone();
        takers.spawn(async move {
            let owner = format!("node-{n}");
            loop {
                let taken = store.take(&Take { limit: 25, ..leasing(&owner) }).await.unwrap().deliveries;
                if taken.is_empty() && store.backlog().await.unwrap().pending == 0 {
                    return;
                }
                for delivery in &taken {
                    let mut log = log.lock().unwrap();
                    let key = delivery.event.ordering_key().unwrap().to_owned();
                    log.entry(key).or_default().push(delivery.event.payload().unwrap());
                }
                let done: Vec<_> = taken.iter().map(|d| settlement(d, Verdict::Done)).collect();
                store.settle(&holder(&owner), Completion::Delete, &done).await.unwrap();
            }
        });
    }
    takers.join_all().await;
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 0);
    let log = log.lock().unwrap();
    assert_eq!(log.values().map(Vec::len).sum::<usize>(), 600);
    for (key, numbers) in log.iter() {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

/// Within a key, a later commit has a higher sequence number: no event appears before one that was
/// already visible.
pub async fn events_of_a_key_become_visible_in_their_order(harness: &impl Harness) {
    let nodes = nodes(harness, 4).await;
    let reader = harness.connect(Clock::Database).await;
    let writing = Arc::new(AtomicBool::new(true));
    let mut writers = JoinSet::new();
    for (n, store) in nodes.into_iter().enumerate() {
        writers.spawn(async move {
            for batch in 0..25 {
                // Several keys in one transaction, in a different order for each writer: still no
                // deadlock.
                let keys = (0..3).map(|k| format!("key-{}", (n + k * (batch % 2 + 1)) % 3));
                write(&store, keys.map(|key| event("n").ordering_key(key))).await;
            }
        });
    }
    let watching = {
        let writing = writing.clone();
        tokio::spawn(async move {
            let mut seen: Vec<(i64, String)> = Vec::new();
            let mut last = false;
            loop {
                let listed = reader.list(&Filter::default(), 10_000).await.unwrap();
                let now: Vec<(i64, String)> = listed
                    .iter()
                    .map(|s| (s.seq, s.event.as_ref().unwrap().ordering_key().unwrap().to_owned()))
                    .collect();
                let known: HashSet<i64> = seen.iter().map(|(seq, _)| *seq).collect();
                for (seq, key) in now.iter().filter(|(seq, _)| !known.contains(seq)) {
                    let newest = seen.iter().filter(|(_, k)| k == key).map(|(seq, _)| *seq).max();
                    assert!(
                        newest.is_none_or(|newest| newest < *seq),
                        "{key}: {seq} appeared after {newest:?}"
                    );
                }
                seen = now;
                if last {
                    return seen.len();
                }
                last = !writing.load(Ordering::SeqCst);
            }
        })
    };
    writers.join_all().await;
    writing.store(false, Ordering::SeqCst);
    assert_eq!(watching.await.unwrap(), 4 * 25 * 3);
}

/// Neither a deadlock nor a busy database reaches the caller.
pub async fn writers_takers_and_settlers_do_not_fail_each_other(harness: &impl Harness) {
    let nodes = nodes(harness, 3).await;
    let store = nodes[0].clone();
    let mut work = JoinSet::new();
    for store in &nodes[..2] {
        let store = store.clone();
        work.spawn(async move {
            for n in 0..40 {
                write(&store, (0..5).map(|k| event("n").ordering_key(format!("key-{}", (n + k) % 7)))).await;
                write(&store, [event("n"), event("n").dedup_key(format!("d-{n}"))]).await;
            }
        });
    }
    for (n, store) in nodes.iter().enumerate() {
        let store = store.clone();
        work.spawn(async move {
            let owner = format!("node-{n}");
            for round in 0..60 {
                let taken = store.take(&Take { limit: 20, ..leasing(&owner) }).await.unwrap().deliveries;
                store.extend(&"unknown".into(), SECOND, &super::held(&taken)).await.unwrap();
                let verdicts: Vec<_> = taken
                    .iter()
                    .enumerate()
                    .map(|(i, d)| match (round + i) % 4 {
                        0 => settlement(d, Verdict::Released),
                        1 => settlement(d, super::again(0)),
                        _ => settlement(d, Verdict::Done),
                    })
                    .collect();
                let moved = store.settle(&holder(&owner), Completion::Keep, &verdicts).await.unwrap().moved;
                assert_eq!(moved, verdicts.len() as u64);
            }
        });
    }
    work.join_all().await;
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 2 * 40 * 6 + 40);
}

/// Nor does a concurrent purge fail.
pub async fn purging_beside_takers_does_not_fail(harness: &impl Harness) {
    let nodes = nodes(harness, 3).await;
    let store = nodes[0].clone();
    write(&store, (0..600).map(|_| event("n"))).await;
    let mut work = JoinSet::new();
    for (n, store) in nodes.into_iter().enumerate() {
        work.spawn(async move {
            let owner = format!("node-{n}");
            while store.backlog().await.unwrap().pending > 0 {
                let taken = store.take(&Take { limit: 20, ..leasing(&owner) }).await.unwrap().deliveries;
                let done: Vec<_> = taken.iter().map(|d| settlement(d, Verdict::Done)).collect();
                store.settle(&holder(&owner), Completion::Keep, &done).await.unwrap();
            }
        });
    }
    let purger = store.clone();
    work.spawn(async move {
        let everything = Purge { what: Purgeable::Done, older_than: std::time::Duration::ZERO, limit: 30 };
        let mut purged = 0;
        while purged < 600 {
            purged += purger.purge(everything).await.unwrap();
        }
        assert_eq!(purged, 600);
    });
    work.join_all().await;
    assert_eq!(store.count(&Filter::default()).await.unwrap(), 0);
}
