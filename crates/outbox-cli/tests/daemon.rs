//! `outbox relay --config`: the real binary with a settings file and real databases.

mod daemons;

use std::collections::BTreeSet;

use daemons::{TestDir, polling, wait_until};
use outbox::{Event, OutboxBuilder};
use serde_json::Value;

const TWO_FILES: &str = r#"
mode = "MODE"
[database]
url = "sqlite:{}/shop.db"
[poller]
interval = "100ms"
[publishers.orders.file]
path = "{}/orders.jsonl"
[publishers.rest.file]
path = "{}/rest.jsonl"
[[routes]]
type = "order.*"
to = "orders"
[[routes]]
to = "rest"
"#;

fn event(event_type: &str) -> outbox::EventBuilder {
    Event::new(event_type)
}

/// D-06, A-72: any client can INSERT events, and the daemon delivers them by its settings file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_follow_the_routes_and_sigterm_stops_the_relay_cleanly() {
    for mode in ["single-node", "multi-node", "ordered"] {
        let dir = TestDir::new();
        let outbox = dir.outbox("shop.db").await;
        let config = dir.config(&TWO_FILES.replace("MODE", mode));
        let relay = dir.relay("relay", &config, &[]);
        for event_type in ["order.placed", "user.created", "order.paid", "orders"] {
            outbox.send(event(event_type).json(&1)).await.unwrap();
        }
        let there = || (dir.types("orders.jsonl").len(), dir.types("rest.jsonl").len()) == (2, 2);
        wait_until("all are delivered", there, || relay.log()).await;
        let (status, log) = relay.stop().await;
        assert_eq!(status.code(), Some(0), "{log}");
        // In any order: the events have no ordering key.
        let types = |file| dir.types(file).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(types("orders.jsonl"), ["order.placed", "order.paid"].map(str::to_owned).into(), "{mode}");
        assert_eq!(types("rest.jsonl"), ["user.created", "orders"].map(str::to_owned).into(), "{mode}");
        assert_eq!(outbox.admin().stats().await.unwrap().done, 4);
    }
}

/// Each relay takes the types that its routes match. A type without a route waits until a relay
/// gets one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_with_different_routes_share_a_table() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let routed = |name: &str, types: &str| {
        let text = format!(
            "[database]\nurl = \"sqlite:{{}}/shop.db\"\n[poller]\ninterval = \"50ms\"\n\
             [publishers.{name}.file]\npath = \"{{}}/{name}.jsonl\"\n[[routes]]\ntype = [{types}]\nto = \"{name}\"\n"
        );
        let path = dir.path(&format!("{name}.toml"));
        let folder = dir.path("").display().to_string();
        std::fs::write(&path, text.replace("{}", folder.trim_end_matches('/'))).unwrap();
        path
    };
    let shop = dir.relay("shop", &routed("shop", "\"order.*\", \"bill\""), &[]);
    let bank = dir.relay("bank", &routed("bank", "\"*.refunded\""), &[]);
    let kinds = ["order.placed", "bill", "bill.refunded", "strange", "order.paid", "Order.placed"];
    let written = outbox.send_all(kinds.map(|kind| event(kind).ordering_key(kind).json(&1))).await.unwrap();
    let there = || (dir.types("shop.jsonl").len(), dir.types("bank.jsonl").len()) == (3, 1);
    wait_until("each has its own", there, || format!("{}\n{}", shop.log(), bank.log())).await;
    shop.wait_for_log("no running relay routes these pending events").await;
    for id in [written[3].id(), written[5].id()] {
        let stored = outbox.admin().find(id).await.unwrap().unwrap();
        assert_eq!((stored.status, stored.attempts, stored.last_error), (outbox::Status::New, 0, None));
    }
    routed("bank", "\"*.refunded\", \"strange\"");
    bank.signal("HUP");
    let there = || dir.types("bank.jsonl").len() == 2;
    wait_until("the new route is used", there, || bank.log()).await;
    for relay in [shop, bank] {
        let (status, log) = relay.stop().await;
        assert_eq!(status.code(), Some(0), "{log}");
    }
    // The relays have stopped, so all published events are settled.
    let stats = outbox.admin().stats().await.unwrap();
    assert_eq!((stats.new, stats.done, stats.dead), (1, 5, 0), "`Order.placed` matches no route");
}

