//! Tests of the checker: a good history is accepted, and every violation that is planted into it is
//! found.

mod broker;
mod foreign;

use super::*;
use crate::history::{HandlerOutcome, Op, Record};
use crate::state::{JoinRow, Row};
use crate::work::{Kind, Spec};

const SECOND: u64 = 1_000_000;

/// A history that tests modify.
#[derive(Clone, Default)]
struct TestHistory {
    records: Vec<Record>,
    state: State,
    runs: u64,
    /// The last sequence number.
    seq: i64,
}

const A: &str = "multi-relay-1.1";
const B: &str = "multi-relay-2.1";
const W: &str = "multi-writer-1.1";

impl TestHistory {
    fn record(&mut self, t: u64, p: &str, op: Op) {
        self.records.push(Record { t, p: p.to_owned(), op });
    }

    /// A transaction that is committed at this moment.
    fn committed(&mut self, t: u64, specs: &[Spec]) {
        let tx = format!("tx-{}", specs[0].id);
        self.record(t, W, Op::Writing { tx: tx.clone(), events: specs.to_vec() });
        self.record(t + 10, W, Op::Ended { tx, how: Commit::Committed, error: None });
        for spec in specs.iter().filter(|spec| !matches!(spec.kind, Kind::Then | Kind::Sorry)) {
            self.state.markers.insert(spec.id.clone());
            self.row(spec, 1);
        }
    }

    fn row(&mut self, spec: &Spec, status: i64) {
        self.seq += 1;
        let key = spec.key.clone().unwrap_or_default();
        let row = Row { status, seq: self.seq, key, attempts: 0, error: String::new() };
        self.state.rows.insert(spec.id.clone(), row);
    }

    /// A run of a handler that takes a millisecond.
    fn run(&mut self, t: u64, p: &str, id: &str, how: HandlerOutcome) {
        self.run_until(t, t + 1_000, p, id, how);
    }

    fn run_until(&mut self, t: u64, end: u64, p: &str, id: &str, how: HandlerOutcome) {
        let run = self.begin(t, p, id);
        self.record(end, p, Op::Finished { run, how });
    }

    fn begin(&mut self, t: u64, p: &str, id: &str) -> u64 {
        self.runs += 1;
        let (run, seq) = (self.runs, self.state.rows.get(id).map(|row| row.seq));
        self.record(t, p, Op::Started { run, id: id.to_owned(), seq, attempt: 1 });
        run
    }

    fn gone(&mut self, t: u64, process: &str, how: &str, expected: bool) {
        let (process, how) = (process.to_owned(), how.to_owned());
        self.record(t, "world", Op::Gone { process, how, expected });
    }

    fn window(&mut self, fault: &str, process: &str, from: u64, until: u64) {
        let (fault, process) = (fault.to_owned(), Some(process.to_owned()));
        self.record(from, "world", Op::Hit { fault: fault.clone(), process: process.clone() });
        self.record(until, "world", Op::Over { fault, process });
    }

    fn verdict(&self) -> Verdict {
        self.verdict_on(Arena::Multi)
    }

    fn verdict_on(&self, arena: Arena) -> Verdict {
        let mut records = self.records.clone();
        records.sort_by_key(|record| record.t);
        let line = |record| Line { place: "test".to_owned(), record };
        check(arena, &records.into_iter().map(line).collect::<Vec<_>>(), &self.state)
    }

    /// Asserts which violations are found.
    #[track_caller]
    fn finds(&self, expected: &[Breach]) {
        self.finds_on(Arena::Multi, expected);
    }

    #[track_caller]
    fn finds_on(&self, arena: Arena, expected: &[Breach]) {
        let verdict = self.verdict_on(arena);
        let found: Vec<Breach> = verdict.by_breach().into_keys().collect();
        let violations: Vec<String> = verdict.violations.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{}", violations.join("\n"));
    }
}

fn plain(id: &str) -> Spec {
    Spec::new(id, Kind::Plain)
}

fn keyed(id: &str) -> Spec {
    Spec { key: Some("k".to_owned()), ..plain(id) }
}

