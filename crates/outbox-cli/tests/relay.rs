//! `outbox relay` without a settings file: output and exit of the real binary.

mod polling;

use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use outbox::{Event, Outbox};
use sqlx::Sqlite;

/// A relay process.
struct Relay(Child);

impl Relay {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command.arg("relay").args(arguments).env_remove("DATABASE_URL").env_remove("OUTBOX_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Reads lines of its standard output as JSON.
    fn lines(&mut self, count: usize) -> Vec<serde_json::Value> {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        lines.take(count).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    }

    fn terminate(self) -> Output {
        assert!(Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap().success());
        self.0.wait_with_output().unwrap()
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn shop(folder: &Path) -> (String, Outbox<Sqlite>) {
    let url = format!("sqlite:{}", folder.join("shop.db").display());
    let outbox = Outbox::sqlite(&url).await.unwrap();
    (url, outbox)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_a_line_and_sigterm_stops_the_relay_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let (url, outbox) = shop(folder.path()).await;
    outbox.migrate().await.unwrap();
    let event = Event::new("order.placed")
        .aggregate("order", "42")
        .ordering_key("order-42")
        .tenant("acme")
        .correlation("story")
        .header("source", "web")
        .json(&serde_json::json!({ "total": 995 }));
    let id = outbox.send(event).await.unwrap().id;
    outbox.log().append([Event::new("DepositMade").tag("wallet", 1).json(&5)]).await.unwrap();

    let mut relay = Relay::start(&["--database", &url, "--publish", "stdout", "--topic", "all"]);
    let lines = tokio::task::block_in_place(|| relay.lines(2));
    let of = |name: &str| lines.iter().find(|line| line["type"] == name).unwrap();
    let order = of("order.placed");
    assert_eq!(order["id"], id.as_str());
    assert_eq!((&order["aggregate_type"], &order["aggregate_id"]), (&"order".into(), &"42".into()));
    assert_eq!((&order["key"], &order["tenant_id"]), (&"order-42".into(), &"acme".into()));
    assert_eq!((&order["correlation_id"], &order["headers"]["source"]), (&"story".into(), &"web".into()));
    assert_eq!((&order["payload"]["total"], &order["attempt"]), (&995.into(), &1.into()));
    let deposit = of("DepositMade");
    assert_eq!((&deposit["position"], &deposit["tags"][0]), (&1.into(), &"wallet=1".into()));
    let stored_at = outbox.admin().find(&id).await.unwrap().unwrap().created_at;
    assert_eq!(order["created_at"], stored_at.to_rfc3339());
    assert!(deposit["created_at"].is_string(), "{deposit}");

    let stopped = relay.terminate();
    assert_eq!(stopped.status.code(), Some(0), "{}", err(&stopped));
    assert!(stopped.stdout.is_empty(), "log lines go to standard error");
    assert!(err(&stopped).contains("relay started"), "{}", err(&stopped));
    assert!(!err(&stopped).contains("995"), "no payload in a log line");
    assert_eq!(outbox.admin().stats().await.unwrap().done, 1);
    assert_eq!(outbox.log_admin().lag().await.unwrap()[0].behind, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_appends_to_a_file_and_deletes_done_events() {
    let folder = tempfile::tempdir().unwrap();
    let (url, outbox) = shop(folder.path()).await;
    let file = folder.path().join("events.jsonl");
    // An incomplete last line, as after a crash.
    std::fs::write(&file, "{\"id\": \"half").unwrap();
    let publish = format!("file:{}", file.display());
    let relay = Relay::start(&[
        "--database",
        &url,
        "--migrate",
        "--publish",
        &publish,
        "--completion",
        "delete",
        "--mode",
        "single-node",
        "--workers",
        "2",
        "--batch",
        "10",
        "--poll-interval",
        "100ms",
        "--lease",
        "30s",
    ]);
    let is_created = async || outbox.store().check_schema().await.is_ok();
    polling::until("the relay creates the tables", is_created, String::new).await;
    outbox.send_all((0..50).map(|n| Event::new("n").json(&n))).await.unwrap();
    let is_written = async || std::fs::read_to_string(&file).unwrap_or_default().lines().count() >= 51;
    polling::until("the relay writes the events", is_written, String::new).await;
    let stopped = tokio::task::block_in_place(|| relay.terminate());
    assert_eq!(stopped.status.code(), Some(0), "{}", err(&stopped));
    assert_eq!(outbox.admin().stats().await.unwrap(), outbox::store::Stats::default());
    let mut numbers: Vec<u64> = std::fs::read_to_string(&file)
        .unwrap()
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["payload"].as_u64().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
}

/// As in `outbox relay … | less`, if the pager reads no further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_has_stopped_reading_does_not_keep_the_relay_running() {
    let folder = tempfile::tempdir().unwrap();
    let (url, outbox) = shop(folder.path()).await;
    outbox.migrate().await.unwrap();
    outbox.send_all((0..100).map(|_| Event::new("big").json(&"x".repeat(10_000)))).await.unwrap();
    let mut relay = Relay::start(&["--database", &url, "--publish", "stdout", "--lease", "1s"]);
    assert_eq!(
        tokio::task::block_in_place(|| relay.0.stdout.as_mut().unwrap().read(&mut [0; 10])).unwrap(),
        10
    );
    // The first signal waits for events in flight, which do not fit into the pipe. The second one
    // exits at once; one that is sent before the first is handled counts as the same.
    let exited = async || {
        let status = relay.0.try_wait().unwrap();
        if status.is_none() {
            let pid = relay.0.id().to_string();
            assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        }
        status.ok_or("")
    };
    let status = polling::within(Duration::from_secs(30), "the relay exits", exited, String::new).await;
    assert_eq!(status.code(), Some(130), "it did not wait for its events");
    assert_eq!(outbox.admin().stats().await.unwrap().dead, 0);
}

/// As in `outbox relay … | head`. Events that were not written stay pending, and none is
/// dead-lettered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pipe_ends_the_relay_and_loses_no_event() {
    let folder = tempfile::tempdir().unwrap();
    let (url, outbox) = shop(folder.path()).await;
    outbox.migrate().await.unwrap();
    let mut relay = Relay::start(&["--database", &url, "--publish", "stdout", "--poll-interval", "100ms"]);
    outbox.send(Event::new("n").json(&1)).await.unwrap();
    assert_eq!(tokio::task::block_in_place(|| relay.lines(1)).len(), 1);
    drop(relay.0.stdout.take());
    outbox.send_all((0..200).map(|n| Event::new("n").json(&n))).await.unwrap();
    let ended = tokio::task::block_in_place(|| relay.0.wait_with_output().unwrap());
    assert_eq!(ended.status.code(), Some(1), "{}", err(&ended));
    assert!(
        err(&ended).contains("standard output is closed; events that were not written stay"),
        "{}",
        err(&ended)
    );
    let stats = outbox.admin().stats().await.unwrap();
    assert_eq!((stats.dead, stats.new + stats.retry + stats.done), (0, 201));
    assert!(stats.new + stats.retry > 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_tables_are_created_only_with_migrate() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let ended = Relay::start(&["--database", &url, "--publish", "stdout"]).0.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(err(&ended).contains("outbox migrate"), "{}", err(&ended));
}

#[test]
fn wrong_usage_has_exit_code_2() {
    for (arguments, message) in [
        (&["--database", "sqlite:x.db"][..], "--publish"),
        (&["--database", "sqlite:x.db", "--publish", "kafka"], "use stdout, or file:PATH"),
        (
            &["--database", "sqlite:x.db", "--publish", "stdout", "--lease", "5"],
            "500ms, 90s, 5m, 2h, 7d or 4w",
        ),
        (&["--database", "sqlite:x.db", "--publish", "stdout", "--mode", "many"], "single-node"),
        (
            &["--database", "sqlite::memory:", "--migrate", "--publish", "stdout", "--workers", "0"],
            "0 is not a whole number from 1",
        ),
        (&["--database", "ada:s3cret@db", "--publish", "stdout"], "which kind of database"),
    ] {
        let ended = Relay::start(arguments).0.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {}", err(&ended));
        assert!(err(&ended).contains(message), "{arguments:?}: {}", err(&ended));
        assert!(!err(&ended).contains("s3cret"), "{}", err(&ended));
    }
}
