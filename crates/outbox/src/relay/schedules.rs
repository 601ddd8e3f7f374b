//! The queues in many interleavings of threads, which a normal test run would meet only by luck.
//!
//! `OUTBOX_SCHEDULES` sets how many interleavings each test tries.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::in_flight::InFlight;
use super::key_queues::{KeyQueues, NextEvent, NextStep, Pushed};
use super::queues::{Queues, WorkUnit};
use super::sync::explore;
use super::tests::job;
use super::{Job, fence};
use crate::event::EventId;
use crate::store::KeyQueueId;

const EPOCH: i64 = 1;

fn interleavings() -> usize {
    std::env::var("OUTBOX_SCHEDULES").ok().map_or(300, |n| n.parse().expect("a number"))
}

fn join<T: 'static>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
}

/// Workers that take until the queues are closed; each returns how many work units it got.
fn workers(queues: &Arc<Queues>, count: usize, in_batches: bool) -> Vec<thread::JoinHandle<usize>> {
    let worker = |queues: Arc<Queues>| {
        move || {
            let mut got = 0;
            while let Some(unit) = block_on(queues.next()) {
                let more = if in_batches { queues.take_more(2, |_| true) } else { Vec::new() };
                for unit in std::iter::once(unit).chain(more) {
                    got += 1;
                    if matches!(&unit, WorkUnit::One(job) if job.cold) {
                        queues.uncount_cold(1);
                    }
                }
            }
            got
        }
    };
    (0..count).map(|_| thread::spawn(worker(queues.clone()))).collect()
}

/// A worker that sleeps while work is queued would hang here, and one that takes a unit twice would
/// count too much.
#[test]
fn workers_miss_nothing_and_take_nothing_twice_and_end_when_the_queues_are_closed() {
    for in_batches in [false, true] {
        explore(interleavings(), move || {
            let queues = Arc::new(Queues::new(2, 4));
            let workers = workers(&queues, 2, in_batches);
            let writer = thread::spawn({
                let queues = queues.clone();
                move || {
                    let mut pushed = 0;
                    for _ in 0..4 {
                        // A full queue is no reason to wait: the poller delivers such an event.
                        if let Some(slot) = queues.reserve() {
                            let hot = Job { cold: false, ..job("hot") };
                            pushed += usize::from(queues.push_hot(hot, slot));
                        }
                    }
                    pushed
                }
            });
            let taker = thread::spawn({
                let queues = queues.clone();
                move || {
                    for _ in 0..2 {
                        queues.count_cold(2);
                        queues.push_cold(vec![WorkUnit::One(job("cold")), WorkUnit::One(job("cold"))]);
                    }
                    4
                }
            });
            let pushed: usize = join(vec![writer, taker]).iter().sum();
            queues.close(2);
            assert_eq!(join(workers).iter().sum::<usize>(), pushed);
            assert_eq!(queues.depths(), (0, 0), "all slots are free again");
        });
    }
}

/// The taker waits when the cold queue is full; the notification that it has drained may come at
/// any moment.
#[test]
fn a_taker_that_waits_for_capacity_is_woken_and_never_exceeds_it() {
    explore(interleavings(), || {
        let queues = Arc::new(Queues::new(1, 3));
        let workers = workers(&queues, 2, false);
        let mut left = 9;
        while left > 0 {
            let free = queues.cold_free();
            assert!(free <= 3);
            if free == 0 {
                block_on(queues.wait_for_free());
                continue;
            }
            let count = free.min(left);
            queues.count_cold(count);
            assert!(queues.depths().1 <= 3, "more than the capacity");
            queues.push_cold((0..count).map(|_| WorkUnit::One(job("cold"))).collect());
            left -= count;
        }
        queues.close(2);
        assert_eq!(join(workers).iter().sum::<usize>(), 9);
    });
}

