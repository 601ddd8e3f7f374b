//! Limits shared by the relays of a fleet's databases: concurrent handlers, and turns to poll.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::selection::{Polled, Selection};
use crate::join::JoinDatabases;
use crate::sql::budget::Seat;

/// Limits shared by all relays of a fleet.
pub(crate) struct SharedLimits {
    handlers: Arc<Semaphore>,
    turns: Arc<PollTurns>,
}

impl SharedLimits {
    pub(crate) fn new(handlers: usize, turns: usize, selection: Box<dyn Selection>) -> Self {
        Self { handlers: Arc::new(Semaphore::new(handlers)), turns: PollTurns::new(turns, selection) }
    }
}

/// The limits that apply to one relay of the fleet.
#[derive(Clone)]
pub(crate) struct FleetLimits {
    pub(crate) share: Arc<SharedLimits>,
    pub(crate) seat: Arc<Seat>,
    /// The other databases, which may hold joins.
    pub(crate) homes: Arc<dyn JoinDatabases>,
}

impl FleetLimits {
    /// Waits until a handler may run.
    pub(crate) async fn handler(&self) -> Option<OwnedSemaphorePermit> {
        self.share.handlers.clone().acquire_owned().await.ok()
    }

    /// Ends `over`, if given, and waits for the next turn to poll. `None`: no turn is needed. A
    /// failing database has its own limits, and must not keep a turn from others while it waits.
    pub(crate) async fn turn(&self, over: Option<PollTurn>) -> Option<PollTurn> {
        if self.seat.is_troubled() {
            return None;
        }
        self.share.turns.next(&self.seat.name, over).await
    }
}

/// Assigns turns to poll.
struct PollTurns(Mutex<TurnState>);

struct TurnState {
    free: usize,
    /// In the order of their requests.
    waiting: Vec<(String, oneshot::Sender<PollTurn>)>,
    selection: Box<dyn Selection>,
    last: Option<(String, usize)>,
}

/// The right to poll once. Ends when dropped.
pub(crate) struct PollTurn {
    name: String,
    /// Number of events that the poll returned.
    events: usize,
    /// `None` once the turn has ended.
    turns: Option<Arc<PollTurns>>,
}

impl PollTurn {
    /// Records the result of the poll.
    pub(crate) fn gave(turn: &mut Option<PollTurn>, events: usize) {
        if let Some(turn) = turn {
            turn.events = events;
        }
    }
}

impl Drop for PollTurn {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            let mut state = turns.state();
            state.end(std::mem::take(&mut self.name), self.events);
            turns.give_out(&mut state);
        }
    }
}

impl TurnState {
    fn end(&mut self, name: String, events: usize) {
        self.free += 1;
        self.last = Some((name, events));
    }
}

impl PollTurns {
    fn new(turns: usize, selection: Box<dyn Selection>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(TurnState { free: turns, waiting: Vec::new(), selection, last: None })))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, TurnState> {
        self.0.lock().expect("no panic while this lock is held")
    }

    /// Ends a turn and requests another in one step: a selection that stays with this database must
    /// find it waiting.
    async fn next(self: &Arc<Self>, name: &str, over: Option<PollTurn>) -> Option<PollTurn> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.state();
            state.waiting.push((name.to_owned(), sender));
            if let Some(mut over) = over {
                over.turns = None;
                state.end(std::mem::take(&mut over.name), over.events);
            }
            self.give_out(&mut state);
        }
        receiver.await.ok()
    }

    fn give_out(self: &Arc<Self>, state: &mut TurnState) {
        loop {
            state.waiting.retain(|(_, sender)| !sender.is_closed());
            if state.free == 0 || state.waiting.is_empty() {
                return;
            }
            let names: Vec<&str> = state.waiting.iter().map(|(name, _)| name.as_str()).collect();
            let last = state.last.as_ref().map(|(name, events)| Polled { name, events: *events });
            // The selection is application code: if it panics, the database that has waited longest
            // is next.
            let selection = &mut state.selection;
            let chosen = catch_unwind(AssertUnwindSafe(|| selection.next(&names, last)));
            let chosen = chosen.ok().filter(|chosen| *chosen < names.len()).unwrap_or(0);
            let (name, sender) = state.waiting.remove(chosen);
            state.free -= 1;
            let turn = PollTurn { name, events: 0, turns: Some(self.clone()) };
            if let Err(mut turn) = sender.send(turn) {
                // The request was dropped in the meantime.
                turn.turns = None;
                state.free += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::selection::{DrainFirst, RoundRobin};
    use super::*;

    /// The order in which three databases with three batches each are polled, one at a time.
    async fn order(selection: impl Selection) -> String {
        let turns = PollTurns::new(1, Box::new(selection));
        let polled: Arc<Mutex<String>> = Arc::default();
        // Blocks the others until all three wait.
        let gate = turns.next("", None).await;
        let mut tasks = Vec::new();
        for name in ["C", "A", "B"] {
            let (turns, polled) = (turns.clone(), polled.clone());
            tasks.push(tokio::spawn(async move {
                let mut turn = None;
                for _ in 0..3 {
                    turn = turns.next(name, turn.take()).await;
                    polled.lock().unwrap().push_str(name);
                    PollTurn::gave(&mut turn, 50);
                    tokio::task::yield_now().await;
                }
            }));
        }
        while turns.state().waiting.len() < 3 {
            tokio::task::yield_now().await;
        }
        drop(gate);
        for task in tasks {
            task.await.unwrap();
        }
        let polled = polled.lock().unwrap().clone();
        assert_eq!(turns.state().free, 1);
        polled
    }

    #[tokio::test]
    async fn round_robin_takes_one_batch_of_each() {
        assert_eq!(order(RoundRobin).await, "ABCABCABC");
    }

    #[tokio::test]
    async fn drain_first_stays_until_there_is_no_more() {
        assert_eq!(order(DrainFirst).await, "AAABBBCCC");
    }

    #[tokio::test]
    async fn a_dropped_request_does_not_keep_a_turn() {
        let turns = PollTurns::new(1, Box::new(RoundRobin));
        let first = turns.next("a", None).await;
        let mut gone = Box::pin(turns.next("b", None));
        assert!(futures_util::FutureExt::now_or_never(gone.as_mut()).is_none());
        drop(gone);
        drop(first);
        assert!(turns.next("c", None).await.is_some());
    }

    /// Whatever a selection returns, a database is polled next.
    #[tokio::test]
    async fn an_index_out_of_range_selects_the_first() {
        struct OutOfRange;
        impl Selection for OutOfRange {
            fn next(&mut self, _: &[&str], _: Option<Polled<'_>>) -> usize {
                usize::MAX
            }
        }
        assert!(PollTurns::new(1, Box::new(OutOfRange)).next("a", None).await.is_some());
    }
}
