//! `outbox` behind PgBouncer in transaction mode: commands, and a relay that keeps order although
//! it is killed.

mod daemons;

use std::collections::HashMap;
use std::process::Command;

use daemons::{TestDir, wait_until};
use outbox::{Event, OutboxBuilder};
use outbox_testbed::{Plan, Server};
use serde_json::Value;

const KEYS: u32 = 5;
const ROUNDS: u32 = 60;

fn pooler() -> Option<Server> {
    let url = std::env::var("OUTBOX_TEST_POSTGRES").ok();
    assert!(
        url.is_some() || std::env::var("OUTBOX_TEST_REQUIRE").is_err(),
        "OUTBOX_TEST_POSTGRES is not set"
    );
    let plan = Plan::pgbouncer(&url?);
    plan.is_here().then(|| plan.start())
}

fn run(url: &str, table: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    let output = command.args(arguments).args(["--database", url, "--table", table]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out
}

const SETTINGS: &str = r#"
mode = "ordered"
[database]
url = "URL"
table = "TABLE"
[claim-locking]
lease = "2s"
[poller]
interval = "100ms"
[publishers.lines.file]
path = "{}/lines.jsonl"
[[routes]]
to = "lines"
"#;

/// Numbers of the events that arrived, by key and without repetitions: events in flight of a killed
/// relay may be repeated.
fn arrived(dir: &TestDir) -> HashMap<String, Vec<u64>> {
    let text = std::fs::read_to_string(dir.path("lines.jsonl")).unwrap_or_default();
    let mut arrived: HashMap<String, Vec<u64>> = HashMap::new();
    // A killed relay may have written a part of the last line.
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let number = event["payload"].as_u64().unwrap();
        let key = event["key"].as_str().unwrap().to_owned();
        let numbers = arrived.entry(key).or_default();
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    arrived
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_behind_a_pooler_delivers_in_order_though_it_is_killed() {
    let Some(pooler) = pooler() else { return };
    let (url, table) = (pooler.url(), format!("pooled{}_event", std::process::id()));
    assert!(run(&url, &table, &["migrate"]).contains("migrated to version"));
    assert!(run(&url, &table, &["migrate"]).contains("is already at version"));

    let dir = TestDir::new();
    let config = dir.config(&SETTINGS.replace("URL", &url).replace("TABLE", &table));
    let outbox = OutboxBuilder::new().table(&table).postgres(&url).await.unwrap();
    let mut relay = dir.relay("relay", &config, &[]);
    for number in 0..ROUNDS {
        let event = |key| Event::new("order.placed").json(&number).ordering_key(format!("k{key}"));
        outbox.send_all((0..KEYS).map(event)).await.unwrap();
        if number % 20 == 10 {
            let before = arrived(&dir).values().map(Vec::len).sum::<usize>();
            let more = || arrived(&dir).values().map(Vec::len).sum::<usize>() > before;
            wait_until("it delivers", more, || relay.log()).await;
            relay.signal("KILL");
            relay.wait_for_exit().await;
            relay = dir.relay(&format!("relay{number}"), &config, &[]);
        }
    }
    let all = |numbers: &Vec<u64>| numbers.len() == ROUNDS as usize;
    let there = || arrived(&dir).values().filter(|numbers| all(numbers)).count() == KEYS as usize;
    wait_until("all are delivered", there, || relay.log()).await;
    for (key, numbers) in arrived(&dir) {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
    let (status, log) = relay.stop().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("behind a pooler in transaction mode"), "{log}");
    assert_eq!(log.matches("behind a pooler").count(), 1, "logged once: {log}");

    let status: Value = serde_json::from_str(&run(&url, &table, &["status", "--json"])).unwrap();
    assert!(status.to_string().contains(&(KEYS * ROUNDS).to_string()), "{status}");
    run(&url, &table, &["send", "--type", "user.created", "--payload", "1"]);
    run(&url, &table, &["events", "list", "--type", "user.created"]);
}