/// An invalid file changes nothing; a valid one changes routes and publishers at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_swaps_routes_and_a_wrong_file_changes_nothing() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let good = TWO_FILES.replace("MODE", "multi-node");
    let config = dir.config(&good);
    let relay = dir.relay("relay", &config, &[]);
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    wait_until("the first", || dir.types("orders.jsonl").len() == 1, || relay.log()).await;

    dir.config(&good.replace("to = \"rest\"", "to = \"rset\""));
    relay.signal("HUP");
    relay.wait_for_log("outbox.toml:15:6: there is no publisher `rset`: did you mean `rest`?").await;
    relay.wait_for_log("settings stay unchanged").await;
    outbox.send(event("order.paid").json(&1)).await.unwrap();
    wait_until("the second", || dir.types("orders.jsonl").len() == 2, || relay.log()).await;

    let new = good
        .replace("type = \"order.*\"", "type = \"*.paid\"")
        .replace("rest.jsonl", "new.jsonl")
        .replace("multi-node", "ordered")
        .replace("100ms", "200ms");
    dir.config(&new);
    relay.signal("HUP");
    relay.wait_for_log(" reloaded").await;
    relay.wait_for_log("`mode` has changed: the change takes effect after a restart").await;
    relay.wait_for_log("`poller` has changed: the change takes effect after a restart").await;
    assert!(relay.log().contains("changed=\"rest\""), "orders is as before:\n{}", relay.log());
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    outbox.send(event("bill.paid").json(&1)).await.unwrap();
    wait_until(
        "the new ones",
        || !dir.types("new.jsonl").is_empty() && dir.types("orders.jsonl").len() == 3,
        || relay.log(),
    )
    .await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(dir.types("new.jsonl"), ["order.placed"]);
    assert_eq!(dir.types("orders.jsonl"), ["order.placed", "order.paid", "bill.paid"]);
    assert_eq!(dir.types("rest.jsonl"), [""; 0]);
}

/// Events that wait for an unavailable destination are delivered to another one if their route
/// changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_an_unavailable_destination_wait_and_can_be_rerouted() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let text = TWO_FILES.replace("MODE", "multi-node").replace("{}/orders.jsonl", "{}/away/orders.jsonl");
    let config = dir.config(&text);
    let relay = dir.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
    relay.wait_for_log("publisher `orders` (file) is unavailable, its events wait").await;
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    outbox.send(event("user.created").json(&1)).await.unwrap();
    wait_until("other events are delivered", || dir.types("rest.jsonl").len() == 1, || relay.log()).await;
    relay.wait_for_log("destination unavailable: its events wait").await;
    let body = relay.wait_until_ready().await;
    let ready: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(ready["outages"][0]["destination"], "orders", "{body}");
    assert_eq!(outbox.admin().stats().await.unwrap().dead, 0);

    dir.config(&text.replace("to = \"orders\"", "to = \"rest\""));
    relay.signal("HUP");
    wait_until("the new route is used", || dir.types("rest.jsonl").len() == 2, || relay.log()).await;

    dir.config(&text);
    relay.signal("HUP");
    let reloads = || relay.log().matches(" reloaded").count();
    wait_until("the second reload", || reloads() == 2, || relay.log()).await;
    outbox.send(event("order.paid").json(&1)).await.unwrap();
    std::fs::create_dir(dir.path("away")).unwrap();
    wait_until(
        "the destination is available again",
        || dir.types("away/orders.jsonl").len() == 1,
        || relay.log(),
    )
    .await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

