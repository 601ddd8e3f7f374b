//! The examples run to their end and print the expected lines.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of an example.
const LIMIT: Duration = Duration::from_secs(60);

/// Path of an example's program. `cargo test` without a selection builds it beside this test;
/// `--test` and `--examples` do not, so run `cargo build --examples` before them.
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
        let required = std::env::var("OUTBOX_TEST_REQUIRE").is_ok_and(|value| value == "1");
        assert!(!required, "example {name} is not built: run `cargo build --examples` first");
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
fn every_example_is_in_the_guide_and_has_a_test() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(crate_folder.join("../../docs/guide/examples.md")).expect("the page");
    let files = fs::read_dir(crate_folder.join("examples")).expect("the folder");
    let names: BTreeSet<String> = files
        .map(|file| file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    let tests = include_str!("examples.rs");
    for name in &names {
        assert!(guide.contains(&format!("| `{name}` |")), "docs/guide/examples.md does not list {name}");
        assert!(tests.contains(&format!("run(\"{name}\")")), "no test runs {name}");
    }
    let listed = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    for name in listed.filter(|name| *name != "mounted") {
        assert!(names.contains(name), "docs/guide/examples.md lists {name}, which does not exist");
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
fn message_derive_reads_an_enum_and_payloads_of_three_versions() {
    let Some(out) = run("message_derive") else { return };
    assert_shows(
        &out,
        &[
            "order 42 is placed by ada, for 995 cents",
            "order 41 is placed by ada, for 500 cents",
            "seats: ada, joan",
            "order-40 is RETRY after 1 attempt",
        ],
    );
    assert!(out.contains("OrderPlaced: it has version 3, this build knows versions up to 2"), "{out}");
}

#[test]
fn retries_end_and_a_dead_letter_is_replayed() {
    let Some(out) = run("retries") else { return };
    assert_shows(
        &out,
        &[
            "books: attempt 1",
            "books: attempt 2",
            "books: attempt 3",
            "house: attempt 1",
            "DEAD: the card was refused",
            "shoes: attempt 1",
            "shoes: attempt 1",
            "replayed: 1",
            "house: attempt 1",
            "done: 3, dead: 0",
        ],
    );
}

#[test]
fn ordering_keys_wait_for_their_own_retries_alone() {
    let Some(out) = run("ordering_keys") else { return };
    assert_shows(
        &out,
        &[
            "while change 2 of ada waits for its retry:",
            "ada: [1]",
            "grace: [1, 2, 3, 4, 5]",
            "joan: [1, 2, 3, 4, 5]",
            "after the retry:",
            "ada: [1, 2, 3, 4, 5]",
        ],
    );
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
fn inbox_books_each_payment_once() {
    let Some(out) = run("inbox") else { return };
    assert_shows(
        &out,
        &[
            "payment-1: booked",
            "payment-1: booked before",
            "payment-2: crashed, nothing is booked",
            "payment-2: booked",
            "balance: 120",
        ],
    );
}

#[test]
fn tx_handlers_book_once_and_send_one_receipt() {
    let Some(out) = run("tx_handlers") else { return };
    assert_shows(
        &out,
        &["attempt 1 fails after its writes", "attempt 2 succeeds", "receipt for 995", "balance: 995"],
    );
    assert_eq!(out.matches("receipt for").count(), 1, "{out}");
}

#[test]
fn work_queue_items_change_their_worker_when_a_lease_expires() {
    let Some(out) = run("work_queue") else { return };
    assert_shows(
        &out,
        &[
            "ada claims [\"a.png\", \"b.png\"]",
            "acknowledged: 1",
            "abandoned: 1",
            "grace claims [\"c.png\"]",
            "ada claims [\"b.png\"]",
            "attempt 2, after: out of memory",
            "extended: 1",
            "grace claims [\"b.png\"]",
            "late ack of ada takes effect: false",
            "acknowledged: 2",
            "done: 3",
        ],
    );
}

#[test]
fn fan_out_ends_in_one_follow_up() {
    let Some(out) = run("fan_out") else { return };
    assert_shows(
        &out,
        &[
            "merge the pages of run 1",
            "run 1: COMPLETED, 3 completed, 0 failed",
            "alert: run 2 has failed pages",
            "run 2: FAILED, 2 completed, 1 failed",
        ],
    );
}

#[test]
fn event_log_books_a_seat_once_and_publishes_all_bookings() {
    let Some(out) = run("event_log") else { return };
    assert_shows(
        &out,
        &[
            "1A for ada: booked",
            "1A for grace: taken",
            "1A for ada: booked before",
            "1B for grace: booked",
            "2 of 2 seats sold",
            "a seat was sold meanwhile: decide again",
            "published: 3 bookings",
            "bookings/statistics is ACTIVE, 0 behind",
        ],
    );
}

#[test]
fn publisher_outages_cost_no_attempt_and_refused_events_are_dead() {
    let Some(out) = run("publisher") else { return };
    assert_shows(
        &out,
        &[
            "mail-gateway is unavailable: connection refused",
            "1 event waits",
            "sent to ada@example.org",
            "sent to grace@example.org",
            "DEAD after 0 attempts: nowhere is not an address",
        ],
    );
}

#[test]
fn handlers_have_arguments_state_and_options() {
    let Some(out) = run("handlers") else { return };
    assert_shows(
        &out,
        &[
            "balance 995",
            "pending while paused: 1",
            "attempt 1 to resize to 640",
            "image.resize: handled",
            "4 done, 1 dead",
        ],
    );
    for line in [
        "mail from shop@example.org to owner of 7 in en",
        "mail from shop@example.org to ada in de",
        "image.resize: failed",
    ] {
        assert!(out.contains(line), "{line:?} is not in {out}");
    }
}

#[test]
fn interceptors_and_hooks_see_every_event() {
    let Some(out) = run("interceptors") else { return };
    assert_shows(
        &out,
        &[
            "hook: 1 event written",
            "handler: order placed",
            "audit: order.placed of acme: Done",
            "hook: 1 event written",
            "audit: order.placed of globex: globex is suspended",
            "internal event written: false",
            "refused: a writer hook refused the write: order.placed has no tenant",
        ],
    );
    assert_eq!(out.matches("handler:").count(), 1, "{out}");
}

#[test]
fn settings_come_from_a_file_and_the_environment() {
    let Some(out) = run("settings") else { return };
    assert_shows(
        &out,
        &[
            "mode: SingleNode",
            "order placed",
            "rows in shop_event: 1",
            "mode with OUTBOX_MODE=ordered: Ordered",
            "settings:2:1: there is no setting `intervall`: did you mean `interval`?",
            "settings:5:16: 0 is not a whole number from 1 to 1,000,000",
        ],
    );
}

#[test]
fn explain_names_the_reason_of_each_event() {
    let Some(out) = run("explain") else { return };
    assert_shows(
        &out,
        &[
            "[not due]",
            "[unrouted]",
            "[dead]",
            "When the cause is fixed, replay it: `outbox dead replay pay-1`.",
            "[behind another event]",
        ],
    );
    assert!(out.contains("Event reminder-1 (reminder) is not due for another 60 min"), "{out}");
}

#[test]
fn metrics_count_the_outcomes_of_events() {
    let Some(out) = run("metrics") else { return };
    assert_shows(
        &out,
        &[
            "outbox.dispatch.dead {store=orders} 1",
            "outbox.dispatch.deferred {store=orders} 1",
            "outbox.dispatch.failure {store=orders} 0",
            "outbox.dispatch.success {store=orders} 3",
        ],
    );
}

#[test]
fn testing_shows_three_tests_that_pass() {
    let Some(out) = run("testing") else { return };
    assert_shows(
        &out,
        &[
            "placing_an_order_writes_one_event: ok",
            "an_order_without_a_number_is_dead: ok",
            "a_message_reaches_the_publisher: ok",
        ],
    );
}

#[test]
fn retention_deletes_old_events_and_never_pending_ones() {
    let Some(out) = run("retention") else { return };
    assert_shows(
        &out,
        &[
            "after the delivery: 1 new, 3 done, 1 dead",
            "purged at once: 0",
            "purged after 4 days: 3",
            "pending and dead events stay: 1 new, 0 done, 1 dead",
            "dead events purged after 34 days: 1",
            "with completion delete: 1 new, 0 done, 0 dead",
        ],
    );
}

#[test]
fn shutdown_finishes_queued_events_and_releases_stuck_ones() {
    let Some(out) = run("shutdown") else { return };
    assert_shows(
        &out,
        &[
            "signal received",
            "exported 1, attempt 1",
            "exported 2, attempt 1",
            "exported 3, attempt 1",
            "stopped, 0 pending",
            "stopped, 1 pending",
            "exported 4, attempt 1",
        ],
    );
}

#[test]
fn two_services_take_their_own_events_and_leave_the_others() {
    let Some(out) = run("two_services") else { return };
    assert_shows(
        &out,
        &[
            "order.placed: DONE, by shop",
            "order.refunded: DONE, by bank",
            "order.shipped: DONE, by shop",
            "order.audited: NEW, by no relay",
            "no running relay routes order.audited: 1 pending",
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
