//! Tests of hostile rows, the webhook receiver, and a database with a single writer.

use super::*;

fn hostile(history: &mut TestHistory, arena: Arena, id: &str) {
    let (id, text) = (id.to_owned(), "claims 2147483647".to_owned());
    history.record(500, "world", Op::Foreign { arena, id, text });
}

/// Any outcome is accepted: delivered, dead-lettered or pending forever.
#[test]
fn hostile_rows_are_no_phantoms_and_may_wait_or_die() {
    for status in [0, 1, 2, 3] {
        let mut history = good();
        hostile(&mut history, Arena::Multi, "poison-1");
        let row = Row { status, seq: -1, key: String::new(), attempts: 0, error: "expired".to_owned() };
        history.state.rows.insert("poison-1".to_owned(), row);
        history.run(3 * SECOND, A, "poison-1", HandlerOutcome::Done);
        history.run(4 * SECOND, B, "poison-1", HandlerOutcome::Done);
        history.finds(&[]);
        let counts = history.verdict().counts;
        assert_eq!((counts.foreign, counts.foreign_delivered), (1, 1));
        assert_eq!(counts.foreign_dead, usize::from(status == 3));
        assert_eq!(counts.dead, 1, "hostile rows are counted separately");
    }
}

#[test]
fn a_hostile_row_of_another_arena_is_a_phantom_here() {
    let mut history = good();
    hostile(&mut history, Arena::Single, "poison-1");
    history.run(3 * SECOND, A, "poison-1", HandlerOutcome::Done);
    history.finds(&[Breach::Phantom]);
}

#[test]
fn a_hostile_row_that_is_delivered_again_and_again_is_caught() {
    let mut history = good();
    hostile(&mut history, Arena::Multi, "poison-1");
    for n in 0..25 {
        history.run((3 + n) * SECOND, A, "poison-1", HandlerOutcome::Done);
    }
    history.finds(&[]);
    history.run(40 * SECOND, A, "poison-1", HandlerOutcome::Done);
    history.finds(&[Breach::Endless]);
}

/// The checker exists to find the effects of hostile rows on good ones.
#[test]
fn a_hostile_row_excuses_no_loss() {
    let mut history = good();
    hostile(&mut history, Arena::Multi, "poison-1");
    history.committed(9_000, &[plain("lost")]);
    history.finds(&[Breach::Lost]);
}

/// A process that is stopped in the middle of its transaction blocks all other writers, including
/// those of other arenas.
#[test]
fn on_a_database_with_one_writer_a_stop_of_any_process_excuses_all() {
    for (one_writer, expected) in [(false, [Breach::Again].as_slice()), (true, &[])] {
        for stopped in [A, "single-relay-1.1"] {
            let mut history = good();
            history.record(0, "world", Op::Setup { lease: 4_000, one_writer });
            history.run(7 * SECOND, A, "one", HandlerOutcome::Done);
            history.window("stop", stopped, 2 * SECOND, 3 * SECOND);
            history.finds(expected);
        }
    }
}

fn hook(id: &str) -> Spec {
    Spec { kind: Kind::Hook, ..keyed(id) }
}

/// A history of the broker arena with its webhook receiver.
fn hooked() -> TestHistory {
    let mut history = TestHistory::default();
    history.committed(1_000, &[hook("h1"), hook("h2")]);
    for (n, id) in (1..).zip(["h1", "h2"]) {
        received(&mut history, n * SECOND, id, i64::try_from(n).unwrap());
    }
    history.state.rows.clear();
    history
}

fn received(history: &mut TestHistory, t: u64, id: &str, seq: i64) {
    let op = Op::Received { id: id.to_owned(), seq: Some(seq) };
    history.record(t, crate::receiver::PROCESS, op);
}

#[test]
fn a_complete_history_of_the_receiver_is_accepted() {
    let mut history = hooked();
    history.record(0, "broker-writer-1.1", Op::Setup { lease: 4_000, one_writer: false });
    history.finds_on_broker(&[]);
    assert_eq!(history.broker_verdict().counts.received, 2);
}

#[test]
fn events_that_are_lost_dead_or_out_of_order_at_the_receiver_are_caught() {
    let mut lost = hooked();
    lost.committed(2_000, &[hook("h3")]);
    lost.state.rows.clear();
    lost.finds_on_broker(&[Breach::Lost]);

    let mut dead = hooked();
    dead.committed(2_000, &[hook("h3")]);
    dead.state.rows.get_mut("h3").unwrap().status = 3;
    dead.finds_on_broker(&[Breach::WrongDead]);

    let mut phantom = hooked();
    received(&mut phantom, 4 * SECOND, "h9", 9);
    phantom.finds_on_broker(&[Breach::Phantom]);

    let mut swapped = hooked();
    swapped.committed(2_000, &[hook("h3"), hook("h4")]);
    swapped.state.rows.clear();
    received(&mut swapped, 5 * SECOND, "h4", 4);
    received(&mut swapped, 6 * SECOND, "h3", 3);
    swapped.finds_on_broker(&[Breach::Order]);

    let mut again = hooked();
    received(&mut again, 5 * SECOND, "h1", 1);
    again.finds_on_broker(&[Breach::Again]);
    let (fault, process) = ("receiver".to_owned(), None);
    again.record(4 * SECOND, "world", Op::Hit { fault, process });
    again.finds_on_broker(&[]);
}

impl TestHistory {
    /// The same history with a writer of the broker arena.
    fn on_broker(&self) -> Self {
        let mut history = self.clone();
        for record in history.records.iter_mut().filter(|record| record.p == W) {
            record.p = "broker-writer-1.1".to_owned();
        }
        history
    }

    fn broker_verdict(&self) -> Verdict {
        self.on_broker().verdict_on(Arena::Broker)
    }

    #[track_caller]
    fn finds_on_broker(&self, expected: &[Breach]) {
        self.on_broker().finds_on(Arena::Broker, expected);
    }
}