/// A history with an example of everything and without violations.
fn good() -> TestHistory {
    let mut history = TestHistory::default();
    let rolled_back = plain("rolled-back");
    history.record(5, W, Op::Writing { tx: "tx-r".to_owned(), events: vec![rolled_back] });
    history.record(6, W, Op::Ended { tx: "tx-r".to_owned(), how: Commit::RolledBack, error: None });
    history.record(7, W, Op::Writing { tx: "tx-u".to_owned(), events: vec![plain("unknown")] });
    history.record(8, W, Op::Ended { tx: "tx-u".to_owned(), how: Commit::Unknown, error: None });

    history.committed(1_000, &[plain("one")]);
    history.run(SECOND, A, "one", HandlerOutcome::Failed);
    history.run(2 * SECOND, B, "one", HandlerOutcome::Done);

    history.committed(2_000, &[keyed("k1"), keyed("k2")]);
    history.committed(3_000, &[keyed("k3")]);
    for (n, id) in (1..).zip(["k1", "k2", "k3"]) {
        history.run(n * SECOND, if n == 2 { B } else { A }, id, HandlerOutcome::Done);
    }

    history.committed(4_000, &[Spec::new("doomed", Kind::Doomed)]);
    history.run(SECOND, A, "doomed", HandlerOutcome::Dead);
    history.state.rows.get_mut("doomed").unwrap().status = 3;

    history.committed(5_000, &[Spec::new("book", Kind::Book)]);
    history.run(SECOND, B, "book", HandlerOutcome::Done);
    history.state.ledger.insert("book".to_owned(), 1);
    history.state.balance = 1;

    let join = |id: &str, kind| Spec { join: Some("j".to_owned()), ..Spec::new(id, kind) };
    let steps = [
        join("s1", Kind::Plain),
        join("s2", Kind::Plain),
        join("then", Kind::Then),
        join("sorry", Kind::Sorry),
    ];
    history.committed(6_000, &steps);
    let join_row = JoinRow { expected: 2, attached: 2, completed: 2, failed: 0, status: 1 };
    history.state.joins.insert("j".to_owned(), join_row);
    history.row(&steps[2], 1);
    for (n, id) in (1..).zip(["s1", "s2", "then"]) {
        history.run(n * SECOND, A, id, HandlerOutcome::Done);
    }

    history.committed(7_000, &[Spec::new("l1", Kind::Log), Spec::new("l2", Kind::Log)]);
    for (position, id) in (1..).zip(["l1", "l2"]) {
        history.state.rows.remove(id);
        history.state.log.insert(id.to_owned(), position);
    }
    for publisher in crate::arena::PUBLISHERS {
        let publisher = publisher.to_owned();
        history.state.progress.insert(publisher.clone(), 2);
        history.record(
            SECOND,
            A,
            Op::Published { publisher: publisher.clone(), epoch: Some(1), positions: vec![1, 2] },
        );
        for (t, position) in [(SECOND, 0), (2 * SECOND, 2)] {
            history.record(t, "world", Op::Position { publisher: publisher.clone(), position });
        }
    }
    for process in [A, B, W] {
        history.gone(60 * SECOND, process, "exit code 0", true);
    }
    history
}

#[test]
fn a_good_history_is_accepted() {
    good().finds(&[]);
    let counts = good().verdict().counts;
    assert_eq!((counts.written, counts.rolled_back, counts.unknown, counts.unknown_there), (10, 2, 1, 0));
    assert_eq!((counts.delivered, counts.retried, counts.twice, counts.dead), (8, 1, 0, 1));
}

#[test]
fn a_loss_is_caught() {
    let mut history = good();
    history.committed(9_000, &[plain("lost")]);
    history.finds(&[Breach::Lost]);
    let verdict = history.verdict();
    assert_eq!(verdict.violations[0].of, "lost");
    assert_eq!(verdict.violations[0].proof.len(), 2, "the lines that prove it");
}

