//! The checker itself: a good history is accepted, and whatever is planted into it is caught.

mod broker;
mod foreign;

use super::*;
use crate::history::{Record, Said, What};
use crate::state::{Counted, Row};
use crate::work::{Kind, Spec};

const SECOND: u64 = 1_000_000;

/// A history that can be tampered with.
#[derive(Clone, Default)]
struct Story {
    records: Vec<Record>,
    state: State,
    runs: u64,
    /// The next place in the table.
    seq: i64,
}

const A: &str = "multi-relay-1.1";
const B: &str = "multi-relay-2.1";
const W: &str = "multi-writer-1.1";

impl Story {
    fn note(&mut self, t: u64, p: &str, what: What) {
        self.records.push(Record { t, p: p.to_owned(), what });
    }

    /// A transaction that was committed, at this moment.
    fn committed(&mut self, t: u64, specs: &[Spec]) {
        let tx = format!("tx-{}", specs[0].id);
        self.note(t, W, What::Writing { tx: tx.clone(), events: specs.to_vec() });
        self.note(t + 10, W, What::Ended { tx, how: Commit::Committed, error: None });
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

    /// A run of a handler, which takes a millisecond.
    fn run(&mut self, t: u64, p: &str, id: &str, how: Said) {
        self.run_until(t, t + 1_000, p, id, how);
    }

    fn run_until(&mut self, t: u64, end: u64, p: &str, id: &str, how: Said) {
        let run = self.begin(t, p, id);
        self.note(end, p, What::Finished { run, how });
    }

    fn begin(&mut self, t: u64, p: &str, id: &str) -> u64 {
        self.runs += 1;
        let (run, seq) = (self.runs, self.state.rows.get(id).map(|row| row.seq));
        self.note(t, p, What::Started { run, id: id.to_owned(), seq, attempt: 1 });
        run
    }

    fn gone(&mut self, t: u64, process: &str, how: &str, expected: bool) {
        let (process, how) = (process.to_owned(), how.to_owned());
        self.note(t, "world", What::Gone { process, how, expected });
    }

    fn window(&mut self, fault: &str, process: &str, from: u64, until: u64) {
        let (fault, process) = (fault.to_owned(), Some(process.to_owned()));
        self.note(from, "world", What::Hit { fault: fault.clone(), process: process.clone() });
        self.note(until, "world", What::Over { fault, process });
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

    /// What is found: nothing, if all is well.
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

/// Something of everything, and nothing wrong with it.
fn good() -> Story {
    let mut story = Story::default();
    let rolled_back = plain("rolled-back");
    story.note(5, W, What::Writing { tx: "tx-r".to_owned(), events: vec![rolled_back] });
    story.note(6, W, What::Ended { tx: "tx-r".to_owned(), how: Commit::RolledBack, error: None });
    story.note(7, W, What::Writing { tx: "tx-u".to_owned(), events: vec![plain("unknown")] });
    story.note(8, W, What::Ended { tx: "tx-u".to_owned(), how: Commit::Unknown, error: None });

    story.committed(1_000, &[plain("one")]);
    story.run(SECOND, A, "one", Said::Failed);
    story.run(2 * SECOND, B, "one", Said::Done);

    story.committed(2_000, &[keyed("k1"), keyed("k2")]);
    story.committed(3_000, &[keyed("k3")]);
    for (n, id) in (1..).zip(["k1", "k2", "k3"]) {
        story.run(n * SECOND, if n == 2 { B } else { A }, id, Said::Done);
    }

    story.committed(4_000, &[Spec::new("doomed", Kind::Doomed)]);
    story.run(SECOND, A, "doomed", Said::Dead);
    story.state.rows.get_mut("doomed").unwrap().status = 3;

    story.committed(5_000, &[Spec::new("book", Kind::Book)]);
    story.run(SECOND, B, "book", Said::Done);
    story.state.ledger.insert("book".to_owned(), 1);
    story.state.balance = 1;

    let join = |id: &str, kind| Spec { join: Some("j".to_owned()), ..Spec::new(id, kind) };
    let steps = [
        join("s1", Kind::Plain),
        join("s2", Kind::Plain),
        join("then", Kind::Then),
        join("sorry", Kind::Sorry),
    ];
    story.committed(6_000, &steps);
    let counted = Counted { expected: 2, attached: 2, completed: 2, failed: 0, status: 1 };
    story.state.joins.insert("j".to_owned(), counted);
    story.row(&steps[2], 1);
    for (n, id) in (1..).zip(["s1", "s2", "then"]) {
        story.run(n * SECOND, A, id, Said::Done);
    }

    story.committed(7_000, &[Spec::new("l1", Kind::Log), Spec::new("l2", Kind::Log)]);
    for (position, id) in (1..).zip(["l1", "l2"]) {
        story.state.rows.remove(id);
        story.state.log.insert(id.to_owned(), position);
    }
    for publisher in crate::arena::PUBLISHERS {
        let publisher = publisher.to_owned();
        story.state.progress.insert(publisher.clone(), 2);
        story.note(
            SECOND,
            A,
            What::Published { publisher: publisher.clone(), epoch: Some(1), positions: vec![1, 2] },
        );
        for (t, position) in [(SECOND, 0), (2 * SECOND, 2)] {
            story.note(t, "world", What::Position { publisher: publisher.clone(), position });
        }
    }
    for process in [A, B, W] {
        story.gone(60 * SECOND, process, "exit code 0", true);
    }
    story
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
    let mut story = good();
    story.committed(9_000, &[plain("lost")]);
    story.finds(&[Breach::Lost]);
    let verdict = story.verdict();
    assert_eq!(verdict.violations[0].of, "lost");
    assert_eq!(verdict.violations[0].proof.len(), 2, "the lines that prove it");
}

#[test]
fn a_row_that_vanished_is_caught() {
    let mut story = good();
    story.state.rows.remove("one");
    story.finds(&[Breach::Lost]);
}

#[test]
fn a_commit_without_an_answer_must_be_delivered_if_it_is_there() {
    let mut story = good();
    story.state.markers.insert("unknown".to_owned());
    story.finds(&[Breach::Lost]);
    story.row(&plain("unknown"), 1);
    story.run(SECOND, A, "unknown", Said::Done);
    story.finds(&[]);
    assert_eq!(story.verdict().counts.unknown_there, 1);
}

#[test]
fn phantoms_are_caught() {
    for id in ["rolled-back", "unknown", "from nowhere"] {
        let mut story = good();
        story.run(3 * SECOND, A, id, Said::Done);
        story.finds(&[Breach::Phantom]);
    }
}

#[test]
fn a_writer_that_was_told_a_lie_is_believed() {
    let mut story = good();
    story.state.markers.remove("one");
    story.state.rows.remove("one");
    // It was delivered as well, and is not there.
    story.finds(&[Breach::Phantom, Breach::Misreported]);
    let mut story = good();
    story.state.markers.insert("rolled-back".to_owned());
    story.finds(&[Breach::Lost, Breach::Misreported]);
}

#[test]
fn what_still_waits_is_caught() {
    let mut story = good();
    story.state.rows.get_mut("one").unwrap().status = 2;
    story.finds(&[Breach::Stuck]);
}

#[test]
fn a_duplicate_without_a_cause_is_caught_and_one_with_a_cause_is_counted() {
    let mut story = good();
    story.run(7 * SECOND, A, "one", Said::Done);
    story.finds(&[Breach::Again]);
    assert_eq!(story.verdict().counts.twice, 1);
    for how in ["signal 9", "signal 6"] {
        let mut killed = story.clone();
        killed.records.retain(|record| !matches!(&record.what, What::Gone { process, .. } if process == B));
        killed.gone(3 * SECOND, B, how, true);
        killed.finds(&[]);
    }
    for fault in ["cut", "mute", "stop", "restart", "terminate", "full"] {
        let mut hit = story.clone();
        hit.window(fault, B, 2 * SECOND, 3 * SECOND);
        hit.finds(&[]);
    }
    // Long after, or to somebody else, or nothing that could be a reason.
    for (fault, whom, when) in [("cut", B, 20), ("cut", A, 2), ("clock", B, 2), ("outage", B, 2)] {
        let mut hit = story.clone();
        hit.window(fault, whom, when * SECOND, when * SECOND + 1);
        hit.finds(&[Breach::Again]);
    }
}

#[test]
fn a_clean_stop_is_no_reason_to_deliver_again() {
    let mut story = good();
    story.records.retain(|record| !matches!(&record.what, What::Gone { process, .. } if process == B));
    story.gone(3 * SECOND, B, "exit code 0", true);
    story.run(7 * SECOND, A, "one", Said::Done);
    story.finds(&[Breach::Again]);
}

#[test]
fn a_swap_within_a_key_is_caught() {
    let mut story = good();
    story.committed(8_000, &[keyed("k4"), keyed("k5")]);
    story.run(9 * SECOND, A, "k5", Said::Done);
    story.run(10 * SECOND, A, "k4", Said::Done);
    story.finds(&[Breach::Order]);
}

#[test]
fn an_event_that_starts_before_the_one_before_it_has_ended_is_caught() {
    let mut story = good();
    story.committed(8_000, &[keyed("k4"), keyed("k5")]);
    story.run_until(8 * SECOND, 10 * SECOND, A, "k4", Said::Done);
    story.run(9 * SECOND, B, "k5", Said::Done);
    story.finds(&[Breach::Order]);
}

#[test]
fn an_event_that_starts_after_a_failure_of_the_one_before_it_is_caught() {
    let mut story = good();
    story.committed(8_000, &[keyed("k4"), keyed("k5")]);
    story.run(8 * SECOND, A, "k4", Said::Failed);
    story.run(9 * SECOND, A, "k5", Said::Done);
    story.run(10 * SECOND, A, "k4", Said::Done);
    story.finds(&[Breach::Order]);
}

#[test]
fn what_comes_again_after_a_later_one_of_its_key_brings_that_one_along() {
    let mut story = good();
    story.committed(8_000, &[keyed("k4"), keyed("k5")]);
    let died = "multi-relay-3.1";
    story.run(8 * SECOND, died, "k4", Said::Done);
    story.run(9 * SECOND, died, "k5", Said::Done);
    story.gone(10 * SECOND, died, "signal 9", true);
    story.finds(&[]);
    story.run(15 * SECOND, B, "k4", Said::Done);
    story.finds(&[Breach::Order]);
    story.run(16 * SECOND, B, "k5", Said::Done);
    story.finds(&[]);
    assert_eq!(story.verdict().counts.twice, 2);
}

#[test]
fn numbers_that_do_not_follow_commits_are_caught() {
    let mut story = good();
    for (id, seq) in [("k2", 900), ("k3", 800)] {
        story.state.rows.get_mut(id).unwrap().seq = seq;
    }
    for record in &mut story.records {
        if let What::Started { seq, id, .. } = &mut record.what {
            *seq = story.state.rows.get(id.as_str()).map(|row| row.seq);
        }
    }
    story.finds(&[Breach::Order]);
}

#[test]
fn an_overlap_is_caught_unless_the_lease_had_run_out() {
    let mut story = good();
    story.committed(9_000, &[plain("slow")]);
    story.run_until(10 * SECOND, 20 * SECOND, A, "slow", Said::Done);
    story.run(18 * SECOND, B, "slow", Said::Done);
    story.finds(&[Breach::Overlap]);
    let mut cut = story.clone();
    cut.window("cut", A, 11 * SECOND, 17 * SECOND);
    cut.finds(&[Breach::Overlap]);
    let mut short = story.clone();
    short.window("stop", A, 11 * SECOND, 12 * SECOND);
    short.finds(&[Breach::Overlap]);
    let mut other = story.clone();
    other.window("stop", B, 11 * SECOND, 17 * SECOND);
    other.finds(&[Breach::Overlap]);
    story.window("stop", A, 11 * SECOND, 17 * SECOND);
    story.finds(&[]);
    assert_eq!(story.verdict().counts.excused_overlaps, 1);
}

#[test]
fn what_a_killed_process_had_started_ends_with_it() {
    let mut story = good();
    story.committed(9_000, &[plain("cut-short")]);
    story.begin(10 * SECOND, "multi-relay-3.1", "cut-short");
    story.run(15 * SECOND, B, "cut-short", Said::Done);
    let mut unkilled = story.clone();
    unkilled.finds(&[Breach::Overlap]);
    unkilled.gone(16 * SECOND, "multi-relay-3.1", "signal 9", true);
    unkilled.finds(&[Breach::Overlap]);
    story.gone(11 * SECOND, "multi-relay-3.1", "signal 9", true);
    story.finds(&[]);
    assert_eq!(story.verdict().counts.broken_off, 1);
}

#[test]
fn an_event_that_is_dead_for_no_reason_is_caught() {
    let mut story = good();
    story.state.rows.get_mut("one").unwrap().status = 3;
    story.finds(&[Breach::WrongDead]);
    let mut alive = good();
    alive.state.rows.get_mut("doomed").unwrap().status = 1;
    alive.finds(&[Breach::NotDead]);
}

#[test]
fn an_event_is_buried_only_after_three_blows() {
    let mut story = good();
    let row = story.state.rows.get_mut("one").unwrap();
    (row.status, row.error) = (3, "was started 3 times and never came back".to_owned());
    story.finds(&[Breach::WrongDead]);
    for n in 1..=3 {
        story.gone(n * SECOND, &format!("multi-relay-3.{n}"), "signal 9", true);
    }
    story.finds(&[]);
}

/// Its last holder was stopped for longer than its lease, and finished when the event was dead.
#[test]
fn a_verdict_that_comes_after_a_burial_settles_nothing() {
    let mut story = good();
    story.committed(8_000, &[keyed("killer"), keyed("next")]);
    story.run_until(4 * SECOND, 31 * SECOND, A, "killer", Said::Done);
    for n in 1..=3 {
        story.gone((n + 4) * SECOND, &format!("multi-relay-3.{n}"), "signal 9", true);
    }
    story.window("stop", A, 10 * SECOND, 30 * SECOND);
    story.run(20 * SECOND, B, "next", Said::Done);
    story.finds(&[Breach::Order]);
    let row = story.state.rows.get_mut("killer").unwrap();
    (row.status, row.error) = (3, "was started 3 times and never came back".to_owned());
    story.finds(&[]);
}

#[test]
fn wrong_counters_of_joins_and_wrong_follow_ups_are_caught() {
    let mut story = good();
    story.state.joins.get_mut("j").unwrap().completed = 1;
    story.finds(&[Breach::Join]);
    let mut story = good();
    story.state.joins.clear();
    story.finds(&[Breach::Join]);
    let mut story = good();
    story.run(4 * SECOND, A, "sorry", Said::Done);
    story.finds(&[Breach::Join]);
    let mut story = good();
    story.records.retain(|record| !matches!(&record.what, What::Started { id, .. } if id == "then"));
    story.finds(&[Breach::Join]);
}

#[test]
fn bookings_that_are_missing_or_double_are_caught() {
    let mut story = good();
    story.state.ledger.insert("book".to_owned(), 2);
    story.state.balance = 2;
    story.finds(&[Breach::Ledger]);
    story.state.ledger.clear();
    story.state.balance = 0;
    story.finds(&[Breach::Ledger]);
    let mut story = good();
    story.state.balance = 7;
    story.finds(&[Breach::Ledger]);
}

#[test]
fn positions_that_are_skipped_or_go_back_are_caught() {
    let publish = |story: &mut Story, t: u64, positions: Vec<i64>| {
        let what = What::Published { publisher: "first".to_owned(), epoch: Some(1), positions };
        story.note(t, A, what);
    };
    let mut story = good();
    for (id, position) in [("l3", 3), ("l4", 4)] {
        story.committed(8_000, &[Spec::new(id, Kind::Log)]);
        story.state.rows.remove(id);
        story.state.log.insert(id.to_owned(), position);
    }
    story.state.progress = [("first".to_owned(), 4), ("second".to_owned(), 4)].into();
    let second = What::Published { publisher: "second".to_owned(), epoch: Some(1), positions: vec![3, 4] };
    story.note(5 * SECOND, A, second);
    story.finds(&[Breach::Lost]);
    let mut skipped = story.clone();
    publish(&mut skipped, 5 * SECOND, vec![4]);
    publish(&mut skipped, 6 * SECOND, vec![3]);
    skipped.finds(&[Breach::Position]);
    publish(&mut story, 5 * SECOND, vec![3, 4]);
    story.finds(&[]);
    publish(&mut story, 6 * SECOND, vec![4]);
    story.finds(&[Breach::Position]);
    let mut back = good();
    back.note(3 * SECOND, "world", What::Position { publisher: "first".to_owned(), position: 1 });
    back.finds(&[Breach::Position]);
    let mut behind = good();
    behind.state.progress.insert("first".to_owned(), 1);
    behind.finds(&[Breach::Stuck]);
}

#[test]
fn a_process_that_ends_by_itself_is_caught() {
    let mut story = good();
    story.gone(7 * SECOND, "multi-relay-9.1", "exit code 101", false);
    story.finds(&[Breach::Process]);
}
