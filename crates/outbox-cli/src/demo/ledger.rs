//! The ledger: what was written and what arrived, kept beside the outbox and compared with it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::latency::Latencies;

/// How far clocks may be apart before an event counts as early: SQLite keeps milliseconds.
const TOLERANCE: Duration = Duration::from_millis(5);

/// Everything that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Transactions that were committed.
    pub(crate) transactions: u64,
    /// Events that they wrote.
    pub(crate) written: u64,
    /// Transactions that were rolled back.
    pub(crate) undone: u64,
    /// Events that they wrote.
    pub(crate) rolled_back: u64,
    pub(crate) delivered: u64,
    pub(crate) retried: u64,
    pub(crate) dead: u64,
    /// Arrived again after they had been delivered.
    pub(crate) duplicates: u64,
    /// Arrived before an earlier event of their customer was through.
    pub(crate) out_of_order: u64,
    /// Arrived before their time.
    pub(crate) early: u64,
    /// Arrived though they were rolled back, or never written.
    pub(crate) phantom: u64,
}

impl Tally {
    pub(crate) fn settled(&self) -> u64 {
        self.delivered + self.dead
    }

    pub(crate) fn in_flight(&self) -> u64 {
        // An event may be through before its writer has noted the commit.
        self.written.saturating_sub(self.settled())
    }
}

/// What an event is expected to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expectation {
    /// Not to arrive before this much time has passed.
    pub(crate) delay: Duration,
    /// The customer in whose order it stands, and its number there, without gaps.
    pub(crate) place: Option<(u64, u64)>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Done,
    Again,
    Dead,
}

/// One byte for every event ever written, so that a phantom or a duplicate is known however late it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    RolledBack,
    Settled,
}

/// An event that is not through yet.
struct Underway {
    expected: Expectation,
    opened: Instant,
    committed: Option<Instant>,
    /// When its handler was first called, and whether straight after the commit, without a read.
    arrived: Option<(Instant, bool)>,
    settled: bool,
}

#[derive(Default)]
struct Book {
    tally: Tally,
    fates: Vec<Fate>,
    underway: HashMap<u64, Underway>,
    /// The number that each customer's next event must have.
    next: HashMap<u64, u64>,
    hot: Latencies,
    all: Latencies,
    last_settled: Option<Instant>,
}

/// Shared by those who write and those who watch. Events are known by a number of its own.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Book>);

impl Ledger {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().expect("no one panics while holding the book")
    }

    /// Notes events that are about to be written in one transaction, and numbers them.
    pub(crate) fn open(&self, events: &[Expectation], now: Instant) -> Range<u64> {
        let mut book = self.book();
        let first = book.fates.len() as u64;
        for (expected, number) in events.iter().zip(first..) {
            book.fates.push(Fate::Open);
            let underway =
                Underway { expected: *expected, opened: now, committed: None, arrived: None, settled: false };
            book.underway.insert(number, underway);
        }
        first..book.fates.len() as u64
    }

    /// Their transaction was committed.
    pub(crate) fn committed(&self, numbers: Range<u64>, now: Instant) {
        let mut book = self.book();
        book.tally.transactions += 1;
        book.tally.written += numbers.end - numbers.start;
        for number in numbers {
            if let Some(event) = book.underway.get_mut(&number) {
                event.committed = Some(now);
                book.measure(number);
                book.forget_if_through(number);
            }
        }
    }

    /// Their transaction was rolled back.
    pub(crate) fn rolled_back(&self, numbers: Range<u64>) {
        let mut book = self.book();
        book.tally.undone += 1;
        book.tally.rolled_back += numbers.end - numbers.start;
        for number in numbers {
            book.fates[number as usize] = Fate::RolledBack;
            let event = book.underway.remove(&number);
            book.tally.phantom += u64::from(event.is_some_and(|event| event.arrived.is_some()));
        }
    }

    /// A handler is about to be called. `number` is `None` for an event that carries none of ours.
    pub(crate) fn arrived(&self, number: Option<u64>, hot: bool, now: Instant) {
        let mut book = self.book();
        match number.and_then(|number| book.fates.get(number as usize)) {
            None | Some(Fate::RolledBack) => book.tally.phantom += 1,
            Some(Fate::Settled) => book.tally.duplicates += 1,
            Some(Fate::Open) => book.first_or_again(number.unwrap_or_default(), hot, now),
        }
    }

    /// The handler has spoken.
    pub(crate) fn finished(&self, number: u64, attempt: Attempt, now: Instant) {
        let mut book = self.book();
        if book.fates.get(number as usize) != Some(&Fate::Open) {
            return;
        }
        match attempt {
            Attempt::Again => {
                book.tally.retried += 1;
                return;
            }
            Attempt::Done => book.tally.delivered += 1,
            Attempt::Dead => book.tally.dead += 1,
        }
        book.fates[number as usize] = Fate::Settled;
        book.last_settled = Some(now);
        let Some(event) = book.underway.get_mut(&number) else { return };
        event.settled = true;
        if let Some((customer, place)) = event.expected.place {
            book.next.insert(customer, place + 1);
        }
        book.forget_if_through(number);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.book().tally
    }

    /// When the last event was settled.
    pub(crate) fn last_settled(&self) -> Option<Instant> {
        self.book().last_settled
    }

    /// Takes out how long events took from commit to handler: those handed over at once, and all.
    pub(crate) fn take_latencies(&self) -> (Latencies, Latencies) {
        let mut book = self.book();
        (std::mem::take(&mut book.hot), std::mem::take(&mut book.all))
    }
}