#[test]
fn a_row_that_vanished_is_caught() {
    let mut history = good();
    history.state.rows.remove("one");
    history.finds(&[Breach::Lost]);
}

#[test]
fn a_commit_without_an_answer_must_be_delivered_if_it_is_there() {
    let mut history = good();
    history.state.markers.insert("unknown".to_owned());
    history.finds(&[Breach::Lost]);
    history.row(&plain("unknown"), 1);
    history.run(SECOND, A, "unknown", HandlerOutcome::Done);
    history.finds(&[]);
    assert_eq!(history.verdict().counts.unknown_there, 1);
}

#[test]
fn phantoms_are_caught() {
    for id in ["rolled-back", "unknown", "from nowhere"] {
        let mut history = good();
        history.run(3 * SECOND, A, id, HandlerOutcome::Done);
        history.finds(&[Breach::Phantom]);
    }
}

#[test]
fn a_wrong_commit_result_is_caught() {
    let mut history = good();
    history.state.markers.remove("one");
    history.state.rows.remove("one");
    // The event was delivered, so it is a phantom as well.
    history.finds(&[Breach::Phantom, Breach::Misreported]);
    let mut history = good();
    history.state.markers.insert("rolled-back".to_owned());
    history.finds(&[Breach::Lost, Breach::Misreported]);
}

#[test]
fn an_event_that_is_still_pending_is_caught() {
    let mut history = good();
    history.state.rows.get_mut("one").unwrap().status = 2;
    history.finds(&[Breach::Stuck]);
}

#[test]
fn a_duplicate_without_a_cause_is_caught_and_one_with_a_cause_is_counted() {
    let mut history = good();
    history.run(7 * SECOND, A, "one", HandlerOutcome::Done);
    history.finds(&[Breach::Again]);
    assert_eq!(history.verdict().counts.twice, 1);
    for how in ["signal 9", "signal 6"] {
        let mut killed = history.clone();
        killed.records.retain(|record| !matches!(&record.op, Op::Gone { process, .. } if process == B));
        killed.gone(3 * SECOND, B, how, true);
        killed.finds(&[]);
    }
    for fault in ["cut", "mute", "stop", "restart", "terminate", "full"] {
        let mut hit = history.clone();
        hit.window(fault, B, 2 * SECOND, 3 * SECOND);
        hit.finds(&[]);
    }
    // Too late, to another process, or a fault that cannot be the cause.
    for (fault, whom, when) in [("cut", B, 20), ("cut", A, 2), ("clock", B, 2), ("outage", B, 2)] {
        let mut hit = history.clone();
        hit.window(fault, whom, when * SECOND, when * SECOND + 1);
        hit.finds(&[Breach::Again]);
    }
}

#[test]
fn a_clean_stop_is_no_reason_to_deliver_again() {
    let mut history = good();
    history.records.retain(|record| !matches!(&record.op, Op::Gone { process, .. } if process == B));
    history.gone(3 * SECOND, B, "exit code 0", true);
    history.run(7 * SECOND, A, "one", HandlerOutcome::Done);
    history.finds(&[Breach::Again]);
}

#[test]
fn a_swap_within_a_key_is_caught() {
    let mut history = good();
    history.committed(8_000, &[keyed("k4"), keyed("k5")]);
    history.run(9 * SECOND, A, "k5", HandlerOutcome::Done);
    history.run(10 * SECOND, A, "k4", HandlerOutcome::Done);
    history.finds(&[Breach::Order]);
}

#[test]
fn an_event_that_starts_before_the_one_before_it_has_ended_is_caught() {
    let mut history = good();
    history.committed(8_000, &[keyed("k4"), keyed("k5")]);
    history.run_until(8 * SECOND, 10 * SECOND, A, "k4", HandlerOutcome::Done);
    history.run(9 * SECOND, B, "k5", HandlerOutcome::Done);
    history.finds(&[Breach::Order]);
}

