//! `outbox relay --config` as its users meet it: the real binary, a settings file, real databases.

mod daemons;

use std::collections::BTreeSet;

use daemons::{Place, until};
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

/// D-06, A-72: any client INSERTs, the daemon delivers by its settings file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_where_the_routes_say_and_sigterm_ends_it_well() {
    for mode in ["single-node", "multi-node", "ordered"] {
        let place = Place::new();
        let outbox = place.outbox("shop.db").await;
        let config = place.config(&TWO_FILES.replace("MODE", mode));
        let relay = place.relay("relay", &config, &[]);
        for event_type in ["order.placed", "user.created", "order.paid", "orders"] {
            outbox.send(event(event_type).json(&1)).await.unwrap();
        }
        let there = || (place.types("orders.jsonl").len(), place.types("rest.jsonl").len()) == (2, 2);
        until("all are delivered", there, || relay.log()).await;
        let (status, log) = relay.stop().await;
        assert_eq!(status.code(), Some(0), "{log}");
        // In whatever order: nobody asked for one.
        let types = |file| place.types(file).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(types("orders.jsonl"), ["order.placed", "order.paid"].map(str::to_owned).into(), "{mode}");
        assert_eq!(types("rest.jsonl"), ["user.created", "orders"].map(str::to_owned).into(), "{mode}");
        assert_eq!(outbox.admin().stats().await.unwrap().done, 4);
    }
}

/// By the patterns of their routes. A type that neither knows waits until one is told of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_with_different_routes_share_a_table() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    let routed = |name: &str, types: &str| {
        let text = format!(
            "[database]\nurl = \"sqlite:{{}}/shop.db\"\n[poller]\ninterval = \"50ms\"\n\
             [publishers.{name}.file]\npath = \"{{}}/{name}.jsonl\"\n[[routes]]\ntype = [{types}]\nto = \"{name}\"\n"
        );
        let path = place.path(&format!("{name}.toml"));
        let folder = place.path("").display().to_string();
        std::fs::write(&path, text.replace("{}", folder.trim_end_matches('/'))).unwrap();
        path
    };
    let shop = place.relay("shop", &routed("shop", "\"order.*\", \"bill\""), &[]);
    let bank = place.relay("bank", &routed("bank", "\"*.refunded\""), &[]);
    let kinds = ["order.placed", "bill", "bill.refunded", "strange", "order.paid", "Order.placed"];
    let ids = outbox.send_all(kinds.map(|kind| event(kind).ordering_key(kind).json(&1))).await.unwrap();
    let there = || (place.types("shop.jsonl").len(), place.types("bank.jsonl").len()) == (3, 1);
    until("each has its own", there, || format!("{}\n{}", shop.log(), bank.log())).await;
    shop.says("no running relay routes these pending events").await;
    for id in [&ids[3], &ids[5]] {
        let stored = outbox.admin().find(id).await.unwrap().unwrap();
        assert_eq!((stored.status, stored.attempts, stored.last_error), (outbox::Status::New, 0, None));
    }
    routed("bank", "\"*.refunded\", \"strange\"");
    bank.signal("HUP");
    let there = || place.types("bank.jsonl").len() == 2;
    until("the new route is used", there, || bank.log()).await;
    for relay in [shop, bank] {
        let (status, log) = relay.stop().await;
        assert_eq!(status.code(), Some(0), "{log}");
    }
    // What was published is settled by now.
    let stats = outbox.admin().stats().await.unwrap();
    assert_eq!((stats.new, stats.done, stats.dead), (1, 5, 0), "one is spelled in another way");
}

