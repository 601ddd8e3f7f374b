//! Text from rows reaches neither a terminal nor the log as it is: the real binary, and rows as a hostile writer writes them.

mod place;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use outbox::store::JoinAct;
use outbox::{EventId, JoinId, NewJoin};
use place::{Place, Ran};

/// Controls of terminals, separators of lines, and marks that turn the direction of text.
fn is_unsafe(c: char) -> bool {
    let code = u32::from(c);
    code < 0x20
        || (0x7f..0xa0).contains(&code)
        || [0x61c, 0x200e, 0x200f].contains(&code)
        || (0x2028..=0x202e).contains(&code)
        || (0x2066..=0x2069).contains(&code)
}

/// A line of its own, an escape sequence, CSI as one character, text that runs backwards.
const FORGED: &str = "y\n2026-11-17T04:00:00Z ERROR signed in\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}x\u{2028}z";

/// An id that a shell would act on, with a blank at its end.
const ID: &str = "$(touch owned)'\u{9b}2J ";

#[track_caller]
fn is_clean(ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        for line in text.lines() {
            assert!(!line.contains(is_unsafe), "{line:?}");
            assert!(!line.starts_with("2026-11-17T04:00:00Z"), "a forged line: {line:?}");
        }
    }
}

/// Through the port, past the checks of the builder, as SQL would.
async fn hostile() -> Place {
    let place = Place::sqlite().await;
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let values = format!("({}, {}, '1', {}, {})", quoted(ID), quoted(FORGED), quoted(FORGED), quoted(FORGED));
    let insert = format!(
        "INSERT INTO outbox_event (event_id, event_type, payload, ordering_key, tenant_id) VALUES {values}"
    );
    place.sql(&insert).await;
    place
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_pages_and_messages_are_escaped() {
    let place = hostile().await;
    let join = JoinId::from("join-7");
    let new = NewJoin::of(1).group(FORGED.replace('\u{2028}', " ")).metadata(FORGED);
    place.store.join(&JoinAct::Start { id: join.clone(), join: new }).await.unwrap();
    let shown = place.run(&["status"]).expect(0);
    assert!(shown.out.contains(r"y\n2026"), "{}", shown.out);
    is_clean(&shown);
    for look in [
        &["events", "list"][..],
        &["events", "list", "--json"],
        &["events", "show", ID],
        &["events", "show", ID, "--json", "--payload"],
        &["explain", ID],
        &["explain", ID, "--json"],
        &["joins", "list"],
        &["joins", "list", "--json"],
        &["joins", "show", join.as_str()],
        &["status", "--json"],
    ] {
        is_clean(&place.run(look).expect(0));
    }
    let json = place.run(&["events", "list", "--json"]).expect(0).json();
    assert_eq!((json[0]["event_id"].as_str(), json[0]["event_type"].as_str()), (Some(ID), Some(FORGED)));
    place.settle(|_| place::dead(FORGED)).await;
    for look in [
        &["dead", "list"][..],
        &["dead", "count", "--by-type"],
        &["dead", "replay-all", "--all"],
        &["explain", ID],
    ] {
        is_clean(&place.run(look).expect(0));
    }
    // What it says to type is safe to type.
    let explained = place.run(&["explain", ID]).expect(0).out;
    let command = explained.split('`').nth(1).expect(&explained);
    assert!(command.starts_with("outbox dead replay $'"), "{command}");
    let words =
        std::process::Command::new("bash").args(["-c", &format!("printf '%s|' {command}")]).output().unwrap();
    assert_eq!(String::from_utf8(words.stdout).unwrap(), format!("outbox|dead|replay|{ID}|"));
    is_clean(&place.run(&["dead", "replay", ID]).expect(0));
    is_clean(&place.run(&["dead", "replay", ID]).expect(3));
    is_clean(&place.run(&["events", "cancel", ID]).expect(0));
    is_clean(&place.run(&["events", "cancel", ID]).expect(3));
    is_clean(&place.run(&["joins", "cancel", FORGED]).expect(3));
    place.end().await;
}

/// Ids are taken as they are: a blank at the end is part of one.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_not_trimmed() {
    let place = Place::sqlite().await;
    for id in ["x", "x "] {
        place
            .sql(&format!(
                "INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('{id}', 'e', '1')"
            ))
            .await;
    }
    place.run(&["events", "cancel", "x "]).expect(0);
    assert!(place.store.find(&EventId::from("x")).await.unwrap().is_some());
    assert!(place.store.find(&EventId::from("x ")).await.unwrap().is_none());
    place.run(&["events", "show", " x"]).expect(3);
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_relay_is_escaped() {
    for format in ["text", "json"] {
        let place = hostile().await;
        let expired = "INSERT INTO outbox_event (event_id, event_type, payload, expires_at) SELECT 'gone' || event_id, event_type, \
                       '1', '2020-01-01 00:00:00.000000' FROM outbox_event";
        place.sql(expired).await;
        let mut command =
            place.command(&["relay", "--publish", "stdout", "--log", "trace", "--log-format", format]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut dead, mut handled) = (false, false);
        while !(dead && handled) {
            let line = lines.next().expect("it goes on").unwrap();
            assert!(!line.contains(is_unsafe), "{line:?}");
            assert!(!line.starts_with("2026-11-17T04:00:00Z"), "a forged line: {line:?}");
            dead |= line.contains("event is dead: expired");
            handled |= line.contains("owned") && line.contains("handled");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        place.end().await;
    }
}
