//! A relay from PostgreSQL to NATS that is killed repeatedly.
//!
//! Three times by default; `OUTBOX_KILLS=50` is the full test.
#![cfg(feature = "nats")]

mod polling;
mod streams;

use std::collections::{BTreeSet, HashMap};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::stream::Config;
use futures_util::StreamExt as _;
use outbox_testbed::{Plan, Server};
use sqlx::{AssertSqlSafe, PgPool};

/// Maximum number of events that a relay may have published and not settled: its queue and the
/// batches of its workers.
const IN_FLIGHT: usize = 1_000 + 4 * 250;

fn postgres() -> Option<String> {
    let url = std::env::var("OUTBOX_TEST_POSTGRES").ok();
    assert!(
        url.is_some() || std::env::var("OUTBOX_TEST_REQUIRE").is_err(),
        "OUTBOX_TEST_POSTGRES is not set"
    );
    url.filter(|_| Plan::nats().is_here())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_in_flight_of_a_killed_relay_are_delivered() {
    let Some(url) = postgres() else { return };
    kill_and_count("kills", &url, &url).await;
}

/// The sessions of the pooler outlive the killed relay, and the transactions of the relay in them
/// are rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_in_flight_of_a_killed_relay_behind_a_pooler_are_delivered() {
    let Some(url) = postgres() else { return };
    let pooler = Plan::pgbouncer(&url);
    if pooler.is_here() {
        kill_and_count("pooled_kills", &url, &pooler.start().url()).await;
    }
}

/// Kills relays that use the database at `url`, while events are written at `direct`.
async fn kill_and_count(name: &str, direct: &str, url: &str) {
    let kills: usize =
        std::env::var("OUTBOX_KILLS").map_or(3, |n| n.parse().expect("OUTBOX_KILLS is a number"));
    let nats = Plan::nats().start();
    let stream = stream(&nats).await;
    let dir = tempfile::tempdir().unwrap();
    let table = format!("{name}{}_event", std::process::id());
    let config = dir.path().join("outbox.toml");
    std::fs::write(&config, settings(url, &table, &nats)).unwrap();
    assert!(outbox(&["migrate", "--database", url, "--table", &table]).wait().unwrap().success());

    let pool = PgPool::connect(direct).await.unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(pool.clone(), table.clone(), enough.clone()));
    let relay = || outbox(&["relay", "--config", config.to_str().unwrap()]);
    let mut running = relay();
    for n in 0..kills {
        // Killed at different moments, some of them while it starts.
        tokio::time::sleep(Duration::from_millis(300 + (n as u64 * 137) % 900)).await;
        running.kill().unwrap();
        running.wait().unwrap();
        running = relay();
    }
    enough.store(true, Ordering::SeqCst);
    let written = writer.await.unwrap();
    let left = format!("SELECT count(*) FROM {table}");
    let delivered = async || {
        assert!(running.try_wait().unwrap().is_none(), "the relay ended");
        match sqlx::query_scalar::<_, i64>(AssertSqlSafe(left.clone())).fetch_one(&pool).await.unwrap() {
            0 => Ok(()),
            left => Err(left),
        }
    };
    polling::within(Duration::from_secs(300), "all events are delivered", delivered, String::new).await;
    terminate(&running);
    assert!(running.wait().unwrap().success(), "exit code after SIGTERM");

    let arrived = read(stream).await;
    let ids: BTreeSet<&String> = arrived.keys().collect();
    assert_eq!(ids, written.iter().collect(), "all committed events and nothing else");
    let again: usize = arrived.values().map(|times| times - 1).sum();
    println!("{} events, {kills} kills: none lost, {again} repeated", written.len());
    assert!(again <= kills * IN_FLIGHT, "{again} events repeated, more than can have been in flight");
}

/// Creates a stream with a short duplicate window, so that repeated events are visible.
async fn stream(nats: &Server) -> jetstream::stream::Stream {
    let config = Config {
        name: "kills".into(),
        subjects: vec!["kills.>".into()],
        duplicate_window: Duration::from_millis(100),
        ..Config::default()
    };
    streams::jetstream(nats).await.create_stream(config).await.unwrap()
}

fn settings(url: &str, table: &str, nats: &Server) -> String {
    format!(
        r#"
mode = "multi-node"
completion = "delete"
[database]
url = "{url}"
table = "{table}"
[claim-locking]
lease = "2s"
[poller]
interval = "200ms"
[publishers.broker.nats]
url = "{}"
subject = "kills.{{type}}"
[[routes]]
to = "broker"
"#,
        nats.url()
    )
}

fn outbox(arguments: &[&str]) -> Child {
    let log = if std::env::var_os("OUTBOX_KILLS").is_some() { Stdio::inherit() } else { Stdio::null() };
    Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(arguments)
        .args(["--log", "error"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn terminate(child: &Child) {
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
}

/// Writes small transactions, and rolls some back. Returns the ids of committed events.
async fn write(pool: PgPool, table: String, enough: Arc<AtomicBool>) -> Vec<String> {
    let mut written = Vec::new();
    let mut round = 0;
    while !enough.load(Ordering::SeqCst) {
        let ids: Vec<String> = (0..20).map(|n| format!("{round}-{n}")).collect();
        let mut tx = pool.begin().await.unwrap();
        let insert = format!(
            "INSERT INTO {table} (event_id, event_type, payload) SELECT id, 'order.placed', '{{}}' FROM unnest($1::text[]) id"
        );
        sqlx::query(AssertSqlSafe(insert)).bind(&ids).execute(&mut *tx).await.unwrap();
        if round % 7 == 3 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            written.extend(ids);
        }
        round += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    written
}

/// Number of occurrences of each event in the stream.
async fn read(stream: jetstream::stream::Stream) -> HashMap<String, usize> {
    let expected = stream.get_info().await.unwrap().state.messages;
    let config = jetstream::consumer::pull::OrderedConfig::default();
    let mut messages = stream.create_consumer(config).await.unwrap().messages().await.unwrap();
    let mut arrived = HashMap::new();
    for _ in 0..expected {
        let message = messages.next().await.unwrap().unwrap();
        let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id")).unwrap();
        *arrived.entry(id.to_string()).or_default() += 1;
    }
    arrived
}