impl Book {
    fn first_or_again(&mut self, number: u64, hot: bool, now: Instant) {
        let Some(event) = self.underway.get_mut(&number) else { return };
        if let Some((customer, place)) = event.expected.place {
            let next = self.next.get(&customer).copied().unwrap_or_default();
            self.tally.out_of_order += u64::from(place != next);
        }
        if event.arrived.is_none() {
            event.arrived = Some((now, hot));
            self.tally.early += u64::from(now + TOLERANCE < event.opened + event.expected.delay);
            self.measure(number);
        }
    }

    /// Takes the time of an event whose commit and arrival are both known.
    fn measure(&mut self, number: u64) {
        let Some(event) = self.underway.get(&number) else { return };
        let (Some(committed), Some((arrived, hot))) = (event.committed, event.arrived) else { return };
        // What is put off is late only from then on.
        let due = committed.max(event.opened + event.expected.delay);
        let latency = arrived.saturating_duration_since(due);
        self.all.record(latency);
        if hot {
            self.hot.record(latency);
        }
    }

    fn forget_if_through(&mut self, number: u64) {
        if self.underway.get(&number).is_some_and(|event| event.settled && event.committed.is_some()) {
            self.underway.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(customer: u64, number: u64) -> Expectation {
        Expectation { place: Some((customer, number)), ..Expectation::default() }
    }

    fn deliver(ledger: &Ledger, number: u64) {
        ledger.arrived(Some(number), true, Instant::now());
        ledger.finished(number, Attempt::Done, Instant::now());
    }

    #[test]
    fn what_was_committed_and_arrived_once_is_fine() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[ordered(1, 0), ordered(1, 1)], now);
        ledger.arrived(Some(0), false, now);
        ledger.finished(0, Attempt::Again, now);
        deliver(&ledger, 0);
        ledger.committed(events, now);
        deliver(&ledger, 1);
        let expected = Tally { transactions: 1, written: 2, delivered: 2, retried: 1, ..Tally::default() };
        assert_eq!(ledger.tally(), expected);
    }

    #[test]
    fn an_event_that_was_rolled_back_is_a_phantom_whenever_it_comes() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[Expectation::default(); 2], now);
        deliver(&ledger, 0);
        ledger.rolled_back(events);
        deliver(&ledger, 1);
        ledger.arrived(None, true, now);
        assert_eq!(ledger.tally().phantom, 3);
    }

    #[test]
    fn a_second_delivery_is_a_duplicate() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[Expectation::default()], now);
        ledger.committed(events, now);
        deliver(&ledger, 0);
        deliver(&ledger, 0);
        assert_eq!((ledger.tally().delivered, ledger.tally().duplicates), (1, 1));
    }

    #[test]
    fn the_second_before_the_first_is_out_of_order_and_after_a_dead_one_is_not() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[ordered(1, 0), ordered(1, 1), ordered(2, 0), ordered(2, 1)], now);
        ledger.committed(events, now);
        ledger.arrived(Some(1), false, now);
        assert_eq!(ledger.tally().out_of_order, 1);
        ledger.finished(2, Attempt::Dead, now);
        ledger.arrived(Some(3), false, now);
        assert_eq!(ledger.tally().out_of_order, 1);
    }

    #[test]
    fn what_is_put_off_may_not_come_at_once() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let later = Expectation { delay: Duration::from_secs(1), ..Expectation::default() };
        let events = ledger.open(&[later, later], now);
        ledger.committed(events, now);
        ledger.arrived(Some(0), false, now + Duration::from_millis(900));
        ledger.arrived(Some(1), false, now + Duration::from_millis(1_002));
        assert_eq!(ledger.tally().early, 1);
        let (_, all) = ledger.take_latencies();
        assert_eq!(all.max(), Some(Duration::from_millis(2)));
    }
}