/// A file that is wrong changes nothing; a good one changes routes and publishers at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_swaps_routes_and_a_wrong_file_changes_nothing() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    let good = TWO_FILES.replace("MODE", "multi-node");
    let config = place.config(&good);
    let relay = place.relay("relay", &config, &[]);
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    until("the first", || place.types("orders.jsonl").len() == 1, || relay.log()).await;

    place.config(&good.replace("to = \"rest\"", "to = \"rset\""));
    relay.signal("HUP");
    relay.says("outbox.toml:15:6: there is no publisher `rset`: did you mean `rest`?").await;
    relay.says("everything stays as it was").await;
    outbox.send(event("order.paid").json(&1)).await.unwrap();
    until("the second", || place.types("orders.jsonl").len() == 2, || relay.log()).await;

    let new = good
        .replace("type = \"order.*\"", "type = \"*.paid\"")
        .replace("rest.jsonl", "new.jsonl")
        .replace("multi-node", "ordered")
        .replace("100ms", "200ms");
    place.config(&new);
    relay.signal("HUP");
    relay.says("was read again").await;
    relay.says("`mode` has changed: that needs a restart").await;
    relay.says("`poller` has changed: that needs a restart").await;
    assert!(relay.log().contains("changed=\"rest\""), "orders is as before:\n{}", relay.log());
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    outbox.send(event("bill.paid").json(&1)).await.unwrap();
    until(
        "the new ones",
        || !place.types("new.jsonl").is_empty() && place.types("orders.jsonl").len() == 3,
        || relay.log(),
    )
    .await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(place.types("new.jsonl"), ["order.placed"]);
    assert_eq!(place.types("orders.jsonl"), ["order.placed", "order.paid", "bill.paid"]);
    assert_eq!(place.types("rest.jsonl"), [""; 0]);
}