/// Lost leadership clears the queues while writer and workers use them. No thread hangs, and
/// nothing stays counted.
#[test]
fn queues_cleared_at_any_moment_still_end_and_count_right() {
    explore(interleavings(), || {
        let queues = Arc::new(Queues::new(2, 4));
        let workers = workers(&queues, 2, true);
        let clears = thread::spawn({
            let queues = queues.clone();
            move || queues.clear()
        });
        for _ in 0..2 {
            if let Some(slot) = queues.reserve() {
                queues.push_hot(Job { cold: false, ..job("hot") }, slot);
            }
        }
        join(vec![clears]);
        // From here on all work is handled again.
        queues.push_cold(vec![WorkUnit::One(Job { cold: false, ..job("cold") })]);
        queues.close(2);
        join(workers);
        assert_eq!(queues.depths(), (0, 0));
    });
}

/// The table of these tests: pending events, and how often each event was handled.
#[derive(Default)]
struct Table {
    pending: Vec<(EventId, i64, Option<&'static str>)>,
    running: HashSet<EventId>,
    handled: HashMap<EventId, usize>,
}

impl Table {
    fn starts(&mut self, id: &EventId) {
        assert!(self.running.insert(id.clone()), "two workers handle it");
    }

    fn ends(&mut self, id: &EventId) {
        self.running.remove(id);
        *self.handled.entry(id.clone()).or_default() += 1;
    }
}

fn delivery(id: &EventId, seq: i64, cold: bool) -> Job {
    let mut job = job("thing");
    let event = crate::Event::new("thing").id(id.clone()).json(&());
    job.delivery.event = event.build().expect("it is complete");
    Job { epoch: EPOCH, cold, delivery: crate::store::Delivery { seq: Some(seq), ..job.delivery }, ..job }
}

/// Writers hand events over while the poller sees the same rows, before and after they are settled.
#[test]
fn an_event_is_never_both_on_the_hot_and_on_the_cold_path() {
    explore(interleavings(), || {
        let (queues, in_flight) = (Arc::new(Queues::new(2, 4)), Arc::new(InFlight::default()));
        let table = Arc::new(Mutex::new(Table::default()));
        let writer = thread::spawn({
            let (queues, in_flight, table) = (queues.clone(), in_flight.clone(), table.clone());
            move || {
                for seq in 0..2 {
                    let id = EventId::generate();
                    let slot = queues.reserve();
                    let reserved = slot.filter(|_| in_flight.reserve(&id, fence(EPOCH, 0), None));
                    table.lock().unwrap().pending.push((id.clone(), seq, None));
                    if let Some(slot) = reserved {
                        in_flight.committed(&id, fence(EPOCH, 0));
                        assert!(queues.push_hot(delivery(&id, seq, false), slot), "nothing is closed yet");
                    }
                }
            }
        });
        let poll = |queues: &Queues, in_flight: &InFlight, table: &Mutex<Table>| {
            in_flight.begin_read();
            let seen = table.lock().unwrap().pending.clone();
            let mut units = Vec::new();
            for (id, seq, _) in seen {
                if in_flight.admit(&id, fence(EPOCH, 0), None) {
                    units.push(WorkUnit::One(delivery(&id, seq, true)));
                }
            }
            queues.count_cold(units.len());
            queues.push_cold(units);
        };
        let poller = thread::spawn({
            let (queues, in_flight, table) = (queues.clone(), in_flight.clone(), table.clone());
            move || (0..3).for_each(|_| poll(&queues, &in_flight, &table))
        });
        let works = |queues: Arc<Queues>, in_flight: Arc<InFlight>, table: Arc<Mutex<Table>>| {
            move || {
                while let Some(WorkUnit::One(job)) = block_on(queues.next()) {
                    let id = job.delivery.event.id();
                    if job.cold {
                        queues.uncount_cold(1);
                    }
                    assert!(in_flight.start(id, job.fence(), Instant::now()), "it is held by this node");
                    table.lock().unwrap().starts(id);
                    table.lock().unwrap().ends(id);
                    // As the settler does: first in the table, then in memory.
                    table.lock().unwrap().pending.retain(|(pending, ..)| pending != id);
                    in_flight.settled([(id, job.fence())], true);
                }
            }
        };
        let workers: Vec<_> =
            (0..2).map(|_| thread::spawn(works(queues.clone(), in_flight.clone(), table.clone()))).collect();
        join(vec![writer, poller]);
        // Events that found the hot queue full.
        poll(&queues, &in_flight, &table);
        queues.close(2);
        join(workers);
        let table = table.lock().unwrap();
        assert_eq!(table.handled.len(), 2, "all are handled");
        assert!(table.handled.values().all(|times| *times == 1), "and once");
        assert_eq!(in_flight.len(), 0);
    });
}

/// One event fails once: all later ones wait, whatever the poller has read before the verdict was
/// written.
#[test]
fn the_events_of_a_key_are_handled_in_order_also_when_one_is_not_done() {
    const KEY: &str = "key";
    explore(interleavings(), || {
        let (queues, in_flight) = (Arc::new(Queues::new(1, 8)), Arc::new(InFlight::default()));
        let key_queues = Arc::new(KeyQueues::default());
        let pending = (0..3).map(|seq| (EventId::generate(), seq, Some(KEY))).collect();
        let table = Arc::new(Mutex::new(Table { pending, ..Table::default() }));
        let order = Arc::new(Mutex::new(Vec::new()));
        let poll = |queues: &Queues, in_flight: &InFlight, key_queues: &KeyQueues, table: &Mutex<Table>| {
            in_flight.begin_read();
            let newest = key_queues.begin_read();
            let seen = table.lock().unwrap().pending.clone();
            // The table would return only the later events of a key that this node holds.
            let _ = newest;
            let jobs: Vec<Job> = seen
                .iter()
                .filter(|(id, ..)| in_flight.admit(id, fence(EPOCH, 0), None))
                .map(|(id, seq, _)| delivery(id, *seq, true))
                .collect();
            queues.count_cold(jobs.len());
            if jobs.is_empty() {
                return;
            }
            let Pushed { scheduled, refused } =
                key_queues.push(jobs.into_iter().map(|job| (KeyQueueId::of_key(KEY), job)).collect());
            queues.push_cold(scheduled.into_iter().map(WorkUnit::Key).collect());
            refused.iter().for_each(|job| in_flight.forget(job.delivery.event.id(), job.fence()));
            queues.uncount_cold(refused.len());
        };
        let poller = thread::spawn({
            let (queues, in_flight, key_queues, table) =
                (queues.clone(), in_flight.clone(), key_queues.clone(), table.clone());
            move || (0..3).for_each(|_| poll(&queues, &in_flight, &key_queues, &table))
        });
        let failed = Arc::new(Mutex::new(false));
        let worker = thread::spawn({
            let (queues, in_flight, key_queues) = (queues.clone(), in_flight.clone(), key_queues.clone());
            let (table, order) = (table.clone(), order.clone());
            move || {
                while let Some(WorkUnit::Key(key)) = block_on(queues.next()) {
                    while let NextEvent::Job(job) = key_queues.next(&key, |_| NextStep::Handle) {
                        queues.uncount_cold(1);
                        let id = job.delivery.event.id().clone();
                        assert!(in_flight.start(&id, job.fence(), Instant::now()));
                        order.lock().unwrap().push(job.delivery.seq);
                        let fails = job.delivery.seq == Some(1)
                            && !std::mem::replace(&mut *failed.lock().unwrap(), true);
                        if !fails {
                            table.lock().unwrap().pending.retain(|(pending, ..)| *pending != id);
                            in_flight.settled([(&id, job.fence())], true);
                            key_queues.settled([(key.clone(), 1, false)]);
                            continue;
                        }
                        let rest = key_queues.halt(&key);
                        queues.uncount_cold(rest.len());
                        let count = rest.len() + 1;
                        let all = std::iter::once(&job).chain(&rest);
                        in_flight.settled(all.map(|job| (job.delivery.event.id(), job.fence())), true);
                        key_queues.settled([(key.clone(), count, true)]);
                        break;
                    }
                }
            }
        });
        join(vec![poller]);
        while !table.lock().unwrap().pending.is_empty() {
            poll(&queues, &in_flight, &key_queues, &table);
            thread::yield_now();
        }
        queues.close(1);
        join(vec![worker]);
        assert_eq!(*order.lock().unwrap(), [Some(0), Some(1), Some(1), Some(2)]);
        assert_eq!((in_flight.len(), queues.depths()), (0, (0, 0)));
    });
}
