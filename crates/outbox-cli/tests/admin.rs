//! Events and dead letters at the command line: the real binary, on every database that is there.

mod place;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outbox::store::Verdict;
use outbox::{Event, EventBuilder};
use place::{Place, dead};

fn event(event_type: &str) -> EventBuilder {
    Event::new(event_type).json(&1)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_sent_listed_shown_and_cancelled() {
    for place in Place::all().await {
        let sent = place
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
        let listed = place.run(&["events", "list", "--json"]).expect(0).json();
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
        let table = place.run(&["events", "list"]).expect(0);
        assert_eq!(table.words()[0][..3], ["SEQ", "EVENT", "ID"]);
        assert!(table.words()[1].contains(&id) && table.out.contains("in 60 min"), "{}", table.out);
        let exact = place.run(&["events", "list", "--utc"]).expect(0);
        assert!(exact.out.contains(listed[0]["available_at"].as_str().unwrap()), "{}", exact.out);
        let page = place.run(&["events", "show", id]).expect(0);
        for word in ["order.placed", "order 42", "acme", "order-42", "source: cron", "13 bytes"] {
            assert!(page.out.contains(word), "no {word:?} in {}", page.out);
        }
        // The same again is not written, and a script can tell.
        let again = ["send", "--type", "x", "--payload", "1", "--dedup-key", "once"];
        let again = place.run(&again).expect(3);
        assert!(again.out.is_empty() && again.err.contains("deduplication key"), "{again:?}");

        place.run(&["events", "cancel", id]).expect(0);
        let gone = place.run(&["events", "cancel", id]).expect(3);
        assert!(gone.err.contains("not cancelled"), "{}", gone.err);
        place.run(&["events", "show", id]).expect(3);
        place.run(&["events", "list"]).expect(3);
        place.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_comes_from_an_argument_a_file_or_standard_input() {
    let place = Place::sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("payload.json");
    std::fs::write(&file, "[1,\n 2]").unwrap();
    let show = |id: &str| {
        place.run(&["events", "show", id.trim(), "--payload", "--json"]).expect(0).json().remove(0)
    };

    let sent = place.run(&["send", "--type", "x", "--payload", &format!("@{}", file.display())]).expect(0);
    assert_eq!(show(&sent.out)["payload"], serde_json::json!([1, 2]));

    let arguments = ["send", "--type", "x", "--payload", "-", "--content-type", "text/csv", "--json"];
    let mut child = place.command(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"a;b\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let sent: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = show(sent["event_id"].as_str().unwrap());
    assert_eq!((&shown["content_type"], &shown["payload_base64"]), (&"text/csv".into(), &"YTtiCg==".into()));

    for (payload, code) in [("{no json", 2), ("@/no/such/file", 1)] {
        let ran = place.run(&["send", "--type", "x", "--payload", payload]).expect(code);
        assert!(ran.err.contains("payload"), "{}", ran.err);
        assert!(!ran.err.contains("no json"), "{}", ran.err);
    }
    let at = ["send", "--type", "later", "--payload", "1", "--at", "2126-12-24T18:00:00+01:00"];
    place.run(&at).expect(0);
    let listed = place.run(&["events", "list", "--type", "later", "--json"]).expect(0).json();
    let available = listed[0]["available_at"].as_str().unwrap();
    assert!(available.starts_with("2126-12-24T17:00:00"), "{available}");
    place.run(&["send", "--type", "x", "--payload", "1", "--at", "2001-01-01T00:00:00Z"]).expect(0);
    place.run(&["send", "--type", "x", "--payload", "1", "--at", "tomorrow"]).expect(2);
    place.run(&["send", "--type", "", "--payload", "1"]).expect(2);
    place.run(&["send", "--type", "x", "--payload", "1", "--header", "nothing"]).expect(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_selected_and_paged() {
    for place in Place::all().await {
        place
            .write([
                event("a").tenant("acme").ordering_key("k").correlation("story").aggregate("order", "1"),
                event("a").tenant("acme"),
                event("b").tenant("other").aggregate("order", "2"),
                event("b").deliver_after(Duration::from_secs(3_600)),
            ])
            .await;
        place.settle(|event| if event.event_type() == "b" { dead("no") } else { Verdict::Done }).await;
        let count = |arguments: &[&str]| {
            let ran = place.run(&[&["events", "list", "--json"], arguments].concat());
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
        let page = place.run(&["events", "list", "--limit", "3"]).expect(0);
        let last = page.words()[3][0].to_owned();
        assert!(page.err.contains(&format!("--after {last}")), "{}", page.err);
        assert_eq!(count(&["--after", &last]), 1);
        place.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_events_are_listed_counted_shown_and_replayed() {
    for place in Place::all().await {
        let ids = place.write([event("a"), event("a"), event("b").tenant("acme"), event("fine")]).await;
        place.settle(|e| if e.event_type() == "fine" { Verdict::Done } else { dead("no such user") }).await;
        let listed = place.run(&["dead", "list"]).expect(0);
        assert_eq!(listed.out.matches("no such user").count(), 3, "{}", listed.out);
        assert_eq!(place.run(&["dead", "count"]).expect(0).out.trim(), "3");
        assert_eq!(place.run(&["dead", "count", "--type", "z"]).expect(0).out.trim(), "0");
        assert_eq!(
            place.run(&["dead", "count", "--older-than", "1h", "--json"]).expect(0).json()[0]["count"],
            0
        );
        let types = place.run(&["dead", "count", "--by-type"]).expect(0);
        assert_eq!(types.words(), [["COUNT", "TYPE"], ["2", "a"], ["1", "b"]]);
        let page = place.run(&["dead", "show", ids[0].as_str()]).expect(0);
        assert!(page.out.contains("DEAD") && page.out.contains("no such user"), "{}", page.out);

        place.run(&["dead", "replay", ids[0].as_str(), ids[1].as_str()]).expect(0);
        let twice = place.run(&["dead", "replay", ids[0].as_str()]).expect(3);
        assert!(twice.err.contains("not dead"), "{}", twice.err);
        assert_eq!(place.run(&["dead", "count"]).expect(0).out.trim(), "1");
        let left = place.run(&["dead", "list", "--tenant", "acme", "--json"]).expect(0).json();
        assert_eq!(left[0]["event_id"], ids[2].as_str());
        place.run(&["dead", "list", "--type", "a"]).expect(3);
        place.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_all_shows_first_and_asks_for_more_when_it_is_everything() {
    for place in Place::all().await {
        place.write((0..30).map(|n| event(if n < 20 { "a" } else { "b" }))).await;
        place.settle(|_| dead("no")).await;
        let left = || place.run(&["dead", "count"]).expect(0).out.trim().to_owned();

        for shown in [&["dead", "replay-all"][..], &["dead", "replay-all", "--all", "--dry-run"]] {
            let shown = place.run(shown).expect(0);
            assert!(shown.out.contains("Would replay 30 dead events"), "{}", shown.out);
            assert!(shown.out.contains("--yes"), "{}", shown.out);
        }
        let refused = place.run(&["dead", "replay-all", "--yes"]).expect(2);
        assert!(refused.err.contains("--all"), "{}", refused.err);
        place.run(&["dead", "replay-all", "--all", "--yes", "--dry-run"]).expect(2);
        assert_eq!(left(), "30");

        // sqlx warns of a statement that takes more than 1 s.
        let arguments = ["dead", "replay-all", "--type", "a", "--batch", "7", "--yes", "--log", "error"];
        let done = place.run(&arguments).expect(0);
        assert_eq!(done.out.trim(), "Replayed 20 events.");
        assert!(done.err.is_empty(), "no bar where there is no terminal: {}", done.err);
        assert_eq!(left(), "10");
        place.run(&["dead", "replay-all", "--type", "a", "--yes"]).expect(3);
        place.run(&["dead", "replay-all", "--type", "a"]).expect(3);
        place.run(&["dead", "replay-all", "--all", "--yes"]).expect(0);
        assert_eq!(left(), "0");
        place.end().await;
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn replay_all_keeps_its_rate_and_can_be_stopped_and_resumed() {
    let place = Place::sqlite().await;
    place.write((0..40).map(|_| event("a"))).await;
    place.settle(|_| dead("no")).await;
    let began = Instant::now();
    place.run(&["dead", "replay-all", "--type", "a", "--rate", "40/s", "--yes"]).expect(0);
    assert!(began.elapsed() > Duration::from_millis(700), "40 events at 40/s in {:?}", began.elapsed());
    place.settle(|_| dead("no")).await;

    let arguments = ["dead", "replay-all", "--type", "a", "--rate", "1/s", "--yes"];
    let child = place.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let count = || place.run(&["dead", "count"]).expect(0).out.trim().parse::<u64>().unwrap();
    while count() == 40 {}
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("to go on: --after "), "{said}");
    let left = count();
    assert!(left > 0 && left < 40, "{left} are left");
    let after = said.trim().rsplit(' ').next().unwrap();
    let rest = place.run(&["dead", "replay-all", "--type", "a", "--after", after, "--yes"]).expect(0);
    assert!(rest.out.contains(&format!("Replayed {left} event")), "{}", rest.out);
    assert_eq!(count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn purging_shows_first_and_spares_what_is_pending() {
    for place in Place::all().await {
        place.write((0..620).map(|n| event(if n < 610 { "done" } else { "dead" }))).await;
        place.settle(|e| if e.event_type() == "dead" { dead("no") } else { Verdict::Done }).await;
        place.write([event("pending")]).await;
        let left = || place.run(&["events", "list", "--limit", "10000", "--json"]).expect(0).json().len();

        place.run(&["purge", "--older-than", "1h"]).expect(3);
        place.run(&["purge", "--older-than", "1h", "--yes"]).expect(3);
        let shown = place.run(&["purge", "--older-than", "0s"]).expect(0);
        assert!(shown.out.contains("Would delete 610 events"), "{}", shown.out);
        let shown = place.run(&["purge", "--older-than", "0s", "--with-dead"]).expect(0);
        assert!(shown.out.contains("Would delete 620 events"), "{}", shown.out);
        assert_eq!(left(), 621);
        let done = place.run(&["purge", "--older-than", "0s", "--yes"]).expect(0);
        assert_eq!(done.out.trim(), "Deleted 610 DONE events.");
        assert_eq!(left(), 11, "dead events stay unless they are asked for");
        let all = ["purge", "--older-than", "0s", "--with-dead", "--with-joins-and-inbox", "--yes"];
        let all = place.run(&all).expect(0);
        let said = ["Deleted 0 DONE events and 10 DEAD events.", "0 joins"];
        assert!(said.iter().all(|said| all.out.contains(said)), "{}", all.out);
        assert_eq!(left(), 1);
        place.run(&["purge"]).expect(2);
        place.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_are_listed_and_released() {
    for place in Place::all().await {
        place.run(&["nodes"]).expect(3);
        let announce = async |node: &str, presence_ms: u64| {
            let state = serde_json::json!({
                "mode": "multi_node", "version": "0.1.0", "active": true, "presence_ms": presence_ms,
            });
            let state = serde_json::from_value(state).unwrap();
            place.store.announce(&node.into(), &state).await.unwrap();
        };
        announce("gone", 0).await;
        announce("works", 600_000).await;
        let events = place.write([event("a"), event("b")]).await;
        assert_eq!(place.lease("gone").await.len(), 2);
        place.write([event("c")]).await;
        assert_eq!(place.lease("works").await.len(), 1);
        // One that counts as vanished at once still has to be some time ago.
        let listed = || place.run(&["nodes", "--json"]).expect(0).json();
        let of = |node: &str| listed().into_iter().find(|view| view["node"] == node).unwrap();
        while of("gone")["state"] != "VANISHED" {}
        assert_eq!(
            (of("works")["state"].as_str(), of("works")["held_events"].as_u64()),
            (Some("ACTIVE"), Some(1))
        );
        assert_eq!(of("gone")["held_events"], 2);
        let shown = place.run(&["nodes"]).expect(0);
        for word in ["works", "ACTIVE", "gone", "VANISHED", "multi_node"] {
            assert!(shown.out.contains(word), "no {word:?} in {}", shown.out);
        }
        let said = place.run(&["explain", events[0].as_str()]).expect(0).out;
        for word in ["held by relay gone, which vanished", "released in at most", "outbox nodes release gone"]
        {
            assert!(said.contains(word), "no {word:?} in {said}");
        }

        let said = place.run(&["nodes", "release", "works"]).expect(0).out;
        assert!(said.contains("works runs") && said.contains("Nothing was changed"), "{said}");
        assert!(place.lease("other").await.is_empty());
        let said = place.run(&["nodes", "release", "gone"]).expect(0).out;
        assert_eq!(said.trim(), "Released 2 events of gone.");
        assert_eq!(place.lease("other").await.len(), 2);
        let said = place.run(&["nodes", "release", "works", "--yes"]).expect(0).out;
        assert_eq!(said.trim(), "Released 1 event of works.");
        place.run(&["nodes", "release", "unknown"]).expect(3);
        let audits = place.store.audits(None, 10).await.unwrap();
        let audits: Vec<_> =
            audits.iter().rev().map(|a| (a.action.as_str(), a.target.as_deref(), a.count)).collect();
        let released = |node, count| ("node.release", Some(node), Some(count));
        assert_eq!(audits, [released("gone", 2), released("works", 1), released("unknown", 0)]);
        place.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_explained() {
    for place in Place::all().await {
        let reason = |id: &str| {
            let ran = place.run(&["explain", id, "--json"]);
            (ran.json()[0]["reasons"][0]["reason"].as_str().unwrap().to_owned(), ran.code)
        };
        let done = place.write([event("done")]).await;
        place.settle(|_| Verdict::Done).await;
        let keyed = place.write([event("first").ordering_key("k"), event("second").ordering_key("k")]).await;
        assert_eq!(reason(keyed[0].as_str()), ("waiting".to_owned(), Some(0)));
        assert_eq!(reason(keyed[1].as_str()).0, "behind");
        place
            .settle(|e| if e.event_type() == "first" { dead("no such user") } else { Verdict::Released })
            .await;
        let later = place.write([event("later").deliver_after(Duration::from_secs(600))]).await;
        let held = place.write([event("held")]).await;
        place.lease("node-7").await;
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

        let said = place.run(&["explain", keyed[1].as_str()]).expect(0).out;
        for word in [keyed[0].as_str(), "no such user", "outbox dead replay"] {
            assert!(said.contains(word), "no {word:?} in {said}");
        }
        assert!(place.run(&["explain", held[0].as_str()]).expect(0).out.contains("node-7 holds it"));
        let behind = &place.run(&["explain", keyed[1].as_str(), "--json"]).expect(0).json()[0]["reasons"][0];
        assert_eq!(behind["event"]["reasons"][0]["reason"], "dead");
        place.end().await;
    }
}
