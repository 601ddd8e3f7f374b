//! The queues in many interleavings of threads, which a normal test run would meet only by luck.
//!
//! `OUTBOX_SCHEDULES` sets how many interleavings each test tries.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::held::Held;
use super::lanes::{Lanes, Strand};
use super::runs::{Next, Pushed, Runs, Way};
use super::sync::explore;
use super::tests::job;
use super::{Job, tag};
use crate::event::EventId;
use crate::store::RunId;

const EPOCH: i64 = 1;

fn orders() -> usize {
    std::env::var("OUTBOX_SCHEDULES").ok().map_or(300, |n| n.parse().expect("a number"))
}

fn join<T: 'static>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
}

/// Workers that take until the queues are closed; each returns how many work units it got.
fn workers(lanes: &Arc<Lanes>, count: usize, take_along: bool) -> Vec<thread::JoinHandle<usize>> {
    let worker = |lanes: Arc<Lanes>| {
        move || {
            let mut got = 0;
            while let Some(strand) = block_on(lanes.next()) {
                let more = if take_along { lanes.take_more(2, |_| true) } else { Vec::new() };
                for strand in std::iter::once(strand).chain(more) {
                    got += 1;
                    if matches!(&strand, Strand::One(job) if job.cold) {
                        lanes.uncount_cold(1);
                    }
                }
            }
            got
        }
    };
    (0..count).map(|_| thread::spawn(worker(lanes.clone()))).collect()
}

/// A worker that sleeps while work is queued would hang here, and one that takes a unit twice would
/// count too much.
#[test]
fn workers_miss_nothing_and_take_nothing_twice_and_end_when_the_lanes_are_closed() {
    for take_along in [false, true] {
        explore(orders(), move || {
            let lanes = Arc::new(Lanes::new(2, 4));
            let workers = workers(&lanes, 2, take_along);
            let writer = thread::spawn({
                let lanes = lanes.clone();
                move || {
                    let mut pushed = 0;
                    for _ in 0..4 {
                        // A full queue is no reason to wait: the poller delivers such an event.
                        if let Some(place) = lanes.reserve() {
                            let hot = Job { cold: false, ..job("hot") };
                            pushed += usize::from(lanes.push_hot(hot, place));
                        }
                    }
                    pushed
                }
            });
            let taker = thread::spawn({
                let lanes = lanes.clone();
                move || {
                    for _ in 0..2 {
                        lanes.count_cold(2);
                        lanes.push_cold(vec![Strand::One(job("cold")), Strand::One(job("cold"))]);
                    }
                    4
                }
            });
            let pushed: usize = join(vec![writer, taker]).iter().sum();
            lanes.close(2);
            assert_eq!(join(workers).iter().sum::<usize>(), pushed);
            assert_eq!(lanes.depths(), (0, 0), "all places are free again");
        });
    }
}

/// The taker waits when the cold queue is full; the notification that it has drained may come at
/// any moment.
#[test]
fn a_taker_that_waits_for_room_is_woken_and_never_takes_more_than_there_is() {
    explore(orders(), || {
        let lanes = Arc::new(Lanes::new(1, 3));
        let workers = workers(&lanes, 2, false);
        let mut left = 9;
        while left > 0 {
            let room = lanes.cold_room();
            assert!(room <= 3);
            if room == 0 {
                block_on(lanes.wait_for_room());
                continue;
            }
            let count = room.min(left);
            lanes.count_cold(count);
            assert!(lanes.depths().1 <= 3, "more than there is room for");
            lanes.push_cold((0..count).map(|_| Strand::One(job("cold"))).collect());
            left -= count;
        }
        lanes.close(2);
        assert_eq!(join(workers).iter().sum::<usize>(), 9);
    });
}