#[test]
fn an_event_that_starts_after_a_failure_of_the_one_before_it_is_caught() {
    let mut history = good();
    history.committed(8_000, &[keyed("k4"), keyed("k5")]);
    history.run(8 * SECOND, A, "k4", HandlerOutcome::Failed);
    history.run(9 * SECOND, A, "k5", HandlerOutcome::Done);
    history.run(10 * SECOND, A, "k4", HandlerOutcome::Done);
    history.finds(&[Breach::Order]);
}

#[test]
fn an_event_that_is_redelivered_after_a_later_one_of_its_key_needs_that_one_redelivered_too() {
    let mut history = good();
    history.committed(8_000, &[keyed("k4"), keyed("k5")]);
    let died = "multi-relay-3.1";
    history.run(8 * SECOND, died, "k4", HandlerOutcome::Done);
    history.run(9 * SECOND, died, "k5", HandlerOutcome::Done);
    history.gone(10 * SECOND, died, "signal 9", true);
    history.finds(&[]);
    history.run(15 * SECOND, B, "k4", HandlerOutcome::Done);
    history.finds(&[Breach::Order]);
    history.run(16 * SECOND, B, "k5", HandlerOutcome::Done);
    history.finds(&[]);
    assert_eq!(history.verdict().counts.twice, 2);
}

#[test]
fn sequence_numbers_that_do_not_follow_commits_are_caught() {
    let mut history = good();
    for (id, seq) in [("k2", 900), ("k3", 800)] {
        history.state.rows.get_mut(id).unwrap().seq = seq;
    }
    for record in &mut history.records {
        if let Op::Started { seq, id, .. } = &mut record.op {
            *seq = history.state.rows.get(id.as_str()).map(|row| row.seq);
        }
    }
    history.finds(&[Breach::Order]);
}

#[test]
fn an_overlap_is_caught_unless_the_lease_had_run_out() {
    let mut history = good();
    history.committed(9_000, &[plain("slow")]);
    history.run_until(10 * SECOND, 20 * SECOND, A, "slow", HandlerOutcome::Done);
    history.run(18 * SECOND, B, "slow", HandlerOutcome::Done);
    history.finds(&[Breach::Overlap]);
    let mut cut = history.clone();
    cut.window("cut", A, 11 * SECOND, 17 * SECOND);
    cut.finds(&[Breach::Overlap]);
    let mut short = history.clone();
    short.window("stop", A, 11 * SECOND, 12 * SECOND);
    short.finds(&[Breach::Overlap]);
    let mut other = history.clone();
    other.window("stop", B, 11 * SECOND, 17 * SECOND);
    other.finds(&[Breach::Overlap]);
    history.window("stop", A, 11 * SECOND, 17 * SECOND);
    history.finds(&[]);
    assert_eq!(history.verdict().counts.excused_overlaps, 1);
}

#[test]
fn a_run_ends_with_its_killed_process() {
    let mut history = good();
    history.committed(9_000, &[plain("cut-short")]);
    history.begin(10 * SECOND, "multi-relay-3.1", "cut-short");
    history.run(15 * SECOND, B, "cut-short", HandlerOutcome::Done);
    let mut unkilled = history.clone();
    unkilled.finds(&[Breach::Overlap]);
    unkilled.gone(16 * SECOND, "multi-relay-3.1", "signal 9", true);
    unkilled.finds(&[Breach::Overlap]);
    history.gone(11 * SECOND, "multi-relay-3.1", "signal 9", true);
    history.finds(&[]);
    assert_eq!(history.verdict().counts.broken_off, 1);
}

#[test]
fn an_event_that_is_dead_for_no_reason_is_caught() {
    let mut history = good();
    history.state.rows.get_mut("one").unwrap().status = 3;
    history.finds(&[Breach::WrongDead]);
    let mut alive = good();
    alive.state.rows.get_mut("doomed").unwrap().status = 1;
    alive.finds(&[Breach::NotDead]);
}

#[test]
fn an_event_is_dead_lettered_for_crashes_only_after_three_disruptions() {
    let mut history = good();
    let row = history.state.rows.get_mut("one").unwrap();
    (row.status, row.error) = (3, "was started 3 times and never came back".to_owned());
    history.finds(&[Breach::WrongDead]);
    for n in 1..=3 {
        history.gone(n * SECOND, &format!("multi-relay-3.{n}"), "signal 9", true);
    }
    history.finds(&[]);
}

