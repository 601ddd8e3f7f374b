//! Record of written and delivered events, independent of the outbox, to verify deliveries.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::latency::Latencies;

/// Tolerance before an event counts as early: SQLite stores milliseconds.
const TOLERANCE: Duration = Duration::from_millis(5);

/// All counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Committed transactions.
    pub(crate) transactions: u64,
    /// Events of committed transactions.
    pub(crate) written: u64,
    /// Transactions that were rolled back.
    pub(crate) rolled_back_transactions: u64,
    /// Events of transactions that were rolled back.
    pub(crate) rolled_back: u64,
    pub(crate) delivered: u64,
    pub(crate) retried: u64,
    pub(crate) dead: u64,
    /// Events that arrived again after they were settled.
    pub(crate) duplicates: u64,
    /// Events that arrived before an earlier event of their customer was settled.
    pub(crate) out_of_order: u64,
    /// Events that arrived before they were due.
    pub(crate) early: u64,
    /// Events that arrived although they were rolled back or never written.
    pub(crate) phantom: u64,
}

impl Totals {
    pub(crate) fn settled(&self) -> u64 {
        self.delivered + self.dead
    }

    pub(crate) fn in_flight(&self) -> u64 {
        // An event may be settled before its writer has recorded the commit.
        self.written.saturating_sub(self.settled())
    }
}

/// Constraints on the delivery of an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expectation {
    /// Delay before the event is due.
    pub(crate) delay: Duration,
    /// Customer, which is the ordering key, and position of the event in its key, without gaps.
    pub(crate) key_position: Option<(u64, u64)>,
}

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Done,
    Again,
    Dead,
}

/// State of an event. One byte for every event ever written, so that phantoms and duplicates are
/// detected however late they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventState {
    Open,
    RolledBack,
    Settled,
}

/// An event that is not settled, or whose commit is not recorded yet.
struct InFlightEvent {
    expected: Expectation,
    opened: Instant,
    committed: Option<Instant>,
    /// Time of the first call of its handler, and whether by the hot path.
    arrived: Option<(Instant, bool)>,
    settled: bool,
}

#[derive(Default)]
struct LedgerState {
    totals: Totals,
    event_states: Vec<EventState>,
    in_flight_events: HashMap<u64, InFlightEvent>,
    /// Position that the next event of each customer must have.
    next_position: HashMap<u64, u64>,
    hot: Latencies,
    all: Latencies,
    last_settled: Option<Instant>,
}

/// Ledger that writers and the interceptor share. Events are identified by numbers that the ledger
/// assigns.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<LedgerState>);

impl Ledger {
    fn lock(&self) -> std::sync::MutexGuard<'_, LedgerState> {
        self.0.lock().expect("no code panics while holding the state")
    }

    /// Records events that are about to be written in one transaction, and assigns their numbers.
    pub(crate) fn open(&self, events: &[Expectation], now: Instant) -> Range<u64> {
        let mut state = self.lock();
        let first = state.event_states.len() as u64;
        for (expected, number) in events.iter().zip(first..) {
            state.event_states.push(EventState::Open);
            let in_flight_events = InFlightEvent {
                expected: *expected,
                opened: now,
                committed: None,
                arrived: None,
                settled: false,
            };
            state.in_flight_events.insert(number, in_flight_events);
        }
        first..state.event_states.len() as u64
    }

    /// Records that the transaction of these events was committed.
    pub(crate) fn committed(&self, numbers: Range<u64>, now: Instant) {
        let mut state = self.lock();
        state.totals.transactions += 1;
        state.totals.written += numbers.end - numbers.start;
        for number in numbers {
            if let Some(event) = state.in_flight_events.get_mut(&number) {
                event.committed = Some(now);
                state.measure(number);
                state.remove_if_complete(number);
            }
        }
    }

    /// Records that the transaction of these events was rolled back.
    pub(crate) fn rolled_back(&self, numbers: Range<u64>) {
        let mut state = self.lock();
        state.totals.rolled_back_transactions += 1;
        state.totals.rolled_back += numbers.end - numbers.start;
        for number in numbers {
            state.event_states[number as usize] = EventState::RolledBack;
            let event = state.in_flight_events.remove(&number);
            state.totals.phantom += u64::from(event.is_some_and(|event| event.arrived.is_some()));
        }
    }

    /// Records that a handler is about to be called. `number` is `None` for an event without a
    /// number.
    pub(crate) fn arrived(&self, number: Option<u64>, hot: bool, now: Instant) {
        let mut state = self.lock();
        match number.and_then(|number| state.event_states.get(number as usize)) {
            None | Some(EventState::RolledBack) => state.totals.phantom += 1,
            Some(EventState::Settled) => state.totals.duplicates += 1,
            Some(EventState::Open) => state.record_arrival(number.unwrap_or_default(), hot, now),
        }
    }

    /// Records the outcome of the handler.
    pub(crate) fn finished(&self, number: u64, attempt: Attempt, now: Instant) {
        let mut state = self.lock();
        if state.event_states.get(number as usize) != Some(&EventState::Open) {
            return;
        }
        match attempt {
            Attempt::Again => {
                state.totals.retried += 1;
                return;
            }
            Attempt::Done => state.totals.delivered += 1,
            Attempt::Dead => state.totals.dead += 1,
        }
        state.event_states[number as usize] = EventState::Settled;
        state.last_settled = Some(now);
        let Some(event) = state.in_flight_events.get_mut(&number) else { return };
        event.settled = true;
        if let Some((customer, key_position)) = event.expected.key_position {
            state.next_position.insert(customer, key_position + 1);
        }
        state.remove_if_complete(number);
    }

    pub(crate) fn totals(&self) -> Totals {
        self.lock().totals
    }

    /// Time when the last event was settled.
    pub(crate) fn last_settled(&self) -> Option<Instant> {
        self.lock().last_settled
    }

    /// Takes the latencies from commit to handler: those of the hot path, and all.
    pub(crate) fn take_latencies(&self) -> (Latencies, Latencies) {
        let mut state = self.lock();
        (std::mem::take(&mut state.hot), std::mem::take(&mut state.all))
    }
}

