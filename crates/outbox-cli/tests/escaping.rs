//! Text from rows is escaped on terminals and in the log: the real binary, with rows of a hostile
//! writer.

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use common::{RunOutput, TestTarget};
use outbox::store::JoinCommand;
use outbox::{EventId, JoinId, NewJoin};

/// Terminal controls, line separators, and marks that change the direction of text.
fn is_unsafe(c: char) -> bool {
    let code = u32::from(c);
    code < 0x20
        || (0x7f..0xa0).contains(&code)
        || [0x61c, 0x200e, 0x200f].contains(&code)
        || (0x2028..=0x202e).contains(&code)
        || (0x2066..=0x2069).contains(&code)
}

/// A forged line, an escape sequence, CSI as one character, right-to-left text.
const FORGED: &str = "y\n2026-11-17T04:00:00Z ERROR signed in\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}x\u{2028}z";

/// An id that a shell would execute, with a trailing blank.
const ID: &str = "$(touch owned)'\u{9b}2J ";

#[track_caller]
fn is_clean(ran: &RunOutput) {
    for text in [&ran.out, &ran.err] {
        for line in text.lines() {
            assert!(!line.contains(is_unsafe), "{line:?}");
            assert!(!line.starts_with("2026-11-17T04:00:00Z"), "a forged line: {line:?}");
        }
    }
}

/// A target with a hostile row, written by SQL without the checks of the library.
async fn hostile() -> TestTarget {
    let target = TestTarget::sqlite().await;
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let values = format!("({}, {}, '1', {}, {})", quoted(ID), quoted(FORGED), quoted(FORGED), quoted(FORGED));
    let insert = format!(
        "INSERT INTO outbox_event (event_id, event_type, payload, ordering_key, tenant_id) VALUES {values}"
    );
    target.sql(&insert).await;
    target
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_pages_and_messages_are_escaped() {
    let target = hostile().await;
    let join = JoinId::from("join-7");
    let new = NewJoin::of(1).group(FORGED.replace('\u{2028}', " ")).metadata(FORGED);
    target.store.join(&JoinCommand::Start { id: join.clone(), join: new }).await.unwrap();
    let shown = target.run(&["status"]).expect(0);
    assert!(shown.out.contains(r"y\n2026"), "{}", shown.out);
    is_clean(&shown);
    for command in [
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
        is_clean(&target.run(command).expect(0));
    }
    let json = target.run(&["events", "list", "--json"]).expect(0).json();
    assert_eq!((json[0]["event_id"].as_str(), json[0]["event_type"].as_str()), (Some(ID), Some(FORGED)));
    target.settle(|_| common::dead(FORGED)).await;
    for command in [
        &["dead", "list"][..],
        &["dead", "count", "--by-type"],
        &["dead", "replay-all", "--all"],
        &["explain", ID],
    ] {
        is_clean(&target.run(command).expect(0));
    }
    // The suggested command is safe in a shell.
    let explained = target.run(&["explain", ID]).expect(0).out;
    let command = explained.split('`').nth(1).expect(&explained);
    assert!(command.starts_with("outbox dead replay $'"), "{command}");
    let words =
        std::process::Command::new("bash").args(["-c", &format!("printf '%s|' {command}")]).output().unwrap();
    assert_eq!(String::from_utf8(words.stdout).unwrap(), format!("outbox|dead|replay|{ID}|"));
    is_clean(&target.run(&["dead", "replay", ID]).expect(0));
    is_clean(&target.run(&["dead", "replay", ID]).expect(3));
    is_clean(&target.run(&["events", "cancel", ID]).expect(0));
    is_clean(&target.run(&["events", "cancel", ID]).expect(3));
    is_clean(&target.run(&["joins", "cancel", FORGED]).expect(3));
    target.end().await;
}

/// A trailing blank is part of an id.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_not_trimmed() {
    let target = TestTarget::sqlite().await;
    for id in ["x", "x "] {
        target
            .sql(&format!(
                "INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('{id}', 'e', '1')"
            ))
            .await;
    }
    target.run(&["events", "cancel", "x "]).expect(0);
    assert!(target.store.find(&EventId::from("x")).await.unwrap().is_some());
    assert!(target.store.find(&EventId::from("x ")).await.unwrap().is_none());
    target.run(&["events", "show", " x"]).expect(3);
    target.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_relay_is_escaped() {
    for format in ["text", "json"] {
        let target = hostile().await;
        let expired = "INSERT INTO outbox_event (event_id, event_type, payload, expires_at) SELECT 'gone' || event_id, event_type, \
                       '1', '2020-01-01 00:00:00.000000' FROM outbox_event";
        target.sql(expired).await;
        let mut command =
            target.command(&["relay", "--publish", "stdout", "--log", "trace", "--log-format", format]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut dead, mut handled) = (false, false);
        while !(dead && handled) {
            let line = lines.next().expect("the relay keeps running").unwrap();
            assert!(!line.contains(is_unsafe), "{line:?}");
            assert!(!line.starts_with("2026-11-17T04:00:00Z"), "a forged line: {line:?}");
            dead |= line.contains("event is dead: expired");
            handled |= line.contains("owned") && line.contains("handled");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        target.end().await;
    }
}