/// What waits for a destination that is away goes elsewhere when the routes say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_that_is_away_is_said_and_waited_for_and_can_be_routed_around() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    let text = TWO_FILES.replace("MODE", "multi-node").replace("{}/orders.jsonl", "{}/away/orders.jsonl");
    let config = place.config(&text);
    let relay = place.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
    relay.says("the publisher `orders` (file) is not available yet").await;
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    outbox.send(event("user.created").json(&1)).await.unwrap();
    until("the rest goes on", || place.types("rest.jsonl").len() == 1, || relay.log()).await;
    relay.says("destination unavailable: its events wait").await;
    let body = relay.ready().await;
    let ready: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(ready["outages"][0]["destination"], "orders", "{body}");
    assert_eq!(outbox.admin().stats().await.unwrap().dead, 0);

    place.config(&text.replace("to = \"orders\"", "to = \"rest\""));
    relay.signal("HUP");
    until("it takes the new way", || place.types("rest.jsonl").len() == 2, || relay.log()).await;

    place.config(&text);
    relay.signal("HUP");
    let reloads = || relay.log().matches("was read again").count();
    until("the second reload", || reloads() == 2, || relay.log()).await;
    outbox.send(event("order.paid").json(&1)).await.unwrap();
    std::fs::create_dir(place.path("away")).unwrap();
    until("it is back", || place.types("away/orders.jsonl").len() == 1, || relay.log()).await;
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
    let place = Place::new();
    let names = ["a", "b", "c"];
    let databases =
        names.map(|name| format!("[[databases]]\nname = \"{name}\"\nurl = \"sqlite:{{}}/{name}.db\"\n"));
    let config = place.config(&format!("migrate = true\n{}{FLEET}", databases.concat()));
    let relay = place.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
    for name in names {
        let outbox = place.outbox(&format!("{name}.db")).await;
        outbox.send(event(name).json(&1)).await.unwrap();
    }
    until("all three", || place.types("lines.jsonl").len() == 3, || relay.log()).await;
    let body = relay.ready().await;
    let ready: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(ready["databases"].as_array().unwrap().len(), 3, "{body}");
    let (_, metrics) = relay.get("/metrics");
    assert!(metrics.contains("outbox_fleet_databases 3"), "{metrics}");
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_that_a_query_names_are_found_and_let_go() {
    let place = Place::new();
    let directory =
        sqlx::SqlitePool::connect(&format!("{}?mode=rwc", place.url("directory.db"))).await.unwrap();
    sqlx::query("CREATE TABLE tenant (name TEXT, url TEXT, active INTEGER)")
        .execute(&directory)
        .await
        .unwrap();
    let add = async |name: &str| {
        let url = place.url(&format!("{name}.db"));
        let outbox = place.outbox(&format!("{name}.db")).await;
        outbox.send(event(name).json(&1)).await.unwrap();
        let insert = sqlx::query("INSERT INTO tenant VALUES ($1, $2, 1)").bind(name).bind(url);
        insert.execute(&directory).await.unwrap();
    };
    add("acme").await;
    // The directory's writers choose what is opened, within what is allowed: no files, unless that is said.
    let config = place.config(&format!(
        "[discovery]\nurl = \"sqlite:{{}}/directory.db\"\nquery = \"SELECT name, url FROM tenant\"\n{FLEET}"
    ));
    let refusing = place.relay("refusing", &config, &[]);
    refusing.says("a database of the directory is not served").await;
    refusing.stop().await;
    assert!(place.types("lines.jsonl").is_empty());
    let config = place.config(&format!(
        "[discovery]\nurl = \"sqlite:{{}}/directory.db\"\nquery = \"SELECT name, url FROM tenant WHERE active\"\n\
         interval = \"200ms\"\nabsences = 1\nallow = [\"sqlite\"]\n{FLEET}"
    ));
    let relay = place.relay("relay", &config, &[]);
    until("the one that was there", || place.types("lines.jsonl") == ["acme"], || relay.log()).await;
    add("globex").await;
    until("the new one", || place.types("lines.jsonl") == ["acme", "globex"], || relay.log()).await;
    sqlx::query("UPDATE tenant SET active = 0 WHERE name = 'acme'").execute(&directory).await.unwrap();
    relay.says("the database is gone: removing it").await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_relay_of_a_single_node_stands_by_says_for_whom_and_takes_over() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    let config = place.config(&format!(
        "{}[claim-locking]\nowner-id = \"${{RELAY_NAME:-first}}\"\n",
        TWO_FILES.replace("MODE", "single-node")
    ));
    let first = place.relay("first", &config, &[]);
    first.says("this node holds the outbox").await;
    let second = place.relay("second", &config, &["--listen", "127.0.0.1:0"]);
    second.says("standing by: `mode = \"single-node\"` lets one relay deliver, and first:").await;
    let body = second.ready().await;
    assert!(body.contains("\"relay\":\"standing by\""), "{body}");
    outbox.send(event("order.1").json(&1)).await.unwrap();
    until("by the first", || place.types("orders.jsonl").len() == 1, || first.log()).await;
    first.stop().await;
    second.says("took over: this relay delivers now").await;
    outbox.send(event("order.2").json(&1)).await.unwrap();
    until("by the second", || place.types("orders.jsonl").len() == 2, || second.log()).await;
    assert!(second.get("/readyz").1.contains("\"relay\":\"active\""));
    let (status, log) = second.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_metrics_are_answered() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    let config = place.config(&format!(
        "{}[metrics]\nprefix = \"shop\"\n",
        TWO_FILES.replace("MODE", "multi-node").replace("[database]\n", "[database]\nname = \"shop\"\n")
    ));
    let relay = place.relay("relay", &config, &["--listen", "127.0.0.1:0", "--log-format", "json"]);
    relay.says("relay started").await;
    outbox.send_all((0..7).map(|n| event("n").json(&n))).await.unwrap();
    until("delivered", || place.types("rest.jsonl").len() == 7, || relay.log()).await;
    assert_eq!(relay.get("/healthz"), (200, "ok\n".to_owned()));
    let settled = || relay.get("/readyz").1.contains("\"last_settlement\":\"");
    until("the settlement is told", settled, || relay.get("/readyz").1).await;
    let body = relay.ready().await;
    let mut ready: Value = serde_json::from_str(&body).unwrap();
    let times = ["last_take", "last_settlement"].map(|name| ready.as_object_mut().unwrap().remove(name));
    assert!(times.iter().all(|time| time.as_ref().is_some_and(Value::is_string)), "{body}");
    assert_eq!(ready, serde_json::json!({"ready": true, "relay": "active"}));
    let counted = || relay.get("/metrics").1.contains("shop_dispatch_success{store=\"shop\"} 7");
    until("counted", counted, || relay.get("/metrics").1).await;
    assert_eq!(relay.get("/nothing").0, 404);

    // The tables are gone: alive, but not ready.
    let pool = sqlx::SqlitePool::connect(&place.url("shop.db")).await.unwrap();
    sqlx::query("DROP TABLE outbox_event_schema").execute(&pool).await.unwrap();
    let is_told = || {
        let (status, body) = relay.get("/readyz");
        status == 503 && body.contains("\"reasons\":[\"the database: ")
    };
    until("not ready", is_told, || relay.get("/readyz").1).await;
    assert_eq!(relay.get("/healthz").0, 200);
    for line in relay.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["timestamp"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_published_by_topics() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    outbox
        .log()
        .append([event("DepositMade").tag("wallet", 1).json(&5), event("Noise").json(&1)])
        .await
        .unwrap();
    let config = place.config(
        "mode = \"log\"\n[database]\nurl = \"sqlite:{}/shop.db\"\n[publishers.lines.file]\npath = \"{}/lines.jsonl\"\n\
         [publishers.all.file]\npath = \"{}/all.jsonl\"\n\
         [[topics]]\nname = \"wallets\"\nrequired-tags = [\"wallet\"]\nto = [\"lines\"]\n\
         [[topics]]\nname = \"all\"\nto = [\"all\"]\n",
    );
    let relay = place.relay("relay", &config, &[]);
    until(
        "published",
        || !place.types("lines.jsonl").is_empty() && place.types("all.jsonl").len() == 2,
        || relay.log(),
    )
    .await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(place.types("lines.jsonl"), ["DepositMade"]);
    let pairs: Vec<String> =
        outbox.log_admin().lag().await.unwrap().iter().map(|lag| lag.id.to_string()).collect();
    assert_eq!(
        pairs,
        ["all/all", "wallets/lines"],
        "positions are kept by the publishers' names in the file"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_not_there_ends_it_unless_it_is_to_wait() {
    let place = Place::new();
    let config = place.config(&TWO_FILES.replace("MODE", "multi-node"));
    let mut relay = place.relay("relay", &config, &[]);
    assert_eq!(relay.ended().await.code(), Some(1));
    assert!(relay.log().contains("outbox migrate"), "{}", relay.log());

    let relay = place.relay("patient", &config, &["--wait", "60s", "--listen", "127.0.0.1:0"]);
    relay.says("trying again for 60s").await;
    let (status, body) = relay.get("/readyz");
    assert_eq!((status, body.contains("starting")), (503, true), "{body}");
    let outbox = place.outbox("shop.db").await;
    outbox.send(event("order.1").json(&1)).await.unwrap();
    until("delivered", || place.types("orders.jsonl").len() == 1, || relay.log()).await;

    let nowhere = place.config(
        &TWO_FILES
            .replace("MODE", "multi-node")
            .replace("sqlite:{}/shop.db", "postgres://u:hunter2@127.0.0.1:1/x"),
    );
    let mut relay = place.relay("nowhere", &nowhere, &[]);
    assert_eq!(relay.ended().await.code(), Some(1));
    assert!(relay.log().contains("are host and port in `url` of `[database]` right?"), "{}", relay.log());
    assert!(!relay.log().contains("hunter2"));
    let waiting = place.relay("waiting", &nowhere, &["--wait", "60s"]);
    waiting.says("trying again").await;
    assert_eq!(waiting.stop().await.0.code(), Some(0), "told to stop while it waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_others_can_reach_is_refused_unless_asked_for() {
    let place = Place::new();
    place.outbox("shop.db").await;
    let config = place.config(&TWO_FILES.replace("MODE", "multi-node"));
    let mut relay = place.relay("relay", &config, &["--listen", "0.0.0.0:0"]);
    assert_eq!(relay.ended().await.code(), Some(2));
    assert!(relay.log().contains("can be reached from other machines"), "{}", relay.log());
    let relay = place.relay("open", &config, &["--listen", "0.0.0.0:0", "--allow-remote"]);
    relay.says("relay started").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_wrong_is_wrong_usage() {
    let place = Place::new();
    let config = place.config(&TWO_FILES.replace("MODE", "multi-node").replace("100ms", "100"));
    let mut relay = place.relay("relay", &config, &[]);
    assert_eq!(relay.ended().await.code(), Some(2));
    let how = "write a whole number and its unit, as in 500ms, 90s, 5m, 2h, 7d or 4w";
    assert_eq!(relay.log(), format!("{}:6:12: {how}\n", config.display()));
    let mut relay = place.relay("flags", &config, &["--publish", "stdout"]);
    assert_eq!(relay.ended().await.code(), Some(2));
    assert!(relay.log().contains("--publish is for a relay without --config"), "{}", relay.log());
}

/// Neither a password nor a payload is ever told, however much is logged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_told_in_logs_metrics_or_answers() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    let text = TWO_FILES
        .replace("MODE", "multi-node")
        .replace("{}/shop.db\"", "{}/shop.db?password=canary-url\"")
        .replace("{}/orders.jsonl", "{}/away/orders.jsonl");
    // SQLite refuses parameters that it does not know: so the URL is in an error as well.
    let refused = place.config(&text);
    let mut relay = place.relay("refused", &refused, &["--log", "trace"]);
    assert_eq!(relay.ended().await.code(), Some(1), "{}", relay.log());
    let mut told = relay.log();

    let config = place.config(&text.replace("?password=canary-url", ""));
    let relay = place.relay("relay", &config, &["--log", "trace", "--listen", "127.0.0.1:0"]);
    for event_type in ["order.1", "user.1"] {
        let secret = event(event_type).header("authorization", "canary-header").json(&"canary-payload");
        outbox.send(secret).await.unwrap();
    }
    until("delivered", || place.types("rest.jsonl").len() == 1, || relay.log()).await;
    relay.says("destination unavailable: its events wait").await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        told += &relay.get(path).1;
    }
    relay.signal("HUP");
    relay.says("was read again").await;
    told += &relay.stop().await.1;
    assert!(told.contains("DEBUG"), "{told}");
    for canary in ["canary-url", "canary-payload", "canary-header"] {
        assert!(
            !told.contains(canary),
            "{canary}: {}",
            told.lines().find(|line| line.contains(canary)).unwrap()
        );
    }
}

/// On the servers that the environment names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_delivers_from_servers() {
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
    let place = Place::new();
    let text = TWO_FILES
        .replace("MODE", "multi-node")
        .replace("sqlite:{}/shop.db\"", "URL\"\ntable = \"cfg_daemon\"");
    let config = place.config(&text.replace("URL", url));
    let relay = place.relay("relay", &config, &[]);
    until("delivered", || !place.types("orders.jsonl").is_empty(), || relay.log()).await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Databases of tests: where one is, and how its rows are aged.
async fn each_database(place: &Place, mut test: impl AsyncFnMut(&str, &str)) {
    place.outbox("aged.db").await.close().await;
    test(&place.url("aged.db"), "datetime('now', '-2 days')").await;
    if let Ok(url) = std::env::var("OUTBOX_TEST_POSTGRES") {
        test(&url, "now() - interval '2 days'").await;
    }
    if let Ok(url) = std::env::var("OUTBOX_TEST_MARIADB") {
        test(&url, "utc_timestamp() - interval 2 day").await;
    }
}

/// A-50, A-72: it deletes events that are done; undelivered ones only in so many words, and by
/// their age.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_only_delivers_nothing_and_purges_by_age_if_it_is_told_to() {
    let place = Place::new();
    each_database(&place, async |url, two_days_ago| {
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
        let config = place.config(&text(""));
        let relay = place.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
        relay.says("purged old DONE events").await;
        relay.ready().await;
        let (status, log) = relay.stop().await;
        assert_eq!((status.code(), kept().await), (Some(0), vec![true, true, false]), "{log}");
        let stats = store.stats().await.unwrap();
        assert_eq!((stats.new, stats.done, stats.dead), (2, 0, 0), "nothing is delivered");

        let config = place.config(&text("delete-undelivered = true\n"));
        let relay = place.relay("relay", &config, &[]);
        relay.says("purged old events by age, whatever their status").await;
        let (status, log) = relay.stop().await;
        assert_eq!((status.code(), kept().await), (Some(0), vec![false, true, false]), "{log}");
    })
    .await;
}

/// Has events whose type starts with `old` written two days ago, and done where the type says so.
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

/// By flags as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_only_by_flags_needs_nothing_to_publish_to() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    outbox.send(event("order.placed").json(&1)).await.unwrap();
    let url = place.url("shop.db");
    let relay = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"));
        command.args(["relay", "--mode", "WRITER_ONLY", "--database", &url]).args(more);
        command.env_remove("OUTBOX_CONFIG").stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let refused = relay(&["--publish", "stdout"]).wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("--mode writer-only delivers nothing: leave --publish and --topic out"), "{told}");

    let mut running = relay(&[]);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(running.stderr.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("relay started")));
    let pid = running.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert_eq!(outbox.admin().stats().await.unwrap().new, 1);
}

