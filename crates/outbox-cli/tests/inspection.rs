//! Status, log, joins and databases at the command line: the real binary, on every available
//! database.

mod common;

use std::io::{BufRead, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{TestTarget, dead, finish, outbox};
use outbox::store::{Filter, Verdict};
use outbox::{Event, EventBuilder};

/// A password that must never be shown.
const SECRET: &str = "s3cret-pa55";

fn event(event_type: &str) -> EventBuilder {
    Event::new(event_type).json(&1)
}

#[tokio::test(flavor = "multi_thread")]
async fn skipped_events_of_the_log_are_listed() {
    for target in TestTarget::all().await {
        let log = target.store.log().unwrap();
        log.register(&[(outbox::SubscriptionId::new("orders", "nats"), false)]).await.unwrap();
        target.run(&["log", "unreadable"]).expect(3);
        assert!(!target.run(&["log", "status"]).expect(0).err.contains("skipped unreadable events"));

        for (position, reason) in [(7, "its headers are\u{1b}[31m wrong"), (9, "its payload is too large")] {
            assert!(log.note_unreadable(outbox::Position::new(position), reason).await.unwrap());
        }
        let listed = target.run(&["log", "unreadable"]).expect(0);
        assert_eq!(listed.words()[1][0], "9", "{}", listed.out);
        assert!(listed.out.contains("its payload is too large"), "{}", listed.out);
        assert!(!listed.out.contains('\u{1b}'), "a reason reaches the terminal unescaped: {}", listed.out);
        let newest = target.run(&["log", "unreadable", "--limit", "1", "--json"]).expect(0).json();
        assert_eq!(newest.len(), 1, "{newest:?}");
        assert_eq!(newest[0]["position"], 9, "{newest:?}");
        let status = target.run(&["log", "status"]).expect(0);
        assert!(
            status.err.contains("skipped unreadable events, the last one at position 9"),
            "{}",
            status.err
        );
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_are_listed_paused_resumed_and_reset() {
    for target in TestTarget::all().await {
        target.run(&["log", "status"]).expect(3);
        let log = target.store.log().unwrap();
        let events: Vec<Event> = (0..5).map(|n| event("n").tag("n", n).build().unwrap()).collect();
        let _ = log.append(&events, &Default::default()).await.unwrap();
        let pairs = [("audit", "kafka"), ("orders", "kafka"), ("orders", "nats")];
        let pairs = pairs.map(|(topic, publisher)| (outbox::SubscriptionId::new(topic, publisher), false));
        log.register(&pairs).await.unwrap();
        let status = |topic: &str, publisher: &str| {
            let arguments = ["log", "status", "--topic", topic, "--publisher", publisher, "--json"];
            target.run(&arguments).expect(0).json()[0]["status"].as_str().unwrap().to_owned()
        };
        let lag = target.run(&["log", "lag"]).expect(0);
        assert_eq!(lag.words()[1], ["audit", "kafka", "ACTIVE", "0", "5", "5"]);

        target.run(&["log", "pause", "kafka"]).expect(0);
        assert_eq!((status("audit", "kafka"), status("orders", "nats")), ("PAUSED".into(), "ACTIVE".into()));
        target.run(&["log", "resume", "kafka", "--topic", "audit"]).expect(0);
        assert_eq!((status("audit", "kafka"), status("orders", "kafka")), ("ACTIVE".into(), "PAUSED".into()));
        for arguments in [
            &["pause", "unknown"][..],
            &["resume", "kafka", "--topic", "x"],
            &["reset", "x", "kafka", "--to", "end"],
        ] {
            let ran = target.run(&[&["log"], arguments].concat()).expect(3);
            assert!(ran.err.contains("log status"), "{}", ran.err);
        }

        for (to, position) in [("end", 5), ("3", 3), ("start", 0), ("0s", 5), ("2020-01-01T00:00:00Z", 0)] {
            let ran = target.run(&["log", "reset", "orders", "nats", "--to", to]).expect(0);
            assert!(ran.out.contains(&format!("after position {position} ")), "--to {to}: {}", ran.out);
            let lag = target.run(&["log", "lag", "--publisher", "nats", "--json"]).expect(0).json();
            assert_eq!((&lag[0]["position"], &lag[0]["behind"]), (&position.into(), &(5 - position).into()));
        }
        let beyond = target.run(&["log", "reset", "orders", "nats", "--to", "99"]).expect(1);
        assert!(beyond.err.contains("beyond the end"), "{}", beyond.err);
        target.run(&["log", "reset", "orders", "nats", "--to", "yesterday"]).expect(2);
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_read_by_tag_type_and_position() {
    for target in TestTarget::all().await {
        target.run(&["log", "read"]).expect(3);
        let log = target.store.log().unwrap();
        let of =
            |n: u32| event(if n.is_multiple_of(2) { "even" } else { "odd" }).tag("n", n).tag("third", n % 3);
        let events: Vec<Event> = (1..=6).map(|n| of(n).build().unwrap()).collect();
        let _ = log.append(&events, &Default::default()).await.unwrap();
        let read = |arguments: &[&str]| -> Vec<i64> {
            let ran = target.run(&[&["log", "read", "--json"], arguments].concat());
            ran.json().iter().map(|event| event["position"].as_i64().unwrap()).collect()
        };
        for (arguments, expected) in [
            (&[][..], &[1, 2, 3, 4, 5, 6][..]),
            (&["--type", "even"], &[2, 4, 6]),
            (&["--type", "even", "--type", "odd", "--limit", "2"], &[1, 2]),
            (&["--tag", "third=0"], &[3, 6]),
            (&["--tag", "third=0", "--type", "even"], &[6]),
            (&["--tag", "third=0", "--tag", "n=3"], &[3]),
            (&["--after", "4"], &[5, 6]),
        ] {
            assert_eq!(read(arguments), expected, "{arguments:?}");
        }
        log.register(&[(outbox::SubscriptionId::new("orders", "nats"), false)]).await.unwrap();
        target.run(&["log", "reset", "orders", "nats", "--to", "4"]).expect(0);
        assert_eq!(read(&["--topic", "orders", "--publisher", "nats"]), [5, 6]);
        target.run(&["log", "read", "--topic", "unknown"]).expect(3);
        target.run(&["log", "read", "--tag", "nothing"]).expect(2);
        let table = target.run(&["log", "read", "--limit", "1"]).expect(0);
        assert!(table.out.contains("n=1 third=1") && table.err.contains("--after 1"), "{table:?}");
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_are_listed_shown_and_cancelled() {
    use outbox::store::JoinCommand;
    use outbox::{JoinId, NewJoin};

    for target in TestTarget::all().await {
        target.run(&["joins", "list"]).expect(3);
        let steps = target.write([event("step"), event("bad"), event("waits")]).await;
        let id = JoinId::from("01JD3V7Q0Z6W4T0M1S2K8N5R9X");
        let join = NewJoin::of(4).group("customer-42").metadata("phase one");
        target.store.join(&JoinCommand::Start { id: id.clone(), join }).await.unwrap();
        let attach = JoinCommand::Attach { join: id.clone(), home: String::new(), steps: steps.clone() };
        target.store.join(&attach).await.unwrap();
        target
            .settle(|e| match e.event_type().as_str() {
                "step" => Verdict::Done,
                "bad" => dead("no"),
                _ => Verdict::Released,
            })
            .await;
        let listed =
            target.run(&["joins", "list", "--status", "pending", "--group", "customer-42"]).expect(0);
        assert!(listed.out.contains("3 of 4"), "{}", listed.out);
        target.run(&["joins", "list", "--status", "failed"]).expect(3);
        let shown = target.run(&["joins", "show", id.as_str(), "--json"]).expect(0).json();
        assert_eq!((&shown[0]["completed_steps"], &shown[0]["failed_steps"]), (&1.into(), &1.into()));
        let mut statuses: Vec<&str> =
            shown[1..].iter().map(|step| step["status"].as_str().unwrap()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, ["COMPLETED", "FAILED", "PENDING"]);
        let page = target.run(&["joins", "show", id.as_str()]).expect(0);
        assert!(page.out.contains("phase one") && page.out.contains(steps[2].as_str()), "{}", page.out);

        target.run(&["joins", "cancel", id.as_str()]).expect(0);
        let again = target.run(&["joins", "cancel", id.as_str(), "unknown"]).expect(3);
        assert!(
            again.err.contains("CANCELLED already") && again.err.contains("no such join"),
            "{}",
            again.err
        );
        target.run(&["joins", "show", "unknown"]).expect(3);
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_the_state_of_an_outbox() {
    for target in TestTarget::all().await {
        target.write([event("a"), event("b"), event("c"), event("c")]).await;
        target
            .settle(|e| match e.event_type().as_str() {
                "a" => Verdict::Done,
                "b" => dead("no"),
                _ => Verdict::Released,
            })
            .await;
        target.store.lead("exclusive", &"the-leader".into(), Duration::from_secs(60)).await.unwrap();
        let outage = serde_json::json!({
            "destination": "nats", "since": "2026-11-16T07:00:00Z", "reason": "connection refused", "types": ["c"],
        });
        let state = serde_json::json!({
            "mode": "single_node", "version": "0.1.0", "active": true, "outages": [outage],
        });
        let state = serde_json::from_value(state).unwrap();
        target.store.announce(&"the-leader".into(), &state).await.unwrap();
        let status = target.run(&["status", "--json"]).expect(0).json().remove(0);
        for (field, value) in
            [("new", 2), ("retry", 0), ("done", 1), ("dead", 1), ("pending", 2), ("free", 2)]
        {
            assert_eq!(status[field], value, "{field}");
        }
        assert_eq!(status["leader"], "the-leader");
        let relay = &status["relays"][0];
        assert_eq!((&relay["node"], &relay["running"]), (&"the-leader".into(), &true.into()));
        assert_eq!(relay["outages"][0]["destination"], "nats");
        assert_eq!(status["pending_types"], serde_json::json!([{ "event_type": "c", "count": 2 }]));
        assert_eq!(status["dead_types"], serde_json::json!([{ "event_type": "b", "count": 1 }]));
        let page = target.run(&["status"]).expect(0).out;
        for word in [
            "the-leader leads",
            "nats: connection refused",
            "ACTIVE",
            "by type: c 2",
            "2 due and free",
            "Log      empty",
        ] {
            assert!(page.contains(word), "no {word:?} in {page}");
        }
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_explain_name_events_that_no_running_relay_routes() {
    for target in TestTarget::all().await {
        target
            .write([
                event("known"),
                event("strange").aggregate("order", "1"),
                event("strange"),
                event("strange"),
            ])
            .await;
        let state = |routes: serde_json::Value| {
            let state = serde_json::json!({"mode": "multi_node", "version": "0.1.0", "active": true, "routes": routes});
            serde_json::from_value(state).unwrap()
        };
        let pairs = serde_json::json!({"only": {"types": ["known"], "pairs": [["bill", "strange"]]}});
        target.store.announce(&"shop".into(), &state(pairs)).await.unwrap();
        let patterns = serde_json::json!({"only": {"patterns": ["mail.*"]}});
        target.store.announce(&"mail".into(), &state(patterns)).await.unwrap();

        let status = target.run(&["status", "--json"]).expect(0).json().remove(0);
        let types = &status["unrouted"]["types"];
        let unrouted: Vec<_> = types
            .as_array()
            .unwrap()
            .iter()
            .map(|of| {
                (
                    of["event_type"].as_str().unwrap(),
                    of["aggregate_type"].as_str().unwrap(),
                    of["count"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(unrouted, [("strange", "__GLOBAL__", 2), ("strange", "order", 1)], "{status}");
        assert_eq!(status["unrouted"]["more"], false);
        assert_eq!(
            status["relays"][0]["routes"]["only"]["patterns"],
            serde_json::json!(["mail.*"]),
            "{status}"
        );
        let page = target.run(&["status"]).expect(0).out;
        let sentence = "No running relay routes 3 pending events: strange 2, strange of order 1.";
        assert!(page.contains(sentence), "no {sentence:?} in {page}");

        let pending = Filter { event_type: Some("strange".to_owned()), ..Filter::default() };
        let id = target.store.list(&pending, 1).await.unwrap()[0].event.as_ref().unwrap().id().to_string();
        let explained = target.run(&["explain", &id]).expect(0).out;
        for word in [
            "no running relay routes event type strange of aggregate type order",
            "shop",
            "mail",
            "Run a relay",
        ] {
            assert!(explained.contains(word), "no {word:?} in {explained}");
        }
        let explained = target.run(&["explain", &id, "--json"]).expect(0).json().remove(0);
        assert_eq!(explained["reasons"][0]["reason"], "unrouted");

        // A relay that does not announce its routes counts as routing everything.
        target.store.announce(&"old".into(), &state("everything".into())).await.unwrap();
        let status = target.run(&["status", "--json"]).expect(0).json().remove(0);
        assert_eq!(status["unrouted"]["types"], serde_json::json!([]));
        assert!(!target.run(&["status"]).expect(0).out.contains("routes"));
        target.end().await;
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_repeats_and_exits_cleanly_on_ctrl_c() {
    for target in TestTarget::all().await {
        target.write([event("a")]).await;
        let arguments = ["status", "--watch", "--every", "100ms", "--json"];
        let mut child = target.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut next = || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            serde_json::from_str::<serde_json::Value>(&line).unwrap()
        };
        let first = next();
        assert_eq!((&first["pending"], &first["done_per_second"]), (&1.into(), &serde_json::Value::Null));
        target.write([event("b")]).await;
        while next()["pending"] != 2 {}
        // A single event may be settled in the gap between the intervals of two samples.
        loop {
            target.settle(|_| Verdict::Done).await;
            if next()["done_per_second"].as_f64().unwrap() > 0.0 {
                break;
            }
            target.write([event("c")]).await;
        }
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        target.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_are_listed_with_their_problems() {
    let target = TestTarget::sqlite().await;
    target.write([event("a")]).await;
    let folder = tempfile::tempdir().unwrap();
    let empty = format!("empty=sqlite:{}", folder.path().join("empty.db").display());
    std::fs::write(folder.path().join("empty.db"), "").unwrap();
    let good = format!("good={}", target.url);
    let gone = format!("gone=postgres://ada:{SECRET}@127.0.0.1:1/shop");
    let named = ["databases", "--database", &good, "--database", &empty, "--database", &gone];
    let ran = finish(outbox(named.iter().chain(&["--json"]))).expect(1);
    let views = ran.json();
    let states: Vec<_> =
        views.iter().map(|v| (v["name"].as_str().unwrap(), v["state"].as_str().unwrap())).collect();
    assert_eq!(states, [("good", "ok"), ("empty", "not migrated"), ("gone", "unreachable")]);
    assert_eq!(views[0]["pending"], 1);
    assert!(views[0]["schema_version"].as_i64().unwrap() >= 5);
    let table = finish(outbox(named)).expect(1);
    for ran in [&ran, &table] {
        assert!(!ran.out.contains(SECRET) && !ran.err.contains(SECRET), "{ran:?}");
    }
    assert!(table.out.contains("cannot reach"), "{}", table.out);
    finish(outbox(["databases", "--database", &good])).expect(0);
    finish(outbox(["databases"])).expect(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_are_found_by_a_query() {
    for target in TestTarget::all().await {
        let row = format!("SELECT 'shop' AS name, '{}' AS url", target.url);
        let ran = target.run(&["databases", "--discover", &row, "--json"]).expect(0);
        assert_eq!((&ran.json()[0]["name"], &ran.json()[0]["state"]), (&"shop".into(), &"ok".into()));
        target.run(&["databases", "--discover", &format!("{row} WHERE 1 = 0")]).expect(3);
        let wrong = format!("SELECT 'shop', 'ada:{SECRET}@db'");
        for (query, message) in
            [("SELECT 'one'", "two columns"), ("SELEC 1", "refuses"), (&wrong, "no database URL")]
        {
            let ran = target.run(&["databases", "--discover", query]).expect(2);
            assert!(ran.err.contains(message) && !ran.err.contains(SECRET), "{}", ran.err);
        }
        target.end().await;
    }
}
