//! The examples run to their end and print the expected lines.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of an example.
const LIMIT: Duration = Duration::from_secs(60);

/// Path of an example's program. `cargo test` without a selection builds it beside this test; a
/// single `--test` does not.
fn program(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().expect("the path of this test");
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let program = this.parent()?.parent()?.join("examples").join(file);
    program.is_file().then_some(program)
}

/// Runs an example. Returns its output; `None` if the example was not built.
#[track_caller]
fn run(name: &str) -> Option<String> {
    let Some(program) = program(name) else {
        // Not `println!`: the test runner captures that when a test passes.
        let _ = writeln!(std::io::stderr(), "skipped: example {name}, because it is not built");
        return None;
    };
    let mut child = Command::new(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("an example can be started");
    let began = Instant::now();
    // The output fits into a pipe.
    let status = loop {
        if let Some(status) = child.try_wait().expect("the process can be waited for") {
            break status;
        }
        if began.elapsed() > LIMIT {
            child.kill().expect("the process can be killed");
            break child.wait().expect("the process can be waited for");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
    child.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
    assert!(status.success(), "{name}: {status} after {:?}\n{out}\n{err}", began.elapsed());
    assert_eq!(err, "", "{name} printed errors");
    Some(out)
}

/// Asserts that the output has these lines, in this order.
#[track_caller]
fn assert_shows(out: &str, lines: &[&str]) {
    let mut rest = out.lines();
    for line in lines {
        assert!(rest.any(|shown| shown.trim() == *line), "no {line:?}, or not where it belongs, in:\n{out}");
    }
}

#[test]
fn orders_are_billed_at_the_second_attempt() {
    let Some(out) = run("orders") else { return };
    assert_shows(&out, &["billed 995 for order 42, at attempt 2"]);
}

#[test]
fn etl_fans_out_and_in_and_a_replay_repairs_a_failed_run() {
    let Some(out) = run("etl") else { return };
    assert_shows(
        &out,
        &[
            "run 1",
            "extract   COMPLETED   3 of 3 completed, 0 failed",
            "load      COMPLETED   2 of 2 completed, 0 failed",
            "run 2",
            "extract   FAILED      2 of 3 completed, 1 failed",
            "run 2, continued by an operator",
            "extract   FAILED      3 of 3 completed, 0 failed",
            "load      COMPLETED   2 of 2 completed, 0 failed",
            "rows extracted, whatever failed on the way: [(1, 30), (2, 30)]",
        ],
    );
    assert_eq!(out.matches("alert:").count(), 1, "{out}");
    assert_eq!(out.matches("report: 30 items in").count(), 4, "{out}");
}

#[test]
fn tenants_have_their_orders_confirmed_and_everything_is_closed() {
    let Some(out) = run("tenants") else { return };
    assert_shows(
        &out,
        &["orders of an unknown tenant: 404", "tenant-12         4         4", "stopped, with 0 connections"],
    );
    assert!(out.contains("all 30 orders of 12 tenants are confirmed"), "{out}");
}

#[test]
fn wallets_are_never_overdrawn_and_two_publishers_follow() {
    let Some(out) = run("wallets") else { return };
    assert_shows(&out, &["ada sends 50 to grace:  Made", "the same request again: MadeBefore"]);
    assert_shows(&out, &["ada sends 70 to joan:   Refused"]);
    assert_shows(&out, &["alert: ada sent 50 to grace"]);
    assert_shows(&out, &["1  WalletOpened      ada", "4  MoneyTransferred  ada -> grace"]);
    assert!(out.contains("and there are still 300 in all"), "{out}");
}

#[test]
fn own_transaction_delivers_committed_orders_alone() {
    let Some(out) = run("own_transaction") else { return };
    assert_shows(
        &out,
        &[
            "order 1 is confirmed",
            "order 2 is confirmed",
            "order 3 is rolled back",
            "2 orders, 2 events delivered",
        ],
    );
}

#[test]
fn typed_messages_reach_their_handlers_and_others_are_dead() {
    let Some(out) = run("typed_messages") else { return };
    assert_shows(
        &out,
        &["order.placed: order 42 of ada, from web", "order.cancelled: order 42: out of stock"],
    );
    assert!(out.contains("DEAD after 0 attempts: the payload is not a typed_messages::OrderPlaced"), "{out}");
}

#[test]
fn scheduled_events_are_delivered_on_time_or_not_at_all() {
    let Some(out) = run("scheduled") else { return };
    assert_shows(
        &out,
        &[
            "dentist cancelled: true",
            "09:00",
            "reminder: tea, after an hour",
            "12:00",
            "reminder: lunch, at noon",
            "dead: breakfast, before nine, expired",
        ],
    );
    assert_eq!(out.matches("reminder:").count(), 2, "{out}");
}

#[test]
fn deduplication_writes_one_event_for_a_repeated_request() {
    let Some(out) = run("deduplication") else { return };
    assert_shows(
        &out,
        &[
            "first request: written true",
            "same request again: written false",
            "invoice of order 42 is sent",
            "request after the delivery: written true",
            "of three in a batch: written 2",
        ],
    );
}

#[test]
fn separate_relay_delivers_the_events_of_a_process_that_has_ended() {
    let Some(out) = run("separate_relay") else { return };
    assert_shows(
        &out,
        &[
            "writer: 3 orders",
            "writer ended: true",
            "relay: 3 events wait",
            "relay: bill for order 1",
            "relay: bill for order 2",
            "relay: bill for order 3",
            "relay: 0 events wait",
        ],
    );
}
