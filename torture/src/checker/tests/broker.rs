//! What arrives behind a broker.

use super::*;

const OUTBOX: &str = "broker-outbox-1.1";
const WRITER: &str = "broker-writer-1.1";
const READER: &str = "broker-reader-1.1";

/// Three events of a key and one without, which all arrived once and were booked once.
fn arrived() -> Story {
    let mut story = Story::default();
    for (place, id) in (1..).zip(["a1", "a2", "a3", "free"]) {
        let spec = if id == "free" { plain(id) } else { keyed(id) };
        let tx = format!("tx-{id}");
        story.note(place, WRITER, What::Writing { tx: tx.clone(), events: vec![spec] });
        story.note(place + 1, WRITER, What::Ended { tx, how: Commit::Committed, error: None });
        story.state.markers.insert(id.to_owned());
        story.state.ledger.insert(id.to_owned(), 1);
        story.state.balance += 1;
        arrives(&mut story, place, id);
    }
    story
}

fn arrives(story: &mut Story, place: u64, id: &str) {
    let seq = id.strip_prefix('a').and_then(|n| n.parse().ok());
    story.note(place * SECOND, READER, What::Arrived { id: id.to_owned(), seq, place });
}

#[track_caller]
fn finds(story: &Story, expected: &[Breach]) {
    story.finds_on(Arena::Broker, expected);
}

#[test]
fn all_arrived_once_is_good_and_reading_a_message_twice_is_no_duplicate() {
    let mut story = arrived();
    finds(&story, &[]);
    arrives(&mut story, 4, "free");
    finds(&story, &[]);
    let counts = story.verdict_on(Arena::Broker).counts;
    assert_eq!((counts.written, counts.delivered, counts.twice), (4, 4, 0));
}

#[test]
fn what_never_arrived_is_caught() {
    let mut story = arrived();
    story.records.retain(|record| !matches!(&record.what, What::Arrived { id, .. } if id == "free"));
    story.state.ledger.remove("free");
    story.state.balance -= 1;
    finds(&story, &[Breach::Lost]);
}

#[test]
fn what_nobody_committed_is_caught() {
    let mut story = arrived();
    arrives(&mut story, 5, "from nowhere");
    finds(&story, &[Breach::Phantom]);
}

#[test]
fn a_swap_of_first_arrivals_is_caught_and_a_repeat_is_counted() {
    let mut story = arrived();
    for record in &mut story.records {
        if let What::Arrived { place, .. } = &mut record.what {
            *place = [0, 1, 3, 2, 4][usize::try_from(*place).unwrap()];
        }
    }
    finds(&story, &[Breach::Order]);

    let mut again = arrived();
    arrives(&mut again, 5, "a1");
    finds(&again, &[Breach::Again]);
    again.gone(2 * SECOND, OUTBOX, "signal 9", true);
    finds(&again, &[]);
    assert_eq!(again.verdict_on(Arena::Broker).counts.twice, 1);
}

#[test]
fn an_outage_that_killed_an_event_is_caught() {
    let mut story = arrived();
    let row = Row { status: 3, seq: 9, key: String::new(), attempts: 10, error: "refused".to_owned() };
    story.state.rows.insert("free".to_owned(), row);
    finds(&story, &[Breach::WrongDead]);
}

#[test]
fn an_inbox_that_books_twice_is_caught() {
    let mut story = arrived();
    story.state.ledger.insert("a1".to_owned(), 2);
    story.state.balance += 1;
    finds(&story, &[Breach::Ledger]);
}