const FLEET: &str = r#"
[poller]
interval = "100ms"
[publishers.lines.file]
path = "{}/lines.jsonl"
[[routes]]
to = "lines"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_relay_serves_three_databases() {
    let dir = TestDir::new();
    let names = ["a", "b", "c"];
    let databases =
        names.map(|name| format!("[[databases]]\nname = \"{name}\"\nurl = \"sqlite:{{}}/{name}.db\"\n"));
    let config = dir.config(&format!("migrate = true\n{}{FLEET}", databases.concat()));
    let relay = dir.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
    for name in names {
        let outbox = dir.outbox(&format!("{name}.db")).await;
        outbox.send(event(name).json(&1)).await.unwrap();
    }
    wait_until("all three", || dir.types("lines.jsonl").len() == 3, || relay.log()).await;
    let body = relay.wait_until_ready().await;
    let ready: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(ready["databases"].as_array().unwrap().len(), 3, "{body}");
    let (_, metrics) = relay.get("/metrics");
    assert!(metrics.contains("outbox_fleet_databases 3"), "{metrics}");
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_of_a_discovery_query_are_added_and_removed() {
    let dir = TestDir::new();
    let directory =
        sqlx::SqlitePool::connect(&format!("{}?mode=rwc", dir.url("directory.db"))).await.unwrap();
    sqlx::query("CREATE TABLE tenant (name TEXT, url TEXT, active INTEGER)")
        .execute(&directory)
        .await
        .unwrap();
    let add = async |name: &str| {
        let url = dir.url(&format!("{name}.db"));
        let outbox = dir.outbox(&format!("{name}.db")).await;
        outbox.send(event(name).json(&1)).await.unwrap();
        let insert = sqlx::query("INSERT INTO tenant VALUES ($1, $2, 1)").bind(name).bind(url);
        insert.execute(&directory).await.unwrap();
    };
    add("acme").await;
    // The writers of the directory choose the databases that are opened, within `allow`, which
    // excludes files by default.
    let config = dir.config(&format!(
        "[discovery]\nurl = \"sqlite:{{}}/directory.db\"\nquery = \"SELECT name, url FROM tenant\"\n{FLEET}"
    ));
    let refusing = dir.relay("refusing", &config, &[]);
    refusing.wait_for_log("discovered database refused").await;
    refusing.stop().await;
    assert!(dir.types("lines.jsonl").is_empty());
    let config = dir.config(&format!(
        "[discovery]\nurl = \"sqlite:{{}}/directory.db\"\nquery = \"SELECT name, url FROM tenant WHERE active\"\n\
         interval = \"200ms\"\nabsences = 1\nallow = [\"sqlite\"]\n{FLEET}"
    ));
    let relay = dir.relay("relay", &config, &[]);
    wait_until("the first database", || dir.types("lines.jsonl") == ["acme"], || relay.log()).await;
    add("globex").await;
    wait_until("the new database", || dir.types("lines.jsonl") == ["acme", "globex"], || relay.log()).await;
    sqlx::query("UPDATE tenant SET active = 0 WHERE name = 'acme'").execute(&directory).await.unwrap();
    relay.wait_for_log("the database is gone: removing it").await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_single_node_relay_stands_by_names_the_leader_and_takes_over() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let config = dir.config(&format!(
        "{}[claim-locking]\nowner-id = \"${{RELAY_NAME:-first}}\"\n",
        TWO_FILES.replace("MODE", "single-node")
    ));
    let first = dir.relay("first", &config, &[]);
    first.wait_for_log("this node holds the outbox").await;
    let second = dir.relay("second", &config, &["--listen", "127.0.0.1:0"]);
    second
        .wait_for_log("standing by: `mode = \"single-node\"` allows one active relay, which is first:")
        .await;
    let body = second.wait_until_ready().await;
    assert!(body.contains("\"relay\":\"standby\""), "{body}");
    outbox.send(event("order.1").json(&1)).await.unwrap();
    wait_until("by the first", || dir.types("orders.jsonl").len() == 1, || first.log()).await;
    first.stop().await;
    second.wait_for_log("took over: this relay is active now").await;
    outbox.send(event("order.2").json(&1)).await.unwrap();
    wait_until("by the second", || dir.types("orders.jsonl").len() == 2, || second.log()).await;
    assert!(second.get("/readyz").1.contains("\"relay\":\"active\""));
    let (status, log) = second.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_metrics_are_answered() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let config = dir.config(&format!(
        "{}[metrics]\nprefix = \"shop\"\n",
        TWO_FILES.replace("MODE", "multi-node").replace("[database]\n", "[database]\nname = \"shop\"\n")
    ));
    let relay = dir.relay("relay", &config, &["--listen", "127.0.0.1:0", "--log-format", "json"]);
    relay.wait_for_log("relay started").await;
    outbox.send_all((0..7).map(|n| event("n").json(&n))).await.unwrap();
    wait_until("delivered", || dir.types("rest.jsonl").len() == 7, || relay.log()).await;
    assert_eq!(relay.get("/healthz"), (200, "ok\n".to_owned()));
    let settled = || relay.get("/readyz").1.contains("\"last_settlement\":\"");
    wait_until("the settlement is reported", settled, || relay.get("/readyz").1).await;
    let body = relay.wait_until_ready().await;
    let mut ready: Value = serde_json::from_str(&body).unwrap();
    let times = ["last_take", "last_settlement"].map(|name| ready.as_object_mut().unwrap().remove(name));
    assert!(times.iter().all(|time| time.as_ref().is_some_and(Value::is_string)), "{body}");
    assert_eq!(ready, serde_json::json!({"ready": true, "relay": "active"}));
    let counted = || relay.get("/metrics").1.contains("shop_dispatch_success{store=\"shop\"} 7");
    wait_until("counted", counted, || relay.get("/metrics").1).await;
    assert_eq!(relay.get("/nothing").0, 404);

    // Without its tables the relay is alive, but not ready.
    let pool = sqlx::SqlitePool::connect(&dir.url("shop.db")).await.unwrap();
    sqlx::query("DROP TABLE outbox_event_schema").execute(&pool).await.unwrap();
    let is_told = || {
        let (status, body) = relay.get("/readyz");
        status == 503 && body.contains("\"reasons\":[\"the database: ")
    };
    wait_until("not ready", is_told, || relay.get("/readyz").1).await;
    assert_eq!(relay.get("/healthz").0, 200);
    for line in relay.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["timestamp"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_published_by_topics() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    outbox
        .log()
        .append([event("DepositMade").tag("wallet", 1).json(&5), event("Noise").json(&1)])
        .await
        .unwrap();
    let config = dir.config(
        "mode = \"log\"\n[database]\nurl = \"sqlite:{}/shop.db\"\n[publishers.lines.file]\npath = \"{}/lines.jsonl\"\n\
         [publishers.all.file]\npath = \"{}/all.jsonl\"\n\
         [[topics]]\nname = \"wallets\"\nrequired-tags = [\"wallet\"]\nto = [\"lines\"]\n\
         [[topics]]\nname = \"all\"\nto = [\"all\"]\n",
    );
    let relay = dir.relay("relay", &config, &[]);
    wait_until(
        "published",
        || !dir.types("lines.jsonl").is_empty() && dir.types("all.jsonl").len() == 2,
        || relay.log(),
    )
    .await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(dir.types("lines.jsonl"), ["DepositMade"]);
    let pairs: Vec<String> =
        outbox.log_admin().lag().await.unwrap().iter().map(|lag| lag.id.to_string()).collect();
    assert_eq!(
        pairs,
        ["all/all", "wallets/lines"],
        "positions are kept by the publishers' names in the file"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_database_ends_the_relay_unless_wait_is_set() {
    let dir = TestDir::new();
    let config = dir.config(&TWO_FILES.replace("MODE", "multi-node"));
    let mut relay = dir.relay("relay", &config, &[]);
    assert_eq!(relay.wait_for_exit().await.code(), Some(1));
    assert!(relay.log().contains("outbox migrate"), "{}", relay.log());

    let relay = dir.relay("patient", &config, &["--wait", "60s", "--listen", "127.0.0.1:0"]);
    relay.wait_for_log("retrying for up to 60s").await;
    let (status, body) = relay.get("/readyz");
    assert_eq!((status, body.contains("starting")), (503, true), "{body}");
    let outbox = dir.outbox("shop.db").await;
    outbox.send(event("order.1").json(&1)).await.unwrap();
    wait_until("delivered", || dir.types("orders.jsonl").len() == 1, || relay.log()).await;

    let nowhere = dir.config(
        &TWO_FILES
            .replace("MODE", "multi-node")
            .replace("sqlite:{}/shop.db", "postgres://u:hunter2@127.0.0.1:1/x"),
    );
    let mut relay = dir.relay("nowhere", &nowhere, &[]);
    assert_eq!(relay.wait_for_exit().await.code(), Some(1));
    assert!(relay.log().contains("host and port in `url` of `[database]`"), "{}", relay.log());
    assert!(!relay.log().contains("hunter2"));
    let waiting = dir.relay("waiting", &nowhere, &["--wait", "60s"]);
    waiting.wait_for_log("retrying for").await;
    assert_eq!(waiting.stop().await.0.code(), Some(0), "stopped while it waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_others_can_reach_is_refused_unless_asked_for() {
    let dir = TestDir::new();
    dir.outbox("shop.db").await;
    let config = dir.config(&TWO_FILES.replace("MODE", "multi-node"));
    let mut relay = dir.relay("relay", &config, &["--listen", "0.0.0.0:0"]);
    assert_eq!(relay.wait_for_exit().await.code(), Some(2));
    assert!(relay.log().contains("can be reached from other machines"), "{}", relay.log());
    let relay = dir.relay("open", &config, &["--listen", "0.0.0.0:0", "--allow-remote"]);
    relay.wait_for_log("relay started").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_file_is_wrong_usage() {
    let dir = TestDir::new();
    let config = dir.config(&TWO_FILES.replace("MODE", "multi-node").replace("100ms", "100"));
    let mut relay = dir.relay("relay", &config, &[]);
    assert_eq!(relay.wait_for_exit().await.code(), Some(2));
    let how = "write a whole number and its unit, as in 500ms, 90s, 5m, 2h, 7d or 4w";
    assert_eq!(relay.log(), format!("{}:6:12: {how}\n", config.display()));
    let mut relay = dir.relay("flags", &config, &["--publish", "stdout"]);
    assert_eq!(relay.wait_for_exit().await.code(), Some(2));
    assert!(relay.log().contains("--publish cannot be used with --config"), "{}", relay.log());
}

/// Neither a password nor a payload is logged, even at the level `trace`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_logs_metrics_or_responses() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let text = TWO_FILES
        .replace("MODE", "multi-node")
        .replace("{}/shop.db\"", "{}/shop.db?password=canary-url\"")
        .replace("{}/orders.jsonl", "{}/away/orders.jsonl");
    // SQLite refuses unknown parameters, so that an error about the URL is logged, too.
    let refused = dir.config(&text);
    let mut relay = dir.relay("refused", &refused, &["--log", "trace"]);
    assert_eq!(relay.wait_for_exit().await.code(), Some(1), "{}", relay.log());
    let mut output = relay.log();

    let config = dir.config(&text.replace("?password=canary-url", ""));
    let relay = dir.relay("relay", &config, &["--log", "trace", "--listen", "127.0.0.1:0"]);
    for event_type in ["order.1", "user.1"] {
        let secret = event(event_type).header("authorization", "canary-header").json(&"canary-payload");
        outbox.send(secret).await.unwrap();
    }
    wait_until("delivered", || dir.types("rest.jsonl").len() == 1, || relay.log()).await;
    relay.wait_for_log("destination unavailable: its events wait").await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        output += &relay.get(path).1;
    }
    relay.signal("HUP");
    relay.wait_for_log(" reloaded").await;
    output += &relay.stop().await.1;
    assert!(output.contains("DEBUG"), "{output}");
    for canary in ["canary-url", "canary-payload", "canary-header"] {
        assert!(
            !output.contains(canary),
            "{canary}: {}",
            output.lines().find(|line| line.contains(canary)).unwrap()
        );
    }
}

/// On the servers in environment variables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_delivers_from_servers() {
    if let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") {
        let outbox = OutboxBuilder::new().table("cfg_daemon").postgres(&url).await.unwrap();
        outbox.migrate().await.unwrap();
        outbox.send(event("order.pg").json(&1)).await.unwrap();
        deliver(&url).await;
    }
    for variable in ["OUTBOX_TEST_MARIADB", "OUTBOX_TEST_MYSQL"] {
        let Ok(url) = std::env::var(variable) else { continue };
        let outbox = OutboxBuilder::new().table("cfg_daemon").mysql(&url).await.unwrap();
        outbox.migrate().await.unwrap();
        outbox.send(event("order.my").json(&1)).await.unwrap();
        deliver(&url).await;
    }
}

async fn deliver(url: &str) {
    let dir = TestDir::new();
    let text = TWO_FILES
        .replace("MODE", "multi-node")
        .replace("sqlite:{}/shop.db\"", "URL\"\ntable = \"cfg_daemon\"");
    let config = dir.config(&text.replace("URL", url));
    let relay = dir.relay("relay", &config, &[]);
    wait_until("delivered", || !dir.types("orders.jsonl").is_empty(), || relay.log()).await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Runs a test on each available database, with its URL and an SQL expression for two days ago.
async fn each_database(dir: &TestDir, mut test: impl AsyncFnMut(&str, &str)) {
    dir.outbox("aged.db").await.close().await;
    test(&dir.url("aged.db"), "datetime('now', '-2 days')").await;
    if let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") {
        test(&url, "now() - interval '2 days'").await;
    }
    if let Ok(url) = std::env::var("OUTBOX_TEST_MARIADB") {
        test(&url, "utc_timestamp() - interval 2 day").await;
    }
}

/// A-50, A-72: it deletes DONE events; undelivered events only with `delete-undelivered`, and by
/// their age.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_only_delivers_nothing_and_purges_by_age_if_configured() {
    let dir = TestDir::new();
    each_database(&dir, async |url, two_days_ago| {
        let table = format!("writer_only_{}", std::process::id());
        let options = outbox::StoreOptions::default().table(&table);
        let store = outbox::open_store(url, &options).await.unwrap();
        store.migrate().await.unwrap();
        let events = ["old", "young", "old.done"].map(|kind| event(kind).json(&1).build().unwrap());
        let ids = store.insert(&events).await.unwrap();
        age(url, &table, two_days_ago).await;
        let kept = async || {
            let mut kept = Vec::new();
            for id in &ids {
                kept.push(store.find(id).await.unwrap().is_some());
            }
            kept
        };
        let text = |purge: &str| {
            format!(
                "mode = \"writer_only\"\n[database]\nurl = \"{url}\"\ntable = \"{table}\"\n\
                 [purge]\ninterval = \"20ms\"\nretention = \"1d\"\n{purge}"
            )
        };
        let config = dir.config(&text(""));
        let relay = dir.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
        relay.wait_for_log("purged old DONE events").await;
        relay.wait_until_ready().await;
        let (status, log) = relay.stop().await;
        assert_eq!((status.code(), kept().await), (Some(0), vec![true, true, false]), "{log}");
        let stats = store.stats().await.unwrap();
        assert_eq!((stats.new, stats.done, stats.dead), (2, 0, 0), "nothing is delivered");

        let config = dir.config(&text("delete-undelivered = true\n"));
        let relay = dir.relay("relay", &config, &[]);
        relay.wait_for_log("purged old events by age, whatever their status").await;
        let (status, log) = relay.stop().await;
        assert_eq!((status.code(), kept().await), (Some(0), vec![false, true, false]), "{log}");
    })
    .await;
}

/// Sets the times of events whose type starts with `old` to two days ago, and makes `old.done`
/// DONE.
async fn age(url: &str, table: &str, two_days_ago: &str) {
    use sqlx::{Connection as _, Executor as _};

    let aged = format!(
        "UPDATE {table} SET created_at = {two_days_ago}, available_at = {two_days_ago} WHERE event_type LIKE 'old%'"
    );
    let done =
        format!("UPDATE {table} SET status = 1, done_at = {two_days_ago} WHERE event_type = 'old.done'");
    for statement in [aged, done] {
        let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement));
        if url.starts_with("postgres") {
            sqlx::PgConnection::connect(url).await.unwrap().execute(statement).await.unwrap();
        } else if url.starts_with("mysql") {
            sqlx::MySqlConnection::connect(url).await.unwrap().execute(statement).await.unwrap();
        } else {
            sqlx::SqliteConnection::connect(url).await.unwrap().execute(statement).await.unwrap();
        }
    }
}