impl LedgerState {
    fn record_arrival(&mut self, number: u64, hot: bool, now: Instant) {
        let Some(event) = self.in_flight_events.get_mut(&number) else { return };
        if let Some((customer, key_position)) = event.expected.key_position {
            let next_position = self.next_position.get(&customer).copied().unwrap_or_default();
            self.totals.out_of_order += u64::from(key_position != next_position);
        }
        if event.arrived.is_none() {
            event.arrived = Some((now, hot));
            self.totals.early += u64::from(now + TOLERANCE < event.opened + event.expected.delay);
            self.measure(number);
        }
    }

    /// Records the latency of an event once both its commit and its arrival are known.
    fn measure(&mut self, number: u64) {
        let Some(event) = self.in_flight_events.get(&number) else { return };
        let (Some(committed), Some((arrived, hot))) = (event.committed, event.arrived) else { return };
        // The latency of a delayed event counts from when it is due.
        let due = committed.max(event.opened + event.expected.delay);
        let latency = arrived.saturating_duration_since(due);
        self.all.record(latency);
        if hot {
            self.hot.record(latency);
        }
    }

    fn remove_if_complete(&mut self, number: u64) {
        if self.in_flight_events.get(&number).is_some_and(|event| event.settled && event.committed.is_some())
        {
            self.in_flight_events.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(customer: u64, number: u64) -> Expectation {
        Expectation { key_position: Some((customer, number)), ..Expectation::default() }
    }

    fn deliver(ledger: &Ledger, number: u64) {
        ledger.arrived(Some(number), true, Instant::now());
        ledger.finished(number, Attempt::Done, Instant::now());
    }

    #[test]
    fn a_committed_event_that_arrives_once_is_correct() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[ordered(1, 0), ordered(1, 1)], now);
        ledger.arrived(Some(0), false, now);
        ledger.finished(0, Attempt::Again, now);
        deliver(&ledger, 0);
        ledger.committed(events, now);
        deliver(&ledger, 1);
        let expected = Totals { transactions: 1, written: 2, delivered: 2, retried: 1, ..Totals::default() };
        assert_eq!(ledger.totals(), expected);
    }

    #[test]
    fn an_event_that_was_rolled_back_is_a_phantom_whenever_it_arrives() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[Expectation::default(); 2], now);
        deliver(&ledger, 0);
        ledger.rolled_back(events);
        deliver(&ledger, 1);
        ledger.arrived(None, true, now);
        assert_eq!(ledger.totals().phantom, 3);
    }

    #[test]
    fn a_second_delivery_is_a_duplicate() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[Expectation::default()], now);
        ledger.committed(events, now);
        deliver(&ledger, 0);
        deliver(&ledger, 0);
        assert_eq!((ledger.totals().delivered, ledger.totals().duplicates), (1, 1));
    }

    #[test]
    fn the_second_before_the_first_is_out_of_order_and_after_a_dead_one_is_not() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let events = ledger.open(&[ordered(1, 0), ordered(1, 1), ordered(2, 0), ordered(2, 1)], now);
        ledger.committed(events, now);
        ledger.arrived(Some(1), false, now);
        assert_eq!(ledger.totals().out_of_order, 1);
        ledger.finished(2, Attempt::Dead, now);
        ledger.arrived(Some(3), false, now);
        assert_eq!(ledger.totals().out_of_order, 1);
    }

    #[test]
    fn a_delayed_event_may_not_arrive_at_once() {
        let (ledger, now) = (Ledger::default(), Instant::now());
        let later = Expectation { delay: Duration::from_secs(1), ..Expectation::default() };
        let events = ledger.open(&[later, later], now);
        ledger.committed(events, now);
        ledger.arrived(Some(0), false, now + Duration::from_millis(900));
        ledger.arrived(Some(1), false, now + Duration::from_millis(1_002));
        assert_eq!(ledger.totals().early, 1);
        let (_, all) = ledger.take_latencies();
        assert_eq!(all.max(), Some(Duration::from_millis(2)));
    }
}
