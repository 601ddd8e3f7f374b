//! Tests of messages behind a broker.

use super::*;

const OUTBOX: &str = "broker-outbox-1.1";
const WRITER: &str = "broker-writer-1.1";
const READER: &str = "broker-reader-1.1";

/// Three events of a key and one without a key; each arrived once and was booked once.
fn arrived() -> TestHistory {
    let mut history = TestHistory::default();
    for (place, id) in (1..).zip(["a1", "a2", "a3", "free"]) {
        let spec = if id == "free" { plain(id) } else { keyed(id) };
        let tx = format!("tx-{id}");
        history.record(place, WRITER, Op::Writing { tx: tx.clone(), events: vec![spec] });
        history.record(place + 1, WRITER, Op::Ended { tx, how: Commit::Committed, error: None });
        history.state.markers.insert(id.to_owned());
        history.state.ledger.insert(id.to_owned(), 1);
        history.state.balance += 1;
        arrives(&mut history, place, id);
    }
    history
}

fn arrives(history: &mut TestHistory, place: u64, id: &str) {
    let seq = id.strip_prefix('a').and_then(|n| n.parse().ok());
    history.record(place * SECOND, READER, Op::Arrived { id: id.to_owned(), seq, place });
}

#[track_caller]
fn finds(history: &TestHistory, expected: &[Breach]) {
    history.finds_on(Arena::Broker, expected);
}

#[test]
fn all_arrived_once_is_good_and_reading_a_message_twice_is_no_duplicate() {
    let mut history = arrived();
    finds(&history, &[]);
    arrives(&mut history, 4, "free");
    finds(&history, &[]);
    let counts = history.verdict_on(Arena::Broker).counts;
    assert_eq!((counts.written, counts.delivered, counts.twice), (4, 4, 0));
}

#[test]
fn an_event_that_never_arrived_is_caught() {
    let mut history = arrived();
    history.records.retain(|record| !matches!(&record.op, Op::Arrived { id, .. } if id == "free"));
    history.state.ledger.remove("free");
    history.state.balance -= 1;
    finds(&history, &[Breach::Lost]);
}

#[test]
fn an_arrival_that_was_never_committed_is_caught() {
    let mut history = arrived();
    arrives(&mut history, 5, "from nowhere");
    finds(&history, &[Breach::Phantom]);
}

#[test]
fn a_swap_of_first_arrivals_is_caught_and_a_repeat_is_counted() {
    let mut history = arrived();
    for record in &mut history.records {
        if let Op::Arrived { place, .. } = &mut record.op {
            *place = [0, 1, 3, 2, 4][usize::try_from(*place).unwrap()];
        }
    }
    finds(&history, &[Breach::Order]);

    let mut again = arrived();
    arrives(&mut again, 5, "a1");
    finds(&again, &[Breach::Again]);
    again.gone(2 * SECOND, OUTBOX, "signal 9", true);
    finds(&again, &[]);
    assert_eq!(again.verdict_on(Arena::Broker).counts.twice, 1);
}

#[test]
fn an_outage_that_killed_an_event_is_caught() {
    let mut history = arrived();
    let row = Row { status: 3, seq: 9, key: String::new(), attempts: 10, error: "refused".to_owned() };
    history.state.rows.insert("free".to_owned(), row);
    finds(&history, &[Breach::WrongDead]);
}

#[test]
fn an_inbox_that_books_twice_is_caught() {
    let mut history = arrived();
    history.state.ledger.insert("a1".to_owned(), 2);
    history.state.balance += 1;
    finds(&history, &[Breach::Ledger]);
}
