//! Events and dead letters at the command line: the real binary, on every available database.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{TestTarget, dead};
use outbox::store::Verdict;
use outbox::{Event, EventBuilder};

fn event(event_type: &str) -> EventBuilder {
    Event::new(event_type).json(&1)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_sent_listed_shown_and_cancelled() {
    for target in TestTarget::all().await {
        let sent = target
            .run(&[
                "send",
                "--type",
                "order.placed",
                "--payload",
                r#"{"order": 42}"#,
                "--key",
                "order-42",
                "--tenant",
                "acme",
                "--header",
                "source=cron",
                "--aggregate-type",
                "order",
                "--aggregate-id",
                "42",
                "--after",
                "1h",
                "--correlation-id",
                "story",
                "--dedup-key",
                "once",
            ])
            .expect(0);
        let id = sent.out.trim();
        let listed = target.run(&["events", "list", "--json"]).expect(0).json();
        assert_eq!(listed.len(), 1);
        for (field, value) in [
            ("event_id", id),
            ("status", "NEW"),
            ("event_type", "order.placed"),
            ("aggregate_type", "order"),
            ("aggregate_id", "42"),
            ("tenant_id", "acme"),
            ("ordering_key", "order-42"),
            ("correlation_id", "story"),
            ("dedup_key", "once"),
        ] {
            assert_eq!(listed[0][field], value, "{field}");
        }
        assert_eq!(listed[0]["headers"]["source"], "cron");
        let table = target.run(&["events", "list"]).expect(0);
        assert_eq!(table.words()[0][..3], ["SEQ", "EVENT", "ID"]);
        assert!(table.words()[1].contains(&id) && table.out.contains("in 60 min"), "{}", table.out);
        let exact = target.run(&["events", "list", "--utc"]).expect(0);
        assert!(exact.out.contains(listed[0]["available_at"].as_str().unwrap()), "{}", exact.out);
        let page = target.run(&["events", "show", id]).expect(0);
        for word in ["order.placed", "order 42", "acme", "order-42", "source: cron", "13 bytes"] {
            assert!(page.out.contains(word), "no {word:?} in {}", page.out);
        }
        // A second event with the key is not written, and the exit code shows it.
        let again = ["send", "--type", "x", "--payload", "1", "--dedup-key", "once"];
        let again = target.run(&again).expect(3);
        assert!(again.out.is_empty() && again.err.contains("deduplication key"), "{again:?}");

        target.run(&["events", "cancel", id]).expect(0);
        let gone = target.run(&["events", "cancel", id]).expect(3);
        assert!(gone.err.contains("not cancelled"), "{}", gone.err);
        target.run(&["events", "show", id]).expect(3);
        target.run(&["events", "list"]).expect(3);
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_comes_from_an_argument_a_file_or_standard_input() {
    let target = TestTarget::sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("payload.json");
    std::fs::write(&file, "[1,\n 2]").unwrap();
    let show = |id: &str| {
        target.run(&["events", "show", id.trim(), "--payload", "--json"]).expect(0).json().remove(0)
    };

    let sent = target.run(&["send", "--type", "x", "--payload", &format!("@{}", file.display())]).expect(0);
    assert_eq!(show(&sent.out)["payload"], serde_json::json!([1, 2]));

    let arguments = ["send", "--type", "x", "--payload", "-", "--content-type", "text/csv", "--json"];
    let mut child = target.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"a;b\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let sent: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = show(sent["event_id"].as_str().unwrap());
    assert_eq!((&shown["content_type"], &shown["payload_base64"]), (&"text/csv".into(), &"YTtiCg==".into()));

    for (payload, code) in [("{no json", 2), ("@/no/such/file", 1)] {
        let ran = target.run(&["send", "--type", "x", "--payload", payload]).expect(code);
        assert!(ran.err.contains("payload"), "{}", ran.err);
        assert!(!ran.err.contains("no json"), "{}", ran.err);
    }
    let at = ["send", "--type", "later", "--payload", "1", "--at", "2126-12-24T18:00:00+01:00"];
    target.run(&at).expect(0);
    let listed = target.run(&["events", "list", "--type", "later", "--json"]).expect(0).json();
    let available = listed[0]["available_at"].as_str().unwrap();
    assert!(available.starts_with("2126-12-24T17:00:00"), "{available}");
    target.run(&["send", "--type", "x", "--payload", "1", "--at", "2001-01-01T00:00:00Z"]).expect(0);
    target.run(&["send", "--type", "x", "--payload", "1", "--at", "tomorrow"]).expect(2);
    target.run(&["send", "--type", "", "--payload", "1"]).expect(2);
    target.run(&["send", "--type", "x", "--payload", "1", "--header", "nothing"]).expect(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_selected_and_paged() {
    for target in TestTarget::all().await {
        target
            .write([
                event("a").tenant("acme").ordering_key("k").correlation("story").aggregate("order", "1"),
                event("a").tenant("acme"),
                event("b").tenant("other").aggregate("order", "2"),
                event("b").deliver_after(Duration::from_secs(3_600)),
            ])
            .await;
        target.settle(|event| if event.event_type() == "b" { dead("no") } else { Verdict::Done }).await;
        let count = |arguments: &[&str]| {
            let ran = target.run(&[&["events", "list", "--json"], arguments].concat());
            assert_eq!(ran.code, Some(if ran.out.is_empty() { 3 } else { 0 }), "{ran:?}");
            ran.json().len()
        };
        for (arguments, expected) in [
            (&[][..], 4),
            (&["--type", "a"], 2),
            (&["--tenant", "acme"], 2),
            (&["--tenant", "acme", "--key", "k"], 1),
            (&["--correlation-id", "story"], 1),
            (&["--aggregate-type", "order"], 2),
            (&["--aggregate-id", "2"], 1),
            (&["--status", "pending"], 1),
            (&["--status", "new"], 1),
            (&["--status", "retry"], 0),
            (&["--status", "done"], 2),
            (&["--status", "dead"], 1),
            (&["--newer-than", "1h"], 4),
            (&["--older-than", "1h"], 0),
            (&["--limit", "3"], 3),
        ] {
            assert_eq!(count(arguments), expected, "{arguments:?}");
        }
        let page = target.run(&["events", "list", "--limit", "3"]).expect(0);
        let last = page.words()[3][0].to_owned();
        assert!(page.err.contains(&format!("--after {last}")), "{}", page.err);
        assert_eq!(count(&["--after", &last]), 1);
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_events_are_listed_counted_shown_and_replayed() {
    for target in TestTarget::all().await {
        let ids = target.write([event("a"), event("a"), event("b").tenant("acme"), event("fine")]).await;
        target.settle(|e| if e.event_type() == "fine" { Verdict::Done } else { dead("no such user") }).await;
        let listed = target.run(&["dead", "list"]).expect(0);
        assert_eq!(listed.out.matches("no such user").count(), 3, "{}", listed.out);
        assert_eq!(target.run(&["dead", "count"]).expect(0).out.trim(), "3");
        assert_eq!(target.run(&["dead", "count", "--type", "z"]).expect(0).out.trim(), "0");
        assert_eq!(
            target.run(&["dead", "count", "--older-than", "1h", "--json"]).expect(0).json()[0]["count"],
            0
        );
        let types = target.run(&["dead", "count", "--by-type"]).expect(0);
        assert_eq!(types.words(), [["COUNT", "TYPE"], ["2", "a"], ["1", "b"]]);
        let page = target.run(&["dead", "show", ids[0].as_str()]).expect(0);
        assert!(page.out.contains("DEAD") && page.out.contains("no such user"), "{}", page.out);

        target.run(&["dead", "replay", ids[0].as_str(), ids[1].as_str()]).expect(0);
        let twice = target.run(&["dead", "replay", ids[0].as_str()]).expect(3);
        assert!(twice.err.contains("not dead"), "{}", twice.err);
        assert_eq!(target.run(&["dead", "count"]).expect(0).out.trim(), "1");
        let left = target.run(&["dead", "list", "--tenant", "acme", "--json"]).expect(0).json();
        assert_eq!(left[0]["event_id"], ids[2].as_str());
        target.run(&["dead", "list", "--type", "a"]).expect(3);
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_all_is_a_dry_run_first_and_requires_all_for_everything() {
    for target in TestTarget::all().await {
        target.write((0..30).map(|n| event(if n < 20 { "a" } else { "b" }))).await;
        target.settle(|_| dead("no")).await;
        let left = || target.run(&["dead", "count"]).expect(0).out.trim().to_owned();

        for shown in [&["dead", "replay-all"][..], &["dead", "replay-all", "--all", "--dry-run"]] {
            let shown = target.run(shown).expect(0);
            assert!(shown.out.contains("Would replay 30 dead events"), "{}", shown.out);
            assert!(shown.out.contains("--yes"), "{}", shown.out);
        }
        let refused = target.run(&["dead", "replay-all", "--yes"]).expect(2);
        assert!(refused.err.contains("--all"), "{}", refused.err);
        target.run(&["dead", "replay-all", "--all", "--yes", "--dry-run"]).expect(2);
        assert_eq!(left(), "30");

        // sqlx warns of a statement that takes more than 1 s.
        let arguments = ["dead", "replay-all", "--type", "a", "--batch", "7", "--yes", "--log", "error"];
        let done = target.run(&arguments).expect(0);
        assert_eq!(done.out.trim(), "Replayed 20 events.");
        assert!(done.err.is_empty(), "no progress bar without a terminal: {}", done.err);
        assert_eq!(left(), "10");
        target.run(&["dead", "replay-all", "--type", "a", "--yes"]).expect(3);
        target.run(&["dead", "replay-all", "--type", "a"]).expect(3);
        target.run(&["dead", "replay-all", "--all", "--yes"]).expect(0);
        assert_eq!(left(), "0");
        target.end().await;
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn replay_all_keeps_its_rate_and_can_be_stopped_and_resumed() {
    let target = TestTarget::sqlite().await;
    target.write((0..40).map(|_| event("a"))).await;
    target.settle(|_| dead("no")).await;
    let began = Instant::now();
    target.run(&["dead", "replay-all", "--type", "a", "--rate", "40/s", "--yes"]).expect(0);
    assert!(began.elapsed() > Duration::from_millis(700), "40 events at 40/s in {:?}", began.elapsed());
    target.settle(|_| dead("no")).await;

    let arguments = ["dead", "replay-all", "--type", "a", "--rate", "1/s", "--yes"];
    let child = target.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let count = || target.run(&["dead", "count"]).expect(0).out.trim().parse::<u64>().unwrap();
    while count() == 40 {}
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && printed.contains("to continue: --after "), "{printed}");
    let left = count();
    assert!(left > 0 && left < 40, "{left} are left");
    let after = printed.trim().rsplit(' ').next().unwrap();
    let rest = target.run(&["dead", "replay-all", "--type", "a", "--after", after, "--yes"]).expect(0);
    assert!(rest.out.contains(&format!("Replayed {left} event")), "{}", rest.out);
    assert_eq!(count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_is_a_dry_run_first_and_keeps_pending_events() {
    for target in TestTarget::all().await {
        target.write((0..620).map(|n| event(if n < 610 { "done" } else { "dead" }))).await;
        target.settle(|e| if e.event_type() == "dead" { dead("no") } else { Verdict::Done }).await;
        target.write([event("pending")]).await;
        let left = || target.run(&["events", "list", "--limit", "10000", "--json"]).expect(0).json().len();

        target.run(&["purge", "--older-than", "1h"]).expect(3);
        target.run(&["purge", "--older-than", "1h", "--yes"]).expect(3);
        let shown = target.run(&["purge", "--older-than", "0s"]).expect(0);
        assert!(shown.out.contains("Would delete 610 events"), "{}", shown.out);
        let shown = target.run(&["purge", "--older-than", "0s", "--with-dead"]).expect(0);
        assert!(shown.out.contains("Would delete 620 events"), "{}", shown.out);
        assert_eq!(left(), 621);
        let done = target.run(&["purge", "--older-than", "0s", "--yes"]).expect(0);
        assert_eq!(done.out.trim(), "Deleted 610 DONE events.");
        assert_eq!(left(), 11, "dead events stay without --with-dead");
        let all = ["purge", "--older-than", "0s", "--with-dead", "--with-joins-and-inbox", "--yes"];
        let all = target.run(&all).expect(0);
        let expected = ["Deleted 0 DONE events and 10 DEAD events.", "0 joins"];
        assert!(expected.iter().all(|expected| all.out.contains(expected)), "{}", all.out);
        assert_eq!(left(), 1);
        target.run(&["purge"]).expect(2);
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_are_listed_and_released() {
    for target in TestTarget::all().await {
        target.run(&["nodes"]).expect(3);
        let announce = async |node: &str, presence_ms: u64| {
            let state = serde_json::json!({
                "mode": "multi_node", "version": "0.1.0", "active": true, "presence_ms": presence_ms,
            });
            let state = serde_json::from_value(state).unwrap();
            target.store.announce(&node.into(), &state).await.unwrap();
        };
        announce("gone", 0).await;
        announce("works", 600_000).await;
        let events = target.write([event("a"), event("b")]).await;
        assert_eq!(target.lease("gone").await.len(), 2);
        target.write([event("c")]).await;
        assert_eq!(target.lease("works").await.len(), 1);
        // Even with a presence of 0, a relay counts as vanished only after some time has passed.
        let listed = || target.run(&["nodes", "--json"]).expect(0).json();
        let of = |node: &str| listed().into_iter().find(|view| view["node"] == node).unwrap();
        while of("gone")["state"] != "VANISHED" {}
        assert_eq!(
            (of("works")["state"].as_str(), of("works")["held_events"].as_u64()),
            (Some("ACTIVE"), Some(1))
        );
        assert_eq!(of("gone")["held_events"], 2);
        let shown = target.run(&["nodes"]).expect(0);
        for word in ["works", "ACTIVE", "gone", "VANISHED", "multi_node"] {
            assert!(shown.out.contains(word), "no {word:?} in {}", shown.out);
        }
        let printed = target.run(&["explain", events[0].as_str()]).expect(0).out;
        for word in ["held by relay gone, which vanished", "released in at most", "outbox nodes release gone"]
        {
            assert!(printed.contains(word), "no {word:?} in {printed}");
        }

        let printed = target.run(&["nodes", "release", "works"]).expect(0).out;
        assert!(printed.contains("works runs") && printed.contains("Nothing was changed"), "{printed}");
        assert!(target.lease("other").await.is_empty());
        let printed = target.run(&["nodes", "release", "gone"]).expect(0).out;
        assert_eq!(printed.trim(), "Released 2 events of gone.");
        assert_eq!(target.lease("other").await.len(), 2);
        let printed = target.run(&["nodes", "release", "works", "--yes"]).expect(0).out;
        assert_eq!(printed.trim(), "Released 1 event of works.");
        target.run(&["nodes", "release", "unknown"]).expect(3);
        let audits = target.store.audits(None, 10).await.unwrap();
        let audits: Vec<_> =
            audits.iter().rev().map(|a| (a.action.as_str(), a.target.as_deref(), a.count)).collect();
        let released = |node, count| ("node.release", Some(node), Some(count));
        assert_eq!(audits, [released("gone", 2), released("works", 1), released("unknown", 0)]);
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_explained() {
    for target in TestTarget::all().await {
        let reason = |id: &str| {
            let ran = target.run(&["explain", id, "--json"]);
            (ran.json()[0]["reasons"][0]["reason"].as_str().unwrap().to_owned(), ran.code)
        };
        let done = target.write([event("done")]).await;
        target.settle(|_| Verdict::Done).await;
        let keyed = target.write([event("first").ordering_key("k"), event("second").ordering_key("k")]).await;
        assert_eq!(reason(keyed[0].as_str()), ("waiting".to_owned(), Some(0)));
        assert_eq!(reason(keyed[1].as_str()).0, "behind");
        target
            .settle(|e| if e.event_type() == "first" { dead("no such user") } else { Verdict::Released })
            .await;
        let later = target.write([event("later").deliver_after(Duration::from_secs(600))]).await;
        let held = target.write([event("held")]).await;
        target.lease("node-7").await;
        for (id, expected) in [
            (&done[0], "done"),
            (&keyed[0], "dead"),
            (&keyed[1], "behind"),
            (&later[0], "not_due"),
            (&held[0], "held"),
        ] {
            assert_eq!(reason(id.as_str()), (expected.to_owned(), Some(0)));
        }
        assert_eq!(reason("unknown"), ("unknown".to_owned(), Some(3)));

        let printed = target.run(&["explain", keyed[1].as_str()]).expect(0).out;
        for word in [keyed[0].as_str(), "no such user", "outbox dead replay"] {
            assert!(printed.contains(word), "no {word:?} in {printed}");
        }
        assert!(target.run(&["explain", held[0].as_str()]).expect(0).out.contains("node-7 holds it"));
        let behind = &target.run(&["explain", keyed[1].as_str(), "--json"]).expect(0).json()[0]["reasons"][0];
        assert_eq!(behind["event"]["reasons"][0]["reason"], "dead");
        target.end().await;
    }
}