/// Lost leadership clears the queues while writer and workers use them. No thread hangs, and
/// nothing stays counted.
#[test]
fn lanes_that_are_cleared_at_any_moment_still_end_and_count_right() {
    explore(orders(), || {
        let lanes = Arc::new(Lanes::new(2, 4));
        let workers = workers(&lanes, 2, true);
        let clears = thread::spawn({
            let lanes = lanes.clone();
            move || lanes.clear()
        });
        for _ in 0..2 {
            if let Some(place) = lanes.reserve() {
                lanes.push_hot(Job { cold: false, ..job("hot") }, place);
            }
        }
        join(vec![clears]);
        // From here on all work is handled again.
        lanes.push_cold(vec![Strand::One(Job { cold: false, ..job("cold") })]);
        lanes.close(2);
        join(workers);
        assert_eq!(lanes.depths(), (0, 0));
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
fn an_event_is_never_both_on_the_hot_and_on_the_cold_way() {
    explore(orders(), || {
        let (lanes, held) = (Arc::new(Lanes::new(2, 4)), Arc::new(Held::default()));
        let table = Arc::new(Mutex::new(Table::default()));
        let writer = thread::spawn({
            let (lanes, held, table) = (lanes.clone(), held.clone(), table.clone());
            move || {
                for seq in 0..2 {
                    let id = EventId::generate();
                    let place = lanes.reserve();
                    let reserved = place.filter(|_| held.reserve(&id, tag(EPOCH, 0), None));
                    table.lock().unwrap().pending.push((id.clone(), seq, None));
                    if let Some(place) = reserved {
                        held.committed(&id, tag(EPOCH, 0));
                        assert!(lanes.push_hot(delivery(&id, seq, false), place), "nothing is closed yet");
                    }
                }
            }
        });
        let poll = |lanes: &Lanes, held: &Held, table: &Mutex<Table>| {
            held.begin_read();
            let seen = table.lock().unwrap().pending.clone();
            let mut strands = Vec::new();
            for (id, seq, _) in seen {
                if held.admit(&id, tag(EPOCH, 0), None) {
                    strands.push(Strand::One(delivery(&id, seq, true)));
                }
            }
            lanes.count_cold(strands.len());
            lanes.push_cold(strands);
        };
        let poller = thread::spawn({
            let (lanes, held, table) = (lanes.clone(), held.clone(), table.clone());
            move || (0..3).for_each(|_| poll(&lanes, &held, &table))
        });
        let works = |lanes: Arc<Lanes>, held: Arc<Held>, table: Arc<Mutex<Table>>| {
            move || {
                while let Some(Strand::One(job)) = block_on(lanes.next()) {
                    let id = job.delivery.event.id();
                    if job.cold {
                        lanes.uncount_cold(1);
                    }
                    assert!(held.start(id, job.tag(), Instant::now()), "it is held by this node");
                    table.lock().unwrap().starts(id);
                    table.lock().unwrap().ends(id);
                    // As the settler does: first in the table, then in memory.
                    table.lock().unwrap().pending.retain(|(pending, ..)| pending != id);
                    held.settled([(id, job.tag())], true);
                }
            }
        };
        let workers: Vec<_> =
            (0..2).map(|_| thread::spawn(works(lanes.clone(), held.clone(), table.clone()))).collect();
        join(vec![writer, poller]);
        // Events that found the hot queue full.
        poll(&lanes, &held, &table);
        lanes.close(2);
        join(workers);
        let table = table.lock().unwrap();
        assert_eq!(table.handled.len(), 2, "all are handled");
        assert!(table.handled.values().all(|times| *times == 1), "and once");
        assert_eq!(held.len(), 0);
    });
}

/// One event fails once: all later ones wait, whatever the poller has read before the verdict was
/// written.
#[test]
fn the_events_of_a_key_are_handled_in_order_also_when_one_is_not_done() {
    const KEY: &str = "key";
    explore(orders(), || {
        let (lanes, held) = (Arc::new(Lanes::new(1, 8)), Arc::new(Held::default()));
        let runs = Arc::new(Runs::default());
        let pending = (0..3).map(|seq| (EventId::generate(), seq, Some(KEY))).collect();
        let table = Arc::new(Mutex::new(Table { pending, ..Table::default() }));
        let order = Arc::new(Mutex::new(Vec::new()));
        let poll = |lanes: &Lanes, held: &Held, runs: &Runs, table: &Mutex<Table>| {
            held.begin_read();
            let frontiers = runs.begin_read();
            let seen = table.lock().unwrap().pending.clone();
            // The table would return only the later events of a key that this node holds.
            let _ = frontiers;
            let jobs: Vec<Job> = seen
                .iter()
                .filter(|(id, ..)| held.admit(id, tag(EPOCH, 0), None))
                .map(|(id, seq, _)| delivery(id, *seq, true))
                .collect();
            lanes.count_cold(jobs.len());
            if jobs.is_empty() {
                return;
            }
            let Pushed { scheduled, refused } =
                runs.push(jobs.into_iter().map(|job| (RunId::of_key(KEY), job)).collect());
            lanes.push_cold(scheduled.into_iter().map(Strand::Key).collect());
            refused.iter().for_each(|job| held.forget(job.delivery.event.id(), job.tag()));
            lanes.uncount_cold(refused.len());
        };
        let poller = thread::spawn({
            let (lanes, held, runs, table) = (lanes.clone(), held.clone(), runs.clone(), table.clone());
            move || (0..3).for_each(|_| poll(&lanes, &held, &runs, &table))
        });
        let failed = Arc::new(Mutex::new(false));
        let worker = thread::spawn({
            let (lanes, held, runs) = (lanes.clone(), held.clone(), runs.clone());
            let (table, order) = (table.clone(), order.clone());
            move || {
                while let Some(Strand::Key(key)) = block_on(lanes.next()) {
                    while let Next::Job(job) = runs.next(&key, |_| Way::Here) {
                        lanes.uncount_cold(1);
                        let id = job.delivery.event.id().clone();
                        assert!(held.start(&id, job.tag(), Instant::now()));
                        order.lock().unwrap().push(job.delivery.seq);
                        let fails = job.delivery.seq == Some(1)
                            && !std::mem::replace(&mut *failed.lock().unwrap(), true);
                        if !fails {
                            table.lock().unwrap().pending.retain(|(pending, ..)| *pending != id);
                            held.settled([(&id, job.tag())], true);
                            runs.settled([(key.clone(), 1, false)]);
                            continue;
                        }
                        let rest = runs.halt(&key);
                        lanes.uncount_cold(rest.len());
                        let count = rest.len() + 1;
                        let all = std::iter::once(&job).chain(&rest);
                        held.settled(all.map(|job| (job.delivery.event.id(), job.tag())), true);
                        runs.settled([(key.clone(), count, true)]);
                        break;
                    }
                }
            }
        });
        join(vec![poller]);
        while !table.lock().unwrap().pending.is_empty() {
            poll(&lanes, &held, &runs, &table);
            thread::yield_now();
        }
        lanes.close(1);
        join(vec![worker]);
        assert_eq!(*order.lock().unwrap(), [Some(0), Some(1), Some(1), Some(2)]);
        assert_eq!((held.len(), lanes.depths()), (0, (0, 0)));
    });
}