/// C-05: the log and the statistics of the library as destinations of routes and of topics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_logged_and_counted_by_the_publishers_of_the_library() {
    let place = Place::new();
    each_database(&place, async |url, _| {
        let table = format!("counted_{}", std::process::id());
        let store = outbox::open_store(url, &outbox::StoreOptions::default().table(&table)).await.unwrap();
        store.migrate().await.unwrap();
        let config = place.config(&format!(
            "[database]\nurl = \"{url}\"\ntable = \"{table}\"\n[poller]\ninterval = \"50ms\"\n[log]\nwatch = \"20ms\"\n\
             [publishers.trail.log]\n[publishers.counts.statistics]\nevery = \"365d\"\n\
             [[routes]]\ntype = \"order.*\"\nto = \"trail\"\n[[routes]]\nto = \"counts\"\n\
             [[topics]]\nname = \"everything\"\nto = [\"trail\", \"counts\"]\n"
        ));
        let relay = place.relay("relay", &config, &["--listen", "127.0.0.1:0"]);
        let secret = event("order.placed").json(&"s3cret-payload").build().unwrap();
        let counted = (0..5).map(|n| event("user.created").json(&n).build().unwrap());
        store.insert(&counted.chain([secret]).collect::<Vec<_>>()).await.unwrap();
        let log = store.log().expect("it has a log");
        let _ = log.append(&[event("WalletOpened").json(&1).build().unwrap()], &outbox::Condition::default()).await.unwrap();
        relay.says("event published publisher=\"trail\"").await;
        relay.says("event_type=WalletOpened").await;
        let all_done = async || {
            let stats = store.stats().await.unwrap();
            (stats.new, stats.done, stats.dead) == (0, 6, 0)
        };
        while !all_done().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let counted = |line: &str| line.starts_with("outbox_log_published") && line.contains("counts") && line.ends_with(" 1");
        let is_counted = || relay.get("/metrics").1.lines().any(counted);
        until("the topic is counted", is_counted, || relay.get("/metrics").1).await;
        let (status, log) = relay.stop().await;
        assert_eq!(status.code(), Some(0), "{log}");
        let line = log.lines().find(|line| line.contains("events counted")).expect("counts at the end");
        assert!(line.contains("publisher=\"counts\" total=6") && line.contains("user.created 5, WalletOpened 1"), "{line}");
        assert_eq!(log.matches("event_type=order.placed").count(), 1, "{log}");
        assert!(!log.contains("s3cret-payload") && !log.contains("event_type=user.created"), "{log}");
    })
    .await;
}

/// A broker that is not there at first is waited for, and nothing is lost or dead.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_late_gets_everything() {
    let place = Place::new();
    let outbox = place.outbox("shop.db").await;
    let Ok(mut redis) = daemons::Redis::new(&place) else {
        return eprintln!("skipped: no redis-server here");
    };
    let config = place.config(&format!(
        "[database]\nurl = \"sqlite:{{}}/shop.db\"\n[poller]\ninterval = \"100ms\"\n[publishers.orders.redis]\n\
         url = \"redis://127.0.0.1:{}\"\nstream = \"{{tenant_id}}.orders\"\n[[routes]]\nto = \"orders\"\n",
        redis.port
    ));
    let relay = place.relay("relay", &config, &[]);
    relay.says("the publisher `orders` (redis) is not available yet, its events wait: ").await;
    outbox.send_all((0..20).map(|n| event("n").tenant("acme").json(&n))).await.unwrap();
    relay.says("destination unavailable: its events wait").await;
    redis.start();
    until("all are there", || redis.ask("XLEN acme.orders") == ":20", || relay.log()).await;
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(outbox.admin().stats().await.unwrap().done, 20);
}