/// The last holder was stopped for longer than its lease, and finished when the event was dead.
#[test]
fn a_verdict_that_comes_after_the_dead_letter_settles_nothing() {
    let mut history = good();
    history.committed(8_000, &[keyed("killer"), keyed("next")]);
    history.run_until(4 * SECOND, 31 * SECOND, A, "killer", HandlerOutcome::Done);
    for n in 1..=3 {
        history.gone((n + 4) * SECOND, &format!("multi-relay-3.{n}"), "signal 9", true);
    }
    history.window("stop", A, 10 * SECOND, 30 * SECOND);
    history.run(20 * SECOND, B, "next", HandlerOutcome::Done);
    history.finds(&[Breach::Order]);
    let row = history.state.rows.get_mut("killer").unwrap();
    (row.status, row.error) = (3, "was started 3 times and never came back".to_owned());
    history.finds(&[]);
}

#[test]
fn wrong_counters_of_joins_and_wrong_follow_ups_are_caught() {
    let mut history = good();
    history.state.joins.get_mut("j").unwrap().completed = 1;
    history.finds(&[Breach::Join]);
    let mut history = good();
    history.state.joins.clear();
    history.finds(&[Breach::Join]);
    let mut history = good();
    history.run(4 * SECOND, A, "sorry", HandlerOutcome::Done);
    history.finds(&[Breach::Join]);
    let mut history = good();
    history.records.retain(|record| !matches!(&record.op, Op::Started { id, .. } if id == "then"));
    history.finds(&[Breach::Join]);
}

#[test]
fn bookings_that_are_missing_or_double_are_caught() {
    let mut history = good();
    history.state.ledger.insert("book".to_owned(), 2);
    history.state.balance = 2;
    history.finds(&[Breach::Ledger]);
    history.state.ledger.clear();
    history.state.balance = 0;
    history.finds(&[Breach::Ledger]);
    let mut history = good();
    history.state.balance = 7;
    history.finds(&[Breach::Ledger]);
}

#[test]
fn positions_that_are_skipped_or_go_back_are_caught() {
    let publish = |history: &mut TestHistory, t: u64, positions: Vec<i64>| {
        let op = Op::Published { publisher: "first".to_owned(), epoch: Some(1), positions };
        history.record(t, A, op);
    };
    let mut history = good();
    for (id, position) in [("l3", 3), ("l4", 4)] {
        history.committed(8_000, &[Spec::new(id, Kind::Log)]);
        history.state.rows.remove(id);
        history.state.log.insert(id.to_owned(), position);
    }
    history.state.progress = [("first".to_owned(), 4), ("second".to_owned(), 4)].into();
    let second = Op::Published { publisher: "second".to_owned(), epoch: Some(1), positions: vec![3, 4] };
    history.record(5 * SECOND, A, second);
    history.finds(&[Breach::Lost]);
    let mut skipped = history.clone();
    publish(&mut skipped, 5 * SECOND, vec![4]);
    publish(&mut skipped, 6 * SECOND, vec![3]);
    skipped.finds(&[Breach::Position]);
    publish(&mut history, 5 * SECOND, vec![3, 4]);
    history.finds(&[]);
    publish(&mut history, 6 * SECOND, vec![4]);
    history.finds(&[Breach::Position]);
    let mut back = good();
    back.record(3 * SECOND, "world", Op::Position { publisher: "first".to_owned(), position: 1 });
    back.finds(&[Breach::Position]);
    let mut behind = good();
    behind.state.progress.insert("first".to_owned(), 1);
    behind.finds(&[Breach::Stuck]);
}

#[test]
fn a_process_that_ends_unexpectedly_is_caught() {
    let mut history = good();
    history.gone(7 * SECOND, "multi-relay-9.1", "exit code 101", false);
    history.finds(&[Breach::Process]);
}
