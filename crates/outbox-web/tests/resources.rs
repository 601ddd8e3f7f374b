//! Every resource, on every available database.

mod common;

use std::time::Duration;

use common::{ADMIN, OPERATE, TestServer};
use outbox::store::{Holder, JoinCommand, Verdict};
use outbox::{Event, JoinId, NewJoin, SubscriptionId};
use serde_json::{Value, json};

/// Runs the body on every available database.
macro_rules! on_all_databases {
    ($server:ident, $body:block) => {
        for $server in TestServer::on_all_databases().await $body
    };
}

fn ids(page: &Value) -> Vec<&str> {
    page["events"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_overview_counts_pending_and_dead_events() {
    on_all_databases!(server, {
        server.write(Event::new("order").json(&1)).await;
        server.write(Event::new("order").deliver_after(Duration::from_secs(3_600)).json(&1)).await;
        server.dead(Event::new("bill").json(&1), "no").await;
        let overview = server.read("/api/outbox/overview").await;
        assert_eq!(overview["due"], json!({"count": 1, "more": false}), "{overview}");
        assert_eq!(
            (&overview["delayed"]["count"], &overview["dead"]["count"]),
            (&json!(1), &json!(1)),
            "{overview}"
        );
        assert!(overview["oldest_due_ms"].is_number() && overview.get("history").is_none(), "{overview}");
        let types = overview["types"].as_array().unwrap();
        assert_eq!(
            (&types[0]["event_type"], &types[0]["pending"]["count"]),
            (&json!("order"), &json!(2)),
            "{overview}"
        );
        assert_eq!(
            (&types[1]["event_type"], &types[1]["dead"]["count"]),
            (&json!("bill"), &json!(1)),
            "{overview}"
        );
        assert_eq!(server.read("/api/outbox/overview?history=true").await["history"], json!([]));
        let dead = server.read("/api/outbox/dead/types").await;
        assert_eq!(
            (&dead["types"][0]["event_type"], &dead["scanned"]),
            (&json!("bill"), &json!(1)),
            "{dead}"
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_paginated_and_filtered() {
    on_all_databases!(server, {
        let mut written = Vec::new();
        for n in 0..7 {
            let event = Event::new(if n % 2 == 0 { "even" } else { "odd" })
                .aggregate("order", format!("o-{n}"))
                .tenant("acme")
                .correlation("c-1");
            written.push(server.write(event.json(&n)).await.to_string());
        }
        for order in ["oldest", "newest"] {
            let (mut seen, mut path) = (Vec::new(), format!("/api/outbox/events?limit=3&order={order}"));
            loop {
                let page = server.read(&path).await;
                seen.extend(ids(&page).into_iter().map(str::to_owned));
                let Some(next) = page["next"].as_str() else { break };
                path = format!("/api/outbox/events?limit=3&order={order}&cursor={next}");
            }
            if order == "newest" {
                seen.reverse();
            }
            assert_eq!(seen, written, "{order}");
        }
        let first = server.read("/api/outbox/events?limit=1").await;
        let cursor = first["next"].as_str().unwrap();
        let other = server.get(&format!("/api/outbox/events?status=dead&cursor={cursor}")).await;
        assert_eq!(other.status, 422, "the cursor belongs to another list");
        for (query, count) in [
            ("event_type=even", 4),
            ("aggregate_type=order", 7),
            ("aggregate_id=o-3", 1),
            ("tenant_id=acme&event_type=odd", 3),
            ("tenant_id=globex", 0),
            ("correlation_id=c-1", 7),
            ("within=1h", 7),
            ("before=1h", 0),
            ("status=new", 7),
            ("status=retry", 0),
            ("status=done", 0),
            ("status=dead", 0),
        ] {
            let page = server.read(&format!("/api/outbox/events?{query}")).await;
            assert_eq!(ids(&page).len(), count, "{query}: {page}");
        }
        let event = &first["events"][0];
        assert_eq!((&event["status"], &event["payload_bytes"]), (&json!("NEW"), &json!(1)), "{event}");
        assert!(event.get("payload").is_none() && event.get("headers").is_none(), "{event}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_shown_with_its_attempts_and_explanation() {
    on_all_databases!(server, {
        let id = server
            .write(Event::new("order").header("secret-header", "hush").json(&json!({"card": "4111"})))
            .await;
        let again = Verdict::Again { after: Duration::ZERO, counted: true, error: Some("first".to_owned()) };
        server.settle(&id, again).await;
        server.dead_letter(&id, "second").await;
        let one = server.read(&format!("/api/outbox/events/{id}")).await;
        assert_eq!(
            (&one["event"]["status"], &one["event"]["attempts"]),
            (&json!("DEAD"), &json!(2)),
            "{one}"
        );
        let errors: Vec<&Value> =
            one["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["error"]).collect();
        assert_eq!(errors, ["first", "second"]);
        assert_eq!(
            (&one["attempts"][1]["fatal"], &one["explanation"]["reason"]),
            (&json!(true), &json!("dead"))
        );
        assert!(one["explanation"]["text"].as_str().unwrap().contains("second"), "{one}");
        assert!(!one.to_string().contains("4111") && !one.to_string().contains("hush"), "{one}");
        let explained = server.read(&format!("/api/outbox/events/{id}/explain")).await;
        assert_eq!((&explained["reason"], &explained["reasons"][0]["attempts"]), (&json!("dead"), &json!(2)));
        assert_eq!(server.get("/api/outbox/events/nothing/explain").await.status, 404);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_event_is_replayed_or_skipped_and_a_pending_one_cancelled() {
    on_all_databases!(server, {
        let post_action = async |id: &outbox::EventId, what: &str| {
            server.post(&format!("/api/outbox/events/{id}/{what}"), json!({})).await.status.as_u16()
        };
        let id = server.dead(Event::new("order").json(&1), "no").await;
        assert_eq!(post_action(&id, "cancel").await, 409, "the event is not pending");
        assert_eq!(post_action(&id, "replay").await, 200);
        assert_eq!(server.status_of(&id).await, "NEW");
        assert_eq!(post_action(&id, "replay").await, 409);
        assert_eq!(post_action(&id, "skip").await, 409);
        server.dead_letter(&id, "again").await;
        assert_eq!(post_action(&id, "skip").await, 200);
        assert_eq!(server.status_of(&id).await, "DONE");
        let done = server.store.find(&id).await.unwrap().unwrap();
        assert_eq!(done.done_by.unwrap().as_str(), "api:root");
        let id = server.write(Event::new("order").json(&1)).await;
        assert_eq!(post_action(&id, "cancel").await, 200);
        assert!(server.store.find(&id).await.unwrap().is_none());
        assert_eq!(post_action(&id, "cancel").await, 404);
        let held = server.write(Event::new("order").json(&1)).await;
        server.take(&Holder::Lease { owner: "another-node".into(), lease: Duration::from_secs(30) }).await;
        assert_eq!(post_action(&held, "cancel").await, 409, "a relay is handling the event");
        let audit = server.audit().await;
        let done = |action: &str| (action.to_owned(), "done".to_owned());
        assert!(audit.contains(&done("event.replay")) && audit.contains(&done("event.skip")), "{audit:?}");
        assert!(
            audit.iter().any(|(action, outcome)| action == "event.cancel" && outcome.starts_with("refused")),
            "{audit:?}"
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_is_shown_and_edited_with_audit_entries() {
    on_all_databases!(server, {
        let id = server.dead(Event::new("order").header("h", "v").json(&json!({"total": 1})), "no").await;
        let path = format!("/api/outbox/events/{id}/payload");
        let shown = server.send(server.request("GET", &path).bearer_auth(OPERATE)).await.json();
        assert_eq!((&shown["text"], &shown["size"]), (&json!(r#"{"total":1}"#), &json!(11)), "{shown}");
        assert_eq!(
            (&shown["content_type"], &shown["headers"]["h"]),
            (&json!("application/json"), &json!("v"))
        );
        let put = async |body: Value| {
            server.send(server.request("PUT", &path).bearer_auth(ADMIN).json(&body)).await
        };
        assert_eq!(put(json!({"payload": r#"{"total": "canary"}"#})).await.status, 200);
        let shown = server.read(&path).await;
        assert_eq!(
            (&shown["text"], &shown["headers"]["h"]),
            (&json!(r#"{"total": "canary"}"#), &json!("v")),
            "byte for byte"
        );
        for wrong in [
            json!({}),
            json!({"payload": "{"}),
            json!({"payload": "1", "base64": "MQ=="}),
            json!({"base64": "no base64!"}),
            json!({"payload": "1", "headers": {"": "x"}}),
        ] {
            let rejected = put(wrong.clone()).await;
            assert_eq!(rejected.status, 422, "{wrong}: {}", rejected.text);
        }
        assert_eq!(
            put(json!({"base64": "AP8=", "content_type": "application/octet-stream"})).await.status,
            200
        );
        let shown = server.read(&path).await;
        assert_eq!((&shown["base64"], &shown["text"]), (&json!("AP8="), &Value::Null), "{shown}");
        server.post(&format!("/api/outbox/events/{id}/replay"), json!({})).await;
        assert_eq!(
            put(json!({"payload": "1", "content_type": "application/json"})).await.status,
            409,
            "the event is not dead"
        );
        let entries = server.read("/api/outbox/audit").await;
        let entries = entries["entries"].as_array().unwrap();
        assert!(
            entries.iter().any(|e| e["action"] == "payload.read" && e["actor"] == "ops" && e["via"] == "api")
        );
        assert!(
            entries.iter().any(|e| e["action"] == "payload.edit" && e["actor"] == "root" && e["count"] == 1)
        );
        let edits: Vec<Value> = entries
            .iter()
            .filter(|e| e["action"] == "payload.edit" && e["outcome"] == "done")
            .map(|e| serde_json::from_str(e["details"].as_str().unwrap()).unwrap())
            .collect();
        // Newest first: the old payload of each entry is the new payload of the entry before it.
        assert!(
            edits.len() >= 2 && edits.windows(2).all(|two| two[0]["before"] == two[1]["after"]),
            "{edits:?}"
        );
        let digest = "sha256:06eb7d6a69ee19e5fbdf749018d3d2abfa04bcbd1365db312eb86dc7169389b8";
        assert_eq!((&edits[0]["after"], &edits[0]["headers"]), (&json!(digest), &json!("kept")));
        assert!(!json!(entries).to_string().contains("canary"), "the audit has no payload");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_key_continues_when_its_head_is_replayed_or_skipped() {
    on_all_databases!(server, {
        let key = "order/7 ä";
        let head = server.dead(Event::new("placed").ordering_key(key).json(&1), "no").await;
        for _ in 0..3 {
            server.write(Event::new("paid").ordering_key(key).json(&1)).await;
        }
        let keys = server.read("/api/outbox/keys?limit=10").await;
        let blocked = &keys["keys"][0];
        assert_eq!((&blocked["key"], &blocked["head"]["id"]), (&json!(key), &json!(head.as_str())), "{keys}");
        assert_eq!((&blocked["waiting"]["count"], &keys["more"]), (&json!(3), &json!(false)), "{keys}");
        let path = "/api/outbox/keys/order%2F7%20%C3%A4";
        let replayed = server.post(&format!("{path}/replay"), json!({})).await;
        assert_eq!(
            (replayed.status.as_u16(), &replayed.json()["id"]),
            (200, &json!(head.as_str())),
            "{}",
            replayed.text
        );
        assert_eq!(
            server.post(&format!("{path}/skip"), json!({})).await.status,
            404,
            "the key has no dead event"
        );
        server.dead_letter(&head, "again").await;
        assert_eq!(server.post(&format!("{path}/skip"), json!({})).await.status, 200);
        assert_eq!(server.status_of(&head).await, "DONE");
        assert_eq!(server.read("/api/outbox/keys").await["keys"], json!([]));
        assert_eq!(server.get("/api/outbox/keys?limit=501").await.status, 400);
    });
}

/// Writers that use SQL choose the ids of events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_opened_replayed_skipped_and_cancelled_whatever_its_id_is() {
    let server = TestServer::start().await;
    for (id, path) in [
        ("a\u{7}b", "a%07b"),
        ("line\nbreak", "line%0Abreak"),
        ("\u{1b}[2J", "%1B%5B2J"),
        ("a/b?c#d", "a%2Fb%3Fc%23d"),
        ("ä\u{202e}", "%C3%A4%E2%80%AE"),
        (" ", "%20"),
        // An id that a URL would normalize away is addressed by its sequence number.
        ("..", "seq:{seq}"),
        (".", "seq:{seq}"),
    ] {
        let id = outbox::EventId::from(id);
        let write = async || {
            let table =
                "SELECT name FROM sqlite_master WHERE name LIKE 'w%' ORDER BY length(name), name LIMIT 1";
            let pool = server.pool().await;
            let table: String = sqlx::query_scalar(table).fetch_one(&pool).await.unwrap();
            let insert =
                format!("INSERT INTO {table} (event_id, event_type, payload) VALUES (?, 'odd', '1')");
            sqlx::query(sqlx::AssertSqlSafe(insert)).bind(id.as_str()).execute(&pool).await.unwrap();
            let seq = server.store.find(&id).await.unwrap().unwrap().seq;
            format!("/api/outbox/events/{}", path.replace("{seq}", &seq.to_string()))
        };
        let path = write().await;
        let post_action = async |what: &str| server.post(&format!("{path}/{what}"), json!({})).await;
        let listed = server.read("/api/outbox/events?event_type=odd").await;
        assert_eq!(ids(&listed), [id.as_str()]);
        assert_eq!(server.read(&path).await["event"]["id"], id.as_str(), "{path}");
        assert_eq!(server.read(&format!("{path}/explain")).await["reason"], "waiting", "{path}");
        server.dead_letter(&id, "no").await;
        assert_eq!(
            post_action("replay").await.json(),
            json!({"id": id.as_str(), "done": "replayed"}),
            "{path}"
        );
        server.dead_letter(&id, "again").await;
        assert_eq!(server.read(&format!("{path}/payload")).await["text"], "1", "{path}");
        let edit = server.request("PUT", &format!("{path}/payload")).bearer_auth(ADMIN);
        assert_eq!(server.send(edit.json(&json!({"payload": "2"}))).await.status, 200, "{path}");
        assert_eq!(post_action("skip").await.status, 200, "{path}");
        assert_eq!(
            (server.status_of(&id).await.as_str(), post_action("skip").await.status.as_u16()),
            ("DONE", 409)
        );
        assert_eq!(server.read("/api/outbox/audit").await["entries"][0]["target"], id.as_str());
        let purge = json!({"what": "done", "older_than": "0s"});
        let purge = server.post("/api/outbox/purge", purge).await.json();
        server.wait_for_job(purge["id"].as_str().unwrap()).await;
        let path = write().await;
        assert_eq!(server.post(&format!("{path}/cancel"), json!({})).await.status, 200, "{path}");
        assert_eq!(server.get(&path).await.status, 404, "{path}");
    }
}

/// Text that no database stores is not found, and no database fails on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_ids_are_not_found() {
    on_all_databases!(server, {
        for name in [
            "%00",
            "a%00b",
            "seq:",
            "seq:0",
            "seq:-1",
            "seq:x",
            "seq:9223372036854775807",
            &"x".repeat(2_000),
        ] {
            for what in ["", "/explain", "/payload"] {
                let path = format!("/api/outbox/events/{name}{what}");
                assert_eq!(server.get(&path).await.status, 404, "{path}");
            }
            let cancel = format!("/api/outbox/events/{name}/cancel");
            assert_eq!(server.post(&cancel, json!({})).await.status, 404, "{cancel}");
        }
        assert_eq!(server.post("/api/outbox/keys/a%00b/skip", json!({})).await.status, 404);
        // Text after `seq:` that is not a number is part of an id.
        let id = server.write(Event::new("order").id("seq:x").json(&7)).await;
        assert_eq!(server.read("/api/outbox/events/seq:x").await["event"]["id"], id.as_str());
    });
}

/// Writers choose ids: an id of the form `seq:N` must not stand in for the event with the sequence
/// number N.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_number_is_never_the_id_of_another_event() {
    on_all_databases!(server, {
        let meant = server.dead(Event::new("order").json(&1), "no").await;
        let seq = server.store.find(&meant).await.unwrap().unwrap().seq;
        let path = format!("/api/outbox/events/seq:{seq}");
        let forged = server.dead(Event::new("forged").id(format!("seq:{seq}")).json(&2), "no").await;
        assert_eq!(server.read(&path).await["event"]["id"], meant.as_str());
        assert_eq!(server.read(&format!("{path}/payload")).await["text"], "1");
        assert_eq!(server.post(&format!("{path}/replay"), json!({})).await.json()["id"], meant.as_str());
        assert_eq!(
            (server.status_of(&meant).await, server.status_of(&forged).await),
            ("NEW".into(), "DEAD".into())
        );
        // The event with such an id is addressed by its own sequence number.
        let own = server.store.find(&forged).await.unwrap().unwrap().seq;
        let skipped = server.post(&format!("/api/outbox/events/seq:{own}/skip"), json!({})).await;
        assert_eq!(skipped.json(), json!({"id": forged.as_str(), "done": "skipped"}));
        assert_eq!(server.status_of(&forged).await, "DONE");
    });
}

/// In SQLite an id may not be UTF-8, and is shown as U+FFFD: an event with the id U+FFFD must not
/// be changed instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_whose_id_cannot_be_decoded_is_addressed_by_its_sequence_number() {
    let server = TestServer::start().await;
    let pool = server.pool().await;
    let table = "SELECT name FROM sqlite_master WHERE name LIKE 'w%' ORDER BY length(name), name LIMIT 1";
    let table: String = sqlx::query_scalar(table).fetch_one(&pool).await.unwrap();
    for (id, payload) in [("CAST(x'ff' AS TEXT)", 1), ("'\u{fffd}'", 2)] {
        let insert = format!(
            "INSERT INTO {table} (event_id, event_type, payload, ordering_key, status, done_at, last_error) \
             VALUES ({id}, 'odd', '{payload}', 'key-{payload}', 3, datetime('now'), 'error-{payload}')"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&pool).await.unwrap();
    }
    let status = async |seq: i64| -> i64 {
        let status = format!("SELECT status FROM {table} WHERE seq = {seq}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(status)).fetch_one(&pool).await.unwrap()
    };
    let shown = server.read("/api/outbox/events/seq:1").await;
    assert_eq!((&shown["event"]["seq"], &shown["event"]["last_error"]), (&json!(1), &json!("error-1")));
    assert!(shown["event"]["unreadable"].is_string(), "{shown}");
    let explained = shown["explanation"].to_string();
    assert!(explained.contains("error-1") && !explained.contains("error-2"), "{explained}");
    assert!(explained.contains("WHERE seq = 1") && !explained.contains("dead replay"), "{explained}");
    assert_eq!(server.read("/api/outbox/events/seq:1/payload").await["text"], "1");
    // Changes that need the id are rejected.
    let rejected = [("seq:1/skip", "events"), ("seq:1/cancel", "events"), ("key-1/skip", "keys")];
    for (what, of) in rejected {
        let rejected = server.post(&format!("/api/outbox/{of}/{what}"), json!({})).await;
        assert_eq!(rejected.status, 409, "{what}");
        assert!(rejected.text.contains("WHERE seq = 1"), "{}", rejected.text);
    }
    let edit = server.request("PUT", "/api/outbox/events/seq:1/payload").bearer_auth(ADMIN);
    assert_eq!(server.send(edit.json(&json!({"payload": "3"}))).await.status, 409);
    assert_eq!((status(1).await, status(2).await), (3, 3));
    for path in ["/api/outbox/events/seq:1/replay", "/api/outbox/keys/key-1/replay"] {
        let replayed = server.post(path, json!({})).await;
        assert_eq!(replayed.json(), json!({"id": "seq:1", "done": "replayed"}), "{path}");
        assert_eq!((status(1).await, status(2).await), (0, 3), "{path}");
        assert_eq!(server.read("/api/outbox/audit").await["entries"][0]["target"], "seq:1");
        let dead = format!("UPDATE {table} SET status = 3, done_at = datetime('now') WHERE seq = 1");
        sqlx::raw_sql(sqlx::AssertSqlSafe(dead)).execute(&pool).await.unwrap();
    }
    // The event with the id U+FFFD is addressed by that id.
    let other = server.post("/api/outbox/events/%EF%BF%BD/skip", json!({})).await;
    assert_eq!((other.status.as_u16(), status(1).await, status(2).await), (200, 3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_is_too_large_is_rejected_with_its_size() {
    on_all_databases!(server, {
        let size = 5 * 1024 * 1024;
        let event = Event::new("large").max_payload(size).json_text(format!("\"{}\"", "x".repeat(size - 2)));
        let id = server.write(event).await;
        let path = format!("/api/outbox/events/{id}");
        assert_eq!(server.read(&path).await["event"]["payload_bytes"], size);
        let rejected = server.get(&format!("{path}/payload")).await;
        assert_eq!(rejected.status, 409, "{}", rejected.text);
        assert!(rejected.text.contains(&size.to_string()), "{}", rejected.text);
        assert_eq!(server.post(&format!("{path}/cancel"), json!({})).await.status, 200);
    });
}

/// C-09: the paths of the requirement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_are_shown_paused_resumed_and_reset() {
    on_all_databases!(server, {
        let log = server.store.log().unwrap();
        let subscriptions =
            ["wallet-events", "audit"].map(|topic| (SubscriptionId::new(topic, "KafkaPublisher"), false));
        log.register(&subscriptions).await.unwrap();
        let append = Event::new("DepositMade").tag("wallet", "w1").json(&1).build().unwrap();
        let _ = log.append(&[append], &Default::default()).await.unwrap();

        let all = server.read("/api/outbox/publishers").await;
        assert_eq!(all["publishers"].as_array().unwrap().len(), 2, "{all}");
        assert_eq!(all["unreadable"], json!([]), "{all}");
        let position = outbox::Position::new(3);
        assert!(log.note_unreadable(position, "its headers are wrong").await.unwrap());
        let all = server.read("/api/outbox/publishers").await;
        let noted = &all["unreadable"][0];
        assert_eq!(
            (&noted["position"], &noted["reason"]),
            (&json!(3), &json!("its headers are wrong")),
            "{all}"
        );
        let lag = server.read("/api/outbox/publishers/lag").await;
        let first = &lag["publishers"][0];
        assert_eq!((&first["topic"], &first["status"]), (&json!("audit"), &json!("ACTIVE")), "{lag}");
        assert!(first["behind"].as_u64().unwrap() >= 1, "{lag}");

        let statuses = async || {
            let one = server.read("/api/outbox/publishers/KafkaPublisher").await;
            let of = |subscription: &Value| subscription["status"].as_str().unwrap().to_owned();
            one["topics"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
        };
        let post_action = async |path: &str| {
            server.post(&format!("/api/outbox/publishers/KafkaPublisher/{path}"), json!({})).await
        };
        assert_eq!(post_action("pause").await.json(), json!({"changed": 2}));
        assert_eq!(statuses().await, ["PAUSED", "PAUSED"]);
        assert_eq!(post_action("topics/audit/resume").await.json(), json!({"changed": 1}));
        assert_eq!(statuses().await, ["ACTIVE", "PAUSED"]);
        assert_eq!(post_action("resume").await.status, 200);
        assert_eq!(post_action("topics/wallet-events/pause").await.status, 200);
        assert_eq!(statuses().await, ["ACTIVE", "PAUSED"]);
        assert_eq!(post_action("topics/nothing/pause").await.status, 404);

        let reset = async |body: Value| {
            server.post("/api/outbox/publishers/KafkaPublisher/topics/audit/reset", body).await
        };
        let end = reset(json!({"to": "end"})).await.json()["position"].as_i64().unwrap();
        assert!(end >= 1);
        assert_eq!(reset(json!({"to": "start"})).await.json(), json!({"position": 0}));
        assert_eq!(reset(json!({"position": end})).await.json(), json!({"position": end}));
        assert_eq!(reset(json!({"time": "2020-01-01T00:00:00Z"})).await.json(), json!({"position": 0}));
        for wrong in [
            json!({}),
            json!({"position": -1}),
            json!({"position": end + 1_000}),
            json!({"position": 0, "to": "end"}),
        ] {
            assert_eq!(reset(wrong.clone()).await.status, 422, "{wrong}");
        }
        let audit = server.audit().await;
        for action in ["publisher.pause", "publisher.resume", "publisher.reset"] {
            assert!(audit.iter().any(|(of, outcome)| of == action && outcome == "done"), "{audit:?}");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_are_listed_shown_and_cancelled() {
    on_all_databases!(server, {
        let mut joins = Vec::new();
        for n in 0..3 {
            let id = JoinId::from(format!("join-{n}"));
            let join = NewJoin::of(2).group("import").metadata("by hand");
            server.store.join(&JoinCommand::Start { id: id.clone(), join }).await.unwrap();
            joins.push(id);
        }
        let steps = [
            server.write(Event::new("step").json(&1)).await,
            server.write(Event::new("step").json(&2)).await,
        ];
        let attach =
            JoinCommand::Attach { join: joins[0].clone(), home: String::new(), steps: steps.to_vec() };
        server.store.join(&attach).await.unwrap();

        let first = server.read("/api/outbox/joins?limit=2&group=import&status=pending").await;
        assert_eq!(first["joins"].as_array().unwrap().len(), 2, "{first}");
        let next = first["next"].as_str().unwrap();
        let rest = server.read(&format!("/api/outbox/joins?limit=2&after={next}")).await;
        assert_eq!((&rest["joins"][0]["id"], &rest["next"]), (&json!("join-2"), &Value::Null), "{rest}");
        assert_eq!(server.get("/api/outbox/joins?after=x").await.status, 422);

        let one = server.read("/api/outbox/joins/join-0").await;
        assert_eq!(
            (&one["expected"], &one["attached"], &one["status"]),
            (&json!(2), &json!(2), &json!("PENDING")),
            "{one}"
        );
        let page = server.read("/api/outbox/joins/join-0/steps?limit=1").await;
        let next = page["next"].as_str().unwrap();
        let rest = server.read(&format!("/api/outbox/joins/join-0/steps?after={next}")).await;
        assert_eq!(
            (rest["steps"].as_array().unwrap().len(), &rest["steps"][0]["status"]),
            (1, &Value::Null),
            "{rest}"
        );

        let cancelled = server.post("/api/outbox/joins/join-1/cancel", json!({})).await;
        assert_eq!((cancelled.status.as_u16(), &cancelled.json()["status"]), (200, &json!("CANCELLED")));
        assert_eq!(server.post("/api/outbox/joins/join-1/cancel", json!({})).await.status, 409);
        assert_eq!(
            server.read("/api/outbox/joins?status=cancelled").await["joins"].as_array().unwrap().len(),
            1
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_databases_and_the_audit_are_listed() {
    on_all_databases!(server, {
        let state =
            serde_json::from_value(json!({"mode": "ordered", "version": "0.1.0", "active": true})).unwrap();
        server.store.announce(&"node-a".into(), &state).await.unwrap();
        server.write(Event::new("order").json(&1)).await;
        server.take(&Holder::Lease { owner: "node-a".into(), lease: Duration::from_secs(30) }).await;
        let nodes = server.read("/api/outbox/nodes").await;
        let node = &nodes["nodes"][0];
        assert_eq!(
            (&node["node"], &node["running"], &node["mode"]),
            (&json!("node-a"), &json!(true), &json!("ordered"))
        );
        let lease = &nodes["leases"][0];
        assert_eq!(
            (&lease["holder"], &lease["what"], &lease["events"]),
            (&json!("node-a"), &json!("events"), &json!(1))
        );
        let release = "/api/outbox/nodes/node-a/release";
        let rejected = server.post(release, json!({})).await;
        assert_eq!(
            (rejected.status.as_u16(), rejected.problem().as_str()),
            (409, "conflict"),
            "{}",
            rejected.text
        );
        let released = server.post(release, json!({"running": true})).await;
        assert_eq!(
            (released.status.as_u16(), released.json()),
            (200, json!({"events": 1, "leadership": false}))
        );
        let released = server.post(release, json!({"running": true})).await;
        assert_eq!(released.json(), json!({"events": 0, "leadership": false}));
        assert_eq!(server.read("/api/outbox/nodes").await["leases"], json!([]));
        assert_eq!(server.post("/api/outbox/nodes/unknown/release", json!({})).await.status, 404);
        let audit = server.read("/api/outbox/audit").await;
        let found: Vec<_> = audit["entries"]
            .as_array()
            .unwrap()
            .iter()
            .rev()
            .map(|entry| (entry["action"].clone(), entry["target"].clone(), entry["count"].clone()))
            .collect();
        let entry = |target: &str, count: Option<u64>| (json!("node.release"), json!(target), json!(count));
        assert_eq!(found, [entry("node-a", Some(1)), entry("node-a", Some(0)), entry("unknown", None)]);
        let databases = server.read("/api/outbox/databases").await;
        assert_eq!(databases["databases"], json!([{"name": "main", "state": "open", "reason": null}]));
        for _ in 0..3 {
            let id = server.write(Event::new("order").json(&1)).await;
            server.post(&format!("/api/outbox/events/{id}/cancel"), json!({})).await;
        }
        let page = server.read("/api/outbox/audit?limit=2").await;
        let next = page["next"].as_i64().unwrap();
        let rest = server.read(&format!("/api/outbox/audit?before={next}")).await;
        assert_eq!(
            (page["entries"].as_array().unwrap().len(), rest["entries"].as_array().unwrap().len()),
            (2, 4)
        );
        assert_eq!(rest["next"], Value::Null);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_relay_is_in_nodes_and_overview() {
    on_all_databases!(server, {
        let failing = json!({"task": "take", "since": "2026-01-31T12:00:00Z", "error": "index is corrupt", "failures": 7});
        let passing =
            json!({"task": "purge", "since": "2026-01-31T12:00:00Z", "error": "away", "failures": 7});
        let state = json!({
            "mode": "ordered", "version": "0.1.0", "active": true,
            "health": {
                "last_take": "2026-01-31T11:59:00Z", "errors": [failing, passing],
                "published": {"orders": "2026-01-31T11:58:00Z"},
            },
        });
        let state = serde_json::from_value(state).unwrap();
        server.store.announce(&"node-a".into(), &state).await.unwrap();
        let nodes = server.read("/api/outbox/nodes").await;
        let node = &nodes["nodes"][0];
        assert_eq!(node["last_take"], "2026-01-31T11:59:00Z", "{node}");
        assert_eq!(
            (&node["last_settlement"], &node["published"]["orders"]),
            (&Value::Null, &json!("2026-01-31T11:58:00Z"))
        );
        let problems: Vec<_> =
            node["errors"].as_array().unwrap().iter().map(|error| &error["problem"]).collect();
        assert_eq!(problems, [true, false], "{node}");
        let found = json!([{
            "node": "node-a", "task": "take", "since": "2026-01-31T12:00:00Z", "error": "index is corrupt",
            "failures": 7, "problem": true,
        }]);
        assert_eq!(
            server.read("/api/outbox/overview").await["failing"],
            found,
            "only errors that prevent deliveries"
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_no_running_relay_routes_are_in_overview_and_explain() {
    on_all_databases!(server, {
        let known = server.write(Event::new("known").json(&1)).await;
        let strange = server.write(Event::new("strange").json(&2)).await;
        server.write(Event::new("strange").json(&3)).await;
        let state = json!({
            "mode": "multi_node", "version": "0.1.0", "active": true, "routes": {"only": {"types": ["known"]}},
        });
        server.store.announce(&"node-a".into(), &serde_json::from_value(state).unwrap()).await.unwrap();
        let unrouted = server.read("/api/outbox/overview").await["unrouted"].clone();
        let types = &unrouted["types"];
        assert_eq!(
            (&types[0]["event_type"], &types[0]["count"]),
            (&json!("strange"), &json!(2)),
            "{unrouted}"
        );
        assert_eq!(types.as_array().unwrap().len(), 1, "{unrouted}");
        assert_eq!(
            (&unrouted["more"], &unrouted["relays"]),
            (&json!(false), &json!(["node-a"])),
            "{unrouted}"
        );
        for (id, reason) in [(&strange, "unrouted"), (&known, "waiting")] {
            let found = server.read(&format!("/api/outbox/events/{id}/explain")).await;
            assert_eq!(found["reason"], reason, "{found}");
        }
    });
}