/// Mode writer-only without a settings file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_only_by_flags_needs_nothing_to_publish_to() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    let url = dir.url("shop.db");
    let relay = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"));
        command.args(["relay", "--mode", "WRITER_ONLY", "--database", &url]).args(more);
        command.env_remove("OUTBOX_CONFIG").stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let refused = relay(&["--publish", "stdout"]).wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(
        message.contains("--mode writer-only delivers nothing: remove --publish and --topic"),
        "{message}"
    );

    let mut running = relay(&[]);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(running.stderr.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("relay started")));
    let pid = running.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert_eq!(outbox.admin().stats().await.unwrap().new, 1);
}

/// C-05: the `log` and `statistics` publishers as destinations of routes and of topics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_logged_and_counted_by_the_publishers_of_the_library() {
    let dir = TestDir::new();
    each_database(&dir, async |url, _| {
        let table = format!("counted_{}", std::process::id());
        let store = outbox::open_store(url, &outbox::StoreOptions::default().table(&table)).await.unwrap();
        store.migrate().await.unwrap();
        let config = dir.config(&format!(
            "[database]\nurl = \"{url}\"\ntable = \"{table}\"\n[poller]\ninterval = \"50ms\"\n[log]\nwatch = \"20ms\"\n\
             [publishers.trail.log]\n[publishers.counts.statistics]\nevery = \"365d\"\n\
             [[routes]]\ntype = \"order.*\"\nto = \"trail\"\n[[routes]]\nto = \"counts\"\n\
             [[topics]]\nname = \"everything\"\nto = [\"trail\", \"counts\"]\n"
        ));
        let relay = dir.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
        let secret = event("order.placed").json(&"s3cret-payload").build().unwrap();
        let counted = (0..5).map(|n| event("user.created").json(&n).build().unwrap());
        store.insert(&counted.chain([secret]).collect::<Vec<_>>()).await.unwrap();
        let log = store.log().expect("the store has a log");
        let _ = log.append(&[event("WalletOpened").json(&1).build().unwrap()], &outbox::Condition::default()).await.unwrap();
        relay.wait_for_log("event published publisher=\"trail\"").await;
        relay.wait_for_log("event_type=WalletOpened").await;
        let all_done = async || {
            let stats = store.stats().await.unwrap();
            (stats.new, stats.done, stats.dead) == (0, 6, 0)
        };
        polling::until("all events are done", all_done, || relay.log()).await;
        let counted = |line: &str| line.starts_with("outbox_log_published") && line.contains("counts") && line.ends_with(" 1");
        let is_counted = || relay.get("/metrics").1.lines().any(counted);
        wait_until("the topic is counted", is_counted, || relay.get("/metrics").1).await;
        let (status, log) = relay.stop().await;
        assert_eq!(status.code(), Some(0), "{log}");
        let line = log.lines().find(|line| line.contains("events counted")).expect("counts at the end");
        assert!(line.contains("publisher=\"counts\" total=6") && line.contains("user.created 5, WalletOpened 1"), "{line}");
        assert_eq!(log.matches("event_type=order.placed").count(), 1, "{log}");
        assert!(!log.contains("s3cret-payload") && !log.contains("event_type=user.created"), "{log}");
    })
    .await;
}

/// If a broker is unavailable at first, its events wait, and none is lost or dead-lettered.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_late_gets_everything() {
    let dir = TestDir::new();
    let outbox = dir.outbox("shop.db").await;
    let Ok(mut redis) = daemons::Redis::new(&dir) else {
        return eprintln!("skipped: no redis-server here");
    };
    let config = dir.config(&format!(
        "[database]\nurl = \"sqlite:{{}}/shop.db\"\n[poller]\ninterval = \"100ms\"\n[publishers.orders.redis]\n\
         url = \"redis://127.0.0.1:{}\"\nstream = \"{{tenant_id}}.orders\"\n[[routes]]\nto = \"orders\"\n",
        redis.port
    ));
    let relay = dir.relay("relay", &config, &[]);
    relay.wait_for_log("publisher `orders` (redis) is unavailable, its events wait: ").await;
    outbox.send_all((0..20).map(|n| event("n").tenant("acme").json(&n))).await.unwrap();
    relay.wait_for_log("destination unavailable: its events wait").await;
    redis.start();
    wait_until("all events arrive", || redis.query("XLEN acme.orders") == ":20", || relay.log()).await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(outbox.admin().stats().await.unwrap().done, 20);
}
